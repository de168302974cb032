// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A guest that attacks: rings that no driver builds, memory that changes, floods, and raw bytes on the socket. After
//! each attack the device still serves.

mod support;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_testkit::keys;
use millrace_virtio::MAX_KEYS;
use millrace_virtio::session::MAX_SESSIONS;
use millrace_virtio::spec::Status;
use millrace_virtio_guest::{
    Descriptor, Guest, INDIRECT, MEMORY_LEN, NEXT, QUEUE_SIZE, WRITE, akcipher_request,
    cipher_request, cipher_session, control_request, rsa_session, words,
};
use openssl::bn::BigNumContext;
use openssl::ec::{EcGroup, EcKey, PointConversionForm};
use openssl::nid::Nid;
use openssl::rsa::Rsa;
use vm_memory::{Bytes, GuestAddress};

use support::Machine;

/// A session for AES-256-CBC encryption.
fn cipher(guest: &mut Guest) -> u64 {
    guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]).expect("an answer").expect("a session")
}

/// The device encrypts a block rightly.
fn serves(guest: &mut Guest) {
    let session = cipher(guest);
    let request = cipher_request(0, session, 16, 32, 32);
    let answer = guest.request(0, &[&request, &[1; 16], &[2; 32]], 33).expect("an answer");
    let expected = openssl::symm::encrypt(
        openssl::symm::Cipher::aes_256_cbc(),
        &[7; 32],
        Some(&[1; 16]),
        &[2; 32],
    )
    .expect("a result");
    assert_eq!(answer.result(), &expected[..32]);
    assert_eq!(guest.destroy(0, session).expect("an answer"), 0);
}

fn descriptor(address: u64, len: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { address, len, flags, next }
}

#[test]
fn malformed_chain_is_answered_and_the_next_request_served() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let session = cipher(&mut guest);
    let header = cipher_request(0, session, 16, 16, 16);
    let outside = MEMORY_LEN as u64;
    for queue in [0, 1] {
        let good = guest.buffer(&header).expect("room");
        let body = guest.buffer(&[3; 32]).expect("room");
        let answer = guest.reserve(64);
        let read = |address, len| descriptor(address, len, 0, 0);
        let write = |address, len| descriptor(address, len, WRITE, 0);
        let table = |guest: &mut Guest, entries: &[Descriptor]| {
            let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.bytes()).collect();
            guest.buffer(&bytes).expect("room")
        };
        let own_loop =
            table(&mut guest, &[descriptor(good, 72, NEXT, 1), descriptor(body, 32, NEXT, 0)]);
        let nested = table(&mut guest, &[descriptor(own_loop, 32, INDIRECT, 0)]);
        let wild =
            table(&mut guest, &[descriptor(good, 72, NEXT, 9999), descriptor(body, 32, 0, 0)]);
        let indirect = |address, len| vec![descriptor(address, len, INDIRECT, 0)];
        let chains: Vec<(&str, Vec<Descriptor>)> = vec![
            ("no room for a status", vec![read(good, 72), read(body, 32)]),
            ("nothing to read", vec![write(answer, 17)]),
            ("room before the request", vec![write(answer, 17), read(good, 72)]),
            ("zero lengths", vec![read(good, 0), read(body, 0), write(answer, 0)]),
            (
                "source outside the memory",
                vec![read(good, 72), read(outside, 32), write(answer, 17)],
            ),
            (
                "source over the end of the memory",
                vec![read(good, 72), read(outside - 8, 32), write(answer, 17)],
            ),
            (
                "source at the end of all addresses",
                vec![read(good, 72), read(u64::MAX - 3, 32), write(answer, 17)],
            ),
            ("answer outside the memory", vec![read(good, 72), read(body, 32), write(outside, 17)]),
            (
                "answer at the end of all addresses",
                vec![read(good, 72), read(body, 32), write(u64::MAX, 17)],
            ),
            ("4 GiB of source", vec![read(good, 72), read(body, u32::MAX), write(answer, 17)]),
            ("4 GiB of answer", vec![read(good, 72), read(body, 32), write(answer, u32::MAX)]),
            ("8 GiB in all", vec![read(good, u32::MAX), read(body, u32::MAX), write(answer, 17)]),
            ("table outside the memory", indirect(outside, 32)),
            ("table of no length", indirect(own_loop, 0)),
            ("table of an odd length", indirect(own_loop, 17)),
            ("table of 4 GiB", indirect(own_loop, 0xffff_fff0)),
            ("loop in a table", indirect(own_loop, 32)),
            ("table in a table", indirect(nested, 16)),
            ("next outside a table", indirect(wild, 32)),
            (
                "answer over the rings",
                vec![read(good, 72), read(body, 32), write(QUEUE_SIZE.into(), 17)],
            ),
        ];
        for (name, chain) in chains {
            let ticket = guest.offer(queue, chain, answer, 17).expect("room");
            guest.kick(queue).expect("a kick");
            let response = guest.wait(ticket);
            let response = response.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(response.len <= 17, "{name}: {}", response.len);
        }
        serves(&mut guest);
    }
    let statistics = machine.devices.status();
    let statistics = &statistics[0].statistics;
    assert!(statistics.malformed >= 20, "{statistics:?}");
}

