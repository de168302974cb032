// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Helpers for the tests of several crates. It is a dev-dependency and never part of a product, so it may
//! panic where a product may not.
//!
//! | of | module | contents |
//! |---|---|---|
//! | backends | [`collector`] | a sink for the completions of a session |
//! | | [`keys`] | fixed private keys, good and bad |
//! | | [`vectors`] | known answers, mostly of Wycheproof |
//! | | [`fake`] | a backend that answers at once with a fixed output, for tests of queues |
//! | | [`device`] | a backend that behaves like a card, with lost tasks and resets |
//! | | [`faulty`] | wraps a backend and makes it fail, lie, panic, wait or refuse, on command |
//! | | `conformance` | the suite that every backend passes; a feature of that name |
//! | | `verify` | the peer's side of every operation, with OpenSSL and RustCrypto; same feature |
//! | hosts | [`machine`] | a folder in the place of a machine's `/` |
//! | | [`qat`] | machines with QAT cards, by a stand-in under Intel's library |
//! | | [`refused_calls`] | system calls that fail, as on a file system that lacks them |
//! | | [`etcd`] | a real etcd cluster, for the manager's store |
//! | the run | [`wait`] | waits for a condition, with a bound |
//! | | [`port`] | ports for servers |
//! | | [`random`] | random numbers from a seed |
//! | | [`timing`] | compares the times of two classes of secrets |
//! | | [`mod@skip`] | records tests that cannot run here; in CI they fail unless the reason is listed |
#![forbid(unsafe_code)]

mod backend;
mod host;
mod run;

pub use backend::{collector, device, fake, faulty, keys, vectors};
#[cfg(feature = "conformance")]
pub use backend::{conformance, verify};
pub use host::{etcd, machine, qat, refused_calls};
pub use run::{is_long, port, random, skip, timing, wait};
