// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

use proptest::prelude::*;

use super::*;

/// Every key of a sample, also the optional ones.
fn every_key(sample: &str) -> String {
    sample.replace("#: ", "")
}

/// The samples show an address that has no default.
fn take_inner6(link: &mut VpnLink) {
    for (end, expected) in link.ends.iter_mut().zip(["fd00:97::1", "fd00:97::2"]) {
        assert_eq!(end.inner6.take(), expected.parse().ok());
    }
}

fn problems(text: &str) -> Vec<(Option<usize>, String)> {
    let problems = VpnLink::parse(text).expect_err("problems").0;
    problems.into_iter().map(|problem| (problem.line, problem.what)).collect()
}

/// Takes out the key of the samples that has no default.
fn take_openssl_config(link: &mut VpnLink) {
    let config = link.ends[0].openssl_config.take();
    assert_eq!(config, Some("/etc/millrace/openssl.cnf".into()));
}

/// The sample with one line replaced.
fn with(old: &str, new: &str) -> String {
    let text = every_key(SAMPLE);
    assert!(text.contains(old), "{old}");
    text.replacen(old, new, 1)
}

#[test]
fn sample_shows_the_defaults() {
    let link = VpnLink::parse(SAMPLE).expect("the sample");
    assert_eq!(link.device(3), "branch-3");
    assert_eq!(
        link.destinations(Side::A).iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.97.0.2/32", "10.2.0.0/16"]
    );
    let mut full = VpnLink::parse(
        &every_key(SAMPLE).replace("/NAME", "/branch").replace("NAME-b", "branch-b"),
    )
    .expect("every key");
    assert_eq!(full.socket_buffer_bytes.take(), Some(1_048_576));
    assert_eq!(full.ends[0].device.take(), Some("eth0".to_owned()));
    take_openssl_config(&mut full);
    take_inner6(&mut full);
    full.lines = link.lines.clone();
    assert_eq!(full, link);
}

#[test]
fn all_problems_of_a_file_come_together_with_their_lines() {
    let text = "nmae = \"x\"\nmembers = 0\ncipher = \"aes-256-cbc\"\nmode = \"meshed\"\n\
        [ends.a]\naddress = \"127.0.0.1\"\ninner = \"10.97.0.1\"\n\
        [ends.b]\naddress = \"198.51.100.2\"\nnetworks = [\"10.0.0.1/8\"]\n\
        [tunnels]\nport = 70000\nfragment = 1\n";
    let found = problems(text);
    let lines: Vec<_> = found.iter().map(|(line, _)| line.expect("a line")).collect();
    assert_eq!(lines, [1, 1, 2, 3, 4, 6, 8, 10, 12, 13], "{found:?}");
    let message = VpnLink::parse(text).expect_err("problems").to_string();
    for part in [
        "10 problems, and nothing was changed",
        "line 1: unknown key nmae: remove it",
        "name is missing: add name = \"branch\"",
        "line 3: cipher \"aes-256-cbc\" has no authenticated encryption",
        "mode \"meshed\" does not exist; write routed or bridged",
        "127.0.0.1 is not the address of a host",
        "ends.b.inner is missing",
        "10.0.0.1/8 has host bits: the network is 10.0.0.0/8",
        "port is not from 1 to 65535",
        "unknown key tunnels.fragment",
    ] {
        assert!(message.contains(part), "{part} in\n{message}");
    }
}

#[test]
fn contradicting_addresses_are_refused() {
    for (old, new, expected) in [
        ("10.2.0.0/16", "10.1.2.0/24", "overlaps ends.a.networks 10.1.0.0/16"),
        ("10.97.0.2", "10.97.0.1", "overlaps ends.a.inner"),
        ("10.98.0.0/24", "10.2.0.0/24", "overlaps"),
        ("10.98.0.0/24", "10.98.0.0/30", "has 4 addresses for 4 members"),
        ("10.2.0.0/16", "203.0.113.0/24", "an address of the tunnels themselves"),
        ("10.2.0.0/16", "0.0.0.0/0", "an address of the tunnels themselves"),
        ("203.0.113.1", "198.51.100.1", "both ends have the address"),
        ("203.0.113.1", "2001:db8::1", "different IP versions"),
        ("port = 1194", "port = 65533", "no room for 4 members"),
        ("\"branch\"", "\"branch-office-west\"", "1 to 12 lower-case letters"),
        ("\"branch\"", "\"-x\"", "1 to 12 lower-case letters"),
        ("/etc/millrace/vpn/NAME", "etc", "not an absolute path"),
        ("\"openvpn\"", "\"fastest\"", "write openvpn, ipsec or auto"),
        ("\"openvpn\"", "\"auto\"", "tunnels.data-path belongs to the engine openvpn"),
        ("\"openvpn\"", "\"ipsec\"", "has one member, not 4"),
        ("\"openvpn\"", "\"ipsec\"", "cipher belongs to the engine openvpn"),
        ("\"AES-256-GCM\"", "\"BF-CBC\"", "has no authenticated encryption"),
        ("\"AES-256-GCM\"", "\"none\"", "does not encrypt"),
    ] {
        let found = problems(&with(old, new));
        assert!(
            found.iter().any(|(line, what)| line.is_some() && what.contains(expected)),
            "{expected} in {found:?}"
        );
    }
}

