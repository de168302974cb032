// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Changes of a link that have to be confirmed: real tunnels in two network namespaces, changes that break them, and
//! runs, supervisors and machines that end in between.

use std::fs;
use std::path::{Path, PathBuf};

use millrace_hostfs::process::Proc;
use millrace_testkit::skip;
use millrace_tests::link::{Ends, Traffic, declaration, is_possible};
use millrace_tests::process::{Process, run, text_of};
use millrace_tests::{is_long, wait};
use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

const IPSEC: &str = "engine = \"ipsec\"\n[ipsec]\ndata-path = \"user\"\n";

/// Whether strongSwan is here; records a skip if not.
fn has_strongswan() -> bool {
    let there =
        ["/usr/sbin/charon-systemd", "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so"];
    if there.iter().all(|path| Path::new(path).exists()) {
        return true;
    }
    skip::record(file!(), "no strongSwan with its own data path");
    false
}

/// Runs `up` at end a with a text and further words; whether it succeeded, and what it said.
fn up(ends: &Ends, text: &str, more: &[&str]) -> (bool, String) {
    fs::write(ends.file(), text).expect("link.toml");
    let file = ends.file();
    let words = [&["up", file.to_str().expect("text")], more].concat();
    let output = run(&mut ends.command(0, &words));
    (output.status.success(), text_of(&output))
}

/// A text whose OpenVPN process reaches no port at the other end.
fn on_port(ends: &Ends, port: u16) -> String {
    format!("{}[tunnels]\nport = {port}\n", declaration(ends.dir.path(), 1, ""))
}

fn state(ends: &Ends) -> PathBuf {
    ends.state_folder(0).join("mr")
}

