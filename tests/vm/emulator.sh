# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Sourced by scripts that boot guests: the QEMU that scripts/vm.sh has unpacked into $root, without KVM.

emulator() {
    QEMU_MODULE_DIR=$root/usr/lib/x86_64-linux-gnu/qemu \
        "$root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" \
        "$root/usr/bin/qemu-system-x86_64" -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
}

# Archives a folder as the initial memory disk of a guest.
pack_disk() { # FOLDER FILE
    (cd "$1" && find . | "$root/usr/bin/busybox" cpio -H newc -o 2>/dev/null) >"$2"
}
