#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Unpacks packages of another Debian release with all that they need into a folder:
# scripts/unpack-debian.sh SUITE[,SUITE...] DIR PACKAGE... [--alone PACKAGE...] [--source PACKAGE...]
#     [--kernel SUITE...]
# Packages come from the first suite where it has them, else from the next. Those after --alone come
# without the packages that they depend on: a kernel without its initramfs tools. Of those after --source
# the source as its authors released it lies in usr/src/PACKAGE, without Debian's changes. Of each suite after
# --kernel the kernel that a new machine would get comes alone. PACKAGE:ARCHITECTURE is one for other processors.
# Needs no root, and neither the machine's package sources nor its installed packages change: apt works
# with folders of its own in there, an empty list of installed packages, and the Debian mirror, proxies
# and keys that this machine's apt is set up with. Packages are unpacked, none is installed: none of their
# scripts runs, nothing is started. Silent when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

IFS=, read -ra SUITES <<<"$1"
PACKAGES=() ALONE=() SOURCES=() KERNELS=()
list=PACKAGES
for word in "${@:3}"; do
    case $word in
        --alone) list=ALONE ;;
        --source) list=SOURCES ;;
        --kernel) list=KERNELS ;;
        *) declare -n into=$list && into+=("$word") ;;
    esac
done

foreign=()
for word in "${PACKAGES[@]}" "${ALONE[@]}" "${KERNELS[@]}"; do
    if [[ $word == *:* ]]; then foreign+=("${word#*:}"); fi
done

root=$(realpath -m "$2")
# Written last: what is in the folder. Raised when the way in which it is made changes.
stamp=$root/.millrace
contents="1 $1 ${*:3}"

say() { printf 'unpack-debian: %s\n' "$*" >&2; }
fail() {
    say "$1"
    if [[ -s ${log:-} ]]; then
        say "apt said:"
        grep -E '^(E|W|Err)' "$log" | tail -n 15 >&2 || tail -n 15 "$log" >&2
    fi
    exit 1
}
present() { [[ -e $stamp && $(<"$stamp") == "$contents" ]]; }

present && exit 0
for tool in apt-get apt-config dpkg dpkg-deb flock; do
    command -v "$tool" >/dev/null || fail "$tool is missing: only Debian and its relatives can unpack packages"
done
mkdir -p "$(dirname "$root")"
# Two test runs may want it at once.
exec 9>"$root.lock"
flock 9
present && exit 0

work=$(mktemp -d "$root.work.XXXXXX")
trap 'rm -rf "$work"' EXIT
log=$work/log
mkdir -p "$work"/{etc/none,lists/partial,archives/partial,root}
: >"$work/status"

