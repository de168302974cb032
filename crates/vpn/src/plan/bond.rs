// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The bond of a bridged link: TAP devices of OpenVPN as one Ethernet segment between the ends.
//!
//! Each member keeps the addresses of its probes also while it is in the bond. Frames that arrive at it then belong to
//! the bond, but the route of its own addresses still leads through the device, and an answer takes the member that
//! the question took. Addresses of the Ethernet follow from the link, so that no neighbour is ever asked for: a
//! question would leave by any member.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    LinkAction, LinkMember, LinkStep, PacketSizes, ROUTE_PROTOCOL, device_settings, hold_back_step,
    plain_step, setting,
};
use crate::link::{BondSettings, BondSpread, LinkNetwork, Side, VpnLink};

/// Milliseconds between looks of the bond at its members' carriers: a process that ends is noticed by then.
const MONITOR_MS: &str = "100";

/// The bond of one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bond {
    /// Its network device.
    pub device: String,
    /// Rule by which frames are spread.
    pub spread: BondSpread,
    /// Ethernet address of the other end's devices.
    pub peer: String,
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EthernetAddress([u8; 6]);

impl fmt::Display for EthernetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The address of an end's devices: locally administered (02), and as unique in its segment as the inner address.
fn address(inner: Ipv4Addr) -> EthernetAddress {
    let [a, b, c, d] = inner.octets();
    EthernetAddress([0x02, b'M', a, b, c, d])
}

impl Bond {
    pub(super) fn new(link: &VpnLink, side: Side, settings: &BondSettings) -> Self {
        Self {
            device: link.name.clone(),
            spread: settings.spread,
            peer: address(link.end(side.other()).inner).to_string(),
        }
    }

    /// The command that lists the members in the bond.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        let words = ["ip", "-json", "link", "show", "master", &self.device];
        words.map(str::to_owned).into()
    }

    /// Actions after which the bond, which now has these devices, spreads frames over these members and no others.
    /// Members come before others go, so that it is never empty.
    #[must_use]
    pub fn over(
        &self,
        members: &[&LinkMember],
        all: &[&LinkMember],
        now: &[String],
    ) -> Vec<LinkAction> {
        let mut actions = Vec::new();
        for member in members.iter().filter(|member| !now.contains(&member.device)) {
            let device = member.device.as_str();
            // The kernel takes a device that is down, and brings it up.
            actions.push(LinkAction::run(&["ip", "link", "set", "dev", device, "down"]));
            actions.push(LinkAction::run(&[
                "ip",
                "link",
                "set",
                "dev",
                device,
                "master",
                &self.device,
            ]));
            actions.extend(self.reachable(member));
        }
        for device in now {
            if members.iter().any(|member| member.device == *device) {
                continue;
            }
            actions.push(LinkAction::run(&["ip", "link", "set", "dev", device, "nomaster"]));
            // Its probes go on, and say when it may come back.
            let known = all.iter().find(|member| member.device == *device);
            actions.extend(known.into_iter().flat_map(|member| self.reachable(member)));
        }
        actions
    }

    /// A device that was down has lost its neighbour.
    fn reachable(&self, member: &LinkMember) -> [LinkAction; 2] {
        let peer = member.peer.to_string();
        let device = member.device.as_str();
        [
            LinkAction::run(&["ip", "link", "set", "dev", device, "up"]),
            LinkAction::run(&[
                "ip",
                "neighbour",
                "replace",
                &peer,
                "lladdr",
                &self.peer,
                "dev",
                device,
                "nud",
                "permanent",
            ]),
        ]
    }
}

/// Steps of a bridged link: the bond, the members' devices, and the way to the other end's networks.
pub(super) fn steps(
    link: &VpnLink,
    side: Side,
    bond: &Bond,
    members: &[LinkMember],
    sizes: PacketSizes,
) -> Vec<LinkStep> {
    // First, so that a kernel without bonding changes nothing.
    let mut steps = bond_steps(link, side, bond, sizes);
    let networks = link.destinations(side).into_iter().chain([link.tunnels]);
    let why = "without the link no packet leaves unencrypted by another route";
    steps.extend(networks.map(|to| hold_back_step(to, why)));
    steps.extend(address_steps(link, side, bond));
    for member in members {
        steps.extend(member_steps(link, side, bond, member, sizes));
    }
    steps
}

