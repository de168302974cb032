// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A client that only loads a node: some connections, each with a number of jobs in flight; as soon as one
//! ends, the client submits the next. It runs as a process (`millrace-tests-load`) under a separate user, so
//! that a node sees several identities.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millrace_operation::{Hash, JobError, Operation};
use millrace_wire::{
    ClientMessage, Decoder, FEATURE_RETRY_AFTER, Hello, KeySelector, Message, NodeMessage,
    SubmittedJob, VERSION_MAX, VERSION_MIN,
};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

/// Deadline of each job: longer than any test.
const BUDGET: Duration = Duration::from_secs(60);

/// Longest wait of the load for a connection, and at its end for the answers to its last jobs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Jobs in one message, so that a frame stays below its bound.
const JOBS_PER_MESSAGE: u64 = 100;

/// Parameters of a load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// User as which the load runs.
    pub user: u32,
    /// Connections, each with `in_flight` jobs.
    pub connections: usize,
    /// Jobs in flight on each connection.
    pub in_flight: u64,
    /// Duration, in milliseconds.
    pub millis: u64,
    /// Answer of the load to refusals.
    pub manners: Manners,
}

/// Answer of a load to a node that refuses jobs and says for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manners {
    /// Sends the next job at once.
    #[default]
    Ignores,
    /// Rests that long.
    Rests,
}

impl Manners {
    fn name(self) -> &'static str {
        match self {
            Self::Ignores => "ignores",
            Self::Rests => "rests",
        }
    }
}

/// Result of a load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Signatures received.
    pub served: u64,
    /// Jobs that the node refused as `busy`.
    pub busy: u64,
    /// Jobs that the node refused as `over-quota`.
    pub over_quota: u64,
    /// Jobs that ended in another way.
    pub failed: u64,
    /// Jobs without an answer a minute after the end.
    pub lost: u64,
    /// Time between submission and answer in microseconds, ascending; only with one job in flight.
    pub latencies_us: Vec<u64>,
}

impl Outcome {
    /// The latency in microseconds below which `percent` per cent of the jobs stayed.
    ///
    /// # Panics
    /// If there are no measurements.
    #[must_use]
    pub fn latency(&self, percent: usize) -> u64 {
        let rank = self.latencies_us.len() * percent / 100;
        let last = self.latencies_us.len().checked_sub(1).expect("a job was served");
        self.latencies_us[rank.min(last)]
    }
}

/// A running load. Drop ends it.
#[derive(Debug)]
pub struct Running(Child);

impl Load {
    /// Starts `program`, a copy of `millrace-tests-load` that every user may run (see
    /// [`crate::process::copy_for_all`]).
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(self, program: &Path, socket: &Path, key: &str) -> Running {
        let Self { user, connections, in_flight, millis, manners } = self;
        let numbers = [connections as u64, in_flight, millis].map(|number| number.to_string());
        let mut command = Command::new(program);
        command.arg(socket).arg(key).args(numbers).arg(manners.name());
        command.uid(user).stdout(Stdio::piped());
        Running(command.spawn().expect("the load starts"))
    }
}

impl Running {
    /// Waits until its duration has passed.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn outcome(mut self) -> Outcome {
        let mut text = String::new();
        let mut output = self.0.stdout.take().expect("a pipe");
        output.read_to_string(&mut text).expect("the load's output");
        serde_json::from_str(&text).expect("the load ends well")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl<S> std::fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

/// The program: loads the node as its arguments say, and writes the outcome.
///
/// # Errors
/// If the node goes away, or the arguments are wrong.
pub fn run() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, key, connections, in_flight, millis, manners] = &arguments[..] else {
        let usage = "usage: load SOCKET KEY CONNECTIONS IN-FLIGHT MILLISECONDS ignores|rests";
        return Err(io::Error::other(usage));
    };
    let rests = manners == Manners::Rests.name();
    let number = |text: &str| text.parse::<u64>().map_err(io::Error::other);
    let (in_flight, end) = (number(in_flight)?, Duration::from_millis(number(millis)?));
    let open = |_| Connection::open(Path::new(socket), key, rests);
    let mut connections: Vec<Connection> =
        (0..number(connections)?).map(open).collect::<io::Result<_>>()?;
    let start = Instant::now();
    let mut outcome = Outcome::default();
    for connection in &mut connections {
        connection.submit(in_flight)?;
    }
    let waiting = |connections: &[Connection]| -> u64 {
        let waiting = connections.iter().map(|connection| connection.waiting.len() as u64);
        waiting.sum()
    };
    while start.elapsed() < end || (waiting(&connections) > 0 && start.elapsed() < end + PATIENCE) {
        let of = |connection| PollFd::new(connection, PollFlags::IN);
        let mut events: Vec<PollFd<'_>> =
            connections.iter().map(|connection| of(&connection.socket)).collect();
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        poll(&mut events, Some(&timeout))?;
        let ready: Vec<bool> = events.iter().map(|event| !event.revents().is_empty()).collect();
        for (connection, _) in connections.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            connection.due += connection.receive(in_flight == 1, &mut outcome)?;
        }
        if start.elapsed() < end {
            connections.iter_mut().try_for_each(Connection::submit_due)?;
        }
    }
    outcome.lost = waiting(&connections);
    outcome.latencies_us.sort_unstable();
    serde_json::to_writer(io::stdout(), &outcome).map_err(io::Error::other)
}

