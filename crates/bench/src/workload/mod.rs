// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that benchmarks compute, the implementations, and the verification of outputs. Every benchmark of
//! private-key operations uses these types, so two benchmarks that name the same case do the same work.
//!
//! ```text
//!  BenchKey ─► Keys (4 of a type, in PKCS#8 and inside the library)
//!                │
//!  Case ─────────┴─► Requests: operation, inputs, expected outputs ─► Checks: outputs verified
//!                       │
//!                       └─► Contender: the library called directly, or a backend's queue
//! ```
//!
//! | file | what |
//! |---|---|
//! | `cases.rs` | the table of operations and keys that are measured |
//! | `library.rs` | AWS-LC called directly; OpenSSL where AWS-LC has no interface (DH, DSA) |
//! | `requests.rs` | inputs, expected outputs, verification |
//! | `contender.rs` | implementations: the library, or a backend that is handed batches |

mod cases;
mod contender;
mod library;
mod requests;

pub(crate) use self::cases::{CASES, Case};
pub(crate) use self::contender::LanesKind;
pub(crate) use self::contender::{Contender, MeasuredBackend, batches};
pub(crate) use self::library::{Keys, LibraryKey};
pub(crate) use self::requests::{Checks, Requests};
