// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Clients that violate the node's protocol, guess names and handles, or disconnect in the middle of a
//! message. The node answers each with its error or closes the connection, keeps no state of it, and serves a
//! gateway at the same time without failures.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use millrace_operation::{Hash, JobError, KeyError, Operation, PrivateKey};
use millrace_testkit::wait::SOON;
use millrace_tests::drive::Tls;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Gateway, Server, Site};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::world::World;
use millrace_tests::{process, wait};
use millrace_wire::{
    ClientMessage, Decoder, Fault, Hello, KeyRefusal, KeySelector, Message, NodeMessage,
    SubmittedJob, VERSION_MAX, VERSION_MIN,
};
/// A connection to the node that sends arbitrary bytes.
struct Raw {
    socket: UnixStream,
    decoder: Decoder<NodeMessage>,
}

impl Raw {
    fn connect(node: &Node) -> Self {
        let socket = UnixStream::connect(node.socket()).expect("the node's socket");
        socket.set_read_timeout(Some(SOON)).expect("a timeout");
        Self { socket, decoder: Decoder::new() }
    }

    /// A connection that has sent its hello.
    fn greeted(node: &Node) -> Self {
        let mut raw = Self::connect(node);
        raw.send(&hello(VERSION_MIN, VERSION_MAX));
        assert!(matches!(raw.next(), Some(NodeMessage::Welcome(_))), "a welcome");
        raw
    }

    fn send(&mut self, message: &ClientMessage) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send_bytes(&bytes);
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        // The node may have closed the connection already, as it should.
        drop(self.socket.write_all(bytes));
    }

    /// The next message, or `None` if the node has closed the connection.
    fn next(&mut self) -> Option<NodeMessage> {
        loop {
            if let Some(message) = self.decoder.next().expect("the node speaks the protocol") {
                return Some(message);
            }
            match self.socket.read(self.decoder.space()) {
                Ok(0) => return None,
                Ok(count) => self.decoder.filled(count),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the node neither answers nor closes: {error}"),
            }
        }
    }

    /// All messages until the node closes the connection.
    fn until_closed(&mut self) -> Vec<NodeMessage> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

fn hello(min_version: u16, max_version: u16) -> ClientMessage {
    let agent = "hostile".to_owned();
    ClientMessage::Hello(Hello { min_version, max_version, features: 0, agent })
}

fn encoded(message: &ClientMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

fn job(id: u64, key: u32) -> SubmittedJob {
    let operation = Operation::EcdsaSign { hash: Hash::Sha256 };
    SubmittedJob { id, key, budget: Duration::from_secs(5), operation, input: vec![7; 32] }
}

/// First bytes of connections that the node must close.
fn openings() -> Vec<(&'static str, Vec<u8>)> {
    let greeting = encoded(&hello(VERSION_MIN, VERSION_MAX));
    let after_hello = |bytes: &[u8]| [&greeting[..], bytes].concat();
    let mut flags = greeting.clone();
    flags[5] = 0xff;
    let mut long = greeting.clone();
    long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut twice = encoded(&ClientMessage::Submit(vec![job(1, 1), job(2, 1)]));
    // The second job gets the id of the first.
    let second = twice.len() - (twice.len() - 10) / 2;
    twice[second..second + 8].copy_from_slice(&1u64.to_le_bytes());
    vec![
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("TLS", vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 9, 9, 9, 9, 9]),
        ("noise", (0..997u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()),
        ("zeros", vec![0; 64]),
        ("a frame of 4 GiB", long),
        ("flags", flags),
        ("a job before hello", encoded(&ClientMessage::Submit(vec![job(1, 1)]))),
        ("hello twice", after_hello(&greeting)),
        ("noise after hello", after_hello(&[0xff; 64])),
        ("an id twice", after_hello(&twice)),
        ("a version from the future", encoded(&hello(900, 901))),
    ]
}

struct Setup {
    world: World,
    node: Node,
    gateway: Gateway,
}

fn start() -> Setup {
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::P256);
    let stub = node.import("www", &identity);
    let edge = EdgeOptions::to(node.endpoint());
    let gateway = world.gateway(Server::Haproxy, edge, &[Site::with_stub(&identity, &stub)]);
    Setup { world, node, gateway }
}

