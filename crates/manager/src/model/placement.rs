// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Placement: chooses the nodes that serve a tenant, and the share of its quota that each gets. Pure arithmetic over
//! what is known of the nodes; [`plan`](super::plan) decides when a change is safe.

use std::collections::BTreeMap;

use millrace_operation::{Class, KeyType};
use millrace_service::rates::{JobClass, Rate, Rates};

use super::ledger::Dimension;
use super::name::{NodeName, Zone};
use super::node::Capacity;
use super::tenant::{Placement, Quota, Slice};

/// A whole node, or a whole quota: shares are in parts per million.
pub const WHOLE: u64 = 1_000_000;

/// The class at whose rate operations count that a quota does not assign to a class: the usual key of a TLS server.
const REFERENCE: JobClass = JobClass::Key(KeyType::Rsa { bits: 2048 });

/// A node that may serve the tenant.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Name of the node.
    pub name: &'a NodeName,
    /// Measured capacity of the node.
    pub capacity: &'a Capacity,
    /// Availability zone of the node.
    pub zone: Option<&'a Zone>,
    /// Capacity that other tenants leave free, in parts per million of the node.
    pub free: u64,
    /// Whether the node serves the tenant already.
    pub serves: bool,
}

/// The division of a tenant's quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The slice of each node that serves the tenant.
    pub slices: BTreeMap<NodeName, Slice>,
    /// Whether the nodes cannot take the whole quota.
    pub short: bool,
}

/// Part of a node that `rates` take when they are used up, in parts per million. Rates without limit take nothing:
/// such a tenant gets what is left.
#[must_use]
pub fn cost(rates: &Rates, capacity: &Capacity) -> u64 {
    let part = |count: u64, class| {
        let whole = u128::from(rate_of(capacity, class).max(1));
        (u128::from(count) * u128::from(WHOLE)).div_ceil(whole)
    };
    let mut classed = 0;
    let mut cost = 0_u128;
    for (class, rate) in &rates.classes {
        cost += part(rate.per_second, *class);
        classed += rate.per_second;
    }
    cost += part(rates.ops.per_second.saturating_sub(classed), REFERENCE);
    u64::try_from(cost).unwrap_or(u64::MAX)
}

/// Operations per second of a class. A class that the node has not measured counts as the nearest one that contains
/// it, or else as the slowest measured.
fn rate_of(capacity: &Capacity, class: JobClass) -> u64 {
    let nearest = match class {
        JobClass::OperationWithKey(_, key) => {
            vec![class, JobClass::Key(key), JobClass::Cost(Class::of(key))]
        }
        JobClass::Key(key) => vec![class, JobClass::Cost(Class::of(key))],
        JobClass::Operation(_) | JobClass::Cost(_) => vec![class],
    };
    let measured = nearest.iter().find_map(|class| capacity.get(class));
    measured.or_else(|| capacity.values().min()).copied().unwrap_or(0)
}

/// Bound on the divisions that [`choose`] tries: a placement takes at most this many times as long.
const TRIES: usize = 8;

