// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One suite for all stores: what a manager relies on.

use std::time::{Duration, Instant};

use millrace_manager::store::{
    Changes, EtcdStore, MAX_OPERATIONS, MAX_VALUE_LEN, MemoryStore, SqliteStore, Store, StoreError,
    Transaction,
};
use millrace_testkit::wait::holds_within;

mod cluster;

use cluster::Cluster;

fn put(key: &str, value: &str) -> Transaction {
    let mut transaction = Transaction::default();
    transaction.put(key, value);
    transaction
}

fn values(store: &dyn Store, prefix: &str) -> Vec<(String, String)> {
    let entries = store.read(prefix).unwrap().entries.into_iter();
    entries.map(|entry| (entry.key, String::from_utf8(entry.value.to_vec()).unwrap())).collect()
}

/// Reads changes until `done`; at most for a minute.
fn changes_until(
    store: &dyn Store,
    prefix: &str,
    after: u64,
    done: impl Fn(&Changes) -> bool,
) -> Changes {
    let start = Instant::now();
    loop {
        let changes = store.changes(prefix, after, Duration::from_millis(200)).unwrap();
        if done(&changes) {
            return changes;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{changes:?}");
    }
}

/// A case works below the prefix that it is given, so that all may share a store.
type Case = fn(&dyn Store, &str);

const SUITE: &[(&str, Case)] = &[
    ("transaction happens completely or not at all", |store, root| {
        let key = |name: &str| format!("{root}{name}");
        let first = store.commit(&put(&key("a"), "1")).unwrap();
        let mut both = put(&key("a"), "2");
        both.put(key("b"), "2");
        both.require(key("a"), first);
        both.require(key("b"), 0);
        let second = store.commit(&both).unwrap();
        assert!(second > first);
        assert_eq!(store.commit(&both), Err(StoreError::Conflict), "a has a later revision now");
        let mut wrong = put(&key("c"), "3");
        wrong.require(key("a"), second);
        wrong.require(key("b"), 0);
        assert_eq!(store.commit(&wrong), Err(StoreError::Conflict));
        let expected = [("a", "2"), ("b", "2")].map(|(name, value)| (key(name), value.to_owned()));
        assert_eq!(values(store, root), expected);
        let revisions: Vec<u64> =
            store.read(root).unwrap().entries.iter().map(|entry| entry.revision).collect();
        assert_eq!(revisions, [second, second]);
    }),
    ("condition on a deleted key is that it is absent", |store, root| {
        let key = format!("{root}a");
        let first = store.commit(&put(&key, "1")).unwrap();
        let mut delete = Transaction::default();
        delete.require(key.clone(), first);
        delete.delete(key.clone());
        store.commit(&delete).unwrap();
        assert!(values(store, root).is_empty());
        let mut again = put(&key, "2");
        again.require(key.clone(), first);
        assert_eq!(store.commit(&again), Err(StoreError::Conflict));
        again.when[0].revision = 0;
        store.commit(&again).unwrap();
    }),
    ("changes come in order, with all of a commit together", |store, root| {
        let key = |name: &str| format!("{root}{name}");
        let before = store.commit(&put(&key("a"), "0")).unwrap();
        let mut two = put(&key("b"), "1");
        two.put(key("c"), "1");
        let second = store.commit(&two).unwrap();
        let mut delete = put(&key("d"), "2");
        delete.delete(key("a"));
        let third = store.commit(&delete).unwrap();
        let changes = changes_until(store, root, before, |changes| changes.revision >= third);
        let found: Vec<(String, bool, u64)> = changes
            .changes
            .iter()
            .map(|change| (change.key.clone(), change.value.is_some(), change.revision))
            .collect();
        let mut expected = vec![
            (key("b"), true, second),
            (key("c"), true, second),
            (key("a"), false, third),
            (key("d"), true, third),
        ];
        let mut found_sorted = found.clone();
        found_sorted.sort();
        expected.sort();
        assert_eq!(found_sorted, expected);
        assert!(found.windows(2).all(|pair| pair[0].2 <= pair[1].2), "{found:?}");
        let rest = store.changes(root, third, Duration::ZERO).unwrap();
        assert!(rest.changes.is_empty());
    }),
    ("reader that waits gets a change at once", |store, root| {
        let key = format!("{root}a");
        let before = store.commit(&put(&key, "0")).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let start = Instant::now();
                let changes =
                    changes_until(store, root, before, |changes| !changes.changes.is_empty());
                (changes, start.elapsed())
            });
            store.commit(&put(&key, "1")).unwrap();
            let (changes, _) = waiter.join().unwrap();
            assert_eq!(changes.changes[0].value.as_deref(), Some(&b"1"[..]));
        });
        let start = Instant::now();
        let idle = store.changes(
            root,
            changes_until(store, root, before, |_| true).revision,
            Duration::from_millis(50),
        );
        assert!(idle.unwrap().changes.is_empty() && start.elapsed() >= Duration::from_millis(50));
    }),
    ("changes of other prefixes are left out", |store, root| {
        let inside = format!("{root}in/a");
        let outside = format!("{root}out/a");
        let before = store.commit(&put(&inside, "0")).unwrap();
        store.commit(&put(&outside, "1")).unwrap();
        let last = store.commit(&put(&inside, "2")).unwrap();
        let changes =
            changes_until(store, &format!("{root}in/"), before, |changes| changes.revision >= last);
        assert!(changes.changes.iter().all(|change| change.key == inside), "{changes:?}");
        assert_eq!(values(store, &format!("{root}in/")).len(), 1);
    }),
    ("pages continue where the one before ended", |store, root| {
        for n in 0..25 {
            store.commit(&put(&format!("{root}{n:03}"), "x")).unwrap();
        }
        let first = store.page(root, root, 10).unwrap().entries;
        assert_eq!((first.len(), first[9].key.as_str()), (10, format!("{root}009").as_str()));
        let rest = store.page(root, &format!("{root}010"), 100).unwrap().entries;
        assert_eq!(rest.len(), 15);
    }),
    ("one of many racing transactions wins", |store, root| {
        let key = format!("{root}a");
        let first = store.commit(&put(&key, "0")).unwrap();
        let won: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..8)
                .map(|n| {
                    let mut transaction = put(&key, &n.to_string());
                    transaction.require(key.clone(), first);
                    scope.spawn(move || usize::from(store.commit(&transaction).is_ok()))
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).sum()
        });
        assert_eq!(won, 1);
    }),
    ("what exceeds a bound is refused before it is sent", |store, root| {
        let mut many = Transaction::default();
        (0..=MAX_OPERATIONS).for_each(|n| many.put(format!("{root}{n}"), "x"));
        let mut twice = put(&format!("{root}a"), "1");
        twice.delete(format!("{root}a"));
        let large = put(&format!("{root}a"), &"x".repeat(MAX_VALUE_LEN + 1));
        for wrong in [many, twice, large, put("", "x"), put("a b", "x"), Transaction::default()] {
            assert!(
                matches!(store.commit(&wrong), Err(StoreError::Bounds(_))),
                "{:?}",
                wrong.then.first()
            );
        }
        store.commit(&put(&format!("{root}a"), &"x".repeat(MAX_VALUE_LEN))).unwrap();
        let mut many = Transaction::default();
        (0..MAX_OPERATIONS).for_each(|n| many.put(format!("{root}b{n}"), "x"));
        store.commit(&many).unwrap();
    }),
];

