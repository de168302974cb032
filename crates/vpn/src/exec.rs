// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Performs actions of a plan, finds and ends tunnel processes, and locks.
//!
//! `apply`, `down` and the supervisor call it, each under a [`Lock`]. It decides nothing: which actions to perform, and
//! in which order, is the plan's and the supervisor's.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_hostfs::child::{self, ChildLimits, find_program};
use millrace_hostfs::ordinary::{self, Links};
use millrace_hostfs::process::Proc;
use millrace_hostfs::trusted;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::Deserialize;
use thiserror::Error;

use crate::plan::{Bond, LinkAction, LinkMember, LinkStep, MemberEngine, device_settings};

/// Limits of `ip`, which takes milliseconds, and of OpenVPN up to the moment that it goes into the background:
/// it reads keys first, which a token may delay.
const LIMITS: ChildLimits = ChildLimits { time: Duration::from_secs(15), output_bytes: 1 << 20 };

/// Time within which a process in the background writes its pid file, and within which it ends.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of checks for a file or an end: one system call each, and a start is 10 ms late at most.
const POLL: Duration = Duration::from_millis(10);

/// Time that a run waits for another one on the same link: a supervisor that goes back takes a second, or a few on a
/// busy host.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// End of a log that is read for its last words, in bytes: OpenVPN's last lines have 100 each.
const LOG_END: u32 = 16 << 10;

/// Bound on a file with the number of a process, in bytes: a number and a line end.
const MAX_PID_FILE: usize = 32;

/// An action failed.
#[derive(Debug, Error)]
pub enum ExecError {
    /// The program is missing.
    #[error("{0} is not installed")]
    Missing(String),
    /// The program did not start, failed, or did not end in time.
    #[error("`{command}` failed: {reason}")]
    Failed {
        /// The words of the command, with spaces between them.
        command: String,
        /// The last line that it printed.
        reason: String,
    },
    /// A file or a setting of the kernel cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file, or the setting below /proc/sys.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> ExecError {
    let path = path.to_owned();
    move |source| ExecError::Io { path, source }
}

/// Checks that no other user can replace a folder of a link, from which this process would then run commands.
pub(crate) fn check_folder(folder: &Path) -> Result<(), ExecError> {
    let kind = io::ErrorKind::PermissionDenied;
    trusted::check_own_folder(folder)
        .map_err(|error| io::Error::new(kind, error))
        .map_err(at(folder))
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Performs a step, unless the system has its result already. Returns whether there was something to do.
pub(crate) fn step(step: &LinkStep) -> Result<bool, ExecError> {
    if step.unless_exists.as_ref().is_some_and(|path| path.exists()) {
        return Ok(false);
    }
    action(&step.action).map(|()| true)
}

pub(crate) fn action(action: &LinkAction) -> Result<(), ExecError> {
    match action {
        LinkAction::Run(words) => run(words).map(|_| ()),
        LinkAction::Write { path, value } => {
            let current = fs::read_to_string(path).unwrap_or_default();
            if current.trim() == value {
                return Ok(());
            }
            fs::write(path, value).map_err(at(path))
        }
    }
}

/// Performs commands of `ip` by one process, each also after one that failed. The supervisor looks at no member while
/// it waits for a process, and on a busy host each takes a tenth of a second.
pub(crate) fn ip_batch(commands: &[LinkAction]) -> Result<(), ExecError> {
    let lines: String = commands
        .iter()
        .map(|command| command.command_line().replacen("ip ", "", 1) + "\n")
        .collect();
    if lines.is_empty() {
        return Ok(());
    }
    run_with(&["ip", "-force", "-batch", "-"].map(str::to_owned), lines.as_bytes()).map(drop)
}

/// Runs a program to its end; returns its output.
pub(crate) fn run(words: &[String]) -> Result<String, ExecError> {
    run_with(words, &[])
}

fn run_with(words: &[String], input: &[u8]) -> Result<String, ExecError> {
    let failed = |reason: String| ExecError::Failed { command: words.join(" "), reason };
    let [program, arguments @ ..] = words else {
        return Err(failed("no program".to_owned()));
    };
    let program = find_program(program).ok_or_else(|| ExecError::Missing(program.clone()))?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output =
        child::run(&mut command, input, LIMITS).map_err(|error| failed(error.to_string()))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said = stderr.lines().chain(stdout.lines()).rfind(|line| !line.trim().is_empty());
    Err(failed(said.map_or_else(|| output.status.to_string(), |line| line.trim().to_owned())))
}

/// The devices in a bond.
pub(crate) fn devices_in(bond: &Bond) -> Result<Vec<String>, ExecError> {
    #[derive(Deserialize)]
    struct Device {
        ifname: String,
    }
    let words = bond.list();
    let devices: Vec<Device> = serde_json::from_str(&run(&words)?).map_err(|error| {
        ExecError::Failed { command: words.join(" "), reason: error.to_string() }
    })?;
    Ok(devices.into_iter().map(|device| device.ifname).collect())
}

/// A process that is known by a descriptor, so that its number cannot come to mean another.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) pid: u32,
    pub(crate) descriptor: OwnedFd,
}

