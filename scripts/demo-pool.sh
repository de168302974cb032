#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The tour behind `make demo-pool`: two managers on a real etcd, three nodes, two tenants, and a TLS server whose
# private key only the pool has, under load all the time; a quota that changes, a manager and a node that are killed.
# Everything runs on loopback in a temporary folder and is ended at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

millrace=$(realpath "${MILLRACE:-target/release/millrace}")
provider=$(dirname "$millrace")/libmillrace_provider.so
etcd=${ETCD:-$(scripts/etcd.sh)}
dir=$(mktemp -d)
pids=()
# Ends what was started, by its process id, and removes the folder.
finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
# Runs a command with the administrator's access, and shows it.
run() {
    printf '$ millrace %s\n' "$*"
    "$millrace" "$@" --access "$dir/m1/manager/access" --manager "$managers"
}
# Waits, a minute at most, until a log has a line, and shows the log if the process ends before.
until_log() {
    for _ in $(seq 600); do
        if grep -q "$2" "$dir/$1.log"; then return; fi
        if ! kill -0 "$last" 2>/dev/null; then break; fi
        sleep 0.1
    done
    cat "$dir/$1.log" >&2
    fail "$1 did not say '$2'"
}
fail() {
    echo "demo-pool: $1" >&2
    exit 1
}
# until_slices TENANT "NODES" LEAST [MOST]: waits, a minute at most, until exactly these nodes serve the tenant, with
# slices whose sum is within the bounds.
until_slices() {
    for _ in $(seq 600); do
        if "$millrace" tenant addresses "$1" --json --access "$dir/m1/manager/access" --manager "$managers" 2>/dev/null |
            python3 -c '
import json, sys
nodes, least, most = sys.argv[1].split(), int(sys.argv[2]), int(sys.argv[3])
rows = json.load(sys.stdin)["nodes"]
given = sum(row["slice"]["ops"]["per-second"] for row in rows)
sys.exit(sorted(row["node"] for row in rows) != nodes or not least <= given <= most)' "$2" "$3" "${4:-$3}" 2>/dev/null
        then return; fi
        sleep 0.1
    done
    run tenant addresses "$1" >&2
    fail "the slices of $1 are not at $2, or not $3 to ${4:-$3} operations a second together"
}

# Without the shell's remark on the death of a job.
kill_hard() { { kill -9 "$1" && wait "$1"; } 2>/dev/null || true; }

client=$(free_port) peer=$(free_port) m1=$(free_port) m2=$(free_port)
store=etcd://127.0.0.1:$client
managers=https://127.0.0.1:$m1,https://127.0.0.1:$m2

say "A real etcd, and two managers on it"
"$etcd" --data-dir "$dir/etcd" --log-level error \
    --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
    --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "default=http://127.0.0.1:$peer" >"$dir/etcd.log" 2>&1 &
pids+=($!)
# Starts a manager with its state folder, and waits until it answers.
manager() {
    "$millrace" manager --store "$store" --pool demo --listen "127.0.0.1:$2" --state "$dir/$1" --grant-lifetime 3s \
        >"$dir/$1.log" 2>&1 &
    pids+=($!)
    last=$!
    until_log "$1" 'the manager answers'
}
mkdir -p "$dir/m1" "$dir/m2/manager"
manager m1 "$m1"
first=$last
# Managers of one pool share an authority, the key that signs grants, and the one that encrypts the pool's keys.
cp -a "$dir/m1/tls" "$dir/m2/tls"
cp -a "$dir/m1/manager/grant.key" "$dir/m1/manager/pool.kek" "$dir/m2/manager/"
manager m2 "$m2"

say "Three nodes"
for name in a b c; do
    run token create "$name" --role node -o "$dir/$name.access"
    "$millrace" node run --access "$dir/$name.access" --name "$name" --state "$dir/$name" \
        --socket "$dir/$name.sock" --listen-tcp 127.0.0.1:0 --capacity rsa2048=1000,p256=20000 \
        >"$dir/$name.log" 2>&1 &
    pids+=($!)
    [ "$name" = a ] && node_a=$!