#[test]
fn loop_between_ring_descriptors_ends() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let buffer = guest.buffer(&[0; 64]).expect("room");
    // A chain of one that names itself, made after it was offered so that the driver still knows its head.
    let ticket = guest.offer(0, vec![descriptor(buffer, 64, 0, 0)], buffer, 1).expect("room");
    guest.set_descriptor(0, 0, descriptor(buffer, 64, NEXT, 0)).expect("a descriptor");
    guest.kick(0).expect("a kick");
    guest.wait(ticket).expect("an answer");
    serves(&mut guest);
}

#[test]
fn available_index_that_jumps_is_ignored() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    serves(&mut guest);
    guest.set_available_index(0, 0x7fff).expect("an index");
    guest.kick(0).expect("a kick");
    // The control ring is served beside the broken one.
    for _ in 0..10 {
        let session = cipher(&mut guest);
        assert_eq!(guest.destroy(0, session).expect("an answer"), 0);
    }
    // A reset of the driver mends the ring.
    guest.stop().expect("positions");
    guest.forget_rings().expect("rings");
    guest.start().expect("rings");
    serves(&mut guest);
}

#[test]
fn memory_that_changes_during_a_request_breaks_no_bound() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let session = cipher(&mut guest);
    let stop = AtomicBool::new(false);
    let memory = guest.memory.clone();
    // Requests lie in one place, and a second thread rewrites their lengths all the time.
    let requests = 8_u64 << 20;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let lengths = [0_u32, 1, 15, 16, 17, 4096, 0x7fff_ffff, u32::MAX];
            let mut turn = 0_usize;
            while !stop.load(Ordering::Relaxed) {
                for offset in [0_u64, 8, 24, 28, 32, 64] {
                    turn = turn.wrapping_add(7);
                    let place = GuestAddress(requests + offset);
                    let _ = memory.write_obj(lengths[turn % lengths.len()], place);
                    // The length of the second descriptor of the ring.
                    let place = GuestAddress(16 + 8);
                    let _ = memory.write_obj(lengths[(turn / 7) % lengths.len()], place);
                }
            }
        });
        let end = Instant::now() + Duration::from_secs(2);
        let header = cipher_request(0, session, 16, 4096, 4096);
        let mut answers = 0;
        while Instant::now() < end {
            let _ = guest.memory.write_slice(&header, GuestAddress(requests));
            let answer = guest.reserve(4200);
            let chain = vec![
                descriptor(requests, 72, 0, 0),
                descriptor(requests + 1024, 16, 0, 0),
                descriptor(requests + 2048, 4096, 0, 0),
                descriptor(answer, 4097, WRITE, 0),
            ];
            let ticket = guest.offer(0, chain, answer, 4097).expect("room");
            guest.kick(0).expect("a kick");
            let response = guest.wait(ticket).expect("an answer");
            assert!(response.len as usize <= MEMORY_LEN);
            answers += 1;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(answers > 10, "{answers}");
    });
    serves(&mut guest);
}

