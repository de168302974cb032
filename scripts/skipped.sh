#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Prints which tests were skipped, by reason: skipped.sh FILE (what testkit's skip! wrote).
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
