#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Boots a stock Debian kernel under an emulated QEMU and brings up an IPsec link whose packets the kernel encrypts,
# between two network namespaces of the guest: tests/vm/vpn.sh [MILLRACE]. Kernels of containers and small machines
# have no ESP. The guest runs strongSwan and iproute2 of this machine. Needs no root and no KVM.
set -euo pipefail
cd "$(dirname "$0")/../.."

millrace=$(realpath "${1:-target/debug/millrace}")
root=$(realpath target/vm)
. tests/vm/emulator.sh
PROGRAMS=(/usr/sbin/charon-systemd /usr/sbin/swanctl /usr/sbin/ip /usr/bin/setsid /usr/bin/nsenter /usr/bin/unshare)
PLUGINS=/usr/lib/ipsec/plugins
for file in "${PROGRAMS[@]}" "$PLUGINS/libstrongswan-kernel-netlink.so"; do
    [[ -e $file ]] || { echo "vm vpn: skipped: $file is missing (scripts/setup.sh installs it)"; exit 0; }
done
# The modules of the link and of its ciphers; those that they need come with them.
MODULES=(veth xfrm_user esp4 gcm ctr seqiv echainiv ghash-generic authenc)

work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-vm-vpn.XXXXXX")
trap 'rm -rf "$work"' EXIT
disk=$work/disk log=$work/log
images=("$root"/boot/vmlinuz-*)
image=${images[-1]}
kernel=${image##*/vmlinuz-}

mkdir -p "$disk"/{bin,usr/bin,usr/sbin,link,etc,"lib/modules/$kernel"}
cp "$root/usr/bin/busybox" "$disk/bin/busybox"
strip -o "$disk/usr/bin/millrace" "$millrace"
cp -L "${PROGRAMS[@]}" "$disk/usr/sbin/"
mkdir -p "$disk$PLUGINS"
cp "$PLUGINS"/libstrongswan-*.so "$disk$PLUGINS/"
# Every library of the programs and plugins, where the dynamic linker looks for it.
ldd "$disk"/usr/sbin/* "$disk/usr/bin/millrace" "$disk$PLUGINS"/libstrongswan-{openssl,kernel-netlink}.so |
    grep -o '/[^ ]*' | grep -v "^$disk" | sort -u | while read -r library; do
    library=${library%:}
    mkdir -p "$disk$(dirname "$library")"
    cp -L "$library" "$disk$library"
done
find "$root/usr/lib/modules/$kernel/kernel" -name '*.ko*' \
    \( -path '*/crypto/*' -o -path '*/net/xfrm/*' -o -path '*/net/ipv4/*' -o -name 'veth.ko*' \) \
    -exec cp -t "$disk/lib/modules/$kernel" {} +
printf '%s\n' "${MODULES[@]}" >"$disk/link/modules"
cat >"$disk/link/link.toml" <<'TOML'
name = "mr"
engine = "ipsec"
members = 1
[ends.a]
address = "198.18.0.1"
inner = "10.97.0.1"
certificates = "/link/keys/a"
[ends.b]
address = "198.18.0.2"
inner = "10.97.0.2"
certificates = "/link/keys/b"
TOML
"$millrace" vpn keys "$disk/link/link.toml" -o "$disk/link/keys" 2>/dev/null
head -c 1000000 /dev/urandom >"$disk/link/sent"
cp tests/vm/vpn-init "$disk/init"
chmod +x "$disk/init"
pack_disk "$disk" "$work/disk.cpio"

timeout 400 bash -c ". tests/vm/emulator.sh; root='$root'; emulator \"\$@\"" emulator \
    -machine q35 -accel tcg -cpu max -smp 1 -m 768M \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -kernel "$image" -initrd "$work/disk.cpio" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check random.trust_cpu=on" \
    </dev/null 2>&1 | stdbuf -o0 tr -d '\r' >"$log" || echo "vm vpn: $kernel: the machine ended badly" >&2
[[ ${VERBOSE:-} ]] && cat "$log"

failures=0
expect() { # PATTERN WHAT
    grep -Eq "^$1\$" "$log" && return
    printf 'vm vpn: %s: %s\n' "$kernel" "$2" >&2
    failures=$((failures + 1))
}
expect 'UP' 'the link did not come up'
expect 'SAME 1000000' 'the bytes that arrived are others'
expect 'ESP [1-9][0-9]{6,}' "the kernel's security associations carried less than was sent"
expect 'UP-AGAIN [0-9]+' 'the link did not come back after its daemon was killed'
expect 'SAME-AGAIN 1000000' 'the bytes that arrived after the restart are others'
expect 'DOWN 0' 'security associations stayed after `vpn down`'
if ((failures)); then
    tail -n 60 "$log" >&2
    exit 1
fi
echo "vm vpn: $kernel: the kernel encrypted $(sed -n 's/^ESP //p' "$log") bytes of the link"
