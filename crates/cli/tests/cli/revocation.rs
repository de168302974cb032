// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace cert revoke`: OpenSSL accepts the list, and `millrace up` uses it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::{Node, Place};

fn issue(place: &Place, name: &str) {
    let folder = place.path(name);
    let folder = folder.to_str().unwrap();
    place.run(&["cert", "client", name, "-o", folder]).done();
}

/// The result of OpenSSL's verification of a client's certificate.
fn verdict(place: &Place, name: &str) -> String {
    let output = Command::new("openssl")
        .args(["verify", "-crl_check", "-CAfile"])
        .arg(place.path("state/tls/ca.crt"))
        .arg("-CRLfile")
        .arg(place.path("state/tls/ca.crl"))
        .arg(place.path(name).join("cert.pem"))
        .output()
        .expect("openssl is installed");
    let both = [output.stdout, output.stderr].concat();
    String::from_utf8(both).unwrap()
}

fn serial_of(text: &str) -> String {
    let (_, rest) = text.split_once("serial ").unwrap();
    rest.split(',').next().unwrap().to_owned()
}

/// The row of the table of certificates with this serial number.
fn row_of(table: &str, serial: &str) -> String {
    let mut rows = table.lines().filter(|row| row.contains(serial));
    let row = rows.next().unwrap_or_else(|| panic!("no {serial}:\n{table}"));
    assert!(rows.next().is_none(), "{table}");
    row.to_owned()
}

#[test]
fn openssl_accepts_the_revocation_list() {
    let place = Place::new();
    issue(&place, "gateway-1");
    issue(&place, "gateway-2");
    assert!(verdict(&place, "gateway-1").contains("OK"));
    let would = place.run(&["cert", "revoke", "gateway-1", "--dry-run"]);
    assert!(would.done().data.contains("gateway-1: serial "), "{would:?}");
    assert!(verdict(&place, "gateway-1").contains("OK"));
    let list = || place.run(&["cert", "list"]).done().data.clone();
    let serial = serial_of(&would.data);
    assert!(row_of(&list(), &serial).starts_with("gateway-1  client"));
    place.run(&["cert", "revoke", "gateway-1"]).done();
    assert!(row_of(&list(), &serial).starts_with("-          client"));
    assert!(verdict(&place, "gateway-1").contains("certificate revoked"));
    assert!(verdict(&place, "gateway-2").contains("OK"));
    place.run(&["cert", "revoke", "gateway-1"]).failed(1, &["revoked already"]);
    place.run(&["cert", "revoke", "no name"]).failed(2, &["cannot name a client"]);
    fs::remove_dir_all(place.path("gateway-1")).unwrap();
    issue(&place, "gateway-1");
    assert!(verdict(&place, "gateway-1").contains("OK"));
}

#[test]
fn node_uses_the_revocation_list_of_its_authority() {
    let place = Place::new();
    issue(&place, "gateway-1");
    place.run(&["cert", "revoke", "gateway-1"]).done();
    drop(place.up(&["--listen-tcp", "127.0.0.1:0"]));
    fs::write(place.path("state/tls/ca.crl"), "rubbish").unwrap();
    // The address belongs to no machine: a node that passes the check fails, too, but with another error.
    place.run(&["up", "--listen-tcp", "192.0.2.1:1"]).failed(1, &["ca.crl"]);
}

/// A node with the files that an authority elsewhere has issued for it.
fn node_from(authority: &Place, name: &str) -> (Place, Node, String) {
    let place = Place::new();
    let tls = place.path("state/tls");
    let issued = ["cert", "node", name, "-o", tls.to_str().unwrap()];
    authority.run(&issued).done();
    let node = place.up(&["--listen-tcp", "127.0.0.1:0"]);
    node.wait_for_log("mutual TLS", 1);
    let log = node.log();
    let line = log.lines().find(|line| line.contains("mutual TLS"));
    let address = line.and_then(|line| line.split_whitespace().nth(1));
    let address = address.expect("the node says where it listens").to_owned();
    (place, node, address)
}

/// Output of OpenSSL about a connection to a node, until the node closes it.
fn connect(address: &str, client: &Path) -> String {
    let output = Command::new("openssl")
        .args(["s_client", "-tls1_3", "-alpn", "millrace/1", "-verify_return_error", "-ign_eof"])
        .args(["-connect", address, "-verify_ip", "127.0.0.1"])
        .arg("-CAfile")
        .arg(client.join("ca.pem"))
        .arg("-cert")
        .arg(client.join("cert.pem"))
        .arg("-key")
        .arg(client.join("key.pem"))
        .stdin(Stdio::null())
        .output()
        .expect("openssl is installed");
    let both = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

#[test]
fn client_revoked_at_the_authority_is_refused_by_both_nodes() {
    let authority = Place::new();
    authority.run(&["cert", "authority"]).done();
    let nodes = ["node-1", "node-2"].map(|name| node_from(&authority, name));
    for (place, _, _) in &nodes {
        let tls = place.path("state/tls");
        assert!(!tls.join("ca.key").exists());
        let key = fs::metadata(tls.join("node.key")).unwrap();
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
    }
    issue(&authority, "gateway-1");
    let client = authority.path("gateway-1");
    for (_, _, address) in &nodes {
        let said = connect(address, &client);
        assert!(said.contains("Verify return code: 0 (ok)"), "{said}");
        assert!(!said.contains("certificate revoked"), "{said}");
    }
    authority.run(&["cert", "revoke", "gateway-1"]).done();
    for (place, node, address) in &nodes {
        let list = authority.path("state/tls/ca.crl");
        fs::copy(list, place.path("state/tls/ca.crl")).unwrap();
        node.signal(Signal::HUP);
        node.wait_for_log("keys_broken=0", 1);
        let said = connect(address, &client);
        assert!(said.contains("certificate revoked"), "{said}");
    }
}

#[test]
fn node_without_an_authority_names_the_command_that_helps() {
    let authority = Place::new();
    authority.run(&["cert", "authority"]).done();
    let place = Place::new();
    let tls = place.path("state/tls");
    fs::create_dir_all(&tls).unwrap();
    fs::copy(authority.path("state/tls/ca.crt"), tls.join("ca.crt")).unwrap();
    place.run(&["up", "--listen-tcp", "127.0.0.1:0"]).failed(1, &["millrace cert node"]);
    place.run(&["cert", "node", "two words", "-o", "/nonexistent"]).failed(2, &["two words"]);
}

#[test]
fn client_files_are_readable_by_the_group_that_is_named() {
    let place = Place::new();
    let folder = place.path("gateway-1");
    // A group that every user who runs this test may give files to.
    let group = rustix::process::getegid().as_raw().to_string();
    let output = folder.to_str().unwrap();
    let command = ["cert", "client", "gateway-1", "-o", output, "--group"];
    place.run(&[&command[..], &[&group]].concat()).done();
    for (path, mode) in [(folder.clone(), 0o750), (folder.join("key.pem"), 0o640)] {
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{path:?}");
        assert_eq!(metadata.gid().to_string(), group);
    }
    place.run(&[&command[..], &["no such group"]].concat()).failed(2, &["no such group"]);
}
