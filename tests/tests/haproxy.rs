// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! HAProxy at its limits: descriptors that it does not count, reloads under load (the new process takes over
//! the listening sockets), clients that disconnect, and HAProxy's own timeouts.
//!
//! HAProxy reserves two descriptors per connection (the client's and the server's socket), makes its table of
//! descriptors that large, and lowers the process's limit to it. A connection whose handshake has waited for
//! the pool has a third descriptor until the connection ends.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millrace_tests::drive::{Tls, finish, reset};
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions, bundle};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{free_port, memory_kib, open_files};
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::world::World;
use millrace_tests::{scaled, wait};

/// A node behind a proxy, and a site whose key is in that node.
struct Pool {
    world: World,
    node: Node,
    proxy: Proxy,
    edge: Edge,
    bundle: String,
}

impl Pool {
    /// Operations end only when the pool answers: no fallback, no early deadline.
    fn new() -> Self {
        Self::with(|edge| edge.with("deadline_ms", 30_000))
    }

    fn with(options: impl FnOnce(EdgeOptions) -> EdgeOptions) -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
        let identity = world.identity(KeyKind::P256);
        let stub = node.import("www", &identity);
        let edge = options(EdgeOptions::to(proxy.endpoint())).write(world.dir());
        let bundle = bundle(world.dir(), "www", &Site::with_stub(&identity, &stub));
        Self { world, node, proxy, edge, bundle }
    }

    fn dir(&self) -> &Path {
        self.world.dir()
    }

    /// A frontend that answers by itself, or forwards to a backend.
    fn frontend(&self, port: u16, more: &str) -> String {
        format!(
            "frontend https\n  bind 127.0.0.1:{port} ssl crt {} no-tls-tickets\n{more}\n",
            self.bundle
        )
    }

    fn options(&self, port: u16) -> HaproxyOptions {
        let answer = "  http-request return status 200 content-type text/plain string ok";
        HaproxyOptions::asynchronous(&self.edge, self.frontend(port, answer))
    }

    /// Starts `count` handshakes at once, each followed by a request.
    fn crowd(&self, address: SocketAddr, count: usize) -> Crowd {
        let answered = Arc::new(AtomicU64::new(0));
        let threads = (0..count)
            .map(|_| {
                let (client, answered) = (self.world.client.clone(), Arc::clone(&answered));
                thread::spawn(move || {
                    let result = client.handshake(address, Tls::V13);
                    answered.fetch_add(1, Ordering::SeqCst);
                    result
                })
            })
            .collect();
        Crowd { answered, threads }
    }
}

/// Handshakes in progress.
struct Crowd {
    answered: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Crowd {
    fn answered(&self) -> u64 {
        self.answered.load(Ordering::SeqCst)
    }

    /// Waits for all handshakes. Returns the errors of those that failed.
    fn failures(self) -> Vec<String> {
        let ended = self.threads.into_iter().map(JoinHandle::join);
        ended.filter_map(|result| result.expect("no panic").err()).collect()
    }
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// An application behind HAProxy that holds back its answers until the test releases them.
struct Application {
    port: u16,
    asked: Arc<AtomicU64>,
    gate: Arc<(Mutex<bool>, Condvar)>,
    stopped: Arc<AtomicBool>,
}

impl Application {
    fn start() -> Self {
        let listener = TcpListener::bind(address(0)).expect("a port");
        let started = Self {
            port: listener.local_addr().expect("bound").port(),
            asked: Arc::default(),
            gate: Arc::default(),
            stopped: Arc::default(),
        };
        let (asked, gate) = (Arc::clone(&started.asked), Arc::clone(&started.gate));
        let stopped = Arc::clone(&started.stopped);
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (asked, gate) = (Arc::clone(&asked), Arc::clone(&gate));
                thread::spawn(move || answer(socket, &asked, &gate));
            }
        });
        started
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    fn go(&self) {
        *self.gate.0.lock().expect("no panic") = true;
        self.gate.1.notify_all();
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.go();
        drop(TcpStream::connect(address(self.port)));
    }
}

