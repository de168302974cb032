#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Removes what scripts/install.sh installed, after stopping the node. Devices of virtual machines go on until their
# machines end, which would lose them otherwise. Keys and settings (/var/lib/millrace,
# /etc/millrace) and the user millrace stay, unless PURGE=yes.
set -euo pipefail

: "${PREFIX:=/usr/local}" "${DESTDIR:=}" "${PURGE:=no}"
units=(millrace.socket millrace.service millrace-manager.service millrace-doctor.timer millrace-doctor.service \
    millrace-devices.service)

if [[ -z $DESTDIR && -d /run/systemd/system ]]; then
    systemctl disable --now "${units[@]}" 2>/dev/null || true
    # Takes each link down.
    systemctl stop 'millrace-vpn@*.service' 2>/dev/null || true
    systemctl disable millrace-vpn@.service millrace-virtio@.service 2>/dev/null || true
fi
share=$DESTDIR$PREFIX/share
modules=$(openssl version -m 2>/dev/null | sed -n 's/^MODULESDIR: "\(.*\)"$/\1/p')
rm -f "$DESTDIR$PREFIX/bin/millrace" "$share"/man/man1/millrace.1 "$share"/man/man1/millrace-*.1 \
    "$share"/man/man5/millrace-*.5 \
    "$share/bash-completion/completions/millrace" "$share/zsh/site-functions/_millrace" \
    "$share/fish/vendor_completions.d/millrace.fish"
if [[ -n $modules ]]; then
    rm -f "$DESTDIR$modules/millrace.so"
fi
rm -rf "$DESTDIR$PREFIX/lib/millrace" "$share/doc/millrace" "$share/millrace"
rm -f "$DESTDIR/usr/share/qemu/vhost-user/50-millrace-crypto.json" "$DESTDIR/etc/apparmor.d/millrace-virtio"
for unit in "${units[@]}" millrace-vpn@.service millrace-virtio@.service; do
    rm -f "$DESTDIR$PREFIX/lib/systemd/system/$unit"
done
drop_ins=$DESTDIR$PREFIX/lib/systemd/system/millrace.service.d
rm -f "$drop_ins/50-qat.conf"
rmdir "$drop_ins" 2>/dev/null || true
if [[ -z $DESTDIR && -d /run/systemd/system ]]; then
    systemctl daemon-reload
fi
if [[ -z $DESTDIR && $PURGE == yes ]]; then
    rm -rf /etc/millrace /var/lib/millrace /run/millrace
    if getent passwd millrace >/dev/null; then
        userdel millrace
    fi
    echo "removed Millrace with its keys and settings"
else
    echo "removed Millrace; its keys and settings are still in /var/lib/millrace and /etc/millrace (PURGE=yes removes them)"
fi
