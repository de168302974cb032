#!/bin/bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# What monitors a pool: the alert rules by promtool, a real Prometheus that scrapes a real pool and evaluates every rule
# and every expression of the dashboard, and the dashboard through Grafana's own types (PyPI). Prometheus is that of
# Debian's package, unpacked into target/promtool: the package itself would start a server. Without a network it says so
# and passes; with CI=true it fails. MILLRACE names another binary.
set -euo pipefail
cd "$(dirname "$0")/.."

# Records a part that does not run here; in CI that is a failure.
skipped() {
    echo "test-alerts: SKIPPED: $1" >&2
    printf '%s\t%s (scripts/test-alerts.sh)\n' "$1" "$2" >>"${MILLRACE_SKIPPED:-/dev/null}"
    if [[ ${CI:-} == true ]]; then exit 1; fi
}

programs=$(dirname "$(command -v promtool || true)")
if [[ ! -x $programs/promtool || ! -x $programs/prometheus ]]; then
    folder=target/promtool
    programs=$PWD/$folder/root/usr/bin
    if [ ! -x "$programs/promtool" ]; then
        mkdir -p "$folder"
        if ! (cd "$folder" && apt-get download -q prometheus); then
            skipped "no promtool" "the alert rules"
            exit 0
        fi
        dpkg -x "$folder"/prometheus_*.deb "$folder/root"
    fi
fi
"$programs/promtool" check rules deploy/prometheus/alerts.yml
"$programs/promtool" test rules deploy/prometheus/alerts.test.yml
# Every metric that a rule or a panel names is one that the manager, a node or the supervisor of a link has.
python3 - <<'CHECK'
import json, re, sys
source = open("crates/manager/src/api/metrics.rs").read() + open("crates/service/src/metrics.rs").read()
# A link's families are named without the prefix.
link = open("crates/vpn/src/supervise/metrics.rs").read()
source += " ".join(f'"millrace_vpn_{name}"' for name in re.findall(r'"((?:link|member)_[a-z_]+)"', link))
rules = open("deploy/prometheus/alerts.yml").read()
board = open("deploy/prometheus/grafana-pool.json").read()
assert json.loads(board)["panels"]
named = set(re.findall(r"\bmillrace_[a-z0-9_]+", rules + board))
missing = sorted(name for name in named if f'"{name}"' not in source)
sys.exit(f"no such metrics: {missing}" if missing else 0)
CHECK
python3 -B tests/monitoring/test_monitoring.py "${MILLRACE:-target/debug/millrace}" "$programs/prometheus"
venv=$PWD/target/grafana-types
if [ ! -e "$venv/done" ]; then
    scripts/setup.sh "/usr/share/doc/python3-venv/copyright python3-venv"
    python3 -m venv "$venv"
    if "$venv/bin/pip" install --quiet --disable-pip-version-check grafana-foundation-sdk; then touch "$venv/done"; fi
fi
if [ -e "$venv/done" ]; then
    "$venv/bin/python" -B tests/monitoring/dashboard.py deploy/prometheus/grafana-pool.json
else
    skipped "no types of Grafana" "the dashboard"
fi
