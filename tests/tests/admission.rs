// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Strangers at every listener, with ten times the connections that it has places: the clients with a name go on as if
//! they were alone. With `MILLRACE_LONG=1` each attack has the size at which it once cut a manager off from its nodes.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use millrace_testkit::{keys, skip};
use millrace_tests::crowd::{Crowd, RunningCrowd, Target, as_user, trusting};
use millrace_tests::drive::Tls;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Server, Site};
use millrace_tests::load::Connection;
use millrace_tests::machine::{Machine, RsaLoad};
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::KeyKind;
use millrace_tests::pool::{Operator, Pool, in_force};
use millrace_tests::process::{copy_for_all, run, text_of};
use millrace_tests::world::World;
use millrace_tests::{is_long, is_root, scaled, wait};
use millrace_virtio_guest::{Guest, INDIRECT_FEATURE};
use millrace_wire::{ClientMessage, Hello, Message, VERSION_MAX, VERSION_MIN};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;

/// The quota of the tenant, which two nodes have between them.
const OPS: u64 = 9000;

/// A crowd is thousands of descriptors; a shell often starts with 1,024.
fn allow_descriptors() {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).expect("a limit");
}

/// A pool whose administrator and nodes work under an attack.
struct Attacked {
    pool: Pool,
    nodes: [Node; 2],
    operator: Operator,
    manager: SocketAddr,
    ca: PathBuf,
    viewer: String,
    // Last, so that the folder is removed after the processes have ended.
    _world: World,
}

impl Attacked {
    fn new() -> Self {
        allow_descriptors();
        let world = World::new();
        let store = format!("sqlite:{}", world.dir().join("pool.db").display());
        let pool = Pool::start(world.dir(), &store, 1);
        let nodes = ["a", "b"].map(|name| pool.node(name));
        let operator = pool.operator().clone();
        let ops = OPS.to_string();
        operator.done(&["tenant", "create", "acme", "--ops", &ops, "--identity", "uid:*"]);
        operator.done(&[
            "tenant",
            "place",
            "acme",
            "--node",
            "a",
            "--node",
            "b",
            "--over-commit",
            "on",
        ]);
        let _ = operator.wait_for_slices("acme", &["a", "b"], OPS);
        let access = world.dir().join("viewer.access");
        let file = access.to_str().expect("a path in UTF-8");
        operator.done(&["token", "create", "eye", "--role", "viewer", "-o", file]);
        let access: Value =
            serde_json::from_slice(&fs::read(&access).expect("the access")).expect("JSON");
        let viewer = access["token"].as_str().expect("a token").to_owned();
        let url = pool.managers[0].url();
        let manager = url.strip_prefix("https://").and_then(|url| url.parse().ok());
        let manager = manager.expect("an address");
        let ca = pool.managers[0].state().join("tls/ca.crt");
        let attacked = Self { pool, nodes, operator, manager, ca, viewer, _world: world };
        wait::until("the slices are in force", || attacked.granted() == OPS);
        attacked
    }

    fn granted(&self) -> u64 {
        self.nodes.iter().map(|node| in_force(node, "acme")).sum()
    }

    fn crowd(&self, connections: usize, every: Duration, sends: String) -> RunningCrowd {
        let target = Target::Tls(self.manager, self.ca.clone());
        // Some share their address with the nodes and the administrator.
        let sends = sends.into_bytes();
        Crowd { target, connections, sends, drips: false, every, addresses: 8, user: None }.start()
    }

    fn get(&self, path: &str, headers: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", self.manager)
    }

