// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Speaks to a pool, from inside other people's processes: no async runtime, no thread and no socket
//! before the first key is opened, nothing that breaks across fork.
//!
//! ```text
//!  callers ──► Pool ──► Instance (one per process) ──► Dispatcher ──► Connection ──► bytes
//!              fork      lock, thread, sockets          nodes, jobs,    one node
//!                                                       failover        (both without I/O)
//! ```
//!
//! - [`Pool`]: the handle. [`Pool::call`] blocks, [`Pool::submit`] calls back.
//! - [`RemoteKey`]: a key, at every node that has it.
//! - [`PoolConfig`], [`Endpoint`], [`TlsConfig`]: which nodes, and who we are.
//! - [`ClientError`]: why there is no result, and whether to do the work locally.
//! - [`ClientStats`]: what is counted.
//!
//! # What it promises
//! Every job ends once, by its deadline. A job whose node dies or declines is sent to another one, at
//! most twice, within a budget: every operation of the protocol may be repeated. If no node can be
//! reached, it ends at once, so that the caller can do the work itself. A key is at the node or nodes
//! that its owner chose, and a node that answers with another key than the first is not believed.
//!
//! # Limits
//! A name in an [`Endpoint::Tcp`] is resolved on the I/O thread. A process whose id is the same as that
//! of an ancestor that used the same handle, which has ended, passes for it if no process in between
//! used the handle, too. Leaving the library loaded (`-z nodelete`) is the business of whoever makes a
//! plugin of it.
#![forbid(unsafe_code)]

mod buffer;
mod config;
mod connection;
mod dispatch;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod io;
mod job;
mod key;
mod link;
mod node;
mod pool;
mod random;
mod report;
mod spin;
mod stats;
pub mod stub;

mod tls;

pub use config::{Endpoint, EndpointError, Hedge, MAX_NODES, PoolConfig, TlsConfig};
pub use error::ClientError;
pub use job::Reply;
pub use key::RemoteKey;
pub use millrace_wire::{EdgeCounter, EdgeReport, KeyRefusal, KeySelector};
pub use pool::{HostLoop, JobHandle, Pool};
pub use report::ReportSource;
pub use stats::{ClientStats, NodeCounters, NodeStats, Retries, Totals};
