// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One HTTP request over TLS, blocking, with bounds: what the command line and the loop of a node need. No runtime, no
//! pool of connections: a node sends one request every few seconds.
//!
//! Requests are HTTP/1.0 with a `Host` header, so that no server answers with the chunked coding.

use std::io::{self, Read, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::http_head::{Head, ReadError};
use crate::timed::TimedSocket;

/// Bound on an answer, in bytes: a page of the largest listing has 4 MiB.
const MAX_ANSWER: u64 = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL is not `https://HOST[:PORT]`.
    #[error("{0:?} is not an address of a manager: use https://HOST:PORT")]
    Url(String),
    /// The server could not be reached, or the connection broke.
    #[error("cannot reach {url}: {source}")]
    Io {
        /// The address.
        url: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// TLS could not be set up.
    #[error("cannot set up TLS to {url}: {source}")]
    Tls {
        /// The address.
        url: String,
        /// The cause.
        source: rustls::Error,
    },
    /// The answer is not HTTP, or too large.
    #[error("{url} does not answer as a manager does: {reason}")]
    Answer {
        /// The address.
        url: String,
        /// The problem.
        reason: &'static str,
    },
}

/// The address of a manager: `https://HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ManagerUrl {
    host: String,
    port: u16,
}

/// Port of a manager whose URL names none.
pub const DEFAULT_PORT: u16 = 7500;

impl FromStr for ManagerUrl {
    type Err = HttpError;

    fn from_str(text: &str) -> Result<Self, HttpError> {
        let wrong = || HttpError::Url(text.chars().take(256).collect());
        let rest = text.strip_prefix("https://").ok_or_else(wrong)?;
        let authority = rest.trim_end_matches('/');
        let (host, port) = match authority.rsplit_once(':') {
            // The last colon of an IPv6 address without a port is inside its brackets.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| wrong())?)
            }
            _ => (authority, DEFAULT_PORT),
        };
        let host = host.strip_prefix('[').map_or(Some(host), |inner| inner.strip_suffix(']'));
        let host = host.ok_or_else(wrong)?;
        let allowed =
            host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte));
        if host.is_empty() || host.len() > 253 || !allowed {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl std::fmt::Display for ManagerUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "https://{}", self.authority())
    }
}

impl ManagerUrl {
    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// A request of the API, before the client adds the headers that each has.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) method: &'static str,
    /// Path and query.
    pub(super) path: &'a str,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Option<Vec<u8>>,
}

/// The parts of an answer that the client uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) etag: Option<String>,
    pub(super) body: Vec<u8>,
}

/// Bounds on the time of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// For the connection and the TLS handshake.
    pub(super) reach: Duration,
    /// Bound on the whole request.
    pub(super) answer: Duration,
}

/// Sends a request and reads the answer.
pub(super) fn exchange(
    url: &ManagerUrl,
    tls: &Arc<ClientConfig>,
    request: &Request<'_>,
    limits: Limits,
) -> Result<Answer, HttpError> {
    let failed = |source| HttpError::Io { url: url.to_string(), source };
    let start = Instant::now();
    let address = (url.host.as_str(), url.port);
    let mut socket =
        TimedSocket::connect(address, limits.answer, start + limits.reach).map_err(failed)?;
    let name =
        ServerName::try_from(url.host.clone()).map_err(|_| HttpError::Url(url.to_string()))?;
    let mut session = ClientConnection::new(Arc::clone(tls), name)
        .map_err(|source| HttpError::Tls { url: url.to_string(), source })?;
    while session.is_handshaking() {
        session.complete_io(&mut socket).map_err(failed)?;
    }
    socket.deadline = Some(start + limits.answer);
    let mut stream = StreamOwned::new(session, socket);
    stream.write_all(&head_of(url, request)).map_err(failed)?;
    if let Some(body) = &request.body {
        stream.write_all(body).map_err(failed)?;
    }
    stream.flush().map_err(failed)?;
    read_answer(stream).map_err(|error| match error {
        ReadError::Io(source) => failed(source),
        ReadError::Form(reason) => HttpError::Answer { url: url.to_string(), reason },
    })
}

fn head_of(url: &ManagerUrl, request: &Request<'_>) -> Vec<u8> {
    let Request { method, path, headers, body } = request;
    let mut head = format!("{method} {path} HTTP/1.0\r\nhost: {}\r\n", url.authority());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = body {
        let len = body.len();
        head.push_str(&format!("content-type: application/json\r\ncontent-length: {len}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

fn read_answer(mut stream: impl Read) -> Result<Answer, ReadError> {
    let (head, mut body) = Head::read(&mut stream)?;
    match head.length {
        Some(length) if length > MAX_ANSWER => {
            return Err(ReadError::Form("its answer is too large"));
        }
        Some(length) => {
            let missing = length.saturating_sub(body.len() as u64);
            stream.take(missing).read_to_end(&mut body).map_err(ReadError::Io)?;
            if (body.len() as u64) < length {
                return Err(ReadError::Form("its answer is truncated"));
            }
            body.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        }
        // TLS tells a complete answer from a truncated one: without close_notify the read is an error.
        None => {
            stream.take(MAX_ANSWER + 1).read_to_end(&mut body).map_err(ReadError::Io)?;
            if body.len() as u64 > MAX_ANSWER {
                return Err(ReadError::Form("its answer is too large"));
            }
        }
    }
    Ok(Answer { status: head.status, etag: head.etag, body })
}

/// Reads an answer from bytes, for the fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) fn parse_answer(bytes: &[u8]) -> bool {
    read_answer(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(bytes: &[u8]) -> &'static str {
        match read_answer(bytes) {
            Err(ReadError::Form(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn urls_are_https_with_a_host_and_a_port() {
        for (text, shown) in [
            ("https://pool.example", "https://pool.example:7500"),
            ("https://pool.example:1/", "https://pool.example:1"),
            ("https://[::1]:7500", "https://[::1]:7500"),
            ("https://[::1]", "https://[::1]:7500"),
        ] {
            let url: ManagerUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
        }
        for wrong in [
            "http://pool.example",
            "pool.example:7500",
            "https://",
            "https://a:b",
            "https://a/b",
            "https://a:70000",
            "https://user@a",
            "https://a\r\nx: y",
            "https://[::1",
        ] {
            assert!(wrong.parse::<ManagerUrl>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn answer_is_read_whole_or_refused() {
        let answer =
            read_answer(&b"HTTP/1.1 200 OK\r\nETag: \"7\"\r\nContent-Length: 2\r\n\r\n{}tail"[..]);
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"{}"[..]));
        assert_eq!(answer.etag.as_deref(), Some("\"7\""));
        let open = read_answer(&b"HTTP/1.0 404 Not Found\r\n\r\nto the end"[..]).unwrap();
        assert_eq!((open.status, open.body.as_slice()), (404, &b"to the end"[..]));
        assert_eq!(
            reason(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}"),
            "its answer is truncated"
        );
        assert_eq!(reason(b"HTTP/1.1 200 OK\r\n"), "the connection ended within the header");
        assert_eq!(reason(b"SSH-2.0-x\r\n\r\n"), "it is not HTTP");
        assert_eq!(
            reason(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            "its answer has a transfer coding"
        );
        assert_eq!(
            reason(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"),
            "its answer is too large"
        );
    }
}
