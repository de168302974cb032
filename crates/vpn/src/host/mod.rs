// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Facts about a host, the problems of a link on it, and the processors for its members.

mod files;
mod problems;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use millrace_hostfs::child::{self, ChildLimits, find_program};
use millrace_hostfs::ordinary::{self, Links};
use millrace_hostfs::{ATTRIBUTE_BYTES, Root, TABLE_BYTES, cpu_list};
use millrace_inspect::kernel::blocked::{self, BlockedModule};
use serde::Deserialize;

use crate::ipsec;
use crate::link::{LinkEngine, Side, VpnLink, member_of_device};

use files::{certificate, revocations};

pub(crate) use files::valid_until;
pub(crate) use problems::holder_query;

/// Limits of `openvpn --version` and `ip addr`, which print at once; a host with many addresses prints 1 MiB.
const ASKING: ChildLimits = ChildLimits { time: Duration::from_secs(10), output_bytes: 4 << 20 };

/// Folders in which distributions install strongSwan's plugins.
const PLUGIN_FOLDERS: &[&str] =
    &["usr/lib/ipsec/plugins", "usr/lib/strongswan/plugins", "usr/lib64/strongswan/plugins"];

/// Bound on a list of modules, in bytes: Debian's kernel has 600 KiB.
const MODULE_LIST_BYTES: usize = 4 << 20;

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
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// Name of the host, as `uname -n` prints it.
    pub name: String,
    /// Kinds of network devices that encrypt for OpenVPN in the kernel: `ovpn` (Linux 6.16), `ovpn-dco` (a module
    /// beside the kernel).
    pub dco_kinds: Vec<&'static str>,
    /// Whether the kernel encrypts ESP packets; `None` if that cannot be seen.
    pub has_esp: Option<bool>,
    /// Whether strongSwan can encrypt packets itself.
    pub has_user_esp: bool,
    /// Whether the kernel spreads flows over several routes, by their ports.
    pub has_multipath: bool,
    /// Whether the kernel spreads IPv6 flows over several routes, by their ports.
    pub has_multipath6: bool,
    /// Whether the kernel has bonds; asked for a bridged link only.
    pub has_bonding: bool,
    /// Modules that lines of this machine keep out.
    pub blocked: Vec<BlockedModule>,
    /// Bridges with their MTU in bytes; asked for a bridged link only.
    pub bridges: Vec<(String, u32)>,
    /// Names of the network devices.
    pub devices: Vec<String>,
    /// TUN and TAP devices; asked for only where a device has the name of one of the link's.
    pub tuns: Vec<TunDevice>,
    /// Addresses of the network devices; `None` if they cannot be listed.
    pub addresses: Option<Vec<IpAddr>>,
    /// Processors on which a process of this user may run.
    pub processors: Vec<usize>,
    /// The first processor of each core.
    pub cores: Vec<usize>,
    /// Local processors of the device that carries the tunnels.
    pub near: Vec<usize>,
    /// Processors that serve the interrupts of that device.
    pub interrupted: Vec<usize>,
    /// NUMA nodes with memory, each with its processors; empty on a machine with less than two.
    pub nodes: Vec<(usize, Vec<usize>)>,
    /// Largest socket buffers in bytes: receive, send.
    pub socket_buffers: Option<(u64, u64)>,
    /// Certificates of this end, by file.
    pub certificates: Vec<(PathBuf, Certificate)>,
    /// The reason why the end's OpenSSL configuration cannot be read.
    pub openssl_config_error: Option<String>,
    /// Revocation list of this end's authority; `None` without the file.
    pub revocations: Option<Revocations>,
}

/// A TUN or TAP device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunDevice {
    /// Its name.
    pub name: String,
    /// Its kind, as `ip tuntap` names it: `tun` or `tap`.
    pub kind: String,
    /// Whether the device stays without a process.
    pub persists: bool,
    /// Whether a process has it open.
    pub in_use: bool,
}

impl TunDevice {
    /// Whether a process left the device behind.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.persists && !self.in_use
    }
}

/// State of the file with a certificate revocation list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revocations {
    /// The file cannot be read, for this reason.
    Unreadable(String),
    /// A revocation list, with the time of its next update, in seconds since 1970.
    List {
        /// OpenVPN refuses every peer after this time.
        until: Option<i64>,
    },
}

