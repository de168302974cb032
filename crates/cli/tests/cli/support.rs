// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The real binary in a separate folder. Dropping a guard ends its process, also when a test panics.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millrace_testkit::wait::holds_within;
use serde_json::Value;
use tempfile::TempDir;

pub(crate) use millrace_testkit::wait::SOON;
/// A folder with the state, the socket and the files of one test.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// `millrace` with these arguments, restricted to the paths of this place.
    pub(crate) fn command<I, S>(&self, args: I) -> Command
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("MILLRACE_STATE", self.path("state"))
            .env("MILLRACE_SOCKET", self.path("node.sock"))
            .stdin(Stdio::null());
        command
    }

    /// Runs `millrace` to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Outcome {
        Outcome::of(self.command(args).output().unwrap())
    }

    /// Runs `millrace` with this text on its standard input.
    pub(crate) fn run_with_input(&self, args: &[&str], input: &str) -> Outcome {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command may close the pipe without reading to the end.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Outcome::of(child.wait_with_output().unwrap())
    }

    /// Starts a node and waits until it says that it is ready.
    pub(crate) fn up(&self, args: &[&str]) -> Node {
        let mut command = self.command(["up"]);
        command.args(args);
        self.up_as(command).0
    }

    /// Starts a node like [`Self::up`], by a command that ends in `millrace up`. Also returns the socket of its further
    /// messages.
    pub(crate) fn up_as(&self, command: Command) -> (Node, UnixDatagram) {
        self.try_up_as(command).unwrap_or_else(|log| panic!("the node ended\n{log}"))
    }

    /// Starts a node like [`Self::up_as`].
    ///
    /// # Errors
    /// It ended before it was ready: its log.
    pub(crate) fn try_up_as(&self, mut command: Command) -> Result<(Node, UnixDatagram), String> {
        let notify = self.path("notify.sock");
        let _ = fs::remove_file(&notify);
        let socket = UnixDatagram::bind(&notify).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        command.env("NOTIFY_SOCKET", &notify);
        let mut node = Node::start(command);
        let started = Instant::now();
        let mut buffer = [0; 64];
        loop {
            if let Ok(length) = socket.recv(&mut buffer) {
                assert_eq!(&buffer[..length], b"READY=1");
                return Ok((node, socket));
            }
            if node.child.try_wait().unwrap().is_some() {
                node.wait();
                return Err(node.log());
            }
            assert!(started.elapsed() < SOON, "the node is not ready\n{}", node.log());
        }
    }

    /// The status of the node as JSON.
    pub(crate) fn status(&self) -> Value {
        let outcome = self.run(&["status", "--json"]);
        assert_eq!(outcome.code, 0, "{}", outcome.talk);
        serde_json::from_str(&outcome.data).unwrap()
    }

    /// Polls the status until the condition holds. Each poll starts a process, so this does not spin.
    pub(crate) fn wait_for_status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(started.elapsed() < SOON, "{what} did not happen: {status:#}");
        }
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) data: String,
    /// Standard error.
    pub(crate) talk: String,
}

impl Outcome {
    pub(crate) fn of(output: Output) -> Self {
        let Output { status, stdout, stderr } = output;
        Self {
            code: status.code().unwrap_or(-1),
            data: String::from_utf8(stdout).unwrap(),
            talk: String::from_utf8(stderr).unwrap(),
        }
    }

    /// Asserts that the command failed with this code and printed all these words.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.talk.contains(word), "no '{word}' in: {}", self.talk);
        }
        let printed = self.talk.lines().filter(|line| line.starts_with("error: ")).count();
        assert_eq!(printed, 1, "printed once: {}", self.talk);
    }

    #[track_caller]
    pub(crate) fn done(&self) -> &Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
}

/// A running node; killed when dropped.
pub(crate) struct Node {
    pub(crate) child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Node {
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let target = Arc::clone(&log);
        let reader = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = target.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, log, reader: Some(reader) }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log has this text `count` times.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, text: &str, count: usize) {
        let logged = || self.log().matches(text).count() >= count;
        let logged = holds_within(SOON, logged);
        assert!(logged, "no {count} times {text:?} in\n{}", self.log());
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let id = i32::try_from(self.child.id()).unwrap();
        let process = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(process, signal).unwrap();
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                if let Some(reader) = self.reader.take() {
                    reader.join().unwrap();
                }
                return status;
            }
            assert!(started.elapsed() < SOON, "the node does not end\n{}", self.log());
            thread::yield_now();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process may have ended already; it must still be reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A private key made by OpenSSL, as PEM.
pub(crate) fn openssl_key(arguments: &[&str]) -> String {
    let output = Command::new("openssl").args(arguments).output().expect("openssl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn p256_key() -> String {
    openssl_key(&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"])
}

pub(crate) fn rsa_key(bits: u32) -> String {
    openssl_key(&["genpkey", "-algorithm", "RSA", "-pkeyopt", &format!("rsa_keygen_bits:{bits}")])
}

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}
