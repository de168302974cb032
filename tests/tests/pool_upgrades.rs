// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Restarts and upgrades of a managed pool of real processes, one process after the other, under a gateway whose key
//! only the pool has: no handshake may fail. The previous version is that of `tests/previous-version`.

use std::time::Instant;

use millrace_testkit::skip;
use millrace_tests::artifacts::{Artifacts, artifacts, previous};
use millrace_tests::cluster::{Cluster, OPS, expired, granted, recovered};
use millrace_tests::pki::KeyKind;
use millrace_tests::pool::{Host, Operator, Pool};
use millrace_tests::process::text_of;
use millrace_tests::world::World;
use millrace_tests::{scaled, wait};
use serde_json::Value;

/// Restarts each manager of a pool in order, with this version. After each the pool takes a change.
fn restart_managers(
    cluster: &mut Cluster,
    programs: &'static Artifacts,
    what: &str,
    ops: &mut u64,
) {
    for at in 0..cluster.pool.managers.len() {
        let manager = &mut cluster.pool.managers[at];
        manager.stop();
        manager.change_version(programs);
        manager.up();
        *ops -= 100;
        cluster.change(&format!("{what}, manager {at}"), *ops);
    }
}

/// Restarts each node of a pool in order, with this version. After each both serve their part of the whole quota.
fn restart_nodes(cluster: &mut Cluster, programs: &'static Artifacts, what: &str, ops: u64) {
    for at in 0..cluster.nodes.len() {
        let start = Instant::now();
        cluster.nodes[at].stop();
        cluster.loaded.load.wait_for_more(5);
        let node = &mut cluster.nodes[at];
        node.change_version(programs);
        node.up();
        recovered(&format!("{what}, node {at}"), &cluster.nodes.each_ref(), ops);
        let served = cluster.nodes[at].served().total();
        wait::until("the node serves", || cluster.nodes[at].served().total() > served);
        println!("{what}, node {at}: from its end until it serves again {:?}", start.elapsed());
    }
}

#[test]
fn rolling_restart_of_managers_and_nodes_fails_no_handshake() {
    let mut cluster = Cluster::start(3);
    let mut ops = OPS;
    for round in 0..scaled(2, 25) {
        let what = format!("restart {round}");
        restart_managers(&mut cluster, artifacts(), &what, &mut ops);
        restart_nodes(&mut cluster, artifacts(), &what, ops);
    }
    cluster.finish();
}

/// Every mix of the versions of two managers, two nodes and the operator's command that an upgrade passes through, and
/// the way back: the records of both versions have one form.
#[test]
fn rolling_upgrade_and_the_way_back_fail_no_handshake() {
    let Some(old) = previous() else {
        skip!("no previous version built");
    };
    let mut cluster = Cluster::start_with(1, old);
    let mut ops = OPS;
    restart_managers(&mut cluster, artifacts(), "upgrade", &mut ops);
    restart_nodes(&mut cluster, artifacts(), "upgrade", ops);
    let former = cluster.operator.with_version(old);
    former.done(&["tenant", "set", "acme", "--ops", "14000"]);
    ops = 14_000;
    recovered("quota by the former command", &cluster.nodes.each_ref(), ops);
    // Nodes before managers: former managers leave the tenant at one node when the other was restarted.
    restart_nodes(&mut cluster, old, "way back", ops);
    restart_managers(&mut cluster, old, "way back", &mut ops);
    cluster.finish();
}

/// The tenants, the keys and the tokens of a pool.
fn records(operator: &Operator) -> [Value; 3] {
    [&["tenant", "list"][..], &["pool", "key", "list"], &["token", "list"]]
        .map(|command| operator.json(command))
}

#[test]
fn records_of_the_previous_version_in_a_file_are_read_and_written_and_so_the_other_way() {
    let Some(old) = previous() else {
        skip!("no previous version built");
    };
    let world = World::new();
    let store = format!("sqlite:{}", world.dir().join("pool.db").display());
    let mut pool = Pool::start_with(world.dir(), &store, &[Host::here()], old);
    let operator = pool.operator().clone();
    let create = ["--ops", "9000", "--class", "rsa-2048=2000", "--weight", "2", "--identity"];
    operator.done(&[&["tenant", "create", "acme"][..], &create, &["cert:acme-*"]].concat());
    let identity = world.identity(KeyKind::P256);
    let key = identity.key_file.to_str().expect("a path in UTF-8");
    operator.done(&["pool", "key", "import", "www", key, "--tenant", "acme"]);
    let access = world.dir().join("viewer.access");
    let access = access.to_str().expect("a path in UTF-8");
    operator.done(&["token", "create", "page", "--role", "viewer", "-o", access]);
    for (ops, programs) in [("8000", artifacts()), ("7000", old)] {
        let before = records(&operator);
        pool.managers[0].stop();
        pool.managers[0].change_version(programs);
        pool.managers[0].up();
        assert_eq!(records(&operator), before);
        operator.done(&["tenant", "set", "acme", "--ops", ops]);
        let verified = operator.run(&["audit", "--verify"]);
        assert!(verified.status.success(), "{}", text_of(&verified));
    }
}

/// A manager of a newer version brings the records forward while managers of this version run.
#[test]
fn records_of_a_newer_version_are_not_written_and_jobs_go_on() {
    let mut cluster = Cluster::start(1);
    cluster.etcd.put("millrace/schema", r#"{"version":1000}"#);
    let refused = || {
        let output = cluster.operator.run(&["tenant", "set", "acme", "--ops", "9"]);
        let text = text_of(&output);
        !output.status.success() && text.contains("upgrade millrace")
    };
    wait::until("a running manager refuses a change", refused);
    let [a, b] = &cluster.nodes;
    wait::until("the grants have expired", || expired(a) && expired(b));
    assert!(granted(&[a, b]) <= OPS / 4);
    cluster.loaded.load.wait_for_more(5);
    let manager = &mut cluster.pool.managers[1];
    manager.stop();
    let text = manager.refuses_to_start();
    assert!(text.contains("upgrade millrace"), "{text}");
    cluster.etcd.put("millrace/schema", r#"{"version":1}"#);
    manager.up();
    recovered("records of this version again", &cluster.nodes.each_ref(), OPS);
    cluster.finish();
}
