// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stock nginx with the preload library, which makes it asynchronous: handshakes of one worker wait for the
//! pool concurrently; disconnected clients and timed-out handshakes leak nothing; nginx is reloaded, upgraded
//! and killed under load. A proxy between provider and node decides when the pool answers, and its counters
//! show the jobs in flight.

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millrace_tests::artifacts::artifacts;
use millrace_tests::clients::Program;
use millrace_tests::drive::{Outcome, Tls, finish, reset};
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::{Gateway, Server, Site};
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines, signal_to};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{free_port, memory_kib, open_files, regions, run, succeed, text_of};
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::release;
use millrace_tests::world::World;
use millrace_tests::{scaled, wait};
use rustix::process::Signal;

/// A node behind a proxy, and a site whose key is in that node.
struct Pool {
    world: World,
    node: Node,
    proxy: Proxy,
    edge: Edge,
    site: Site,
}

impl Pool {
    /// The key is in the pool only, and operations end only when the pool answers.
    fn new(kind: KeyKind) -> Self {
        let far = |edge: EdgeOptions| edge.with("deadline_ms", 30_000);
        Self::with(kind, true, far)
    }

    fn with(kind: KeyKind, stub: bool, options: impl FnOnce(EdgeOptions) -> EdgeOptions) -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
        let identity = world.identity(kind);
        let edge = options(EdgeOptions::to(proxy.endpoint()));
        let (edge, site) = if stub {
            let stub = node.import("www", &identity);
            (edge, Site::with_stub(&identity, &stub))
        } else {
            (edge.preferred(), Site::with_key(&identity))
        };
        let edge = edge.write(world.dir());
        Self { world, node, proxy, edge, site }
    }

    fn dir(&self) -> &Path {
        self.world.dir()
    }

    /// A server block for the site, with `more` lines.
    fn server(&self, port: u16, listen: &str, more: &str) -> String {
        format!(
            "server {{ listen 127.0.0.1:{port} ssl backlog=4000 {listen}; {more}\n{}\
             ssl_session_cache off; ssl_session_tickets off; location / {{ return 200 ok; }} }}\n",
            certificate_lines(self.dir(), "www", &self.site)
        )
    }

    fn options(&self, port: u16) -> NginxOptions {
        NginxOptions::asynchronous(&self.edge, self.server(port, "", ""))
    }

    /// nginx with one worker, as most tests use it.
    fn nginx(&self) -> (Nginx, SocketAddr) {
        let port = free_port();
        let nginx = Nginx::start(self.dir(), &self.options(port), &[port]);
        (nginx, address(port))
    }

    /// Makes `count` handshakes wait for the pool at once, in one worker, and then lets them complete.
    fn wait_together(&self, address: SocketAddr, count: u64) {
        self.world.client.handshakes(address, Tls::V13, 1);
        let before = self.proxy.jobs();
        self.proxy.set(Fault::Hold);
        let waiting: Vec<_> = (0..count)
            .map(|number| {
                let client = self.world.client.clone();
                let tls = Tls::ALL[usize::from(number % 2 == 0)];
                thread::spawn(move || client.handshake(address, tls))
            })
            .collect();
        self.proxy.wait_for_jobs(before + count);
        self.proxy.set(Fault::None);
        for thread in waiting {
            thread.join().expect("no panic").expect("a handshake");
        }
    }
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

#[test]
fn handshakes_of_one_worker_wait_together() {
    for kind in KeyKind::USUAL {
        let pool = Pool::new(kind);
        let (nginx, address) = pool.nginx();
        pool.wait_together(address, 40);
        for program in Program::ALL {
            for tls in Tls::ALL {
                program.handshake(address.port(), tls, &pool.world.authority);
            }
        }
        let expected = 41 + 2 * Program::ALL.len() as u64;
        assert_eq!(pool.node.served().total(), expected, "one per handshake");
        assert!(!nginx.log().contains("millrace-preload:"), "nothing to say");
    }
}

