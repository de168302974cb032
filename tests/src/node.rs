// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A pool node: `millrace up` with a separate configuration, and the commands that administer it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::artifacts::{Artifacts, artifacts};
use crate::pki::Identity;
use crate::process::{self, Process};
use crate::wait;

/// Settings in which a node of a test may differ from the default.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// Also listen on TCP, with mutual TLS and generated certificates.
    pub tcp: bool,
    /// Address of the TCP listener; default: 127.0.0.1.
    pub host: Option<Ipv4Addr>,
    /// Instead of generated ones: the node's certificate and key, and the authority of its clients.
    pub tls: Option<(PathBuf, PathBuf, PathBuf)>,
    /// Further lines of `node.toml`, each with its section header in front.
    pub toml: String,
    /// The version of the binary; default: this tree's.
    pub programs: Option<&'static Artifacts>,
    /// The user whom the node runs as, and who owns its folder; default: the user of the tests.
    pub user: Option<u32>,
    /// The command with its options that runs the node, without `--config`; default: `up`.
    pub run: Vec<String>,
    /// Program with arguments that starts the command: `ip netns exec NAME`.
    pub under: Vec<String>,
}

/// A node with its files. Ends on drop.
#[derive(Debug)]
pub struct Node {
    name: String,
    dir: PathBuf,
    config: PathBuf,
    tcp: Option<u16>,
    host: Ipv4Addr,
    programs: &'static Artifacts,
    user: Option<u32>,
    run: Vec<String>,
    under: Vec<String>,
    process: Option<Process>,
}

