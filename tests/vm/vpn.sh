#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Boots stock Debian kernels under an emulated QEMU for links that kernels of containers and small machines cannot
# carry, between network namespaces of the guest: tests/vm/vpn.sh [CASE...], all cases without a name.
#   ipsec    the kernel encrypts
#   bridged  a bond of OpenVPN's TAP devices
#   dco      OpenVPN's data channel in the kernel
#   percpu   IPsec with one security association per processor
#   rates    `millrace vpn bench` with what only this kernel has; only by its name: it takes 10 minutes
# ipsec and bridged run with Debian 12's kernel and the strongSwan, OpenVPN and iproute2 of this machine; the others
# with the kernel and the programs of Debian sid. All run $MILLRACE or target/debug/millrace. Needs no root and no KVM.
set -euo pipefail
cd "$(dirname "$0")/../.."

cases=("$@")
((${#cases[@]})) || cases=(ipsec bridged dco percpu)
millrace=$(realpath "${MILLRACE:-target/debug/millrace}")
root=$(realpath target/vm)
. tests/vm/emulator.sh
PROGRAMS=(usr/sbin/charon-systemd usr/sbin/swanctl usr/sbin/openvpn usr/sbin/ip usr/bin/setsid usr/bin/nsenter
    usr/bin/unshare usr/bin/taskset)
PLUGINS=usr/lib/ipsec/plugins
# The modules of the links and of their ciphers; those that they need come with them.
MODULES=(veth xfrm_user esp4 gcm ctr seqiv echainiv ghash-generic authenc tun bonding bridge)
NEW_MODULES=(veth xfrm_user esp4 gcm ctr seqiv echainiv authenc chacha20poly1305 tun bonding bridge ovpn wireguard)

work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-vm-vpn.XXXXXX")
trap 'rm -rf "$work"' EXIT
log=$work/log

is_new() { [[ $1 == dco || $1 == percpu || $1 == rates ]]; }
# Chooses kernel, programs and memory disk of a case; makes the disk.
prepare() { # CASE
    local pattern='6.1.*' system=/
    programs=("${PROGRAMS[@]}") modules=("${MODULES[@]}") disk=$work/disk
    if is_new "$1"; then
        scripts/unpack-debian.sh sid target/vm-vpn openvpn charon-systemd strongswan-swanctl iproute2 iperf3 \
            wireguard-tools libcharon-extra-plugins util-linux
        pattern='*' system=$(realpath target/vm-vpn)/ disk=$work/new-disk modules=("${NEW_MODULES[@]}")
        # The bench ends what it starts by setpriv; that of busybox has no such option.
        programs+=(usr/bin/iperf3 usr/bin/wg usr/bin/setpriv)
    fi
    # The newest of the release: others may lie beside it.
    images=("$root"/boot/vmlinuz-$pattern)
    image=${images[-1]}
    kernel=${image##*/vmlinuz-}
    [[ -e $disk.cpio ]] || make_disk "$system"
}
make_disk() { # ROOT OF THE PROGRAMS
    mkdir -p "$disk"/{bin,usr/bin,usr/sbin,link,etc,lib64,"lib/modules/$kernel","$PLUGINS"}
    cp "$root/usr/bin/busybox" "$disk/bin/busybox"
    strip -o "$disk/usr/bin/millrace" "$millrace"
    cp -L "${programs[@]/#/$1}" "$disk/usr/sbin/"
    cp "$1$PLUGINS"/libstrongswan-*.so "$disk/$PLUGINS/"
    copy_libraries "$1"
    copy_modules
    printf '%s\n' "${modules[@]}" >"$disk/link/modules"
    # The accounts that OpenVPN admits to its control socket and changes to.
    printf '%s\n' root:x:0:0::/:/bin/sh nobody:x:65534:65534::/:/bin/false >"$disk/etc/passwd"
    printf '%s\n' root:x:0: nogroup:x:65534: >"$disk/etc/group"
    cp "$work"/*.toml "$disk/link/"
    cp -r "$work/keys" "$disk/link/"
    cp "$work/sent" "$disk/link/"
    cp tests/vm/vpn-* "$disk/link/"
    mv "$disk/link/vpn-init" "$disk/init"
    chmod +x "$disk/init"
    pack_disk "$disk" "$disk.cpio"
}
# Every library of the programs and plugins, where the dynamic linker of the guest looks for it.
copy_libraries() { # ROOT OF THE PROGRAMS
    local path=${1}usr/lib/x86_64-linux-gnu:${1}lib/x86_64-linux-gnu:${1}usr/lib/ipsec library folder
    cp -L "${1}lib64/ld-linux-x86-64.so.2" "$disk/lib64/"
    for file in "$disk"/usr/sbin/* "$disk/usr/bin/millrace" \
        "$disk/$PLUGINS"/libstrongswan-{openssl,kernel-netlink,kernel-libipsec}.so; do
        [[ -e $file ]] || continue
        "$disk/lib64/ld-linux-x86-64.so.2" --library-path "$path" --list "$file"
    done | grep -o '=> /[^ ]*' | sort -u | while read -r _ library; do
        folder=/usr/lib/x86_64-linux-gnu
        [[ $library == */ipsec/* ]] && folder=/usr/lib/ipsec
        mkdir -p "$disk$folder"
        cp -L "$library" "$disk$folder/"
    done
    # The folder of the dynamic linker's own default, which has no cache here.
    mkdir -p "$disk/lib"
    ln -s ../usr/lib/x86_64-linux-gnu "$disk/lib/x86_64-linux-gnu"
}
copy_modules() {
    find "$root/usr/lib/modules/$kernel/kernel" -name '*.ko*' \
        \( -path '*/crypto/*' -o -path '*/net/xfrm/*' -o -path '*/net/ipv4/*' -o -path '*/net/ipv6/*' \
        -o -path '*/net/bonding/*' -o -path '*/net/bridge/*' -o -path '*/net/802/*' -o -path '*/net/llc/*' \
        -o -path '*/net/tls/*' -o -path '*/net/strparser/*' -o -path '*/net/ovpn/*' -o -path '*/net/wireguard/*' \
        -o -name 'veth.ko*' -o -name 'tun.ko*' \) -exec cp -t "$disk/lib/modules/$kernel" {} +
    find "$disk/lib/modules/$kernel" -name '*.xz' -exec xz -d {} +
}

for file in "${PROGRAMS[@]}" "$PLUGINS/libstrongswan-kernel-netlink.so"; do
    [[ -e /$file ]] || { echo "vm vpn: skipped: /$file is missing (scripts/setup.sh installs it)"; exit 0; }
done
declare_link() { # FILE LINES-BEFORE-THE-ENDS LINES-OF-END-B LINES-AFTER
    cat >"$work/$1.toml" <<TOML
name = "mr"
$2
[ends.a]
address = "198.18.0.1"
inner = "10.97.0.1"
certificates = "/link/keys/a"
[ends.b]
address = "198.18.0.2"
inner = "10.97.0.2"
certificates = "/link/keys/b"
$3
$4
TOML
}
declare_link ipsec $'engine = "ipsec"\nmembers = 1' '' ''
declare_link percpu $'engine = "ipsec"\nmembers = 1' '' $'[ipsec]\nper-cpu-sas = true'
declare_link dco 'members = 2' '' $'[tunnels]\ndata-path = "kernel"'
declare_link bridged $'mode = "bridged"\nmembers = 4\n[bond]\nmode = "balance-xor"\nmtu = 1500' 'bridge = "br0"' ''
"$millrace" vpn keys "$work/ipsec.toml" -o "$work/keys" 2>/dev/null
head -c 1000000 /dev/urandom >"$work/sent"

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
expect_dco() {
    expect 'UP' 'the link did not come up'
    expect 'KIND 4' 'the devices do not encrypt in the kernel'
    expect 'SAME 3000000' 'a TCP connection did not survive the loss of a member'
    expect 'CARRIED [1-9][0-9]{6,}' 'the devices carried less than was sent'
    expect 'KILLED [0-9]+ ms' 'the member whose process was killed stayed in the route'
    expect 'BACK 1' 'the killed member did not come back'
    expect 'KEPT 2' 'tunnels ended with their supervisor, or another one did not find them'
    expect 'CHANGED 4 0' 'the link did not change to tunnels of user space alone'
    expect 'CHANGED 4 4' 'the link did not change back to the kernel alone'
    expect 'SAME-AGAIN 3000000' 'the bytes that arrived after the restart are others'
    expect 'DOWN 0 0' 'devices or processes stayed after `vpn down`'
    result="the kernel carried $(sed -n 's/^CARRIED //p' "$log") bytes of OpenVPN's tunnels; killed member out after"
    result+=" $(sed -n 's/^KILLED //p' "$log"), emulated"
}
expect_percpu() {
    expect 'UP' 'the link did not come up'
    expect 'SAME 1000000' 'the bytes that arrived are others'
    expect 'CPUS 0 1' 'the kernel has no security association of each processor'
    expect 'UP-AGAIN [0-9]+' 'the link did not come back after its daemon was killed'
    expect 'SAME-AGAIN 1000000' 'the bytes that arrived after the restart are others'
    expect 'DOWN 0' 'security associations stayed after `vpn down`'
    result="security associations of processors $(sed -n 's/^CPUS //p' "$log") carried the link"
}
expect_rates() {
    expect 'BENCH 0' 'the bench failed'
    sed -n 's/^RATES //p' "$log"
    result='rates measured, emulated'
}
expect_bridged() {
    expect 'REFUSED 2' '`up` with a missing bridge and a bridge of another MTU changed something, or named no remedy'
    expect 'UP 4 4' 'the bonds do not have four members each'
    expect 'MEMORY prefer:0 prefer:1' 'the members do not take memory of the node of their processor'
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
    prepare "$case"
    limit=570
    [[ $case == rates ]] && limit=3000
    timeout "$limit" bash -c ". tests/vm/emulator.sh; root='$root'; emulator \"\$@\"" emulator \
        -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1G \
        -object memory-backend-ram,id=m0,size=512M -object memory-backend-ram,id=m1,size=512M \
        -numa node,cpus=0,memdev=m0 -numa node,cpus=1,memdev=m1 \
        -nodefaults -no-user-config -display none -no-reboot -serial stdio \
        -kernel "$image" -initrd "$disk.cpio" \
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
