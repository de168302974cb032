#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Schemathesis (PyPI) against a real manager, from the OpenAPI document that it serves: no request that the document
# describes, and none beside it, gets an answer of another form or a server error. MILLRACE names another binary,
# ARGS are passed to schemathesis.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh "/usr/share/doc/python3-venv/copyright python3-venv"
millrace=$(realpath "${MILLRACE:-target/debug/millrace}")
venv=$PWD/target/schemathesis
if [ ! -x "$venv/bin/schemathesis" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'schemathesis==4.*'
fi
dir=$(mktemp -d)
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port)
"$millrace" manager --store memory: --listen "127.0.0.1:$port" --state "$dir" >"$dir/log" 2>&1 &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; rm -rf "$dir"' EXIT
for _ in $(seq 600); do
    if grep -q 'the manager answers' "$dir/log"; then break; fi
    sleep 0.1
done
token=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["token"])' "$dir/manager/access")
# Its files (.hypothesis, .schemathesis) lie in its working folder.
cd "$venv"
# The stream of events never ends, so a client that reads it to the end is not answered.
# shellcheck disable=SC2086 # ARGS are words
phase() {
    bin/schemathesis run "https://127.0.0.1:$port/v1/openapi.json" \
        --tls-verify "$dir/tls/ca.crt" --header "authorization: Bearer $token" \
        --exclude-path /v1/events \
        --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
        --workers 2 --request-timeout 10 --no-color --phases "$@" ${ARGS:-}
}
phase coverage
# Generating an example of a large document can take minutes, and --max-time looks at the clock between examples only:
# the phase is interrupted then, and fails if it has found something.
secs=${SECS:-120}
export -f phase
export port dir token
code=0
timeout --signal=INT --kill-after=20 "$((secs + 30))" \
    bash -c 'phase fuzzing --max-time "$1" --max-examples "$2"' - "$secs" "${EXAMPLES:-40}" | tee fuzzing.log || code=$?
case $code in
    0) ;;
    124 | 137)
        echo "test-api: the fuzzing phase was interrupted after $((secs + 30)) s"
        if grep -q 'FAILURES\|❌' fuzzing.log; then exit 1; fi
        ;;
    *) exit "$code" ;;
esac
# It serves as before.
"$millrace" tenant list --access "$dir/manager/access" >/dev/null
if grep -E 'panicked|a defect of the manager' "$dir/log"; then
    exit 1
fi