/// Concurrent clients.
const CLIENTS: usize = 40;

/// Minimum latency of one operation in the tests under load.
const LATENCY: Duration = Duration::from_millis(5);

/// Minimum latencies in the comparison, ms. nginx, load driver and pool share the cores, and their computing
/// must be the smaller part of a handshake; a slow or busy machine needs the longer latencies. (Without the
/// library the gain is 1 on any machine, so one comparison above the bound is proof.)
const COMPARED_MS: [u64; 4] = [20, 40, 80, 160];

/// Minimum gain of the library on any machine, with other tests running.
const GAIN: f64 = 8.0;

/// Windows per kind of server, alternating.
const WINDOWS: usize = 2;

#[test]
fn one_worker_does_many_times_more_than_without_the_library() {
    let pool = Pool::new(KeyKind::P256);
    let ports = [free_port(), free_port()];
    let servers = [false, true].map(|preload| {
        let port = ports[usize::from(preload)];
        let options = NginxOptions { preload, ..pool.options(port) };
        Nginx::start(pool.dir(), &options, &[port])
    });
    for port in ports {
        pool.world.client.handshakes(address(port), Tls::V13, 1);
    }
    let gain = |milliseconds| gain(&pool, ports, Duration::from_millis(milliseconds));
    let shown = COMPARED_MS.into_iter().any(|at| gain(at) >= GAIN);
    assert!(shown, "never {GAIN} times as many");
    if millrace_tests::is_long() {
        for milliseconds in [1, 5, 50] {
            gain(milliseconds);
        }
    }
    drop(servers);
}

/// The ratio of handshakes completed by the server on the second port to those on the first, in alternating
/// windows.
fn gain(pool: &Pool, ports: [u16; 2], latency: Duration) -> f64 {
    pool.proxy.set(Fault::Latency(latency));
    let before = pool.node.served().total();
    let (mut done, mut seconds) = ([0, 0], [0.0, 0.0]);
    for _ in 0..scaled(WINDOWS, 2 * WINDOWS) {
        for (which, port) in ports.into_iter().enumerate() {
            let start = Instant::now();
            let load = pool.world.client.load(address(port), Tls::V13, CLIENTS);
            load.wait_for_more([75, 600][which]);
            let outcome = load.stop();
            seconds[which] += start.elapsed().as_secs_f64();
            assert_eq!(outcome.failed(), 0, "{:?}", outcome.failures);
            done[which] += outcome.completed;
        }
    }
    let served = pool.node.served().total() - before;
    assert_eq!(served, done[0] + done[1], "one operation per handshake");
    let rate = |which: usize| {
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        let done = done[which] as f64;
        done / seconds[which]
    };
    let gain = rate(1) / rate(0);
    eprintln!(
        "one worker, {latency:?} per operation, {CLIENTS} clients: {:.0} handshakes/s without the \
         library, {:.0} with it: {gain:.1} times as many",
        rate(0),
        rate(1)
    );
    gain
}

/// Way in which a client ends a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// The client shuts down its sending side.
    Fin,
    /// The client resets the connection.
    Reset,
    /// The client stays connected; nginx's timeout expires.
    TimedOut,
}

/// Handshakes abandoned at once.
const BATCH: u64 = 250;

/// Number of windows. At least one of them must show no growth: see `teardown.rs`.
const FLAT_WINDOWS: usize = 8;

/// Bound on the memory that an abandoned handshake may cost permanently, in bytes. A lost job costs more than
/// 32 KiB.
const BYTES_PER_HANDSHAKE: u64 = 64;

