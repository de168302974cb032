// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Cryptography in the network: kernel TLS and cards that take it over, WireGuard, OpenVPN's data
//! channel in the kernel, IPsec and its counters.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::accelerators::is_module;
use crate::report::{Look, Section};
use millrace_hostfs::Probe;
use millrace_hostfs::{FileKind, Root};

/// Where interfaces are.
const INTERFACES: &str = "sys/class/net";

/// Bound on interfaces that are looked into: a gateway with a few thousand tunnels is served, one with
/// more is cut.
const MAX_INTERFACES: usize = 4096;

/// Bound on physical interfaces that `ethtool` is asked about: each takes milliseconds.
const MAX_CARDS: usize = 16;

/// Bound on counters of one file.
const MAX_COUNTERS: usize = 256;

/// Cryptography in the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Network {
    /// Interfaces but for the loopback
    pub interfaces: Vec<Interface>,
    /// Counters of kernel TLS since boot; null if the kernel has none
    pub ktls: Option<BTreeMap<String, u64>>,
    /// Counters of IPsec's errors since boot; null if the kernel has no IPsec
    pub ipsec_errors: Option<BTreeMap<String, u64>>,
    /// Whether the kernel has WireGuard loaded
    pub wireguard: bool,
    /// OpenVPN's data channel in the kernel
    pub openvpn: OpenVpn,
}

/// OpenVPN's data channel in the kernel: which of the two modules is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OpenVpn {
    /// `ovpn` of the kernel's tree (Linux 6.16 and later), for OpenVPN 2.7 and later
    pub in_tree: bool,
    /// `ovpn-dco-v2`, for OpenVPN 2.6
    pub out_of_tree: bool,
}

/// What an interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum InterfaceKind {
    /// A network card, physical or of a hypervisor
    Card,
    /// WireGuard
    Wireguard,
    /// A tunnel that a program serves (OpenVPN without data channel in the kernel)
    Tun,
    /// OpenVPN with its data channel in the kernel
    Ovpn,
    /// IPsec's own kind of interface
    Xfrm,
    /// Anything else: bridges, pairs, bonds
    Virtual,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Interface {
    /// Its name
    pub name: String,
    /// What it is
    pub kind: InterfaceKind,
    /// Driver of a card
    pub driver: Option<String>,
    /// Largest packet
    pub mtu_bytes: Option<u32>,
    /// Bytes received since it exists
    pub received_bytes: Option<u64>,
    /// Bytes sent since it exists
    pub sent_bytes: Option<u64>,
    /// Whether a card encrypts TLS records itself; null if it was not asked
    pub tls_offload: Option<bool>,
    /// Whether a card encrypts IPsec packets itself; null if it was not asked
    pub esp_offload: Option<bool>,
}

/// Looks at the network.
#[must_use]
pub fn section(root: &Root) -> Section<Network> {
    let mut look = Look::new(root);
    let ktls = look.text_if_there("proc/net/tls_stat");
    let ipsec = look.text_if_there("proc/net/xfrm_stat");
    let network = Network {
        interfaces: interfaces(&mut look),
        ktls: ktls.map(|text| counters(&text)),
        ipsec_errors: ipsec.map(|text| counters(&text)),
        wireguard: is_module(&mut look, "wireguard"),
        openvpn: OpenVpn {
            in_tree: is_module(&mut look, "ovpn"),
            out_of_tree: is_module(&mut look, "ovpn_dco_v2") || is_module(&mut look, "ovpn_dco"),
        },
    };
    look.section(Some(network))
}

/// Reads a file of names and numbers, one of each in a line.
#[must_use]
pub fn counters(text: &str) -> BTreeMap<String, u64> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        })
        .take(MAX_COUNTERS)
        .collect()
}

fn interfaces(look: &mut Look<'_>) -> Vec<Interface> {
    let mut found = Vec::new();
    let mut cards = 0;
    for name in look.names(INTERFACES) {
        let folder = format!("{INTERFACES}/{name}");
        // `lo`, and files that are no interfaces (`bonding_masters`).
        let is_folder = look
            .root()
            .kind(&folder)
            .is_ok_and(|kind| kind != FileKind::File);
        if name == "lo" || !is_folder {
            continue;
        }
        if found.len() == MAX_INTERFACES {
            break;
        }
        let driver = look.root().link_name(&format!("{folder}/device/driver"));
        let uevent = look
            .text_if_there(&format!("{folder}/uevent"))
            .unwrap_or_default();
        let has_tun = look.root().exists(&format!("{folder}/tun_flags"));
        let kind = kind(&uevent, has_tun, driver.is_some());
        let mut interface = Interface {
            kind,
            driver,
            mtu_bytes: look.number_if_there(&format!("{folder}/mtu")),
            received_bytes: look.number_if_there(&format!("{folder}/statistics/rx_bytes")),
            sent_bytes: look.number_if_there(&format!("{folder}/statistics/tx_bytes")),
            tls_offload: None,
            esp_offload: None,
            name,
        };
        if kind == InterfaceKind::Card && cards < MAX_CARDS {
            cards += 1;
            ask_ethtool(look, &mut interface);
        }
        found.push(interface);
    }
    found
}

fn kind(uevent: &str, has_tun: bool, has_driver: bool) -> InterfaceKind {
    let said = uevent
        .lines()
        .find_map(|line| line.strip_prefix("DEVTYPE="));
    match said.map(str::trim) {
        Some("wireguard") => InterfaceKind::Wireguard,
        Some("ovpn" | "ovpn-dco") => InterfaceKind::Ovpn,
        Some("xfrm") => InterfaceKind::Xfrm,
        _ if has_tun => InterfaceKind::Tun,
        _ if has_driver => InterfaceKind::Card,
        _ => InterfaceKind::Virtual,
    }
}

/// Offloads of a card are known to the kernel's control interface only, not to any file.
fn ask_ethtool(look: &mut Look<'_>, interface: &mut Interface) {
    const PROGRAM: &str = "/usr/sbin/ethtool";
    if !look.root().exists(PROGRAM) {
        return;
    }
    let question = Probe {
        name: format!("ethtool-{}", interface.name),
        what: "what a network card takes over",
        program: PROGRAM,
        arguments: &["-k", &interface.name],
        environment: &[],
    };
    if let Some(text) = look.ask(&question) {
        interface.tls_offload = feature(&text, "tls-hw-tx-offload");
        interface.esp_offload = feature(&text, "esp-hw-offload");
    }
}

fn feature(text: &str, name: &str) -> Option<bool> {
    let value = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().starts_with("on"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_told_apart() {
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
