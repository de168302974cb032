#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Checks the backend qat on a real card, as root: docs/backends/qat-acceptance.md says what must hold.
# scripts/qat-acceptance.sh [--inject PF-ADDRESS]. A node with the backend qat has to run (millrace up).
set -euo pipefail

MILLRACE=${MILLRACE:-millrace}
failed=0
check() { # WHAT COMMAND...
    local what=$1 && shift
    if "$@"; then printf 'ok      %s\n' "$what"; else printf 'FAILED  %s\n' "$what" && failed=1; fi
}
fail() { printf '%s\n' "$1" >&2 && exit 2; }

((EUID == 0)) || fail "run it as root: only root reads the card's counters"
command -v jq >/dev/null || fail "install jq"
inject=
if [[ ${1:-} == --inject ]]; then inject=${2:?the bus address of a card}; fi

devices() { "$MILLRACE" device list --json; }
status() { "$MILLRACE" status --json; }
# The sum of a counter over the instances of the card.
counted() { status | jq "[.backends[] | select(.backend == \"qat\") | .devices[].$1] | add // 0"; }
firmware() { devices | jq '[.[].device.engines[].requests] | add // 0'; }
all_serve() {
    status | jq -e '[.backends[] | select(.backend == "qat") | .devices[].serving] | length > 0 and all' >/dev/null
}

check "a card is up" bash -c "'$MILLRACE' device list --json | jq -e 'any(.[]; .device.up)' >/dev/null"
check "virtual functions are bound to vfio-pci" \
    bash -c "'$MILLRACE' device list --json | jq -e 'any(.[].functions[]; .driver == \"vfio-pci\")' >/dev/null"
check "every instance of the node serves" all_serve

before=$(firmware) ours=$(counted submitted)
"$MILLRACE" bench crypto --backends qat || failed=1
printf 'note    compare with: cpa_sample_code runTests=2 (package qatlib-examples), with the node stopped\n'
after=$(firmware) ours_after=$(counted submitted)
printf 'note    firmware counted %s requests, the node %s (the bench is a process of its own)\n' \
    "$((after - before))" "$((ours_after - ours))"
check "no wrong result" test "$(counted faults)" -eq 0
check "no lost request" test "$(counted lost)" -eq 0

if [[ -n $inject ]]; then
    file=$(compgen -G "/sys/kernel/debug/qat_*_$inject/heartbeat/inject_error") || fail "no inject_error: Linux 6.9 or later"
    restarts=$(counted restarts)
    echo 1 >"$file"
    started=$(date +%s%N)
    until (($(counted restarts) > restarts)) && all_serve; do
        (($(date +%s%N) - started < 60000000000)) || fail "the card did not come back within 60 s"
        sleep 0.1
    done
    printf 'note    serving again after %s ms\n' "$((($(date +%s%N) - started) / 1000000))"
fi
exit "$failed"
