// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A managed pool of real processes: managers on a store, nodes that register, and the commands of its
//! operator.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::artifacts::{Artifacts, artifacts};
use crate::drive::{Load, Tls};
use crate::edge::EdgeOptions;
use crate::gateway::{Gateway, Server, Site};
use crate::node::{Node, NodeOptions};
use crate::pki::Identity;
use crate::process::{self, Process, free_port};
use crate::release;
use crate::wait;
use crate::world::World;

/// Validity of a grant in tests, in seconds: the least. A lease ends one second later.
pub const GRANT_SECONDS: u64 = 3;

/// Host on which processes of a pool run.
#[derive(Clone, Debug)]
pub struct Host {
    /// Address of the host.
    pub address: String,
    /// Program with arguments that runs a command there; empty for this host.
    pub under: Vec<String>,
}

impl Host {
    /// This host.
    #[must_use]
    pub fn here() -> Self {
        Self { address: "127.0.0.1".to_owned(), under: Vec::new() }
    }
}

/// A manager with its state folder. Ends on drop.
#[derive(Debug)]
pub struct Manager {
    name: String,
    dir: PathBuf,
    host: Host,
    port: u16,
    store: String,
    programs: &'static Artifacts,
    process: Option<Process>,
}

impl Manager {
    fn prepare(
        dir: &Path,
        name: &str,
        store: &str,
        host: Host,
        programs: &'static Artifacts,
    ) -> Self {
        let dir = dir.join(name);
        fs::create_dir_all(dir.join("state")).expect("folder of a manager");
        Self {
            name: name.to_owned(),
            dir,
            host,
            port: free_port(),
            store: store.to_owned(),
            programs,
            process: None,
        }
    }

    /// Starts the process, and waits until it answers.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn up(&mut self) {
        assert!(self.process.is_none(), "{} is up", self.name);
        let log = self.dir.join("output.log");
        let mut process = Process::start(&self.name, self.command(), &log);
        let address = (self.host.address.clone(), self.port);
        process.wait_ready(|| std::net::TcpStream::connect(&address).is_ok());
        self.process = Some(process);
    }

    fn command(&self) -> Command {
        let program = &self.programs.millrace;
        let mut command = millrace(program, &["manager", "--store", &self.store, "--pool", "test"]);
        let lifetime =
            if self.programs.is_previous() { "--grant-seconds" } else { "--grant-lifetime" };
        command
            .args(["--listen", &format!("{}:{}", self.host.address, self.port)])
            .args([lifetime, &GRANT_SECONDS.to_string(), "--state"])
            .arg(self.dir.join("state"))
            .env("RUST_BACKTRACE", "1");
        process::under(&self.host.under, &command)
    }

    /// Makes the manager use this version from its next start on, with the same files.
    pub const fn change_version(&mut self, programs: &'static Artifacts) {
        self.programs = programs;
    }

    /// The error of a manager that does not start.
    ///
    /// # Panics
    /// If it starts.
    #[must_use]
    pub fn refuses_to_start(&self) -> String {
        assert!(self.process.is_none(), "{} is up", self.name);
        let output = process::run(&mut self.command());
        assert!(!output.status.success(), "{} starts", self.name);
        process::text_of(&output)
    }

    /// Ends the manager with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Ends it with SIGTERM.
    ///
    /// # Panics
    /// If it does not exit 0.
    pub fn stop(&mut self) {
        let mut process = self.process.take().expect("the manager is up");
        process.signal(Signal::TERM);
        let status = process.wait();
        assert!(status.success(), "{status}\n{}", process.log());
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it is not up.
    pub fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("the manager is up").signal(signal);
    }

    /// URL of the manager for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}:{}", self.host.address, self.port)
    }

    /// Process id of the manager.
    ///
    /// # Panics
    /// If it is not up.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.as_ref().expect("the manager is up").id()
    }

    /// State folder of the manager.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Output of the manager so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("output.log")).unwrap_or_default()
    }
}

/// Managers on one store, and the administrator's access to them.
#[derive(Debug)]
pub struct Pool {
    dir: PathBuf,
    /// The managers.
    pub managers: Vec<Manager>,
    operator: Operator,
}

impl Pool {
    /// Starts `count` managers on `store`.
    ///
    /// # Panics
    /// If they do not come up.
    #[must_use]
    pub fn start(dir: &Path, store: &str, count: usize) -> Self {
        Self::start_at(dir, store, &vec![Host::here(); count])
    }

