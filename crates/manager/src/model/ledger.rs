// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The ledger of a tenant: what each node may serve of its quota at most, whatever messages are still under way.
//!
//! ```text
//!            lower: target falls, held stays        every grant that is signed gives `target`
//!   held ────────────────┐                          every grant that can be in force gives at most `held`
//!                        └──── the node says that it has applied a later grant, or its lease is closed
//!   target ──────┐
//!                └─────────────────────────►        Σ held ≤ quota, so a rise waits for the fall of another
//! ```

use std::collections::BTreeMap;

use millrace_service::rates::{JobClass, Rate, Rates};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::name::NodeName;
use super::tenant::{Quota, Slice};

/// The slices of one tenant, as the store keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// One entry per node and registration of the node that may hold a part of the quota.
    pub entries: Vec<Entry>,
    /// Whether the wanted nodes cannot take the whole quota, because their capacity does not suffice.
    #[serde(default)]
    pub short: bool,
}

/// The part of a quota that one registration of one node may hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// Node that holds the slice.
    pub node: NodeName,
    /// Fence of the registration.
    pub fence: u64,
    /// The slice that new grants give; `None` withdraws the tenant from the node.
    #[schemars(with = "Option<serde_json::Value>")]
    pub target: Option<Slice>,
    /// The most that any grant gives that can still be in force.
    #[schemars(with = "serde_json::Value")]
    pub held: Slice,
    /// First revision whose grants give no more than `target`; `None` for the revision that this record gets when it is
    /// written.
    #[serde(default)]
    pub since: Option<u64>,
    /// Whether the lease is closed and `held` has fallen to the safe share.
    #[serde(default)]
    pub safe: bool,
}

impl Ledger {
    /// The entry of a registration.
    #[must_use]
    pub fn entry(&self, node: &NodeName, fence: u64) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.node == *node && entry.fence == fence)
    }

    /// Puts the revision of the record in the place of `None`, before the record is rewritten.
    pub fn stamp(&mut self, revision: u64) {
        for entry in &mut self.entries {
            entry.since.get_or_insert(revision);
        }
    }
}

impl Entry {
    /// Whether all grants of this registration that give more than `target` are replaced, given the revision that
    /// the node has applied and that of this record.
    #[must_use]
    pub fn is_replaced(&self, applied: u64, record: u64) -> bool {
        applied >= self.since.unwrap_or(record)
    }

    /// Whether `held` is more than the target.
    #[must_use]
    pub fn is_falling(&self) -> bool {
        self.target.as_ref() != Some(&self.held)
    }
}

/// Rate of [`Rates`] that a quota can limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// Operations, all classes together.
    Ops,
    /// Bytes of input.
    Bytes,
    /// Operations of one class.
    Class(JobClass),
}

impl Dimension {
    /// The rates that `quota` limits.
    pub fn limited(quota: &Quota) -> impl Iterator<Item = (Self, Rate)> + '_ {
        let plain = [(Self::Ops, quota.ops), (Self::Bytes, quota.bytes)];
        let classes = quota.classes.iter();
        let classes = classes.map(|(class, rate)| (Self::Class(*class), *rate));
        plain.into_iter().chain(classes).filter(|(_, rate)| !rate.is_unlimited())
    }

    /// This rate of `rates`; a class without a row has no limit.
    #[must_use]
    pub fn of(self, rates: &Rates) -> Rate {
        match self {
            Self::Ops => rates.ops,
            Self::Bytes => rates.bytes,
            Self::Class(class) => rates.classes.get(&class).copied().unwrap_or_default(),
        }
    }

    /// Sets this rate of `rates`.
    pub fn set(self, rates: &mut Rates, rate: Rate) {
        match self {
            Self::Ops => rates.ops = rate,
            Self::Bytes => rates.bytes = rate,
            Self::Class(class) => {
                rates.classes.insert(class, rate);
            }
        }
    }
}

/// Units per second as a number that can be added and compared: no limit is more than every limit.
#[must_use]
pub fn amount(rate: Rate) -> u128 {
    if rate.is_unlimited() { u128::from(u64::MAX) } else { u128::from(rate.per_second) }
}

/// The least rates that allow what `one` or `other` allows: by rate the higher value, where no limit is the highest.
#[must_use]
pub fn covering(one: &Rates, other: &Rates) -> Rates {
    let higher = |one: Rate, other: Rate| {
        if one.is_unlimited() || other.is_unlimited() {
            Rate::UNLIMITED
        } else {
            Rate {
                per_second: one.per_second.max(other.per_second),
                burst: one.depth().max(other.depth()),
            }
        }
    };
    let classes: BTreeMap<JobClass, Rate> = one
        .classes
        .iter()
        .filter_map(|(class, rate)| Some((*class, higher(*rate, *other.classes.get(class)?))))
        .filter(|(_, rate)| !rate.is_unlimited())
        .collect();
    Rates { ops: higher(one.ops, other.ops), bytes: higher(one.bytes, other.bytes), classes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::placement::tests::rates;

    #[test]
    fn maximum_of_two_slices_allows_every_job_that_either_allows() {
        let both =
            covering(&rates(10, &[("rsa2048", 5), ("slow", 1)]), &rates(20, &[("rsa2048", 3)]));
        assert_eq!(both.ops.per_second, 20);
        assert_eq!(both.classes.len(), 1, "a class without a row has no limit");
        assert_eq!(both.classes.values().next().unwrap().per_second, 5);
        assert!(covering(&rates(0, &[]), &rates(20, &[])).ops.is_unlimited());
    }

    #[test]
    fn entry_is_replaced_from_the_revision_of_its_record() {
        let entry = Entry {
            node: "n".parse().unwrap(),
            fence: 1,
            target: None,
            held: rates(1, &[]),
            since: None,
            safe: false,
        };
        assert!(!entry.is_replaced(6, 7));
        assert!(entry.is_replaced(7, 7));
        let mut ledger = Ledger { entries: vec![entry], short: false };
        ledger.stamp(7);
        assert!(
            ledger.entries[0].is_replaced(7, 9),
            "later changes of the record do not put it off"
        );
    }
}
