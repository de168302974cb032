// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Requests to etcd: one connection each, to the member that answered last.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_hostfs::ordinary::{self, Links};
use millrace_service::store::pem::MAX_PEM_LEN;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::answers::refused;
use super::{EtcdConfig, encode};
use crate::http_head::Head;
use crate::store::StoreError;
use crate::timed::TimedSocket;

/// Silence after which another member is asked. A member on another continent answers within 300 ms. While etcd elects
/// a leader, a longer wait would gain nothing: what a member has sent to the former leader is lost.
const SILENCE: Duration = Duration::from_millis(1500);

/// Silence of the only member that is configured: there is no other to ask, and its disk may be slow.
const SILENCE_ALONE: Duration = Duration::from_secs(4);

/// Time for a call: three silent members, and some more. Callers of the manager wait for 10 s.
pub(super) const CALL: Duration = Duration::from_secs(6);

/// Bound on an answer: a page of 500 records of 1 MiB each, in base64, would be more; such records are rare.
const MAX_ANSWER: u64 = 256 * 1024 * 1024;

/// Condition for sending a request again, to another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// After any failure: it only reads.
    Always,
    /// If no connection could be made: the request may have been carried out otherwise.
    OnlyUnsent,
}

/// Makes the requests of a store. Its threads share it without a lock.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) endpoints: Vec<Endpoint>,
    /// Index of the endpoint that answered last.
    pub(super) current: AtomicUsize,
    tls: Option<Arc<ClientConfig>>,
}

/// Address of one member of etcd.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    host: String,
    pub(super) authority: String,
    tls: bool,
}

/// A connection to a member.
pub(super) enum Stream {
    Plain(TimedSocket),
    Tls(Box<StreamOwned<ClientConnection, TimedSocket>>),
}

impl Stream {
    pub(super) fn timed(&mut self) -> &mut TimedSocket {
        match self {
            Self::Plain(timed) => timed,
            Self::Tls(stream) => &mut stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(timed) => timed.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(timed) => timed.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(timed) => timed.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl Client {
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, StoreError> {
        let wrong = |problem: String| StoreError::Configuration(problem);
        let endpoints: Vec<Endpoint> = config
            .endpoints
            .iter()
            .map(|text| {
                endpoint(text).ok_or_else(|| {
                    wrong(format!("{text} is not an endpoint: use http(s)://HOST:PORT"))
                })
            })
            .collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(wrong("no endpoint of etcd is given".to_owned()));
        }
        let tls = if endpoints.iter().any(|endpoint| endpoint.tls) {
            Some(Arc::new(tls(config)?))
        } else {
            None
        };
        Ok(Self { endpoints, current: AtomicUsize::new(0), tls })
    }

    /// Sends a request and reads the answer.
    pub(super) fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        repeat: Repeat,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + CALL;
        let mut last = StoreError::Unavailable("no endpoint".to_owned());
        for at in self.in_turn() {
            let endpoint = &self.endpoints[at];
            let mut stream = match self.connect(endpoint, deadline) {
                Ok(connected) => connected,
                Err(error) => {
                    last = endpoint.failed(&error);
                    continue;
                }
            };
            let answer =
                send(&mut stream, endpoint, path, body).and_then(|()| receive(&mut stream));
            match answer {
                Ok((200, answer)) => {
                    self.current.store(at, Ordering::Relaxed);
                    return serde_json::from_slice(&answer)
                        .map_err(|error| StoreError::Damaged(format!("etcd's answer: {error}")));
                }
                Ok((status, answer)) => last = refused(status, &answer),
                Err(error) => last = endpoint.failed(&error),
            }
            self.avoid(at);
            if repeat == Repeat::OnlyUnsent || !matches!(last, StoreError::Unavailable(_)) {
                break;
            }
        }
        Err(last)
    }

    /// The members, from the one that answered last on.
    pub(super) fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let first = self.current.load(Ordering::Relaxed);
        let count = self.endpoints.len();
        (0..count).map(move |n| (first + n) % count)
    }

    /// Lets the next call begin with another member.
    fn avoid(&self, at: usize) {
        let next = (at + 1) % self.endpoints.len();
        self.current.store(next, Ordering::Relaxed);
    }

    /// Checks that a member takes part in its cluster: it must read `key` linearizably, which needs a quorum.
    pub(super) fn probe(&self, at: usize, key: &str) -> io::Result<()> {
        let endpoint = &self.endpoints[at];
        let body = json!({ "key": encode(key), "count_only": true });
        let answer = self.connect(endpoint, Instant::now() + CALL).and_then(|mut stream| {
            send(&mut stream, endpoint, "/v3/kv/range", &body)?;
            receive(&mut stream)
        });
        let problem = match answer {
            Ok((200, _)) => return Ok(()),
            Ok((status, _)) => format!("it answers {status}"),
            Err(error) => error.to_string(),
        };
        self.avoid(at);
        let member = &endpoint.authority;
        Err(io::Error::other(format!("no read at {member}: {problem}")))
    }

    pub(super) fn connect(&self, endpoint: &Endpoint, deadline: Instant) -> io::Result<Stream> {
        let mut timed = TimedSocket::connect(endpoint.authority.as_str(), SILENCE, deadline)?;
        if self.endpoints.len() == 1 {
            timed.silence = SILENCE_ALONE;
        }
        let Some(tls) = self.tls.as_ref().filter(|_| endpoint.tls) else {
            return Ok(Stream::Plain(timed));
        };
        let name = ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(connection, timed))))
    }
}

