// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Child processes that end with us, whatever happens.
//!
//! Each child writes into a log in the run's directory, is pinned before it has threads, and is
//! stopped by its id when its [`Process`] is dropped. Where `setpriv` exists (util-linux, essential on
//! Debian) the kernel also ends it if we are killed.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use tempfile::TempDir;

use crate::cores;
use crate::error::BenchError;

/// How long a server may take to listen: a debug build of a node on a busy machine took 2 s.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a server may take to end after SIGTERM, before SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Between two looks at whether a server listens or has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How much of a child's log goes into an error message, in bytes.
const LOG_TAIL_LEN: u64 = 2000;

/// Set when the user asks us to stop; every loop looks at it.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on. A second one ends the process at once.
    pub(crate) fn on_signals() -> Result<Self, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_default(signal, Arc::clone(&stop))
                .and_then(|_| flag::register(signal, Arc::clone(&stop)))
                .map_err(BenchError::system("catch signals"))?;
        }
        Ok(Self(stop))
    }

    /// # Errors
    /// [`BenchError::Interrupted`] once asked to stop.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.0.load(Ordering::Relaxed) {
            Err(BenchError::Interrupted)
        } else {
            Ok(())
        }
    }
}

/// A running child.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` on one core, its output going to `log`.
    pub(crate) fn start(
        name: &str,
        core: usize,
        command: &Command,
        log: &Path,
    ) -> Result<Self, BenchError> {
        let output = File::create(log).map_err(BenchError::file("create", log))?;
        let errors = output.try_clone().map_err(BenchError::file("open", log))?;
        let mut command = ends_with_us(command);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child =
            cores::pinned(core, || command.spawn())?.map_err(|source| BenchError::Missing {
                program: name.to_owned(),
                remedy: format!("{source}"),
            })?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error about this child, with the end of its log.
    pub(crate) fn problem(&self, problem: impl Into<String>) -> BenchError {
        BenchError::Child {
            name: self.name.clone(),
            problem: problem.into(),
            log: tail(&self.log).unwrap_or_default(),
        }
    }

    /// Waits until `ready` says so.
    ///
    /// # Errors
    /// If the child ends before, or takes too long.
    pub(crate) fn wait_until(&mut self, ready: impl Fn() -> bool) -> Result<(), BenchError> {
        let start = Instant::now();
        while !ready() {
            if let Some(status) = self.ended()? {
                return Err(self.problem(format!("ended at once ({status})")));
            }
            if start.elapsed() > START_TIMEOUT {
                return Err(self.problem("does not listen"));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// # Errors
    /// If the child has ended.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        match self.ended()? {
            Some(status) => Err(self.problem(format!("ended unexpectedly ({status})"))),
            None => Ok(()),
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, BenchError> {
        self.child
            .try_wait()
            .map_err(BenchError::system("wait for a child"))
    }

    fn stop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), pid) {
            let asked = Instant::now();
            if kill_process(pid, Signal::TERM).is_ok() {
                while asked.elapsed() < STOP_TIMEOUT {
                    if !matches!(self.child.try_wait(), Ok(None)) {
                        return;
                    }
                    thread::sleep(POLL_INTERVAL);
                }
            }
            // It ignored SIGTERM, or is ours no more: then both of these do nothing.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The same command, under `setpriv --pdeathsig` where there is one.
fn ends_with_us(command: &Command) -> Command {
    let mut wrapped = match which("setpriv") {
        Some(setpriv) => {
            let mut wrapped = Command::new(setpriv);
            wrapped
                .args(["--pdeathsig", "TERM", "--"])
                .arg(command.get_program());
            wrapped
        }
        None => Command::new(command.get_program()),
    };
    wrapped.args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    wrapped
}

/// A folder of this run, removed with its value.
pub(crate) fn temporary_folder() -> Result<TempDir, BenchError> {
    tempfile::Builder::new()
        .prefix("millrace-bench-")
        .tempdir()
        .map_err(BenchError::system("create a temporary folder"))
}

/// Finds a program in `PATH` and where Debian puts servers.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// As [`which`], as an error that says what to do.
pub(crate) fn need(program: &str) -> Result<PathBuf, BenchError> {
    which(program).ok_or_else(|| BenchError::Missing {
        program: program.to_owned(),
        remedy: format!("run `make setup`, or `apt-get install {program}`"),
    })
}

/// Loopback ports that were free a moment ago, all different.
pub(crate) fn free_ports(count: usize) -> Result<Vec<u16>, BenchError> {
    let listeners: Result<Vec<_>, _> = (0..count)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .collect();
    listeners
        .and_then(|all| all.iter().map(|one| Ok(one.local_addr()?.port())).collect())
        .map_err(BenchError::system("find free ports"))
}

/// Whether a server listens there.
pub(crate) fn listens(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
}

/// What a short-lived program prints, if it succeeds.
pub(crate) fn output_of(program: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = if output.stdout.is_empty() {
        output.stderr
    } else {
        output.stdout
    };
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&text).trim().to_owned())
}

fn tail(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let len = fs::metadata(path).ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL_LEN)))
        .ok()?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_ends_is_told_with_its_output() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo no such luck; exit 3"]);
        let core = cores::usable().expect("cores")[0];
        let mut child =
            Process::start("sh", core, &command, &dir.path().join("log")).expect("start");
        let error = child.wait_until(|| false).expect_err("it ends");
        let text = error.to_string();
        assert!(
            text.contains("ended at once") && text.contains("no such luck"),
            "{text}"
        );
    }

    #[test]
    fn dropping_stops_the_child() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut command = Command::new("sleep");
        command.arg("600");
        let core = cores::usable().expect("cores")[0];
        let child =
            Process::start("sleep", core, &command, &dir.path().join("log")).expect("start");
        let id = child.id();
        drop(child);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }
}
