// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a `/proc/cpuinfo` of any machine. The facts keep their bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_inspect::cpu::CpuInfo;

fuzz_target!(|text: &str| {
    let info = CpuInfo::parse(text);
    assert!(info.processors <= 8_192);
    assert!(info.some_flags.is_disjoint(&info.flags));
    let lines = text.lines().count();
    assert!(info.cores.is_none_or(|cores| cores <= lines));
    assert!(info.sockets.is_none_or(|sockets| sockets <= lines));
});
