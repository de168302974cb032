// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Real servers under `millrace gateway check`, and assertions about its report.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::edge::{Edge, EdgeOptions};
use crate::gateway::Site;
use crate::haproxy::{Haproxy, HaproxyOptions, bundle};
use crate::is_root;
use crate::nginx::{Nginx, NginxOptions, certificate_lines};
use crate::node::Node;
use crate::pki::{Identity, KeyKind};
use crate::process::{children, free_port, listens, run, text_of};
use crate::wait;
use crate::world::World;

/// Handshakes of a check, by default.
pub const HANDSHAKES: u64 = 16;

/// A node, and a key and certificate for the servers in front of it.
#[derive(Debug)]
pub struct Setup {
    /// Holds everything that the test makes.
    pub world: World,
    /// The node that the servers use.
    pub node: Node,
    /// The servers' key and certificate.
    pub identity: Identity,
}

impl Default for Setup {
    /// A node without TCP, and an RSA-2048 key.
    fn default() -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let identity = world.identity(KeyKind::Rsa2048);
        Self { world, node, identity }
    }
}

impl Setup {
    /// A site whose key is in the pool.
    #[must_use]
    pub fn pooled(&self) -> Site {
        self.pooled_for("--allow-all")
    }

    /// A site with a pooled key, with the key's policy as flags of `key import`.
    #[must_use]
    pub fn pooled_for(&self, policy: &str) -> Site {
        let words: Vec<&str> = policy.split(' ').collect();
        let stub = self.node.import_with("www", &self.identity, &words);
        Site::with_stub(&self.identity, &stub)
    }

    /// A site whose key is on the gateway.
    #[must_use]
    pub fn plain(&self) -> Site {
        Site::with_key(&self.identity)
    }

    /// The options of an edge of the node.
    #[must_use]
    pub fn edge(&self) -> EdgeOptions {
        EdgeOptions::to(self.node.endpoint())
    }

    /// An nginx that listens at a free port.
    #[must_use]
    pub fn nginx(&self, site: &Site, edge: Option<&Edge>, workers: usize, preload: bool) -> Nginx {
        self.nginx_at(free_port(), site, edge, workers, preload)
    }

    /// An nginx whose workers have dropped root.
    #[must_use]
    pub fn nginx_at(
        &self,
        port: u16,
        site: &Site,
        edge: Option<&Edge>,
        workers: usize,
        preload: bool,
    ) -> Nginx {
        let nginx = self.nginx_by(&[], port, site, edge, workers, preload);
        wait::until("nginx listens", || listens(port));
        nginx
    }

    /// An nginx whose workers have dropped root, started by a program with its arguments. Whether it listens is not
    /// waited for: it may do so in another network.
    #[must_use]
    pub fn nginx_by(
        &self,
        launcher: &[&str],
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
            environment: Vec::new(),
            launcher: launcher.iter().map(|word| (*word).to_owned()).collect(),
        };
        let nginx = Nginx::start(self.world.dir(), &options, &[]);
        wait::until("the workers have dropped root", || {
            let found = nginx.workers();
            found.len() == workers && found.into_iter().all(has_settled)
        });
        nginx
    }

    /// An HAProxy with the preload library whose serving processes have dropped root.
    pub fn haproxy(
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
        let mut options =
            HaproxyOptions { preload: true, ..HaproxyOptions::asynchronous(edge, sections) };
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
    #[must_use]
    pub fn start(&self, server: Server, site: &Site, edge: &Edge) -> Running {
        match server {
            Server::Nginx => Running::Nginx(self.nginx(site, Some(edge), 1, true)),
            Server::Haproxy => Running::Haproxy(self.haproxy(site, edge, |_| ())),
        }
    }

    /// Checks a running server of either kind.
    #[must_use]
    pub fn check_running(&self, running: &Running, edge: &Edge) -> Report {
        match running {
            Running::Nginx(nginx) => self.check("nginx", nginx.master(), Some(edge)),
            Running::Haproxy(haproxy) => self.check("haproxy", haproxy.process.id(), Some(edge)),
        }
    }

    /// Runs `gateway check` on the server with this process ID.
    #[must_use]
    pub fn check(&self, server: &str, pid: u32, edge: Option<&Edge>) -> Report {
        let mut command = self.node.command(&["gateway", "check", server, "--json"]);
        command.args(["--pid", &pid.to_string()]);
        if let Some(edge) = edge {
            // systemd does not start this nginx, and nginx overwrites its environment, so the check gets the
            // file.
            command.arg("--openssl-conf").arg(&edge.conf);
        }
        Report::of(&mut command)
    }

    /// Checks a running nginx.
    #[must_use]
    pub fn check_nginx(&self, nginx: &Nginx, edge: Option<&Edge>) -> Report {
        self.check("nginx", nginx.master(), edge)
    }
}

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// nginx.
    Nginx,
    /// HAProxy.
    Haproxy,
}

