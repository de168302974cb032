// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node over TCP, and clients with valid or invalid certificates.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use millrace_server::config::{TcpConfig, TlsFiles};
use millrace_server::tls::{CertificateFiles, ensure_node_certificates, issue_client_certificate};
use millrace_wire::ALPN;
use rustls::crypto::aws_lc_rs;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{Setup, TestNode, tcp};

pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

pub(crate) static TLS12: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS12];
pub(crate) static TLS13: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

/// The certificate, key and CA with which a client connects.
pub(crate) struct Papers {
    pub(crate) ca: CertificateDer<'static>,
    pub(crate) own: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
    pub(crate) alpn: Vec<Vec<u8>>,
    pub(crate) versions: &'static [&'static SupportedProtocolVersion],
}

impl Papers {
    pub(crate) fn of(files: &CertificateFiles) -> Self {
        let certificate = CertificateDer::from_pem_file(&files.certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
        Self {
            ca: CertificateDer::from_pem_file(&files.ca).unwrap(),
            own: Some((certificate, key)),
            alpn: vec![ALPN.to_vec()],
            versions: &TLS13,
        }
    }

    pub(crate) fn connect(self, node: &TestNode) -> TlsStream {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca).unwrap();
        let builder = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.own {
            Some((certificate, key)) => {
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn;
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        StreamOwned::new(connection, tcp(node.tcp.unwrap()))
    }

    /// Whether the node closes the connection without a message. (With TLS 1.3 a client learns only at its
    /// first read that the node refused its certificate.)
    pub(crate) fn refused_by(self, node: &TestNode) -> bool {
        let mut stream = self.connect(node);
        let written = stream.write_all(&[0; 8]).and_then(|()| stream.flush());
        let mut byte = [0];
        written.is_err() || !matches!(stream.read(&mut byte), Ok(1))
    }
}

/// A node that listens on TCP, with certificates of a private CA.
pub(crate) fn setup() -> Setup {
    let mut setup = Setup::new();
    let directory = setup.directory.path().join("tls");
    ensure_node_certificates(&directory, &["localhost".to_owned()]).unwrap();
    setup.config.tcp = Some(TcpConfig {
        address: "127.0.0.1:0".parse().unwrap(),
        tls: TlsFiles::in_directory(&directory),
    });
    setup
}

/// Issues a certificate for a client.
pub(crate) fn issue(node: &TestNode, name: &str) -> CertificateFiles {
    issue_client_certificate(&node.setup.directory.path().join("tls"), name).unwrap()
}