fn given_up_handshakes_leak_nothing(leave: Leave) {
    let pool = Pool::new(KeyKind::Rsa2048);
    let [port, patient] = [free_port(), free_port()];
    let patience = if leave == Leave::TimedOut { "client_header_timeout 1s;" } else { "" };
    let servers = pool.server(port, "", patience) + &pool.server(patient, "", "");
    let options = NginxOptions::asynchronous(&pool.edge, servers);
    let nginx = Nginx::start(pool.dir(), &options, &[port, patient]);
    pool.world.client.handshakes(address(patient), Tls::V13, 3);
    let worker = nginx.workers()[0];
    let idle = wait::until_steady("the worker", || open_files(worker));
    let batches = scaled(4, 40) as u64;
    let allowed = usize::try_from(batches * BATCH * BYTES_PER_HANDSHAKE / 1024).expect("small");
    let size = || {
        wait::until_steady("the worker", || open_files(worker));
        memory_kib(worker)
    };
    let mut sizes = vec![size()];
    let flat = (0..FLAT_WINDOWS).any(|_| {
        for _ in 0..batches {
            give_up(&pool, address(port), leave, || open_files(worker) <= idle);
        }
        assert_eq!(open_files(worker), idle, "descriptors of the worker");
        sizes.push(size());
        sizes[sizes.len() - 1] <= sizes[sizes.len() - 2] + allowed
    });
    eprintln!("{leave:?}, after each {} handshakes: {sizes:?} KiB", batches * BATCH);
    assert!(flat, "it grew in every window by more than {allowed} KiB: {sizes:?}");
    // The same worker still runs and serves.
    assert_eq!(nginx.workers(), [worker]);
    pool.wait_together(address(patient), 10);
    let log = nginx.log();
    assert!(!log.contains("exited on signal"), "{log}");
    assert!(!log.contains("[alert]"), "{log}");
}

/// One batch. It ends when the worker has closed every connection.
fn give_up(pool: &Pool, address: SocketAddr, leave: Leave, closed: impl FnMut() -> bool) {
    let before = pool.proxy.jobs();
    pool.proxy.set(Fault::Hold);
    let sockets: Vec<_> = (0..BATCH)
        .map(|number| {
            let tls = Tls::ALL[usize::from(number % 2 == 0)];
            let client = &pool.world.client;
            client.hello(address, tls).expect("a connection")
        })
        .collect();
    if leave == Leave::TimedOut {
        for mut socket in sockets {
            // The server may send an alert before it closes.
            let _ = socket.read_to_end(&mut Vec::new());
        }
        assert!(pool.proxy.jobs() > before, "handshakes were in the pool");
        // The pool has not answered one job.
        wait::until("nginx has closed everything", closed);
        pool.proxy.set(Fault::None);
        return;
    }
    pool.proxy.wait_for_jobs(before + BATCH);
    if leave == Leave::Fin {
        finish(sockets);
    } else {
        reset(sockets);
    }
    pool.proxy.set(Fault::None);
    wait::until("nginx has closed everything", closed);
}

#[test]
fn clients_that_end_their_side_leak_nothing() {
    given_up_handshakes_leak_nothing(Leave::Fin);
}

#[test]
fn clients_that_reset_the_connection_leak_nothing() {
    given_up_handshakes_leak_nothing(Leave::Reset);
}

#[test]
fn handshakes_that_time_out_leak_nothing() {
    given_up_handshakes_leak_nothing(Leave::TimedOut);
}

/// Consecutive reloads during which every handshake must succeed.
const RELOADS: usize = 100;

#[test]
fn reload_under_load_fails_no_handshake() {
    let pool = Pool::new(KeyKind::P256);
    let port = free_port();
    let options = NginxOptions { workers: 2, ..pool.options(port) };
    let nginx = Nginx::start(pool.dir(), &options, &[port]);
    pool.proxy.set(Fault::Latency(LATENCY));
    let load = pool.world.client.load(address(port), Tls::V13, 8);
    for _ in 0..RELOADS {
        load.wait_for_more(10);
        nginx.reload();
    }
    load.wait_for_more(10);
    assert_no_handshake_failed(&pool, load.stop());
}

