// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How long a tenant is without a node after its node has died: the rules of manager and nodes under a clock of the
//! test, without faults but that one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use millrace_manager::model::command::Command;
use millrace_manager::model::core::{Actor, Core, LeaseTimes};
use millrace_manager::model::holder::{Due, Holder, VerifiedSet};
use millrace_manager::model::name::{NodeName, TenantName};
use millrace_manager::model::node::{Health, Heartbeat, Load, Registration};
use millrace_manager::model::principal::Role;
use millrace_manager::model::tenant::Tenant;
use millrace_manager::model::view::PREFIX;
use millrace_manager::schema;
use millrace_manager::store::{MemoryStore, Store, Transaction};
use millrace_service::enforcement::OnExpiry;
use millrace_service::rates::Rate;

const ADMIN: Actor<'_> = Actor { name: "admin:test", role: Role::Admin };

/// Step of the clock.
const STEP: Duration = Duration::from_millis(50);

/// Time that the manager takes for one change: a commit to a disk.
const COMMIT: Duration = Duration::from_millis(10);

struct Pool {
    store: MemoryStore,
    core: Core,
    now: Instant,
    nodes: Vec<Holder>,
    names: Vec<NodeName>,
    /// Tenants that each node serves.
    serves: Vec<BTreeSet<String>>,
    dead: BTreeSet<usize>,
}

impl Pool {
    /// Nodes of 1,000 operations per second that have come at different times.
    fn new(nodes: usize) -> Self {
        let store = MemoryStore::new();
        schema::prepare(&store).unwrap();
        let now = Instant::now();
        let core = Core::new(LeaseTimes::default(), &store.read(PREFIX).unwrap(), now);
        let names: Vec<NodeName> =
            (0..nodes).map(|n| format!("node-{n}").parse().unwrap()).collect();
        let holders = names.iter().map(|name| Holder::new(name.clone(), OnExpiry::SafeShare, now));
        let nodes = holders.collect::<Vec<_>>();
        let serves = vec![BTreeSet::new(); names.len()];
        let mut pool = Self { store, core, now, nodes, names, serves, dead: BTreeSet::new() };
        for at in 0..pool.names.len() {
            pool.register(at);
            pool.run(Duration::from_millis(3100));
        }
        pool
    }

    fn commit(&mut self, transaction: &Transaction) {
        self.store.commit(transaction).unwrap();
        let after = self.core.view().revision;
        let changes = self.store.changes(PREFIX, after, Duration::ZERO).unwrap();
        self.core.apply(&changes, self.now);
    }

    fn register(&mut self, at: usize) {
        let registration = Registration {
            name: self.names[at].clone(),
            process: at as u64 + 1,
            former: Vec::new(),
            seen: 0,
            addresses: ["tcp://192.0.2.1:9463".to_owned()].into(),
            zone: None,
            capacity: [("rsa2048".parse().unwrap(), 1000)].into(),
            features: BTreeSet::new(),
            version: "0.1.0".to_owned(),
            sealing_key: None,
        };
        let (transaction, lease) = self.core.register(&registration, 0).unwrap();
        self.commit(&transaction);
        self.nodes[at].registered(&lease, self.core.times().ttl, self.now);
    }

    fn create(&mut self, name: &str, ops: u64, spread: u32) {
        let mut tenant = Tenant::new(name.parse().unwrap());
        tenant.quota.ops = Rate::per_second(ops);
        tenant.placement.spread = spread;
        let made = self.core.command(ADMIN, &Command::CreateTenant(tenant), None, 0).unwrap();
        self.commit(&made);
    }

    /// Runs manager and nodes for a while.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += STEP;
            for _ in 0..STEP.as_millis() / COMMIT.as_millis() {
                let Some(transaction) = self.core.next_change(self.now) else { break };
                self.commit(&transaction);
            }
            for at in 0..self.nodes.len() {
                self.beat(at);
            }
        }
    }

    fn beat(&mut self, at: usize) {
        if self.dead.contains(&at) {
            return;
        }
        let Due::Heartbeat { fence, applied } = self.nodes[at].due(self.now) else { return };
        let node = self.names[at].clone();
        let heartbeat = Heartbeat {
            node: node.clone(),
            fence,
            applied,
            clock_ms: 1,
            load: Load::default(),
            health: Health::Good,
            keys: BTreeMap::new(),
        };
        let transaction = self.core.heartbeat(&heartbeat, 0).unwrap();
        self.commit(&transaction);
        let grants = self.core.grants(&node, fence, 1).unwrap().0;
        let next = self.core.next_heartbeat(&node, fence, self.now);
        let set = VerifiedSet { fence, revision: self.core.view().revision, next, grants };
        self.serves[at] = set.grants.iter().map(|grant| grant.tenant.clone()).collect();
        self.nodes[at].apply(set, self.now, self.now).unwrap();
    }

    /// Tenants that no living node serves.
    fn starving(&self) -> Vec<TenantName> {
        let live = || (0..self.nodes.len()).filter(|at| !self.dead.contains(at));
        let tenants = self.core.view().tenants.keys();
        let starving =
            tenants.filter(|name| !live().any(|at| self.serves[at].contains(name.as_str())));
        starving.cloned().collect()
    }

    /// Time from now until every tenant has a living node.
    fn until_served(&mut self) -> Duration {
        let start = self.now;
        while !self.starving().is_empty() {
            assert!(self.now - start < Duration::from_secs(300), "{:?}", self.starving());
            self.run(STEP);
        }
        self.now - start
    }
}

#[test]
fn tenants_of_a_node_that_died_have_another_when_its_lease_ends() {
    let times = LeaseTimes::default();
    for (nodes, tenants, ops, spread) in [(3, 50, 30, 1), (3, 50, 20, 2), (2, 10, 50, 1)] {
        let mut pool = Pool::new(nodes);
        for number in 0..tenants {
            pool.create(&format!("tenant-{number:02}"), ops, spread);
            pool.run(Duration::from_millis(700));
        }
        pool.run(Duration::from_secs(30));
        assert_eq!(pool.starving(), [], "{nodes} {tenants}");
        pool.dead.insert(nodes - 1);
        let time = pool.until_served();
        println!("{nodes} nodes, {tenants} tenants of {ops} on {spread}: {time:?}");
        let most = times.ttl + times.allowance + Duration::from_secs(2);
        assert!(time <= most, "{nodes} nodes, {tenants} tenants: {time:?}");
    }
}

#[test]
fn what_room_there_is_keeps_every_tenant_served_before_a_slice_grows() {
    // Two nodes are full but for a little: the tenants of the third, whose names come last, need that little.
    let mut pool = Pool::new(3);
    for number in 0..30 {
        pool.create(&format!("big-{number:02}"), 90, 2);
        pool.run(Duration::from_millis(300));
    }
    for number in 0..10 {
        pool.create(&format!("small-{number}"), 8, 1);
        pool.run(Duration::from_millis(300));
    }
    pool.run(Duration::from_secs(40));
    assert_eq!(pool.starving(), []);
    let of = |pool: &Pool, at: usize| {
        pool.serves[at].iter().filter(|name| name.starts_with("small")).count()
    };
    let dies = (0..3).max_by_key(|at| of(&pool, *at)).unwrap();
    assert!(of(&pool, dies) > 0);
    pool.dead.insert(dies);
    let time = pool.until_served();
    println!("{time:?} with little room");
    assert!(time <= Duration::from_secs(33), "{time:?}");
}
