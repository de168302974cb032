// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A limit is in force when it is shown, for every limiter and door: set before, while and after the client connects,
//! and over the death of each process. What is over it waits or is refused, and is never done elsewhere.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millrace_operation::{Hash, JobError, Operation};
use millrace_testkit::keys;
use millrace_tests::load::Connection;
use millrace_tests::machine::{Machine, RsaLoad};
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::KeyKind;
use millrace_tests::pool::{Pool, in_force};
use millrace_tests::process::succeed;
use millrace_tests::world::World;
use millrace_tests::{is_long, scaled, wait};
use millrace_virtio_guest::{Guest, cipher_request, cipher_session};
use millrace_wire::{
    ClientMessage, Decoder, Hello, KeyRefusal, KeySelector, Message, NodeMessage, SubmittedJob,
    VERSION_MAX, VERSION_MIN,
};
use openssl::ssl::{SslConnector, SslFiletype, SslMethod};
use serde_json::Value;

/// Time of one flood.
fn window() -> Duration {
    Duration::from_millis(scaled(300, 2_000) as u64)
}

/// A stream of any door.
trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// A way into a node, with an identity of its own.
#[derive(Clone, Debug)]
enum Door {
    Unix(PathBuf),
    /// The address, and the folder with the certificate.
    Tls(String, PathBuf),
}

impl Door {
    fn identity(&self) -> String {
        match self {
            Self::Unix(_) => format!("uid:{}", rustix::process::geteuid().as_raw()),
            Self::Tls(..) => "cert:gateway".to_owned(),
        }
    }

    fn stream(&self) -> Option<Box<dyn Stream>> {
        match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).ok()?;
                stream.set_read_timeout(Some(wait::SOON)).expect("a timeout");
                Some(Box::new(stream))
            }
            Self::Tls(address, folder) => {
                let mut connector = SslConnector::builder(SslMethod::tls()).expect("OpenSSL");
                connector.set_ca_file(folder.join("ca.pem")).expect("an authority");
                let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
                connector.set_certificate_file(certificate, SslFiletype::PEM).expect("a file");
                connector.set_private_key_file(key, SslFiletype::PEM).expect("a file");
                connector.set_alpn_protos(b"\x0amillrace/1").expect("a protocol");
                let stream = TcpStream::connect(address).ok()?;
                stream.set_read_timeout(Some(wait::SOON)).expect("a timeout");
                Some(Box::new(connector.build().connect("localhost", stream).ok()?))
            }
        }
    }

    fn client(&self) -> Connection<Box<dyn Stream>> {
        Connection::over(self.stream().expect("a connection"), "www", false).expect("a session")
    }
}

/// A node with a door of each kind.
struct Doors {
    node: Node,
    all: Vec<Door>,
    base: String,
    // Last, so that the folder is removed after the node has ended.
    _world: World,
}

impl Doors {
    fn open() -> Self {
        let world = World::new();
        let options = NodeOptions {
            tcp: true,
            toml: "[engine]\nworkers = 1\n".to_owned(),
            ..NodeOptions::default()
        };
        let node = Node::start_with(world.dir(), "node-1", &options);
        let folder = world.dir().join("gateway");
        let _ = succeed(node.command(&["cert", "client", "gateway"]).arg("-o").arg(&folder));
        let _ = node.import("www", &world.identity(KeyKind::Rsa2048));
        let unix = Door::Unix(node.socket());
        let tls = Door::Tls(node.tcp_address().to_string(), folder);
        let base = std::fs::read_to_string(node.dir().join("node.toml")).expect("settings");
        Self { node, all: vec![unix, tls], base, _world: world }
    }

    /// Puts these settings in force beside the common ones.
    fn set(&self, toml: &str) {
        self.node.change_settings(|_| format!("{}{toml}", self.base));
    }

    fn restart(&mut self) {
        self.node.kill();
        self.node.up();
    }
}

/// Whether a flood got what a limit of `rate` per second with this burst allows in a time, and no more. A busy machine
/// may ask for less.
#[track_caller]
fn assert_within(what: &str, served: u64, rate: u64, burst: u64, time: Duration) {
    let in_time = rate as f64 * time.as_secs_f64();
    // The two readings of the clock are not at the two jobs that they stand for.
    let (most, least) = (1.05 * in_time + burst as f64 + 2.0, 0.1 * in_time);
    println!("{what}: {served} in {time:.2?} at {rate}/s, {least:.0} to {most:.0}");
    assert!(served as f64 <= most, "{what}: {served} of {most} in {time:?} at {rate}/s");
    assert!(served as f64 >= least, "{what}: {served}, not {least}, in {time:?} at {rate}/s");
}

