// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node over its unix socket: jobs, hostile clients, policy, cancelling, draining, bounds.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use common::{
    Client, ECDSA_SIGN, RSA_SIGN, Setup, TestNode, engine, eventually, get, job, my_uid, only, tcp,
};
use millrace_backends::software::Software;
use millrace_operation::{
    BackendKind, JobError, KeyError, KeyType, Operation, OperationKind, PrivateKey,
};
use millrace_server::Node;
use millrace_server::config::UnixConfig;
use millrace_service::policy::KeyPolicy;
use millrace_service::status::Status;
use millrace_testkit::fake::{FakeBackend, FakeOptions};
use millrace_testkit::faulty::{FaultControls, FaultyBackend};
use millrace_testkit::keys;
use millrace_wire::{
    ClientMessage, Fault, HEADER_LEN, KeyHandle, KeyRefusal, KeySelector, MAX_FRAME_LEN, Message,
    NodeMessage,
};
use zeroize::Zeroizing;

const MESSAGE: &[u8] = b"what is to be signed";

fn digest_of_message() -> Vec<u8> {
    digest::digest(&digest::SHA256, MESSAGE).as_ref().to_vec()
}

fn verify(algorithm: &'static dyn VerificationAlgorithm, spki: &[u8], signature: &[u8]) {
    UnparsedPublicKey::new(algorithm, spki).verify(MESSAGE, signature).unwrap();
}

/// A node whose backend holds every job until the gate is opened, and a client with a key of it. The key is RSA: lone
/// fast jobs run within the connection's task.
fn gated(setup: Setup) -> (TestNode, FaultControls, Client<UnixStream>, KeyHandle) {
    setup.import("www", &keys::rsa_2048(), KeyPolicy::signing(["*"]));
    let backend = Arc::new(FaultyBackend::new(Arc::new(Software::new())));
    let gate = backend.controls();
    let node = setup.start_with(backend);
    let mut client = node.connect();
    let key = client.open("www");
    gate.close_gate();
    (node, gate, client, key)
}

#[test]
fn keys_of_the_store_and_imported_ones_sign() {
    let setup = Setup::new();
    setup.import("www", &keys::p_256(), KeyPolicy::signing(["*"]));
    let node = setup.start();
    let mut client = node.connect();
    let NodeMessage::KeyOpened { handle, info, operations, .. } = client.ask("www") else {
        panic!("not opened")
    };
    assert_eq!(info.key_type, keys::p_256().key_type);
    assert!(operations.contains(OperationKind::EcdsaSign));
    let signature = client.run(handle, &ECDSA_SIGN, &digest_of_message()).unwrap();
    verify(&ECDSA_P256_SHA256_ASN1, &info.spki, &signature);

    let (own, info) = client.import(&keys::rsa_2048());
    let signature = client.run(own, &RSA_SIGN, &digest_of_message()).unwrap();
    verify(&RSA_PKCS1_2048_8192_SHA256, &info.spki, &signature);
    let raw = client.run(own, &Operation::RsaRaw, &[1; 256]);
    assert_eq!(raw.unwrap().len(), 256);
}

#[test]
fn key_is_found_by_its_public_key() {
    let setup = Setup::new();
    let info = setup.import("www", &keys::ed25519(), KeyPolicy::signing(["*"]));
    let node = setup.start();
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, &info.spki).as_ref());
    let mut client = node.connect();
    for (hash, found) in [(hash, true), ([0; 32], false)] {
        let selector = KeySelector::SpkiSha256(hash);
        client.send(&ClientMessage::OpenKey { request: 1, selector });
        assert_eq!(matches!(client.receive(), NodeMessage::KeyOpened { .. }), found);
    }
}

#[test]
fn pipelined_batch_completes_and_names_its_backend() {
    let setup = Setup::new();
    setup.import("www", &keys::p_256(), KeyPolicy::signing(["*"]));
    let node = setup.start();
    let mut client = node.connect();
    let key = client.open("www");
    let jobs: Vec<_> =
        (0..500).map(|id| job(id, key, &ECDSA_SIGN, &[id.to_le_bytes()[0]; 32])).collect();
    client.submit(&jobs);
    let mut ids: Vec<u64> = (0..500)
        .map(|_| {
            let completion = client.complete();
            assert!(completion.result.is_ok());
            assert_eq!(completion.served_by, Some(BackendKind::Software));
            completion.id
        })
        .collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..500));
}

