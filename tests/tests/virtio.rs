// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Devices for virtual machines on real processes, with a driver in this one: what a guest sees when the device
//! process, the node or the program changes under it.

use std::fs::{self, File};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use millrace_testkit::keys;
use millrace_tests::machine::{Machine, RsaLoad};
use millrace_tests::node::Node;
use millrace_tests::process;
use millrace_tests::wait;
use millrace_virtio_guest::{Guest, cipher_request, cipher_session};
use rustix::cmsg_space;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn killed_device_process_costs_a_guest_no_request_and_no_session() {
    let machine = Machine::start(&["--workers", "2"]);
    let mut guest = machine.connect();
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    let aes = guest
        .create(&[&cipher_session(3, 32, 1), &[7; 32]])
        .expect("an answer")
        .expect("a session");
    for _ in 0..4 {
        load.offer(&mut guest, 200);
        machine.kill_device_process();
        assert_eq!(load.finish(&mut guest), 0, "every request was served");
        // A session from before, the control queue, and the configuration space.
        let request = cipher_request(0, aes, 16, 16, 16);
        let answer = guest.request(0, &[&request, &[1; 16], &[2; 16]], 17);
        assert_eq!(answer.expect("an answer").status(), 0);
        let created = guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]);
        let session = created.expect("an answer").expect("a session");
        assert!(session > aes, "no id is used twice");
        assert_eq!(guest.destroy(0, session).expect("an answer"), 0);
        assert_eq!(guest.config().expect("a space")[0], 1);
    }
    assert_eq!(load.answered, 800);
    // A driver that starts over has no sessions.
    guest.stop().expect("positions");
    guest.forget_rings().expect("rings");
    guest.start().expect("rings");
    let created = guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]);
    created.expect("an answer").expect("a session");
    let status = machine.status();
    assert_eq!(status["statistics"]["sessions"], 1, "{status}");
}

#[test]
fn device_goes_on_after_two_kills_with_requests_under_way() {
    let machine = Machine::start(&["--workers", "1", "--backends", "software"]);
    let mut guest = machine.connect();
    let mut load = RsaLoad::new(&mut guest, keys::rsa_4096().pem);
    load.offer(&mut guest, 500);
    machine.kill_device_process();
    machine.kill_device_process();
    // Those that the first two processes left are errors; on a slow machine they may have ended before.
    load.finish(&mut guest);
    load.offer(&mut guest, 10);
    assert_eq!(load.finish(&mut guest), 0);
}

#[test]
fn upgrade_of_the_front_process_keeps_its_id_and_every_request() {
    let machine = Machine::start(&["--workers", "2"]);
    let mut guest = machine.connect();
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    for _ in 0..3 {
        load.offer(&mut guest, 200);
        let before = machine.status()["device-process"].clone();
        machine.front.signal(Signal::HUP);
        wait::until("the new program serves", || machine.status()["device-process"] != before);
        assert_eq!(load.finish(&mut guest), 0, "every request was served");
    }
    assert_eq!(machine.status()["connected"], true);
    // A second machine connects to the same socket when the first is gone.
    drop(guest);
    wait::until("the first machine is gone", || machine.status()["connected"] == false);
    let mut guest = machine.connect();
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    load.offer(&mut guest, 10);
    assert_eq!(load.finish(&mut guest), 0);
}

#[test]
fn front_process_waits_for_the_end_of_a_killed_ones_device_process() {
    let mut machine = Machine::start(&[]);
    machine.front.kill();
    let inner = machine.folder().join("vm.sock.d/0");
    wait::until("the device process has ended", || UnixStream::connect(&inner).is_err());
    fs::remove_file(&inner).expect("what it left");
    fs::remove_file(&machine.socket).expect("what it left");
    // In place of a device process that ends when the next front process is already there.
    let former = UnixListener::bind(&inner).expect("a socket");
    let socket = machine.socket.clone();
    let end = thread::spawn(move || {
        wait::until("the next front process is there", || socket.exists());
        drop(former);
    });
    machine.restart_front();
    end.join().expect("it ended");
    assert_eq!(machine.status()["connected"], false);
}

/// Numbers of vhost-user messages.
const GET_FEATURES: u32 = 1;
const SET_MEM_TABLE: u32 = 5;
const SET_LOG_BASE: u32 = 6;
const SET_VRING_NUM: u32 = 8;
const GET_VRING_BASE: u32 = 11;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const UNKNOWN: u32 = 55;

const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 << 3;

/// A vhost-user message of a monitor.
fn message(code: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).expect("a length");
    [&[code, flags, len].map(u32::to_le_bytes).concat(), body].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A monitor that has agreed on acknowledgements.
fn monitor(machine: &Machine) -> UnixStream {
    let mut stream = UnixStream::connect(&machine.socket).expect("a socket");
    stream.set_read_timeout(Some(wait::SOON)).expect("a timeout");
    stream.write_all(&message(GET_PROTOCOL_FEATURES, VERSION, &[])).expect("a question");
    let mut answer = [0; 20];
    stream.read_exact(&mut answer).expect("an answer");
    stream.write_all(&message(SET_PROTOCOL_FEATURES, VERSION, &answer[12..])).expect("a choice");
    stream
}

