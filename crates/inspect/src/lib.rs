// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What hardware and crypto this machine has, whether it is used, and what it could ever give.
//!
//! Read-only, on top of `hostfs`: it looks at files below one root (`/`, a fixture, an unpacked firmware, a
//! support bundle), and never changes what it looks at.
//!
//! ```text
//! report.rs  sections: what is known, what could not be read, and why
//! machine.rs maker, system, kernel, memory
//! cpu/       the processors, their extensions for cryptography, and who hides some
//! kernel/    which implementation the kernel takes for an algorithm
//! qat/       Intel QAT, all generations
//! accelerators.rs  graphics processors, virtio-crypto, DSA and IAA, /dev/crypto, AF_ALG
//! network.rs kernel TLS, offloading cards, WireGuard, OpenVPN's data channel, IPsec
//! libcrypto/ the crypto libraries, and whether each makes use of the processor
//! used/      whether a tunnel or server that runs is served by a device: counters that move
//! doctor/    what is wrong, what it costs, what to do; and alerts when that changes
//! advise/    what to configure on such a machine, and why
//! elf.rs     what the headers of a program or library say, of any architecture
//! ```
//!
//! What a part finds is a section of the report, made by its `section(&Root)`; only `doctor` and `advise`
//! judge it.
#![forbid(unsafe_code)]

pub mod accelerators;
pub mod advise;
pub mod cpu;
pub mod doctor;
pub mod elf;
pub mod kernel;
pub mod libcrypto;
pub mod machine;
pub mod network;
pub mod offload_status;
pub mod qat;
pub mod report;
