// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A managed pool of real processes: a manager, nodes that register, and the commands that use its API.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Node, Outcome, Place, SOON};

/// A manager with its place; commands run with its administrator's rights.
struct Pool {
    place: Place,
    port: u16,
    _manager: Node,
}

impl Pool {
    fn start() -> Self {
        let place = Place::new();
        let port = free_port();
        let mut command =
            place.command(["manager", "--store", "memory:", "--grant-lifetime", "3s"]);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        let manager = place.up_as(command).0;
        Self { place, port, _manager: manager }
    }

    fn run(&self, args: &[&str]) -> Outcome {
        let access = self.place.path("state/manager/access");
        let access = access.to_str().unwrap();
        self.place.run(&[args, &["--access", access]].concat())
    }

    fn json(&self, args: &[&str]) -> Value {
        let outcome = self.run(&[args, &["--json"]].concat());
        assert_eq!(outcome.code, 0, "{args:?}: {outcome:?}");
        serde_json::from_str(&outcome.data).unwrap()
    }

    /// Polls a command until its JSON is as wanted.
    #[track_caller]
    fn wait(&self, args: &[&str], wanted: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let value = self.json(args);
            if wanted(&value) {
                return value;
            }
            assert!(started.elapsed() < SOON, "{args:?} stays {value:#}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Makes the access of a node, and starts it in its place.
    fn node(&self, place: &Place, name: &str) -> Node {
        let access = place.path("access");
        let access = access.to_str().unwrap();
        if !place.path("access").exists() {
            self.run(&["token", "create", name, "--role", "node", "-o", access]).done();
        }
        let capacity = "rsa2048=1000,p256=20000";
        let mut command =
            place.command(["node", "--access", access, "--name", name, "--capacity", capacity]);
        command.args(["--zone", "rack-1", "--listen-tcp", "127.0.0.1:0"]);
        place.up_as(command).0
    }

    fn slice_of(&self, tenant: &str) -> u64 {
        let grants = self.json(&["tenant", "addresses", tenant]);
        let nodes = grants["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node["slice"]["ops"]["per-second"].as_u64().unwrap()).sum()
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn states(nodes: &Value) -> Vec<&str> {
    nodes["items"].as_array().unwrap().iter().map(|node| node["state"].as_str().unwrap()).collect()
}

#[test]
fn node_registers_and_serves_the_slices_of_its_tenants() {
    let (pool, place) = (Pool::start(), Place::new());
    let mut node = pool.node(&place, "node-1");
    let nodes = pool.wait(&["node", "list"], |nodes| states(nodes) == ["ready"]);
    assert_eq!(nodes["items"][0]["node"]["registration"]["capacity"]["rsa-2048"], 1000);
    pool.run(&[
        "tenant",
        "create",
        "acme",
        "--ops",
        "500",
        "--class",
        "rsa2048=200",
        "--weight",
        "2",
        "--identity",
        "cert:gateway-1",
    ])
    .done();
    pool.run(&["tenant", "create", "acme"]).failed(4, &["there is a tenant \"acme\" already"]);
    pool.wait(&["tenant", "addresses", "acme"], |grants| {
        grants["nodes"].as_array().is_some_and(|nodes| !nodes.is_empty())
    });
    assert_eq!(pool.slice_of("acme"), 500);
    node.wait_for_log("grants are in force", 1);

    // A change reaches the node on its own.
    pool.run(&["quota", "set", "acme", "--ops", "400"]).done();
    pool.wait(&["tenant", "addresses", "acme"], |grants| {
        grants["nodes"][0]["slice"]["ops"]["per-second"] == 400
    });
    node.wait_for_log("grants are in force", 2);
    let status = pool.wait(&["pool", "status"], |status| status["verdict"]["level"] == "good");
    assert_eq!(status["nodes"][0]["name"], "node-1");
    assert_eq!(status["tenants"][0]["quota_ops"], 400.0);
    assert!(pool.run(&["pool", "status"]).done().data.contains("The only node serves"));

    // An orderly end frees the slices at once.
    node.signal(Signal::TERM);
    assert!(node.wait().success(), "{}", node.log());
    assert_eq!(states(&pool.json(&["node", "list"])), ["away"]);

    // Every change is in the audit log.
    let log = pool.json(&["audit"]);
    let actions: Vec<&str> = log["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["principal-set", "principal-set", "tenant-create", "tenant-set"]);
    assert!(pool.run(&["audit", "--verify"]).done().data.starts_with("4 entries, whole; "));
}

#[test]
fn killed_node_loses_its_lease_and_gets_another_when_it_is_back() {
    let (pool, place) = (Pool::start(), Place::new());
    pool.run(&["tenant", "create", "acme", "--ops", "100"]).done();
    let mut node = pool.node(&place, "node-1");
    node.wait_for_log("grants are in force", 1);
    node.child.kill().unwrap();
    node.wait();
    pool.wait(&["node", "list"], |nodes| states(nodes) == ["away"]);
    let status = pool.json(&["pool", "status"]);
    assert_eq!(status["verdict"]["level"], "critical", "{status:#}");
    // The lock of its state folder proves that the former process has ended: its slices are free.
    let again = pool.node(&place, "node-1");
    again.wait_for_log("grants are in force", 1);
    assert_eq!(pool.slice_of("acme"), 100);
}

#[test]
fn drained_node_serves_no_tenant_until_it_is_undrained() {
    let (pool, a, b) = (Pool::start(), Place::new(), Place::new());
    let _nodes = [pool.node(&a, "a"), pool.node(&b, "b")];
    pool.run(&["tenant", "create", "acme", "--ops", "100"]).done();
    let on = |grants: &Value| -> Vec<String> {
        let nodes = grants["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node["node"].as_str().unwrap().to_owned()).collect()
    };
    pool.wait(&["tenant", "addresses", "acme"], |grants| on(grants) == ["a", "b"]);
    pool.run(&["node", "drain", "a"]).done();
    pool.wait(&["tenant", "addresses", "acme"], |grants| on(grants) == ["b"]);
    // The part of the drained node has moved.
    pool.wait(&["tenant", "addresses", "acme"], |grants| {
        grants["nodes"][0]["slice"]["ops"]["per-second"] == 100
    });
    pool.run(&["node", "undrain", "a"]).done();
    pool.wait(&["node", "list"], |nodes| states(nodes) == ["ready", "ready"]);
    pool.run(&["node", "remove", "a"]).done();
    pool.wait(&["tenant", "addresses", "acme"], |grants| on(grants) == ["b"]);
    pool.run(&["node", "drain", "nowhere"]).failed(4, &["there is no node"]);
}

#[test]
fn token_does_what_its_role_allows_and_nothing_else() {
    let pool = Pool::start();
    let access = |role: &str| {
        let path = pool.place.path(&format!("{role}.access"));
        let path = path.to_str().unwrap().to_owned();
        pool.run(&["token", "create", role, "--role", role, "-o", &path]).done();
        path
    };
    let (viewer, operator, node) = (access("viewer"), access("operator"), access("node"));
    let run = |access: &str, args: &[&str]| pool.place.run(&[args, &["--access", access]].concat());
    run(&viewer, &["tenant", "list"]).done();
    run(&viewer, &["tenant", "create", "acme"]).failed(1, &["has not the role operator"]);
    run(&operator, &["tenant", "create", "acme"]).done();
    run(&operator, &["token", "list"]).failed(1, &["has not the role admin"]);
    run(&node, &["tenant", "list"]).failed(1, &["has not the role viewer"]);
    // A removed token is refused at once.
    pool.run(&["token", "remove", "viewer"]).done();
    run(&viewer, &["tenant", "list"]).failed(1, &["the token is not known"]);
    // A node's token speaks for the node of that name alone.
    let place = Place::new();
    let mut command =
        place.command(["node", "--access", &node, "--name", "other", "--capacity", "p256=1"]);
    command.args(["--listen-tcp", "127.0.0.1:0"]);
    let other = place.up_as(command).0;
    other.wait_for_log("speaks only for the node of that name, not for other", 1);
    assert_eq!(pool.json(&["node", "list"])["items"].as_array().unwrap().len(), 0);
    let silent = pool.place.run(&[
        "tenant",
        "list",
        "--manager",
        &format!("https://127.0.0.1:{}", free_port()),
        "--access",
        &operator,
    ]);
    silent.failed(5, &["no manager answers"]);
    assert_ne!(pool.port, 0);
}
