// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a configuration of nginx, of HAProxy, and of a certificate that certbot renews. Reading ends, and no more
//! words are found than there are characters.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_hostfs::{certbot, haproxy, nginx};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let mut words = 0;
    if let Err(error) = nginx::parse(&text, |directive| words += directive.len()) {
        assert!((1..=text.lines().count().max(1) + 1).contains(&error.line));
    }
    assert!(words <= text.len());
    // The lexer alone accepts every text.
    assert!(nginx::Lexer::new(&text).count() <= text.len());
    let lineage = certbot::Lineage::parse("x", &text);
    assert!(lineage.installer.is_none_or(|installer| text.contains(&installer)));
    for line in text.lines() {
        assert!(haproxy::words(line).len() <= line.len());
    }
});