fn answer(mut socket: TcpStream, asked: &AtomicU64, gate: &(Mutex<bool>, Condvar)) {
    let mut request = [0; 4096];
    if !matches!(socket.read(&mut request), Ok(1..)) {
        return;
    }
    asked.fetch_add(1, Ordering::SeqCst);
    let open = gate.0.lock().expect("no panic");
    drop(gate.1.wait_while(open, |open| !*open).expect("no panic"));
    let text = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    drop(socket.write_all(text));
    drop(socket.shutdown(Shutdown::Both));
}

/// Concurrent connections in the tests of descriptors.
const CONNECTIONS: usize = 80;

/// Makes [`CONNECTIONS`] clients wait for the pool at once, and then for the application at once. Returns the
/// errors of those that failed.
fn crowd_through(global_maxconn: usize, frontend_maxconn: usize) -> Vec<String> {
    let pool = Pool::new();
    let application = Application::start();
    let port = free_port();
    let more = format!(
        "  maxconn {frontend_maxconn}\n  default_backend application\n\
         backend application\n  server one 127.0.0.1:{}",
        application.port
    );
    let options = HaproxyOptions {
        global: format!("  maxconn {global_maxconn}"),
        ..HaproxyOptions::asynchronous(&pool.edge, pool.frontend(port, &more))
    };
    let mut haproxy = Haproxy::start(pool.dir(), &options, &[port]);
    pool.proxy.set(Fault::Hold);
    let crowd = pool.crowd(address(port), CONNECTIONS);
    pool.proxy.wait_for_jobs(CONNECTIONS as u64);
    pool.proxy.set(Fault::None);
    let all = CONNECTIONS as u64;
    wait::until("each has reached the application or has been refused", || {
        application.asked() + crowd.answered() >= all
    });
    application.go();
    let failures = crowd.failures();
    assert!(haproxy.process.ended().is_none(), "{}", haproxy.log());
    failures
}

/// Shows that the rule below is needed: HAProxy, configured for two descriptors per connection, runs out of
/// descriptors and refuses clients.
#[test]
fn haproxy_with_two_descriptors_per_connection_fails_clients() {
    let failures = crowd_through(CONNECTIONS, CONNECTIONS);
    assert!(!failures.is_empty(), "then the rule is not needed any more");
    for failure in failures {
        assert!(failure.contains("answer"), "only answers fail: {failure}");
    }
}

/// The rule: the global `maxconn`, from which HAProxy derives its descriptors, is one and a half times the
/// sum of the frontends' `maxconn`, plus a reserve.
#[test]
fn haproxy_with_three_descriptors_per_connection_fails_none() {
    let failures = crowd_through(CONNECTIONS * 3 / 2 + 16, CONNECTIONS);
    assert_eq!(failures, [""; 0]);
}

/// With a low descriptor limit, HAProxy derives `maxconn` from it, accepts waiting handshakes up to that
/// number, and leaves further clients in the listen queue. Every client is served.
#[test]
fn haproxy_at_its_descriptor_limit_makes_clients_wait() {
    let pool = Pool::new();
    let port = free_port();
    let options = HaproxyOptions { descriptors: Some(300), ..pool.options(port) };
    let mut haproxy = Haproxy::start(pool.dir(), &options, &[port]);
    pool.world.client.handshakes(address(port), Tls::V13, 1);
    pool.proxy.set(Fault::Hold);
    let crowd = pool.crowd(address(port), 250);
    pool.proxy.wait_for_jobs(100);
    let waiting = wait::until_steady("the crowd", || pool.proxy.jobs());
    eprintln!(
        "{waiting} handshakes wait in the pool, {} descriptors are open",
        open_files(haproxy.process.id())
    );
    pool.proxy.set(Fault::None);
    assert_eq!(crowd.failures(), [""; 0]);
    assert!(haproxy.process.ended().is_none(), "{}", haproxy.log());
    assert_eq!(pool.node.served().total(), 251, "one operation per handshake");
}

