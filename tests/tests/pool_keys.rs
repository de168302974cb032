// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys of a pool on the disk of a node that its tenant leaves: they go, whatever ends or hangs in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use millrace_tests::cluster::{have_the_key, tenant};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::pool::{Operator, Pool};
use millrace_tests::wait;
use millrace_tests::world::World;
use rustix::process::Signal;
use serde_json::Value;

/// A manager, and the nodes `a` and `b`; the tenant with its key `www` is at `a`.
struct Keyed {
    pool: Pool,
    a: Node,
    _b: Node,
    operator: Operator,
    // Last, so that the folder is removed after the processes have ended.
    world: World,
}

impl Keyed {
    fn start() -> Self {
        let world = World::new();
        let store = format!("sqlite:{}", world.dir().join("pool.db").display());
        let pool = Pool::start(world.dir(), &store, 1);
        let (a, b) = (pool.node("a"), pool.node("b"));
        let operator = pool.operator().clone();
        let key = world.identity(KeyKind::P256).key_file;
        let _ = tenant(&operator, "uid:*", &["a"], 9000, &key);
        operator.done(&["tenant", "place", "acme", "--node", "a", "--spread", "1"]);
        have_the_key(&[&a]);
        Self { pool, a, _b: b, operator, world }
    }

    /// Takes the tenant away from `a`, and returns as soon as the disk of `a` has that its key is to go.
    fn until_the_key_leaves(&self) {
        self.operator.done(&["tenant", "place", "acme", "--node", "b"]);
        wait::until("the node knows that the key leaves", || self.listed() == Some(0));
    }

    /// The version of the key in the list of `a`.
    fn listed(&self) -> Option<u64> {
        let text = fs::read(self.list()).ok()?;
        serde_json::from_slice::<Value>(&text).ok()?["www"].as_u64()
    }

    fn list(&self) -> PathBuf {
        self.a.dir().join("state/node/keys")
    }

    /// Files of keys, and marks, in the store of `a`.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.a.dir().join("state/keys")).expect("the store").flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name != "audit.jsonl").collect();
        names.sort();
        names
    }
}

fn is_key(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "key")
}

#[test]
fn node_that_is_killed_while_a_key_leaves_deletes_it_at_its_next_start_without_a_manager() {
    let mut keyed = Keyed::start();
    keyed.until_the_key_leaves();
    keyed.a.kill();
    assert_eq!(keyed.files(), ["www.key", "www.pool"], "it is killed before the 2 s are over");
    keyed.pool.managers[0].kill();
    let start = Instant::now();
    keyed.a.up();
    wait::until("the key is deleted", || keyed.files().is_empty());
    println!(
        "kill -9 while a key leaves: deleted {:?} after the start of the node",
        start.elapsed()
    );
    wait::until("the list is empty", || fs::read(keyed.list()).is_ok_and(|text| text == b"{}"));
    assert_eq!(keyed.a.status()["keys"], 0);
}

#[test]
fn node_that_stops_in_order_takes_the_keys_that_leave_with_it() {
    let mut keyed = Keyed::start();
    keyed.until_the_key_leaves();
    keyed.a.stop();
    assert_eq!(keyed.files(), Vec::<String>::new());
}

#[test]
fn damaged_list_of_keys_leaves_no_key_of_the_pool_and_every_other() {
    let mut keyed = Keyed::start();
    let own = keyed.world.identity(KeyKind::Rsa2048);
    let _ = keyed.a.import_with("own", &own, &["--allow-tenant", "acme"]);
    for damage in [&b"{\"www\":17"[..], b"", b"\xff\xfe"] {
        keyed.a.kill();
        keyed.pool.managers[0].kill();
        fs::write(keyed.list(), damage).expect("the list");
        keyed.a.up();
        wait::until("the key of the pool is deleted", || keyed.files() == ["own.key"]);
        // With a manager the node gets it anew.
        keyed.pool.managers[0].up();
        wait::until("the key is back", || keyed.files() == ["own.key", "www.key", "www.pool"]);
        wait::until("both are served", || keyed.a.status()["keys"] == 2);
    }
    // Nor does it stay without the folder of the node.
    keyed.a.kill();
    keyed.pool.managers[0].kill();
    fs::remove_dir_all(keyed.a.dir().join("state/node")).expect("the folder of the node");
    keyed.a.up();
    wait::until("the key of the pool is deleted", || keyed.files() == ["own.key"]);
}

#[test]
fn list_of_a_version_without_marks_is_read_and_a_damaged_one_is_no_reason_to_guess() {
    let mut keyed = Keyed::start();
    let own = keyed.world.identity(KeyKind::Rsa2048);
    let _ = keyed.a.import_with("own", &own, &["--allow-tenant", "acme"]);
    keyed.a.kill();
    keyed.pool.managers[0].kill();
    let store = keyed.a.dir().join("state/keys");
    fs::remove_file(store.join("www.pool")).expect("the mark");
    let list = fs::read(keyed.list()).expect("the list");
    keyed.a.up();
    wait::until("the key has a mark", || keyed.files() == ["own.key", "www.key", "www.pool"]);
    keyed.a.kill();

    // It has deleted a key of the pool, and an operator has imported one of that name since.
    fs::write(store.join("own.pool"), "").expect("a mark");
    keyed.a.up();
    wait::until("the old mark is gone", || !store.join("own.pool").exists());
    assert_eq!(keyed.files(), ["own.key", "www.key", "www.pool"]);
    keyed.a.kill();

    fs::remove_file(store.join("www.pool")).expect("the mark");
    fs::write(keyed.list(), "{").expect("the list");
    let text = keyed.a.refuses_to_start();
    assert!(text.contains("own, www") && text.contains("millrace key remove"), "{text}");
    let kept = fs::read_dir(&store).expect("the store").flatten();
    assert_eq!(kept.filter(|entry| is_key(&entry.path())).count(), 2);
    fs::write(keyed.list(), list).expect("the list");
    keyed.a.up();
}

#[test]
fn suspended_manager_holds_up_no_deletion() {
    let keyed = Keyed::start();
    keyed.until_the_key_leaves();
    keyed.pool.managers[0].signal(Signal::STOP);
    let complaints = || keyed.a.log().matches("no answer from the manager").count();
    let before = complaints();
    let start = Instant::now();
    wait::until("the key is deleted", || keyed.files().is_empty());
    println!("SIGSTOP of the manager while a key leaves: deleted after {:?}", start.elapsed());
    assert_eq!(complaints(), before, "the request to the manager has not ended");
    keyed.pool.managers[0].signal(Signal::CONT);
}
