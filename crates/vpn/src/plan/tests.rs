// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;
use crate::link::{SAMPLE, SAMPLE_BRIDGED};

fn host() -> Host {
    Host { processors: vec![0, 1], cores: vec![0, 1], ..Host::default() }
}

fn plan(side: Side) -> LinkPlan {
    let link = VpnLink::parse(SAMPLE).expect("the sample");
    LinkPlan::new(&link, side, &host(), &Folders::default())
}

/// Each end's plan of the sample is kept as a file, so that a change of a plan shows in review. Rewrite them with
/// MILLRACE_BLESS=1.
#[test]
fn plans_of_the_sample_are_those_of_the_fixtures() {
    for side in Side::ALL {
        let name = format!("fixtures/plan-{}.txt", side.name());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let text = plan(side).text();
        if std::env::var_os("MILLRACE_BLESS").is_some() {
            std::fs::write(&path, &text).expect("the fixture");
        }
        assert_eq!(text, std::fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
    }
}

#[test]
fn members_take_memory_of_the_node_of_their_processor_where_there_are_several() {
    let link = VpnLink::parse(SAMPLE).expect("the sample");
    let nodes = vec![(0, vec![0]), (2, vec![1])];
    let plan = LinkPlan::new(&link, Side::A, &Host { nodes, ..host() }, &Folders::default());
    let placed = plan.layout.members.iter().map(|member| (member.processor, member.node));
    let places = [(0, Some(0)), (1, Some(2))];
    assert!(placed.eq(places.into_iter().cycle().take(4)), "{:?}", plan.layout.members);
    assert_eq!(plan.text().matches("branch/1.conf  # memory of NUMA node 2 first\n").count(), 1);
}

#[test]
fn device_of_the_kernels_data_channel_is_left_to_its_process() {
    let text = SAMPLE.replacen("members = 4", "members = 2", 1);
    let text = text.replacen("[tunnels]", "[tunnels]\ndata-path = \"kernel\"", 1);
    let link = VpnLink::parse(&text).expect("a link");
    let kernel = LinkPlan::new(&link, Side::A, &host(), &Folders::default());
    let layout = &kernel.layout;
    assert!(layout.steps.iter().all(|step| !step.action.command_line().contains("branch.")));
    for (number, member) in layout.members.iter().enumerate() {
        assert!(member.makes_device());
        let removal = format!("ip link delete dev branch.{number}");
        assert!(layout.removal().iter().any(|action| action.command_line() == removal));
        let lines: Vec<String> =
            member.device_actions.iter().map(LinkAction::command_line).collect();
        let address = format!("ip address replace {}/31 dev branch.{number}", member.local);
        assert!(lines.contains(&address), "{lines:?}");
        for line in lines.iter().chain([&removal]) {
            assert!(kernel.text().contains(line), "{line} in {}", kernel.text());
        }
    }
    // Devices of user space stay, and are not an action of a start.
    let user = plan(Side::A).layout;
    assert!(user.members.iter().all(|member| !member.makes_device()));
    // Routes go before the devices.
    let lines: Vec<String> = layout.removal().iter().map(LinkAction::command_line).collect();
    let at = |part: &str| lines.iter().position(|line| line.contains(part));
    assert!(at("ip route delete") < at("ip link delete"), "{lines:?}");
}

#[test]
fn openssl_configuration_is_in_the_environment_of_its_ends_members() {
    let ipsec = include_str!("../../fixtures/ipsec/link.toml");
    for sample in [SAMPLE, ipsec] {
        let line = "[ends.b]\nopenssl-config = \"/etc/millrace/openssl.cnf\"\n";
        let link = VpnLink::parse(&sample.replacen("[ends.b]\n", line, 1)).expect("a link");
        let [own, other] =
            [Side::B, Side::A].map(|side| LinkPlan::new(&link, side, &host(), &Folders::default()));
        for member in &own.layout.members {
            assert_eq!(member.command[..2], ["env", "OPENSSL_CONF=/etc/millrace/openssl.cnf"]);
        }
        // A changed file is how the supervisor finds out that a member needs a restart.
        assert!(own.files[0].contents.contains("OPENSSL_CONF=/etc/millrace/openssl.cnf"));
        assert!(!other.text().contains("OPENSSL_CONF"), "{}", other.text());
    }
}

#[test]
fn plan_of_an_ipsec_link_is_that_of_the_fixture() {
    let link = VpnLink::parse(include_str!("../../fixtures/ipsec/link.toml")).expect("a link");
    let plan = LinkPlan::new(&link, Side::B, &host(), &Folders::default());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/ipsec/plan-b.txt");
    if std::env::var_os("MILLRACE_BLESS").is_some() {
        std::fs::write(&path, plan.text()).expect("the fixture");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(plan.text(), expected, "{}", path.display());
    assert!(plan.layout.routes.is_empty() && plan.layout.members.len() == 1);
}

fn bridged(text: &str, side: Side) -> LinkPlan {
    let link = VpnLink::parse(text).expect("a link");
    LinkPlan::new(&link, side, &host(), &Folders::default())
}

#[test]
fn plan_of_a_bridged_link_is_that_of_the_fixture() {
    // One end is a router, the other a bridge with hosts of the usual MTU.
    let (head, tail) = SAMPLE_BRIDGED.split_once("[ends.b]").expect("two ends");
    let head = head.replace("members = 4", "members = 2").replace("#: mtu", "mtu");
    let head = head.replace("#: bridge", "bridge");
    let tail = tail.replace("#: port", "port").replacen(
        "inner = ",
        "networks = [\"10.2.0.0/16\"]\ninner = ",
        1,
    );
    let text = format!("{head}[ends.b]{tail}");
    for side in Side::ALL {
        let name = format!("fixtures/bridged-plan-{}.txt", side.name());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let plan = bridged(&text, side).text();
        if std::env::var_os("MILLRACE_BLESS").is_some() {
            std::fs::write(&path, &plan).expect("the fixture");
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(plan, expected, "{}", path.display());
    }
}

#[test]
fn bond_gains_members_before_it_loses_others() {
    let layout = bridged(SAMPLE_BRIDGED, Side::A).layout;
    let members: Vec<&LinkMember> = layout.members.iter().collect();
    let in_bond = ["branch_0", "branch_1", "branch_7"].map(str::to_owned);
    let lines = |kept: &[&LinkMember], now: &[String]| -> Vec<String> {
        layout.over(kept, &members, now).iter().map(LinkAction::command_line).collect()
    };
    let neighbour = |device: &str, peer: &str| {
        format!("ip neighbour replace {peer} lladdr 02:4d:0a:61:00:02 dev {device} nud permanent")
    };
    assert_eq!(
        lines(&members[1..3], &in_bond),
        [
            "ip link set dev branch_2 down",
            "ip link set dev branch_2 master branch",
            "ip link set dev branch_2 up",
            &neighbour("branch_2", "10.98.0.5"),
            "ip link set dev branch_0 nomaster",
            "ip link set dev branch_0 up",
            &neighbour("branch_0", "10.98.0.1"),
            // No member any more: its device goes.
            "ip link set dev branch_7 nomaster",
        ]
    );
    assert!(lines(&members[..2], &in_bond[..2]).is_empty(), "nothing to do");
}

#[test]
fn bond_of_each_mode_is_made_by_the_kernels_names_and_goes_last() {
    for (bond, expected) in [
        ("mode = \"balance-rr\"", "type bond mode balance-rr miimon 100 all_slaves_active 1\n"),
        ("mode = \"active-backup\"", "type bond mode active-backup miimon 100"),
        ("hash = \"layer2\"", "type bond xmit_hash_policy layer2\n"),
        ("hash = \"layer2+3\"", "type bond xmit_hash_policy layer2+3\n"),
    ] {
        let plan =
            bridged(&SAMPLE_BRIDGED.replacen("[bond]", &format!("[bond]\n{bond}"), 1), Side::B);
        assert!(plan.text().contains(expected), "{}", plan.text());
        let removal = plan.layout.removal();
        let last = removal.last().expect("an action").command_line();
        assert_eq!(last, "ip link delete dev branch");
    }
}

#[test]
fn mode_of_a_link_that_is_up_stays() {
    let routed = VpnLink::parse(SAMPLE).expect("a link");
    let xor = VpnLink::parse(SAMPLE_BRIDGED).expect("a link");
    let rr = SAMPLE_BRIDGED.replacen("#: mode =", "mode = \"balance-rr\" #", 1);
    let rr = VpnLink::parse(&rr).expect("a link");
    let hash = SAMPLE_BRIDGED.replacen("#: hash =", "hash = \"layer2\" #", 1);
    let hash = VpnLink::parse(&hash).expect("a link");
    let up = bridged(SAMPLE_BRIDGED, Side::A).layout;
    assert_eq!(up.mode_problem(&xor), None);
    assert_eq!(up.mode_problem(&hash), None, "the kernel changes it");
    let problem = up.mode_problem(&rr).expect("a problem");
    assert!(
        problem.to_string().contains("up as balance-xor, and cannot become balance-rr"),
        "{problem}"
    );
    assert!(problem.line.is_some());
    assert!(
        up.mode_problem(&routed).is_some() && plan(Side::A).layout.mode_problem(&xor).is_some()
    );
}

#[test]
fn ends_agree_on_addresses_ports_and_sizes() {
    let [a, b] = Side::ALL.map(|side| plan(side).layout);
    assert_eq!((a.tunnel_mtu, a.segment), (b.tunnel_mtu, b.segment));
    for (one, other) in a.members.iter().zip(&b.members) {
        assert_eq!((one.local, one.peer), (other.peer, other.local));
        assert_eq!(one.device, other.device);
    }
    let [a, b] = Side::ALL.map(|side| plan(side).files);
    for (one, other) in a.iter().zip(&b) {
        let word = |text: &str, key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.expect("the line").trim().to_owned()
        };
        for key in ["lport", "rport", "data-ciphers", "tun-mtu", "mssfix"] {
            assert_eq!(word(&one.contents, key), word(&other.contents, key));
        }
        assert_eq!(word(&one.contents, "local "), word(&other.contents, "remote "));
    }
}

#[test]
fn layout_survives_its_record() {
    for layout in [plan(Side::A).layout, bridged(SAMPLE_BRIDGED, Side::A).layout] {
        let text = serde_json::to_string(&layout).expect("JSON");
        assert_eq!(serde_json::from_str::<LinkLayout>(&text).expect("a layout"), layout);
    }
}

#[test]
fn record_of_a_run_names_also_what_a_run_before_it_left() {
    let of = |members: u16| {
        let text = SAMPLE.replacen("members = 4", &format!("members = {members}"), 1);
        let link = VpnLink::parse(&text).expect("a link");
        LinkPlan::new(&link, Side::A, &host(), &Folders::default()).layout
    };
    let bridged = bridged(SAMPLE_BRIDGED, Side::A).layout;
    for former in [of(4), bridged] {
        let both = of(2).with_parts_of(&former);
        assert!(former.devices().all(|device| both.devices().any(|known| known == device)));
        for action in former.removal().iter().chain(&of(2).removal()) {
            assert!(both.removal().contains(action), "{action:?}");
        }
        assert_eq!(both.clone().with_parts_of(&former), both);
    }
    assert_eq!(of(4).with_parts_of(&of(2)), of(4));
    let removed: Vec<String> = of(2)
        .removal()
        .iter()
        .filter_map(|action| action.removed_device().map(str::to_owned))
        .collect();
    assert_eq!(removed, ["branch-1", "branch-0"]);
}