#[test]
fn foreign_and_destroyed_sessions_are_invalid() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let der = Rsa::private_key_from_pem(keys::rsa_2048().pem.as_bytes())
        .and_then(|key| key.private_key_to_der())
        .expect("DER");
    let rsa = guest
        .create(&[&rsa_session(true, der.len(), 0, 0), &der])
        .expect("an answer")
        .expect("a session");
    let aes = cipher(&mut guest);
    let status = |guest: &mut Guest, request: &[u8], body: &[u8], room| {
        guest.request(0, &[request, body], room).expect("an answer").status()
    };
    let invalid = Status::InvalidSession as u8;
    for id in [0, 99, u64::MAX, rsa + aes + 1] {
        let request = akcipher_request(0x401, id, 255, 256);
        assert_eq!(status(&mut guest, &request, &[1; 255], 257), invalid);
        assert_eq!(guest.destroy(4, id).expect("an answer"), invalid);
    }
    // A session of another service.
    let request = akcipher_request(0x401, aes, 255, 256);
    assert_eq!(status(&mut guest, &request, &[1; 255], 257), invalid);
    let request = cipher_request(0, rsa, 0, 16, 16);
    assert_eq!(status(&mut guest, &request, &[1; 16], 17), invalid);
    assert_eq!(guest.destroy(0, rsa).expect("an answer"), invalid);
    // Twice.
    assert_eq!(guest.destroy(4, rsa).expect("an answer"), 0);
    assert_eq!(guest.destroy(4, rsa).expect("an answer"), invalid);
    let request = akcipher_request(0x401, rsa, 255, 256);
    assert_eq!(status(&mut guest, &request, &[1; 255], 257), invalid);
}

/// A driver reads 16 bytes after it asked for a session, and one byte after any other request.
#[test]
fn unknown_control_opcode_gets_one_byte_of_status() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let queue = guest.control_queue();
    // Low byte 2 or 4 without a service, of another service, and with high bytes that no opcode has.
    for (opcode, len) in [
        (0x0002, 16),
        (0x0404, 16),
        (0x0502, 1),
        (0x0402, 1),
        (0x0004, 1),
        (0xffff_ff02, 1),
        (0x0001_0002, 1),
        (0x0003, 1),
    ] {
        let request = control_request(opcode, &[]);
        let answer = guest.request(queue, &[&request], 16).expect("an answer");
        assert_eq!(answer.len, len, "opcode {opcode:#x}");
        let status = answer.bytes[if len == 16 { 8 } else { 0 }];
        assert_ne!(status, Status::Ok as u8, "opcode {opcode:#x}");
    }
    serves(&mut guest);
}

#[test]
fn session_and_key_floods_end_at_their_bounds() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    for _ in 0..MAX_SESSIONS {
        cipher(&mut guest);
    }
    let refused = guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]).expect("an answer");
    assert_eq!(refused, Err(Status::Err as u32));
    let statistics = machine.devices.status();
    let statistics = &statistics[0].statistics;
    assert_eq!(statistics.sessions, MAX_SESSIONS as u64);
    // Another machine on the same service has its own bound.
    let other = Machine::start();
    serves(&mut other.connect(0));
    // A driver that starts over has no sessions.
    guest.stop().expect("positions");
    guest.forget_rings().expect("rings");
    guest.start().expect("rings");
    serves(&mut guest);
}

