// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Faults of a managed pool of real processes, under a gateway whose key only the pool has: no handshake may fail, so
//! no completion is lost, doubled or wrong, and afterwards the whole quota is granted again. Recovery times are
//! printed; `docs/guide/cluster.md` has them. A tenant that misbehaves is in `tenants.rs`, the end of processes in
//! `pool.rs`. `make test-pool` runs this file alone, with all that it prints.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use millrace_testkit::etcd::EtcdCluster;
use millrace_testkit::skip;
use millrace_tests::artifacts::artifacts;
use millrace_tests::cluster::{
    Cluster, OPS, expired, granted, have_the_key, recovered, set_quota, tenant,
};
use millrace_tests::edge::EdgeOptions;
use millrace_tests::network::Network;
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::openvpn::Namespace;
use millrace_tests::pki::KeyKind;
use millrace_tests::pool::{Host, Loaded, Manager, Operator, Pool, in_force, tenant_at};
use millrace_tests::process::{Process, copy_for_all, run, run_with_input, succeed, text_of};
use millrace_tests::release;
use millrace_tests::world::World;
use millrace_tests::{is_root, load, scaled, wait};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

#[test]
fn suspended_etcd_and_a_suspended_node_fail_no_handshake() {
    let pool = Cluster::start(1);
    let [a, b] = &pool.nodes;
    pool.etcd.signal(0, "-STOP");
    wait::until("the grants have expired", || expired(a) && expired(b));
    let quarter = granted(&[a, b]);
    assert!(quarter <= OPS / 4, "{quarter}");
    pool.loaded.load.wait_for_more(5);
    pool.etcd.signal(0, "-CONT");
    recovered("SIGCONT of all etcd", &[a, b], OPS);

    // The node is silent for longer than its lease: when it goes on, what it holds is a registration of before.
    a.signal(Signal::STOP);
    let start = Instant::now();
    wait::until("the other node gets what is free", || in_force(b, "acme") == OPS - OPS / 8);
    println!("SIGSTOP of a node: its slices at the other after {:?}", start.elapsed());
    pool.loaded.load.wait_for_more(5);
    a.signal(Signal::CONT);
    recovered("SIGCONT of a node", &[a, b], OPS);
    assert!(a.log().contains("registering again"), "{}", a.log());
    pool.finish();
}

#[test]
fn suspended_manager_and_leader_of_etcd_fail_no_handshake() {
    let mut pool = Cluster::start(3);
    // A suspended manager takes connections and answers none.
    pool.pool.managers[0].signal(Signal::STOP);
    pool.change("SIGSTOP of a manager", OPS - 1000);
    pool.pool.managers[0].signal(Signal::CONT);
    let leader = pool.etcd.leader();
    pool.etcd.signal(leader, "-STOP");
    pool.change("SIGSTOP of etcd's leader", OPS - 2000);
    pool.etcd.signal(leader, "-CONT");
    pool.change("SIGCONT of etcd's leader", OPS - 3000);
    let leader = pool.etcd.leader();
    pool.etcd.kill(leader);
    pool.change("kill -9 of etcd's leader", OPS - 4000);
    pool.finish();
}

/// Runs a program with a small disk of its own at `folder`.
fn on_a_small_disk(folder: &Path, size: &str) -> Vec<String> {
    fs::create_dir_all(folder).expect("mount point");
    let script = format!(
        "mount -t tmpfs -o size={size},mode=700 tmpfs '{}' && exec \"$0\" \"$@\"",
        folder.display()
    );
    let words = ["unshare", "--mount", "--propagation", "private", "sh", "-c"];
    words.map(str::to_owned).into_iter().chain([script]).collect()
}

/// Fills the disk of a process, until the file is removed.
fn fill(process: u32, folder: &Path) -> PathBuf {
    let inside = folder.strip_prefix("/").expect("an absolute path");
    let file = Path::new(&format!("/proc/{process}/root")).join(inside).join("filler");
    // Smaller and smaller pieces, so that no room is left for a page of a database.
    let mut filler = fs::File::create(&file).expect("a file");
    for size in [64 * 1024, 4096, 1] {
        while std::io::Write::write_all(&mut filler, &vec![7; size]).is_ok() {}
    }
    file
}

