// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Apache httpd, lighttpd, stunnel, Node.js and OpenVPN as servers, and curl and OpenVPN as clients, use keys of the
//! pool without code for it. They wait for it synchronously. Their configuration is that of
//! `docs/guide/other-servers.md`: one variable, and the stub in place of the key.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Output;
use std::thread;

use millrace_testkit::skip;
use millrace_tests::artifacts;
use millrace_tests::clients::Program;
use millrace_tests::drive::Tls;
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::local::local_counts;
use millrace_tests::memory::Secret;
use millrace_tests::node::Node;
use millrace_tests::openvpn::{End, Key, Signer, Traffic, Tunnel, drop_privileges};
use millrace_tests::pki::{Identity, KeyKind};
use millrace_tests::process::{Process, free_port, listens, run, text_of};
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::release;
use millrace_tests::servers::{Daemon, Keys, Recipe, Running, is_installed};
use millrace_tests::world::World;
use millrace_tests::{may_read_memory, wait};

/// Handshakes of the Rust driver per key and version.
const HANDSHAKES: usize = 5;

/// Clients beside the Rust driver: one on GnuTLS, one on OpenSSL.
const PROGRAMS: [Program; 2] = [Program::Gnutls, Program::Openssl];

/// Moves a key into the pool and removes its file. Returns the path of the stub.
fn into_the_pool(node: &Node, identity: &Identity) -> String {
    let stub = node.import(identity.kind.name(), identity);
    fs::remove_file(&identity.key_file).expect("the key file goes");
    stub
}

/// Makes at least one handshake with every key and TLS version by every client. Returns their number.
fn all_clients_handshake(world: &World, server: &Running) -> u64 {
    let mut count = 0;
    for kind in KeyKind::USUAL {
        for tls in Tls::ALL {
            let address = server.address(kind);
            world.client.handshakes(address, tls, HANDSHAKES);
            for program in PROGRAMS {
                program.handshake(server.port(kind), tls, &world.authority);
            }
            count += HANDSHAKES + PROGRAMS.len();
        }
    }
    count as u64
}

/// Every client completes both versions of TLS with both keys, each handshake is one operation of the pool,
/// and no private key is in the server's memory; also after a reload and after an outage.
fn serves_keys_that_only_the_pool_holds(daemon: Daemon, package: &str) {
    if !is_installed(daemon.program(), package) {
        return;
    }
    let world = World::new();
    let mut node = world.node("node-1");
    let identities = KeyKind::USUAL.map(|kind| world.identity(kind));
    let sites: Vec<Site> = identities
        .iter()
        .map(|identity| Site::with_stub(identity, &into_the_pool(&node, identity)))
        .collect();
    // Handshakes without the node end by this deadline.
    let edge = EdgeOptions::to(node.endpoint()).with("deadline_ms", 8000).write(world.dir());
    let server = Running::start(daemon, world.dir(), &edge, &sites);
    assert_eq!(node.served().total(), 0, "the start of the server needs no operation");

    let expected = all_clients_handshake(&world, &server);
    let served = node.served();
    let halves = (served.rsa_signatures(), served.of("ecdsa-sign"));
    assert_eq!(halves, (expected / 2, expected / 2), "{served:?}");
    holds_nothing_of(&server, &identities);

    server.reload();
    let expected = expected + all_clients_handshake(&world, &server);
    assert_eq!(node.served().total(), expected, "after a reload");

    node.kill();
    thread::scope(|scope| {
        for kind in KeyKind::USUAL {
            let (client, address) = (&world.client, server.address(kind));
            scope.spawn(move || {
                let refused = client.handshake(address, Tls::V13);
                assert!(refused.is_err(), "only the pool has the key");
            });
        }
    });
    node.up();
    let address = server.address(KeyKind::P256);
    wait::until("the server serves again", || world.client.handshake(address, Tls::V13).is_ok());
}

/// Asserts that no process of the server has a private key in memory. Skips processes whose memory this test
/// may not read.
fn holds_nothing_of(server: &Running, identities: &[Identity]) {
    if !may_read_memory() {
        return;
    }
    for identity in identities {
        let secret = Secret::of(identity);
        for id in server.processes() {
            let found = secret.found_in_process(id);
            assert!(found.is_empty(), "{} in {id}: {found:?}", identity.kind);
        }
    }
}

