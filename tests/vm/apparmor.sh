#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Boots stock Debian kernels under an emulated QEMU with the profiles of AppArmor that Debian 12 has for unbound, named,
# charon and libvirt's machines, and our own of millrace-virtio: tests/vm/apparmor.sh. The servers run under their
# profiles with a node beside them. Each case shows what a profile does to the provider, that `millrace gateway check`
# names it, and that the remedy cures it. The kernels are Debian 12's and the newest one, whose AppArmor can judge sockets.
# The guest runs $MILLRACE or target/debug/millrace. Needs no root and no KVM. KERNEL='6.12*' boots these kernels alone.
set -euo pipefail
cd "$(dirname "$0")/../.."

millrace=$(realpath "${MILLRACE:-target/debug/millrace}")
root=$(realpath target/vm)
. tests/vm/emulator.sh
# The profiles lie in the packages: charon and libvirt themselves do not run here.
scripts/unpack-debian.sh bookworm target/vm-apparmor unbound bind9 apparmor openssl \
    --alone strongswan-charon libvirt-daemon-system
system=$(realpath target/vm-apparmor)
LIBRARIES=usr/lib/x86_64-linux-gnu

work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-vm-apparmor.XXXXXX")
trap 'rm -rf "$work"' EXIT
disk=$work/disk log=$work/log

mkdir -p "$disk"/{bin,etc,keys,root,lib64,usr/bin,usr/sbin,usr/share,usr/lib/ipsec,"$LIBRARIES/ossl-modules"}
mkdir -p "$disk"/var/{cache/bind,lib/bind,lib/unbound}
cp "$root/usr/bin/busybox" "$disk/bin/busybox"
cp "$system"/usr/sbin/{unbound,named,apparmor_parser} "$disk/usr/sbin/"
cp "$system"/usr/bin/{openssl,aa-exec} "$disk/usr/bin/"
# It stands for charon: the kernel goes by the path of the program.
cp "$system/usr/bin/openssl" "$disk/usr/lib/ipsec/charon"
cp -r "$system"/etc/{apparmor,apparmor.d,ssl,bind,unbound} "$disk/etc/"
cp -r "$system/usr/share/apparmor-features" "$disk/usr/share/"
cp -a "$system/usr/lib/ssl" "$disk/usr/lib/"
cp deploy/apparmor-millrace-virtio "$disk/etc/apparmor.d/millrace-virtio"
strip -o "$disk/usr/bin/millrace" "$millrace"
strip -o "$disk/$LIBRARIES/ossl-modules/millrace.so" "$(dirname "$millrace")/libmillrace_provider.so"
# Libraries of the release; the C library is a newer one, so that programs of this machine find theirs in it.
cp -L "$root/$LIBRARIES/ld-linux-x86-64.so.2" "$disk/lib64/"
cp -L "$root/$LIBRARIES"/lib{c,m,dl,pthread,rt,resolv}.so.[0-9] "$disk/$LIBRARIES/"
for file in "$disk"/usr/sbin/* "$disk"/usr/bin/* "$disk/$LIBRARIES"/ossl-modules/*; do
    "$disk/lib64/ld-linux-x86-64.so.2" --library-path "$disk/$LIBRARIES:$system/$LIBRARIES" --list "$file"
done | grep -o "=> $system/[^ ]*" | sort -u | while read -r _ library; do cp -L "$library" "$disk/$LIBRARIES/"; done
ln -s usr/lib "$disk/lib"
printf '%s\n' root:x:0:0::/root:/bin/sh unbound:x:101:101::/:/bin/false bind:x:102:102::/:/bin/false >"$disk/etc/passwd"
printf '%s\n' root:x:0: unbound:x:101: bind:x:102: >"$disk/etc/group"
openssl req -x509 -newkey rsa:2048 -nodes -keyout "$disk/keys/www.key" -out "$disk/keys/www.crt" -subj /CN=www \
    -days 2 2>/dev/null
cp tests/vm/apparmor-init "$disk/init"
chmod +x "$disk/init"
pack_disk "$disk" "$work/disk.cpio"

failures=0
expect() { # PATTERN WHAT
    grep -Eq "^$1\$" "$log" && return
    printf 'vm apparmor: %s: %s\n' "$kernel" "$2" >&2
    failures=$((failures + 1))
}
images=("$root"/boot/vmlinuz-${KERNEL:-6.1.*})
images=("${images[-1]}")
if [[ ! ${KERNEL:-} ]]; then
    all=("$root"/boot/vmlinuz-*)
    images+=("${all[-1]}")
fi
for image in "${images[@]}"; do
    kernel=${image##*/vmlinuz-}
    timeout 900 bash -c ". tests/vm/emulator.sh; root='$root'; emulator \"\$@\"" emulator \
        -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1500M \
        -nodefaults -no-user-config -display none -no-reboot -serial stdio \
        -kernel "$image" -initrd "$work/disk.cpio" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check random.trust_cpu=on" \
        </dev/null 2>&1 | stdbuf -o0 tr -d '\r' >"$log" || echo "vm apparmor: $kernel: the machine ended badly" >&2
    [[ ${VERBOSE:-} ]] && cat "$log"
    before=$failures
    expect 'PROFILES 5' 'a profile does not compile, or is not enforced'
    for server in unbound named charon; do
        expect "$server PLAIN served 0" "$server with its own key was not served by OpenSSL alone"
        expect "$server NAMED .*(charon|unbound|named) denies the server /etc/millrace/openssl.cnf.*" \
            "the check does not name the profile of $server"
        expect "$server SILENT 0" "$server names AppArmor itself: the guide says that it does not"
        expect "$server CURED served [1-9][0-9]*" "$server with a stub is not served by the pool after the remedy"
        expect "$server CHECKED 0" "the check of $server fails after the remedy"
        expect "$server DENIED 0" "the profile of $server denies something after the remedy"
    done
    for server in unbound named; do
        expect "$server STUB ended" "$server runs with a stub that it cannot read"
        expect "$server STOPPED .*denies the server /etc/millrace/openssl.cnf.*" \
            "the check does not name the profile of $server, which does not run"
    done
    expect 'VIRTIO 1 0' 'millrace-virtio does not run under its profile, or is denied something'
    expect 'VIRTIO-FOREIGN refused' 'the profile of millrace-virtio lets it read other files'
    expect 'QEMU (connected|refused connected)' 'a machine of libvirt has no device after the remedy'
    if ((failures > before)); then
        tail -n 80 "$log" >&2
    else
        echo "vm apparmor: $kernel: the check named and cured the profiles of unbound, named and charon;" \
            "a machine of libvirt: $(sed -n 's/^QEMU //p' "$log"); sockets: $(sed -n 's/^SOCKETS //p' "$log")"
    fi
done
((failures == 0))
