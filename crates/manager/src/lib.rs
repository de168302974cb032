// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The manager of a pool: it knows nodes, tenants and quotas, and hands out signed grants. It is not on the path of a
//! job: nodes enforce their grants by themselves.
//!
//! ```text
//!  CLI, page ── HTTP API ─┐
//!                         ├─► Manager ─► Core (pure) ─► Transaction ─► Store: memory, SQLite, etcd
//!  nodes ── heartbeats ───┘     │                                        │
//!                               └──◄──────── changes, also of other managers
//! ```
//!
//! - [`api`]: HTTP for users and nodes; [`client`]: its client, for the command line and nodes.
//! - [`model`]: the rules, without I/O.
//! - [`store`]: where the records are.
//! - [`vault`]: private keys in the records; [`sealing`]: private keys on their way to a node.
//! - `seals`: proofs that the records are what managers wrote.
//! - [`schema`]: versions of the records' form.
//! - [`Manager`] (`manager`): rules, store, signing key and threads together.
//! - `http_head`: the head of an HTTP answer, for the clients of managers and of etcd; `timed`: their sockets.
//! - [`managed_node`]: the node's half of the protocol: its thread, its state folder, the measurement of its capacity.
#![forbid(unsafe_code)]

pub mod api;
pub mod client;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod http_head;
pub mod managed_node;
mod manager;
pub mod model;
pub mod schema;
pub mod sealing;
mod seals;
pub mod store;
mod timed;
pub mod vault;

pub use manager::{Manager, ManagerError};
pub use seals::{Findings, MAX_FINDINGS};
