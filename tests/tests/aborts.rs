// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Clients that abort at random moments and in random ways, with random faults of the pool and with the
//! preload library in nginx and in HAProxy. Memory and descriptors of the server must not grow: `teardown.rs`
//! explains why one window without growth is the proof. Long with `MILLRACE_LONG=1`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use millrace_tests::drive::{Client, Tls, finish};
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::Site;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions, bundle};
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{free_port, is_alive, memory_kib, open_files};
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::world::World;
use millrace_tests::{scaled, wait};

/// Clients per round.
const CLIENTS: usize = 60;

/// Number of windows. At least one of them must show no growth.
const WINDOWS: usize = 10;

/// Permanent growth allowed per client, in bytes. A lost job costs 20 KiB and more, a lost operation of the
/// provider some hundred bytes.
const BYTES_PER_CLIENT: u64 = 512;

/// The pool's behaviour in a round. With the last two, answers come late or never.
const FAULTS: [Fault; 5] = [
    Fault::None,
    Fault::Latency(Duration::from_millis(5)),
    Fault::Latency(Duration::from_millis(250)),
    Fault::Hold,
    Fault::Drop,
];

struct Setup {
    world: World,
    node: Node,
    proxy: Proxy,
    site: Site,
    edge: EdgeOptions,
    /// The port on which the server's timeout for clients is one second.
    port: u16,
    /// The port on which it is longer than the test.
    patient: u16,
}

impl Setup {
    fn new() -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
        let identity = world.identity(KeyKind::Rsa2048);
        let stub = node.import("www", &identity);
        // Some operations end by their deadline, others by the server's timeout of one second.
        let edge = EdgeOptions::to(proxy.endpoint()).with("deadline_ms", 1500);
        Self {
            site: Site::with_stub(&identity, &stub),
            world,
            node,
            proxy,
            edge,
            port: free_port(),
            patient: free_port(),
        }
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// Handshakes that must succeed. They use the port with the long timeout, since the machine may be busy.
    fn handshakes(&self, count: usize) {
        let address = ([127, 0, 0, 1], self.patient).into();
        self.world.client.handshakes(address, Tls::V13, count);
    }

    /// One round of clients. It ends when the server has closed all their connections.
    fn round(&self, dice: Dice, server: u32, idle: usize) {
        self.proxy.set(FAULTS[dice.below(FAULTS.len())]);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (client, address) = (self.world.client.clone(), self.address());
                let (tls, how) = (Tls::ALL[dice.below(2)], dice.below(6));
                thread::spawn(move || visit(&client, address, tls, how))
            })
            .collect();
        let stay: Vec<_> =
            clients.into_iter().filter_map(|client| client.join().expect("no panic")).collect();
        wait::until("the server has closed everything", || open_files(server) <= idle);
        drop(stay);
        self.proxy.set(Fault::None);
    }

    /// Runs windows until the server has not grown in one.
    fn nothing_grows(&self, name: &str, server: u32) {
        self.handshakes(3);
        let idle = wait::until_steady("the server", || open_files(server));
        let rounds = scaled(3, 30);
        let clients = (rounds * CLIENTS) as u64;
        let allowed = usize::try_from(clients * BYTES_PER_CLIENT / 1024).expect("small");
        let mut sizes = vec![memory_kib(server)];
        let flat = (0..WINDOWS).any(|_| {
            for _ in 0..rounds {
                self.round(Dice, server, idle);
            }
            let now = wait::until_steady("the server", || memory_kib(server));
            sizes.push(now);
            now <= sizes[sizes.len() - 2] + allowed
        });
        eprintln!("{name}, after each {clients} clients: {sizes:?} KiB");
        assert!(flat, "{name} grew in every window by more than {allowed} KiB");
        assert!(is_alive(server), "it is the same process");
        let before = wait::until_steady("the node", || self.node.served().total());
        self.handshakes(5);
        assert_eq!(self.node.served().total(), before + 5);
        // By now a lost connection to the pool has been reopened.
        wait::until(&format!("{name} has as many descriptors as before"), || {
            open_files(server) == idle
        });
    }
}

/// One client that ends its handshake in the way given by `how`. From 5 on, it leaves the connection open and
/// returns it.
fn visit(client: &Client, address: SocketAddr, tls: Tls, how: usize) -> Option<TcpStream> {
    if how == 0 {
        // The handshake fails while the pool does not answer.
        let _ = client.handshake(address, tls);
        return None;
    }
    let mut socket = client.hello(address, tls).ok()?;
    match how {
        1 => finish(vec![socket]),
        2 => reset(&socket),
        3 => {
            // Reads the beginning of the answer, if one comes within the timeout.
            let patience = Some(Duration::from_millis(50));
            socket.set_read_timeout(patience).ok()?;
            let _ = socket.read(&mut [0; 100]);
            reset(&socket);
        }
        4 => {
            // These bytes are not a TLS record.
            let _ = socket.write_all(&[0x55; 200]);
            finish(vec![socket]);
        }
        _ => return Some(socket),
    }
    None
}

/// Makes the connection end with a RST when the socket is dropped.
fn reset(socket: &TcpStream) {
    let linger = Some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(socket, linger).expect("SO_LINGER");
}

/// Random numbers from OpenSSL's generator.
#[derive(Clone, Copy)]
struct Dice;

impl Dice {
    fn below(self, bound: usize) -> usize {
        let mut byte = [0];
        openssl::rand::rand_bytes(&mut byte).expect("random bytes");
        usize::from(byte[0]) % bound
    }
}

#[test]
fn clients_that_abort_leave_nothing_behind_in_nginx() {
    let setup = Setup::new();
    let dir = setup.world.dir();
    let edge = setup.edge.clone().write(dir);
    let http = format!(
        "ssl_session_cache off; ssl_session_tickets off;\n{}\
         server {{ listen 127.0.0.1:{} ssl backlog=4000; client_header_timeout 1s;\n\
         location / {{ return 200 ok; }} }}\n\
         server {{ listen 127.0.0.1:{} ssl; location / {{ return 200 ok; }} }}\n",
        certificate_lines(dir, "www", &setup.site),
        setup.port,
        setup.patient,
    );
    let ports = [setup.port, setup.patient];
    let nginx = Nginx::start(dir, &NginxOptions::asynchronous(&edge, http), &ports);
    let worker = nginx.workers()[0];
    setup.nothing_grows("nginx", worker);
    let log = nginx.log();
    assert!(!log.contains("exited on signal"), "{log}");
    assert!(!log.contains("[alert]"), "{log}");
}

#[test]
fn clients_that_abort_leave_nothing_behind_in_haproxy() {
    let setup = Setup::new();
    let dir = setup.world.dir();
    let edge = setup.edge.clone().write(dir);
    let sections = format!(
        "frontend impatient\n  timeout client 1s\n  timeout http-request 1s\n\
         \x20 bind 127.0.0.1:{port} ssl crt {bundle} no-tls-tickets\n{answer}\
         frontend patient\n  bind 127.0.0.1:{patient} ssl crt {bundle} no-tls-tickets\n{answer}",
        port = setup.port,
        patient = setup.patient,
        bundle = bundle(dir, "www", &setup.site),
        answer = "  http-request return status 200 content-type text/plain string ok\n",
    );
    let options = HaproxyOptions { preload: true, ..HaproxyOptions::asynchronous(&edge, sections) };
    let haproxy = Haproxy::start(dir, &options, &[setup.port, setup.patient]);
    setup.nothing_grows("HAProxy", haproxy.process.id());
}
