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
# Three lists at a time, since most tests wait for servers, clients and deadlines, not for a core.
# shellcheck source=scripts/test-programs.sh
source scripts/test-programs.sh
programs=$(test_programs "$@")
lanes=$PWD/target/test-lanes
mkdir -p "$lanes"
status=0
lane_ids=()
trap 'kill "${lane_ids[@]}" 2>/dev/null || true' EXIT
scripts/test-debian13.sh "$@" >"$lanes/debian13" 2>&1 &
lane_ids+=($!)
run_programs < <(grep "^$PWD/tests " <<<"$programs") >"$lanes/whole-system" 2>&1 &
lane_ids+=($!)
step "unit and integration tests; whole-system tests on this machine's programs and on Debian 13's at the same time"
run_programs < <(grep -v "^$PWD/tests " <<<"$programs") || status=$?
cargo test --workspace --doc "$@" || status=$?
step "whole-system tests"
wait "${lane_ids[1]}" || status=$?
cat "$lanes/whole-system"
step "the same servers and clients, of Debian 13"
wait "${lane_ids[0]}" || status=$?
cat "$lanes/debian13"
trap - EXIT
step "a part of Python's own tests of TLS, without and with Millrace"
scripts/judges.sh --quick || status=$?
step "alert rules by promtool, and the SNMP extension under snmpd"
scripts/test-alerts.sh || status=$?
python3 -B tests/snmp/test_snmp.py || status=$?

scripts/skipped.sh "$MILLRACE_SKIPPED" || status=$?
if ((status != 0)); then
    printf '\n== test: FAILED\n'
    exit "$status"
fi
printf '\n== test: passed\n'
