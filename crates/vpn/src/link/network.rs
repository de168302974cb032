// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! IPv4 networks.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An IPv4 network, such as 10.98.0.0/24: its host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Network {
    address: Ipv4Addr,
    bits: u8,
}

impl Ipv4Network {
    /// The network of one address.
    #[must_use]
    pub fn host(address: Ipv4Addr) -> Self {
        Self { address, bits: 32 }
    }

    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0)
    }

    /// Whether an address belongs to it.
    #[must_use]
    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & self.mask() == u32::from(self.address)
    }

    /// Whether the two have an address in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }

    /// The number of its addresses.
    #[must_use]
    pub fn size(self) -> u64 {
        1 << (32 - u32::from(self.bits))
    }

    /// The address with this index; `None` past its end.
    #[must_use]
    pub fn nth(self, index: u32) -> Option<Ipv4Addr> {
        (u64::from(index) < self.size()).then(|| Ipv4Addr::from(u32::from(self.address) + index))
    }
}

impl FromStr for Ipv4Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = text
            .split_once('/')
            .ok_or_else(|| format!("{text:?} has no prefix length"))?;
        let address: Ipv4Addr = address
            .parse()
            .map_err(|_| format!("{address:?} is not an IPv4 address"))?;
        let bits: u8 = bits
            .parse()
            .ok()
            .filter(|bits| *bits <= 32)
            .ok_or_else(|| format!("{bits:?} is not a prefix length from 0 to 32"))?;
        let network = Self { address, bits };
        let base = Ipv4Addr::from(u32::from(address) & network.mask());
        if base == address {
            Ok(network)
        } else {
            Err(format!(
                "{text} has host bits: the network is {base}/{bits}"
            ))
        }
    }
}

impl fmt::Display for Ipv4Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::Ipv4Network;

    fn network(text: &str) -> Ipv4Network {
        text.parse().expect("a network")
    }

    #[test]
    fn networks_with_host_bits_or_without_prefix_are_refused() {
        for wrong in [
            "10.0.0.1/24",
            "10.0.0.0",
            "10.0.0.0/33",
            "x/8",
            "::/0",
            "10.0.0.0/-1",
        ] {
            assert!(wrong.parse::<Ipv4Network>().is_err(), "{wrong}");
        }
        for right in ["0.0.0.0/0", "10.0.0.1/32", "10.98.0.0/24"] {
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
        ] {
            assert_eq!(
                network(left).overlaps(network(right)),
                expected,
                "{left} {right}"
            );
            assert_eq!(
                network(right).overlaps(network(left)),
                expected,
                "{right} {left}"
            );
        }
    }

    #[test]
    fn addresses_end_with_the_network() {
        let small = network("10.98.0.0/30");
        assert_eq!(
            small.nth(3).map(|a| a.to_string()),
            Some("10.98.0.3".to_owned())
        );
        assert_eq!(small.nth(4), None);
        assert_eq!(network("0.0.0.0/0").size(), 1 << 32);
    }
}