/// A limit on rates at a node.
struct RateLimit {
    name: &'static str,
    /// The lines of `node.toml` for these identities, with this rate.
    toml: fn(&[String], u64) -> String,
    /// Jobs at once.
    burst: fn(u64) -> u64,
    /// Whether all doors share it.
    is_shared: bool,
    /// The rate in the row of the tenant.
    shown: Option<fn(&Value) -> &Value>,
}

fn tenant(identities: &[String], rest: &str) -> String {
    format!("[tenant.acme]\nidentities = {identities:?}\n{rest}\n")
}

const RATE_LIMITS: &[RateLimit] = &[
    RateLimit {
        name: "tenant, ops",
        toml: |identities, rate| {
            tenant(identities, &format!("ops = {{ per-second = {rate}, burst = {} }}", rate / 4))
        },
        burst: |rate| rate / 4,
        is_shared: true,
        shown: Some(|row| &row["rates"]["ops"]["per-second"]),
    },
    RateLimit {
        name: "tenant, class",
        toml: |identities, rate| {
            let rate = format!("{{ per-second = {rate}, burst = {} }}", rate / 4);
            tenant(identities, &format!("class = {{ rsa-2048 = {rate} }}"))
        },
        burst: |rate| rate / 4,
        is_shared: true,
        shown: Some(|row| &row["rates"]["classes"]["rsa-2048"]["per-second"]),
    },
    RateLimit {
        name: "tenant, bytes",
        toml: |identities, rate| {
            let (rate, burst) = (32 * rate, 8 * rate);
            tenant(identities, &format!("bytes = {{ per-second = {rate}, burst = {burst} }}"))
        },
        burst: |rate| rate / 4,
        is_shared: true,
        shown: Some(|row| &row["rates"]["bytes"]["per-second"]),
    },
    RateLimit {
        name: "identity",
        toml: |identities, rate| {
            let of = |identity| format!("[identity.{identity:?}]\nquota-ops-per-second = {rate}\n");
            identities.iter().map(of).collect()
        },
        burst: |rate| rate,
        is_shared: false,
        shown: None,
    },
    RateLimit {
        name: "every identity",
        toml: |_, rate| format!("[limits]\nquota-ops-per-second = {rate}\n"),
        burst: |rate| rate,
        is_shared: false,
        shown: None,
    },
];

/// Floods through both doors at once; the limit is that of its file, and that of the status.
fn hold(
    doors: &Doors,
    limit: &RateLimit,
    moment: &str,
    rate: u64,
    clients: &mut [Connection<Box<dyn Stream>>],
) {
    if let Some(shown) = limit.shown {
        let status = doors.node.status();
        let shown = shown(&status["tenants"][0]).as_u64();
        let expected = if limit.name.ends_with("bytes") { 32 * rate } else { rate };
        assert_eq!(shown, Some(expected), "{}: {status}", limit.name);
    }
    let mut served = Vec::new();
    for client in clients.iter_mut() {
        // One after the other: a shared quota that has lost its burst to the first has none for the second.
        let (outcome, time) = client.flood(16, window()).expect("the node serves");
        assert_eq!((outcome.busy, outcome.failed), (0, 0), "{outcome:?}");
        assert!(outcome.over_quota > 0, "{}, {moment}: {outcome:?}", limit.name);
        served.push((outcome.served, time));
    }
    let burst = (limit.burst)(rate);
    if limit.is_shared {
        let (jobs, time) = served
            .iter()
            .fold((0, Duration::ZERO), |(jobs, time), one| (jobs + one.0, time + one.1));
        assert_within(&format!("{}, {moment}", limit.name), jobs, rate, burst, time);
    } else {
        for (jobs, time) in served {
            assert_within(&format!("{}, {moment}", limit.name), jobs, rate, burst, time);
        }
    }
}

