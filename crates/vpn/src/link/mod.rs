// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The declaration of a link, which both ends share: `link.toml` becomes a [`VpnLink`] that cannot be wrong in
//! itself, or [`LinkProblems`]. Problems of a host with a valid link are those of [`crate::host`].

mod bond;
mod network;
mod problem;
mod read;
mod value;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::candidate::{ChoiceGoal, EngineCandidate};
use crate::proposal::{EspProposal, IkeProposal};

pub use bond::{BondHash, BondSettings, BondSpread, LinkMode};
pub use network::{LinkNetwork, LinkNetworkError};
pub use problem::{LinkProblem, LinkProblems};

/// A link.toml with every key.
pub const SAMPLE: &str = include_str!("../../link.toml");

/// A link.toml of an IPsec link with every key.
pub const SAMPLE_IPSEC: &str = include_str!("../../link-ipsec.toml");

/// A link.toml of a bridged link with every key.
pub const SAMPLE_BRIDGED: &str = include_str!("../../link-bridged.toml");

/// Bound on members: one per core of a large host; each takes a port, two addresses and a process.
pub const MAX_MEMBERS: u16 = 64;

/// Longest name: with a dash and two digits it is the name of a network device, at most 15 characters.
const MAX_NAME: usize = 12;

/// A checked link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VpnLink {
    /// Name of the link, which devices and folders carry.
    pub name: String,
    /// VPN implementation. With `auto`, one OpenVPN process per member until [`Self::as_candidate`].
    pub engine: LinkEngine,
    /// The engine is chosen by measurement.
    pub auto: Option<AutoEngine>,
    /// Routed, or bridged by a bond.
    pub mode: LinkMode,
    /// Number of tunnels.
    pub members: u16,
    /// Cipher of the tunnels.
    pub cipher: TunnelCipher,
    /// Largest packet of the path between the ends, in bytes, with the outer IP header.
    pub path_mtu: u16,
    /// UDP port of the first member; the others follow.
    pub port: u16,
    /// Addresses of the tunnels, two per member.
    pub tunnels: LinkNetwork,
    /// Bytes of each member's UDP socket buffers; `None` for the system's.
    pub socket_buffer_bytes: Option<u32>,
    /// Packets that wait for a member in its device.
    pub queue_packets: u32,
    /// User of the tunnel processes after their start.
    pub user: String,
    /// Group of the tunnel processes after their start.
    pub group: String,
    /// The ends: a, b.
    ends: [End; 2],
    /// Lines of the file that problems of a host refer to.
    pub(crate) lines: Lines,
}

/// VPN implementation of the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEngine {
    /// One OpenVPN process per member.
    OpenVpn(DataPath),
    /// strongSwan: one daemon, one connection.
    Ipsec(IpsecSettings),
}

/// `[ipsec]` of link.toml.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpsecSettings {
    /// Proposals of IKE, the best first.
    pub ike: Vec<IkeProposal>,
    /// Proposals of ESP, the best first.
    pub esp: Vec<EspProposal>,
    /// Place where ESP packets are processed: kernel or daemon.
    pub data_path: DataPath,
    /// One security association per processor (RFC 9611).
    pub per_cpu: bool,
    /// Seconds until IKE gets new keys.
    pub ike_rekey_s: u32,
    /// Seconds until ESP gets new keys.
    pub esp_rekey_s: u32,
    /// Anti-replay window, in packets.
    pub replay_window: u32,
}

/// Place where packets are encrypted: kernel or process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// The kernel: its ESP, or OpenVPN's data channel offload (DCO).
    Kernel,
    /// The process itself: OpenVPN, or strongSwan's kernel-libipsec for kernels without ESP.
    User,
}

/// `engine = "auto"` of link.toml.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoEngine {
    /// Figure that decides between the candidates.
    pub goal: ChoiceGoal,
    /// Settings of the candidates that are IPsec links.
    pub ipsec: IpsecSettings,
}

