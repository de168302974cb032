// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Device processes that take over from each other, here as devices over one journal: what was under way is read again
//! once, and then fails.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use millrace_backends::software::Software;
use millrace_engine::backend::Backend;
use millrace_engine::{Engine, EngineConfig};
use millrace_service::Service;
use millrace_service::settings::Settings;
use millrace_service::store::{KekSource, KeyStore};
use millrace_testkit::faulty::{FaultControls, FaultyBackend};
use millrace_testkit::keys;
use millrace_testkit::wait::until;
use millrace_virtio::device::DeviceLimits;
use millrace_virtio::job_target::ServiceTarget;
use millrace_virtio::spec::Status;
use millrace_virtio::vhost::{Devices, Journal, SocketSettings, TargetOpener};
use millrace_virtio_guest::{
    Guest, INDIRECT_FEATURE, Response, Ticket, akcipher_request, cipher_request, cipher_session,
    rsa_session,
};
use openssl::rsa::{Padding, Rsa};

/// Stand-in for a device process, over the journal that it is given.
struct DeviceProcess {
    socket: PathBuf,
    gate: FaultControls,
    devices: Devices,
    _folder: tempfile::TempDir,
}

impl DeviceProcess {
    fn start(journal: &Journal) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let backend = FaultyBackend::new(Arc::new(Software::new()));
        let gate = backend.controls();
        let backend: Arc<dyn Backend> = Arc::new(backend);
        let engine = Engine::start(EngineConfig::default(), vec![backend]).expect("an engine");
        let store = KeyStore::open(folder.path().join("keys"), &KekSource::Absent);
        let service = Service::new("test", Settings::default(), engine, store.expect("a store"));
        let service = service.expect("a service");
        let pools: TargetOpener = Arc::new(move |identity, sink| {
            Ok(Box::new(ServiceTarget::open(&service, identity, sink)?))
        });
        let socket = folder.path().join("vm.sock");
        let settings = SocketSettings {
            path: socket.clone(),
            identity: "vm:test".into(),
            data_queues: 1,
            limits: DeviceLimits::default(),
        };
        let file = journal.file().as_fd().try_clone_to_owned().expect("a file");
        let journal = Journal::open(file).expect("a journal");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let devices = Devices::default();
        devices.serve(pools, settings, listener, journal).expect("a device");
        Self { socket, gate, devices, _folder: folder }
    }
}

fn offer(guest: &mut Guest, session: u64, count: u8) -> Vec<(Ticket, Vec<u8>)> {
    let request = akcipher_request(0x401, session, 256, 256);
    let mut offered = Vec::new();
    for n in 1..=count {
        let block = [&[0][..], &[n; 255]].concat();
        let ticket = guest.ask(0, &[&request, &block], 257).expect("room");
        offered.push((ticket, block));
    }
    guest.kick(0).expect("a kick");
    offered
}

/// Kicks until the request has its answer.
fn wait(guest: &mut Guest, ticket: Ticket) -> Response {
    let mut answer = None;
    until("the request is answered", || {
        guest.kick(0).expect("a kick");
        guest.collect(0).expect("a ring");
        answer = guest.take(ticket).expect("memory");
        answer.is_some()
    });
    answer.expect("an answer")
}

/// Kicks until a device has this number of requests under way.
fn wait_in_flight(guest: &Guest, device: &DeviceProcess, count: u64) {
    until("the device has the requests", || {
        guest.kick(0).expect("a kick");
        device.devices.status()[0].statistics.in_flight >= count
    });
}

fn check(guest: &mut Guest, key: &Rsa<openssl::pkey::Private>, offered: Vec<(Ticket, Vec<u8>)>) {
    for (ticket, block) in offered {
        let answer = wait(guest, ticket);
        let mut expected = vec![0; 256];
        key.private_encrypt(&block, &mut expected, Padding::NONE).expect("a result");
        assert_eq!(answer.result(), expected);
    }
}

#[test]
fn request_under_way_is_read_again_once_and_then_fails() {
    let key = Rsa::private_key_from_pem(keys::rsa_2048().pem.as_bytes()).expect("a key");
    let der = key.private_key_to_der().expect("DER");
    let journal = Journal::create().expect("a journal");
    journal.new_connection();

    let first = DeviceProcess::start(&journal);
    let mut guest = Guest::connect(&first.socket, 1, INDIRECT_FEATURE).expect("a device");
    let created = guest.create(&[&rsa_session(true, der.len(), 0, 0), &der]);
    let session = created.expect("an answer").expect("a session");
    let answered = offer(&mut guest, session, 30);
    check(&mut guest, &key, answered);
    first.gate.close_gate();
    let once = offer(&mut guest, session, 20);
    first.gate.wait_at_gate(1);

    // The second process serves what the first one has left.
    let second = DeviceProcess::start(&journal);
    guest.reconnect(&second.socket).expect("a device");
    check(&mut guest, &key, once);
    second.gate.close_gate();
    let twice = offer(&mut guest, session, 20);
    second.gate.wait_at_gate(1);

    // The third one dies as well, the fourth one gives up on them.
    let third = DeviceProcess::start(&journal);
    third.gate.close_gate();
    guest.reconnect(&third.socket).expect("a device");
    wait_in_flight(&guest, &third, 20);
    third.gate.wait_at_gate(1);
    let fresh = offer(&mut guest, session, 1);
    // It still runs, as a dead process does not: it must not take the request after the fourth one has begun.
    wait_in_flight(&guest, &third, 21);
    let fourth = DeviceProcess::start(&journal);
    guest.reconnect(&fourth.socket).expect("a device");
    for (ticket, _) in twice {
        assert_eq!(wait(&mut guest, ticket).status(), Status::Err as u8);
    }
    check(&mut guest, &key, fresh);
    let last = offer(&mut guest, session, 20);
    check(&mut guest, &key, last);
    for process in [first, second, third] {
        process.gate.open_gate();
    }
}

#[test]
fn slow_request_that_many_others_overtook_is_found_again() {
    let key = Rsa::private_key_from_pem(keys::rsa_2048().pem.as_bytes()).expect("a key");
    let der = key.private_key_to_der().expect("DER");
    let journal = Journal::create().expect("a journal");
    journal.new_connection();
    let first = DeviceProcess::start(&journal);
    let mut guest = Guest::connect(&first.socket, 1, INDIRECT_FEATURE).expect("a device");
    let created = guest.create(&[&rsa_session(true, der.len(), 0, 0), &der]);
    let session = created.expect("an answer").expect("a session");
    let aes = guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]);
    let aes = aes.expect("an answer").expect("a session");
    first.gate.close_gate();
    let slow = offer(&mut guest, session, 2);
    first.gate.wait_at_gate(1);
    // More than the ring has entries: the ring of available requests no longer names the slow ones.
    let request = cipher_request(0, aes, 16, 16, 16);
    for _ in 0..1100 {
        let answer = guest.request(0, &[&request, &[1; 16], &[2; 16]], 17);
        assert_eq!(answer.expect("an answer").status(), 0);
    }
    let second = DeviceProcess::start(&journal);
    guest.reconnect(&second.socket).expect("a device");
    check(&mut guest, &key, slow);
    first.gate.open_gate();
}
