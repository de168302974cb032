// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A bridged link: members carry Ethernet frames, and one bond spreads the frames over them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of the connection between the ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkMode {
    /// Each end routes to the other's networks over all members.
    #[default]
    Routed,
    /// A bond of the members is one Ethernet segment between the ends.
    Bridged(BondSettings),
}

/// `[bond]` of link.toml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BondSettings {
    /// Rule by which frames are spread.
    pub spread: BondSpread,
    /// MTU of the bond in bytes, without the Ethernet header; `None` for the largest that fits the path.
    pub mtu: Option<u16>,
}

/// Rule by which a bond spreads frames over its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mode", content = "hash", rename_all = "kebab-case")]
pub enum BondSpread {
    /// One frame per member in turn.
    BalanceRr,
    /// By a hash of the frame's headers.
    BalanceXor(BondHash),
    /// One member carries all frames; the others wait.
    ActiveBackup,
}

/// Headers that decide on the member of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BondHash {
    /// The Ethernet addresses.
    #[serde(rename = "layer2")]
    Layer2,
    /// The Ethernet and IP addresses.
    #[serde(rename = "layer2+3")]
    Layer23,
    /// The IP addresses and ports.
    #[default]
    #[serde(rename = "layer3+4")]
    Layer34,
}

impl BondSpread {
    /// Values of `bond.mode`, each with its rule.
    pub(super) const MODES: [(&str, Self); 3] = [
        ("balance-rr", Self::BalanceRr),
        ("balance-xor", Self::BalanceXor(BondHash::Layer34)),
        ("active-backup", Self::ActiveBackup),
    ];

    /// The name in link.toml, which is that of the kernel.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BalanceRr => "balance-rr",
            Self::BalanceXor(_) => "balance-xor",
            Self::ActiveBackup => "active-backup",
        }
    }

    /// Consequences of the rule for one flow and for many, as a note for the user.
    #[must_use]
    pub fn trade_off(self) -> &'static str {
        match self {
            Self::BalanceRr => {
                "balance-rr: one flow uses all members, and its packets arrive out of order, which TCP may take for \
                 loss; for many flows balance-xor keeps the order"
            }
            Self::BalanceXor(BondHash::Layer2) => {
                "balance-xor with layer2: a pair of hosts stays on one member; between two routers all traffic is \
                 one pair, and layer3+4 spreads it"
            }
            Self::BalanceXor(BondHash::Layer23) => {
                "balance-xor with layer2+3: all flows between two hosts stay on one member; layer3+4 spreads them, too"
            }
            Self::BalanceXor(BondHash::Layer34) => {
                "balance-xor with layer3+4: many flows use all members in their order; one flow stays on one member, \
                 and is as fast as one process"
            }
            Self::ActiveBackup => {
                "active-backup: one member carries everything, and the others only take over from it"
            }
        }
    }
}

impl BondHash {
    pub(super) const ALL: [Self; 3] = [Self::Layer2, Self::Layer23, Self::Layer34];

    /// The name in link.toml, which is that of the kernel.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Layer2 => "layer2",
            Self::Layer23 => "layer2+3",
            Self::Layer34 => "layer3+4",
        }
    }
}
