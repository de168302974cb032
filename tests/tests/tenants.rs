// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tenants at one node: quotas that change under load, and a tenant that does everything to disturb another.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millrace_operation::{Hash, Operation};
use millrace_testkit::{is_long, keys, skip};
use millrace_tests::load::{self, Load, Manners};
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::copy_for_all;
use millrace_tests::world::World;
use millrace_tests::{is_root, scaled, wait};
use millrace_wire::{
    ClientMessage, Decoder, Hello, KeySelector, Message, NodeMessage, SubmittedJob, VERSION_MAX,
    VERSION_MIN,
};
use serde_json::Value;

/// User ids without an entry in `/etc/passwd`; the kernel reports them to the node nevertheless.
const EVIL: u32 = 4_000_011;
const VICTIM: u32 = 4_000_012;

struct Setup {
    node: Node,
    program: PathBuf,
    // Last, so that the folder is removed after the node has ended.
    _world: World,
}

impl Setup {
    fn new(toml: &str) -> Self {
        let world = World::new();
        let options = NodeOptions {
            toml: format!("[engine]\nworkers = 1\n{toml}"),
            ..NodeOptions::default()
        };
        let node = Node::start_with(world.dir(), "node-1", &options);
        let _ = node.import_with(
            "www",
            &world.identity(KeyKind::Rsa2048),
            &["--allow-tenant", "acme", "--allow-tenant", "evil"],
        );
        let program =
            copy_for_all(Path::new(env!("CARGO_BIN_EXE_millrace-tests-load")), world.dir());
        Self { node, program, _world: world }
    }

    fn start(&self, user: u32, connections: usize, in_flight: u64, millis: usize) -> load::Running {
        self.start_with(user, connections, in_flight, millis, Manners::Ignores)
    }

    fn start_with(
        &self,
        user: u32,
        connections: usize,
        in_flight: u64,
        millis: usize,
        manners: Manners,
    ) -> load::Running {
        let load = Load { user, connections, in_flight, millis: millis as u64, manners };
        load.start(&self.program, &self.node.socket(), "www")
    }

    /// The row of a tenant in `/status`.
    fn tenant(&self, name: &str) -> Value {
        let status = self.node.status();
        let rows = status["tenants"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["tenant"] == name);
        row.unwrap_or_else(|| panic!("no tenant {name} in {status}")).clone()
    }

    fn count(&self, tenant: &str, what: &str) -> u64 {
        self.tenant(tenant)[what].as_u64().expect("a number")
    }

    /// Jobs of a tenant that were over its quota.
    fn refused(&self, tenant: &str) -> u64 {
        self.tenant(tenant)["throttled"][0]["jobs"].as_u64().expect("a number")
    }
}

/// The victim's tenant, with a burst of a quarter of a second: a node that waits for a processor loses no tokens.
fn acme(ops: u64) -> String {
    let burst = ops / 4;
    format!(
        "[tenant.acme]\nidentities = [\"uid:{VICTIM}\"]\n\
         ops = {{ per-second = {ops}, burst = {burst} }}\n"
    )
}

/// Counts of the tenant's jobs over a time.
struct Measured {
    admitted: f64,
    offered: f64,
    seconds: f64,
}

fn measure(setup: &Setup, duration: Duration) -> Measured {
    let counts = || ["admitted", "offered"].map(|what| setup.count("acme", what));
    let (start, before) = (Instant::now(), counts());
    thread::sleep(duration);
    let after = counts();
    let [admitted, offered] = [0, 1].map(|index| (after[index] - before[index]) as f64);
    Measured { admitted, offered, seconds: start.elapsed().as_secs_f64() }
}

