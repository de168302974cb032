// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `vpn down` beside, soon after and in place of an `up`: whatever was killed when, nothing of the link stays, and the
//! next `up` succeeds. One end with real OpenVPN; its peer is away, so that each process only tries to connect.

use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_hostfs::process::{Proc, Process as Running};
use millrace_tests::link::{Ends, is_possible};
use millrace_tests::process::{Process, program, run, text_of};
use millrace_tests::{scaled, wait};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Members of the larger and of the smaller link.
const MORE: u16 = 4;
const LESS: u16 = 2;

/// Processes of end a: tunnels, supervisors and commands.
fn running(ends: &Ends) -> Vec<Running> {
    let folder = ends.run_folder(0).display().to_string();
    let proc = Proc::open(Path::new("/proc")).expect("/proc");
    let mut all = proc.named(|_| true).expect("processes");
    all.retain(|process| process.arguments.iter().any(|word| word.contains(&folder)));
    all
}

fn tunnels(ends: &Ends) -> Vec<u32> {
    let all = running(ends).into_iter().filter(|process| process.name == "openvpn");
    all.map(|process| process.pid).collect()
}

/// Devices of end a that have the link's name.
fn devices(ends: &Ends) -> Vec<String> {
    let text = ends.ip(0, "-oneline link show");
    let names = text.lines().filter_map(|line| line.split(": ").nth(1));
    names.filter(|name| name.starts_with("mr-")).map(str::to_owned).collect()
}

fn pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid")
}

/// Brings the link up with this number of members, and waits until each has a process.
#[track_caller]
fn up(ends: &Ends, members: u16) {
    ends.write(members, "");
    ends.up(0);
    wait_running(ends, members);
}

#[track_caller]
fn wait_running(ends: &Ends, members: u16) {
    let wanted = usize::from(members);
    let runs = wait::holds_within(wait::SOON, || {
        let status = ends.status(0);
        let all = status["members"]
            .as_array()
            .map_or(0, |all| all.iter().filter(|member| member["pid"].is_u64()).count());
        all == wanted && devices(ends).len() == wanted && tunnels(ends).len() == wanted
    });
    let found = (ends.status(0), devices(ends), running(ends));
    assert!(runs, "no link of {members} members: {found:#?}");
}

/// Takes the link down; nothing of it is left.
#[track_caller]
fn down(ends: &Ends, when: &str) {
    let output = run(&mut ends.command(0, &["down", "mr"]));
    assert!(output.status.success(), "{when}: {}", text_of(&output));
    assert_nothing_left(ends, when);
}

#[track_caller]
fn assert_nothing_left(ends: &Ends, when: &str) {
    assert_eq!((devices(ends), tunnels(ends)), (Vec::new(), Vec::new()), "{when}");
    let routes = ends.ip(0, "route show proto 190");
    assert_eq!(routes, "", "{when}");
    // A supervisor that an `up` started too late finds no link, and ends.
    wait::until("no process is left", || running(ends).is_empty());
    let state = ends.state_folder(0).join("mr");
    for record in ["applied.json", "intended.json", "change.json"] {
        assert!(!state.join(record).exists(), "{when}: {record}");
    }
}

/// A command of end a in the background.
fn start(ends: &Ends, command: Command) -> Process {
    Process::start("vpn", command, &ends.dir.path().join("vpn.log"))
}

#[test]
fn down_soon_after_an_up_of_fewer_members_leaves_nothing() {
    if !is_possible() {
        return;
    }
    let ends = Ends::new(MORE);
    for round in 0..scaled(2, 20) {
        up(&ends, MORE);
        ends.write(LESS, "");
        ends.up(0);
        // Once at once, and once when the first of the processes that go has ended.
        if round % 2 == 1 {
            wait::until("a process ends", || tunnels(&ends).len() < usize::from(MORE));
        }
        down(&ends, &format!("round {round}"));
    }
}

#[test]
fn down_beside_an_up_takes_down_what_that_has_made_and_up_beside_a_down_brings_the_link_up() {
    if !is_possible() {
        return;
    }
    let ends = Ends::new(MORE);
    let state = ends.state_folder(0).join("mr");
    for round in 0..scaled(3, 30) {
        up(&ends, LESS);
        ends.write(MORE, "");
        let mut raising = start(&ends, ends.up_command(0));
        let begun = || state.join("intended.json").exists();
        while raising.ended().is_none() && !begun() {}
        down(&ends, &format!("round {round}"));
        assert!(raising.wait().success(), "round {round}: {}", raising.log());
        assert_nothing_left(&ends, &format!("round {round}, after both"));

        up(&ends, LESS);
        ends.write(MORE, "");
        let supervisor = ends.supervisor(0);
        let mut lowering = start(&ends, ends.command(0, &["down", "mr"]));
        // It has the lock, and has begun.
        while lowering.ended().is_none() && test_kill_process(supervisor).is_ok() {}
        ends.up(0);
        assert!(lowering.wait().success(), "round {round}: {}", lowering.log());
        wait_running(&ends, MORE);
    }
}

