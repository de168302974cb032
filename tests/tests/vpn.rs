// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Links of many tunnels: real OpenVPN, and connections that carry verified bytes while members die, hang and
//! restart. `vpn_faults.rs` has faults of the path, of certificates and of the host.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use millrace_tests::artifacts::artifacts;
use millrace_tests::link::{Ends, Traffic, declaration, is_possible};
use millrace_tests::process::{Process, program, run, succeed, text_of};
use millrace_tests::{temp_dir, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[test]
fn connections_survive_members_that_die_hang_and_restart() {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(4);
    for end in [0, 1] {
        wait::until("the kernel routes over four members", || {
            ends.kernel_route(end).matches("nexthop").count() == 4
        });
    }
    let mut traffic = Traffic::start(&ends);
    wait::until("every member carries traffic", || {
        (0..4).all(|member| ends.member(0, member)["received_bytes"].as_u64() > Some(10_000))
    });

    traffic.report("no fault");

    // A process dies, and one of the other end.
    for (end, fault) in [(0, "member killed"), (1, "peer killed")] {
        kill_process(ends.pid(end, 1), Signal::KILL).expect("a process");
        traffic.flows();
        wait::until("the member was started again", || ends.member(end, 1)["restarts"] == 1);
        ends.wait_up(4);
        traffic.flows();
        traffic.report(fault);
    }

    // A process hangs: the device keeps its carrier, only the probes notice.
    let hung = ends.pid(1, 2);
    kill_process(hung, Signal::STOP).expect("a process");
    wait::until("both ends route around it", || {
        !ends.routed(0).contains(&2) && !ends.routed(1).contains(&2)
    });
    for end in [0, 1] {
        assert!(!ends.kernel_route(end).contains("mr-2"), "{}", ends.kernel_route(end));
    }
    traffic.flows();
    wait::until("it was killed and started again", || ends.member(1, 2)["restarts"] == 1);
    ends.wait_up(4);
    traffic.report("peer hangs");

    // The supervisor dies; its tunnels do not.
    let before: Vec<Pid> = (0..4).map(|member| ends.pid(0, member)).collect();
    let supervisor = ends.status(0)["supervisor"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    kill_process(supervisor.and_then(Pid::from_raw).expect("a pid"), Signal::KILL)
        .expect("a process");
    traffic.flows();
    ends.up(0);
    ends.wait_up(4);
    let after: Vec<Pid> = (0..4).map(|member| ends.pid(0, member)).collect();
    assert_eq!(before, after, "the second supervisor found the processes of the first");

    traffic.flows();
    traffic.report("supervisor killed");
    traffic.finish();
    for end in [0, 1] {
        let plan = ends.vpn(end, &["down", "mr", "--dry-run"]);
        assert!(plan.contains("ip route delete") && plan.contains("applied.json"), "{plan}");
        let _ = ends.vpn(end, &["down", "mr"]);
        let left = ends.ip(end, "link show");
        assert!(!left.contains("mr-"), "{left}");
        assert_eq!(ends.kernel_route(end), "");
    }
    for pid in after {
        assert!(rustix::process::test_kill_process(pid).is_err(), "{pid:?} still runs");
    }
}

#[test]
fn changed_link_keeps_connections_and_unreached_one_is_rolled_back() {
    if !is_possible() {
        return;
    }
    let ends = Ends::linked(2);
    let mut traffic = Traffic::start(&ends);
    // A second run changes nothing.
    let pids = [ends.pid(0, 0), ends.pid(0, 1)];
    ends.up(0);
    traffic.flows();
    assert_eq!(pids, [ends.pid(0, 0), ends.pid(0, 1)]);

    // Both members restart, one after the other; one that does not exist changes nothing.
    let _ = ends.vpn(0, &["restart", "mr"]);
    traffic.flows();
    let anew = [ends.pid(0, 0), ends.pid(0, 1)];
    assert!(pids.iter().all(|pid| !anew.contains(pid)), "{pids:?} {anew:?}");
    let _ = ends.vpn(0, &["restart", "mr", "--members", "1"]);
    assert_eq!(ends.pid(0, 0), anew[0]);
    assert_ne!(ends.pid(0, 1), anew[1]);
    let output = run(&mut ends.command(0, &["restart", "mr", "--members", "7"]));
    assert!(text_of(&output).contains("link mr has no member 7"), "{}", text_of(&output));
    ends.wait_up(2);
    let pages = ends.vpn(0, &["watch", "mr", "--count", "2", "--interval", "3s"]);
    assert!(pages.contains("last changes:\n  member"), "{pages}");
    assert!(pages.contains(" Mbit/s in, "), "{pages}");

    // The link grows, and shrinks again.
    for members in [3, 2] {
        ends.write(members, "");
        ends.up(0);
        ends.up(1);
        ends.wait_up(usize::from(members));
        traffic.flows();
    }
    wait::until("the device of the third member is gone", || {
        !ends.ip(0, "link show").contains("mr-2")
    });

    // One end moves to ports where the other does not listen.
    let generation = ends.status(0)["generation"].as_u64().expect("a number");
    let text = format!("{}[tunnels]\nport = 2000\n", declaration(ends.dir.path(), 2, ""));
    fs::write(ends.file(), text).expect("link.toml");
    let file = ends.file();
    let up = ["up", file.to_str().expect("text"), "--confirm-within", "4"];
    let output = run(&mut ends.command(0, &up));
    assert!(!output.status.success(), "{}", text_of(&output));
    assert!(text_of(&output).contains("the former configuration is back"), "{}", text_of(&output));
    traffic.flows();
    ends.wait_up(2);
    traffic.report("restarts, changes and a rollback");
    traffic.finish();
    let history: Value =
        serde_json::from_str(&ends.vpn(0, &["history", "mr", "--json"])).expect("JSON");
    let newest = history.as_array().expect("a list").last().expect("a configuration").clone();
    assert!(
        newest["applied"] == true && newest["generation"].as_u64() > Some(generation + 1),
        "{history}"
    );
}

/// Time of a measurement of three candidates: each comes up, carries a second of load and goes down again.
const MEASURED: Duration = Duration::from_secs(300);

#[test]
fn engine_auto_is_measured_then_followed_and_reported_when_it_is_old() {
    if !is_possible() {
        return;
    }
    // strongSwan's own data path: a kernel without ESP would be waited for.
    let ends = Ends::declared(2, "engine = \"auto\"\n[ipsec]\ndata-path = \"user\"");
    let file = ends.file();
    let file = file.to_str().expect("text");
    // Without a measurement nothing is changed, and the remedy is named.
    let output = ends.try_up(0);
    let said = text_of(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("line 3: engine \"auto\" needs a measurement"), "{said}");
    assert!(said.contains("vpn bench --choose"), "{said}");

    let words = ["bench", "--choose", file, "--rounds", "1", "--duration", "1s", "--flows", "4"];
    let log = ends.dir.path().join("bench.log");
    let mut bench = Process::start("bench", ends.command(0, &words), &log);
    let ended = wait::holds_within(MEASURED, || bench.ended().is_some());
    assert!(ended && bench.log().contains("saved to"), "{}", bench.log());
    let record = |end: usize| ends.state_folder(end).join("mr/choice.json");
    let choice = fs::read_to_string(record(0)).expect("the record");
    let choice: Value = serde_json::from_str(&choice).expect("JSON");
    let verdicts = choice["verdicts"].as_array().expect("a list");
    let verdict = |name: &str| {
        let found = verdicts.iter().find(|one| one[0] == name);
        found.unwrap_or_else(|| panic!("{name} in {choice}"))[1].clone()
    };
    // Both of OpenVPN were measured; one of them, or IPsec, was chosen.
    for name in ["one", "many"] {
        assert!(verdict(name).get("out").is_none(), "{choice}");
    }
    let chosen = choice["chosen"].as_str().expect("a candidate");
    assert_eq!(verdict(chosen), "chosen");
    let own = &choice["hosts"][0]["contenders"];
    let own = own.as_array().expect("a list").iter();
    let rates = own.filter(|one| one["rounds"][0]["mbit"].as_f64() > Some(0.0));
    assert!(rates.count() >= 2, "{choice}");

    // The other end takes the record, and both follow it.
    fs::create_dir_all(ends.state_folder(1).join("mr")).expect("a folder");
    fs::copy(record(0), record(1)).expect("a copy");
    let plan = ends.vpn(1, &["plan", file]);
    assert!(plan.contains(&format!("({chosen})")) && !plan.contains("is old"), "{plan}");
    ends.up(0);
    ends.up(1);
    ends.wait_up(if chosen == "many" { 2 } else { 1 });
    let mut traffic = Traffic::start(&ends);
    traffic.flows();
    traffic.finish();

    // A record of another kernel is still followed, and reported as old.
    let mut old = choice.clone();
    old["hosts"][0]["kernel"] = "4.19.0".into();
    fs::write(record(0), old.to_string()).expect("a record");
    let plan = ends.vpn(0, &["plan", file]);
    assert!(plan.contains("is old: the kernel was 4.19.0 then"), "{plan}");
    assert!(plan.contains(&format!("({chosen})")), "{plan}");
}

#[test]
fn bench_measures_the_libcrypto_and_the_configuration_that_it_is_given() {
    if !is_possible() {
        return;
    }
    let dir = temp_dir();
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).expect("a folder");
    let listed = succeed(Command::new("ldd").arg(program("openvpn")));
    let library = listed.lines().find_map(|line| line.trim().strip_prefix("libcrypto.so.3 => "));
    let library = library.and_then(|found| found.split(' ').next()).expect("a library");
    fs::copy(library, copy.join("libcrypto.so.3")).expect("a copy");
    let config = dir.path().join("openssl.cnf");
    let text = "openssl_conf = i\n[i]\nproviders = p\n[p]\ndefault = d\n[d]\nactivate = 1\n";
    fs::write(&config, text).expect("a file");
    let bench = |libcrypto: &Path| {
        let mut command = Command::new(&artifacts().millrace);
        command.args(["vpn", "bench", "--cases", "one", "--rounds", "1", "--duration", "1s"]);
        command.args(["--flows", "2", "--no-loss", "--json", "--libcrypto"]).arg(libcrypto);
        run(command.arg("--openssl-conf").arg(&config))
    };
    // The bench itself compares what the processes have loaded.
    let output = bench(&copy);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text_of(&output)));
    let openssl = &report["plan"]["openssl"];
    assert_eq!(openssl["libcrypto"].as_str(), copy.to_str(), "{report}");
    assert_eq!(openssl["config"].as_str(), config.to_str(), "{report}");
    assert!(report["rows"][0]["mbit"]["median"].as_f64() > Some(0.0), "{report}");
    let output = bench(dir.path());
    assert_eq!(output.status.code(), Some(2), "{}", text_of(&output));
    assert!(text_of(&output).contains("libcrypto.so.3: No such file"), "{}", text_of(&output));
}