/// A client of a node.
pub struct Connection<S = UnixStream> {
    socket: S,
    decoder: Decoder<NodeMessage>,
    key: u32,
    next: u64,
    /// Jobs without an answer.
    waiting: HashSet<u64>,
    sent: Instant,
    /// Jobs to submit when the rest is over.
    due: u64,
    rests_until: Instant,
}

impl Connection {
    fn open(path: &Path, key: &str, rests: bool) -> io::Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Self::over(socket, key, rests)
    }
}

impl<S: Read + Write> Connection<S> {
    /// Greets the node over a stream whose reads end, and opens the key.
    ///
    /// # Errors
    /// If the node refuses either.
    pub fn over(socket: S, key: &str, rests: bool) -> io::Result<Self> {
        let now = Instant::now();
        let mut connection = Self {
            socket,
            decoder: Decoder::new(),
            key: 0,
            next: 0,
            waiting: HashSet::new(),
            sent: now,
            due: 0,
            rests_until: now,
        };
        let agent = "load".to_owned();
        let (min_version, max_version) = (VERSION_MIN, VERSION_MAX);
        connection.send(&ClientMessage::Hello(Hello {
            min_version,
            max_version,
            features: if rests { FEATURE_RETRY_AFTER } else { 0 },
            agent,
        }))?;
        let selector = KeySelector::Name(key.to_owned());
        connection.send(&ClientMessage::OpenKey { request: 1, selector })?;
        loop {
            match connection.message()? {
                Some(NodeMessage::KeyOpened { handle, .. }) => connection.key = handle,
                Some(NodeMessage::Welcome(_)) => continue,
                Some(other) => return Err(io::Error::other(format!("{other:?}"))),
                None => {
                    connection.read()?;
                    continue;
                }
            }
            return Ok(connection);
        }
    }

    fn send(&mut self, message: &ClientMessage) -> io::Result<()> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.socket.write_all(&bytes)
    }

    /// Keeps this number of jobs under way for a time, and then waits for the last answers. The time of the outcome is
    /// that to the last one.
    ///
    /// # Errors
    /// If the node closes the connection.
    pub fn flood(&mut self, in_flight: u64, time: Duration) -> io::Result<(Outcome, Duration)> {
        let (mut outcome, start) = (Outcome::default(), Instant::now());
        self.submit(in_flight)?;
        while !self.waiting.is_empty() {
            let ended = self.receive(false, &mut outcome)?;
            if start.elapsed() < time {
                self.submit(ended)?;
            }
        }
        Ok((outcome, start.elapsed()))
    }

    fn message(&mut self) -> io::Result<Option<NodeMessage>> {
        self.decoder.next().map_err(io::Error::other)
    }

    fn read(&mut self) -> io::Result<()> {
        match self.socket.read(self.decoder.space())? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.decoder.filled(count);
                Ok(())
            }
        }
    }

    fn submit(&mut self, mut jobs: u64) -> io::Result<()> {
        while jobs > 0 {
            let count = jobs.min(JOBS_PER_MESSAGE);
            let ids = self.next..self.next + count;
            let submitted = ids.map(|id| SubmittedJob {
                id,
                key: self.key,
                budget: BUDGET,
                operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
                input: vec![7; 32],
            });
            let message = ClientMessage::Submit(submitted.collect());
            self.waiting.extend(self.next..self.next + count);
            self.next += count;
            jobs -= count;
            self.sent = Instant::now();
            self.send(&message)?;
        }
        Ok(())
    }

    /// Submits as many jobs as have ended, unless the load rests.
    fn submit_due(&mut self) -> io::Result<()> {
        if self.due == 0 || Instant::now() < self.rests_until {
            return Ok(());
        }
        let due = std::mem::take(&mut self.due);
        self.submit(due)
    }

    /// Reads the messages of the node, and returns the number of jobs that ended.
    fn receive(&mut self, measure: bool, outcome: &mut Outcome) -> io::Result<u64> {
        self.read()?;
        let before = self.waiting.len();
        while let Some(message) = self.message()? {
            let completions = match message {
                NodeMessage::Complete(completions) => completions,
                NodeMessage::RetryAfter { wait, .. } => {
                    self.rests_until = Instant::now() + wait;
                    continue;
                }
                other => return Err(io::Error::other(format!("the node says {other:?}"))),
            };
            for completion in completions {
                if !self.waiting.remove(&completion.id) {
                    return Err(io::Error::other("a second completion of one job"));
                }
                match completion.result {
                    Ok(_) => outcome.served += 1,
                    Err(JobError::Busy) => outcome.busy += 1,
                    Err(JobError::OverQuota) => outcome.over_quota += 1,
                    Err(_) => outcome.failed += 1,
                }
                if measure {
                    let latency = self.sent.elapsed().as_micros();
                    outcome.latencies_us.push(u64::try_from(latency).unwrap_or(u64::MAX));
                }
            }
        }
        Ok((before - self.waiting.len()) as u64)
    }
}
