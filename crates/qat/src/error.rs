// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Errors of Intel's library. Their texts say what to do.

use thiserror::Error;

use crate::status::QatStatus;

/// Why the cards of this machine do not serve.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QatError {
    /// The dynamic linker does not load a library, for this reason.
    #[error(
        "Intel's library for QAT cannot be loaded: {0}; install libqat4 and libusdm0 (Debian) or qatlib"
    )]
    Library(String),
    /// The library lacks a function, in the dynamic linker's words.
    #[error("{0}")]
    Function(String),
    /// This process has opened the library before.
    #[error("this process uses the cards already")]
    InUse,
    /// The operating system refuses the thread of control, for this reason.
    #[error("no thread to control the cards: {0}")]
    Thread(String),
    /// The library does not start, with this status.
    #[error(
        "libqat does not start (status {0}): every virtual function is in use by another process, or the memory that \
         may be locked is too little (16 MiB per function)"
    )]
    Start(QatStatus),
    /// No virtual function has the service.
    #[error("no virtual function offers {what}: set cfg_services of the card to {services}")]
    NoService {
        /// Operations of the service.
        what: &'static str,
        /// Value of `cfg_services`.
        services: &'static str,
    },
    /// An instance does not start.
    #[error("an instance of the card does not start: see the kernel's log")]
    Instance,
    /// The library does not tell the size of its lists of buffers, with this status.
    #[error("libqat does not describe its lists (status {0})")]
    Lists(QatStatus),
    /// There is no memory that the device can reach, for this use.
    #[error("no memory for {0}: raise the limit of locked memory (memlock)")]
    Memory(&'static str),
}
