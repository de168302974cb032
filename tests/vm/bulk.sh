#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Boots a stock Debian kernel under an emulated QEMU, and compares what the provider has computed by the kernel's ciphers
# (AF_ALG) with OpenSSL: tests/vm/bulk.sh. The guest runs the test application and the OpenSSL of this machine, and the
# provider beside $MILLRACE or target/debug/millrace. Needs no root and no KVM. KERNEL='6.12*' boots another kernel.
set -euo pipefail
cd "$(dirname "$0")/../.."

millrace=$(realpath "${MILLRACE:-target/debug/millrace}")
root=$(realpath target/vm)
. tests/vm/emulator.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-vm-bulk.XXXXXX")
trap 'rm -rf "$work"' EXIT
disk=$work/disk log=$work/log
images=("$root"/boot/vmlinuz-${KERNEL:-6.1.*})
image=${images[-1]}
kernel=${image##*/vmlinuz-}

mkdir -p "$disk"/{bin,bulk,"lib/modules/$kernel"}
cp "$root/usr/bin/busybox" "$disk/bin/busybox"
cc -O1 -o "$disk/bulk/harness" crates/provider/tests/bulk_harness.c -lcrypto
strip -o "$disk/bulk/millrace.so" "$(dirname "$millrace")/libmillrace_provider.so"
strip -o "$disk/bulk/millrace" "$millrace"
# Every library of the programs, where the dynamic linker looks for it.
ldd "$disk"/bulk/{harness,millrace.so,millrace} | grep -o '/[^ ]*' | grep -v "^$disk" | sort -u | while read -r library; do
    library=${library%:}
    mkdir -p "$disk$(dirname "$library")"
    cp -L "$library" "$disk$library"
done
find "$root/usr/lib/modules/$kernel/kernel" -path '*/crypto/*' -name '*.ko*' -exec cp -t "$disk/lib/modules/$kernel" {} +
cp tests/vm/bulk-init "$disk/init"
chmod +x "$disk/init"
pack_disk "$disk" "$work/disk.cpio"

timeout 570 bash -c ". tests/vm/emulator.sh; root='$root'; emulator \"\$@\"" emulator \
    -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 768M \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -kernel "$image" -initrd "$work/disk.cpio" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check random.trust_cpu=on" \
    </dev/null 2>&1 | stdbuf -o0 tr -d '\r' >"$log" || echo "vm bulk: $kernel: the machine ended badly" >&2
[[ ${VERBOSE:-} ]] && cat "$log"

failures=0
expect() { # PATTERN WHAT
    grep -Eq "^$1\$" "$log" && return
    printf 'vm bulk: %s: %s\n' "$kernel" "$2" >&2
    failures=$((failures + 1))
}
for command in ciphers digests macs; do
    expect "$command kernel [1-9][0-9]+ failed 0 refused [0-9]+" "$command differ, or the kernel did none, or failed"
done
expect 'fork kernel (6[1-9]|[7-9][0-9])[0-9] failed 0 refused 0' 'a process and its child do not get their own results'
expect 'descriptors kernel 50 failed [1-9][0-9]* refused 0' 'the kernel is not used again once there are descriptors'
expect 'sessions kernel [1-9][0-9]+ failed [1-9][0-9]* refused 0' 'a hundred contexts have not the results of OpenSSL'
expect 'SIZES 0' 'bench sizes does not measure the kernel, or its results differ from those of OpenSSL'
expect 'ROWS [1-9][0-9]*' 'bench sizes saved no sizes for the provider'
expect 'UNMEASURED kernel 0 failed 0 refused 0' 'the kernel was used without a measurement'
expect 'SAVED ([1-9][0-9]*|-)' 'bench sizes saved no size of AES-CBC'
expect 'BELOW kernel 0 failed 0 refused 0' 'packets below the saved size went to the kernel'
expect 'ABOVE kernel 300 failed 0 refused 0' 'packets of the saved size did not go to the kernel'
if ((failures)); then
    tail -n 60 "$log" >&2
    exit 1
fi
sed -n 's/^TABLE //p' "$log"
sed -n "s/^\(ciphers\|digests\|macs\) kernel \([0-9]*\).*/vm bulk: $kernel: \2 messages of \1 by the kernel, equal to OpenSSL's/p" "$log"
