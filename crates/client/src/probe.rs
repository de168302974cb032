// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One question to one node, for administrators: whether this process, with its user and its files, reaches the
//! node, and what the node says of itself. It blocks, and it takes the same way as a [`crate::Pool`]: the same
//! sockets, the same TLS, the same messages. A pool keeps only a sentence about an error; a probe keeps its type.

use std::io;
use std::time::{Duration, Instant};

use millrace_wire::{
    ClientMessage, Decoder, EdgeReport, FEATURE_DESCRIPTION, FEATURES, Fault, Hello, KeyRefusal,
    KeySelector, Message, NodeMessage, VERSION_MAX, VERSION_MIN, accept_version,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;

use crate::buffer::OutBuffer;
use crate::config::Endpoint;
use crate::link::{LinkError, NodeSocket};
use crate::tls::{TlsFailure, TlsFault};

/// Addresses of one name that are tried: an address that drops packets takes the time of those after it.
const MAX_ADDRESSES: usize = 4;

/// Parameters of a probe.
#[derive(Clone, Debug)]
pub struct ProbeRequest {
    /// Keys to open; an early one that is refused does not end the probe.
    pub keys: Vec<KeySelector>,
    /// Bound on the whole probe.
    pub timeout: Duration,
    /// Name and version of the asking software, for the node's log.
    pub agent: String,
}

/// Answer of a node to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probed {
    /// The node's name for itself.
    pub node: String,
    /// Name and version of its software. `None` for an older version.
    pub software: Option<String>,
    /// Whether the node takes no new jobs.
    pub draining: bool,
    /// Time of one round trip.
    pub latency: Duration,
    /// Public half (`SubjectPublicKeyInfo`, DER) of each key of the request, or the reason for its refusal.
    pub keys: Vec<Result<Vec<u8>, KeyRefusal>>,
    /// The sum of what the edges of this identity have reported to the node. `None` for an older version.
    pub edges: Option<EdgeReport>,
    /// The certificates of a TCP connection. `None` for a unix socket.
    pub certificates: Option<Certificates>,
}

/// The certificates of both sides, DER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// Certificate of this client.
    pub own: Vec<u8>,
    /// Certificate of the node.
    pub node: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// A certificate or key file of this client cannot be used. The message names the file.
    #[error("{0}")]
    Files(String),
    /// The name of the node has no address.
    #[error("{0}")]
    Unresolved(String),
    /// There is no connection.
    #[error("{0}")]
    Connect(io::Error),
    /// Something forbids this process a step on the way. The message names it.
    #[error("{0}")]
    Forbidden(String),
    /// The node did not answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The node closed the connection without a reason.
    #[error("the node closed the connection")]
    Closed,
    /// The TLS handshake failed, on either side.
    #[error("{1}")]
    Tls(TlsFault, String),
    /// The node closed the connection with a reason.
    #[error("{0}")]
    Fault(Fault),
    /// The other side does not speak this protocol.
    #[error("it does not speak Millrace: {0}")]
    Protocol(String),
}

/// Asks one node.
pub fn probe(endpoint: &Endpoint, request: &ProbeRequest) -> Result<Probed, ProbeError> {
    let until = Instant::now() + request.timeout;
    let mut talk = Conversation::open(endpoint, request.timeout, until)?;
    let hello = Hello {
        min_version: VERSION_MIN,
        max_version: VERSION_MAX,
        features: FEATURES,
        agent: request.agent.clone(),
    };
    talk.send(&ClientMessage::Hello(hello.clone()));
    let NodeMessage::Welcome(welcome) = talk.next_message()? else {
        return Err(unexpected("its first message is not a welcome"));
    };
    accept_version(&hello, &welcome).map_err(|error| ProbeError::Protocol(error.to_string()))?;
    let mut keys = Vec::with_capacity(request.keys.len());
    for (number, selector) in (0..).zip(&request.keys) {
        talk.send(&ClientMessage::OpenKey { request: number, selector: selector.clone() });
        let answer = talk.next_message()?;
        if let NodeMessage::KeyOpened { info, handle, .. } = answer {
            talk.send(&ClientMessage::CloseKey { handle });
            keys.push(Ok(info.spki));
        } else if let NodeMessage::KeyRefused { reason, .. } = answer {
            keys.push(Err(reason));
        } else {
            return Err(unexpected("no answer to a request for a key"));
        }
    }
    let (software, edges) = if welcome.features & FEATURE_DESCRIPTION != 0 {
        talk.send(&ClientMessage::Describe);
        let NodeMessage::Description { software, edges } = talk.next_message()? else {
            return Err(unexpected("no description"));
        };
        (Some(software), Some(*edges))
    } else {
        (None, None)
    };
    let sent = Instant::now();
    talk.send(&ClientMessage::Ping { token: 0 });
    let NodeMessage::Pong { .. } = talk.next_message()? else {
        return Err(unexpected("no answer to a ping"));
    };
    Ok(Probed {
        node: welcome.node,
        software,
        draining: talk.draining,
        latency: sent.elapsed(),
        keys,
        edges,
        certificates: certificates(endpoint, &talk.link),
    })
}

