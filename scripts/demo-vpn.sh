#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# A link of four OpenVPN processes between two network namespaces: brings it up, kills a member under iperf3, shows
# what happened, measures one process against several in interleaved runs, and cleans up. Needs root and /dev/net/tun.
#
#   scripts/demo-vpn.sh [RUNS] [SECONDS]      default: 3 rounds of each case, 4 seconds each
#
# MILLRACE names the binary; RESULT names a file for the numbers (JSON).
set -euo pipefail
cd "$(dirname "$0")/.."

RUNS=${1:-3}
SECONDS_EACH=${2:-4}
MILLRACE=${MILLRACE:-$PWD/target/release/millrace}
RESULT=${RESULT:-}
# Parallel flows: each of four members carries some.
FLOWS=16

if ((EUID != 0)) || [[ ! -e /dev/net/tun ]]; then
    echo "demo-vpn: network namespaces and tunnels need root and /dev/net/tun" >&2
    exit 1
fi

work=$(mktemp -d /tmp/millrace-vpn.XXXXXX)
chmod 0755 "$work"
a=mr-vpn-a-$$ b=mr-vpn-b-$$
server=
say() { printf '\n== %s\n' "$*"; }
fail() {
    echo "demo-vpn: $1" >&2
    exit 1
}

# An end's `millrace vpn`, with folders of its own.
end() {
    local side=$1
    shift
    local namespace=$a
    [[ $side == a ]] || namespace=$b
    ip netns exec "$namespace" "$MILLRACE" vpn "$@" --run "$work/run-$side" --state "$work/state-$side"
}
down() {
    end a down demo >/dev/null 2>&1 || true
    end b down demo >/dev/null 2>&1 || true
}
cleanup() {
    [[ -z $server ]] || kill "$server" 2>/dev/null || true
    down
    ip netns delete "$a" 2>/dev/null || true
    ip netns delete "$b" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

ip netns add "$a"
ip netns add "$b"
ip -n "$a" link add cable mtu 9200 type veth peer name cable mtu 9200 netns "$b"
ip -n "$a" address add 198.18.0.1/24 dev cable
ip -n "$b" address add 198.18.0.2/24 dev cable
for namespace in "$a" "$b"; do
    ip -n "$namespace" link set lo up
    ip -n "$namespace" link set cable up
done
mkdir "$work"/{run,state}-{a,b}

cat >"$work/link.toml" <<TOML
name = "demo"
members = 4
[ends.a]
address = "198.18.0.1"
inner = "10.97.0.1"
certificates = "$work/keys/a"
[ends.b]
address = "198.18.0.2"
inner = "10.97.0.2"
certificates = "$work/keys/b"
TOML
# Brings both ends up and waits until every member carries traffic.
up() {
    end a up "$work/link.toml" --no-wait 2>/dev/null
    end b up "$work/link.toml" --no-wait 2>/dev/null
    local side
    for side in a b; do until_up "$side"; done
}
# Waits, 20 s at most, until every member of an end carries traffic.
until_up() {
    for _ in {1..200}; do
        [[ $(state "$1") != up ]] || return 0
        sleep 0.1
    done
    end "$1" status demo >&2 || true
    fail "the link does not come up at end $1"
}
state() {
    end "$1" status demo --json 2>/dev/null | python3 -c 'import json, sys; print(json.load(sys.stdin)["state"])' || true
}

"$MILLRACE" vpn keys "$work/link.toml" -o "$work/keys" 2>/dev/null

say "a link of four tunnels"
up
end b status demo

say "iperf3 with $FLOWS flows for 8 seconds; a member of end a is killed after 3"
ip netns exec "$a" iperf3 --server --bind 10.97.0.1 >"$work/server.log" 2>&1 &
server=$!
sleep 0.5
victim=$(cat "$work/run-a/demo/1.pid")
ip netns exec "$b" iperf3 --client 10.97.0.1 --parallel "$FLOWS" --time 8 --interval 0.5 --json \
    >"$work/killed.json" &
client=$!
sleep 3
kill -KILL "$victim"
wait "$client" || fail "iperf3 failed: $(tail -c 300 "$work/killed.json")"
python3 - "$work/killed.json" "$work/loss" <<'PY'
import json, sys
run = json.load(open(sys.argv[1]))
for one in run["intervals"]:
    total = one["sum"]
    rate = total["bits_per_second"] / 1e6
    print(f"{total['start']:4.1f} s  {rate:7.0f} Mbit/s  {'#' * int(rate / 20)}")
before = [i["sum"]["bits_per_second"] for i in run["intervals"] if 1 <= i["sum"]["start"] < 3]
usual = sum(before) / len(before)
reduced = sum(0.5 for i in run["intervals"] if i["sum"]["start"] >= 3 and i["sum"]["bits_per_second"] < 0.7 * usual)
broken = run.get("error", "no connection broke")
print(f"one of four members killed under load: {broken}; below 70 % of the usual rate for {reduced:.1f} s",
      file=open(sys.argv[2], "w"))
PY
cat "$work/loss"
grep -q 'no connection broke' "$work/loss" || fail "connections broke with one member of four"
# The member is back: the supervisor starts it again.
until_up a
end a status demo
printf '\nchanges at end a:\n'
tail -n 3 "$work/run-a/demo/supervisor.log"
kill "$server" 2>/dev/null || true
wait "$server" 2>/dev/null || true
server=

say "one process against several: $RUNS interleaved rounds of $SECONDS_EACH s, both ends on $(nproc) cores"
down
"$MILLRACE" vpn bench --cases one,two-pinned,four-pinned,one-tuned --rounds "$RUNS" --duration "${SECONDS_EACH}s" \
    --flows "$FLOWS" --no-loss --output "$work/bench.json" </dev/null
[[ -z $RESULT ]] || cp "$work/bench.json" "$RESULT"

say "in short"
cat "$work/loss"
python3 - "$work/bench.json" <<'PY'
import json, sys
rows = {row["name"]: row for row in json.load(open(sys.argv[1]))["rows"]}
ratio = lambda name: rows[name]["ratio"]["median"]
print(f"against one process: two carried {ratio('two-pinned'):.1f} times as much, four {ratio('four-pinned'):.1f} times, "
      f"one with packets of 9000 bytes {ratio('one-tuned'):.1f} times")
PY
cleanup
trap - EXIT
! ip netns list | grep -Eq "^($a|$b)\b" || fail "a namespace is left"
[[ ! -e $work ]] || fail "$work is left"
echo "the demo's namespaces, tunnels and files are gone"
