// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The handshake driver: a rustls client that verifies everything, makes one request, and ends.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millrace_testkit::wait::SOON;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::kx_group::{SECP256R1, SECP384R1, X25519};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, version};

use crate::pki::Authority;
use crate::wait;
/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// TLS 1.2
    V12,
    /// TLS 1.3
    V13,
}

impl Tls {
    /// Both versions, the older first.
    pub const ALL: [Self; 2] = [Self::V12, Self::V13];
}

/// A client that trusts one authority.
#[derive(Clone, Debug)]
pub struct Client {
    v12: Arc<ClientConfig>,
    v13: Arc<ClientConfig>,
}

impl Client {
    /// A client that trusts this authority.
    ///
    /// # Panics
    /// If the authority's certificate does not parse.
    #[must_use]
    pub fn trusting(authority: &Authority) -> Self {
        Self::trusting_der(CertificateDer::from(authority.der.clone()))
    }

    /// A client that trusts the authority with this certificate.
    ///
    /// # Panics
    /// If the certificate does not parse.
    #[must_use]
    pub fn trusting_der(authority: CertificateDer<'_>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority).expect("a trust anchor");
        let config = |version| {
            // No hybrid group, so that every server accepts the first `ClientHello`: OpenSSL 3.5 and later
            // would request a second one with a key share for it. (The other curves are for TLS 1.2, where
            // they also list the accepted certificates.)
            let provider = CryptoProvider {
                kx_groups: vec![X25519, SECP256R1, SECP384R1],
                ..aws_lc_rs::default_provider()
            };
            let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
                .with_protocol_versions(&[version])
                .expect("a version")
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            config.resumption = Resumption::disabled();
            Arc::new(config)
        };
        Self { v12: config(&version::TLS12), v13: config(&version::TLS13) }
    }

    /// This client, which shows servers a chain of certificates.
    ///
    /// # Panics
    /// If the files do not parse.
    #[must_use]
    pub fn with_chain(mut self, chain: &Path, key: &Path) -> Self {
        let chain = CertificateDer::pem_file_iter(chain).expect("a chain");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_file(key).expect("a key");
        let key = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider());
        let shown = Arc::new(SingleCertAndKey::from(key.expect("a key of this certificate")));
        for config in [&mut self.v12, &mut self.v13] {
            Arc::make_mut(config).client_auth_cert_resolver = Arc::clone(&shown) as _;
        }
        self
    }

    fn connection(&self, tls: Tls) -> ClientConnection {
        let config = match tls {
            Tls::V12 => &self.v12,
            Tls::V13 => &self.v13,
        };
        let name = ServerName::try_from("localhost").expect("a name");
        ClientConnection::new(Arc::clone(config), name).expect("a client")
    }

    /// One full handshake with a request and its answer, which proves that the server has accepted, too.
    ///
    /// # Errors
    /// The failure as text.
    pub fn handshake(&self, address: SocketAddr, tls: Tls) -> Result<(), String> {
        let socket = TcpStream::connect(address).map_err(|error| format!("connect: {error}"))?;
        prepare(&socket).map_err(|error| format!("socket: {error}"))?;
        let mut stream = StreamOwned::new(self.connection(tls), socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(|error| describe(&error))?;
        }
        if stream.conn.handshake_kind() == Some(HandshakeKind::Resumed) {
            return Err("resumed".to_owned());
        }
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).map_err(|error| format!("request: {error}"))?;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            // Not every server sends close_notify.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(format!("answer: {error}")),
        }
        if answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"ok") {
            Ok(())
        } else {
            Err(format!("answer: {} bytes that are not ours", answer.len()))
        }
    }

    /// Sequential handshakes, which must all succeed.
    ///
    /// # Panics
    /// If one fails.
    pub fn handshakes(&self, address: SocketAddr, tls: Tls, count: usize) {
        for number in 0..count {
            if let Err(error) = self.handshake(address, tls) {
                panic!("handshake {number} ({tls:?}) failed: {error}");
            }
        }
    }

    /// Opens a connection and sends only a `ClientHello`.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn hello(&self, address: SocketAddr, tls: Tls) -> io::Result<TcpStream> {
        let mut socket = TcpStream::connect(address)?;
        prepare(&socket)?;
        self.connection(tls).write_tls(&mut socket)?;
        Ok(socket)
    }

    /// Runs handshakes in `threads` threads until [`Load::stop`].
    #[must_use]
    pub fn load(&self, address: SocketAddr, tls: Tls, threads: usize) -> Load {
        let shared = Arc::new(DriveShared::default());
        let threads = (0..threads)
            .map(|_| {
                let (client, shared) = (self.clone(), Arc::clone(&shared));
                thread::spawn(move || shared.run(&client, address, tls))
            })
            .collect();
        Load { shared, threads }
    }
}

