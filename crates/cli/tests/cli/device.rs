// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace device` on a folder that is a machine with one QAT card. Its files keep what is written, so the card
//! obeys at once; no virtual function ever appears, which is the failure of a card.

use std::fs;

use millrace_device::policy::MAX_POLICY_BYTES;
use millrace_testkit::machine::MachineFolder;
use serde_json::Value;

use crate::schema::assert_valid;
use crate::support::{Outcome, Place};

const CARD: &str = "0000:6b:00.0";
const POLICY: &str = "etc/millrace/devices.toml";

/// A machine below the folder of a test.
struct Machine {
    place: Place,
    root: MachineFolder,
}

impl Machine {
    /// A machine with a card that is up.
    fn new() -> Self {
        let machine = Self::without_card();
        machine.root.qat_card(CARD);
        machine
    }

    fn without_card() -> Self {
        let place = Place::new();
        let root = MachineFolder::new(place.path("root"));
        Self { place, root }
    }

    /// One virtual function, which a process has open.
    fn with_function_in_use(self) -> Self {
        let enabled = format!("sys/bus/pci/devices/{CARD}/sriov_numvfs");
        self.root.put(&enabled, "1");
        self.root.qat_function(CARD, "0000:6b:00.1", 101);
        self.root.put("proc/42/comm", "gateway");
        self.root.link("proc/42/fd/9", "/dev/vfio/101");
        self
    }

    /// Contents of the card's files: state, services, reset after errors.
    fn card(&self) -> [String; 3] {
        ["state", "cfg_services", "auto_reset"].map(|file| {
            let file = format!("sys/bus/pci/devices/{CARD}/qat/{file}");
            self.root.get(&file)
        })
    }

    /// Runs `millrace device`.
    fn device(&self, args: &[&str]) -> Outcome {
        let root = ["--root", self.root.path().to_str().unwrap()];
        self.place.run(&[&["device"][..], args, &root].concat())
    }
}

#[test]
fn cards_are_listed_and_shown_as_tables_and_as_json_of_the_schema() {
    let machine = Machine::new().with_function_in_use();
    let table = machine.device(&["list"]).done().data.clone();
    for word in [CARD, "qat_dev0", "up", "sym;asym", "1 of 16", "gateway (42)"] {
        assert!(table.contains(word), "no {word} in\n{table}");
    }
    let page = machine.device(&["show", "qat_dev0"]).done().data.clone();
    assert!(page.contains("0000:6b:00.1") && page.contains("/dev/vfio/101"), "{page}");
    for args in [&["list", "--json"][..], &["show", CARD, "--json"]] {
        let json = machine.device(args).done().data.clone();
        assert_valid(&json, "devices");
        let devices: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(devices[0]["device"]["address"], CARD, "{args:?}");
        assert_eq!(devices[0]["functions"][0]["holders"][0]["pid"], 42);
    }
    let none = Machine::without_card();
    let outcome = none.device(&["list"]);
    assert_eq!((outcome.code, outcome.data.as_str()), (0, ""));
    assert!(outcome.talk.contains("no QAT device"), "{outcome:?}");
    assert_eq!(none.device(&["list", "--json"]).done().data.trim(), "[]");
}

#[test]
fn card_is_planned_changed_saved_applied_and_rolled_back() {
    let machine = Machine::new();
    let plan = machine.device(&["services", CARD, "asym", "--dry-run"]);
    let steps = ["down > ", "'asym' > ", "up > "];
    let lines: Vec<&str> = plan.done().data.lines().collect();
    assert_eq!(lines.len(), steps.len(), "{lines:?}");
    assert!(lines.iter().zip(steps).all(|(line, step)| line.contains(step)));
    assert_eq!(machine.card(), ["up", "sym;asym", "off"], "a plan alone");

    let changed = machine.device(&["services", CARD, "asym", "--json"]);
    assert_valid(&changed.done().data, "device-change");
    let change: Value = serde_json::from_str(&changed.data).unwrap();
    assert_eq!(change[0]["result"]["outcome"], "applied");
    assert_eq!(machine.card(), ["up", "asym", "off"]);

    let on = &["enable", "all", "--auto-reset", "on", "--save"];
    machine.device(on).done();
    assert_eq!(machine.card(), ["up", "asym", "on"]);
    assert!(machine.root.get(POLICY).contains("auto-reset = true"));
    assert!(machine.device(&["apply"]).done().talk.contains("nothing to change"));

    machine.device(&["disable", "qat_dev0"]).done();
    assert_eq!(machine.card()[0], "down");
    machine.device(&["apply"]).done();
    assert_eq!(machine.card(), ["up", "asym", "on"], "the policy again");
    let back = machine.device(&["rollback"]);
    assert!(back.done().talk.contains("changed and verified"));
    assert_eq!(machine.card()[0], "down", "as before the last change");
}

