// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Loads a node as one identity: a program of its own, because the kernel tells a node the user of a process.
#![forbid(unsafe_code)]

fn main() -> std::io::Result<()> {
    millrace_tests::load::run()
}
