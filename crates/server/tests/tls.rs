// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node over TCP: who gets in, as whom, and who does not.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Client, ECDSA_SIGN, Setup, TestNode, eventually, only, tcp};
use millrace_engine::KeyPolicy;
use millrace_server::config::{TcpConfig, TlsFiles};
use millrace_server::tls::{CertificateFiles, ensure_node_certificates, issue_client_certificate};
use millrace_testkit::keys;
use millrace_wire::{ALPN, NodeMessage};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

type TlsStream = StreamOwned<ClientConnection, TcpStream>;

static TLS12: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS12];
static TLS13: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

/// What a client brings.
struct Papers {
    ca: CertificateDer<'static>,
    own: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
    alpn: Vec<Vec<u8>>,
    versions: &'static [&'static SupportedProtocolVersion],
}

impl Papers {
    fn of(files: &CertificateFiles) -> Self {
        let certificate = CertificateDer::from_pem_file(&files.certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
        Self {
            ca: CertificateDer::from_pem_file(&files.ca).unwrap(),
            own: Some((certificate, key)),
            alpn: vec![ALPN.to_vec()],
            versions: &TLS13,
        }
    }

    fn connect(self, node: &TestNode) -> TlsStream {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca).unwrap();
        let builder = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.own {
            Some((certificate, key)) => builder
                .with_client_auth_cert(vec![certificate], key)
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn;
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        StreamOwned::new(connection, tcp(node.tcp.unwrap()))
    }

    /// Whether the node hangs up without a word. (With TLS 1.3 a client learns only at its first
    /// read that its certificate was refused.)
    fn refused_by(self, node: &TestNode) -> bool {
        let mut stream = self.connect(node);
        let written = stream.write_all(&[0; 8]).and_then(|()| stream.flush());
        let mut byte = [0];
        written.is_err() || !matches!(stream.read(&mut byte), Ok(1))
    }
}

fn setup() -> Setup {
    let mut setup = Setup::new();
    let directory = setup.directory.path().join("tls");
    ensure_node_certificates(&directory, &["localhost".to_owned()]).unwrap();
    setup.config.tcp = Some(TcpConfig {
        address: "127.0.0.1:0".parse().unwrap(),
        tls: TlsFiles::in_directory(&directory),
    });
    setup
}

fn issue(node: &TestNode, name: &str) -> CertificateFiles {
    issue_client_certificate(&node.setup.directory.path().join("tls"), name).unwrap()
}

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
    (
        certificate.der().clone(),
        PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
    )
}

#[test]
fn a_client_is_who_its_certificate_says() {
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
fn a_large_pipelined_batch_goes_through_tls() {
    let setup = setup();
    setup.import("one", &keys::p_256(), KeyPolicy::signing());
    let node = setup.start();
    let mut client = Client::new(Papers::of(&issue(&node, "gateway-1")).connect(&node));
    client.hello();
    let key = client.open("one");
    let jobs: Vec<_> = (0..1000)
        .map(|id| common::job(id, key, &ECDSA_SIGN, &[1; 32]))
        .collect();
    client.submit(&jobs);
    for _ in &jobs {
        assert!(client.complete().result.is_ok());
    }
}

#[test]
fn whoever_lacks_good_papers_is_refused() {
    let node = setup().start();
    let directory = node.setup.directory.path().join("tls");
    let good = issue(&node, "gateway-1");
    let papers = || Papers::of(&good);
    assert!(!papers().refused_by(&node));

    let none = Papers {
        own: None,
        ..papers()
    };
    assert!(none.refused_by(&node), "no certificate");
    let expired = signed_by(&directory, |params| {
        params.not_before = time::OffsetDateTime::now_utc() - time::Duration::days(2);
        params.not_after = time::OffsetDateTime::now_utc() - time::Duration::days(1);
    });
    let expired = Papers {
        own: Some(expired),
        ..papers()
    };
    assert!(expired.refused_by(&node), "expired");
    let early = signed_by(&directory, |params| {
        params.not_before = time::OffsetDateTime::now_utc() + time::Duration::days(1);
    });
    let early = Papers {
        own: Some(early),
        ..papers()
    };
    assert!(early.refused_by(&node), "not valid yet");
    let server = signed_by(&directory, |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    let server = Papers {
        own: Some(server),
        ..papers()
    };
    assert!(server.refused_by(&node), "a server's certificate");

    let foreign = node.setup.directory.path().join("foreign");
    ensure_node_certificates(&foreign, &["localhost".to_owned()]).unwrap();
    let foreign = Papers {
        own: Some(signed_by(&foreign, |_| {})),
        ..papers()
    };
    assert!(foreign.refused_by(&node), "another CA, of the same name");

    assert!(
        Papers {
            alpn: vec![],
            ..papers()
        }
        .refused_by(&node),
        "no ALPN"
    );
    let alpn = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    assert!(
        Papers { alpn, ..papers() }.refused_by(&node),
        "another protocol"
    );
    let versions = &TLS12;
    assert!(
        Papers {
            versions,
            ..papers()
        }
        .refused_by(&node),
        "TLS 1.2"
    );
    node.until(|status| status.connections_refused == 8);
}

#[test]
fn a_name_that_is_no_identity_is_told_so() {
    let node = setup().start();
    let directory = node.setup.directory.path().join("tls");
    let nameless = signed_by(&directory, |params| {
        params.subject_alt_names.clear();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "two words");
    });
    let papers = Papers {
        own: Some(nameless),
        ..Papers::of(&issue(&node, "gateway-1"))
    };
    let mut client = Client::new(papers.connect(&node));
    assert_eq!(client.fault(), millrace_wire::Fault::Unauthorized);
}

#[test]
fn plain_text_and_silence_are_cut() {
    let node = setup()
        .limits(|limits| limits.handshake_timeout = Duration::from_millis(100))
        .start();
    let mut rest = Vec::new();
    let mut plain = tcp(node.tcp.unwrap());
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let _ = plain.read_to_end(&mut rest);
    assert!(
        rest.is_empty() || rest[0] == 0x15,
        "nothing but a TLS alert"
    );
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
fn strangers_who_say_nothing_do_not_keep_others_out() {
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
    let (old_papers, still_old) = (Papers::of(&old), Papers::of(&old));
    let mut open = Client::new(old_papers.connect(&node));
    open.hello();

    // Broken files change nothing.
    let good = fs::read(directory.join("ca.crt")).unwrap();
    fs::write(directory.join("ca.crt"), b"rubbish").unwrap();
    assert!(
        node.handle
            .reload()
            .unwrap_err()
            .to_string()
            .contains("ca.crt")
    );
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
    // Who is in stays in.
    open.import(&keys::p_256());
}
