// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace up` and the commands that connect to it: real processes in a separate folder.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use millrace_testkit::wait::holds_within;

use crate::support::{Place, SOON, p256_key, repository, rsa_key};

/// The number of keys that the node has loaded.
fn keys(status: &Value) -> u64 {
    status["keys"].as_u64().expect("the status counts the keys")
}

#[test]
fn full_disk_behind_standard_error_ends_no_node_and_no_command() {
    let place = Place::new();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut node = place.command(["up"]).stdout(full()).stderr(full()).spawn().unwrap();
    let serves = holds_within(SOON, || place.run(&["status"]).code == 0);
    let key = place.write("www.key", &p256_key());
    let import = ["key", "import", "www", key.to_str().unwrap()];
    let imported = place.command(import).stderr(full()).status().unwrap();
    let lived = node.try_wait().unwrap().is_none();
    let _ = node.kill();
    node.wait().unwrap();
    assert!(serves && lived && imported.success(), "{serves} {lived} {imported}");
}

#[test]
fn check_lists_every_problem_of_the_configuration() {
    let place = Place::new();
    let kek = place.write("kek", "");
    let file = |name: &str, text: &str| {
        let text = format!("{text}\n[store]\nkek = {kek:?}\n");
        place.write(name, &text).to_str().unwrap().to_owned()
    };
    let good = file("good.toml", "name = \"one\"");
    place.run(&["up", "--check", "--config", &good]).done();
    let values = file("values.toml", "[limits]\nkeys = 0\nin-flight = 0");
    place
        .run(&["up", "--check", "--config", &values])
        .failed(2, &["limits.keys", "limits.in-flight"]);
    let flags = ["up", "--check", "--config", &good, "--listen-metrics", "192.0.2.1:1"];
    let more = ["--socket-group", "no such group", "--log", "a=b=c"];
    place.run(&[&flags[..], &more].concat()).failed(
        2,
        &["--socket-group (unix.group)", "--listen-metrics (metrics.address)", "log.filter"],
    );
    let tcp = "[tcp]\naddress = \"127.0.0.1:0\"\n";
    let tls = "certificate = \"/a\"\nkey = \"/b\"\nclient-ca = \"/c\"";
    let named = file("named.toml", &format!("{tcp}{tls}"));
    place.run(&["up", "--check", "--config", &named]).failed(2, &["tcp: ", "/c"]);
    let made = file("made.toml", tcp);
    place.run(&["up", "--check", "--config", &made]).done();
    let managed = ["node", "run", "--check", "--config", &good, "--access", "/nonexistent/access"];
    place.run(&managed).failed(2, &["/nonexistent/access"]);
    let section = file("managed.toml", "[manager]\naccess = \"/nonexistent/other\"\n");
    let managed = ["node", "run", "--check", "--config", &section];
    place.run(&managed).failed(2, &["/nonexistent/other", "--access"]);
    place.run(&["up", "--check", "--config", &section]).done();
    let zone = file("zone.toml", "[manager]\nzone = \"a b\"\n");
    place.run(&["node", "run", "--check", "--config", &zone]).failed(2, &["manager.zone"]);
    assert!(!place.path("node.sock").exists(), "nothing was started");
}

#[test]
fn keys_come_and_go_while_the_node_runs() {
    let place = Place::new();
    let node = place.up(&[]);
    assert!(keys(&place.status()) == 0);
    let pem = place.write("key.pem", &p256_key());
    let import = place.run(&["key", "import", "www", pem.to_str().unwrap()]);
    // The command waits until the node has the key.
    assert!(import.done().talk.contains("serves it"), "{import:?}");
    assert_eq!(keys(&place.status()), 1);
    place.run(&["key", "remove", "www"]).done();
    place.wait_for_status("the removal", |status| keys(status) == 0);
    assert!(!node.log().contains("PRIVATE KEY"));
}

