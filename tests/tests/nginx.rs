// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! nginx's process model: a root master that loads the provider, unprivileged workers that use it,
//! reloads under load, workers that are killed.

use std::collections::BTreeMap;

use millrace_tests::drive::Tls;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Gateway, Server, Site};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{is_alive, open_files};
use millrace_tests::scaled;
use millrace_tests::wait;
use millrace_tests::world::World;
use rustix::process::{Pid, Signal, kill_process};

fn start(preferred: bool) -> (World, Node, Gateway) {
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::Rsa2048);
    let edge = EdgeOptions::to(node.endpoint());
    let gateway = if preferred {
        world.gateway(
            Server::Nginx,
            edge.preferred(),
            &[Site::with_key(&identity)],
        )
    } else {
        let stub = node.import("www", &identity);
        world.gateway(Server::Nginx, edge, &[Site::with_stub(&identity, &stub)])
    };
    (world, node, gateway)
}

fn reload_under_load(preferred: bool) {
    let (world, node, gateway) = start(preferred);
    let idle = open_files(node.id());
    let load = world
        .client
        .load(gateway.address(KeyKind::Rsa2048), Tls::V13, 3);
    load.wait_for_more(10);
    for _ in 0..scaled(3, 30) {
        gateway.reload();
        load.wait_for_more(10);
    }
    let outcome = load.stop();
    assert_eq!(outcome.failures, BTreeMap::new(), "no handshake fails");
    assert_eq!(
        node.served().total(),
        outcome.completed,
        "and every one was pooled"
    );
    // Connections of workers that are gone are gone, too.
    wait::until("the node has closed what old workers had open", || {
        open_files(node.id()) <= idle + gateway.workers().len()
    });
}

#[test]
fn reload_under_load_fails_no_handshake_with_a_key_in_the_pool() {
    reload_under_load(false);
}

#[test]
fn reload_under_load_fails_no_handshake_with_a_key_on_the_gateway() {
    reload_under_load(true);
}

#[test]
fn a_killed_worker_is_replaced_and_its_successor_uses_the_pool() {
    let (world, node, gateway) = start(false);
    let address = gateway.address(KeyKind::Rsa2048);
    let idle = open_files(node.id());
    for _ in 0..3 {
        let load = world.client.load(address, Tls::V13, 2);
        load.wait_for_more(5);
        let victim = gateway.workers()[0];
        let pid = i32::try_from(victim)
            .ok()
            .and_then(Pid::from_raw)
            .expect("a process id");
        kill_process(pid, Signal::KILL).expect("a worker");
        wait::until("the worker is gone", || !is_alive(victim));
        load.wait_for_more(5);
        let outcome = load.stop();
        // What the killed worker had in hand is lost, and nothing else: two clients, one each.
        assert!(outcome.failed() <= 2, "{outcome:?}");
    }
    let before = node.served().total();
    world.client.handshakes(address, Tls::V13, 10);
    assert_eq!(node.served().total(), before + 10);
    wait::until("the node has closed what dead workers had open", || {
        open_files(node.id()) <= idle + gateway.workers().len()
    });
}

#[test]
fn the_end_of_nginx_leaves_nothing_at_the_node() {
    let (world, node, gateway) = start(true);
    let idle = open_files(node.id());
    world
        .client
        .handshakes(gateway.address(KeyKind::Rsa2048), Tls::V12, 10);
    assert!(open_files(node.id()) > idle);
    let mut gateway = gateway;
    gateway.process.signal(Signal::QUIT);
    assert!(gateway.process.wait().success());
    wait::until("its connections are closed", || {
        open_files(node.id()) == idle
    });
}