# The machine's own settings of how to reach a mirror, and nothing else of its configuration: there
# may be hooks in it that clean the machine's own folders up.
{
    apt-config dump Acquire
    cat <<CONF
Dir::Etc::parts "$work/etc/none";
Dir::Etc::main "$work/etc/none.conf";
Dir::Etc::preferences "$work/etc/none";
Dir::Etc::preferencesparts "$work/etc/none";
Dir::Etc::sourcelist "$work/etc/sources.list";
Dir::Etc::sourceparts "$work/etc/none";
Dir::State "$work";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::State::extended_states "$work/extended_states";
Dir::Cache "$work";
Dir::Cache::archives "$work/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::Log "$work";
APT::Architectures { "$(dpkg --print-architecture)"; };
$(((${#foreign[@]})) && printf 'APT::Architectures { "%s"; };\n' "${foreign[@]}")
Acquire::Languages "none";
Acquire::Retries "3";
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Default-Release "${SUITES[0]}";
APT::Sandbox::User "$(id -un)";
CONF
} >"$work/apt.conf"
private() { APT_CONFIG="$work/apt.conf" apt-get -q -y "$@" >>"$log" 2>&1; }

for suite in "${SUITES[@]}"; do
    scripts/debian-sources.sh "$suite" "${foreign[@]}" || fail "the mirrors of $suite cannot be derived"
done >"$work/etc/sources.list"
if ((${#SOURCES[@]})); then sed -i 'p; s/^deb /deb-src /' "$work/etc/sources.list"; fi

say "reading the package lists of Debian ${SUITES[*]}"
private update --error-on=any ||
    fail "the package lists cannot be had: is there a network, and is debian-archive-keyring up to date?"

# A newer kernel's program and modules are packages of their own.
for suite in "${KERNELS[@]}"; do
    image=linux-image-amd64
    if [[ $suite == *:* ]]; then image=linux-image-${suite#*:}:${suite#*:}; fi
    mapfile -t parts < <(APT_CONFIG="$work/apt.conf" apt-get -s install "$image/${suite%%:*}" 2>>"$log" |
        awk '/^Inst linux-(image|binary|modules)-[0-9]/ { print $2 }')
    ((${#parts[@]})) || fail "$suite has no kernel"
    ALONE+=("${parts[@]}")
done

say "fetching ${PACKAGES[*]:-no package} with the packages that they need${ALONE:+, and alone: ${ALONE[*]}}${SOURCES:+, and the source of ${SOURCES[*]}}"
if ((${#PACKAGES[@]})); then
    private install --download-only "${PACKAGES[@]}" || fail "the packages cannot be had"
fi
if ((${#ALONE[@]})); then
    (cd "$work/archives" && private download "${ALONE[@]}") || fail "${ALONE[*]} cannot be had"
fi

# The newest version whose archive the mirror has: lists and archives do not change in the same moment.
fetch_source() {
    local versions version
    versions=$(APT_CONFIG="$work/apt.conf" apt-cache showsrc "$1" | sed -n 's/^Version: //p' | sort -rVu)
    mkdir "$work/archives/$1"
    for version in $versions; do
        (cd "$work/archives/$1" && private source --download-only --tar-only "$1=$version") && return
    done
    return 1
}
for name in "${SOURCES[@]}"; do fetch_source "$name" || fail "the source of $name cannot be had"; done

count=$(find "$work/archives" -maxdepth 1 -name '*.deb' | wc -l)
say "unpacking $count packages"
new=$work/root
mkdir -p "$new"/{etc,tmp,proc,dev,sys,run,root,var/tmp} "$new"/usr/{bin,sbin,lib,lib64}
# /bin and the like are links there; the package that has them is unpacked in no certain order.
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$new/$folder"; done
for package in "$work"/archives/*.deb; do
    [[ -e $package ]] || continue
    dpkg-deb --fsys-tarfile "$package" |
        tar -x -C "$new" --keep-directory-symlink --no-same-owner \
            --exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='./usr/share/locale' \
            --exclude='./usr/share/info' --exclude='./usr/share/i18n' --exclude='./dev/*'
done
for name in "${SOURCES[@]}"; do
    mkdir -p "$new/usr/src/$name"
    tar -x -f "$(find "$work/archives/$name" -name '*.orig.tar.*' ! -name '*.asc' -print -quit)" \
        -C "$new/usr/src/$name" --strip-components=1 --no-same-owner
done
# A newer kernel lies among its modules.
for image in "$new"/usr/lib/modules/*/vmlinuz; do
    [[ -e $image ]] || continue
    kernel=$(basename "$(dirname "$image")")
    mkdir -p "$new/boot"
    [[ -e $new/boot/vmlinuz-$kernel ]] || mv "$image" "$new/boot/vmlinuz-$kernel"
done
# Users that servers change to have the ids of this machine.
cp /etc/passwd /etc/group /etc/hosts "$new/etc/"
ldconfig -r "$new" 2>>"$log" || fail "ldconfig cannot make the cache of the libraries"

printf '%s\n' "$contents" >"$new/.millrace"
rm -rf "$root"
mv "$new" "$root"
say "done: $root ($(du -sh "$root" | cut -f1))"