fn record(ends: &Ends, name: &str) -> Value {
    let text = fs::read(state(ends).join(name)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or(Value::Null)
}

/// The link.toml of the configuration that is applied at end a.
fn applied_text(ends: &Ends) -> String {
    let generation = record(ends, "applied.json")["generation"].as_u64().unwrap_or(0);
    let file = state(ends).join(format!("history/{generation:06}/link.toml"));
    fs::read_to_string(file).unwrap_or_default()
}

/// Waits until nothing is on trial at end a and a text is in force, and both ends reach each other.
fn wait_settled(ends: &Ends, text: &str) {
    wait::until("the confirmed configuration is in force", || {
        record(ends, "change.json")["trial"].is_null() && applied_text(ends) == text
    });
    ends.wait_up(1);
}

#[test]
fn ipsec_change_that_breaks_the_link_is_rolled_back() {
    if !is_possible() || !has_strongswan() {
        return;
    }
    let ends = Ends::declared(1, IPSEC);
    ends.up(0);
    ends.up(1);
    ends.wait_up(1);
    let good = fs::read_to_string(ends.file()).expect("link.toml");
    let proposals = "ike = [\"aes128gcm16-prfsha256-ecp256\"]\nesp = [\"aes128gcm16-ecp256\"]\n";
    let proposals = good.replace("[ipsec]\n", &format!("[ipsec]\n{proposals}"));
    let cases = [
        ("an address that answers nothing", good.replace("198.18.0.2", "198.18.0.77")),
        ("proposals that the other end does not have", proposals),
    ];
    // Each of them takes its time and two starts of a daemon.
    let count = if is_long() { cases.len() } else { 1 };
    for (what, bad) in cases.into_iter().take(count) {
        assert_ne!(bad, good);
        let (succeeded, said) = up(&ends, &bad, &["--confirm-within", "3"]);
        assert!(!succeeded && said.contains("the former configuration is back"), "{what}: {said}");
        wait_settled(&ends, &good);
    }
    Traffic::start(&ends).finish();
}

#[test]
fn ipsec_change_is_confirmed_by_the_daemon_that_it_started_and_not_before() {
    if !is_possible() || !has_strongswan() {
        return;
    }
    let ends = Ends::declared(1, &format!("path-mtu = 1200\n{IPSEC}"));
    ends.up(0);
    ends.up(1);
    ends.wait_up(1);
    let good = fs::read_to_string(ends.file()).expect("link.toml");
    let daemon = ends.pid(0, 0);
    let better = good.replace("path-mtu = 1200", "path-mtu = 1300");
    let (succeeded, said) = up(&ends, &better, &["--confirm-within", "120"]);
    assert!(succeeded && said.contains("is up, configuration 2"), "{said}");
    assert_ne!(ends.pid(0, 0), daemon, "the former daemon has the former MTU");
    wait_settled(&ends, &better);

    if !is_long() {
        return;
    }
    // Small packets pass, those of the new MTU are lost without a word.
    let _ = ends.ip(1, "link set cable mtu 1350");
    let (succeeded, said) =
        up(&ends, &good.replace("path-mtu = 1200", "path-mtu = 1500"), &["--confirm-within", "4"]);
    assert!(!succeeded && said.contains("the former configuration is back"), "{said}");
    wait_settled(&ends, &better);
    Traffic::start(&ends).finish();
}

#[test]
fn changes_in_a_row_lead_back_to_the_one_confirmed_last_also_without_their_supervisor() {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(1);
    let good = fs::read_to_string(ends.file()).expect("link.toml");
    for port in [2000, 2100] {
        let (succeeded, said) =
            up(&ends, &on_port(&ends, port), &["--confirm-within", "6", "--no-wait"]);
        assert!(succeeded && said.contains("until it is confirmed"), "{said}");
    }
    // The same text once more, and no time: the time of the change goes on.
    let (succeeded, said) = up(&ends, &on_port(&ends, 2100), &["--no-wait"]);
    assert!(succeeded && said.contains("until it is confirmed"), "{said}");
    let trial = record(&ends, "change.json")["trial"].clone();
    assert_eq!((&trial["to"], &trial["within_ms"]), (&3.into(), &6_000.into()), "{trial}");
    // Its supervisor dies within the time. Another one waited for that.
    let supervisor = ends.supervisor(0);
    kill_process(supervisor, Signal::KILL).expect("a process");
    wait_settled(&ends, &good);
    assert_ne!(ends.supervisor(0), supervisor);

    // A person confirms what does not reach the other end, and goes back by hand.
    let bad = on_port(&ends, 2000);
    assert!(up(&ends, &bad, &["--confirm-within", "600", "--no-wait"]).0);
    let said = text_of(&run(&mut ends.command(0, &["confirm", "mr"])));
    assert!(said.contains("is confirmed"), "{said}");
    let change = record(&ends, "change.json");
    assert!(change["trial"].is_null() && applied_text(&ends) == bad, "{change}");
    let said = text_of(&run(&mut ends.command(0, &["confirm", "mr"])));
    assert!(said.contains("no change that waits"), "{said}");
    wait::until("the status shows no time", || ends.status(0)["confirm_within_ms"].is_null());
    let _ = ends.vpn(0, &["rollback", "mr"]);
    wait_settled(&ends, &good);

    // What works confirms itself, long before its time is over.
    let better = declaration(ends.dir.path(), 1, "path-mtu = 1400\n");
    let (succeeded, said) = up(&ends, &better, &["--confirm-within", "600"]);
    assert!(succeeded && said.contains("link mr is up"), "{said}");
    wait_settled(&ends, &better);
    Traffic::start(&ends).finish();
}

/// Ends all processes of end a and takes its devices away, as a restart of the host does; its disk stays.
fn restart_host(ends: &Ends) {
    let down = state(ends).with_file_name("kept");
    let copy = |from: &Path, to: &Path| {
        let mut command = std::process::Command::new("cp");
        assert!(command.arg("-a").arg(from).arg(to).status().expect("cp").success());
    };
    let _ = fs::remove_dir_all(&down);
    copy(&state(ends), &down);
    let _ = ends.vpn(0, &["down", "mr"]);
    // The supervisor that stands by looks once a second, and would find the record that comes back.
    let folder = ends.run_folder(0).display().to_string();
    wait::until("no supervisor is left", || {
        let proc = Proc::open(Path::new("/proc")).expect("/proc");
        let all = proc.named(|_| true).expect("processes");
        all.iter().all(|process| !process.arguments.contains(&folder))
    });
    fs::remove_dir_all(state(ends)).expect("a folder");
    copy(&down, &state(ends));
    // The same record, of another start of the host.
    let path = state(ends).join("change.json");
    let text = fs::read_to_string(&path).expect("a record");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("an id");
    fs::write(path, text.replace(boot.trim(), "another")).expect("a record");
}

#[test]
fn change_that_waits_when_its_host_restarts_is_taken_back_by_the_next_start() {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(1);
    let good = fs::read_to_string(ends.file()).expect("link.toml");
    let bad = on_port(&ends, 2000);
    // A person that runs `up` again reads it; a service brings the confirmed configuration up.
    assert!(up(&ends, &bad, &["--confirm-within", "600", "--no-wait"]).0);
    restart_host(&ends);
    let (succeeded, said) = up(&ends, &bad, &["--no-wait"]);
    assert!(!succeeded && said.contains("was not confirmed in its time"), "{said}");
    assert_eq!(applied_text(&ends), good);
    for _ in 0..if is_long() { 3 } else { 1 } {
        let (succeeded, said) = up(&ends, &bad, &["--no-wait", "--resume"]);
        assert!(succeeded && said.contains("the configuration that was confirmed last"), "{said}");
        wait_settled(&ends, &good);
        restart_host(&ends);
    }
    // What was not refused comes up as it is written.
    assert!(up(&ends, &good, &["--no-wait", "--resume"]).0);
    wait_settled(&ends, &good);
}

/// A step of a run, and what is seen of it once it is done.
type Step<'a> = (&'static str, Box<dyn Fn() -> bool + 'a>);

/// The steps of a change.
fn steps(ends: &Ends) -> Vec<Step<'_>> {
    let stage =
        |stage: &'static str| move || record(ends, "change.json")["trial"]["stage"] == stage;
    let history = state(ends).join("history");
    let known = fs::read_dir(&history).map_or(0, Iterator::count);
    let config = fs::read(state(ends).join("0.conf")).unwrap_or_default();
    let applied = record(ends, "applied.json")["generation"].clone();
    vec![
        ("history", Box::new(move || fs::read_dir(&history).map_or(0, Iterator::count) > known)),
        ("record", Box::new(stage("applying"))),
        ("intended", Box::new(|| state(ends).join("intended.json").exists())),
        (
            "files",
            Box::new(move || fs::read(state(ends).join("0.conf")).unwrap_or_default() != config),
        ),
        ("applied", Box::new(move || record(ends, "applied.json")["generation"] != applied)),
        ("waiting", Box::new(stage("waiting"))),
    ]
}

