// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The thin shell between a [`Device`](crate::device::Device) and a virtual machine monitor: rings, guest memory,
//! sockets. Rings and the vhost-user protocol are rust-vmm's.
//!
//! - `chain`: one request in guest memory, read once.
//! - `scratch`: a data request on its way through the device.
//! - `backend`: the rings of one device, and the thread that serves them.
//! - `connection`: what one connection remembers of its device and rings.
//! - `mailbox`: completions that wait for the thread of the rings.
//! - `journal`: what outlives the process that serves a device.
//! - `migration`: what moves to another host; `state_key`: under which key.
//! - `listener`: sockets; one device per connection.

mod backend;
mod chain;
mod connection;
mod journal;
pub(crate) mod listener;
mod mailbox;
mod migration;
mod scratch;
mod state_key;

pub use journal::Journal;
pub use listener::{DeviceStatus, Devices, ListenError, SocketFile, SocketSettings, TargetOpener};
pub use migration::MigrationState;
pub use state_key::{STATE_KEY_LEN, StateKey};

/// Entries of a ring, at most. A Linux guest whose ring is full fails requests with ENOMEM, so the recommended size
/// is this.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Data queues of a device, at most. A Linux guest uses only the first.
pub const MAX_DATA_QUEUES: u16 = 16;
