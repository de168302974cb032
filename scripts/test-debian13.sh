#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The tests that face a release's servers and OpenSSL once more, with those of Debian 13 (nginx 1.26,
# HAProxy 3.0, OpenSSL 3.5) in an unpacked folder. The programs under test stay those of this machine.
# Arguments go to cargo (CI: --locked). Without a network, or where users may not make namespaces, it
# says so and passes; with CI=true it fails. The test programs are those of the whole workspace, started here:
# cargo test -p would compile most dependencies again, with other features.
set -euo pipefail
cd "$(dirname "$0")/.."

ROOT=target/debian13
# Test files that start no server, client or tool of the release. Every other file in tests/tests runs again.
SAME_ON_BOTH=" fairness hostile pool_faults pool_keys pool_upgrades store tenants versions vpn vpn_confirm vpn_faults vpn_ipsec vpn_v6 "
PROVIDER_TESTS=(application evp local local_keys local_process local_records openssl servers)

pass_over() {
    printf '\n== test: SKIPPED on Debian 13: %s\n' "$1" >&2
    if [[ ${CI:-} == true ]]; then exit 1; fi
    printf 'Debian 13: %s\tall its tests (scripts/test-debian13.sh)\n' "$1" >>"${MILLRACE_SKIPPED:-/dev/null}"
    exit 0
}
scripts/debian13.sh "$ROOT" || pass_over "its programs could not be unpacked"
version=$(scripts/in-root.sh "$ROOT" openssl version) ||
    pass_over "no program can be run in $ROOT: this takes root or user namespaces"
printf 'with %s\n' "$version"

tests=()
for file in tests/tests/*.rs; do
    name=$(basename "$file" .rs)
    [[ $SAME_ON_BOTH == *" $name "* ]] || tests+=("tests/$name")
done

# Prints the folder of the package and the program of each integration test: FOLDER NAME PROGRAM.
programs() {
    cargo test --quiet --workspace --no-run --message-format=json "$@" | python3 -c '
import json, os, sys
for line in sys.stdin:
    message = json.loads(line) if line.startswith("{") else {}
    target = message.get("target", {})
    if message.get("executable") and target["kind"] == ["test"]:
        print(os.path.dirname(message["manifest_path"]), target["name"], message["executable"])'
}

export MILLRACE_TEST_ROOT=$PWD/$ROOT
found=$(programs "$@")
status=0
for test in "${PROVIDER_TESTS[@]/#/crates/provider/}" "${tests[@]}"; do
    folder=$PWD/${test%/*} name=${test##*/}
    program=$(awk -v folder="$folder" -v name="$name" '$1 == folder && $2 == name { print $3 }' <<<"$found")
    [[ -n $program ]] || { printf 'test-debian13: no test program %s\n' "$test" >&2; exit 1; }
    printf '     Running %s (%s)\n' "$test" "${program##*/}"
    (cd "$folder" && "$program") || status=$?
done
exit "$status"
