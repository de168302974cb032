#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Every test of the workspace, in the dev profile. The binary and the provider are built first,
# because whole-system tests start them as real programs. Arguments go to cargo (CI: --locked).
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== test: %s\n' "$*"; }

step "build"
cargo build --workspace "$@"
step "unit, integration and whole-system tests"
cargo test --workspace --no-fail-fast "$@"
printf '\n== test: passed\n'
