// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Private-key jobs of a device at remote nodes, and in this process while no node answers: a guest that boots must not
//! depend on a network.
//!
//! Every key is in both places. It goes to the nodes in the background, and its first jobs wait for that.
//!
//! | the nodes | a job |
//! |---|---|
//! | serve it | is theirs |
//! | refuse it for a limit: the quota, bounds on jobs, memory, keys or connections | waits, and is offered again: done elsewhere, it would make the limit void |
//! | cannot be reached, or do not do such jobs | runs here, at the rate of the quota if it has refused any (`pace`) |
//!
//! A job that a node has taken and does not end in time runs here, too: it was counted there.

mod pace;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millrace_client::{ClientError, NodeReply, NodeStats, Pool, RemoteKey};
use millrace_engine::Completion;
use millrace_operation::sync::lock;
use millrace_operation::{JobError, JobId, KeyInfo, Output, PrivateKey};
use millrace_service::sink::SessionSink;
use millrace_wire::{KeyHandle, KeyRefusal};
use tracing::{debug, info};
use zeroize::Zeroizing;

use self::pace::Pace;
use crate::job_target::{EndedJob, JobTarget, ServiceTarget, TargetJob};
use crate::statistics::ServedBy;

/// Bound on the time of a job or key at a node that does not answer; the rest of its time is for this process.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which a key that no node took is offered again.
const OFFER_AGAIN: Duration = Duration::from_secs(5);

/// The same for a key over a limit: its jobs wait for it, and have ten seconds.
const LIMITED_OFFER_AGAIN: Duration = Duration::from_secs(1);

/// Keys of one device at the nodes: with eight machines of one process, those that a node takes from one client by
/// default. The key whose last job is the oldest gives way; its next job offers it again.
const MAX_NODE_KEYS: usize = 128;

/// A pool of nodes, over one in this process.
pub struct NodeTarget {
    local: ServiceTarget,
    nodes: Pool,
    keys: HashMap<KeyHandle, HeldKey>,
    /// Counts jobs, to find the key with the oldest one.
    clock: u64,
    /// Jobs that were sent and not answered, by their id in this device.
    jobs: HashMap<JobId, NodeJob>,
    pace: Pace,
    replies: Arc<Replies>,
    /// Ends the thread that offers keys when it is dropped.
    offers: Sender<Arc<NodeKey>>,
    /// Whether the nodes could not be reached when a key was offered or a job ended last.
    away: Arc<AtomicBool>,
}

struct NodeJob {
    job: TargetJob,
    deadline: Instant,
    /// As [`Pace::offer`] numbered it.
    number: u64,
}

struct HeldKey {
    key: Arc<NodeKey>,
    used: u64,
}

/// A guest's key, on its way to the nodes or there.
struct NodeKey {
    private: PrivateKey,
    stage: Mutex<KeyStage>,
}

enum KeyStage {
    Absent,
    Offered,
    Held(RemoteKey),
    /// No node took it. It is offered again after this time.
    Refused {
        again: Instant,
        instead: Instead,
    },
}

/// Fate of a job that no node has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instead {
    /// To run in this process.
    Here,
    /// To be offered again until its deadline.
    Waits(JobError),
    Ends(JobError),
}

/// The answers of nodes on their way to the device. Producer: callbacks of the client. Consumer: the thread of the
/// rings. Bound: the jobs in flight.
struct Replies {
    waiting: Mutex<Vec<(JobId, Result<NodeReply, ClientError>)>>,
    sink: Arc<dyn SessionSink>,
}

impl NodeTarget {
    /// A pool over `local`, whose `sink` also gets the answers of the nodes.
    pub fn new(local: ServiceTarget, nodes: Pool, sink: Arc<dyn SessionSink>) -> io::Result<Self> {
        let (offers, offered) = mpsc::channel();
        let (offering, away) = (nodes.clone(), Arc::<AtomicBool>::default());
        let found_away = Arc::clone(&away);
        thread::Builder::new()
            .name("virtio-keys".to_owned())
            .spawn(move || offer_all(&offering, &offered, &found_away))?;
        Ok(Self {
            local,
            nodes,
            keys: HashMap::new(),
            clock: 0,
            jobs: HashMap::new(),
            pace: Pace::default(),
            replies: Arc::new(Replies { waiting: Mutex::default(), sink }),
            offers,
            away,
        })
    }

