#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Installs what `make build` built, without symbols: the binary, the provider where OpenSSL looks for modules, the
# preload libraries, manual pages, completions, unit files, and what virtual machine managers, AppArmor, Prometheus and
# SNMP look for. MILLRACE_ARTIFACTS=DIR names another folder with the programs. Without DESTDIR it also makes the node's user, its
# key-encryption key and a minimal configuration, unless they are there. It starts and enables nothing.
# WITH_QAT=yes also gives the node's unit the devices of QAT cards, WITH_QAT=no does not; without it, it does where the
# group qat is (made by the package qatlib-service) and DESTDIR is not set.
# scripts/uninstall.sh removes the same files.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${PREFIX:=/usr/local}" "${DESTDIR:=}"
built=${MILLRACE_ARTIFACTS:-target/release}
binary=$DESTDIR$PREFIX/bin/millrace

if [[ ! -x $built/millrace ]]; then
    echo "install: nothing is built yet: run make build first (not as root)" >&2
    exit 1
fi
# OpenSSL says where it looks: MODULESDIR: "/usr/lib/x86_64-linux-gnu/ossl-modules"
modules=$(openssl version -m | sed -n 's/^MODULESDIR: "\(.*\)"$/\1/p')
if [[ -z $modules ]]; then
    echo "install: openssl version -m names no module folder: is this OpenSSL 3?" >&2
    exit 1
fi

# A machine that builds has strip (binutils); one that only installs the result may not.
strip=()
if command -v strip >/dev/null; then
    strip=(-s)
fi
install -D "${strip[@]}" -m 0755 "$built/millrace" "$binary"
install -D "${strip[@]}" -m 0644 "$built/libmillrace_provider.so" "$DESTDIR$modules/millrace.so"
install -D "${strip[@]}" -m 0644 "$built/libmillrace_preload.so" "$DESTDIR$PREFIX/lib/millrace/libmillrace_preload.so"
install -D "${strip[@]}" -m 0644 "$built/libmillrace_zlib.so" "$DESTDIR$PREFIX/lib/millrace/libmillrace_zlib.so"
# Machine code for GPUs, where `make cuda` built it; without it a driver assembles what is in the binary.
if [[ -e target/cuda/millrace_cuda.fatbin ]]; then
    install -D -m 0644 target/cuda/millrace_cuda.fatbin "$DESTDIR$PREFIX/lib/millrace/millrace_cuda.fatbin"
fi
install -d "$DESTDIR$PREFIX/share/man/man1"
"$built/millrace" man "$DESTDIR$PREFIX/share/man/man1"
install -d "$DESTDIR$PREFIX/share/man/man5"
mv "$DESTDIR$PREFIX/share/man/man1"/*.5 "$DESTDIR$PREFIX/share/man/man5/"
while read -r shell file; do
    install -d "$(dirname "$DESTDIR$PREFIX/share/$file")"
    "$built/millrace" completions "$shell" >"$DESTDIR$PREFIX/share/$file"
done <<'END'
bash bash-completion/completions/millrace
zsh zsh/site-functions/_millrace
fish fish/vendor_completions.d/millrace.fish
END
install -D -m 0755 deploy/renewal-hook.sh "$DESTDIR$PREFIX/lib/millrace/renewal-hook.sh"
install -D -m 0644 crates/server/node.toml "$DESTDIR$PREFIX/share/doc/millrace/node.toml"
# The forms of --json output.
install -m 0644 docs/reference/*.schema.json docs/reference/openapi.json "$DESTDIR$PREFIX/share/doc/millrace/"
install -d "$DESTDIR$PREFIX/lib/systemd/system"
for unit in millrace.service millrace.socket millrace-doctor.service millrace-doctor.timer millrace-vpn@.service millrace-devices.service \
    millrace-virtio@.service millrace-manager.service; do
    sed "s|^\(Exec[A-Za-z]*\)=/usr/bin/millrace|\1=$PREFIX/bin/millrace|" "deploy/$unit" \
        >"$DESTDIR$PREFIX/lib/systemd/system/$unit"
done
drop_in=$DESTDIR$PREFIX/lib/systemd/system/millrace.service.d/50-qat.conf
if [[ -z ${WITH_QAT:-} ]]; then
    # A unit that names a group which is not there does not start.
    if [[ -z $DESTDIR ]] && getent group qat >/dev/null; then WITH_QAT=yes; else WITH_QAT=no; fi
fi
if [[ $WITH_QAT == yes ]]; then
    install -D -m 0644 deploy/millrace-qat.conf "$drop_in"
else
    rm -f "$drop_in"
    rmdir "${drop_in%/*}" 2>/dev/null || true
fi
install -D -m 0755 deploy/snmp/millrace-snmp.py "$DESTDIR$PREFIX/share/millrace/millrace-snmp.py"
install -m 0644 deploy/prometheus/alerts.yml deploy/prometheus/grafana-pool.json "$DESTDIR$PREFIX/share/millrace/"
# Virtual machines: the program that managers start, and the descriptor and the profile at the one place where each is
# looked for.
install -D -m 0755 deploy/vhost-user-crypto "$DESTDIR$PREFIX/lib/millrace/vhost-user-crypto"
install -D -m 0644 deploy/50-millrace-crypto.json "$DESTDIR/usr/share/qemu/vhost-user/50-millrace-crypto.json"
install -D -m 0644 deploy/apparmor-millrace-virtio "$DESTDIR/etc/apparmor.d/millrace-virtio"
sed -i -e "s|/usr/bin/millrace|$PREFIX/bin/millrace|" -e "s|/usr/lib/millrace|$PREFIX/lib/millrace|" \
    "$DESTDIR$PREFIX/lib/millrace/vhost-user-crypto" "$DESTDIR/etc/apparmor.d/millrace-virtio" \
    "$DESTDIR/usr/share/qemu/vhost-user/50-millrace-crypto.json"
echo "installed $binary and $DESTDIR$modules/millrace.so"

if [[ -n $DESTDIR ]]; then
    exit 0
fi
if ! getent passwd millrace >/dev/null; then
    useradd --system --home-dir /var/lib/millrace --shell /usr/sbin/nologin millrace
    echo "made the user millrace"
fi
install -d -m 0755 /etc/millrace
if [[ ! -e /etc/millrace/node.toml ]]; then
    cat >/etc/millrace/node.toml <<END
# Settings of the node. Every key with its default: $PREFIX/share/doc/millrace/node.toml

[unix]
# Every local user may connect; the policy of each key decides which users may use it.
# Under systemd millrace.socket opens the socket, and its SocketMode= holds.
mode = "0666"

[store]
# systemd hands /etc/millrace/kek to the node (LoadCredential= of millrace.service).
kek = "credential"
END
    echo "made /etc/millrace/node.toml"
fi
if [[ ! -e /etc/millrace/kek ]]; then
    (umask 077 && head -c 32 /dev/urandom >/etc/millrace/kek)
    echo "made /etc/millrace/kek: keep a copy in a safe place, without it the stored keys are lost"
fi
if [[ -d /run/systemd/system ]]; then
    systemctl daemon-reload
    echo "next: systemctl enable --now millrace"
fi
