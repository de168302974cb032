// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! An OpenSSL 3 provider that puts the pool under an application: `millrace.so`.
//!
//! ```text
//!  application ── EVP ──► libcrypto ── dispatch ──► ffi/               ──► "default" in an inner context
//!                                                     │ private operation of a pooled key
//!                                                     ▼
//!                                                   route: breaker → key open? → submit → verify
//!                                                     │
//!                                                     ▼
//!                                                   millrace-client (one I/O thread, one per process)
//! ```
//!
//! A private operation of a key that was loaded goes to the pool, and its result is verified. If the pool
//! does not answer in time and the private key is in this process, OpenSSL does it in an inner library
//! context. That context does everything else, too, with two exceptions:
//! - Primitives that the setting `local` names: key shares, the key schedule of TLS 1.3, and under a slow libcrypto
//!   records and SHA-2. AWS-LC or the lanes compute those in this process, with algorithms, key objects and TLS groups
//!   of their own.
//! - Long messages, which the kernel computes with the setting `kernel_bulk`.
//!
//! Deliberately absent:
//! - Structs of libcrypto, and a libcrypto to link with. The module finds the libcrypto that loads it at run time, so
//!   one binary serves 3.0 and everything after.
//! - A thread, a socket or an open file before the first private operation.
//!
//! | module | contents |
//! |---|---|
//! | [`algorithms`] | the algorithms that are offered, one row each |
//! | [`breaker`] | the circuit breaker: when the pool is not asked |
//! | [`bulk`] | whole messages by the kernel, where that was measured to pay |
//! | [`config`] | sources and values of the configuration |
//! | [`error`] | errors for OpenSSL's error stack |
//! | `ffi` | the C boundary, with `unsafe` |
//! | [`local`] | primitives that AWS-LC computes in this process |
//! | [`names`] | OpenSSL's names of digests |
//! | [`oneshot`] | one result that one thread puts and another waits for |
//! | [`open_key`] | an open key, and what the pool has lately denied for it |
//! | [`operation_params`] | from parameters of OpenSSL to typed operations |
//! | [`process`] | the state of one process: pool, open keys, circuit breaker |
//! | [`remote`] | the pool as traits, and their implementation over the client |
//! | [`route`] | from a private operation to a verified result, without any pointer |
//! | [`sampling`] | which signatures are verified, where verifying all would cost too much |
//! | [`shared_cells`] | counters that other processes read |
//! | [`stats`] | counters as parameters of the provider |
//!
//! # Keys
//!
//! | route | key file | where the private key is | without the pool |
//! |---|---|---|---|
//! | A | any, with `default_properties = ?provider=millrace` | in the application; imported into the node at its first use | done locally |
//! | B | `MILLRACE KEY` PEM stub (name and public key) | in the pool | an error |
//! | C | URI `millrace:name` | in the pool | an error |
//!
//! Keys that the application generates never leave it. It can export a private key that it holds (`genpkey` has to
//! write what it made), and none that the pool holds.
//!
//! # Limits
//! - One libcrypto per process can use the module. It has been run with 3.0, 3.5, 3.6 and 4.0.
//! - OpenSSL does the following in this process, and so not for keys that only the pool has:
//!   - Ed25519 and ML-DSA with a context or a prehash;
//!   - ML-DSA without fresh randomness, or over a message given in parts;
//!   - ECDSA with a nonce derived from the message;
//!   - digests that the pool does not have (SHA-3).
//! - ML-DSA needs OpenSSL 3.5. An algorithm that this OpenSSL lacks is not offered.
//! - A key agreement with a key derivation function in the same call is done locally.
//! - On musl, which has no `ASYNC_JOB`, operations block.
//!
//! With `MILLRACE_LOG` in the environment each operation that the pool did not do, and each error of this provider,
//! writes a line to standard error. Without it the first one of a process that reaches no node does, where standard
//! error is a server's log, a pipe or a terminal.

pub mod algorithms;
pub mod breaker;
pub mod bulk;
pub mod config;
pub mod error;
pub mod local;
pub mod names;
pub mod oneshot;
pub mod open_key;
pub mod operation_params;
pub mod process;
pub mod remote;
pub mod route;
pub mod sampling;
pub mod shared_cells;
pub mod stats;

#[expect(unsafe_code, reason = "OpenSSL and this module call each other through C pointers")]
mod ffi;
