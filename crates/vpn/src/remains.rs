// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a link has on this host whatever its records say: processes of its tunnels, and devices of its name.
//!
//! A record may be damaged, or of an earlier version that forgot too early, and a process that a killed supervisor was
//! starting may have no pid file. `down` takes the remains away, `up` takes the devices over, and a supervisor ends the
//! processes that it does not know when it starts.

use std::path::{Path, PathBuf};

use millrace_hostfs::process::{Proc, Process};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::exec::Tunnel;
use crate::host::{TunDevice, tun_devices};
use crate::link::member_of_device;
use crate::plan::{Folders, LinkAction, LinkLayout, device_settings};

/// Name of strongSwan's daemon.
const CHARON: &str = "charon-systemd";

/// The remains of a link.
#[derive(Debug)]
pub(crate) struct Remains {
    /// The processes, each with the number of its member.
    pub(crate) tunnels: Vec<(u16, Tunnel)>,
    /// Devices that no process has open, or one of these processes.
    pub(crate) devices: Vec<TunDevice>,
}

impl Remains {
    /// Looks for the remains of a link with these folders: see [`places`].
    pub(crate) fn read(name: &str, places: &[PathBuf]) -> Self {
        let tunnels = tunnels(places);
        let runs = |number| tunnels.iter().any(|(member, _)| *member == number);
        let mut devices = tun_devices();
        devices.retain(|device| {
            let number = member_of_device(name, &device.name);
            number.is_some_and(|number| device.is_left() || device.persists && runs(number))
        });
        Self { tunnels, devices }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tunnels.is_empty() && self.devices.is_empty()
    }

    /// Actions that remove the devices. The kernel refuses them while a process has the device open.
    pub(crate) fn removal(&self) -> Vec<LinkAction> {
        let removal = |device: &TunDevice| {
            LinkAction::run(&["ip", "tuntap", "delete", "dev", &device.name, "mode", &device.kind])
        };
        self.devices.iter().map(removal).collect()
    }
}

/// The folders of a link with configurations of its processes: the usual ones, and those of these layouts.
pub(crate) fn places<'a>(
    name: &str,
    folders: &Folders,
    layouts: impl IntoIterator<Item = &'a LinkLayout>,
) -> Vec<PathBuf> {
    let mut places = vec![folders.run_of(name), folders.state_of(name)];
    for member in layouts.into_iter().flat_map(|layout| &layout.members) {
        let parents = [&member.running_config, &member.config].map(|path| path.parent());
        for place in parents.into_iter().flatten() {
            if !places.iter().any(|known| known == place) {
                places.push(place.to_owned());
            }
        }
    }
    places
}

/// The running processes whose configuration is in one of these places.
pub(crate) fn tunnels(places: &[PathBuf]) -> Vec<(u16, Tunnel)> {
    let Ok(proc) = Proc::open(Path::new("/proc")) else {
        return Vec::new();
    };
    let all = proc.named(|_| true).unwrap_or_default();
    let found = all.iter().filter_map(|process| {
        member_of_process(&proc, process, places)?;
        let pid = Pid::from_raw(i32::try_from(process.pid).ok()?)?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Once more, since the number may have come to mean another process before it was opened.
        let number = member_of_process(&proc, &proc.process(process.pid)?, places)?;
        Some((number, Tunnel { pid: process.pid, descriptor }))
    });
    found.collect()
}

/// Ends processes: each says goodbye to its peer for a second, all at the same time.
pub(crate) fn end<'a>(tunnels: impl Iterator<Item = &'a Tunnel> + Clone) {
    tunnels.clone().for_each(|tunnel| tunnel.signal(Signal::TERM));
    tunnels.for_each(Tunnel::end);
}

/// The number of the member whose process this is; `None` for a process of something else.
fn member_of_process(proc: &Proc, process: &Process, places: &[PathBuf]) -> Option<u16> {
    let number = match process.name.as_str() {
        CHARON => {
            let config = proc.variable(process.pid, "STRONGSWAN_CONF").ok()??;
            places.iter().any(|place| Path::new(&config).parent() == Some(place)).then_some(0)
        }
        _ => member_of_arguments(&process.arguments, places),
    };
    number.filter(|_| is_of_this_host(proc, process.pid))
}

