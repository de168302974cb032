// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The thread of a gateway that reads the pool's answers: with the preload library the server's own event loop, if it
//! has one; otherwise the provider's I/O thread. The number of times the I/O thread slept shows which of them it was.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use millrace_tests::drive::Tls;
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions, bundle};
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{free_port, open_files};
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::wait;
use millrace_tests::world::World;
use rustix::process::{Pid, Signal, kill_process};

/// Handshakes measured.
const HANDSHAKES: usize = 200;

/// Handshakes whose answer is read by another thread than usual, at most: on a busy machine the I/O thread reads for a
/// loop that has no core, and finds answers before it sleeps. 9 of 200 were seen.
const STARVED: u64 = HANDSHAKES as u64 / 8;

/// Bound on the I/O thread's timer wakeups (reports, silence, deadlines), per second.
const BY_THE_CLOCK: u64 = 20;

struct Pool {
    world: World,
    node: Node,
    proxy: Proxy,
    edge: Edge,
    site: Site,
}

impl Pool {
    fn new() -> Self {
        Self::with_deadline(30_000)
    }

    /// A pool with a short deadline for operations. On a busy machine handshakes may fail.
    fn impatient() -> Self {
        Self::with_deadline(300)
    }

    fn with_deadline(milliseconds: u32) -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
        let identity = world.identity(KeyKind::P256);
        let stub = node.import("www", &identity);
        let edge = EdgeOptions::to(proxy.endpoint()).with("deadline_ms", milliseconds);
        Self {
            edge: edge.write(world.dir()),
            site: Site::with_stub(&identity, &stub),
            world,
            node,
            proxy,
        }
    }

    /// Two handshakes that succeed: the first may open the key, from the second on the event loop reads.
    fn succeed(&self, port: u16) {
        self.proxy.set(Fault::None);
        for _ in 0..2 {
            wait::until("a handshake succeeds", || {
                let handshake = self.world.client.handshake(address(port), Tls::V13);
                handshake.is_ok()
            });
        }
    }

    /// A handshake that fails because the proxy holds back the node's answer.
    fn hold_one(&self, port: u16) {
        self.proxy.set(Fault::Hold);
        let held = self.world.client.handshake(address(port), Tls::V13);
        assert!(held.is_err(), "the answer is held back");
    }

    fn haproxy(&self, threads: usize, port: u16) -> Haproxy {
        let bundle = bundle(self.world.dir(), "www", &self.site);
        let frontend = format!(
            "frontend https\n  bind 127.0.0.1:{port} ssl crt {bundle} no-tls-tickets\n\
             \x20 http-request return status 200 content-type text/plain string ok\n"
        );
        let options = HaproxyOptions {
            threads,
            preload: true,
            ..HaproxyOptions::asynchronous(&self.edge, frontend)
        };
        Haproxy::start(self.world.dir(), &options, &[port])
    }

    fn nginx(&self, port: u16) -> Nginx {
        let server = format!(
            "server {{ listen 127.0.0.1:{port} ssl; {}\n ssl_session_tickets off; return 200 ok; }}\n",
            certificate_lines(self.world.dir(), "www", &self.site)
        );
        let options = NginxOptions::asynchronous(&self.edge, server);
        Nginx::start(self.world.dir(), &options, &[port])
    }

    /// Number of times that the I/O thread of a gateway slept during [`HANDSHAKES`] handshakes, and the bound on its
    /// timer wakeups in that time and its turns for a loop that had no core.
    fn sleeps(&self, gateway: u32, port: u16) -> (u64, u64) {
        let address = address(port);
        // The first handshake opens the key, from the second on the event loop reads.
        self.world.client.handshakes(address, Tls::V13, 5);
        let (before, started) = (sleeps_of_io_thread(gateway), Instant::now());
        self.world.client.handshakes(address, Tls::V12, HANDSHAKES / 2);
        self.world.client.handshakes(address, Tls::V13, HANDSHAKES / 2);
        // Where the thread reads the answers it sleeps once for each.
        let clock = BY_THE_CLOCK * (started.elapsed().as_secs() + 1) + STARVED;
        let expected = HANDSHAKES as u64 + 5;
        assert_eq!(self.node.served().total(), expected, "one for each");
        (sleeps_of_io_thread(gateway) - before, clock)
    }
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Number of times that the provider's I/O thread has slept so far (voluntary context switches).
fn sleeps_of_io_thread(process: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
    let thread = threads
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|thread| {
            fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == "millrace-io\n")
        })
        .expect("an I/O thread");
    let status = fs::read_to_string(thread.join("status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("a count").trim().parse().expect("a number")
}

#[test]
fn event_loop_of_nginx_reads_the_answers() {
    let (pool, port) = (Pool::new(), free_port());
    let nginx = pool.nginx(port);
    let (sleeps, clock) = pool.sleeps(nginx.workers()[0], port);
    assert!(sleeps <= clock, "{sleeps} times, {clock} for the clock");
}

#[test]
fn event_loop_of_haproxy_reads_the_answers() {
    let (pool, port) = (Pool::new(), free_port());
    let haproxy = pool.haproxy(1, port);
    let (sleeps, clock) = pool.sleeps(haproxy.process.id(), port);
    assert!(sleeps <= clock, "{sleeps} times, {clock} for the clock");
}

/// Handshakes that wait at once.
const WAITING: usize = 20;

#[test]
fn waiting_handshakes_of_nginx_need_no_descriptor_of_their_own() {
    let (pool, port) = (Pool::new(), free_port());
    let nginx = pool.nginx(port);
    let address = address(port);
    pool.world.client.handshakes(address, Tls::V13, 3);
    let worker = nginx.workers()[0];
    let idle = wait::until_steady("the worker", || open_files(worker));
    let before = pool.proxy.jobs();
    pool.proxy.set(Fault::Hold);
    std::thread::scope(|scope| {
        let client = &pool.world.client;
        let waiting: Vec<_> =
            (0..WAITING).map(|_| scope.spawn(|| client.handshake(address, Tls::V13))).collect();
        pool.proxy.wait_for_jobs(before + WAITING as u64);
        let open = open_files(worker);
        pool.proxy.set(Fault::None);
        for one in waiting {
            one.join().expect("no panic").expect("a handshake");
        }
        assert_eq!(open, idle + WAITING, "one socket each");
    });
}

/// HAProxy derives the time from its waits: after a wait without events it assumes that the whole timeout has
/// passed. If the clock disagrees, HAProxy assumes that the clock was set back, and ignores it from then on.
#[test]
fn clock_of_haproxy_stays_right() {
    let (pool, port) = (Pool::impatient(), free_port());
    let begun = Instant::now();
    let haproxy = pool.haproxy(1, port);
    pool.succeed(port);
    // This idle connection ends by HAProxy's timeout of 30 s, so HAProxy always has a timeout to wait for.
    let _idle = TcpStream::connect(address(port)).expect("a connection");
    for _ in 0..3 {
        pool.hold_one(port);
        // Now the answer arrives while no job of the event loop waits for it any longer.
        pool.succeed(port);
    }
    let info = haproxy.ask("show info");
    let uptime = info
        .lines()
        .find_map(|line| line.strip_prefix("Uptime_sec:"))
        .and_then(|seconds| seconds.trim().parse().ok());
    let (uptime, elapsed): (u64, _) = (uptime.expect("seconds"), begun.elapsed());
    assert!(uptime <= elapsed.as_secs() + 1, "{uptime} s in {elapsed:?}");
}

#[test]
fn io_thread_reads_answers_beside_two_event_loops() {
    let (pool, port) = (Pool::new(), free_port());
    let haproxy = pool.haproxy(2, port);
    let (sleeps, _) = pool.sleeps(haproxy.process.id(), port);
    assert!(sleeps + STARVED >= HANDSHAKES as u64, "{sleeps} times");
}

/// Held jobs end by their deadline. The I/O thread enforces it and notifies the event loop, which continues.
#[test]
fn deadlines_pass_while_the_host_loop_drives() {
    let (pool, port) = (Pool::impatient(), free_port());
    let _nginx = pool.nginx(port);
    pool.succeed(port);
    for _ in 0..3 {
        pool.hold_one(port);
    }
    pool.succeed(port);
}

/// An event loop that was stopped for a while receives every answer afterwards.
#[test]
fn host_loop_that_was_stopped_goes_on() {
    let (pool, port) = (Pool::new(), free_port());
    let nginx = pool.nginx(port);
    let address = address(port);
    pool.world.client.handshakes(address, Tls::V13, 3);
    let worker = Pid::from_raw(i32::try_from(nginx.workers()[0]).expect("small"));
    let worker = worker.expect("not zero");
    let before = pool.proxy.jobs();
    pool.proxy.set(Fault::Hold);
    std::thread::scope(|scope| {
        let client = &pool.world.client;
        let waiting: Vec<_> =
            (0..4).map(|_| scope.spawn(|| client.handshake(address, Tls::V13))).collect();
        pool.proxy.wait_for_jobs(before + 4);
        kill_process(worker, Signal::STOP).expect("it is there");
        pool.proxy.set(Fault::None);
        kill_process(worker, Signal::CONT).expect("it is there");
        for one in waiting {
            one.join().expect("no panic").expect("a handshake");
        }
    });
    pool.world.client.handshakes(address, Tls::V13, 3);
}