/// Plain PEM keys go to the pool by `default_properties`; OpenSSL signs while the pool is away. (stunnel
/// fetches everything with `provider!=fips`, which overrides `?provider=millrace`, but not
/// `?millrace.pool=yes`.)
fn serves_plain_keys_with_and_without_the_pool(daemon: Daemon, package: &str) {
    if !is_installed(daemon.program(), package) {
        return;
    }
    let world = World::new();
    let mut node = world.node("node-1");
    let sites = KeyKind::USUAL.map(|kind| Site::with_key(&world.identity(kind)));
    let edge = EdgeOptions::to(node.endpoint()).preferred().write(world.dir());
    let server = Running::start(daemon, world.dir(), &edge, &sites);
    let expected = all_clients_handshake(&world, &server);
    assert_eq!(node.served().total(), expected, "one operation each");
    node.kill();
    let _ = all_clients_handshake(&world, &server);
}

#[test]
fn apache_serves_keys_that_only_the_pool_holds() {
    serves_keys_that_only_the_pool_holds(Daemon::Apache, "apache2");
}

#[test]
fn apache_serves_plain_keys_with_and_without_the_pool() {
    serves_plain_keys_with_and_without_the_pool(Daemon::Apache, "apache2");
}

#[test]
fn lighttpd_serves_keys_that_only_the_pool_holds() {
    serves_keys_that_only_the_pool_holds(Daemon::Lighttpd, "lighttpd-mod-openssl");
}

#[test]
fn lighttpd_serves_plain_keys_with_and_without_the_pool() {
    serves_plain_keys_with_and_without_the_pool(Daemon::Lighttpd, "lighttpd-mod-openssl");
}

#[test]
fn stunnel_serves_keys_that_only_the_pool_holds() {
    serves_keys_that_only_the_pool_holds(Daemon::Stunnel, "stunnel4");
}

#[test]
fn stunnel_serves_plain_keys_with_and_without_the_pool() {
    serves_plain_keys_with_and_without_the_pool(Daemon::Stunnel, "stunnel4");
}

/// The proxy holds back the pool's answers: the handshakes of different connections wait concurrently.
fn handshakes_wait_in_threads_of_their_own(daemon: Daemon, package: &str) {
    const TOGETHER: u64 = 4;
    if !is_installed(daemon.program(), package) {
        return;
    }
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::Rsa2048);
    let sites = [Site::with_stub(&identity, &into_the_pool(&node, &identity))];
    let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
    let edge = EdgeOptions::to(proxy.endpoint()).with("deadline_ms", 30_000).write(world.dir());
    let server = Running::start(daemon, world.dir(), &edge, &sites);
    proxy.set(Fault::Hold);
    let address = server.address(KeyKind::Rsa2048);
    let waiting: Vec<_> = (0..TOGETHER)
        .map(|_| {
            let client = world.client.clone();
            thread::spawn(move || client.handshake(address, Tls::V13))
        })
        .collect();
    proxy.wait_for_jobs(TOGETHER);
    proxy.set(Fault::None);
    for handshake in waiting {
        handshake.join().expect("no panic").expect("a handshake");
    }
}

#[test]
fn handshakes_of_apache_wait_in_separate_threads() {
    handshakes_wait_in_threads_of_their_own(Daemon::Apache, "apache2");
}

#[test]
fn handshakes_of_stunnel_wait_in_separate_threads() {
    handshakes_wait_in_threads_of_their_own(Daemon::Stunnel, "stunnel4");
}

/// A server that requires a client certificate and does not use the pool.
struct ClientAuthServer {
    port: u16,
    _process: Process,
}

impl ClientAuthServer {
    fn start(world: &World) -> Self {
        let identity = world.identity(KeyKind::P384);
        let port = free_port();
        let mut command = release::command("openssl");
        command.env_remove("OPENSSL_CONF");
        command.args(["s_server", "-www", "-Verify", "1", "-verify_return_error"]);
        command.args(["-accept", &format!("127.0.0.1:{port}"), "-CAfile"]);
        command.arg(&world.authority.file);
        command.arg("-cert").arg(&identity.certificate_file);
        command.arg("-key").arg(&identity.key_file);
        let log = world.dir().join("s_server.log");
        let mut process = Process::start("s_server", command, &log);
        process.wait_ready(|| listens(port));
        Self { port, _process: process }
    }
}

