# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# The test programs of the workspace, for scripts that start them without cargo: cargo test -p would compile most
# dependencies again with other features, and cargo test runs one program at a time. To be sourced in the root.

# Builds the test programs and prints FOLDER NAME PROGRAM of each, the folder being that of its package, in the order
# of their names. Arguments go to cargo.
test_programs() {
    cargo test --quiet --workspace --no-run --message-format=json-render-diagnostics "$@" | python3 -c '
import json, os, sys
for line in sys.stdin:
    message = json.loads(line) if line.startswith("{") else {}
    if message.get("executable") and message["profile"]["test"]:
        print(os.path.dirname(message["manifest_path"]), message["target"]["name"], message["executable"])' | sort
}

# Runs the programs of such a list, each in the folder of its package. Fails after the last one if one failed, or if
# there was none.
run_programs() {
    local folder name program count=0 failed=()
    while read -r folder name program; do
        printf '     Running %s/%s (%s)\n' "${folder#"$PWD"/}" "$name" "${program##*/}"
        (cd "$folder" && "$program" </dev/null) || failed+=("$name")
        count=$((count + 1))
    done
    ((count > 0)) || printf 'no test program\n' >&2
    ((count > 0 && ${#failed[@]} == 0))
}
