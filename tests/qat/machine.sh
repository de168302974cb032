#!/usr/bin/env bash
# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Makes the folder in which card.so finds a machine's QAT cards: tests/qat/machine.sh DIR [CARDS [FUNCTIONS]].
# Each card has one physical function, bound to the driver 4xxx, and virtual functions in VFIO groups.
set -euo pipefail

root=$1 cards=${2:-1} functions=${3:-1}
mkdir -p "$root"/dev/vfio "$root"/sys/kernel/iommu_groups "$root"/sys/bus/pci/{drivers/4xxx,devices}
: >"$root/dev/vfio/vfio"
truncate -s 4096 "$root/controls"
group=100
for ((card = 0; card < cards; card++)); do
    bus=$(printf '%02x' $((0x6b + 5 * card)))
    physical=0000:$bus:00.0
    mkdir -p "$root/sys/bus/pci/drivers/4xxx/$physical" "$root/sys/bus/pci/devices/$physical/qat" \
        "$root/sys/kernel/debug/qat_4xxx_$physical/heartbeat"
    echo asym >"$root/sys/bus/pci/devices/$physical/qat/cfg_services"
    echo up >"$root/sys/bus/pci/devices/$physical/qat/state"
    echo 0 >"$root/sys/kernel/debug/qat_4xxx_$physical/heartbeat/status"
    printf '%s\n' DRIVER=4xxx PCI_ID=8086:4940 "PCI_SLOT_NAME=$physical" \
        >"$root/sys/bus/pci/devices/$physical/uevent"
    echo 0 >"$root/sys/bus/pci/devices/$physical/numa_node"
    echo "$functions" >"$root/sys/bus/pci/devices/$physical/sriov_numvfs"
    for ((function = 1; function <= functions; function++)); do
        name=0000:$bus:$(printf '%02x.%x' $((function / 8)) $((function % 8)))
        folder=$root/sys/kernel/iommu_groups/$group/devices/$name
        mkdir -p "$folder" "$root/sys/bus/pci/devices/$name"
        ln -sfn "../$physical" "$root/sys/bus/pci/devices/$name/physfn"
        echo 0x4941 >"$folder/device"
        echo 0x8086 >"$folder/vendor"
        echo 0 >"$folder/numa_node"
        : >"$root/dev/vfio/$group"
        group=$((group + 1))
    done
done