impl Tunnel {
    /// The running process of a member, if there is one.
    pub(crate) fn find(member: &LinkMember) -> Option<Self> {
        let pid: u32 = read_pid(ordinary::open(&member.pid_file, Links::Refuse).ok()?)?;
        let descriptor =
            pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        let proc = Proc::open(Path::new("/proc")).ok()?;
        let is_it = match member.engine {
            MemberEngine::OpenVpn => {
                let config = member.running_config.display().to_string();
                proc.process(pid)?.arguments.contains(&config)
            }
            // The daemon takes no arguments; its variable has a path of this end's own.
            MemberEngine::Charon => {
                let folder = member.config.parent()?;
                let found = proc.variable(pid, "STRONGSWAN_CONF").ok()??;
                Path::new(&found).parent() == Some(folder)
            }
        };
        is_it.then_some(Self { pid, descriptor })
    }

    /// Starts the process of a member with its newest configuration.
    pub(crate) fn start(member: &LinkMember) -> Result<Self, ExecError> {
        for stale in [&member.pid_file, &member.socket, &member.started_config()] {
            let _ = fs::remove_file(stale);
        }
        fs::copy(&member.config, &member.running_config).map_err(at(&member.config))?;
        let device = device_settings(&member.device);
        if let Some(removal) = member.device_removal().filter(|_| device.exists()) {
            action(&removal)?;
        }
        let log = || last_words(&member.log);
        run(&member.command).map_err(|error| match error {
            // Once it has read its configuration, OpenVPN writes its last words to the log.
            ExecError::Failed { command, reason } => {
                ExecError::Failed { command, reason: log().unwrap_or(reason) }
            }
            other => other,
        })?;
        let until = Instant::now() + PROCESS_TIMEOUT;
        let tunnel = loop {
            // The process writes its number before it makes its device.
            let found = Self::find(member).filter(|_| !member.makes_device() || device.exists());
            if let Some(tunnel) = found {
                break tunnel;
            }
            if Instant::now() > until {
                if let Some(tunnel) = Self::find(member) {
                    tunnel.end();
                }
                return Err(ExecError::Failed {
                    command: member.command.join(" "),
                    reason: log().unwrap_or_else(|| "it ended at once".to_owned()),
                });
            }
            thread::sleep(POLL);
        };
        let set = member.device_actions.iter().try_for_each(action);
        // Last: a start that was cut short has no such copy.
        let set = set.and_then(|()| {
            let copied = fs::copy(&member.running_config, member.started_config());
            copied.map(drop).map_err(at(&member.running_config))
        });
        set.inspect_err(|_| tunnel.end()).map(|()| tunnel)
    }

    /// Makes a running process read its newest configuration without a restart; whether it can and did.
    pub(crate) fn reload(member: &LinkMember) -> bool {
        let Some(words) = &member.reload else {
            return false;
        };
        fs::copy(&member.config, &member.running_config).is_ok() && run(words).is_ok()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // An error means that it has ended.
        let _ = pidfd_send_signal(&self.descriptor, signal);
    }

    /// Ends the process: asks first, then kills it.
    pub(crate) fn end(&self) {
        for signal in [Signal::TERM, Signal::KILL] {
            self.signal(signal);
            if self.has_ended_within(PROCESS_TIMEOUT) {
                return;
            }
        }
    }

    fn has_ended_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if pidfd_send_signal(&self.descriptor, Signal::CONT).is_err() {
                return true;
            }
            thread::sleep(POLL);
        }
        false
    }
}

/// CPU time of a process, milliseconds: its main thread's, which is all that OpenVPN has.
pub(crate) fn cpu_ms(pid: u32) -> Option<u64> {
    // Nanoseconds on a processor, nanoseconds waiting for one, time slices.
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let nanoseconds: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1_000_000)
}

/// The number of a process in a file.
fn read_pid<T: FromStr>(file: File) -> Option<T> {
    let mut text = Vec::new();
    ordinary::read_rest(file, MAX_PID_FILE, &mut text).ok()?;
    String::from_utf8(text).ok()?.trim().parse().ok()
}

/// The last line of an OpenVPN log that says why it ended.
fn last_words(log: &Path) -> Option<String> {
    let text = ordinary::read_end(log, Links::Refuse, LOG_END).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().rev().filter(|line| !line.trim().is_empty());
    lines.find(|line| !line.contains("Exiting due to fatal error")).map(str::to_owned)
}

/// The lock of a link's supervisor.
pub(crate) fn supervisor_lock(run: &Path) -> PathBuf {
    run.join("supervisor.lock")
}

/// Sends a signal to the supervisor of a link; whether there is one.
pub(crate) fn signal_supervisor(run: &Path, signal: Signal) -> bool {
    let holder = Lock::holder(&supervisor_lock(run));
    // The supervisor itself calls this when it restores a former configuration.
    holder.is_some_and(|pid| pid == rustix::process::getpid() || kill_process(pid, signal).is_ok())
}

