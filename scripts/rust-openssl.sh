#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds the tests of a version of the crate openssl against this machine's OpenSSL: scripts/rust-openssl.sh VERSION.
# Prints the folder of the crate, in which the program `tests` is to be started.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$1
work=$PWD/target/rust-openssl-$version
crate=$work/crate
mkdir -p "$work/src"
# Several runs may want it at once.
exec 9>"$work.lock"
flock 9
if [[ ! -x $crate/tests ]]; then
    cat >"$work/Cargo.toml" <<TOML
[package]
name = "source"
version = "0.0.0"
edition = "2021"
[workspace]
[dependencies]
openssl = "=$version"
TOML
    : >"$work/src/lib.rs"
    build='
        cd "$1"
        cargo vendor --quiet vendor
        rm -rf crate
        cp -a vendor/openssl crate
        echo "[workspace]" >>crate/Cargo.toml
        cd crate
        nice -n 19 cargo test --quiet --lib --no-run --target-dir ../build --message-format=json |
            sed -n "s/.*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -n 1 >../program
        cp "$(cat ../program)" tests'
    bash -euo pipefail -c "$build" build "$work" >"$work.log" 2>&1 9>&- || { tail -n 20 "$work.log" >&2; exit 1; }
fi
printf '%s\n' "$crate"
