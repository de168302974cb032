// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Facts about a host, the problems of a link on it, and the processors for its members.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_hostfs::child::{self, ChildLimits, find_program};
use millrace_hostfs::{ATTRIBUTE_BYTES, Root, TABLE_BYTES, cpu_list};
use serde::Deserialize;
use x509_parser::pem::Pem;
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use crate::link::{DataPath, IpsecSettings, LinkEngine, LinkProblem, Side, VpnLink};
use crate::plan::ipsec::{self, USER_DEVICE};

/// Limits of `openvpn --version` and `ip addr`, which print at once; a host with many addresses prints 1 MiB.
const ASKING: ChildLimits = ChildLimits {
    time: Duration::from_secs(10),
    output_bytes: 4 << 20,
};

/// The oldest OpenVPN whose ends agree on a data cipher without a server for many clients.
const OLDEST: (u32, u32) = (2, 6);

/// The oldest strongSwan with per-CPU SAs.
const PER_CPU: (u32, u32, u32) = (6, 0, 2);

/// Where distributions put strongSwan's plugins.
const PLUGIN_FOLDERS: &[&str] = &[
    "usr/lib/ipsec/plugins",
    "usr/lib/strongswan/plugins",
    "usr/lib64/strongswan/plugins",
];

/// Bound on a list of modules, in bytes: Debian's kernel has 600 KiB.
const MODULE_LIST_BYTES: usize = 4 << 20;

/// Warning time before the end of a certificate's validity, seconds: a week for the renewal.
const SOON: u64 = 7 * 86_400;

/// Facts about a host that decide whether a link can be brought up on it.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Whether this process is root.
    pub is_root: bool,
    /// The programs that were found, of those that a link needs.
    pub programs: Vec<(&'static str, PathBuf)>,
    /// Major and minor version of OpenVPN.
    pub openvpn: Option<(u32, u32)>,
    /// Whether the kernel has TUN devices.
    pub has_tun: bool,
    /// Version of strongSwan.
    pub strongswan: Option<(u32, u32, u32)>,
    /// Whether the kernel encrypts ESP packets; `None` if that cannot be seen.
    pub has_esp: Option<bool>,
    /// Whether strongSwan can encrypt packets itself.
    pub has_user_esp: bool,
    /// Whether the kernel spreads flows over several routes, by their ports.
    pub has_multipath: bool,
    /// Names of the network devices.
    pub devices: Vec<String>,
    /// Addresses of the network devices; `None` if they cannot be listed.
    pub addresses: Option<Vec<IpAddr>>,
    /// Processors on which a process of this user may run.
    pub processors: Vec<usize>,
    /// The first processor of each core.
    pub cores: Vec<usize>,
    /// Local processors of the device that carries the tunnels, and processors that serve its interrupts.
    pub near: Vec<usize>,
    /// See `near`.
    pub interrupted: Vec<usize>,
    /// Largest socket buffers in bytes: receive, send.
    pub socket_buffers: Option<(u64, u64)>,
    /// Certificates of this end, by file.
    pub certificates: Vec<(PathBuf, Certificate)>,
    /// Revocation list of this end's authority; `None` without the file.
    pub revocations: Option<Revocations>,
}

/// What is known of a revocation list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revocations {
    /// The file cannot be read, for this reason.
    Unreadable(String),
    /// It is a list that says when the next one comes, in seconds since 1970.
    List {
        /// OpenVPN refuses every peer after this time.
        until: Option<i64>,
    },
}

/// What is known of a file with a certificate or a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// The file cannot be read, for this reason.
    Unreadable(String),
    /// It is a certificate with these times of validity, in seconds since 1970, and a subject's common name.
    Certificate {
        /// Start.
        from: i64,
        /// End.
        until: i64,
        /// Common name of the subject.
        name: String,
    },
    /// It is a private key.
    Key,
}

/// Programs that a link starts, with the Debian package of each.
const PROGRAMS: &[(&str, &str)] = &[
    ("openvpn", "openvpn"),
    ("ip", "iproute2"),
    ("taskset", "util-linux"),
];

/// Files of one end, in its folder.
pub(crate) const FILES: [&str; 3] = ["ca.pem", CERTIFICATE, "key.pem"];
/// A revocation list, which may be there, too.
pub(crate) const REVOCATIONS: &str = "crl.pem";
/// The certificate among them.
pub(crate) const CERTIFICATE: &str = "cert.pem";

