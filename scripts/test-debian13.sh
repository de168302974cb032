#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The tests that face a release's servers and OpenSSL once more, with those of Debian 13 (nginx 1.26,
# HAProxy 3.0, OpenSSL 3.5) in an unpacked folder. The programs under test stay those of this machine.
# Arguments go to cargo (CI: --locked). Without a network, or where users may not make namespaces, it
# says so and passes; with CI=true it fails.
set -euo pipefail
cd "$(dirname "$0")/.."

ROOT=target/debian13
# Test files that start no server, client or tool of the release. Every other file in tests/tests runs again.
SAME_ON_BOTH=" fairness hostile pool_faults pool_keys pool_upgrades store tenants versions vpn vpn_confirm vpn_down vpn_faults vpn_ipsec vpn_v6 "
PROVIDER_TESTS=" application evp local local_keys local_process local_records openssl servers "

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

# shellcheck source=scripts/test-programs.sh
source scripts/test-programs.sh

wanted() {
    local folder name program
    while read -r folder name program; do
        case ${folder#"$PWD"/} in
        crates/provider) [[ $PROVIDER_TESTS == *" $name "* ]] || continue ;;
        tests) [[ $SAME_ON_BOTH != *" $name "* && -e tests/tests/$name.rs ]] || continue ;;
        *) continue ;;
        esac
        printf '%s %s %s\n' "$folder" "$name" "$program"
    done
}

for name in $PROVIDER_TESTS; do
    [[ -e crates/provider/tests/$name.rs || -d crates/provider/tests/$name ]] ||
        { printf 'test-debian13: no test program %s\n' "$name" >&2; exit 1; }
done
export MILLRACE_TEST_ROOT=$PWD/$ROOT
run_programs < <(test_programs "$@" | wanted)