/// Runs curl with a client certificate and this key file, or without a client certificate.
fn curl(
    world: &World,
    server: &ClientAuthServer,
    tls: Tls,
    edge: Option<&Edge>,
    identity: Option<(&Identity, &Path)>,
) -> Output {
    let mut command = release::command("curl");
    command.env_remove("OPENSSL_CONF");
    if let Some(edge) = edge {
        edge.apply(&mut command);
    }
    command.args(["--silent", "--show-error", "--fail"]);
    command.args(match tls {
        Tls::V12 => ["--tlsv1.2", "--tls-max", "1.2"],
        Tls::V13 => ["--tlsv1.3", "--tls-max", "1.3"],
    });
    command.arg("--cacert").arg(&world.authority.file);
    if let Some((identity, key)) = identity {
        command.arg("--cert").arg(&identity.certificate_file);
        command.arg("--key").arg(key);
    }
    let port = server.port;
    command.args(["--resolve", &format!("localhost:{port}:127.0.0.1")]);
    run(command.arg(format!("https://localhost:{port}/")))
}

/// Whether the server accepted the client's certificate.
fn is_accepted(output: &Output) -> bool {
    let said = text_of(output);
    output.status.success() && said.contains("Client certificate") && said.contains("localhost")
}

#[test]
fn curl_with_a_key_that_only_the_pool_holds_is_accepted() {
    let world = World::new();
    let node = world.node("node-1");
    let server = ClientAuthServer::start(&world);
    let edge = EdgeOptions::to(node.endpoint()).write(world.dir());
    let mut expected = 0;
    for kind in KeyKind::USUAL {
        let identity = world.identity(kind);
        let stub = world.dir().join(format!("{kind}.stub"));
        fs::write(&stub, into_the_pool(&node, &identity)).expect("stub");
        for tls in Tls::ALL {
            let output = curl(&world, &server, tls, Some(&edge), Some((&identity, &stub)));
            assert!(is_accepted(&output), "{kind} {tls:?}: {}", text_of(&output));
            expected += 1;
            assert_eq!(node.served().total(), expected, "one operation each");
            let output = curl(&world, &server, tls, None, None);
            assert!(!is_accepted(&output), "a client without a certificate is refused");
        }
    }
}

#[test]
fn curl_with_a_plain_key_is_accepted_with_and_without_the_pool() {
    let world = World::new();
    let mut node = world.node("node-1");
    let server = ClientAuthServer::start(&world);
    let edge = EdgeOptions::to(node.endpoint()).preferred().write(world.dir());
    let identities = KeyKind::USUAL.map(|kind| world.identity(kind));
    let all_are_accepted = || {
        for identity in &identities {
            for tls in Tls::ALL {
                let key = Some((identity, identity.key_file.as_path()));
                let output = curl(&world, &server, tls, Some(&edge), key);
                assert!(is_accepted(&output), "{tls:?}: {}", text_of(&output));
            }
        }
    };
    all_are_accepted();
    let expected = identities.len() * Tls::ALL.len();
    assert_eq!(node.served().total(), expected as u64, "one operation each");
    node.kill();
    all_are_accepted();
}

/// Both ends have keys in the pool: two signatures per connection.
#[test]
fn openvpn_connects_with_keys_that_only_the_pool_holds() {
    if !is_installed("openvpn", "openvpn") {
        return;
    }
    let world = World::new();
    let node = world.node("node-1");
    let edge = EdgeOptions::to(node.endpoint()).write(world.dir());
    let mut expected = 0;
    for kind in KeyKind::USUAL {
        let identity = world.identity(kind);
        let stub = into_the_pool(&node, &identity);
        for tls in Tls::ALL {
            let end = || End::pooled(&identity, &stub, &edge);
            let tunnel = Tunnel::point_to_point(world.dir(), &world.authority, tls, end(), end());
            expected += 2;
            assert_eq!(node.served().total(), expected, "{kind} {tls:?}");
            if may_read_memory() {
                for id in [tunnel.server.process.id(), tunnel.client.process.id()] {
                    let found = Secret::of(&identity).found_in_process(id);
                    assert!(found.is_empty(), "{kind} in {id}: {found:?}");
                }
            }
        }
    }
}