#[test]
fn rates_of_a_node_are_in_force_at_every_door_whenever_they_are_set() {
    let mut doors = Doors::open();
    let identities: Vec<String> = doors.all.iter().map(Door::identity).collect();
    for limit in RATE_LIMITS {
        let toml = |rate| (limit.toml)(&identities, rate);
        let connect = |doors: &Doors| doors.all.iter().map(Door::client).collect::<Vec<_>>();
        doors.set(&toml(100));
        let mut clients = connect(&doors);
        hold(&doors, limit, "set before", 100, &mut clients);
        doors.set(&toml(20));
        hold(&doors, limit, "set while connected", 20, &mut clients);
        drop(clients);
        doors.set(&toml(200));
        let mut clients = connect(&doors);
        hold(&doors, limit, "set after", 200, &mut clients);
        drop(clients);
        if is_long() || limit.name == "tenant, ops" {
            doors.restart();
            let mut clients = connect(&doors);
            hold(&doors, limit, "after a death", 200, &mut clients);
        }
    }
}

/// A client that counts what a node takes.
struct Counter {
    stream: Box<dyn Stream>,
    decoder: Decoder<NodeMessage>,
}

impl Counter {
    /// `None` if the node does not take the connection.
    fn connect(door: &Door) -> Option<Self> {
        let mut counter = Self { stream: door.stream()?, decoder: Decoder::new() };
        let hello = Hello {
            min_version: VERSION_MIN,
            max_version: VERSION_MAX,
            features: 0,
            agent: "counter".to_owned(),
        };
        counter.send(&ClientMessage::Hello(hello))?;
        matches!(counter.next()?, NodeMessage::Welcome(_)).then_some(counter)
    }