#[test]
fn changed_quota_acts_within_a_second_on_open_connections_and_loses_no_job() {
    if !is_root() {
        skip!("not root: clients cannot run as several users");
    }
    let setup = Setup::new(&acme(40));
    let load = setup.start(VICTIM, 2, 8, scaled(15_000, 60_000));
    wait::until("the load is served", || setup.count("acme", "completed") > 5);
    wait::until("the page shows what the tenant uses and is refused", || {
        let page = setup.node.page();
        let row = &page["tenants"][0];
        let figure = |name: &str| row[name].as_f64().unwrap_or(0.0);
        let verdict = page["verdict"]["text"].as_str().unwrap_or("");
        row["name"] == "acme"
            && row["quota_ops"] == 40.0
            && figure("used_ops") > 0.0
            && figure("throttled_per_s") > 0.0
            && verdict.contains("acme reached the quota")
    });
    let window = Duration::from_millis(scaled(3_000, 10_000) as u64);
    for (ops, next) in [(40, 10), (10, 80), (80, 40)] {
        let seen = measure(&setup, window);
        let (ops, rate) = (f64::from(ops), seen.admitted / seen.seconds);
        println!("quota {ops}/s: {rate:.2}/s, error {:+.2} %", (rate / ops - 1.0) * 100.0);
        // The two readings of the counter are not at the ends of the time that is measured here.
        let most = ops * (seen.seconds + 0.5);
        assert!(seen.admitted <= most, "{} of {most}", seen.admitted);
        // On a busy machine the load may ask for less, or have ended.
        let asked = seen.offered >= 2.0 * ops * seen.seconds;
        assert!(!asked || rate >= 0.25 * ops, "{rate} of {ops}");
        setup.node.change_settings(|text| {
            let at = text.find("[tenant.acme]").expect("the tenant");
            text[..at].to_owned() + &acme(next)
        });
    }
    let outcome = load.outcome();
    assert_eq!((outcome.lost, outcome.failed, outcome.busy), (0, 0, 0), "{outcome:?}");
    assert!(outcome.over_quota > 0, "{outcome:?}");
}

#[test]
fn identity_that_changes_its_tenant_keeps_its_connection_and_its_jobs() {
    if !is_root() {
        skip!("not root: clients cannot run as several users");
    }
    let setup = Setup::new(&acme(400));
    let load = setup.start(VICTIM, 2, 4, scaled(3_000, 10_000));
    wait::until("the load is served", || setup.count("acme", "completed") > 5);
    setup.node.change_settings(|text| text.replace("[tenant.acme]", "[tenant.evil]"));
    wait::until("the new tenant is served", || setup.count("evil", "completed") > 5);
    let outcome = load.outcome();
    assert_eq!((outcome.lost, outcome.failed, outcome.busy), (0, 0, 0), "{outcome:?}");
    let text = setup.node.metrics();
    assert!(text.contains("millrace_tenant_completed_total{tenant=\"evil\"}"), "{text}");
}

/// A connection of the hostile tenant, in this process: user 0.
struct Hostile(UnixStream);

impl Hostile {
    fn connect(setup: &Setup) -> Option<Self> {
        let socket = UnixStream::connect(setup.node.socket()).ok()?;
        // A node that does not read must not stop the test.
        let patience = Some(Duration::from_millis(200));
        socket.set_write_timeout(patience).ok()?;
        socket.set_read_timeout(patience).ok()?;
        let mut hostile = Self(socket);
        hostile.send(&ClientMessage::Hello(Hello {
            min_version: VERSION_MIN,
            max_version: VERSION_MAX,
            features: 0,
            agent: "hostile".to_owned(),
        }))?;
        Some(hostile)
    }

    /// `None` once the node has closed the connection, or does not read.
    fn send(&mut self, message: &ClientMessage) -> Option<()> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.0.write_all(&bytes).ok()
    }

    fn open_key(&mut self, request: u32) -> Option<()> {
        let selector = KeySelector::Name("www".to_owned());
        self.send(&ClientMessage::OpenKey { request, selector })
    }

    fn drain(&mut self) {
        let mut rest = [0; 4096];
        let _ = self.0.read(&mut rest);
    }
}

