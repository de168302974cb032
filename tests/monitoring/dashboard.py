# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The dashboard through Grafana's own types (PyPI: grafana-foundation-sdk): what they read and write again is the whole
dashboard, so no field has a name or a place that Grafana does not know. tests/monitoring/dashboard.py FILE"""

import copy
import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(ours, theirs, path="$"):
    """Paths of what `theirs` lacks or has otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from lost(value, theirs[key], f"{path}.{key}")
            elif value not in ({}, []):
                yield f"{path}.{key}"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs)):
            yield from lost(one, other, f"{path}[{number}]")
    elif ours != theirs:
        yield f"{path}: {ours!r} becomes {theirs!r}"


def unknown(dashboard):
    through = json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(dashboard))))
    return list(lost(dashboard, through))


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        dashboard = json.load(file)
    register_default_plugins()
    found = unknown(dashboard)
    assert not found, found
    # The check finds a wrong name, in a panel as well as in a query.
    for place in (dashboard["panels"][0], dashboard["panels"][0]["targets"][0]):
        place["unknown-to-grafana"] = 1
        assert len(unknown(dashboard)) == 1, "the check finds nothing"
        del place["unknown-to-grafana"]
    print(f"{len(dashboard['panels'])} panels through Grafana's types: nothing is lost")


if __name__ == "__main__":
    main()