fn may_mount(world: &World) -> bool {
    let words = on_a_small_disk(&world.dir().join("trial"), "64k");
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("true");
    is_root() && run(&mut command).status.success()
}

#[test]
fn full_disk_of_a_manager_or_a_node_loses_nothing_and_ends_with_it() {
    let world = World::new();
    if !may_mount(&world) {
        skip!("only root mounts in a namespace of its own");
    }
    let disk = world.dir().join("disk");
    let host = Host { under: on_a_small_disk(&disk, "16m"), ..Host::here() };
    let store = format!("sqlite:{}", disk.join("pool.db").display());
    let pool = Pool::start_at(world.dir(), &store, &[host]);
    let state = world.dir().join("node-a/state");
    let options = NodeOptions { under: on_a_small_disk(&state, "512k"), ..NodeOptions::default() };
    let a = pool.node_with("a", &options, &[]);
    let identity = world.identity(KeyKind::P256);
    let operator = pool.operator().clone();
    tenant_at(&operator, "a");

    // The node cannot store a key that comes: it says so, serves on, and has the key when there is room.
    let filler = fill(a.id(), &state);
    let file = identity.key_file.to_str().expect("a path in UTF-8");
    operator.done(&["pool", "key", "import", "www", file, "--tenant", "acme"]);
    wait::until("the node has said why", || a.log().contains("o space left"));
    assert_eq!(in_force(&a, "acme"), 9000, "its grants are in force");
    assert_eq!(a.status()["keys"], 0);
    let start = Instant::now();
    fs::remove_file(filler).expect("the filler");
    have_the_key(&[&a]);
    println!("room on a node's disk: its key is there after {:?}", start.elapsed());

    let stub = operator.run(&["pool", "key", "stub", "www"]);
    let stub = String::from_utf8(stub.stdout).expect("PEM");
    let loaded = Loaded::start(&world, EdgeOptions::to(a.endpoint()), &identity, &stub);
    loaded.load.wait_for_more(5);
    let filler = fill(pool.managers[0].id(), &disk);
    let refused = operator.run(&["tenant", "set", "acme", "--ops", "8000"]);
    let text = text_of(&refused);
    assert!(!refused.status.success() && text.contains("takes no writes"), "{text}");
    wait::until("the grant has expired", || expired(&a));
    assert_eq!(in_force(&a, "acme"), 9000 / 4);
    loaded.load.wait_for_more(5);
    fs::remove_file(filler).expect("the filler");
    recovered("room on a manager's disk", &[&a], 9000);
    operator.done(&["tenant", "set", "acme", "--ops", "8000"]);
    wait::until("the quota is in force", || in_force(&a, "acme") == 8000);
    loaded.none_failed();
    assert!(operator.run(&["audit", "--verify"]).status.success());
}

