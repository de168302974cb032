#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Unpacks etcd 3.5 of Debian 13 into target/etcd, for tests and for a first try: Debian 12 has only 3.4. Needs no
# root and installs nothing. Prints the path of the program.
set -euo pipefail
cd "$(dirname "$0")/.."

root=${1:-target/etcd}
scripts/debian13.sh "$root" etcd-server etcd-client
realpath "$root/usr/bin/etcd"
