// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reads link.toml and collects every problem with its line.
//!
//! [`link`] is the only way in. It reads each value by the rules of `value`, then compares values with each other, so
//! that one run reports all problems. A host is not looked at: [`crate::host`] does that with a valid link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::value::{
    EngineName, LinkValueError, account, certificate_name, cipher, data_path, device, engine, goal,
    hash, is_bridged, name, number, parsed, path, proposals, spread, usable,
};
use super::{
    AutoEngine, BondHash, BondSettings, BondSpread, DataPath, End, IpsecSettings, Lines,
    LinkEngine, LinkMode, LinkNetwork, LinkProblem, LinkProblems, MAX_MEMBERS, Side, TunnelCipher,
    VpnLink,
};
use crate::candidate::ChoiceGoal;
use crate::proposal::{EspProposal, IkeGroup, IkeProposal, IpsecCipher, IpsecHash};

/// Bound on a link.toml, in bytes: the sample has two thousand.
const MAX_FILE: usize = 256 << 10;

/// Keys of each table.
const LINK_KEYS: &[&str] = &[
    "name", "mode", "engine", "goal", "members", "cipher", "path-mtu", "ends", "tunnels", "ipsec",
    "bond",
];
const BOND_KEYS: &[&str] = &["mode", "hash", "mtu"];
const IPSEC_KEYS: &[&str] =
    &["ike", "esp", "data-path", "per-cpu-sas", "ike-rekey-s", "esp-rekey-s", "replay-window"];
const END_KEYS: &[&str] = &[
    "address",
    "inner",
    "inner6",
    "networks",
    "device",
    "bridge",
    "certificates",
    "certificate-name",
    "openssl-config",
];
const TUNNEL_KEYS: &[&str] =
    &["port", "network", "socket-buffer-bytes", "queue-packets", "data-path", "user", "group"];

/// The smallest path of a link that carries IPv6, in bytes: 1280 inside (RFC 8200), and the largest overhead of an
/// engine, 40 of IPv6, 8 of UDP, 40 of ESP and 18 of its padding.
const MIN_PATH_MTU_V6: u16 = 1280 + 40 + 8 + 40 + 18;

/// MTU of a path or a bond, in bytes: each host takes IPv4 packets of the smallest (RFC 791), and no network card
/// has longer frames than the largest.
const MTU_BYTES: RangeInclusive<u16> = 576..=9216;

/// MTU of a path without `path-mtu`: Ethernet's, in bytes.
const DEFAULT_PATH_MTU: u16 = 1500;

/// The port that is assigned to OpenVPN.
const DEFAULT_PORT: u16 = 1194;

/// Packets that wait in the device of a tunnel: as many as in an Ethernet device.
const DEFAULT_QUEUE_PACKETS: u32 = 1000;

/// Seconds until keys change: a minute at least, since a change costs an exchange, and a day at most.
const REKEY_S: RangeInclusive<u32> = 60..=86_400;

/// strongSwan's defaults: four hours for IKE, one for ESP.
const DEFAULT_IKE_REKEY_S: u32 = 14_400;
const DEFAULT_ESP_REKEY_S: u32 = 3600;

/// Packets by which one may arrive late: several processors reorder more than strongSwan's default of 32.
const DEFAULT_REPLAY_WINDOW: u32 = 1024;

/// Proposal of a link without `ike` and `esp`: the one that `millrace advise ipsec --goal security` gives for
/// processors with AES instructions.
const DEFAULT_IKE: IkeProposal = IkeProposal {
    cipher: IpsecCipher::Aes256Gcm,
    hash: IpsecHash::Sha384,
    group: IkeGroup::Ecp384,
};
const DEFAULT_ESP: EspProposal =
    EspProposal { cipher: IpsecCipher::Aes256Gcm, hash: None, group: Some(IkeGroup::Ecp384) };

/// A value with its line.
type Found<T> = Option<(T, usize)>;

struct Reader<'t> {
    text: &'t str,
    problems: Vec<LinkProblem>,
}

