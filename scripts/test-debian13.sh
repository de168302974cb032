#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The tests that face a release's servers and OpenSSL once more, with those of Debian 13 (nginx 1.26,
# HAProxy 3.0, OpenSSL 3.5) in an unpacked folder. The programs under test stay those of this machine.
# Arguments go to cargo (CI: --locked). Without a network, or where users may not make namespaces, it
# says so and is passed over, except in CI.
set -euo pipefail
cd "$(dirname "$0")/.."

ROOT=target/debian13
# Whatever starts a server, a client or a tool of the release. The others do not know which it is.
TESTS=(aborts advise faults gateway_check gateway_write gateways haproxy host_loop hygiene openssl policy preload preload_tls servers soak teardown vectors workers)
PROVIDER_TESTS=(application openssl servers)

pass_over() {
    printf '\n== test: SKIPPED on Debian 13: %s\n' "$1" >&2
    if [[ ${CI:-} == true ]]; then exit 1; fi
    exit 0
}
scripts/debian13.sh "$ROOT" || pass_over "its programs could not be unpacked"
version=$(scripts/in-root.sh "$ROOT" openssl version) ||
    pass_over "no program can be run in $ROOT: this takes root or user namespaces"
printf 'with %s\n' "$version"

export MILLRACE_TEST_ROOT=$ROOT
status=0
cargo test -p millrace-provider --no-fail-fast "${PROVIDER_TESTS[@]/#/--test=}" "$@" || status=$?
cargo test -p millrace-tests --no-fail-fast "${TESTS[@]/#/--test=}" "$@" || status=$?
exit "$status"