    /// Holds that the administrator and the nodes work for some seconds.
    fn work_for(&self, what: &str, crowd: &RunningCrowd, seconds: usize) {
        let start = Instant::now();
        let (mut calls, mut slowest) = (0, Duration::ZERO);
        while start.elapsed() < Duration::from_secs(seconds as u64) {
            for command in [&["node", "list"][..], &["tenant", "show", "acme"], &["token", "list"]]
            {
                let began = Instant::now();
                let output = self.operator.run(command);
                assert!(output.status.success(), "{what}, {command:?}: {}", text_of(&output));
                (calls, slowest) = (calls + 1, slowest.max(began.elapsed()));
            }
            assert_eq!(self.granted(), OPS, "{what}: the whole quota stays in force");
        }
        let (sent, failed) = crowd.counts();
        println!(
            "{what}: {sent} sendings, {failed} failed; {calls} calls, the slowest {slowest:?}"
        );
        assert!(sent > 0, "{what}: the attack takes place");
        assert_eq!(self.registrations(), 2, "{what}: no lease has ended");
    }

    /// Registrations of both nodes: one that loses its lease registers again.
    fn registrations(&self) -> usize {
        let logs = self.nodes.iter().map(Node::log);
        logs.map(|log| log.matches("registered at the manager").count()).sum()
    }

    fn displaced(&self, class: &str) -> f64 {
        let name = format!("millrace_manager_connections_displaced_total{{class=\"{class}\"}} ");
        let metrics = self.pool.metrics().concat();
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{metrics}"))
    }
}

#[test]
fn strangers_take_no_place_at_a_manager_from_its_nodes_and_administrators() {
    let attacked = Attacked::new();
    let seconds = scaled(3, 30);

    // Each connection is of use to its client every 6 s, so that none is idle for long.
    let kept = attacked.crowd(
        scaled(700, 2160),
        Duration::from_secs(scaled(2, 6) as u64),
        attacked.get("/v1/nothing", ""),
    );
    attacked.work_for("kept-alive connections without a token", &kept, 2 * seconds);
    drop(kept);
    assert!(attacked.displaced("stranger") > 0.0);

    let authorization = format!("authorization: Bearer {}\r\n", attacked.viewer);
    let streams = attacked.crowd(
        scaled(400, 2100),
        Duration::from_secs(scaled(3, 20) as u64),
        attacked.get("/v1/events", &authorization),
    );
    attacked.work_for("event streams of one viewer", &streams, 2 * seconds);
    drop(streams);
    assert!(attacked.displaced("viewer") > 0.0);

    // 90 each second, for longer than a request may take.
    let unfinished = attacked.crowd(
        scaled(900, 900),
        Duration::from_secs(10),
        attacked.get("/healthz", "content-length: 1000\r\n"),
    );
    attacked.work_for("unfinished bodies", &unfinished, 3 * seconds);
    drop(unfinished);

    // The bound of one address is 128.
    let silent =
        attacked.crowd(scaled(600, 400), Duration::from_secs(scaled(1, 10) as u64), String::new());
    attacked.work_for("silent connections", &silent, 2 * seconds);
    drop(silent);
    assert!(attacked.displaced("handshake") > 0.0 || !is_long());
}

/// The answer of a listener to bytes, until it closes the connection.
fn answer_of(stream: &mut (impl Read + Write), bytes: &str) -> String {
    let mut answer = Vec::new();
    if stream.write_all(bytes.as_bytes()).is_err() {
        return String::new();
    }
    // Not every connection of TLS ends with close_notify after a refusal.
    drop(stream.read_to_end(&mut answer));
    String::from_utf8_lossy(&answer).into_owned()
}

fn connected(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the listener");
    stream.set_read_timeout(Some(wait::SOON)).expect("a timeout");
    stream
}

/// Requests that name no server, several, or another one, and the status that each must have; `HOST` is the right name.
const MISADDRESSED: [(&str, &str, u16); 7] = [
    ("/", "", 400),
    ("/", "host: HOST\r\nhost: HOST\r\n", 400),
    ("/", "host: HOST\r\nhost: evil.example\r\n", 400),
    ("/", "host: a b\r\n", 400),
    ("http://evil.example/", "host: HOST\r\n", 421),
    ("http://HOST/", "host: evil.example\r\n", 421),
    ("http://evil.example/", "host: HOST\r\nhost: HOST\r\n", 400),
];

