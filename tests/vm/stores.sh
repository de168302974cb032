#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Boots a stock Debian kernel under an emulated QEMU with a folder of this machine as a 9p file system, mounted twice as by
# two hosts, and keeps the state of a node there: tests/vm/stores.sh. The guest says what worked. Needs no root and no KVM;
# a minute. KERNEL='6.12*' boots another kernel, VERBOSE=1 shows what the guest prints.
set -euo pipefail
cd "$(dirname "$0")/../.."

millrace=$(realpath "${MILLRACE:-target/debug/millrace}")
root=$(realpath target/vm)
. tests/vm/emulator.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-vm-stores.XXXXXX")
trap 'rm -rf "$work"' EXIT
disk=$work/disk log=$work/log share=$work/share
images=("$root"/boot/vmlinuz-${KERNEL:-6.1.*})
image=${images[-1]}
kernel=${image##*/vmlinuz-}

# The guest's owners and modes are attributes of the files here; the folder itself belongs to the guest's root.
mkdir "$share"
python3 -c 'import os, sys
for name in ("uid", "gid"): os.setxattr(sys.argv[1], "user.virtfs." + name, bytes(4))' "$share"

mkdir -p "$disk"/{bin,store,"lib/modules/$kernel"}
cp "$root/usr/bin/busybox" "$disk/bin/busybox"
strip -o "$disk/store/millrace" "$millrace"
for number in 1 2; do
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$disk/store/$number.pem" 2>/dev/null
done
# Every library of the program, where the dynamic linker looks for it.
ldd "$disk/store/millrace" | grep -o '/[^ ]*' | sort -u | while read -r library; do
    mkdir -p "$disk$(dirname "$library")"
    cp -L "$library" "$disk$library"
done
find "$root/usr/lib/modules/$kernel/kernel" \( -path '*/9p/*' -o -path '*/netfs/*' -o -path '*/fscache/*' -o \
    -path '*/virtio/*' \) -name '*.ko*' -exec cp -t "$disk/lib/modules/$kernel" {} +
find "$disk/lib/modules" -name '*.xz' -exec xz -d {} +
cp tests/vm/stores-init "$disk/init"
chmod +x "$disk/init"
pack_disk "$disk" "$work/disk.cpio"

devices=()
for tag in one other; do
    devices+=(-fsdev "local,id=$tag,path=$share,security_model=mapped-xattr,multidevs=remap"
        -device "virtio-9p-pci,fsdev=$tag,mount_tag=$tag")
done
timeout 570 bash -c ". tests/vm/emulator.sh; root='$root'; emulator \"\$@\"" emulator \
    -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1G \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio "${devices[@]}" \
    -kernel "$image" -initrd "$work/disk.cpio" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check random.trust_cpu=on" \
    </dev/null 2>&1 | stdbuf -o0 tr -d '\r' >"$log" || echo "vm stores: $kernel: the machine ended badly" >&2
[[ ${VERBOSE:-} ]] && cat "$log"

failures=0
expect() { # LINE WHAT
    grep -Fxq "$1" "$log" && return
    printf 'vm stores: %s: 9p: %s\n' "$kernel" "$2" >&2
    failures=$((failures + 1))
}
expect 'UP 0' 'a node whose state is there does not start'
expect 'IMPORT 0' 'no key can be imported'
expect 'AGAIN 4' 'a key is imported over another'
expect 'REPLACE 0' 'no key can be replaced'
expect 'FOLDER 0' 'no folder of keys can be imported'
expect 'REMOVE 0' 'no key can be removed'
expect 'CERTIFICATE 0' 'no certificate can be issued'
expect 'OTHER 0' 'the node does not serve a key that another host imported'
expect 'LEFT 0' 'unfinished files are left'
expect 'RESTART 0' 'the node does not start again'
expect 'SERVES one.pem two www' 'the keys are not those that were imported'
if ((failures)); then
    tail -n 60 "$log" >&2
    exit 1
fi
echo "vm stores: $kernel: the state of a node works on 9p"
