# Copyright The Millrace Authors
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# docs/guide/virtual-machines.md without a virtual machine: the device, its lines, counters and limits, its service.

fresh_machine gateway-1 21
leave gateway-1 virtio-run
poll "the device's socket" test -S "/proc/${LEADER[gateway-1]}/root/run/millrace/vm1.sock"
on gateway-1 virtio-recipes
printed "vhost-user"
on gateway-1 virtio-status
printed "millrace_virtio_"
on gateway-1 virtio-drain
run gateway-1 'pkill -f "[v]irtio run"; while pgrep -f "[v]irtio run" >/dev/null; do sleep 0.05; done'
if [[ $INIT == systemd ]]; then
    # Its group is the monitor's; udev, which makes it, is not in containers.
    run gateway-1 'getent group kvm || groupadd --system kvm'
    on gateway-1 virtio-service
    run gateway-1 'systemctl is-active millrace-virtio@vm1'
    printed "active"
fi
machine_stop gateway-1
