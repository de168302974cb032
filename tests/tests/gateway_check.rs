// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway check` inspects real servers: it reports a correct one as good, and names the cause for
//! every other one.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_tests::artifacts::artifacts;
use millrace_tests::drive::Tls;
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions, bundle};
use millrace_tests::is_root;
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::{Identity, KeyKind};
use millrace_tests::process::{children, free_port, run, succeed, text_of};
use millrace_tests::release;
use millrace_tests::wait;
use millrace_tests::world::World;
use serde_json::Value;

/// Handshakes of a check, by default.
const HANDSHAKES: u64 = 16;

struct Setup {
    world: World,
    node: Node,
    identity: Identity,
}

impl Setup {
    fn new() -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let identity = world.identity(KeyKind::Rsa2048);
        Self {
            world,
            node,
            identity,
        }
    }

    /// A site whose key is in the pool.
    fn pooled(&self) -> Site {
        self.pooled_for("--allow-all")
    }

    fn pooled_for(&self, policy: &str) -> Site {
        let words: Vec<&str> = policy.split(' ').collect();
        let stub = self.node.import_with("www", &self.identity, &words);
        Site::with_stub(&self.identity, &stub)
    }

    /// A site whose key is on the gateway.
    fn plain(&self) -> Site {
        Site::with_key(&self.identity)
    }

    fn edge(&self) -> EdgeOptions {
        EdgeOptions::to(self.node.endpoint())
    }

    fn nginx(&self, site: &Site, edge: Option<&Edge>, workers: usize, preload: bool) -> Nginx {
        self.nginx_at(free_port(), site, edge, workers, preload)
    }

    fn nginx_at(
        &self,
        port: u16,
        site: &Site,
        edge: Option<&Edge>,
        workers: usize,
        preload: bool,
    ) -> Nginx {
        let server = format!(
            "server {{ listen 127.0.0.1:{port} ssl; server_name localhost;\n{}\
             location / {{ return 200 ok; }} }}",
            certificate_lines(self.world.dir(), "www", site)
        );
        let options = NginxOptions {
            workers,
            preload,
            library: None,
            daemon: false,
            edge: edge.cloned(),
            main: String::new(),
            events: String::new(),
            http: server,
            stream: String::new(),
        };
        let nginx = Nginx::start(self.world.dir(), &options, &[port]);
        wait::until("the workers have dropped root", || {
            let found = nginx.workers();
            found.len() == workers && found.into_iter().all(has_settled)
        });
        nginx
    }

    fn haproxy(
        &self,
        site: &Site,
        edge: &Edge,
        change: impl FnOnce(&mut HaproxyOptions),
    ) -> Haproxy {
        let port = free_port();
        let sections = format!(
            "frontend www\n  bind 127.0.0.1:{port} ssl crt {}\n\
             \x20 http-request return status 200 content-type text/plain string ok\n",
            bundle(self.world.dir(), "www", site)
        );
        let mut options = HaproxyOptions {
            preload: true,
            ..HaproxyOptions::asynchronous(edge, sections)
        };
        change(&mut options);
        let haproxy = Haproxy::start(self.world.dir(), &options, &[port]);
        wait::until("the serving processes have dropped root", || {
            let serving = if options.master {
                children(haproxy.process.id())
            } else {
                vec![haproxy.process.id()]
            };
            !serving.is_empty() && serving.into_iter().all(has_settled)
        });
        haproxy
    }

    /// A server with the preload library.
    fn start(&self, server: Server, site: &Site, edge: &Edge) -> Running {
        match server {
            Server::Nginx => Running::Nginx(self.nginx(site, Some(edge), 1, true)),
            Server::Haproxy => Running::Haproxy(self.haproxy(site, edge, |_| ())),
        }
    }

    fn check_running(&self, running: &Running, edge: &Edge) -> Report {
        match running {
            Running::Nginx(nginx) => self.check("nginx", nginx.master(), Some(edge)),
            Running::Haproxy(haproxy) => self.check("haproxy", haproxy.process.id(), Some(edge)),
        }
    }

    fn check(&self, server: &str, pid: u32, edge: Option<&Edge>) -> Report {
        let mut command = self.node.command(&["gateway", "check", server, "--json"]);
        command.args(["--pid", &pid.to_string()]);
        if let Some(edge) = edge {
            // systemd does not start this nginx, and nginx overwrites its environment, so the check gets the
            // file.
            command.arg("--openssl-conf").arg(&edge.conf);
        }
        Report::of(&mut command)
    }

    fn check_nginx(&self, nginx: &Nginx, edge: Option<&Edge>) -> Report {
        self.check("nginx", nginx.master(), edge)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Nginx,
    Haproxy,
}

