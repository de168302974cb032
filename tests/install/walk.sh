#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# One walk through README and the guides: walk.sh 12|13 systemd|no-systemd, started by
# scripts/test-install.sh in namespaces of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."

RELEASE=$1 INIT=$2
BASE=$PWD/target/install/$RELEASE
LAB=$(mktemp -d /tmp/millrace-install.XXXXXX)
mount -t tmpfs -o mode=0755 none "$LAB"
USED=$LAB/used
: >"$USED"

. tests/install/guides.sh
. tests/install/machines.sh
. tests/install/steps.sh

finish() {
    local status=$?
    lab_close
    umount --lazy "$LAB" && rmdir "$LAB"
    exit "$status"
}
trap finish EXIT

lab_open
. tests/install/parts.sh