#[test]
fn status_has_all_fields() {
    let place = Place::new();
    let pem = place.write("key.pem", &rsa_key(2048));
    place.run(&["key", "import", "www", pem.to_str().unwrap(), "--allow-uid", "0"]).done();
    let _node = place.up(&["--name", "node-under-test"]);
    let status = place.status();
    assert_eq!(status["node"], "node-under-test");
    assert!(status["uptime_seconds"].is_number(), "{status:#}");
    assert!(status["version"].is_string(), "{status:#}");
    assert_eq!(status["state"], "ready");
    assert_eq!(keys(&status), 1);
    for count in ["connections", "connections_refused", "faults", "keys_broken", "in_flight"] {
        assert_eq!(status[count], 0, "{status:#}");
    }
    assert!(status["operations"].is_array() && status["errors"].is_array(), "{status:#}");
    assert!(status["backends"].as_array().is_some_and(|list| !list.is_empty()), "{status:#}");
    let table = place.run(&["status"]);
    assert!(table.done().data.contains("node-under-test"), "{}", table.data);
    assert!(table.data.contains("software"), "{}", table.data);
}

#[test]
fn status_without_a_node_names_the_remedy() {
    let place = Place::new();
    place.run(&["status"]).failed(5, &["millrace up"]);
    // A socket file without a listener gives the same error.
    fs::write(place.path("status.sock"), "").unwrap();
    place.run(&["status", "--json"]).failed(5, &["millrace up"]);
}

#[test]
fn second_node_on_the_same_socket_is_refused() {
    let place = Place::new();
    let first = place.up(&[]);
    let second = place.run(&["up"]);
    second.failed(1, &["node.sock"]);
    // The first node continues to serve.
    assert_eq!(place.status()["state"], "ready");
    drop(first);
    // A new node replaces the socket that a killed node left behind.
    assert!(fs::symlink_metadata(place.path("node.sock")).is_ok());
    let _third = place.up(&[]);
}

#[test]
fn sigterm_drains_and_ends_with_success() {
    let place = Place::new();
    let mut node = place.up(&[]);
    node.signal(Signal::TERM);
    let status = node.wait();
    assert_eq!(status.code(), Some(0), "{}", node.log());
    assert!(!place.path("node.sock").exists(), "the socket is gone");
    place.run(&["status"]).failed(5, &[]);
}

#[test]
fn sighup_keeps_the_node_running() {
    let place = Place::new();
    let mut node = place.up(&[]);
    node.signal(Signal::HUP);
    let pem = place.write("key.pem", &p256_key());
    place.run(&["key", "import", "www", pem.to_str().unwrap()]).done();
    place.wait_for_status("the import", |status| keys(status) == 1);
    assert!(node.child.try_wait().unwrap().is_none());
}

#[test]
fn sighup_applies_changed_settings_and_keeps_the_old_ones_if_any_is_wrong() {
    let place = Place::new();
    let configure = |top: &str, tables: &str| {
        let metrics = "[metrics]\naddress = \"127.0.0.1:0\"\n";
        place.write("node.toml", &format!("{top}{metrics}{tables}"))
    };
    let revision = |status: &Value| status["settings_revision"].as_u64().unwrap();
    let file = configure("", "");
    let node = place.up(&["--config", file.to_str().unwrap()]);
    assert_eq!(revision(&place.status()), 1);

    let limits = "[limits]\nquota-ops-per-second = 7\n[log]\nfilter = \"debug\"\n";
    configure("name = \"renamed\"\n", limits);
    node.signal(Signal::HUP);
    let status = place.wait_for_status("the change", |status| revision(status) == 2);
    assert_ne!(status["node"], "renamed");
    // The log lists the changes, including those that need a restart.
    for part in ["limits.quota-ops-per-second: 0 → 7", "log.filter", "hold after a restart"] {
        node.wait_for_log(part, 1);
    }
    let audit = fs::read_to_string(place.path("state/keys/audit.jsonl")).unwrap();
    assert!(audit.contains("\"actor\":\"SIGHUP\""), "{audit}");

    let wrong = ["[limits]\nkeys = 0\n", "[limits]\nkyes = 1\n", "[log]\nfilter = \"a=loud\"\n"];
    for (count, wrong) in (1..).zip(wrong) {
        configure("", wrong);
        node.signal(Signal::HUP);
        node.wait_for_log("cannot reload", count);
        assert_eq!(revision(&place.status()), 2, "{wrong}");
    }
}

#[test]
fn status_lists_the_open_sessions() {
    let place = Place::new();
    let _node = place.up(&[]);
    let listed = place.run(&["status", "--sessions", "--json"]);
    assert!(listed.done().data.contains("\"sessions\": []"), "{listed:?}");
    let table = place.run(&["status", "--sessions"]);
    assert!(table.done().data.contains("CLIENT"), "{table:?}");
    let admin = fs::symlink_metadata(place.path("admin.sock")).unwrap();
    assert_eq!(admin.permissions().mode() & 0o777, 0o600);
}

