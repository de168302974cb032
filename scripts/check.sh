#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Format, lints, tidy, generated documents, documentation build. Warnings are denied here, by
# environment, never in the source. Arguments are passed to every cargo call that resolves
# dependencies (CI: --locked).
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== check: %s\n' "$*"; }

step "format"
cargo fmt --all --check
step "lints"
cargo clippy --workspace --all-targets "$@" -- -D warnings
step "fuzz targets compile"
cargo check --quiet --manifest-path fuzz/Cargo.toml --target-dir target "$@"
step "tidy"
cargo xtask tidy
# With the targets and features of `make test`, which then finds this build.
step "generated documents"
cargo build --quiet --workspace --all-targets "$@"
cargo xtask docs --check --program target/debug/millrace
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items "$@"
printf '\n== check: passed\n'