/// Waits until the front process has disconnected a monitor.
#[track_caller]
fn is_disconnected(stream: &mut UnixStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the monitor is still connected: {error}"),
    }
}

/// The device serves the next monitor.
fn serves(machine: &Machine) {
    let mut guest = machine.connect();
    guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]).expect("an answer").expect("a session");
}

#[test]
fn monitor_whose_message_is_refused_is_disconnected_and_delays_no_upgrade() {
    let machine = Machine::start(&[]);
    let bad = [
        message(GET_VRING_BASE, VERSION, &words(&[7, 0])),
        message(SET_VRING_NUM, VERSION, &words(&[0, 0])),
        message(SET_LOG_BASE, VERSION | NEED_REPLY, &words(&[4096, 0, 0, 0])),
        message(UNKNOWN, VERSION | NEED_REPLY, &[]),
    ];
    for message in bad {
        let mut monitor = monitor(&machine);
        monitor.write_all(&message).expect("room");
        is_disconnected(&mut monitor);
        serves(&machine);
    }
    machine.upgrade();
    serves(&machine);
    assert_eq!(machine.status()["restarts"], 0, "no device process died of it");
}

#[test]
fn monitor_that_reads_or_says_nothing_more_is_disconnected_and_delays_no_upgrade() {
    let machine = Machine::start(&[]);
    let mut silent = monitor(&machine);
    let questions = message(GET_FEATURES, VERSION, &[]).repeat(64);
    silent.set_write_timeout(Some(wait::SOON)).expect("a timeout");
    // Until the front process has no room for an answer and has hung up.
    while silent.write_all(&questions).is_ok() {}
    machine.upgrade();
    is_disconnected(&mut silent);
    serves(&machine);
    let mut half = monitor(&machine);
    half.write_all(&message(GET_FEATURES, VERSION, &[])[..6]).expect("room");
    machine.upgrade();
    is_disconnected(&mut half);
    serves(&machine);
}

#[test]
fn monitor_that_cuts_the_memory_of_its_machine_is_disconnected_when_the_device_process_dies() {
    let machine = Machine::start(&[]);
    let mut monitor = monitor(&machine);
    let memory = memfd_create("memory", MemfdFlags::CLOEXEC).map(File::from).expect("memory");
    memory.set_len(1 << 20).expect("a length");
    let table = [words(&[1, 0]), words(&[0, 0, 1 << 20, 0, 0, 0, 0, 0])].concat();
    let table = message(SET_MEM_TABLE, VERSION | NEED_REPLY, &table);
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [memory.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(&monitor, &[IoSlice::new(&table)], &mut control, SendFlags::empty()).expect("sent");
    let mut taken = [0; 20];
    monitor.read_exact(&mut taken).expect("an acknowledgement");
    assert_eq!(taken[12..], [0; 8], "the table is taken");
    machine.kill_device_process();
    monitor.write_all(&message(GET_FEATURES, VERSION, &[])).expect("room");
    monitor.read_exact(&mut taken).expect("whole memory is served");
    memory.set_len(4096).expect("a length");
    machine.kill_device_process();
    is_disconnected(&mut monitor);
    serves(&machine);
}

#[test]
fn machine_that_moves_keeps_its_sessions_also_when_device_processes_die_on_the_way() {
    let [first, second] = [(); 2].map(|()| Machine::start(&["--workers", "1"]));
    assert_eq!(first.status()["device-state"], "no-monitor");
    let mut guest = first.connect();
    assert_eq!(first.status()["device-state"], "moves-with-the-machine");
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    load.offer(&mut guest, 20);
    // A machine that is paused has every answer before its rings have stopped.
    guest.stop().expect("positions");
    first.kill_device_process();
    let state = guest.save_state().expect("a state of the next device process");
    guest.move_to(&second.socket, &state).expect("a device that goes on");
    assert_eq!(load.finish(&mut guest), 0);
    second.kill_device_process();
    load.offer(&mut guest, 20);
    assert_eq!(load.finish(&mut guest), 0, "the sessions outlive the process that loaded them");
    assert_eq!(second.status()["statistics"]["sessions"], 1);
}

#[test]
fn monitor_that_takes_no_state_reads_as_unmigratable() {
    let machine = Machine::start(&[]);
    let mut monitor = UnixStream::connect(&machine.socket).expect("a connection");
    // VHOST_USER_SET_PROTOCOL_FEATURES with VHOST_USER_PROTOCOL_F_CONFIG alone.
    let message = [16, 1, 8, 1 << 9, 0].map(u32::to_le_bytes).concat();
    monitor.write_all(&message).expect("a message");
    wait::until("the monitor is known", || machine.status()["connected"] == true);
    wait::until("its features are known", || machine.status()["device-state"] == "unmigratable");
}

#[test]
fn drained_device_tells_a_started_driver_and_comes_back() {
    let machine = Machine::start(&[]);
    let mut guest = machine.connect();
    assert_eq!(guest.config().expect("a space")[0], 1);
    let told = |guest: &mut Guest, ready: u8| {
        wait::until("the guest is notified", || guest.config_has_changed().expect("a channel"));
        assert_eq!(guest.config().expect("a space")[0], ready);
    };
    machine.run("drain", &[]);
    told(&mut guest, 0);
    assert_eq!(machine.status()["ready"], false);
    // What is under way is served all the same.
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    load.offer(&mut guest, 5);
    assert_eq!(load.finish(&mut guest), 0);
    machine.run("drain", &["--undo"]);
    told(&mut guest, 1);
    // QEMU crashes if the message comes before the driver has started.
    guest.stop().expect("positions");
    machine.run("drain", &[]);
    // The thread that answers has heard of the change before.
    guest.stop().expect("positions");
    assert!(!guest.config_has_changed().expect("a channel"));
    guest.start().expect("rings");
    told(&mut guest, 0);
}

#[test]
fn machine_that_works_by_a_node_computes_here_while_the_node_is_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut node = Node::start(folder.path(), "pool");
    let machine = Machine::start(&["--pool", &node.endpoint()]);
    let mut guest = machine.connect();
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    let mut until_served_by = |place: &str, guest: &mut Guest| {
        let before = machine.served(place);
        wait::until(place, || {
            load.offer(guest, 20);
            assert_eq!(load.finish(guest), 0, "every request was served");
            machine.served(place) > before
        });
    };
    until_served_by("node", &mut guest);
    node.kill();
    until_served_by("local", &mut guest);
    node.up();
    until_served_by("node", &mut guest);
    // The node dies with jobs of the guest.
    load.offer(&mut guest, 300);
    node.kill();
    assert_eq!(load.finish(&mut guest), 0, "every request was served");
}

