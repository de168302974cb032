// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Thousands of clients that send a `ClientHello` and close while the pool works on their handshake. Memory
//! and descriptors of gateway and node must not grow.
//!
//! The clients close with a FIN, and the gateway's own timeouts are too long to expire: without the preload
//! library HAProxy loses the paused job of a connection that it closes first; see `haproxy.rs`.
//!
//! Allocators and pools grow at first, and later whenever more handshakes than before are in flight at once.
//! A leak grows in *every* window of a thousand handshakes, so one window without growth proves that there is
//! none. The test runs several windows until it finds one.

use millrace_tests::drive::{Client, Tls, finish};
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Gateway, Server, Site};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{memory_kib, open_files};
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::scaled;
use millrace_tests::wait;
use millrace_tests::world::World;

/// Handshakes torn down at once.
const BATCH: u64 = 100;

/// Batches per window.
const WINDOW: u64 = 10;

/// Number of windows. At least one of them must show no growth.
const WINDOWS: usize = 8;

/// Permanent growth allowed per aborted handshake, in bytes. The stack of one lost job has 32 KiB; one lost
/// TLS connection costs about 20 KiB, one lost operation of the provider some hundred bytes.
const BYTES_PER_HANDSHAKE: u64 = 64;

struct Setup {
    world: World,
    node: Node,
    proxy: Proxy,
    gateway: Gateway,
}

/// Memory and open descriptors of the gateway and of the node.
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
        // Long deadlines, so that each operation ends by the pool's answer.
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

    /// One batch: hello, operation in flight, FIN, and the answers only after that. HAProxy has the whole
    /// batch in flight at once; nginx, whose worker blocks, one handshake at a time.
    ///
    /// The next batch begins when the gateway has closed everything, so that each batch has the same number
    /// in flight and allocators keep the same memory for them.
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

    /// The sizes once no operation is in flight any more.
    fn size(&self) -> Size {
        let gateway = self.gateway.workers()[0];
        let node = self.node.id();
        wait::until_steady("the gateway", || open_files(gateway));
        wait::until_steady("the node", || (self.proxy.completions(), open_files(node)));
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
    let batches = WINDOW * scaled(1, 20) as u64;
    let allowed = usize::try_from(batches * BATCH * BYTES_PER_HANDSHAKE / 1024).expect("small");
    let mut sizes = vec![setup.size()];
    let flat = (0..WINDOWS).any(|_| {
        let before = *sizes.last().expect("there is one");
        for _ in 0..batches {
            setup.tear_down(server);
        }
        wait::until("there are no more descriptors than before", || {
            let now = setup.size();
            now.gateway_files <= before.gateway_files && now.node_files <= before.node_files
        });
        let after = setup.size();
        sizes.push(after);
        after.gateway_kib <= before.gateway_kib + allowed
            && after.node_kib <= before.node_kib + allowed
    });
    eprintln!("{server}, after each {} handshakes torn down: {sizes:?}", batches * BATCH);
    assert!(
        flat,
        "{server} or the node grew in every window by more than {allowed} KiB: {sizes:?}"
    );
    // The gateway still works.
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
