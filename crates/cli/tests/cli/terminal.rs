// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Pages on a terminal: their width, and whether they have colours.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use millrace_testkit::wait;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::support::{Place, repository};

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Both ends of a terminal: that of the test, and that of a command.
fn terminal(columns: u16) -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    tcsetwinsize(&theirs, size(50, columns)).unwrap();
    (File::from(ours), theirs)
}

/// The output of a command whose standard output is a terminal of this width.
fn on_terminal(place: &Place, args: &[&str], columns: u16, variables: &[(&str, &str)]) -> String {
    let (mut ours, theirs) = terminal(columns);
    let mut command = place.command(args);
    command.envs(variables.iter().copied()).stdout(theirs).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The terminal ends when its last descriptor is closed; this one is in `command`.
    drop(command);
    let mut bytes = Vec::new();
    // Linux reports the end as EIO, after everything was read.
    let _ = ours.read_to_end(&mut bytes);
    child.wait().unwrap();
    String::from_utf8(bytes).unwrap().replace('\r', "")
}

fn fixture(name: &str) -> String {
    let path = repository().join("crates/inspect/fixtures").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn no_color_and_dumb_terminals_get_no_escape_codes() {
    let place = Place::new();
    let root = fixture("qat-heartbeat");
    for args in [
        &["doctor", "--root", &root][..],
        &["inspect", "--root", &root],
        &["inspect", "used", "--root", &root],
        &["gateway", "check", "nginx", "--pid", "1"],
        &["doctor", "--list"],
    ] {
        let coloured = on_terminal(&place, args, 80, &[("TERM", "xterm")]);
        assert!(coloured.contains('\x1b'), "{args:?}: {coloured}");
        for plain in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            let page = on_terminal(&place, args, 80, &[plain]);
            assert!(!page.contains('\x1b'), "{args:?} with {plain:?}: {page}");
        }
    }
}

#[test]
fn pages_fit_the_terminal_and_use_its_width() {
    let place = Place::new();
    for name in ["qat-heartbeat", "arm-a15-router", "h100-host"] {
        let root = fixture(name);
        for args in [
            &["inspect", "--root", &root][..],
            &["inspect", "cpu", "--root", &root],
            &["inspect", "qat", "--root", &root],
            &["inspect", "openssl", "--root", &root],
            &["advise", "ipsec", "--root", &root],
            &["doctor", "--list"],
        ] {
            let plain = [("NO_COLOR", "1")];
            let width =
                |page: &str| page.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            let narrow = on_terminal(&place, args, 80, &plain);
            // A configuration is not wrapped: its comments have 96 columns.
            let page = narrow.split("# Advised").next().unwrap_or_default();
            assert!(width(page) <= 80, "{args:?} has {} columns:\n{page}", width(page));
            let wide = on_terminal(&place, args, 200, &plain);
            assert!(
                width(&wide) <= 200 && wide.lines().count() <= narrow.lines().count(),
                "{wide}"
            );
            // Nothing is lost but the places of the line ends.
            let words = |page: &str| page.split_whitespace().collect::<String>();
            assert_eq!(words(&narrow).len(), words(&wide).len(), "{args:?}");
        }
    }
    let root = fixture("qat-heartbeat");
    let longest = |columns| {
        let page = on_terminal(&place, &["doctor", "--root", &root], columns, &[("NO_COLOR", "1")]);
        let text = page.lines().filter(|line| !line.starts_with("  run"));
        text.map(|line| line.chars().count()).max().unwrap_or(0)
    };
    assert!(longest(80) <= 80 && (120..=200).contains(&longest(200)));
}