#[test]
fn card_on_which_a_change_fails_goes_back_to_what_it_was() {
    let machine = Machine::new();
    let args = ["virtual-functions", CARD, "2", "--wait", "1", "--json"];
    let outcome = machine.device(&args);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert!(outcome.talk.contains("back to what it was"), "{outcome:?}");
    assert_valid(&outcome.data, "device-change");
    let change: Value = serde_json::from_str(&outcome.data).unwrap();
    assert_eq!(change[0]["result"]["outcome"], "rolled-back");
    let count = machine.root.get(&format!("sys/bus/pci/devices/{CARD}/sriov_numvfs"));
    assert_eq!(count.trim(), "0");
}

#[test]
fn functions_of_running_programs_are_not_taken_without_force() {
    let machine = Machine::new().with_function_in_use();
    let refused = machine.device(&["disable", CARD]);
    refused.failed(1, &["gateway (42) has 0000:6b:00.1", "--force"]);
    assert_eq!(machine.card()[0], "up");
    // What takes no function needs no force.
    machine.device(&["enable", CARD, "--auto-reset", "on"]).done();
    assert_eq!(machine.card()[2], "on");
}

#[test]
fn mistakes_are_refused_with_what_to_do_before_anything_is_written() {
    let machine = Machine::new();
    let before = machine.card();
    #[rustfmt::skip]
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["show", "0000:ff:00.0"], 2, &["there is no device", CARD]),
        (&["enable", "qat_dev1"], 2, &["there is no device", CARD]),
        (&["enable", CARD, "--auto-reset", "maybe"], 2, &["maybe", "off"]),
        (&["disable", CARD, "--wait", "0"], 2, &["--wait"]),
        (&["services", CARD, "cy"], 2, &["cy", "asym"]),
        (&["virtual-functions", CARD, "17"], 2, &["at most 16"]),
        (&["virtual-functions", CARD, "many"], 2, &["many"]),
        (&["apply"], 2, &[POLICY, "millrace sample devices"]),
        (&["rollback"], 2, &["nothing to go back to"]),
        (&["vyos", "set", "system", "acceleration", "gpu"], 2, &["gpu"]),
    ];
    for (args, code, words) in cases {
        machine.device(args).failed(*code, words);
    }
    machine.root.put(POLICY, "[qat]\nstate = \"on\"");
    machine.device(&["apply"]).failed(2, &["line 2", "`up` or `down`"]);
    assert_eq!(machine.card(), before);
    // The record is of no use; the remedy that the message names is.
    for damaged in ["", "{", "garbage", "{}", "{\"version\":9}"] {
        machine.root.put("var/lib/millrace/devices/change.json", damaged);
        machine
            .device(&["rollback"])
            .failed(1, &["`millrace device services`", "writes the file anew"]);
        machine.device(&["services", CARD, "asym"]).done();
        machine.device(&["rollback"]).done();
        assert_eq!(machine.card(), before, "{damaged}");
    }

    let none = Machine::without_card();
    none.root.put(POLICY, "[qat]\nstate = \"up\"");
    none.device(&["apply"]).failed(1, &["no QAT device"]);
    let elsewhere = none.place.path("nowhere");
    let args = ["device", "list", "--root", elsewhere.to_str().unwrap()];
    none.place.run(&args).failed(1, &["nowhere"]);
}

#[test]
fn policy_that_is_a_pipe_or_too_long_is_refused_with_the_reason() {
    let machine = Machine::new();
    let policy = machine.root.path().join(POLICY);
    // The first file has the longest policy that is taken. The second one, cut to that length, would be a policy, too.
    machine.root.put(POLICY, "");
    fs::write(&policy, "#\n".repeat(MAX_POLICY_BYTES / 2)).unwrap();
    machine.device(&["apply"]).done();
    fs::write(&policy, format!("{}[", "#\n".repeat(MAX_POLICY_BYTES / 2))).unwrap();
    machine.device(&["apply"]).failed(1, &["devices.toml", "more than"]);
    fs::remove_file(&policy).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &policy, rustix::fs::Mode::RWXU).unwrap();
    machine.device(&["apply"]).failed(1, &["devices.toml", "a pipe"]);
}
