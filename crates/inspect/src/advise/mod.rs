// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What to configure on this machine: cipher, integrity, group, lifetimes, and their reasons.
//!
//! Pure rules over what the report shows: nothing is measured and nothing is changed here. A
//! measurement that somebody saved (`millrace bench sizes --json`) outranks a rule.
//!
//! ```text
//! algorithm.rs  every algorithm that may be advised: what is forbidden has no name here
//! facts.rs      the few facts of a report that decide
//! sizes.rs      a saved measurement, read with care
//! rules.rs      facts, goal and measurement to choices with reasons
//! formats/      choices written as swanctl.conf, OpenVPN, nginx, HAProxy and `set` commands
//! ```

use schemars::JsonSchema;
use serde::Serialize;

/// What is to be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// IPsec with IKEv2, carried by the kernel.
    Ipsec,
    /// An OpenVPN tunnel.
    Openvpn,
    /// A TLS server.
    Tls,
}

/// What matters most to whoever asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Bits per second and handshakes per second.
    #[default]
    Throughput,
    /// Short waits, also at the tail.
    Latency,
    /// The widest margin against what may be found out later.
    Security,
}
