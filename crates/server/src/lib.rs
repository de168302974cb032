// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node: the sockets, TLS and HTTP in front of a service.
//!
//! ```text
//!  unix socket (uid:N) ─┐                     ┌─ Service (handed in): policy, caps, quotas, sessions
//!  TCP + mTLS (cert:X) ─┴► task per client ───┘
//!  HTTP on loopback and a unix socket: the page, /metrics, /healthz, /status
//!  HTTP on the administration socket: sessions, settings, reload
//! ```
//!
//! The crate has no code for backends and decides nothing about keys: the caller builds a
//! [`millrace_service::Service`] over an engine and a key store, and calls [`Node::bind`] and [`Node::run`].
//! Key material, inputs and outputs are never logged.
//!
//! - [`config`]: the configuration of a node, and `node.toml`.
//! - [`node`]: [`Node`], from bind to drain.
//! - [`handle`]: [`NodeHandle`], the state and reload of a running node.
//! - [`tls`]: mutual TLS, and a private CA for sites without one.
//! - [`web`], [`http`]: the page, and the parts of HTTP that the manager uses, too.
#![forbid(unsafe_code)]

mod admin;
pub mod config;
mod connection;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod handle;
pub mod http;
mod imports;
pub mod listener;
pub mod node;
mod on_demand_writable;
pub mod tls;
pub mod web;

pub use config::NodeConfig;
pub use handle::NodeHandle;
pub use node::{Node, StartError};
