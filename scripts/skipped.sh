#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Prints which tests were skipped, by reason: skipped.sh FILE (what testkit's skip! and scripts wrote). With CI=true a
# reason that tests/allowed-skips.tsv does not list is a failure: skip! fails at once, and a script here.
set -euo pipefail

file=$1
if [[ ! -s $file ]]; then
    printf '\n== test: no test was skipped\n'
    exit 0
fi
printf '\n== test: %s skips of tests or of parts of them, by reason:\n' "$(sort -u "$file" | wc -l)"
sort -u "$file" | awk -F '\t' '
    $1 != reason { reason = $1; printf "  %s\n", reason }
    { printf "      %s\n", $2 }'
[[ ${CI:-} == true ]] || exit 0
awk -F '\t' '
    FNR == NR { if ($0 !~ /^#/ && $1 != "" && $2 ~ /[^ ]/) allowed[$1]; next }
    { for (reason in allowed) if (index($1, reason) == 1) next; printf "not allowed: %s\n", $1; wrong = 1 }
    END { exit wrong }' "$(dirname "$0")/../tests/allowed-skips.tsv" "$file" >&2
