// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Masters and workers: a root master that loads the provider, unprivileged workers that use it,
//! reloads under load, workers that are killed.

use std::collections::BTreeMap;

use millrace_tests::drive::Tls;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Gateway, Server, Site};
use millrace_tests::is_root;
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::is_alive;
use millrace_tests::scaled;
use millrace_tests::wait;
use millrace_tests::world::World;
use rustix::process::{Pid, Signal, kill_process};

fn start(server: Server, preferred: bool) -> (World, Node, Gateway) {
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::Rsa2048);
    let edge = EdgeOptions::to(node.endpoint());
    let gateway = if preferred {
        world.gateway(server, edge.preferred(), &[Site::with_key(&identity)])
    } else {
        let stub = node.import("www", &identity);
        world.gateway(server, edge, &[Site::with_stub(&identity, &stub)])
    };
    (world, node, gateway)
}

/// Asserts that the node has no connection of a worker that has ended.
fn assert_only_workers_are_connected(node: &Node, gateway: &Gateway) {
    let good = wait::holds_within(wait::SOON, || node.connections() <= gateway.workers().len());
    let (connections, workers) = (node.connections(), gateway.workers());
    assert!(good, "{connections} connections of {workers:?}:\n{}", gateway.process.log());
}

fn reload_under_load(server: Server, preferred: bool) {
    let (world, node, gateway) = start(server, preferred);
    let load = world.client.load(gateway.address(KeyKind::Rsa2048), Tls::V13, 3);
    load.wait_for_more(10);
    for _ in 0..scaled(3, 30) {
        gateway.reload();
        load.wait_for_more(10);
    }
    let outcome = load.stop();
    assert_eq!(outcome.failures, BTreeMap::new(), "no handshake fails");
    assert_eq!(node.served().total(), outcome.completed, "and every one was pooled");
    assert_only_workers_are_connected(&node, &gateway);
}

#[test]
fn reloading_nginx_fails_no_handshake_with_a_key_in_the_pool() {
    reload_under_load(Server::Nginx, false);
}

#[test]
fn reloading_nginx_fails_no_handshake_with_a_key_on_the_gateway() {
    reload_under_load(Server::Nginx, true);
}

#[test]
fn reloading_haproxy_fails_no_handshake_with_a_key_in_the_pool() {
    reload_under_load(Server::HaproxyMaster, false);
}

#[test]
fn reloading_haproxy_fails_no_handshake_with_a_key_on_the_gateway() {
    reload_under_load(Server::HaproxyMaster, true);
}

/// The node learns the worker's user from the kernel, and the policy of the key names that user.
#[test]
fn policy_admits_the_user_of_the_workers() {
    if !is_root() {
        millrace_testkit::skip!("only root starts workers of another user");
    }
    let world = World::new();
    let node = world.node("node-1");
    let (ours, roots) = (world.identity(KeyKind::P256), world.identity(KeyKind::Rsa2048));
    let stub = node.import_with("ours", &ours, &["--allow-uid", "nobody"]);
    let roots_stub = node.import_with("roots", &roots, &["--allow-uid", "root"]);
    let sites = [Site::with_stub(&ours, &stub), Site::with_stub(&roots, &roots_stub)];
    let edge = EdgeOptions::to(node.endpoint());
    let gateway = world.gateway(Server::Nginx, edge, &sites);
    world.client.handshakes(gateway.address(KeyKind::P256), Tls::V13, 5);
    let refused = world.client.handshake(gateway.address(KeyKind::Rsa2048), Tls::V13);
    assert!(refused.is_err(), "the workers run as the user `nobody`, not as root");
    assert_eq!(node.served().total(), 5);
}

#[test]
fn killed_worker_is_replaced_and_its_successor_uses_the_pool() {
    let (world, node, gateway) = start(Server::Nginx, false);
    let address = gateway.address(KeyKind::Rsa2048);
    for _ in 0..3 {
        let load = world.client.load(address, Tls::V13, 2);
        load.wait_for_more(5);
        let victim = gateway.workers()[0];
        let pid = i32::try_from(victim).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, Signal::KILL).expect("a worker");
        wait::until("the worker is gone", || !is_alive(victim));
        load.wait_for_more(5);
        let outcome = load.stop();
        // Only handshakes of the killed worker fail: at most one for each of the two clients.
        assert!(outcome.failed() <= 2, "{outcome:?}");
    }
    let before = wait::until_steady("the node", || node.served().total());
    world.client.handshakes(address, Tls::V13, 10);
    assert_eq!(node.served().total(), before + 10);
    assert_only_workers_are_connected(&node, &gateway);
}

#[test]
fn stopped_nginx_leaves_no_connection_at_the_node() {
    let (world, node, gateway) = start(Server::Nginx, true);
    world.client.handshakes(gateway.address(KeyKind::Rsa2048), Tls::V12, 10);
    assert!(node.connections() > 0);
    let mut gateway = gateway;
    gateway.process.signal(Signal::QUIT);
    assert!(gateway.process.wait().success());
    wait::until("its connections are closed", || node.connections() == 0);
}
