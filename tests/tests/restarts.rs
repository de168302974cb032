// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Restarts of nodes under load, through HAProxy and nginx whose key only the pool has: no handshake fails.
//! The clients' side of it is simulated over many more schedules in `millrace-client`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use millrace_tests::drive::{Load, Tls};
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::Site;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions, bundle};
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::{Identity, KeyKind};
use millrace_tests::process::free_port;
use millrace_tests::scaled;
use millrace_tests::world::World;
use rustix::process::Signal;

/// Time limit of a job in tests with two nodes: two and a half times the default, for busy machines.
const DEADLINE_MS: u64 = 5000;

/// Least time between a node that is back and the next restart.
const GAP: Duration = Duration::from_millis(200);

/// Both gateways as the guides recommend them, each with one asynchronous thread.
struct Gateways {
    _nginx: Nginx,
    _haproxy: Haproxy,
    addresses: [SocketAddr; 2],
    // Last, so that the logs are there when the servers end.
    world: World,
}

impl Gateways {
    fn start(world: World, edge: EdgeOptions, identity: &Identity, stub: &str) -> Self {
        let edge = edge.write(world.dir());
        let site = Site::with_stub(identity, stub);
        let ports = [free_port(), free_port()];
        let server = format!(
            "server {{ listen 127.0.0.1:{} ssl;\n{}ssl_session_cache off; ssl_session_tickets off; \
             location / {{ return 200 ok; }} }}\n",
            ports[0],
            certificate_lines(world.dir(), "www", &site)
        );
        let nginx = NginxOptions::asynchronous(&edge, server);
        let frontend = format!(
            "frontend https\n  bind 127.0.0.1:{} ssl crt {} no-tls-tickets\n\
             \x20 http-request return status 200 content-type text/plain string ok\n",
            ports[1],
            bundle(world.dir(), "www", &site)
        );
        let haproxy =
            HaproxyOptions { preload: true, ..HaproxyOptions::asynchronous(&edge, frontend) };
        Self {
            _nginx: Nginx::start(world.dir(), &nginx, &ports[..1]),
            _haproxy: Haproxy::start(world.dir(), &haproxy, &ports[1..]),
            addresses: ports.map(|port| ([127, 0, 0, 1], port).into()),
            world,
        }
    }

    /// Two connections after the other at each gateway, all the time.
    fn load(&self) -> Loads {
        let loads = self.addresses.map(|address| self.world.client.load(address, Tls::V13, 2));
        Loads(loads)
    }
}

/// Handshakes with nginx and with HAProxy.
struct Loads([Load; 2]);

impl Loads {
    fn wait_for_more(&self, count: u64) {
        self.0.iter().for_each(|load| load.wait_for_more(count));
    }

    fn none_failed(self) {
        for (load, server) in self.0.into_iter().zip(["nginx", "haproxy"]) {
            let outcome = load.stop();
            eprintln!("{server}: {} handshakes", outcome.completed);
            assert_eq!(outcome.failures, BTreeMap::new(), "{server}");
        }
    }
}

/// Signal that ends a node.
#[derive(Clone, Copy, Debug)]
enum End {
    Term,
    Kill,
}

impl End {
    const ALL: [Self; 2] = [Self::Term, Self::Kill];

    fn of(self, node: &mut Node) {
        match self {
            Self::Term => node.stop(),
            Self::Kill => node.kill(),
        }
    }
}

#[test]
fn restarts_of_the_only_node_fail_no_handshake() {
    let world = World::new();
    let mut node = world.node("node-1");
    let identity = world.identity(KeyKind::P256);
    let stub = node.import("www", &identity);
    let edge = EdgeOptions::to(node.endpoint());
    let gateways = Gateways::start(world, edge, &identity, &stub);
    let loads = gateways.load();
    loads.wait_for_more(4);
    for round in 0..scaled(10, 25) {
        let down = Duration::from_millis(300) * u32::try_from(round % 4).expect("small");
        End::ALL[round % 2].of(&mut node);
        thread::sleep(down);
        node.up();
        // A second restart, before everything is as it was.
        End::ALL[round / 2 % 2].of(&mut node);
        node.up();
        loads.wait_for_more(4);
    }
    loads.none_failed();
}

#[test]
fn gateways_that_start_before_their_node_fail_no_handshake() {
    let world = World::new();
    let mut node = Node::prepare(world.dir(), "node-1", &NodeOptions::default());
    let identity = world.identity(KeyKind::P256);
    let stub = node.import("www", &identity);
    let edge = EdgeOptions::to(node.endpoint());
    let gateways = Gateways::start(world, edge, &identity, &stub);
    let loads = gateways.load();
    node.up();
    loads.wait_for_more(4);
    loads.none_failed();
}

/// Two nodes with the same key, and both gateways with both nodes.
fn pair() -> ([Node; 2], Gateways) {
    let world = World::new();
    let nodes = [world.node("node-1"), world.node("node-2")];
    let identity = world.identity(KeyKind::P256);
    let stub = nodes[0].import("www", &identity);
    let _ = nodes[1].import("www", &identity);
    let edge =
        EdgeOptions { nodes: nodes.iter().map(Node::endpoint).collect(), ..EdgeOptions::default() };
    let edge = edge.with("deadline_ms", DEADLINE_MS);
    let gateways = Gateways::start(world, edge, &identity, &stub);
    (nodes, gateways)
}

#[test]
fn rolling_restarts_of_two_nodes_fail_no_handshake() {
    let (mut nodes, gateways) = pair();
    let loads = gateways.load();
    loads.wait_for_more(4);
    for round in 0..scaled(10, 100) {
        let end = End::ALL[round / 2 % 2];
        end.of(&mut nodes[round % 2]);
        // Long enough for the back-off of the gateways to grow, in one round of three.
        if round % 3 == 2 {
            thread::sleep(Duration::from_secs(2));
        }
        nodes[round % 2].up();
        thread::sleep(GAP + GAP * u32::try_from(round % 5).expect("small"));
    }
    loads.wait_for_more(4);
    loads.none_failed();
}

#[test]
fn one_of_two_nodes_ended_or_stopped_at_random_fails_no_handshake() {
    let (mut nodes, gateways) = pair();
    let loads = gateways.load();
    loads.wait_for_more(4);
    let end =
        Instant::now() + Duration::from_secs(if millrace_tests::is_long() { 600 } else { 20 });
    let mut dice = [0; 4];
    while Instant::now() < end {
        openssl::rand::rand_bytes(&mut dice).expect("random bytes");
        let [which, how, down, gap] = dice;
        let number = usize::from(which % 2);
        let (how, down) = (how % 4, Duration::from_millis(u64::from(down) * 8));
        eprintln!("node {number}, fault {how}, for {down:?}, then {gap} ms");
        let node = &mut nodes[number];
        if let Some(end) = End::ALL.get(usize::from(how)) {
            end.of(node);
            thread::sleep(down);
            node.up();
        } else {
            node.signal(Signal::STOP);
            thread::sleep(down);
            if how == 2 {
                node.signal(Signal::CONT);
            } else {
                node.kill();
                node.up();
            }
        }
        thread::sleep(GAP + Duration::from_millis(gap.into()));
    }
    loads.wait_for_more(4);
    loads.none_failed();
}
