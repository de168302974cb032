// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Pages on a terminal: their width, and whether they have colours.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{Place, repository};

/// The output of a command whose standard output is a terminal of this width.
fn on_terminal(place: &Place, args: &[&str], columns: u16, variables: &[(&str, &str)]) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).unwrap();
    let mut command = place.command(args);
    command.envs(variables.iter().copied()).stdout(theirs).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The terminal ends when its last descriptor is closed; this one is in `command`.
    drop(command);
    let mut bytes = Vec::new();
    // Linux reports the end as EIO, after everything was read.
    let _ = File::from(ours).read_to_end(&mut bytes);
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