/// Requests each over a connection of its own.
fn refuses_misaddressed(what: &str, host: &str, ask: impl Fn(&str) -> String) {
    let end = "connection: close\r\n\r\n";
    for (target, headers, status) in MISADDRESSED {
        let request = format!("GET {target} HTTP/1.1\r\n{headers}{end}").replace("HOST", host);
        let answer = ask(&request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {request}{answer}");
    }
    for target in ["/", &format!("http://{host}/")] {
        let answer = ask(&format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n{end}"));
        let served =
            ["HTTP/1.1 200 ", "HTTP/1.1 404 "].iter().any(|status| answer.starts_with(status));
        assert!(served, "{what}, {target}: {answer}");
    }
}

#[test]
fn every_http_listener_refuses_requests_that_name_no_server_or_several() {
    let attacked = Attacked::new();
    let tls = trusting(&attacked.ca);
    let ask = |request: &str| {
        let name = ServerName::IpAddress(attacked.manager.ip().into());
        let session = ClientConnection::new(tls.clone(), name).expect("a client");
        answer_of(&mut StreamOwned::new(session, connected(attacked.manager)), request)
    };
    refuses_misaddressed("the manager", &attacked.manager.to_string(), ask);
    // An open request has its answer before its body, which is not read.
    let unfinished = attacked.get("/healthz", "content-length: 1000\r\n");
    let answer = ask(&unfinished);
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"),
        "{answer}"
    );

    let node = &attacked.nodes[0];
    let metrics = metrics_address(node);
    let ask = |request: &str| answer_of(&mut connected(metrics), request);
    refuses_misaddressed("metrics", &metrics.to_string(), ask);
    for socket in ["status.sock", "admin.sock"] {
        let ask = |request: &str| {
            let mut stream = UnixStream::connect(node.dir().join(socket)).expect("the socket");
            stream.set_read_timeout(Some(wait::SOON)).expect("a timeout");
            answer_of(&mut stream, request)
        };
        refuses_misaddressed(socket, "localhost", ask);
    }
}

/// The address of a node's metrics, which the system has chosen.
fn metrics_address(node: &Node) -> SocketAddr {
    let log = node.log();
    let url = log.split_whitespace().find_map(|word| word.strip_prefix("http://"));
    let address = url.and_then(|url| url.split('/').next()).and_then(|text| text.parse().ok());
    address.unwrap_or_else(|| panic!("{log}"))
}

/// Ten times the places of each listener of a node, of which a handshake has 64.
const CONNECTIONS: usize = 256;

#[test]
fn strangers_take_no_place_at_any_listener_of_a_node() {
    allow_descriptors();
    let world = World::new();
    let own = world.identity(KeyKind::P256);
    let options = NodeOptions {
        tcp: true,
        tls: Some((own.certificate_file, own.key_file, world.authority.file.clone())),
        toml: format!("[limits]\nconnections = {CONNECTIONS}\n"),
        ..NodeOptions::default()
    };
    let node = Node::start_with(world.dir(), "node-1", &options);
    let identity = world.identity(KeyKind::Rsa2048);
    let stub = node.import_with("www", &identity, &["--allow-cert", "gateway-1"]);
    let certificates = world.authority.client("gateway-1", 2001, 2099);
    fs::copy(&world.authority.file, certificates.join("ca.pem")).expect("authority");
    let metrics = metrics_address(&node);

    let every = Duration::from_secs(2);
    let crowd = |target: Target, connections, sends: &str| {
        let sends = sends.as_bytes().to_vec();
        Crowd { target, connections, sends, drips: false, every, addresses: 8, user: None }.start()
    };
    let requests = [
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nx: ",
    ];
    let socket = |name: &str| Target::Unix(node.dir().join(name));
    let mut crowds = vec![crowd(Target::Tcp(node.tcp_address()), 640, "")];
    for target in [Target::Tcp(metrics), socket("status.sock")] {
        crowds.push(crowd(target.clone(), 160, ""));
        crowds.extend(requests.map(|request| crowd(target.clone(), 160, request)));
    }
    wait::until("all attack", || crowds.iter().all(|crowd| crowd.counts().0 > 160));

    // A gateway that comes now is served by the node, which alone has the key.
    let edge =
        EdgeOptions { certificates: Some(certificates), ..EdgeOptions::to(node.tcp_endpoint()) };
    let gateway = world.gateway(Server::Haproxy, edge, &[Site::with_stub(&identity, &stub)]);
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(scaled(3, 60) as u64) {
        world.client.handshakes(gateway.address(KeyKind::Rsa2048), Tls::V13, 5);
        let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        // Clients of these two have no other name than the attackers: each enters, and may give way to the next ones.
        wait::until("a client of the metrics is served", || {
            let answer = answer_of(&mut connected(metrics), request);
            answer.starts_with("HTTP/1.1 200 ") && answer.contains("millrace_jobs")
        });
        wait::until("a client of the status is served", || {
            run(&mut node.command(&["status", "--json"])).status.success()
        });
        let sessions = run(&mut node.command(&["status", "--sessions"]));
        assert!(sessions.status.success(), "{}", text_of(&sessions));
        rounds += 1;
    }
    println!("{rounds} rounds: {:?}", crowds.iter().map(RunningCrowd::counts).collect::<Vec<_>>());
    // Each question below is asked once.
    drop(crowds);
    assert!(node.served().rsa_signatures() >= 5 * rounds);
    let displaced = "millrace_connections_refused_total{reason=\"displaced\"} ";
    let metrics = node.metrics();
    let displaced = metrics.lines().find_map(|line| line.strip_prefix(displaced)).expect("a line");
    assert!(displaced.parse::<f64>().expect("a number") > 100.0, "{displaced}");
}

/// Users of the node's machine, without an entry in `/etc/passwd`. The node serves and obeys these:
const GATEWAY: u32 = 4_000_031;
const ADMINISTRATOR: u32 = 4_000_032;
/// Users whom the node serves and who have no key.
const GREEDY: [u32; 2] = [4_000_033, 4_000_034];
/// A user whom the node does not serve.
const STRANGER: u32 = 4_000_035;

/// The ways of a crowd that takes places with a request: silence, a byte now and then, a part.
fn ways(request: &[u8]) -> [(Vec<u8>, bool); 3] {
    let part = request[..request.len() / 2].to_vec();
    [(Vec::new(), false), (request.to_vec(), true), (part, false)]
}

/// A crowd of one user at a unix socket, with ten times as many connections as there are places.
fn local_crowd(
    socket: PathBuf,
    places: usize,
    user: u32,
    (sends, drips): (Vec<u8>, bool),
) -> RunningCrowd {
    let (target, every) = (Target::Unix(socket), Duration::from_secs(2));
    let connections = 10 * places;
    Crowd { target, connections, sends, drips, every, addresses: 1, user: Some(user) }.start()
}

fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    let (min_version, max_version) = (VERSION_MIN, VERSION_MAX);
    let agent = "crowd ".repeat(9);
    ClientMessage::Hello(Hello { min_version, max_version, features: 0, agent }).encode(&mut bytes);
    bytes
}