/// Without the setting that allows the provider its thread, HAProxy signs with its local keys: at once, in
/// every handshake.
#[test]
fn haproxy_that_may_not_start_threads_signs_with_its_local_keys() {
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::Rsa2048);
    let edge = EdgeOptions::to(node.endpoint()).preferred().write(world.dir());
    let bundle = bundle(world.dir(), "www", &Site::with_key(&identity));
    for may_start_threads in [false, true] {
        let port = free_port();
        let sections = format!(
            "frontend https\n  bind 127.0.0.1:{port} ssl crt {bundle} no-tls-tickets\n\
             \x20 http-request return status 200 content-type text/plain string ok\n"
        );
        let options =
            HaproxyOptions { may_start_threads, ..HaproxyOptions::asynchronous(&edge, sections) };
        let haproxy = Haproxy::start(world.dir(), &options, &[port]);
        world.client.handshakes(address(port), Tls::V13, 5);
        let expected = if may_start_threads { 5 } else { 0 };
        assert_eq!(node.served().total(), expected, "{}", haproxy.log());
    }
}

/// Minimum latency of one operation in the tests under load.
const LATENCY: Duration = Duration::from_millis(5);

/// Concurrent clients.
const CLIENTS: usize = 8;

/// Consecutive reloads during which every handshake must succeed.
const RELOADS: usize = 100;

#[test]
fn haproxy_socket_takeover_under_load_fails_no_handshake() {
    let pool = Pool::new();
    let port = free_port();
    let options = HaproxyOptions { threads: 2, ..pool.options(port) };
    let mut haproxy = Haproxy::start(pool.dir(), &options, &[port]);
    pool.proxy.set(Fault::Latency(LATENCY));
    let load = pool.world.client.load(address(port), Tls::V13, CLIENTS);
    for _ in 0..scaled(20, RELOADS) {
        load.wait_for_more(10);
        haproxy.replace();
    }
    load.wait_for_more(10);
    let outcome = load.stop();
    assert_eq!(outcome.failed(), 0, "{:?}", outcome.failures);
    assert_eq!(pool.node.served().total(), outcome.completed);
}

#[test]
fn haproxy_master_reload_under_load_fails_no_handshake() {
    let pool = Pool::new();
    let port = free_port();
    let options = HaproxyOptions { master: true, preload: true, ..pool.options(port) };
    let haproxy = Haproxy::start(pool.dir(), &options, &[port]);
    pool.proxy.set(Fault::Latency(LATENCY));
    let load = pool.world.client.load(address(port), Tls::V13, CLIENTS);
    for _ in 0..RELOADS {
        load.wait_for_more(10);
        haproxy.reload();
    }
    load.wait_for_more(10);
    let outcome = load.stop();
    assert_eq!(outcome.failed(), 0, "{:?}", outcome.failures);
    assert_eq!(pool.node.served().total(), outcome.completed);
}

/// Handshakes abandoned at once.
const BATCH: u64 = 50;

/// Number of windows. At least one of them must show no growth: see `teardown.rs`.
const WINDOWS: usize = 8;

/// Bound on the memory that an abandoned handshake may cost permanently, in bytes. A lost job costs 20 KiB;
/// in these short windows HAProxy's pools and the allocator still grow, but by far less than this.
const BYTES_PER_HANDSHAKE: u64 = 512;

/// End of a handshake that waits for the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client shuts down its sending side.
    Fin,
    /// The client resets the connection.
    Reset,
    /// The client stays connected; the deadline of the operation or HAProxy's timeout expires.
    TimedOut,
}

