// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Clients that send a `ClientHello` and leave while the pool works on their handshake, by the
//! thousand. Memory and descriptors of gateway and node must stay where they are.
//!
//! The clients leave with a FIN and the gateway's own timeouts are far away: HAProxy itself loses a
//! paused job when its *timeout* ends the connection, and that is not what is measured here. What is
//! compared is one plateau with a later one, because allocators and pools fill up at first.

use millrace_tests::drive::{Client, Tls, finish};
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Gateway, Server, Site};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{memory_kib, open_files};
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::wait;
use millrace_tests::world::World;
use millrace_tests::scaled;

/// Handshakes that are torn down at once.
const BATCH: u64 = 100;

/// Batches until memory has reached its plateau.
const WARM_UP: usize = 10;

/// Bound on what a torn-down handshake may cost for good, in bytes. The stack of one lost job is 32
/// KiB, one lost TLS connection about 20 KiB, one lost operation of ours some hundred bytes; the noise
/// of allocators is below this over a thousand handshakes.
const BYTES_PER_HANDSHAKE: u64 = 256;

struct Setup {
    world: World,
    node: Node,
    proxy: Proxy,
    gateway: Gateway,
}

/// What must not grow: (KiB, descriptors) of the gateway and of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    gateway_kib: usize,
    gateway_files: usize,
    node_kib: usize,
    node_files: usize,
}

impl Setup {
    fn start(server: Server, stub: bool) -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
        let identity = world.identity(KeyKind::Rsa2048);
        // Deadlines are far away: each operation ends because the pool answers.
        let edge = EdgeOptions::to(proxy.endpoint())
            .with("deadline_ms", 30_000)
            .with("fallback_after_ms", 30_000);
        let (edge, site) = if stub {
            (edge, Site::with_stub(&identity, &node.import("www", &identity)))
        } else {
            (edge.preferred(), Site::with_key(&identity))
        };
        let edge = edge.write(world.dir());
        let gateway = Gateway::start_with(server, 1, world.dir(), &edge, &[site]);
        Self { world, node, proxy, gateway }
    }

    fn client(&self) -> &Client {
        &self.world.client
    }

    /// One batch: hello, operation in flight, FIN, and only then the answers. HAProxy has the whole
    /// batch in flight at once, nginx (whose worker blocks) one handshake after the other.
    ///
    /// The next batch begins when the gateway has closed everything, so that as many are in flight at
    /// every time and what an allocator keeps for them is the same.
    fn tear_down(&self, server: Server) {
        let gateway = self.gateway.workers()[0];
        let idle = open_files(gateway);
        let address = self.gateway.address(KeyKind::Rsa2048);
        let before = self.proxy.jobs();
        if server == Server::Haproxy {
            self.proxy.set(Fault::Hold);
        }
        let sockets: Vec<_> = (0..BATCH)
            .map(|_| self.client().hello(address, Tls::V13).expect("a connection"))
            .collect();
        if server == Server::Haproxy {
            self.proxy.wait_for_jobs(before + BATCH);
        }
        finish(sockets);
        self.proxy.set(Fault::None);
        self.proxy.wait_for_jobs(before + BATCH);
        wait::until("the gateway has closed everything", || open_files(gateway) <= idle);
    }

    /// The sizes when everything that was in flight has ended.
    fn size(&self) -> Size {
        let gateway = self.gateway.workers()[0];
        let node = self.node.id();
        wait::until_steady("the gateway", || open_files(gateway));
        wait::until_steady("the node", || self.proxy.completions());
        Size {
            gateway_kib: memory_kib(gateway),
            gateway_files: open_files(gateway),
            node_kib: memory_kib(node),
            node_files: open_files(node),
        }
    }
}

fn nothing_grows(server: Server, stub: bool) {
    let setup = Setup::start(server, stub);
    setup.client().handshakes(setup.gateway.address(KeyKind::Rsa2048), Tls::V13, 3);
    for i in 0..WARM_UP {
        setup.tear_down(server);
        eprintln!("batch {i} files {} mem {}", open_files(setup.gateway.workers()[0]), memory_kib(setup.gateway.workers()[0]));
    }
    let plateau = setup.size();
    let batches = scaled(20, 200);
    for _ in 0..batches {
        setup.tear_down(server);
    }
    let later = setup.size();
    let torn = batches as u64 * BATCH;
    let allowed = usize::try_from(torn * BYTES_PER_HANDSHAKE / 1024).expect("small");
    eprintln!("{server}, {torn} handshakes torn down: {plateau:?} to {later:?}");
    assert_eq!(later.gateway_files, plateau.gateway_files, "descriptors of the gateway");
    assert_eq!(later.node_files, plateau.node_files, "descriptors of the node");
    for (what, now, then) in [
        ("gateway", later.gateway_kib, plateau.gateway_kib),
        ("node", later.node_kib, plateau.node_kib),
    ] {
        assert!(now <= then + allowed, "the {what} grew from {then} to {now} KiB in {torn}");
    }
    // And it still works.
    let before = setup.node.served().total();
    setup.client().handshakes(setup.gateway.address(KeyKind::Rsa2048), Tls::V13, 5);
    assert_eq!(setup.node.served().total(), before + 5);
}

#[test]
fn haproxy_with_a_key_in_the_pool_does_not_grow() {
    nothing_grows(Server::Haproxy, true);
}

#[test]
fn haproxy_with_a_key_on_the_gateway_does_not_grow() {
    nothing_grows(Server::Haproxy, false);
}

#[test]
fn nginx_with_a_key_in_the_pool_does_not_grow() {
    nothing_grows(Server::Nginx, true);
}

#[test]
fn nginx_with_a_key_on_the_gateway_does_not_grow() {
    nothing_grows(Server::Nginx, false);
}
