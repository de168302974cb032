// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The run of a test: its length, its random numbers, its ports, its waits, its times, and whether it is skipped.

mod length;
pub mod port;
pub mod random;
pub mod skip;
pub mod timing;
pub mod wait;

pub use length::is_long;