impl Node {
    /// Starts a node.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(dir: &Path, name: &str) -> Self {
        Self::start_with(dir, name, &NodeOptions::default())
    }

    /// Starts a node with settings.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_with(dir: &Path, name: &str, options: &NodeOptions) -> Self {
        let mut node = Self::prepare(dir, name, options);
        node.up();
        node
    }

    /// Writes the files of a node, but does not start it.
    ///
    /// # Panics
    /// If they cannot be written.
    #[must_use]
    pub fn prepare(dir: &Path, name: &str, options: &NodeOptions) -> Self {
        let dir = dir.join(format!("node-{name}"));
        fs::create_dir_all(&dir).expect("folder of a node");
        chown(&dir, options.user, None).expect("the folder's owner");
        let tcp = options.tcp.then(process::free_port);
        let host = options.host.unwrap_or(Ipv4Addr::LOCALHOST);
        let config = dir.join("node.toml");
        let at = dir.display();
        let mut text = format!(
            "name = \"{name}\"\n\
             [unix]\npath = \"{at}/node.sock\"\nmode = \"0666\"\n\
             [metrics]\naddress = \"127.0.0.1:0\"\nsocket = \"{at}/status.sock\"\n\
             [store]\ndirectory = \"{at}/state/keys\"\nkek = \"{at}/state/kek\"\ncreate-kek = true\n\
             [admin]\nsocket = \"{at}/admin.sock\"\n"
        );
        if let Some(port) = tcp {
            let tls = dir.join("state/tls");
            let made = || (tls.join("node.crt"), tls.join("node.key"), tls.join("ca.crt"));
            let (certificate, key, ca) = options.tls.clone().unwrap_or_else(made);
            let _ = write!(
                text,
                "[tcp]\naddress = \"{host}:{port}\"\n\
                 certificate = {certificate:?}\nkey = {key:?}\nclient-ca = {ca:?}\n"
            );
        }
        text.push_str(&options.toml);
        fs::write(&config, text).expect("node.toml");
        Self {
            name: name.to_owned(),
            dir,
            config,
            tcp,
            host,
            programs: options.programs.unwrap_or_else(artifacts),
            user: options.user,
            run: match options.run.as_slice() {
                [] => vec!["up".to_owned()],
                run => run.to_vec(),
            },
            under: options.under.clone(),
            process: None,
        }
    }

    /// Starts the process, and waits until it serves.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn up(&mut self) {
        assert!(self.process.is_none(), "{} is up", self.name);
        let mut command = self.millrace(&self.run_words());
        if !self.under.is_empty() {
            command = process::under(&self.under, &command);
        }
        command.arg("--config").arg(&self.config).env("RUST_BACKTRACE", "1");
        let mut process = Process::start(&self.name, command, &self.dir.join("output.log"));
        let (socket, status) = (self.socket(), self.dir.join("status.sock"));
        let (tcp, elsewhere) = (self.tcp, !self.under.is_empty());
        process.wait_ready(|| {
            UnixStream::connect(&socket).is_ok()
                && UnixStream::connect(&status).is_ok()
                && (elsewhere || tcp.is_none_or(process::listens))
        });
        self.process = Some(process);
    }

    /// The error of a node that does not start.
    ///
    /// # Panics
    /// If it starts.
    #[must_use]
    pub fn refuses_to_start(&self) -> String {
        assert!(self.process.is_none(), "{} is up", self.name);
        let output = process::run(&mut self.command(&self.run_words()));
        assert!(!output.status.success(), "{} starts", self.name);
        process::text_of(&output)
    }

    /// The command line of its version: `node run` was `node` in the previous one.
    fn run_words(&self) -> Vec<&str> {
        let mut words: Vec<&str> = self.run.iter().map(String::as_str).collect();
        if self.programs.is_previous() && words.starts_with(&["node", "run"]) {
            words.remove(1);
        }
        words
    }

    /// Makes the node use this version from its next start on, with the same files.
    pub const fn change_version(&mut self, programs: &'static Artifacts) {
        self.programs = programs;
    }

    /// Ends the node with SIGTERM, as an operator does.
    ///
    /// # Panics
    /// If it does not drain and exit 0.
    pub fn stop(&mut self) {
        let mut process = self.process.take().expect("the node is up");
        process.signal(Signal::TERM);
        let status = process.wait();
        assert!(status.success(), "{}: {status}\n{}", self.name, process.log());
    }

    /// Ends the node with SIGKILL, as a power cut does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Changes the text of `node.toml`, and has the node read it.
    ///
    /// # Panics
    /// If the file cannot be changed, or the node does not take it.
    pub fn change_settings(&self, change: impl FnOnce(String) -> String) {
        let revision = || self.status()["settings_revision"].as_u64();
        let before = revision();
        let text = fs::read_to_string(&self.config).expect("node.toml");
        fs::write(&self.config, change(text)).expect("node.toml");
        self.signal(Signal::HUP);
        wait::until("the node has read its settings", || revision() > before);
    }

    /// Sends the node a signal.
    pub fn signal(&self, signal: Signal) {
        self.process().signal(signal);
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the node is up")
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process().id()
    }

    /// Resident memory of the process, in KiB.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn resident_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id()));
        let status = status.expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.and_then(|number| number.parse().ok()).expect("a size")
    }

    /// The node's log, across restarts.
    #[must_use]
    pub fn log(&self) -> String {
        // The node may be in the middle of a write, and the file may end in the middle of a character.
        let bytes = fs::read(self.dir.join("output.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The folder with its files and sockets.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("node.sock")
    }

    /// The unix socket as clients write it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// The TCP listener as clients write it: as an address, because a name may also resolve to an address
    /// without a listener.
    ///
    /// # Panics
    /// If the node has none.
    #[must_use]
    pub fn tcp_endpoint(&self) -> String {
        format!("tcp:{}", self.tcp_address())
    }

    /// Address of the TCP listener.
    ///
    /// # Panics
    /// If the node has none.
    #[must_use]
    pub fn tcp_address(&self) -> SocketAddr {
        (self.host, self.tcp.expect("the node listens on TCP")).into()
    }

    fn millrace(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.millrace);
        command.args(arguments).current_dir(&self.dir);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MILLRACE_") {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs an administrative command for this node.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.millrace(arguments);
        command.arg("--config").arg(&self.config);
        command
    }

    /// Imports a key into the pool and returns its stub.
    ///
    /// # Panics
    /// If the key is refused, or never served.
    pub fn import(&self, name: &str, identity: &Identity) -> String {
        self.import_with(name, identity, &["--allow-all"])
    }

    /// Imports a key with a policy and returns its stub.
    ///
    /// # Panics
    /// If the key is refused, or never served.
    pub fn import_with(&self, name: &str, identity: &Identity, policy: &[&str]) -> String {
        let file = identity.key_file.to_str().expect("a path in UTF-8");
        let mut command = self.command(&["key", "import", name, file]);
        let _ = process::succeed(command.args(policy));
        self.wait_for_store();
        self.stub(name)
    }

    /// The stub of a key.
    ///
    /// # Panics
    /// If there is no such key.
    #[must_use]
    pub fn stub(&self, name: &str) -> String {
        let output = process::run(&mut self.command(&["key", "stub", name]));
        assert!(output.status.success(), "key stub: {}", process::text_of(&output));
        String::from_utf8(output.stdout).expect("a stub is text")
    }

    /// Removes a key, and waits until the node has unloaded it.
    ///
    /// # Panics
    /// If it does not.
    pub fn remove(&self, name: &str) {
        let _ = process::succeed(&mut self.command(&["key", "remove", name]));
        self.wait_for_store();
    }

    /// Waits until the running node serves every key of its store; it rescans by itself.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_for_store(&self) {
        if self.process.is_none() {
            return;
        }
        let list = process::run(&mut self.command(&["key", "list", "--json"]));
        let list: Value = serde_json::from_slice(&list.stdout).expect("a list in JSON");
        let count = list.as_array().map_or(0, Vec::len) as u64;
        wait::until("the node has seen the change of its store", || {
            self.status()["keys"].as_u64() == Some(count)
        });
    }

    /// `millrace status --json`.
    ///
    /// # Panics
    /// If the node does not answer.
    #[must_use]
    pub fn status(&self) -> Value {
        let output = process::run(&mut self.command(&["status", "--json"]));
        assert!(output.status.success(), "status: {}", process::text_of(&output));
        serde_json::from_slice(&output.stdout).expect("status is JSON")
    }

    /// Connections of clients that are open now.
    ///
    /// # Panics
    /// If the node does not answer.
    #[must_use]
    pub fn connections(&self) -> usize {
        let count = self.status()["connections"].as_u64().expect("a number");
        usize::try_from(count).expect("small")
    }

    /// The text of `/metrics`.
    ///
    /// # Panics
    /// If the node does not answer.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.answer("/metrics")
    }

    /// The document of the node's page.
    ///
    /// # Panics
    /// If the node does not answer.
    #[must_use]
    pub fn page(&self) -> Value {
        let answer = self.answer("/v1/state");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    fn answer(&self, path: &str) -> String {
        let mut socket = UnixStream::connect(self.dir.join("status.sock")).expect("status socket");
        write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("request");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("an answer");
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        text
    }

    /// Completed operations since the node started, by name.
    #[must_use]
    pub fn served(&self) -> Served {
        Served::in_status(&self.status())
    }
}

/// Operations that a node has completed, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served(BTreeMap<String, u64>);

impl Served {
    fn in_status(status: &Value) -> Self {
        let mut counts = BTreeMap::new();
        for row in status["operations"].as_array().cloned().unwrap_or_default() {
            let name = row["operation"].as_str().unwrap_or("?").to_owned();
            *counts.entry(name).or_insert(0) += row["completed"].as_u64().unwrap_or(0);
        }
        Self(counts)
    }

    /// The sum over all operations.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The count of one operation.
    #[must_use]
    pub fn of(&self, operation: &str) -> u64 {
        self.0.get(operation).copied().unwrap_or(0)
    }

    /// All RSA signatures.
    #[must_use]
    pub fn rsa_signatures(&self) -> u64 {
        self.of("rsa-pkcs1-sign") + self.of("rsa-pss-sign")
    }
}
