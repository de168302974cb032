// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The rules of a pool as values and state machines, without I/O.
//!
//! - [`node`], [`tenant`], [`ledger`], [`principal`], [`keys`], [`audit`]: the records of the store.
//! - [`name`]: names of nodes, tenants, principals and keys.
//! - [`command`]: administrative changes, and why one is refused.
//! - [`view`]: all records at one revision.
//! - [`placement`]: which nodes serve a tenant; [`plan`]: how slices move between nodes without over-use;
//!   [`balance`]: which tenants move to a node that has become free; [`pace`]: how often either is looked for.
//! - [`core`]: the manager; [`holder`]: the node's side.

pub mod audit;
pub mod balance;
pub mod command;
pub mod core;
pub mod holder;
pub mod keys;
pub mod ledger;
pub mod name;
pub mod node;
pub mod pace;
pub mod placement;
pub mod plan;
pub mod principal;
pub mod tenant;
pub mod view;
