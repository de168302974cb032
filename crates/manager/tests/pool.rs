// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Managers at work on one store: nodes register, tenants get their quota, slices move.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_manager::model::command::{Command, Refusal};
use millrace_manager::model::core::{Actor, LeaseTimes};
use millrace_manager::model::holder::GrantSet;
use millrace_manager::model::name::TenantName;
use millrace_manager::model::node::{Heartbeat, MAX_CLOCK_MS, MAX_SEEN, Registration};
use millrace_manager::model::principal::Role;
use millrace_manager::model::tenant::Tenant;
use millrace_manager::store::{
    self, Changes, MemoryStore, Snapshot, Store, StoreError, Transaction,
};
use millrace_manager::{Manager, ManagerError};
use millrace_service::grant::{GrantKeys, GrantSigner};
use millrace_service::rates::Rate;
use millrace_service::tenants::{IdentityPattern, MAX_NODE_TENANTS};
use millrace_testkit::wait;

const ADMIN: Actor<'_> = Actor { name: "admin:test", role: Role::Admin };

fn times() -> LeaseTimes {
    LeaseTimes { ttl: Duration::from_millis(1500), allowance: Duration::from_millis(100) }
}

fn manager(store: &Arc<MemoryStore>) -> Manager {
    let (signer, _) = GrantSigner::generate().unwrap();
    let store: Arc<dyn Store> = Arc::clone(store) as Arc<dyn Store>;
    Manager::start(store, signer, &GrantKeys::default(), times()).unwrap()
}

fn registration(name: &str, process: u64) -> Registration {
    Registration {
        name: name.parse().unwrap(),
        process,
        former: Vec::new(),
        seen: 0,
        addresses: ["tcp://192.0.2.1:9463".to_owned()].into(),
        zone: None,
        capacity: [("rsa2048".parse().unwrap(), 10_000)].into(),
        features: std::collections::BTreeSet::new(),
        version: "0.1.0".to_owned(),
        sealing_key: None,
    }
}

fn heartbeat(node: &str, fence: u64, applied: u64) -> Heartbeat {
    Heartbeat {
        node: node.parse().unwrap(),
        fence,
        applied,
        clock_ms: 1_000_000,
        load: millrace_manager::model::node::Load::default(),
        health: millrace_manager::model::node::Health::default(),
        keys: std::collections::BTreeMap::new(),
    }
}

fn tenant(name: &str, ops: u64) -> Tenant {
    let mut tenant = Tenant::new(name.parse().unwrap());
    tenant.quota.ops = Rate::per_second(ops);
    tenant
}

