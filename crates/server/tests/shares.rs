// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Identities that together request more connections than a node has.

mod common;

use std::io::Write;

use common::tls::{Papers, issue, setup};
use common::{Client, SOON, TestNode, eventually, tcp};
use millrace_server::tls::CertificateFiles;
use millrace_wire::{ClientMessage, Fault, Message, NodeMessage};

/// Whether the node accepts another connection of this client. (It answers a ping before the hello with a
/// fault.)
fn gets_in(node: &TestNode, files: &CertificateFiles) -> bool {
    let mut stream = Papers::of(files).connect(node);
    let mut ping = Vec::new();
    ClientMessage::Ping { token: 1 }.encode(&mut ping);
    let written = stream.write_all(&ping).and_then(|()| stream.flush());
    let answer = || Client::new(stream).try_receive();
    written.is_ok() && matches!(answer(), Ok(Some(NodeMessage::Fault(Fault::Protocol))))
}

#[test]
fn identity_with_more_connections_than_are_free_is_refused() {
    let node = setup()
        .limits(|limits| {
            limits.connections = 12;
            limits.connections_per_identity = 12;
            limits.handshake_timeout = SOON;
        })
        .start();
    // The seventh connection is admitted: six are in use, and six are left.
    let mut local: Vec<_> = (0..7).map(|_| node.connect()).collect();
    assert_eq!(node.silent().fault(), Fault::TooManyConnections);

    let first = issue(&node, "gateway-1");
    let mut remote: Vec<_> =
        (0..3).map(|_| Client::new(Papers::of(&first).connect(&node))).collect();
    for client in &mut remote {
        client.hello();
    }
    assert!(!gets_in(&node, &first));
    // Two are left for a third identity, and clients in a handshake take neither.
    let second = issue(&node, "gateway-2");
    let silent: Vec<_> = (0..8).map(|_| tcp(node.tcp.unwrap())).collect();
    assert!(gets_in(&node, &second));
    drop(silent);

    // Another identity may use a connection that one has closed.
    local.truncate(1);
    eventually(|| gets_in(&node, &first));
}
