// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Counters of a server's provider, for tools that read its memory file from outside.

use std::collections::BTreeMap;

use crate::counters::{self, COST_OPENSSL, CellKind, event};

/// The numbers of a memory file at one moment, or what was added between two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalCounts(BTreeMap<String, u64>);

impl LocalCounts {
    /// Reads the memory file, which may be of another version of Millrace. `None` if it is something else.
    #[must_use]
    pub fn parse(memory: &[u8]) -> Option<Self> {
        counters::parse(memory).map(Self)
    }

    /// Counts since `before`. Costs are not counts: they stay as they are.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let grown = self.0.iter().map(|(name, number)| {
            let before = match CellKind::of(name).0 {
                CellKind::Operations | CellKind::Events => before.of(name),
                CellKind::CostLocal | CellKind::CostOpenssl => 0,
            };
            (name.clone(), number.saturating_sub(before))
        });
        Self(grown.collect())
    }

    /// A number; 0 if the file has no cell of this name.
    #[must_use]
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The operations that were computed, by the name of the primitive.
    pub fn operations(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.0.iter().map(|(name, count)| (name.as_str(), *count));
        all.filter(|(name, count)| CellKind::of(name).0 == CellKind::Operations && *count > 0)
    }

    /// The fetches that the preload library's cache answered, and all that it saw.
    #[must_use]
    pub fn fetches(&self) -> (u64, u64) {
        let hits = self.of(event::FETCH_HITS);
        (hits, hits.saturating_add(self.of(event::FETCH_MISSES)))
    }

    /// The primitives that were measured on both sides: the name, its nanoseconds in the gateway, and those in OpenSSL.
    pub fn costs(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        self.0.iter().filter_map(|(name, own_cost)| {
            let (CellKind::CostLocal, primitive) = CellKind::of(name) else {
                return None;
            };
            let openssl_cost = self.of(&format!("{COST_OPENSSL}{primitive}"));
            (*own_cost > 0 && openssl_cost > 0).then_some((primitive, *own_cost, openssl_cost))
        })
    }
}

impl<const N: usize> From<[(&str, u64); N]> for LocalCounts {
    fn from(cells: [(&str, u64); N]) -> Self {
        Self(cells.map(|(name, count)| (name.to_owned(), count)).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_grow_and_costs_stay() {
        let at = |pairs| {
            LocalCounts::from([
                ("X25519", pairs),
                ("pairs-ahead", pairs),
                ("fetch-hits", 9),
                ("fetch-misses", 1),
                ("ns X25519", 30),
                ("stock X25519", 80),
            ])
        };
        let grown = at(9).since(&at(2));
        assert!(grown.operations().eq([("X25519", 7)]));
        assert_eq!((grown.of("pairs-ahead"), grown.of("none")), (7, 0));
        assert!(grown.costs().eq([("X25519", 30, 80)]));
        assert_eq!(at(1).fetches(), (9, 10));
        assert_eq!(at(2).since(&at(9)).of("X25519"), 0, "no count is negative");
    }
}