    /// Starts a manager on each of these hosts.
    ///
    /// # Panics
    /// If they do not come up.
    #[must_use]
    pub fn start_at(dir: &Path, store: &str, hosts: &[Host]) -> Self {
        Self::start_with(dir, store, hosts, artifacts())
    }

    /// Starts a manager of this version on each of these hosts.
    ///
    /// # Panics
    /// If they do not come up.
    #[must_use]
    pub fn start_with(
        dir: &Path,
        store: &str,
        hosts: &[Host],
        programs: &'static Artifacts,
    ) -> Self {
        let mut managers: Vec<Manager> = Vec::new();
        for (number, host) in hosts.iter().enumerate() {
            let name = format!("manager-{}", number + 1);
            let mut manager = Manager::prepare(dir, &name, store, host.clone(), programs);
            if let Some(first) = managers.first() {
                // As the guide says: one authority and one signing key.
                for part in ["tls", "manager/grant.key", "manager/pool.kek"] {
                    copy(&first.state().join(part), &manager.state().join(part));
                }
            }
            manager.up();
            managers.push(manager);
        }
        let access = managers[0].state().join("manager/access");
        let urls: Vec<String> = managers.iter().map(Manager::url).collect();
        let operator = Operator::new(&access).asking(&urls.join(","));
        Self { dir: dir.to_owned(), managers, operator }
    }

    /// The commands of the administrator.
    #[must_use]
    pub fn operator(&self) -> &Operator {
        &self.operator
    }

    /// The metrics of each manager, as the administrator gets them.
    ///
    /// # Panics
    /// If one does not answer.
    #[must_use]
    pub fn metrics(&self) -> Vec<String> {
        let first = self.managers[0].state();
        let access = fs::read(first.join("manager/access")).expect("the access");
        let access: Value = serde_json::from_slice(&access).expect("JSON");
        let token = access["token"].as_str().expect("a token");
        let of = |manager: &Manager| {
            let mut curl = release::command("curl");
            curl.args(["--silent", "--show-error", "--fail", "--cacert"])
                .arg(first.join("tls/ca.crt"))
                .args(["--header", &format!("Authorization: Bearer {token}")])
                .arg(format!("{}/metrics", manager.url()));
            process::succeed(&mut curl)
        };
        self.managers.iter().map(of).collect()
    }

    /// Starts a node that joins the pool.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn node(&self, name: &str) -> Node {
        self.node_with(name, &NodeOptions::default(), &[])
    }

    /// Starts a node with settings that joins the pool, with further options of `millrace node run`.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn node_with(&self, name: &str, options: &NodeOptions, further: &[&str]) -> Node {
        let access = self.dir.join(format!("{name}.access"));
        let file = access.to_str().expect("a path in UTF-8");
        self.operator.done(&["token", "create", name, "--role", "node", "-o", file]);
        let words = [
            "node",
            "run",
            "--access",
            file,
            // No measurement: it would be one of a busy machine.
            "--capacity",
            "rsa2048=1000,p256=20000",
        ];
        let options = NodeOptions {
            run: words.iter().chain(further).map(ToString::to_string).collect(),
            ..options.clone()
        };
        Node::start_with(&self.dir, name, &options)
    }
}

fn copy(from: &Path, to: &Path) {
    if !from.exists() {
        return;
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).expect("a folder");
    }
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(done.expect("cp starts").success());
}

/// The binary, without variables that would change it.
fn millrace(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MILLRACE_") {
            command.env_remove(name);
        }
    }
    command
}

/// An access file and the managers to ask with it.
#[derive(Clone, Debug)]
pub struct Operator {
    access: PathBuf,
    managers: Option<String>,
    programs: &'static Artifacts,
}

impl Operator {
    /// The holder of an access file.
    #[must_use]
    pub fn new(access: &Path) -> Self {
        Self { access: access.to_owned(), managers: None, programs: artifacts() }
    }

    /// This operator, who asks these managers, separated by commas.
    #[must_use]
    pub fn asking(&self, managers: &str) -> Self {
        Self { managers: Some(managers.to_owned()), ..self.clone() }
    }

