// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! ICMP echo (RFC 792): the probe of a tunnel. The other end's kernel answers, so a probe needs no peer program.

/// Bytes of an echo message without data.
const HEADER: usize = 8;
/// Bytes of an IPv4 header without options.
const IP_HEADER: usize = 20;
/// Message types.
const REQUEST: u8 = 8;
const REPLY: u8 = 0;

/// An echo request that fills an IPv4 packet of `packet` bytes, at least the 28 of the headers.
pub(super) fn request(id: u16, sequence: u16, packet: usize) -> Vec<u8> {
    let mut message = vec![0; packet.saturating_sub(IP_HEADER).max(HEADER)];
    message[0] = REQUEST;
    message[4..6].copy_from_slice(&id.to_be_bytes());
    message[6..8].copy_from_slice(&sequence.to_be_bytes());
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// The sequence number of an IPv4 packet that is a reply to a request with this id.
pub(super) fn reply(packet: &[u8], id: u16) -> Option<u16> {
    let header = usize::from(packet.first()? & 0x0f) * 4;
    let message = packet.get(header..)?;
    let word = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    (header >= IP_HEADER && *message.first()? == REPLY && word(4)? == id).then(|| word(6))?
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(u16::from_be_bytes([pair[0], low]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(message: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; IP_HEADER];
        packet[0] = 0x45;
        packet.extend_from_slice(message);
        packet
    }

    #[test]
    fn request_fills_its_packet_and_has_a_valid_checksum() {
        for size in [28, 29, 84, 1444] {
            let message = request(7, 9, size);
            assert_eq!(message.len() + IP_HEADER, size);
            assert_eq!(checksum(&message), 0, "{size}");
        }
    }

    #[test]
    fn reply_belongs_to_its_id() {
        let mut message = request(7, 9, 84);
        assert_eq!(reply(&packet(&message), 7), None, "a request is not a reply");
        message[0] = REPLY;
        assert_eq!(reply(&packet(&message), 7), Some(9));
        assert_eq!(reply(&packet(&message), 8), None);
        assert_eq!(reply(&packet(&message[..6]), 7), None);
    }

    proptest! {
        #[test]
        fn any_packet_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), id: u16) {
            let _ = reply(&bytes, id);
        }
    }
}
