// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A TLS load generator: full handshakes from one thread, a fixed number at a time.
//!
//! Each connection does one handshake and ends: connect, handshake, `close_notify`, FIN. It then waits for the
//! gateway's end, so that all its work is done when it counts. Its latency is the time from before `connect` until the
//! client has finished the handshake. With a *request* it also asks for a small response, and the gateway ends the
//! connection; the latency then lasts until that end.
//!
//! The load is *closed* or *paced*. A closed load starts a connection when one has ended, so throughput and offered
//! load are the same. A paced load has a given rate, and the latency counts from the time at which a handshake was due.
//!
//! Every handshake is checked. The certificate is the expected one, byte for byte, and its signature verifies. Version
//! and key exchange group are as offered, and so is the number of session tickets where the terms name it. No
//! handshake is a resumption. Any other handshake is a failure with a reason.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, DigitallySignedStruct, Error as TlsError, HandshakeKind, NamedGroup,
    ProtocolVersion, SignatureScheme, version,
};
use serde::Serialize;
use thiserror::Error;

use super::TlsVersion;
use crate::error::BenchError;
use crate::progress::Progress;
use crate::stats::Latencies;

/// A connection without any event for this time has failed. Clients give up later.
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for events between checks of the clock and of a request to stop.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// Interval of checks for connections without any event.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The request: the gateways answer `ok` and end the connection.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Bound on a response: the gateways' are below 300 bytes.
const MAX_RESPONSE_LEN: usize = 64 << 10;

/// After this many failures a round ends, and its reasons are reported instead of figures.
const MAX_FAILURES: u64 = 1000;

/// A key exchange group.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum, strum::Display,
)]
pub(crate) enum TlsGroup {
    /// X25519
    #[value(name = "x25519")]
    #[serde(rename = "x25519")]
    X25519,
    /// The post-quantum hybrid of X25519 and ML-KEM-768
    #[value(name = "x25519mlkem768")]
    #[serde(rename = "x25519mlkem768")]
    X25519MLKEM768,
}

/// A cipher of TLS 1.3.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum, strum::Display,
)]
pub(crate) enum TlsCipher {
    /// TLS_AES_128_GCM_SHA256, which browsers prefer
    #[value(name = "aes-128")]
    #[serde(rename = "aes-128")]
    #[strum(to_string = "AES-128-GCM")]
    Aes128,
    /// TLS_AES_256_GCM_SHA384, which OpenSSL's clients prefer
    #[value(name = "aes-256")]
    #[serde(rename = "aes-256")]
    #[strum(to_string = "AES-256-GCM")]
    Aes256,
}

/// The required properties of handshakes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeTerms {
    pub(super) version: TlsVersion,
    pub(super) group: TlsGroup,
    /// The cipher of TLS 1.3; with TLS 1.2 it is always AES-128-GCM.
    pub(super) cipher: TlsCipher,
    /// Number of session tickets that the server sends; `None`: not checked.
    pub(super) tickets: Option<u32>,
}

impl HandshakeTerms {
    /// X25519 and AES-128-GCM.
    pub(super) fn usual(version: TlsVersion) -> Self {
        Self { version, group: TlsGroup::X25519, cipher: TlsCipher::Aes128, tickets: None }
    }

    /// Offer of the client: one cipher per version and, in effect, one group, so that what differs between rounds is
    /// the key, not luck.
    fn provider(self) -> CryptoProvider {
        use aws_lc_rs::{cipher_suite as suite, kx_group};
        let mut provider = aws_lc_rs::default_provider();
        provider.kx_groups = match self.group {
            // P-256 must be named too, since TLS 1.2 takes it as leave to use such a certificate (RFC 8422 section
            // 5.1.1); that it is not used is checked below.
            TlsGroup::X25519 => vec![kx_group::X25519, kx_group::SECP256R1],
            TlsGroup::X25519MLKEM768 => vec![kx_group::X25519MLKEM768],
        };
        provider.cipher_suites = vec![
            match self.cipher {
                TlsCipher::Aes128 => suite::TLS13_AES_128_GCM_SHA256,
                TlsCipher::Aes256 => suite::TLS13_AES_256_GCM_SHA384,
            },
            suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ];
        provider
    }
}