#[test]
fn protocol_violation_ends_only_its_own_connection() {
    let Setup { world, node, gateway } = start();
    let load = world.client.load(gateway.address(KeyKind::P256), Tls::V13, 2);
    load.wait_for_more(5);
    for (what, bytes) in openings() {
        let mut raw = Raw::connect(&node);
        raw.send_bytes(&bytes);
        let said = raw.until_closed();
        let fault = said.iter().find_map(|message| match message {
            NodeMessage::Fault(fault) => Some(*fault),
            _ => None,
        });
        // The node sends the reason to a client whose protocol version it can answer.
        if what == "a version from the future" {
            assert_eq!(fault, Some(Fault::Version), "{what}: {said:?}");
        }
        let done = said.iter().any(|message| matches!(message, NodeMessage::Complete(_)));
        assert!(!done, "{what}: nothing is done: {said:?}");
    }
    // The opening, cut after every byte, followed by a disconnect.
    let opening = [
        encoded(&hello(VERSION_MIN, VERSION_MAX)),
        encoded(&ClientMessage::OpenKey {
            request: 1,
            selector: KeySelector::Name("www".to_owned()),
        }),
    ]
    .concat();
    for length in 0..opening.len() {
        let mut raw = Raw::connect(&node);
        raw.send_bytes(&opening[..length]);
        drop(raw.socket.shutdown(Shutdown::Write));
        let _ = raw.until_closed();
    }
    load.wait_for_more(5);
    assert_eq!(load.stop().failures, BTreeMap::new(), "the gateway's handshakes all succeed");
    wait::until("the node has closed them all", || node.connections() == 1);
}

#[test]
fn silent_connections_do_not_block_other_clients() {
    let Setup { world, node, gateway } = start();
    let crowd: Vec<_> = (0..200).map(|_| Raw::connect(&node)).collect();
    world.client.handshakes(gateway.address(KeyKind::P256), Tls::V13, 20);
    assert_eq!(node.served().total(), 20);
    // The node also closes the silent connections after a while.
    for mut raw in crowd {
        let said = raw.until_closed();
        assert!(said.iter().all(|message| matches!(message, NodeMessage::Fault(_))), "{said:?}");
    }
}

#[test]
fn foreign_key_is_answered_like_a_missing_key() {
    let Setup { world, node, gateway: _gateway } = start();
    let other = world.authority.identity(KeyKind::P384);
    // A user id that does not exist.
    let _ = node.import_with("foreign", &other, &["--allow-uid", "4000000000"]);
    let mut raw = Raw::greeted(&node);
    let mut answer = |request, name: &str| {
        let selector = KeySelector::Name(name.to_owned());
        raw.send(&ClientMessage::OpenKey { request, selector });
        match raw.next() {
            Some(NodeMessage::KeyRefused { reason, .. }) => reason,
            other => panic!("{name}: {other:?}"),
        }
    };
    assert_eq!(answer(1, "foreign"), KeyRefusal::NoSuchKey);
    assert_eq!(answer(2, "there-is-none"), KeyRefusal::NoSuchKey);
    assert_eq!(answer(3, "../www"), KeyRefusal::NoSuchKey);
    assert_eq!(answer(4, ""), KeyRefusal::NoSuchKey);
    // The log has the identity, and does not tell the one from the other, either.
    let user = rustix::process::geteuid().as_raw();
    let admit = format!("millrace key policy KEY --add-uid {user}");
    for asked in ["foreign", "there-is-none"] {
        wait::until("the log names the client", || {
            node.log().lines().any(|line| {
                [asked, &format!("uid:{user}"), &admit].iter().all(|part| line.contains(part))
            })
        });
    }
}