#[test]
fn ipsec_sample_shows_the_defaults() {
    let link = VpnLink::parse(SAMPLE_IPSEC).expect("the sample");
    let text = every_key(SAMPLE_IPSEC).replace("/NAME", "/branch").replace("NAME-b", "branch-b");
    let mut full = VpnLink::parse(&text).expect("every key");
    take_openssl_config(&mut full);
    take_inner6(&mut full);
    full.lines = link.lines.clone();
    assert_eq!(full, link);
}

#[test]
fn bridged_sample_shows_the_defaults() {
    let link = VpnLink::parse(SAMPLE_BRIDGED).expect("the sample");
    let spread = BondSpread::BalanceXor(BondHash::Layer34);
    assert_eq!(link.mode, LinkMode::Bridged(BondSettings { spread, mtu: None }));
    assert_eq!(link.device(3), "branch_3");
    let text = every_key(SAMPLE_BRIDGED).replace("/NAME", "/branch").replace("NAME-b", "branch-b");
    let mut full = VpnLink::parse(&text).expect("every key");
    take_openssl_config(&mut full);
    take_inner6(&mut full);
    assert_eq!(full.socket_buffer_bytes.take(), Some(1_048_576));
    assert_eq!(full.ends[0].device.take(), Some("eth0".to_owned()));
    assert_eq!(full.ends[0].bridge.take(), Some("br0".to_owned()));
    assert_eq!(full.mode, LinkMode::Bridged(BondSettings { spread, mtu: Some(1500) }));
    full.mode = link.mode;
    full.lines = link.lines.clone();
    assert_eq!(full, link);
}

#[test]
fn keys_of_a_bond_are_refused_where_they_mean_nothing() {
    for (old, new, expected) in [
        ("mode = \"bridged\"\n", "", "[bond] belongs to the mode bridged"),
        ("mode = \"bridged\"\n", "mode = \"routed\"\n", "[bond] belongs to the mode bridged"),
        ("mode = \"bridged\"\n", "", "bridge belongs to the mode bridged"),
        (
            "#: mode = \"balance-xor\"",
            "mode = \"802.3ad\"",
            "not a mode of a link's bond; write one of balance-rr",
        ),
        (
            "#: mode = \"balance-xor\"",
            "mode = \"active-backup\"\nhash = \"layer2\"",
            "not to active-backup",
        ),
        ("#: hash = \"layer3+4\"", "hash = \"layer4\"", "write one of layer2, layer2+3, layer3+4"),
        ("#: mtu = 1500", "mtu = 575", "bond.mtu is not from 576"),
        ("#: mtu = 1500", "slaves = 2", "unknown key bond.slaves"),
        ("members = 4", "members = 1\nengine = \"ipsec\"", "no other carries Ethernet frames"),
        ("members = 4", "members = 4\nengine = \"auto\"", "no other carries Ethernet frames"),
        ("#: port = 1194", "data-path = \"kernel\"", "data channel carries no Ethernet frames"),
    ] {
        let text = SAMPLE_BRIDGED.replace("#: bridge =", "bridge =");
        assert!(text.contains(old), "{old}");
        let found = problems(&text.replacen(old, new, 1));
        let fits =
            |(line, what): &(Option<usize>, String)| line.is_some() && what.contains(expected);
        assert!(found.iter().any(fits), "{expected} in {found:?}");
    }
}

/// A link.toml of an IPsec link with these lines in its section.
fn ipsec(lines: &str) -> String {
    format!(
        "name = \"branch\"\nengine = \"ipsec\"\nmembers = 1\n[ipsec]\n{lines}\n\
         [ends.a]\naddress = \"198.51.100.1\"\ninner = \"10.1.0.1\"\nnetworks = [\"10.1.0.0/16\"]\n\
         [ends.b]\naddress = \"203.0.113.1\"\ninner = \"10.2.0.1\"\nnetworks = [\"10.2.0.0/16\"]\n"
    )
}