impl Server {
    const ALL: [Self; 2] = [Self::Nginx, Self::Haproxy];
}

enum Running {
    Nginx(Nginx),
    Haproxy(Haproxy),
}

/// Whether a worker has dropped root. It does so after the server starts to listen.
fn has_settled(worker: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.is_some_and(|users| !is_root() || users.split_whitespace().all(|user| user != "0"))
}

/// The JSON report of one check.
struct Report {
    report: Value,
    success: bool,
}

impl Report {
    fn of(command: &mut Command) -> Self {
        let output = run(command);
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text_of(&output)));
        Self {
            report,
            success: output.status.success(),
        }
    }

    fn findings(&self) -> &[Value] {
        self.report["findings"].as_array().expect("findings")
    }

    /// Asserts that the report contains a failure of this check, and that the command's exit status is a
    /// failure.
    #[track_caller]
    fn fails(&self, check: &str, word: &str) -> &Self {
        assert!(!self.success, "{check}, {word}: {:#}", self.report);
        self.has("failure", check, word)
    }

    /// Asserts that the report contains a finding of this check, with what to do about it if it is not good.
    #[track_caller]
    fn has(&self, outcome: &str, check: &str, word: &str) -> &Self {
        let found = self.findings().iter().any(|finding| {
            finding["check"] == check
                && finding["outcome"] == outcome
                && finding["seen"]
                    .as_str()
                    .is_some_and(|seen| seen.contains(word))
                && (outcome == "ok" || finding["remedy"].is_string())
        });
        assert!(found, "{outcome} {check}, {word}: {:#}", self.report);
        self
    }

    /// Asserts the number of handshakes with this property.
    #[track_caller]
    fn counts(&self, what: &str, count: u64) -> &Self {
        let share = &self.report[what];
        assert_eq!(share["of"], HANDSHAKES, "{:#}", self.report);
        assert_eq!(share["count"], count, "{what}: {:#}", self.report);
        self
    }

    /// Asserts a report without warnings and failures.
    #[track_caller]
    fn is_good(&self) {
        let bad: Vec<&Value> = self
            .findings()
            .iter()
            .filter(|finding| finding["outcome"] != "ok")
            .collect();
        assert!(bad.is_empty() && self.success, "{bad:#?}");
        self.counts("pooled", HANDSHAKES)
            .counts("asynchronous", HANDSHAKES);
    }
}

#[test]
fn correct_servers_pass_the_check() {
    let setup = Setup::new();
    let site = setup.pooled();
    let edge = setup.edge().write(setup.world.dir());
    let nginx = setup.nginx(&site, Some(&edge), 2, true);
    setup.check_nginx(&nginx, Some(&edge)).is_good();
    for master in [false, true] {
        let haproxy = setup.haproxy(&site, &edge, |options| options.master = master);
        // The check can read the environment of this process.
        setup.check("haproxy", haproxy.process.id(), None).is_good();
    }
}

