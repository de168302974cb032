#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Every test of the workspace, in the dev profile, the tests that face servers and OpenSSL once more with
# Debian 13's, and what monitors a pool. The programs under test are built first, because whole-system
# tests start them as real programs. Ends with the list of tests that were skipped, by reason; with CI=true a
# skip whose reason tests/allowed-skips.tsv does not list is a failure. Arguments go to cargo (CI: --locked).
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== test: %s\n' "$*"; }

export MILLRACE_SKIPPED=$PWD/target/skipped.tsv
mkdir -p target
: >"$MILLRACE_SKIPPED"

# All targets in one call, as cargo test takes them: other selections have other features of their dependencies,
# which would be compiled once more for each.
step "build"
cargo build --workspace --all-targets "$@"
step "build of the previous version"
scripts/previous-version.sh
# Both releases at a time: most of their tests wait for servers, clients and deadlines, not for a core.
step "unit, integration and whole-system tests; those of Debian 13 at the same time, printed below"
status=0
debian13=$PWD/target/debian13.log
scripts/test-debian13.sh "$@" >"$debian13" 2>&1 &
debian13_pid=$!
trap 'kill "$debian13_pid" 2>/dev/null || true' EXIT
cargo test --workspace --no-fail-fast "$@" || status=$?
step "the same servers and clients, of Debian 13"
wait "$debian13_pid" || status=$?
trap - EXIT
cat "$debian13"
step "alert rules by promtool, and the SNMP extension under snmpd"
scripts/test-alerts.sh || status=$?
python3 -B tests/snmp/test_snmp.py || status=$?

scripts/skipped.sh "$MILLRACE_SKIPPED" || status=$?
if ((status != 0)); then
    printf '\n== test: FAILED\n'
    exit "$status"
fi
printf '\n== test: passed\n'