/// Whether an error of [`Client::handshake`] means that a signature, a certificate or a message is wrong. No
/// fault of the pool may cause that.
#[must_use]
pub fn is_verification_failure(error: &str) -> bool {
    [
        "BadSignature",
        "invalid peer certificate",
        "corrupt",
        "Decrypt",
        "PeerMisbehaved",
        "Inappropriate",
    ]
    .iter()
    .any(|word| error.contains(word))
}

fn describe(error: &io::Error) -> String {
    match error.get_ref() {
        Some(inner) => format!("handshake: {inner}"),
        None => format!("handshake: {error}"),
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(SOON))?;
    socket.set_write_timeout(Some(SOON))
}

#[derive(Debug, Default)]
struct DriveShared {
    stop: AtomicBool,
    completed: AtomicU64,
    failures: Mutex<BTreeMap<String, u64>>,
}

impl DriveShared {
    fn run(&self, client: &Client, address: SocketAddr, tls: Tls) {
        while !self.stop.load(Ordering::Relaxed) {
            match client.handshake(address, tls) {
                Ok(()) => {
                    self.completed.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    let mut failures = self.failures.lock().expect("no panic while counting");
                    *failures.entry(error).or_insert(0) += 1;
                }
            }
        }
    }
}

/// Handshakes that run in the background.
#[derive(Debug)]
pub struct Load {
    shared: Arc<DriveShared>,
    threads: Vec<JoinHandle<()>>,
}

/// Counts of a finished load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Handshakes that were verified and answered.
    pub completed: u64,
    /// Error texts and how often each occurred.
    pub failures: BTreeMap<String, u64>,
}

impl Outcome {
    /// Number of failed handshakes.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }
}

impl Load {
    /// Handshakes so far.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.shared.completed.load(Ordering::Relaxed)
    }

    /// Failures so far.
    ///
    /// # Panics
    /// Never: counting does not panic.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.shared.failures.lock().expect("no panic while counting").values().sum()
    }

    /// Waits until `count` more handshakes have succeeded.
    ///
    /// # Panics
    /// On timeout.
    pub fn wait_for_more(&self, count: u64) {
        let goal = self.completed() + count;
        let good = wait::holds_within(SOON, || self.completed() >= goal);
        assert!(
            good,
            "only {} of {goal} handshakes; failures: {:?}",
            self.completed(),
            self.shared.failures.lock()
        );
    }

    /// Waits for the handshakes under way and returns the counts of all.
    ///
    /// # Panics
    /// If a thread of the driver panicked.
    #[must_use]
    pub fn stop(mut self) -> Outcome {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("the driver does not panic");
        }
        Outcome {
            completed: self.completed(),
            failures: self.shared.failures.lock().expect("no panic while counting").clone(),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

/// Closes connections with a RST.
///
/// # Panics
/// If the option cannot be set.
pub fn reset(sockets: Vec<TcpStream>) {
    for socket in sockets {
        let linger = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&socket, linger).expect("SO_LINGER");
    }
}

/// Closes connections with a FIN. (Dropping a socket with unread bytes would send a RST.)
pub fn finish(sockets: Vec<TcpStream>) {
    for socket in sockets {
        drop(socket.shutdown(Shutdown::Write));
    }
}