#[test]
fn protocol_violation_ends_only_its_own_connection() {
    let setup = Setup::new();
    setup.import("www", &keys::p_256(), KeyPolicy::signing(["*"]));
    let node = setup.start();
    let mut good = node.connect();
    let key = good.open("www");
    let mut ping = Vec::new();
    ClientMessage::Ping { token: 1 }.encode(&mut ping);
    let mut unknown = ping.clone();
    unknown[4] = 0x7f;
    let mut oversized = ping.clone();
    oversized[..4].copy_from_slice(&u32::try_from(MAX_FRAME_LEN + 1).unwrap().to_le_bytes());
    let mut extended = ping.clone();
    extended[0] += 1;
    extended.push(0);

    // Before the hello: other protocols, and messages out of order.
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0x16, 3, 1, 2, 0, 1, 0, 1], &ping] {
        let mut client = node.silent();
        client.write(bytes);
        assert_eq!(client.fault(), Fault::Protocol);
    }
    // After the hello.
    for (bytes, fault) in
        [(&unknown, Fault::Protocol), (&oversized, Fault::TooLarge), (&extended, Fault::TooLarge)]
    {
        let mut client = node.connect();
        client.write(bytes);
        assert_eq!(client.fault(), fault);
        assert!(good.run(key, &ECDSA_SIGN, &[7; 32]).is_ok());
    }
    // A stream that ends within a frame.
    let mut client = node.connect();
    client.write(&ping[..HEADER_LEN + 3]);
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.fault(), Fault::Protocol);
    // A client may send one byte at a time.
    let mut client = node.connect();
    for byte in &ping {
        client.write(&[*byte]);
    }
    assert!(matches!(client.receive(), NodeMessage::Pong { token: 1 }));
    assert!(good.run(key, &ECDSA_SIGN, &[7; 32]).is_ok());
    node.until(|status| status.faults == 7);
}

#[test]
fn duplicate_job_id_ends_the_connection() {
    let (_node, gate, mut client, key) = gated(Setup::new());
    client.submit(&[job(1, key, &RSA_SIGN, &[0; 32]), job(1, key, &RSA_SIGN, &[0; 32])]);
    let fault = client.fault();
    gate.open_gate();
    assert_eq!(fault, Fault::Protocol);
}

#[test]
fn silent_client_is_disconnected() {
    let setup = Setup::new().limits(|limits| limits.handshake_timeout = Duration::from_millis(50));
    let node = setup.start();
    assert_eq!(node.silent().fault(), Fault::TimedOut);
    let mut half = node.silent();
    // On a busy machine the node may have closed the connection already.
    let _ = half.stream.write_all(&[0; 3]);
    assert_eq!(half.fault(), Fault::TimedOut);
}

#[test]
fn idle_client_is_disconnected_if_configured() {
    // Long enough that a busy machine does not close the connection before the hello.
    let setup = Setup::new().limits(|limits| limits.idle_timeout = Duration::from_secs(1));
    let node = setup.start();
    assert_eq!(node.connect().fault(), Fault::TimedOut);
}

#[test]
fn foreign_key_or_handle_is_answered_like_a_missing_one() {
    let setup = Setup::new();
    setup.import("theirs", &keys::p_256(), only("uid:4294967294"));
    setup.import("mine", &keys::p_256(), only(&my_uid()));
    let node = setup.start();
    let mut one = node.connect();
    let handle = one.open("mine");

    // The whole answer, byte by byte, from the socket.
    let raw = |name: &str| {
        let mut client = node.connect();
        let selector = KeySelector::Name(name.to_owned());
        client.send(&ClientMessage::OpenKey { request: 7, selector });
        let mut bytes = [0; 64];
        let count = client.stream.read(&mut bytes).unwrap();
        bytes[..count].to_vec()
    };
    assert_eq!(raw("theirs"), raw("nothing"));

    let raw = |handle: u32| {
        let mut client = node.connect();
        client.submit(&[job(1, handle, &ECDSA_SIGN, &[0; 32])]);
        let mut bytes = [0; 128];
        let count = client.stream.read(&mut bytes).unwrap();
        bytes[..count].to_vec()
    };
    assert_eq!(raw(handle), raw(0xdead_beef));
    assert!(one.run(handle, &ECDSA_SIGN, &[0; 32]).is_ok());
}

