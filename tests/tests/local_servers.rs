// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stock nginx and HAProxy with what `millrace gateway SERVER --local` generates: keys of their own files sign in the
//! server, counted; reloads, upgrades and takeovers under load with the fetch cache on fail no handshake.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use millrace_tests::artifacts::artifacts;
use millrace_tests::checked::{Report, Running};
use millrace_tests::drive::Tls;
use millrace_tests::edge::Edge;
use millrace_tests::gateway::Server;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions};
use millrace_tests::local::local_counts;
use millrace_tests::nginx::{Nginx, NginxOptions};
use millrace_tests::openssl::{get, plain, self_signed};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{children, free_port, succeed, text_of};
use millrace_tests::world::World;
use millrace_tests::{release, scaled};
use serde_json::Value;

/// The environment of the generated drop-in, besides the paths of this test's files.
const VARIABLES: [&str; 3] = ["MILLRACE_FETCH_CACHE", "MILLRACE_JOIN_TICKETS", "MILLRACE_JOBS"];

/// The files that `millrace gateway SERVER --local` generates, as a server of a test takes them.
struct Generated {
    edge: Edge,
    environment: Vec<(&'static str, String)>,
    /// Lines for the main context of nginx.conf.
    include: String,
}

impl Generated {
    fn of(server: Server, world: &World) -> Self {
        let mut gateway = Command::new(&artifacts().millrace);
        gateway.args(["gateway", &server.to_string(), "--local", "--json"]);
        gateway.arg("--provider").arg(&artifacts().provider);
        gateway.arg("--preload").arg(&artifacts().preload);
        // Another root than that of this machine has systemd.
        let root = world.dir().join("root");
        let plan = succeed(gateway.arg("--root").arg(root));
        let plan: Value = serde_json::from_str(&plan).expect("JSON");
        let files = plan["files"].as_array().expect("files");
        let contents = |path: &str| {
            let is_it = |file: &&Value| file["path"].as_str().expect("a path").ends_with(path);
            let file = files.iter().find(is_it)?;
            Some(file["contents"].as_str().expect("a text").to_owned())
        };
        let text = contents("/openssl.cnf").expect("openssl.cnf");
        // The build that is tested is not the one that is shipped, so no measurement of it may choose.
        let all = text.replace("\nlocal = on\n", "\nlocal = all\n");
        assert_ne!(text, all);
        let conf = world.dir().join("openssl.cnf");
        fs::write(&conf, all).expect("openssl.cnf");
        let unit = contents(".service.d/millrace.conf").expect("a drop-in");
        let value = |name: &'static str| {
            let start = format!("Environment={name}=");
            let found = unit.lines().find_map(|line| line.strip_prefix(&start));
            (name, found.expect(name).to_owned())
        };
        let environment = VARIABLES.map(value).to_vec();
        let [(_, conf_there), (_, library)] = ["OPENSSL_CONF", "LD_PRELOAD"].map(value);
        assert!(conf_there.ends_with("/openssl.cnf"), "{unit}");
        assert_eq!(library, artifacts().preload.display().to_string());
        // A variable that the list lacks would be missing in the servers of these tests.
        let all = unit.matches("Environment=").count();
        assert_eq!(all, VARIABLES.len() + 2, "{unit}");
        Self {
            edge: Edge { conf, modules: world.dir().to_owned() },
            environment,
            include: contents("/etc/nginx/millrace.conf").unwrap_or_default(),
        }
    }

    fn nginx(&self, dir: &Path, files: [&Path; 2], port: u16) -> Nginx {
        let [key, certificate] = files.map(Path::display);
        let http = format!(
            "server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {certificate};\n\
             ssl_certificate_key {key}; location / {{ return 200 ok; }} }}\n"
        );
        let options = NginxOptions {
            daemon: true,
            workers: 2,
            main: self.include.clone(),
            environment: self.environment.clone(),
            ..NginxOptions::asynchronous(&self.edge, http)
        };
        Nginx::start(dir, &options, &[port])
    }

    fn haproxy(&self, dir: &Path, files: [&Path; 2], port: u16, master: bool) -> Haproxy {
        let bundle = dir.join(format!("bundle-{port}.pem"));
        let texts = files.map(|file| fs::read_to_string(file).expect("PEM"));
        fs::write(&bundle, texts.concat()).expect("a bundle");
        let sections = format!(
            "frontend https\n  bind 127.0.0.1:{port} ssl crt {}\n\
             \x20 http-request return status 200 content-type text/plain string ok\n",
            bundle.display()
        );
        let options = HaproxyOptions {
            master,
            threads: 2,
            preload: true,
            may_start_threads: false,
            mode_async: false,
            environment: self.environment.clone(),
            ..HaproxyOptions::asynchronous(&self.edge, sections)
        };
        Haproxy::start(dir, &options, &[port])
    }
}

/// A key that signs in the server: its counter, and how `openssl genpkey` makes it.
struct Kind {
    counter: &'static str,
    options: &'static [&'static str],
    /// First OpenSSL that has such keys.
    since: (u32, u32),
}

