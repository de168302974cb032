// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Configuration of accelerator cards through the kernel's sysfs: Intel QAT of generation 4 and later, with the
//! kernel's own drivers.
//!
//! ```text
//!  policy (devices.toml) ──► DeviceSettings ─┐
//!                                            ├─ plan ──► steps ──► apply ──► verify ──► applied
//!  sysfs ─── observe ──────► Observed ───────┘                      │          │
//!                            (kept for `rollback`) ◄────────────────┴──────────┘  back to what was
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `settings` | what a device shall be: services, state, virtual functions, reset |
//! | `policy` | `devices.toml` |
//! | `observe` | what a device is, from `millrace-inspect` |
//! | `plan` | the steps between both, pure |
//! | `apply` | does the steps, verifies, goes back if the device does not come up |
//! | `change` | several devices with a record: the way back after a kill, and `rollback` |
//! | `vyos` | the commands `system acceleration qat` of VyOS, read and written |
//! | `kernel_use` | which algorithms of the kernel the cards serve, and where the processor is faster |
//!
//! Cards of generation 1 and 2 have no such files; Intel's package configures them (`adf_ctl`), and a plan for one
//! is refused with that sentence.
#![forbid(unsafe_code)]

pub mod apply;
pub mod change;
pub mod kernel_use;
pub mod observe;
pub mod plan;
pub mod policy;
pub mod settings;
pub mod vyos;
