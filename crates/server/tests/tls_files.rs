// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The files of the TCP listener: permissions of the private key, and revoked clients.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::tls::{Papers, issue, setup};
use common::{Client, Setup, TestNode, engine};
use millrace_backends::software::Software;
use millrace_server::Node;
use millrace_server::tls::{CertificateFiles, ensure_node_certificates, revoke_client_certificate};
use millrace_testkit::keys;
use rcgen::{CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, SerialNumber};
use time::{Duration, OffsetDateTime};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn key(setup: &Setup) -> &Path {
    &setup.config.tcp.as_ref().unwrap().tls.key
}

#[tokio::test]
async fn key_that_others_can_read_is_refused_at_the_start() {
    let setup = setup();
    set_mode(key(&setup), 0o644);
    let bind = || {
        let engine = engine(Arc::new(Software::new()));
        let service = setup.config.service(engine, setup.store()).unwrap();
        Node::bind(setup.config.clone(), service).map(drop)
    };
    let error = bind().unwrap_err().to_string();
    for part in ["node.key", "0644", "chmod 0600"] {
        assert!(error.contains(part), "{error}");
    }
    // Only root can choose the group of the file (Debian's ssl-cert).
    set_mode(key(&setup), 0o640);
    let root = rustix::process::geteuid().is_root();
    assert_eq!(bind().is_ok(), root);
    set_mode(key(&setup), 0o400);
    assert!(bind().is_ok());
}

#[test]
fn key_readable_by_others_is_not_reloaded() {
    let node = setup().start();
    let papers = Papers::of(&issue(&node, "gateway-1"));
    set_mode(key(&node.setup), 0o604);
    let error = node.handle.reload().unwrap_err().to_string();
    assert!(error.contains("0604"), "{error}");
    assert!(!papers.refused_by(&node), "the former files stay in force");
    set_mode(key(&node.setup), 0o600);
    node.handle.reload().unwrap();
}

/// A node that checks the revocation list of its CA.
fn with_list() -> Setup {
    let mut setup = setup();
    let list = tls(&setup).join("ca.crl");
    setup.config.tcp.as_mut().unwrap().tls.crl = Some(list);
    setup
}

fn tls(setup: &Setup) -> PathBuf {
    setup.directory.path().join("tls")
}

fn gets_in(node: &TestNode, files: &CertificateFiles) -> bool {
    !Papers::of(files).refused_by(node)
}

#[test]
fn revoked_client_is_refused_from_the_next_reload_on() {
    let node = with_list().start();
    let one = issue(&node, "gateway-1");
    let two = issue(&node, "gateway-2");
    let papers = || Papers::of(&one);
    let (before, between, after) = (papers(), papers(), papers());
    assert!(!before.refused_by(&node));
    revoke_client_certificate(&tls(&node.setup), "gateway-1").unwrap();
    assert!(!between.refused_by(&node));
    node.handle.reload().unwrap();
    assert!(after.refused_by(&node));
    assert!(gets_in(&node, &two));
    // The client may get a new certificate.
    fs::remove_file(&one.key).unwrap();
    assert!(gets_in(&node, &issue(&node, "gateway-1")));
}

#[test]
fn unusable_revocation_list_is_not_loaded() {
    let node = with_list().start();
    let one = issue(&node, "gateway-1");
    let list = tls(&node.setup).join("ca.crl");
    let good = fs::read(&list).unwrap();
    let broken = "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n";
    for bad in ["", "rubbish", broken] {
        fs::write(&list, bad).unwrap();
        let error = node.handle.reload().unwrap_err().to_string();
        assert!(error.contains("ca.crl"), "{error}");
        assert!(gets_in(&node, &one), "the former files stay in force");
    }
    fs::remove_file(&list).unwrap();
    assert!(node.handle.reload().is_err());
    fs::write(&list, good).unwrap();
    node.handle.reload().unwrap();
    assert!(gets_in(&node, &one));
}

/// An empty list of the CA in `directory`, valid until `end`.
fn list(directory: &Path, end: OffsetDateTime) -> String {
    let pem = |name| fs::read_to_string(directory.join(name)).unwrap();
    let key = KeyPair::from_pem(&pem("ca.key")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&pem("ca.crt"), key).unwrap();
    let params = CertificateRevocationListParams {
        this_update: end - Duration::days(2),
        next_update: end,
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: Vec::new(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&issuer).unwrap().pem().unwrap()
}

#[test]
fn client_of_a_ca_without_a_valid_list_is_refused() {
    let node = with_list().start();
    let one = issue(&node, "gateway-1");
    let directory = tls(&node.setup);
    let foreign = node.setup.directory.path().join("foreign");
    ensure_node_certificates(&foreign, &[]).unwrap();
    let now = OffsetDateTime::now_utc();
    let tomorrow = now + Duration::days(1);
    for (list, good) in [
        (list(&directory, tomorrow), true),
        (list(&directory, now - Duration::days(1)), false),
        // The issuer has the same name, so only the signature differs.
        (list(&foreign, tomorrow), false),
    ] {
        fs::write(directory.join("ca.crl"), list).unwrap();
        node.handle.reload().unwrap();
        assert_eq!(gets_in(&node, &one), good);
    }
}

#[test]
fn reload_ends_the_open_connections_of_a_revoked_client() {
    let node = with_list().start();
    let connect = |name| {
        let mut client = Client::new(Papers::of(&issue(&node, name)).connect(&node));
        client.hello();
        client
    };
    let mut revoked = connect("gateway-1");
    let mut other = connect("gateway-2");
    revoke_client_certificate(&tls(&node.setup), "gateway-1").unwrap();
    other.import(&keys::p_256());
    node.handle.reload().unwrap();
    revoked.ended();
    other.import(&keys::p_256());
    node.until(|status| status.connections == 1);
}
