// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The rules that no schedule may break, and the state after the faults.

use millrace_service::overview::NodeState;

use super::*;

impl Simulation {
    /// Takes what was committed into the true view, and checks every new ledger.
    pub(super) fn learn(&mut self) -> Checked {
        let changes = self.store.changes(PREFIX, self.truth.revision, Duration::ZERO).unwrap();
        for change in &changes.changes {
            let ledger =
                change.key.strip_prefix(&Table::Ledger.key("")).map(|name| name.parse().unwrap());
            let before =
                ledger.as_ref().and_then(|name: &TenantName| self.truth.ledgers.get(name)).cloned();
            self.truth.apply(change);
            if let Some(name) = ledger {
                let after = self
                    .truth
                    .ledgers
                    .get(&name)
                    .map(|ledger| ledger.value.clone())
                    .unwrap_or_default();
                self.check_ledger(
                    &name,
                    &before.map(|before| before.value).unwrap_or_default(),
                    &after,
                )?;
            }
            if let Some(name) = change.key.strip_prefix(&Table::Tenant.key("")) {
                let name: TenantName = name.parse().unwrap();
                if let Some(tenant) = self.truth.tenants.get(&name) {
                    let quotas = self.quotas.entry(name).or_default();
                    quotas.push((self.now, tenant.value.quota.clone()));
                    if quotas.len() > 8 {
                        quotas.remove(0);
                    }
                }
            }
        }
        self.truth.revision = changes.revision;
        Ok(())
    }

    /// Checks that a ledger's sum grows up to a quota that the operator has set, and not further.
    pub(super) fn check_ledger(
        &self,
        name: &TenantName,
        before: &Ledger,
        after: &Ledger,
    ) -> Checked {
        let ops = |ledger: &Ledger| -> u128 {
            ledger.entries.iter().map(|entry| amount(Dimension::Ops.of(&entry.held))).sum()
        };
        let quotas = self.quotas.get(name).into_iter().flatten();
        let highest = quotas.map(|(_, quota)| amount(quota.ops)).max().unwrap_or(0);
        if ops(after) > ops(before).max(highest) {
            return Err(format!(
                "the ledger of {name} holds {} of {highest}: {after:?}",
                ops(after)
            ));
        }
        for entry in &after.entries {
            let over = |target: &Rates| amount(target.ops) > amount(entry.held.ops);
            if entry.target.as_ref().is_some_and(over) {
                return Err(format!("the ledger of {name} gives more than it holds: {entry:?}"));
            }
        }
        // Without over-commit a new or higher slice fits the node.
        for node in self.truth.nodes.keys() {
            let cost = |ledger: &Ledger| -> u64 {
                let capacity = &self.truth.nodes[node].value.registration.capacity;
                let entries = ledger.entries.iter().filter(|entry| entry.node == *node);
                entries.map(|entry| placement::cost(&entry.held, capacity)).sum()
            };
            let reserved = self.truth.reserved(node);
            if cost(after) > cost(before) && reserved > placement::WHOLE {
                return Err(format!("{node} has slices for {reserved} ppm of its capacity"));
            }
        }
        Ok(())
    }

    /// Checks that nodes may serve no more at this moment than the ledger holds.
    pub(super) fn check(&self) -> Checked {
        for (name, ledger) in self.truth.ledgers.iter().map(|(name, ledger)| (name, &ledger.value))
        {
            let held: u128 = ledger.entries.iter().map(|entry| amount(entry.held.ops)).sum();
            let in_force: u128 =
                self.nodes.iter().map(|node| self.in_force(node, name, Dimension::Ops)).sum();
            if in_force > held {
                return Err(format!(
                    "{name}: nodes serve {in_force}/s, and the ledger holds {held}/s: {ledger:?}"
                ));
            }
        }
        for node in &self.nodes {
            let now = node.clock.at(self.now);
            let (InForce::Whole(grants) | InForce::Safe(grants)) = node.holder.in_force(now) else {
                continue;
            };
            for grant in grants.iter().filter(|_| node.alive) {
                let name: TenantName = grant.tenant.parse().unwrap();
                if !self.truth.ledgers.contains_key(&name) {
                    return Err(format!(
                        "{}: serves {name}, of which no ledger is left",
                        node.name
                    ));
                }
            }
        }
        for node in self.nodes.iter().filter(|node| node.alive) {
            self.check_keys(node)?;
        }
        for (name, (executed, allowed)) in &self.executed {
            if *executed > allowed + 1e-3 {
                return Err(format!(
                    "{name}: {executed} operations were executed, {allowed} allowed"
                ));
            }
            for (mark_executed, mark_allowed, saved) in self.marks.get(name).into_iter().flatten() {
                let done = executed - mark_executed;
                let may = allowed - mark_allowed + saved;
                if done > may + 1e-3 {
                    return Err(format!("{name}: {done} operations in a window, {may} allowed"));
                }
            }
        }
        Ok(())
    }