/// One table of the file; absent tables read as empty ones.
#[derive(Clone, Copy)]
struct Section<'t> {
    /// Name of the table in messages, with a dot at the end; empty for the top.
    prefix: &'static str,
    table: Option<&'t DeTable<'t>>,
    /// Line of the table's heading.
    line: usize,
}

pub(super) fn link(text: &str) -> Result<VpnLink, LinkProblems> {
    if text.len() > MAX_FILE {
        let what = format!("link.toml has more than {MAX_FILE} bytes");
        return Err(LinkProblems(vec![LinkProblem::of_file(what, "name the right file")]));
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader { text, problems: Vec::new() };
    for error in errors {
        let line = error.span().map_or(1, |span| reader.line(span.start));
        let what = error.message().replace('\n', ", ");
        reader.problem(line, what, "correct the syntax (toml.io)");
    }
    if !reader.problems.is_empty() {
        return Err(LinkProblems::in_order(reader.problems));
    }
    let top = Section { prefix: "", table: Some(table.get_ref()), line: 1 };
    let link = reader.link(top);
    LinkProblems::none(reader.problems, link)?.ok_or_else(|| {
        LinkProblems(vec![LinkProblem::of_file("link.toml is incomplete", "see the sample")])
    })
}

impl<'t> Reader<'t> {
    fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        before.filter(|byte| **byte == b'\n').count() + 1
    }

    fn problem(&mut self, line: usize, what: impl Into<String>, remedy: impl Into<String>) {
        self.problems.push(LinkProblem::at(line, what, remedy));
    }

    /// The link, if every required value is there and none contradicts another.
    fn link(&mut self, top: Section<'t>) -> Option<VpnLink> {
        self.unknown(top, LINK_KEYS);
        let name = self.required(top, "name", "name = \"branch\"", name);
        let mode = self.mode(top);
        let ipsec = self.section(top, "ipsec", "ipsec.");
        let settings = self.ipsec(ipsec);
        let engine = self.engine(top, ipsec);
        let (members, members_line) = self.members(top, engine.kind);
        let cipher = self.cipher(top, engine.kind);
        let path_mtu = self.optional(top, "path-mtu", |value| number(value, MTU_BYTES));
        let ends = self.section(top, "ends", "ends.");
        self.unknown(ends, &["a", "b"]);
        let known_name = name.as_ref().map_or("link", |(name, _)| name.as_str()).to_owned();
        let a = self.end(ends, Side::A, &known_name);
        let b = self.end(ends, Side::B, &known_name);
        let tunnels = self.tunnels(top, engine.kind, members, members_line);
        self.bridged_engine(&mode, engine.kind, tunnels.channel);
        let ends = [a?, b?];
        self.addresses(ends.each_ref(), tunnels.network, tunnels.network_line);
        self.family(ends.each_ref(), path_mtu);
        self.bridges(mode.mode, ends.each_ref());
        let (name, name_line) = name?;
        let lines = Lines {
            name: Some(name_line),
            mode: mode.line,
            bond: mode.bond_line,
            engine: engine.line,
            data_path: tunnels.channel.map(|(_, line)| line),
            ipsec: Some(ipsec.line),
            members: Some(members_line),
            socket_buffer: tunnels.buffer.map(|(_, line)| line),
            address: ends.each_ref().map(|end| Some(end.address_line)),
            device: ends.each_ref().map(|end| end.device_line),
            bridge: ends.each_ref().map(|end| end.bridge_line),
            certificates: ends.each_ref().map(|end| Some(end.certificates_line)),
            openssl_config: ends.each_ref().map(|end| end.openssl_config_line),
        };
        let auto = engine.kind == EngineName::Auto;
        Some(VpnLink {
            name,
            auto: auto.then(|| AutoEngine { goal: engine.goal, ipsec: settings.clone() }),
            engine: match engine.kind {
                EngineName::Ipsec => LinkEngine::Ipsec(settings),
                EngineName::OpenVpn | EngineName::Auto => {
                    LinkEngine::OpenVpn(tunnels.channel.map_or(DataPath::User, |(path, _)| path))
                }
            },
            mode: mode.mode,
            members,
            cipher,
            path_mtu: path_mtu.map_or(DEFAULT_PATH_MTU, |(mtu, _)| mtu),
            port: tunnels.port,
            tunnels: tunnels.network,
            socket_buffer_bytes: tunnels.buffer.map(|(bytes, _)| bytes),
            queue_packets: tunnels.queue,
            user: tunnels.user,
            group: tunnels.group,
            ends: ends.map(|end| end.end),
            lines,
        })
    }

    /// `members` and its line.
    fn members(&mut self, top: Section<'t>, engine: EngineName) -> (u16, usize) {
        let convert = |value| number(value, 1..=MAX_MEMBERS);
        let Some((members, line)) = self.required(top, "members", "members = 4", convert) else {
            return (1, top.line);
        };
        if engine == EngineName::Ipsec && members != 1 {
            let remedy = "write members = 1; per-cpu-sas in [ipsec] uses several processors";
            self.problem(line, format!("an IPsec link has one member, not {members}"), remedy);
        }
        (members, line)
    }

    fn cipher(&mut self, top: Section<'t>, engine: EngineName) -> TunnelCipher {
        let Some((cipher, line)) = self.optional(top, "cipher", cipher) else {
            return TunnelCipher::Aes256Gcm;
        };
        if engine == EngineName::Ipsec {
            let remedy = "write esp = [\"aes256gcm16-ecp384\"] in [ipsec]";
            self.problem(line, "cipher belongs to the engine openvpn", remedy);
        }
        cipher
    }

    /// `engine` and `goal`, and whether the section of IPsec belongs to them.
    fn engine(&mut self, top: Section<'t>, ipsec: Section<'t>) -> ReadEngine {
        let engine = self.optional(top, "engine", engine);
        let kind = engine.map_or(EngineName::OpenVpn, |(kind, _)| kind);
        if ipsec.table.is_some() && kind == EngineName::OpenVpn {
            let remedy = "write engine = \"ipsec\" or \"auto\", or remove the section";
            self.problem(ipsec.line, "[ipsec] belongs to the engine ipsec", remedy);
        }
        let goal = self.optional(top, "goal", goal);
        if let Some((_, line)) = goal.filter(|_| kind != EngineName::Auto) {
            let remedy = "write engine = \"auto\", or remove the key";
            self.problem(line, "goal belongs to the engine auto", remedy);
        }
        ReadEngine {
            kind,
            line: engine.map(|(_, line)| line),
            goal: goal.map_or_else(ChoiceGoal::default, |(goal, _)| goal),
        }
    }

    /// `mode`, and the section of the bond if it belongs to it.
    fn mode(&mut self, top: Section<'t>) -> ReadMode {
        let mode = self.optional(top, "mode", is_bridged);
        let is_bridged = mode.is_some_and(|(bridged, _)| bridged);
        let bond = self.section(top, "bond", "bond.");
        self.unknown(bond, BOND_KEYS);
        if bond.table.is_some() && !is_bridged {
            let remedy = "write mode = \"bridged\", or remove the section";
            self.problem(bond.line, "[bond] belongs to the mode bridged", remedy);
        }
        let spread = self.optional(bond, "mode", spread);
        let hash = self.optional(bond, "hash", hash);
        let mtu = self.optional(bond, "mtu", |value| number(value, MTU_BYTES));
        let default = BondSpread::BalanceXor(BondHash::default());
        let mut spread = spread.map_or(default, |(spread, _)| spread);
        if let Some((chosen, line)) = hash {
            if let BondSpread::BalanceXor(hash) = &mut spread {
                *hash = chosen;
            } else {
                let what = format!("bond.hash belongs to balance-xor, not to {}", spread.name());
                self.problem(line, what, "write mode = \"balance-xor\", or remove hash");
            }
        }
        let settings = BondSettings { spread, mtu: mtu.map(|(mtu, _)| mtu) };
        ReadMode {
            mode: if is_bridged { LinkMode::Bridged(settings) } else { LinkMode::Routed },
            line: mode.map(|(_, line)| line),
            bond_line: bond.table.map(|_| bond.line),
        }
    }

    /// Refuses engines that carry no Ethernet frames.
    fn bridged_engine(&mut self, mode: &ReadMode, kind: EngineName, channel: Found<DataPath>) {
        let LinkMode::Bridged(_) = mode.mode else {
            return;
        };
        if kind != EngineName::OpenVpn {
            let remedy = "write engine = \"openvpn\", or mode = \"routed\"";
            let what = "a bridged link has the engine openvpn: no other carries Ethernet frames";
            self.problem(mode.line.unwrap_or(1), what, remedy);
        }
        if let Some((_, line)) = channel.filter(|(path, _)| *path == DataPath::Kernel) {
            let what = "the kernel's data channel carries no Ethernet frames";
            self.problem(line, what, "write data-path = \"user\", or mode = \"routed\"");
        }
    }

    /// Refuses bridges of a routed link.
    fn bridges(&mut self, mode: LinkMode, ends: [&ReadEnd; 2]) {
        if mode == LinkMode::Routed {
            for line in ends.into_iter().filter_map(|end| end.bridge_line) {
                let remedy = "write mode = \"bridged\", or remove the key";
                self.problem(line, "bridge belongs to the mode bridged", remedy);
            }
        }
    }

    /// `[tunnels]`, with room for ports and addresses of all members.
    fn tunnels(
        &mut self,
        top: Section<'t>,
        kind: EngineName,
        members: u16,
        members_line: usize,
    ) -> ReadTunnels {
        let tunnels = self.section(top, "tunnels", "tunnels.");
        self.unknown(tunnels, TUNNEL_KEYS);
        let port = self.optional(tunnels, "port", |value| number(value, 1..=u16::MAX));
        let network = self.optional(tunnels, "network", |value| {
            let network: LinkNetwork = parsed(value)?;
            if network.is_v6() { Err(LinkValueError::TunnelsOfV6) } else { Ok(network) }
        });
        let buffer =
            self.optional(tunnels, "socket-buffer-bytes", |value| number(value, 1 << 16..=1 << 26));
        let queue = self.optional(tunnels, "queue-packets", |value| number(value, 100..=100_000));
        let channel = self.optional(tunnels, "data-path", data_path);
        if let Some((_, line)) = channel.filter(|_| kind != EngineName::OpenVpn) {
            let remedy = "remove it; the engine ipsec has data-path in [ipsec], and auto chooses";
            self.problem(line, "tunnels.data-path belongs to the engine openvpn", remedy);
        }
        let mut account = |key, default: &str| {
            self.optional(tunnels, key, account)
                .map_or_else(|| default.to_owned(), |(name, _)| name)
        };
        let user = account("user", "nobody");
        let group = account("group", "nogroup");
        let (port, port_line) = port.unwrap_or((DEFAULT_PORT, members_line));
        if port.checked_add(members - 1).is_none() {
            let highest = u16::MAX - (members - 1);
            let what = format!("port {port} leaves no room for {members} members");
            self.problem(port_line, what, format!("use a port up to {highest}"));
        }
        let (network, network_line) = network.unwrap_or_else(|| (default_tunnels(), members_line));
        if network.size() < 2 * u128::from(members) {
            let what = format!("{network} has {} addresses for {members} members", network.size());
            self.problem(network_line, what, "use a network with two addresses per member");
        }
        let queue = queue.map_or(DEFAULT_QUEUE_PACKETS, |(packets, _)| packets);
        ReadTunnels { port, network, network_line, buffer, queue, channel, user, group }
    }

    /// `[ipsec]`, with defaults where the engine is another.
    fn ipsec(&mut self, section: Section<'t>) -> IpsecSettings {
        self.unknown(section, IPSEC_KEYS);
        let ike = self.optional(section, "ike", proposals);
        let esp = self.optional(section, "esp", proposals);
        let data_path = self.optional(section, "data-path", data_path);
        let per_cpu = self.optional(section, "per-cpu-sas", |value| {
            value.as_bool().ok_or(LinkValueError::NotA("true or false"))
        });
        let ike_rekey = self.optional(section, "ike-rekey-s", |value| number(value, REKEY_S));
        let esp_rekey = self.optional(section, "esp-rekey-s", |value| number(value, REKEY_S));
        let window = self.optional(section, "replay-window", |value| number(value, 32..=4096));
        let data_path = data_path.map_or(DataPath::Kernel, |(path, _)| path);
        let per_cpu = per_cpu.filter(|(wanted, _)| *wanted);
        if let Some((_, line)) = per_cpu.filter(|_| data_path == DataPath::User) {
            let remedy = "use data-path = \"kernel\", or leave the key out";
            self.problem(line, "the daemon's own data path has no per-CPU SAs", remedy);
        }
        IpsecSettings {
            ike: ike.map_or_else(|| vec![DEFAULT_IKE], |(list, _)| list),
            esp: esp.map_or_else(|| vec![DEFAULT_ESP], |(list, _)| list),
            data_path,
            per_cpu: per_cpu.is_some(),
            ike_rekey_s: ike_rekey.map_or(DEFAULT_IKE_REKEY_S, |(seconds, _)| seconds),
            esp_rekey_s: esp_rekey.map_or(DEFAULT_ESP_REKEY_S, |(seconds, _)| seconds),
            replay_window: window.map_or(DEFAULT_REPLAY_WINDOW, |(packets, _)| packets),
        }
    }

    /// `[ends.a]` or `[ends.b]`; `None` without an address outside and one inside.
    fn end(&mut self, ends: Section<'t>, side: Side, link: &str) -> Option<ReadEnd> {
        let prefix = match side {
            Side::A => "ends.a.",
            Side::B => "ends.b.",
        };
        let section = self.section(ends, side.name(), prefix);
        self.unknown(section, END_KEYS);
        let [address, inner] = match side {
            Side::A => ["address = \"198.51.100.1\"", "inner = \"10.97.0.1\""],
            Side::B => ["address = \"203.0.113.1\"", "inner = \"10.97.0.2\""],
        };
        let address =
            self.required(section, "address", address, |value| usable(parsed::<IpAddr>(value)?));
        let inner = self.required(section, "inner", inner, |value| {
            let IpAddr::V4(inner) = usable(IpAddr::V4(parsed::<Ipv4Addr>(value)?))? else {
                return Err(LinkValueError::NotA("an IPv4 address"));
            };
            Ok(inner)
        });
        let inner6 = self.optional(section, "inner6", |value| {
            let IpAddr::V6(inner) = usable(IpAddr::V6(parsed::<Ipv6Addr>(value)?))? else {
                return Err(LinkValueError::NotA("an IPv6 address"));
            };
            Ok(inner)
        });
        let networks = self.networks(section);
        let bridge = self.optional(section, "bridge", device);
        let device = self.optional(section, "device", device);
        let certificates = self.optional(section, "certificates", path);
        let openssl_config = self.optional(section, "openssl-config", path);
        let name = self.optional(section, "certificate-name", certificate_name);
        let (address, address_line) = address?;
        let (inner, inner_line) = inner?;
        let default_name = match side {
            // The name in every node certificate that the project's authority issues.
            Side::A => "millrace node".to_owned(),
            Side::B => format!("{link}-b"),
        };
        Some(ReadEnd {
            address_line,
            inner_line,
            inner6_line: inner6.map_or(inner_line, |(_, line)| line),
            network_lines: networks.iter().map(|(_, line)| *line).collect(),
            device_line: device.as_ref().map(|(_, line)| *line),
            bridge_line: bridge.as_ref().map(|(_, line)| *line),
            openssl_config_line: openssl_config.as_ref().map(|(_, line)| *line),
            certificates_line: certificates.as_ref().map_or(section.line, |(_, line)| *line),
            end: End {
                address,
                inner,
                inner6: inner6.map(|(inner, _)| inner),
                networks: networks.into_iter().map(|(network, _)| network).collect(),
                device: device.map(|(device, _)| device),
                bridge: bridge.map(|(bridge, _)| bridge),
                certificates: certificates.map_or_else(
                    || PathBuf::from(format!("/etc/millrace/vpn/{link}")),
                    |(path, _)| path,
                ),
                certificate_name: name.map_or(default_name, |(name, _)| name),
                openssl_config: openssl_config.map(|(path, _)| path),
            },
        })
    }

    fn networks(&mut self, section: Section<'t>) -> Vec<(LinkNetwork, usize)> {
        let Some((items, _)) = self.optional(section, "networks", |value| match value {
            DeValue::Array(items) => Ok(items),
            _ => Err(LinkValueError::NotA("a list of networks")),
        }) else {
            return Vec::new();
        };
        let mut networks = Vec::new();
        for item in items.iter() {
            let line = self.line(item.span().start);
            match parsed::<LinkNetwork>(item.get_ref()) {
                Ok(network) => networks.push((network, line)),
                Err(why) => {
                    let what = format!("{}networks: {why}", section.prefix);
                    self.problem(
                        line,
                        what,
                        "write networks like \"10.1.0.0/16\" or \"fd00:1::/48\"",
                    );
                }
            }
        }
        networks
    }

    /// Addresses that contradict each other.
    fn addresses(&mut self, ends: [&ReadEnd; 2], tunnels: LinkNetwork, tunnels_line: usize) {
        let [a, b] = ends;
        let families = ends.map(|end| end.end.address.is_ipv4());
        if families[0] != families[1] {
            self.problem(
                b.address_line,
                format!("{} and {} are of different IP versions", a.end.address, b.end.address),
                "give both ends an IPv4 address, or both an IPv6 address",
            );
        }
        if a.end.address == b.end.address {
            let what = format!("both ends have the address {}", a.end.address);
            self.problem(b.address_line, what, "each end is a host of its own");
        }
        let mut all = vec![("tunnels.network", tunnels, tunnels_line)];
        for (end, inner, networks) in
            [(a, "ends.a.inner", "ends.a.networks"), (b, "ends.b.inner", "ends.b.networks")]
        {
            for network in end.end.inner_hosts() {
                let line = if network.is_v6() { end.inner6_line } else { end.inner_line };
                all.push((inner, network, line));
            }
            let lines = end.end.networks.iter().zip(&end.network_lines);
            all.extend(lines.map(|(network, line)| (networks, *network, *line)));
        }
        for (index, (name, network, line)) in all.iter().enumerate() {
            for (other_name, other, other_line) in &all[..index] {
                // The inner address of an end may be part of a network behind it: longer prefixes win.
                let own = name.rsplit_once('.').map(|pair| pair.0)
                    == other_name.rsplit_once('.').map(|pair| pair.0);
                if network.overlaps(*other) && !(own && name != other_name) {
                    self.problem(
                        *line,
                        format!(
                            "{name} {network} overlaps {other_name} {other} (line {other_line})"
                        ),
                        "use networks without common addresses",
                    );
                }
            }
            for end in ends {
                let address = end.end.address;
                if network.contains(address) {
                    self.problem(
                        *line,
                        format!("{name} {network} contains {address}, an address of the tunnels themselves"),
                        "the packets of a tunnel must not enter the link: use a network without it",
                    );
                }
            }
        }
    }

    /// Checks the needs of a link that carries IPv6: an IPv6 address at each end, and packets of 1280 bytes.
    fn family(&mut self, ends: [&ReadEnd; 2], path_mtu: Found<u16>) {
        let wants = |end: &ReadEnd| {
            let mut networks = end.end.networks.iter();
            end.end.inner6.is_some() || networks.any(|network| network.is_v6())
        };
        if !ends.iter().any(|end| wants(end)) {
            return;
        }
        for (end, (name, number)) in ends.into_iter().zip([("a", 1), ("b", 2)]) {
            if end.end.inner6.is_none() {
                let what = format!("ends.{name}.inner6 is missing, and the link carries IPv6");
                self.problem(end.inner_line, what, format!("add inner6 = \"fd00:97::{number}\""));
            }
        }
        if let Some((_, line)) = path_mtu.filter(|(mtu, _)| *mtu < MIN_PATH_MTU_V6) {
            self.problem(
                line,
                format!("path-mtu is below {MIN_PATH_MTU_V6}, and the link carries IPv6"),
                "IPv6 needs 1280 bytes inside the link: use a path with larger packets",
            );
        }
    }

    fn section(
        &mut self,
        parent: Section<'t>,
        key: &'static str,
        prefix: &'static str,
    ) -> Section<'t> {
        let found = self.optional(parent, key, |value| match value {
            DeValue::Table(table) => Ok(table),
            _ => Err(LinkValueError::NotA("a table")),
        });
        Section {
            prefix,
            table: found.map(|(table, _)| table),
            line: found.map_or(parent.line, |(_, line)| line),
        }
    }

    fn unknown(&mut self, section: Section<'t>, known: &[&str]) {
        for key in section.table.into_iter().flat_map(|table| table.keys()) {
            if !known.contains(&key.get_ref().as_ref()) {
                let what = format!("unknown key {}{}", section.prefix, key.get_ref());
                let line = self.line(key.span().start);
                self.problem(line, what, format!("remove it, or use one of {}", known.join(", ")));
            }
        }
    }

    fn required<T>(
        &mut self,
        section: Section<'t>,
        key: &'static str,
        example: &str,
        convert: impl FnOnce(&'t DeValue<'t>) -> Result<T, LinkValueError>,
    ) -> Found<T> {
        if section.table.is_none_or(|table| !table.contains_key(key)) {
            let what = format!("{}{key} is missing", section.prefix);
            self.problem(section.line, what, format!("add {example}"));
        }
        self.optional(section, key, convert)
    }

    fn optional<T>(
        &mut self,
        section: Section<'t>,
        key: &'static str,
        convert: impl FnOnce(&'t DeValue<'t>) -> Result<T, LinkValueError>,
    ) -> Found<T> {
        let value: &'t Spanned<DeValue<'t>> = section.table?.get(key)?;
        let line = self.line(value.span().start);
        match convert(value.get_ref()) {
            Ok(value) => Some((value, line)),
            Err(why) => {
                let what = format!("{}{key} {why}", section.prefix);
                self.problem(
                    line,
                    what,
                    "`millrace sample link` and man 5 millrace-link.toml have the values",
                );
                None
            }
        }
    }
}

/// Values that determine the engine of a link.
struct ReadEngine {
    kind: EngineName,
    /// Line of `engine`.
    line: Option<usize>,
    goal: ChoiceGoal,
}

/// `mode` and `[bond]`.
struct ReadMode {
    mode: LinkMode,
    /// Line of `mode`.
    line: Option<usize>,
    bond_line: Option<usize>,
}

/// `[tunnels]`.
struct ReadTunnels {
    port: u16,
    network: LinkNetwork,
    network_line: usize,
    buffer: Found<u32>,
    queue: u32,
    channel: Found<DataPath>,
    user: String,
    group: String,
}

/// An end with the lines that later problems refer to.
struct ReadEnd {
    end: End,
    address_line: usize,
    inner_line: usize,
    inner6_line: usize,
    network_lines: Vec<usize>,
    device_line: Option<usize>,
    bridge_line: Option<usize>,
    certificates_line: usize,
    openssl_config_line: Option<usize>,
}

fn default_tunnels() -> LinkNetwork {
    "10.98.0.0/24".parse().expect("a constant network")
}