#[derive(Deserialize)]
struct IpDevice {
    ifname: String,
    addr_info: Vec<IpAddress>,
}

#[derive(Deserialize)]
struct IpAddress {
    local: Option<IpAddr>,
}

impl Host {
    /// Reads this host, for one end of a link.
    #[must_use]
    pub fn read(root: &Root, link: &VpnLink, side: Option<Side>) -> Self {
        let programs = needed(&link.engine).iter();
        let programs: Vec<_> = programs
            .filter_map(|(program, _)| Some((*program, find_program(program)?)))
            .collect();
        let devices = ip_devices();
        let number = |path: &str| root.text(path, ATTRIBUTE_BYTES).ok()?.trim().parse().ok();
        let mut host = Self {
            is_root: rustix::process::geteuid().is_root(),
            openvpn: openvpn_version(),
            strongswan: strongswan_version(),
            has_esp: kernel_esp(root),
            has_user_esp: PLUGIN_FOLDERS
                .iter()
                .any(|folder| root.exists(&format!("{folder}/libstrongswan-kernel-libipsec.so"))),
            has_tun: root.exists("dev/net/tun"),
            // The kernel has this setting only with CONFIG_IP_ROUTE_MULTIPATH.
            has_multipath: root.exists("proc/sys/net/ipv4/fib_multipath_hash_policy"),
            devices: devices
                .iter()
                .flatten()
                .map(|device| device.ifname.clone())
                .collect(),
            addresses: devices.map(|devices| {
                let addresses = devices.into_iter().flat_map(|device| device.addr_info);
                addresses.filter_map(|address| address.local).collect()
            }),
            processors: allowed_processors(root),
            cores: Vec::new(),
            near: Vec::new(),
            interrupted: Vec::new(),
            socket_buffers: number("proc/sys/net/core/rmem_max")
                .zip(number("proc/sys/net/core/wmem_max")),
            certificates: Vec::new(),
            revocations: None,
            programs,
        };
        host.cores = host.first_of_cores(root);
        if let Some(side) = side {
            let end = link.end(side);
            if let Some(device) = &end.device {
                host.near = device_processors(root, device);
                host.interrupted = interrupted_processors(root, device);
            }
            host.certificates = FILES
                .map(|name| end.certificates.join(name))
                .map(|path| (path.clone(), certificate(&path)))
                .into();
            host.revocations = revocations(&end.certificates.join(REVOCATIONS));
        }
        host
    }

