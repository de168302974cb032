// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Links by IPsec: configuration of strongSwan, and the same in VyOS's commands.
//!
//! ```text
//! swanctl    a link ──► swanctl.conf and strongswan.conf of one end
//! vyos       a link ◄─► `set vpn ipsec ...`
//! vici       charon's control socket: frames, messages, events
//! ```
//!
//! Everything here is pure. The supervisor starts charon and reads its socket as it does with OpenVPN.

pub mod swanctl;
pub mod vici;
pub mod vyos;

/// The device that the daemon makes when it encrypts packets itself (kernel-libipsec).
pub(crate) const USER_DEVICE: &str = "ipsec0";

/// Programs of strongSwan, with Debian's package of each.
pub(crate) const PROGRAMS: &[(&str, &str)] = &[
    ("charon-systemd", "charon-systemd"),
    ("swanctl", "strongswan-swanctl"),
    ("ip", "iproute2"),
    ("setsid", "util-linux"),
];
