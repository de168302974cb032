#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds the programs of the previous version (tests/previous-version) into target/previous/COMMIT, for
# tests/tests/versions.rs, which runs them beside this tree's. Quick when they are there. Starts from the libraries
# that this tree's build has left in target/debug, so run `cargo build` first.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=$(grep -v '^#' tests/previous-version)
out=target/previous/$commit
programs=(millrace libmillrace_provider.so libmillrace_preload.so)
if [[ -x $out/${programs[0]} && -e $out/${programs[1]} && -e $out/${programs[2]} ]]; then exit 0; fi

if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
    printf 'previous-version: this copy has no history with commit %s: its tests are skipped\n' "$commit" >&2
    exit 0
fi
source=target/previous/source
rm -rf "$source"
mkdir -p "$source" "$out"
git archive "$commit" | tar -x -C "$source"
# Libraries of others are taken over as hard links. Not crates of ours: cargo gives both versions the same names,
# and writes its records in place.
build=target/previous/build
rm -rf "$build"
mkdir -p "$build/debug"
for part in .fingerprint build deps; do
    [[ -d target/debug/$part ]] || continue
    cp -al "target/debug/$part" "$build/debug/$part"
    find "$build/debug/$part" -depth \( -name '*millrace*' -o -name '*xtask*' \) -exec rm -rf {} +
done
cargo build --quiet --locked --manifest-path "$source/Cargo.toml" --target-dir "$build" \
    -p millrace-cli -p millrace-provider -p millrace-preload
for program in "${programs[@]}"; do
    cp "$build/debug/$program" "$out/$program.new"
    mv "$out/$program.new" "$out/$program"
done
rm -rf "$build" "$source"
