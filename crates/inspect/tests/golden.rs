// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What an inspection reports of each fixture, word by word: `tests/golden/NAME.json`.
//!
//! `MILLRACE_UPDATE_GOLDEN=1 cargo test -p millrace-inspect --test golden` accepts what changed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use millrace_inspect::report::Report;
use millrace_inspect::root::Root;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn fixtures() -> Vec<String> {
    let entries = folder("fixtures").read_dir().expect("fixtures");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

fn report(fixture: &str) -> String {
    let root = Root::open(folder("fixtures").join(fixture)).expect(fixture);
    let mut text = serde_json::to_string_pretty(&Report::of(&root)).expect("JSON");
    text.push('\n');
    text
}

#[test]
fn reports_are_as_they_were() {
    let update = env::var_os("MILLRACE_UPDATE_GOLDEN").is_some();
    let mut stale = Vec::new();
    for fixture in fixtures() {
        let path = folder("tests/golden").join(format!("{fixture}.json"));
        let fresh = report(&fixture);
        if update {
            fs::write(&path, &fresh).expect("writing a golden file");
        }
        if fs::read_to_string(&path).ok().as_deref() != Some(fresh.as_str()) {
            stale.push(fixture);
        }
    }
    assert!(
        stale.is_empty(),
        "reports of {stale:?} changed: see fixtures/README.md for how to accept that"
    );
}

/// A report of a bundle is the report of what was bundled.
#[test]
fn bundles_give_the_same_reports() {
    for fixture in fixtures() {
        let root = Root::open(folder("fixtures").join(&fixture))
            .expect("a root")
            .recording();
        let direct = Report::of(&root);
        let mut bundle = Vec::new();
        root.into_record()
            .write_bundle(&mut bundle)
            .expect("a bundle");
        let replay = Root::from_bundle(bundle.as_slice()).expect("a bundle");
        assert_eq!(Report::of(&replay), direct, "{fixture}");
    }
}
