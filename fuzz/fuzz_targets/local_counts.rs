// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the memory file of a server's provider. It is refused, or its counts are consistent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_edge::local_counts::LocalCounts;

fuzz_target!(|memory: &[u8]| {
    let Some(counts) = LocalCounts::parse(memory) else {
        return;
    };
    let nothing = counts.since(&counts);
    assert_eq!(nothing.operations().count(), 0);
    let (hits, all) = counts.fetches();
    assert!(hits <= all);
    for (name, count) in counts.operations() {
        assert_eq!(counts.of(name), count);
    }
});
