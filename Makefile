# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The menu. Everything a developer or CI does is one of these targets; what needs more than a few
# lines lives in scripts/ or in xtask/.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# Extra flags for every cargo call that resolves dependencies; CI passes --locked.
CARGO_FLAGS ?=
# Seconds per fuzz target, and the one target to run (all if empty).
SECS ?= 30
TARGET ?=
# Extra arguments for the benchmarks: make bench-pool ARGS="--duration 3s"
ARGS ?=

# Where make install puts things; DESTDIR goes in front, for packages.
PREFIX ?= /usr/local
DESTDIR ?=
# make uninstall PURGE=yes removes keys and settings, too.
PURGE ?= no

MILLRACE := target/release/millrace
ARTIFACTS := -p millrace-cli -p millrace-provider -p millrace-preload -p millrace-zlib

.PHONY: help setup build install uninstall demo demo-pool demo-vm demo-vpn check test test-alerts \
  test-api test-arm test-browser test-cuda test-debian13 test-evp test-install test-long test-page test-pool \
  test-qat test-release test-sanitizers test-system-wide test-taint test-timing test-vm fuzz judges judges-openssl \
  nightly bench-crypto bench-manager bench-pool bench-tls bench-virtio bench-workers cuda cuda-check docs clean

help: ## This menu
	@echo 'Millrace: a shared crypto-acceleration layer for TLS gateways'
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'A fresh Debian machine needs only Rust: demo, test and check install the rest.'

setup: ## Install the Debian packages that build and tests need (asks for root only if one is missing)
	@scripts/setup.sh

build: setup ## Build the binary, the OpenSSL provider and the nginx preload library (release)
	@$(CARGO) build --release $(CARGO_FLAGS) $(ARTIFACTS)
	@echo "built in target/release: millrace, libmillrace_provider.so, libmillrace_preload.so, libmillrace_zlib.so"

install: ## Install what was built, as root: PREFIX=/usr/local, DESTDIR for packages
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' scripts/install.sh

uninstall: ## Remove what make install installed, as root; PURGE=yes removes keys and settings, too
	@DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' PURGE='$(PURGE)' scripts/uninstall.sh

demo: build ## Walking tour: a node, HAProxy and nginx with pooled keys, and a table of numbers
	@scripts/demo.sh

demo-pool: build ## A pool of two managers, three nodes and two tenants: a quota changes, a manager and a node are killed
	@scripts/demo-pool.sh

demo-vm: setup ## A stock Linux guest whose signatures the node of the host makes, by its counters; the device is killed
	@scripts/vm.sh
	@$(CARGO) build $(CARGO_FLAGS) -p millrace-cli
	@tests/vm/run.sh --demo

demo-vpn: build ## A link of four OpenVPN tunnels between two namespaces: a member dies under iperf3; a table (as root)
	@scripts/demo-vpn.sh $(ARGS)

check: setup ## Format, lints, tidy, generated docs, doc build: warnings denied
	@scripts/check.sh $(CARGO_FLAGS)

test: setup ## Everything that has to pass: unit, integration and whole-system tests, on both Debian releases
	@scripts/test.sh $(CARGO_FLAGS)

test-alerts: setup ## Alert rules and dashboard: promtool, a real Prometheus at a real pool, Grafana's types
	@$(CARGO) build $(CARGO_FLAGS) -p millrace-cli
	@scripts/test-alerts.sh

test-api: setup ## Schemathesis against a real manager, from its OpenAPI document (SECS=120)
	@$(CARGO) build $(CARGO_FLAGS) -p millrace-cli
	@SECS=$(if $(filter 30,$(SECS)),120,$(SECS)) scripts/test-api.sh

test-arm: setup ## The provider and stacks of jobs for 64-bit Arm under user emulation (unpacks 2 GB)
	@set -e; for suite in bookworm trixie; do \
		folder=$$(scripts/arm.sh $$suite); \
		MILLRACE_TEST_ARM=$$folder $(CARGO) test $(CARGO_FLAGS) -p millrace-provider --no-fail-fast \
			--test local --test local_keys --test local_process --test local_records; \
		MILLRACE_TEST_ARM=$$folder $(CARGO) test $(CARGO_FLAGS) -p millrace-tests --test preload_stacks -- \
			overflow_ends stacks_come_back; \
	done
	@tests/arm/run.sh

test-browser: setup ## Debian 13's Chromium against nginx with the post-quantum group (unpacks 700 MB)
	@scripts/browser.sh $(CARGO_FLAGS)

test-cuda: ## The cuda backend at length: on a GPU where there is one, its kernels on the processor everywhere
	@MILLRACE_LONG=1 $(CARGO) test --release -p millrace-backends $(CARGO_FLAGS) --test cuda -- --nocapture

test-debian13: setup ## Only the tests that face servers and OpenSSL, with Debian 13's in an unpacked folder
	@scripts/test-debian13.sh $(CARGO_FLAGS)

test-evp: setup ## The recipes of OpenSSL's own test suite through the provider, on both Debian releases
	@$(CARGO) test $(CARGO_FLAGS) -p millrace-provider --test evp
	@scripts/debian13.sh
	@MILLRACE_TEST_ROOT=target/debian13 $(CARGO) test $(CARGO_FLAGS) -p millrace-provider --test evp

test-install: build ## README and the guides, word for word, on clean Debian 12 and 13 machines (as root; ARGS="12 systemd")
	@scripts/test-install.sh $(ARGS)

test-system-wide: build ## The provider in every program of a clean Debian 13: sshd, curl, apt, sudo (as root)
	@scripts/test-system-wide.sh

