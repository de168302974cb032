// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A world for the fuzz targets only (feature `fuzzing`; no other build has this module): callers, time and hostile
//! nodes around the pool without I/O.
//!
//! The input is a list of steps, each a byte that chooses it and as many bytes of parameters as it
//! needs. Nodes say messages about jobs and keys that they were really asked for, about others, and
//! arbitrary bytes.

use std::mem;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use millrace_operation::{
    Hash, HashAlgorithms, JobError, JobId, KeyInfo, KeyType, Operation, OperationSet, Output,
    PrivateKey,
};
use millrace_wire::{
    ClientMessage, Decoder, EdgeCounter, EdgeReport, Fault, JobCompletion, KeyRefusal, KeySelector,
    MAX_FRAME_LEN, Message, NodeMessage, RequestId, Welcome,
};
use zeroize::Zeroizing;

use crate::buffer::MAX_PENDING;
use crate::config::{Endpoint, Hedge, PoolConfig};
use crate::dispatch::Dispatcher;
use crate::error::ClientError;
use crate::job::{Job, JobRef, JobRequest, Recipient};
use crate::key::{KeyData, KeySource};
use crate::report::ReportSource;

// Size and bounds of the pool under test, small so that a few steps reach them.
const NODES: usize = 2;
const KEYS: usize = 4;
const MAX_IN_FLIGHT: usize = 12;
const MAX_KEYS: usize = 5;
const HEDGE_AFTER: Duration = Duration::from_millis(40);

/// Runs the conversation.
///
/// # Panics
/// If a job ends twice or never, or a bound is exceeded.
pub fn pool(input: &[u8]) {
    let mut world = World::new();
    let mut steps = input.iter();
    while world.step(&mut steps).is_some() {
        world.check();
    }
    world.end();
}

/// The rest of the input.
type Steps<'a> = slice::Iter<'a, u8>;

fn index(steps: &mut Steps<'_>, bound: usize) -> Option<usize> {
    Some(usize::from(*steps.next()?) % bound.max(1))
}

/// A node as the client made it: what it was asked and has not answered.
#[derive(Default)]
struct Peer {
    heard: Decoder<ClientMessage>,
    requests: Vec<RequestId>,
    jobs: Vec<JobId>,
    reported: EdgeReport,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallbackState {
    Open { deadline: Instant },
    Ended,
}

struct World {
    dispatcher: Dispatcher,
    now: Instant,
    keys: Vec<Arc<KeyData>>,
    peers: [Peer; NODES],
    handles: Vec<JobRef>,
    callers: Vec<(JobRef, Instant)>,
    callbacks: Arc<Mutex<Vec<CallbackState>>>,
}

impl World {
    fn new() -> Self {
        let nodes = (0..NODES).map(|n| Endpoint::Unix(format!("/{n}").into()));
        let config = PoolConfig::new(nodes.collect())
            .max_in_flight(MAX_IN_FLIGHT)
            .max_keys(MAX_KEYS)
            .hedge(Hedge::After(HEDGE_AFTER))
            .report(growing());
        let now = Instant::now();
        Self {
            dispatcher: Dispatcher::new(&config, now),
            now,
            keys: (0..KEYS).map(new_key).collect(),
            peers: Default::default(),
            handles: Vec::new(),
            callers: Vec::new(),
            callbacks: Arc::default(),
        }
    }

    fn step(&mut self, steps: &mut Steps<'_>) -> Option<()> {
        match steps.next()? % 16 {
            0 | 1 => self.submit(index(steps, KEYS)?, *steps.next()?),
            2 => self.call(index(steps, KEYS)?, *steps.next()?),
            3 => {
                let at = index(steps, self.handles.len())?;
                if let Some(handle) = self.handles.get(at) {
                    self.dispatcher.cancel(*handle);
                }
            }
            4 => self.look(*steps.next()?),
            5 => {
                let at = index(steps, KEYS)?;
                self.dispatcher.close_key(self.keys[at].id);
                self.keys[at] = new_key(at);
            }
            6 => {
                self.now += Duration::from_millis(8 * u64::from(*steps.next()?));
                self.tick();
            }
            7 | 8 => self.connect(*steps.next()?),
            9 => {
                let at = index(steps, NODES)?;
                if self.dispatcher.connection(at).is_some() {
                    self.dispatcher.handle_lost(at, "lost".to_owned(), self.now);
                }
            }
            10 => {
                let at = index(steps, NODES)?;
                let length = usize::from(*steps.next()?);
                let (bytes, rest) = steps.as_slice().split_at(length.min(steps.len()));
                *steps = rest.iter();
                self.hear(at, bytes);
            }
            11 => self.send(index(steps, NODES)?, *steps.next()?),
            12 => self.call_back(),
            _ => {
                let at = index(steps, NODES)?;
                self.send(at, u8::MAX);
                let message = self.message(at, steps)?;
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                self.hear(at, &bytes);
            }
        }
        Some(())
    }

