// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Configuration that puts the pool under nginx, HAProxy and other servers, and the check that a running server
//! really uses the pool.
//!
//! ```text
//! application    the applications that have a recipe
//! settings       the input of a recipe
//! system_conf    the openssl.cnf that a generated one continues
//! provider_keys  the keys of the provider's section of openssl.cnf
//! recipe         one file per application: Settings ──► Plan
//! plan           files, lines for the user's own files, commands, as values
//! users          units and scripts that use a generated file
//! write          the plan's files compared with those of a host; removal
//! check          a running server ──► Report
//! ```
//!
//! The crate reads and writes files with `hostfs`, which also looks at processes, and makes TLS handshakes from
//! outside; of other crates it knows nothing. Answers that only a node has come in through [`check::Nodes`]. It starts
//! only the servers' own tests (`nginx -t`, `haproxy -c`, `openssl list -providers`), and restarts nothing.
#![forbid(unsafe_code)]

mod application;
pub mod check;
pub mod plan;
mod provider_keys;
pub mod recipe;
pub mod settings;
pub mod system_conf;
mod users;
pub mod write;

pub use application::Application;
