// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The client library of a pool. It lives inside other programs: no async runtime, no thread and no
//! socket before the first key is opened, nothing that breaks across fork.
//!
//! ```text
//!  callers ──► Pool ──► ProcessPool (one a process) ─► Dispatcher ──► Connection ──► bytes
//!              fork      lock, thread, sockets          nodes, jobs,    one node
//!                                                       failover        (both without I/O)
//! ```
//!
//! - [`Pool`]: the handle. [`Pool::call`] blocks, [`Pool::submit`] calls back.
//! - [`RemoteKey`]: a key, at every node that has it.
//! - [`PoolConfig`], [`Endpoint`], [`TlsConfig`]: the nodes, the client's identity, bounds and timeouts.
//! - [`ClientError`]: why there is no result, and whether to do the work locally.
//! - [`ClientStats`]: the counters of this process.
//! - [`HostLoop`]: for a program whose own event loop drives the sockets.
//! - [`probe()`]: one blocking question to one node, for administrators.
//!
//! # Example
//! Signs a digest with a key of the pool:
//!
//! ```no_run
//! use millrace_client::{ClientError, KeySelector, Pool, PoolConfig};
//! use millrace_operation::{Hash, Operation};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = Pool::new(PoolConfig::new(vec!["unix:/run/millrace/node.sock".parse()?]));
//! let key = pool.open_key(KeySelector::Name("www".to_owned()), pool.deadline())?;
//!
//! let digest = [0; 32]; // SHA-256 of the message: a pool does not hash for ECDSA
//! let sign = Operation::EcdsaSign { hash: Hash::Sha256 };
//! match pool.call(&key, &sign, &digest, pool.deadline()) {
//!     Ok(reply) => println!("{} bytes from {}", reply.output.len(), reply.node),
//!     // The pool cannot do it now: use the local key, if there is one.
//!     Err(error) if error.fall_back() => println!("signing locally: {error}"),
//!     // It would fail locally, too.
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//! Every job ends once, by its deadline. A job whose node dies or declines is sent to another one, at
//! most twice, within a budget: every operation of the protocol may be repeated. While no node can take it, a
//! job with a key of the nodes waits until its deadline; one with a key of this process ([`Pool::import_key`])
//! ends at once, so that the caller can do the work itself. A key is only at the nodes that its owner chose. A
//! node that has another key by the same name than the first node is not used.
//!
//! # Limits
//! - A name in an [`Endpoint::Tcp`] is resolved on the I/O thread.
//! - A handle recognises its process by the process id. If a process gets the id of an ancestor that used
//!   the same handle and has ended, and no process in between used it, it is mistaken for that ancestor.
//! - A plugin that contains this crate must stay loaded (`-z nodelete`), since the I/O thread runs its code.
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
mod probe;
mod random;
mod refused;
mod report;
mod spin;
mod standing;
mod stats;
mod tls;
mod trust;

pub use config::{Endpoint, EndpointError, Hedge, MAX_NODES, NodeSource, PoolConfig, TlsConfig};
pub use error::ClientError;
pub use job::{NodeReply, ReplySource, WrongNodes};
// Types of the protocol in this crate's interface: its users need not know frames.
pub use millrace_wire::{EdgeCounter, EdgeReport, Fault, KeyRefusal, KeySelector};
pub use pool::{HostLoop, JobHandle, Pool, RemoteKey};
pub use probe::{Certificates, ProbeError, ProbeRequest, Probed, probe};
pub use refused::{REMEDY, describe_start};
pub use report::ReportSource;
pub use stats::{ClientStats, NodeCounters, NodeStats, Retries, Totals};
pub use tls::TlsFault;