/// Imports keys without end, on ever new connections that it keeps.
fn import_keys(setup: &Setup, stop: &AtomicBool) {
    let mut kept = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Some(mut hostile) = Hostile::connect(setup) {
            for request in 0..150 {
                let key = keys::p_256().private_key();
                if hostile.send(&ClientMessage::ImportKey { request, key }).is_none() {
                    break;
                }
            }
            hostile.drain();
            kept.push(hostile);
            kept.truncate(50);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Submits jobs and never reads a completion.
fn never_read(setup: &Setup, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Some(mut hostile) = Hostile::connect(setup) else {
            continue;
        };
        let _ = hostile.open_key(1);
        let mut id = 0;
        while !stop.load(Ordering::Relaxed) {
            let job = |id| SubmittedJob {
                id,
                key: 1,
                budget: Duration::from_secs(60),
                operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
                input: vec![7; 32],
            };
            let jobs = ClientMessage::Submit((id..id + 100).map(job).collect());
            id += 100;
            if hostile.send(&jobs).is_none() {
                break;
            }
        }
    }
}

/// Sends a message one byte a second; the node closes the connection, and it comes back.
fn drip(setup: &Setup, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Some(mut hostile) = Hostile::connect(setup) else {
            continue;
        };
        let mut bytes = Vec::new();
        ClientMessage::Ping { token: 7 }.encode(&mut bytes);
        for byte in bytes {
            if stop.load(Ordering::Relaxed) || hostile.0.write_all(&[byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(250));
        }
    }
}

/// Holds as many connections as it gets.
fn hold_connections(setup: &Setup, stop: &AtomicBool) {
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if held.len() < 1_000 {
            held.extend(Hostile::connect(setup));
        } else {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A hundred jobs over the quota, and a ping behind them: the node reads both, though it pauses connections of this
/// tenant, and ends each job once.
fn ask_in_the_flood(setup: &Setup) {
    const JOBS: u64 = 100;
    let mut client = Hostile::connect(setup).expect("a connection");
    client.open_key(1).expect("a request");
    let job = |id| SubmittedJob {
        id,
        key: 1,
        budget: Duration::from_secs(60),
        operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
        input: vec![7; 32],
    };
    client.send(&ClientMessage::Submit((0..JOBS).map(job).collect())).expect("jobs");
    client.send(&ClientMessage::Cancel { job: JOBS - 1 }).expect("a request");
    client.send(&ClientMessage::Ping { token: 9 }).expect("a request");
    let (mut decoder, mut ended, mut answered) = (Decoder::<NodeMessage>::new(), Vec::new(), false);
    wait::until("jobs and ping are answered", || {
        if let Ok(count) = client.0.read(decoder.space()) {
            assert!(count > 0, "the node closed the connection");
            decoder.filled(count);
        }
        while let Some(message) = decoder.next().expect("the protocol") {
            match message {
                NodeMessage::Complete(jobs) => ended.extend(jobs.iter().map(|job| job.id)),
                NodeMessage::Pong { token } => answered = token == 9,
                _ => {}
            }
        }
        answered && ended.len() as u64 >= JOBS
    });
    ended.sort_unstable();
    assert!(ended.iter().copied().eq(0..JOBS), "{ended:?}");
}

/// Jobs of a tenant that the node refuses before it pauses the tenant's connections: at once, and for each second.
const DENIALS: (f64, f64) = (2_000.0, 5_000.0);

/// Jobs that a connection of such a tenant sends in one turn, and in the turns after its pauses in a second.
const TURNS: (f64, f64) = (64.0, 8.0 * 20.0);

#[test]
fn flood_that_ignores_refusals_is_read_at_a_bounded_rate_and_loses_no_answer() {
    if !is_root() {
        skip!("not root: clients cannot run as several users");
    }
    const CONNECTIONS: u8 = 10;
    let setup = Setup::new(&format!(
        "[tenant.acme]\nidentities = [\"uid:{VICTIM}\"]\n\
         [tenant.evil]\nidentities = [\"uid:{EVIL}\", \"uid:0\"]\nops = 20\n"
    ));
    let millis = scaled(4_000, 30_000);
    let memory = setup.node.resident_kib();
    let flood = setup.start(EVIL, CONNECTIONS.into(), 200, 2 * millis);
    wait::until("the flood is refused", || setup.refused("evil") > 4_000);
    let (start, before) = (Instant::now(), setup.refused("evil"));
    let victim = setup.start(VICTIM, 1, 1, millis).outcome();
    let refused = (setup.refused("evil") - before) as f64;
    // A reading of the counter may be older than the moment at which it arrives here.
    let seconds = start.elapsed().as_secs_f64() + 1.0;
    ask_in_the_flood(&setup);
    let during = setup.node.resident_kib();
    let evil = flood.outcome();
    println!("{refused} jobs of the flood refused in {seconds:.1} s; victim {}", victim.served);
    let of_connection = TURNS.0 + TURNS.1 * seconds;
    let most = DENIALS.0 + DENIALS.1 * seconds + f64::from(CONNECTIONS) * of_connection;
    assert!(refused <= most, "{refused} of {most} in {seconds} s");
    let errors = (victim.busy, victim.over_quota, victim.failed, victim.lost);
    assert_eq!(errors, (0, 0, 0, 0), "{victim:?}");
    assert!(victim.served > 0);
    // A megabyte for each connection is far more than its buffers take.
    let most = memory + 1024 * u64::from(CONNECTIONS) + 32 * 1024;
    assert!(during < most, "{memory} KiB, then {during} KiB");
    // The load fails at a second completion of one job.
    assert_eq!((evil.lost, evil.failed, evil.busy), (0, 0, 0), "{evil:?}");
    assert!(evil.served > 0 && evil.over_quota > 4_000, "{evil:?}");
    wait::until("the tenant holds nothing", || {
        let row = setup.tenant("evil");
        ["in_flight", "bytes_in_flight", "connections"].iter().all(|what| row[*what] == 0)
    });
}

#[test]
fn client_that_rests_after_refusals_gets_its_quota_with_few_of_them() {
    if !is_root() {
        skip!("not root: clients cannot run as several users");
    }
    const CONNECTIONS: u8 = 2;
    let setup = Setup::new(&acme(100));
    // Ten times its quota: jobs that are refused are offered again when the rest is over.
    let millis = scaled(6_000, 20_000);
    let load = setup.start_with(VICTIM, CONNECTIONS.into(), 8, millis, Manners::Rests);
    wait::until("the quota is used up", || setup.refused("acme") > 0);
    let seen = measure(&setup, Duration::from_millis(millis as u64 / 2));
    let outcome = load.outcome();
    let rate = seen.admitted / seen.seconds;
    println!("quota 100/s: {rate:.2}/s; {outcome:?}");
    assert!(seen.admitted <= 100.0 * (seen.seconds + 0.5), "{rate}");
    assert_eq!((outcome.lost, outcome.failed, outcome.busy), (0, 0, 0), "{outcome:?}");
    // At most all jobs of a connection once for each rest, and a rest is worth a job at least.
    assert!(outcome.over_quota <= 8 * u64::from(CONNECTIONS) * (outcome.served + 1), "{outcome:?}");
}

/// Ends the attacks also when the test fails beside them.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn hostile_tenant_does_not_disturb_another() {
    if !is_root() {
        skip!("not root: clients cannot run as several users");
    }
    let setup = Setup::new(&format!(
        "[limits]\nwrite-timeout-ms = 1000\nmessage-timeout-ms = 1000\n\
         [tenant.acme]\nidentities = [\"uid:{VICTIM}\"]\n\
         [tenant.evil]\nidentities = [\"uid:{EVIL}\", \"uid:0\"]\nops = 20\n\
         bounds = {{ jobs-in-flight = 500, imported-keys = 200, connections = 600 }}\n"
    ));
    let millis = scaled(4_000, 30_000);
    let alone = setup.start(VICTIM, 1, 1, millis / 2).outcome();
    let stop = AtomicBool::new(false);
    let (beside, evil, seen) = thread::scope(|scope| {
        let attacks: [fn(&Setup, &AtomicBool); 4] =
            [import_keys, never_read, drip, hold_connections];
        // Far above its quota, all the time.
        let flood = setup.start(EVIL, 10, 40, 120_000);
        let (setup, stop) = (&setup, &stop);
        let _stopped = StopOnDrop(stop);
        let attacks = attacks.map(|attack| scope.spawn(move || attack(setup, stop)));
        wait::until("all attacks run", || {
            let row = setup.tenant("evil");
            row["throttled"][0]["jobs"].as_u64() > Some(1_000)
                && row["imported_keys"].as_u64() > Some(100)
                && row["connections"].as_u64() > Some(300)
        });
        let (start, before) = (Instant::now(), setup.count("evil", "admitted"));
        let victim = setup.start(VICTIM, 1, 1, millis).outcome();
        let seen = setup.tenant("evil");
        let admitted = seen["admitted"].as_u64().unwrap_or(0) - before;
        let evil = admitted as f64 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        drop(flood);
        drop(attacks.map(thread::ScopedJoinHandle::join));
        (victim, evil, seen)
    });
    println!(
        "victim alone p50 {} p99 {} µs, beside p50 {} p99 {} µs; hostile tenant {evil:.1}/s of 20: {seen}",
        alone.latency(50),
        alone.latency(99),
        beside.latency(50),
        beside.latency(99),
    );
    let errors = (beside.busy, beside.over_quota, beside.failed, beside.lost);
    assert_eq!(errors, (0, 0, 0, 0), "{beside:?}");
    assert!(evil <= 20.0 + 20.0 * 1.0, "{evil} operations per second with a quota of 20");
    for (what, most) in [("in_flight", 500), ("imported_keys", 200), ("connections", 600)] {
        let held = seen[what].as_u64().expect("a number");
        assert!(held <= most, "{held} {what}: {seen}");
    }
    // Far more than scheduling noise: a victim that waits for the tenant's jobs would get a few a second.
    assert!(
        beside.served * if is_long() { 5 } else { 20 } > alone.served,
        "{} beside, {} alone",
        beside.served,
        alone.served
    );
    // All of it is given back.
    wait::until("the hostile tenant holds nothing", || {
        let row = setup.tenant("evil");
        ["in_flight", "bytes_in_flight", "imported_keys", "connections"]
            .iter()
            .all(|what| row[*what] == 0)
    });
}
