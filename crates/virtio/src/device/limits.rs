// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The limits of a device, and changes of them.

use serde::{Deserialize, Serialize};

/// The limits of a device, with the meaning that QEMU gives to `throttle-ops` and `throttle-bps`: requests above
/// them wait; a tenth of a second's worth may come at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Data requests per second.
    pub ops: Option<u64>,
    /// Bytes of sources per second.
    pub bps: Option<u64>,
}

/// One limit, as a change sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// No limit.
    None,
    /// Operations or bytes per second, in bursts of at most a tenth of a second's worth.
    PerSecond(u64),
}

impl Limit {
    const fn rate(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::PerSecond(rate) => Some(rate),
        }
    }
}

/// A change of limits; what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsChange {
    /// Data requests per second.
    pub ops: Option<Limit>,
    /// Bytes of sources per second.
    pub bps: Option<Limit>,
}

impl LimitsChange {
    /// Overwrites the limits that this names.
    pub fn apply(self, limits: &mut DeviceLimits) {
        let Self { ops, bps } = self;
        limits.ops = ops.map_or(limits.ops, Limit::rate);
        limits.bps = bps.map_or(limits.bps, Limit::rate);
    }
}
