// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Networks of IPv4 and IPv6.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// A network, such as 10.98.0.0/24 or fd00:1::/48: its host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkNetwork {
    address: IpAddr,
    bits: u8,
}

/// Bits of an address of this family.
fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The first `bits` bits of an address, and zeros.
fn base(address: IpAddr, bits: u8) -> IpAddr {
    let host = u32::from(width(address) - bits);
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(host).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(host).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

impl LinkNetwork {
    /// The network of one address.
    #[must_use]
    pub fn host(address: impl Into<IpAddr>) -> Self {
        let address = address.into();
        Self { address, bits: width(address) }
    }

    /// Whether the network is one of IPv6.
    #[must_use]
    pub fn is_v6(self) -> bool {
        self.address.is_ipv6()
    }

    /// Whether an address belongs to the network.
    #[must_use]
    pub fn contains(self, address: impl Into<IpAddr>) -> bool {
        let address = address.into();
        address.is_ipv6() == self.is_v6() && base(address, self.bits) == self.address
    }

    /// Whether the two have an address in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }

    /// The number of its addresses; of `::/0` one less.
    #[must_use]
    pub fn size(self) -> u128 {
        let host = u32::from(width(self.address) - self.bits);
        1_u128.checked_shl(host).unwrap_or(u128::MAX)
    }

    /// The address with this index; `None` past its end.
    #[must_use]
    pub fn nth(self, index: u32) -> Option<IpAddr> {
        let inside = u128::from(index) < self.size();
        inside.then(|| match self.address {
            IpAddr::V4(first) => Ipv4Addr::from(u32::from(first) + index).into(),
            IpAddr::V6(first) => Ipv6Addr::from(u128::from(first) + u128::from(index)).into(),
        })
    }
}

/// Why a text is not a network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinkNetworkError {
    /// There is no slash.
    #[error("{0:?} has no prefix length")]
    NoPrefixLength(String),
    /// The part before the slash is not an address.
    #[error("{0:?} is not an IP address")]
    NotAnAddress(String),
    /// The part behind the slash is not a prefix length of the address.
    #[error("{text:?} is not a prefix length from 0 to {max}")]
    PrefixLength {
        /// The part behind the slash.
        text: String,
        /// Bits of an address of this family.
        max: u8,
    },
    /// The address is one inside the network.
    #[error("{text} has host bits: the network is {network}")]
    HostBits {
        /// The refused text.
        text: String,
        /// The network with this prefix.
        network: LinkNetwork,
    },
}

impl FromStr for LinkNetwork {
    type Err = LinkNetworkError;

    fn from_str(text: &str) -> Result<Self, LinkNetworkError> {
        let Some((address, bits)) = text.split_once('/') else {
            return Err(LinkNetworkError::NoPrefixLength(text.to_owned()));
        };
        let address: IpAddr =
            address.parse().map_err(|_| LinkNetworkError::NotAnAddress(address.to_owned()))?;
        let max = width(address);
        let Some(bits) = bits.parse().ok().filter(|bits| *bits <= max) else {
            return Err(LinkNetworkError::PrefixLength { text: bits.to_owned(), max });
        };
        let network = Self { address: base(address, bits), bits };
        if network.address == address {
            Ok(network)
        } else {
            Err(LinkNetworkError::HostBits { text: text.to_owned(), network })
        }
    }
}

impl fmt::Display for LinkNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::LinkNetwork;

    fn network(text: &str) -> LinkNetwork {
        text.parse().expect("a network")
    }

    #[test]
    fn networks_with_host_bits_or_without_prefix_are_refused() {
        for wrong in
            ["10.0.0.1/24", "10.0.0.0", "10.0.0.0/33", "x/8", "fd00::1/64", "::/129", "10.0.0.0/-1"]
        {
            assert!(wrong.parse::<LinkNetwork>().is_err(), "{wrong}");
        }
        for right in ["0.0.0.0/0", "10.0.0.1/32", "10.98.0.0/24", "::/0", "fd00:1::/32"] {
            assert_eq!(network(right).to_string(), right);
        }
    }

    #[test]
    fn overlap_is_symmetric_and_exact() {
        for (left, right, expected) in [
            ("10.0.0.0/8", "10.1.0.0/16", true),
            ("10.0.0.0/24", "10.0.1.0/24", false),
            ("0.0.0.0/0", "192.0.2.1/32", true),
            ("10.0.0.0/31", "10.0.0.2/31", false),
            ("0.0.0.0/0", "::/0", false),
            ("fd00::/8", "fd00:1::/32", true),
            ("fd00:1::/32", "fd00:2::/32", false),
        ] {
            assert_eq!(network(left).overlaps(network(right)), expected, "{left} {right}");
            assert_eq!(network(right).overlaps(network(left)), expected, "{right} {left}");
        }
    }

    #[test]
    fn addresses_end_with_the_network() {
        let small = network("10.98.0.0/30");
        assert_eq!(small.nth(3).map(|a| a.to_string()), Some("10.98.0.3".to_owned()));
        assert_eq!(small.nth(4), None);
        assert_eq!(network("0.0.0.0/0").size(), 1 << 32);
        assert_eq!(network("fd00::/126").size(), 4);
        assert_eq!(network("fd00::/126").nth(3).map(|a| a.to_string()), Some("fd00::3".to_owned()));
    }
}
