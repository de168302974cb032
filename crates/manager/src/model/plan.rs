// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The next ledger of a tenant: takes back what is free for certain, then lowers, then raises to what the quota
//! allows.
//!
//! The part of a quota that an entry of the ledger holds is free when
//!
//! - the node has said that it applied grants of a later revision, or
//! - the process that held it has ended for certain, or has applied grants under a later fence, or
//! - its fence is over for longer than any grant lives, and a later process of the node holds the lease.
//!
//! A node that fell silent keeps its *safe share*: it may continue with that without a manager. Times are the manager's
//! own monotonic time since it saw a change; no two clocks are compared.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use millrace_service::overview::NodeState;
use millrace_service::rates::Rates;
use millrace_service::tenants::MAX_NODE_TENANTS;

use super::ledger::{Dimension, Entry, Ledger, amount, covering};
use super::name::{NodeName, TenantName};
use super::node::Node;
use super::placement::{self, Candidate, Choice};
use super::tenant::{Quota, Slice, Tenant};
use super::view::View;

/// Time at which this manager first saw each fence superseded.
#[derive(Clone, Debug, Default)]
pub struct Endings(BTreeMap<(NodeName, u64), Instant>);

impl Endings {
    fn seen(&mut self, node: &NodeName, fence: u64, now: Instant) -> Instant {
        *self.0.entry((node.clone(), fence)).or_insert(now)
    }

    /// Forgets endings that no ledger mentions any more.
    pub fn prune(&mut self, view: &View) {
        self.0.retain(|(node, fence), _| view.has_entry(node, *fence));
    }
}

/// Change that a tenant's ledger needs now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The new ledger; `None` if the present one stays.
    pub ledger: Option<Ledger>,
    /// Time at which another change becomes possible without an event; `None` if there is none to wait for.
    pub retry_at: Option<Instant>,
    /// Whether the quota is divided as the tenant asks.
    pub settled: bool,
    /// Whether fewer nodes serve the tenant than it asks for: the next node that comes may.
    pub underserved: bool,
}

/// State of a registration that holds part of a quota.
enum RegistrationState {
    /// The registration has the lease.
    Live,
    /// The node has fallen silent and may continue with its safe share.
    Silent,
    /// The registration may have grants in force until this time.
    EndsAt(Instant),
    /// The registration holds nothing.
    Ended,
}

fn registration_state(
    entry: &Entry,
    node: Option<&Node>,
    endings: &mut Endings,
    life: Duration,
    now: Instant,
) -> RegistrationState {
    let mut after = |then: RegistrationState| {
        let until = endings.seen(&entry.node, entry.fence, now) + life;
        if until <= now { then } else { RegistrationState::EndsAt(until) }
    };
    let Some(node) = node.filter(|node| !node.removed) else {
        return after(RegistrationState::Ended);
    };
    let lease = &node.lease;
    if lease.fence == entry.fence {
        return match (lease.open, lease.left) {
            (true, _) => RegistrationState::Live,
            (false, true) => RegistrationState::Ended,
            // A lease is closed after a silence that is longer than any grant lives.
            (false, false) => RegistrationState::Silent,
        };
    }
    match lease.unproven.get(&entry.fence) {
        None => RegistrationState::Ended,
        // The same process: its first grants under the later fence replaced these.
        Some(process) if *process == lease.process && node.applied > 0 => RegistrationState::Ended,
        Some(process) if *process == lease.process => after(RegistrationState::Silent),
        // Another process of the node serves since: an operator does not run two. A registration alone proves nothing:
        // it may be a late message of a process that has ended.
        Some(_) if node.applied > 0 => after(RegistrationState::Ended),
        Some(_) => after(RegistrationState::Silent),
    }
}

/// Plans the next ledger of a tenant. `life` is longer than any grant lives, with the allowance for clock rates.
/// `leaving` is a node that the tenant leaves if another has more free capacity.
pub fn plan(
    view: &View,
    name: &TenantName,
    endings: &mut Endings,
    life: Duration,
    leaving: Option<&NodeName>,
    now: Instant,
) -> Plan {
    let present = view.ledgers.get(name);
    let record = present.map_or(0, |ledger| ledger.revision);
    let mut ledger = present.map(|ledger| ledger.value.clone()).unwrap_or_default();
    ledger.stamp(record);
    let mut retry_at = None;
    ledger.entries.retain_mut(|entry| {
        let state = registration_state(entry, view.node(&entry.node), endings, life, now);
        keep(entry, &state, view, record, &mut retry_at)
    });
    let tenant = view.tenants.get(name).map(|tenant| &tenant.value);
    let wanted = tenant.map(|tenant| wanted(view, tenant, &ledger, leaving)).unwrap_or_default();
    lower_and_raise(&mut ledger, tenant, &wanted, view);
    ledger.short = wanted.short;
    let settled = is_settled(&ledger, &wanted);
    let asked = tenant
        .map_or(0, |tenant| u64::from(tenant.placement.spread).min(least_rate(&tenant.quota)));
    let underserved = (wanted.slices.len() as u64) < asked;
    let mut before = present.map(|ledger| ledger.value.clone()).unwrap_or_default();
    before.stamp(record);
    Plan { ledger: (before != ledger).then_some(ledger), retry_at, settled, underserved }
}

