// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect ceiling` on a command without cryptography. (The sampler's tests cover cryptography.)

use std::fs;

use serde_json::Value;

use crate::support::Place;

/// A command that spins until it is killed.
const SPIN: [&str; 4] = ["--", "/bin/sh", "-c", "while :; do :; done"];

/// Whether sampling is forbidden here. If so, checks that the message names the missing permission.
fn not_permitted(place: &Place) -> bool {
    let args = [&["inspect", "ceiling", "--duration", "1s"], &SPIN[..]].concat();
    let outcome = place.run(&args);
    let refused = outcome.talk.contains("is not permitted");
    if refused {
        outcome.failed(1, &["CAP_PERFMON", "perf_event_paranoid"]);
    }
    refused
}

#[test]
fn program_without_cryptography_has_no_gain() {
    let place = Place::new();
    if not_permitted(&place) {
        millrace_testkit::skip!("sampling is not permitted");
    }
    let svg = place.path("ceiling.svg");
    let to = svg.to_str().unwrap();
    let head = ["inspect", "ceiling", "--duration", "1s", "--json", "--svg", to];
    let outcome = place.run(&[&head[..], &SPIN[..]].concat());
    let report: Value = serde_json::from_str(&outcome.done().data).unwrap();
    assert_eq!(report["report"], "ceiling");
    assert!(report["samples"].as_u64().unwrap() > 20, "{report}");
    let gain = report["ceiling"]["gain"].as_f64().unwrap();
    assert!((gain - 1.0).abs() < 1e-6, "{report}");
    let classes = report["classes"].as_array().unwrap();
    let application = classes.iter().find(|row| row["class"] == "application");
    assert!(application.unwrap()["share"].as_f64().unwrap() > 0.3, "{report}");
    assert!(fs::read_to_string(svg).unwrap().contains("application"));
}

#[test]
fn table_has_an_interpretation_below() {
    let place = Place::new();
    if not_permitted(&place) {
        millrace_testkit::skip!("sampling is not permitted");
    }
    let head = ["inspect", "ceiling", "--duration", "1s", "--functions", "--rate", "50"];
    let page = place.run(&[&head[..], &SPIN[..]].concat()).done().data.clone();
    for words in ["CLASS", "MS PER REQUEST", "FUNCTION", "application", "1.00x as fast"] {
        assert!(page.contains(words), "{words} is not in\n{page}");
    }
}

#[test]
fn missing_processes_and_programs_are_errors() {
    let place = Place::new();
    if not_permitted(&place) {
        millrace_testkit::skip!("sampling is not permitted");
    }
    let gone = ["inspect", "ceiling", "--pid", "4194300", "--duration", "1s"];
    place.run(&gone).failed(1, &["there is no process 4194300"]);
    place
        .run(&["inspect", "ceiling", "--", "/nonexistent/program"])
        .failed(1, &["cannot start", "/nonexistent/program"]);
    place.run(&["inspect", "ceiling"]).failed(2, &["--pid"]);
}