#[test]
fn openvpn_connects_with_plain_keys_with_and_without_the_pool() {
    if !is_installed("openvpn", "openvpn") {
        return;
    }
    let world = World::new();
    let mut node = world.node("node-1");
    let edge = EdgeOptions::to(node.endpoint()).preferred().write(world.dir());
    let identities = KeyKind::USUAL.map(|kind| world.identity(kind));
    let connect = |tls| {
        for identity in &identities {
            let server = End { edge: Some(&edge), ..End::plain(identity) };
            let client = End::plain(identity);
            let _ = Tunnel::point_to_point(world.dir(), &world.authority, tls, server, client);
        }
    };
    connect(Tls::V12);
    connect(Tls::V13);
    assert_eq!(node.served().total(), 2 * identities.len() as u64);
    node.kill();
    connect(Tls::V13);
}

/// Where the environment cannot be set, OpenVPN's option `providers` loads the module by its name, and the
/// module reads its own configuration file.
#[test]
fn openvpn_loads_the_provider_by_its_own_option() {
    if !is_installed("openvpn", "openvpn") {
        return;
    }
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::Rsa2048);
    let stub = into_the_pool(&node, &identity);
    let edge = EdgeOptions::to(node.endpoint()).write(world.dir());
    let file = world.dir().join("client.toml");
    fs::write(&file, format!("pool = \"{}\"\n", node.endpoint())).expect("client.toml");
    for tls in Tls::ALL {
        let server = End {
            key: Key::Stub(&stub),
            // In this test these two stand for /etc/millrace/client.toml and OpenSSL's own folder.
            environment: vec![
                ("MILLRACE_CLIENT_CONF", file.clone()),
                ("OPENSSL_MODULES", edge.modules.clone()),
            ],
            ..End::plain(&identity)
        };
        let client = End::plain(&identity);
        let _ = Tunnel::point_to_point(
            world.dir(),
            &world.authority,
            tls,
            server.with("providers default millrace"),
            client,
        );
    }
    assert_eq!(node.served().rsa_signatures(), 2);
}

/// With a key that is not in a file, OpenVPN creates a separate library context and loads into it, by name,
/// the providers that `openssl.cnf` has activated. There the provider must not interfere, and the external
/// signer may use the pool.
#[test]
fn openvpn_with_a_library_context_of_its_own_connects() {
    if !is_installed("openvpn", "openvpn") {
        return;
    }
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::P256);
    let stub = world.dir().join("stub.pem");
    fs::write(&stub, into_the_pool(&node, &identity)).expect("stub");
    let edge = EdgeOptions::to(node.endpoint()).preferred().write(world.dir());
    for (tls, expected) in [(Tls::V12, 1), (Tls::V13, 2)] {
        let (edge_of_signer, stub, dir) = (edge.clone(), stub.clone(), world.dir().to_owned());
        let signer = Signer::start(world.dir(), move |digest| {
            let input = dir.join("digest");
            fs::write(&input, digest).expect("digest");
            let mut sign = edge_of_signer.openssl(&["pkeyutl", "-sign", "-inkey"]);
            run(sign.arg(&stub).arg("-in").arg(&input)).stdout
        });
        let server = End { key: Key::External, edge: Some(&edge), ..End::plain(&identity) };
        let tunnel = Tunnel::point_to_point(
            world.dir(),
            &world.authority,
            tls,
            server.with(&signer.lines()),
            End::plain(&identity),
        );
        let log = tunnel.server.log();
        assert!(!log.contains("could not load"), "{log}");
        assert_eq!(node.served().of("ecdsa-sign"), expected, "{log}");
    }
}

/// A server for many clients with a network device, without privileges: the test fetches a page through the
/// tunnel.
#[test]
fn openvpn_carries_traffic_with_a_key_that_only_the_pool_holds() {
    if !is_installed("openvpn", "openvpn") {
        return;
    }
    if !Traffic::is_possible() {
        skip!("no network device for a VPN: it needs root, its capabilities and /dev/net/tun");
    }
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::Rsa2048);
    let stub = into_the_pool(&node, &identity);
    let caller = world.identity(KeyKind::P256);
    let edge = EdgeOptions::to(node.endpoint()).write(world.dir());
    let server = End::pooled(&identity, &stub, &edge).with(drop_privileges());
    let page = b"through the tunnel";
    let traffic = Traffic::start(world.dir(), &world.authority, server, End::plain(&caller), page);
    assert_eq!(traffic.fetch(), page);
    assert_eq!(node.served().rsa_signatures(), 1);
}