/// Takes back what is free; returns whether the entry stays.
fn keep(
    entry: &mut Entry,
    state: &RegistrationState,
    view: &View,
    record: u64,
    retry_at: &mut Option<Instant>,
) -> bool {
    match state {
        RegistrationState::Live => {
            let applied = view.node(&entry.node).map_or(0, |node| node.applied);
            if entry.is_falling() && entry.is_replaced(applied, record) {
                match &entry.target {
                    Some(target) => entry.held = target.clone(),
                    None => return false,
                }
            }
            true
        }
        RegistrationState::Silent => {
            entry.target = None;
            if !entry.safe {
                entry.held = entry.held.safe_share();
                entry.safe = true;
            }
            true
        }
        RegistrationState::EndsAt(until) => {
            entry.target = None;
            *retry_at = Some(retry_at.map_or(*until, |earlier| earlier.min(*until)));
            true
        }
        RegistrationState::Ended => false,
    }
}

/// The division that the tenant asks for.
fn wanted(view: &View, tenant: &Tenant, ledger: &Ledger, leaving: Option<&NodeName>) -> Choice {
    let Some(quota) = distributable(view, tenant, ledger) else {
        return Choice { slices: BTreeMap::new(), short: true };
    };
    let most = least_rate(&quota);
    if leaving.is_none()
        && let Some(present) = present_division(view, tenant, ledger, &quota, most)
    {
        return present;
    }
    let mut candidates = candidates(view, tenant, ledger);
    for candidate in &mut candidates {
        candidate.serves &= Some(candidate.name) != leaving;
    }
    placement::choose(&tenant.placement, &quota, most, &candidates)
}

/// The present division, if it is as good as a new one: a node that joins moves no tenant that needs nothing.
fn present_division(
    view: &View,
    tenant: &Tenant,
    ledger: &Ledger,
    quota: &Quota,
    most: u64,
) -> Option<Choice> {
    let mut slices = BTreeMap::new();
    for entry in ledger.entries.iter().filter(|entry| is_live(view, entry)) {
        let Some(target) = &entry.target else {
            continue;
        };
        let overloaded = view.reserved(&entry.node) > placement::WHOLE;
        if !allows(tenant, &entry.node, view.node(&entry.node)?)
            || (overloaded && !tenant.placement.over_commit)
            || !is_slice_of(target, quota)
        {
            return None;
        }
        slices.insert(entry.node.clone(), target.clone());
    }
    let enough = slices.len() as u64 == u64::from(tenant.placement.spread).min(most);
    let whole = Dimension::limited(quota).all(|(dimension, rate)| {
        let parts = slices.values().map(|slice| amount(dimension.of(slice)));
        parts.sum::<u128>() == amount(rate)
    });
    (enough && whole).then_some(Choice { slices, short: false })
}

/// Whether a slice limits what the quota limits, and nothing else, with bursts in proportion.
fn is_slice_of(slice: &Slice, quota: &Quota) -> bool {
    Dimension::limited(slice)
        .map(|(dimension, _)| dimension)
        .eq(Dimension::limited(quota).map(|(dimension, _)| dimension))
        && Dimension::limited(quota).all(|(dimension, rate)| {
            let part = dimension.of(slice);
            part == placement::scaled(rate, part.per_second)
        })
}

/// The quota without what silent and former registrations hold; `None` if they hold all of one rate.
fn distributable(view: &View, tenant: &Tenant, ledger: &Ledger) -> Option<Quota> {
    let mut quota = Quota::default();
    for (dimension, rate) in Dimension::limited(&tenant.quota) {
        let apart = ledger.entries.iter().filter(|entry| !is_live(view, entry));
        let apart: u128 = apart.map(|entry| amount(dimension.of(&entry.held))).sum();
        let left = amount(rate).saturating_sub(apart);
        let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
        dimension.set(&mut quota, placement::scaled(rate, left));
    }
    Some(quota)
}

/// Least of the limited rates: each node gets at least 1 of each, so at most this many nodes share the quota.
fn least_rate(quota: &Quota) -> u64 {
    Dimension::limited(quota).map(|(_, rate)| rate.per_second).min().unwrap_or(u64::MAX)
}

fn is_live(view: &View, entry: &Entry) -> bool {
    let node = view.node(&entry.node);
    node.is_some_and(|node| !node.removed && node.lease.open && node.lease.fence == entry.fence)
}