    /// A node with grants of its present lease holds keys of tenants that it serves, and that the ledger says are on
    /// it. Others are about to be deleted, also by the next process.
    pub(super) fn check_keys(&self, node: &SimNode) -> Checked {
        if let Some(key) = node.keys.versions().keys().find(|key| node.doomed.contains(*key)) {
            return Err(format!(
                "{}: has {key}, which its former process was to delete",
                node.name
            ));
        }
        let now = node.clock.at(self.now);
        let (InForce::Whole(grants) | InForce::Safe(grants)) = node.holder.in_force(now) else {
            return Ok(());
        };
        if node.holder.applied() == 0 {
            return Ok(());
        }
        let leaving = node.keys.due(now + LEAVING);
        for key in node.keys.versions().keys() {
            let tenant = key.as_str().strip_prefix("key-of-").unwrap();
            let serves = grants.iter().any(|grant| grant.tenant == tenant);
            let placed = self.truth.ledgers.get(tenant).is_some_and(|ledger| {
                let mut entries = ledger.value.entries.iter();
                entries.any(|entry| entry.node == node.name)
            });
            if !(leaving.contains(key) || serves && placed) {
                return Err(format!(
                    "{}: holds {key}, serves its tenant: {serves}, is to: {placed}",
                    node.name
                ));
            }
        }
        // A turn comes every 170 ms.
        let late = now - Duration::from_millis(400);
        if node.paused_until + 400 < self.now && !node.keys.due(late).is_empty() {
            return Err(format!("{}: keeps {:?}", node.name, node.keys.due(late)));
        }
        Ok(())
    }

    pub(super) fn in_force(
        &self,
        node: &SimNode,
        tenant: &TenantName,
        dimension: Dimension,
    ) -> u128 {
        if !node.alive {
            return 0;
        }
        let (grants, safe) = match node.holder.in_force(node.clock.at(self.now)) {
            InForce::Nothing => return 0,
            InForce::Whole(grants) => (grants, false),
            InForce::Safe(grants) => (grants, true),
        };
        let of_tenant = grants.iter().filter(|grant| grant.tenant == tenant.as_str());
        of_tenant
            .map(|grant| {
                let rates = if safe { grant.rates.safe_share() } else { grant.rates.clone() };
                amount(dimension.of(&rates))
            })
            .sum()
    }

    /// Every node executes as much as its token buckets allow until `at`, with some time of saving before.
    pub(super) fn execute_until(&mut self, at: u64) {
        let seconds = (at - self.now) as f64 / 1000.0;
        let tenants: Vec<TenantName> = self.truth.ledgers.keys().cloned().collect();
        let saves = self.random.percent(50);
        for name in tenants {
            let ledger = &self.truth.ledgers[&name].value;
            let held: u128 = ledger.entries.iter().map(|entry| amount(entry.held.ops)).sum();
            let mut executed = 0.0;
            let mut bursts = 0.0;
            let mut saved = 0.0;
            for n in 0..self.nodes.len() {
                let rate =
                    u64::try_from(self.in_force(&self.nodes[n], &name, Dimension::Ops)).unwrap();
                let runs = self.nodes[n].paused_until <= self.now;
                let tokens = self.nodes[n].buckets.entry(name.clone()).or_default();
                if rate > tokens.rate {
                    // A higher slice comes with the burst of the difference, one second.
                    let burst = (rate - tokens.rate) as f64;
                    tokens.saved += burst;
                    bursts += burst;
                }
                tokens.rate = rate;
                tokens.saved = (tokens.saved + rate as f64 * seconds).min(rate as f64);
                if runs && !saves {
                    executed += tokens.saved;
                    tokens.saved = 0.0;
                }
                saved += tokens.saved;
            }
            let total = self.executed.entry(name.clone()).or_default();
            total.0 += executed;
            // Grants may expire within the step, so the ledger's sum before it counts.
            total.1 += held as f64 * seconds + bursts;
            let total = *total;
            if at / 5000 != self.now / 5000 {
                let marks = self.marks.entry(name).or_default();
                marks.push((total.0, total.1, saved));
                if marks.len() > 4 {
                    marks.remove(0);
                }
            }
        }
    }

