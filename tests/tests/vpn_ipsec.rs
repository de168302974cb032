// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Links by IPsec: real strongSwan at both ends, with its own data path, since kernels of small machines have no ESP.
//! And links of either engine whose keys only a node has.

use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_testkit::skip;
use millrace_tests::artifacts::artifacts;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::link::{Ends, Traffic, is_possible};
use millrace_tests::node::Node;
use millrace_tests::process::{program, run, succeed};
use millrace_tests::wait;
use rustix::process::{Signal, kill_process};

const SETTINGS: &str = "engine = \"ipsec\"\n[ipsec]\ndata-path = \"user\"\n";

/// Whether strongSwan is here; records a skip if not.
fn is_installed() -> bool {
    let there =
        ["/usr/sbin/charon-systemd", "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so"];
    if there.iter().all(|path| Path::new(path).exists()) {
        return true;
    }
    skip::record(file!(), "no strongSwan with its own data path");
    false
}

/// The proposals that `sample link` computes for this host.
fn advised() -> String {
    let mut command = Command::new(&artifacts().millrace);
    let sample = succeed(command.args(["sample", "link", "--engine", "ipsec"]));
    let lines = sample.lines();
    let proposals: Vec<&str> =
        lines.filter(|line| line.starts_with("ike = ") || line.starts_with("esp = ")).collect();
    assert_eq!(proposals.len(), 2, "{sample}");
    proposals.join("\n") + "\n"
}

/// Connections that stand at an end, as its daemon lists them.
fn connections(ends: &Ends, end: usize) -> usize {
    let socket = ends.run_folder(end).join("mr/0.sock");
    let mut command = Command::new(program("swanctl"));
    command.args(["--list-sas", "--uri"]).arg(format!("unix://{}", socket.display()));
    let listed = run(&mut command);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    listed.lines().filter(|line| line.starts_with("mr:") && line.contains("ESTABLISHED")).count()
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

    // Both daemons die at once, and each begins a connection: one of them stays.
    for end in [0, 1] {
        kill_process(ends.pid(end, 0), Signal::KILL).expect("a process");
    }
    for end in [0, 1] {
        wait::until("the daemon was started again", || ends.member(end, 0)["restarts"] == 1);
    }
    ends.wait_up(1);
    let both = || [0, 1].map(|end| connections(&ends, end));
    println!("connections at the beginning: {:?}", both());
    wait::until("one connection stands", || both() == [1, 1]);
    traffic.flows();
    let daemon = ends.pid(0, 0);

    // The daemon dies: the other end notices, and both connect anew.
    kill_process(daemon, Signal::KILL).expect("a process");
    wait::until("the daemon was started again", || ends.member(0, 0)["restarts"] == 2);
    ends.wait_up(1);
    traffic.flows();
    traffic.report("IPsec, daemon killed");
    traffic.finish();
    for end in [0, 1] {
        let _ = ends.vpn(end, &["down", "mr"]);
        assert!(!ends.ip(end, "link show").contains("ipsec0"));
    }
}

/// Time until a signature without a node fails: longer than a supervisor waits for a daemon that hangs.
const DEADLINE_MS: u32 = 4000;

/// Gives end a an RSA key with a certificate of the link's authority; `millrace vpn keys` makes ECDSA keys.
fn reissue_with_rsa(keys: &Path) {
    let (end, authority) = (keys.join("a"), keys.join("authority"));
    let mut command = Command::new(program("openssl"));
    command.args("req -x509 -newkey rsa:2048 -nodes -days 2 -config /dev/null".split(' '));
    command.args(["-subj", "/CN=millrace node"]);
    // OpenVPN asks for the usage of a server.
    command.args([
        "-addext",
        "keyUsage=digitalSignature",
        "-addext",
        "extendedKeyUsage=serverAuth",
    ]);
    for (option, path) in [
        ("-CA", authority.join("ca.crt")),
        ("-CAkey", authority.join("ca.key")),
        ("-keyout", end.join("key.pem")),
        ("-out", end.join("cert.pem")),
    ] {
        command.arg(option).arg(path);
    }
    let _ = succeed(&mut command);
}

/// Moves the key of an end into the node; its stub takes the place of the file.
fn move_key_into(node: &Node, keys: &Path, end: &str) {
    let key = keys.join(end).join("key.pem");
    let mut import = node.command(&["key", "import", end]);
    let _ = succeed(import.arg(&key).arg("--allow-all"));
    node.wait_for_store();
    fs::write(key, node.stub(end)).expect("a stub");
}