#[test]
fn full_disk_of_etcd_loses_nothing_and_ends_with_it() {
    let world = World::new();
    if !may_mount(&world) {
        skip!("only root mounts in a namespace of its own");
    }
    // Etcd ends when it cannot write, and its disk is to outlive it. It reserves 64 MB for each file of its log.
    let data = world.dir().join("m0");
    let words = on_a_small_disk(&data, "200m");
    let mut keep = Command::new(&words[0]);
    keep.args(&words[1..]).args(["sleep", "infinity"]);
    let mut disk = Process::start("disk", keep, &world.dir().join("disk.log"));
    let is_mounted = |text: String| text.lines().any(|line| line.contains("/m0 tmpfs"));
    let mounts = format!("/proc/{}/mounts", disk.id());
    disk.wait_ready(|| fs::read_to_string(&mounts).is_ok_and(is_mounted));
    let target = disk.id().to_string();
    let words = ["nsenter", "--mount", "--target", &target];
    let mut etcd = EtcdCluster::start_under(world.dir(), "127.0.0.1", &words);
    let store = format!("etcd://{}", etcd.endpoints().join(","));
    let pool = Pool::start(world.dir(), &store, 2);
    let a = pool.node("a");
    let identity = world.identity(KeyKind::P256);
    let operator = pool.operator().clone();
    let stub = tenant(&operator, "uid:*", &["a"], 9000, &identity.key_file);
    have_the_key(&[&a]);
    let loaded = Loaded::start(&world, EdgeOptions::to(a.endpoint()), &identity, &stub);
    loaded.load.wait_for_more(5);
    let filler = fill(disk.id(), &data);
    wait::until("the grant has expired", || expired(&a));
    assert!(!operator.run(&["tenant", "set", "acme", "--ops", "8000"]).status.success());
    assert_eq!(in_force(&a, "acme"), 9000 / 4);
    loaded.load.wait_for_more(5);
    fs::remove_file(filler).expect("the filler");
    let ended = etcd.start_again(0);
    recovered(&format!("room on etcd's disk, etcd had ended: {ended}"), &[&a], 9000);
    loaded.none_failed();
    assert!(operator.run(&["audit", "--verify"]).status.success());
}

/// A clock that a file sets. The monotonic clock is the true one.
struct FakeClock(PathBuf);

impl FakeClock {
    fn new(dir: &Path, name: &str) -> Self {
        let clock = Self(dir.join(format!("{name}.clock")));
        clock.set("+0");
        clock
    }

    /// Sets the clock to this much after the true one.
    fn set(&self, offset: &str) {
        let fresh = self.0.with_extension("new");
        fs::write(&fresh, format!("{offset}\n")).expect("a clock");
        fs::rename(fresh, &self.0).expect("a clock");
    }

    fn library() -> PathBuf {
        let arch = std::env::consts::ARCH;
        format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1").into()
    }

    fn under(&self) -> Vec<String> {
        vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", Self::library().display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.0.display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
        ]
    }
}

#[test]
fn clock_that_jumps_by_an_hour_fails_no_handshake_and_ends_no_grant() {
    assert!(FakeClock::library().exists(), "run `make setup`: it installs libfaketime");
    let world = World::new();
    let store = format!("sqlite:{}", world.dir().join("pool.db").display());
    let of_manager = FakeClock::new(world.dir(), "manager");
    let host = Host { under: of_manager.under(), ..Host::here() };
    let pool = Pool::start_at(world.dir(), &store, &[host]);
    let of_node = FakeClock::new(world.dir(), "node");
    let options = NodeOptions { under: of_node.under(), ..NodeOptions::default() };
    let a = pool.node_with("a", &options, &[]);
    let identity = world.identity(KeyKind::P256);
    let operator = pool.operator().clone();
    let stub = tenant(&operator, "uid:*", &["a"], 9000, &identity.key_file);
    have_the_key(&[&a]);
    let loaded = Loaded::start(&world, EdgeOptions::to(a.endpoint()), &identity, &stub);
    loaded.load.wait_for_more(5);
    let end = || {
        let end = a.status()["grants"][0]["expires"].as_i64();
        end.unwrap_or(0)
    };
    let mut ops = 9000;
    for (what, clock) in [("manager", &of_manager), ("node", &of_node)] {
        for offset in ["+3600", "-3600", "+0"] {
            let before = end();
            clock.set(offset);
            ops -= 100;
            let start = Instant::now();
            operator.done(&["tenant", "set", "acme", "--ops", &ops.to_string()]);
            recovered(&format!("clock of the {what} at {offset} s"), &[&a], ops);
            if what == "node" {
                // The times in a grant are those of the node's clock.
                let jump = end() - before;
                assert!(jump.abs() > 3000, "{offset}: the grant's end moved by {jump} s");
            }
            assert!(start.elapsed() < wait::SOON);
            loaded.load.wait_for_more(3);
        }
    }
    loaded.none_failed();
}