#[test]
fn policy_denies_and_input_is_checked() {
    let setup = Setup::new();
    setup.import("www", &keys::rsa_2048(), KeyPolicy::signing(["*"]));
    let node = setup.start();
    let mut client = node.connect();
    let key = client.open("www");
    for operation in [Operation::RsaRaw, Operation::RsaPkcs1Decrypt] {
        assert_eq!(client.run(key, &operation, &[1; 256]), Err(JobError::Denied));
    }
    assert_eq!(client.run(key, &RSA_SIGN, &[0; 31]), Err(JobError::BadInput));
    assert_eq!(client.run(key, &ECDSA_SIGN, &[0; 32]), Err(JobError::NotOffered));
    assert_eq!(client.run(key + 1, &RSA_SIGN, &[0; 32]), Err(JobError::NoSuchKey));
    assert!(client.run(key, &RSA_SIGN, &[0; 32]).is_ok());
}

#[test]
fn invalid_excess_and_disabled_imports_are_refused() {
    let mut setup = Setup::new().limits(|limits| limits.keys = 2);
    let node = setup.start();
    let mut client = node.connect();
    let rubbish = PrivateKey::from_pkcs8(Zeroizing::new(vec![0x30, 0]));
    let NodeMessage::KeyRefused { request: 8, reason } = client.try_import(rubbish) else {
        panic!("not refused")
    };
    assert_eq!(reason, KeyRefusal::Key(KeyError::Malformed));
    client.import(&keys::p_256());
    client.import(&keys::p_256());
    let NodeMessage::KeyRefused { reason, .. } = client.try_import(keys::p_256().private_key())
    else {
        panic!("not refused")
    };
    assert_eq!(reason, KeyRefusal::TooManyKeys);

    setup = Setup::new();
    setup.config.settings.allow_import = false;
    let node = setup.start();
    let NodeMessage::KeyRefused { reason, .. } =
        node.connect().try_import(keys::p_256().private_key())
    else {
        panic!("not refused")
    };
    assert_eq!(reason, KeyRefusal::ImportDisabled);
}

#[test]
fn imported_keys_end_with_their_connection() {
    let backend = Arc::new(FakeBackend::default());
    let node = Setup::new().start_with(Arc::clone(&backend) as _);
    let mut client = node.connect();
    client.import(&keys::rsa_2048());
    assert_eq!(backend.open_keys(), 1);
    drop(client);
    eventually(|| backend.open_keys() == 0);
}

#[test]
fn waiting_job_can_be_cancelled() {
    let (_node, gate, mut client, key) = gated(Setup::new());
    client.submit(&[job(1, key, &RSA_SIGN, &[0; 32])]);
    gate.wait_at_gate(1);
    client.submit(&[job(2, key, &RSA_SIGN, &[0; 32])]);
    client.send(&ClientMessage::Cancel { job: 2 });
    let cancelled = client.complete();
    assert_eq!((cancelled.id, cancelled.result.err()), (2, Some(JobError::Cancelled)));
    assert_eq!(cancelled.served_by, None);
    client.send(&ClientMessage::Cancel { job: 1 });
    client.send(&ClientMessage::Cancel { job: 99 });
    gate.open_gate();
    let served = client.complete();
    assert_eq!((served.id, served.result.is_ok()), (1, true));
}

#[test]
fn waiting_job_ends_at_its_deadline() {
    // Long enough that, on a busy machine, the first job reaches the gate.
    let setup = Setup::new().limits(|limits| limits.max_budget = Duration::from_secs(1));
    let (_node, gate, mut client, key) = gated(setup);
    client.submit(&[job(1, key, &RSA_SIGN, &[0; 32])]);
    gate.wait_at_gate(1);
    client.submit(&[job(2, key, &RSA_SIGN, &[0; 32])]);
    let expired = client.complete();
    gate.open_gate();
    assert_eq!((expired.id, expired.result.err()), (2, Some(JobError::Expired)));
}

#[test]
fn jobs_above_the_bound_are_answered_busy() {
    let setup = Setup::new().limits(|limits| limits.in_flight = 2);
    let (_node, gate, mut client, key) = gated(setup);
    let jobs: Vec<_> = (0..3).map(|id| job(id, key, &RSA_SIGN, &[0; 32])).collect();
    client.submit(&jobs);
    let busy = client.complete();
    assert_eq!((busy.id, busy.result.err()), (2, Some(JobError::Busy)));
    gate.open_gate();
    assert!(client.complete().result.is_ok());
    assert!(client.complete().result.is_ok());
}