#[test]
fn local_users_keep_no_gateway_and_no_administrator_from_a_node() {
    if !is_root() {
        skip!("only root connects as other users");
    }
    allow_descriptors();
    let world = World::new();
    let options = NodeOptions { tcp: true, ..NodeOptions::default() };
    let mut node = Node::prepare(world.dir(), "node-1", &options);
    let places = scaled(64, 256);
    let file = node.dir().join("node.toml");
    let text = fs::read_to_string(&file).expect("settings");
    let admitted = [GATEWAY, GREEDY[0], GREEDY[1]].map(|user| format!("uid:{user}"));
    let admin = format!("[admin]\nuids = [{ADMINISTRATOR}]\n");
    let text = text.replace("[admin]\n", &admin);
    let limits = format!("[limits]\nconnections = {places}\n");
    fs::write(&file, format!("identities = {admitted:?}\n{text}{limits}")).expect("settings");
    node.up();
    let policy = ["--allow-uid", &GATEWAY.to_string()];
    let _ = node.import_with("www", &world.identity(KeyKind::Rsa2048), &policy);
    let connected = |socket: &str| {
        let stream = UnixStream::connect(node.dir().join(socket)).expect("the socket");
        stream.set_read_timeout(Some(wait::SOON)).expect("a timeout");
        stream
    };
    let gateway = || {
        as_user(GATEWAY, || Connection::over(connected("node.sock"), "www", false))
            .expect("the node serves a gateway that connects")
    };
    let mut kept = gateway();

    let request = "GET /sessions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let (jobs, admin) = (node.socket(), node.dir().join("admin.sock"));
    let mut crowds = vec![
        // Sessions, which never give way.
        local_crowd(jobs.clone(), places, GREEDY[0], (hello(), false)),
        Crowd {
            target: Target::Tcp(node.tcp_address()),
            connections: 10 * places / 4,
            sends: Vec::new(),
            drips: false,
            every: Duration::from_secs(1),
            addresses: 8,
            user: None,
        }
        .start(),
    ];
    for way in ways(&hello()) {
        crowds.push(local_crowd(jobs.clone(), places, GREEDY[1], way.clone()));
        crowds.push(local_crowd(jobs.clone(), places, STRANGER, way));
    }
    for way in ways(request.as_bytes()) {
        // An administrator may have a program that goes wrong.
        for user in [STRANGER, ADMINISTRATOR] {
            crowds.push(local_crowd(admin.clone(), 64, user, way.clone()));
        }
    }
    let tried = |crowd: &RunningCrowd| crowd.counts().0 + crowd.counts().1;
    wait::until("all attack", || crowds.iter().all(|crowd| tried(crowd) > 10 * places as u64 / 4));

    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(scaled(3, 60) as u64) {
        for client in [&mut kept, &mut gateway()] {
            let (outcome, _) = client.flood(4, Duration::from_millis(50)).expect("a session");
            assert!(outcome.served > 0, "{outcome:?}");
            assert_eq!(outcome.busy + outcome.over_quota + outcome.failed, 0, "{outcome:?}");
        }
        let sessions = run(&mut node.command(&["status", "--sessions"]));
        assert!(sessions.status.success(), "{}", text_of(&sessions));
        // One of many with this name: it enters, and may give way to the next ones.
        wait::until("an administrator with a name of its own is served", || {
            let answer =
                as_user(ADMINISTRATOR, || answer_of(&mut connected("admin.sock"), request));
            answer.starts_with("HTTP/1.1 200 ") && answer.contains(&format!("uid:{GATEWAY}"))
        });
        rounds += 1;
    }
    println!("{rounds} rounds: {:?}", crowds.iter().map(RunningCrowd::counts).collect::<Vec<_>>());
    drop(crowds);
    for reason in ["too-many-of-identity", "not-admitted", "displaced"] {
        let name = format!("millrace_connections_refused_total{{reason=\"{reason}\"}} ");
        let metrics = node.metrics();
        let count = metrics.lines().find_map(|line| line.strip_prefix(&name)).expect("a line");
        assert!(count.parse::<f64>().expect("a number") > 100.0, "{reason}: {count}");
    }
    assert!(!node.log().contains("panicked"), "{}", node.log());
}