/// State of a file with a certificate or a private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// The file cannot be read, for this reason.
    Unreadable(String),
    /// A certificate, with its validity in seconds since 1970 and the common name of its subject.
    Certificate {
        /// Start of the validity.
        from: i64,
        /// End of the validity.
        until: i64,
        /// Common name of the subject.
        name: String,
    },
    /// A private key.
    Key,
    /// A stub of a key in the pool.
    Stub,
}

/// Programs that a link starts, with the Debian package of each.
const PROGRAMS: &[(&str, &str)] =
    &[("openvpn", "openvpn"), ("ip", "iproute2"), ("taskset", "util-linux")];

/// Files of one end, in its folder.
pub(crate) const FILES: [&str; 3] = ["ca.pem", CERTIFICATE, "key.pem"];
/// A revocation list, which may be there, too.
pub(crate) const REVOCATIONS: &str = "crl.pem";
/// Name of the certificate file.
pub(crate) const CERTIFICATE: &str = "cert.pem";

#[derive(Deserialize)]
struct IpDevice {
    ifname: String,
    addr_info: Vec<IpAddress>,
}

#[derive(Deserialize)]
struct IpBridge {
    ifname: String,
    mtu: u32,
}

#[derive(Deserialize)]
struct IpTun {
    ifname: String,
    flags: Vec<String>,
    linkinfo: IpTunInfo,
}

#[derive(Deserialize)]
struct IpTunInfo {
    info_data: IpTunData,
}

#[derive(Deserialize)]
struct IpTunData {
    #[serde(rename = "type")]
    kind: String,
    persist: bool,
}

#[derive(Deserialize)]
struct IpAddress {
    local: Option<IpAddr>,
}

impl Host {
    /// Reads this host, for one end of a link.
    #[must_use]
    pub fn read(root: &Root, link: &VpnLink, side: Option<Side>) -> Self {
        let programs: Vec<_> = PROGRAMS
            .iter()
            .chain(ipsec::PROGRAMS)
            .filter_map(|(program, _)| Some((*program, find_program(program)?)))
            .collect();
        let devices = ip_devices();
        let number = |path: &str| root.text(path, ATTRIBUTE_BYTES).ok()?.trim().parse().ok();
        let blocked = blocked::of_root(root);
        let mut host = Self {
            is_root: rustix::process::geteuid().is_root(),
            openvpn: openvpn_version(),
            strongswan: strongswan_version(),
            kernel: setting(root, "osrelease"),
            name: setting(root, "hostname"),
            dco_kinds: dco_kinds(root, &blocked),
            has_esp: kernel_module(root, &blocked, "esp4", "CONFIG_INET_ESP="),
            has_user_esp: PLUGIN_FOLDERS
                .iter()
                .any(|folder| root.exists(&format!("{folder}/libstrongswan-kernel-libipsec.so"))),
            has_tun: root.exists("dev/net/tun"),
            // The kernel has this setting only with CONFIG_IP_ROUTE_MULTIPATH.
            has_multipath: root.exists("proc/sys/net/ipv4/fib_multipath_hash_policy"),
            has_multipath6: root.exists("proc/sys/net/ipv6/fib_multipath_hash_policy"),
            has_bonding: link.bond().is_some() && has_bonding(root, &blocked),
            blocked,
            bridges: if link.bond().is_some() { ip_bridges() } else { Vec::new() },
            devices: devices.iter().flatten().map(|device| device.ifname.clone()).collect(),
            tuns: Vec::new(),
            addresses: devices.map(|devices| {
                let addresses = devices.into_iter().flat_map(|device| device.addr_info);
                addresses.filter_map(|address| address.local).collect()
            }),
            processors: allowed_processors(root),
            cores: Vec::new(),
            near: Vec::new(),
            interrupted: Vec::new(),
            nodes: memory_nodes(root),
            socket_buffers: number("proc/sys/net/core/rmem_max")
                .zip(number("proc/sys/net/core/wmem_max")),
            certificates: Vec::new(),
            openssl_config_error: None,
            revocations: None,
            programs,
        };
        host.cores = host.first_of_cores(root);
        if host.devices.iter().any(|device| member_of_device(&link.name, device).is_some()) {
            host.tuns = tun_devices();
        }
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
            host.openssl_config_error = end
                .openssl_config
                .as_ref()
                .and_then(|path| Some(ordinary::open(path, Links::Follow).err()?.to_string()));
            host.revocations = revocations(&end.certificates.join(REVOCATIONS));
        }
        host
    }

    /// The kind of network device that encrypts for the installed OpenVPN in the kernel: 2.7 uses Linux's own, 2.6
    /// the module beside it.
    #[must_use]
    pub fn dco(&self) -> Option<&'static str> {
        let wanted = if self.openvpn? >= (2, 7) { "ovpn" } else { "ovpn-dco" };
        self.dco_kinds.iter().copied().find(|kind| *kind == wanted)
    }

    fn first_of_cores(&self, root: &Root) -> Vec<usize> {
        let first = |processor: &usize| {
            let path =
                format!("sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
            let siblings = root
                .text(&path, ATTRIBUTE_BYTES)
                .ok()
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
        order.iter().copied().cycle().take(usize::from(members)).collect()
    }

    /// The NUMA node with the memory of a processor, on a machine with several.
    #[must_use]
    pub fn node_of(&self, processor: usize) -> Option<usize> {
        let mut nodes = self.nodes.iter();
        nodes.find(|(_, processors)| processors.contains(&processor)).map(|(node, _)| *node)
    }

    /// The end of a link that this host is.
    #[must_use]
    pub fn side(&self, link: &VpnLink) -> Option<Side> {
        link.side_with(self.addresses.as_deref()?)
    }
}

/// The programs that a link starts.
fn needed(engine: &LinkEngine) -> &'static [(&'static str, &'static str)] {
    match engine {
        LinkEngine::OpenVpn(_) => PROGRAMS,
        LinkEngine::Ipsec(_) => ipsec::PROGRAMS,
    }
}