#[test]
fn expired_certificate_of_a_client_ends_no_open_connection() {
    let world = World::new();
    let clock = FakeClock::new(world.dir(), "node");
    let node_identity = world.identity(KeyKind::Rsa2048);
    let options = NodeOptions {
        tcp: true,
        tls: Some((
            node_identity.certificate_file.clone(),
            node_identity.key_file.clone(),
            world.authority.file.clone(),
        )),
        under: clock.under(),
        ..NodeOptions::default()
    };
    let node = Node::start_with(world.dir(), "a", &options);
    let identity = world.identity(KeyKind::P256);
    let stub = node.import("www", &identity);
    let edge = |until: i32| {
        let client = world.authority.client("gateway", 2020, until);
        fs::copy(&world.authority.file, client.join("ca.pem")).expect("authority");
        EdgeOptions { certificates: Some(client), ..EdgeOptions::to(node.tcp_endpoint()) }
    };
    let loaded = Loaded::start(&world, edge(2060), &identity, &stub);
    loaded.load.wait_for_more(5);

    // The node's own certificate is renewed under load.
    let served = node.served().total();
    let _ = world.authority.identity(KeyKind::Rsa2048);
    node.signal(Signal::HUP);
    wait::until("the node serves on", || node.served().total() > served + 5);

    // 40 years later the client's certificate has expired, and its connection is still open.
    clock.set(&format!("+{}", 40_u64 * 365 * 86_400));
    let served = node.served().total();
    loaded.load.wait_for_more(10);
    assert!(node.served().total() > served);
    loaded.none_failed();
    // A new connection with it is refused, one with a renewed certificate is not.
    let edge_expired = edge(2060).with("deadline_ms", 1500).with("fallback_after_ms", 1500);
    let refused = Loaded::start(&world, edge_expired, &identity, &stub);
    wait::until("a handshake fails", || refused.load.failed() > 0);
    assert_eq!(refused.load.completed(), 0);
    drop(refused);
    let renewed = Loaded::start(&world, edge(2099), &identity, &stub);
    renewed.load.wait_for_more(3);
    renewed.none_failed();
}

/// The certificate that a manager shows, by OpenSSL.
fn shown(manager: &Manager) -> String {
    let address = manager.url().replace("https://", "");
    let mut openssl = release::command("openssl");
    let output = run_with_input(openssl.args(["s_client", "-connect", &address]), b"");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, certificate) = text.split_once("-----BEGIN").expect("a certificate");
    certificate.split_once("-----END").expect("a certificate").0.to_owned()
}

#[test]
fn manager_renews_its_certificate_and_hears_of_a_revoked_one_while_it_serves() {
    let world = World::new();
    let store = format!("sqlite:{}", world.dir().join("pool.db").display());
    let pool = Pool::start(world.dir(), &store, 1);
    let manager = &pool.managers[0];
    let a = pool.node("a");
    let operator = pool.operator();
    tenant_at(operator, "a");
    wait::until("the grant is in force", || in_force(&a, "acme") == 9000);

    // Two users with client certificates, of whom one has a page open.
    let cert = |verb: &str, name: &str| {
        let mut command = Command::new(&artifacts().millrace);
        command.args(["cert", verb, name, "--state"]).arg(manager.state());
        command
    };
    for name in ["left", "stays"] {
        let _ = succeed(cert("client", name).arg("-o").arg(world.dir().join(name)));
        let identity = format!("cert:{name}");
        operator.done(&["token", "create", name, "--role", "viewer", "--identity", &identity]);
    }
    let get = |name: &str, path: &str| {
        let files = world.dir().join(name);
        let mut curl = release::command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--no-buffer", "--cacert"]);
        curl.arg(files.join("ca.pem")).arg("--cert").arg(files.join("cert.pem"));
        curl.arg("--key").arg(files.join("key.pem")).arg(format!("{}{path}", manager.url()));
        curl
    };
    let reads = |name: &str| run(&mut get(name, "/v1/state")).status.success();
    assert!(reads("left") && reads("stays"));
    let log = world.dir().join("page.log");
    let mut page = Process::start("page", get("left", "/v1/events"), &log);
    page.wait_ready(|| page_is_shown(&log));

    let before = shown(manager);
    let _ = succeed(&mut cert("revoke", "left"));
    assert!(reads("left"), "the manager has not read the list");
    manager.signal(Signal::HUP);
    wait::until("the manager shows another certificate", || shown(manager) != before);
    wait::until("the revoked certificate is refused", || !reads("left"));
    wait::until("the open page has ended", || page.ended().is_some());
    assert!(reads("stays"));
    operator.done(&["tenant", "set", "acme", "--ops", "8000"]);
    recovered("a renewed certificate of the manager", &[&a], 8000);
}

