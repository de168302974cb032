// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Any bytes as the record of a change: it is refused, or says what is due.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_hostfs::change::{HostChange, HostTime, state_file};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(mut change) = state_file::parse::<HostChange<u64>>(bytes) {
        let now = HostTime::now();
        let due = change.due(&now);
        assert_eq!(change.due(&now), due);
    }
});
