// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Backends of tests, their keys and their jobs, and the suite that every backend passes.

pub mod collector;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod device;
pub mod fake;
pub mod faulty;
pub mod keys;
pub mod vectors;
#[cfg(feature = "conformance")]
pub mod verify;
