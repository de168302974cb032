// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Requests of nodes: leases, heartbeats, grants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use millrace_service::grant::Grant;
use millrace_service::tenants::IdentityPattern;

use super::{
    Core, FAST_HEARTBEAT, HURRIED_HEARTBEAT, MAX_NODES, SPREAD, check_limit, check_problems,
};
use crate::model::command::{RecordKind, Refusal};
use crate::model::keys::PoolKey;
use crate::model::name::{NodeName, TenantName};
use crate::model::node::{Health, Heartbeat, Lease, Load, MAX_FORMER, Node, Registration, Usage};
use crate::model::view::{Table, Versioned};
use crate::store::Transaction;

/// Bound on the identities of other tenants that one pattern covers at a node: 4,096 of 63 bytes are 256 KiB of an
/// answer. A pattern that covers more is not granted at nodes without those tenants: it would be refused too few.
const MAX_COVERED: usize = 4096;

impl Core {
    /// The transaction that registers a node, and its lease.
    ///
    /// # Errors
    /// Values out of bounds, a removed node, a full pool.
    pub fn register(
        &self,
        registration: &Registration,
        time_ms: u64,
    ) -> Result<(Transaction, Lease), Refusal> {
        check_problems(registration.problems())?;
        let name = &registration.name;
        let present = self.view.nodes.get(name);
        if present.is_none() {
            check_limit(RecordKind::Node, self.view.nodes.len(), MAX_NODES)?;
        }
        if present.is_some_and(|present| present.value.removed) {
            return Err(Refusal::Removed(name.clone()));
        }
        let lease = self.next_lease(registration, present.map(|present| &present.value))?;
        let node = Node {
            registration: registration.clone(),
            lease: lease.clone(),
            drain: present.is_some_and(|present| present.value.drain),
            removed: false,
            applied: 0,
            seen_ms: time_ms,
            load: Load::default(),
            health: Health::default(),
        };
        let mut transaction = self.transaction()?;
        let revision = present.map_or(0, |present| present.revision);
        self.put(Table::Node, name.as_str(), revision, &node, &mut transaction)?;
        Ok((transaction, lease))
    }

    fn next_lease(
        &self,
        registration: &Registration,
        present: Option<&Node>,
    ) -> Result<Lease, Refusal> {
        let name = &registration.name;
        let mut unproven = BTreeMap::new();
        let mut former_fence = 0;
        if let Some(Node { lease, .. }) = present {
            former_fence = lease.fence;
            let earlier =
                lease.unproven.iter().filter(|(fence, _)| self.view.has_entry(name, **fence));
            unproven.extend(earlier.map(|(fence, process)| (*fence, *process)));
            if !lease.left {
                // Also without an entry in this view: one may have been written since.
                unproven.insert(lease.fence, lease.process);
            }
            unproven.retain(|_, process| {
                *process == registration.process || !registration.former.contains(process)
            });
        }
        if unproven.len() > MAX_FORMER {
            return Err(Refusal::Invalid(vec![format!(
                "node {name} has registered {MAX_FORMER} times without a proof that its former processes ended: wait a \
                 minute, or give it a state folder that stays"
            )]));
        }
        Ok(Lease {
            fence: self.view.revision.max(former_fence).max(registration.seen) + 1,
            process: registration.process,
            open: true,
            unproven,
            left: false,
        })
    }

    /// The transaction that a heartbeat needs before it is answered.
    ///
    /// # Errors
    /// [`Refusal::Fenced`], [`Refusal::Removed`] and [`Refusal::Invalid`].
    pub fn heartbeat(&self, heartbeat: &Heartbeat, time_ms: u64) -> Result<Transaction, Refusal> {
        check_problems(heartbeat.problems())?;
        let present = self.holder(&heartbeat.node, heartbeat.fence)?;
        let mut node = present.value.clone();
        node.applied = node.applied.max(heartbeat.applied);
        node.seen_ms = time_ms;
        node.load = heartbeat.load.clone();
        node.load.usage.iter_mut().for_each(Usage::bound);
        node.health = heartbeat.health.clone();
        let mut transaction = self.transaction()?;
        self.put(Table::Node, heartbeat.node.as_str(), present.revision, &node, &mut transaction)?;
        Ok(transaction)
    }

    /// The transaction of a node that has stopped serving and ends: its slices are free at once.
    ///
    /// # Errors
    /// [`Refusal::Fenced`] and [`Refusal::Removed`].
    pub fn leave(&self, node: &NodeName, fence: u64) -> Result<Transaction, Refusal> {
        let present = self.holder(node, fence)?;
        let mut changed = present.value.clone();
        (changed.lease.open, changed.lease.left) = (false, true);
        let mut transaction = self.transaction()?;
        self.put(Table::Node, node.as_str(), present.revision, &changed, &mut transaction)?;
        Ok(transaction)
    }

    /// Whether the node is ahead of this view: another manager answered it, or the store was restored from a backup.
    #[must_use]
    pub const fn is_behind(&self, seen: u64) -> bool {
        seen > self.view.revision
    }

    fn holder(&self, name: &NodeName, fence: u64) -> Result<&Versioned<Node>, Refusal> {
        let present = self.view.nodes.get(name);
        let present =
            present.ok_or_else(|| Refusal::NotFound(RecordKind::Node, name.to_string()))?;
        let lease = &present.value.lease;
        if present.value.removed {
            return Err(Refusal::Removed(name.clone()));
        }
        if !lease.open || lease.fence != fence {
            return Err(Refusal::Fenced { given: fence, current: lease.fence });
        }
        Ok(present)
    }

