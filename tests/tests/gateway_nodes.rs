// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway check` and `status --pool` ask every node of a pool over TCP as a server's worker would: each
//! node has a line that names its fault.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_tests::artifacts::artifacts;
use millrace_tests::checked::{Server, Setup, may_unshare};
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::Site;
use millrace_tests::is_root;
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{run, succeed, text_of};
use millrace_tests::world::World;
use serde_json::Value;

/// The world's authority signs the nodes' certificates and those of the gateways.
fn of_one_authority(world: &World, name: &str) -> Node {
    let own = world.identity(KeyKind::P256);
    let options = NodeOptions {
        tcp: true,
        tls: Some((own.certificate_file, own.key_file, world.authority.file.clone())),
        ..NodeOptions::default()
    };
    Node::start_with(world.dir(), name, &options)
}

/// The folder of a client certificate that is valid until this year.
fn client_of(world: &World, until: i32) -> PathBuf {
    let dir = world.authority.client("gateway-1", 2001, until);
    fs::copy(&world.authority.file, dir.join("ca.pem")).expect("authority");
    dir
}

#[test]
fn every_node_over_tcp_has_a_line_that_names_its_fault() {
    let world = World::new();
    let node = of_one_authority(&world, "good");
    let identity = world.identity(KeyKind::Rsa2048);
    let setup = Setup { node, identity, world };
    let world = &setup.world;
    let keyless = of_one_authority(world, "keyless");
    let mut gone = of_one_authority(world, "gone");
    gone.kill();
    let alone = NodeOptions { tcp: true, ..NodeOptions::default() };
    let other = Node::start_with(world.dir(), "other", &alone);
    let certificates = client_of(world, 2099);
    let good = EdgeOptions {
        certificates: Some(certificates.clone()),
        ..EdgeOptions::to(setup.node.tcp_endpoint())
    };
    let site = setup.pooled_for("--allow-cert gateway-1");
    let edge = good.clone().write(world.dir());
    let running = Server::ALL.map(|server| setup.start(server, &site, &edge));
    for server in &running {
        setup.check_running(server, &edge).is_good();
    }
    let beside =
        |node: String| EdgeOptions { nodes: vec![setup.node.tcp_endpoint(), node], ..good.clone() };
    let mut rows = vec![
        (beside(other.tcp_endpoint()), "node", "certificate of another authority"),
        (beside(gone.tcp_endpoint()), "node", "no node answers"),
        (beside("tcp:no-such-host.invalid:1".to_owned()), "node", "has no address"),
        (beside(keyless.tcp_endpoint()), "policy", "does not let cert:gateway-1 use www"),
        (good.clone().with("tls_server_name", "elsewhere.example"), "node", "for another name"),
        (
            EdgeOptions { certificates: Some(client_of(world, 2002)), ..good.clone() },
            "node",
            "this gateway's certificate has expired",
        ),
        (EdgeOptions { certificates: None, ..good.clone() }, "certificates", "tcp: nodes need"),
    ];
    if is_root() {
        let closed = world.dir().join("closed");
        let mut copy = Command::new("cp");
        let _ = succeed(copy.arg("-r").arg(&certificates).arg(&closed));
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("permissions");
        let edge = EdgeOptions { certificates: Some(closed), ..good.clone() };
        rows.push((edge, "node", "certificate files cannot be used"));
    }
    for (edge, check, word) in rows {
        let both = edge.nodes.len() == 2;
        let edge = edge.write(world.dir());
        for server in &running {
            let report = setup.check_running(server, &edge);
            report.fails(check, word);
            if both {
                report.has("ok", "node", &setup.node.tcp_endpoint());
            }
        }
    }
}

#[test]
fn revoked_certificate_of_a_gateway_is_named() {
    let setup = Setup::default();
    let world = &setup.world;
    let tls = world.dir().join("node-strict/state/tls");
    let options = NodeOptions {
        tcp: true,
        toml: format!("crl = {:?}\n", tls.join("ca.crl")),
        ..NodeOptions::default()
    };
    let mut strict = Node::prepare(world.dir(), "strict", &options);
    let certificates = world.dir().join("gateway-2");
    let mut issue = strict.command(&["cert", "client", "gateway-2"]);
    let _ = succeed(issue.arg("-o").arg(&certificates));
    let _ = succeed(&mut strict.command(&["cert", "revoke", "gateway-2"]));
    make_readable(&certificates);
    strict.up();
    let edge = setup.edge().write(world.dir());
    let haproxy = setup.haproxy(&setup.pooled(), &edge, |_| ());
    let edge =
        EdgeOptions { certificates: Some(certificates), ..EdgeOptions::to(strict.tcp_endpoint()) };
    let edge = edge.write(world.dir());
    setup
        .check("haproxy", haproxy.process.id(), Some(&edge))
        .fails("node", "this gateway's certificate is revoked");
}

