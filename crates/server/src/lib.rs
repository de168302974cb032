// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node: listens, authenticates, enforces key policy, runs jobs on the engine it is handed.
//!
//! ```text
//!  unix socket (uid:N) ─┐                      ┌─ Keyring ◄── KeyStore (files, sealed)
//!  TCP + mTLS (cert:X) ─┴► one task per client ┴► Engine (handed in)
//! ```
//!
//! It knows no backend: whoever composes it starts an engine, opens a [`millrace_service::KeyStore`], and calls
//! [`Node::bind`] and [`Node::run`]. It never logs key material, inputs or outputs.
//!
//! - [`config`]: what a node is told, and `node.toml`.
//! - [`node`]: [`Node`] and its life.
//! - [`tls`]: mutual TLS, and a private CA for those who have none.
#![forbid(unsafe_code)]

mod admin;
pub mod config;
mod connection;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod http;
pub mod listener;
pub mod node;
mod on_demand_writable;
pub mod tls;

pub use config::NodeConfig;
pub use node::{Node, NodeHandle, StartError};
