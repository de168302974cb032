// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! All timers and limits that are recommended, with their source.

use crate::advise::Goal;

/// A limit for each priority of a request.
pub(super) struct Limit {
    throughput: u32,
    latency: u32,
    security: u32,
}

impl Limit {
    pub(super) fn of(&self, goal: Goal) -> u32 {
        match goal {
            Goal::Throughput => self.throughput,
            Goal::Latency => self.latency,
            Goal::Security => self.security,
        }
    }
}

const fn by_goal(throughput: u32, latency: u32, security: u32) -> Limit {
    Limit { throughput, latency, security }
}

// ---- IPsec ----------------------------------------------------------------------------------------

/// Seconds until the keys of packets are replaced. swanctl.conf(5): the default of a child's `rekey_time` is 1h;
/// half of it halves what one stolen key opens.
pub(super) const ESP_REKEY_S: Limit = by_goal(3_600, 3_600, 1_800);
/// Seconds until the keys of IKE are replaced. swanctl.conf(5): the default of a connection's `rekey_time` is 4h.
pub(super) const IKE_REKEY_S: Limit = by_goal(14_400, 14_400, 7_200);
/// RFC 4303, section 3.3.3: without extended sequence numbers an association ends at 2^32 packets. Half of that
/// leaves room for packets in flight.
pub(in crate::advise) const REKEY_PACKETS: u64 = 1 << 31;
/// Seconds of silence before a peer is probed (RFC 7296, section 2.4, leaves the time open). ipsec.conf(5): the
/// default of `dpddelay` is 30s.
pub(super) const DPD_DELAY_S: Limit = by_goal(30, 10, 30);
/// Replay window for one processor, in packets. RFC 4303, section 3.4.3, asks for 32 and prefers 64; strongSwan's
/// default of 32 (strongswan.conf(5), `charon.replay_window`) is less than one burst can reorder.
pub(super) const NARROW_WINDOW: u32 = 128;
/// Replay window where several processors reorder packets.
pub(super) const WIDE_WINDOW: u32 = 1024;
/// Replay window for a device that answers out of order: the maximum of VyOS's `replay-window`.
pub(super) const WIDEST_WINDOW: u32 = 2040;
/// MTU where no card reports one: Ethernet's (RFC 894).
pub(super) const ETHERNET_MTU: u32 = 1500;
/// Outer IPv4 header (RFC 791), and UDP for peers behind address translation (RFC 3948).
pub(super) const ESP_OUTER: u32 = 20 + 8;
/// The length field of the padding, and next header (RFC 4303, section 2).
pub(super) const ESP_TRAILER: u32 = 2;

// ---- OpenVPN --------------------------------------------------------------------------------------

/// Seconds until a key is replaced. openvpn(8): the default of `--reneg-sec` is 3600.
pub(super) const RENEGOTIATE_S: Limit = by_goal(3_600, 3_600, 1_800);
/// Seconds of silence before a probe. openvpn(8): the example of `--keepalive` is `10 60`.
pub(super) const PING_S: Limit = by_goal(10, 5, 10);
/// Seconds of silence after which the peer counts as dead.
pub(super) const RESTART_S: Limit = by_goal(60, 20, 60);
/// openvpn(8): the default of `--tun-mtu`.
pub(super) const TUN_MTU: u32 = 1500;
/// Packet size that Internet paths carry, also behind PPPoE (RFC 2516, section 7). openvpn(8): the default of
/// `--mssfix` since 2.6.
pub(super) const PATH_MTU: u32 = 1492;
/// MTU from which a link has jumbo frames: more than twice Ethernet's.
pub(super) const JUMBO_MTU: u32 = 4_000;

// ---- TLS ------------------------------------------------------------------------------------------

/// Seconds for which a session may be resumed; RFC 8446, section 4.6.1, allows 7 days.
pub(super) const SESSION_S: Limit = by_goal(3_600, 3_600, 600);
/// Largest record, in bytes. RFC 8446, section 5.1: 2^14. The small one fits into one TCP segment on the usual path
/// (1460 bytes less record header, check value and options), so each arriving segment can be decrypted.
pub(super) const RECORD_BYTES: Limit = by_goal(16_384, 1_370, 16_384);