#[test]
fn jobs_of_a_disconnected_client_are_dropped() {
    let (node, gate, mut client, key) = gated(Setup::new());
    let jobs: Vec<_> = (0..50).map(|id| job(id, key, &RSA_SIGN, &[0; 32])).collect();
    client.submit(&jobs);
    gate.wait_at_gate(1);
    drop(client);
    node.until(|status| status.connections == 0 && status.in_flight <= 50);
    gate.open_gate();
    node.until(|status| status.in_flight == 0);
    let mut client = node.connect();
    let key = client.open("www");
    assert!(client.run(key, &RSA_SIGN, &[0; 32]).is_ok());
}

#[test]
fn drain_finishes_jobs_in_flight_and_refuses_new_ones() {
    let (mut node, gate, mut client, key) = gated(Setup::new());
    client.submit(&[job(1, key, &RSA_SIGN, &[0; 32])]);
    gate.wait_at_gate(1);
    node.shut_down();
    assert!(matches!(client.receive(), NodeMessage::Drain));
    client.submit(&[job(2, key, &RSA_SIGN, &[0; 32])]);
    let refused = client.complete();
    assert_eq!((refused.id, refused.result.err()), (2, Some(JobError::Draining)));
    assert!(!node.path().exists());
    assert_eq!(node.handle.status().state, "draining");
    gate.open_gate();
    let served = client.complete();
    assert_eq!((served.id, served.result.is_ok()), (1, true));
    client.ended();
    node.join();
}

#[test]
fn drain_ends_at_its_timeout() {
    let mut setup = Setup::new();
    // Long enough that, on a busy machine, the connection learns of the drain.
    setup.config.drain_timeout = Duration::from_secs(1);
    let (mut node, gate, mut client, key) = gated(setup);
    client.submit(&[job(1, key, &RSA_SIGN, &[0; 32])]);
    gate.wait_at_gate(1);
    node.shut_down();
    assert!(matches!(client.receive(), NodeMessage::Drain));
    client.ended();
    gate.open_gate();
    node.join();
}

#[test]
fn changes_in_the_store_reach_open_sessions() {
    let setup = Setup::new();
    setup.import("www", &keys::p_256(), KeyPolicy::signing(["*"]));
    let node = setup.start();
    let store = node.setup.store();
    let mut client = node.connect();
    let key = client.open("www");
    let mut outcome = || client.run(key, &ECDSA_SIGN, &[0; 32]).err();
    assert_eq!(outcome(), None);

    let nothing = KeyPolicy { operations: [].into_iter().collect(), ..KeyPolicy::signing(["*"]) };
    store.set_policy("www", nothing).unwrap();
    eventually(|| outcome() == Some(JobError::Denied));
    store.set_policy("www", only("uid:4294967294")).unwrap();
    eventually(|| outcome() == Some(JobError::NoSuchKey));
    store.set_policy("www", KeyPolicy::signing(["*"])).unwrap();
    eventually(|| outcome().is_none());
    store.remove("www").unwrap();
    eventually(|| outcome() == Some(JobError::NoSuchKey));
    assert!(matches!(client.ask("www"), NodeMessage::KeyRefused { .. }));

    // A replaced key is served to those that have it open, and no more by the name.
    node.setup.import("www", &keys::p_256(), KeyPolicy::signing(["*"]));
    node.until(|status| status.keys == 1);
    let old = client.open("www");
    node.setup.import("www", &keys::ed25519(), KeyPolicy::signing(["*"]));
    let report = || node.handle.service().keys().keys;
    eventually(|| report().iter().any(|row| row.former && row.spki_sha256.is_some()));
    assert!(client.run(old, &ECDSA_SIGN, &[0; 32]).is_ok());
    let new = client.open("www");
    assert!(client.run(new, &Operation::Ed25519Sign, b"any").is_ok());
    // The policy of the name holds for the former version, too, and so does a removal.
    store.set_policy("www", only("uid:4294967294")).unwrap();
    eventually(|| client.run(old, &ECDSA_SIGN, &[0; 32]) == Err(JobError::NoSuchKey));
    store.set_policy("www", only(&my_uid())).unwrap();
    eventually(|| client.run(old, &ECDSA_SIGN, &[0; 32]).is_ok());
    store.remove_former("www").unwrap();
    eventually(|| client.run(old, &ECDSA_SIGN, &[0; 32]) == Err(JobError::NoSuchKey));
    assert!(client.run(new, &Operation::Ed25519Sign, b"any").is_ok());
}