#[test]
fn handle_of_another_connection_is_unknown() {
    let Setup { world: _world, node, gateway: _gateway } = start();
    let mut owner = Raw::greeted(&node);
    let selector = KeySelector::Name("www".to_owned());
    owner.send(&ClientMessage::OpenKey { request: 1, selector });
    let Some(NodeMessage::KeyOpened { handle, .. }) = owner.next() else { panic!("the key opens") };
    let result_of = |raw: &mut Raw, id, handle| {
        raw.send(&ClientMessage::Submit(vec![job(id, handle)]));
        match raw.next() {
            Some(NodeMessage::Complete(mut done)) if done.len() == 1 => {
                done.remove(0).result.map(|output| output.len())
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(result_of(&mut owner, 1, handle).is_ok(), "its owner uses it");
    let mut thief = Raw::greeted(&node);
    for handle in [handle, handle + 1, 0, u32::MAX] {
        assert_eq!(result_of(&mut thief, 1, handle), Err(JobError::NoSuchKey));
    }
    assert!(result_of(&mut owner, 2, handle).is_ok(), "its owner still does");
}

#[test]
fn invalid_keys_are_refused_with_the_reason() {
    let Setup { world: _world, node, gateway: _gateway } = start();
    let mut raw = Raw::greeted(&node);
    let mut refusal = |request, der: Vec<u8>| {
        let key = PrivateKey::from_pkcs8(der.into());
        raw.send(&ClientMessage::ImportKey { request, key });
        match raw.next() {
            Some(NodeMessage::KeyRefused { reason: KeyRefusal::Key(error), .. }) => error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal(1, b"no key at all".to_vec()), KeyError::Malformed);
    assert_eq!(refusal(2, Vec::new()), KeyError::Malformed);
    let small = openssl::rsa::Rsa::generate(1024).expect("a key");
    let small = openssl::pkey::PKey::from_rsa(small).expect("a key");
    assert_eq!(refusal(3, small.private_key_to_pkcs8().expect("PKCS#8")), KeyError::Size);
    let key = openssl::rsa::Rsa::generate(2048).expect("a key");
    let key = openssl::pkey::PKey::from_rsa(key).expect("a key");
    let mut der = key.private_key_to_pkcs8().expect("PKCS#8");
    // Flips one bit of the last number, qInv.
    let last = der.len() - 1;
    der[last] ^= 1;
    assert_eq!(refusal(4, der), KeyError::Inconsistent);
}

#[test]
fn import_flood_costs_the_node_bounded_memory() {
    const CONNECTIONS: usize = 200;
    const IMPORTS: usize = 1000;
    /// Memory of 200 connections with full buffers, several times over; the keys sent have 480 MB.
    const MOST_KIB: usize = 96 * 1024;
    let world = World::new();
    let node = world.node("node-1");
    let key = openssl::rsa::Rsa::generate(4096).expect("a key");
    let key = openssl::pkey::PKey::from_rsa(key).expect("a key");
    let der = key.private_key_to_pkcs8().expect("PKCS#8");
    let mut flood = Vec::new();
    for request in 0..IMPORTS {
        let key = PrivateKey::from_pkcs8(der.clone().into());
        let request = u32::try_from(request).expect("small");
        ClientMessage::ImportKey { request, key }.encode(&mut flood);
    }
    let before = process::memory_kib(node.id());
    let mut crowd: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let raw = Raw::greeted(&node);
            raw.socket.set_nonblocking(true).expect("a socket");
            (raw, 0)
        })
        .collect();
    // As much as the node takes.
    let mut sent = wait::until_steady("the flood", || {
        for (raw, sent) in &mut crowd {
            while let Ok(count @ 1..) = raw.socket.write(&flood[*sent..]) {
                *sent += count;
            }
        }
        crowd.iter().map(|(_, sent)| *sent / (1 << 20)).sum::<usize>()
    });
    sent *= 1 << 20;
    let grown = process::memory_kib(node.id()).saturating_sub(before);
    assert!(sent < CONNECTIONS * flood.len() / 2, "the node reads on: {sent} bytes");
    assert!(grown < MOST_KIB, "{grown} KiB");
    drop(crowd);
    wait::until("the node has closed them all", || node.connections() == 0);
    wait::until("the memory is given back", || {
        process::memory_kib(node.id()).saturating_sub(before) < MOST_KIB / 4
    });
    let left = process::memory_kib(node.id()).saturating_sub(before);
    println!("sent {sent} bytes: grew by {grown} KiB, kept {left} KiB");
}
