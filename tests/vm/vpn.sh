#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Boots a stock Debian kernel under an emulated QEMU for links that kernels of containers and small machines cannot
# carry, between network namespaces of the guest: tests/vm/vpn.sh [ipsec] [bridged], both without a name. ipsec: the
# kernel encrypts. bridged: a bond of OpenVPN's TAP devices. The guest runs strongSwan, OpenVPN and iproute2 of this
# machine, and $MILLRACE or target/debug/millrace. Needs no root and no KVM.
set -euo pipefail
cd "$(dirname "$0")/../.."

cases=("$@")
((${#cases[@]})) || cases=(ipsec bridged)
millrace=$(realpath "${MILLRACE:-target/debug/millrace}")
root=$(realpath target/vm)
. tests/vm/emulator.sh
PROGRAMS=(/usr/sbin/charon-systemd /usr/sbin/swanctl /usr/sbin/openvpn /usr/sbin/ip /usr/bin/setsid /usr/bin/nsenter
    /usr/bin/unshare /usr/bin/taskset)
PLUGINS=/usr/lib/ipsec/plugins
for file in "${PROGRAMS[@]}" "$PLUGINS/libstrongswan-kernel-netlink.so"; do
    [[ -e $file ]] || { echo "vm vpn: skipped: $file is missing (scripts/setup.sh installs it)"; exit 0; }
done
# The modules of the links and of their ciphers; those that they need come with them.
MODULES=(veth xfrm_user esp4 gcm ctr seqiv echainiv ghash-generic authenc tun bonding bridge)

work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-vm-vpn.XXXXXX")
trap 'rm -rf "$work"' EXIT
disk=$work/disk log=$work/log
# The kernel of Debian 12: newer ones may lie beside it.
images=("$root"/boot/vmlinuz-6.1.*)
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
    \( -path '*/crypto/*' -o -path '*/net/xfrm/*' -o -path '*/net/ipv4/*' -o -path '*/net/bonding/*' \
    -o -path '*/net/bridge/*' -o -path '*/net/802/*' -o -path '*/net/llc/*' -o -path '*/net/tls/*' \
    -o -name 'veth.ko*' -o -name 'tun.ko*' \) \
    -exec cp -t "$disk/lib/modules/$kernel" {} +
printf '%s\n' "${MODULES[@]}" >"$disk/link/modules"
# The accounts that OpenVPN admits to its control socket and changes to.
printf '%s\n' root:x:0:0::/:/bin/sh nobody:x:65534:65534::/:/bin/false >"$disk/etc/passwd"
printf '%s\n' root:x:0: nogroup:x:65534: >"$disk/etc/group"
cat >"$disk/link/ipsec.toml" <<'TOML'
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
cat >"$disk/link/bridged.toml" <<'TOML'
name = "mr"
mode = "bridged"
members = 4
[bond]
mode = "balance-xor"
mtu = 1500
[ends.a]
address = "198.18.0.1"
inner = "10.97.0.1"
certificates = "/link/keys/a"
[ends.b]
address = "198.18.0.2"
inner = "10.97.0.2"
bridge = "br0"
certificates = "/link/keys/b"
TOML
"$millrace" vpn keys "$disk/link/ipsec.toml" -o "$disk/link/keys" 2>/dev/null
head -c 1000000 /dev/urandom >"$disk/link/sent"
cp tests/vm/vpn-{init,ipsec,bridged} "$disk/link/"
mv "$disk/link/vpn-init" "$disk/init"
chmod +x "$disk/init"
pack_disk "$disk" "$work/disk.cpio"

failures=0
expect() { # PATTERN WHAT
    grep -Eq "^$1\$" "$log" && return
    printf 'vm vpn: %s: %s\n' "$kernel" "$2" >&2
    failures=$((failures + 1))
}
expect_ipsec() {
    expect 'UP' 'the link did not come up'
    expect 'SAME 1000000' 'the bytes that arrived are others'
    expect 'ESP [1-9][0-9]{6,}' "the kernel's security associations carried less than was sent"
    expect 'UP-AGAIN [0-9]+' 'the link did not come back after its daemon was killed'
    expect 'SAME-AGAIN 1000000' 'the bytes that arrived after the restart are others'
    expect 'DOWN 0' 'security associations stayed after `vpn down`'
    result="the kernel encrypted $(sed -n 's/^ESP //p' "$log") bytes of the link"
}
expect_bridged() {
    expect 'REFUSED 2' '`up` with a missing bridge and a bridge of another MTU changed something, or named no remedy'
    expect 'UP 4 4' 'the bonds do not have four members each'
    expect 'PING 3' 'the ends do not reach each other'
    expect 'BRIDGED 3' 'a host behind the bridge is not reached by packets of 1500 bytes'
    expect 'KILLED [0-9]+ ms' 'the member whose process died stayed in the bond'
    expect 'HUNG [0-9]+ ms [0-9]+ ms' 'the member whose process hung stayed in a bond'
    expect 'SAME 3000000' 'a TCP connection did not survive the loss of members'
    expect 'BACK 4 4' 'the lost members did not come back'
    expect 'KEPT 4' 'tunnels ended with their supervisor, or another one did not find them'
    expect 'SMALLER 3 3' 'the link did not shrink to three members'
    expect 'ROLLED-BACK 4 4' 'the former configuration did not come back'
    expect 'SAME-AGAIN 3000000' 'a TCP connection did not survive the changes'
    expect 'STAYS 1' 'the mode of a link that is up could be changed'
    expect 'DOWN 0 0' 'devices or processes stayed after `vpn down`'
    expect 'MODE balance-rr 3' 'a bond with balance-rr does not carry packets'
    expect 'MODE active-backup 3' 'a bond with active-backup does not carry packets'
    result="a bond of four tunnels: killed member out after $(sed -n 's/^KILLED //p' "$log"), hung member out at"
    result+=" both ends after $(sed -n 's/^HUNG //p' "$log"), emulated"
}
for case in "${cases[@]}"; do
    timeout 570 bash -c ". tests/vm/emulator.sh; root='$root'; emulator \"\$@\"" emulator \
        -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 768M \
        -nodefaults -no-user-config -display none -no-reboot -serial stdio \
        -kernel "$image" -initrd "$work/disk.cpio" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check random.trust_cpu=on case=$case" \
        </dev/null 2>&1 | stdbuf -o0 tr -d '\r' >"$log" || echo "vm vpn: $kernel: the machine ended badly" >&2
    [[ ${VERBOSE:-} ]] && cat "$log"
    before=$failures
    "expect_$case"
    if ((failures > before)); then
        tail -n 80 "$log" >&2
    else
        echo "vm vpn: $kernel: $result"
    fi
done
((failures == 0))
