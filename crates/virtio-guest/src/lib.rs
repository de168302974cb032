// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The other side of a device: a virtual machine monitor and a driver in one, in this process. For benchmarks and
//! tests.
//!
//! The guest can build rings that no sane driver builds: every descriptor is under the caller's control.
//!
//! - `guest`: [`Guest`], the monitor and the driver.
//! - `queue`: a ring, its descriptors and answers.
//! - `requests`: the bytes of requests.
#![forbid(unsafe_code)]

mod guest;
mod queue;
mod requests;

pub use guest::{EVENT_INDEX_FEATURE, Guest, INDIRECT_FEATURE, MEMORY_LEN};
pub use queue::{Descriptor, INDIRECT, NEXT, QUEUE_SIZE, Response, Ticket, WRITE};
pub use requests::{
    akcipher_request, cipher_request, cipher_session, control_request, data_request, rsa_session,
    words,
};
