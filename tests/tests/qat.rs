// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node with the backend qat on a stand-in for the card, under Intel's library, behind HAProxy.

use std::collections::BTreeMap;

use millrace_testkit::qat::{self, CardEvent, QatMachine, VERSIONS};
use millrace_testkit::skip;
use millrace_tests::drive::Tls;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::Site;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions, bundle};
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::free_port;
use millrace_tests::wait;
use millrace_tests::world::World;

/// Resets of the card while HAProxy serves: each takes about a second.
const RESETS: usize = 10;

/// A node on a machine with one card.
fn node(world: &World, machine: &QatMachine) -> Node {
    // The stand-in computes on the cores that the tests share, so its answers may take long.
    let toml = "[backend.qat]\nanswer-ms = 2000\n".to_owned();
    let options = NodeOptions {
        toml,
        run: ["up", "--backends", "qat,software"].map(str::to_owned).into(),
        under: ["/usr/bin/env".to_owned()].into_iter().chain(machine.environment()).collect(),
        ..NodeOptions::default()
    };
    Node::start_with(world.dir(), "node-1", &options)
}

/// The sum of a metric over all instances of the card.
fn devices(node: &Node, metric: &str) -> u64 {
    let text = node.metrics();
    let lines = text.lines().filter(|line| line.starts_with(&format!("{metric}{{backend=\"qat\"")));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    values.sum()
}

#[test]
fn resets_of_the_card_fail_no_handshake() {
    let machine = match QatMachine::new(VERSIONS[0], 1, 1) {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason}"),
    };
    let (world, controls) = (World::new(), machine.controls());
    let node = node(&world, &machine);
    let identity = world.identity(KeyKind::Rsa2048);
    let stub = node.import("www", &identity);
    let edge = EdgeOptions::to(node.endpoint()).with("deadline_ms", 10_000).write(world.dir());
    let port = free_port();
    let frontend = format!(
        "frontend https\n  bind 127.0.0.1:{port} ssl crt {} no-tls-tickets\n\
         \x20 http-request return status 200 content-type text/plain string ok\n",
        bundle(world.dir(), "www", &Site::with_stub(&identity, &stub))
    );
    let _haproxy =
        Haproxy::start(world.dir(), &HaproxyOptions::asynchronous(&edge, frontend), &[port]);
    let load = world.client.load(([127, 0, 0, 1], port).into(), Tls::V13, 4);
    let instances = devices(&node, "millrace_device_serving");
    load.wait_for_more(20);
    for reset in 0..RESETS {
        let started = std::time::Instant::now();
        let restarts = devices(&node, "millrace_device_restarts_total");
        controls.send(if reset % 2 == 0 { CardEvent::Fatal } else { CardEvent::Restarting });
        wait::until("the card is started again", || {
            devices(&node, "millrace_device_restarts_total") > restarts
                && devices(&node, "millrace_device_serving") == instances
        });
        let back = started.elapsed();
        load.wait_for_more(20);
        eprintln!("reset {reset}: {back:?}, with 20 handshakes {:?}", started.elapsed());
    }
    let outcome = load.stop();
    let served = devices(&node, "millrace_device_served_total");
    eprintln!("{} handshakes, {served} signatures by the card", outcome.completed);
    assert_eq!(outcome.failures, BTreeMap::new());
    assert!(served > 0 && controls.get(qat::REQUESTS) > 0);
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
    let status = node.status();
    let row = &status["backends"][0];
    let rows = row["devices"].as_array().map(Vec::len);
    assert_eq!((row["backend"].as_str(), rows), (Some("qat"), usize::try_from(instances).ok()));
}
