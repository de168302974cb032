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
venv=target/schemathesis
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
# The stream of events never ends, so a client that reads it to the end is not answered.
"$venv/bin/schemathesis" run "https://127.0.0.1:$port/v1/openapi.json" \
    --tls-verify "$dir/tls/ca.crt" --header "authorization: Bearer $token" \
    --exclude-path /v1/events \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
    --phases coverage,fuzzing --max-time "${SECS:-120}" --max-examples "${EXAMPLES:-40}" --workers 2 --request-timeout 10 --no-color ${ARGS:-}
# It serves as before.
"$millrace" tenant list --access "$dir/manager/access" >/dev/null
if grep -E 'panicked|a defect of the manager' "$dir/log"; then
    exit 1
fi