#[test]
fn run_that_is_killed_after_any_step_leaves_the_confirmed_configuration() {
    if !is_possible() {
        return;
    }
    kill_after_each_step(&Ends::linked(1), |ends, _| on_port(ends, 2000));
    if is_long() && has_strongswan() {
        let ends = Ends::declared(1, IPSEC);
        ends.up(0);
        ends.up(1);
        ends.wait_up(1);
        kill_after_each_step(&ends, |_, good| good.replace("198.18.0.2", "198.18.0.77"));
    }
}

/// Kills a change to a text that does not reach the other end, after each of its steps.
fn kill_after_each_step(ends: &Ends, bad: impl Fn(&Ends, &str) -> String) {
    let good = fs::read_to_string(ends.file()).expect("link.toml");
    let log = ends.dir.path().join("up.log");
    // Every second one in the short form: the record, the files, the record of what waits.
    for index in (0..steps(ends).len()).filter(|index| is_long() || index % 2 == 1) {
        fs::write(ends.file(), bad(ends, &good)).expect("link.toml");
        let file = ends.file();
        let words = ["up", file.to_str().expect("text"), "--no-wait", "--confirm-within", "2"];
        let (step, is_done) = steps(ends).swap_remove(index);
        let mut up = Process::start("up", ends.command(0, &words), &log);
        // The run may be over first: then its time ends.
        while up.ended().is_none() && !is_done() {}
        up.kill();
        if index % 4 == 1 {
            ends.kill_supervisor(0);
            // The service starts the link again, with the same link.toml.
            let again = ["up", file.to_str().expect("text"), "--no-wait", "--resume"];
            let _ = run(&mut ends.command(0, &again));
        }
        wait_settled(ends, &good);
        println!("killed after the step {step}");
    }
    Traffic::start(ends).finish();
}

