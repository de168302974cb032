# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A real Prometheus that scrapes a real pool as docs/guide/pool.md says: every rule of deploy/prometheus/alerts.yml is
evaluated, every expression of the dashboard gives series, and an alert comes when the only node drains.

tests/monitoring/test_monitoring.py MILLRACE PROMETHEUS"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
sys.path.insert(0, os.path.join(HERE, "../page"))
from test_page import Pool, free_port  # noqa: E402

PATIENCE_S = 120


def wait(what, get):
    """Polls until `get` gives something, and returns it."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            found = get()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(what + " did not come")


def scrape_config():
    """The scrape configuration of the guide."""
    with open(os.path.join(ROOT, "docs/guide/pool.md"), encoding="utf-8") as guide:
        return re.search(r"```yaml\n(scrape_configs:.*?)```", guide.read(), re.S).group(1)


class Prometheus:
    """A server that scrapes a pool each second."""

    def __init__(self, program, pool, folder):
        pool.run("token", "create", "prometheus", "--role", "viewer", "-o", os.path.join(folder, "access"))
        with open(os.path.join(folder, "access"), encoding="utf-8") as access:
            token = json.load(access)["token"]
        with open(os.path.join(folder, "token"), "w", encoding="utf-8") as file:
            file.write(token)
        text = scrape_config()
        for of_guide, here in {
            "/etc/prometheus/millrace.token": os.path.join(folder, "token"),
            "/etc/prometheus/millrace-ca.pem": os.path.join(pool.folder, "state/tls/ca.crt"),
            "manager-1:7500": f"127.0.0.1:{pool.port}",
        }.items():
            assert of_guide in text, of_guide
            text = text.replace(of_guide, here)
        rules = os.path.realpath(os.path.join(ROOT, "deploy/prometheus/alerts.yml"))
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{rules}]\n{text}")
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [program, "--config.file", config, "--storage.tsdb.path", os.path.join(folder, "data"),
             "--web.listen-address", self.url.removeprefix("http://"), "--log.level", "error"])

    def close(self):
        self.process.terminate()
        self.process.wait()

    def ask(self, path):
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=10) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def series(self, expression):
        return self.ask("query?" + urllib.parse.urlencode({"query": expression}))["result"]

    def rules(self):
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]


def main():
    millrace, program = sys.argv[1:3]
    with open(os.path.join(ROOT, "deploy/prometheus/grafana-pool.json"), encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    pool = Pool(millrace)
    with tempfile.TemporaryDirectory() as folder:
        prometheus = None
        try:
            pool.run("tenant", "create", "acme", "--ops", "900", "--identity", "uid:*")
            prometheus = Prometheus(program, pool, folder)
            wait("the first scrape", lambda: prometheus.series("up == 1"))
            wait("the node", lambda: prometheus.series('millrace_pool_nodes{state="ready"} == 1'))
            for panel in panels:
                for target in panel["targets"]:
                    what = f"{panel['title']}: {target['expr']}"
                    rows = wait(what, lambda: prometheus.series(target["expr"]))
                    # A label that the legend names is one that every series has.
                    for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                        assert all(label in row["metric"] for row in rows), (what, label)
            print(f"{sum(len(panel['targets']) for panel in panels)} expressions of {len(panels)} panels give series")
            known = wait("the rules", lambda: [rule for rule in prometheus.rules() if rule["health"] != "unknown"])
            bad = [rule["name"] for rule in prometheus.rules() if rule["health"] != "ok"]
            assert not bad, bad
            state = lambda: {rule["name"]: rule["state"] for rule in prometheus.rules()}
            quiet = [name for name, now in state().items() if now != "inactive"]
            print(f"{len(known)} rules; before a fault: {quiet}")
            assert "MillraceNoNodeServes" not in quiet, quiet
            pool.run("node", "drain", "only")
            wait("the alert", lambda: state()["MillraceNoNodeServes"] in ("pending", "firing"))
            pool.run("node", "undrain", "only")
            wait("its end", lambda: state()["MillraceNoNodeServes"] == "inactive")
        finally:
            if prometheus:
                prometheus.close()
            pool.close()
    print("monitoring: passed")


if __name__ == "__main__":
    main()
