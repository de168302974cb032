// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The hardware and software that a machine has for cryptography, whether it is used, and what to change.
//!
//! Read-only, on top of `hostfs`: it reads files below one root (`/`, a fixture, an unpacked firmware, a
//! support bundle) and asks a few of the machine's own programs. The CPU time of processes is measured by
//! the crate `sampler`, not here.
//!
//! ```text
//! section.rs known facts, and files that could not be read, with the reason
//! machine.rs maker, system, kernel, memory
//! cpu/       the processors, their extensions for cryptography, and which of them are hidden
//! kernel/    the implementations that the kernel prefers
//! qat/       Intel QAT, all generations
//! accelerators.rs  graphics processors, virtio-crypto, DSA and IAA, /dev/crypto, AF_ALG
//! network.rs kernel TLS, offloading cards, WireGuard, OpenVPN's data channel, IPsec
//! libcrypto/ the crypto libraries, and whether each uses the processor's instructions
//! offload_status/  whether a device serves a running tunnel or server: counters that move
//! doctor/    problems, their impact and remedy; alerts when they change
//! advise/    recommended configurations, with reasons
//! report.rs  all sections of a machine as one report
//! elf.rs     headers of programs and libraries of any architecture
//! ```
//!
//! Each part makes one section of the report with its `section(&Root)`; only `doctor` and `advise` judge
//! the facts.
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
pub mod section;