    /// Submits a job to the nodes, or returns it with what becomes of it.
    fn submit_to_nodes(&mut self, job: TargetJob, now: Instant) -> Option<(TargetJob, Instead)> {
        let remote = match self.remote_key(job.key, now) {
            Ok(remote) => remote,
            Err(instead) => return Some((job, instead)),
        };
        let Some(number) = self.pace.offer(self.jobs.len()) else {
            return Some((job, Instead::Waits(JobError::OverQuota)));
        };
        let id = job.id;
        let replies = Arc::clone(&self.replies);
        let submitted = self.nodes.submit(
            &remote,
            job.operation.clone(),
            job.input.clone(),
            now + job.budget.min(NODE_TIMEOUT),
            Box::new(move |reply| replies.add(id, reply)),
        );
        match submitted {
            Ok(_) => {
                let deadline = now + job.budget;
                self.jobs.insert(id, NodeJob { job, deadline, number });
                None
            }
            Err(error) => {
                let instead = instead(&self.nodes, &error);
                debug!(%error, ?instead, "a job did not go to the nodes");
                Some((job, instead))
            }
        }
    }

    /// The key at the nodes, which is offered to them if need be.
    fn remote_key(&mut self, handle: KeyHandle, now: Instant) -> Result<RemoteKey, Instead> {
        let held = self.keys.get_mut(&handle).ok_or(Instead::Here)?;
        self.clock += 1;
        held.used = self.clock;
        let key = Arc::clone(&held.key);
        let mut stage = lock(&key.stage);
        let instead = match &*stage {
            KeyStage::Held(remote) => return Ok(remote.clone()),
            KeyStage::Refused { again, instead } if now < *again => return Err(*instead),
            KeyStage::Refused { instead, .. } => *instead,
            KeyStage::Absent | KeyStage::Offered => Instead::Waits(JobError::Busy),
        };
        let is_new = !matches!(&*stage, KeyStage::Offered);
        let is_over = matches!(&*stage, KeyStage::Refused { instead: Instead::Waits(_), .. });
        *stage = KeyStage::Offered;
        drop(stage);
        if is_new {
            self.offer(key, is_over);
        }
        if self.away.load(Ordering::Acquire) { Err(Instead::Here) } else { Err(instead) }
    }

    /// Offers a key to the nodes. Another one gives way if the device has [`MAX_NODE_KEYS`] there, or `is_over` says
    /// that the nodes have refused the key for a limit.
    fn offer(&self, key: Arc<NodeKey>, is_over: bool) {
        let at_nodes = |held: &&HeldKey| matches!(&*lock(&held.key.stage), KeyStage::Held(_));
        let count = self.keys.values().filter(at_nodes).count();
        let oldest = self.keys.values().filter(at_nodes).min_by_key(|held| held.used);
        if let Some(oldest) = oldest.filter(|_| is_over || count >= MAX_NODE_KEYS) {
            *lock(&oldest.key.stage) = KeyStage::Absent;
        }
        // The thread lives as long as this sender.
        let _ = self.offers.send(key);
    }

    /// Runs jobs in this process, or returns those that it refuses.
    fn run_here(&mut self, mut jobs: Vec<TargetJob>, now: Instant) -> Vec<(JobId, JobError)> {
        let pace = &mut self.pace;
        let over = jobs.extract_if(.., |_| !pace.take_here(now));
        let mut refused: Vec<_> = over.map(|job| (job.id, JobError::OverQuota)).collect();
        if !jobs.is_empty() {
            refused.extend(self.local.submit(jobs, now));
        }
        refused
    }
}

/// Gives keys to the nodes, one after the other.
fn offer_all(nodes: &Pool, offered: &Receiver<Arc<NodeKey>>, away: &AtomicBool) {
    for key in offered {
        let private = copy(&key.private);
        let stage = match nodes.import_key(private, Instant::now() + NODE_TIMEOUT) {
            Ok(remote) => {
                away.store(false, Ordering::Release);
                KeyStage::Held(remote)
            }
            Err(error) => {
                let stats = nodes.stats();
                let answers = stats.nodes.iter().any(|node| node.connected || node.is_full());
                let instead = match error {
                    // The node has many keys to check: see its bound on imports that wait.
                    ClientError::TimedOut if answers => Instead::Waits(JobError::Busy),
                    _ => instead(nodes, &error),
                };
                away.store(!answers, Ordering::Release);
                info!(%error, ?instead, "the nodes do not take a key of a guest now");
                let wait = match instead {
                    Instead::Waits(_) => LIMITED_OFFER_AGAIN,
                    Instead::Here | Instead::Ends(_) => OFFER_AGAIN,
                };
                KeyStage::Refused { again: Instant::now() + wait, instead }
            }
        };
        *lock(&key.stage) = stage;
    }
}

