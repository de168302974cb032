// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a configuration of nginx, and of HAProxy. Reading ends, and no more words are found than there
//! are characters.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_gateway::check::server::{haproxy, nginx};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let mut words = 0;
    // What makes no sense is an error with its line, nothing else.
    if let Err(error) = nginx::parse(&text, |directive| words += directive.len()) {
        assert!(error.starts_with("line "));
    }
    assert!(words <= text.len());
    for line in text.lines() {
        assert!(haproxy::words(line).len() <= line.len());
    }
});