impl Server {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Nginx, Self::Haproxy];
}

/// A running server.
#[derive(Debug)]
pub enum Running {
    /// nginx.
    Nginx(Nginx),
    /// HAProxy.
    Haproxy(Haproxy),
}

impl Running {
    /// Process ID of the server; of nginx, that of the master.
    #[must_use]
    pub fn id(&self) -> u32 {
        match self {
            Self::Nginx(nginx) => nginx.master(),
            Self::Haproxy(haproxy) => haproxy.process.id(),
        }
    }
}

/// Whether a worker has dropped root. It does so after the server starts to listen.
fn has_settled(worker: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.is_some_and(|users| !is_root() || users.split_whitespace().all(|user| user != "0"))
}

/// The JSON report of one check.
#[derive(Debug)]
pub struct Report {
    /// The JSON document.
    pub report: Value,
    /// Whether the command's exit status was a success.
    pub success: bool,
}

impl Report {
    /// Runs a check with `--json`.
    pub fn of(command: &mut Command) -> Self {
        let output = run(command);
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text_of(&output)));
        Self { report, success: output.status.success() }
    }

    /// The findings.
    #[must_use]
    pub fn findings(&self) -> &[Value] {
        self.report["findings"].as_array().expect("findings")
    }

    /// Asserts that the report contains a failure of this check, and that the command's exit status is a
    /// failure.
    #[track_caller]
    pub fn fails(&self, check: &str, word: &str) -> &Self {
        assert!(!self.success, "{check}, {word}: {:#}", self.report);
        self.has("failure", check, word)
    }

    /// Asserts that the report contains a finding of this check, with what to do about it if it is not good.
    #[track_caller]
    pub fn has(&self, outcome: &str, check: &str, word: &str) -> &Self {
        let found = self.findings().iter().any(|finding| {
            finding["check"] == check
                && finding["outcome"] == outcome
                && finding["seen"].as_str().is_some_and(|seen| seen.contains(word))
                && (outcome == "ok" || finding["remedy"].is_string())
        });
        assert!(found, "{outcome} {check}, {word}: {:#}", self.report);
        self
    }

    /// Asserts the number of handshakes with this property.
    #[track_caller]
    pub fn counts(&self, what: &str, count: u64) -> &Self {
        let share = &self.report[what];
        assert_eq!(share["of"], HANDSHAKES, "{:#}", self.report);
        assert_eq!(share["count"], count, "{what}: {:#}", self.report);
        self
    }

    /// Asserts a report without warnings and failures.
    #[track_caller]
    pub fn is_good(&self) {
        let bad: Vec<&Value> =
            self.findings().iter().filter(|finding| finding["outcome"] != "ok").collect();
        assert!(bad.is_empty() && self.success, "{bad:#?}");
        self.counts("pooled", HANDSHAKES).counts("asynchronous", HANDSHAKES);
    }
}

/// Whether a test may make namespaces: only root may, and not in every container.
#[must_use]
pub fn may_unshare() -> bool {
    let mut command = Command::new("unshare");
    run(command.args(["--mount", "--pid", "--fork", "--mount-proc", "true"])).status.success()
}