fn copy(key: &PrivateKey) -> PrivateKey {
    PrivateKey::from_pkcs8(Zeroizing::new(key.dangerous_pkcs8().to_vec()))
}

impl Replies {
    fn add(&self, job: JobId, reply: Result<NodeReply, ClientError>) {
        let mut waiting = lock(&self.waiting);
        waiting.push((job, reply));
        drop(waiting);
        // No completion of the engine comes with it: this wakes the thread of the rings.
        self.sink.complete(&mut Vec::new());
    }

    fn take(&self) -> Vec<(JobId, Result<NodeReply, ClientError>)> {
        let mut waiting = lock(&self.waiting);
        mem::take(&mut *waiting)
    }
}

/// Fate of a job or key that the nodes did not take for this reason.
fn instead(nodes: &Pool, error: &ClientError) -> Instead {
    let is_full = || nodes.stats().nodes.iter().any(NodeStats::is_full);
    match error {
        // A node takes no further connection of this identity.
        ClientError::NoNode(_) if is_full() => Instead::Waits(JobError::Busy),
        ClientError::Job(error @ (JobError::OverQuota | JobError::Busy)) => Instead::Waits(*error),
        ClientError::Busy
        | ClientError::TooManyKeys
        | ClientError::Key(KeyRefusal::TooManyKeys) => Instead::Waits(JobError::Busy),
        error if error.fall_back() => Instead::Here,
        ClientError::Job(error) => Instead::Ends(*error),
        _ => Instead::Ends(JobError::Failed),
    }
}

impl JobTarget for NodeTarget {
    fn import(
        &mut self,
        key: PrivateKey,
        now: Instant,
    ) -> Result<(KeyHandle, KeyInfo), KeyRefusal> {
        let private = copy(&key);
        let (handle, info) = self.local.import(key, now)?;
        let key = Arc::new(NodeKey { private, stage: Mutex::new(KeyStage::Offered) });
        self.offer(Arc::clone(&key), false);
        self.keys.insert(handle, HeldKey { key, used: self.clock });
        Ok((handle, info))
    }

    fn close(&mut self, key: KeyHandle, now: Instant) {
        self.keys.remove(&key);
        self.local.close(key, now);
    }

    fn submit(&mut self, jobs: Vec<TargetJob>, now: Instant) -> Vec<(JobId, JobError)> {
        let (mut here, mut refused) = (Vec::new(), Vec::new());
        for job in jobs {
            match self.submit_to_nodes(job, now) {
                None => {}
                Some((job, Instead::Here)) => here.push(job),
                Some((job, Instead::Waits(error) | Instead::Ends(error))) => {
                    refused.push((job.id, error));
                }
            }
        }
        refused.extend(self.run_here(here, now));
        refused
    }

    fn completed(&mut self, arrived: Vec<Completion>, now: Instant) -> Vec<EndedJob> {
        let mut ended =
            if arrived.is_empty() { Vec::new() } else { self.local.completed(arrived, now) };
        let mut here = Vec::new();
        let end =
            |id, result: Result<Output, JobError>, served_by| EndedJob { id, result, served_by };
        for (id, reply) in self.replies.take() {
            let Some(NodeJob { mut job, deadline, number }) = self.jobs.remove(&id) else {
                continue;
            };
            let error = match reply {
                Ok(reply) => {
                    self.pace.served(now);
                    self.away.store(false, Ordering::Release);
                    let by = ServedBy::Node(reply.served_by);
                    ended.push(end(id, Ok(reply.output), Some(by)));
                    continue;
                }
                Err(error) => error,
            };
            let instead = instead(&self.nodes, &error);
            debug!(%error, ?instead, "a node did not do a job");
            match instead {
                Instead::Here => {
                    // 0 would mean the service's own bound.
                    let left = deadline.saturating_duration_since(now);
                    job.budget = left.max(Duration::from_micros(1));
                    here.push(job);
                }
                Instead::Waits(error) => {
                    self.pace.refused(number, error == JobError::OverQuota, now);
                    ended.push(end(id, Err(error), None));
                }
                Instead::Ends(error) => ended.push(end(id, Err(error), None)),
            }
        }
        let refused = self.run_here(here, now);
        ended.extend(refused.into_iter().map(|(id, error)| end(id, Err(error), None)));
        ended
    }
}

impl fmt::Debug for NodeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeTarget")
            .field("nodes", &self.nodes)
            .field("keys", &self.keys.len())
            .field("jobs", &self.jobs.len())
            .finish_non_exhaustive()
    }
}