fn assert_no_handshake_failed(pool: &Pool, outcome: Outcome) {
    assert_eq!(outcome.failed(), 0, "{:?}", outcome.failures);
    assert_eq!(pool.node.served().total(), outcome.completed, "one operation per handshake");
}

#[test]
fn binary_upgrade_under_load_fails_no_handshake_and_stays_async() {
    let pool = Pool::new(KeyKind::P256);
    let port = free_port();
    let options = NginxOptions { daemon: true, ..pool.options(port) };
    let nginx = Nginx::start(pool.dir(), &options, &[port]);
    pool.proxy.set(Fault::Latency(LATENCY));
    let load = pool.world.client.load(address(port), Tls::V13, 8);
    load.wait_for_more(10);
    nginx.upgrade(|| load.wait_for_more(10));
    load.wait_for_more(40);
    assert_no_handshake_failed(&pool, load.stop());
    pool.proxy.set(Fault::None);
    pool.wait_together(address(port), 20);
}

#[test]
fn killed_worker_is_replaced_and_the_others_go_on() {
    let pool = Pool::new(KeyKind::P256);
    let port = free_port();
    let options = NginxOptions { workers: 2, ..pool.options(port) };
    let nginx = Nginx::start(pool.dir(), &options, &[port]);
    pool.proxy.set(Fault::Latency(LATENCY));
    let load = pool.world.client.load(address(port), Tls::V13, 8);
    load.wait_for_more(20);
    let victim = nginx.workers()[0];
    signal_to(victim, Signal::KILL);
    wait::until("the worker is replaced", || {
        let workers = nginx.workers();
        workers.len() == 2 && !workers.contains(&victim)
    });
    load.wait_for_more(50);
    let outcome = load.stop();
    // Handshakes of the killed worker: at most one per client.
    assert!(outcome.failed() <= 8, "{:?}", outcome.failures);
    pool.world.client.handshakes(address(port), Tls::V13, 20);
}

#[test]
fn workers_with_reuseport_sockets_are_served() {
    let pool = Pool::new(KeyKind::P256);
    let port = free_port();
    let options =
        NginxOptions { workers: 2, http: pool.server(port, "reuseport", ""), ..pool.options(port) };
    let _nginx = Nginx::start(pool.dir(), &options, &[port]);
    let load = pool.world.client.load(address(port), Tls::V13, 8);
    wait::until("both workers have worked", || pool.proxy.connections() >= 2);
    load.wait_for_more(50);
    let outcome = load.stop();
    assert_eq!(outcome.failed(), 0, "{:?}", outcome.failures);
    pool.wait_together(address(port), 30);
}

#[test]
fn outage_of_the_pool_fails_no_handshake_with_a_local_key() {
    let quick = |edge: EdgeOptions| edge.with("fallback_after_ms", 200);
    let mut pool = Pool::with(KeyKind::Rsa2048, false, quick);
    let (_nginx, address) = pool.nginx();
    let load = pool.world.client.load(address, Tls::V13, 8);
    load.wait_for_more(50);
    assert!(pool.node.served().total() > 0, "the pool works");
    for fault in [Fault::Drop, Fault::Refuse, Fault::WrongResult, Fault::None] {
        pool.proxy.set(fault);
        load.wait_for_more(50);
    }
    let before = pool.proxy.completions();
    wait::until("the pool works again", || pool.proxy.completions() > before);
    pool.node.kill();
    load.wait_for_more(50);
    let outcome = load.stop();
    assert_eq!(outcome.failed(), 0, "{:?}", outcome.failures);
}

