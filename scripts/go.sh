#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Prints the path of a Go that offers X25519MLKEM768 by default (1.24 or later): this machine's, else that of
# Debian 13, which it unpacks into target/golang. Needs no root.
set -euo pipefail
cd "$(dirname "$0")/.."

LEAST=1.24
ROOT=$PWD/target/golang

# Whether a Go runs and is new enough.
good() {
    local version
    version=$("$1" env GOVERSION 2>/dev/null) || return 1
    [[ $(printf '%s\n' "$LEAST" "${version#go}" | sort -V | head -n 1) == "$LEAST" ]]
}

export GOTOOLCHAIN=local
for go in "$(command -v go || true)" /usr/local/go/bin/go; do
    if [[ -n $go ]] && good "$go"; then
        echo "$go"
        exit 0
    fi
done
scripts/unpack-debian.sh trixie "$ROOT" golang-1.24-go >&2
go=$ROOT/usr/lib/go-1.24/bin/go
good "$go" || { echo "go: $go does not run here" >&2; exit 1; }
echo "$go"