#[test]
fn every_problem_is_reported_at_once_and_nothing_is_changed() {
    let dir = temp_dir();
    let file = dir.path().join("link.toml");
    let text = declaration(dir.path(), 99, "cipher = \"BF-CBC\"\ncompress = \"lzo\"\n");
    fs::write(&file, text).expect("link.toml");
    let mut command = Command::new(&artifacts().millrace);
    command.args(["vpn", "up"]).arg(&file);
    for folder in ["run", "state"] {
        command.arg(format!("--{folder}")).arg(dir.path().join(folder));
    }
    let output = run(&mut command);
    let said = text_of(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in
        ["line 2: members is not from 1 to 64", "line 3: cipher", "line 4: unknown key compress"]
    {
        assert!(said.contains(part), "{part} in\n{said}");
    }
    assert!(!dir.path().join("run").exists() && !dir.path().join("state").exists());
    let mut command = Command::new(&artifacts().millrace);
    let output = run(command.args(["vpn", "plan"]).arg(dir.path().join("none.toml")));
    assert_eq!(output.status.code(), Some(2), "{}", text_of(&output));
    assert!(text_of(&output).contains("none.toml: No such file"), "{}", text_of(&output));
    // A file without an end.
    let mut command = Command::new(&artifacts().millrace);
    let output = run(command.args(["vpn", "plan", "/dev/zero"]));
    assert_eq!(output.status.code(), Some(2), "{}", text_of(&output));
    assert!(text_of(&output).contains("it has more than 4194304 bytes"), "{}", text_of(&output));
}
