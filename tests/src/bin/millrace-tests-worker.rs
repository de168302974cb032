// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Answers requests of [`millrace_tests::operations`] from standard input: a program of its own, because OpenSSL
//! reads its configuration once per process.
#![forbid(unsafe_code)]

fn main() -> std::io::Result<()> {
    millrace_tests::operations::serve()
}
