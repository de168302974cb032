// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Child processes with limits: one that runs to its end, and one that is killed with its owner.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

/// Interval at which a child whose output has ended is checked for its exit.
const EXIT_POLL: Duration = Duration::from_millis(5);
/// Bytes written to a ready pipe at once: it accepts this many without blocking (`PIPE_BUF`).
const PIPE_BUF: usize = 4096;

/// Limits of a child process.
#[derive(Clone, Copy, Debug)]
pub struct ChildLimits {
    /// Time limit from the start of the process to its end.
    pub time: Duration,
    /// Bound on its standard output and on its standard error, each.
    pub output_bytes: usize,
}

/// The end of a child process, and its output on the streams that the command pipes.
#[derive(Clone, Debug)]
pub struct ChildOutput {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

/// Error of [`run`].
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The program is missing, or this user may not run it.
    #[error("cannot be started: {0}")]
    Start(io::Error),
    /// The child exceeded [`ChildLimits::time`].
    #[error("did not end within {0:?}")]
    TimedOut(Duration),
    /// The child exceeded [`ChildLimits::output_bytes`].
    #[error("printed more than {0} bytes")]
    TooMuchOutput(usize),
    /// Waiting for its pipes or its end failed.
    #[error("cannot be waited for: {0}")]
    Wait(#[from] io::Error),
}

/// A child process that is killed on drop, if it still runs then.
pub struct OwnedChild {
    child: Child,
    /// Whether the child leads a separate process group, which is killed with it.
    group: bool,
}

impl OwnedChild {
    /// Starts a program.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command.spawn()?;
        Ok(Self { child, group: false })
    }
}

impl Deref for OwnedChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for OwnedChild {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // The group may outlive its leader. The kernel does not reuse the number of a group with members.
        if self.group {
            let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            // An error means that all processes of the group have ended.
            let _ = group.map(|group| rustix::process::kill_process_group(group, Signal::KILL));
        }
        if let Ok(None) = self.child.try_wait() {
            // An error means that the child has ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl fmt::Debug for OwnedChild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.child.fmt(f)
    }
}

/// Runs a program to its end and collects its output on the streams that `command` pipes. The program reads
/// `input`, then end of file; it need not read all of it.
///
/// The program runs in a separate process group. On any error `run` kills the whole group, so that no process
/// that it started remains.
///
/// # Errors
/// The program did not start, or did not end within `limits`.
pub fn run(
    command: &mut Command,
    input: &[u8],
    limits: ChildLimits,
) -> Result<ChildOutput, ChildError> {
    let deadline = Instant::now() + limits.time;
    command.process_group(0).stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
    let mut child = OwnedChild::spawn(command).map_err(ChildError::Start)?;
    child.group = true;
    let [stdout, stderr] = collect_output(&mut child, input, limits, deadline)?;
    loop {
        if let Some(status) = child.try_wait()? {
            child.group = false;
            return Ok(ChildOutput { status, stdout, stderr });
        }
        if Instant::now() >= deadline {
            return Err(ChildError::TimedOut(limits.time));
        }
        thread::sleep(EXIT_POLL);
    }
}

/// Finds a program in `PATH`, then in the folders of system programs, which the `PATH` of a user may lack.
#[must_use]
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// Writes `input` to the child and reads its piped outputs until the child has closed them.
fn collect_output(
    child: &mut Child,
    mut input: &[u8],
    limits: ChildLimits,
    deadline: Instant,
) -> Result<[Vec<u8>; 2], ChildError> {
    let pipes = [
        child.stdin.take().map(OwnedFd::from),
        child.stdout.take().map(OwnedFd::from),
        child.stderr.take().map(OwnedFd::from),
    ];
    let mut pipes = pipes.map(|pipe| pipe.map(File::from));
    let mut outputs = [Vec::new(), Vec::new()];
    let mut buffer = vec![0; 64 << 10];
    while pipes.iter().any(Option::is_some) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChildError::TimedOut(limits.time));
        }
        for index in wait_ready(&pipes, left)? {
            let Some(pipe) = &mut pipes[index] else {
                continue;
            };
            let is_open = if index == 0 {
                // An error means that the child has closed its input.
                let written =
                    pipe.write(&input[..input.len().min(PIPE_BUF)]).unwrap_or(input.len());
                input = &input[written..];
                !input.is_empty()
            } else {
                let read = pipe.read(&mut buffer)?;
                let output = &mut outputs[index - 1];
                output.extend_from_slice(&buffer[..read]);
                if output.len() > limits.output_bytes {
                    return Err(ChildError::TooMuchOutput(limits.output_bytes));
                }
                read > 0
            };
            if !is_open {
                pipes[index] = None;
            }
        }
    }
    Ok(outputs)
}

/// Waits until pipes are ready and returns their indices; empty if `left` has elapsed.
fn wait_ready(pipes: &[Option<File>; 3], left: Duration) -> io::Result<Vec<usize>> {
    let events = [PollFlags::OUT, PollFlags::IN, PollFlags::IN];
    let (indices, mut polled): (Vec<usize>, Vec<PollFd<'_>>) = pipes
        .iter()
        .zip(events)
        .enumerate()
        .filter_map(|(index, (pipe, events))| Some((index, PollFd::new(pipe.as_ref()?, events))))
        .unzip();
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    match rustix::event::poll(&mut polled, Some(&left)) {
        Err(Errno::INTR) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
        Ok(_) => {
            let ready = indices.into_iter().zip(&polled);
            Ok(ready
                .filter(|(_, pipe)| !pipe.revents().is_empty())
                .map(|(index, _)| index)
                .collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, input: &[u8], time: Duration) -> Result<ChildOutput, ChildError> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output_bytes = 1 << 20;
        run(&mut command, input, ChildLimits { time, output_bytes })
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(200);

    #[test]
    fn both_outputs_and_the_status_are_collected() {
        let output = shell("echo out; echo err >&2; exit 3", b"", LONG).unwrap();
        assert_eq!(
            (output.stdout.as_slice(), output.stderr.as_slice()),
            (&b"out\n"[..], &b"err\n"[..])
        );
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn input_larger_than_a_pipe_is_echoed_without_deadlock() {
        let input = vec![b'x'; 512 << 10];
        let output = shell("exec cat", &input, LONG).unwrap();
        assert_eq!(output.stdout, input);
        assert!(shell("exec true", &input, LONG).unwrap().status.success());
    }

    #[test]
    fn child_that_exceeds_its_time_is_killed_with_its_children() {
        // The first holds its output open, the second closes it, and a child of the third holds it.
        for script in ["exec sleep 1000", "exec >&- 2>&-; exec sleep 1000", "sleep 1000 & exit 0"] {
            let begun = Instant::now();
            let result = shell(script, b"", SHORT);
            assert!(matches!(result, Err(ChildError::TimedOut(_))), "{result:?}");
            assert!(begun.elapsed() < LONG / 2);
        }
    }

    #[test]
    fn child_that_prints_without_end_is_killed() {
        let result = shell("exec yes", b"", LONG);
        assert!(matches!(result, Err(ChildError::TooMuchOutput(_))), "{result:?}");
    }

    #[test]
    fn missing_program_cannot_be_started() {
        let limits = ChildLimits { time: LONG, output_bytes: 0 };
        let result = run(&mut Command::new("/nonexistent"), b"", limits);
        assert!(matches!(result, Err(ChildError::Start(_))), "{result:?}");
    }

    #[test]
    fn dropped_child_is_killed() {
        let child = OwnedChild::spawn(Command::new("sleep").arg("1000")).unwrap();
        let pid = Pid::from_child(&child);
        drop(child);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
