// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operator, and faults: their begin and their end.

use super::*;

impl Simulation {
    pub(super) fn operate(&mut self) -> Checked {
        if self.calm {
            return Ok(());
        }
        let pause = self.random.below(4000);
        self.after(pause, Event::Operator);
        let m = self.random.index(MANAGERS);
        self.pull(m, u64::MAX);
        let name: TenantName = format!("tenant-{}", self.random.below(3)).parse().unwrap();
        let exists = self.truth.tenants.contains_key(&name);
        let node = self.nodes[self.random.index(NODES)].name.clone();
        let key: KeyName = format!("key-of-{name}").parse().unwrap();
        let command = match self.random.below(14) {
            10..=12 => {
                let before = self.truth.keys.get(&key).map(|key| &key.value);
                Command::SetKey(PoolKey {
                    version: next_version(before, self.now),
                    name: key,
                    public: "00".repeat(32),
                    tenants: [name].into(),
                    sealed: "sealed".to_owned(),
                    former: Vec::new(),
                })
            }
            13 => Command::RemoveKey { key },
            0 if exists => Command::RemoveTenant { tenant: name },
            1 => Command::DrainNode { node, drain: self.random.percent(50) },
            2 if self.random.percent(20) => Command::RemoveNode { node },
            3 => Command::ReadmitNode { node },
            _ => {
                let mut tenant = Tenant::new(name);
                tenant.quota.ops = Rate::per_second([3, 40, 300, 900][self.random.index(4)]);
                if self.random.percent(40) {
                    let class = "rsa2048".parse().unwrap();
                    let part = tenant.quota.ops.per_second.div_ceil(2);
                    tenant.quota.classes.insert(class, Rate::per_second(part));
                }
                tenant.placement.spread = 1 + u32::try_from(self.random.below(4)).unwrap();
                if exists { Command::SetTenant(tenant) } else { Command::CreateTenant(tenant) }
            }
        };
        if let Command::RemoveNode { node } = &command {
            // An operator removes a node that is gone for good; one that still runs is the exception in the docs.
            let gone = self.nodes.iter_mut().find(|gone| gone.name == *node).unwrap();
            gone.alive = false;
        }
        if let Ok(transaction) = self.managers[m].core.command(OPERATOR, &command, None, 0) {
            let _ = self.store.commit(&transaction);
            self.learn()?;
        }
        Ok(())
    }

    pub(super) fn chaos(&mut self) {
        if self.calm {
            return;
        }
        let pause = self.random.below(3000);
        self.after(pause, Event::Chaos);
        let n = self.random.index(NODES);
        let m = self.random.index(MANAGERS);
        let span = self.random.below(3 * TTL_MS);
        let now = self.now;
        match self.random.below(9) {
            0 => self.nodes[n].paused_until = now + span,
            1 => self.nodes[n].mute = !self.nodes[n].mute,
            2 => self.nodes[n].deaf = !self.nodes[n].deaf,
            3 => self.nodes[n].alive = false,
            4 | 5 => self.restart(n),
            6 => self.managers[m].paused_until = now + span,
            7 => {
                let manager = &mut self.managers[m];
                manager.cut = !manager.cut;
                if manager.cut {
                    manager.core.note_store_away();
                } else {
                    manager.core.note_store_back(manager.clock.at(now));
                }
            }
            8 => {
                self.managers[m].lag = self.random.below(2000);
                if self.random.percent(30) {
                    // The manager starts again: it knows no times.
                    let snapshot = self.store.read(PREFIX).unwrap();
                    let times = self.managers[m].core.times();
                    let local = self.managers[m].clock.at(now);
                    self.managers[m].core = Core::new(times, &snapshot, local);
                }
            }
            _ => unreachable!(),
        }
    }

    pub(super) fn restart(&mut self, n: usize) {
        self.processes += 1;
        let proven = self.random.percent(70);
        let now = self.now;
        let node = &mut self.nodes[n];
        if self.mutation == Mutation::FalseProof && node.alive {
            // The process continues under a proof of its end.
            node.former = vec![node.process];
            node.process = self.processes;
            node.holder.fenced(node.holder.fence().unwrap_or(0), node.clock.at(now));
            node.waiting = None;
            return;
        }
        node.former = if proven { vec![node.process] } else { Vec::new() };
        node.process = self.processes;
        node.holder = Holder::new(node.name.clone(), on_expiry(n), node.clock.at(now));
        let noted = match self.mutation {
            Mutation::LeavingForgotten => node.keys.versions(),
            _ => node.keys.noted(),
        };
        node.doomed = node.keys.leaving().into_iter().collect();
        let local = node.clock.at(now);
        node.keys = HeldKeys::of_before(noted, local);
        for name in node.keys.due(local) {
            node.keys.deleted(&name);
        }
        (node.alive, node.paused_until, node.waiting) = (true, 0, None);
        node.buckets.clear();
    }

    pub(super) fn heal(&mut self) {
        self.calm = true;
        for n in 0..NODES {
            if !self.nodes[n].alive {
                self.restart(n);
            }
            let node = &mut self.nodes[n];
            (node.mute, node.deaf) = (false, false);
            // A pause ends now, and not in the past: the checks give the node time for its next turn.
            node.paused_until = node.paused_until.min(self.now);
        }
        for manager in &mut self.managers {
            (manager.cut, manager.paused_until, manager.lag) = (false, 0, 0);
            manager.core.note_store_back(manager.clock.at(self.now));
        }
        for n in 0..NODES {
            let node = self.nodes[n].name.clone();
            for command in [
                Command::ReadmitNode { node: node.clone() },
                Command::DrainNode { node, drain: false },
            ] {
                self.pull(0, u64::MAX);
                let present = self.truth.node(&self.nodes[n].name);
                let needed = match &command {
                    Command::ReadmitNode { .. } => present.is_some_and(|node| node.removed),
                    _ => present.is_some_and(|node| node.drain),
                };
                if !needed {
                    continue;
                }
                if let Ok(transaction) = self.managers[0].core.command(OPERATOR, &command, None, 0)
                {
                    self.store.commit(&transaction).unwrap();
                    self.learn().unwrap();
                }
            }
        }
    }
}
