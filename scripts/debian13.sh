#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Unpacks the servers of Debian 13 (trixie) with the libraries that they need into a folder, so that
# the tests can run against that release, too: scripts/debian13.sh [DIR], target/debian13 if none is
# named. unpack-debian.sh says how.
set -euo pipefail
cd "$(dirname "$0")/.."

# The programs under test, what else the tests start with that release's OpenSSL under it,
# coreutils for scripts/in-root.sh, and ISA-L for the library that compresses.
PACKAGES=(
    nginx libnginx-mod-stream libnginx-mod-http-lua libnginx-mod-http-js libnginx-mod-http-perl haproxy openssl curl python3
    apache2-bin lighttpd lighttpd-mod-openssl lighttpd-mod-deflate stunnel4 openvpn
    coreutils libisal2 rsync
)
if (($# > 1)); then PACKAGES=("${@:2}"); fi

exec scripts/unpack-debian.sh trixie "${1:-target/debian13}" "${PACKAGES[@]}"
