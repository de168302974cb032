#!/bin/sh
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Cross-compiles two libcrypto for 32-bit Arm routers (Cortex-A9/A15), as fixtures of `millrace inspect`:
# one with all its assembly, one as slow as firmwares ship it (no assembly, for size).
#
#   scripts/arm-openssl.sh             builds in target/arm-openssl (minutes), writes nothing else
#   scripts/arm-openssl.sh --reduce    then replaces the reduced copies in crates/inspect/fixtures
#
# Needs gcc-arm-linux-gnueabihf and libc6-dev-armhf-cross, and `apt-get source openssl` to work (or the
# source as target/arm-openssl/openssl-*.tar.gz). No test needs it: they use the reduced copies.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
work=${ARM_OPENSSL_DIR:-$here/target/arm-openssl}
cross=arm-linux-gnueabihf-
mkdir -p "$work"
cd "$work"

set -- "${1:-}" openssl[-_]*.tar.gz
if [ ! -f "$2" ]; then
    apt-get source --download-only openssl
    set -- "$1" openssl[-_]*.tar.gz
fi
archive=$work/$2

# build NAME FLAGS...: a stripped libcrypto of this name.
build() {
    name=$1
    shift
    [ ! -f "$work/$name.so" ] || return 0
    rm -rf "$work/$name"
    mkdir "$work/$name"
    tar -xzf "$archive" -C "$work/$name" --strip-components=1
    (
        cd "$work/$name"
        ./Configure linux-armv4 --cross-compile-prefix=$cross --prefix=/usr --openssldir=/etc/ssl \
            shared no-tests no-engine no-dso "$@" >configure.log
        nice -n 19 make -j1 build_generated libcrypto.so >make.log 2>&1
        ${cross}strip --strip-unneeded -o "$work/$name.so" libcrypto.so.3
    )
}

build fast -O3 -march=armv7-a -mfpu=neon -mfloat-abi=hard
build slow no-asm -Os -march=armv7-a -mfpu=vfpv3-d16 -mfloat-abi=hard
ls -l fast.so slow.so
[ "${1:-}" = --reduce ] || exit 0

# reduce FILE TARGET PREFIX [ASSEMBLER-LINE]
#
# A reduced copy keeps what is read of a library that cannot be run here: name, needs, build id,
# the attributes of its ABI, and every string of more than one word (assembly modules, versions, the
# compiler's line). Code, tables and symbols are left out: it is linked anew around the strings.
reduce() {
    file=$1
    target=$2
    prefix=$3
    scratch=$work/reduced
    id=$("${prefix}readelf" -n "$file" | sed -n 's/.*Build ID: //p')
    soname=$("${prefix}readelf" -d "$file" | sed -n 's/.*soname: \[\(.*\)\]/\1/p')
    strings -a -n 6 "$file" | grep ' ' | sort -u | tr '\n' '\0' >"$scratch.strings"
    printf '%s\n.section .rodata\n.incbin "%s"\n' "${4:-}" "$scratch.strings" >"$scratch.S"
    mkdir -p "$(dirname -- "$target")"
    "${prefix}gcc" -shared -nostdlib -o "$target" "$scratch.S" -Wl,-soname,"$soname" \
        -Wl,--build-id=0x"$id" -Wl,-z,noseparate-code -Wl,--no-as-needed -lc
    if [ -n "${4:-}" ]; then
        "${prefix}objcopy" -O binary --only-section=.ARM.attributes \
            --set-section-flags .ARM.attributes=alloc "$file" "$scratch.attributes"
        "${prefix}objcopy" --update-section .ARM.attributes="$scratch.attributes" "$target"
    fi
    "${prefix}strip" --strip-unneeded "$target"
    chmod 644 "$target"
}
fixtures=$here/crates/inspect/fixtures
# 28 is Tag_ABI_VFP_args: the linker marks the whole file as hard-float by it.
hard_float='.eabi_attribute 28, 1'
reduce "$work/slow.so" "$fixtures/arm-a15-router/usr/lib/libcrypto.so.3" $cross "$hard_float"
reduce "$work/fast.so" "$fixtures/arm-a9-router/usr/lib/libcrypto.so.3" $cross "$hard_float"
# And that of the machine itself, for the virtual machine with AES-NI.
native=/usr/lib/x86_64-linux-gnu/libcrypto.so.3
[ ! -f $native ] || reduce $native "$fixtures/aes-ni-vm$native" "" ""
ls -l "$fixtures"/arm-a*-router/usr/lib/libcrypto.so.3
