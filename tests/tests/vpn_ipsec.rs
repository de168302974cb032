// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Links by IPsec: real strongSwan at both ends, with its own data path, since kernels of small machines have no ESP.

use std::path::Path;
use std::process::Command;

use millrace_testkit::skip;
use millrace_tests::artifacts::artifacts;
use millrace_tests::link::{Ends, Traffic, is_possible};
use millrace_tests::process::succeed;
use millrace_tests::wait;
use rustix::process::{Signal, kill_process};

const SETTINGS: &str = "engine = \"ipsec\"\n[ipsec]\ndata-path = \"user\"\n";

/// Whether strongSwan is here; records a skip if not.
fn is_installed() -> bool {
    let there = [
        "/usr/sbin/charon-systemd",
        "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so",
    ];
    if there.iter().all(|path| Path::new(path).exists()) {
        return true;
    }
    skip::record(file!(), "no strongSwan with its own data path");
    false
}

/// The proposals that `vpn sample` computes for this host.
fn advised() -> String {
    let mut command = Command::new(&artifacts().millrace);
    let sample = succeed(command.args(["vpn", "sample", "--engine", "ipsec"]));
    let lines = sample.lines();
    let proposals: Vec<&str> = lines
        .filter(|line| line.starts_with("ike = ") || line.starts_with("esp = "))
        .collect();
    assert_eq!(proposals.len(), 2, "{sample}");
    proposals.join("\n") + "\n"
}

#[test]
fn ipsec_link_carries_connections_and_survives_its_supervisor_and_daemon() {
    if !is_possible() || !is_installed() {
        return;
    }
    let ends = Ends::declared(1, &format!("{SETTINGS}{}", advised()));
    ends.up(0);
    ends.up(1);
    ends.wait_up(1);
    let mut traffic = Traffic::start(&ends);
    wait::until("the counters of the tunnel move", || {
        ends.member(0, 0)["received_bytes"].as_u64() > Some(100_000)
    });
    // A second run changes nothing.
    let daemon = ends.pid(0, 0);
    ends.up(0);
    traffic.flows();
    assert_eq!(ends.pid(0, 0), daemon);

    // The supervisor dies; its daemon does not, and the next one finds it.
    let supervisor = ends.supervisor(0);
    kill_process(supervisor, Signal::KILL).expect("a process");
    traffic.flows();
    ends.up(0);
    ends.wait_up(1);
    assert_eq!(ends.pid(0, 0), daemon);

    // The daemon dies: the other end notices, and both connect anew.
    kill_process(daemon, Signal::KILL).expect("a process");
    wait::until("the daemon was started again", || {
        ends.member(0, 0)["restarts"] == 1
    });
    ends.wait_up(1);
    traffic.flows();
    println!(
        "IPsec, daemon killed: a connection waited {} ms at most",
        traffic.finish()
    );
    for end in [0, 1] {
        let _ = ends.vpn(end, &["down", "mr"]);
        assert!(!ends.ip(end, "link show").contains("ipsec0"));
    }
}
