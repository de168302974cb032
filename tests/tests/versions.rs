// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The previous version combined with this one: node, provider and preload library of either, and key stores
//! written by the other. `scripts/previous-version.sh` builds the previous programs; `make test` runs it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use millrace_testkit::skip;
use millrace_tests::artifacts::{Artifacts, artifacts, previous};
use millrace_tests::drive::Tls;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::Site;
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::free_port;
use millrace_tests::world::World;

const KINDS: [KeyKind; 2] = [KeyKind::Rsa2048, KeyKind::P256];
const HANDSHAKES: usize = 3;

/// Versions of the three programs of one gateway and its node.
#[derive(Clone, Copy)]
struct Mix {
    node: &'static Artifacts,
    provider: &'static Artifacts,
    preload: &'static Artifacts,
}

/// Handshakes of a stock nginx; only the node has its key, and the node's own counters must show them.
fn pooled_handshakes_succeed(name: &str, mix: Mix, kind: KeyKind) {
    let world = World::new();
    let options = NodeOptions { programs: Some(mix.node), ..NodeOptions::default() };
    let node = Node::start_with(world.dir(), "one", &options);
    let identity = world.identity(kind);
    let stub = node.import("www", &identity);
    let before = node.served().total();
    handshakes(&world, &node, &Site::with_stub(&identity, &stub), mix);
    let served = node.served().total() - before;
    assert!(served >= HANDSHAKES as u64, "{name}, {kind}: the node served {served}");
}

fn handshakes(world: &World, node: &Node, site: &Site, mix: Mix) {
    let mut edge = EdgeOptions::to(node.endpoint());
    edge.provider = Some(mix.provider.provider.clone());
    let edge = edge.write(world.dir());
    let port = free_port();
    let server = format!(
        "server {{ listen 127.0.0.1:{port} ssl;\n{}ssl_session_cache off; ssl_session_tickets off;\n\
         location / {{ return 200 ok; }} }}\n",
        certificate_lines(world.dir(), "www", site)
    );
    let mut options = NginxOptions::asynchronous(&edge, server);
    options.library = Some(mix.preload.preload.clone());
    let nginx = Nginx::start(world.dir(), &options, &[port]);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    world.client.handshakes(address, Tls::V13, HANDSHAKES);
    drop(nginx);
}

#[test]
fn every_mix_of_old_and_new_programs_serves_pooled_handshakes() {
    let Some(old) = previous() else {
        skip!("no previous version built");
    };
    let new = artifacts();
    for mix in 0..7_u8 {
        let version = |bit: u8| if mix >> bit & 1 == 1 { new } else { old };
        let mixed = Mix { node: version(0), provider: version(1), preload: version(2) };
        let age = |bit: u8| if mix >> bit & 1 == 1 { "new" } else { "old" };
        let name = format!("{} node, {} provider, {} preload library", age(0), age(1), age(2));
        for kind in KINDS {
            pooled_handshakes_succeed(&name, mixed, kind);
        }
    }
}

/// A node of version `reader` serves handshakes from a store filled by version `writer`.
fn a_store_moves(writer: &'static Artifacts, reader: &'static Artifacts) {
    let world = World::new();
    let options = NodeOptions { programs: Some(writer), ..NodeOptions::default() };
    let mut node = Node::start_with(world.dir(), "one", &options);
    // Each key replaces another: the new version keeps that as a former one, in a file that the old one ignores.
    let import = |kind: KeyKind| {
        let name = format!("key-{kind}");
        let _ = node.import(&name, &world.identity(kind));
        let identity = world.identity(kind);
        let stub = node.import_with(&name, &identity, &["--allow-all", "--replace"]);
        (identity, stub)
    };
    let keys = KINDS.map(import);
    node.stop();
    node.change_version(reader);
    node.up();
    let mix = Mix { node: reader, provider: artifacts(), preload: artifacts() };
    for (identity, stub) in &keys {
        handshakes(&world, &node, &Site::with_stub(identity, stub), mix);
    }
    // The reader's commands change keys that the writer has stored.
    node.remove("key-rsa-2048");
}

#[test]
fn new_node_serves_the_store_of_an_old_one() {
    let Some(old) = previous() else {
        skip!("no previous version built");
    };
    a_store_moves(old, artifacts());
}

#[test]
fn old_node_serves_the_store_of_a_new_one() {
    let Some(old) = previous() else {
        skip!("no previous version built");
    };
    a_store_moves(artifacts(), old);
}

#[test]
fn previous_version_is_a_whole_commit_id() {
    let file = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/previous-version"));
    let file = file.expect("tests/previous-version");
    let commit = file.lines().find(|line| !line.starts_with('#')).expect("a commit");
    assert!(commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{commit}");
}
