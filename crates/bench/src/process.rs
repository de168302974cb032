// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Child processes that end with this one, whatever happens.
//!
//! A server writes into a log in the run's folder, is pinned before it has threads, and is stopped by its id when
//! its [`ChildProcess`] is dropped. Where `setpriv` exists (util-linux, essential on Debian) the kernel also ends it if
//! this process is killed.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millrace_hostfs::child::{OwnedChild, find_program};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cores;
use crate::error::BenchError;

/// Time limit for a server to listen: a debug build of a node on a busy machine took 2 s.
const START_TIMEOUT: Duration = Duration::from_secs(15);

/// Time limit for a server to end after SIGTERM, before SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval of checks whether a server listens or has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes of a child's log, from its end, that an error message contains.
const LOG_TAIL_LEN: usize = 2000;

/// A running server.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    name: String,
    child: OwnedChild,
    log: PathBuf,
}

impl ChildProcess {
    /// Starts a [`command`] on one core, its output going to `log`.
    pub(crate) fn start(
        name: &str,
        core: usize,
        command: Command,
        log: &Path,
    ) -> Result<Self, BenchError> {
        Self::start_on(name, &[core], command, log)
    }

    /// Starts a [`command`] on some cores, its output going to `log`.
    pub(crate) fn start_on(
        name: &str,
        cores: &[usize],
        mut command: Command,
        log: &Path,
    ) -> Result<Self, BenchError> {
        let output = File::create(log).map_err(BenchError::file("create", log))?;
        let errors = output.try_clone().map_err(BenchError::file("open", log))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = cores::pinned_to(cores, || OwnedChild::spawn(&mut command))?;
        Ok(Self {
            name: name.to_owned(),
            child: child.map_err(|error| BenchError::missing(name, error))?,
            log: log.to_owned(),
        })
    }

    /// Process id of the child.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// CPU time of the process and its children so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        cores::tree_cpu_time(self.id())
    }

    /// An error about this child, with the end of its log.
    pub(crate) fn problem(&self, problem: impl Into<String>) -> BenchError {
        let log = fs::read(&self.log).unwrap_or_default();
        let tail = &log[log.len().saturating_sub(LOG_TAIL_LEN)..];
        BenchError::Child {
            name: self.name.clone(),
            problem: problem.into(),
            log: String::from_utf8_lossy(tail).into_owned(),
        }
    }

    /// Waits until `ready` holds.
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

    /// Fails if the child has ended.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        match self.ended()? {
            Some(status) => Err(self.problem(format!("ended unexpectedly ({status})"))),
            None => Ok(()),
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, BenchError> {
        self.child.try_wait().map_err(BenchError::system("wait for a child"))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let pid = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), pid)
            && kill_process(pid, Signal::TERM).is_ok()
        {
            let asked = Instant::now();
            while asked.elapsed() < STOP_TIMEOUT && matches!(self.child.try_wait(), Ok(None)) {
                thread::sleep(POLL_INTERVAL);
            }
        }
        // A child that ignored SIGTERM is killed by its owner.
    }
}

/// A command of a server, under `setpriv --pdeathsig` where there is one. OpenSSL is the system's as it is,
/// whatever the caller's environment configures.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = match find_program("setpriv") {
        Some(setpriv) => Command::new(setpriv),
        None => Command::new(program),
    };
    if command.get_program() != program {
        command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    }
    command.env_remove("OPENSSL_CONF").env_remove("OPENSSL_MODULES");
    command
}

/// Runs a program to its end. Returns what it printed: its standard output, or its standard error if that is
/// empty.
///
/// # Errors
/// [`BenchError::Child`] with its standard error, if it fails.
pub(crate) fn output_of(name: &str, command: &mut Command) -> Result<String, BenchError> {
    command.env_remove("OPENSSL_CONF").stdin(Stdio::null());
    let output = command.output().map_err(|error| BenchError::missing(name, error))?;
    let [printed, errors] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    if !output.status.success() {
        return Err(BenchError::Child {
            name: name.to_owned(),
            problem: format!("failed ({})", output.status),
            log: errors,
        });
    }
    Ok(if printed.is_empty() { errors } else { printed })
}

/// A folder of this run, removed with its value.
pub(crate) fn temporary_folder() -> Result<TempDir, BenchError> {
    tempfile::Builder::new()
        .prefix("millrace-bench-")
        .tempdir()
        .map_err(BenchError::system("create a temporary folder"))
}

/// Finds a program; an error names the package.
pub(crate) fn need(program: &str, package: &str) -> Result<PathBuf, BenchError> {
    let remedy = format!("run `make setup`, or `apt-get install {package}`");
    require_program(program, &remedy)
}

/// Finds a program.
pub(crate) fn require_program(program: &str, remedy: &str) -> Result<PathBuf, BenchError> {
    find_program(program).ok_or_else(|| BenchError::missing(program, remedy))
}

/// Loopback addresses whose ports were free a moment ago, all different.
pub(crate) fn free_addresses<const N: usize>() -> Result<[SocketAddr; N], BenchError> {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners = [(); N].map(|()| listen());
    let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    for (address, listener) in addresses.iter_mut().zip(listeners) {
        let found = listener.and_then(|listener| listener.local_addr());
        *address = found.map_err(BenchError::system("find free ports"))?;
    }
    Ok(addresses)
}

/// Whether a server listens there.
pub(crate) fn listens(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_about_a_child_that_ends_has_its_output() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut command = command(Path::new("/bin/sh"));
        command.args(["-c", "echo no such luck; exit 3"]);
        let core = cores::usable().expect("cores")[0];
        let mut child =
            ChildProcess::start("sh", core, command, &dir.path().join("log")).expect("start");
        let error = child.wait_until(|| false).expect_err("it ends");
        let text = error.to_string();
        assert!(text.contains("ended at once") && text.contains("no such luck"), "{text}");
    }

    #[test]
    fn dropping_stops_the_child() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut command = command(Path::new("sleep"));
        command.arg("600");
        let core = cores::usable().expect("cores")[0];
        let child =
            ChildProcess::start("sleep", core, command, &dir.path().join("log")).expect("start");
        let id = child.id();
        drop(child);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }
}
