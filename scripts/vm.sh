#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Unpacks a QEMU with the generic vhost-user device (10.2 or newer, from Debian sid), the programs of a guest, two
# kernels of Debian 12, and the newest of Debian 13 and of sid, into a folder: scripts/vm.sh [DIR], target/vm if none is
# named. unpack-debian.sh says how.
set -euo pipefail
cd "$(dirname "$0")/.."

# 6.1.176 asks the device for signatures of its own opcode, later kernels pad in the guest.
exec scripts/unpack-debian.sh sid,trixie,bookworm "${1:-target/vm}" qemu-system-x86 busybox-static keyutils \
    --alone linux-image-6.1.0-50-amd64 linux-image-6.1.0-56-amd64 --kernel trixie sid
