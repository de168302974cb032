#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Runs a program of an unpacked release as if the machine were of that release:
#   scripts/in-root.sh target/debian13 nginx -V
# The program keeps this process's id, user, environment, folder and network, and sees this workspace, the
# temporary folders and the folders that MILLRACE_ROOT_BINDS names (with colons between) under their
# own names; everything else is the release's.
#
# Why so: a program that is started through the release's dynamic linker instead would be told the
# linker as its own name, which breaks nginx's upgrade of a running binary and everything that asks
# what it runs in; a container needs a daemon; and chroot alone shows the program none of the tests'
# files. A mount namespace of its own takes root, or a kernel that gives users namespaces.
set -euo pipefail

usage() {
    echo "usage: scripts/in-root.sh DIR PROGRAM [ARGUMENT...]" >&2
    exit 2
}
(($# >= 2)) || usage
root=$(realpath -e "$1")
program=$2
shift 2
if [[ $program != /* ]]; then
    for folder in usr/sbin usr/bin; do
        if [[ -x $root/$folder/$program ]]; then
            program=/$folder/$program
            break
        fi
    done
    [[ $program == /* ]] || { echo "in-root: $root has no program $program" >&2; exit 127; }
fi

binds=$(realpath "$(dirname "$0")/.."):/tmp:${TMPDIR:-/tmp}:${CARGO_TARGET_DIR:-/tmp}:${MILLRACE_ROOT_BINDS:-/tmp}
# Nothing of this is seen outside of the new namespace, and it ends with the last process in it.
inside='
set -e
root=$1 binds=$2 user=$3 group=$4
shift 4
folder=$PWD
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
IFS=:
done=
for bind in $binds; do
    case "$done:" in *":$bind:"*) continue ;; esac
    done="$done:$bind"
    mkdir -p "$root$bind"
    mount --rbind "$bind" "$root$bind"
done
unset IFS
[ -d "$root$folder" ] || folder=/
set -- chroot "$root" /usr/bin/env --chdir="$folder" "$@"
if [ "$user" != 0 ]; then
    # Back to who we were: servers treat root differently. What is kept is allowed in this namespace
    # only.
    set -- unshare --user --map-user="$user" --map-group="$group" --keep-caps "$@"
fi
exec "$@"
'
options=(--mount --propagation private)
if ((EUID != 0)); then options+=(--map-root-user); fi
exec unshare "${options[@]}" sh -c "$inside" sh "$root" "$binds" "$EUID" "$(id -g)" "$program" "$@"
