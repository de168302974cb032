#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Prints apt's sources of another Debian release, derived from those of this machine, however they are
# written: scripts/debian-sources.sh trixie [ARCHITECTURE...]. The component main of the release and of its security
# updates, for this machine's architecture and those named.
set -euo pipefail

suite=$1
architectures=$(IFS=, && set -- "$(dpkg --print-architecture)" "${@:2}" && printf "%s" "$*")
fail() {
    printf 'debian-sources: %s\n' "$1" >&2
    exit 1
}

# The release that this machine's mirrors are set up for: its name is in each of their lines.
release=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
[[ -n $release ]] || fail "/etc/os-release names no release: the mirrors cannot be told"
# The keys of this machine's release sign the next one, too.
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -e $keyring ]] || fail "$keyring is missing: install debian-archive-keyring"

# "<suite> <uri>" of each repository.
repositories() {
    apt-get indextargets --no-release-info --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v release="$release" '$2 == "main" && ($1 == release || $1 == release "-security") { print $1, $3 }' |
        sort -u
}
sources=$(
    while read -r found uri; do
        # Security updates are for releases: unstable gets them as ordinary uploads, and what waits for it does, too.
        [[ $suite == @(sid|experimental) && $found == *-security ]] && continue
        printf 'deb [signed-by=%s arch=%s] %s %s main\n' \
            "$keyring" "$architectures" "$uri" "${found/#$release/$suite}"
    done < <(repositories)
)
[[ -n $sources ]] || fail "apt knows no repository of $release with the component main to derive those of $suite from"
printf '%s\n' "$sources"