fn bond_steps(link: &VpnLink, side: Side, bond: &Bond, sizes: PacketSizes) -> Vec<LinkStep> {
    let device = bond.device.as_str();
    let mtu = sizes.tunnel.to_string();
    let own = address(link.end(side).inner).to_string();
    let mut add = vec!["ip", "link", "add", "dev", device, "address", &own, "type", "bond"];
    // Each end may have another member in use: what arrives at one that waits is taken, too.
    add.extend(["mode", bond.spread.name(), "miimon", MONITOR_MS, "all_slaves_active", "1"]);
    let why = "the bond: it stays while processes restart";
    let mut steps = vec![LinkStep {
        unless_exists: Some(device_settings(device)),
        ..plain_step(
            why,
            LinkAction::run(&add),
            Some(LinkAction::run(&["ip", "link", "delete", "dev", device])),
        )
    }];
    if let BondSpread::BalanceXor(hash) = bond.spread {
        let words =
            ["ip", "link", "set", "dev", device, "type", "bond", "xmit_hash_policy", hash.name()];
        steps.push(plain_step(why, LinkAction::run(&words), None));
    }
    // The address again, for a bond whose end has another inner address now.
    let up = ["ip", "link", "set", "dev", device, "address", &own, "mtu", &mtu, "up"];
    steps.push(plain_step(why, LinkAction::run(&up), None));
    if let Some(bridge) = &link.end(side).bridge {
        let leave = ["ip", "link", "set", "dev", device, "nomaster"];
        steps.push(plain_step(
            &format!("the bond is a port of {bridge}"),
            LinkAction::run(&["ip", "link", "set", "dev", device, "master", bridge]),
            Some(LinkAction::run(&leave)),
        ));
    }
    steps
}

/// The end's addresses in the segment, and the routes to the networks behind the other end.
fn address_steps(link: &VpnLink, side: Side, bond: &Bond) -> Vec<LinkStep> {
    let (end, other) = (link.end(side), link.end(side.other()));
    let device = end.bridge.as_ref().unwrap_or(&bond.device).as_str();
    let why = "this end's address in the link";
    let mut steps = Vec::new();
    let mut filtered = vec![bond.device.as_str(), device];
    filtered.dedup();
    // Answers to probes arrive at the bond, and their sources are routed through its members.
    steps.extend(filtered.into_iter().map(|device| {
        plain_step(why, setting("ipv4", &format!("conf/{device}/rp_filter"), "2"), None)
    }));
    let pairs = [
        Some((IpAddr::from(end.inner), IpAddr::from(other.inner))),
        end.inner6.map(IpAddr::from).zip(other.inner6.map(IpAddr::from)),
    ];
    for (own, peer) in pairs.into_iter().flatten() {
        let own_text = own.to_string();
        let peer_text = LinkNetwork::host(peer).to_string();
        let mut replace =
            vec!["ip", "address", "replace", &own_text, "peer", &peer_text, "dev", device];
        let mut delete = replace.clone();
        delete[2] = "delete";
        if own.is_ipv6() {
            // The other end's is known, and the segment may have no member yet.
            replace.push("nodad");
        }
        steps.push(plain_step(why, LinkAction::run(&replace), Some(LinkAction::run(&delete))));
        for to in other.networks.iter().filter(|to| to.is_v6() == own.is_ipv6()) {
            steps.push(network_step(*to, own, peer, device));
        }
    }
    steps
}

fn network_step(to: LinkNetwork, own: IpAddr, peer: IpAddr, device: &str) -> LinkStep {
    let to = to.to_string();
    let own = own.to_string();
    let peer = peer.to_string();
    let words = ["ip", "route", "replace", &to, "via", &peer, "dev", device];
    let mut replace = words.to_vec();
    replace.extend(["proto", ROUTE_PROTOCOL, "src", &own]);
    let mut delete = words.to_vec();
    delete[2] = "delete";
    plain_step(
        "the networks behind the other end",
        LinkAction::run(&replace),
        Some(LinkAction::run(&delete)),
    )
}

/// A device that the supervisor puts into the bond when its tunnel works.
fn member_steps(
    link: &VpnLink,
    side: Side,
    bond: &Bond,
    member: &LinkMember,
    sizes: PacketSizes,
) -> Vec<LinkStep> {
    let device = member.device.as_str();
    let mtu = sizes.tunnel.to_string();
    let queue = link.queue_packets.to_string();
    let local = format!("{}/31", member.local);
    let own = address(link.end(side).inner).to_string();
    let why =
        format!("the device of member {}: it stays while its process restarts", member.number);
    let words = |verb| ["ip", "tuntap", verb, "dev", device, "mode", "tap"];
    let add = LinkStep {
        unless_exists: Some(device_settings(device)),
        ..plain_step(&why, LinkAction::run(&words("add")), Some(LinkAction::run(&words("delete"))))
    };
    let [up, neighbour] = bond.reachable(member);
    let actions = [
        // That of the bond also outside of it, so that the other end's neighbours hold.
        LinkAction::run(&[
            "ip",
            "link",
            "set",
            "dev",
            device,
            "address",
            &own,
            "mtu",
            &mtu,
            "txqueuelen",
            &queue,
        ]),
        LinkAction::run(&["ip", "address", "replace", &local, "dev", device]),
        setting("ipv4", &format!("conf/{device}/rp_filter"), "2"),
        up,
        neighbour,
    ];
    let set = actions.into_iter().map(|action| plain_step(&why, action, None));
    std::iter::once(add).chain(set).collect()
}
