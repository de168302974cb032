// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Statuses of calls and operations.

/// `CpaStatus`.
pub type QatStatus = i32;
/// The call was taken, or the operation succeeded.
pub const SUCCESS: QatStatus = 0;
/// The ring is full, or there is no answer; nothing was taken.
pub const RETRY: QatStatus = -2;
/// A parameter that the library refuses.
pub const INVALID: QatStatus = -4;
/// The card does not have the operation.
pub const UNSUPPORTED: QatStatus = -6;
/// No status of the library: an answer that has not come.
pub const PENDING: QatStatus = i32::MAX;