fn run(store: &dyn Store) {
    for (n, (name, row)) in SUITE.iter().enumerate() {
        println!("{store:?}: {name}");
        row(store, &format!("suite/{n}/"));
    }
}

#[test]
fn memory_store_conforms() {
    run(&MemoryStore::new());
}

#[test]
fn sqlite_store_conforms() {
    let folder = tempfile::tempdir().unwrap();
    run(&SqliteStore::open(&folder.path().join("pool.db")).unwrap());
}

#[test]
fn memory_store_reports_changes_that_are_gone() {
    let store = MemoryStore::new();
    (0..5).for_each(|n| drop(store.commit(&put("a", &n.to_string()))));
    store.compact(3);
    assert_eq!(store.changes("", 2, Duration::ZERO), Err(StoreError::Compacted(2)));
    assert_eq!(store.changes("", 3, Duration::ZERO).unwrap().changes.len(), 2);
}

#[test]
fn etcd_store_conforms() {
    let cluster = Cluster::start(1);
    run(&cluster.store());
}

/// A commit in a loop, as a manager would; returns the time until one succeeds.
fn time_to_commit(store: &EtcdStore, key: &str) -> Duration {
    let start = Instant::now();
    while let Err(error) = store.commit(&put(key, "x")) {
        assert!(error.may_pass(), "{error}");
        assert!(start.elapsed() < Duration::from_secs(120), "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

#[test]
fn etcd_that_loses_members_answers_again_and_forgets_nothing() {
    let mut cluster = Cluster::start(3);
    let store = cluster.store();
    let first = store.commit(&put("f/a", "1")).unwrap();
    for at in 0..3 {
        cluster.etcd.kill(at);
        println!(
            "kill -9 of member {at}: commits again after {:?}",
            time_to_commit(&store, &format!("f/kill{at}"))
        );
        cluster.etcd.start_member(at);
        let _ = cluster.etcd.wait_for_leader();
    }
    for at in 0..3 {
        cluster.etcd.signal(at, "-STOP");
        println!(
            "SIGSTOP of member {at}: commits again after {:?}",
            time_to_commit(&store, &format!("f/stop{at}"))
        );
        cluster.etcd.signal(at, "-CONT");
        let _ = cluster.etcd.wait_for_leader();
    }
    (0..3).for_each(|at| cluster.etcd.kill(at));
    let error = store.commit(&put("f/b", "2")).unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    (0..3).for_each(|at| cluster.etcd.start_member(at));
    println!("kill -9 of all, started again: commits after {:?}", time_to_commit(&store, "f/all"));
    let changes = changes_until(&store, "f/", first, |changes| {
        changes.changes.iter().any(|c| c.key == "f/all")
    });
    let keys: Vec<&str> = changes.changes.iter().map(|change| change.key.as_str()).collect();
    for key in ["f/kill0", "f/kill1", "f/kill2", "f/stop0", "f/stop1", "f/stop2", "f/all"] {
        assert!(keys.contains(&key), "{key} is missing: {keys:?}");
    }
}

#[test]
fn suspended_leader_keeps_no_reader_of_changes_waiting() {
    // An idle machine takes 4 s. A stream without a probe stays silent for as long as the leader is suspended.
    const BOUND: Duration = Duration::from_secs(25);
    let cluster = Cluster::start(3);
    let leader = cluster.etcd.leader();
    let reader = cluster.store_from(leader);
    let writer = cluster.store_from((leader + 1) % 3);
    let first = writer.commit(&put("s/a", "1")).unwrap();
    let _ = changes_until(&reader, "s/", first - 1, |changes| !changes.changes.is_empty());
    cluster.etcd.signal(leader, "-STOP");
    let start = Instant::now();
    let committed = time_to_commit(&writer, "s/b");
    let heard = holds_within(BOUND, || {
        let changes = reader.changes("s/", first, Duration::from_millis(200));
        changes.is_ok_and(|changes| !changes.changes.is_empty())
    });
    assert!(heard, "no change after {:?}", start.elapsed());
    println!(
        "SIGSTOP of the leader: commits again after {committed:?}, and its reader has the change after {:?}",
        start.elapsed()
    );
}
