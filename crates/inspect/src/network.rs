// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Cryptography in the network stack: kernel TLS and cards with TLS offload, WireGuard, OpenVPN's kernel data
//! channel, IPsec and its counters.

use std::collections::BTreeMap;

use millrace_hostfs::{FileKind, Probe, Root};
use schemars::JsonSchema;
use serde::Serialize;

use crate::accelerators::is_module;
use crate::section::{Section, SectionReader};

const INTERFACES: &str = "sys/class/net";

/// Bound on interfaces: enough for a gateway with a few thousand tunnels.
const MAX_INTERFACES: usize = 4096;

/// The most bytes that WireGuard or OpenVPN adds to a packet: IPv6 40, UDP 8, WireGuard's header and tag 32.
/// OpenVPN's opcode and peer, packet id and tag have 24.
pub(crate) const TUNNEL_OVERHEAD: u32 = 80;

/// Bound on calls of `ethtool`: each takes milliseconds.
const MAX_CARDS: usize = 16;

/// Name of the facts that are missing of the cards after those.
const OFFLOADS: &str = "ethtool -k of each card";

/// Cryptography in the network stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Network {
    /// Interfaces except the loopback
    pub interfaces: Vec<Interface>,
    /// Counters of kernel TLS since boot; null if the kernel has none
    pub ktls: Option<BTreeMap<String, u64>>,
    /// Counters of IPsec's errors since boot; null if the kernel has no IPsec
    pub ipsec_errors: Option<BTreeMap<String, u64>>,
    /// Whether the kernel has WireGuard loaded
    pub wireguard: bool,
    /// OpenVPN's kernel data channel
    pub openvpn: OpenVpn,
}

/// OpenVPN's kernel data channel: which of the two modules is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OpenVpn {
    /// `ovpn` of the kernel's tree (Linux 6.16 and later), for OpenVPN 2.7 and later
    pub in_tree: bool,
    /// `ovpn-dco-v2`, for OpenVPN 2.6
    pub out_of_tree: bool,
}

/// Kind of an interface in the report: a card, a tunnel of some sort, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceKind {
    /// A network card, physical or from a hypervisor
    Card,
    /// WireGuard
    Wireguard,
    /// A tunnel served by a process (OpenVPN without kernel data channel)
    Tun,
    /// OpenVPN with kernel data channel
    Ovpn,
    /// An IPsec interface
    Xfrm,
    /// Anything else: bridges, pairs, bonds
    Virtual,
}

/// A network interface and its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Interface {
    /// Interface name
    pub name: String,
    /// Whether it is a card or a tunnel, and which one
    pub kind: InterfaceKind,
    /// Driver of a card
    pub driver: Option<String>,
    /// Largest packet, in bytes
    pub mtu_bytes: Option<u32>,
    /// Bytes received since its creation
    pub received_bytes: Option<u64>,
    /// Bytes sent since its creation
    pub sent_bytes: Option<u64>,
    /// Whether a card encrypts TLS records itself; null if unknown
    pub tls_offload: Option<bool>,
    /// Whether a card encrypts IPsec packets itself; null if unknown
    pub esp_offload: Option<bool>,
}

/// Reads the facts about the network.
#[must_use]
pub fn section(root: &Root) -> Section<Network> {
    let mut reader = SectionReader::new(root);
    let ktls = reader.text_if_there("proc/net/tls_stat");
    let ipsec = reader.text_if_there("proc/net/xfrm_stat");
    let network = Network {
        interfaces: interfaces(&mut reader),
        ktls: ktls.map(|text| counters(&text)),
        ipsec_errors: ipsec.map(|text| counters(&text)),
        wireguard: is_module(&mut reader, "wireguard"),
        openvpn: OpenVpn {
            in_tree: is_module(&mut reader, "ovpn"),
            out_of_tree: is_module(&mut reader, "ovpn_dco_v2")
                || is_module(&mut reader, "ovpn_dco"),
        },
    };
    reader.section(Some(network))
}

/// Reads a file with one name and one number per line.
#[must_use]
pub fn counters(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        })
        .collect()
}

