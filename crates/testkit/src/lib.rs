// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Helpers for the tests of several crates. It is a dev-dependency and never part of a product, so it may
//! panic where a product may not.
//!
//! - [`collector`]: a sink for the completions of a session.
//! - [`keys`]: fixed private keys, good and bad.
//! - [`device`]: a backend that behaves like a card, with lost tasks and resets.
//! - [`etcd`]: a real etcd cluster, for the manager's store.
//! - [`fake`]: a backend that answers at once with a fixed output, for tests of queues.
//! - [`faulty`]: wraps a backend and makes it fail, lie, panic, wait or refuse, on command.
//! - [`machine`]: a folder in the place of a machine's `/`.
//! - [`qat`]: machines with QAT cards, by a stand-in under Intel's library.
//! - [`random`]: random numbers from a seed.
//! - [`mod@skip`]: records tests that cannot run here; in CI they fail unless the reason is listed.
//! - [`timing`]: compares the times of two classes of secrets.
//! - [`vectors`]: known answers, mostly of Wycheproof.
//! - [`wait`]: waits for a condition, with a bound.
//! - `conformance` (feature of that name): the suite that every backend passes.
//! - `verify` (same feature): the peer's side of every operation, with OpenSSL and RustCrypto.
#![forbid(unsafe_code)]

pub mod collector;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod device;
pub mod etcd;
pub mod fake;
pub mod faulty;
pub mod keys;
pub mod machine;
pub mod qat;
pub mod random;
pub mod skip;
pub mod timing;
pub mod vectors;
#[cfg(feature = "conformance")]
pub mod verify;
pub mod wait;

/// Whether tests may take hours: `MILLRACE_LONG=1`.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("MILLRACE_LONG").is_some_and(|value| value == "1")
}
