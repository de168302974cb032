// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Candidates of `engine = "auto"`, and the goal by which [`choice`](crate::choice) picks one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Candidates of `auto`, the simplest first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum EngineCandidate {
    /// One OpenVPN process.
    One,
    /// One OpenVPN process, and the kernel encrypts (DCO).
    Dco,
    /// One strongSwan connection, with the data path of `[ipsec]`.
    Ipsec,
    /// The same with one security association per processor, encrypted by the kernel.
    PerCpuSas,
    /// As many OpenVPN processes as link.toml has members.
    Many,
}

impl EngineCandidate {
    /// Each, the simplest first.
    pub const ALL: [Self; 5] = [Self::One, Self::Dco, Self::Ipsec, Self::PerCpuSas, Self::Many];

    /// The name in records and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Dco => "dco",
            Self::Ipsec => "ipsec",
            Self::PerCpuSas => "per-cpu-sas",
            Self::Many => "many",
        }
    }

    /// Description of the candidate, in words.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::One => "one OpenVPN process",
            Self::Dco => "OpenVPN with the kernel's data channel",
            Self::Ipsec => "IPsec",
            Self::PerCpuSas => "IPsec with per-CPU SAs",
            Self::Many => "one OpenVPN process per member",
        }
    }
}

/// Measure by which the best candidate is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChoiceGoal {
    /// The highest rate.
    #[default]
    Throughput,
    /// The least CPU time for a gigabyte.
    Cpu,
}