/// Lines of link.toml, from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) name: Option<usize>,
    pub(crate) mode: Option<usize>,
    /// `[bond]`.
    pub(crate) bond: Option<usize>,
    pub(crate) engine: Option<usize>,
    pub(crate) data_path: Option<usize>,
    pub(crate) members: Option<usize>,
    /// `[ipsec]`.
    pub(crate) ipsec: Option<usize>,
    pub(crate) socket_buffer: Option<usize>,
    /// Lines of settings that each end has, for a and b.
    pub(crate) address: [Option<usize>; 2],
    pub(crate) device: [Option<usize>; 2],
    pub(crate) bridge: [Option<usize>; 2],
    pub(crate) certificates: [Option<usize>; 2],
    pub(crate) openssl_config: [Option<usize>; 2],
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Address at which the other end reaches this one, outside the tunnels.
    pub address: IpAddr,
    /// IPv4 address of the end inside the link.
    pub inner: Ipv4Addr,
    /// IPv6 address of the end inside the link; a link that carries IPv6 has one at each end.
    pub inner6: Option<Ipv6Addr>,
    /// Networks behind it.
    pub networks: Vec<LinkNetwork>,
    /// The device that carries the tunnels; its NUMA node and interrupts decide on the processors.
    pub device: Option<String>,
    /// Bridge of the host that the bond of a bridged link becomes a port of.
    pub bridge: Option<String>,
    /// Folder with ca.pem, cert.pem and key.pem.
    pub certificates: PathBuf,
    /// Name in the end's certificate.
    pub certificate_name: String,
    /// OpenSSL configuration of the members' processes; `None` for the system's.
    pub openssl_config: Option<PathBuf>,
}

impl End {
    /// The variable that makes a process read the end's OpenSSL configuration.
    pub(crate) fn openssl_variable(&self) -> Option<String> {
        let path = self.openssl_config.as_ref()?;
        Some(format!("OPENSSL_CONF={}", path.display()))
    }

    /// Addresses of the end inside the link, as networks of one host.
    #[must_use]
    pub fn inner_hosts(&self) -> Vec<LinkNetwork> {
        let v6 = self.inner6.map(LinkNetwork::host);
        std::iter::once(LinkNetwork::host(self.inner)).chain(v6).collect()
    }
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// `[ends.a]`, which waits for the other in each TLS handshake.
    A,
    /// `[ends.b]`, which begins each TLS handshake.
    B,
}

impl Side {
    /// Both ends, in the order of the file.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// The other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// The name in link.toml.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }
}

/// Ciphers of a tunnel: those with authentication that OpenVPN can also run in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TunnelCipher {
    /// AES-256-GCM.
    #[serde(rename = "AES-256-GCM")]
    Aes256Gcm,
    /// AES-128-GCM.
    #[serde(rename = "AES-128-GCM")]
    Aes128Gcm,
    /// ChaCha20-Poly1305, for processors without AES instructions.
    #[serde(rename = "CHACHA20-POLY1305")]
    ChaCha20Poly1305,
}

impl TunnelCipher {
    const ALL: [Self; 3] = [Self::Aes256Gcm, Self::Aes128Gcm, Self::ChaCha20Poly1305];

    /// The name that OpenVPN uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes256Gcm => "AES-256-GCM",
            Self::Aes128Gcm => "AES-128-GCM",
            Self::ChaCha20Poly1305 => "CHACHA20-POLY1305",
        }
    }
}

/// Characters between the name of a link and the number of a member: see [`VpnLink::device`].
const DASHES: [char; 3] = ['-', '_', '.'];

/// The number of the member of a link that has a device of this name; `None` for a device of something else.
pub(crate) fn member_of_device(link: &str, device: &str) -> Option<u16> {
    let digits = device.strip_prefix(link)?.strip_prefix(DASHES)?;
    let number: u16 = digits.parse().ok()?;
    (number < MAX_MEMBERS && number.to_string() == digits).then_some(number)
}