fn unexpected(what: &str) -> ProbeError {
    ProbeError::Protocol(what.to_owned())
}

fn certificates(endpoint: &Endpoint, link: &NodeSocket) -> Option<Certificates> {
    let Endpoint::Tcp { tls, .. } = endpoint else {
        return None;
    };
    let own = crate::tls::own_certificate(&tls.cert)?;
    Some(Certificates { own: own.to_vec(), node: link.peer_certificate()?.to_vec() })
}

/// One connection, question by question.
struct Conversation {
    link: NodeSocket,
    out: OutBuffer,
    decoder: Decoder<NodeMessage>,
    draining: bool,
    timeout: Duration,
    until: Instant,
}

impl Conversation {
    /// Connects to the first address that accepts.
    fn open(endpoint: &Endpoint, timeout: Duration, until: Instant) -> Result<Self, ProbeError> {
        let mut attempt = 0;
        loop {
            let link = NodeSocket::connect(endpoint, attempt).map_err(link_error);
            let connected = link.and_then(|link| {
                let mut talk = Self {
                    link,
                    out: OutBuffer::default(),
                    decoder: Decoder::new(),
                    draining: false,
                    timeout,
                    until,
                };
                if talk.link.is_connecting() {
                    talk.wait(PollFlags::OUT)?;
                    talk.link.finish_connect().map_err(ProbeError::Connect)?;
                }
                Ok(talk)
            });
            attempt += 1;
            match connected {
                Err(ProbeError::Connect(_)) if attempt < MAX_ADDRESSES => {}
                other => return other,
            }
        }
    }

    fn send(&mut self, message: &ClientMessage) {
        message.encode(self.out.append());
    }

    /// Sends what waits, and returns the node's next message.
    fn next_message(&mut self) -> Result<NodeMessage, ProbeError> {
        loop {
            let message = self.decoder.next();
            match message.map_err(|error| ProbeError::Protocol(error.to_string()))? {
                Some(NodeMessage::Drain) => self.draining = true,
                Some(NodeMessage::Fault(fault)) => return Err(ProbeError::Fault(fault)),
                Some(message) => return Ok(message),
                None => self.read_some()?,
            }
        }
    }

    fn read_some(&mut self) -> Result<(), ProbeError> {
        loop {
            let sent = self.link.flush(Some(&mut self.out));
            let read = self.link.read(self.decoder.space());
            match read {
                Ok(0) => return Err(ProbeError::Closed),
                Ok(count) => {
                    self.decoder.filled(count);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    sent.map_err(io_error)?;
                }
                // The reason of the other side, if it gave one, is what was read.
                Err(error) => return Err(io_error(error)),
            }
            // The read may have made TLS want to write.
            self.link.flush(Some(&mut self.out)).map_err(io_error)?;
            let more = if self.link.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
            self.wait(PollFlags::IN | more)?;
        }
    }

    fn wait(&self, wanted: PollFlags) -> Result<(), ProbeError> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ProbeError::Silent(self.timeout));
            }
            let left = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.link, wanted)], left.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(ProbeError::Connect(error.into())),
            }
        }
    }
}

fn link_error(error: LinkError) -> ProbeError {
    match error {
        LinkError::Io(error) => ProbeError::Connect(error),
        LinkError::Refused(refused) if refused.is_forbidden => {
            ProbeError::Forbidden(refused.to_string())
        }
        LinkError::Refused(refused) => ProbeError::Connect(refused.error),
        LinkError::Closed => ProbeError::Closed,
        LinkError::Unresolved { .. } | LinkError::NoAddress(_) => {
            ProbeError::Unresolved(error.to_string())
        }
        LinkError::ServerName(_) | LinkError::TlsSetup(_) => ProbeError::Files(error.to_string()),
        LinkError::Tls(error) => tls_error(&TlsFailure(error)),
    }
}

fn tls_error(failure: &TlsFailure) -> ProbeError {
    ProbeError::Tls(TlsFault::of(&failure.0), failure.to_string())
}

fn io_error(error: io::Error) -> ProbeError {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsFailure>());
    match tls {
        Some(failure) => tls_error(failure),
        None => match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => ProbeError::Closed,
            io::ErrorKind::Other => ProbeError::Protocol(error.to_string()),
            _ => ProbeError::Connect(error),
        },
    }
}
