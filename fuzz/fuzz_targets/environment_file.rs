// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a file that `EnvironmentFile=` of a unit names. Reading ends, and no more is found than there is;
//! what is written in quotes reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_hostfs::environment::{parse, words};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let found = parse(&text);
    let size = |(name, value): &(String, String)| name.len() + value.len();
    assert!(found.iter().map(size).sum::<usize>() <= text.len());
    for (_, value) in &found {
        let quoted = format!("A='{}'", value.replace('\'', "'\"'\"'"));
        assert_eq!(parse(&quoted), [("A".to_owned(), value.clone())]);
    }
    for line in text.lines() {
        assert!(words(line).iter().map(String::len).sum::<usize>() <= line.len());
    }
});