/// The server of handshakes, and their required properties.
#[derive(Clone, Debug)]
pub(super) struct Target {
    address: SocketAddr,
    name: ServerName<'static>,
    version: ProtocolVersion,
    group: NamedGroup,
    tickets: Option<u32>,
    config: Arc<ClientConfig>,
}

impl Target {
    /// Full handshakes with a server that has this certificate.
    pub(super) fn new(
        address: SocketAddr,
        certificate: CertificateDer<'static>,
        terms: HandshakeTerms,
    ) -> Result<Self, BenchError> {
        let provider = terms.provider();
        let algorithms = provider.signature_verification_algorithms;
        let version = match terms.version {
            TlsVersion::Tls12 => &version::TLS12,
            TlsVersion::Tls13 => &version::TLS13,
        };
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])
            .map_err(|error| BenchError::Setup(format!("cannot set up a TLS client: {error}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { certificate, algorithms }))
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.enable_sni = true;
        let name = ServerName::try_from("localhost")
            .map_err(|error| BenchError::Setup(format!("cannot name a TLS server: {error}")))?;
        Ok(Self {
            address,
            name,
            version: version.version,
            group: match terms.group {
                TlsGroup::X25519 => NamedGroup::X25519,
                TlsGroup::X25519MLKEM768 => NamedGroup::X25519MLKEM768,
            },
            tickets: terms.tickets,
            config: Arc::new(config),
        })
    }
}

/// The handshakes of one load.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadOutcome {
    /// Handshakes that were done and verified, with the gateway's end seen.
    pub(super) completed: u64,
    /// Number of occurrences of each failure.
    pub(super) failures: BTreeMap<String, u64>,
    /// Time from the start of the first connection to the end of the last.
    pub(super) elapsed: Duration,
    /// Latency of each completed handshake.
    pub(super) latencies: Latencies,
}

impl LoadOutcome {
    /// Number of handshakes that failed.
    pub(super) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }
}

/// An offered load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// Handshakes at a time, at most.
    pub(super) concurrency: usize,
    pub(super) duration: Duration,
    /// Whether each connection also carries a request.
    pub(super) request: bool,
    /// Handshakes per second, evenly spread; `None` for a closed load: as many as possible.
    pub(super) per_s: Option<f64>,
}

/// Offers a load, and then lets the handshakes that have begun end.
pub(super) fn drive(
    target: &Target,
    offer: Offer,
    progress: &Progress,
) -> Result<LoadOutcome, BenchError> {
    Generator::new(target, offer)?.run(progress)
}

struct Generator<'a> {
    target: &'a Target,
    offer: Offer,
    /// Time at which the next handshake of a paced load is due.
    due: Option<Instant>,
    epoll: rustix::fd::OwnedFd,
    slots: Vec<Option<Connection>>,
    free: Vec<usize>,
    outcome: LoadOutcome,
}

impl<'a> Generator<'a> {
    fn new(target: &'a Target, offer: Offer) -> Result<Self, BenchError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(BenchError::system("create an epoll instance"))?;
        Ok(Self {
            target,
            due: offer.per_s.map(|_| Instant::now()),
            offer,
            epoll,
            slots: (0..offer.concurrency).map(|_| None).collect(),
            free: (0..offer.concurrency).collect(),
            outcome: LoadOutcome::default(),
        })
    }

    fn run(mut self, progress: &Progress) -> Result<LoadOutcome, BenchError> {
        let start = Instant::now();
        let mut last_look = start;
        let mut events: Vec<epoll::Event> = Vec::with_capacity(self.slots.len());
        loop {
            let now = Instant::now();
            if now.duration_since(start) < self.offer.duration
                && self.outcome.failed() < MAX_FAILURES
            {
                self.start_due(now);
            } else if self.free.len() == self.slots.len() {
                break;
            }
            self.wait(&mut events, now)?;
            progress.check()?;
            for event in &events {
                self.advance(usize::try_from(event.data.u64()).unwrap_or(usize::MAX));
            }
            if last_look.elapsed() > IDLE_CHECK_INTERVAL {
                last_look = Instant::now();
                self.end_idle();
            }
        }
        self.outcome.elapsed = start.elapsed();
        Ok(self.outcome)
    }

