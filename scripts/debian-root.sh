#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Makes a clean Debian root with the packages of a small gateway, installed as Debian installs them:
# scripts/debian-root.sh 12|13 [DIR], target/install/12 or 13 if none is named. Takes root, and changes
# nothing of this machine. Silent when the root is there.
set -euo pipefail
cd "$(dirname "$0")/.."

# What the README tells an administrator to have (make), what the guides use, and ssh between machines.
PACKAGES=(
    systemd systemd-sysv dbus procps iproute2 util-linux passwd
    make sudo openssl curl jq ca-certificates openssh-server openssh-client
    nginx haproxy libisal2 openvpn
)

fail() {
    printf 'debian-root: %s\n' "$1" >&2
    exit 1
}
case ${1:-} in
    12) suite=bookworm ;;
    13) suite=trixie ;;
    *) fail "usage: scripts/debian-root.sh 12|13 [DIR]" ;;
esac
root=$(realpath -m "${2:-target/install/$1}")
# Written last: what is in the root. Raised when the way in which it is made changes.
stamp=$root/.millrace
contents="1 $suite ${PACKAGES[*]}"
present() { [[ -e $stamp && $(<"$stamp") == "$contents" ]]; }

present && exit 0
((EUID == 0)) || fail "root is needed: sudo scripts/debian-root.sh $1"
mkdir -p "$(dirname "$root")"
exec 9>"$root.lock"
flock 9
present && exit 0

work=$(mktemp -d "$root.work.XXXXXX")
trap 'rm -rf "$work"' EXIT
apt-config dump Acquire >"$work/apt.conf"
printf 'debian-root: making a root of Debian %s (%s)\n' "$1" "$suite" >&2
packages=${PACKAGES[*]}
scripts/debian-sources.sh "$suite" |
    mmdebstrap --mode=root --variant=minbase --include="${packages// /,}" --aptopt="$work/apt.conf" \
        "$suite" "$work/root" - >"$work/log" 2>&1 || {
    tail -n 15 "$work/log" >&2
    fail "mmdebstrap failed"
}
# The administrator of the README, who works with sudo.
chroot "$work/root" useradd --create-home --shell /bin/bash admin
printf 'admin ALL=(ALL) NOPASSWD: ALL\n' >"$work/root/etc/sudoers.d/admin"
printf '%s\n' "$contents" >"$work/root/.millrace"
rm -rf "$root"
mv "$work/root" "$root"
printf 'debian-root: done: %s (%s)\n' "$root" "$(du -sh "$root" | cut -f1)" >&2