#[test]
fn change_during_the_start_of_a_process_is_taken_by_it_and_not_confirmed_by_it() {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(1);
    let good = fs::read_to_string(ends.file()).expect("link.toml");
    // A new process stops when it opens its log, before it has its number in a file: its configuration is read.
    let run_folder = ends.run_folder(0).join("mr");
    let log = run_folder.join("0.log");
    let pipe = log.with_extension("pipe");
    mkfifoat(CWD, &pipe, Mode::RWXU).expect("a pipe");
    fs::rename(&pipe, &log).expect("moved");
    let former = ends.pid(0, 0).as_raw_nonzero().get().cast_unsigned();
    kill_process(ends.pid(0, 0), Signal::TERM).expect("a process");
    let config = run_folder.join("0.conf").display().to_string();
    let proc = Proc::open(Path::new("/proc")).expect("processes");
    wait::until("a new process starts", || {
        let running = proc.named(|name| name == "openvpn").expect("processes");
        running.iter().any(|new| new.pid != former && new.arguments.contains(&config))
    });
    let (succeeded, said) =
        up(&ends, &on_port(&ends, 2000), &["--confirm-within", "600", "--no-wait"]);
    assert!(succeeded && said.contains("until it is confirmed"), "{said}");
    let _log = open(&log, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).expect("a pipe");
    let [newest, running] = [state(&ends), run_folder]
        .map(|folder| move || fs::read(folder.join("0.conf")).expect("a configuration"));
    wait::until("the process runs with the newest configuration", || newest() == running());
    let change = record(&ends, "change.json");
    assert_eq!(change["trial"]["stage"], "waiting", "{change}");
    let _ = ends.vpn(0, &["rollback", "mr"]);
    wait_settled(&ends, &good);
}

/// Ways in which a record is of no use.
const DAMAGES: [(&str, &[u8]); 5] = [
    ("empty", b""),
    ("cut short", b"{\"generation\": 1, \"lay"),
    ("garbage", b"\x00\xff\x1b[2J"),
    ("of another form", b"{}"),
    ("of a later version", b"{\"version\": 99}"),
];

/// Damages a record at end a in one of these ways, or gives it to another user.
fn damage(path: &Path, how: usize) -> &'static str {
    if let Some((name, bytes)) = DAMAGES.get(how) {
        fs::write(path, bytes).expect("a record");
        return name;
    }
    std::os::unix::fs::chown(path, Some(65534), None).expect("chown");
    "of another user"
}

