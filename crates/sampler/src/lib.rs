// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! CPU time of live processes by class of operation: the offload ceiling.
//!
//! ```text
//!  perf      perf_event_open: an address, about 1000 times per second of CPU time    ┐
//!  target    threads, processors, CPU time as counted by the system                   ├► Samples
//!  hostfs    address → file and offset                                               │
//!  image     offset → function (symbols, .eh_frame), build id                        ┘
//!  calibrate the same libcrypto, one known operation at a time    ──► templates      ┐
//!  unmix     samples → share of each template                                        ├► Profile
//!  rules     classes by the name of a file or function                               ┘
//! ```
//!
//! Distributions ship libcrypto without the names of its internal functions, so names cannot classify a sample.
//! *Calibration* can: the same file computes RSA, ECDSA, AES, ... one after the other under the same sampler,
//! which gives a template of each operation: its distribution over functions. The profile of a process is the
//! mixture of templates that explains its samples best. It also divides functions that several operations
//! share, such as the multiplication of big numbers.
//!
//! Sampling needs no performance counters, so it works in virtual machines, and it changes nothing: the kernel's
//! clock interrupts the process. In a virtual machine an interrupt took 13 µs (OpenSSL signed 4530 times per
//! second without sampling, 3970 times at 10,000 Hz), which is 1.3 % at 997 Hz. Samples of code that runs with
//! interrupts off fall on the place where interrupts are enabled again. The profile reports the share of
//! samples that it could not classify.
//!
//! [`process_tree`] and [`cpu_time`] also serve benchmarks.

#![forbid(unsafe_code)]

mod calibrate;
mod class;
mod error;
mod image;
mod perf;
mod profile;
mod rules;
mod samples;
mod target;
mod unmix;

pub use calibrate::{Calibration, Calibrations};
pub use class::SymbolClass;
pub use error::SampleError;
pub use image::{Image, ImageError, Region};
pub use perf::{DEFAULT_FREQUENCY, MAX_FREQUENCY, Sampler};
pub use profile::{Ceiling, ClassShare, FunctionShare, ObjectShare, Profile, Share};
pub use samples::Samples;
pub use target::{cpu_time, libcryptos_of, process_tree};