const KINDS: [Kind; 4] = [
    Kind {
        counter: "P-384",
        options: &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"],
        since: (3, 0),
    },
    Kind {
        counter: "P-521",
        options: &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"],
        since: (3, 0),
    },
    Kind { counter: "ED25519", options: &["-algorithm", "ED25519"], since: (3, 0) },
    Kind { counter: "ML-DSA-65", options: &["-algorithm", "ML-DSA-65"], since: (3, 5) },
];

/// Each handshake of a client that verifies is one signature here, by the server's own counters.
#[test]
fn key_of_a_file_signs_in_the_server_and_is_counted() {
    for server in Server::ALL {
        let world = World::new();
        let generated = Generated::of(server, &world);
        let known = |kind: &Kind| release::openssl() >= kind.since;
        for kind in KINDS.into_iter().filter(known) {
            let (key, certificate) = self_signed(world.dir(), kind.counter, kind.options);
            let (files, port) = ([&*key, &*certificate], free_port());
            let running = match server {
                Server::Nginx => Running::Nginx(generated.nginx(world.dir(), files, port)),
                _ => Running::Haproxy(generated.haproxy(world.dir(), files, port, false)),
            };
            for handshakes in 1..=3 {
                let mut client = plain(&["s_client", "-tls1_3", "-verify_return_error"]);
                client.args(["-verify_hostname", "localhost", "-ign_eof", "-CAfile"]);
                let said = text_of(&get(client.arg(&certificate), port));
                let is_good = said.contains("Verification: OK") && said.contains("200 OK");
                assert!(is_good, "{server}, {}: {said}", kind.counter);
                let counted = local_counts(running.id()).expect("counters");
                assert_eq!(counted.of(kind.counter), handshakes, "{server}");
                assert!(counted.of("TLS13-KDF") > 0, "{server}: {counted:?}");
            }
            // The check's own client is this machine's OpenSSL.
            if kind.since == (3, 0) {
                check(server, running.id(), port, &generated).has("ok", "local", kind.counter);
            }
        }
    }
}

fn check(server: Server, id: u32, port: u16, generated: &Generated) -> Report {
    let mut check = Command::new(&artifacts().millrace);
    check.args(["gateway", "check", &server.to_string(), "--json", "--pid"]);
    check.arg(id.to_string());
    check.args(["--connect", &format!("127.0.0.1:{port}")]);
    check.arg("--openssl-conf").arg(&generated.edge.conf);
    Report::of(&mut check)
}

/// Asserts that a process has signed, agreed and derived here, and that the cache answered most fetches.
#[track_caller]
fn assert_computed_here(id: u32) {
    let counted = local_counts(id).expect("counters");
    for name in ["P-384", "X25519", "TLS13-KDF"] {
        assert!(counted.of(name) > 0, "{name}: {counted:?}");
    }
    let (hits, all) = counted.fetches();
    assert!(hits > all / 2, "{hits} of {all}");
}

/// Concurrent clients.
const CLIENTS: usize = 4;

/// Handshakes between two reloads.
const BETWEEN: u64 = 10;

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

#[test]
fn nginx_reloads_and_upgrades_with_the_fetch_cache_fail_no_handshake() {
    let world = World::new();
    let identity = world.identity(KeyKind::P384);
    let (files, port) = ([&*identity.key_file, &*identity.certificate_file], free_port());
    let nginx = Generated::of(Server::Nginx, &world).nginx(world.dir(), files, port);
    let load = world.client.load(address(port), Tls::V13, CLIENTS);
    for _ in 0..scaled(20, 100) {
        load.wait_for_more(BETWEEN);
        nginx.reload();
    }
    assert_computed_here(nginx.master());
    for _ in 0..scaled(3, 10) {
        nginx.upgrade(|| load.wait_for_more(BETWEEN));
        // A new binary begins with new counters: the generated lines have handed it the environment.
        assert_computed_here(nginx.master());
    }
    let outcome = load.stop();
    assert_eq!(outcome.failed(), 0, "{:?}", outcome.failures);
}

#[test]
fn haproxy_reloads_and_takeovers_with_the_fetch_cache_fail_no_handshake() {
    let world = World::new();
    let identity = world.identity(KeyKind::P384);
    let files = [&*identity.key_file, &*identity.certificate_file];
    let generated = Generated::of(Server::Haproxy, &world);
    for master in [true, false] {
        let port = free_port();
        let mut haproxy = generated.haproxy(world.dir(), files, port, master);
        let load = world.client.load(address(port), Tls::V13, CLIENTS);
        // HAProxy has no upgrade of a running binary: a new process takes the sockets over.
        for _ in 0..if master { scaled(8, 100) } else { scaled(3, 10) } {
            load.wait_for_more(BETWEEN);
            if master {
                haproxy.reload();
            } else {
                haproxy.replace();
            }
        }
        load.wait_for_more(BETWEEN);
        // A former worker that has ended is still a child for a moment.
        let main = haproxy.process.id();
        let workers = if master { children(main) } else { vec![main] };
        let serving = workers.into_iter().find(|worker| local_counts(*worker).is_some());
        assert_computed_here(serving.expect("a worker with counters"));
        let outcome = load.stop();
        assert_eq!(outcome.failed(), 0, "{:?}", outcome.failures);
    }
}
