// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node over TCP: admitted clients, their identities, and refused clients.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use common::tls::{Papers, TLS12, issue, setup};
use common::{Client, ECDSA_SIGN, TestNode, eventually, only, tcp};
use millrace_server::tls::{CertificateFiles, ensure_node_certificates, issue_client_certificate};
use millrace_service::policy::KeyPolicy;
use millrace_testkit::keys;
use millrace_wire::NodeMessage;
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustix::net::{AddressFamily, SocketType};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Signs a client's certificate by the CA in `directory`, with any contents.
fn signed_by(
    directory: &Path,
    change: impl FnOnce(&mut CertificateParams),
) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let pem = |name| fs::read_to_string(directory.join(name)).unwrap();
    let issuer =
        Issuer::from_ca_cert_pem(&pem("ca.crt"), KeyPair::from_pem(&pem("ca.key")).unwrap());
    let mut params = CertificateParams::new(["gateway-1".to_owned()]).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer.unwrap()).unwrap();
    (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
}

#[test]
fn client_identity_comes_from_its_certificate() {
    let setup = setup();
    setup.import("one", &keys::p_256(), only("cert:gateway-1"));
    setup.import("two", &keys::p_256(), only("cert:gateway-2"));
    let node = setup.start();
    let papers = Papers::of(&issue(&node, "gateway-1"));
    let mut client = Client::new(papers.connect(&node));
    assert_eq!(client.hello().node, "node-under-test");
    let key = client.open("one");
    assert!(client.run(key, &ECDSA_SIGN, &[0; 32]).is_ok());
    assert!(matches!(client.ask("two"), NodeMessage::KeyRefused { .. }));
}

#[test]
fn large_pipelined_batch_goes_through_tls() {
    let setup = setup();
    setup.import("one", &keys::p_256(), KeyPolicy::signing(["*"]));
    let node = setup.start();
    let mut client = Client::new(Papers::of(&issue(&node, "gateway-1")).connect(&node));
    client.hello();
    let key = client.open("one");
    let jobs: Vec<_> = (0..1000).map(|id| common::job(id, key, &ECDSA_SIGN, &[1; 32])).collect();
    client.submit(&jobs);
    for _ in &jobs {
        assert!(client.complete().result.is_ok());
    }
}

#[test]
fn client_without_valid_certificate_is_refused() {
    let node = setup().start();
    let directory = node.setup.directory.path().join("tls");
    let good = issue(&node, "gateway-1");
    let papers = || Papers::of(&good);
    assert!(!papers().refused_by(&node));

    let none = Papers { own: None, ..papers() };
    assert!(none.refused_by(&node), "no certificate");
    let expired = signed_by(&directory, |params| {
        params.not_before = time::OffsetDateTime::now_utc() - time::Duration::days(2);
        params.not_after = time::OffsetDateTime::now_utc() - time::Duration::days(1);
    });
    let expired = Papers { own: Some(expired), ..papers() };
    assert!(expired.refused_by(&node), "expired");
    let early = signed_by(&directory, |params| {
        params.not_before = time::OffsetDateTime::now_utc() + time::Duration::days(1);
    });
    let early = Papers { own: Some(early), ..papers() };
    assert!(early.refused_by(&node), "not valid yet");
    let server = signed_by(&directory, |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    let server = Papers { own: Some(server), ..papers() };
    assert!(server.refused_by(&node), "a server's certificate");

    let foreign = node.setup.directory.path().join("foreign");
    ensure_node_certificates(&foreign, &["localhost".to_owned()]).unwrap();
    let foreign = Papers { own: Some(signed_by(&foreign, |_| {})), ..papers() };
    assert!(foreign.refused_by(&node), "another CA, of the same name");

    assert!(Papers { alpn: vec![], ..papers() }.refused_by(&node), "no ALPN");
    let alpn = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    assert!(Papers { alpn, ..papers() }.refused_by(&node), "another protocol");
    let versions = &TLS12;
    assert!(Papers { versions, ..papers() }.refused_by(&node), "TLS 1.2");
    node.until(|status| status.connections_refused == 8);
}

#[test]
fn certificate_name_that_is_no_identity_gets_a_fault() {
    let node = setup().start();
    let directory = node.setup.directory.path().join("tls");
    let nameless = signed_by(&directory, |params| {
        params.subject_alt_names.clear();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "two words");
    });
    let papers = Papers { own: Some(nameless), ..Papers::of(&issue(&node, "gateway-1")) };
    let mut client = Client::new(papers.connect(&node));
    assert_eq!(client.fault(), millrace_wire::Fault::Unauthorized);
}

