// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The documentation that the binary generates: help, manual pages, reference pages, samples.

use std::fs;

use crate::support::{Place, repository};

/// The width of the short help.
const COLUMNS: usize = 79;

const COMMANDS: &[&[&str]] = &[
    &[],
    &["up"],
    &["key"],
    &["key", "import"],
    &["key", "list"],
    &["key", "show"],
    &["key", "remove"],
    &["key", "policy"],
    &["key", "stub"],
    &["cert"],
    &["cert", "authority"],
    &["cert", "node"],
    &["cert", "client"],
    &["status"],
    &["gateway"],
    &["gateway", "check"],
    &["inspect"],
    &["inspect", "cpu"],
    &["inspect", "openssl"],
    &["inspect", "qat"],
    &["inspect", "gpu"],
    &["inspect", "kernel"],
    &["inspect", "used"],
    &["inspect", "ceiling"],
    &["doctor"],
    &["watch"],
    &["bench"],
    &["bench", "crypto"],
    &["bench", "pool"],
    &["bench", "tls"],
    &["completions"],
    &["man"],
];

#[test]
fn short_help_fits_a_terminal_and_long_help_has_an_example() {
    let place = Place::new();
    for command in COMMANDS {
        let help = |flag| {
            let args: Vec<&str> = command.iter().copied().chain([flag]).collect();
            place.run(&args).done().data.clone()
        };
        for line in help("-h").lines() {
            assert!(
                line.chars().count() <= COLUMNS,
                "millrace {}: {line}",
                command.join(" ")
            );
        }
        let leads_on = matches!(command, [] | ["key" | "cert" | "bench"]);
        if !leads_on {
            assert!(
                help("--help").contains("Example"),
                "millrace {}",
                command.join(" ")
            );
        }
    }
    assert!(place.run(&["--help"]).done().data.contains("Exit codes:"));
}

#[test]
fn short_help_of_up_fits_a_small_terminal() {
    let help = Place::new().run(&["up", "-h"]).done().data.clone();
    let lines = help.lines().count();
    assert!(lines <= 36, "{lines} lines:\n{help}");
}

#[test]
fn reference_pages_match_the_binary() {
    let place = Place::new();
    let fresh = place.path("reference");
    place.run(&["reference", fresh.to_str().unwrap()]).done();
    for entry in fresh.read_dir().unwrap().map(Result::unwrap) {
        let committed = repository().join("docs/reference").join(entry.file_name());
        let text = fs::read_to_string(&committed).unwrap_or_default();
        assert!(
            text == fs::read_to_string(entry.path()).unwrap(),
            "{} is stale: run `make docs` and commit the result",
            committed.display()
        );
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let place = Place::new();
    let folder = place.path("man");
    place.run(&["man", folder.to_str().unwrap()]).done();
    for command in COMMANDS {
        let words: Vec<&str> = std::iter::once("millrace")
            .chain(command.iter().copied())
            .collect();
        let page = folder.join(format!("{}.1", words.join("-")));
        let text = fs::read_to_string(&page).unwrap_or_default();
        for part in [".TH", "FILES", "EXIT STATUS", "SEE ALSO"] {
            assert!(text.contains(part), "no {part} in {}", page.display());
        }
    }
    let settings = fs::read_to_string(folder.join("millrace-node.toml.5")).unwrap();
    assert!(settings.contains("drain\\-timeout\\-ms"), "{settings}");
    let up = fs::read_to_string(folder.join("millrace-up.1")).unwrap();
    assert!(up.contains("MILLRACE_STATE"), "{up}");
}

#[test]
fn sample_openssl_configuration_matches_the_gateway_command() {
    let place = Place::new();
    let module = "/usr/lib/millrace/millrace.so";
    let pool = "unix:/run/millrace/node.sock";
    let printed = place.run(&["gateway", "openssl", "--module", module, "--pool", pool]);
    let sample = fs::read_to_string(repository().join("deploy/openssl-millrace.cnf")).unwrap();
    assert!(
        sample == printed.done().data,
        "write it anew:\n{}",
        printed.data
    );
}

#[test]
fn command_line_is_refused_with_code_2() {
    let place = Place::new();
    for args in [
        &["nonsense"][..],
        &["key", "import"],
        &["gateway", "nonsense"],
        &["gateway"],
        &["gateway", "nginx", "--dry-run"],
        &["gateway", "check", "curl"],
        &["up", "--nope"],
        &["up", "--workers", "0"],
        &["up", "--socket-group", "no such group"],
        &["up", "--metrics", "192.0.2.1:1"],
        &[
            "gateway",
            "openssl",
            "--module",
            "/usr/lib/millrace/millrace.so",
            "--pool",
            "nowhere",
        ],
    ] {
        assert_eq!(place.run(args).code, 2, "{args:?}");
    }
}

#[test]
fn completions_exist_for_the_usual_shells() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            place
                .run(&["completions", shell])
                .done()
                .data
                .contains("millrace"),
            "{shell}"
        );
    }
}
