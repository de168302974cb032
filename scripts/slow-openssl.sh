#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Builds a libcrypto as slow as firmwares of routers ship it, without assembly, for the processor of this machine: the
# programs of this Debian release load it with LD_LIBRARY_PATH. The source is that of the release; it takes a minute or
# two of processor time once. Prints the folder. scripts/arm-openssl.sh builds the same for routers themselves.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
root=$PWD/target/openssl-$suite
scripts/unpack-debian.sh "$suite" "$root" --source openssl

source=$root/usr/src/openssl
built=$root/slow
# Two tests may want it at once.
exec 9>"$root.slow.lock"
flock 9
if [[ ! -e $built/libcrypto.so.3 || $built/libcrypto.so.3 -ot $source ]]; then
    rm -rf "$built" "$built.work"
    mkdir -p "$built" "$built.work"
    (
        cd "$built.work"
        # With all that the release's libssl asks for.
        perl "$source/Configure" "linux-$(uname -m)" no-asm shared no-tests --prefix=/usr --openssldir=/usr/lib/ssl -O2
        nice -n 19 make -j"$(nproc)" build_generated libcrypto.so
    ) >"$root/slow.log" 2>&1 9>&- || { tail -n 20 "$root/slow.log" >&2; exit 1; }
    mv "$built.work/libcrypto.so.3" "$built/new"
    mv "$built/new" "$built/libcrypto.so.3"
    rm -rf "$built.work"
fi
printf '%s\n' "$built"
