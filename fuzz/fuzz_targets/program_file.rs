// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a program file whose functions are to be found (even first byte), or what `/proc/PID/maps`
//! says (odd). Functions come out in order and are found at their own addresses; mappings hold their
//! first address and not the one behind their last.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use millrace_hostfs::maps::mappings;
use millrace_sampler::Image;

fuzz_target!(|data: &[u8]| {
    let Some((&which, data)) = data.split_first() else {
        return;
    };
    if which & 1 == 1 {
        for mapping in mappings(data) {
            assert_eq!(mapping.file_offset(mapping.start), Some(mapping.offset));
            assert_eq!(mapping.file_offset(mapping.end), None);
        }
        return;
    }
    let Ok(image) = Image::parse(data, Path::new("program")) else {
        return;
    };
    let mut before = None;
    for region in image.regions() {
        assert!(before < Some(region.start));
        before = Some(region.start);
        assert_eq!(image.region(region.start), Some(region));
    }
    for offset in [0, 64, u64::MAX] {
        let _ = image.address(offset);
    }
});