/// Two nodes have the key. The test kills and restarts one of them repeatedly while every answer is delayed.
#[test]
fn killed_node_fails_no_handshake_if_another_has_the_key() {
    let world = World::new();
    let mut nodes = [world.node("node-1"), world.node("node-2")];
    let identity = world.identity(KeyKind::P256);
    let stub = nodes[0].import("www", &identity);
    let _ = nodes[1].import("www", &identity);
    let proxies =
        [0, 1].map(|n: usize| Proxy::start(world.dir(), &format!("node-{n}"), &nodes[n].socket()));
    let edge = EdgeOptions {
        nodes: proxies.iter().map(Proxy::endpoint).collect(),
        ..EdgeOptions::default()
    }
    .write(world.dir());
    let site = Site::with_stub(&identity, &stub);
    let port = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{port} ssl backlog=4000;\n{}\
         ssl_session_cache off; ssl_session_tickets off; location / {{ return 200 ok; }} }}\n",
        certificate_lines(world.dir(), "www", &site)
    );
    let options = NginxOptions::asynchronous(&edge, http);
    let _nginx = Nginx::start(world.dir(), &options, &[port]);
    for proxy in &proxies {
        proxy.set(Fault::Latency(LATENCY));
    }
    let load = world.client.load(address(port), Tls::V13, 20);
    wait::until("both nodes work", || nodes.iter().all(|node| node.served().total() > 0));
    for _ in 0..scaled(3, 30) {
        nodes[0].kill();
        load.wait_for_more(30);
        nodes[0].up();
        wait::until("the node that came back works", || nodes[0].served().total() > 0);
    }
    let outcome = load.stop();
    assert_eq!(outcome.failed(), 0, "{:?}", outcome.failures);
}

/// Each job has a stack above a guard of 256 KiB.
#[test]
fn jobs_have_stacks_with_a_guard() {
    const WAITING: usize = 20;
    let pool = Pool::new(KeyKind::Rsa2048);
    let (nginx, address) = pool.nginx();
    pool.world.client.handshakes(address, Tls::V13, 1);
    pool.proxy.set(Fault::Hold);
    let hello = |_| pool.world.client.hello(address, Tls::V13);
    let sockets: Vec<_> = (0..WAITING).map(|number| hello(number).expect("a connection")).collect();
    pool.proxy.wait_for_jobs(1 + WAITING as u64);
    let guards = regions(nginx.workers()[0], "---p", 256 << 10);
    assert!(guards >= WAITING, "only {guards} guards");
    pool.proxy.set(Fault::None);
    finish(sockets);
}

/// The prefix of the library's messages.
const SAYS: &str = "millrace-preload: ";

#[test]
fn other_program_runs_unchanged_with_one_message_on_a_pipe() {
    let pool = Pool::new(KeyKind::P256);
    let sites = [pool.site.clone()];
    let server = Gateway::start(Server::Haproxy, pool.dir(), &pool.edge, &sites);
    let port = server.port(KeyKind::P256);
    let ca = pool.world.authority.file.to_str().expect("a path in UTF-8");
    let url = format!("https://localhost:{port}/");
    let resolve = format!("localhost:{port}:127.0.0.1");
    let connect = format!("127.0.0.1:{port}");
    let python = format!(
        "import ssl, urllib.request as r\nfor i in range(3):\n  \
         print(r.urlopen('{url}', context=ssl.create_default_context(cafile='{ca}')).read())"
    );
    let curl =
        ["--silent", "--cacert", ca, "--resolve", &resolve, &url, &url, "-H", "Connection: close"];
    let s_client = ["s_client", "-verify_return_error", "-CAfile", ca, "-connect", &connect];
    let commands: [(_, &[&str], _); 3] = [
        (release::command("curl"), &curl, "ok"),
        (release::python(), &["-c", &python], "b'ok'"),
        (release::command("openssl"), &s_client, "Verification: OK"),
    ];
    for (mut command, arguments, expected) in commands {
        command.args(arguments).stdin(Stdio::null()).env("LD_PRELOAD", &artifacts().preload);
        // Standard error is a pipe, then a file.
        for (notices, output) in [(1, command.output().expect("runs")), (0, run(&mut command))] {
            let text = text_of(&output);
            assert!(output.status.success(), "{command:?}: {text}");
            assert!(text.contains(expected), "{command:?}: {text}");
            assert_eq!(text.matches(SAYS).count(), notices, "{command:?}: {text}");
            let known = text.contains("neither nginx nor HAProxy");
            assert_eq!(known, notices == 1, "{command:?}: {text}");
        }
    }
    // A daemon that has closed standard error and got its number for a file of data.
    let data = pool.dir().join("data");
    let daemon = format!(
        "import os\nos.close(2)\nassert os.open('{}', os.O_CREAT | os.O_WRONLY) == 2\n\
         os.write(2, b'data')\n{python}",
        data.display()
    );
    let mut command = release::python();
    command.args(["-c", &daemon]).env("LD_PRELOAD", &artifacts().preload);
    let output = command.output().expect("runs");
    assert!(output.status.success(), "{}", text_of(&output));
    assert_eq!(fs::read(&data).expect("the file"), b"data");
    // A program that another one has named nginx. The other release's programs are started by a script.
    if release::root().is_none() {
        let mut command = release::command("openssl");
        command.arg0("nginx").args(s_client).stdin(Stdio::null());
        let output = command.env("LD_PRELOAD", &artifacts().preload).output().expect("runs");
        let text = text_of(&output);
        assert!(text.contains("neither nginx nor HAProxy"), "{text}");
    }
    // The library prints nothing in a program without TLS.
    let mut command = Command::new("/bin/true");
    let output = run(command.env("LD_PRELOAD", &artifacts().preload));
    assert_eq!(text_of(&output), "");
}