/// A lock that ends with its process. The file holds the process id.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "the open file is the lock")] File);

impl Lock {
    /// Takes a lock; `None` if another process has it.
    pub(crate) fn take(path: &Path) -> Result<Option<Self>, ExecError> {
        check_folder(path.parent().unwrap_or(path))?;
        let mut file = ordinary::open_to_write(path, 0o644).map_err(at(path))?;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
                return Ok(None);
            }
            // Only programs that look for a holder are there: each goes at once.
            flock(&file, FlockOperation::Unlock).map_err(|error| at(path)(error.into()))?;
            thread::yield_now();
        }
        file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(at(path))?;
        Ok(Some(Self(file)))
    }

    /// Takes a lock within [`LOCK_PATIENCE`]; `None` if another process keeps it.
    pub(crate) fn wait(path: &Path) -> Result<Option<Self>, ExecError> {
        let until = Instant::now() + LOCK_PATIENCE;
        loop {
            let taken = Self::take(path)?;
            if taken.is_some() || Instant::now() >= until {
                return Ok(taken);
            }
            thread::sleep(POLL);
        }
    }

    /// The process that has a lock; `None` if no process has it.
    pub(crate) fn holder(path: &Path) -> Option<Pid> {
        let file = ordinary::open(path, Links::Refuse).ok()?;
        // Shared: another program that looks is no holder, and [`Lock::take`] waits for it.
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            return None;
        }
        Pid::from_raw(read_pid(file)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn failing_program_is_an_error_with_its_last_words() {
        let error = run(&words("ls /nonexistent/millrace")).expect_err("an error");
        let text = error.to_string();
        assert!(
            text.contains("`ls /nonexistent/millrace` failed") && text.contains("No such file"),
            "{text}"
        );
        let missing = run(&words("no-such-program-of-millrace"));
        assert!(matches!(missing, Err(ExecError::Missing(_))), "{missing:?}");
    }

    #[test]
    fn batch_goes_on_after_a_command_that_fails_and_is_an_error_then() {
        if find_program("ip").is_none() {
            millrace_testkit::skip!("no ip: install package iproute2");
        }
        let show = |device: &str| LinkAction::Run(words(&format!("ip link show dev {device}")));
        ip_batch(&[]).expect("nothing to do");
        ip_batch(&[show("lo"), show("lo")]).expect("the device is there");
        let error = ip_batch(&[show("millrace-none"), show("lo")]).expect_err("an error");
        assert!(matches!(error, ExecError::Failed { .. }), "{error}");
    }

    #[test]
    fn pipe_in_the_place_of_a_file_of_the_run_folder_is_no_file_and_nothing_waits_for_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).expect("a pipe");
        assert_eq!(last_words(&path), None);
        assert_eq!(Lock::holder(&path), None);
        assert!(Lock::take(&path).is_err());
    }

    #[test]
    fn last_words_are_at_the_end_of_a_long_log() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("log");
        let text = format!("{}no route\nExiting due to fatal error\n", "line\n".repeat(10_000));
        fs::write(&path, text).expect("a log");
        assert_eq!(last_words(&path).as_deref(), Some("no route"));
    }

    #[test]
    fn lock_is_exclusive_and_names_its_holder() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("lock");
        assert_eq!(Lock::holder(&path), None);
        let lock = Lock::take(&path).expect("a lock").expect("free");
        assert!(Lock::take(&path).expect("no error").is_none());
        assert_eq!(Lock::holder(&path), Some(rustix::process::getpid()));
        drop(lock);
        // A child that another test has just forked holds the descriptor until it starts its program.
        millrace_testkit::wait::eventually(|| Lock::holder(&path).is_none());
    }

    #[test]
    fn programs_that_look_for_the_holder_of_a_lock_see_no_other_and_keep_none_from_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let look = |path: &Path| {
            for _ in 0..200 {
                assert_eq!(Lock::holder(path), None);
            }
        };
        for round in 0..20 {
            let path = dir.path().join(format!("lock-{round}"));
            // A process that died has left its number.
            fs::write(&path, "1").expect("a lock");
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| look(&path));
                }
            });
            let done = AtomicBool::new(false);
            let look = || {
                while !done.load(Ordering::Relaxed) {
                    let _ = Lock::holder(&path);
                }
            };
            let lock = thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(look);
                }
                let lock = Lock::take(&path);
                done.store(true, Ordering::Relaxed);
                lock
            });
            assert!(lock.expect("a lock").is_some(), "round {round}");
        }
    }

    #[test]
    fn step_with_its_result_in_place_is_left_out() {
        let dir = tempfile::tempdir().expect("a folder");
        let done = LinkStep {
            why: "a test".to_owned(),
            action: LinkAction::Run(words("false")),
            unless_exists: Some(dir.path().to_owned()),
            undo: None,
        };
        assert!(!step(&done).expect("left out"));
        let undone = LinkStep { unless_exists: Some(dir.path().join("x")), ..done };
        assert!(step(&undone).is_err());
    }
}