#[test]
fn haproxy_without_the_preload_library_gets_a_warning() {
    let setup = Setup::new();
    let edge = setup.edge().write(setup.world.dir());
    let haproxy = setup.haproxy(&setup.pooled(), &edge, |options| options.preload = false);
    let report = setup.check("haproxy", haproxy.process.id(), None);
    let warned = |finding: &&Value| finding["outcome"] == "warning";
    let warnings: Vec<&Value> = report.findings().iter().filter(warned).collect();
    assert!(
        warnings.len() == 1 && warnings[0]["check"] == "preload",
        "{warnings:#?}"
    );
    assert!(report.success, "it works: {:#}", report.report);
    report
        .counts("pooled", HANDSHAKES)
        .counts("asynchronous", HANDSHAKES);
}

#[test]
fn plain_keys_with_the_property_query_pass_the_check() {
    let setup = Setup::new();
    let edge = setup.edge().preferred().write(setup.world.dir());
    let nginx = setup.nginx(&setup.plain(), Some(&edge), 1, true);
    setup.check_nginx(&nginx, Some(&edge)).is_good();
}

/// The private key of a gateway in a situation.
#[derive(Clone, Copy)]
enum Keys {
    /// A stub, and who may use the key.
    Stub(&'static str),
    /// A plain key.
    Plain,
}

/// Something that is wrong with a gateway.
struct Situation {
    name: &'static str,
    keys: Keys,
    /// Changes the provider's configuration before the start.
    edge: fn(EdgeOptions) -> EdgeOptions,
    /// Changes the text of `openssl.cnf` before the start.
    conf: (&'static str, &'static str),
    /// Done while the server runs.
    then: fn(&mut Setup),
    /// The finding: outcome, check, words.
    finding: (&'static str, &'static str, &'static str),
}

const STUB: Keys = Keys::Stub("--allow-all");

/// A situation of the server itself is in the tests below.
const SITUATIONS: [Situation; 11] = {
    const fn as_it_is(edge: EdgeOptions) -> EdgeOptions {
        edge
    }
    const fn nothing(_: &mut Setup) {}
    const fn of(
        name: &'static str,
        keys: Keys,
        finding: (&'static str, &'static str, &'static str),
    ) -> Situation {
        Situation {
            name,
            keys,
            edge: as_it_is,
            conf: ("", ""),
            then: nothing,
            finding,
        }
    }
    [
        of(
            "plain key",
            Keys::Plain,
            ("failure", "keys", "no property query"),
        ),
        of(
            "policy",
            Keys::Stub("--allow-uid 4242"),
            ("failure", "policy", "does not let uid:"),
        ),
        Situation {
            conf: ("millrace.so", "missing.so"),
            edge: EdgeOptions::preferred,
            ..of(
                "module",
                Keys::Plain,
                ("failure", "provider", "missing.so does not exist"),
            )
        },
        Situation {
            edge: |edge| edge.with("mode", "sync"),
            ..of("mode = sync", STUB, ("warning", "waiting", "mode = sync"))
        },
        Situation {
            edge: |edge| edge.preferred().with("mode", "off"),
            ..of(
                "mode = off",
                Keys::Plain,
                ("failure", "openssl.cnf", "mode = off"),
            )
        },
        Situation {
            edge: |edge| edge.preferred().with("modde", "off"),
            ..of(
                "unknown key",
                Keys::Plain,
                ("failure", "openssl.cnf", "`modde`"),
            )
        },
        Situation {
            edge: |edge| edge.preferred().with("hedge", "perhaps"),
            ..of(
                "bad value",
                Keys::Plain,
                ("failure", "openssl.cnf", "hedge = perhaps"),
            )
        },
        Situation {
            conf: ("[default_section]\nactivate = 1", "[default_section]"),
            edge: EdgeOptions::preferred,
            ..of(
                "default off",
                Keys::Plain,
                ("failure", "openssl.cnf", "`default`"),
            )
        },
        Situation {
            then: |setup| setup.node.kill(),
            ..of("node killed", STUB, ("failure", "node", "no node answers"))
        },
        Situation {
            then: |setup| setup.node.stop(),
            ..of("node stopped", STUB, ("failure", "socket", "is not there"))
        },
        Situation {
            then: |setup| {
                let owner_only = fs::Permissions::from_mode(0o600);
                fs::set_permissions(setup.node.socket(), owner_only).expect("permissions");
            },
            ..of(
                "socket closed",
                STUB,
                ("failure", "socket", "has mode 0600"),
            )
        },
    ]
};

#[test]
fn cause_of_every_broken_nginx_is_named() {
    every_cause_is_named(Server::Nginx);
}

#[test]
fn cause_of_every_broken_haproxy_is_named() {
    every_cause_is_named(Server::Haproxy);
}

fn every_cause_is_named(server: Server) {
    for situation in &SITUATIONS {
        if situation.name == "socket closed" && !is_root() {
            millrace_testkit::skip!("workers are other users than this one only for root");
        }
        // A server with a stub or without `default` does not start: see the next test.
        let mut setup = Setup::new();
        let site = match situation.keys {
            Keys::Stub(policy) => setup.pooled_for(policy),
            Keys::Plain => setup.plain(),
        };
        let edge = (situation.edge)(setup.edge()).write(setup.world.dir());
        let text = fs::read_to_string(&edge.conf).expect("openssl.cnf");
        let (from, to) = situation.conf;
        if situation.name == "default off" {
            // OpenSSL reads it at the start, the check now.
            let running = setup.start(server, &site, &edge);
            fs::write(&edge.conf, text.replace(from, to)).expect("openssl.cnf");
            let (outcome, check, word) = situation.finding;
            setup
                .check_running(&running, &edge)
                .has(outcome, check, word);
            continue;
        }
        if !from.is_empty() {
            fs::write(&edge.conf, text.replace(from, to)).expect("openssl.cnf");
        }
        let running = setup.start(server, &site, &edge);
        (situation.then)(&mut setup);
        let report = setup.check_running(&running, &edge);
        eprintln!("{server:?}: {}", situation.name);
        let (outcome, check, word) = situation.finding;
        report.has(outcome, check, word);
        assert_eq!(report.success, outcome == "warning", "{:#}", report.report);
    }
}

#[test]
fn nginx_without_the_preload_library_blocks() {
    let setup = Setup::new();
    let edge = setup.edge().write(setup.world.dir());
    let nginx = setup.nginx(&setup.pooled(), Some(&edge), 1, false);
    let report = setup.check_nginx(&nginx, Some(&edge));
    report
        .fails("waiting", "not in nginx")
        .counts("pooled", HANDSHAKES)
        .counts("asynchronous", 0);
}

#[test]
fn haproxy_that_blocks_or_forbids_threads_is_reported() {
    let setup = Setup::new();
    let edge = setup.edge().write(setup.world.dir());
    let site = setup.pooled();
    let haproxy = setup.haproxy(&site, &edge, |options| options.mode_async = false);
    setup
        .check("haproxy", haproxy.process.id(), None)
        .fails("waiting", "no ssl-mode-async");
    if !is_root() {
        millrace_testkit::skip!("HAProxy forbids itself threads only where it drops root");
    }
    let haproxy = setup.haproxy(&site, &edge, |options| options.may_start_threads = false);
    setup
        .check("haproxy", haproxy.process.id(), None)
        .fails("threads", "may not start threads");
}

#[test]
fn server_that_was_started_without_the_environment_is_reported() {
    let setup = Setup::new();
    let edge = setup.edge().preferred().write(setup.world.dir());
    let nginx = setup.nginx(&setup.plain(), None, 1, true);
    setup
        .check_nginx(&nginx, None)
        .fails("environment", "OPENSSL_CONF")
        .fails("provider", "not loaded");
    // OpenSSL loads the provider with the file that the unit names, so the file is not the cause.
    if release::root().is_none() {
        setup
            .check_nginx(&nginx, Some(&edge))
            .fails("provider", "without this environment");
    }
}

/// A server with a stub does not start if OpenSSL does not load the provider.
#[test]
fn cause_of_a_server_that_does_not_start_is_named() {
    if !may_unshare() {
        millrace_testkit::skip!("namespaces are not permitted here");
    }
    if release::root().is_some() {
        millrace_testkit::skip!("the servers' own tests are those of this machine");
    }
    let setup = Setup::new();
    let site = setup.pooled();
    let dir = setup.world.dir();
    let edge = setup.edge().write(dir);
    let text = fs::read_to_string(&edge.conf).expect("openssl.cnf");
    let at = dir.display();
    let mut temporary = String::new();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        temporary.push_str(&format!(" {kind}_temp_path {at}/temp-{kind};"));
    }
    let nginx = format!(
        "pid {at}/x.pid; error_log {at}/x.log; user nobody nogroup; events {{}} http {{ {temporary}\n\
         access_log off; server {{ listen 127.0.0.1:{} ssl; {} }} }}\n",
        free_port(),
        certificate_lines(dir, "www", &site)
    );
    let haproxy = format!(
        "global\n user nobody\n group nogroup\n ssl-mode-async\n insecure-fork-wanted\ndefaults\n mode http\n\
         \x20timeout client 1s\n timeout connect 1s\n timeout server 1s\n\
         frontend a\n bind 127.0.0.1:{} ssl crt {}\n http-request return status 200\n",
        free_port(),
        bundle(dir, "www", &site)
    );
    for (server, config) in [("nginx", nginx), ("haproxy", haproxy)] {
        let file = dir.join(format!("{server}.conf"));
        fs::write(&file, config).expect("configuration");
        for (conf, check, word) in [
            (text.clone(), "process", "is running"),
            (
                text.replace("millrace.so", "missing.so"),
                "provider",
                "missing.so does not exist",
            ),
            (
                text.replace("[millrace_section]", "[millrace_section]\nmode = maybe"),
                "openssl.cnf",
                "mode = maybe",
            ),
        ] {
            let broken = check != "process";
            fs::write(&edge.conf, conf).expect("openssl.cnf");
            // A namespace in which no other server runs.
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--mount-proc"]);
            command.arg(&artifacts().millrace);
            command.args(["gateway", "check", server, "--json", "--server-config"]);
            command.arg(&file).arg("--openssl-conf").arg(&edge.conf);
            let report = Report::of(&mut command);
            report.fails("process", "is running");
            let outcome = if broken { "failure" } else { "ok" };
            let start = if broken { "fails" } else { "passes" };
            report.has(outcome, "start", start);
            report.has("ok", "node", &setup.node.endpoint());
            if broken {
                report.fails(check, word);
            }
        }
    }
}

#[test]
fn address_of_another_host_needs_no_local_server() {
    if !may_unshare() {
        millrace_testkit::skip!("namespaces are not permitted here");
    }
    let setup = Setup::new();
    let edge = setup.edge().write(setup.world.dir());
    let port = free_port();
    let _nginx = setup.nginx_at(port, &setup.pooled(), Some(&edge), 1, true);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]);
    command.arg(&artifacts().millrace);
    command.args(["gateway", "check", "nginx", "--json", "--connect"]);
    command
        .arg(format!("127.0.0.1:{port}"))
        .arg("--socket")
        .arg(setup.node.socket());
    let report = Report::of(&mut command);
    report
        .has("unseen", "process", "is only seen from outside")
        .counts("pooled", HANDSHAKES);
    assert!(report.success, "{:#}", report.report);
}