/// Starts HAProxy and ends handshakes in batches while the pool does not answer.
fn given_up_handshakes_cost_nothing(pool: &Pool, options: &HaproxyOptions, port: u16, end: End) {
    let mut haproxy = Haproxy::start(pool.dir(), options, &[port]);
    succeed(pool, port, end, 3);
    let id = haproxy.process.id();
    let idle = wait::until_steady("HAProxy", || open_files(id));
    let batches = scaled(5, 40) as u64;
    let allowed = usize::try_from(batches * BATCH * BYTES_PER_HANDSHAKE / 1024).expect("small");
    let mut sizes = vec![memory_kib(id)];
    let flat = (0..WINDOWS).any(|_| {
        for _ in 0..batches {
            give_up(pool, port, end, || open_files(id) <= idle);
        }
        sizes.push(memory_kib(id));
        sizes[sizes.len() - 1] <= sizes[sizes.len() - 2] + allowed
    });
    let count = batches * BATCH;
    eprintln!("{end:?}, after each {count} handshakes: {sizes:?} KiB");
    assert!(flat, "it grew in every window by more than {allowed} KiB");
    // The same process still runs and serves.
    assert!(haproxy.process.ended().is_none(), "{}", haproxy.log());
    succeed(pool, port, end, 5);
}

/// Sequential handshakes that succeed. With limits of a fraction of a second, a busy machine may miss one now
/// and then; such a handshake is repeated.
fn succeed(pool: &Pool, port: u16, end: End, count: usize) {
    let (client, address) = (&pool.world.client, address(port));
    if end != End::TimedOut {
        return client.handshakes(address, Tls::V13, count);
    }
    for number in 0..count {
        wait::until(&format!("handshake {number} succeeds"), || {
            client.handshake(address, Tls::V13).is_ok()
        });
    }
}

/// One batch. It ends when HAProxy has closed every connection.
fn give_up(pool: &Pool, port: u16, end: End, closed: impl FnMut() -> bool) {
    let before = pool.proxy.jobs();
    pool.proxy.set(Fault::Hold);
    let sockets: Vec<_> = (0..BATCH)
        .map(|number| {
            let tls = Tls::ALL[usize::from(number % 2 == 0)];
            let client = &pool.world.client;
            client.hello(address(port), tls).expect("a connection")
        })
        .collect();
    if end != End::TimedOut {
        pool.proxy.wait_for_jobs(before + BATCH);
    }
    match end {
        End::Fin => finish(sockets),
        End::Reset => reset(sockets),
        End::TimedOut => {
            for mut socket in sockets {
                // The server may send an alert before it closes.
                let _ = socket.read_to_end(&mut Vec::new());
            }
        }
    }
    pool.proxy.set(Fault::None);
    wait::until("HAProxy has closed everything", closed);
}

#[test]
fn haproxy_frees_handshakes_of_clients_that_shut_down_sending() {
    let (pool, port) = (Pool::new(), free_port());
    given_up_handshakes_cost_nothing(&pool, &pool.options(port), port, End::Fin);
}

/// HAProxy without the preload library loses the job of a connection that it closes while the job is paused.
/// If the deadline ends operations before HAProxy's timeout (30 s here), nothing is lost.
#[test]
fn haproxy_with_a_deadline_below_its_timeout_frees_all_jobs() {
    let pool = Pool::with(|edge| edge.with("deadline_ms", 200));
    let port = free_port();
    given_up_handshakes_cost_nothing(&pool, &pool.options(port), port, End::TimedOut);
}

/// With the preload library no job is lost, whether the client, HAProxy or the operation ends first.
#[test]
fn haproxy_with_preload_frees_handshakes_of_reset_clients() {
    let (pool, port) = (Pool::new(), free_port());
    let options = HaproxyOptions { preload: true, ..pool.options(port) };
    given_up_handshakes_cost_nothing(&pool, &options, port, End::Reset);
}

#[test]
fn haproxy_with_preload_frees_handshakes_that_time_out() {
    let (pool, port) = (Pool::new(), free_port());
    let options = HaproxyOptions {
        preload: true,
        defaults: "  timeout client 500ms".to_owned(),
        ..pool.options(port)
    };
    given_up_handshakes_cost_nothing(&pool, &options, port, End::TimedOut);
}
