// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Remarks of a command, on standard error.

/// Writes a line to standard error. A full disk or a closed pipe behind it ends no command, which may have made its
/// change already, and no node.
macro_rules! note {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}
