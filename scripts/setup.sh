#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Installs what building and testing Millrace needs beyond Rust, on Debian 12 or later and its
# relatives; further needs of one test are arguments, written as in the list below. Quick and silent
# when everything is there. Starts no service: a policy-rc.d guard holds back the daemons of the
# packages while they are installed, and they are left disabled.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

# what must be there -> the package that brings it. A leading "/" names a file, "lib:" a pkg-config
# module, anything else a command (also looked for in /usr/sbin, where daemons live).
NEEDS=(
    "cc gcc"
    "c++ g++"
    "/usr/include/stdlib.h libc6-dev"
    "make make"
    "pkg-config pkg-config"
    "lib:openssl libssl-dev"
    "openssl openssl"
    "curl curl"
    "python3 python3"
    "nginx nginx"
    "/usr/lib/nginx/modules/ngx_stream_module.so libnginx-mod-stream"
    "/usr/lib/nginx/modules/ngx_http_lua_module.so libnginx-mod-http-lua"
    "/usr/lib/nginx/modules/ngx_http_js_module.so libnginx-mod-http-js"
    "/usr/lib/nginx/modules/ngx_http_perl_module.so libnginx-mod-http-perl"
    "haproxy haproxy"
    "apache2 apache2"
    "ab apache2-utils"
    "lighttpd lighttpd"
    "/usr/lib/lighttpd/mod_openssl.so lighttpd-mod-openssl"
    "/usr/lib/lighttpd/mod_deflate.so lighttpd-mod-deflate"
    "stunnel4 stunnel4"
    "certbot certbot"
    "/usr/lib/python3/dist-packages/certbot_nginx python3-certbot-nginx"
    "openvpn openvpn"
    "charon-systemd charon-systemd"
    "swanctl strongswan-swanctl"
    "/usr/lib/ipsec/plugins/libstrongswan-openssl.so libstrongswan-standard-plugins"
    "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so libcharon-extra-plugins"
    "iperf3 iperf3"
    "ip iproute2"
    "nft nftables"
    "bindfs bindfs"
    "fuse-overlayfs fuse-overlayfs"
    "/usr/lib/$(uname -m)-linux-gnu/faketime/libfaketimeMT.so.1 libfaketime"
    "gnutls-cli gnutls-bin"
    "git git"
    "rsync rsync"
    "/usr/lib/postgresql postgresql"
    "/usr/lib/$(uname -m)-linux-gnu/libisal.so.2 libisal2"
    "/usr/include/zlib.h zlib1g-dev"
    "perl perl"
    "valgrind valgrind"
    "objdump binutils"
    "$@"
)

present() {
    case $1 in
        /*) [[ -e $1 ]] ;;
        lib:*) command -v pkg-config >/dev/null && pkg-config --exists "${1#lib:}" ;;
        *) command -v "$1" >/dev/null || [[ -x /usr/sbin/$1 ]] ;;
    esac
}

missing=()
for need in "${NEEDS[@]}"; do
    read -r what package <<<"$need"
    present "$what" || missing+=("$package")
done

if ! command -v cargo >/dev/null; then
    say "setup: Rust is missing: install it from https://rustup.rs, then run this again"
    exit 1
fi
if ((${#missing[@]} == 0)); then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    say "setup: this machine has no apt-get; install the equivalents of: ${missing[*]}"
    exit 1
fi

# Runs a command as root: directly, or through sudo.
as_root() {
    if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}
if ((EUID != 0)) && ! command -v sudo >/dev/null; then
    say "setup: not root and no sudo; as root run: apt-get install --no-install-recommends ${missing[*]}"
    exit 1
fi

say "setup: installing ${missing[*]}"

# The guard: with policy-rc.d answering 101, package scripts start no daemon. An existing file was made on
# purpose and stays.
GUARD=/usr/sbin/policy-rc.d
guarded=no
remove_guard() {
    if [[ $guarded == yes ]]; then as_root rm -f "$GUARD"; fi
}
trap remove_guard EXIT
if [[ ! -e $GUARD ]]; then
    as_root install -m 0755 /dev/stdin "$GUARD" <<<$'#!/bin/sh\nexit 101'
    guarded=yes
fi

log=$(mktemp)
apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" >"$log" 2>&1
}
install_missing() { apt install --no-install-recommends "${missing[@]}"; }
# Package lists may be absent (containers) or stale (mirrors drop old versions): update when needed.
if ! install_missing; then
    if ! apt update || ! install_missing; then
        say "setup: apt-get failed:"
        tail -n 25 "$log" >&2
        exit 1
    fi
fi
rm -f "$log"

# What was installed here for tests must not come up at the next boot either.
for daemon in nginx haproxy apache2 lighttpd stunnel4 openvpn postgresql; do
    for package in "${missing[@]}"; do
        if [[ $package == "$daemon" ]] && command -v systemctl >/dev/null; then
            as_root systemctl disable --now "$daemon.service" >/dev/null 2>&1 || true
            say "setup: $daemon is installed but neither started nor enabled (systemctl enable --now $daemon changes that)"
        fi
    done
done
for package in "${missing[@]}"; do
    if [[ $package == charon-systemd ]] && command -v systemctl >/dev/null; then
        as_root systemctl disable --now strongswan.service >/dev/null 2>&1 || true
        say "setup: strongswan is installed but neither started nor enabled (systemctl enable --now strongswan changes that)"
    fi
done
say "setup: done"
