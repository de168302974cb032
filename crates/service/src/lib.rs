// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The part of a node behind its sockets: policies of the keys, caps and quotas, status and metrics.
//!
//! ```text
//!  sockets, TLS (crate server) ─┐                 ┌─ Keyring ◄── KeyStore (files, sealed)
//!  any other front end ─────────┴► Service ► Session ► Engine (handed in)
//!                                   │  policy, caps, quotas, settings, drain
//!                                   └► Status, metrics, list of sessions
//! ```
//!
//! The crate has no socket, no async runtime and no thread. The caller passes the time wherever a decision
//! depends on it. Only [`store`] touches files, and it blocks.
//!
//! - `service`: [`Service`] and [`Session`], and the order in which a front end calls them.
//! - [`policy`]: who may use a key, for which operations and hashes; `fields`: fields of key files and grants.
//! - [`settings`]: settings that change while sessions are open.
//! - [`sink`]: where a session receives completions and orders; [`outbox`]: a sink for a front end with tasks.
//! - [`store`]: keys at rest, and private keys from PEM.
//! - [`tenants`], [`rates`], [`account`]: who pays, for how much, and what was used.
//! - [`grant`], [`enforcement`]: the signed form of such terms, and which of them a node may act on.
//! - [`session`], [`keys`], [`quota`]: the rules of one session as a state machine, for simulations; front
//!   ends use it through [`Session`].
//! - [`admission`]: which handshakes give way when there are too many.
//! - [`imports`]: the order of key checks, and bounds on keys that wait.
//! - [`status`]: the answer of `/status`; [`overview`]: what the page shows; [`metrics`]: the counters;
//!   [`client_reports`]: those of the clients.
//! - [`bucket`], [`log_limit`]: the only token bucket, and the log limiter that uses it.
//!
//! Key material, inputs and outputs are never logged.
#![forbid(unsafe_code)]

pub mod account;
pub mod admission;
pub mod bucket;
pub mod client_reports;
pub mod enforcement;
mod fields;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod grant;
pub mod imports;
pub mod keys;
pub mod log_limit;
pub mod metrics;
pub mod outbox;
pub mod overview;
pub mod policy;
pub mod quota;
pub mod rates;
mod service;
pub mod session;
pub mod settings;
pub mod sink;
pub mod status;
pub mod store;
pub mod tenants;

pub use service::{Answers, ConnectionSlot, InstallError, NodeCertificate, Service, Session};
