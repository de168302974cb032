#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# One walk through README and the guides: walk.sh 12|13 systemd|no-systemd [PART...], started by
# scripts/test-install.sh in namespaces of its own. Without parts it takes all, and every fence must have been used.
set -euo pipefail
cd "$(dirname "$0")/../.."

RELEASE=$1 INIT=$2
shift 2
BASE=$PWD/target/install/$RELEASE
LAB=$(mktemp -d /tmp/millrace-install.XXXXXX)
mount -t tmpfs -o mode=0755 none "$LAB"
USED=$LAB/used
: >"$USED"

. tests/install/guides.sh
. tests/install/machines.sh
. tests/install/steps.sh
. tests/install/broken.sh

finish() {
    local status=$?
    lab_close
    umount --lazy "$LAB" && rmdir "$LAB"
    exit "$status"
}
trap finish EXIT

lab_open
new_authority
issue www
for part in tests/install/parts/*.sh; do
    [[ $# == 0 || " $* " == *" $(basename "$part" .sh) "* ]] || continue
    . "$part"
done
[[ $# != 0 ]] || all_used
