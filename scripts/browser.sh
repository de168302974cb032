#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# A browser as a client: Debian 13's Chromium, unpacked into target/chromium and run without a window, against
# nginx of this machine with local primitives. Behind `make test-browser`; arguments go to cargo.
set -euo pipefail
cd "$(dirname "$0")/.."

ROOT=target/chromium
scripts/unpack-debian.sh trixie "$ROOT" chromium coreutils fonts-dejavu-core
MILLRACE_BROWSER_ROOT=$ROOT cargo test -p millrace-tests --test post_quantum "$@" -- --ignored chromium