#[test]
fn former_version_is_opened_by_its_public_half_after_a_restart() {
    let setup = Setup::new();
    let old = setup.import("www", &keys::p_256(), only(&my_uid()));
    let new = setup.import("www", &keys::ed25519(), only(&my_uid()));
    let node = setup.start();
    let mut client = node.connect();
    for (info, operation) in [(&old, &ECDSA_SIGN), (&new, &Operation::Ed25519Sign)] {
        let handle = client.open_by_spki(&info.spki);
        assert!(client.run(handle, operation, &[0; 32]).is_ok());
    }
    let report = node.handle.service().keys();
    let row = |former: bool| {
        let row = report.keys.iter().find(|row| row.former == former).unwrap();
        (row.name.as_str(), row.last_used.is_some())
    };
    assert_eq!((row(false), row(true)), (("www", true), ("www", true)));
}

#[test]
fn policy_that_this_version_cannot_read_ends_the_service_of_its_key() {
    let setup = Setup::new();
    setup.import("www", &keys::p_256(), only(&my_uid()));
    let node = setup.start();
    let mut client = node.connect();
    let key = client.open("www");
    let file = node.setup.config.store.directory.join("www.key");
    let mut bytes = std::fs::read(&file).unwrap();
    // The version of the format.
    bytes[8] = 2;
    std::fs::write(&file, bytes).unwrap();
    eventually(|| client.run(key, &ECDSA_SIGN, &[0; 32]) == Err(JobError::NoSuchKey));
    let report = node.handle.service().keys();
    let problem = report.keys[0].problem.as_deref().unwrap();
    assert!(problem.contains("upgrade millrace"), "{problem}");
}

#[test]
fn node_without_a_single_key_that_it_can_unseal_does_not_start() {
    let setup = Setup::new();
    setup.import("www", &keys::p_256(), only(&my_uid()));
    let kek = setup.directory.path().join("kek");
    std::fs::write(&kek, [7; 32]).unwrap();
    let engine = engine(Arc::new(Software::new()));
    let error = setup.config.service(engine, setup.store()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("www") && text.contains("--kek-file"), "{text}");
}

#[test]
fn broken_key_file_is_skipped_until_it_is_repaired() {
    let setup = Setup::new();
    setup.import("good", &keys::p_256(), KeyPolicy::signing(["*"]));
    let broken = setup.config.store.directory.join("www.key");
    std::fs::write(&broken, b"rubbish").unwrap();
    let node = setup.start();
    let status = node.handle.status();
    assert_eq!((status.keys, status.keys_broken), (1, 1));
    let mut client = node.connect();
    client.open("good");
    node.setup.import("www", &keys::ed25519(), KeyPolicy::signing(["*"]));
    assert_eq!(node.handle.reload().unwrap().broken, 0);
    client.open("www");
    // If the file of a key in service breaks, the key stays in service.
    let file = node.setup.config.store.directory.join("good.key");
    std::fs::write(&file, b"rubbish").unwrap();
    let reloaded = node.handle.reload().unwrap();
    assert_eq!((reloaded.changed, reloaded.broken), (0, 1));
    assert_eq!(node.handle.status().keys_broken, 1);
    client.open("good");
}

#[test]
fn client_that_does_not_read_is_disconnected_others_are_served() {
    let options = FakeOptions {
        key_type: KeyType::Rsa { bits: 2048 },
        output: vec![0; 8000],
        ..FakeOptions::default()
    };
    let setup = Setup::new().limits(|limits| limits.write_timeout = Duration::from_millis(100));
    let node = setup.start_with(Arc::new(FakeBackend::new(options)));
    let mut other = node.connect();
    let (other_key, _) = other.import(&keys::rsa_2048());
    let mut client = node.connect();
    let (key, _) = client.import(&keys::rsa_2048());
    // Far more than a socket buffers: 8 MB of results.
    for batch in 0..10 {
        let jobs: Vec<_> =
            (0..100).map(|id| job(batch * 100 + id, key, &RSA_SIGN, &[0; 32])).collect();
        let mut bytes = Vec::new();
        millrace_wire::encode_submit_batch(&jobs, &mut bytes);
        // The node stops reading before it has all jobs, and may close the connection during the write.
        client.stream.set_nonblocking(true).unwrap();
        if client.stream.write_all(&bytes).is_err() {
            break;
        }
        assert!(other.run(other_key, &RSA_SIGN, &[0; 32]).is_ok());
    }
    node.until(|status| status.connections == 1 && status.faults == 1);
    assert!(other.run(other_key, &RSA_SIGN, &[0; 32]).is_ok());
}

