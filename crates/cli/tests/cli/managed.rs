// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A managed pool of real processes: a manager, nodes that register, and the commands that use its API.

use std::thread;
use std::time::{Duration, Instant};

use millrace_testkit::port::free_port;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Node, Outcome, Place, SOON, p256_key};

/// A manager with its place; commands run with its administrator's rights.
pub(crate) struct Pool {
    pub(crate) place: Place,
    port: u16,
    _manager: Node,
}

impl Pool {
    pub(crate) fn start() -> Self {
        let place = Place::new();
        let port = free_port();
        let mut command =
            place.command(["manager", "--store", "memory:", "--grant-lifetime", "3s"]);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        let manager = place.up_as(command).0;
        Self { place, port, _manager: manager }
    }

    /// The access file of the administrator.
    pub(crate) fn access(&self) -> String {
        self.place.path("state/manager/access").to_str().unwrap().to_owned()
    }

    pub(crate) fn run(&self, args: &[&str]) -> Outcome {
        self.place.run(&[args, &["--access", &self.access()]].concat())
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
    pub(crate) fn node(&self, place: &Place, name: &str) -> Node {
        let access = place.path("access");
        let access = access.to_str().unwrap();
        if !place.path("access").exists() {
            self.run(&["token", "create", name, "--role", "node", "-o", access]).done();
        }
        let capacity = "rsa2048=1000,p256=20000";
        let mut command = place.command([
            "node",
            "run",
            "--access",
            access,
            "--name",
            name,
            "--capacity",
            capacity,
        ]);
        command.args(["--zone", "rack-1", "--listen-tcp", "127.0.0.1:0"]);
        place.up_as(command).0
    }

    fn slice_of(&self, tenant: &str) -> u64 {
        let grants = self.json(&["tenant", "addresses", tenant]);
        let nodes = grants["nodes"].as_array().unwrap();
        nodes.iter().map(|node| node["slice"]["ops"]["per-second"].as_u64().unwrap()).sum()
    }
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
    pool.run(&["tenant", "set", "acme", "--ops", "400"]).done();
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
fn changes_with_dry_run_are_shown_and_not_made() {
    let (pool, place) = (Pool::start(), Place::new());
    let would = |args: &[&str]| pool.run(&[args, &["--dry-run"]].concat()).done().data.clone();
    pool.run(&["tenant", "create", "acme", "--ops", "500"]).done();
    let _node = pool.node(&place, "node-1");
    pool.wait(&["tenant", "addresses", "acme"], |grants| {
        grants["nodes"].as_array().is_some_and(|nodes| !nodes.is_empty())
    });
    let set = ["tenant", "set", "acme", "--ops", "800", "--class", "p-256=none"];
    assert_eq!(would(&set), "would change tenant acme\n  ops 500 -> 800\n");
    let place_args = ["tenant", "place", "acme", "--node", "node-1", "--spread", "1"];
    let wanted = "would change tenant acme\n  spread 2 -> 1\n  nodes all -> node-1\n";
    assert_eq!(would(&place_args), wanted);
    let planned = pool.json(&["tenant", "set", "acme", "--weight", "7", "--dry-run"]);
    assert_eq!(planned["weight"], 7);
    let wanted = "would remove tenant acme\n- slice at node-1: 500 ops/s\n";
    assert_eq!(would(&["tenant", "remove", "acme"]), wanted);

    let key = place.write("key.pem", &p256_key());
    let key = key.to_str().unwrap();
    let import = ["pool", "key", "import", "www", key, "--tenant", "acme"];
    assert_eq!(would(&import), "would import www (p-256) for acme\n");
    assert_eq!(pool.json(&["pool", "key", "list"]).as_array().unwrap().len(), 0);
    pool.run(&import).done();
    pool.run(&["tenant", "remove", "acme", "--dry-run"]).failed(4, &["while it has keys: www"]);
    let other = place.write("other.pem", &p256_key());
    let other = other.to_str().unwrap();
    let replace = would(&["pool", "key", "import", "www", other, "--replace"]);
    let rows: Vec<&str> = replace.lines().collect();
    assert!(
        rows[0] == "would change key www" && rows[1].starts_with("  public half "),
        "{replace}"
    );
    assert_eq!(rows.len(), 2, "{replace}");
    let wanted = "would remove www and 0 former versions\n- use by tenant acme\n";
    assert_eq!(would(&["pool", "key", "remove", "www"]), wanted);

    let wanted = "would move these tenants from node-1 to other nodes\n- acme\n";
    assert_eq!(would(&["node", "drain", "node-1"]), wanted);
    let wanted = "would remove node node-1\n- slice of tenant acme\n- key www\n";
    assert_eq!(would(&["node", "remove", "node-1"]), wanted);
    let wanted = "would remove node-1\n- role node of its token\n";
    assert_eq!(would(&["token", "remove", "node-1"]), wanted);

    assert_eq!(states(&pool.json(&["node", "list"])), ["ready"]);
    assert_eq!(pool.json(&["tenant", "show", "acme"])["quota"]["ops"]["per-second"], 500);
    let log = pool.json(&["audit"]);
    let last = log["items"].as_array().unwrap().last().unwrap();
    assert_eq!(last["action"], "key-set");
}

#[test]
fn change_without_a_value_is_refused_and_one_without_effect_is_not_written() {
    let pool = Pool::start();
    pool.run(&["tenant", "create", "acme", "--ops", "500"]).done();
    for command in ["set", "place"] {
        pool.run(&["tenant", command, "acme"]).failed(2, &["no value is named"]);
    }
    let same = pool.run(&["tenant", "set", "acme", "--ops", "500"]);
    assert!(same.done().talk.contains("nothing to change"), "{same:?}");
    let actions = pool.json(&["audit"])["items"].as_array().unwrap().len();
    assert_eq!(actions, 2, "the administrator and the tenant");
    pool.run(&["tenant", "set", "acme", "--ops", "none"]).done();
    assert!(pool.run(&["tenant", "list"]).done().data.contains("no limit"));
}

#[test]
fn commands_find_the_access_of_the_state_folder_in_the_environment() {
    let pool = Pool::start();
    assert!(pool.place.run(&["tenant", "list"]).done().data.contains("TENANT"));
    let other = Place::new();
    other.run(&["tenant", "list"]).failed(2, &["there is no access file", "--access"]);
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
    // Who belongs to a tenant may use its keys.
    let only = ["the identities of tenant acme may use its keys", "only an administrator"];
    run(&operator, &["tenant", "set", "acme", "--add-identity", "cert:x"]).failed(1, &only);
    run(&operator, &["tenant", "set", "acme", "--ops", "5"]).done();
    pool.run(&["tenant", "set", "acme", "--add-identity", "cert:x"]).done();
    run(&operator, &["tenant", "set", "acme", "--remove-identity", "cert:x"]).failed(1, &only);
    run(&operator, &["tenant", "remove", "acme"]).failed(1, &only);
    run(&node, &["tenant", "list"]).failed(1, &["has not the role viewer"]);
    // A removed token is refused at once.
    pool.run(&["token", "remove", "viewer"]).done();
    run(&viewer, &["tenant", "list"]).failed(1, &["the token is not known"]);
    // A node's token speaks for the node of that name alone.
    let place = Place::new();
    let mut command = place.command([
        "node",
        "run",
        "--access",
        &node,
        "--name",
        "other",
        "--capacity",
        "p256=1",
    ]);
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
