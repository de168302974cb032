// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The run of a test: its random numbers, its waits, its times, and whether it is skipped.

pub mod random;
pub mod skip;
pub mod timing;
pub mod wait;
