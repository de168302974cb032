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
//! - [`Node`] (`node`): from bind to drain; [`NodeHandle`] (`handle`): the state and reload of a running node.
//! - [`config`]: the configuration of a node, and `node.toml`.
//! - [`listener`]: the sockets, also those that another process has opened. `connection`: the loop of one client over
//!   either; `on_demand_writable`: reads from its stream without a system call for each write; `imports`: the key
//!   checks that one client waits for.
//! - [`tls`]: mutual TLS, and a private CA for sites without one.
//! - [`web`], [`http`]: the page, and bounded HTTP; the manager serves its API by both (ADR 28). `admin`: requests of
//!   operators.
//! - [`places`]: which connection of a listener gives way when its places are taken (ADR 54).
#![forbid(unsafe_code)]

mod admin;
pub mod config;
mod connection;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handle;
pub mod http;
mod imports;
pub mod listener;
mod node;
mod on_demand_writable;
pub mod places;
pub mod tls;
pub mod web;

pub use handle::{NodeHandle, ReloadAction, ReloadError, ReloadReport};
pub use node::{Node, StartError};
