// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The private half of a pooled key is not on the gateway (not even in its memory), not in a log, not in a
//! node's status and metrics, and not readable in its store.

use std::fs;
use std::path::Path;

use millrace_tests::drive::Tls;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Server, Site};
use millrace_tests::may_read_memory;
use millrace_tests::memory::Secret;
use millrace_tests::node::Node;
use millrace_tests::node::NodeOptions;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{run, text_of};
use millrace_tests::world::World;

/// Calls `each` with every regular file below a folder.
fn files(folder: &Path, each: &mut dyn FnMut(&Path, &[u8])) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            files(&path, each);
        } else if kind.is_file() {
            each(&path, &fs::read(&path).expect("a file"));
        }
    }
}

fn the_gateway_never_has_the_key(server: Server) {
    if !may_read_memory() {
        return;
    }
    let world = World::new();
    let options =
        NodeOptions { toml: "[log]\nfilter = \"trace\"\n".to_owned(), ..Default::default() };
    let node = Node::start_with(world.dir(), "node-1", &options);
    let identities = KeyKind::USUAL.map(|kind| world.identity(kind));
    let sites: Vec<Site> = identities
        .iter()
        .map(|identity| Site::with_stub(identity, &node.import(identity.kind.name(), identity)))
        .collect();
    let gateway = world.gateway(server, EdgeOptions::to(node.endpoint()), &sites);
    for identity in &identities {
        for tls in Tls::ALL {
            world.client.handshakes(gateway.address(identity.kind), tls, 5);
        }
    }
    assert_eq!(node.served().total(), 20);
    let status = node.status().to_string();
    let metrics = node.metrics();
    let shown = text_of(&run(&mut node.command(&["key", "list", "--json"])));
    for identity in &identities {
        let secret = Secret::of(identity);
        let nothing = |what: &str, bytes: &[u8]| {
            let found = secret.found_in(bytes);
            assert!(found.is_empty(), "{}: {what} holds {found:?}", identity.kind);
        };
        for process in gateway.workers().into_iter().chain([gateway.process.id()]) {
            let found = secret.found_in_process(process);
            assert!(found.is_empty(), "{server} holds the {} key: {found:?}", identity.kind);
        }
        nothing("the log of the gateway", gateway.process.log().as_bytes());
        nothing("the log of the node", node.log().as_bytes());
        nothing("status", status.as_bytes());
        nothing("metrics", metrics.as_bytes());
        nothing("the list of keys", shown.as_bytes());
        // Every file but the test's own copy: the store is sealed, gateways have stubs.
        files(world.dir(), &mut |path, bytes| {
            if !path.starts_with(world.dir().join("pki")) {
                nothing(&path.display().to_string(), bytes);
            }
        });
    }
}

#[test]
fn haproxy_never_has_the_key() {
    the_gateway_never_has_the_key(Server::Haproxy);
}

#[test]
fn nginx_never_has_the_key() {
    the_gateway_never_has_the_key(Server::Nginx);
}

/// The control of the tests above: the search finds a key that is in memory.
#[test]
fn key_on_the_gateway_is_found_there() {
    if !may_read_memory() {
        return;
    }
    let world = World::new();
    let node = world.node("node-1");
    for kind in KeyKind::USUAL {
        let identity = world.identity(kind);
        let edge = EdgeOptions::to(node.endpoint()).preferred();
        let gateway = world.gateway(Server::Haproxy, edge, &[Site::with_key(&identity)]);
        world.client.handshakes(gateway.address(kind), Tls::V13, 1);
        let found = Secret::of(&identity).found_in_process(gateway.process.id());
        assert!(!found.is_empty(), "the {kind} key is there and was not found");
    }
}
