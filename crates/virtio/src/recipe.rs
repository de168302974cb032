// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The device lines of virtual machine monitors.

use std::path::Path;

use crate::spec::{CONFIG_LEN, DEVICE_ID};
use crate::vhost::MAX_QUEUE_SIZE;

/// The options of QEMU from 10.2 on. The memory of the machine must be shared with the device.
#[must_use]
pub fn qemu(socket: &Path, data_queues: u16) -> String {
    let (chardev, device) = qemu_parts(socket, data_queues);
    format!(
        "-object memory-backend-memfd,id=millrace-memory,size=SIZE,share=on \\\n\
         -machine q35,memory-backend=millrace-memory \\\n\
         -chardev {chardev} \\\n\
         -device {device}\n"
    )
}

fn qemu_parts(socket: &Path, data_queues: u16) -> (String, String) {
    let queues = data_queues + 1;
    // QEMU's options have a comma doubled.
    let path = socket.display().to_string().replace(',', ",,");
    (
        format!("socket,id=millrace-crypto,path={path}"),
        format!(
            "vhost-user-test-device-pci,chardev=millrace-crypto,virtio-id={DEVICE_ID},num_vqs={queues},\
             config_size={CONFIG_LEN},vq_size={MAX_QUEUE_SIZE}"
        ),
    )
}

/// The parts of a libvirt domain, whose schema has no such device: it goes through to QEMU.
#[must_use]
pub fn libvirt(socket: &Path, data_queues: u16) -> String {
    let (chardev, device) = qemu_parts(socket, data_queues);
    let [chardev, device] = [chardev, device].map(|text| escaped(&text));
    format!(
        "<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n\
         \x20 <memoryBacking>\n\
         \x20   <source type='memfd'/>\n\
         \x20   <access mode='shared'/>\n\
         \x20 </memoryBacking>\n\
         \x20 <qemu:commandline>\n\
         \x20   <qemu:arg value='-chardev'/>\n\
         \x20   <qemu:arg value='{chardev}'/>\n\
         \x20   <qemu:arg value='-device'/>\n\
         \x20   <qemu:arg value='{device}'/>\n\
         \x20 </qemu:commandline>\n\
         </domain>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

/// The option of Cloud Hypervisor from 52 on. The memory of the machine must be shared with the device.
#[must_use]
pub fn cloud_hypervisor(socket: &Path, data_queues: u16) -> String {
    let sizes = vec![MAX_QUEUE_SIZE.to_string(); usize::from(data_queues) + 1].join(",");
    format!(
        "--memory size=SIZE,shared=on \\\n\
         --generic-vhost-user socket=\"{}\",device_type={DEVICE_ID},queue_sizes=[{sizes}]\n",
        socket.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_name_socket_device_and_queues() {
        let socket = Path::new("/run/a,b&c.sock");
        let qemu = qemu(socket, 1);
        assert!(qemu.contains("path=/run/a,,b&c.sock "), "{qemu}");
        assert!(qemu.contains("virtio-id=20,num_vqs=2,config_size=56,vq_size=1024"));
        let xml = libvirt(socket, 1);
        assert!(xml.contains("path=/run/a,,b&amp;c.sock'"), "{xml}");
        let hypervisor = cloud_hypervisor(socket, 2);
        assert!(hypervisor.contains("device_type=20,queue_sizes=[1024,1024,1024]"));
    }
}
