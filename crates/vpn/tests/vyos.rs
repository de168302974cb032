// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! VyOS's commands become a link and come back; what a link cannot be is refused with its line.

use std::path::Path;

use millrace_vpn::ipsec::{swanctl, vyos};
use millrace_vpn::link::{IpsecSettings, LinkEngine, LinkProblems, Side, VpnLink};

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ipsec").join(name);
    std::fs::read_to_string(&path).unwrap_or_default()
}

/// Compares with a file, which MILLRACE_BLESS=1 rewrites.
#[track_caller]
fn assert_is_fixture(text: &str, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ipsec").join(name);
    if std::env::var_os("MILLRACE_BLESS").is_some() {
        std::fs::write(path, text).expect("the fixture");
    }
    assert_eq!(text, fixture(name), "{name}");
}

fn settings(link: &VpnLink) -> &IpsecSettings {
    match &link.engine {
        LinkEngine::Ipsec(settings) => settings,
        LinkEngine::OpenVpn(_) => panic!("not IPsec"),
    }
}

fn refused(text: &str, peer: Option<&str>) -> String {
    let error: LinkProblems = vyos::import(text, "branch", peer).expect_err("problems");
    error.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn peer_of_a_router_becomes_a_valid_link_and_names_what_is_left_out() {
    let imported =
        vyos::import(&fixture("vyos-peer.txt"), "branch", Some("BRANCH")).expect("a link");
    assert_is_fixture(&imported.text, "vyos-imported.toml");
    assert_is_fixture(&(imported.notes.join("\n") + "\n"), "vyos-notes.txt");
    let link = VpnLink::parse(&imported.text).expect("a valid link");
    let settings = settings(&link);
    assert_eq!(settings.ike[0].to_string(), "aes256gcm16-prfsha384-ecp384");
    let esp: Vec<String> = settings.esp.iter().map(ToString::to_string).collect();
    assert_eq!(esp, ["aes256gcm16-ecp384", "aes128-sha256-ecp384"], "by number");
    assert_eq!(link.end(Side::B).networks.len(), 2);
    assert!(!imported.text.contains("do-not-show-me"));
    assert!(!imported.notes.join("\n").contains("do-not-show-me"));
}

/// The commands of a router with VyOS 1.3, whose peers are named by their addresses, in the order of its manual.
const OF_1_3: &str = "\
set vpn ipsec ipsec-interfaces interface 'eth0'
set vpn ipsec nat-traversal 'enable'
set vpn ipsec nat-networks allowed-network 0.0.0.0/0
set vpn ipsec auto-update '60'
set vpn ipsec logging log-modes 'ike'
set vpn ipsec esp-group ESP compression 'disable'
set vpn ipsec esp-group ESP lifetime '1800'
set vpn ipsec esp-group ESP mode 'tunnel'
set vpn ipsec esp-group ESP pfs 'dh-group19'
set vpn ipsec esp-group ESP proposal 1 encryption 'aes256'
set vpn ipsec esp-group ESP proposal 1 hash 'sha256'
set vpn ipsec ike-group IKE ikev2-reauth 'no'
set vpn ipsec ike-group IKE key-exchange 'ikev2'
set vpn ipsec ike-group IKE lifetime '3600'
set vpn ipsec ike-group IKE proposal 1 encryption 'aes256'
set vpn ipsec ike-group IKE proposal 1 hash 'sha256'
set vpn ipsec ike-group IKE proposal 1 dh-group '19'
set vpn ipsec site-to-site peer 203.0.113.45 authentication mode 'pre-shared-secret'
set vpn ipsec site-to-site peer 203.0.113.45 authentication pre-shared-secret 'do-not-show-me'
set vpn ipsec site-to-site peer 203.0.113.45 connection-type 'initiate'
set vpn ipsec site-to-site peer 203.0.113.45 force-encapsulation 'enable'
set vpn ipsec site-to-site peer 203.0.113.45 ike-group 'IKE'
set vpn ipsec site-to-site peer 203.0.113.45 local-address '198.51.100.3'
set vpn ipsec site-to-site peer 203.0.113.45 tunnel 0 allow-nat-networks 'disable'
set vpn ipsec site-to-site peer 203.0.113.45 tunnel 0 allow-public-networks 'disable'
set vpn ipsec site-to-site peer 203.0.113.45 tunnel 0 esp-group 'ESP'
set vpn ipsec site-to-site peer 203.0.113.45 tunnel 0 local prefix '192.168.0.0/24'
set vpn ipsec site-to-site peer 203.0.113.45 tunnel 0 remote prefix '10.0.0.0/21'
";

#[test]
fn peer_of_a_router_with_vyos_1_3_becomes_a_valid_link() {
    let imported = vyos::import(OF_1_3, "branch", None).expect("a link");
    let link = VpnLink::parse(&imported.text).expect("a valid link");
    assert_eq!(link.end(Side::B).address.to_string(), "203.0.113.45");
    assert_eq!(settings(&link).ike[0].to_string(), "aes256-sha256-ecp256");
    assert_eq!(settings(&link).esp[0].to_string(), "aes256-sha256-ecp256");
    let notes = imported.notes.join("\n");
    assert!(notes.contains("line 1 left out: strongSwan listens on each address"), "{notes}");
    assert!(notes.contains("lines 3, 24, 25 left out"), "{notes}");
    assert!(!notes.contains("do-not-show-me") && !imported.text.contains("do-not-show-me"));
}

#[test]
fn exported_link_comes_back_as_it_was() {
    let link = VpnLink::parse(&fixture("vyos-imported.toml")).expect("a link");
    let commands = vyos::export(&link, settings(&link), Side::A);
    assert_is_fixture(&commands, "vyos-exported.txt");
    let again = vyos::import(&commands, "branch", None).expect("a link");
    let again = VpnLink::parse(&again.text).expect("a valid link");
    assert_eq!(settings(&again).ike, settings(&link).ike);
    assert_eq!(settings(&again).esp, settings(&link).esp);
    assert_eq!(settings(&again).replay_window, settings(&link).replay_window);
    assert_eq!(again.end(Side::A).address, link.end(Side::A).address);
    for network in &link.end(Side::B).networks {
        assert!(again.end(Side::B).networks.contains(network), "{network}");
    }
}

#[test]
fn swanctl_of_both_ends_mirror_each_other() {
    let link = VpnLink::parse(&fixture("link.toml")).expect("a link");
    let [a, b] = Side::ALL.map(|side| swanctl::connections(&link, settings(&link), side));
    assert_is_fixture(&a, "swanctl-a.conf");
    let value = |text: &str, key: &str| {
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(&format!("{key} = ")).map(str::to_owned));
        line.expect(key)
    };
    for (one, other) in [("local_addrs", "remote_addrs"), ("local_ts", "remote_ts")] {
        assert_eq!(value(&a, one), value(&b, other));
        assert_eq!(value(&b, one), value(&a, other));
    }
    for key in ["proposals", "esp_proposals"] {
        assert_eq!(value(&a, key), value(&b, key));
    }
}

