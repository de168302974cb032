// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Private-key jobs of a device at remote nodes, and in this process when no node answers: a guest that boots must not
//! depend on a network.
//!
//! Every key is in both places. A key goes to the nodes in the background; until it is there, and while no node can be
//! reached, its jobs run here. A job whose node dies runs here, too. A job over the quota of its identity at the nodes
//! does not: it waits, or the quota would have no effect.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use millrace_client::{ClientError, NodeReply, Pool, RemoteKey};
use millrace_engine::Completion;
use millrace_operation::sync::lock;
use millrace_operation::{JobError, JobId, KeyInfo, Output, PrivateKey};
use millrace_service::sink::SessionSink;
use millrace_wire::{KeyHandle, KeyRefusal};
use tracing::{debug, info};
use zeroize::Zeroizing;

use crate::job_target::{EndedJob, JobTarget, ServiceTarget, TargetJob};
use crate::statistics::ServedBy;

/// Bound on the time of a job at the nodes; the rest of its time is for this process.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time in which a node has to take a key.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which a key that no node took is offered again.
const OFFER_AGAIN: Duration = Duration::from_secs(5);

/// A pool of nodes, over one in this process.
pub struct NodeTarget {
    local: ServiceTarget,
    nodes: Pool,
    keys: HashMap<KeyHandle, Arc<NodeKey>>,
    /// Jobs that were sent and not answered, by their id in this device.
    jobs: HashMap<JobId, NodeJob>,
    replies: Arc<Replies>,
    /// Ends the thread that offers keys when it is dropped.
    offers: Sender<Arc<NodeKey>>,
}

struct NodeJob {
    job: TargetJob,
    deadline: Instant,
}

/// A guest's key, imported at the nodes at its first use.
struct NodeKey {
    private: PrivateKey,
    remote: OnceLock<RemoteKey>,
    is_offered: AtomicBool,
    offer_at: Mutex<Instant>,
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
        let offering = nodes.clone();
        thread::Builder::new()
            .name("virtio-keys".to_owned())
            .spawn(move || offer_all(&offering, &offered))?;
        Ok(Self {
            local,
            nodes,
            keys: HashMap::new(),
            jobs: HashMap::new(),
            replies: Arc::new(Replies { waiting: Mutex::default(), sink }),
            offers,
        })
    }

    /// Submits a job to the nodes, or gives it back for this process.
    fn submit_to_nodes(&mut self, job: TargetJob, now: Instant) -> Option<TargetJob> {
        let Some(key) = self.keys.get(&job.key) else {
            return Some(job);
        };
        let Some(remote) = key.remote.get() else {
            let is_due = now >= *lock(&key.offer_at);
            if is_due && !key.is_offered.swap(true, Ordering::AcqRel) {
                // The thread lives as long as this sender.
                let _ = self.offers.send(Arc::clone(key));
            }
            return Some(job);
        };
        let id = job.id;
        let replies = Arc::clone(&self.replies);
        let submitted = self.nodes.submit(
            remote,
            job.operation.clone(),
            job.input.clone(),
            now + job.budget.min(NODE_TIMEOUT),
            Box::new(move |reply| replies.add(id, reply)),
        );
        match submitted {
            Ok(_) => {
                let deadline = now + job.budget;
                self.jobs.insert(id, NodeJob { job, deadline });
                None
            }
            Err(error) => {
                debug!(%error, "a job runs here");
                Some(job)
            }
        }
    }
}

/// Gives keys to the nodes, one after the other.
fn offer_all(nodes: &Pool, offered: &Receiver<Arc<NodeKey>>) {
    for key in offered {
        let private = copy(&key.private);
        match nodes.import_key(private, Instant::now() + IMPORT_TIMEOUT) {
            Ok(remote) => {
                let _ = key.remote.set(remote);
            }
            Err(error) => {
                info!(%error, "the nodes do not take a key of a guest now; its jobs run here");
                let mut offer_at = lock(&key.offer_at);
                *offer_at = Instant::now() + OFFER_AGAIN;
            }
        }
        key.is_offered.store(false, Ordering::Release);
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

/// Whether a job that a node did not do runs here.
fn falls_back(error: &ClientError) -> bool {
    error.fall_back() && *error != ClientError::Job(JobError::OverQuota)
}

impl JobTarget for NodeTarget {
    fn import(
        &mut self,
        key: PrivateKey,
        now: Instant,
    ) -> Result<(KeyHandle, KeyInfo), KeyRefusal> {
        let private = copy(&key);
        let (handle, info) = self.local.import(key, now)?;
        let key = Arc::new(NodeKey {
            private,
            remote: OnceLock::new(),
            is_offered: AtomicBool::new(true),
            offer_at: Mutex::new(now),
        });
        let _ = self.offers.send(Arc::clone(&key));
        self.keys.insert(handle, key);
        Ok((handle, info))
    }

    fn close(&mut self, key: KeyHandle, now: Instant) {
        self.keys.remove(&key);
        self.local.close(key, now);
    }

    fn submit(&mut self, jobs: Vec<TargetJob>, now: Instant) -> Vec<(JobId, JobError)> {
        let mut here = Vec::new();
        for job in jobs {
            here.extend(self.submit_to_nodes(job, now));
        }
        if here.is_empty() {
            return Vec::new();
        }
        self.local.submit(here, now)
    }

    fn completed(&mut self, arrived: Vec<Completion>, now: Instant) -> Vec<EndedJob> {
        let mut ended =
            if arrived.is_empty() { Vec::new() } else { self.local.completed(arrived, now) };
        let mut here = Vec::new();
        let end =
            |id, result: Result<Output, JobError>, served_by| EndedJob { id, result, served_by };
        for (id, reply) in self.replies.take() {
            let Some(NodeJob { mut job, deadline }) = self.jobs.remove(&id) else {
                continue;
            };
            match reply {
                Ok(reply) => {
                    let by = ServedBy::Node(reply.served_by);
                    ended.push(end(id, Ok(reply.output), Some(by)));
                }
                Err(error) if falls_back(&error) => {
                    debug!(%error, "a job of a node runs here");
                    job.budget = deadline.saturating_duration_since(now);
                    here.push(job);
                }
                Err(ClientError::Job(error)) => ended.push(end(id, Err(error), None)),
                Err(_) => ended.push(end(id, Err(JobError::Failed), None)),
            }
        }
        if !here.is_empty() {
            for (id, error) in self.local.submit(here, now) {
                ended.push(end(id, Err(error), None));
            }
        }
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