/// Places of newcomers at the socket of a device.
const NEWCOMERS: usize = 16;

#[test]
fn local_users_keep_no_monitor_from_its_device() {
    if !is_root() {
        skip!("only root connects as other users");
    }
    allow_descriptors();
    let machine = Machine::start(&[]);
    // A message without a body, and one with a body that never comes.
    let message = |words: [u32; 3]| words.map(u32::to_le_bytes).concat();
    let [owner, announced] = [[3, 1, 0], [16, 1, 8]].map(message);
    let mut all = ways(&owner).to_vec();
    all.extend([(announced, false), (b"GET / HTTP/1.1\r\n\r\n".to_vec(), false)]);
    let crowd = |way: &(Vec<u8>, bool), user| {
        local_crowd(machine.socket.clone(), NEWCOMERS, user, way.clone())
    };
    // Root's group may connect. One crowd is of the same user as the monitor.
    let mut crowds: Vec<_> = all.iter().map(|way| crowd(way, STRANGER)).collect();
    crowds.push(crowd(&all[0], 0));
    wait::until("all attack", || crowds.iter().all(|crowd| crowd.counts().0 > NEWCOMERS as u64));
    let (done, served) = mpsc::channel();
    let (socket, rounds) = (machine.socket.clone(), scaled(3, 30));
    thread::spawn(move || {
        for _ in 0..rounds {
            let mut guest = None;
            // It may give way to newcomers of its own user until its first message is there.
            wait::until("a device", || {
                guest = Guest::connect(&socket, 1, INDIRECT_FEATURE).ok();
                guest.is_some()
            });
            let mut guest = guest.expect("connected");
            let mut load = RsaLoad::new(&mut guest, keys::rsa_2048().pem);
            load.offer(&mut guest, 20);
            done.send(load.finish(&mut guest)).expect("the test waits");
        }
    });
    for _ in 0..rounds {
        assert_eq!(served.recv_timeout(wait::SOON), Ok(0), "a monitor has its device");
        assert_eq!(machine.status()["ready"], true);
    }
    println!("{:?}", crowds.iter().map(RunningCrowd::counts).collect::<Vec<_>>());
}