#[test]
fn unknown_key_in_the_configuration_is_an_error_with_its_line() {
    let place = Place::new();
    let config = place.write("node.toml", "allow-import = true\nconections = 3\n");
    let outcome = place.run(&["up", "--config", config.to_str().unwrap()]);
    outcome.failed(2, &["node.toml", "line 2", "conections"]);
    let config = place.write("node.toml", "[limits]\nkeys = 0\n[unix]\nmode = \"rw\"\n");
    let outcome = place.run(&["up", "--config", config.to_str().unwrap()]);
    outcome.failed(2, &["limits.keys", "unix.mode"]);
    place.run(&["up", "--config", "/nonexistent.toml"]).failed(2, &["/nonexistent.toml"]);
}

#[test]
fn sample_configuration_starts_a_node() {
    let place = Place::new();
    let sample = fs::read_to_string(repository().join("deploy/node.toml")).unwrap();
    // The test replaces only the fixed port and the system's folders.
    let sample = sample
        .replace("127.0.0.1:9464", "127.0.0.1:0")
        .replace("/var/lib/millrace", place.path("var").to_str().unwrap())
        .replace("/run/millrace", place.path("run").to_str().unwrap());
    let config = place.write("node.toml", &sample);
    let _node = place.up(&["--config", config.to_str().unwrap()]);
    assert_eq!(place.status()["state"], "ready");
}

#[test]
fn socket_has_the_requested_mode() {
    let place = Place::new();
    let node = place.up(&[]);
    let socket = fs::symlink_metadata(place.path("node.sock")).unwrap();
    assert!(socket.file_type().is_socket());
    assert_eq!(socket.permissions().mode() & 0o777, 0o660);
    drop(node);
    let _node = place.up(&["--socket-mode", "0600"]);
    let socket = fs::symlink_metadata(place.path("node.sock")).unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
}

#[test]
fn node_cannot_be_dumped_or_traced() {
    let place = Place::new();
    let node = place.up(&[]);
    let id = node.child.id();
    let limits = fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    let fields: Vec<&str> = core.split_whitespace().collect();
    assert_eq!(fields[4..6], ["0", "0"], "{core}");
    // Root owns the /proc files of an undumpable process, whichever user runs it.
    assert_eq!(fs::metadata(format!("/proc/{id}/environ")).unwrap().uid(), 0);
}

#[test]
fn certificates_for_tcp_are_made_and_issued() {
    let place = Place::new();
    let _node = place.up(&["--listen-tcp", "127.0.0.1:0", "--name", "localhost"]);
    let client = place.path("gateway-1");
    place.run(&["cert", "client", "gateway-1", "-o", client.to_str().unwrap()]).done();
    let verified = Command::new("openssl")
        .arg("verify")
        .arg("-CAfile")
        .arg(client.join("ca.pem"))
        .arg(client.join("cert.pem"))
        .output()
        .unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let key = fs::metadata(client.join("key.pem")).unwrap();
    assert_eq!(key.permissions().mode() & 0o077, 0);
    let again = place.run(&["cert", "client", "gateway-1", "-o", client.to_str().unwrap()]);
    again.failed(1, &["exists"]);
    let other = place.path("other");
    place.run(&["cert", "client", "a b", "-o", other.to_str().unwrap()]).failed(2, &["a b"]);
}

#[test]
fn exhausted_descriptors_are_logged_at_a_bounded_rate() {
    let place = Place::new();
    let plain = place.command(["up"]);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", r#"ulimit -n 64; exec "$0" up"#]);
    command.arg(plain.get_program());
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let (node, _) = place.up_as(command);
    let crowd: Vec<_> =
        (0..100).map(|_| UnixStream::connect(place.path("node.sock")).unwrap()).collect();
    let mut counts = Vec::new();
    // The node tries 20 times a second; of these it logs one, with the number of the others.
    while !counts.iter().any(|count| *count > 0) {
        node.wait_for_log("cannot accept a connection", counts.len() + 1);
        let log = node.log();
        let lines = log.lines().filter(|line| line.contains("cannot accept"));
        let count = |line: &str| line.rsplit("suppressed=").next()?.trim().parse::<u64>().ok();
        counts = lines.map(|line| count(line).unwrap_or(0)).collect();
    }
    assert!(counts.len() < 30, "{counts:?}");
    drop(crowd);
}
