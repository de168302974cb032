// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The report on each fixture, word by word: `tests/golden/NAME.json`.
//!
//! `MILLRACE_UPDATE_GOLDEN=1 cargo test -p millrace-inspect --test golden` accepts what changed.

mod support;

use millrace_hostfs::Root;
use millrace_inspect::report::{Report, ReportParts};
use support::{fixtures, folder, stale};

fn report(fixture: &str) -> String {
    let root = Root::open(folder("fixtures").join(fixture)).expect(fixture);
    let mut text =
        serde_json::to_string_pretty(&ReportParts::from(Report::of(&root))).expect("JSON");
    text.push('\n');
    text
}

#[test]
fn reports_equal_the_golden_files() {
    let stale = stale("tests/golden", "json", report);
    assert!(
        stale.is_empty(),
        "reports of {stale:?} changed: see fixtures/README.md for how to accept that"
    );
}

#[test]
fn bundle_gives_the_report_of_its_machine() {
    for fixture in fixtures() {
        let root = Root::open(folder("fixtures").join(&fixture)).expect("a root").recording();
        let direct = Report::of(&root);
        let mut bundle = Vec::new();
        root.into_record().write_bundle(&mut bundle).expect("a bundle");
        let replay = Root::from_bundle(bundle.as_slice()).expect("a bundle");
        assert_eq!(Report::of(&replay), direct, "{fixture}");
    }
}