    fn wait(&self, events: &mut Vec<epoll::Event>, now: Instant) -> Result<(), BenchError> {
        events.clear();
        let due = self.due.filter(|_| !self.free.is_empty());
        let slice =
            due.map_or(WAIT_SLICE, |due| due.saturating_duration_since(now).min(WAIT_SLICE));
        // Below a second, so both conversions fit.
        let slice = Timespec { tv_sec: 0, tv_nsec: i64::from(slice.subsec_nanos()) };
        let space = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, space, Some(&slice)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(BenchError::system("wait for events")(error)),
        }
    }

    /// Starts the handshakes that are due: in a closed load as many as there is room for.
    fn start_due(&mut self, now: Instant) {
        while let Some(slot) = self.free.last().copied() {
            let started = self.due.unwrap_or_else(Instant::now);
            if started > now && self.due.is_some() {
                return;
            }
            let per_s = self.offer.per_s.unwrap_or(1.0).max(1.0);
            self.due = self.due.map(|due| due + Duration::from_secs_f64(1.0 / per_s));
            match self.open(slot, started) {
                Ok(()) => drop(self.free.pop()),
                // Not again within this turn: that would be a loop without an end.
                Err(reason) => return self.fail(&reason),
            }
        }
    }

    fn open(&mut self, slot: usize, started: Instant) -> Result<(), HandshakeFailure> {
        let connection = Connection::open(self.target, started, self.offer.request)?;
        let data = epoll::EventData::new_u64(slot as u64);
        epoll::add(&self.epoll, &connection.socket, data, epoll::EventFlags::IN)
            .map_err(HandshakeFailure::io("epoll"))?;
        self.slots[slot] = Some(connection);
        Ok(())
    }

    fn advance(&mut self, slot: usize) {
        let Some(Some(connection)) = self.slots.get_mut(slot) else {
            return;
        };
        match connection.advance(self.target) {
            Ok(None) => return,
            Ok(Some(latency)) => {
                self.outcome.completed += 1;
                self.outcome.latencies.push(latency);
            }
            Err(reason) => self.fail(&reason),
        }
        self.close(slot);
    }

    fn end_idle(&mut self) {
        for slot in 0..self.slots.len() {
            let idle = |connection: &Connection| connection.last_event.elapsed() > IDLE_LIMIT;
            if self.slots[slot].as_ref().is_some_and(idle) {
                self.fail(&HandshakeFailure::Idle);
                self.close(slot);
            }
        }
    }

    fn close(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.free.push(slot);
    }

    fn fail(&mut self, reason: &HandshakeFailure) {
        *self.outcome.failures.entry(reason.to_string()).or_default() += 1;
    }
}

/// Why a handshake does not count. The report has each text with how often it occurred.
#[derive(Debug, Error)]
enum HandshakeFailure {
    #[error("{action}: {kind}")]
    Io { action: &'static str, kind: ErrorKind },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("closed by the gateway")]
    Closed,
    #[error("nothing happened for {} s", IDLE_LIMIT.as_secs())]
    Idle,
    #[error("another response than expected")]
    Response,
    #[error("version {0:?}")]
    Version(Option<ProtocolVersion>),
    #[error("key exchange group {0:?}")]
    Group(Option<NamedGroup>),
    #[error("not a plain full handshake: {0:?}")]
    Kind(Option<HandshakeKind>),
    #[error("{0} session tickets")]
    Tickets(u32),
}

impl HandshakeFailure {
    fn io<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Io { action, kind: error.into().kind() }
    }
}

struct Connection {
    socket: TcpStream,
    tls: ClientConnection,
    started: Instant,
    last_event: Instant,
    latency: Option<Duration>,
    /// The response so far, if there was a request.
    response: Option<Vec<u8>>,
}