#[test]
fn down_after_an_up_that_was_killed_leaves_nothing() {
    if !is_possible() {
        return;
    }
    let ends = Ends::new(MORE);
    let state = ends.state_folder(0).join("mr");
    for round in 0..scaled(4, 40) {
        up(&ends, MORE);
        let applied = || fs::read(state.join("applied.json")).unwrap_or_default();
        let before = applied();
        ends.write(LESS, "");
        let mut raising = start(&ends, ends.up_command(0));
        let is_done = || match round % 4 {
            0 => state.join("intended.json").exists(),
            1 | 2 => applied() != before,
            _ => tunnels(&ends).len() < usize::from(MORE),
        };
        while raising.ended().is_none() && !is_done() {}
        raising.kill();
        if round % 2 == 0 {
            kill_process(ends.supervisor(0), Signal::KILL).expect("a process");
        }
        if round % 4 == 2 {
            // Another run, and the supervisor that it starts, complete the change.
            ends.up(0);
            wait_running(&ends, LESS);
        }
        down(&ends, &format!("round {round}"));
    }
}

#[test]
fn processes_and_devices_that_no_record_names_are_taken_over_by_up_and_away_by_down() {
    if !is_possible() {
        return;
    }
    let ends = Ends::new(MORE);
    // What earlier versions left: devices and processes, and no record.
    let lose = || {
        up(&ends, MORE);
        kill_process(ends.supervisor(0), Signal::KILL).expect("a process");
        let lost = tunnels(&ends);
        for folder in [ends.state_folder(0), ends.run_folder(0)] {
            fs::remove_dir_all(folder.join("mr")).expect("a folder");
        }
        lost
    };
    let is_gone = |lost: &[u32]| lost.iter().all(|lost| test_kill_process(pid(*lost)).is_err());

    let lost = lose();
    // A remedy of earlier versions: the process spins, and holds its port.
    let _ = ends.ip(0, "link delete mr-2");
    up(&ends, MORE);
    assert!(is_gone(&lost), "{lost:?} of {:?}", running(&ends));

    // Fewer members than were left.
    let lost = lose();
    up(&ends, LESS);
    assert!(is_gone(&lost), "{lost:?} of {:?}", running(&ends));
    down(&ends, "after an up");

    let lost = lose();
    let output = run(&mut ends.command(0, &["down", "mr"]));
    assert!(output.status.success(), "{}", text_of(&output));
    assert_eq!((devices(&ends), tunnels(&ends)), (Vec::new(), Vec::new()));
    assert!(is_gone(&lost), "{lost:?} of {:?}", running(&ends));
    let said = text_of(&run(&mut ends.command(0, &["down", "mr"])));
    assert!(said.contains("link mr is not up"), "{said}");
}

/// Holds a TUN device of a name open.
const HOLDER: &str = "
import fcntl, os, struct, sys, time
tun = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack('16sH', sys.argv[1].encode(), 0x1001))
print('open', flush=True)
time.sleep(600)
";

#[test]
fn device_that_a_foreign_process_holds_is_named_with_a_remedy_that_works() {
    if !is_possible() {
        return;
    }
    let ends = Ends::new(MORE);
    let hold = |device: &str| {
        let mut command = Command::new(program("python3"));
        command.args(["-c", HOLDER, device]);
        let log = ends.dir.path().join("holder.log");
        let _ = fs::remove_file(&log);
        let mut inside = Command::new(program("nsenter"));
        inside.args(ends.command(0, &[]).get_args().take(1));
        inside.arg(command.get_program()).args(command.get_args());
        let mut holder = Process::start("holder", inside, &log);
        holder.wait_ready(|| fs::read_to_string(&log).is_ok_and(|text| text.contains("open")));
        holder
    };
    // The remedy names the process.
    let assert_names = |said: &str, holder: &Process| {
        let remedy = said.split('`').find(|part| part.starts_with("grep ")).expect("a command");
        let mut shell = Command::new(program("sh"));
        let found = text_of(&run(shell.args(["-c", remedy])));
        assert!(found.contains(&format!("/proc/{}/", holder.id())), "{found} for {said}");
    };

    let mut holder = hold("mr-2");
    let output = ends.try_up(0);
    let said = text_of(&output);
    assert!(!output.status.success() && said.contains("mr-2 exists"), "{said}");
    assert_names(&said, &holder);
    holder.kill();
    up(&ends, MORE);

    // A foreign process takes the device while the link goes down.
    for process in [ends.supervisor(0), ends.pid(0, 2)] {
        kill_process(process, Signal::KILL).expect("a process");
    }
    wait::until("the device is free", || tunnels(&ends).len() < usize::from(MORE));
    let mut holder = hold("mr-2");
    let output = run(&mut ends.command(0, &["down", "mr"]));
    let said = text_of(&output);
    assert!(!output.status.success() && said.contains("mr-2"), "{said}");
    assert_eq!((devices(&ends), tunnels(&ends)), (vec!["mr-2".to_owned()], Vec::new()), "{said}");
    assert_names(&said, &holder);
    holder.kill();
    down(&ends, "without the holder");
}