    fn first_of_cores(&self, root: &Root) -> Vec<usize> {
        let first = |processor: &usize| {
            let path =
                format!("sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
            let siblings = root.text(&path, ATTRIBUTE_BYTES).ok();
            let siblings = siblings
                .and_then(|list| cpu_list::parse(&list))
                .unwrap_or_default();
            siblings.first().is_none_or(|first| first == processor)
        };
        self.processors.iter().copied().filter(first).collect()
    }

    /// The processor of each member. Processors are used in this order: near the device and without its
    /// interrupts, near it, without its interrupts, any; of each group first one per core. Members beyond the
    /// number of processors share.
    #[must_use]
    pub fn place(&self, members: u16) -> Vec<usize> {
        let mut order = self.processors.clone();
        let rank = |processor: &usize| {
            let far = !self.near.is_empty() && !self.near.contains(processor);
            let interrupted = self.interrupted.contains(processor);
            let sibling = !self.cores.contains(processor);
            (far, interrupted, sibling)
        };
        order.sort_by_key(rank);
        order
            .iter()
            .copied()
            .cycle()
            .take(usize::from(members))
            .collect()
    }

    /// The end of a link that this host is.
    #[must_use]
    pub fn side(&self, link: &VpnLink) -> Option<Side> {
        link.side_with(self.addresses.as_deref()?)
    }

    /// Problems of a link on this host. `ours` are devices that an earlier run created.
    #[must_use]
    pub fn problems(&self, link: &VpnLink, side: Side, ours: &[String]) -> Vec<LinkProblem> {
        let mut problems = self.missing(&link.engine);
        let at = |line: Option<usize>, what: String, remedy: String| LinkProblem {
            line,
            ..LinkProblem::of_host(what, remedy)
        };
        let end = link.end(side);
        let index = side.index();
        if let Some(addresses) = &self.addresses
            && !addresses.contains(&end.address)
        {
            problems.push(at(
                link.lines.address[index],
                format!(
                    "no device of this host has the address {} of end {}",
                    end.address,
                    side.name()
                ),
                "correct the address, or name the other end with --end".to_owned(),
            ));
        }
        if let Some(device) = &end.device
            && !self.devices.contains(device)
        {
            problems.push(at(
                link.lines.device[index],
                format!("there is no network device {device}"),
                format!("use one of {}", self.devices.join(", ")),
            ));
        }
        if let LinkEngine::Ipsec(settings) = &link.engine {
            problems.extend(self.ipsec_problems(link, settings));
        }
        let devices: Vec<String> = match &link.engine {
            LinkEngine::OpenVpn => (0..link.members)
                .map(|member| link.device(member))
                .collect(),
            LinkEngine::Ipsec(settings) => match settings.data_path {
                DataPath::User => vec![USER_DEVICE.to_owned()],
                DataPath::Kernel => Vec::new(),
            },
        };
        for device in devices {
            if self.devices.contains(&device) && !ours.contains(&device) {
                problems.push(at(
                    link.lines.name,
                    format!("the device {device} exists, and this link did not create it"),
                    format!("choose another name, or remove it: ip link delete {device}"),
                ));
            }
        }
        if let (Some(wanted), Some((receive, send))) =
            (link.socket_buffer_bytes, self.socket_buffers)
            && u64::from(wanted) > receive.min(send)
        {
            problems.push(at(
                link.lines.socket_buffer,
                format!(
                    "the kernel caps socket buffers at {} bytes",
                    receive.min(send)
                ),
                format!("sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}"),
            ));
        }
        problems.extend(self.certificate_problems(link, side));
        problems
    }

    fn ipsec_problems(&self, link: &VpnLink, settings: &IpsecSettings) -> Vec<LinkProblem> {
        let mut problems = Vec::new();
        let mut add = |wrong: bool, what: String, remedy: &str| {
            if wrong {
                problems.push(LinkProblem {
                    line: link.lines.ipsec,
                    ..LinkProblem::of_host(what, remedy)
                });
            }
        };
        match settings.data_path {
            DataPath::Kernel => add(
                self.has_esp == Some(false),
                "the kernel has no ESP".to_owned(),
                "modprobe esp4; without the module write data-path = \"user\"",
            ),
            DataPath::User => add(
                !self.has_user_esp,
                "strongSwan has no kernel-libipsec".to_owned(),
                "apt-get install libcharon-extra-plugins, or write data-path = \"kernel\"",
            ),
        }
        if let Some(version) = self.strongswan.filter(|_| settings.per_cpu) {
            let (major, minor, patch) = version;
            add(
                version < PER_CPU,
                format!("strongSwan {major}.{minor}.{patch} has no per-CPU SAs"),
                "install 6.0.2 or later with Linux 6.13 or later, or remove per-cpu-sas",
            );
        }
        problems
    }

    fn missing(&self, engine: &LinkEngine) -> Vec<LinkProblem> {
        let mut problems = Vec::new();
        let mut host = |wrong: bool, what: String, remedy: &str| {
            if wrong {
                problems.push(LinkProblem::of_host(what, remedy));
            }
        };
        host(
            !self.is_root,
            "network devices need root".to_owned(),
            "run the command as root",
        );
        for (program, package) in needed(engine) {
            let found = self.programs.iter().any(|(name, _)| name == program);
            host(
                !found,
                format!("{program} is not installed"),
                &format!("apt-get install {package}"),
            );
        }
        let is_openvpn = *engine == LinkEngine::OpenVpn;
        if let Some((major, minor)) = self.openvpn.filter(|_| is_openvpn) {
            let what = format!("OpenVPN {major}.{minor} is too old");
            let remedy = format!("install OpenVPN {}.{} or later", OLDEST.0, OLDEST.1);
            host((major, minor) < OLDEST, what, &remedy);
        }
        let takes_tun = match engine {
            LinkEngine::OpenVpn => true,
            LinkEngine::Ipsec(settings) => settings.data_path == DataPath::User,
        };
        host(
            !self.has_tun && takes_tun,
            "there is no /dev/net/tun".to_owned(),
            "modprobe tun; in a container pass the device in (--device /dev/net/tun)",
        );
        host(
            !self.has_multipath && is_openvpn,
            "the kernel has no multipath routes".to_owned(),
            "use a kernel with CONFIG_IP_ROUTE_MULTIPATH, as those of all distributions",
        );
        host(
            self.processors.is_empty(),
            "/proc/self/status lists no processors".to_owned(),
            "mount /proc",
        );
        problems
    }

    fn certificate_problems(&self, link: &VpnLink, side: Side) -> Vec<LinkProblem> {
        let remedy = "`millrace vpn keys LINK.TOML -o DIR` makes the files of both ends";
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        let own = &link.end(side).certificate_name;
        let wrong = |(path, found): &(PathBuf, Certificate)| {
            let what = match found {
                Certificate::Unreadable(why) => why.clone(),
                Certificate::Certificate { until, .. } if *until < now => {
                    format!("expired {} days ago", (now - until) / 86_400)
                }
                Certificate::Certificate { from, .. } if *from > now => {
                    let hours = (from - now) / 3600 + 1;
                    format!("is valid only in {hours} hours: is the clock of this host right?")
                }
                Certificate::Certificate { name, .. }
                    if path.ends_with("cert.pem") && name != own =>
                {
                    format!("is for {name:?}, not for {own:?}")
                }
                Certificate::Certificate { .. } | Certificate::Key => return None,
            };
            Some(LinkProblem {
                line: link.lines.certificates[side.index()],
                ..LinkProblem::of_host(format!("{}: {what}", path.display()), remedy)
            })
        };
        let mut problems: Vec<LinkProblem> = self.certificates.iter().filter_map(wrong).collect();
        let what = match &self.revocations {
            Some(Revocations::Unreadable(why)) => Some(why.clone()),
            Some(Revocations::List { until: Some(until) }) if *until < now => {
                Some("its time is over, and OpenVPN refuses every peer".to_owned())
            }
            Some(Revocations::List { .. }) | None => None,
        };
        let list = link.end(side).certificates.join(REVOCATIONS);
        problems.extend(what.map(|what| LinkProblem {
            line: link.lines.certificates[side.index()],
            ..LinkProblem::of_host(
                format!("{}: {what}", list.display()),
                "put the authority's present list there, or remove the file",
            )
        }));
        problems
    }

    /// What is not wrong but deserves attention, in words.
    #[must_use]
    pub fn notes(&self, link: &VpnLink, side: Side) -> Vec<String> {
        let mut notes = Vec::new();
        let is_openvpn = link.engine == LinkEngine::OpenVpn;
        if !is_openvpn && self.has_esp.is_none() {
            notes.push("whether the kernel has ESP cannot be seen here".to_owned());
        }
        let cores = self.cores.len();
        if usize::from(link.members) > cores {
            notes.push(format!(
                "{} members share {cores} cores: more members than cores make nothing faster",
                link.members
            ));
        }
        if is_openvpn && link.end(side).device.is_none() {
            notes.push(format!(
                "ends.{}.device is not set: members are placed without regard to NUMA nodes and interrupts",
                side.name()
            ));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        for (path, found) in &self.certificates {
            if let Certificate::Certificate { until, .. } = found {
                let left = u64::try_from(*until).unwrap_or(0).saturating_sub(now);
                if left < SOON {
                    notes.push(format!(
                        "{} expires in {} hours",
                        path.display(),
                        left / 3600
                    ));
                }
            }
        }
        notes
    }
}

/// The programs that a link starts.
fn needed(engine: &LinkEngine) -> &'static [(&'static str, &'static str)] {
    match engine {
        LinkEngine::OpenVpn => PROGRAMS,
        LinkEngine::Ipsec(_) => ipsec::PROGRAMS,
    }
}

/// The first line of `swanctl --version`: `strongSwan 5.9.8 swanctl`.
fn parse_strongswan(text: &str) -> Option<(u32, u32, u32)> {
    let mut words = text
        .split_whitespace()
        .skip_while(|word| *word != "strongSwan");
    let version = words.nth(1)?;
    let mut parts = version
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    let mut part = || parts.next()?.ok();
    Some((part()?, part()?, part().unwrap_or(0)))
}

fn strongswan_version() -> Option<(u32, u32, u32)> {
    parse_strongswan(&ask("swanctl", &["--version"])?)
}

/// Whether the kernel has ESP: loaded, built in, or a module that can be loaded.
fn kernel_esp(root: &Root) -> Option<bool> {
    if root.exists("sys/module/esp4") {
        return Some(true);
    }
    let release = root
        .text("proc/sys/kernel/osrelease", ATTRIBUTE_BYTES)
        .ok()?;
    let modules = format!("lib/modules/{}", release.trim());
    let named = |list: &str| {
        root.lossy_text(&format!("{modules}/{list}"), MODULE_LIST_BYTES)
            .ok()
    };
    let lists: Vec<String> = ["modules.builtin", "modules.dep"]
        .into_iter()
        .filter_map(named)
        .collect();
    if lists.is_empty() {
        // A kernel without modules: its configuration says so, where it is kept.
        let config = root.lossy_text(
            &format!("boot/config-{}", release.trim()),
            MODULE_LIST_BYTES,
        );
        return config.ok().map(|text| text.contains("CONFIG_INET_ESP="));
    }
    Some(lists.iter().any(|list| list.contains("/esp4.ko")))
}

/// The first line of `openvpn --version`: `OpenVPN 2.6.14 x86_64-pc-linux-gnu ...`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let version = text.strip_prefix("OpenVPN ")?.split_whitespace().next()?;
    let mut parts = version.split(['.', '_']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn openvpn_version() -> Option<(u32, u32)> {
    // Version 2.6 exits with 1 after printing it.
    parse_version(&ask("openvpn", &["--version"])?)
}

/// The network devices. /sys/class/net would name those of the namespace in which /sys was mounted.
fn ip_devices() -> Option<Vec<IpDevice>> {
    serde_json::from_str(&ask("ip", &["-json", "address", "show"])?).ok()
}

/// The standard output of a program that prints and exits.
fn ask(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(find_program(program)?);
    command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let output = child::run(&mut command, &[], ASKING).ok()?;
    String::from_utf8(output.stdout).ok()
}

fn allowed_processors(root: &Root) -> Vec<usize> {
    let status = root
        .lossy_text("proc/self/status", TABLE_BYTES)
        .unwrap_or_default();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(cpu_list::parse).unwrap_or_default()
}

fn device_processors(root: &Root, device: &str) -> Vec<usize> {
    let list = root.text(
        &format!("sys/class/net/{device}/device/local_cpulist"),
        ATTRIBUTE_BYTES,
    );
    list.ok()
        .and_then(|list| cpu_list::parse(&list))
        .unwrap_or_default()
}

/// Processors that serve the interrupts of a device: lines of /proc/interrupts that end with its name, or with
/// the name and a queue (`eth0-TxRx-3`).
fn interrupted_processors(root: &Root, device: &str) -> Vec<usize> {
    let table = root
        .lossy_text("proc/interrupts", TABLE_BYTES)
        .unwrap_or_default();
    let mut processors: Vec<usize> = table
        .lines()
        .filter(|line| {
            let words = line.split_whitespace().skip(1);
            words.into_iter().any(|word| {
                let rest = word.strip_prefix(device);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            })
        })
        .filter_map(|line| {
            let number: u32 = line.trim().split_once(':')?.0.parse().ok()?;
            let path = format!("proc/irq/{number}/effective_affinity_list");
            cpu_list::parse(&root.text(&path, ATTRIBUTE_BYTES).ok()?)
        })
        .flatten()
        .collect();
    processors.sort_unstable();
    processors.dedup();
    processors
}

/// End of a certificate's validity, seconds since 1970; `None` if it cannot be read.
pub(crate) fn valid_until(path: &Path) -> Option<i64> {
    match certificate(path) {
        Certificate::Certificate { until, .. } => Some(until),
        Certificate::Unreadable(_) | Certificate::Key => None,
    }
}

fn certificate(path: &Path) -> Certificate {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) => return Certificate::Unreadable(error.to_string()),
    };
    if path.ends_with("key.pem") {
        // OpenVPN itself reads the key, which may also be a stub of a key in the pool.
        return Certificate::Key;
    }
    let Some(Ok(pem)) = Pem::iter_from_buffer(&text).next() else {
        return Certificate::Unreadable("is no PEM file".to_owned());
    };
    match pem.parse_x509() {
        Ok(certificate) => Certificate::Certificate {
            from: certificate.validity().not_before.timestamp(),
            until: certificate.validity().not_after.timestamp(),
            name: certificate
                .subject()
                .iter_common_name()
                .next()
                .and_then(|name| name.as_str().ok())
                .unwrap_or_default()
                .to_owned(),
        },
        Err(_) => Certificate::Unreadable("holds no certificate".to_owned()),
    }
}

