// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The documentation that the binary generates: help, manual pages, reference pages, samples.

use std::fs;

use crate::support::{Place, repository};

/// The visible commands, from the headings of the generated reference: the words after `millrace`.
fn commands() -> Vec<Vec<String>> {
    let page = fs::read_to_string(repository().join("docs/reference/cli.md")).unwrap();
    let headings = page.lines().filter_map(|line| line.strip_prefix("## millrace"));
    headings.map(|words| words.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn every_command_prints_both_helps() {
    let place = Place::new();
    for command in commands() {
        for flag in ["-h", "--help"] {
            let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
            args.push(flag);
            assert!(place.run(&args).done().data.contains("Usage:"), "{args:?}");
        }
    }
    let root = place.run(&["--help"]).done().data.clone();
    assert!(root.contains("Exit codes:"));
    assert_eq!(place.run(&["help"]).done().data, root);
    let import = ["help", "key", "import"];
    assert_eq!(place.run(&import).done().data, place.run(&["key", "import", "--help"]).data);
}

/// Lines of a short help: a terminal of 24 rows shows it in little more than one screen.
const SHORT_HELP_LINES: usize = 30;

#[test]
fn short_help_of_every_command_stays_within_its_bound() {
    let place = Place::new();
    for command in commands() {
        let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
        args.push("-h");
        let help = place.run(&args).done().data.clone();
        let lines = help.lines().count();
        assert!(lines <= SHORT_HELP_LINES, "{lines} lines:\n{help}");
    }
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
    for command in commands() {
        let words: Vec<&str> =
            std::iter::once("millrace").chain(command.iter().map(String::as_str)).collect();
        let page = folder.join(format!("{}.1", words.join("-")));
        let text = fs::read_to_string(&page).unwrap_or_default();
        for part in [".TH", "SYNOPSIS", "FILES", "EXIT STATUS", "SEE ALSO"] {
            assert!(text.contains(part), "no {part} in {}", page.display());
        }
        assert!(!text.contains(".SH EXTRA"), "{}", page.display());
        assert!(!text.contains("\\fR\n\n.TP"), "an option without a text in {}", page.display());
    }
    let settings = fs::read_to_string(folder.join("millrace-node.toml.5")).unwrap();
    assert!(settings.contains("drain\\-timeout\\-ms"), "{settings}");
    let up = fs::read_to_string(folder.join("millrace-up.1")).unwrap();
    assert!(up.contains("MILLRACE_STATE"), "{up}");
    let import = fs::read_to_string(folder.join("millrace-key-import.1")).unwrap();
    let (_, examples) = import.split_once(".SH EXAMPLES").unwrap();
    let is_whole = examples.lines().any(|line| line.ends_with("\\-\\-allow\\-cert gateway\\-1"));
    assert!(is_whole, "{examples}");
}

#[test]
fn sample_openssl_configuration_matches_the_gateway_command() {
    let place = Place::new();
    let module = "/usr/lib/millrace/millrace.so";
    let pool = "unix:/run/millrace/node.sock";
    // Where no system's file is, which the text would continue.
    let root = place.path("root");
    fs::create_dir(&root).unwrap();
    let root = root.to_str().unwrap();
    let printed =
        place.run(&["gateway", "openssl", "--provider", module, "--pool", pool, "--root", root]);
    let sample = fs::read_to_string(repository().join("deploy/openssl-millrace.cnf")).unwrap();
    assert!(sample == printed.done().data, "write it anew:\n{}", printed.data);
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
        &["gateway", "nginx", "--local", "--key", "www"],
        &["gateway", "nginx", "--local", "--socket", "/run/node.sock"],
        &["gateway", "nginx", "--compression=only", "--plain-keys"],
        &["gateway", "check", "nginx", "-V"],
        &["inspect", "ceiling"],
        &["compress", "/nonexistent"],
        &["compress", "/", "--endings", "html, css"],
        &["advise", "tls", "--format", "vyos"],
        &["virtio"],
        &["virtio", "status", "--json", "--metrics"],
        &["virtio", "throttle"],
        &["virtio", "throttle", "--ops", "0"],
        &["virtio", "run", "--ops", "few"],
        &["virtio", "recipe", "xen"],
        &["gateway", "check"],
        &["up", "--nope"],
        &["doctor", "--count", "1"],
        &["up", "--workers", "0"],
        &["up", "--socket-group", "no such group"],
        &["up", "--listen-metrics", "192.0.2.1:1"],
        &["gateway", "openssl", "--provider", "/usr/lib/millrace/millrace.so", "--pool", "nowhere"],
    ] {
        assert_eq!(place.run(args).code, 2, "{args:?}");
    }
}

#[test]
fn local_gateway_ignores_the_socket_of_the_environment() {
    let place = Place::new();
    let module = "/usr/lib/millrace/millrace.so";
    let printed = place.run(&["gateway", "haproxy", "--local", "--pq", "--provider", module]);
    assert!(printed.done().data.contains("local = on"), "{}", printed.data);
}

#[test]
fn completions_exist_for_the_usual_shells_without_hidden_commands() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(place.run(&["completions", shell]).done().data.contains("millrace"), "{shell}");
    }
    let script = place.run(&["completions", "bash"]).done().data.clone();
    let offers = script.lines().filter_map(|line| line.trim().strip_prefix("opts="));
    let offered: Vec<&str> = offers.flat_map(|words| words.trim_matches('"').split(' ')).collect();
    assert!(offered.contains(&"up"), "{offered:?}");
    for hidden in ["reference", "ask", "sizes-worker", "supervise"] {
        assert!(!offered.contains(&hidden), "{hidden}");
    }
}

#[test]
fn usage_in_an_error_has_no_option_whose_value_is_in_the_environment() {
    let place = Place::new();
    // The environment of a place has MILLRACE_STATE and MILLRACE_SOCKET.
    let usage = "Usage: millrace key show <NAME>";
    place.run(&["key", "show"]).failed(2, &[usage]);
}

#[test]
fn sample_of_each_configuration_file_is_in_the_reference_and_in_the_manual() {
    let place = Place::new();
    let folder = place.path("man");
    place.run(&["man", folder.to_str().unwrap()]).done();
    let page = repository().join("docs/reference/configuration.md");
    let page = fs::read_to_string(page).unwrap();
    for file in ["node", "devices", "link", "client"] {
        let sample = place.run(&["sample", file]).done().data.clone();
        assert!(page.contains(sample.trim_end()), "{file}");
        let manual = fs::read_to_string(folder.join(format!("millrace-{file}.toml.5"))).unwrap();
        assert!(manual.contains("SEE ALSO"), "{file}");
    }
    let missing = place.run(&["up", "--config", "/nonexistent.toml"]);
    missing.failed(2, &["`millrace sample node` prints one"]);
}
