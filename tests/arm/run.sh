#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# What `local = on` chooses on 64-bit Arm, beside a fast and a slow build of libcrypto: tests/arm/run.sh [SUITE...], by
# default bookworm and trixie. A stock Debian kernel boots under QEMU without KVM, whose clock advances by one
# nanosecond for each instruction of the guest (`-icount`), so the provider measures instructions, and a busy host
# changes nothing. That is a simple processor, which computes one instruction of any kind in a cycle; the time under
# user emulation would show how QEMU translates, which punishes vector instructions. No figure is one of hardware.
#
# Fails unless the slow build is relieved of what it computes in more than 1.5 times the instructions, AES-GCM and
# ChaCha20-Poly1305 at least, and the fast one of nothing. Needs no root and no KVM. Half a minute once everything is
# built; VERBOSE=1 shows what the guest prints.
set -euo pipefail
cd "$(dirname "$0")/../.."

# A processor of routers, and the same without instructions for AES and SHA: NEON alone is left.
PROCESSOR=cortex-a53
CASES=("$PROCESSOR:" "$PROCESSOR, NEON alone:OPENSSL_armcap=1")
LIMIT_S=900

scripts/unpack-debian.sh trixie target/arm/machine qemu-system-arm cpio coreutils \
    --alone busybox-static:arm64 --kernel trixie:arm64
machine=$PWD/target/arm/machine
libraries=$PWD/target/arm/tools/usr/aarch64-linux-gnu/lib
inside=$PWD/scripts/in-root.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-arm.XXXXXX")
trap 'rm -rf "$work"' EXIT
inside() { MILLRACE_ROOT_BINDS=$work "$inside" "$machine" "$@"; }

# The initial memory disk: two libcrypto, the module, and the C library that it was linked with.
memory_disk() { # BUILT
    local disk=$work/disk
    rm -rf "$disk"
    mkdir -p "$disk"/{bin,lib,proc,dev,fast,slow}
    cp "$machine/usr/bin/busybox" "$disk/bin/"
    cp -L "$libraries"/{ld-linux-aarch64.so.1,libc.so.6,libm.so.6,libgcc_s.so.1,libdl.so.2,libpthread.so.0} "$disk/lib/"
    for build in fast slow; do
        cp -L "$1/$build"/lib*.so.* "$disk/$build/"
    done
    cp -L "$1/openssl" "$1/millrace.so" "$disk/bin/"
    cat >"$disk/on.cnf" <<'CNF'
openssl_conf = init
[init]
providers = providers
alg_section = preferred
[providers]
default = own
millrace = millrace
[own]
activate = 1
[millrace]
module = /bin/millrace.so
activate = 1
mode = off
algorithms = none
local = on
choice_file = /choice.tsv
[preferred]
default_properties = ?millrace.local=yes
CNF
    {
        printf '#!/bin/busybox sh\n/bin/busybox mount -t proc proc /proc\n'
        local number=0
        for case in "${CASES[@]}"; do
            for build in slow fast; do
                printf 'echo CASE %s %s\n' "$number" "$build"
                printf 'for what in cipher digest; do %s OPENSSL_CONF=/on.cnf LD_LIBRARY_PATH=/%s %s | %s; done\n' \
                    "${case#*:}" "$build" '/bin/openssl list -$what-algorithms' '/bin/busybox grep "@ millrace"'
                printf '/bin/busybox cat /choice.tsv; /bin/busybox rm /choice.tsv; echo END\n'
            done
            number=$((number + 1))
        done
        printf '/bin/busybox poweroff -f\n'
    } >"$disk/init"
    chmod +x "$disk/init"
    (cd "$disk" && find . | inside cpio -H newc -o --quiet) >"$work/disk.cpio"
}

suites=("$@")
((${#suites[@]})) || suites=(bookworm trixie)
kernel=$(find "$machine/boot" -name 'vmlinuz-*' -print -quit)
for suite in "${suites[@]}"; do
    memory_disk "$(scripts/arm.sh "$suite")"
    inside timeout "$LIMIT_S" qemu-system-aarch64 -M virt -cpu "$PROCESSOR" -icount shift=0,sleep=off -m 512 \
        -nic none -display none -monitor none -serial stdio -no-reboot \
        -kernel "$kernel" -initrd "$work/disk.cpio" -append 'console=ttyAMA0 quiet panic=-1' </dev/null |
        tr -d '\r' >"$work/said"
    if [[ ${VERBOSE:-} ]]; then cat "$work/said" >&2; fi
    python3 tests/arm/judge.py "$suite" "$work/said" "${CASES[@]%%:*}"
done