#[test]
fn key_flood_ends_at_its_bound_and_the_key_unused_for_longest_gives_way() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("a curve");
    let mut context = BigNumContext::new().expect("a context");
    let mut create = |guest: &mut Guest| {
        let key = EcKey::generate(&group).expect("a key");
        let form = PointConversionForm::UNCOMPRESSED;
        let point = key.public_key().to_bytes(&group, form, &mut context).expect("a point");
        let len = u32::try_from(point.len()).expect("a short key");
        let request = control_request(0x404, &words(&[2, 1, len, 3]));
        guest.create(&[&request, &point]).expect("an answer")
    };
    let keys = || machine.devices.status()[0].statistics.keys;
    // Keys that no session uses give way to others.
    for _ in 0..MAX_KEYS + 20 {
        let session = create(&mut guest).expect("a session");
        assert_eq!(guest.destroy(4, session).expect("an answer"), 0);
    }
    assert_eq!(keys(), MAX_KEYS as u64);
    // Keys in use do not.
    for _ in 0..MAX_KEYS {
        create(&mut guest).expect("a session");
    }
    assert_eq!(create(&mut guest), Err(Status::Err as u32));
    assert_eq!(keys(), MAX_KEYS as u64);
    serves(&mut guest);
}

#[test]
fn malformed_key_is_refused() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let good = Rsa::private_key_from_pem(keys::rsa_2048().pem.as_bytes())
        .and_then(|key| key.private_key_to_der())
        .expect("DER");
    let mut wrong: Vec<Vec<u8>> = vec![vec![0], vec![0x30, 0x84, 0xff, 0xff, 0xff, 0xff]];
    for cut in [1, 4, 100, good.len() - 1] {
        wrong.push(good[..cut].to_vec());
    }
    for position in [0, 1, 4, 5, 20, 300, 800, good.len() - 1] {
        let mut key = good.clone();
        key[position] ^= 0x55;
        wrong.push(key);
    }
    wrong.push([&good[..], &[0; 40]].concat());
    for key in &wrong {
        for private in [true, false] {
            let request = rsa_session(private, key.len(), 0, 0);
            let created = guest.create(&[&request, key]).expect("an answer");
            assert!(created.is_err(), "{} bytes", key.len());
        }
    }
    serves(&mut guest);
}

#[test]
fn reset_with_jobs_under_way_loses_and_mixes_nothing() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let key = Rsa::private_key_from_pem(keys::rsa_2048().pem.as_bytes()).expect("a key");
    let der = key.private_key_to_der().expect("DER");
    for earlier in [0, 1, 1] {
        let session = guest
            .create(&[&rsa_session(true, der.len(), 0, 0), &der])
            .expect("an answer")
            .expect("a session");
        let request = akcipher_request(0x401, session, 255, 256);
        let tickets: Vec<_> =
            (0..40).map(|n| guest.ask(0, &[&request, &[n; 255]], 257).expect("room")).collect();
        guest.kick(0).expect("a kick");
        // The device answers what it has read before it lets go of the ring.
        let positions = guest.stop().expect("positions");
        guest.collect(0).expect("answers");
        let answered = tickets
            .iter()
            .filter(|ticket| guest.take(**ticket).expect("an answer").is_some())
            .count();
        assert_eq!(answered + earlier, positions[0] as usize);
        guest.forget_rings().expect("rings");
        guest.start().expect("rings");
        serves(&mut guest);
    }
}

#[test]
fn paused_machine_keeps_its_sessions() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let session = cipher(&mut guest);
    guest.stop().expect("positions");
    guest.start().expect("rings");
    let request = cipher_request(0, session, 16, 16, 16);
    let answer = guest.request(0, &[&request, &[1; 16], &[2; 16]], 17).expect("an answer");
    assert_eq!(answer.status(), 0);
}

#[test]
fn raw_bytes_on_the_socket_leave_the_device_in_service() {
    let machine = Machine::start();
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut byte = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()[3]
    };
    serves(&mut machine.connect(0));
    let before = descriptors();
    for round in 0..60_u32 {
        let mut stream = UnixStream::connect(&machine.socket).expect("a connection");
        // A header of every request number with a wrong size, then anything.
        let mut bytes = [round % 48, 1, round * 37 % 4096].map(u32::to_le_bytes).concat();
        bytes.extend((0..round * 7).map(|_| byte()));
        let _ = stream.write_all(&bytes);
    }
    serves(&mut machine.connect(0));
    let end = Instant::now() + Duration::from_secs(20);
    while descriptors() > before + 4 {
        assert!(Instant::now() < end, "{before} descriptors, now {}", descriptors());
        std::thread::sleep(Duration::from_millis(20));
    }
}