fn allows(tenant: &Tenant, name: &NodeName, node: &Node) -> bool {
    let nodes = &tenant.placement.nodes;
    node.state() == NodeState::Ready && (nodes.is_empty() || nodes.contains(name))
}

fn candidates<'a>(view: &'a View, tenant: &Tenant, ledger: &Ledger) -> Vec<Candidate<'a>> {
    view.nodes
        .iter()
        .filter(|(name, node)| {
            allows(tenant, name, &node.value) && has_room(view, name, &tenant.name)
        })
        .map(|(name, node)| {
            let registration = &node.value.registration;
            // What an earlier registration of the node holds is not the tenant's to give.
            let entry = ledger.entry(name, node.value.lease.fence);
            let own = entry.map_or(0, |entry| placement::cost(&entry.held, &registration.capacity));
            Candidate {
                name,
                capacity: &registration.capacity,
                zone: registration.zone.as_ref(),
                free: placement::WHOLE.saturating_sub(view.reserved(name).saturating_sub(own)),
                serves: entry.is_some_and(|entry| entry.target.is_some()),
            }
        })
        .collect()
}

/// Whether the node may have a grant of the tenant: it refuses an answer with too many grants as a whole.
fn has_room(view: &View, node: &NodeName, tenant: &TenantName) -> bool {
    let tenants = view.tenants_of.get(node);
    tenants.is_none_or(|all| all.len() < MAX_NODE_TENANTS || all.contains(tenant))
}

/// Sets every target to what is wanted, and no higher than the quota allows beside what all entries hold.
fn lower_and_raise(ledger: &mut Ledger, tenant: Option<&Tenant>, wanted: &Choice, view: &View) {
    for entry in ledger.entries.iter_mut().filter(|entry| is_live(view, entry)) {
        if entry.target.is_some() && !wanted.slices.contains_key(&entry.node) {
            entry.target = None;
            entry.since = None;
        }
    }
    let Some(tenant) = tenant else {
        return;
    };
    let limited: Vec<_> = Dimension::limited(&tenant.quota).collect();
    let mut left: BTreeMap<Dimension, u128> = limited
        .iter()
        .map(|(dimension, rate)| {
            let held: u128 =
                ledger.entries.iter().map(|entry| amount(dimension.of(&entry.held))).sum();
            (*dimension, amount(*rate).saturating_sub(held))
        })
        .collect();
    for (node, slice) in &wanted.slices {
        let Some(fence) = view.node(node).map(|node| node.lease.fence) else {
            continue;
        };
        let at =
            ledger.entries.iter().position(|entry| entry.node == *node && entry.fence == fence);
        let held = at.map(|at| &ledger.entries[at].held);
        let Some(target) = reachable(slice, held, &mut left) else {
            continue;
        };
        match at {
            Some(at) => ledger.entries[at].aim(target),
            None => ledger.entries.push(Entry {
                node: node.clone(),
                fence,
                held: target.clone(),
                target: Some(target),
                since: None,
                safe: false,
            }),
        }
    }
}

/// The part of `slice` that can be given now: what is held already, and what is left of the quota. `None` if a
/// limited rate would be 0. Takes what it gives from `left`.
fn reachable(
    slice: &Slice,
    held: Option<&Rates>,
    left: &mut BTreeMap<Dimension, u128>,
) -> Option<Slice> {
    let mut target = slice.clone();
    let mut after = left.clone();
    for (dimension, rate) in Dimension::limited(slice) {
        let has = held.map_or(0, |held| amount(dimension.of(held)));
        let rise = amount(rate).saturating_sub(has);
        let left = after.entry(dimension).or_default();
        let given = rise.min(*left);
        *left -= given;
        let value = u64::try_from(amount(rate).min(has + given)).ok().filter(|value| *value > 0)?;
        dimension.set(&mut target, placement::scaled(rate, value));
    }
    *left = after;
    Some(target)
}

impl Entry {
    /// Sets the target. `held` grows where the target is higher, and falls only after the node says so.
    fn aim(&mut self, target: Slice) {
        if self.target.as_ref() == Some(&target) {
            return;
        }
        let only_rises = !self.is_falling()
            && Dimension::limited(&self.held).all(|(dimension, held)| {
                let new = dimension.of(&target);
                let old = self.target.as_ref().map_or(0, |old| amount(dimension.of(old)));
                amount(new) >= old && new.depth() >= held.depth()
            });
        if only_rises {
            self.held = target.clone();
        } else {
            self.held = covering(&self.held, &target);
            self.since = None;
        }
        self.target = Some(target);
    }
}

fn is_settled(ledger: &Ledger, wanted: &Choice) -> bool {
    !wanted.short
        && ledger.entries.len() == wanted.slices.len()
        && wanted.slices.iter().all(|(node, slice)| {
            let mut entries = ledger.entries.iter().filter(|entry| entry.node == *node);
            entries.any(|entry| entry.target.as_ref() == Some(slice) && !entry.is_falling())
        })
}
