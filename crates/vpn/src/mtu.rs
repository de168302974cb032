// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Packet sizes: the largest inner packet whose tunnel packet fits the path.

use std::net::IpAddr;

use crate::link::DataPath;

/// Bytes that OpenVPN adds to a packet: 4 for the opcode and peer id, 8 for the packet id, 16 for the tag. Up to
/// OpenVPN 2.6 the packet id has 4 bytes; 2.7 has 8, and both ends must compute the same.
const OPENVPN: u16 = 4 + 8 + 16;

/// Bytes of an Ethernet header with the tag of a VLAN, which a bridge may pass on.
const ETHERNET: u16 = 14 + 4;

/// Bytes of the header that OpenVPN's `fragment` puts before each packet.
const FRAGMENT: u16 = 4;

/// Bytes of a UDP header.
const UDP: u16 = 8;

/// Bytes of the IPv4 and TCP headers without options, which the MSS leaves out.
const INNER_HEADERS: u16 = 40;

/// Sizes of packets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSizes {
    /// MTU of the tunnel device.
    pub tunnel: u16,
    /// Largest TCP segment through the tunnel.
    pub segment: u16,
    /// Largest packet of the path, if OpenVPN has to send a tunnel packet in several.
    pub fragment: Option<u16>,
}

/// The sizes for a path between ends with such addresses. `path_mtu` is at least 576.
#[must_use]
pub fn sizes(path_mtu: u16, address: IpAddr) -> PacketSizes {
    let outer = if address.is_ipv4() { 20 } else { 40 };
    let tunnel = path_mtu - outer - UDP - OPENVPN;
    PacketSizes { tunnel, segment: tunnel - INNER_HEADERS, fragment: None }
}

/// The sizes of a bridged link, whose packets have an Ethernet header inside the tunnel. A bond with a larger MTU than
/// the path allows sends its long packets in fragments; TCP segments always fit.
#[must_use]
pub fn bridged_sizes(path_mtu: u16, address: IpAddr, wanted: Option<u16>) -> PacketSizes {
    let fits = sizes(path_mtu, address).tunnel - ETHERNET;
    match wanted.filter(|wanted| *wanted > fits) {
        Some(tunnel) => {
            let segment = fits - FRAGMENT - INNER_HEADERS;
            PacketSizes { tunnel, segment, fragment: Some(path_mtu) }
        }
        None => {
            let tunnel = wanted.unwrap_or(fits);
            PacketSizes { tunnel, segment: tunnel - INNER_HEADERS, fragment: None }
        }
    }
}

/// Bytes that ESP adds around the padded packet: 8 for SPI and sequence number (RFC 4303), 16 for the longest
/// initialisation vector of the ciphers (CBC, RFC 3602), 16 for the tag (RFC 4106, RFC 4868).
const ESP: u16 = 8 + 16 + 16;

/// Bytes at the end of the padded packet: the length of the padding, and the next header.
const ESP_TRAILER: u16 = 2;

/// A multiple of this is encrypted: the blocks of CBC, which GCM's 4 bytes divide.
const ESP_BLOCK: u16 = 16;

/// MTU of the device that kernel-libipsec makes.
const USER_DEVICE: u16 = 1400;

/// The sizes of an IPsec link, with room for UDP encapsulation, which a NAT on the path brings.
#[must_use]
pub fn ipsec_sizes(path_mtu: u16, address: IpAddr, data_path: DataPath) -> PacketSizes {
    let outer = if address.is_ipv4() { 20 } else { 40 };
    let encrypted = path_mtu - outer - UDP - ESP;
    let tunnel = encrypted / ESP_BLOCK * ESP_BLOCK - ESP_TRAILER;
    let tunnel = match data_path {
        DataPath::Kernel => tunnel,
        DataPath::User => tunnel.min(USER_DEVICE),
    };
    PacketSizes { tunnel, segment: tunnel - INNER_HEADERS, fragment: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipsec_packet_fits_the_path_in_each_encapsulation() {
        for (path, address) in [(1500, "192.0.2.1"), (9000, "192.0.2.1"), (576, "2001:db8::1")] {
            let address: IpAddr = address.parse().expect("an address");
            let sizes = ipsec_sizes(path, address, DataPath::Kernel);
            let padded = (sizes.tunnel + ESP_TRAILER).next_multiple_of(ESP_BLOCK);
            let outer = if address.is_ipv4() { 20 } else { 40 };
            let packet = outer + UDP + ESP + padded;
            assert!(packet <= path && path - packet < ESP_BLOCK, "{path}: {packet}");
            assert!(ipsec_sizes(path, address, DataPath::User).tunnel <= USER_DEVICE);
        }
    }

    #[test]
    fn tunnel_packet_fills_the_path_exactly() {
        for (path, address, tunnel, segment) in [
            (1500, "192.0.2.1", 1444, 1404),
            (1500, "2001:db8::1", 1424, 1384),
            (9000, "192.0.2.1", 8944, 8904),
            (576, "2001:db8::1", 500, 460),
        ] {
            let address = address.parse().expect("an address");
            let expected = PacketSizes { tunnel, segment, fragment: None };
            assert_eq!(sizes(path, address), expected);
        }
    }

    #[test]
    fn bridged_link_leaves_room_for_ethernet_or_sends_fragments() {
        for (path, address, wanted, tunnel, segment, fragment) in [
            (1500, "192.0.2.1", None, 1426, 1386, None),
            (1500, "192.0.2.1", Some(1426), 1426, 1386, None),
            (1500, "192.0.2.1", Some(1427), 1427, 1382, Some(1500)),
            (1500, "2001:db8::1", Some(1500), 1500, 1362, Some(1500)),
            (1600, "192.0.2.1", Some(1500), 1500, 1460, None),
            (576, "2001:db8::1", None, 482, 442, None),
        ] {
            let address = address.parse().expect("an address");
            let expected = PacketSizes { tunnel, segment, fragment };
            assert_eq!(bridged_sizes(path, address, wanted), expected);
        }
    }
}