    fn submit(&mut self, key: usize, millis: u8) {
        let deadline = self.now + Duration::from_millis(u64::from(millis) * 4);
        let callbacks = Arc::clone(&self.callbacks);
        let number = lock(&callbacks).len();
        let recipient = Recipient::Callback(Box::new(move |_| {
            let state = mem::replace(&mut lock(&callbacks)[number], CallbackState::Ended);
            assert!(state != CallbackState::Ended, "a job ended twice");
        }));
        let job = Job::new(Arc::clone(&self.keys[key]), job(), recipient, deadline);
        if let Ok(handle) = self.dispatcher.submit(job, self.now) {
            lock(&self.callbacks).push(CallbackState::Open { deadline });
            self.handles.push(handle);
        }
    }

    fn call(&mut self, key: usize, choice: u8) {
        let deadline = self.now + Duration::from_millis(u64::from(choice) * 4);
        let request = if choice & 1 == 0 { JobRequest::OpenKey } else { job() };
        let recipient = Recipient::Caller { waiter: None };
        let key = Arc::clone(&self.keys[key]);
        let job = Job::new(key, request, recipient, deadline);
        if let Ok(caller) = self.dispatcher.submit(job, self.now) {
            self.callers.push((caller, deadline));
        }
    }

    /// A blocked caller looks for its answer.
    fn look(&mut self, choice: u8) {
        if self.callers.is_empty() {
            return;
        }
        let at = usize::from(choice) % self.callers.len();
        let (caller, deadline) = self.callers[at];
        if self.dispatcher.take_done(caller).is_some() {
            assert!(self.dispatcher.take_done(caller).is_none());
        } else if deadline <= self.now {
            let _ = self.dispatcher.give_up(caller, self.now);
        } else {
            return;
        }
        self.callers.swap_remove(at);
    }

    fn tick(&mut self) {
        self.dispatcher.handle_timeout(self.now);
        self.call_back();
        for state in lock(&self.callbacks).iter() {
            if let CallbackState::Open { deadline } = state {
                assert!(*deadline > self.now, "a job outlived its deadline");
            }
        }
    }

    fn call_back(&mut self) {
        for (callback, result) in mem::take(self.dispatcher.deliveries()).callbacks {
            callback(result);
        }
    }

    fn connect(&mut self, choice: u8) {
        let Some(at) = self.dispatcher.poll_connect() else {
            return;
        };
        if choice == 0 {
            return self.dispatcher.handle_lost(at, "refused".to_owned(), self.now);
        }
        self.peers[at] = Peer::default();
        let distrust = (choice & 2 != 0).then(|| "another user's socket".to_owned());
        self.dispatcher.handle_connected(at, distrust, self.now);
        if choice & 1 == 1 {
            let welcome = Welcome {
                version: 1,
                features: u64::from(choice >> 7),
                node: format!("n{at}"),
                max_in_flight: u32::from(choice >> 1) % 8,
                max_keys: 4,
            };
            let mut bytes = Vec::new();
            NodeMessage::Welcome(welcome).encode(&mut bytes);
            self.hear(at, &bytes);
        }
    }

    /// The client reads what a node wrote.
    fn hear(&mut self, at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(connection) = self.dispatcher.connection(at) else {
                return;
            };
            let space = connection.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            connection.filled(count, self.now);
            bytes = &bytes[count..];
            self.dispatcher.handle_received(at, self.now);
        }
    }

    /// A node reads what the client wrote, perhaps only a part of it; it must make sense.
    fn send(&mut self, at: usize, most: u8) {
        let peer = &mut self.peers[at];
        let Some(out) = self.dispatcher.poll_output(at) else {
            return;
        };
        let mut bytes = out.pending().to_vec();
        if most != u8::MAX {
            bytes.truncate(usize::from(most));
        }
        out.consume(bytes.len());
        for chunk in bytes.chunks(1024) {
            peer.heard.space()[..chunk.len()].copy_from_slice(chunk);
            peer.heard.filled(chunk.len());
            while let Some(message) = peer.heard.next().expect("a client that keeps to the rules") {
                match message {
                    ClientMessage::OpenKey { request, .. }
                    | ClientMessage::ImportKey { request, .. } => peer.requests.push(request),
                    ClientMessage::Submit(jobs) => peer.jobs.extend(jobs.iter().map(|job| job.id)),
                    ClientMessage::Report(report) => {
                        assert!(peer.reported.since(&report).is_zero(), "it counts backwards");
                        peer.reported = *report;
                    }
                    ClientMessage::Hello(_)
                    | ClientMessage::CloseKey { .. }
                    | ClientMessage::Cancel { .. }
                    | ClientMessage::Ping { .. }
                    | ClientMessage::Describe => {}
                }
            }
        }
    }