    /// All grants of a node at the view's revision, unsigned, with the identities of other tenants that patterns in
    /// them cover. `clock_ms` is the node's clock when it sent the heartbeat: the times of a grant are times of the
    /// node's clock, so that no other clock matters.
    ///
    /// # Errors
    /// As [`Self::heartbeat`]: the view may have moved on.
    pub fn grants(
        &self,
        name: &NodeName,
        fence: u64,
        clock_ms: u64,
    ) -> Result<(Vec<Grant>, BTreeSet<IdentityPattern>), Refusal> {
        let mut grants = self.grants_of(name, fence, clock_ms)?;
        let granted: BTreeSet<String> = grants.iter().map(|grant| grant.tenant.clone()).collect();
        let mut elsewhere = BTreeSet::new();
        for grant in &mut grants {
            grant.identities.retain(|pattern| {
                let covered = self
                    .view
                    .covered(pattern)
                    .filter(|(_, tenant)| !granted.contains(tenant.as_str()));
                let covered: Vec<_> =
                    covered.map(|(pattern, _)| pattern).take(MAX_COVERED + 1).cloned().collect();
                let fits = covered.len() <= MAX_COVERED;
                elsewhere.extend(covered.into_iter().filter(|_| fits));
                fits
            });
        }
        Ok((grants, elsewhere))
    }

    fn grants_of(&self, name: &NodeName, fence: u64, clock_ms: u64) -> Result<Vec<Grant>, Refusal> {
        let node = &self.holder(name, fence)?.value;
        let ttl_ms = u64::try_from(self.times.ttl.as_millis()).unwrap_or(u64::MAX);
        let tenants = self.view.tenants_of.get(name).into_iter().flatten();
        let grants = tenants.filter_map(|tenant| {
            let tenant = &self.view.tenants.get(tenant)?.value;
            let ledger = &self.view.ledgers.get(&tenant.name)?.value;
            let slice = ledger.entry(name, fence)?.target.clone()?;
            let expires_ms = clock_ms.saturating_add(ttl_ms);
            Some(Grant {
                id: grant_id(name, fence, &tenant.name, self.view.revision, expires_ms),
                revision: self.view.revision,
                not_before_ms: clock_ms,
                expires_ms,
                tenant: tenant.name.to_string(),
                weight: tenant.weight,
                priority: tenant.priority,
                node: name.to_string(),
                fence,
                rates: slice,
                identities: tenant.identities.clone(),
                endpoints: node.registration.addresses.clone(),
            })
        });
        Ok(grants.collect())
    }

    /// The keys of a node: those of the tenants that it serves.
    #[must_use]
    pub fn keys(&self, name: &NodeName, fence: u64) -> Vec<&PoolKey> {
        let keys = self.view.keys.values().map(|key| &key.value);
        keys.filter(|key| {
            let mut ledgers = key.tenants.iter().filter_map(|tenant| self.view.ledgers.get(tenant));
            ledgers.any(|ledger| {
                let entry = ledger.value.entry(name, fence);
                entry.is_some_and(|entry| entry.target.is_some())
            })
        })
        .collect()
    }

    /// Delay until the node sends its next heartbeat, given the revision that it will have applied. It is short where
    /// something changes at the node, and where the lease of another ends: its tenants are to have other nodes as soon
    /// as that is safe, and a node gets its slices when it asks.
    #[must_use]
    pub fn next_heartbeat(&self, name: &NodeName, fence: u64, now: Instant) -> Duration {
        let tenants = self.view.tenants_of.get(name).into_iter().flatten();
        let mut changing = tenants.filter_map(|tenant| {
            let ledger = self.view.ledgers.get(tenant)?;
            let entry = ledger.value.entry(name, fence)?;
            let applied = self.view.node(name)?.applied;
            let waits = entry.is_falling() || !entry.is_replaced(applied, ledger.revision);
            waits.then_some(())
        });
        if changing.next().is_some() {
            return FAST_HEARTBEAT;
        }
        let usual = self.times.heartbeat();
        let spread = SPREAD * u32::try_from(self.view.nodes.len()).unwrap_or(u32::MAX);
        if self.hurry_until.is_some_and(|until| now < until) {
            return usual.min(HURRIED_HEARTBEAT.max(spread));
        }
        // Just after that end, and not all nodes at once.
        let letters = name.as_str().bytes().map(u32::from);
        let place =
            letters.fold(0, |sum: u32, letter| sum.wrapping_mul(31).wrapping_add(letter)) % 100;
        let ending = self.next_ending(now).map(|left| left + FAST_HEARTBEAT + spread * place / 100);
        ending.map_or(usual, |ending| usual.min(ending))
    }
}

/// Id of a grant: the same statement has the same id, whichever manager makes it.
fn grant_id(
    node: &NodeName,
    fence: u64,
    tenant: &TenantName,
    revision: u64,
    expires_ms: u64,
) -> [u8; 16] {
    let text = format!("{node} {fence} {tenant} {revision} {expires_ms}");
    let mut id = [0; 16];
    id.copy_from_slice(&digest(&SHA256, text.as_bytes()).as_ref()[..16]);
    id
}
