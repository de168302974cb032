// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stock HAProxy and nginx terminate real TLS with keys in the pool: every client, both versions of TLS, RSA
//! and ECDSA, keys that are in the pool and keys that are on the gateway. The node's own counters show one
//! operation of the pool per handshake.

use millrace_tests::clients::Program;
use millrace_tests::drive::{Client, Tls};
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Gateway, Server, Site};
use millrace_tests::nginx::{Nginx, NginxOptions};
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{children, free_port};
use millrace_tests::wait;
use millrace_tests::world::World;

/// The location of the private key.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// The pool has the key; the gateway has a stub.
    InThePool,
    /// A plain PEM file on the gateway has the key, with `?provider=millrace`.
    OnTheGateway,
}

struct Setup {
    world: World,
    node: Node,
    gateway: Gateway,
}

fn start(server: Server, keys: Keys) -> Setup {
    let world = World::new();
    let node = world.node("node-1");
    let sites: Vec<Site> = KeyKind::USUAL
        .iter()
        .map(|kind| {
            let identity = world.identity(*kind);
            match keys {
                Keys::InThePool => Site::with_stub(&identity, &node.import(kind.name(), &identity)),
                Keys::OnTheGateway => Site::with_key(&identity),
            }
        })
        .collect();
    let edge = EdgeOptions::to(node.endpoint());
    let edge = match keys {
        Keys::InThePool => edge,
        Keys::OnTheGateway => edge.preferred(),
    };
    let gateway = world.gateway(server, edge, &sites);
    Setup { world, node, gateway }
}

/// Handshakes of the Rust driver per key and version.
const HANDSHAKES: usize = 10;

fn everybody_is_served(server: Server, keys: Keys) {
    let Setup { world, node, gateway } = start(server, keys);
    assert_eq!(node.served().total(), 0, "starting a gateway takes no operation");
    let mut expected = 0;
    for kind in KeyKind::USUAL {
        for tls in Tls::ALL {
            world.client.handshakes(gateway.address(kind), tls, HANDSHAKES);
            for program in Program::ALL {
                program.handshake(gateway.port(kind), tls, &world.authority);
            }
        }
        expected += Tls::ALL.len() * (HANDSHAKES + Program::ALL.len());
        let served = node.served();
        assert_eq!(served.total(), expected as u64, "one operation per handshake: {served:?}");
    }
    let served = node.served();
    assert_eq!(completed_in(&node.metrics()), expected as u64, "metrics say the same");
    let half = expected as u64 / 2;
    assert_eq!((served.rsa_signatures(), served.of("ecdsa-sign")), (half, half), "{served:?}");
}

/// The sum of the counters of completed jobs in a Prometheus metrics page.
fn completed_in(metrics: &str) -> u64 {
    let samples = metrics.lines().filter(|line| line.starts_with("millrace_jobs_completed_total{"));
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn haproxy_serves_every_client_with_keys_in_the_pool() {
    everybody_is_served(Server::Haproxy, Keys::InThePool);
}

#[test]
fn haproxy_serves_every_client_with_keys_on_the_gateway() {
    everybody_is_served(Server::Haproxy, Keys::OnTheGateway);
}

#[test]
fn nginx_serves_every_client_with_keys_in_the_pool() {
    everybody_is_served(Server::Nginx, Keys::InThePool);
}

#[test]
fn nginx_serves_every_client_with_keys_on_the_gateway() {
    everybody_is_served(Server::Nginx, Keys::OnTheGateway);
}

/// Each process that terminates TLS opens one connection with its first operation and keeps it.
#[test]
fn gateway_keeps_its_connection() {
    let Setup { world, node, gateway } = start(Server::Haproxy, Keys::InThePool);
    let address = gateway.address(KeyKind::P256);
    world.client.handshakes(address, Tls::V13, 3);
    assert_eq!(node.connections(), 1);
    world.client.handshakes(address, Tls::V13, 50);
    assert_eq!(node.connections(), 1);
    assert_eq!(node.served().total(), 53);
}

/// HAProxy continues other handshakes while one waits for the pool; `ssl-mode-async` enables that. With one
/// thread and delayed answers, the handshakes wait concurrently, not one after the other.
#[test]
fn handshakes_of_one_haproxy_thread_wait_together() {
    use millrace_tests::proxy::{Fault, Proxy};
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::Rsa2048);
    let stub = node.import("www", &identity);
    let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
    let edge = EdgeOptions::to(proxy.endpoint()).with("deadline_ms", 30_000).write(world.dir());
    let gateway = Gateway::start_with(
        Server::Haproxy,
        1,
        world.dir(),
        &edge,
        &[Site::with_stub(&identity, &stub)],
    );
    let address = gateway.address(KeyKind::Rsa2048);
    world.client.handshakes(address, Tls::V13, 1);
    proxy.set(Fault::Hold);
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let client = world.client.clone();
            std::thread::spawn(move || client.handshake(address, Tls::V13))
        })
        .collect();
    proxy.wait_for_jobs(21);
    proxy.set(Fault::None);
    for thread in waiting {
        thread.join().expect("no panic").expect("a handshake");
    }
}