/// A data channel whose packets one end computes by our primitives, and the other by OpenSSL's own.
#[test]
fn openvpn_carries_traffic_with_records_that_the_provider_computes() {
    if !is_installed("openvpn", "openvpn") {
        return;
    }
    if !Traffic::is_possible() {
        skip!("no network device for a VPN: it needs root, its capabilities and /dev/net/tun");
    }
    let page: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    for (cipher, primitive) in [
        ("AES-128-GCM", "AES-GCM"),
        ("AES-256-GCM", "AES-GCM"),
        ("CHACHA20-POLY1305", "ChaCha20-Poly1305"),
    ] {
        for server_is_ours in [true, false] {
            let world = World::new();
            let identities = [KeyKind::Rsa2048, KeyKind::P256].map(|kind| world.identity(kind));
            let edge = EdgeOptions::local().write(world.dir());
            let [server, client] = [(0, server_is_ours), (1, !server_is_ours)].map(|(at, ours)| {
                let end = End { edge: ours.then_some(&edge), ..End::plain(&identities[at]) };
                // Not in the kernel, where it can do that.
                end.with(&format!("data-ciphers {cipher}\ndisable-dco"))
            });
            let traffic = Traffic::start(world.dir(), &world.authority, server, client, &page);
            assert!(traffic.fetch() == page, "{cipher}");
            let Tunnel { server, client } = &traffic.tunnel;
            let said = format!("Data Channel: cipher '{cipher}'");
            assert!(client.log().contains(&said), "{said}: {}", client.log());
            let (ours, stock) = if server_is_ours { (server, client) } else { (client, server) };
            let counted = local_counts(ours.process.id()).expect("counters");
            // The page alone takes more packets than this: 1,500 bytes at most in each.
            let least = page.len() as u64 / 1500;
            assert!(counted.of(primitive) > least, "{cipher}: {counted:?}");
            assert!(local_counts(stock.process.id()).is_none(), "{cipher}");
        }
    }
}

/// The recipe for an application, with its `openssl.cnf` written to a file.
fn recipe(world: &World, node: &Node, application: &str, keys: Keys) -> (Recipe, Edge) {
    let recipe = Recipe::of(application, &node.endpoint(), keys);
    let conf = world.dir().join("generated.cnf");
    fs::write(&conf, &recipe.openssl_conf).expect("openssl.cnf");
    let modules = world.dir().join("no-modules");
    (recipe, Edge { conf, modules })
}

/// The configuration that `millrace gateway` prints works as printed.
fn serves_by_its_recipe(daemon: Daemon, package: &str) {
    if !is_installed(daemon.program(), package) {
        return;
    }
    for keys in [Keys::Stubs, Keys::Plain] {
        let world = World::new();
        let node = world.node("node-1");
        let identity = world.identity(KeyKind::Rsa2048);
        let site = match keys {
            Keys::Stubs => Site::with_stub(&identity, &into_the_pool(&node, &identity)),
            Keys::Plain => Site::with_key(&identity),
        };
        let (recipe, edge) = recipe(&world, &node, daemon.recipe(), keys);
        let server = Running::start_by_recipe(daemon, world.dir(), &edge, &site, &recipe);
        let address = server.address(KeyKind::Rsa2048);
        for tls in Tls::ALL {
            world.client.handshakes(address, tls, HANDSHAKES);
        }
        let expected = (Tls::ALL.len() * HANDSHAKES) as u64;
        assert_eq!(node.served().rsa_signatures(), expected, "{keys:?}");
    }
}

#[test]
fn apache_serves_by_its_recipe() {
    serves_by_its_recipe(Daemon::Apache, "apache2");
}

#[test]
fn lighttpd_serves_by_its_recipe() {
    serves_by_its_recipe(Daemon::Lighttpd, "lighttpd-mod-openssl");
}

