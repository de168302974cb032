// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The client of the manager's API, for the command line and for nodes. It blocks, and needs no runtime.
//!
//! A client knows all managers of the pool. It asks the one that answered last, and another where that one cannot be
//! reached. A write carries an idempotency key, so a repeated one takes effect once.

mod access;
pub(crate) mod http;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use access::{Access, AccessError, OwnCertificate, Secret};
pub use http::{DEFAULT_PORT, HttpError, ManagerUrl};

use crate::api::{Page, Problem};
use http::{Answer, Limits, Request, exchange};

/// Bound on one request. A manager answers within milliseconds, or after the store's own timeout of a few seconds.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// Time to connect to a manager, with the TLS handshake, while there is another one to ask: a suspended process takes
/// connections and answers none. The last manager gets the whole time of the request.
const REACH_LIMIT: Duration = Duration::from_secs(2);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No manager answers. The error is that of the last one.
    #[error("no manager answers: {0}")]
    Unreachable(#[from] HttpError),
    /// The manager refused the request.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// The manager's answer has another form than this version expects.
    #[error("the manager's answer is not understood: is it of another version? ({0})")]
    Form(serde_json::Error),
    /// The access file or a certificate cannot be used.
    #[error("{0}")]
    Access(#[from] AccessError),
    /// TLS cannot be set up with these certificates.
    #[error("cannot use the certificates for the manager: {0}")]
    Tls(#[from] rustls::Error),
}

impl ClientError {
    /// The manager's refusal, if it is one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            Self::Unreachable(_) | Self::Form(_) | Self::Access(_) | Self::Tls(_) => None,
        }
    }
}

/// A document with its revision, for a change that must not overwrite another.
#[derive(Clone, Debug)]
pub struct Revised<T> {
    /// The document.
    pub value: T,
    /// `ETag` of the document, for `If-Match`.
    pub etag: Option<String>,
}

/// A client of a pool's managers.
pub struct ManagerClient {
    managers: Vec<ManagerUrl>,
    /// The manager that answered last.
    current: AtomicUsize,
    tls: Arc<ClientConfig>,
    token: Option<Secret>,
}

impl fmt::Debug for ManagerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerClient").field("managers", &self.managers).finish_non_exhaustive()
    }
}

impl ManagerClient {
    /// A client with these rights.
    ///
    /// # Errors
    /// A certificate that cannot be used.
    pub fn new(access: &Access) -> Result<Self, ClientError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(access.ca.as_bytes()) {
            let certificate = certificate.map_err(AccessError::ca)?;
            roots.add(certificate)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots);
        let tls = match &access.certificate {
            Some(own) => {
                let chain: Result<Vec<_>, _> =
                    CertificateDer::pem_slice_iter(own.chain.as_bytes()).collect();
                let key = PrivateKeyDer::from_pem_slice(own.key.as_str().as_bytes());
                let chain = chain.map_err(AccessError::certificate)?;
                let key = key.map_err(AccessError::certificate)?;
                config.with_client_auth_cert(chain, key)?
            }
            None => config.with_no_client_auth(),
        };
        Ok(Self {
            managers: access.managers()?,
            current: AtomicUsize::new(0),
            tls: Arc::new(tls),
            token: access.token.clone(),
        })
    }

    /// `GET`.
    ///
    /// # Errors
    /// The manager was not reached, refused the request, or answered something that is no such document.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        Ok(self.get_revised(path)?.value)
    }

    /// `GET`, with the revision of the document.
    ///
    /// # Errors
    /// The manager was not reached, refused the request, or answered something that is no such document.
    pub fn get_revised<T: DeserializeOwned>(&self, path: &str) -> Result<Revised<T>, ClientError> {
        let answer = self.send("GET", path, Vec::new(), None)?;
        Ok(Revised { value: parse(&answer.body)?, etag: answer.etag })
    }

    /// All items of a listing, page by page.
    ///
    /// # Errors
    /// The manager was not reached, refused the request, or answered something that is no such document.
    pub fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        /// Bound on the pages: a manager that repeats itself must not keep a command forever.
        const MAX_PAGES: usize = 10_000;
        let mut all = Vec::new();
        let mut after: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let sign = if path.contains('?') { '&' } else { '?' };
            let query = match &after {
                Some(after) => format!("{path}{sign}after={}", escaped(after)),
                None => path.to_owned(),
            };
            let page: Page<T> = self.get(&query)?;
            all.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(all)
    }

    /// A write with a body.
    ///
    /// # Errors
    /// The manager was not reached, refused the request, or answered something that is no such document.
    pub fn write<T: DeserializeOwned>(
        &self,
        method: Write,
        path: &str,
        condition: Condition<'_>,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(ClientError::Form)?;
        let mut headers = vec![("idempotency-key", fresh_key())];
        match condition {
            Condition::None => {}
            Condition::Absent => headers.push(("if-none-match", "*".to_owned())),
            Condition::Matches(etag) => headers.push(("if-match", etag.to_owned())),
        }
        let answer = self.send(method.name(), path, headers, Some(body))?;
        let body = if answer.body.is_empty() { b"null" } else { answer.body.as_slice() };
        parse(body)
    }

    fn send(
        &self,
        method: &'static str,
        path: &str,
        mut headers: Vec<(&'static str, String)>,
        body: Option<Vec<u8>>,
    ) -> Result<Answer, ClientError> {
        headers.push(("accept", "application/json".to_owned()));
        if let Some(token) = &self.token {
            headers.push(("authorization", format!("Bearer {}", token.as_str())));
        }
        let request = Request { method, path, headers, body };
        let first = self.current.load(Ordering::Relaxed);
        let mut last = None;
        for offset in 0..self.managers.len() {
            let index = (first + offset) % self.managers.len();
            let is_last = offset + 1 == self.managers.len();
            let limits = Limits {
                reach: if is_last { REQUEST_LIMIT } else { REACH_LIMIT },
                answer: REQUEST_LIMIT,
            };
            match exchange(&self.managers[index], &self.tls, &request, limits) {
                Ok(answer) => {
                    self.current.store(index, Ordering::Relaxed);
                    // Another manager may reach the store where this one does not.
                    let unavailable = answer.status == 503 && !is_last;
                    if !unavailable {
                        return accept(answer);
                    }
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| HttpError::Url("no manager".to_owned())).into())
    }
}

/// A method that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Acts.
    Post,
    /// Creates or replaces.
    Put,
    /// Removes.
    Delete,
}

impl Write {
    fn name(self) -> &'static str {
        match self {
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

/// Condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'a> {
    /// None: the last write wins.
    None,
    /// The document must not exist yet.
    Absent,
    /// The document has this `ETag`.
    Matches(&'a str),
}

fn accept(answer: Answer) -> Result<Answer, ClientError> {
    if (200..300).contains(&answer.status) {
        return Ok(answer);
    }
    let problem =
        serde_json::from_slice(&answer.body).unwrap_or_else(|_| Problem::unreadable(answer.status));
    Err(ClientError::Refused(Box::new(problem)))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(ClientError::Form)
}

/// A key under which a repeated write is recognised: 128 random bits.
fn fresh_key() -> String {
    let mut bytes = [0; 16];
    // Only a process without a source of randomness fails here, and TLS fails with it.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A value of a query or a segment of a path, percent-encoded.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
