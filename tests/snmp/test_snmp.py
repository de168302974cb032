# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The dialogue of deploy/snmp/millrace-snmp.py with snmpd, and a walk of a real snmpd where there is one."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "../../deploy/snmp/millrace-snmp.py")


def load():
    spec = importlib.util.spec_from_file_location("millrace_snmp", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dialogue(module, lines, asked):
    said = []
    feed = iter([line + "\n" for line in lines])

    def ask():
        asked.append(1)
        return {1: 1, 2: 3, 8: -1}

    module.serve(lambda: next(feed, ""), said.append, module.BASE, ask)
    return said


def check_dialogue(module):
    base, asked = module.BASE, []
    said = dialogue(module, ["PING", "get", base + ".1", "get", base + ".3", "getnext", base, "getnext", base + ".2",
                             "getnext", base + ".8", "get", ".1.2.3", "set", base + ".1", "integer 5", "nonsense",
                             "get", base + ".x"], asked)
    row = lambda number, value: f"{base}.{number}\ninteger\n{value}"
    assert said == ["PONG", row(1, 1), "NONE", row(1, 1), row(8, -1), "NONE", "NONE", "not-writable", "NONE"], said
    assert len(asked) == 1, "one question for a walk"
    # No manager: the verdict says so, and nothing else is there.
    assert module.values("/nonexistent", "/nonexistent") == {1: 3}


def check_daemon(module):
    snmpd = shutil.which("snmpd", path="/usr/sbin:/usr/bin:/sbin")
    walk = shutil.which("snmpwalk")
    if not snmpd or not walk:
        print("skipped: no snmpd; apt-get install snmpd snmp")
        with open(os.environ.get("MILLRACE_SKIPPED", os.devnull), "a", encoding="utf-8") as file:
            file.write("no snmpd\tthe walk of a real snmpd (tests/snmp/test_snmp.py)\n")
        return False
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        state = ('{"verdict":{"level":"warning"},"nodes":[{"state":"ready"},{"state":"ready"},{"state":"away"}],'
                 '"tenants":[{"throttled_per_s":1.0}],"figures":{"ops_per_s":1234.4,"failed_per_s":0,'
                 '"fallback_share":0.01,"capacity_left":0.25,"p99_us":900.0}}')
        fake = os.path.join(folder, "millrace")
        with open(fake, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\necho '{state}'\n")
        os.chmod(fake, 0o755)
        config = os.path.join(folder, "snmpd.conf")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"rocommunity public 127.0.0.1\npass_persist {module.BASE} {sys.executable} {SCRIPT} access {fake}\n")
        environment = {**os.environ, "SNMP_PERSISTENT_DIR": folder, "MIBS": ""}
        daemon = subprocess.Popen([snmpd, "-f", "-C", "-c", config, "-Lf", os.path.join(folder, "log"),
                                   f"udp:127.0.0.1:{port}"], env=environment)
        try:
            until = time.monotonic() + 60
            while True:
                done = subprocess.run([walk, "-v2c", "-cpublic", "-On", "-Oq", "-t5", f"127.0.0.1:{port}", module.BASE],
                                      capture_output=True, text=True, env=environment, check=False)
                rows = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
                if rows.get(module.BASE + ".1", "").strip() == "1":
                    break
                assert time.monotonic() < until, done
                time.sleep(0.2)
            values = [rows[f"{module.BASE}.{number}"] for number in range(1, 11)]
            assert values == ["1", "2", "0", "1", "1234", "0", "10000", "250000", "900", "1"], values
        finally:
            daemon.terminate()
            daemon.wait(20)
    return True


def main():
    module = load()
    check_dialogue(module)
    print("ok: the dialogue")
    if check_daemon(module):
        print("ok: a walk of snmpd")


if __name__ == "__main__":
    main()
