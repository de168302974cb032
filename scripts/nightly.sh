#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# What takes too long for every change: fuzzing, the compression library under AddressSanitizer, secrets followed by
# memcheck, constant time by measurement, the release artefacts under the whole-system tests, README and the guides on
# clean machines, the provider for Arm under emulation, other people's test suites, long tests, GPU kernels, the demonstrations, the goals of the
# benchmarks. Each part runs, whatever the others gave; the table that is printed at the end also goes to
# docs/nightly.md, which says what the last run showed.
#
#   scripts/nightly.sh [PART...]     default: all of them, in this order; `goals` is all benchmarks of the list below,
#                                    `demos` all demonstrations (as root, with /dev/net/tun for demo-vpn)
#
# SECS=n: seconds for each fuzz target (default 60). A run of all parts takes hours.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# Benchmarks whose goals one machine can decide. Each is a part of its own: `goals: ` and the words.
GOALS=("pool" "pool --fairness" "pool --tenants" "pool --overload" "crypto" "tls" "tls --local" "compression" "manager")

# The demonstrations, each a part of its own: `demo: ` and the target.
DEMOS=(demo demo-pool demo-vpn demo-vm)

PARTS=(fuzz sanitizers taint timing release install arm judges cuda demos goals long)
[[ $# -gt 0 ]] && PARTS=("$@")

# A benchmark with these words, whose goals must be reached.
goals() {
    local words
    read -ra words <<<"$1"
    make --no-print-directory build || return
    case $1 in
        manager) scripts/bench-manager.sh --require must ;;
        *) target/release/millrace bench "${words[@]}" --require must ;;
    esac
}

# What the output of a demonstration has to say, a regular expression a line. Its script ends with an error where a step
# fails.
says() {
    case $1 in
        demo) cat <<'LINES' ;;
^[1-9][0-9]* handshakes, each verified with its group;
^  [1-9][0-9]* pooled handshakes, each verified, 0 failed;
^Compressed responses of stock nginx:
LINES
        demo-pool) cat <<'LINES' ;;
^[1-9][0-9]* handshakes, 0 failed$
^[1-9][0-9]* entries, whole; the last has the hash [0-9a-f]{64}$
^verdict +warning: a is away$
LINES
        demo-vpn) cat <<'LINES' ;;
^one of four members killed under load: no connection broke;
^against one process: two carried [0-9.]+ times as much, four [0-9.]+ times
^the demo's namespaces, tunnels and files are gone$
LINES
        demo-vm) cat <<'LINES' ;;
^LOOP 100( |$)
^The node behind it:$
LINES
    esac
}

# A demonstration whose output says what it should.
demo() {
    local output line missing=0
    output=$(make --no-print-directory "$1" 2>&1) || { printf '%s\n' "$output"; return 1; }
    printf '%s\n' "$output"
    # Without the colours of headings.
    output=$(sed 's/\x1b\[[0-9;]*m//g' <<<"$output")
    while IFS= read -r line; do
        grep -Eq -- "$line" <<<"$output" || { printf 'nightly: make %s does not say: %s\n' "$1" "$line"; missing=1; }
    done < <(says "$1")
    return "$missing"
}

run_part() {
    case $1 in
        fuzz) make --no-print-directory fuzz SECS="${SECS:-60}" ;;
        sanitizers) make --no-print-directory test-sanitizers ;;
        taint) make --no-print-directory test-taint ;;
        timing) make --no-print-directory test-timing ;;
        release) make --no-print-directory test-release ;;
        install) make --no-print-directory test-install && make --no-print-directory test-system-wide ;;
        arm) make --no-print-directory test-arm ;;
        # One that fails does not keep the other from running.
        judges) make --no-print-directory -k judges judges-openssl ARGS=--write ;;
        cuda) make --no-print-directory test-cuda ;;
        "demo: "*) demo "${1#demo: }" ;;
        "goals: "*) goals "${1#goals: }" ;;
        long) make --no-print-directory test-long ;;
        *) printf 'nightly: no part %s; there are: fuzz sanitizers taint timing release install arm judges cuda demos goals long\n' "$1" >&2; return 2 ;;
    esac
}

parts=()
for part in "${PARTS[@]}"; do
    case $part in
        goals) parts+=("${GOALS[@]/#/goals: }") ;;
        demos) parts+=("${DEMOS[@]/#/demo: }") ;;
        *) parts+=("$part") ;;
    esac
done

logs=target/nightly
mkdir -p "$logs"
rows=()
failed=0
for part in "${parts[@]}"; do
    log=$logs/$(tr -cs 'a-z\n' '-' <<<"$part").log
    printf '\n######## nightly: %s (log: %s)\n' "$part" "$log"
    started=$SECONDS
    if run_part "$part" >"$log" 2>&1; then
        result=passed
    else
        result="FAILED (status $?)"
        failed=1
        tail -n 30 "$log"
    fi
    minutes=$(((SECONDS - started + 59) / 60))
    # The goals that were reached, or the last line that counts something: tests, runs of a fuzzer.
    if [[ $part == goals:* ]]; then
        showed="$(grep -cE ' (must|aim)$' "$log") goals reached, $(grep -c ' missed$' "$log") missed"
    else
        showed=$(grep -E '^(test result|judges: [0-9]+ tests|fuzz: .*: (no crash|CRASH)|== test-(install|system-wide): Debian|[1-9][0-9]* handshakes, )' "$log" |
            tail -n 1 | tr '|' '/')
    fi
    rows+=("| $part | $result | $minutes | ${showed:-–} |")
    printf '######## nightly: %s: %s after %s min\n' "$part" "$result" "$minutes"
done

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
{
    printf '# What the last nightly run showed\n\n'
    printf '`make nightly` wrote this page: %s, commit %s, %s, %s cores.\n\n' \
        "$(date -u +%Y-%m-%d)" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" "${cpu:-unknown CPU}" "$(nproc)"
    printf '| part | result | minutes | last count in its log |\n|---|---|---|---|\n'
    printf '%s\n' "${rows[@]}"
} | tee docs/nightly.md
exit "$failed"