fn interfaces(reader: &mut SectionReader<'_>) -> Vec<Interface> {
    let mut found = Vec::new();
    let mut cards = Vec::new();
    for name in reader.names(INTERFACES) {
        let folder = format!("{INTERFACES}/{name}");
        // `lo`, and files other than interfaces (`bonding_masters`).
        let is_folder = reader.kind(&folder).is_some_and(|kind| kind != FileKind::File);
        if name == "lo" || !is_folder {
            continue;
        }
        if reader.is_full(INTERFACES, &found, MAX_INTERFACES) {
            break;
        }
        let driver = reader.link_name(&format!("{folder}/device/driver"));
        let uevent = reader.text_if_there(&format!("{folder}/uevent")).unwrap_or_default();
        let has_tun = reader.exists(&format!("{folder}/tun_flags"));
        let kind = kind(&uevent, has_tun, driver.is_some());
        let mut interface = Interface {
            kind,
            driver,
            mtu_bytes: reader.number_if_there(&format!("{folder}/mtu")),
            received_bytes: reader.number_if_there(&format!("{folder}/statistics/rx_bytes")),
            sent_bytes: reader.number_if_there(&format!("{folder}/statistics/tx_bytes")),
            tls_offload: None,
            esp_offload: None,
            name,
        };
        if kind == InterfaceKind::Card && !reader.is_full(OFFLOADS, &cards, MAX_CARDS) {
            cards.push(());
            ask_ethtool(reader, &mut interface);
        }
        found.push(interface);
    }
    found
}

fn kind(uevent: &str, has_tun: bool, has_driver: bool) -> InterfaceKind {
    let said = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE="));
    match said.map(str::trim) {
        Some("wireguard") => InterfaceKind::Wireguard,
        Some("ovpn" | "ovpn-dco") => InterfaceKind::Ovpn,
        Some("xfrm") => InterfaceKind::Xfrm,
        _ if has_tun => InterfaceKind::Tun,
        _ if has_driver => InterfaceKind::Card,
        _ => InterfaceKind::Virtual,
    }
}

/// No file shows the offloads of a card, only the kernel's control interface.
fn ask_ethtool(reader: &mut SectionReader<'_>, interface: &mut Interface) {
    const PROGRAM: &str = "/usr/sbin/ethtool";
    if !reader.exists(PROGRAM) {
        return;
    }
    let question = Probe {
        name: format!("ethtool-{}", interface.name),
        what: "what a network card takes over",
        program: PROGRAM,
        arguments: &["-k", &interface.name],
        environment: &[],
    };
    if let Some(text) = reader.ask(&question) {
        interface.tls_offload = feature(&text, "tls-hw-tx-offload");
        interface.esp_offload = feature(&text, "esp-hw-offload");
    }
}

fn feature(text: &str, name: &str) -> Option<bool> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().starts_with("on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_of_an_interface_comes_from_uevent_and_driver() {
        assert_eq!(
            kind("DEVTYPE=wireguard\nINTERFACE=wg0\n", false, false),
            InterfaceKind::Wireguard
        );
        assert_eq!(kind("INTERFACE=tun0\n", true, false), InterfaceKind::Tun);
        assert_eq!(kind("INTERFACE=eth0\n", false, true), InterfaceKind::Card);
        assert_eq!(kind("", false, false), InterfaceKind::Virtual);
    }

    #[test]
    fn counters_and_features_are_read() {
        let text =
            "TlsCurrTxSw                     \t0\nTlsTxSw                         \t12\nbroken\n";
        let counters = counters(text);
        assert_eq!((counters.len(), counters["TlsTxSw"]), (2, 12));
        let text = "Features for eth0:\ntls-hw-tx-offload: off [fixed]\nesp-hw-offload: on\n";
        assert_eq!(feature(text, "tls-hw-tx-offload"), Some(false));
        assert_eq!(feature(text, "esp-hw-offload"), Some(true));
        assert_eq!(feature(text, "rx-gro"), None);
    }
}
