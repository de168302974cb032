#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Installs what `make build` built: the binary, the provider where OpenSSL looks for modules, the
# preload library, manual pages, completions, the unit file. Without DESTDIR it also makes the
# node's user, its key-encryption key and a minimal configuration, unless they are there. It starts
# and enables nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${PREFIX:=/usr/local}" "${DESTDIR:=}"
built=target/release
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

install -D -m 0755 "$built/millrace" "$binary"
install -D -m 0644 "$built/libmillrace_provider.so" "$DESTDIR$modules/millrace.so"
install -D -m 0644 "$built/libmillrace_preload.so" "$DESTDIR$PREFIX/lib/millrace/libmillrace_preload.so"
# Machine code for GPUs, where `make cuda` built it; without it a driver assembles what is in the binary.
if [[ -e target/cuda/millrace_cuda.fatbin ]]; then
    install -D -m 0644 target/cuda/millrace_cuda.fatbin "$DESTDIR$PREFIX/lib/millrace/millrace_cuda.fatbin"
fi
install -d "$DESTDIR$PREFIX/share/man/man1"
"$built/millrace" man "$DESTDIR$PREFIX/share/man/man1"
install -d "$DESTDIR$PREFIX/share/bash-completion/completions"
"$built/millrace" completions bash >"$DESTDIR$PREFIX/share/bash-completion/completions/millrace"
install -d "$DESTDIR$PREFIX/lib/systemd/system"
for unit in millrace.service millrace-doctor.service millrace-doctor.timer; do
    sed "s|^ExecStart=/usr/bin/millrace|ExecStart=$PREFIX/bin/millrace|" "deploy/$unit" \
        >"$DESTDIR$PREFIX/lib/systemd/system/$unit"
done
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
    printf '# Every key: %s/deploy/node.toml\n[store]\nkek = "credential"\n' "$PWD" >/etc/millrace/node.toml
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