    /// This operator with the commands of this version.
    #[must_use]
    pub fn with_version(&self, programs: &'static Artifacts) -> Self {
        Self { programs, ..self.clone() }
    }

    /// A command with this access.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = millrace(&self.programs.millrace, arguments);
        command.arg("--access").arg(&self.access);
        if let Some(managers) = &self.managers {
            command.args(["--manager", managers]);
        }
        command
    }

    /// Runs a command.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Output {
        process::run(&mut self.command(arguments))
    }

    /// Runs a command that must succeed.
    ///
    /// # Panics
    /// If it fails.
    pub fn done(&self, arguments: &[&str]) {
        let _ = process::succeed(&mut self.command(arguments));
    }

    /// The JSON of a command; null if no manager answers.
    ///
    /// # Panics
    /// If it fails otherwise.
    #[must_use]
    pub fn json(&self, arguments: &[&str]) -> Value {
        /// Exit code for "no node answers".
        const SILENT: i32 = 5;
        let output = self.run(&[arguments, &["--json"]].concat());
        if output.status.code() == Some(SILENT) {
            return Value::Null;
        }
        let text = process::text_of(&output);
        assert!(output.status.success(), "{arguments:?}: {text}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Polls a command until its JSON is as wanted; returns the time.
    ///
    /// # Panics
    /// If it does not become so.
    pub fn wait(&self, arguments: &[&str], wanted: impl Fn(&Value) -> bool) -> Duration {
        let (start, mut last) = (Instant::now(), Value::Null);
        let good = wait::holds_within(2 * wait::SOON, || {
            last = self.json(arguments);
            wanted(&last)
        });
        assert!(good, "{arguments:?} stays {last:#}");
        start.elapsed()
    }

    /// Waits until the tenant has its whole quota at these nodes, which are in the order of names; returns the time.
    ///
    /// # Panics
    /// If it does not get there.
    pub fn wait_for_slices(&self, tenant: &str, nodes: &[&str], ops: u64) -> Duration {
        self.wait(&["tenant", "addresses", tenant], |grants| {
            let rows = grants["nodes"].as_array().map_or(&[][..], Vec::as_slice);
            let mut names: Vec<&str> = rows.iter().filter_map(|row| row["node"].as_str()).collect();
            // A node that registered again stands last.
            names.sort_unstable();
            let sum: u64 =
                rows.iter().filter_map(|row| row["slice"]["ops"]["per-second"].as_u64()).sum();
            names == nodes && sum == ops
        })
    }
}

/// The slice of a tenant that a node has in force, in operations per second; 0 without a grant.
#[must_use]
pub fn in_force(node: &Node, tenant: &str) -> u64 {
    let status = node.status();
    let rows = status["tenants"].as_array().cloned().unwrap_or_default();
    let row = rows.iter().find(|row| row["tenant"] == tenant);
    row.and_then(|row| row["rates"]["ops"]["per-second"].as_u64()).unwrap_or(0)
}

/// A gateway whose key only the pool has, under load: one handshake after the other.
#[derive(Debug)]
pub struct Loaded {
    _gateway: Gateway,
    /// The handshakes.
    pub load: Load,
}

impl Loaded {
    /// Starts HAProxy with a stub, and the handshakes.
    #[must_use]
    pub fn start(world: &World, edge: EdgeOptions, identity: &Identity, stub: &str) -> Self {
        let site = Site::with_stub(identity, stub);
        let gateway = world.gateway(Server::Haproxy, edge, &[site]);
        let load = world.client.load(gateway.address(identity.kind), Tls::V13, 1);
        Self { _gateway: gateway, load }
    }

    /// Ends the load.
    ///
    /// # Panics
    /// If a handshake failed.
    pub fn none_failed(self) {
        let outcome = self.load.stop();
        println!("{} handshakes", outcome.completed);
        assert_eq!(outcome.failures, BTreeMap::new());
    }
}

/// Makes the tenant `acme` of all local users, which one node serves, and waits for its grant.
pub fn tenant_at(operator: &Operator, name: &str) {
    operator.done(&["tenant", "create", "acme", "--ops", "9000", "--identity", "uid:*"]);
    operator.done(&[
        "tenant",
        "place",
        "acme",
        "--node",
        name,
        "--spread",
        "1",
        "--over-commit",
        "on",
    ]);
    let _ = operator.wait_for_slices("acme", &[name], 9000);
}
