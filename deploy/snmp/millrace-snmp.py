#!/usr/bin/python3
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The state of a pool for net-snmp's snmpd (pass_persist): `millrace pool status --json` as integers.

snmpd.conf:  pass_persist .1.3.6.1.4.1.8072.9999.9999.77 /usr/local/share/millrace/millrace-snmp.py ACCESS [MILLRACE]

.1  verdict: 0 good, 1 warning, 2 critical, 3 no manager answers
.2  nodes ready   .3  draining   .4  away
.5  operations per second   .6  failed per second
.7  fallbacks of five minutes, .8  capacity left, in parts per million (-1 if it is not known)
.9  99th percentile in the slowest node, in microseconds
.10 tenants at their quota

The number below netSnmpPlaypen is for trials; give the subtree a number of your own with the third argument.
"""

import json
import subprocess
import sys
import time

BASE = ".1.3.6.1.4.1.8072.9999.9999.77"
# A walk asks ten times; the pool is asked once.
KEEP_S = 10
LEVELS = {"good": 0, "warning": 1, "critical": 2}


def values(access, millrace):
    """The rows, by their number."""
    command = [millrace, "pool", "status", "--json", "--access", access]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=True)
        state = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {1: 3}
    figures = state["figures"]
    in_state = lambda name: sum(node["state"] == name for node in state["nodes"])
    left = figures["capacity_left"]
    return {
        1: LEVELS.get(state["verdict"]["level"], 2),
        2: in_state("ready"), 3: in_state("draining"), 4: in_state("away"),
        5: round(figures["ops_per_s"]), 6: round(figures["failed_per_s"]),
        7: round(figures["fallback_share"] * 1e6), 8: -1 if left is None else round(left * 1e6),
        9: round(figures["p99_us"]),
        10: sum(tenant["throttled_per_s"] > 0 for tenant in state["tenants"]),
    }


def row_of(oid, base):
    """The number of a row; 0 for the subtree itself, and None for what is not in it."""
    if oid == base:
        return 0
    if not oid.startswith(base + "."):
        return None
    first = oid[len(base) + 1:].split(".")[0]
    return int(first) if first.isdigit() else None


def serve(read, say, base, ask, now=time.monotonic):
    """Speaks pass_persist until the input ends."""
    kept, at = {}, None
    while line := read():
        command = line.strip()
        if command == "PING":
            say("PONG")
            continue
        if command not in ("get", "getnext"):
            if command == "set":
                read(), read()
                say("not-writable")
            continue
        row = row_of(read().strip(), base)
        if at is None or now() - at > KEEP_S:
            kept, at = ask(), now()
        if row is not None and command == "getnext":
            row = min((number for number in kept if number > row), default=None)
        if row is None or row not in kept:
            say("NONE")
            continue
        say(f"{base}.{row}\ninteger\n{kept[row]}")


def main():
    access = sys.argv[1]
    millrace = sys.argv[2] if len(sys.argv) > 2 else "millrace"
    base = sys.argv[3] if len(sys.argv) > 3 else BASE
    serve(sys.stdin.readline, lambda text: print(text, flush=True), base, lambda: values(access, millrace))


if __name__ == "__main__":
    main()
