// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Requests to etcd: one connection each, to the member that answered last.

use std::io::{self, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::EtcdConfig;
use super::answers::refused;
use crate::store::StoreError;

/// Time to connect. A member on another continent answers within 300 ms.
const CONNECT: Duration = Duration::from_secs(1);

/// Time for an answer: etcd elects a leader within two election timeouts of 1 s each.
const ANSWER: Duration = Duration::from_secs(4);

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

#[derive(Debug)]
pub(super) struct Client {
    pub(super) endpoints: Vec<Endpoint>,
    /// Index of the endpoint that answered last.
    pub(super) current: AtomicUsize,
    tls: Option<Arc<ClientConfig>>,
}

#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    host: String,
    pub(super) authority: String,
    tls: bool,
}

/// A stream that is open: to read it, to end it, and the bytes already read.
pub(super) type Opened = (Box<dyn Stream>, TcpStream, Vec<u8>);

pub(super) trait Stream: Read + io::Write + Send {}
impl<T: Read + io::Write + Send> Stream for T {}

impl Client {
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, StoreError> {
        let wrong = |problem: String| StoreError::Configuration(problem);
        let endpoints: Vec<Endpoint> = config
            .endpoints
            .iter()
            .map(|text| {
                endpoint(text)
                    .ok_or_else(|| wrong(format!("{text} is no endpoint: use http(s)://HOST:PORT")))
            })
            .collect::<Result<_, _>>()?;
        if endpoints.is_empty() {
            return Err(wrong("no endpoint of etcd is given".to_owned()));
        }
        let tls = match endpoints.iter().any(|endpoint| endpoint.tls) {
            true => Some(Arc::new(tls(config)?)),
            false => None,
        };
        Ok(Self {
            endpoints,
            current: AtomicUsize::new(0),
            tls,
        })
    }

    /// Sends a request and reads the answer.
    pub(super) fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        repeat: Repeat,
    ) -> Result<T, StoreError> {
        let first = self.current.load(Ordering::Relaxed);
        let mut last = StoreError::Unavailable("no endpoint".to_owned());
        for n in 0..self.endpoints.len() {
            let at = (first + n) % self.endpoints.len();
            let endpoint = &self.endpoints[at];
            let failed = |error: io::Error| {
                StoreError::Unavailable(format!("etcd at {}: {error}", endpoint.authority))
            };
            let (mut stream, socket) = match self.connect(endpoint) {
                Ok(connected) => connected,
                Err(error) => {
                    last = failed(error);
                    continue;
                }
            };
            let answer = socket
                .set_read_timeout(Some(ANSWER))
                .and_then(|()| send(&mut *stream, endpoint, path, body))
                .and_then(|()| receive(&mut *stream));
            match answer {
                Ok((200, answer)) => {
                    self.current.store(at, Ordering::Relaxed);
                    return serde_json::from_slice(&answer)
                        .map_err(|error| StoreError::Damaged(format!("etcd's answer: {error}")));
                }
                Ok((status, answer)) => last = refused(status, &answer),
                Err(error) => last = failed(error),
            }
            // The next call begins with another member.
            self.current
                .store((at + 1) % self.endpoints.len(), Ordering::Relaxed);
            if repeat == Repeat::OnlyUnsent || !matches!(last, StoreError::Unavailable(_)) {
                break;
            }
        }
        Err(last)
    }

    pub(super) fn connect(&self, endpoint: &Endpoint) -> io::Result<(Box<dyn Stream>, TcpStream)> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in endpoint.authority.to_socket_addrs()? {
            let socket = match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(socket) => socket,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            socket.set_nodelay(true)?;
            socket.set_write_timeout(Some(ANSWER))?;
            socket.set_read_timeout(Some(ANSWER))?;
            let other = socket.try_clone()?;
            return match &self.tls {
                Some(tls) if endpoint.tls => {
                    let name =
                        ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
                    let connection =
                        ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
                    Ok((Box::new(StreamOwned::new(connection, socket)), other))
                }
                _ => Ok((Box::new(socket), other)),
            };
        }
        Err(last)
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
    let printable = host
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'/');
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
    let certificates =
        |path: &std::path::Path| -> Result<Vec<CertificateDer<'static>>, StoreError> {
            CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect)
                .map_err(|error| wrong(path, error.to_string()))
        };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots
            .add(certificate)
            .map_err(|error| wrong(ca, error.to_string()))?;
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
            let private =
                PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error.to_string()))?;
            builder
                .with_client_auth_cert(chain, private)
                .map_err(|error| wrong(certificate, error.to_string()))
        }
    }
}

pub(super) fn send(
    stream: &mut dyn Stream,
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
pub(super) fn receive(stream: &mut dyn Stream) -> io::Result<(u16, Vec<u8>)> {
    let (status, mut body) = receive_head(stream)?;
    let read = stream.take(MAX_ANSWER).read_to_end(&mut body);
    match read {
        Ok(_) => {}
        // Go closes without a TLS close_notify now and then; a JSON text that is cut does not parse.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(error),
    }
    Ok((status, body))
}

/// Status of an answer, and what has been read of its body.
pub(super) fn receive_head(stream: &mut dyn Stream) -> io::Result<(u16, Vec<u8>)> {
    // Far more than etcd sends.
    const MAX_HEAD: usize = 16 * 1024;
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the answer is no HTTP");
    let (mut head, mut part) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            let body = head.split_off(end + 4);
            let text = std::str::from_utf8(&head).map_err(|_| wrong())?;
            let mut words = text.split(' ');
            let version = words.next().ok_or_else(wrong)?;
            let status = words
                .next()
                .and_then(|word| word.parse().ok())
                .ok_or_else(wrong)?;
            return if version.starts_with("HTTP/1.") {
                Ok((status, body))
            } else {
                Err(wrong())
            };
        }
        if head.len() > MAX_HEAD {
            return Err(wrong());
        }
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&part[..count]),
        }
    }
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
    fn answers_that_are_no_http_are_refused() {
        let head = |bytes: &[u8]| receive_head(&mut io::Cursor::new(bytes.to_vec()));
        assert_eq!(
            head(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\nbody").unwrap(),
            (200, b"body".to_vec())
        );
        for wrong in [
            &b"HTTP/1.0 200 OK\r\n"[..],
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 x\r\n\r\n",
            b"",
        ] {
            assert!(head(wrong).is_err(), "{wrong:?}");
        }
        assert!(head(&vec![b'a'; 100_000]).is_err());
    }
}