    /// Something that a node may say, rightly or not.
    fn message(&mut self, at: usize, steps: &mut Steps<'_>) -> Option<NodeMessage> {
        let peer = &mut self.peers[at];
        Some(match steps.next()? % 12 {
            0 => NodeMessage::Pong { token: 0 },
            1 => NodeMessage::Drain,
            2 => NodeMessage::Fault(Fault::TooManyConnections),
            3 => NodeMessage::KeyRefused {
                request: take(&mut peer.requests, steps)?,
                reason: match steps.next()? % 3 {
                    0 => KeyRefusal::NoSuchKey,
                    1 => KeyRefusal::Draining,
                    _ => KeyRefusal::TooManyKeys,
                },
            },
            4..=6 => {
                let request = take(&mut peer.requests, steps)?;
                let choice = *steps.next()?;
                NodeMessage::KeyOpened {
                    request,
                    handle: u32::from(choice % 8),
                    // Sometimes not the key that another node has.
                    info: KeyInfo { key_type: KeyType::Ed25519, spki: vec![choice >> 7; 44] },
                    operations: OperationSet::new(),
                    hashes: HashAlgorithms::new(),
                }
            }
            _ => {
                let id = take(&mut peer.jobs, steps)?;
                let result = match *steps.next()? {
                    choice if choice & 1 == 0 => Ok(Output::new(vec![choice; 64])),
                    choice => {
                        let all = JobError::ALL;
                        Err(all[usize::from(choice >> 1) % all.len()])
                    }
                };
                NodeMessage::Complete(vec![JobCompletion {
                    id,
                    result,
                    served_by: None,
                    queue_time: Duration::ZERO,
                    service_time: Duration::ZERO,
                }])
            }
        })
    }

    fn check(&mut self) {
        let stats = self.dispatcher.stats();
        assert!(stats.in_flight <= MAX_IN_FLIGHT);
        assert!(stats.keys <= MAX_KEYS);
        for at in 0..NODES {
            if let Some(out) = self.dispatcher.poll_output(at) {
                assert!(out.pending().len() <= MAX_PENDING + 2 * MAX_FRAME_LEN);
            }
        }
        while self.dispatcher.poll_close().is_some() {}
        let _ = self.dispatcher.poll_timeout();
    }

    /// No answer is due once the pool is closed.
    fn end(&mut self) {
        self.dispatcher.close();
        self.call_back();
        assert!(lock(&self.callbacks).iter().all(|state| *state == CallbackState::Ended));
        for (caller, _) in mem::take(&mut self.callers) {
            let answer = self.dispatcher.take_done(caller);
            assert!(answer.is_some(), "a caller waits for ever");
            assert!(!matches!(answer, Some(Err(ClientError::Cancelled))));
        }
        assert_eq!(self.dispatcher.stats().in_flight, 0);
        for key in &self.keys {
            self.dispatcher.close_key(key.id);
        }
        assert_eq!(self.dispatcher.stats().keys, 0);
    }
}

/// Counts each time that it is asked.
fn growing() -> ReportSource {
    let count = AtomicU64::new(0);
    ReportSource::new(move || {
        let mut report = EdgeReport::default();
        report.set(EdgeCounter::Pooled, count.fetch_add(1, Ordering::Relaxed));
        report
    })
}

/// One that the node was asked about; beyond those, or if it was answered already, a strange one.
fn take<T: From<u8> + Copy>(asked: &mut Vec<T>, steps: &mut Steps<'_>) -> Option<T> {
    let choice = *steps.next()?;
    let at = usize::from(choice % 16);
    if at < asked.len() {
        // With the highest bit it is answered a second time later.
        return Some(if choice & 0x80 == 0 { asked.remove(at) } else { asked[at] });
    }
    Some(T::from(choice))
}

fn job() -> JobRequest {
    JobRequest::Operation {
        operation: Operation::EcdsaSign { hash: Hash::Sha256 },
        input: vec![0; 32],
    }
}

fn new_key(number: usize) -> Arc<KeyData> {
    let source = if number == 0 {
        KeySource::Import(PrivateKey::from_pkcs8(Zeroizing::new(vec![0x30; 100])))
    } else {
        KeySource::Selector(KeySelector::Name(format!("k{number}")))
    };
    Arc::new(KeyData::new(source))
}

#[cfg(test)]
mod tests {
    use super::pool;
    use crate::random::Random;

    /// A short run of the fuzz target: random steps from fixed seeds.
    #[test]
    fn random_steps_break_no_promise() {
        let mut random = Random::seeded(1);
        for _ in 0..2_000 {
            let steps = (0..1 + random.below(400)).map(|_| random.below(256).to_le_bytes()[0]);
            pool(&steps.collect::<Vec<_>>());
        }
    }
}
