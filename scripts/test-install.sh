#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Walks README and the guides word for word on clean Debian machines: scripts/test-install.sh [12|13]
# [systemd|no-systemd] [PART...], all without arguments. tests/install has the walk, in parts. Takes root, a kernel with
# network namespaces, overlayfs and control groups of version 2, and at first Debian's mirror.
# MILLRACE_ARTIFACTS=DIR names the programs under test, target/release if it is not set.
set -euo pipefail
cd "$(dirname "$0")/.."

releases=(12 13)
inits=(systemd no-systemd)
parts=()
for argument in "$@"; do
    case $argument in
        12 | 13) releases=("$argument") ;;
        systemd | no-systemd) inits=("$argument") ;;
        *) parts+=("$argument") ;;
    esac
done
if ((EUID != 0)); then
    printf 'test-install: root is needed: sudo -E env "PATH=$PATH" make test-install\n' >&2
    exit 1
fi

scripts/setup.sh "mmdebstrap mmdebstrap" "systemd-nspawn systemd-container" "ip iproute2" "ssh-keygen openssh-client"
ARTIFACTS=$(realpath "${MILLRACE_ARTIFACTS:-target/release}")
for file in millrace libmillrace_provider.so libmillrace_preload.so libmillrace_zlib.so; do
    [[ -e $ARTIFACTS/$file ]] || { printf 'test-install: %s is missing: make build\n' "$ARTIFACTS/$file" >&2; exit 1; }
done
# The mount point of the programs under test, for machines see the sources read-only.
mkdir -p target/release
cargo build --quiet -p millrace-tests --bin millrace-tests-handshakes
export ARTIFACTS HANDSHAKES=$PWD/target/debug/millrace-tests-handshakes
for release in "${releases[@]}"; do scripts/debian-root.sh "$release"; done

failed=0
for release in "${releases[@]}"; do
    for init in "${inits[@]}"; do
        started=$SECONDS
        printf '\n== test-install: Debian %s, %s\n' "$release" "$init"
        result=passed
        # When this process ends, the kernel ends everything in the namespaces.
        unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private \
            tests/install/walk.sh "$release" "$init" "${parts[@]}" || { result=FAILED failed=1; }
        printf '== test-install: Debian %s, %s: %s in %s s\n' "$release" "$init" "$result" "$((SECONDS - started))"
    done
done
exit "$failed"
