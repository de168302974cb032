#!/bin/bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Checks and tests the alert rules with promtool of Debian's package prometheus, unpacked into target/promtool: the
# package itself would start a server. Without a network it says so and passes; with CI=true it fails.
set -euo pipefail
cd "$(dirname "$0")/.."

promtool=$(command -v promtool || true)
if [ -z "$promtool" ]; then
    folder=target/promtool
    promtool=$PWD/$folder/root/usr/bin/promtool
    if [ ! -x "$promtool" ]; then
        mkdir -p "$folder"
        if ! (cd "$folder" && apt-get download -q prometheus); then
            if [[ ${CI:-} == true ]]; then exit 1; fi
            echo "test-alerts: SKIPPED: no promtool, and no network to the Debian mirror" >&2
            printf 'no promtool\tthe alert rules (scripts/test-alerts.sh)\n' >>"${MILLRACE_SKIPPED:-/dev/null}"
            exit 0
        fi
        dpkg -x "$folder"/prometheus_*.deb "$folder/root"
    fi
fi
"$promtool" check rules deploy/prometheus/alerts.yml
"$promtool" test rules deploy/prometheus/alerts.test.yml
# Every metric that a rule or a panel names is one that the manager or the supervisor of a link has.
python3 - <<'CHECK'
import json, re, sys
source = open("crates/manager/src/api/metrics.rs").read()
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