impl Connection {
    /// Connects and starts the handshake. The latency counts from `started`, the time at which it was due.
    fn open(target: &Target, started: Instant, request: bool) -> Result<Self, HandshakeFailure> {
        let name = target.name.clone();
        let mut tls = ClientConnection::new(Arc::clone(&target.config), name)?;
        // On loopback connect returns at once: the kernel does both sides in the call.
        let mut socket =
            TcpStream::connect(target.address).map_err(HandshakeFailure::io("connect"))?;
        let prepared = socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true));
        prepared.map_err(HandshakeFailure::io("set up a socket"))?;
        flush(&mut tls, &mut socket)?;
        Ok(Self {
            socket,
            tls,
            started,
            last_event: Instant::now(),
            latency: None,
            response: request.then(Vec::new),
        })
    }

    /// Handles readability. Returns the latency once both sides have ended.
    fn advance(&mut self, target: &Target) -> Result<Option<Duration>, HandshakeFailure> {
        self.last_event = Instant::now();
        match self.tls.read_tls(&mut self.socket) {
            Ok(0) => return self.ended(target).map(Some),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(HandshakeFailure::io("read")(error)),
        }
        let processed = self.tls.process_new_packets();
        if let Err(error) = processed {
            // The alert names the cause to the gateway; the failure is counted either way.
            drop(flush(&mut self.tls, &mut self.socket));
            return Err(error.into());
        }
        self.read_response()?;
        if self.latency.is_some() || self.tls.is_handshaking() {
            flush(&mut self.tls, &mut self.socket)?;
            return Ok(None);
        }
        self.latency = Some(self.started.elapsed());
        self.check(target)?;
        if self.response.is_some() {
            let asked = self.tls.writer().write_all(REQUEST);
            asked.map_err(HandshakeFailure::io("write"))?;
            flush(&mut self.tls, &mut self.socket)?;
            return Ok(None);
        }
        self.tls.send_close_notify();
        flush(&mut self.tls, &mut self.socket)?;
        self.socket.shutdown(Shutdown::Write).map_err(HandshakeFailure::io("shutdown"))?;
        Ok(None)
    }

    /// The gateway has ended: the latency, if the connection did all its work.
    fn ended(&self, target: &Target) -> Result<Duration, HandshakeFailure> {
        let done = self.latency.ok_or(HandshakeFailure::Closed)?;
        let tickets = self.tls.tls13_tickets_received();
        if target.tickets.is_some_and(|wanted| wanted != tickets) {
            return Err(HandshakeFailure::Tickets(tickets));
        }
        match &self.response {
            None => Ok(done),
            Some(text) if text.starts_with(b"HTTP/1.1 200 ") && text.ends_with(b"\r\n\r\nok") => {
                Ok(self.started.elapsed())
            }
            Some(_) => Err(HandshakeFailure::Response),
        }
    }

    fn read_response(&mut self) -> Result<(), HandshakeFailure> {
        let Some(response) = &mut self.response else {
            return Ok(());
        };
        let mut part = [0; 4096];
        // Its end, and that there is nothing more for now, show as errors or as 0.
        while let Ok(len @ 1..) = self.tls.reader().read(&mut part) {
            response.extend_from_slice(part.get(..len).unwrap_or_default());
            if response.len() > MAX_RESPONSE_LEN {
                return Err(HandshakeFailure::Response);
            }
        }
        Ok(())
    }

    fn check(&self, target: &Target) -> Result<(), HandshakeFailure> {
        if self.tls.protocol_version() != Some(target.version) {
            return Err(HandshakeFailure::Version(self.tls.protocol_version()));
        }
        let group = self.tls.negotiated_key_exchange_group().map(|group| group.name());
        if group != Some(target.group) {
            return Err(HandshakeFailure::Group(group));
        }
        match self.tls.handshake_kind() {
            Some(HandshakeKind::Full) => Ok(()),
            other => Err(HandshakeFailure::Kind(other)),
        }
    }
}

/// Writes the pending output of the client. A fresh loopback socket takes a whole flight, so a full send
/// buffer is an error here and not a state.
fn flush(tls: &mut ClientConnection, socket: &mut TcpStream) -> Result<(), HandshakeFailure> {
    while tls.wants_write() {
        tls.write_tls(socket).map_err(HandshakeFailure::io("write"))?;
    }
    Ok(())
}

/// Accepts one certificate, byte for byte, and checks the signatures made with its key.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        if *end_entity == self.certificate {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, cert, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, cert, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