impl VpnLink {
    /// Reads a link.toml.
    pub fn parse(text: &str) -> Result<Self, LinkProblems> {
        read::link(text)
    }

    /// The end on this side.
    #[must_use]
    pub fn end(&self, side: Side) -> &End {
        &self.ends[side.index()]
    }

    /// Whether the link's members are OpenVPN processes.
    #[must_use]
    pub fn is_openvpn(&self) -> bool {
        matches!(self.engine, LinkEngine::OpenVpn(_))
    }

    /// Whether routes over several devices spread the link's flows.
    #[must_use]
    pub fn is_multipath(&self) -> bool {
        self.is_openvpn() && self.bond().is_none()
    }

    /// The link with one candidate's engine and number of members; without `auto` the link as it is.
    #[must_use]
    pub fn as_candidate(&self, candidate: EngineCandidate) -> Self {
        let Some(auto) = &self.auto else {
            return self.clone();
        };
        let (engine, members) = match candidate {
            EngineCandidate::One => (LinkEngine::OpenVpn(DataPath::User), 1),
            EngineCandidate::Many => (LinkEngine::OpenVpn(DataPath::User), self.members),
            EngineCandidate::Dco => (LinkEngine::OpenVpn(DataPath::Kernel), 1),
            EngineCandidate::Ipsec => (LinkEngine::Ipsec(auto.ipsec.clone()), 1),
            EngineCandidate::PerCpuSas => {
                let settings = IpsecSettings {
                    data_path: DataPath::Kernel,
                    per_cpu: true,
                    ..auto.ipsec.clone()
                };
                (LinkEngine::Ipsec(settings), 1)
            }
        };
        Self { engine, members, ..self.clone() }
    }

    /// The end whose address is among these; `None` if neither or both are.
    #[must_use]
    pub fn side_with(&self, addresses: &[IpAddr]) -> Option<Side> {
        let here = |side: &Side| addresses.contains(&self.end(*side).address);
        match Side::ALL.map(|side| here(&side)) {
            [true, false] => Some(Side::A),
            [false, true] => Some(Side::B),
            [true, true] | [false, false] => None,
        }
    }

    /// The bond of a bridged link.
    #[must_use]
    pub fn bond(&self) -> Option<&BondSettings> {
        match &self.mode {
            LinkMode::Routed => None,
            LinkMode::Bridged(settings) => Some(settings),
        }
    }

    /// The name of a member's network device. One that encrypts in the kernel, or carries Ethernet frames, is of
    /// another kind, and has another name.
    #[must_use]
    pub fn device(&self, member: u16) -> String {
        let dash = match self.engine {
            LinkEngine::OpenVpn(_) if self.bond().is_some() => '_',
            LinkEngine::OpenVpn(DataPath::Kernel) => '.',
            LinkEngine::OpenVpn(DataPath::User) | LinkEngine::Ipsec(_) => '-',
        };
        format!("{}{dash}{member}", self.name)
    }

    /// The networks whose packets IPsec protects at one end: those behind it, and its address unless it lies in one.
    #[must_use]
    pub fn selectors(&self, side: Side) -> Vec<LinkNetwork> {
        let end = self.end(side);
        let is_outside = |inner: &LinkNetwork| {
            let mut networks = end.networks.iter();
            !networks.any(|network| network.overlaps(*inner))
        };
        let inner = end.inner_hosts().into_iter().filter(is_outside);
        inner.chain(end.networks.iter().copied()).collect()
    }

    /// The networks that a route of this end leads to: the address and the networks of the other end.
    #[must_use]
    pub fn destinations(&self, side: Side) -> Vec<LinkNetwork> {
        let peer = self.end(side.other());
        let inner = peer.inner_hosts().into_iter();
        inner.chain(peer.networks.iter().copied()).collect()
    }

    /// Whether the link carries IPv6.
    #[must_use]
    pub fn carries_v6(&self) -> bool {
        self.ends.iter().any(|end| end.inner6.is_some())
    }
}

#[cfg(test)]
mod tests;