/// The first line of `swanctl --help`: `strongSwan 5.9.8 swanctl`.
fn parse_strongswan(text: &str) -> Option<(u32, u32, u32)> {
    let mut words = text.split_whitespace().skip_while(|word| *word != "strongSwan");
    let version = words.nth(1)?;
    let mut parts = version.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let mut part = || parts.next()?.ok();
    Some((part()?, part()?, part().unwrap_or(0)))
}

fn strongswan_version() -> Option<(u32, u32, u32)> {
    // `--version` asks a running daemon first, and prints nothing without one.
    parse_strongswan(&ask("swanctl", &["--help"])?)
}

/// A name or version of the running kernel; empty if /proc has none.
fn setting(root: &Root, name: &str) -> String {
    let text = root.text(&format!("proc/sys/kernel/{name}"), ATTRIBUTE_BYTES);
    text.unwrap_or_default().trim().to_owned()
}

/// Whether the kernel has a module: loaded, built in, or one that can be loaded and that no line keeps out.
fn kernel_module(
    root: &Root,
    blocked: &[BlockedModule],
    module: &str,
    option: &str,
) -> Option<bool> {
    let name = module.replace('-', "_");
    if root.exists(&format!("sys/module/{name}")) {
        return Some(true);
    }
    let lines = || blocked.iter().filter(|line| line.module == name);
    let release = setting(root, "osrelease");
    let modules = format!("lib/modules/{release}");
    let named = |list: &str| root.lossy_text(&format!("{modules}/{list}"), MODULE_LIST_BYTES).ok();
    let (built_in, loadable) = (named("modules.builtin"), named("modules.dep"));
    if built_in.is_none() && loadable.is_none() {
        // A kernel without modules: its configuration says so, where it is kept.
        let config = root.lossy_text(&format!("boot/config-{release}"), MODULE_LIST_BYTES);
        return config.ok().map(|text| text.contains(option));
    }
    let has =
        |list: Option<String>| list.is_some_and(|list| list.contains(&format!("/{module}.ko")));
    if has(built_in) {
        return Some(!lines().any(|line| line.holds_built_in));
    }
    Some(has(loadable) && lines().next().is_none())
}

/// Whether the kernel encrypts ESP packets; `None` if that cannot be seen.
#[must_use]
pub fn has_esp(root: &Root) -> Option<bool> {
    kernel_module(root, &blocked::of_root(root), "esp4", "CONFIG_INET_ESP=")
}