#[test]
fn node_that_came_back_passes_the_check() {
    let mut setup = Setup::new();
    let edge = setup.edge().write(setup.world.dir());
    let port = free_port();
    let nginx = setup.nginx_at(port, &setup.pooled(), Some(&edge), 1, true);
    setup.node.kill();
    setup
        .check_nginx(&nginx, Some(&edge))
        .fails("node", "no node answers")
        .fails("handshakes", "");
    setup.node.up();
    // After repeated failures to connect, a client waits before it tries again.
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let handshake = || setup.world.client.handshake(address, Tls::V13);
    wait::until("nginx has found the node again", || handshake().is_ok());
    setup.check_nginx(&nginx, Some(&edge)).is_good();
}

/// Whether a test may make namespaces: only root may, and not in every container.
fn may_unshare() -> bool {
    let mut command = Command::new("unshare");
    run(command.args(["--mount", "--pid", "--fork", "--mount-proc", "true"]))
        .status
        .success()
}

/// The world's authority signs the nodes' certificates and those of the gateways.
fn of_one_authority(world: &World, name: &str) -> Node {
    let own = world.identity(KeyKind::P256);
    let options = NodeOptions {
        tcp: true,
        tls: Some((
            own.certificate_file,
            own.key_file,
            world.authority.file.clone(),
        )),
        ..NodeOptions::default()
    };
    Node::start_with(world.dir(), name, &options)
}

