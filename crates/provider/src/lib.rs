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
//! context. That context does everything else, too, except where the setting `local` names primitives: AWS-LC
//! computes those here, with algorithms, key objects and TLS groups of their own. Deliberately absent:
//! structs of libcrypto, a libcrypto to link with (the one that loads the module is found at run time, so one
//! binary serves 3.0 and everything after), a thread, a socket or a file before the first private operation
//! (the configuration is read when the provider is loaded, and closed).
//!
//! - [`config`]: where the configuration comes from and what it may say.
//! - [`route`]: from a private operation to a verified result, without any pointer.
//! - [`process`]: what belongs to one process: open keys, circuit breaker.
//! - [`open_key`]: an open key and what the pool has lately denied for it.
//! - [`algorithms`]: the algorithms that are offered, one row each.
//! - [`operation_params`]: which parameters of OpenSSL make which typed operation.
//! - [`bulk`]: whole packets by the kernel, where that was measured to pay.
//! - [`local`]: what is computed in this process by AWS-LC; [`shared_cells`]: how often, for other processes.
//! - `ffi`: the C boundary. `unsafe` is there, and in the calls of AWS-LC.
//!
//! # Keys
//!
//! | route | key file | where the private key is | without the pool |
//! |---|---|---|---|
//! | A | any, with `default_properties = ?provider=millrace` | in the application; imported into the node at its first use | done locally |
//! | B | `MILLRACE KEY` PEM stub (name and public key) | in the pool | an error that says so |
//! | C | URI `millrace:name` | in the pool | an error that says so |
//!
//! Keys that are generated in the application (ephemeral ones above all) are never sent anywhere.
//! A private key that is in the application can be exported by it as ever (`genpkey` has to write what
//! it made); one that the pool holds cannot.
//!
//! # Limits
//! - One libcrypto per process can use the module. It has been run with 3.0, 3.5, 3.6 and 4.0.
//! - Done here, and so not for keys that only the pool has: Ed25519 and ML-DSA with a context or a prehash,
//!   ML-DSA without fresh randomness or over a message given in parts, ECDSA with a nonce derived from the
//!   message, and digests that the pool does not have (SHA-3).
//! - ML-DSA needs OpenSSL 3.5. An algorithm that this OpenSSL lacks is not offered.
//! - A key agreement with a key derivation function in the same call is done locally.
//! - On musl, which has no `ASYNC_JOB`, operations block.
//!
//! With `MILLRACE_LOG` in the environment each operation that the pool did not do writes a line to standard
//! error. Counters are provider parameters; see [`stats`].

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
pub mod shared_cells;
pub mod stats;

#[expect(unsafe_code, reason = "OpenSSL and this module call each other through C pointers")]
mod ffi;
