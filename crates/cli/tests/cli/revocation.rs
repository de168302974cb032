// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace cert revoke`: OpenSSL accepts the list, and `millrace up` uses it.

use std::fs;
use std::process::Command;

use crate::support::Place;

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

#[test]
fn openssl_accepts_the_revocation_list() {
    let place = Place::new();
    issue(&place, "gateway-1");
    issue(&place, "gateway-2");
    assert!(verdict(&place, "gateway-1").contains("OK"));
    place.run(&["cert", "revoke", "gateway-1"]).done();
    assert!(verdict(&place, "gateway-1").contains("certificate revoked"));
    assert!(verdict(&place, "gateway-2").contains("OK"));
    place
        .run(&["cert", "revoke", "gateway-1"])
        .failed(1, &["revoked already"]);
    place
        .run(&["cert", "revoke", "no name"])
        .failed(2, &["cannot name a client"]);
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
    place
        .run(&["up", "--listen-tcp", "192.0.2.1:1"])
        .failed(1, &["ca.crl"]);
}