#[test]
fn connections_are_capped_in_total_and_per_identity() {
    for per_identity in [false, true] {
        let setup = Setup::new().limits(|limits| {
            if per_identity {
                limits.connections_per_identity = 2;
            } else {
                limits.connections = 2;
            }
        });
        let node = setup.start();
        let first = node.connect();
        let _second = node.connect();
        assert_eq!(node.silent().fault(), Fault::TooManyConnections);
        drop(first);
        node.until(|status| status.connections == 1);
        let mut ping = Vec::new();
        ClientMessage::Ping { token: 1 }.encode(&mut ping);
        eventually(|| {
            let mut client = node.silent();
            // The node may close a connection above the bound before this write.
            let _ = client.stream.write_all(&ping);
            matches!(client.try_receive(), Ok(Some(NodeMessage::Fault(Fault::Protocol))))
        });
    }
}

#[test]
fn metrics_health_and_status_are_served() {
    let mut setup = Setup::new();
    setup.config.metrics = Some("127.0.0.1:0".parse().unwrap());
    let socket = setup.directory.path().join("run/status.sock");
    setup.config.status_socket = Some(socket.clone());
    setup.import("www", &keys::p_256(), KeyPolicy::signing(["*"]));
    let node = setup.start();
    let mut client = node.connect();
    let key = client.open("www");
    client.run(key, &ECDSA_SIGN, &[0; 32]).unwrap();
    client.run(key, &Operation::RsaRaw, &[0; 32]).unwrap_err();

    let address = node.metrics.unwrap();
    let metrics = get(tcp(address), "/metrics");
    for line in [
        "millrace_jobs_completed_total{backend=\"software\",operation=\"ecdsa-sign\"} 1",
        "millrace_jobs_refused_total{reason=\"denied\"} 1",
        "millrace_connections 1",
        "millrace_keys 1",
        "millrace_draining 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
    let health = get(tcp(address), "/healthz");
    assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("ready\n"), "{health}");
    let answer = get(UnixStream::connect(&socket).unwrap(), "/status");
    let (_, json) = answer.split_once("\r\n\r\n").unwrap();
    let status: Status = serde_json::from_str(json).unwrap();
    assert_eq!((status.node.as_str(), status.state.as_str()), ("node-under-test", "ready"));
    assert_eq!(status.operations[0].operation, "ecdsa-sign");
    assert_eq!(status.errors[0].reason, "denied");
    assert!(get(tcp(address), "/nothing").starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn address_that_is_taken_is_named_in_the_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut setup = Setup::new();
    setup.config.metrics = Some(address);
    let bind = |setup: &Setup| {
        let engine = engine(Arc::new(Software::new()));
        let service = setup.config.service(engine, setup.store()).unwrap();
        Node::bind(setup.config.clone(), service).map(drop)
    };
    let error = bind(&setup).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()) && error.contains("metrics"), "{error}");
    // A node that failed to start leaves no files.
    assert!(!setup.config.unix.as_ref().unwrap().path.exists());
    setup.config.metrics = Some("192.0.2.1:1".parse().unwrap());
    assert!(bind(&setup).unwrap_err().to_string().contains("loopback"));
    setup.config.metrics = None;
    let file = setup.directory.path().join("file");
    std::fs::File::create(&file).unwrap().write_all(b"precious").unwrap();
    setup.config.unix = Some(UnixConfig::at(&file));
    assert!(bind(&setup).unwrap_err().to_string().contains("not a socket"));
}

#[test]
fn message_that_is_not_completed_in_time_ends_the_connection() {
    let setup = Setup::new().limits(|limits| limits.message_timeout = Duration::from_millis(50));
    let node = setup.start();
    let mut idle = node.connect();
    let mut half = node.connect();
    half.write(&[0; 3]);
    assert_eq!(half.fault(), Fault::TimedOut);
    // No message has begun here.
    idle.import(&keys::p_256());
}