impl Endpoint {
    pub(super) fn failed(&self, error: &io::Error) -> StoreError {
        StoreError::Unavailable(format!("etcd at {}: {error}", self.authority))
    }
}

/// `http://HOST:PORT`, also with an IPv6 address in brackets.
fn endpoint(text: &str) -> Option<Endpoint> {
    let (scheme, authority) = text.split_once("://")?;
    let tls = match scheme {
        "http" => false,
        "https" => true,
        _ => return None,
    };
    let authority = authority.trim_end_matches('/');
    let (host, port) = authority.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let printable = host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
    (!host.is_empty() && printable).then(|| Endpoint {
        host: host.to_owned(),
        authority: authority.to_owned(),
        tls,
    })
}

fn tls(config: &EtcdConfig) -> Result<ClientConfig, StoreError> {
    let wrong = |what: &std::path::Path, problem: String| {
        StoreError::Configuration(format!("{}: {problem}", what.display()))
    };
    let ca = config.ca.as_deref().ok_or_else(|| {
        StoreError::Configuration(
            "https endpoints need the certificates that sign them (CA file)".to_owned(),
        )
    })?;
    let read = |path: &std::path::Path| {
        ordinary::read(path, Links::Follow, MAX_PEM_LEN)
            .map(Zeroizing::new)
            .map_err(|error| wrong(path, error.to_string()))
    };
    let certificates =
        |path: &std::path::Path| -> Result<Vec<CertificateDer<'static>>, StoreError> {
            let text = read(path)?;
            let all: Result<_, _> = CertificateDer::pem_slice_iter(&text).collect();
            all.map_err(|error| wrong(path, error.to_string()))
        };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| wrong(ca, error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| StoreError::Configuration(error.to_string()))?
        .with_root_certificates(roots);
    match &config.certificate {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let private = PrivateKeyDer::from_pem_slice(&read(key)?)
                .map_err(|error| wrong(key, error.to_string()))?;
            builder
                .with_client_auth_cert(chain, private)
                .map_err(|error| wrong(certificate, error.to_string()))
        }
    }
}

pub(super) fn send(
    stream: &mut Stream,
    endpoint: &Endpoint,
    path: &str,
    body: &Value,
) -> io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        endpoint.authority,
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    stream.flush()
}

/// Status and body of an answer that ends with its connection.
pub(super) fn receive(stream: &mut impl Read) -> io::Result<(u16, Vec<u8>)> {
    let (head, mut body) = Head::read(stream)?;
    let read = stream.take(MAX_ANSWER).read_to_end(&mut body);
    match read {
        Ok(_) => {}
        // Go closes without a TLS close_notify now and then; a JSON text that is cut does not parse.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(error),
    }
    Ok((head.status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_name_scheme_host_and_port() {
        let good = endpoint("https://etcd-1.example:2379/").unwrap();
        assert_eq!(
            (good.host.as_str(), good.authority.as_str(), good.tls),
            ("etcd-1.example", "etcd-1.example:2379", true)
        );
        assert_eq!(endpoint("http://[::1]:2379").unwrap().host, "::1");
        for wrong in [
            "etcd:2379",
            "ftp://a:1",
            "http://a",
            "http://:1",
            "http://a:x",
            "http://a/b:1",
            "http://a b:1",
        ] {
            assert!(endpoint(wrong).is_none(), "{wrong}");
        }
        let error = Client::new(&EtcdConfig {
            endpoints: vec!["https://a:1".to_owned()],
            ..EtcdConfig::default()
        });
        assert!(error.unwrap_err().to_string().contains("CA file"));
    }

    #[test]
    fn silent_member_costs_one_call_and_the_next_begins_elsewhere() {
        use super::super::answers::TxnAnswer;
        use std::net::TcpListener;

        // It takes connections, as a suspended process does.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoints = [&silent, &good].map(|at| format!("http://{}", at.local_addr().unwrap()));
        let client =
            Client::new(&EtcdConfig { endpoints: endpoints.to_vec(), ..EtcdConfig::default() })
                .unwrap();
        let call = |repeat| client.call::<TxnAnswer>("/v3/kv/txn", &json!({}), repeat);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    let (mut socket, _) = good.accept().unwrap();
                    let _ = socket.read(&mut [0; 4096]).unwrap();
                    let answer = b"HTTP/1.0 200 OK\r\n\r\n{\"header\":{\"revision\":\"7\"}}";
                    socket.write_all(answer).unwrap();
                }
            });
            // What was sent may have been carried out.
            let error = call(Repeat::OnlyUnsent).unwrap_err();
            assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
            assert_eq!(call(Repeat::OnlyUnsent).unwrap().header.revision, 7);
            client.current.store(0, Ordering::Relaxed);
            assert_eq!(call(Repeat::Always).unwrap().header.revision, 7);
            client.current.store(0, Ordering::Relaxed);
            assert!(client.probe(0, "a/").is_err());
            assert_eq!(client.in_turn().next(), Some(1), "the probe failed");
            client.probe(1, "a/").unwrap();
        });
    }
}