/// The folder of a client certificate that is valid until this year.
fn client_of(world: &World, until: i32) -> PathBuf {
    let dir = world.authority.client("gateway-1", 2001, until);
    fs::copy(&world.authority.file, dir.join("ca.pem")).expect("authority");
    dir
}

#[test]
fn every_node_over_tcp_has_a_line_that_names_its_fault() {
    let world = World::new();
    let node = of_one_authority(&world, "good");
    let identity = world.identity(KeyKind::Rsa2048);
    let setup = Setup {
        node,
        identity,
        world,
    };
    let world = &setup.world;
    let keyless = of_one_authority(world, "keyless");
    let mut gone = of_one_authority(world, "gone");
    gone.kill();
    let alone = NodeOptions {
        tcp: true,
        ..NodeOptions::default()
    };
    let other = Node::start_with(world.dir(), "other", &alone);
    let certificates = client_of(world, 2099);
    let good = EdgeOptions {
        certificates: Some(certificates.clone()),
        ..EdgeOptions::to(setup.node.tcp_endpoint())
    };
    let site = setup.pooled_for("--allow-cert gateway-1");
    let edge = good.clone().write(world.dir());
    let running = Server::ALL.map(|server| setup.start(server, &site, &edge));
    for server in &running {
        setup.check_running(server, &edge).is_good();
    }
    let beside = |node: String| EdgeOptions {
        nodes: vec![setup.node.tcp_endpoint(), node],
        ..good.clone()
    };
    let mut rows = vec![
        (
            beside(other.tcp_endpoint()),
            "node",
            "certificate of another authority",
        ),
        (beside(gone.tcp_endpoint()), "node", "no node answers"),
        (
            beside("tcp:no-such-host.invalid:1".to_owned()),
            "node",
            "has no address",
        ),
        (
            beside(keyless.tcp_endpoint()),
            "policy",
            "does not let cert:gateway-1 use www",
        ),
        (
            good.clone().with("tls_server_name", "elsewhere.example"),
            "node",
            "for another name",
        ),
        (
            EdgeOptions {
                certificates: Some(client_of(world, 2002)),
                ..good.clone()
            },
            "node",
            "this gateway's certificate has expired",
        ),
        (
            EdgeOptions {
                certificates: None,
                ..good.clone()
            },
            "certificates",
            "tcp: nodes need",
        ),
    ];
    if is_root() {
        let closed = world.dir().join("closed");
        let mut copy = Command::new("cp");
        let _ = succeed(copy.arg("-r").arg(&certificates).arg(&closed));
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("permissions");
        let edge = EdgeOptions {
            certificates: Some(closed),
            ..good.clone()
        };
        rows.push((edge, "node", "certificate files cannot be used"));
    }
    for (edge, check, word) in rows {
        let both = edge.nodes.len() == 2;
        let edge = edge.write(world.dir());
        for server in &running {
            let report = setup.check_running(server, &edge);
            report.fails(check, word);
            if both {
                report.has("ok", "node", &setup.node.tcp_endpoint());
            }
        }
    }
}