/// Chooses nodes for a tenant: first those that serve it, then by preferred zone, by zones that it does not use yet,
/// by free capacity, by name. Takes as many as `placement` asks for, and more while their capacity does not suffice.
/// A node with too little room for 1 of each limited rate is left out, and the others take its share.
///
/// `most` bounds the number of nodes.
#[must_use]
pub fn choose(
    placement: &Placement,
    quota: &Quota,
    most: u64,
    candidates: &[Candidate<'_>],
) -> Choice {
    let fits: Vec<u64> =
        candidates.iter().map(|candidate| fit(placement, quota, candidate)).collect();
    let mut usable: Vec<usize> =
        (0..candidates.len()).filter(|at| fits[*at] > 0 || candidates[*at].serves).collect();
    let mut tries = TRIES;
    loop {
        tries -= 1;
        let shares = share(placement, most, candidates, &usable, &fits);
        let slices = divide(quota, &shares);
        if slices.len() == shares.len() || tries == 0 {
            let served = shares.iter().filter(|(name, _)| slices.contains_key(name));
            return Choice { short: served.map(|(_, share)| share).sum::<u64>() < WHOLE, slices };
        }
        for (name, _) in shares.iter().filter(|(name, _)| !slices.contains_key(name)) {
            usable.retain(|at| candidates[*at].name != name);
        }
    }
}

/// Chooses among `usable` candidates as [`choose`] does, and shares the quota between them, no node above its fit.
fn share(
    placement: &Placement,
    most: u64,
    candidates: &[Candidate<'_>],
    usable: &[usize],
    fits: &[u64],
) -> Vec<(NodeName, u64)> {
    let mut left = usable.to_vec();
    let mut zones: BTreeMap<Option<&Zone>, u32> = BTreeMap::new();
    let mut chosen: Vec<usize> = Vec::new();
    let mut sum = 0;
    while (chosen.len() as u64) < most && (chosen.len() < placement.spread as usize || sum < WHOLE)
    {
        let rank = |at: usize| {
            let candidate = &candidates[at];
            let place = placement.zones.iter().position(|zone| Some(zone) == candidate.zone);
            let preferred = place.unwrap_or(usize::MAX);
            let used = zones.get(&candidate.zone).copied().unwrap_or(0);
            (!candidate.serves, preferred, used, u64::MAX - candidate.free, candidate.name)
        };
        let best = left.iter().enumerate().min_by_key(|(_, at)| rank(**at));
        let Some((position, at)) = best.map(|(position, at)| (position, *at)) else {
            break;
        };
        left.swap_remove(position);
        *zones.entry(candidates[at].zone).or_default() += 1;
        sum += fits[at];
        chosen.push(at);
    }
    // By name, whatever the rank: what is left over by rounding stays at the same node while others change.
    chosen.sort_by_key(|at| candidates[*at].name);
    let caps: Vec<u64> = chosen.iter().map(|at| fits[*at]).collect();
    let shares = chosen.iter().zip(water_fill(&caps)).filter(|(_, share)| *share > 0);
    shares.map(|(at, share)| (candidates[*at].name.clone(), share)).collect()
}

/// The largest share of the quota that a node can take.
fn fit(placement: &Placement, quota: &Quota, candidate: &Candidate<'_>) -> u64 {
    let whole = cost(quota, candidate.capacity);
    if placement.over_commit || whole <= candidate.free {
        return WHOLE;
    }
    // Rounding may add one operation of each limited rate to a slice.
    let one = Dimension::limited(quota).fold(Rates::default(), |mut one, (dimension, _)| {
        dimension.set(&mut one, Rate::per_second(1));
        one
    });
    let free = candidate.free.saturating_sub(cost(&one, candidate.capacity).saturating_mul(2));
    let share = u128::from(free) * u128::from(WHOLE) / u128::from(whole);
    u64::try_from(share).unwrap_or(WHOLE)
}

/// Divides a whole equally, where no part exceeds its cap; what a capped part leaves goes to the others. The sum is
/// [`WHOLE`], or that of all caps if it is less.
fn water_fill(caps: &[u64]) -> Vec<u64> {
    let mut shares = vec![0; caps.len()];
    let mut open: Vec<usize> = (0..caps.len()).collect();
    open.sort_by_key(|at| caps[*at]);
    let mut left = WHOLE;
    for (n, at) in open.iter().enumerate() {
        let equal = left.div_ceil((open.len() - n) as u64);
        shares[*at] = caps[*at].min(equal);
        left -= shares[*at];
    }
    shares
}

/// The slices of a quota by share, rounded by largest remainder. Their sum in each limited rate is the quota (times the
/// sum of the shares); a node whose slice would be less than 1 in one of them gets none.
fn divide(quota: &Quota, shares: &[(NodeName, u64)]) -> BTreeMap<NodeName, Slice> {
    let mut slices: BTreeMap<NodeName, Slice> =
        shares.iter().map(|(node, _)| (node.clone(), Slice::default())).collect();
    let whole = u128::from(WHOLE);
    let given: u128 = shares.iter().map(|(_, share)| u128::from(*share)).sum();
    for (dimension, rate) in Dimension::limited(quota) {
        let all = u128::from(rate.per_second);
        let mut parts: Vec<_> =
            shares.iter().map(|(node, share)| (node, all * u128::from(*share))).collect();
        let floors: u128 = parts.iter().map(|(_, part)| part / whole).sum();
        let over = all * given / whole - floors;
        // Stable: of equal remainders the first by name.
        parts.sort_by_key(|(_, part)| std::cmp::Reverse(part % whole));
        for (rank, (node, part)) in (0_u128..).zip(parts) {
            let amount = part / whole + u128::from(rank < over);
            if amount == 0 {
                slices.remove(node);
            } else if let Some(slice) = slices.get_mut(node) {
                dimension.set(slice, scaled(rate, u64::try_from(amount).unwrap_or(u64::MAX)));
            }
        }
    }
    slices
}

/// `rate` with another value and its burst in proportion.
#[must_use]
pub fn scaled(rate: Rate, per_second: u64) -> Rate {
    let burst =
        u128::from(rate.burst) * u128::from(per_second) / u128::from(rate.per_second.max(1));
    Rate {
        per_second,
        burst: match rate.burst {
            0 => 0,
            _ => u64::try_from(burst).unwrap_or(u64::MAX).max(1),
        },
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn capacity(rows: &[(&str, u64)]) -> Capacity {
        rows.iter().map(|(class, rate)| (class.parse().unwrap(), *rate)).collect()
    }

    pub(crate) fn rates(ops: u64, classes: &[(&str, u64)]) -> Rates {
        let classes =
            classes.iter().map(|(class, rate)| (class.parse().unwrap(), Rate::per_second(*rate)));
        Rates { ops: Rate::per_second(ops), bytes: Rate::UNLIMITED, classes: classes.collect() }
    }

    #[test]
    fn cost_is_the_part_of_the_measured_capacity() {
        let node = capacity(&[("rsa-2048", 2000), ("p-256", 40_000), ("slow", 250)]);
        assert_eq!(cost(&rates(1000, &[]), &node), WHOLE / 2, "as RSA-2048");
        assert_eq!(cost(&rates(1000, &[("p-256", 1000)]), &node), WHOLE / 40);
        assert_eq!(
            cost(&rates(0, &[("rsa-4096", 25)]), &node),
            WHOLE / 10,
            "its cost class was measured"
        );
        assert_eq!(cost(&rates(0, &[("ed25519", 25)]), &node), WHOLE / 10, "as the slowest");
        assert_eq!(cost(&Rates::default(), &node), 0);
        assert_eq!(cost(&rates(u64::MAX, &[]), &Capacity::new()), u64::MAX);
    }

    struct Pool(Vec<(NodeName, Capacity, Option<Zone>, u64, bool)>);

    impl Pool {
        fn new(rows: &[(&str, &str, u64, bool)]) -> Self {
            let node = |(name, zone, free, serves): &(&str, &str, u64, bool)| {
                let capacity = capacity(&[("rsa-2048", 1000)]);
                (name.parse().unwrap(), capacity, zone.parse().ok(), *free, *serves)
            };
            Self(rows.iter().map(node).collect())
        }

        /// The nodes, each with its part of the operations in thousandths.
        fn choose(&self, placement: &Placement, quota: &Quota) -> Vec<(String, u64)> {
            let candidates: Vec<Candidate<'_>> = self
                .0
                .iter()
                .map(|(name, capacity, zone, free, serves)| Candidate {
                    name,
                    capacity,
                    zone: zone.as_ref(),
                    free: *free,
                    serves: *serves,
                })
                .collect();
            let slices = choose(placement, quota, 100, &candidates).slices.into_iter();
            slices
                .map(|(name, slice)| {
                    (name.to_string(), slice.ops.per_second * 1000 / quota.ops.per_second)
                })
                .collect()
        }
    }

    #[test]
    fn tenant_is_spread_over_zones_and_then_by_free_capacity() {
        let pool = Pool::new(&[
            ("a", "one", 900_000, false),
            ("b", "one", 950_000, false),
            ("c", "two", 500_000, false),
            ("d", "two", 100_000, false),
        ]);
        let chosen = pool.choose(&Placement::default(), &rates(100, &[]));
        assert_eq!(chosen, [("b".to_owned(), 500), ("c".to_owned(), 500)]);
    }

    #[test]
    fn nodes_that_serve_a_tenant_keep_it_and_preferred_zones_come_first() {
        let pool = Pool::new(&[
            ("a", "one", 900_000, false),
            ("b", "two", 100_000, true),
            ("c", "three", 200_000, false),
        ]);
        let placement = Placement { zones: vec!["three".parse().unwrap()], ..Placement::default() };
        let names = |chosen: Vec<(String, u64)>| {
            chosen.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(pool.choose(&placement, &rates(100, &[]))), ["b", "c"]);
    }

    #[test]
    fn more_nodes_are_taken_while_capacity_does_not_suffice() {
        let pool = Pool::new(&[
            ("a", "x", 400_000, false),
            ("b", "x", 300_000, false),
            ("c", "x", 500_000, false),
        ]);
        let chosen = pool.choose(&Placement::default(), &rates(1000, &[]));
        assert_eq!(chosen.len(), 3, "700,000 of two nodes are not enough");
        assert_eq!(chosen.iter().map(|(_, share)| share).sum::<u64>(), 1000);
        let over = Placement { over_commit: true, ..Placement::default() };
        assert_eq!(pool.choose(&over, &rates(5000, &[])).len(), 2);
        let short: u64 = pool
            .choose(&Placement::default(), &rates(2000, &[]))
            .iter()
            .map(|(_, share)| share)
            .sum();
        // Of 600, each of the three nodes keeps one operation for the rounding of its slice.
        assert_eq!(short, 597, "never more than is there");
    }

    /// A hundredth of the quota would fit on a node: 2 operations, and less than 1 of the class.
    #[test]
    fn node_with_room_for_less_than_one_operation_leaves_its_share_to_the_others() {
        let pool = Pool::new(&[("a", "", WHOLE, false), ("b", "", 4000, false)]);
        let placement = Placement { spread: 2, ..Placement::default() };
        let chosen = pool.choose(&placement, &rates(200, &[("rsa-2048", 20)]));
        assert_eq!(chosen, [("a".to_owned(), 1000)]);
    }

    #[test]
    fn slice_below_one_is_no_slice() {
        let shares =
            [("a", 600_000), ("b", 400_000)].map(|(name, share)| (name.parse().unwrap(), share));
        let slices = divide(&rates(1000, &[("rsa-2048", 1)]), &shares);
        assert_eq!(slices.len(), 1, "a rate of 0 would be no limit");
    }

    proptest! {
        /// No operation is lost between the shares and the slices, unless the nodes are short.
        #[test]
        fn chosen_nodes_serve_the_whole_quota(
            ops in 1_u64..2000,
            class in 1_u64..100,
            free in prop::collection::vec(0..=WHOLE, 1..8),
            spread in 1_u32..6,
        ) {
            let quota = rates(ops.max(class), &[("rsa-2048", class)]);
            let names: Vec<NodeName> =
                (0..free.len()).map(|n| format!("n{n}").parse().unwrap()).collect();
            let capacity = capacity(&[("rsa-2048", 1000)]);
            let candidates: Vec<Candidate<'_>> = names
                .iter()
                .zip(&free)
                .map(|(name, free)| Candidate {
                    name,
                    capacity: &capacity,
                    zone: None,
                    free: *free,
                    serves: false,
                })
                .collect();
            let placement = Placement { spread, ..Placement::default() };
            let choice = choose(&placement, &quota, class, &candidates);
            for (dimension, rate) in Dimension::limited(&quota) {
                let given: u64 = choice.slices.values().map(|slice| dimension.of(slice).per_second).sum();
                let whole = rate.per_second;
                prop_assert!(given == whole || (choice.short && given < whole), "{given} of {whole}");
            }
        }

        #[test]
        fn slices_add_up_to_the_quota(
            ops in 20_u64..1_000_000,
            class in 20_u64..1_000_000,
            burst in 0_u64..1000,
            caps in prop::collection::vec(1..=WHOLE, 1..20),
        ) {
            let mut quota = rates(ops, &[("rsa-2048", class)]);
            quota.bytes = Rate { per_second: ops * 1000, burst };
            let shares = water_fill(&caps);
            let sum: u64 = shares.iter().sum();
            prop_assert_eq!(sum, WHOLE.min(caps.iter().sum()));
            prop_assert!(shares.iter().zip(&caps).all(|(share, cap)| share <= cap));
            let names = (0..caps.len()).map(|n| format!("n{n}").parse().unwrap());
            let shares: Vec<(NodeName, u64)> = names.zip(shares).collect();
            let slices = divide(&quota, &shares);
            for (dimension, rate) in Dimension::limited(&quota) {
                let given: u64 = slices.values().map(|slice| dimension.of(slice).per_second).sum();
                prop_assert!(given <= rate.per_second);
                if slices.len() == shares.len() && sum == WHOLE {
                    prop_assert_eq!(given, rate.per_second);
                }
                prop_assert!(slices.values().all(|slice| !dimension.of(slice).is_unlimited()));
            }
        }
    }
}
