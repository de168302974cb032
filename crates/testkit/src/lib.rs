// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What the tests of several crates share. A dev-dependency, never part of a product: it may panic
//! where a product may not.
//!
//! - [`collector`]: where the completions of a session go.
//! - [`keys`]: fixed private keys, good and bad.
//! - [`fake`]: a backend that answers at once with a fixed output, for tests of queues.
//! - [`faulty`]: wraps a backend and makes it fail, lie, panic, wait or refuse, on command.
//! - [`mod@skip`]: tests that cannot run here, recorded, and failing in CI unless listed.
//! - [`timing`]: whether two classes of secrets take the same time.
//! - [`vectors`]: known answers, Wycheproof's above all.
//! - `conformance` (feature of that name): the one suite that every backend passes.
//! - `verify` (same feature): the other side of every operation, by OpenSSL and RustCrypto.
#![forbid(unsafe_code)]

pub mod collector;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod fake;
pub mod faulty;
pub mod keys;
pub mod skip;
pub mod timing;
pub mod vectors;

/// Whether tests may take hours: `MILLRACE_LONG=1`.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("MILLRACE_LONG").is_some_and(|value| value == "1")
}
#[cfg(feature = "conformance")]
pub mod verify;
