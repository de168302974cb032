// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The page of settings in the guide names every key of the provider, and nothing that is none.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use millrace_provider::config::section_keys;

#[test]
fn settings_guide_names_every_key() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/settings.md");
    let page = fs::read_to_string(page).expect("docs/guide/settings.md");
    let table = page.split("\n\n").find(|part| part.starts_with("| key |"));
    let rows = table.expect("the table of keys").lines().skip(2);
    let named: BTreeSet<&str> = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    assert_eq!(named, section_keys().collect(), "left: the page, right: the code");
}