    /// After the faults: each quota is divided completely, and nodes serve exactly that.
    pub(super) fn is_as_wanted(&self) -> Checked {
        self.keys_are_as_wanted()?;
        let mut wanted_cost = 0;
        for tenant in self.truth.tenants.values() {
            let capacity = [("rsa2048".parse().unwrap(), 1000)].into();
            wanted_cost += placement::cost(&tenant.value.quota, &capacity);
        }
        if wanted_cost > 2 * placement::WHOLE {
            // Little room: some tenants may be short.
            return Ok(());
        }
        for (name, tenant) in &self.truth.tenants {
            let quota = amount(tenant.value.quota.ops);
            let served: u128 =
                self.nodes.iter().map(|node| self.in_force(node, name, Dimension::Ops)).sum();
            if served != quota {
                let ledger = self.truth.ledgers.get(name);
                return Err(format!(
                    "{name}: {served}/s of {quota}/s are served after the faults: {ledger:?}"
                ));
            }
            self.has_its_nodes(name, &tenant.value)?;
        }
        for name in self.truth.ledgers.keys() {
            if !self.truth.tenants.contains_key(name) {
                return Err(format!("the ledger of {name} outlives its tenant"));
            }
        }
        Ok(())
    }

    /// After the faults: as many nodes serve a tenant as it asks for, if they are there and have room.
    fn has_its_nodes(&self, name: &TenantName, tenant: &Tenant) -> Checked {
        /// Room that a node must have to count, in parts per million.
        const ROOM: u64 = placement::WHOLE / 10;
        let entries = self.truth.ledgers.get(name).map(|ledger| &ledger.value.entries[..]);
        let entries = entries.unwrap_or_default();
        let asked = u64::from(tenant.placement.spread).min(tenant.quota.ops.per_second);
        if entries.len() as u64 >= asked || tenant.quota.ops.per_second < 10 {
            return Ok(());
        }
        let unused = self.truth.nodes.iter().find(|(node, record)| {
            record.value.state() == NodeState::Ready
                && entries.iter().all(|entry| entry.node != **node)
                && self.truth.free(node) > ROOM
        });
        match unused {
            None => Ok(()),
            Some((node, _)) => Err(format!(
                "{name} asks for {asked} nodes, and {node} has room after the faults: {entries:?}"
            )),
        }
    }

    /// After the faults: each node holds the latest versions of the keys of the tenants that it serves, and no others.
    pub(super) fn keys_are_as_wanted(&self) -> Checked {
        for node in &self.nodes {
            let (InForce::Whole(grants) | InForce::Safe(grants)) =
                node.holder.in_force(node.clock.at(self.now))
            else {
                return Err(format!("{} has no grants after the faults", node.name));
            };
            let serves = |key: &PoolKey| {
                let mut tenants = grants.iter().map(|grant| &grant.tenant);
                tenants.any(|tenant| key.tenants.contains(tenant.as_str()))
            };
            let keys = self.truth.keys.values().map(|key| &key.value);
            let wanted: BTreeMap<KeyName, u64> =
                keys.filter(|key| serves(key)).map(|key| (key.name.clone(), key.version)).collect();
            let held = node.keys.versions();
            if held != wanted {
                return Err(format!(
                    "{} holds {held:?} and not {wanted:?} after the faults",
                    node.name
                ));
            }
        }
        Ok(())
    }
}
