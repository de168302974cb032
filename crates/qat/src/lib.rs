// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Intel's user-space library for QAT cards (`libqat`, `libusdm`), opened at run time.
//!
//! ```text
//! QatLibrary ──► QatSession (userStart … userStop; one per process)
//!      └───────► QatRegion (device memory, zeroised when dropped)
//! ```
//!
//! This crate has what every user of the library needs: opening it, device memory, start and stop, events. The
//! functions of a service (public keys in `crates/backends`, compression in `crates/deflate`) are declared where
//! they are used, in tables that [`functions!`] fills.
//!
//! The interface is that of libqat 24.02 to 26.08, whose sizes and offsets are equal; `tests/qat/layout.c` and
//! `tests/qat/layout_dc.c` compare them with Intel's headers. The library checks little, so these hold by
//! construction:
//!
//! - **Device memory.** An address that libusdm does not know is accepted, and the device then uses address 0.
//!   A pointer into data of a request comes from a [`QatRegion`] and from nowhere else.
//! - **Lifetime.** A request and its data stay in place until its answer or the end of the session.
//! - **Functions.** A session's table is found at its start ([`QatLibrary::find`]): `libqat` is loaded again
//!   where the one before left virtual functions open, see [`QatSession`].
//! - **Before the stop** the cards answer what they have ([`drain()`]).
//! - **After an event** the library must not be polled: 24.02 crashes, or its pools of requests are gone after the
//!   next start. So no instance is used while it reads events, and none after one came.
//! - **Fork.** Regions do not exist in a child, and a session belongs to the process that started it.

mod drain;
mod error;
mod maps;
mod pauses;
mod status;
#[expect(unsafe_code, reason = "calls Intel's library")]
mod sys;
mod vfio;

pub use drain::drain;
pub use error::QatError;
pub use pauses::RestartPauses;
pub use status::{INVALID, PENDING, QatStatus, RETRY, SUCCESS, UNSUPPORTED};
pub use sys::{
    ALIGNMENT, DEFAULT_FILES, FlatBuffer, InstanceInfo, Notified, QatHandle, QatLibrary, QatRegion,
    QatSession, SymbolSource, Translate, has_event, notified, prefer_policy,
};
