// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Child processes that end with their owner, also when a test panics. Each leads a separate process group,
//! so that its own children end with it; the group is ended by its id.

use std::fmt;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use millrace_testkit::port::free_port;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};

use crate::wait;

/// Time between SIGTERM and SIGKILL.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Bound on the time of a short-lived program. The slowest, `openssl speed`, takes a few seconds on an idle
/// machine. (A program may also wait for a condition, so the bound is above [`wait::SOON`].)
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// A running child with a log.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    reaped: AtomicBool,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.child.id())
    }
}

impl Process {
    /// Starts a program with both outputs appended to `log`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(name: &str, mut command: Command, log: &Path) -> Self {
        let output = File::options().create(true).append(true).open(log).expect("log file");
        let errors = output.try_clone().expect("log file");
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{name} does not start ({error}): run `make setup` to install it")
        });
        Self { name: name.to_owned(), child, log: log.to_owned(), reaped: AtomicBool::new(false) }
    }

    /// Id of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Pid {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id")
    }

    /// Sends a signal to the process itself.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap_or_else(|error| panic!("{self:?}: {error}"));
    }

    /// The exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().expect("wait for a child");
        if status.is_some() {
            self.reaped.store(true, Ordering::Relaxed);
        }
        status
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        let ended = wait::holds_within(wait::SOON, || {
            status = self.ended();
            status.is_some()
        });
        assert!(ended, "{self:?} does not end; its log:\n{}", self.log());
        status.expect("ended")
    }

    /// Waits until `ready`.
    ///
    /// # Panics
    /// If it ends before, or takes too long.
    pub fn wait_ready(&mut self, mut ready: impl FnMut() -> bool) {
        let mut status = None;
        let good = wait::holds_within(wait::SOON, || {
            status = self.ended();
            status.is_some() || ready()
        });
        assert!(status.is_none(), "{self:?} ended with {status:?}; its log:\n{}", self.log());
        assert!(good, "{self:?} does not become ready; its log:\n{}", self.log());
    }

    /// Output of the process so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Ends the process at once.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            let _ = kill_process(self.pid(), Signal::KILL);
            drop(self.child.wait());
            self.reaped.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = self.pid();
        if !self.reaped.load(Ordering::Relaxed) {
            // A stopped process handles SIGTERM only after SIGCONT.
            let _ = kill_process_group(group, Signal::TERM);
            let _ = kill_process_group(group, Signal::CONT);
            wait::holds_within(STOP_LIMIT, || !matches!(self.child.try_wait(), Ok(None)));
        }
        // The rest of the group: a leader that ignores SIGTERM, or workers that outlived it. While one of
        // them exists, the kernel does not reuse the id of the group.
        if test_kill_process_group(group).is_ok() {
            let _ = kill_process_group(group, Signal::KILL);
        }
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("---- log of {self:?}\n{}", last_lines(&self.log(), 60));
        }
    }
}

/// The last lines of a text.
#[must_use]
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Runs a program to its end, within a bound.
///
/// # Panics
/// If it cannot be started, or does not end.
#[must_use]
pub fn run(command: &mut Command) -> Output {
    run_with_input(command, b"")
}

/// Runs a program to its end with bytes on its standard input. They must fit a pipe (64 KiB).
///
/// # Panics
/// If it cannot be started, or does not end.
#[must_use]
pub fn run_with_input(command: &mut Command, input: &[u8]) -> Output {
    use std::io::{Read, Write};
    let out = tempfile::tempfile().expect("temporary file");
    let err = tempfile::tempfile().expect("temporary file");
    command
        .stdin(Stdio::piped())
        .stdout(out.try_clone().expect("temporary file"))
        .stderr(err.try_clone().expect("temporary file"))
        .process_group(0);
    let mut child = Owned(command.spawn().unwrap_or_else(|error| {
        panic!("{:?} does not start ({error}): run `make setup`", command.get_program())
    }));
    if let Some(mut stdin) = child.0.stdin.take() {
        // A program that does not read its input closes the pipe; that is not a failure.
        drop(stdin.write_all(input));
    }
    let mut status = None;
    let ended = wait::holds_within(RUN_LIMIT, || {
        status = child.0.try_wait().expect("wait for a child");
        status.is_some()
    });
    let collect = |mut file: File| {
        use std::io::Seek;
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("read an output");
        bytes
    };
    let (stdout, stderr) = (collect(out), collect(err));
    assert!(ended, "{command:?} does not end: {}", String::from_utf8_lossy(&stderr));
    Output { status: status.expect("ended"), stdout, stderr }
}

/// Runs a program that must succeed, and returns both outputs.
///
/// # Panics
/// If it fails, with its output.
#[must_use]
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let text = text_of(&output);
    assert!(output.status.success(), "{command:?}: {}:\n{text}", output.status);
    text
}

/// Copies a program or library into `folder`, where every user may run it. Another process writes the file: a child
/// that a thread of this one forks at that moment would have it open for writing, and Linux runs no such file
/// (`ETXTBSY`).
///
/// # Panics
/// If it cannot be copied.
#[must_use]
pub fn copy_for_all(file: &Path, folder: &Path) -> PathBuf {
    let _ = succeed(Command::new("install").args(["-m", "755", "-t"]).args([folder, file]));
    folder.join(file.file_name().expect("a file"))
}

/// Both outputs of a program, as text.
#[must_use]
pub fn text_of(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// A short-lived child. If the test gives up, it is ended with its group.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        if let (Ok(None), Some(pid)) =
            (self.0.try_wait(), i32::try_from(self.0.id()).ok().and_then(Pid::from_raw))
        {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        drop(self.0.wait());
    }
}

/// The command as arguments of another program (`words`, with its own arguments), with its environment and folder.
/// Without words the command itself.
#[must_use]
pub fn under(words: &[String], inner: &Command) -> Command {
    let mut command = match words.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(inner.get_program());
            command
        }
        None => Command::new(inner.get_program()),
    };
    command.args(inner.get_args());
    if let Some(folder) = inner.get_current_dir() {
        command.current_dir(folder);
    }
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Finds a program in `PATH` and where Debian puts servers.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("{name} is not installed: run `make setup`"))
}

/// Whether the address accepts connections.
#[must_use]
pub fn listens(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok()
}

/// The processes whose parent is `id`.
#[must_use]
pub fn children(id: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Whether a process exists and is not a zombie.
#[must_use]
pub fn is_alive(id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    status.contains("State:") && !status.contains("State:\tZ")
}

/// Anonymous memory of a process (`RssAnon`), in KiB; 0 if it has ended.
#[must_use]
pub fn memory_kib(id: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The number of memory regions of a process with these permissions and this size.
///
/// # Panics
/// If it has ended.
#[must_use]
pub fn regions(id: u32, permissions: &str, size: u64) -> usize {
    let maps = fs::read_to_string(format!("/proc/{id}/maps")).expect("memory of a process");
    let has = |line: &&str| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(rest.starts_with(permissions) && number(to)? - number(from)? == size)
    };
    maps.lines().filter(|line| has(line) == Some(true)).count()
}

/// Number of open file descriptors of a process.
#[must_use]
pub fn open_files(id: u32) -> usize {
    fs::read_dir(format!("/proc/{id}/fd")).map_or(0, Iterator::count)
}
