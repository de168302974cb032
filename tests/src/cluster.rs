// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A managed pool under load: two managers on a real etcd, two nodes, and a gateway whose key only the pool has. No
//! handshake may fail while a part of it is suspended, cut off or replaced.

use std::path::Path;
use std::time::Instant;

use millrace_testkit::etcd::EtcdCluster;

use crate::artifacts::{Artifacts, artifacts};
use crate::edge::EdgeOptions;
use crate::node::{Node, NodeOptions};
use crate::pki::KeyKind;
use crate::pool::{Host, Loaded, Operator, Pool, in_force};
use crate::process::text_of;
use crate::wait;
use crate::world::World;

/// The quota of the tenant: above what a gateway on this machine asks for, even a quarter of it.
pub const OPS: u64 = 16_000;

/// Two managers on etcd, two nodes, and a gateway under load.
#[derive(Debug)]
pub struct Cluster {
    /// The members of etcd.
    pub etcd: EtcdCluster,
    /// The managers.
    pub pool: Pool,
    /// The nodes `a` and `b`.
    pub nodes: [Node; 2],
    /// The administrator, who asks both managers.
    pub operator: Operator,
    /// The gateway.
    pub loaded: Loaded,
    // Last, so that the folder is removed after the processes have ended.
    _world: World,
}

impl Cluster {
    /// Starts a pool on this number of etcd members.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(members: usize) -> Self {
        Self::start_with(members, artifacts())
    }

    /// Starts a pool whose managers and nodes are of this version. The gateway is of this tree's.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_with(members: usize, programs: &'static Artifacts) -> Self {
        let world = World::new();
        let etcd = EtcdCluster::start(world.dir(), members);
        let store = format!("etcd://{}", etcd.endpoints().join(","));
        let hosts = [Host::here(), Host::here()];
        let pool = Pool::start_with(world.dir(), &store, &hosts, programs);
        let options = NodeOptions { programs: Some(programs), ..NodeOptions::default() };
        let nodes = ["a", "b"].map(|name| pool.node_with(name, &options, &[]));
        let identity = world.identity(KeyKind::P256);
        let operator = pool.operator().clone();
        let stub = tenant(&operator, "uid:*", &["a", "b"], OPS, &identity.key_file);
        have_the_key(&[&nodes[0], &nodes[1]]);
        let edge = EdgeOptions {
            nodes: nodes.iter().map(Node::endpoint).collect(),
            ..EdgeOptions::default()
        };
        let loaded = Loaded::start(&world, edge, &identity, &stub);
        loaded.load.wait_for_more(10);
        Self { etcd, pool, nodes, operator, loaded, _world: world }
    }

    /// Sets the quota, waits until it is in force, and prints the time.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn change(&self, what: &str, ops: u64) {
        let start = Instant::now();
        set_quota(&self.operator, ops);
        let nodes = self.nodes.each_ref();
        wait::until("the quota is in force", || granted(&nodes) == ops);
        println!("{what}: a new quota in force after {:?}", start.elapsed());
        self.loaded.load.wait_for_more(5);
    }

    /// Ends the load.
    ///
    /// # Panics
    /// If a handshake failed, or the chain of the audit log is broken.
    pub fn finish(self) {
        self.loaded.load.wait_for_more(5);
        self.loaded.none_failed();
        let verified = self.operator.run(&["audit", "--verify"]);
        assert!(verified.status.success(), "{}", text_of(&verified));
    }
}

/// Makes the tenant of the gateway, at `nodes`, with its key in the pool; returns the stub of the key.
///
/// # Panics
/// If a command fails.
#[must_use]
pub fn tenant(
    operator: &Operator,
    identities: &str,
    nodes: &[&str],
    ops: u64,
    key: &Path,
) -> String {
    let ops_text = ops.to_string();
    operator.done(&["tenant", "create", "acme", "--ops", &ops_text, "--identity", identities]);
    let mut place = vec!["tenant", "place", "acme", "--over-commit", "on"];
    for node in nodes {
        place.extend(["--node", node]);
    }
    operator.done(&place);
    let _ = operator.wait_for_slices("acme", nodes, ops);
    let file = key.to_str().expect("a path in UTF-8");
    operator.done(&["pool", "key", "import", "www", file, "--tenant", "acme"]);
    let stub = operator.run(&["pool", "key", "stub", "www"]);
    assert!(stub.status.success(), "{}", text_of(&stub));
    String::from_utf8(stub.stdout).expect("PEM")
}

/// Waits until these nodes have the key of the pool.
///
/// # Panics
/// If they do not get it.
pub fn have_the_key(nodes: &[&Node]) {
    wait::until("the nodes have the key", || nodes.iter().all(|node| node.status()["keys"] == 1));
}

/// Whether the first grant of a node has expired.
#[must_use]
pub fn expired(node: &Node) -> bool {
    node.status()["grants"][0]["expired"] == true
}

/// The operations per second of the tenant that these nodes have in force.
#[must_use]
pub fn granted(nodes: &[&Node]) -> u64 {
    nodes.iter().map(|node| in_force(node, "acme")).sum()
}

/// Waits until the nodes have the whole quota in force, each its part; prints the time.
///
/// # Panics
/// If that does not happen.
pub fn recovered(what: &str, nodes: &[&Node], ops: u64) {
    let start = Instant::now();
    // A node that was away longer than its lease has no tenant at first: the others have the whole quota then.
    let serves = |node: &Node| in_force(node, "acme") > 0 && !expired(node);
    wait::until(what, || granted(nodes) == ops && nodes.iter().all(|node| serves(node)));
    println!("{what}: the whole quota is in force after {:?}", start.elapsed());
}

/// Sets the quota of the tenant, again if the store did not answer.
///
/// # Panics
/// If no manager takes it.
pub fn set_quota(operator: &Operator, ops: u64) {
    let ops = ops.to_string();
    wait::until("the quota is set", || {
        let output = operator.run(&["tenant", "set", "acme", "--ops", &ops]);
        output.status.success()
    });
}