/// A gateway without the private key serves TLS with it through a node reached over mutual TLS. The client
/// certificate is the identity that the policy names.
#[test]
fn pool_over_tcp_serves_only_identities_in_the_policy() {
    let world = World::new();
    let options = NodeOptions { tcp: true, ..NodeOptions::default() };
    let node = Node::start_with(world.dir(), "node-1", &options);
    let identity = world.identity(KeyKind::P256);
    let certificates = world.dir().join("gateway-1");
    let issue = |name: &str, dir: &std::path::Path| {
        let mut command = node.command(&["cert", "client", name]);
        let _ = millrace_tests::process::succeed(command.arg("-o").arg(dir));
    };
    issue("gateway-1", &certificates);
    make_readable(&certificates);
    let stub = node.import_with("www", &identity, &["--allow-cert", "gateway-1"]);
    let sites = [Site::with_stub(&identity, &stub)];
    let edge =
        EdgeOptions { certificates: Some(certificates), ..EdgeOptions::to(node.tcp_endpoint()) };
    let gateway = world.gateway(Server::Haproxy, edge, &sites);
    world.client.handshakes(gateway.address(KeyKind::P256), Tls::V13, 5);
    assert_eq!(node.served().total(), 5);

    // For another certificate of the same authority the key does not exist.
    let others = world.dir().join("gateway-2");
    issue("gateway-2", &others);
    make_readable(&others);
    let edge = EdgeOptions { certificates: Some(others), ..EdgeOptions::to(node.tcp_endpoint()) };
    let gateway = world.gateway(Server::Haproxy, edge, &sites);
    let refused = world.client.handshake(gateway.address(KeyKind::P256), Tls::V13);
    assert!(refused.is_err(), "the key is gateway-1's");
    assert_eq!(node.served().total(), 5);
}

/// Only the owner may read the files that `millrace cert client` writes; the workers of a gateway run as
/// another user.
fn make_readable(dir: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    let set = |path: &std::path::Path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("permissions");
    };
    set(dir, 0o755);
    for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
        set(&entry.path(), 0o644);
    }
}

/// Every nginx worker has its own connection; the master has none.
#[test]
fn workers_have_a_connection_each_and_the_master_has_none() {
    let Setup { world, node, gateway } = start(Server::Nginx, Keys::InThePool);
    assert_eq!(node.connections(), 0, "nothing before the first operation");
    let load = world.client.load(gateway.address(KeyKind::P256), Tls::V13, 4);
    let workers = children(gateway.process.id()).len();
    wait::until("all workers have worked", || node.connections() >= workers);
    let outcome = load.stop();
    assert_eq!(outcome.failures, Default::default());
    assert_eq!(node.connections(), workers);
    assert_eq!(node.served().total(), outcome.completed);
}

/// nginx reads the key at each handshake from a text that ends without a line end.
#[test]
fn stub_in_a_variable_of_nginx_is_read() {
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::P256);
    let stub = node.import("www", &identity);
    assert!(stub.starts_with("Millrace key stub: "), "{stub}");
    let edge = EdgeOptions::to(node.endpoint()).write(world.dir());
    let port = free_port();
    let http = format!(
        "map $ssl_server_name $stub {{ default \"{}\"; }}\n\
         server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {}; ssl_certificate_key data:$stub;\n\
         location / {{ return 200 ok; }} }}\n",
        stub.trim_end(),
        identity.certificate_file.display()
    );
    let _nginx = Nginx::start(world.dir(), &NginxOptions::asynchronous(&edge, http), &[port]);
    let client = Client::trusting(&world.authority);
    client.handshakes(([127, 0, 0, 1], port).into(), Tls::V13, HANDSHAKES);
    assert_eq!(node.served().total(), HANDSHAKES as u64);
}
