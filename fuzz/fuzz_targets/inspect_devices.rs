// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: what drivers and programs print about devices. No input panics, and every
//! list keeps its bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_inspect::kernel::crypto;
use millrace_inspect::network;
use millrace_inspect::offload_status::security_associations;
use millrace_inspect::qat::formats;

fuzz_target!(|text: &str| {
    let lines = text.lines().count();
    let engines = formats::fw_counters(text);
    assert!(engines.len() <= lines);
    assert!(engines.is_sorted_by_key(|engine| engine.engine));
    let keys = formats::dev_cfg(text);
    assert!(keys.values().map(|section| section.len()).sum::<usize>() <= lines);
    assert!(formats::telemetry(text).len() <= lines);
    assert!(formats::services(text).iter().all(|service| !service.is_empty()));
    let _ = (formats::heartbeat(text), formats::interrupts(text, |_| true).count());
    if let Some(ring) = formats::ring("ring", text) {
        assert!(ring.size_bytes > 0 && ring.used_bytes <= ring.size_bytes);
    }
    let algorithms = crypto::algorithms(text);
    assert!(algorithms.len() <= lines);
    for algorithm in &algorithms {
        let taken = crypto::winner(&algorithms, &algorithm.name);
        assert!(taken.is_none_or(|taken| taken.tested && !taken.internal));
        let _ = (algorithm.site(), algorithm.device());
    }
    let _ = network::counters(text);
    for state in security_associations(text) {
        assert!(!state.algorithm.is_empty());
    }
});