fn page_is_shown(log: &Path) -> bool {
    fs::read_to_string(log).is_ok_and(|text| text.contains("event: state"))
}

/// Each part of a pool on a host of its own: etcd, two managers, two nodes, and a gateway under load.
struct Separated {
    loaded: Loaded,
    nodes: [Node; 2],
    operator: Operator,
    _pool: Pool,
    _etcd: EtcdCluster,
    network: Network,
    // Last, so that the folder is removed after the processes have ended.
    _world: World,
}

impl Separated {
    fn start() -> Self {
        let world = World::new();
        let network =
            Network::new(world.dir(), &["etcd", "manager-1", "manager-2", "a", "b", "gateway"]);
        let host = network.host("etcd");
        let words: Vec<&str> = host.under.iter().map(String::as_str).collect();
        let etcd = EtcdCluster::start_under(world.dir(), &host.address, &words);
        let store = format!("etcd://{}", etcd.endpoints().join(","));
        let hosts = ["manager-1", "manager-2"].map(|name| network.host(name));
        let pool = Pool::start_at(world.dir(), &store, &hosts);
        let own = world.identity(KeyKind::Rsa2048);
        let nodes = ["a", "b"].map(|name| {
            let options = NodeOptions {
                tcp: true,
                host: Some(network.address(name)),
                tls: Some((
                    own.certificate_file.clone(),
                    own.key_file.clone(),
                    world.authority.file.clone(),
                )),
                under: network.host(name).under,
                ..NodeOptions::default()
            };
            pool.node_with(name, &options, &[])
        });
        let identity = world.identity(KeyKind::P256);
        let operator = pool.operator().clone();
        let stub = tenant(&operator, "cert:*", &["a", "b"], OPS, &identity.key_file);
        have_the_key(&[&nodes[0], &nodes[1]]);
        let client = world.authority.client("gateway", 2020, 2099);
        fs::copy(&world.authority.file, client.join("ca.pem")).expect("authority");
        let edge = EdgeOptions {
            nodes: nodes.iter().map(Node::tcp_endpoint).collect(),
            certificates: Some(client),
            ..EdgeOptions::default()
        };
        let loaded = network.inside("gateway", || Loaded::start(&world, edge, &identity, &stub));
        loaded.load.wait_for_more(10);
        Self { loaded, nodes, operator, _pool: pool, _etcd: etcd, network, _world: world }
    }

    fn cut(&self, ways: &[(&str, &str)]) {
        ways.iter().for_each(|(from, to)| self.network.cut(from, to));
    }

    fn heal(&self, ways: &[(&str, &str)]) {
        ways.iter().for_each(|(from, to)| self.network.heal(from, to));
    }

    /// A node and the managers: its clients are served on, with a quarter.
    fn node_without_managers(&self, what: &str, ways: &[(&str, &str)]) {
        let nodes = self.nodes.each_ref();
        // After the end of its lease the other node may have the whole quota for some seconds; what is left of its own
        // grant is in force until its new one comes, and is no part.
        let _ = self.operator.wait_for_slices("acme", &["a", "b"], OPS);
        let has_part = || in_force(nodes[0], "acme") > 0 && !expired(nodes[0]);
        wait::until("the node has a part", has_part);
        self.cut(ways);
        wait::until("the node's grant has expired", || expired(nodes[0]));
        let sum = granted(&nodes);
        assert!(sum <= OPS, "{what}: {sum} in force");
        self.loaded.load.wait_for_more(5);
        self.heal(ways);
        recovered(&format!("partition of {what}"), &nodes, OPS);
    }

