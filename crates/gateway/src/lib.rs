// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Configuration of the servers that the pool is put under (nginx, HAProxy, and others), and the
//! check that a running one really uses it.
//!
//! ```text
//! settings   what a recipe is made from
//! recipe     one file per application: Settings ──► Plan
//! plan       files, snippets for files of others, commands, as values
//! write      Plan ──► compare ──► apply ──► (roll back)
//! verify     the server's own test of its configuration
//! check      a running server ──► Report
//! ```
//!
//! A leaf: it knows files, processes and TLS from outside, and no other crate of ours. What only a node
//! can say comes in through [`check::Node`]. It starts nothing but the servers' own tests
//! (`nginx -t`, `haproxy -c`, `openssl list -providers`), and restarts nothing.
#![forbid(unsafe_code)]

pub mod check;
pub mod plan;
pub mod recipe;
pub mod settings;
pub mod verify;
pub mod write;

pub use plan::Plan;
pub use recipe::Application;
pub use settings::Settings;