/// The drop-in that `millrace gateway haproxy` prints makes the certificates visible in HAProxy's chroot.
#[test]
fn chrooted_haproxy_reaches_tcp_nodes_through_the_generated_binds() {
    if !is_root() || !may_unshare() {
        millrace_testkit::skip!("namespaces are not permitted here");
    }
    let world = World::new();
    let node = of_one_authority(&world, "good");
    let identity = world.identity(KeyKind::Rsa2048);
    let setup = Setup { node, identity, world };
    let certificates = client_of(&setup.world, 2099);
    let jail = setup.world.dir().join("jail");
    let mut plan = setup.node.command(&["gateway", "haproxy", "--json"]);
    // `--config` is not for this command.
    let mut print = Command::new(plan.get_program());
    print.args(plan.get_args().take_while(|word| *word != "--config"));
    plan = print;
    plan.args(["--pool", &setup.node.tcp_endpoint(), "--certs"]).arg(&certificates);
    plan.arg("--provider").arg(&artifacts().provider);
    let plan: Value = serde_json::from_str(&succeed(&mut plan)).expect("JSON");
    let files = plan["files"].as_array().expect("files");
    let mut binds = Vec::new();
    for file in files {
        let lines = file["contents"].as_str().expect("contents").lines();
        let lines = lines.filter_map(|line| line.strip_prefix("BindReadOnlyPaths="));
        for line in lines {
            let (outside, inside) = line.split_once(':').expect("two paths");
            let inside = inside.strip_prefix("/var/lib/haproxy/").expect("Debian's chroot");
            binds.push((PathBuf::from(outside), jail.join(inside)));
        }
    }
    if binds.is_empty() {
        // Without systemd the plan has commands; they are the same paths.
        for step in plan["after"].as_array().expect("steps") {
            let command = step["command"].as_str().expect("a command");
            let Some((_, paths)) = command.split_once("mount --bind -o ro ") else {
                continue;
            };
            let (outside, inside) = paths.split_once(' ').expect("two paths");
            let inside = inside.strip_prefix("/var/lib/haproxy/").expect("Debian's chroot");
            binds.push((PathBuf::from(outside), jail.join(inside)));
        }
    }
    assert!(binds.iter().any(|(outside, _)| *outside == certificates), "{plan:#}");
    fs::create_dir_all(&jail).expect("folder");
    let edge = EdgeOptions {
        certificates: Some(certificates),
        ..EdgeOptions::to(setup.node.tcp_endpoint())
    };
    let edge = edge.write(setup.world.dir());
    let site = setup.pooled_for("--allow-cert gateway-1");
    let global = format!("  chroot {}\n", jail.display());
    let haproxy = setup.haproxy(&site, &edge, |options| options.global.clone_from(&global));
    setup
        .check("haproxy", haproxy.process.id(), None)
        .fails("node", "certificate files cannot be used")
        .fails("handshakes", "");
    let bound = setup.haproxy(&site, &edge, |options| {
        options.global = global;
        options.binds = binds;
    });
    let root = fs::read_link(format!("/proc/{}/root", bound.process.id())).expect("its root");
    // A release in a folder of its own has the jail below that folder.
    assert!(root.ends_with(jail.strip_prefix("/").expect("absolute")), "{}", root.display());
    setup.check("haproxy", bound.process.id(), None).is_good();
}

#[test]
fn status_of_a_pool_has_a_row_for_every_node() {
    if !may_unshare() {
        millrace_testkit::skip!("namespaces are not permitted here");
    }
    let world = World::new();
    let node = of_one_authority(&world, "good");
    let keyless = of_one_authority(&world, "keyless");
    let mut gone = of_one_authority(&world, "gone");
    gone.kill();
    let identity = world.identity(KeyKind::P256);
    let stub = node.import_with("www", &identity, &["--allow-cert", "gateway-1"]);
    let certificates = client_of(&world, 2099);
    make_readable(&certificates);
    let edge = EdgeOptions {
        nodes: vec![node.tcp_endpoint(), keyless.tcp_endpoint(), gone.tcp_endpoint()],
        certificates: Some(certificates),
        ..EdgeOptions::default()
    };
    let edge = edge.write(world.dir());
    // The stubs are those of the servers' configurations.
    let etc = world.dir().join("etc-haproxy");
    fs::create_dir(&etc).expect("folder");
    let site = Site::with_stub(&identity, &stub);
    fs::write(etc.join("www.pem"), format!("{}{}", site.certificate_pem, site.key_pem))
        .expect("site");
    let config = "global\n  user nobody\nfrontend a\n  bind :443 ssl crt /etc/haproxy/www.pem\n";
    fs::write(etc.join("haproxy.cfg"), config).expect("configuration");
    let status = |more: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.arg("mount --bind \"$0\" /etc/haproxy && exec \"$@\"").arg(&etc);
        command.arg(&artifacts().millrace).args(["status", "--gateway"]).arg(&edge.conf).args(more);
        run(&mut command)
    };
    let output = status(&["--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = answer["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 3, "{answer:#}");
    let state = &nodes[0]["state"];
    assert_eq!(state["keys"][0]["state"], "usable", "{answer:#}");
    assert_eq!(state["certificates"]["identity"], "gateway-1");
    assert!(state["software"].as_str().is_some_and(|name| name.starts_with("millrace/")));
    assert_eq!(nodes[1]["state"]["keys"][0]["state"], "not-there", "{answer:#}");
    assert_eq!(nodes[2]["fault"]["kind"], "refused", "{answer:#}");
    let page = text_of(&status(&[]));
    let row = |node: &Node| {
        page.lines().find(|line| line.starts_with(&node.tcp_endpoint())).map(str::to_owned)
    };
    assert!(row(&node).is_some_and(|row| row.contains("ready") && row.contains("none")), "{page}");
    assert!(row(&keyless).is_some_and(|row| row.contains("www")), "{page}");
    assert!(page.contains("2 of 3 nodes cannot serve"), "{page}");
}

/// Only the owner may read the files that `millrace cert client` writes.
fn make_readable(dir: &Path) {
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
    };
    set(dir, 0o755);
    for entry in fs::read_dir(dir).expect("a folder").flatten() {
        set(&entry.path(), 0o644);
    }
}