    /// Sets the quota, waits until it is in force, and prints the time.
    fn change(&self, what: &str, ops: u64) {
        let start = Instant::now();
        set_quota(&self.operator, ops);
        wait::until("the quota is in force", || granted(&self.nodes.each_ref()) == ops);
        println!("{what}: a new quota in force after {:?}", start.elapsed());
        self.loaded.load.wait_for_more(5);
    }

    /// The gateway and a node: the other node serves. A job whose answer is lost is sent again.
    fn gateway_without_a_node(&self, what: &str, ways: &[(&str, &str)]) {
        let [a, b] = &self.nodes;
        let served = b.served().total();
        let start = Instant::now();
        self.cut(ways);
        self.loaded.load.wait_for_more(20);
        println!("partition of {what}: 20 handshakes after {:?}", start.elapsed());
        assert!(b.served().total() > served, "{what}");
        self.heal(ways);
        let (start, served) = (Instant::now(), a.served().total());
        wait::until("the node is used again", || a.served().total() > served);
        println!("partition of {what}: the node is used again after {:?}", start.elapsed());
    }

    fn finish(self) {
        self.loaded.none_failed();
        assert!(self.operator.run(&["audit", "--verify"]).status.success());
    }
}

/// Ends of the links that are lossy or long: each of the gateway, the managers and etcd has one.
const LINKS: [(&str, &str); 3] = [("gateway", "a"), ("a", "manager-1"), ("manager-1", "etcd")];

/// A name for what is cut, and who does not reach whom.
type Partition = (&'static str, &'static [(&'static str, &'static str)]);

#[test]
fn partitions_between_all_parts_fail_no_handshake_and_recover() {
    if !Namespace::is_possible() {
        skip!("namespaces are not permitted here");
    }
    const NODE: [Partition; 3] = [
        (
            "node and managers",
            &[("a", "manager-1"), ("a", "manager-2"), ("manager-1", "a"), ("manager-2", "a")],
        ),
        ("answers of the managers", &[("manager-1", "a"), ("manager-2", "a")]),
        ("requests of the node", &[("a", "manager-1"), ("a", "manager-2")]),
    ];
    // Nodes and users ask the other manager.
    const ETCD: [Partition; 2] = [
        ("manager and etcd", &[("manager-1", "etcd"), ("etcd", "manager-1")]),
        ("answers of etcd", &[("etcd", "manager-1")]),
    ];
    const GATEWAY: [Partition; 3] = [
        ("gateway and node", &[("gateway", "a"), ("a", "gateway")]),
        ("answers of the node", &[("a", "gateway")]),
        ("jobs of the gateway", &[("gateway", "a")]),
    ];
    let parts = Separated::start();
    for (what, ways) in NODE {
        parts.node_without_managers(what, ways);
    }
    for (ops, (what, ways)) in (1..).map(|n| OPS - n * 1000).zip(ETCD) {
        parts.cut(ways);
        parts.change(&format!("partition of {what}"), ops);
        parts.heal(ways);
    }
    for (what, ways) in GATEWAY {
        parts.gateway_without_a_node(what, ways);
    }
    parts.finish();
}

#[test]
fn slow_and_lossy_links_fail_no_handshake_and_hold_up_no_quota() {
    if !Namespace::is_possible() {
        skip!("namespaces are not permitted here");
    }
    let parts = Separated::start();
    let mut quotas = (1..).map(|n| OPS - n * 100);
    let mut next = || quotas.next().expect("without end");
    for host in ["gateway", "a", "manager-1", "etcd"] {
        parts.network.slow(host, "256kbit");
        parts.loaded.load.wait_for_more(10);
        parts.change(&format!("256 kbit/s at {host}"), next());
        parts.network.fast(host);
        parts.change(&format!("{host} as before"), next());
    }
    let mut lost = 0;
    for (one, other) in LINKS {
        lost += parts.network.lossy(one, other, || {
            parts.loaded.load.wait_for_more(10);
            parts.change(&format!("30 % loss between {one} and {other}"), next());
        });
        parts.change(&format!("{one} and {other} as before"), next());
    }
    println!("{lost} packets were lost");
    assert!(lost > 0);
    parts.finish();
}