#[test]
fn stunnel_serves_by_its_recipe() {
    serves_by_its_recipe(Daemon::Stunnel, "stunnel4");
}

#[test]
fn openvpn_connects_by_its_recipe() {
    if !is_installed("openvpn", "openvpn") {
        return;
    }
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::Rsa2048);
    let stub = into_the_pool(&node, &identity);
    let (recipe, edge) = recipe(&world, &node, "openvpn", Keys::Stubs);
    assert!(has_line(&recipe.lines, "key /etc/openvpn/server/www.key"));
    let server = End::pooled(&identity, &stub, &edge);
    let client = End::plain(&identity);
    let _ = Tunnel::point_to_point(world.dir(), &world.authority, Tls::V13, server, client);
    assert_eq!(node.served().rsa_signatures(), 1);
}

#[test]
fn curl_is_accepted_by_its_recipe() {
    let world = World::new();
    let node = world.node("node-1");
    let server = ClientAuthServer::start(&world);
    let identity = world.identity(KeyKind::Rsa2048);
    let stub = world.dir().join("www.key");
    fs::write(&stub, into_the_pool(&node, &identity)).expect("stub");
    let (recipe, edge) = recipe(&world, &node, "curl", Keys::Stubs);
    let called = recipe.lines.contains("curl --cert www.crt --key www.key ");
    assert!(called, "{}", recipe.lines);
    let key = Some((&identity, stub.as_path()));
    let output = curl(&world, &server, Tls::V13, Some(&edge), key);
    assert!(is_accepted(&output), "{}", text_of(&output));
    assert_eq!(node.served().rsa_signatures(), 1);
}

const NODE_SERVER: &str = "
const fs = require('fs'), [port, cert, key] = process.argv.slice(1);
const files = { cert: fs.readFileSync(cert), key: fs.readFileSync(key) };
require('https').createServer(files, (_, answer) => answer.end('ok')).listen(Number(port), '127.0.0.1');
";

/// Node.js with an OpenSSL of its own reads `nodejs_conf` and not `openssl_conf`.
#[test]
fn node_js_serves_by_its_recipe() {
    if !is_installed("node", "nodejs") {
        return;
    }
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(KeyKind::Rsa2048);
    let stub = world.dir().join("www.key");
    fs::write(&stub, into_the_pool(&node, &identity)).expect("stub");
    let (_, edge) = recipe(&world, &node, "curl", Keys::Stubs);
    let port = free_port();
    let mut command = release::command("node");
    edge.apply(&mut command);
    command.args(["-e", NODE_SERVER, &port.to_string()]);
    command.arg(&identity.certificate_file).arg(&stub);
    let log = world.dir().join("node.log");
    let mut process = Process::start("node", command, &log);
    process.wait_ready(|| listens(port));
    for tls in Tls::ALL {
        let address = (Ipv4Addr::LOCALHOST, port).into();
        world.client.handshakes(address, tls, HANDSHAKES);
    }
    let expected = (Tls::ALL.len() * HANDSHAKES) as u64;
    assert_eq!(node.served().rsa_signatures(), expected);
}

/// Whether a text contains a line, ignoring differences in white space.
fn has_line(text: &str, line: &str) -> bool {
    text.lines().any(|candidate| candidate.split_whitespace().eq(line.split_whitespace()))
}

/// The guide shows the configuration lines that these tests use.
#[test]
fn guide_shows_the_configuration_that_is_tested_here() {
    let path = artifacts::workspace().join("docs/guide/other-servers.md");
    let guide = fs::read_to_string(path).expect("the guide");
    let mut lines = vec![
        "key /etc/openvpn/server/www.key".to_owned(),
        "providers default millrace".to_owned(),
        "curl --cert www.crt --key www.key".to_owned(),
        "nodejs_conf = openssl_init".to_owned(),
    ];
    for (daemon, folder) in [
        (Daemon::Apache, "/etc/apache2"),
        (Daemon::Lighttpd, "/etc/lighttpd"),
        (Daemon::Stunnel, "/etc/stunnel"),
    ] {
        lines.push(daemon.key_line(&format!("{folder}/www.key")));
    }
    for line in lines {
        assert!(guide.contains(&line), "{line}");
    }
}