#[test]
fn damaged_records_of_a_link_name_remedies_that_work_and_cut_nothing() {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(1);
    let good = fs::read_to_string(ends.file()).expect("link.toml");
    let tunnel = ends.pid(0, 0);
    let mut traffic = Traffic::start(&ends);
    let said_by = |words: &[&str]| {
        let output = run(&mut ends.command(0, words));
        (output.status.success(), text_of(&output))
    };
    // Every second one in the short form: cut short, of another form, of another user.
    for how in (0..=DAMAGES.len()).filter(|how| is_long() || how % 2 == 1) {
        // What is applied: the remedy is `up`, which plans it anew from the history.
        let path = state(&ends).join("applied.json");
        let name = damage(&path, how);
        let (succeeded, said) = said_by(&["history", "mr"]);
        assert!(
            !succeeded && said.contains("`millrace vpn up LINK.TOML` makes it anew"),
            "{name}: {said}"
        );
        // Records of a run that was killed, and of changes, are made anew in passing.
        for record in ["change.json", "intended.json"] {
            let path = state(&ends).join(record);
            fs::write(&path, "x").expect("a record");
            damage(&path, how);
        }
        if how % 3 == 0 {
            // A supervisor that starts makes do, too.
            ends.kill_supervisor(0);
        }
        let (succeeded, said) = up(&ends, &good, &["--no-wait"]);
        assert!(succeeded, "{name}: {said}");
        let (succeeded, said) = said_by(&["history", "mr"]);
        assert!(succeeded && said.contains("applied"), "{name}: {said}");
        wait_settled(&ends, &good);
        assert_eq!(record(&ends, "change.json")["confirmed"], 1, "{name}");
    }
    assert_eq!(ends.pid(0, 0), tunnel, "the process of the tunnel never stopped");
    traffic.flows();
    traffic.finish();

    // Without its history nothing is left to plan from: the devices are known by their names.
    fs::remove_dir_all(state(&ends).join("history")).expect("a folder");
    damage(&state(&ends).join("applied.json"), 0);
    let (succeeded, said) = up(&ends, &good, &["--no-wait"]);
    assert!(succeeded, "{said}");
    wait_settled(&ends, &good);
    // `down` of a damaged link takes all of it away.
    damage(&state(&ends).join("applied.json"), 2);
    let _ = ends.vpn(0, &["down", "mr"]);
    assert!(!ends.ip(0, "link show").contains("mr-0"));
    assert!(rustix::process::test_kill_process(tunnel).is_err());
}

#[test]
fn damaged_choice_of_an_engine_names_a_remedy_that_works() {
    if !is_possible() {
        return;
    }
    let ends = Ends::declared(2, "engine = \"auto\"\n[ipsec]\ndata-path = \"user\"");
    let text = fs::read_to_string(ends.file()).expect("link.toml");
    let choice = state(&ends).join("choice.json");
    fs::create_dir_all(state(&ends)).expect("a folder");
    let good = r#"{"name":"mr","goal":"throughput","chosen":"one","verdicts":[],"hosts":[]}"#;
    for how in 0..=DAMAGES.len() {
        fs::write(&choice, good).expect("a choice");
        let name = damage(&choice, how);
        let (succeeded, said) = up(&ends, &text, &["--dry-run"]);
        assert!(!succeeded, "{name}: {said}");
        assert!(said.contains("remove it, then measure anew"), "{name}: {said}");
        assert!(said.contains("or copy the other end's choice.json"), "{name}: {said}");
        fs::remove_file(&choice).expect("removed");
        let copy = ends.dir.path().join("choice-of-b.json");
        fs::write(&copy, good).expect("a choice");
        fs::copy(&copy, &choice).expect("a copy");
        let (succeeded, said) = up(&ends, &text, &["--dry-run"]);
        assert!(succeeded, "{name}: {said}");
    }
    // A choice in the history: the configuration of its time cannot be had, others can.
    assert!(up(&ends, &text, &["--no-wait"]).0);
    damage(&state(&ends).join("history/000001/choice.json"), 1);
    let output = run(&mut ends.command(0, &["rollback", "mr", "--to", "1", "--dry-run"]));
    let said = text_of(&output);
    assert!(!output.status.success() && said.contains("apply link.toml itself"), "{said}");
    let (succeeded, said) = up(&ends, &text, &["--no-wait"]);
    assert!(succeeded && said.contains("configuration 2"), "{said}");
}
