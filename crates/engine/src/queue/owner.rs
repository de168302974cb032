// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The parties that share a queue.

/// Parts of the time that busy levels get: high, normal, low.
pub(super) const LEVEL_WEIGHTS: [u128; 3] = [64, 8, 1];

/// The priority of an owner. Busy levels share the time 64 : 8 : 1; within a level, weights decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PriorityLevel {
    /// 64 parts of the time, if used.
    High,
    /// 8 parts.
    #[default]
    Normal,
    /// 1 part, and what the others leave.
    Low,
}

impl PriorityLevel {
    /// Every level, highest first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    pub(super) fn index(self) -> usize {
        self as usize
    }
}

/// The party that fairness goes by: all sessions with the same `id` share one turn and one share of the
/// queue. The engine does not know what an owner stands for; a node has one for each tenant, and for each identity
/// without a tenant. The identities of a tenant are its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub(super) id: u64,
    pub(super) member: u64,
    pub(super) weight: u32,
    pub(super) level: PriorityLevel,
}

impl Owner {
    /// The largest weight. With a thousand to one, the owner with weight 1 gets one job in a thousand, which
    /// at 3 ms a job is within the time that a handshake waits.
    pub const MAX_WEIGHT: u32 = 1_000;

    /// The owner named `id`, which gets service in proportion to `weight` (clamped to 1 to
    /// [`Self::MAX_WEIGHT`]). Where the sessions of one owner give several weights, the job queued last
    /// decides.
    #[must_use]
    pub fn new(id: u64, weight: u32) -> Self {
        Self {
            id,
            member: 0,
            weight: weight.clamp(1, Self::MAX_WEIGHT),
            level: PriorityLevel::Normal,
        }
    }

    pub(crate) fn with_weight(self, weight: u32) -> Self {
        let weight = weight.clamp(1, Self::MAX_WEIGHT);
        Self { weight, ..self }
    }

    /// This owner, for sessions of its member named `member`.
    #[must_use]
    pub fn with_member(self, member: u64) -> Self {
        Self { member, ..self }
    }

    /// This owner, served at this level. As with the weight, the job queued last decides.
    #[must_use]
    pub fn at_level(self, level: PriorityLevel) -> Self {
        Self { level, ..self }
    }

    pub(crate) fn id(self) -> u64 {
        self.id
    }

    pub(crate) fn weight(self) -> u32 {
        self.weight
    }

    pub(crate) fn level(self) -> PriorityLevel {
        self.level
    }
}
