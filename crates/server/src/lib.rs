// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node: listens, authenticates, enforces key policy, runs jobs on the engine it is handed.
//!
//! ```text
//!  unix socket (uid:N) ─┐                      ┌─ Keyring ◄── KeyStore (files, sealed)
//!  TCP + mTLS (cert:X) ─┴► one task per client ┴► Engine (handed in)
//! ```
//!
//! It knows no backend: whoever composes it starts an engine, opens a [`KeyStore`], and calls
//! [`Node::bind`] and [`Node::run`]. It never logs key material, inputs or outputs.
//!
//! - [`config`]: what a node is told, and `node.toml`.
//! - [`node`]: [`Node`] and its life.
//! - [`store`]: keys at rest, and private keys from PEM.
//! - [`tls`]: mutual TLS, and a private CA for those who have none.
//! - [`status`]: what `/status` answers.
#![forbid(unsafe_code)]

mod bucket;
pub mod config;
mod connection;
mod edges;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod keys;
pub mod listener;
mod log;
mod metrics;
pub mod node;
mod outbox;
mod quiet;
mod quota;
mod session;
pub mod status;
pub mod store;
pub mod tls;

pub use config::NodeConfig;
pub use node::{Node, NodeHandle, StartError};
pub use status::Status;
pub use store::{KekSource, KeyMeta, KeyStore};
