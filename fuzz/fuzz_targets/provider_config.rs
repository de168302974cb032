// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a byte (how many values of the provider's section follow), these, each a byte for the key
//! and a line for the value, and then a `client.toml`. What is accepted is a configuration that a pool
//! takes.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use millrace_provider::config::{Config, load, section_keys};

/// Read by `load` in every run; one per process.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    std::env::temp_dir().join(format!("millrace-fuzz-{}.toml", std::process::id()))
});

fuzz_target!(|data: &[u8]| {
    let Some((&count, mut rest)) = data.split_first() else {
        return;
    };
    let mut section = Vec::new();
    for _ in 0..count % 8 {
        let Some((&key, value)) = rest.split_first() else {
            break;
        };
        let end = value.iter().position(|byte| *byte == b'\n').unwrap_or(value.len());
        let key = section_keys().nth(usize::from(key)).unwrap_or("other");
        let Ok(value) = std::str::from_utf8(&rest[1..=end]) else {
            return;
        };
        section.push((key.to_owned(), value.to_owned()));
        rest = rest.get(end + 2..).unwrap_or_default();
    }
    // Not a file of the fuzzer's choice.
    section.retain(|(key, _)| key != "millrace_config");
    std::fs::write(&*FILE, rest).expect("the temporary directory can be written to");
    match load(&section, Some(&FILE)) {
        Ok(config) => check(&config),
        Err(error) => assert!(!error.text.is_empty()),
    }
});

fn check(config: &Config) {
    assert!(!config.nodes.is_empty());
    assert!(config.pool().check().is_ok());
    let most = Duration::from_secs(60);
    assert!(config.deadline <= most && config.fallback_after <= config.deadline);
    assert!(!config.fallback_after.is_zero());
}