/// The files of a link of 12 members that `vpn watch` reads; the lock of its supervisor.
fn link_that_is_up(place: &Place) -> File {
    let folder = place.path("run/mr");
    std::fs::create_dir_all(&folder).unwrap();
    let member = |number: u16| {
        format!(
            r#"{{"number":{number},"state":"up","reason":"","pid":1,"rtt_us":900,"lost_percent":0,
                "loses_long_packets":false,"received_bytes":0,"sent_bytes":0,"cpu_ms":0,"restarts":0}}"#
        )
    };
    let members: Vec<String> = (0..12).map(member).collect();
    let status = format!(
        r#"{{"name":"mr","side":"a","state":"up","generation":1,"at_ms":1,"supervisor":{},"routed":[],
            "members":[{}],"certificate_until":null,"confirm_within_ms":null}}"#,
        std::process::id(),
        members.join(",")
    );
    place.write("run/mr/status.json", &status);
    let lock = File::create(place.write("run/mr/supervisor.lock", "1")).unwrap();
    (&lock).write_all(std::process::id().to_string().as_bytes()).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    lock
}

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn watched_link_fills_the_screen_and_the_terminal_is_as_before_after_each_end() {
    let place = Place::new();
    let _supervisor = link_that_is_up(&place);
    let run = place.path("run");
    let run = run.to_str().unwrap();
    for end in [None, Some(Signal::TERM), Some(Signal::INT)] {
        let (ours, theirs) = terminal(80);
        let mut keyboard = ours.try_clone().unwrap();
        let before = tcgetattr(&theirs).unwrap();
        let mut command =
            place.command(["vpn", "watch", "mr", "--run", run, "--interval", "100ms"]);
        command.env("TERM", "xterm").stdin(theirs.try_clone().unwrap());
        command.stdout(theirs.try_clone().unwrap()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        drop(command);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let reader = thread::spawn({
            let (screen, mut ours) = (Arc::clone(&screen), ours);
            move || {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = ours.read(&mut bytes) {
                    screen.lock().unwrap().extend_from_slice(&bytes[..length]);
                }
            }
        });
        let text = || String::from_utf8_lossy(&screen.lock().unwrap()).into_owned();
        wait::until("the page is there", || text().contains("link mr, end a: \x1b[32mup"));
        assert!(text().starts_with(ENTER), "{}", text());
        let modes = tcgetattr(&theirs).unwrap().local_modes;
        assert!(!modes.intersects(LocalModes::ICANON | LocalModes::ECHO), "{modes:?}");

        // The page adapts to a smaller window.
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(!text().contains("more lines"));
        tcsetwinsize(&theirs, size(5, 80)).unwrap();
        kill_process(pid, Signal::WINCH).unwrap();
        wait::until("the page is cut", || text().contains("... 11 more lines"));

        match end {
            None => keyboard.write_all(b"xq").unwrap(),
            Some(signal) => kill_process(pid, signal).unwrap(),
        }
        assert_eq!(child.wait().unwrap().code(), Some(0), "{end:?}");
        assert_eq!(tcgetattr(&theirs).unwrap().local_modes, before.local_modes);
        drop(theirs);
        reader.join().unwrap();
        let text = text();
        assert!(text.ends_with(LEAVE) && text.matches(LEAVE).count() == 1, "{text}");
    }
}

#[test]
fn watched_link_has_no_colour_by_request_and_plain_lines_without_a_terminal() {
    let place = Place::new();
    let _supervisor = link_that_is_up(&place);
    let run = place.path("run");
    let args = [
        "vpn",
        "watch",
        "mr",
        "--run",
        run.to_str().unwrap(),
        "--count",
        "2",
        "--interval",
        "100ms",
    ];
    let page = on_terminal(&place, &args, 80, &[("NO_COLOR", "1"), ("TERM", "xterm")]);
    assert!(page.starts_with(ENTER) && page.ends_with(LEAVE), "{page}");
    assert!(page.contains("link mr, end a: up") && !page.contains("\x1b[1m"), "{page}");
    let dumb = on_terminal(&place, &args, 80, &[("TERM", "dumb")]);
    for plain in [dumb, place.run(&args).done().data.clone()] {
        assert!(!plain.contains('\x1b'), "{plain}");
        assert_eq!(plain.matches("link mr, end a: up").count(), 2, "{plain}");
    }
}