#[test]
fn long_ways_fail_no_handshake_and_hold_up_no_quota() {
    if !Namespace::is_possible() {
        skip!("namespaces are not permitted here");
    }
    if !Path::new("/dev/net/tun").exists() {
        skip!("no network device for a VPN");
    }
    let parts = Separated::start();
    for (ops, (one, other)) in (1..).map(|n| OPS - n * 100).zip(LINKS) {
        parts.network.delayed((one, other), 150, || {
            parts.loaded.load.wait_for_more(10);
            parts.change(&format!("150 ms each way between {one} and {other}"), ops);
        });
    }
    parts.finish();
}

#[test]
fn storm_of_5000_connections_leaves_another_tenant_its_node() {
    if !is_root() {
        skip!("not root: clients cannot run as several users");
    }
    const VICTIM: u32 = 4_000_021;
    const STORM: u32 = 4_000_100;
    let most = Some(20_000);
    if setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_err() {
        skip!("this root may not open 20,000 files");
    }
    let world = World::new();
    let options = NodeOptions {
        toml: format!(
            // A tenant may not hold more connections than are still free.
            "[engine]\nworkers = 1\n[limits]\nconnections = 10240\nconnections-per-identity = 600\n\
             [tenant.acme]\nidentities = [\"uid:{VICTIM}\"]\n\
             [tenant.storm]\nidentities = [\"uid:4000*\"]\n"
        ),
        under: vec!["prlimit".to_owned(), "--nofile=20000:20000".to_owned()],
        ..NodeOptions::default()
    };
    let node = Node::start_with(world.dir(), "a", &options);
    let _ = node.import("www", &world.identity(KeyKind::Rsa2048));
    let program = copy_for_all(Path::new(env!("CARGO_BIN_EXE_millrace-tests-load")), world.dir());
    let manners = load::Manners::Ignores;
    let start = |user, connections, millis| {
        load::Load { user, connections, in_flight: 1, millis, manners }.start(
            &program,
            &node.socket(),
            "www",
        )
    };
    let millis = scaled(4_000, 20_000) as u64;
    let alone = start(VICTIM, 1, millis).outcome();
    let before = node.resident_kib();
    let storm: Vec<_> = (0..10).map(|n| start(STORM + n, 500, 4 * millis)).collect();
    let begun = Instant::now();
    let beside = start(VICTIM, 1, millis).outcome();
    wait::until("all connections of the storm are open", || node.connections() >= 5000);
    println!("5000 connections are open after {:?}", begun.elapsed());
    let during = node.resident_kib();
    let outcomes: Vec<_> = storm.into_iter().map(load::Running::outcome).collect();
    println!(
        "victim alone p99 {} µs, beside p99 {} µs; node {before} KiB, then {during} KiB",
        alone.latency(99),
        beside.latency(99)
    );
    let errors = (beside.busy, beside.over_quota, beside.failed, beside.lost);
    assert_eq!(errors, (0, 0, 0, 0), "{beside:?}");
    assert!(beside.served * 20 > alone.served, "{} beside, {} alone", beside.served, alone.served);
    for outcome in outcomes {
        assert!(outcome.served > 0 && outcome.lost == 0, "{outcome:?}");
    }
    // 64 KiB a connection is far more than one needs.
    assert!(during < before + 5000 * 64, "{before} KiB, then {during} KiB");
    wait::until("the storm is over", || node.connections() == 0);
    let again = start(VICTIM, 1, 1000).outcome();
    assert!(again.served > 0);
}