/// The number of the member that a program with these arguments serves. Until it is OpenVPN, the process is the program
/// that starts it (`taskset`) with the same last arguments.
fn member_of_arguments(arguments: &[String], places: &[PathBuf]) -> Option<u16> {
    let pair = arguments.windows(2).find(|pair| pair[0] == "--config")?;
    let config = Path::new(&pair[1]);
    let is_there = places.iter().any(|place| config.parent() == Some(place));
    config.file_stem()?.to_str()?.parse().ok().filter(|_| is_there)
}

/// The device that is still there after an action that removes it.
pub(crate) fn device_left_by(action: &LinkAction) -> Option<&str> {
    action.removed_device().filter(|device| device_settings(device).exists())
}

/// Whether a process is of the same namespaces of processes and network devices. A container has processes with the
/// same paths, which are others there. Namespaces of devices may be invisible; those of processes are not.
fn is_of_this_host(proc: &Proc, pid: u32) -> bool {
    let network = |pid| proc.link(pid, "ns/net").ok();
    let own = network(std::process::id());
    // A process of an inner namespace has several numbers.
    proc.status_number(pid, "NSpid").is_some()
        && network(pid).zip(own).is_none_or(|(its, own)| its == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_of_a_link_has_its_name_and_the_number_of_a_member() {
        for (device, number) in [("mr-0", 0), ("mr_7", 7), ("mr.63", 63)] {
            assert_eq!(member_of_device("mr", device), Some(number), "{device}");
        }
        for device in
            ["mr", "mr-", "mr0", "mr-64", "mr-00", "mr-+1", "mr-1a", "mr--1", "m-1", "mrs-1"]
        {
            assert_eq!(member_of_device("mr", device), None, "{device}");
        }
        assert_eq!(member_of_device("mr-1", "mr-1-2"), Some(2));
        assert_eq!(member_of_device("mr", "mr-1-2"), None);
    }

    #[test]
    fn process_of_a_link_has_a_configuration_in_a_folder_of_the_link() {
        let places = [PathBuf::from("/run/millrace/vpn/mr")];
        let member = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            member_of_arguments(&words, &places)
        };
        assert_eq!(member("openvpn --config /run/millrace/vpn/mr/3.conf"), Some(3));
        assert_eq!(
            member("taskset --cpu-list 0 openvpn --config /run/millrace/vpn/mr/0.conf"),
            Some(0)
        );
        for other in [
            "openvpn --config /run/millrace/vpn/mr2/3.conf",
            "openvpn --config /run/millrace/vpn/mr/sub/3.conf",
            "openvpn --config /run/millrace/vpn/mr/server.conf",
            "less /run/millrace/vpn/mr/3.conf",
            "openvpn --config",
        ] {
            assert_eq!(member(other), None, "{other}");
        }
    }

    #[test]
    fn processes_of_other_namespaces_are_others() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |pid: u32, status: &str, net: &str| {
            let folder = dir.path().join(pid.to_string());
            std::fs::create_dir_all(folder.join("ns")).expect("a folder");
            std::fs::write(folder.join("status"), status).expect("a file");
            std::os::unix::fs::symlink(net, folder.join("ns/net")).expect("a link");
        };
        write(std::process::id(), "NSpid:\t9\n", "net:[1]");
        let (same, container, network) = (4_000_001, 4_000_002, 4_000_003);
        write(same, "NSpid:\t7\n", "net:[1]");
        write(container, "NSpid:\t8\t1\n", "net:[1]");
        write(network, "NSpid:\t9\n", "net:[2]");
        let proc = Proc::open(dir.path()).expect("a folder");
        let found = [same, container, network].map(|pid| is_of_this_host(&proc, pid));
        assert_eq!(found, [true, false, false]);
    }
}
