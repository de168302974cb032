// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace doctor` and `millrace watch`, as persons and monitoring systems run them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Place, repository};

fn fixture(name: &str) -> String {
    let path = repository().join("crates/inspect/fixtures").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn doctor_exit_code_reflects_the_worst_finding() {
    let place = Place::new();
    let code = |name: &str, more: &[&str]| {
        let root = fixture(name);
        let args = [&["doctor", "--root", root.as_str()], more].concat();
        let outcome = place.run(&args);
        assert_eq!(outcome.talk, "", "findings are not errors");
        outcome.code
    };
    assert_eq!(code("h100-host", &[]), 0);
    assert_eq!(code("no-accelerator", &[]), 0, "a notice");
    assert_eq!(code("qat-8970", &[]), 10);
    assert_eq!(code("qat-8970", &["--severity", "critical"]), 0);
    assert_eq!(code("qat-down", &[]), 11);
    assert_eq!(code("qat-down", &["--only", "qat-link,qat-heartbeat"]), 0);
    assert_eq!(code("qat-down", &["--nagios"]), 2);
    assert_eq!(code("qat-8970", &["--nagios"]), 1);
    assert_eq!(code("none-at-all", &["--nagios"]), 3);
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    let outcome = place.run(&["doctor", "--root", &empty.to_string_lossy()]);
    assert_eq!(outcome.code, 12, "no /proc to examine");
}

#[test]
fn page_shows_remedies_and_plugin_prints_one_line() {
    let place = Place::new();
    let root = fixture("qat-heartbeat");
    let page = place.run(&["doctor", "--root", &root]).data;
    for words in [
        "CRITICAL  the firmware",
        "[qat-heartbeat]",
        "  seen   ",
        "  means  ",
        "  run    echo down",
    ] {
        assert!(page.contains(words), "{words} is not in\n{page}");
    }
    assert!(!page.contains('\x1b'), "colours are for terminals");
    let line = place.run(&["doctor", "--root", &root, "--nagios"]).data;
    assert!(line.starts_with("MILLRACE CRITICAL - qat-heartbeat, "), "{line}");
    assert!(line.contains("| critical=2 warning=") && line.lines().count() == 1);
}

#[test]
fn doctor_json_matches_its_schema() {
    let place = Place::new();
    let outcome = place.run(&["doctor", "--root", &fixture("qat-8970"), "--json"]);
    let diagnosis: Value = serde_json::from_str(&outcome.data).unwrap();
    let schema = repository().join("docs/reference/doctor.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(schema).unwrap()).unwrap();
    let declared = schema["properties"].as_object().unwrap();
    let parts = diagnosis.as_object().unwrap();
    assert!(parts.keys().eq(declared.keys()), "{:?}", parts.keys());
    let ids: Vec<&str> = diagnosis["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["qat-link", "qat-passed-over"]);
}

#[test]
fn checks_are_listed_and_unknown_ids_refused() {
    let place = Place::new();
    let list = place.run(&["doctor", "--list"]).done().data.clone();
    let json = place.run(&["doctor", "--list", "--json"]).done().data.clone();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(list.lines().count(), json.as_array().unwrap().len() + 1);
    let refused = |args: &[&str], words: &[&str]| place.run(args).failed(2, words);
    refused(&["doctor", "--only", "qat-dwon"], &["qat-dwon", "--list"]);
    refused(&["watch", "--only", "x"], &["--list"]);
    refused(&["doctor", "--interval", "5s"], &["--interval"]);
}

#[test]
fn bundle_gives_the_diagnosis_of_its_machine() {
    let place = Place::new();
    let root = place.path("root");
    fs::create_dir_all(root.join("etc/openvpn")).unwrap();
    fs::create_dir_all(root.join("proc")).unwrap();
    fs::write(root.join("etc/openvpn/a.conf"), "dev tap0\ncomp-lzo\nsecret static.key\n").unwrap();
    fs::write(root.join("proc/cpuinfo"), "processor : 0\nflags : lm aes\n").unwrap();
    let (root, bundle) = (root.to_str().unwrap().to_owned(), place.path("b.tar.gz"));
    let bundle = bundle.to_str().unwrap();
    place.run(&["inspect", "--root", &root, "--bundle", bundle]).done();
    let page = |root: &str| place.run(&["doctor", "--severity", "warning", "--root", root]);
    let direct = page(&root);
    assert_eq!(direct.code, 11, "{}", direct.data);
    assert!(direct.data.contains("openvpn-static-key"));
    assert_eq!(page(bundle).data.replace(bundle, ""), direct.data.replace(&root, ""));
}

#[test]
fn watch_prints_rates_and_alerts_once() {
    let place = Place::new();
    let root = fixture("qat-heartbeat");
    let out = place.path("alerts");
    let text = format!(
        "#!/bin/sh\necho \"$MILLRACE_ALERT_SEVERITY $MILLRACE_ALERT_ID\" >> {}\n",
        out.display()
    );
    // Another process installs it: a file cannot be started (ETXTBSY) while a fork of another test still has
    // it open for writing.
    let (source, program) = (place.write("source", &text), place.path("page-me"));
    let installed = Command::new("install").args(["-m", "700"]).args([&source, &program]).status();
    assert!(installed.unwrap().success());
    let command = format!("command:{}", program.display());
    let args = [
        "watch",
        "--root",
        &root,
        "--interval",
        "100ms",
        "--count",
        "4",
        "--json",
        "--severity",
        "critical",
        "--alert",
        "stdout",
        "--alert",
        &command,
    ];
    let outcome = place.run(&args);
    let lines: Vec<Value> =
        outcome.done().data.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let alerts = lines.iter().filter(|line| line["alert"].is_object());
    let rates: Vec<&Value> = lines.iter().filter(|line| line["rates"].is_object()).collect();
    let alerted: Vec<&str> =
        alerts.map(|line| line["alert"]["finding"]["id"].as_str().unwrap()).collect();
    // The second reading proves that requests hang.
    assert_eq!(alerted, ["qat-errors-fatal", "qat-heartbeat", "qat-stuck"]);
    assert_eq!(rates.len(), 3);
    assert_eq!(rates[0]["rates"]["qat"][0]["requests_per_second"], 0.0);
    let paged = fs::read_to_string(&out).unwrap();
    assert_eq!(paged, "critical qat-errors-fatal\ncritical qat-heartbeat\ncritical qat-stuck\n");
}

#[test]
fn doctor_examines_this_machine() {
    let place = Place::new();
    let outcome = place.run(&["doctor", "--json"]);
    assert!([0, 10, 11].contains(&outcome.code), "{}", outcome.talk);
    let diagnosis: Value = serde_json::from_str(&outcome.data).unwrap();
    assert_eq!(diagnosis["live"], true);
}

/// Kills the child on drop.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        // The child may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn signals_end_a_watch_with_exit_code_0() {
    let place = Place::new();
    for signal in [Signal::TERM, Signal::INT] {
        let root = fixture("qat-8970");
        let mut command = place.command(["watch", "--root", &root, "--interval", "100ms"]);
        let mut child = Guard(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert!(first.contains("requests/s"), "{first}");
        let id = Pid::from_raw(i32::try_from(child.0.id()).unwrap()).unwrap();
        kill_process(id, signal).unwrap();
        // Standard output closes when it ends.
        assert!(lines.map_while(Result::ok).count() < 10_000);
        assert_eq!(child.0.wait().unwrap().code(), Some(0));
    }
}
