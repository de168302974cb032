// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway check` inspects real servers: it reports a correct one as good, and names the cause for
//! every other one.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;

use millrace_tests::drive::Tls;
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions, bundle};
use millrace_tests::is_root;
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::node::Node;
use millrace_tests::pki::{Identity, KeyKind};
use millrace_tests::process::{children, free_port, run, text_of};
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

    fn haproxy(&self, site: &Site, edge: &Edge, master: bool, preload: bool) -> Haproxy {
        let port = free_port();
        let sections = format!(
            "frontend www\n  bind 127.0.0.1:{port} ssl crt {}\n\
             \x20 http-request return status 200 content-type text/plain string ok\n",
            bundle(self.world.dir(), "www", site)
        );
        let options = HaproxyOptions {
            master,
            preload,
            ..HaproxyOptions::asynchronous(edge, sections)
        };
        let haproxy = Haproxy::start(self.world.dir(), &options, &[port]);
        wait::until("the serving processes have dropped root", || {
            let serving = if master {
                children(haproxy.process.id())
            } else {
                vec![haproxy.process.id()]
            };
            !serving.is_empty() && serving.into_iter().all(has_settled)
        });
        haproxy
    }

    fn check(&self, server: &str, pid: u32, edge: Option<&Edge>) -> Report {
        let mut command = self.node.command(&["gateway", "check", server, "--json"]);
        command.args(["--pid", &pid.to_string()]);
        if let Some(edge) = edge {
            // systemd does not start this nginx, and nginx overwrites its environment, so the check gets the
            // file.
            command.arg("--openssl-conf").arg(&edge.conf);
        }
        let output = run(&mut command);
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text_of(&output)));
        Report {
            report,
            success: output.status.success(),
        }
    }

    fn check_nginx(&self, nginx: &Nginx, edge: Option<&Edge>) -> Report {
        self.check("nginx", nginx.master(), edge)
    }
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
    fn findings(&self) -> &[Value] {
        self.report["findings"].as_array().expect("findings")
    }

    /// Asserts that the report contains a failure of this check, and that the command's exit status is a
    /// failure.
    #[track_caller]
    fn fails(&self, check: &str, word: &str) -> &Self {
        let found = self.findings().iter().any(|finding| {
            finding["check"] == check
                && finding["outcome"] == "failure"
                && finding["seen"]
                    .as_str()
                    .is_some_and(|seen| seen.contains(word))
                && finding["remedy"].is_string()
        });
        assert!(found && !self.success, "{check}, {word}: {:#}", self.report);
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
        let haproxy = setup.haproxy(&site, &edge, master, true);
        // The check can read the environment of this process.
        setup.check("haproxy", haproxy.process.id(), None).is_good();
    }
}

#[test]
fn haproxy_without_the_preload_library_gets_a_warning() {
    let setup = Setup::new();
    let edge = setup.edge().write(setup.world.dir());
    let haproxy = setup.haproxy(&setup.pooled(), &edge, false, false);
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

#[test]
fn plain_keys_without_the_property_query_fail_the_check() {
    let setup = Setup::new();
    let edge = setup.edge().write(setup.world.dir());
    let nginx = setup.nginx(&setup.plain(), Some(&edge), 1, true);
    let report = setup.check_nginx(&nginx, Some(&edge));
    report
        .fails("keys", "no property query")
        .fails("pooled", "0 of 16")
        .counts("asynchronous", 0);
    let haproxy = setup.haproxy(&setup.plain(), &edge, false, true);
    let report = setup.check("haproxy", haproxy.process.id(), None);
    report
        .fails("keys", "no property query")
        .counts("pooled", 0)
        .counts("asynchronous", 0);
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
fn missing_openssl_conf_is_reported() {
    let setup = Setup::new();
    let nginx = setup.nginx(&setup.plain(), None, 1, true);
    let report = setup.check_nginx(&nginx, None);
    report
        .fails("environment", "OPENSSL_CONF")
        .fails("provider", "not loaded");
}

#[test]
fn missing_module_is_reported() {
    let setup = Setup::new();
    let edge = setup.edge().preferred().write(setup.world.dir());
    let text = fs::read_to_string(&edge.conf).expect("openssl.cnf");
    fs::write(&edge.conf, text.replace("millrace.so", "missing.so")).expect("openssl.cnf");
    // nginx logs nothing and computes everything itself.
    let nginx = setup.nginx(&setup.plain(), Some(&edge), 1, true);
    let report = setup.check_nginx(&nginx, Some(&edge));
    report
        .fails("provider", "missing.so does not exist")
        .counts("pooled", 0);
}

#[test]
fn socket_that_workers_may_not_use_is_reported() {
    if !is_root() {
        return eprintln!("SKIPPED: workers are other users than this one only for root");
    }
    let setup = Setup::new();
    let edge = setup.edge().write(setup.world.dir());
    let nginx = setup.nginx(&setup.pooled(), Some(&edge), 1, true);
    let owner_only = fs::Permissions::from_mode(0o600);
    fs::set_permissions(setup.node.socket(), owner_only).expect("permissions");
    let report = setup.check_nginx(&nginx, Some(&edge));
    report
        .fails("socket", "has mode 0600")
        .fails("handshakes", "");
}

#[test]
fn policy_that_refuses_the_workers_is_reported() {
    let setup = Setup::new();
    let edge = setup.edge().write(setup.world.dir());
    let nginx = setup.nginx(&setup.pooled_for("--allow-uid 4242"), Some(&edge), 1, true);
    setup
        .check_nginx(&nginx, Some(&edge))
        .fails("policy", "does not let user")
        .fails("handshakes", "");
}

#[test]
fn node_that_is_down_is_reported() {
    let mut setup = Setup::new();
    let edge = setup.edge().write(setup.world.dir());
    let port = free_port();
    let nginx = setup.nginx_at(port, &setup.pooled(), Some(&edge), 1, true);
    setup.node.kill();
    let report = setup.check_nginx(&nginx, Some(&edge));
    report
        .fails("node", "no node answers")
        .fails("handshakes", "");
    setup.node.up();
    // After repeated failures to connect, a client waits before it tries again.
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let handshake = || setup.world.client.handshake(address, Tls::V13);
    wait::until("nginx has found the node again", || handshake().is_ok());
    setup.check_nginx(&nginx, Some(&edge)).is_good();
    setup.node.stop();
    setup
        .check_nginx(&nginx, Some(&edge))
        .fails("socket", "is not there");
}