done

# A tenant goes to the nodes that are there: all three are to be.
for _ in $(seq 600); do
    ready=$("$millrace" node list --access "$dir/m1/manager/access" --manager "$managers" 2>/dev/null | grep -c ' ready ' || true)
    if [ "$ready" = 3 ]; then break; fi
    sleep 0.1
done
[ "$ready" = 3 ] || fail "$ready of three nodes are ready"

say "Two tenants: each gets its quota in slices at two nodes"
run tenant create acme --ops 900 --weight 2 --identity "uid:$(id -u)"
run tenant create batch --ops 300 --priority low --identity 'cert:batch-*'
until_slices acme "a b" 900
until_slices batch "a c" 300
run tenant addresses acme
run tenant addresses batch

say "A TLS server of acme: its private key is in the pool, and the server has a stub"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=www -days 1 \
    -keyout "$dir/www.pem" -out "$dir/www.crt" 2>/dev/null
run pool key import www "$dir/www.pem" --tenant acme
run pool key stub www -o "$dir/www.stub"
rm "$dir/www.pem"
mkdir "$dir/modules"
ln -s "$provider" "$dir/modules/millrace.so"
cat >"$dir/openssl.cnf" <<CONF
openssl_conf = init
[init]
providers = providers
[providers]
default = default_section
millrace = millrace_section
[default_section]
activate = 1
[millrace_section]
activate = 1
pool = unix:$dir/a.sock,unix:$dir/b.sock,unix:$dir/c.sock
CONF
port=$(free_port)
OPENSSL_CONF=$dir/openssl.cnf OPENSSL_MODULES=$dir/modules \
    openssl s_server -accept "127.0.0.1:$port" -cert "$dir/www.crt" -key "$dir/www.stub" -quiet -num_tickets 0 \
    >"$dir/server.log" 2>&1 &
pids+=($!)
for _ in $(seq 600); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
    sleep 0.1
done
(exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || fail "the TLS server does not answer: $(cat "$dir/server.log")"
python3 scripts/demo_handshakes.py "$port" 60 >"$dir/handshakes.log" 2>&1 &
load=$!
pids+=("$load")
sleep 12
run pool status

say "A quota changes while the pool runs"
run tenant set acme --ops 600
until_slices acme "a b" 600
run tenant addresses acme

# PAGE=FILE: a picture of the page at this moment, for docs/guide/pool.md.
if [ -n "${PAGE:-}" ]; then
    python3 -B tests/page/shot.py "https://127.0.0.1:$m1/" "$dir/m1/manager/access" "$PAGE"
fi

say "kill -9 of the first manager: the second one goes on"
kill_hard "$first"
run tenant set acme --ops 800
until_slices acme "a b" 800
run tenant addresses acme

say "kill -9 of a node: its lease ends, and its slices move; a quarter stays reserved until it is back"
kill_hard "$node_a"
# A quarter of the largest slice that the node may still serve: it had 400, and 450 until the first change, which was a
# moment ago and need not have reached it.
until_slices acme "b c" $((800 - (450 + 3) / 4)) $((800 - 400 / 4))
run tenant addresses acme
run pool status

say "The handshakes from before the first change until now"
kill "$load"
wait "$load" || fail "the handshakes ended early: $(cat "$dir/handshakes.log")"
cat "$dir/handshakes.log"
grep -Eq '^[1-9][0-9]* handshakes, 0 failed$' "$dir/handshakes.log" || fail "handshakes failed"

say "Who changed what, in a log whose hashes are a chain"
run audit
# First start, three nodes, two tenants, their key, and two changes of a quota.
run audit --verify | tee "$dir/audit.log"
grep -Eq '^[1-9][0-9]* entries, whole; ' "$dir/audit.log" || fail "the chain of hashes is not whole"
say "The page of the pool was at https://127.0.0.1:$m2/, for the holder of the token in manager/access."