/// Waits until the node has made a signature for each end: RSA for end a, ECDSA for end b.
fn wait_signed(node: &Node) {
    wait::until("the node has signed for both ends", || {
        let served = node.served();
        served.rsa_signatures() > 0 && served.of("ecdsa-sign") > 0
    });
}

/// Both ends with keys that only a node has: RSA at end a, ECDSA at end b.
fn with_keys_in_pool(members: u16, settings: &str) -> (Ends, Node) {
    let ends = Ends::declared(members, settings);
    let node = Node::start(ends.dir.path(), "node-1");
    let keys = ends.dir.path().join("keys");
    reissue_with_rsa(&keys);
    for end in ["a", "b"] {
        move_key_into(&node, &keys, end);
    }
    let edge = EdgeOptions::to(node.endpoint())
        .with("fallback_after_ms", DEADLINE_MS)
        .with("deadline_ms", DEADLINE_MS)
        .write(ends.dir.path());
    let mut text = fs::read_to_string(ends.file()).expect("link.toml");
    for end in ["a", "b"] {
        let table = format!("[ends.{end}]\n");
        let line = format!("{table}openssl-config = {:?}\n", edge.conf);
        text = text.replacen(&table, &line, 1);
    }
    fs::write(ends.file(), text).expect("link.toml");
    (ends, node)
}

/// Signatures that failed at both ends, as their daemons say.
fn failed_signatures(ends: &Ends) -> usize {
    let logs =
        [0, 1].map(|end| fs::read(ends.run_folder(end).join("mr/0.log")).unwrap_or_default());
    let count = |log: &[u8]| {
        String::from_utf8_lossy(log).lines().filter(|line| is_failed_signature(line)).count()
    };
    logs.iter().map(|log| count(log)).sum()
}

fn is_failed_signature(line: &str) -> bool {
    line.contains("(myself)") && line.contains("failed")
}

#[test]
fn ends_whose_keys_only_the_pool_has_authenticate_also_after_its_node_was_away() {
    if !is_possible() || !is_installed() {
        return;
    }
    let (ends, mut node) = with_keys_in_pool(1, SETTINGS);
    ends.up(0);
    ends.up(1);
    ends.wait_up(1);
    wait_signed(&node);
    Traffic::start(&ends).finish();

    // Without the node a new daemon cannot authenticate; strongSwan itself never tries again after that.
    node.kill();
    kill_process(ends.pid(1, 0), Signal::KILL).expect("a process");
    wait::until("the daemon of end b runs again", || ends.member(1, 0)["restarts"] == 1);
    let daemons = [0, 1].map(|end| ends.pid(end, 0));
    wait::until("signatures fail again and again", || failed_signatures(&ends) >= 2);
    // Each of them takes longer than a daemon that hangs is waited for, and none of them hangs.
    assert_eq!([0, 1].map(|end| ends.pid(end, 0)), daemons);
    // Both ends are about to authenticate, and each completes the connection that it began: one of them stays.
    node.up();
    wait_signed(&node);
    ends.wait_up(1);
    let both = || [0, 1].map(|end| connections(&ends, end));
    println!("connections at the beginning: {:?}", both());
    wait::until("one connection stands", || both() == [1, 1]);
    Traffic::start(&ends).finish();
}

#[test]
fn openvpn_members_authenticate_with_keys_that_only_the_pool_has() {
    if !is_possible() {
        return;
    }
    // The node's socket lies in a folder that only root may enter.
    let (ends, node) = with_keys_in_pool(2, "[tunnels]\nuser = \"root\"\ngroup = \"root\"\n");
    ends.up(0);
    ends.up(1);
    ends.wait_up(2);
    wait_signed(&node);
    let mut traffic = Traffic::start(&ends);
    let before = node.served().rsa_signatures();
    kill_process(ends.pid(0, 1), Signal::KILL).expect("a process");
    wait::until("the member was started again", || ends.member(0, 1)["restarts"] == 1);
    ends.wait_up(2);
    assert!(node.served().rsa_signatures() > before, "each handshake takes a signature");
    traffic.flows();
    traffic.report("IPsec, keys in the pool");
    traffic.finish();
}
