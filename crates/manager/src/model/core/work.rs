// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Work of a manager without a request: it closes the leases of silent nodes and divides quotas.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Core, json};
use crate::model::name::{NodeName, TenantName};
use crate::model::pace::TRIES;
use crate::model::plan::plan;
use crate::model::view::{EPOCH, Table};
use crate::store::Transaction;

impl Core {
    /// Raises no slice before all grants that this store has forgotten have expired.
    pub fn note_restored(&mut self, now: Instant) {
        self.frozen_until = Some(now + self.times.life());
    }

    /// The store does not answer, or takes no writes: no node can show that it is there, so none counts as silent.
    pub const fn note_store_away(&mut self) {
        self.store_away = true;
    }

    /// The store answers. If it did not before, the silence of the nodes counts from now: a lease that is closed later
    /// than it could be is not a danger.
    pub fn note_store_back(&mut self, now: Instant) {
        if std::mem::take(&mut self.store_away) {
            for (_, since) in self.unchanged_since.values_mut() {
                *since = now;
            }
        }
    }

    /// The next thing to do, if there is one: closes the lease of a silent node, or changes the ledger of a tenant. The
    /// caller commits it, feeds the changes back and asks again.
    pub fn next_change(&mut self, now: Instant) -> Option<Transaction> {
        if let Some(transaction) = self.close_silent(now) {
            return Some(transaction);
        }
        let due: Vec<TenantName> = self
            .timers
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(tenant, _)| tenant.clone())
            .collect();
        for tenant in due {
            self.timers.remove(&tenant);
            self.needs_plan.insert(tenant);
        }
        if self.frozen_until.is_some_and(|until| until > now) {
            return None;
        }
        self.search_room(now);
        while let Some(tenant) = self.pop_planned() {
            if let Some(transaction) = self.replan(&tenant, None, now) {
                return Some(transaction);
            }
        }
        let (node, tenants) = self.balance.due(&self.view, now)?;
        tenants.iter().find_map(|tenant| self.replan(tenant, Some(&node), now))
    }

    /// The next tenant to plan: first one that no node serves, so that what room there is keeps every tenant served
    /// before any slice grows.
    fn pop_planned(&mut self) -> Option<TenantName> {
        self.starving.pop_first().or_else(|| self.needs_plan.pop_first())
    }

    /// Whether a node under a lease serves a tenant, or is to.
    pub(super) fn is_served(&self, tenant: &TenantName) -> bool {
        let entries = self.view.ledgers.get(tenant).map(|ledger| &ledger.value.entries);
        entries.into_iter().flatten().any(|entry| {
            let lease = self.view.node(&entry.node).map(|node| &node.lease);
            lease.is_some_and(|lease| lease.open && lease.fence == entry.fence)
        })
    }

    /// Nodes under a lease of which this manager has heard nothing for longer than a heartbeat takes, in order.
    #[must_use]
    pub fn silent(&self, now: Instant) -> BTreeSet<NodeName> {
        let most = self.times.silence();
        let quiet = self.unchanged_since.iter().filter(|(_, (_, since))| {
            !self.store_away && now.saturating_duration_since(*since) > most
        });
        let silent = quiet.filter(|(name, (revision, _))| {
            self.view.nodes.get(*name).is_some_and(|node| {
                node.revision == *revision && node.value.lease.open && !node.value.removed
            })
        });
        silent.map(|(name, _)| name.clone()).collect()
    }

    /// Time until the lease of a silent node ends, if one is about to.
    pub(super) fn next_ending(&self, now: Instant) -> Option<Duration> {
        let silent = self.silent(now);
        let since = silent.iter().filter_map(|name| Some(self.unchanged_since.get(name)?.1));
        since.map(|since| (since + self.times.life()).saturating_duration_since(now)).min()
    }

    /// Has some tenants planned again that may find room now, a few at a time.
    fn search_room(&mut self, now: Instant) {
        if !self.room.pace.is_due(now) {
            return;
        }
        if self.room.open.is_empty() && std::mem::take(&mut self.room.changed) {
            self.room.open = self.unsettled.union(&self.underserved).cloned().collect();
        }
        for _ in 0..TRIES {
            let Some(tenant) = self.room.open.pop_first() else { return };
            self.room.pace.begin(now);
            self.needs_plan.insert(tenant);
        }
    }

    /// Puts a tenant back whose transaction was not done.
    pub fn put_back(&mut self, transaction: &Transaction) {
        for write in &transaction.then {
            let name = write.key().strip_prefix(&Table::Ledger.key(""));
            if let Some(tenant) = name.and_then(|name| name.parse().ok()) {
                self.needs_plan.insert(tenant);
            }
        }
    }

    fn close_silent(&self, now: Instant) -> Option<Transaction> {
        if self.store_away {
            return None;
        }
        let life = self.times.life();
        let silent = self.unchanged_since.iter().find_map(|(name, (revision, since))| {
            let node = self.view.nodes.get(name)?;
            let silent = node.revision == *revision
                && node.value.lease.open
                && !node.value.removed
                && now.saturating_duration_since(*since) >= life;
            silent.then_some((name, node))
        });
        let (name, present) = silent?;
        let mut node = present.value.clone();
        node.lease.open = false;
        let mut transaction = self.transaction().ok()?;
        self.put(Table::Node, name.as_str(), present.revision, &node, &mut transaction).ok()?;
        Some(transaction)
    }

    fn replan(
        &mut self,
        tenant: &TenantName,
        from: Option<&NodeName>,
        now: Instant,
    ) -> Option<Transaction> {
        let key = Table::Ledger.key(tenant.as_str());
        if self.view.damaged.contains_key(&key) {
            return None;
        }
        let plan = plan(&self.view, tenant, &mut self.endings, self.times.life(), from, now);
        if plan.settled {
            self.unsettled.remove(tenant);
        } else {
            self.unsettled.insert(tenant.clone());
        }
        if plan.underserved {
            self.underserved.insert(tenant.clone());
        } else {
            self.underserved.remove(tenant);
        }
        if let Some(retry_at) = plan.retry_at {
            self.timers.insert(tenant.clone(), retry_at);
        }
        let ledger = plan.ledger?;
        let revision = self.view.ledgers.get(tenant).map_or(0, |ledger| ledger.revision);
        let mut transaction = self.transaction().ok()?;
        // One after the other: the sums of a quota and of a node's capacity are over records that others write.
        transaction.require(EPOCH, self.view.epoch);
        transaction.put(EPOCH, tenant.as_str());
        transaction.require(key.clone(), revision);
        if ledger.entries.is_empty() && !self.view.tenants.contains_key(tenant) {
            transaction.delete(key);
        } else {
            transaction.put(key, json(&ledger));
        }
        self.endings.prune(&self.view);
        Some(transaction)
    }
}
