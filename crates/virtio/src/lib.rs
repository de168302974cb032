// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A virtio-crypto device for virtual machines, served by the pool.
//!
//! ```text
//!  guest           virtual machine monitor        this crate                         service, engine
//!  virtio_crypto ─► rings in shared memory ──┬──► vhost ─► request ─► Device ─┬────► private-key jobs
//!                   kick ───── eventfd ──────┘    (shell)  (parser)           └─ in place: AWS-LC
//!                   vhost-user socket ──────────► vhost
//! ```
//!
//! A guest is an attacker. [`request`] and [`device`] get bytes that were read once from its memory, know nothing of
//! rings, and are tested and fuzzed without a virtual machine.
//!
//! - [`spec`]: numbers of the specification, the configuration space.
//! - [`request`]: the parser.
//! - `primitives`: ciphers, hashes and MACs of guests, by AWS-LC.
//! - [`device`]: requests in and answers out; [`session`], `keys`: what it remembers.
//! - [`job_target`]: where private-key jobs go: a service in this process; [`node`]: or nodes, over it.
//! - [`vhost`]: rings, guest memory, sockets.
//! - [`front`]: the process that holds the sockets while the one with the devices comes and goes.
//! - [`control`]: status and limits of a running process; [`recipe`]: device lines of monitors.
//! - [`confine`]: the system calls that a device process gives up.
//! - [`statistics`]: the counters; `cells`: where they lie.

mod cells;
pub mod confine;
pub mod control;
pub mod device;
pub mod front;
pub mod job_target;
mod keys;
pub mod node;
mod primitives;
pub mod recipe;
pub mod request;
pub mod session;
pub mod spec;
pub mod statistics;
pub mod vhost;

pub use keys::MAX_KEYS;
