// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Where the CPU time of live processes goes, by class of operation: the offload ceiling.
//!
//! ```text
//!  perf      perf_event_open: an address, about 1000 times per second of CPU time    ┐
//!  target    which threads, which processors, how much CPU time the system counted   ├► Samples
//!  maps      address → file and offset                                               │
//!  image     offset → function (symbols, .eh_frame), build id                        ┘
//!  calibrate the same libcrypto, doing one known thing at a time  ──► templates      ┐
//!  unmix     samples = so much of each template                                      ├► Profile
//!  rules     what is told by the name of a file or a function                        ┘
//! ```
//!
//! Distributions ship libcrypto without the names of its inner functions, so names do not say what
//! a sample was doing. What does is *calibration*: the same file computes RSA, ECDSA, AES, ... one
//! after the other under the same sampler, and each function gets the distribution it was seen in.
//! The samples of a process are then the mixture of these templates that explains them best, which
//! also divides what several operations share, such as the multiplication of big numbers.
//!
//! It needs no performance counters, so it works in virtual machines, and it changes nothing: the
//! kernel's clock interrupts the process, for 13 µs per sample in the virtual machine where that was
//! measured (OpenSSL signed 4530 times per second without, 3970 times at 10,000 Hz), 1.3 % at 997 Hz. What
//! it cannot see is code that runs with interrupts off (the samples fall on where they are allowed
//! again), and it says which share of the samples it could not classify.

#![forbid(unsafe_code)]

mod calibrate;
mod class;
mod error;
mod image;
mod maps;
mod perf;
mod profile;
mod rules;
mod samples;
mod target;
mod unmix;

pub use calibrate::{Calibration, Calibrations};
pub use class::Class;
pub use error::SampleError;
pub use image::{Image, Region};
pub use maps::{Mapping, parse_maps};
pub use perf::{DEFAULT_FREQUENCY, MAX_FREQUENCY, Sampler};
pub use profile::{Ceiling, ClassShare, FunctionShare, ObjectShare, Profile, Share};
pub use samples::{Samples, libcryptos_of};