#[test]
fn revoked_certificate_of_a_gateway_is_named() {
    let setup = Setup::new();
    let world = &setup.world;
    let tls = world.dir().join("node-strict/state/tls");
    let options = NodeOptions {
        tcp: true,
        toml: format!("crl = {:?}\n", tls.join("ca.crl")),
        ..NodeOptions::default()
    };
    let mut strict = Node::prepare(world.dir(), "strict", &options);
    let certificates = world.dir().join("gateway-2");
    let mut issue = strict.command(&["cert", "client", "gateway-2"]);
    let _ = succeed(issue.arg("-o").arg(&certificates));
    let _ = succeed(&mut strict.command(&["cert", "revoke", "gateway-2"]));
    make_readable(&certificates);
    strict.up();
    let edge = setup.edge().write(world.dir());
    let haproxy = setup.haproxy(&setup.pooled(), &edge, |_| ());
    let edge = EdgeOptions {
        certificates: Some(certificates),
        ..EdgeOptions::to(strict.tcp_endpoint())
    };
    let edge = edge.write(world.dir());
    setup
        .check("haproxy", haproxy.process.id(), Some(&edge))
        .fails("node", "this gateway's certificate is revoked");
}

/// The drop-in that `millrace gateway haproxy` prints makes the certificates visible in HAProxy's chroot.
#[test]
fn chrooted_haproxy_reaches_tcp_nodes_through_the_generated_binds() {
    if !is_root() || !may_unshare() {
        millrace_testkit::skip!("namespaces are not permitted here");
    }
    let world = World::new();
    let node = of_one_authority(&world, "good");
    let identity = world.identity(KeyKind::Rsa2048);
    let setup = Setup {
        node,
        identity,
        world,
    };
    let certificates = client_of(&setup.world, 2099);
    let jail = setup.world.dir().join("jail");
    let mut plan = setup.node.command(&["gateway", "haproxy", "--json"]);
    // `--config` is not for this command.
    let mut print = Command::new(plan.get_program());
    print.args(plan.get_args().take_while(|word| *word != "--config"));
    plan = print;
    plan.args(["--pool", &setup.node.tcp_endpoint(), "--certs"])
        .arg(&certificates);
    plan.arg("--module").arg(&artifacts().provider);
    let plan: Value = serde_json::from_str(&succeed(&mut plan)).expect("JSON");
    let files = plan["files"].as_array().expect("files");
    let mut binds = Vec::new();
    for file in files {
        let lines = file["contents"].as_str().expect("contents").lines();
        let lines = lines.filter_map(|line| line.strip_prefix("BindReadOnlyPaths="));
        for line in lines {
            let (outside, inside) = line.split_once(':').expect("two paths");
            let inside = inside
                .strip_prefix("/var/lib/haproxy/")
                .expect("Debian's chroot");
            binds.push((PathBuf::from(outside), jail.join(inside)));
        }
    }
    if binds.is_empty() {
        // Without systemd the plan has commands; they are the same paths.
        for step in plan["after"].as_array().expect("steps") {
            let command = step["command"].as_str().expect("a command");
            let Some((_, paths)) = command.split_once("mount --bind -o ro ") else {
                continue;
            };
            let (outside, inside) = paths.split_once(' ').expect("two paths");
            let inside = inside
                .strip_prefix("/var/lib/haproxy/")
                .expect("Debian's chroot");
            binds.push((PathBuf::from(outside), jail.join(inside)));
        }
    }
    assert!(
        binds.iter().any(|(outside, _)| *outside == certificates),
        "{plan:#}"
    );
    fs::create_dir_all(&jail).expect("folder");
    let edge = EdgeOptions {
        certificates: Some(certificates),
        ..EdgeOptions::to(setup.node.tcp_endpoint())
    };
    let edge = edge.write(setup.world.dir());
    let site = setup.pooled_for("--allow-cert gateway-1");
    let global = format!("  chroot {}\n", jail.display());
    let haproxy = setup.haproxy(&site, &edge, |options| options.global.clone_from(&global));
    setup
        .check("haproxy", haproxy.process.id(), None)
        .fails("node", "certificate files cannot be used")
        .fails("handshakes", "");
    let bound = setup.haproxy(&site, &edge, |options| {
        options.global = global;
        options.binds = binds;
    });
    let root = fs::read_link(format!("/proc/{}/root", bound.process.id())).expect("its root");
    // A release in a folder of its own has the jail below that folder.
    assert!(
        root.ends_with(jail.strip_prefix("/").expect("absolute")),
        "{}",
        root.display()
    );
    setup.check("haproxy", bound.process.id(), None).is_good();
}

