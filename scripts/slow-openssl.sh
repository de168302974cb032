#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds a libcrypto as slow as firmwares of routers ship it, without assembly. The source is that of a Debian release;
# it takes a minute or two of processor time once. Prints the folder:
#
#   scripts/slow-openssl.sh               for this machine: its release's programs load it with LD_LIBRARY_PATH
#   scripts/slow-openssl.sh SUITE TOOLS   for 64-bit Arm: of this release, by the compiler in the folder TOOLS
#
# scripts/arm-openssl.sh builds the same for 32-bit routers.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")}
root=$PWD/target/openssl-$suite
scripts/unpack-debian.sh "$suite" "$root" --source openssl

source=$root/usr/src/openssl
built=$root/slow
target=(no-asm shared no-tests --prefix=/usr --openssldir=/usr/lib/ssl -O2)
inside=()
if (($# > 1)); then
    built+=-arm64
    target+=(linux-aarch64 --cross-compile-prefix=aarch64-linux-gnu-)
    inside=("$PWD/scripts/in-root.sh" "$(realpath "$2")")
else
    target+=("linux-$(uname -m)")
fi
# Two tests may want it at once.
exec 9>"$built.lock"
flock 9
if [[ ! -e $built/libcrypto.so.3 || $built/libcrypto.so.3 -ot $source ]]; then
    rm -rf "$built" "$built.work"
    mkdir -p "$built" "$built.work"
    (
        cd "$built.work"
        # With all that the release's libssl asks for.
        "${inside[@]}" perl "$source/Configure" "${target[@]}"
        nice -n 19 "${inside[@]}" make -j"$(nproc)" build_generated libcrypto.so
    ) >"$built.log" 2>&1 9>&- || { tail -n 20 "$built.log" >&2; exit 1; }
    mv "$built.work/libcrypto.so.3" "$built/new"
    mv "$built/new" "$built/libcrypto.so.3"
    rm -rf "$built.work"
fi
printf '%s\n' "$built"
