// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The node's half of the protocol between nodes and managers: a node measures what it can do, registers, sends
//! heartbeats, and puts the grants of the answers in force.
//!
//! ```text
//!  STATE/node/
//!    lock          held by the node's process, so that a former one has ended for certain
//!    keys          names and versions of the private keys that are the manager's; 0: the next process deletes it
//!    processes     numbers of processes that held it and have not left in order
//!    capacity      the measurement, with the machine and backends that it is of
//!
//!  NodeFolder ─► capacity ─► ManagedNode ─► start ─► RunningNode ─► leave
//! ```
//!
//! - [`capacity`]: the measurement, and when it is done again.
//! - `folder`: the files above, and the proof that former processes have ended.
//! - `worker`: the thread `mr-heartbeat`, which blocks on the manager; its rules are those of
//!   [`Holder`](crate::model::holder::Holder).
//! - `keys`: the manager's keys in the node's store; the thread `mr-keys` deletes those of tenants that have left.
//!
//! The node serves in any case: with the grants that it has until they expire, and then with a part of each.

pub mod capacity;
mod folder;
mod keys;
mod worker;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use millrace_service::Service;
use millrace_service::store::StoreError;
use tracing::error;

use crate::client::{ManagerClient, escaped};
use crate::model::name::{NodeName, Zone};
use crate::model::node::{Capacity, Registration};
use crate::sealing::SealingError;
pub use folder::{NodeFolder, make_folder};
use keys::NodeKeys;
use worker::Worker;

/// Why a node cannot take part in a pool.
#[derive(Debug, thiserror::Error)]
pub enum ManagedNodeError {
    /// The state folder cannot be used.
    #[error("{}: {error}", path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        error: io::Error,
    },
    /// Another process holds the state folder.
    #[error("{}: another node runs on this state folder; name another one with --state", .0.display())]
    Locked(PathBuf),
    /// No backend does an operation.
    #[error("the node can do no operation: see `millrace status`")]
    NoCapacity,
    /// The capacity cannot be measured.
    #[error("measuring the capacity: {0}")]
    Capacity(#[from] capacity::CapacityError),
    /// The key store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The list of the manager's keys is damaged, and no key has a mark: a version of Millrace without marks wrote it.
    #[error(
        "{}: {error}. It named the keys that are the pool's; these may be: {keys}. Remove each that is (millrace key \
         remove), and then this file", path.display()
    )]
    KeyList {
        /// The list.
        path: PathBuf,
        /// Why it cannot be read.
        error: String,
        /// Names of keys that may be the pool's.
        keys: String,
    },
    /// No pair of keys can be made, to which managers seal the node's private keys.
    #[error(transparent)]
    Sealing(#[from] SealingError),
    /// The system starts no thread.
    #[error("starting a thread for the manager: {0}")]
    Thread(io::Error),
}

impl ManagedNodeError {
    fn of(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |error| Self::Folder { path, error }
    }
}

/// Description of a node that it sends when it registers.
#[derive(Clone, Debug)]
pub struct NodeProfile {
    /// Name of the node, which its token or certificate carries too.
    pub name: NodeName,
    /// Addresses for gateways, `tcp://HOST:PORT`; empty for that of its listener.
    pub addresses: BTreeSet<String>,
    /// Availability zone of the node.
    pub zone: Option<Zone>,
    /// Operations per second by job class.
    pub capacity: Capacity,
}

/// A node that has not registered yet.
#[derive(Debug)]
pub struct ManagedNode {
    client: ManagerClient,
    folder: NodeFolder,
    profile: NodeProfile,
}

impl ManagedNode {
    /// A node that registers at the managers of `client`.
    #[must_use]
    pub const fn new(client: ManagerClient, folder: NodeFolder, profile: NodeProfile) -> Self {
        Self { client, folder, profile }
    }

    /// Starts the threads, which put grants in force at `service` and delete keys there. `address` is where gateways
    /// reach the node, if its profile names no address.
    ///
    /// # Errors
    /// The system starts no thread, or has no random numbers; the node's keys or their list cannot be read.
    pub fn start(
        mut self,
        service: Service,
        address: String,
    ) -> Result<RunningNode, ManagedNodeError> {
        if self.profile.addresses.is_empty() {
            self.profile.addresses.insert(address);
        }
        let folder = self.folder.path();
        let name = self.profile.name.clone();
        let keys = NodeKeys::open(folder, name, service.clone(), Instant::now())?;
        let keys = Arc::new(Mutex::new(keys));
        let deleted = Arc::clone(&keys);
        Ok(RunningNode {
            heartbeat: Thread::start("mr-heartbeat", |stopped| {
                Worker::new(self, keys, service, stopped).run();
            })?,
            keys: Thread::start("mr-keys", move |stopped| keys::delete_until(&deleted, &stopped))?,
        })
    }

    fn registration(&self, seen: u64, sealing_key: String) -> Registration {
        Registration {
            name: self.profile.name.clone(),
            process: self.folder.process(),
            former: self.folder.former().to_vec(),
            seen,
            addresses: self.profile.addresses.clone(),
            zone: self.profile.zone.clone(),
            capacity: self.profile.capacity.clone(),
            features: BTreeSet::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sealing_key: Some(sealing_key),
        }
    }

    fn path(&self, action: &str) -> String {
        format!("/v1/nodes/{}/{action}", escaped(self.profile.name.as_str()))
    }
}

/// A node that registers and sends heartbeats.
#[derive(Debug)]
pub struct RunningNode {
    heartbeat: Thread,
    keys: Thread,
}

impl RunningNode {
    /// Ends the lease, after the node has stopped serving. Blocks for a request at most.
    pub fn leave(self) {
        self.heartbeat.stop();
        self.keys.stop();
    }
}

/// A thread that runs until it is stopped, or until this is dropped.
#[derive(Debug)]
struct Thread {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Thread {
    fn start(
        name: &str,
        run: impl FnOnce(Receiver<()>) + Send + 'static,
    ) -> Result<Self, ManagedNodeError> {
        let (stop, stopped) = channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(stopped));
        Ok(Self { stop, thread: thread.map_err(ManagedNodeError::Thread)? })
    }

    fn stop(self) {
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            error!("a thread for the manager panicked");
        }
    }
}