    fn send(&mut self, message: &ClientMessage) -> Option<()> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.stream.write_all(&bytes).ok()
    }

    /// `None` once the node has closed the connection.
    fn next(&mut self) -> Option<NodeMessage> {
        loop {
            if let Some(message) = self.decoder.next().expect("the protocol") {
                return Some(message);
            }
            let count = self.stream.read(self.decoder.space()).ok().filter(|count| *count > 0)?;
            self.decoder.filled(count);
        }
    }

    /// Keys that the node opens, of those that are asked for.
    fn keys(&mut self, message: impl Fn(u32) -> ClientMessage) -> usize {
        let mut opened = 0;
        for request in 0..40 {
            self.send(&message(request)).expect("a request");
            match self.next().expect("an answer") {
                NodeMessage::KeyOpened { .. } => opened += 1,
                NodeMessage::KeyRefused { reason: KeyRefusal::TooManyKeys, .. } => {}
                other => panic!("{other:?}"),
            }
        }
        opened
    }

    fn open_keys(&mut self) -> usize {
        let selector = KeySelector::Name("www".to_owned());
        self.keys(|request| ClientMessage::OpenKey { request, selector: selector.clone() })
    }

    fn import_keys(&mut self) -> usize {
        self.keys(|request| {
            let key = keys::p_256().private_key();
            ClientMessage::ImportKey { request, key }
        })
    }

    /// Jobs of one message that the node takes.
    fn jobs(&mut self) -> usize {
        let selector = KeySelector::Name("www".to_owned());
        self.send(&ClientMessage::OpenKey { request: 1, selector }).expect("a request");
        let Some(NodeMessage::KeyOpened { handle, .. }) = self.next() else { panic!("no key") };
        let job = |id| SubmittedJob {
            id,
            key: handle,
            budget: Duration::from_secs(60),
            operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
            input: vec![7; 32],
        };
        self.send(&ClientMessage::Submit((0..60).map(job).collect())).expect("jobs");
        let (mut served, mut refused) = (0, 0);
        while served + refused < 60 {
            let Some(NodeMessage::Complete(jobs)) = self.next() else { panic!("no completion") };
            for job in jobs {
                match job.result {
                    Ok(_) => served += 1,
                    Err(JobError::Busy) => refused += 1,
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        served
    }
}

/// A limit on what a client holds at a node: its lines of `node.toml`, and what a client gets.
type CountLimit = (&'static str, fn(&[String], usize) -> String, fn(&Door) -> usize);

fn bounded(identities: &[String], what: &str, most: usize) -> String {
    tenant(identities, &format!("bounds = {{ {what} = {most} }}"))
}

/// Connections at once.
fn connections(door: &Door) -> usize {
    let held: Vec<_> = (0..40).map_while(|_| Counter::connect(door)).collect();
    held.len()
}

fn counter(door: &Door) -> Counter {
    Counter::connect(door).expect("a session")
}

const COUNT_LIMITS: &[CountLimit] = &[
    (
        "jobs in flight of a connection",
        |_, most| format!("[limits]\nin-flight = {most}\n"),
        |door| counter(door).jobs(),
    ),
    (
        "keys of a connection",
        |_, most| format!("[limits]\nkeys = {most}\n"),
        |door| counter(door).open_keys(),
    ),
    (
        "connections of an identity",
        |_, most| format!("[limits]\nconnections-per-identity = {most}\n"),
        connections,
    ),
    (
        "connections of one identity",
        |identities, most| {
            let of = |identity| format!("[identity.{identity:?}]\nconnections = {most}\n");
            identities.iter().map(of).collect()
        },
        connections,
    ),
    (
        "jobs of a tenant",
        |identities, most| bounded(identities, "jobs-in-flight", most),
        |door| counter(door).jobs(),
    ),
    (
        "bytes of a tenant",
        |identities, most| bounded(identities, "bytes-in-flight", 32 * most),
        |door| counter(door).jobs(),
    ),
    (
        "imported keys of a tenant",
        |identities, most| bounded(identities, "imported-keys", most),
        |door| counter(door).import_keys(),
    ),
    (
        "connections of a tenant",
        |identities, most| bounded(identities, "connections", most),
        connections,
    ),
];

#[test]
fn bounds_of_a_node_are_in_force_at_every_door_whenever_they_are_set() {
    let mut doors = Doors::open();
    let identities: Vec<String> = doors.all.iter().map(Door::identity).collect();
    let is_free =
        |doors: &Doors| wait::until("no client is connected", || doors.node.connections() == 0);
    for (name, toml, taken) in COUNT_LIMITS {
        for most in [12, 5] {
            doors.set(&toml(&identities, most));
            for door in &doors.all {
                is_free(&doors);
                assert_eq!(taken(door), most, "{name} by {door:?}");
            }
        }
        if is_long() || *name == "jobs of a tenant" {
            doors.restart();
            for door in &doors.all {
                is_free(&doors);
                assert_eq!(taken(door), 5, "{name} by {door:?} after a death");
            }
        }
    }
    // The rules of a connection change while it is open.
    doors.set("");
    for door in &doors.all {
        let mut client = counter(door);
        doors.set("[limits]\nin-flight = 7\nkeys = 9\n");
        assert_eq!(client.jobs(), 7, "{door:?}");
        assert_eq!(client.open_keys(), 8, "{door:?}: one is open");
        doors.set("");
    }
}

/// Answers that a guest gets in a time, with this number of requests under way, and the time to the last one.
fn rsa_flood(
    guest: &mut Guest,
    load: &mut RsaLoad,
    depth: usize,
    time: Duration,
) -> (u64, Duration) {
    let (start, before) = (Instant::now(), load.answered);
    while start.elapsed() < time {
        load.offer(guest, depth);
        assert_eq!(load.finish(guest), 0, "what is over a limit waits");
    }
    ((load.answered - before) as u64, start.elapsed())
}

fn acme(rate: u64) -> String {
    let me = Door::Unix(PathBuf::new()).identity();
    (RATE_LIMITS[0].toml)(&[me], rate)
}

#[test]
fn quota_binds_a_machine_also_on_its_host_and_while_the_node_is_away() {
    let world = World::new();
    let options = NodeOptions { toml: acme(50), ..NodeOptions::default() };
    let mut node = Node::start_with(world.dir(), "pool", &options);
    let machine = Machine::start(&["--pool", &node.endpoint()]);
    let mut guest = machine.connect();
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    for depth in [1, 40] {
        let time = 3 * window();
        let (served, time) = rsa_flood(&mut guest, &mut load, depth, time);
        assert_within(&format!("{depth} under way"), served, 50, 13, time);
    }
    assert_eq!(machine.served("local"), 0, "over the quota nothing is done elsewhere");
    // A second key is at the nodes before its first job ends.
    let mut other = RsaLoad::new(&mut guest, keys::rsa_3072().pem);
    let (served, time) = rsa_flood(&mut guest, &mut other, 20, window());
    assert_within("a new key", served, 50, 13, time);
    assert_eq!(machine.served("local"), 0);
    let change = |text: String, rate: u64| {
        let at = text.find("[tenant.acme]").expect("the tenant");
        text[..at].to_owned() + &acme(rate)
    };
    node.change_settings(|text| change(text, 150));
    let (served, time) = rsa_flood(&mut guest, &mut load, 40, 5 * window());
    assert_within("a higher quota", served, 150, 38, time);
    node.change_settings(|text| change(text, 30));
    let (served, time) = rsa_flood(&mut guest, &mut load, 20, 5 * window());
    assert_within("a lower quota", served, 30, 8, time);
    assert_eq!(machine.served("local"), 0);
    // Without a node the host computes, at the rate that it has seen.
    node.kill();
    let (served, time) = rsa_flood(&mut guest, &mut load, 10, 3 * window());
    assert_within("no node", served, 30, 30, time);
    assert!(machine.served("local") > 0, "a guest does not depend on a network");
    node.up();
    let before = machine.served("node");
    wait::until("the node serves again", || {
        load.offer(&mut guest, 1);
        assert_eq!(load.finish(&mut guest), 0);
        machine.served("node") > before
    });
}

#[test]
fn machine_whose_node_takes_no_further_connection_waits_for_one() {
    let world = World::new();
    let me = Door::Unix(PathBuf::new()).identity();
    let toml = bounded(&[me], "connections", 1);
    let node =
        Node::start_with(world.dir(), "pool", &NodeOptions { toml, ..NodeOptions::default() });
    // The connection that showed that the node is up held the place.
    wait::until("no client is connected", || node.connections() == 0);
    let held = counter(&Door::Unix(node.socket()));
    let machine = Machine::start(&["--pool", &node.endpoint()]);
    let mut guest = machine.connect();
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    load.offer(&mut guest, 8);
    wait::until("the node refuses", || node.status()["connections_refused"].as_u64() > Some(1));
    assert_eq!(machine.served("local"), 0);
    drop(held);
    assert_eq!(load.finish(&mut guest), 0);
    assert_eq!((machine.served("local"), machine.served("node")), (0, 8));
}

/// The limit of a device that is shown, and in force.
fn throttled(machine: &Machine, guest: &mut Guest, moment: &str, ops: u64) {
    assert_eq!(machine.status()["throttle-ops"].as_u64(), Some(ops), "{moment}");
    let session = guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]);
    let session = session.expect("an answer").expect("a session");
    let request = cipher_request(0, session, 16, 16, 16);
    let (start, mut served) = (Instant::now(), 0);
    while start.elapsed() < window() {
        let answer = guest.request(0, &[&request, &[1; 16], &[2; 16]], 17).expect("an answer");
        assert_eq!(answer.status(), 0);
        served += 1;
    }
    assert_within(moment, served, ops, ops / 10, start.elapsed());
}

#[test]
fn throttle_is_in_force_when_it_is_shown_whenever_it_is_set_and_whatever_dies() {
    let mut machine = Machine::start(&["--ops", "100"]);
    let set = |machine: &Machine, ops: u64| machine.run("throttle", &["--ops", &ops.to_string()]);
    let mut guest = machine.connect();
    throttled(&machine, &mut guest, "of the command line", 100);
    set(&machine, 300);
    throttled(&machine, &mut guest, "set while connected", 300);
    drop(guest);
    wait::until("the machine is gone", || machine.status()["connected"] == false);
    // The newest counts, not the one before it.
    set(&machine, 700);
    set(&machine, 60);
    let mut guest = machine.connect();
    throttled(&machine, &mut guest, "set while no machine was connected", 60);
    machine.kill_device_process();
    throttled(&machine, &mut guest, "after the death of the device process", 60);
    set(&machine, 250);
    machine.upgrade();
    throttled(&machine, &mut guest, "after an upgrade", 250);
    drop(guest);
    wait::until("the machine is gone", || machine.status()["connected"] == false);
    machine.kill_device_process();
    set(&machine, 80);
    let mut guest = machine.connect();
    throttled(&machine, &mut guest, "set after a death", 80);
    drop(guest);
    machine.restart_front();
    let mut guest = machine.connect();
    throttled(&machine, &mut guest, "after the death of the front process", 100);
}

#[test]
fn throttle_finds_a_device_by_any_path_of_its_socket() {
    let machine = Machine::start(&[]);
    let folder = machine.folder();
    let link = folder.join("link.sock");
    std::os::unix::fs::symlink(&machine.socket, &link).expect("a link");
    std::fs::create_dir(folder.join("sub")).expect("a folder");
    let around = folder.join("sub/../vm.sock");
    for (ops, path) in (5000..).zip([
        Path::new("vm.sock"),
        Path::new("./vm.sock"),
        &around,
        &link,
        Path::new("link.sock"),
        &machine.socket,
    ]) {
        machine.run_at(path, "throttle", &["--ops", &ops.to_string()]);
        assert_eq!(machine.status()["throttle-ops"], ops, "{}", path.display());
    }
}

#[test]
fn counters_of_a_device_outlive_its_process_and_an_upgrade() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = Node::start(folder.path(), "pool");
    let machine = Machine::start(&["--workers", "1", "--pool", &node.endpoint()]);
    let mut guest = machine.connect();
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    // Rows of clients that are gone are in the totals alone.
    let shown = || node.status()["edge_totals"]["device"]["asym-decrypt-ops"].as_u64().unwrap_or(0);
    load.offer(&mut guest, 20);
    assert_eq!(load.finish(&mut guest), 0);
    wait::until("the node has the first report", || shown() == 20);
    for round in 0..4 {
        load.offer(&mut guest, 60);
        // With requests under way: what the next process reads again is counted once.
        if round % 2 == 0 {
            machine.kill_device_process()
        } else {
            machine.upgrade()
        }
        assert_eq!(load.finish(&mut guest), 0);
        let answered = load.answered as u64;
        assert_eq!(machine.counter("asym-decrypt-ops"), answered);
        assert_eq!(machine.counter("asym-decrypt-bytes"), 256 * answered);
        assert_eq!(machine.counter("sessions-created"), 1);
        assert_eq!(machine.served("local") + machine.served("node"), answered);
    }
    assert_eq!(machine.status()["connections"], 1);
    drop(guest);
    wait::until("the machine is gone", || machine.status()["connected"] == false);
    let mut guest = machine.connect();
    wait::until("the next machine is counted", || machine.status()["connections"] == 2);
    let before = load.answered as u64;
    assert_eq!(machine.counter("asym-decrypt-ops"), before);
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    load.offer(&mut guest, 10);
    assert_eq!(load.finish(&mut guest), 0);
    // The node adds up what the processes report: nothing is in the reports of two.
    wait::until("the node has the last report", || shown() >= 30);
    assert!(shown() <= before + 10, "{} of {}", shown(), before + 10);
}

