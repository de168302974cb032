// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Behaviour of a pool's client with a slow or refusing node, and its reports to its nodes.

use std::time::Duration;

use millrace_tests::drive::Tls;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Server, Site};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::wait;
use millrace_tests::world::World;
use serde_json::Value;

/// The sum of one counter over the reports of all clients, including those that have disconnected.
fn told(node: &Node, counter: &str) -> u64 {
    let count = &node.status()["edge_totals"][counter];
    count.as_u64().expect("a number")
}

/// The value of one sample of a node's metrics.
fn metric(node: &Node, sample: &str) -> Option<u64> {
    let text = node.metrics();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ').map(str::to_owned));
    value.and_then(|value| value.parse().ok())
}

/// Waits until the clients have reported as many operations as there were handshakes. A client reports once
/// per second while it has operations. On a busy machine the application may count an operation after that
/// report; the next handshake then triggers the report that contains it.
fn wait_for_reports(handshakes: &mut u64, reported: impl Fn() -> u64, mut handshake: impl FnMut()) {
    const REPORTS_TAKE: Duration = Duration::from_secs(3);
    wait::until("every handshake was reported", || {
        if wait::holds_within(REPORTS_TAKE, || reported() == *handshakes) {
            return true;
        }
        handshake();
        *handshakes += 1;
        false
    });
}

#[test]
fn client_reports_how_its_application_waits() {
    for server in Server::ALL {
        let world = World::new();
        let node = world.node("node-1");
        let identity = world.identity(KeyKind::P256);
        let edge = EdgeOptions::to(node.endpoint()).preferred();
        let gateway = world.gateway(server, edge, &[Site::with_key(&identity)]);
        let address = gateway.address(KeyKind::P256);
        let mut handshakes = 20;
        world.client.handshakes(address, Tls::V13, 20);
        let reported = || told(&node, "pooled");
        wait_for_reports(&mut handshakes, reported, || {
            world.client.handshakes(address, Tls::V13, 1);
        });
        // HAProxy waits asynchronously, nginx without the preload library cannot.
        let (how, not) = match server {
            Server::Haproxy | Server::HaproxyMaster => ("paused", "blocking"),
            Server::Nginx => ("blocking", "paused"),
        };
        assert_eq!(told(&node, how), handshakes, "{server:?}");
        assert_eq!(told(&node, not), 0, "{server:?}");
        let sample = format!("millrace_edge_jobs_total{{how=\"{how}\"}}");
        assert_eq!(metric(&node, &sample), Some(handshakes));
        let status = node.status();
        let edge = &status["edges"][0];
        assert_eq!(edge["fallbacks"], Value::Array(Vec::new()), "{edge}");
        let agent = edge["agent"].as_str().unwrap_or_default();
        assert!(agent.starts_with("millrace-provider/"), "{agent}");
        // A disconnected client has no row any more; the totals still contain it.
        drop(gateway);
        wait::until("the client is gone", || node.status()["edges"] == Value::Array(Vec::new()));
        assert_eq!(told(&node, "pooled"), handshakes);
    }
}

#[test]
fn handshake_with_a_stalled_node_is_hedged_to_another() {
    for stub in [false, true] {
        let world = World::new();
        let (one, two) = (world.node("node-1"), world.node("node-2"));
        let proxy = Proxy::start(world.dir(), "node-2", &two.socket());
        let identity = world.identity(KeyKind::P256);
        let edge =
            EdgeOptions { nodes: vec![one.endpoint(), proxy.endpoint()], ..EdgeOptions::default() };
        // The stall outlasts the test, so without a hedge the test would fail. The hedge comes late enough
        // that a busy machine does not use up the budget before the node stalls.
        let edge = edge
            .with("hedge", "on")
            .with("hedge_after_ms", 500)
            .with("deadline_ms", 20_000)
            .with("fallback_after_ms", 20_000);
        let (edge, site) = if stub {
            two.import("www", &identity);
            let stub = one.import("www", &identity);
            (edge, Site::with_stub(&identity, &stub))
        } else {
            (edge.preferred(), Site::with_key(&identity))
        };
        let gateway = world.gateway(Server::Haproxy, edge, &[site]);
        let address = gateway.address(KeyKind::P256);
        let mut handshakes = 0;
        let handshake = || world.client.handshakes(address, Tls::V13, 1);
        wait::until("both nodes are used", || {
            handshake();
            handshakes += 1;
            proxy.completions() > 0 && one.served().total() > 0
        });
        proxy.set(Fault::Hold);
        let sum = |counter| told(&one, counter) + told(&two, counter);
        wait::until("a hedge won", || {
            handshake();
            handshakes += 1;
            sum("hedges_won") > 0
        });
        proxy.set(Fault::None);
        wait_for_reports(&mut handshakes, || sum("pooled"), handshake);
        let fallbacks = |node: &Node| node.status()["edge_totals"]["fallbacks"].clone();
        let none = Value::Array(Vec::new());
        assert_eq!((fallbacks(&one), fallbacks(&two)), (none.clone(), none));
        assert_eq!(sum("failed"), 0);
    }
}