#[test]
fn nginx_with_preload_but_no_provider_works_unchanged() {
    let pool = Pool::with(KeyKind::Rsa2048, false, |edge| edge);
    let port = free_port();
    let options = NginxOptions { edge: None, ..pool.options(port) };
    let nginx = Nginx::start(pool.dir(), &options, &[port]);
    for tls in Tls::ALL {
        pool.world.client.handshakes(address(port), tls, 20);
    }
    assert_eq!(pool.proxy.connections(), 0);
    assert!(!nginx.log().contains(SAYS), "{}", nginx.log());
}

/// Copies a program of the release. A separate `cp` process does it: if this process had opened the file for
/// writing, a child of another test might have inherited the descriptor, and `exec` of the file would fail
/// with ETXTBSY.
fn copy_program(path: &str, to: &Path) {
    let mut copy = Command::new("cp");
    let _ = succeed(copy.arg(release::file(path)).arg(to));
}

/// The library cannot reach a statically linked OpenSSL; a program without any OpenSSL simulates that case.
#[test]
fn nginx_without_a_shared_libssl_gets_one_message() {
    for name in ["nginx", "angie", "openresty", "haproxy"] {
        let world = World::new();
        let binary = world.dir().join(name);
        copy_program("/usr/bin/env", &binary);
        let mut command = release::command_at(&binary);
        let output = run(command.env("LD_PRELOAD", &artifacts().preload));
        let text = text_of(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches(SAYS).count(), 1, "{text}");
        assert!(text.contains("no shared libssl"), "{text}");
    }
}

/// Debian's nginx always has epoll; another program named nginx simulates one without it.
#[test]
fn nginx_without_epoll_gets_one_message_and_blocks() {
    let pool = Pool::new(KeyKind::P256);
    let sites = [pool.site.clone()];
    let server = Gateway::start(Server::Haproxy, pool.dir(), &pool.edge, &sites);
    let nginx = pool.dir().join("nginx");
    copy_program("/usr/bin/openssl", &nginx);
    let mut command = release::command_at(&nginx);
    command.args(["s_client", "-verify_return_error", "-CAfile"]);
    command.arg(&pool.world.authority.file).arg("-connect");
    command.arg(server.address(KeyKind::P256).to_string());
    let output = run(command.env("LD_PRELOAD", &artifacts().preload));
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("Verification: OK"), "{text}");
}
