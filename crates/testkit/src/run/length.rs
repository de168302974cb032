// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The length of a test run.

use std::env;

/// Whether tests may take hours: `MILLRACE_LONG=1`.
#[must_use]
pub fn is_long() -> bool {
    env::var_os("MILLRACE_LONG").is_some_and(|value| value == "1")
}