#[test]
fn slice_of_a_managed_tenant_is_in_force_as_the_node_shows_it() {
    let world = World::new();
    let store = format!("sqlite:{}", world.dir().join("store.db").display());
    let mut pool = Pool::start(world.dir(), &store, 1);
    let mut node = pool.node_with("a", &NodeOptions::default(), &[]);
    let _ = node.import_with("www", &world.identity(KeyKind::Rsa2048), &["--allow-tenant", "acme"]);
    let operator = pool.operator().clone();
    operator.done(&["tenant", "create", "acme", "--ops", "100", "--identity", "uid:*"]);
    operator.done(&["tenant", "place", "acme", "--over-commit", "on"]);
    let door = Door::Unix(node.socket());
    let shown = |node: &Node, rate: u64| {
        wait::until("the slice is in force", || in_force(node, "acme") == rate);
    };
    let flood = |client: &mut Connection<Box<dyn Stream>>, moment: &str, rate: u64| {
        let (outcome, time) = client.flood(16, window()).expect("the node serves");
        assert_eq!((outcome.busy, outcome.failed), (0, 0), "{outcome:?}");
        assert_within(moment, outcome.served, rate, rate, time);
    };
    shown(&node, 100);
    let mut client = door.client();
    flood(&mut client, "set before", 100);
    operator.done(&["tenant", "set", "acme", "--ops", "20"]);
    shown(&node, 20);
    flood(&mut client, "set while connected", 20);
    drop(client);
    operator.done(&["tenant", "set", "acme", "--ops", "80"]);
    shown(&node, 80);
    flood(&mut door.client(), "set after", 80);
    // Of a machine, too.
    let machine = Machine::start(&["--pool", &node.endpoint()]);
    let mut guest = machine.connect();
    let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
    let (served, time) = rsa_flood(&mut guest, &mut load, 16, 2 * window());
    assert_within("of a machine", served, 80, 80, time);
    assert_eq!(machine.served("local"), 0);
    drop(guest);
    pool.managers[0].kill();
    shown(&node, 20);
    flood(&mut door.client(), "a quarter without a manager", 20);
    pool.managers[0].up();
    shown(&node, 80);
    flood(&mut door.client(), "the manager is back", 80);
    node.kill();
    node.up();
    shown(&node, 80);
    flood(&mut door.client(), "after the death of the node", 80);
}