#[test]
fn status_of_a_pool_has_a_row_for_every_node() {
    if !may_unshare() {
        millrace_testkit::skip!("namespaces are not permitted here");
    }
    let world = World::new();
    let node = of_one_authority(&world, "good");
    let keyless = of_one_authority(&world, "keyless");
    let mut gone = of_one_authority(&world, "gone");
    gone.kill();
    let identity = world.identity(KeyKind::P256);
    let stub = node.import_with("www", &identity, &["--allow-cert", "gateway-1"]);
    let certificates = client_of(&world, 2099);
    make_readable(&certificates);
    let edge = EdgeOptions {
        nodes: vec![
            node.tcp_endpoint(),
            keyless.tcp_endpoint(),
            gone.tcp_endpoint(),
        ],
        certificates: Some(certificates),
        ..EdgeOptions::default()
    };
    let edge = edge.write(world.dir());
    // The stubs are those of the servers' configurations.
    let etc = world.dir().join("etc-haproxy");
    fs::create_dir(&etc).expect("folder");
    let site = Site::with_stub(&identity, &stub);
    fs::write(
        etc.join("www.pem"),
        format!("{}{}", site.certificate_pem, site.key_pem),
    )
    .expect("site");
    let config = "global\n  user nobody\nfrontend a\n  bind :443 ssl crt /etc/haproxy/www.pem\n";
    fs::write(etc.join("haproxy.cfg"), config).expect("configuration");
    let status = |more: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command
            .arg("mount --bind \"$0\" /etc/haproxy && exec \"$@\"")
            .arg(&etc);
        command
            .arg(&artifacts().millrace)
            .args(["status", "--pool"])
            .arg(&edge.conf)
            .args(more);
        run(&mut command)
    };
    let output = status(&["--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = answer["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 3, "{answer:#}");
    let state = &nodes[0]["state"];
    assert_eq!(state["keys"][0]["state"], "usable", "{answer:#}");
    assert_eq!(state["certificates"]["identity"], "gateway-1");
    assert!(
        state["software"]
            .as_str()
            .is_some_and(|name| name.starts_with("millrace/"))
    );
    assert_eq!(
        nodes[1]["state"]["keys"][0]["state"], "not-there",
        "{answer:#}"
    );
    assert_eq!(nodes[2]["fault"]["kind"], "refused", "{answer:#}");
    let page = text_of(&status(&[]));
    let row = |node: &Node| {
        page.lines()
            .find(|line| line.starts_with(&node.tcp_endpoint()))
            .map(str::to_owned)
    };
    assert!(
        row(&node).is_some_and(|row| row.contains("ready") && row.contains("none")),
        "{page}"
    );
    assert!(
        row(&keyless).is_some_and(|row| row.contains("www")),
        "{page}"
    );
    assert!(page.contains("2 of 3 nodes cannot serve"), "{page}");
}

/// Only the owner may read the files that `millrace cert client` writes.
fn make_readable(dir: &Path) {
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
    };
    set(dir, 0o755);
    for entry in fs::read_dir(dir).expect("a folder").flatten() {
        set(&entry.path(), 0o644);
    }
}