fn revocations(path: &Path) -> Option<Revocations> {
    let unreadable = |why: String| Some(Revocations::Unreadable(why));
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => return unreadable(error.to_string()),
    };
    let Some(Ok(pem)) = Pem::iter_from_buffer(&text).next() else {
        return unreadable("is no PEM file".to_owned());
    };
    match CertificateRevocationList::from_der(&pem.contents) {
        Ok((_, list)) => Some(Revocations::List {
            until: list.next_update().map(|time| time.timestamp()),
        }),
        Err(_) => unreadable("holds no revocation list".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::link::SAMPLE;

    fn ready() -> Host {
        Host {
            is_root: true,
            programs: PROGRAMS
                .iter()
                .map(|(name, _)| (*name, PathBuf::from("/x")))
                .collect(),
            openvpn: Some((2, 6)),
            has_tun: true,
            has_multipath: true,
            devices: vec!["lo".to_owned(), "eth0".to_owned()],
            addresses: Some(vec!["198.51.100.1".parse().expect("an address")]),
            processors: (0..8).collect(),
            cores: (0..4).collect(),
            ..Host::default()
        }
    }

    #[test]
    fn host_with_everything_has_no_problem() {
        let link = VpnLink::parse(SAMPLE).expect("the sample");
        let host = ready();
        assert_eq!(host.side(&link), Some(Side::A));
        assert_eq!(host.problems(&link, Side::A, &[]), []);
    }

    #[test]
    fn each_missing_thing_is_a_problem_with_a_remedy() {
        let link = VpnLink::parse(SAMPLE).expect("the sample");
        let host = Host {
            openvpn: Some((2, 5)),
            devices: vec!["branch-1".to_owned()],
            ..Host::default()
        };
        let problems = host.problems(&link, Side::B, &[]);
        let text = problems
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n");
        for expected in [
            "network devices need root",
            "openvpn is not installed: apt-get install openvpn",
            "ip is not installed: apt-get install iproute2",
            "taskset is not installed",
            "OpenVPN 2.5 is too old: install OpenVPN 2.6",
            "no /dev/net/tun: modprobe tun",
            "no multipath routes: use a kernel with CONFIG_IP_ROUTE_MULTIPATH",
            "branch-1 exists, and this link did not create it",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        let ours = host.problems(&link, Side::B, &["branch-1".to_owned()]);
        assert_eq!(ours.len(), problems.len() - 1);
    }

    #[test]
    fn expired_and_future_certificates_are_problems() {
        let link = VpnLink::parse(SAMPLE).expect("the sample");
        let mut host = ready();
        let path = PathBuf::from("/c/cert.pem");
        for (from, until, name, expected) in [
            (0, 86_400, "millrace node", "expired"),
            (
                i64::MAX - 7200,
                i64::MAX,
                "millrace node",
                "clock of this host",
            ),
            (0, i64::MAX, "other", "is for \"other\""),
        ] {
            let name = name.to_owned();
            host.certificates =
                vec![(path.clone(), Certificate::Certificate { from, until, name })];
            let problems = host.problems(&link, Side::A, &[]);
            assert!(problems[0].what.contains(expected), "{problems:?}");
            assert!(problems[0].line.is_some());
        }
    }

    #[test]
    fn revocation_list_that_ended_or_is_no_list_is_a_problem() {
        let link = VpnLink::parse(SAMPLE).expect("the sample");
        let mut host = ready();
        for (revocations, expected) in [
            (
                Revocations::List {
                    until: Some(86_400),
                },
                "its time is over",
            ),
            (
                Revocations::Unreadable("is no PEM file".to_owned()),
                "is no PEM file",
            ),
        ] {
            host.revocations = Some(revocations);
            let problems = host.problems(&link, Side::A, &[]);
            assert!(problems[0].what.contains(expected), "{problems:?}");
        }
        host.revocations = Some(Revocations::List { until: None });
        assert_eq!(host.problems(&link, Side::A, &[]), []);
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join(REVOCATIONS);
        assert_eq!(revocations(&path), None);
        fs::write(&path, "no list").expect("a file");
        assert!(matches!(
            revocations(&path),
            Some(Revocations::Unreadable(_))
        ));
    }

    #[test]
    fn members_run_near_the_device_and_away_from_its_interrupts() {
        let mut host = ready();
        assert_eq!(host.place(5), [0, 1, 2, 3, 4], "first one per core");
        host.near = vec![2, 3, 6, 7];
        host.interrupted = vec![2];
        assert_eq!(host.place(4), [3, 6, 7, 2]);
        host.processors = vec![0];
        assert_eq!(host.place(3), [0, 0, 0]);
    }

    #[test]
    fn placement_is_read_from_sysfs_and_proc() {
        let dir = tempfile::tempdir().expect("a folder");
        for (path, text) in [
            ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\n"),
            (
                "proc/interrupts",
                "   CPU0 CPU1\n 30: 1 2 PCI-MSI eth0-TxRx-0\n 31: 1 2 PCI-MSI eth01\n",
            ),
            ("proc/irq/30/effective_affinity_list", "1\n"),
            ("proc/irq/31/effective_affinity_list", "2\n"),
            ("sys/class/net/eth0/device/local_cpulist", "0-1\n"),
            (
                "sys/devices/system/cpu/cpu2/topology/thread_siblings_list",
                "0,2\n",
            ),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        let root = Root::open(dir.path()).expect("a root");
        assert_eq!(allowed_processors(&root), [0, 1, 2, 3]);
        assert_eq!(interrupted_processors(&root, "eth0"), [1]);
        assert_eq!(device_processors(&root, "eth0"), [0, 1]);
        let host = Host {
            processors: vec![0, 1, 2, 3],
            ..Host::default()
        };
        assert_eq!(host.first_of_cores(&root), [0, 1, 3]);
    }

    #[test]
    fn ipsec_link_needs_strongswan_and_a_data_path() {
        let text = include_str!("../fixtures/ipsec/link.toml");
        let link = VpnLink::parse(text).expect("a link");
        let host = Host {
            is_root: true,
            processors: vec![0],
            has_esp: Some(false),
            ..Host::default()
        };
        let problems = host.problems(&link, Side::B, &[]);
        let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let text = text.join("\n");
        for expected in [
            "the kernel has no ESP: modprobe esp4",
            "charon-systemd is not installed: apt-get install charon-systemd",
            "swanctl is not installed: apt-get install strongswan-swanctl",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert!(
            !text.contains("openvpn is not") && !text.contains("/dev/net/tun"),
            "{text}"
        );
        assert_eq!(
            parse_strongswan("strongSwan 5.9.8 swanctl\n"),
            Some((5, 9, 8))
        );
        assert_eq!(parse_strongswan("Linux strongSwan U6.0/K6.1"), None);
    }

    #[test]
    fn kernel_without_esp_is_told_from_one_with_a_module() {
        let dir = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let root = Root::open(dir.path()).expect("a root");
        assert_eq!(kernel_esp(&root), None);
        write("proc/sys/kernel/osrelease", "6.1.0\n");
        write("boot/config-6.1.0", "# CONFIG_INET_ESP is not set\n");
        assert_eq!(kernel_esp(&root), Some(false));
        write(
            "lib/modules/6.1.0/modules.dep",
            "kernel/net/ipv4/esp4.ko:\n",
        );
        assert_eq!(kernel_esp(&root), Some(true));
    }

    #[test]
    fn versions_of_openvpn_are_read() {
        assert_eq!(parse_version("OpenVPN 2.6.14 x86_64-pc\n"), Some((2, 6)));
        assert_eq!(parse_version("OpenVPN 2.8_git x86"), Some((2, 8)));
        assert_eq!(parse_version("bash: openvpn"), None);
    }
}