/// Heartbeats until `done` holds of the answer.
fn beat_until(
    manager: &Manager,
    node: &str,
    fence: u64,
    done: impl Fn(&GrantSet) -> bool,
) -> GrantSet {
    let start = Instant::now();
    let mut applied = 0;
    loop {
        let set = manager.heartbeat(&heartbeat(node, fence, applied)).unwrap();
        if done(&set) {
            return set;
        }
        applied = set.revision;
        assert!(start.elapsed() < Duration::from_secs(60), "{node}: {set:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ops(set: &GrantSet, tenant: &str) -> u64 {
    let grants = set.grants.iter().map(millrace_service::grant::SignedGrant::dangerous_unverified);
    grants.filter(|grant| grant.tenant == tenant).map(|grant| grant.rates.ops.per_second).sum()
}

#[test]
fn quota_is_divided_and_moves_when_a_node_is_drained() {
    let store = Arc::new(MemoryStore::new());
    let one = manager(&store);
    let two = manager(&store);
    let a = one.register(&registration("a", 1)).unwrap().lease.fence;
    let b = two.register(&registration("b", 2)).unwrap().lease.fence;
    one.execute(ADMIN, &Command::CreateTenant(tenant("acme", 1001)), None).unwrap();

    let set = beat_until(&one, "a", a, |set| ops(set, "acme") > 0);
    assert_eq!(ops(&set, "acme"), 501);
    let verified =
        set.verify(&GrantKeys::new(one.grant_keys().as_slice().iter().copied()).unwrap()).unwrap();
    assert_eq!((verified.grants[0].fence, verified.grants[0].not_before_ms), (a, 1_000_000));
    assert_eq!(ops(&beat_until(&two, "b", b, |set| ops(set, "acme") > 0), "acme"), 500);

    let node = "a".parse().unwrap();
    two.execute(ADMIN, &Command::DrainNode { node, drain: true }, None).unwrap();
    let set = beat_until(&one, "a", a, |set| set.grants.is_empty());
    assert_eq!(
        ops(&two.heartbeat(&heartbeat("b", b, 0)).unwrap(), "acme"),
        500,
        "a has not said that it stopped"
    );
    one.heartbeat(&heartbeat("a", a, set.revision)).unwrap();
    beat_until(&two, "b", b, |set| ops(set, "acme") == 1001);
    assert_eq!(one.verify_audit().unwrap().seq, 2);
    one.stop();
    two.stop();
}

#[test]
fn numbers_of_a_node_above_their_bounds_are_refused_and_those_at_them_taken() {
    let manager = manager(&Arc::new(MemoryStore::new()));
    let refused = |result: Result<_, ManagerError>| match result {
        Err(ManagerError::Refused(Refusal::Invalid(problems))) => problems.len() == 1,
        _ => false,
    };
    let seen = |seen| Registration { seen, ..registration("a", 1) };
    for most in [MAX_SEEN + 1, u64::MAX] {
        assert!(refused(manager.register(&seen(most)).map(drop)));
    }
    manager.register(&seen(MAX_SEEN)).unwrap();
    let fence = manager.register(&seen(MAX_SEEN)).unwrap().lease.fence;
    let clock = |clock_ms| Heartbeat { clock_ms, ..heartbeat("a", fence, 0) };
    for late in [MAX_CLOCK_MS + 1, u64::MAX] {
        assert!(refused(manager.heartbeat(&clock(late)).map(drop)));
    }
    manager.heartbeat(&clock(MAX_CLOCK_MS)).unwrap();
    manager.stop();
}

#[test]
fn identity_of_a_tenant_on_another_node_is_not_left_to_a_wider_pattern() {
    let store = Arc::new(MemoryStore::new());
    let manager = manager(&store);
    let fences = ["a", "b"].map(|name| {
        let fence = manager.register(&registration(name, 1)).unwrap().lease.fence;
        (name, fence)
    });
    let mut wide = tenant("wide", 100);
    wide.identities = ["cert:*"].map(|text| text.parse().unwrap()).into();
    let mut narrow = tenant("narrow", 100);
    narrow.identities = ["cert:gw-1", "cert:gw-x-*"].map(|text| text.parse().unwrap()).into();
    narrow.placement.nodes = ["a".parse().unwrap()].into();
    for tenant in [wide, narrow] {
        manager.execute(ADMIN, &Command::CreateTenant(tenant), None).unwrap();
    }
    for (node, fence) in fences {
        let both = node == "a";
        let set = beat_until(&manager, node, fence, |set| {
            ops(set, "wide") > 0 && both == (ops(set, "narrow") > 0)
        });
        let elsewhere: Vec<&str> = set.elsewhere.iter().map(IdentityPattern::as_str).collect();
        let expected: &[&str] = if both { &[] } else { &["cert:gw-1", "cert:gw-x-*"] };
        assert_eq!(elsewhere, expected, "{node}");
    }
    manager.stop();
}

#[test]
fn node_gets_no_more_tenants_than_it_serves() {
    let store = Arc::new(MemoryStore::new());
    let manager = manager(&store);
    let a = manager.register(&registration("a", 1)).unwrap().lease.fence;
    for number in 0..=MAX_NODE_TENANTS {
        let tenant = tenant(&format!("t{number}"), 1);
        manager.execute(ADMIN, &Command::CreateTenant(tenant), None).unwrap();
    }
    let short = || manager.view(|view| view.ledgers.values().filter(|one| one.value.short).count());
    let set =
        beat_until(&manager, "a", a, |set| set.grants.len() >= MAX_NODE_TENANTS && short() == 1);
    assert_eq!(set.grants.len(), MAX_NODE_TENANTS);

    // The next node takes the one that is left.
    let b = manager.register(&registration("b", 2)).unwrap().lease.fence;
    beat_until(&manager, "b", b, |set| set.grants.len() == 1);
    manager.stop();
}

#[test]
fn silent_node_keeps_its_safe_share_until_it_is_back() {
    let store = Arc::new(MemoryStore::new());
    let manager = manager(&store);
    let a = manager.register(&registration("a", 1)).unwrap().lease.fence;
    let b = manager.register(&registration("b", 2)).unwrap().lease.fence;
    manager.execute(ADMIN, &Command::CreateTenant(tenant("acme", 1000)), None).unwrap();
    beat_until(&manager, "a", a, |set| ops(set, "acme") == 500);
    beat_until(&manager, "b", b, |set| ops(set, "acme") == 875);
    let late = manager.heartbeat(&heartbeat("a", a, 0)).unwrap_err();
    assert!(matches!(late, ManagerError::Refused(Refusal::Fenced { .. })), "{late}");

    let mut again = registration("a", 3);
    again.former = vec![1];
    manager.register(&again).unwrap();
    beat_until(&manager, "b", b, |set| ops(set, "acme") == 500);
    manager.stop();
}

#[test]
fn manager_that_starts_again_on_its_file_knows_nodes_and_tenants() {
    let folder = tempfile::tempdir().unwrap();
    let location = format!("sqlite:{}", folder.path().join("pool.db").display());
    let (signer, pkcs8) = GrantSigner::generate().unwrap();
    let open = || store::open(&location).unwrap();
    let first = Manager::start(open(), signer, &GrantKeys::default(), times()).unwrap();
    let fence = first.register(&registration("a", 1)).unwrap().lease.fence;
    first.execute(ADMIN, &Command::CreateTenant(tenant("acme", 1000)), None).unwrap();
    let before = beat_until(&first, "a", fence, |set| ops(set, "acme") == 1000);
    first.stop();
    drop(first);

    let signer = GrantSigner::from_pkcs8(&pkcs8).unwrap();
    let again = Manager::start(open(), signer, &GrantKeys::default(), times()).unwrap();
    let set = again.heartbeat(&heartbeat("a", fence, before.revision)).unwrap();
    assert_eq!(ops(&set, "acme"), 1000, "the lease outlives the manager");
    assert!(set.revision > before.revision);
    assert_eq!(again.verify_audit().unwrap().seq, 1);
    again.stop();
}

/// A store that can be away.
#[derive(Debug, Default)]
struct Unsteady {
    store: MemoryStore,
    away: AtomicBool,
    /// Time of the last question while it was away.
    refused: Mutex<Option<Instant>>,
}

impl Unsteady {
    fn there(&self) -> Result<&MemoryStore, StoreError> {
        if self.away.load(Ordering::Acquire) {
            *self.refused.lock().unwrap() = Some(Instant::now());
            return Err(StoreError::Unavailable("it is away".to_owned()));
        }
        Ok(&self.store)
    }
}

impl Store for Unsteady {
    fn commit(&self, transaction: &Transaction) -> Result<u64, StoreError> {
        self.there()?.commit(transaction)
    }

    fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.there()?.read(prefix)
    }

    fn page(&self, prefix: &str, from: &str, limit: usize) -> Result<Snapshot, StoreError> {
        self.there()?.page(prefix, from, limit)
    }

    fn changes(&self, prefix: &str, after: u64, wait: Duration) -> Result<Changes, StoreError> {
        self.there()?.changes(prefix, after, wait)
    }
}

#[test]
fn lease_survives_a_store_that_was_away_for_longer_than_it_lasts() {
    let store = Arc::new(Unsteady::default());
    let (signer, _) = GrantSigner::generate().unwrap();
    let shared: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
    let manager = Manager::start(shared, signer, &GrantKeys::default(), times()).unwrap();
    let a = manager.register(&registration("a", 1)).unwrap().lease.fence;
    store.away.store(true, Ordering::Release);
    let end = Some(Instant::now() + times().ttl + times().allowance);
    wait::until("the manager asks after the end of the lease", || {
        *store.refused.lock().unwrap() > end
    });
    store.away.store(false, Ordering::Release);
    let start = Instant::now();
    let mut seen = manager.revision();
    // The time that the manager takes to close the lease of a node that is silent.
    while start.elapsed() < Duration::from_millis(1000) {
        seen = manager.wait(seen, Duration::from_millis(200));
    }
    manager.heartbeat(&heartbeat("a", a, 0)).unwrap();
    manager.stop();
}

#[test]
fn undrained_node_gets_tenants_back_until_the_nodes_are_about_as_full() {
    let store = Arc::new(MemoryStore::new());
    let manager = manager(&store);
    let names = ["a", "b"];
    let mut nodes = names.map(|name| {
        let registered = manager.register(&registration(name, 1)).unwrap();
        (name, registered.lease.fence, 0)
    });
    let mut beat = || {
        for (name, fence, applied) in &mut nodes {
            let set = manager.heartbeat(&heartbeat(name, *fence, *applied));
            *applied = set.unwrap().revision;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // Parts of the two nodes that are reserved, in per cent.
    let reserved =
        || names.map(|name| manager.view(|view| 100 - view.free(&name.parse().unwrap()) / 10_000));
    let drain = |drain| {
        let node = "a".parse().unwrap();
        let command = Command::DrainNode { node, drain };
        manager.execute(ADMIN, &command, None).unwrap();
    };
    drain(true);
    for n in 0..4 {
        let mut tenant = tenant(&format!("t{n}"), 2000);
        tenant.placement.spread = 1;
        manager.execute(ADMIN, &Command::CreateTenant(tenant), None).unwrap();
    }
    let start = Instant::now();
    let mut until = |what: &str, done: &dyn Fn([u64; 2]) -> bool| {
        while !done(reserved()) {
            beat();
            assert!(start.elapsed() < Duration::from_secs(60), "{what}: {:?}", reserved());
        }
    };
    until("all tenants are on b", &|[a, b]| a == 0 && b == 80);
    drain(false);
    until("half of them come back", &|[a, b]| a == 40 && b == 40);
    // They stay there.
    let settled = manager.view(|view| view.epoch);
    let again = Instant::now();
    while again.elapsed() < 2 * millrace_manager::model::pace::INTERVAL {
        beat();
    }
    assert_eq!(manager.view(|view| view.epoch), settled, "{:?}", reserved());
    manager.stop();
}

/// A restart that is long enough for the other node to have taken the whole quota.
#[test]
fn tenant_that_lost_one_of_its_two_nodes_gets_it_back_with_its_registration() {
    let store = Arc::new(MemoryStore::new());
    let manager = manager(&store);
    let a = manager.register(&registration("a", 1)).unwrap();
    let mut b = manager.register(&registration("b", 1)).unwrap().lease.fence;
    manager.execute(ADMIN, &Command::CreateTenant(tenant("acme", 100)), None).unwrap();
    let start = Instant::now();
    let acme = "acme".parse::<TenantName>().unwrap();
    let mut applied = [0, 0];
    let mut until = |fences: [Option<u64>; 2], wanted: [u64; 2]| loop {
        for (at, (name, fence)) in ["a", "b"].into_iter().zip(fences).enumerate() {
            let Some(fence) = fence else {
                applied[at] = 0;
                continue;
            };
            let set = manager.heartbeat(&heartbeat(name, fence, applied[at]));
            applied[at] = set.unwrap().revision;
        }
        let slices = ["a", "b"].map(|node| {
            manager.view(|view| {
                let ledger = view.ledgers.get(&acme);
                let entries = ledger.map(|ledger| ledger.value.entries.clone());
                let mut entries = entries.unwrap_or_default().into_iter();
                let entry = entries.find(|entry| entry.node.as_str() == node);
                entry.and_then(|entry| entry.target).map_or(0, |target| target.ops.per_second)
            })
        });
        if slices == wanted {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{slices:?} and not {wanted:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let a = Some(a.lease.fence);
    until([a, Some(b)], [50, 50]);
    manager.leave(&"b".parse().unwrap(), b).unwrap();
    until([a, None], [100, 0]);
    b = manager.register(&registration("b", 2)).unwrap().lease.fence;
    until([a, Some(b)], [50, 50]);
    manager.stop();
}

#[test]
fn identity_belongs_to_one_tenant_until_that_one_gives_it_up() {
    let manager = manager(&Arc::new(MemoryStore::new()));
    let tenant = |name: &str, identities: &[&str]| {
        let mut tenant = Tenant::new(name.parse().unwrap());
        tenant.identities = identities.iter().map(|one| one.parse().unwrap()).collect();
        tenant
    };
    let run = |command: Command| manager.execute(ADMIN, &command, None);
    run(Command::CreateTenant(tenant("a", &["cert:x", "cert:y"]))).unwrap();
    let taken = run(Command::CreateTenant(tenant("b", &["cert:y", "cert:z"])));
    let refused = |taken: Result<u64, ManagerError>| {
        matches!(taken, Err(ManagerError::Refused(Refusal::IdentityTaken { .. })))
    };
    assert!(refused(taken));
    run(Command::SetTenant(tenant("a", &["cert:x"]))).unwrap();
    run(Command::CreateTenant(tenant("b", &["cert:y", "cert:z"]))).unwrap();
    assert!(refused(run(Command::SetTenant(tenant("b", &["cert:x"])))));
    run(Command::RemoveTenant { tenant: "a".parse().unwrap() }).unwrap();
    run(Command::SetTenant(tenant("b", &["cert:x"]))).unwrap();
    manager.stop();
}
