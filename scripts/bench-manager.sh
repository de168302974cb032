#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# millrace bench manager on an etcd of its own, which ends with it.
set -euo pipefail
cd "$(dirname "$0")/.."

millrace=${MILLRACE:-target/release/millrace}
etcd=$(scripts/etcd.sh)
dir=$(mktemp -d)
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
client=$(free_port) peer=$(free_port)
"$etcd" --data-dir "$dir/etcd" --log-level error \
    --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
    --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "default=http://127.0.0.1:$peer" >"$dir/etcd.log" 2>&1 &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; rm -rf "$dir"' EXIT
for _ in $(seq 300); do
    if curl -fsS "http://127.0.0.1:$client/health" 2>/dev/null | grep -q true; then break; fi
    sleep 0.1
done
"$millrace" bench manager --store "etcd://127.0.0.1:$client" "$@"