#[test]
fn monitor_that_stops_in_the_middle_of_a_message_holds_up_no_upgrade() {
    let machine = Machine::start(&[]);
    let owner = [3_u32, 1, 0].map(u32::to_le_bytes).concat();
    let features = [1_u32, 1, 0].map(u32::to_le_bytes).concat();
    let connected = || {
        let mut monitor = UnixStream::connect(&machine.socket).expect("a connection");
        monitor.write_all(&owner).expect("a message");
        wait::until("the monitor is known", || machine.status()["connected"] == true);
        monitor
    };
    let mut writes_half = connected();
    writes_half.write_all(&features[..6]).expect("half a message");
    machine.upgrade();
    drop(writes_half);
    wait::until("the monitor is gone", || machine.status()["connected"] == false);
    let mut reads_nothing = connected();
    reads_nothing.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    while reads_nothing.write_all(&features).is_ok() {}
    machine.upgrade();
}

/// A user that the namespace of the node does not map, without an entry in `/etc/passwd`.
const OUTSIDE: u32 = 4_000_021;

#[test]
fn overflow_uid_of_a_user_namespace_is_no_identity() {
    let words = ["unshare", "--user", "--map-root-user"].map(str::to_owned).to_vec();
    let may = || run(Command::new(&words[0]).args(&words[1..]).arg("true")).status.success();
    if !is_root() || !may() {
        skip!("namespaces are not permitted here, or this is not root");
    }
    let world = World::new();
    let options = NodeOptions { under: words, ..NodeOptions::default() };
    let node = Node::start_with(world.dir(), "node-1", &options);
    let policy = ["--allow-uid", "65534", "--allow-uid", "0"];
    let _ = node.import_with("www", &world.identity(KeyKind::P256), &policy);
    let program = copy_for_all(Path::new(env!("CARGO_BIN_EXE_millrace-tests-load")), world.dir());
    let sign = |user: u32| {
        let mut command = Command::new(&program);
        command.arg(node.socket()).arg("www").args(["1", "1", "100", "ignores"]).uid(user);
        run(&mut command).status.success()
    };
    assert!(sign(0), "a user that is mapped is served");
    assert!(!sign(OUTSIDE), "others are not, whatever the policy says");
    let log = node.log();
    assert!(log.contains("uid 65534 stands for every user"), "{log}");
    assert!(log.contains("--uidmap"), "{log}");
}
