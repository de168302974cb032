#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Loads the provider into every program of a clean Debian 13, by its system's openssl.cnf, and uses sshd, curl, apt, sudo
# and su: scripts/test-system-wide.sh [ROOT], the root of scripts/debian-root.sh if none is named. Three times:
# without the provider, with everything computed locally, and with a pool whose only node is dead. Takes root, a kernel
# with network namespaces and overlayfs, and at first Debian's mirror. MILLRACE_PROVIDER names the module under test,
# target/release/libmillrace_provider.so if it is not set.
set -euo pipefail
cd "$(dirname "$0")/.."

((EUID == 0)) || { printf 'test-system-wide: root is needed\n' >&2; exit 1; }
module=$(realpath "${MILLRACE_PROVIDER:-target/release/libmillrace_provider.so}")
[[ -e $module ]] || { printf 'test-system-wide: %s is missing: make build\n' "$module" >&2; exit 1; }
root=${1:-target/install/13}
[[ -e $root/.millrace ]] || scripts/debian-root.sh 13 "$root"
root=$(realpath "$root")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Nothing of this is seen outside, and it ends with the first process in the namespaces.
inside='
set -e
root=$1 module=$2 script=$3 folder=$4 mode=$5
ip link set lo up
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/machine"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$folder/upper,workdir=$folder/work" "$folder/machine"
machine=$folder/machine
install -m 644 "$module" "$machine/usr/lib/x86_64-linux-gnu/ossl-modules/millrace.so"
install -m 755 "$script" "$machine/root/system-wide.sh"
mount -t proc proc "$machine/proc"
mount --rbind /dev "$machine/dev"
chroot "$machine" /root/system-wide.sh "$mode"
'
failed=0
for mode in none local dead-node; do
    result=passed
    unshare --mount --net --pid --fork --kill-child --propagation private sh -c "$inside" \
        sh "$root" "$module" tests/install/system-wide.sh "$folder" "$mode" || { result=FAILED failed=1; }
    printf '== test-system-wide: Debian 13, %s: %s\n' "$mode" "$result"
done
exit "$failed"
