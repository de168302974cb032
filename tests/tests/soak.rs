// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One fault after the other under load, in a random order. The test prints each fault. Long with
//! `MILLRACE_LONG=1`.

use std::collections::BTreeMap;

use millrace_tests::drive::{Tls, is_verification_failure};
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Server, Site};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::is_alive;
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::scaled;
use millrace_tests::wait;
use millrace_tests::world::World;
use std::time::Duration;

const FAULTS: [Fault; 9] = [
    Fault::None,
    Fault::Latency(Duration::from_millis(20)),
    Fault::Latency(Duration::from_millis(900)),
    Fault::Hold,
    Fault::Drop,
    Fault::Refuse,
    Fault::Garbage,
    Fault::CutMidFrame,
    Fault::WrongResult,
];

/// A gateway with its key fails no handshake under any fault of the pool. A gateway without the key may fail
/// some, but no client ever receives a wrong signature, and after the fault every handshake succeeds again.
#[test]
fn client_never_sees_a_wrong_result_under_pool_faults() {
    let world = World::new();
    let node = world.node("node-1");
    let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
    let (here, there) = (world.identity(KeyKind::Rsa2048), world.identity(KeyKind::P256));
    let stub = node.import("www", &there);
    let edge = EdgeOptions::to(proxy.endpoint())
        .with("fallback_after_ms", 300)
        .with("deadline_ms", 1000)
        .with("verify", "all");
    let with_key =
        world.gateway(Server::Haproxy, edge.clone().preferred(), &[Site::with_key(&here)]);
    let without = world.gateway(Server::Haproxy, edge, &[Site::with_stub(&there, &stub)]);
    let load_with = world.client.load(with_key.address(KeyKind::Rsa2048), Tls::V13, 3);
    let load_without = world.client.load(without.address(KeyKind::P256), Tls::V13, 3);
    let mut dice = [0; 8];
    for _ in 0..scaled(15, 3000) {
        openssl::rand::rand_bytes(&mut dice).expect("random bytes");
        let fault = FAULTS[usize::from(dice[0]) % FAULTS.len()];
        eprintln!("{fault:?}");
        proxy.set(fault);
        load_with.wait_for_more(6);
    }
    proxy.set(Fault::None);
    wait::until("handshakes without the key succeed again", || {
        let failed = load_without.failed();
        load_without.wait_for_more(10);
        load_without.failed() == failed
    });
    let (with, without_key) = (load_with.stop(), load_without.stop());
    assert_eq!(with.failures, BTreeMap::new(), "with its key a gateway fails none");
    for failure in without_key.failures.keys() {
        assert!(!is_verification_failure(failure), "a client saw something wrong: {failure}");
    }
    eprintln!("with the key {}, without {without_key:?}", with.completed);
    for gateway in [&with_key, &without] {
        assert!(is_alive(gateway.process.id()), "no gateway has crashed");
    }
    // No connection of the faults is left: each gateway has exactly one.
    wait::until("only the gateways are left", || node.connections() == 2);
    // Each handshake has a deadline of one second, which a busy machine misses at times.
    for number in 0..10 {
        wait::until(&format!("handshake {number} succeeds"), || {
            let address = without.address(KeyKind::P256);
            world.client.handshake(address, Tls::V13).is_ok()
        });
    }
    wait::until("only the gateways are connected", || node.connections() == 2);
}