test-long: setup ## Backends and the whole system at length, on both releases, for hours
	@MILLRACE_LONG=1 $(CARGO) test --release -p millrace-backends --no-fail-fast $(CARGO_FLAGS)
	@MILLRACE_LONG=1 $(CARGO) test -p millrace-tests --no-fail-fast $(CARGO_FLAGS)
	@MILLRACE_LONG=1 scripts/test-debian13.sh $(CARGO_FLAGS)

test-page: setup ## The page of a pool and of a node in a headless Chromium: content, events, accessibility
	@$(CARGO) build $(CARGO_FLAGS) -p millrace-cli
	@scripts/test-page.sh

test-pool: setup ## Faults, restarts and upgrades of a pool, with recovery times (partitions and links as root)
	@$(CARGO) test $(CARGO_FLAGS) -p millrace-tests --test pool --test pool_faults --test pool_keys --test pool_upgrades -- --nocapture

test-qat: setup ## The backend qat on a stand-in for the card, under Intel's libraries of Debian 13 and unstable
	@$(CARGO) test $(CARGO_FLAGS) -p millrace-backends --test qat -- $(ARGS)
	@$(CARGO) test $(CARGO_FLAGS) -p millrace-deflate --test qat

test-release: build ## The whole-system tests on the release artefacts, as they are shipped
	@MILLRACE_ARTIFACTS=$(CURDIR)/target/release $(CARGO) test -p millrace-tests --no-fail-fast $(CARGO_FLAGS)

test-sanitizers: setup ## The compression library under AddressSanitizer: its tests, zlib's programs, nginx
	@scripts/test-sanitizers.sh $(CARGO_FLAGS)

test-taint: setup ## Secrets of the lanes followed by memcheck, and their machine code looked through
	@$(CARGO) test --release -p millrace-backends $(CARGO_FLAGS) --lib -- --nocapture --test-threads=1 \
		timing_tests::memcheck_finds_ timing_tests::kernels_move_ | tee target/test-taint.log
	@grep -q ' 2 passed' target/test-taint.log || { echo 'test-taint: its two tests did not run' >&2; exit 1; }

test-timing: ## Constant time by measurement, for some minutes: prints t
	@MILLRACE_LONG=1 $(CARGO) test --release -p millrace-backends $(CARGO_FLAGS) \
		take_the_same_time -- --nocapture --test-threads=1

test-vm: setup ## Stock Debian kernels under an emulated QEMU: a virtio-crypto device, IPsec and ciphers by the kernel, AppArmor, a node on 9p
	@scripts/vm.sh
	@$(CARGO) build $(CARGO_FLAGS) -p millrace-cli -p millrace-provider
	@tests/vm/run.sh
	@tests/vm/vpn.sh
	@tests/vm/bulk.sh
	@tests/vm/apparmor.sh
	@tests/vm/stores.sh

fuzz: setup ## Fuzz every parser of foreign bytes: make fuzz SECS=60 [TARGET=frames]
	@SECS='$(SECS)' TARGET='$(TARGET)' fuzz/run.sh

judges: setup ## Other people's suites without and with Millrace, on both releases (ARGS="python ruby", NGINX_TESTS=PATH)
	@$(CARGO) build $(CARGO_FLAGS) $(ARTIFACTS)
	@NGINX_TESTS='$(NGINX_TESTS)' scripts/judges.sh $(ARGS)

judges-openssl: setup ## Keys, signatures and handshakes on OpenSSL 3.0.2 and 4.0.3, which no Debian release has
	@failed=; for version in 3.0.2 4.0.3; do \
		root=$$(scripts/openssl-release.sh $$version) || { failed=1; continue; }; \
		export MILLRACE_TEST_ROOT=$$root; \
		$(CARGO) test $(CARGO_FLAGS) -p millrace-provider --no-fail-fast \
			--test openssl --test local --test local_keys || failed=1; \
		$(CARGO) test $(CARGO_FLAGS) -p millrace-tests --no-fail-fast --test openssl_tls || failed=1; \
	done; [ -z "$$failed" ]

nightly: setup ## Fuzz, taint, timing, release artefacts, demonstrations, long tests; writes docs/nightly.md (hours)
	@scripts/nightly.sh $(ARGS)

bench-crypto: build ## Every operation on every backend, beside AWS-LC and OpenSSL (ARGS=...)
	@$(MILLRACE) bench crypto $(ARGS)

bench-manager: build ## Placement of 50,000 grants over 1,000 simulated nodes, and the traffic of a real etcd (ARGS=...)
	@MILLRACE=$(MILLRACE) scripts/bench-manager.sh $(ARGS)

bench-pool: build ## Pooled against direct operations, paired and verified (ARGS=... passes flags)
	@$(MILLRACE) bench pool $(ARGS)

bench-tls: build ## TLS handshakes with and without the pool, paired and verified (ARGS=...)
	@$(MILLRACE) bench tls $(ARGS)

bench-virtio: build ## Work through the rings of a virtio-crypto device, beside the same work called directly (ARGS=...)
	@$(MILLRACE) bench virtio $(ARGS)

bench-workers: setup ## A node's queue with 1, 2, 4 and 8 workers, whose jobs sleep (ARGS="SECONDS MICROSECONDS ROUNDS")
	@$(CARGO) run --release $(CARGO_FLAGS) -p millrace-testkit --example worker_scaling -- $(ARGS)

cuda: ## Build the GPU kernels (CUDA 13.0 from Python wheels; no GPU needed) and check their machine code
	@scripts/cuda.sh build

cuda-check: ## The same, compared with the kernels that are committed
	@scripts/cuda.sh check

docs: ## Regenerate docs/reference from the code (make check compares them)
	@$(CARGO) xtask docs

clean: ## Remove everything that was built
	@$(CARGO) clean
	@rm -rf fuzz/target
