// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Concurrent handshakes with the server. Every certificate is accepted, since the check is about the server and
//! not about its name; its signature is verified.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConnection, Resumption};
use rustls::crypto::aws_lc_rs::kx_group;
use rustls::crypto::{
    CryptoProvider, SupportedKxGroup, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, ClientConfig, DigitallySignedStruct, SignatureScheme,
    SupportedProtocolVersion, version,
};
use thiserror::Error;

/// Time limit of a handshake. The provider's default deadline is 2 s; a loaded server is slow without a fault.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);

/// Why a handshake, or all of them, failed.
#[derive(Debug, Error)]
pub(super) enum HandshakeError {
    #[error("{0} is not a name of a server: give one with --sni")]
    ServerName(String),
    #[error("{0} has no address")]
    NoAddress(String),
    #[error("{address}: {error}")]
    Connect { address: String, error: io::Error },
    #[error("no answer within {} s", HANDSHAKE_LIMIT.as_secs())]
    Timeout,
    #[error("the server closed the connection")]
    Closed,
    #[error(transparent)]
    Stream(io::Error),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error("a thread of this program panicked")]
    Panic,
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Stream(error),
        }
    }
}

/// A finished handshake; its connection closes on drop.
#[derive(Debug)]
pub(super) struct Held {
    _stream: TcpStream,
    connection: ClientConnection,
}

/// A server to make handshakes with.
#[derive(Debug)]
pub(super) struct TlsTarget {
    /// Host and port.
    pub(super) address: String,
    /// Name that the client asks for (SNI), and that the certificate should have.
    pub(super) server_name: String,
}

impl TlsTarget {
    /// Makes `count` concurrent handshakes and holds their connections.
    ///
    /// # Errors
    /// The server cannot be reached at all. A single handshake fails with its own error.
    pub(super) fn handshakes(
        &self,
        count: usize,
    ) -> Result<Vec<Result<Held, HandshakeError>>, HandshakeError> {
        let name = self.name()?;
        let config = Arc::new(config(aws_lc_rs::default_provider())?);
        // All connections first, so that the handshakes begin together.
        let streams: Vec<TcpStream> =
            (0..count).map(|_| connect(&self.address)).collect::<Result<_, _>>()?;
        Ok(thread::scope(|scope| {
            let running: Vec<_> = streams
                .into_iter()
                .map(|stream| {
                    let config = config.clone();
                    let name = name.clone();
                    scope.spawn(|| handshake(stream, config, name))
                })
                .collect();
            running
                .into_iter()
                .map(|thread| thread.join().unwrap_or(Err(HandshakeError::Panic)))
                .collect()
        }))
    }

    /// The group that the server chooses for a client that prefers X25519MLKEM768 and offers the usual curves, too.
    pub(super) fn post_quantum_group(&self) -> Result<String, HandshakeError> {
        let provider = CryptoProvider {
            kx_groups: vec![
                kx_group::X25519MLKEM768,
                kx_group::X25519,
                kx_group::SECP256R1,
                kx_group::SECP384R1,
            ],
            ..aws_lc_rs::default_provider()
        };
        let held = self.handshake(config(provider)?)?;
        let group = held.connection.negotiated_key_exchange_group();
        Ok(group.map_or_else(|| "no group".to_owned(), |group| format!("{:?}", group.name())))
    }

    /// Whether the server agrees on TLS 1.3 with a client that offers this group alone.
    ///
    /// # Errors
    /// The handshake fails for another reason than the lack of a common group.
    pub(super) fn agrees(
        &self,
        group: &'static dyn SupportedKxGroup,
    ) -> Result<bool, HandshakeError> {
        let provider = CryptoProvider { kx_groups: vec![group], ..aws_lc_rs::default_provider() };
        match self.handshake(config_of(provider, &[&version::TLS13])?) {
            Ok(_) => Ok(true),
            Err(error) if error.is_refusal() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn handshake(&self, config: ClientConfig) -> Result<Held, HandshakeError> {
        let name = self.name()?;
        handshake(connect(&self.address)?, Arc::new(config), name)
    }

    fn name(&self) -> Result<ServerName<'static>, HandshakeError> {
        ServerName::try_from(self.server_name.clone())
            .map_err(|_| HandshakeError::ServerName(self.server_name.clone()))
    }
}

/// The groups that the provider may compute, by OpenSSL's names.
pub(super) fn local_groups() -> [(&'static str, &'static dyn SupportedKxGroup); 3] {
    [
        ("X25519MLKEM768", kx_group::X25519MLKEM768),
        ("SecP256r1MLKEM768", kx_group::SECP256R1MLKEM768),
        ("X25519", kx_group::X25519),
    ]
}

impl HandshakeError {
    /// Whether the server has no group, cipher or version in common with the client.
    fn is_refusal(&self) -> bool {
        let tls = match self {
            Self::Tls(error) => Some(error),
            Self::Stream(error) => error.get_ref().and_then(|inner| inner.downcast_ref()),
            Self::ServerName(_)
            | Self::NoAddress(_)
            | Self::Connect { .. }
            | Self::Timeout
            | Self::Closed
            | Self::Panic => None,
        };
        let alert = |error: &rustls::Error| match error {
            rustls::Error::AlertReceived(alert) => Some(*alert),
            _ => None,
        };
        let refusals = [AlertDescription::HandshakeFailure, AlertDescription::ProtocolVersion];
        tls.and_then(alert).is_some_and(|alert| refusals.contains(&alert))
    }
}

fn connect(address: &str) -> Result<TcpStream, HandshakeError> {
    let failed = |address: String| move |error| HandshakeError::Connect { address, error };
    let addresses: Vec<SocketAddr> =
        address.to_socket_addrs().map_err(failed(address.to_owned()))?.collect();
    let mut last = HandshakeError::NoAddress(address.to_owned());
    for address in addresses {
        let connected = TcpStream::connect_timeout(&address, HANDSHAKE_LIMIT).and_then(|stream| {
            stream.set_read_timeout(Some(HANDSHAKE_LIMIT))?;
            stream.set_write_timeout(Some(HANDSHAKE_LIMIT))?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => last = failed(address.to_string())(error),
        }
    }
    Err(last)
}

fn handshake(
    mut stream: TcpStream,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<Held, HandshakeError> {
    let mut connection = ClientConnection::new(config, name)?;
    while connection.is_handshaking() {
        let _ = connection.complete_io(&mut stream)?;
    }
    while connection.wants_write() {
        let _ = connection.write_tls(&mut stream)?;
    }
    Ok(Held { _stream: stream, connection })
}

fn config(provider: CryptoProvider) -> Result<ClientConfig, HandshakeError> {
    config_of(provider, rustls::DEFAULT_VERSIONS)
}

fn config_of(
    provider: CryptoProvider,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ClientConfig, HandshakeError> {
    let provider = Arc::new(provider);
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    // Every handshake is to be a full one.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Accepts every certificate, and verifies that its owner signed.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