#[test]
fn node_shows_the_counters_of_a_device_that_uses_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::start(folder.path(), "pool");
    let machine = Machine::start(&["--pool", &node.endpoint()]);
    let mut guest = machine.connect();
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    wait::until("the node has the key", || {
        load.offer(&mut guest, 20);
        assert_eq!(load.finish(&mut guest), 0, "every request was served");
        machine.served("node") > 0
    });
    // These are computed in place: no job of the node makes them known.
    let session = guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]);
    let request = cipher_request(0, session.expect("an answer").expect("a session"), 16, 16, 16);
    for _ in 0..3 {
        let answer = guest.request(0, &[&request, &[1; 16], &[2; 16]], 17);
        assert_eq!(answer.expect("an answer").status(), 0);
    }
    let counted = machine.status()["statistics"].clone();
    let of_device = || {
        let status = node.status();
        let edges = status["edges"].as_array().cloned().unwrap_or_default();
        let is_device = |edge: &&Value| {
            let agent = edge["agent"].as_str().unwrap_or_default();
            agent.starts_with("millrace-virtio/") && agent.ends_with(" vm.sock")
        };
        edges.iter().find(is_device).map(|edge| edge["device"].clone())
    };
    wait::until("the node shows what the device counts", || {
        of_device().is_some_and(|shown| {
            ["asym-decrypt-ops", "asym-decrypt-bytes", "sym-encrypt-ops", "sym-encrypt-bytes"]
                .iter()
                .all(|name| shown[name] == counted[name] && shown[name].as_u64() > Some(0))
        })
    });
    let (metrics, operations) = (node.metrics(), &counted["asym-decrypt-ops"]);
    for line in [
        format!("millrace_virtio_ops_total{{operation=\"asym-decrypt\"}} {operations}"),
        "millrace_virtio_ops_total{operation=\"sym-encrypt\"} 3".to_owned(),
        "millrace_virtio_bytes_total{operation=\"sym-encrypt\"} 48".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    let table = process::run(&mut node.command(&["status"]));
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("SYMMETRIC") && table.contains(" vm.sock"), "{table}");
}

#[test]
fn device_process_serves_under_its_filter_of_system_calls() {
    let machine = Machine::start(&[]);
    let process = machine.status()["device-process"].as_u64().expect("an id");
    let status = || fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    wait::until("the filter is in force", || status().contains("Seccomp:\t2"));
    assert!(status().contains("NoNewPrivs:\t1"), "{}", status());
    let mut load_guest = machine.connect();
    let mut load = RsaLoad::new(&mut load_guest, keys::rsa_2048().pem);
    load.offer(&mut load_guest, 20);
    assert_eq!(load.finish(&mut load_guest), 0);
}

#[test]
fn throttle_of_the_command_outlives_the_device_process() {
    let machine = Machine::start(&["--ops", "5000"]);
    machine.run("throttle", &["--ops", "none", "--bps", "123456"]);
    let limits = || {
        let row = machine.status();
        (row["throttle-ops"].clone(), row["throttle-bps"].clone())
    };
    assert_eq!(limits(), (Value::Null, Value::from(123_456)));
    machine.kill_device_process();
    assert_eq!(limits(), (Value::Null, Value::from(123_456)));
}