#[test]
fn what_a_link_cannot_be_is_refused_with_its_line() {
    let good = fixture("vyos-peer.txt");
    let with = |old: &str, new: &str| {
        assert!(good.contains(old), "{old}");
        good.replacen(old, new, 1)
    };
    for (text, peer, expected) in [
        (good.clone(), None, "there are 2 peers: choose one with --peer: BRANCH, OTHER"),
        (good.clone(), Some("NOWHERE"), "there is no peer NOWHERE"),
        (good.clone(), Some("OTHER"), "line 34: site-to-site peer * vti **: a route-based tunnel"),
        (with("key-exchange 'ikev2'", "key-exchange 'ikev1'"), Some("BRANCH"), "line 14: "),
        (
            with(
                "encryption 'aes256gcm128'\nset vpn ipsec ike-group IKE-1 proposal 1 hash",
                "encryption '3des'\nset vpn ipsec ike-group IKE-1 proposal 1 hash",
            ),
            Some("BRANCH"),
            "line 17: 3des has blocks of 64 bits",
        ),
        (
            with("dh-group '20'", "dh-group '2'"),
            Some("BRANCH"),
            "line 16: modp1024 is within reach",
        ),
        (with("mode 'tunnel'", "mode 'transport'"), Some("BRANCH"), "line 6: "),
        (
            with("remote-address '203.0.113.1'", "remote-address 'any'"),
            Some("BRANCH"),
            "line 29: \"any\" is not an address",
        ),
        (
            with("prefix '10.2.0.0/16'", "prefix '2001:db8::/32'"),
            Some("BRANCH"),
            "the other end has no network of IPv6 beside 2001:db8::/32",
        ),
        (
            with("close-action 'start'", "secret-option 'do-not-show-me'"),
            Some("BRANCH"),
            "line 12: this setting below",
        ),
        (String::new(), None, "there is no site-to-site peer"),
    ] {
        let said = refused(&text, peer);
        assert!(said.contains(expected), "{expected} in\n{said}");
        assert!(!said.contains("do-not-show-me"), "{said}");
    }
}

#[test]
fn any_commands_are_read_without_panic() {
    for text in [
        "set vpn ipsec site-to-site peer X",
        "set vpn ipsec site-to-site peer '' ike-group ''",
        "set vpn ipsec ike-group",
        "set vpn ipsec site-to-site peer \"X ike-group I\nset vpn ipsec \\",
        "set vpn ipsec site-to-site peer 1.2.3.4 ike-group I\nset vpn ipsec site-to-site peer 1.2.3.4 default-esp-group E",
    ] {
        let _ = vyos::import(text, "branch", None);
    }
}
