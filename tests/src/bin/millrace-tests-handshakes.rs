// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Full handshakes against a gateway until standard input ends; `make test-install` runs it outside of the
//! machines under test.
#![forbid(unsafe_code)]

fn main() -> std::io::Result<()> {
    millrace_tests::handshakes::run()
}