/// Whether the kernel has bonds. Where its modules cannot be seen, as in a container, it is asked for a bond in a
/// network namespace that ends with the question.
fn has_bonding(root: &Root, blocked: &[BlockedModule]) -> bool {
    let ask = || {
        let words = ["--net", "ip", "link", "add", "dev", "probe", "type", "bond"];
        let mut command = Command::new(find_program("unshare")?);
        command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
        Some(child::run(&mut command, &[], ASKING).ok()?.status.success())
    };
    kernel_module(root, blocked, "bonding", "CONFIG_BONDING=").or_else(ask).unwrap_or(false)
}

/// Kinds of devices that encrypt for OpenVPN in this kernel, each with its module and its kernel option.
fn dco_kinds(root: &Root, blocked: &[BlockedModule]) -> Vec<&'static str> {
    let all = [
        ("ovpn", "ovpn", "CONFIG_OVPN="),
        // No kernel has it built in.
        ("ovpn-dco", "ovpn-dco-v2", "CONFIG_OVPN_DCO_V2="),
    ];
    let there = |module, option| kernel_module(root, blocked, module, option) == Some(true);
    let found = all.into_iter().filter(|(_, module, option)| there(module, option));
    found.map(|(kind, ..)| kind).collect()
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

/// The TUN and TAP devices.
pub(crate) fn tun_devices() -> Vec<TunDevice> {
    let text = ask("ip", &["-json", "-details", "link", "show", "type", "tun"]).unwrap_or_default();
    parse_tuns(&text)
}

fn parse_tuns(text: &str) -> Vec<TunDevice> {
    let tuns: Vec<IpTun> = serde_json::from_str(text).unwrap_or_default();
    let tun = |IpTun { ifname, flags, linkinfo: IpTunInfo { info_data } }| TunDevice {
        name: ifname,
        kind: info_data.kind,
        persists: info_data.persist,
        // The device has a carrier while a process has it open. One that is down shows none either way; the kernel then
        // lets no second process open it, nor `ip` remove it.
        in_use: !info_data.persist || flags.iter().any(|flag| flag == "LOWER_UP"),
    };
    tuns.into_iter().map(tun).collect()
}

fn ip_bridges() -> Vec<(String, u32)> {
    let text = ask("ip", &["-json", "link", "show", "type", "bridge"]).unwrap_or_default();
    let bridges: Vec<IpBridge> = serde_json::from_str(&text).unwrap_or_default();
    bridges.into_iter().map(|bridge| (bridge.ifname, bridge.mtu)).collect()
}

/// The standard output of a program that prints and exits.
fn ask(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(find_program(program)?);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
    let output = child::run(&mut command, &[], ASKING).ok()?;
    String::from_utf8(output.stdout).ok()
}

fn allowed_processors(root: &Root) -> Vec<usize> {
    let status = root.lossy_text("proc/self/status", TABLE_BYTES).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(cpu_list::parse).unwrap_or_default()
}

fn memory_nodes(root: &Root) -> Vec<(usize, Vec<usize>)> {
    let folder = "sys/devices/system/node";
    let list = |path: &str| cpu_list::parse(&root.text(path, ATTRIBUTE_BYTES).ok()?);
    let numbers = list(&format!("{folder}/has_memory")).unwrap_or_default();
    let numbers = if numbers.len() > 1 { numbers } else { Vec::new() };
    let node = |number| Some((number, list(&format!("{folder}/node{number}/cpulist"))?));
    numbers.into_iter().filter_map(node).collect()
}

fn device_processors(root: &Root, device: &str) -> Vec<usize> {
    let list = root.text(&format!("sys/class/net/{device}/device/local_cpulist"), ATTRIBUTE_BYTES);
    list.ok().and_then(|list| cpu_list::parse(&list)).unwrap_or_default()
}

/// Processors that serve the interrupts of a device: lines of /proc/interrupts that end with its name, or with
/// the name and a queue (`eth0-TxRx-3`).
fn interrupted_processors(root: &Root, device: &str) -> Vec<usize> {
    let table = root.lossy_text("proc/interrupts", TABLE_BYTES).unwrap_or_default();
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

#[cfg(test)]
mod tests;