#[test]
fn ipsec_section_has_defaults_and_refuses_weak_proposals_with_their_line() {
    let link = VpnLink::parse(&ipsec("")).expect("a link");
    let LinkEngine::Ipsec(settings) = &link.engine else {
        panic!("{:?}", link.engine);
    };
    assert_eq!(settings.ike[0].to_string(), "aes256gcm16-prfsha384-ecp384");
    assert_eq!(settings.esp[0].to_string(), "aes256gcm16-ecp384");
    assert_eq!(settings.data_path, DataPath::Kernel);
    for (lines, line, expected) in [
        ("ike = [\"3des-sha1-modp1024\"]", 5, "SWEET32"),
        ("esp = [\"aes256gcm16\", \"null-sha256\"]", 5, "does not encrypt"),
        ("esp = []", 5, "1 to 16 proposals"),
        ("esp = \"aes256gcm16\"", 5, "is not a list"),
        ("\ndata-path = \"dpdk\"", 6, "write kernel or user"),
        ("data-path = \"user\"\nper-cpu-sas = true", 6, "no per-CPU SAs"),
        ("esp-rekey-s = 5", 5, "is not from 60"),
        ("psk = \"secret\"", 5, "unknown key ipsec.psk"),
    ] {
        let found = problems(&ipsec(lines));
        let fits =
            |(at, what): &(Option<usize>, String)| *at == Some(line) && what.contains(expected);
        assert!(found.iter().any(fits), "{expected} in {found:?}");
    }
    let without = ipsec("").replace("engine = \"ipsec\"\n", "");
    assert!(problems(&without)[0].1.contains("belongs to the engine ipsec"));
}

#[test]
fn link_that_carries_ipv6_needs_its_addresses_and_room() {
    let with = |more: &str, networks: &str| {
        format!(
            "name = \"x\"\nmembers = 1\n{more}\n[ends.a]\naddress = \"198.51.100.1\"\ninner = \"10.97.0.1\"\n\
             inner6 = \"fd00:97::1\"\n[ends.b]\naddress = \"203.0.113.1\"\ninner = \"10.97.0.2\"\n{networks}\n"
        )
    };
    let both = "inner6 = \"fd00:97::2\"\nnetworks = [\"fd00:2::/48\", \"10.2.0.0/16\"]";
    let link = VpnLink::parse(&with("", both)).expect("a link");
    let to: Vec<String> = link.destinations(Side::A).iter().map(ToString::to_string).collect();
    assert_eq!(to, ["10.97.0.2/32", "fd00:97::2/128", "fd00:2::/48", "10.2.0.0/16"]);
    for (more, networks, line, expected) in [
        ("", "networks = [\"fd00:2::/48\"]", 10, "ends.b.inner6 is missing"),
        ("", "inner6 = \"fd00:97::1\"", 11, "overlaps ends.a.inner"),
        ("", "inner6 = \"10.0.0.1\"", 11, "inner6"),
        ("path-mtu = 1300", both, 3, "path-mtu is below 1386"),
        ("[tunnels]\nnetwork = \"fd00::/64\"\n", both, 4, "is not an IPv4 network"),
    ] {
        let found = problems(&with(more, networks));
        let fits = |(at, what): &(Option<usize>, String)| {
            (more.starts_with('[') || *at == Some(line)) && what.contains(expected)
        };
        assert!(found.iter().any(fits), "{expected} in {found:?}");
    }
}

#[test]
fn inner_address_may_lie_in_a_network_of_its_own_end() {
    assert!(VpnLink::parse(&with("10.97.0.2", "10.2.0.1")).is_ok());
}

#[test]
fn syntax_errors_are_problems_with_lines() {
    let found = problems("name = \"x\"\nmembers = = 4\n");
    assert!(found.iter().all(|(line, _)| *line == Some(2)), "{found:?}");
    assert!(problems(&"x".repeat(300 << 10))[0].1.contains("more than"));
}

#[test]
fn end_is_found_by_its_address() {
    let link = VpnLink::parse(SAMPLE).expect("the sample");
    let [a, b] = Side::ALL.map(|side| link.end(side).address);
    assert_eq!(link.side_with(&[b]), Some(Side::B));
    assert_eq!(link.side_with(&[a, b]), None);
    assert_eq!(link.side_with(&[]), None);
}

proptest! {
    /// One byte of the sample changed, or any text: a link or problems, no panic.
    #[test]
    fn any_text_is_read_without_panic(position in 0..2000_usize, byte: u8, text in ".{0,200}") {
        let mut bytes = every_key(SAMPLE).into_bytes();
        let position = position % bytes.len();
        bytes[position] = byte;
        let _ = VpnLink::parse(&String::from_utf8_lossy(&bytes));
        let _ = VpnLink::parse(&text);
    }
}
