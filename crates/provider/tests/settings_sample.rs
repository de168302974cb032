// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The sample of the provider's file has every key at its default.

use std::fs;

use millrace_edge::settings::sample;
use millrace_provider::config::{Config, load, section_keys};

#[test]
fn sample_has_every_key_at_its_default() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("client.toml");
    let read = |text: &str| {
        fs::write(&file, text).expect("writing");
        load(&[], Some(&file)).expect("settings")
    };
    let sample = sample();
    assert_eq!(Config { file: None, ..read(&sample) }, Config::default());
    // Keys without a default are comments in the sample; they must parse as well.
    let all: String = sample
        .lines()
        .map(|line| line.strip_prefix("#: ").unwrap_or(line).to_owned() + "\n")
        .collect();
    read(&all);
    for key in section_keys().filter(|key| *key != "millrace_config") {
        assert!(all.lines().any(|line| line.starts_with(&format!("{key} = "))), "{key}");
    }
}