#[test]
fn plain_text_and_silent_clients_are_disconnected() {
    let node =
        setup().limits(|limits| limits.handshake_timeout = Duration::from_millis(100)).start();
    let mut rest = Vec::new();
    let mut plain = tcp(node.tcp.unwrap());
    // On a busy machine the node may have closed the connection already.
    let _ = plain.write_all(b"GET / HTTP/1.1\r\n\r\n");
    let _ = plain.read_to_end(&mut rest);
    assert!(rest.is_empty() || rest[0] == 0x15, "nothing but a TLS alert");
    let mut silent = tcp(node.tcp.unwrap());
    assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0);
    node.until(|status| status.connections_refused == 2);
}

#[test]
fn connections_are_capped_before_tls() {
    let node = setup().limits(|limits| limits.connections = 1).start();
    let papers = || Papers::of(&issue_once(&node));
    let mut first = Client::new(papers().connect(&node));
    first.hello();
    assert!(papers().refused_by(&node));
    drop(first);
    eventually(|| !papers().refused_by(&node));
}

#[test]
fn silent_unauthenticated_clients_do_not_block_others() {
    let node = setup().limits(|limits| limits.connections = 4).start();
    let silent: Vec<_> = (0..8).map(|_| tcp(node.tcp.unwrap())).collect();
    node.until(|status| status.connections_refused >= 7);
    let mut client = node.connect();
    client.import(&keys::p_256());
    drop(silent);
    let papers = || Papers::of(&issue_once(&node));
    eventually(|| !papers().refused_by(&node));
}

fn issue_once(node: &TestNode) -> CertificateFiles {
    let directory = node.setup.directory.path().join("tls");
    let _ = issue_client_certificate(&directory, "gateway-1");
    let mut files = ensure_node_certificates(&directory, &[]).unwrap();
    files.certificate = directory.join("gateway-1.crt");
    files.key = directory.join("gateway-1.key");
    files
}

#[test]
fn certificates_and_the_ca_are_reloaded() {
    let node = setup().start();
    let directory = node.setup.directory.path().join("tls");
    let old = issue(&node, "gateway-1");
    let old_papers = Papers::of(&old);
    let still_old = Papers::of(&old);
    let mut open = Client::new(old_papers.connect(&node));
    open.hello();

    // Broken files change nothing.
    let good = fs::read(directory.join("ca.crt")).unwrap();
    fs::write(directory.join("ca.crt"), b"rubbish").unwrap();
    assert!(node.handle.reload().unwrap_err().to_string().contains("ca.crt"));
    fs::write(directory.join("ca.crt"), good).unwrap();
    assert!(!Papers::of(&old).refused_by(&node));

    for name in ["ca.crt", "ca.key", "node.crt", "node.key"] {
        fs::remove_file(directory.join(name)).unwrap();
    }
    ensure_node_certificates(&directory, &["localhost".to_owned()]).unwrap();
    let new = issue(&node, "gateway-2");
    node.handle.reload().unwrap();
    assert!(!Papers::of(&new).refused_by(&node));
    assert!(still_old.refused_by(&node));
    // Open connections stay open.
    open.import(&keys::p_256());
}

/// A connection from another loopback address than the tests' clients use, that sends nothing.
fn silent_from_elsewhere(node: &TestNode) -> OwnedFd {
    let family = AddressFamily::INET;
    let socket = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
    let source: SocketAddr = "127.0.0.2:0".parse().unwrap();
    rustix::net::bind(&socket, &source).unwrap();
    rustix::net::connect(&socket, &node.tcp.unwrap()).unwrap();
    socket
}

#[test]
fn flood_of_silent_connections_refuses_no_gateway() {
    let node = setup()
        .limits(|limits| {
            limits.connections = 64;
            limits.handshake_timeout = Duration::from_secs(600);
        })
        .start();
    let papers = || Papers::of(&issue_once(&node));
    let mut flood = Vec::new();
    for _ in 0..20 {
        flood.extend((0..16).map(|_| silent_from_elsewhere(&node)));
        assert!(!papers().refused_by(&node));
    }
}

#[test]
fn client_without_a_first_message_is_cut_off_before_the_timeout() {
    let node = setup().limits(|limits| limits.handshake_timeout = Duration::from_secs(600)).start();
    let mut silent = tcp(node.tcp.unwrap());
    assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0);
    node.until(|status| status.connections_refused == 1);
}

#[test]
fn client_that_offers_no_protocol_gets_the_alert_of_alpn() {
    let node = setup().start();
    let files = issue(&node, "gateway-1");
    for alpn in [vec![], vec![b"h2".to_vec()]] {
        let papers = Papers { alpn, ..Papers::of(&files) };
        let mut stream = papers.connect(&node);
        let error = stream.write_all(&[0; 8]).and_then(|()| stream.flush());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("NoApplicationProtocol"), "{error}");
    }
}
