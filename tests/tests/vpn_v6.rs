// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Links that carry IPv6, and links over it: real OpenVPN between two network namespaces, under connections that
//! compare their bytes.

use std::fs;

use millrace_tests::link::{Ends, Traffic, is_possible};
use millrace_tests::wait;
use rustix::process::{Signal, kill_process};

/// link.toml of ends with these addresses; a network of each family lies behind end a.
fn declaration(ends: &Ends, members: u16, addresses: [&str; 2]) -> String {
    let keys = ends.dir.path().join("keys");
    format!(
        "name = \"mr\"\nmembers = {members}\n\
         [ends.a]\naddress = \"{}\"\ninner = \"10.97.0.1\"\ninner6 = \"fd00:97::1\"\n\
         networks = [\"10.1.0.0/16\", \"fd00:a::/48\"]\ncertificates = \"{keys}/a\"\n\
         [ends.b]\naddress = \"{}\"\ninner = \"10.97.0.2\"\ninner6 = \"fd00:97::2\"\ncertificates = \"{keys}/b\"\n",
        addresses[0],
        addresses[1],
        keys = keys.display(),
    )
}

/// Devices over which end b sends to the IPv6 network behind end a.
fn route_to_network(ends: &Ends) -> String {
    ends.ip(1, "-6 route show fd00:a::/48 proto 190")
}

#[test]
fn ipv6_connections_to_a_network_behind_an_end_survive_a_member_that_dies() {
    if !is_possible() {
        return;
    }
    let ends = Ends::new(3);
    let text = declaration(&ends, 3, ["198.18.0.1", "198.18.0.2"]);
    fs::write(ends.file(), text).expect("link.toml");
    ends.up(0);
    ends.up(1);
    ends.wait_up(3);
    wait::until("the kernel routes over three members", || {
        route_to_network(&ends).matches("nexthop").count() == 3
    });
    // A host of the network behind end a.
    let _ = ends.ip(0, "address add fd00:a::7/128 dev lo");
    let mut traffic = Traffic::to(&ends, "fd00:a::7");
    wait::until("every member carries traffic", || {
        (0..3).all(|member| ends.member(0, member)["received_bytes"].as_u64() > Some(10_000))
    });
    kill_process(ends.pid(0, 1), Signal::KILL).expect("a process");
    traffic.flows();
    wait::until("the member was started again", || ends.member(0, 1)["restarts"] == 1);
    ends.wait_up(3);
    traffic.flows();
    traffic.report("IPv6, member killed");
    traffic.finish();

    // Fewer members, then none: no route of either family stays.
    let text = declaration(&ends, 1, ["198.18.0.1", "198.18.0.2"]);
    fs::write(ends.file(), text).expect("link.toml");
    ends.up(0);
    ends.up(1);
    ends.wait_up(1);
    wait::until("the kernel routes over one member", || {
        let route = route_to_network(&ends);
        route.contains("mr-0") && !route.contains("mr-1")
    });
    for end in [0, 1] {
        let _ = ends.vpn(end, &["down", "mr"]);
        for family in ["-4", "-6"] {
            assert_eq!(ends.ip(end, &format!("{family} route show proto 190")), "");
        }
        let addresses = ends.ip(end, "address show dev lo");
        assert!(!addresses.contains("fd00:97::"), "{addresses}");
    }
}

#[test]
fn link_over_ipv6_carries_both_families_in_packets_that_fill_the_path() {
    if !is_possible() {
        return;
    }
    let ends = Ends::new(2);
    for (end, address) in [(0, "fd18::1/64"), (1, "fd18::2/64")] {
        let _ = ends.ip(end, &format!("address add {address} dev cable nodad"));
    }
    fs::write(ends.file(), declaration(&ends, 2, ["fd18::1", "fd18::2"])).expect("link.toml");
    ends.up(0);
    ends.up(1);
    ends.wait_up(2);
    assert!(ends.ip(0, "link show mr-0").contains("mtu 1424"));
    for host in ["10.97.0.1", "fd00:97::1"] {
        let mut traffic = Traffic::to(&ends, host);
        traffic.flows();
        traffic.finish();
    }
    // Segments of these connections fill packets of the tunnel MTU, and probes of that size are answered.
    assert_eq!(ends.member(0, 0)["loses_long_packets"], false);
}
