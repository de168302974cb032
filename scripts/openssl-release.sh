#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds a release of OpenSSL that no Debian release has, and puts it into a folder in which programs can be run:
# scripts/openssl-release.sh 3.0.2|4.0.3. Prints the folder, which MILLRACE_TEST_ROOT takes: a small Debian 12 whose
# `openssl` and libraries are of this release. The source is that of the crate openssl-src, with what the crate leaves
# out, such as shared libraries need, from a Debian source of the same minor version. It is built once, in some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:-}
case $version in
    3.0.2) crate=300.0.5 suite=bookworm ;;
    4.0.3) crate=400.0.2 suite=experimental ;;
    *) echo "usage: scripts/openssl-release.sh 3.0.2|4.0.3" >&2; exit 2 ;;
esac
root=$PWD/target/openssl-$version
source=$PWD/target/openssl-$version-source
log=$root.log
scripts/unpack-debian.sh bookworm "$root" bash coreutils dash openssl perl
# Two tests may want it at once.
exec 9>"$root.build.lock"
flock 9
if [[ ! -e $root/.built || $root/.built -ot $root/.millrace ]]; then
    rest=$PWD/target/openssl-$suite
    scripts/unpack-debian.sh "$suite" "$rest" --source openssl
    grep -q "^MAJOR=${version%%.*}$" "$rest/usr/src/openssl/VERSION.dat" ||
        { echo "openssl-release: Debian $suite has no source of OpenSSL ${version%.*} any more" >&2; exit 1; }
    rm -rf "$source"
    mkdir -p "$source/src"
    cat >"$source/Cargo.toml" <<TOML
[package]
name = "openssl-source"
version = "0.0.0"
edition = "2021"
[workspace]
[dependencies]
openssl-src = "=$crate"
TOML
    : >"$source/src/lib.rs"
    build='
        cd "$1"
        cargo vendor --quiet vendor
        cp -a "$4/usr/src/openssl" openssl
        cp -a vendor/openssl-src/openssl/. openssl
        # The tests of one source: the crate may have no more of them than a list.
        [ -e vendor/openssl-src/openssl/test/evp_test.c ] || cp -a "$4/usr/src/openssl/test/." openssl/test
        cd openssl
        perl ./Configure "linux-$3" shared -O1 --prefix=/usr "--libdir=lib/$3-linux-gnu" --openssldir=/usr/lib/ssl
        nice -n 19 make -j2 build_generated
        nice -n 19 make -j2 libcrypto.so libssl.so build_modules apps/openssl
        cp -P --remove-destination lib{crypto,ssl}.so* "$2/usr/lib/$3-linux-gnu/"
        mkdir -p "$2/usr/lib/$3-linux-gnu/ossl-modules"
        cp providers/legacy.so "$2/usr/lib/$3-linux-gnu/ossl-modules/"
        cp apps/openssl "$2/usr/bin/"
        # Programs of the tests: what the recipes name, but for those that contain a libcrypto of their own. One that
        # cannot be built is one whose test fails without Millrace, too.
        make -pn nothing 2>/dev/null | sed -n "/libcrypto\.a/d; s/^\(test\/[a-z0-9_]*\): .*/\1/p" | sort -u >programs
        grep -ohE "[a-z0-9_]+" test/recipes/*.t | sort -u | sed "s/^/test\//" | comm -12 - programs >named
        nice -n 19 make -j2 -k $(cat named) || true
        # Its cache of libraries names those of Debian.
        ldconfig -r "$2"'
    bash -euc "$build" build "$source" "$root" "$(uname -m)" "$rest" >"$log" 2>&1 9>&- ||
        { tail -n 20 "$log" >&2; exit 1; }
    scripts/in-root.sh "$root" openssl version >>"$log"
    grep -q "^OpenSSL $version " "$log" || { echo "openssl-release: $root has another OpenSSL: see $log" >&2; exit 1; }
    touch "$root/.built"
fi
printf '%s\n' "$root"
