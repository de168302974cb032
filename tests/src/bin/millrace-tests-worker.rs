// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Does the requests of [`millrace_tests::operations`] that come on standard input. It is a program
//! of its own because OpenSSL reads its configuration once per process.
#![forbid(unsafe_code)]

fn main() -> std::io::Result<()> {
    millrace_tests::operations::serve()
}
