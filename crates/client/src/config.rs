// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Configuration of a pool: nodes, identity, bounds and timeouts.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use millrace_operation::EndpointParts;
use millrace_wire::{KeySelector, MAX_NAME_LEN};
use thiserror::Error;

use crate::error::ClientError;
use crate::report::ReportSource;

/// Bound on the nodes of one pool: each has a connection, and a job remembers in one word of 64 bits
/// which it has tried.
pub const MAX_NODES: usize = 64;

/// Source of the nodes of a pool while it is in use. A pool without one has the nodes of its configuration.
///
/// The source is called at most once a second, by a thread that submits a job, without any lock of the pool. A forked
/// child calls it too: it must not hold a lock of its own across a fork.
pub trait NodeSource: fmt::Debug + Send + Sync {
    /// Changes whenever [`Self::nodes`] may have changed. Called about once a second, so it must be cheap.
    fn stamp(&self) -> u64;

    /// The nodes. `None` if the source is not readable now: then the pool keeps those that it has.
    fn nodes(&self) -> Option<Vec<Endpoint>>;
}

/// Configuration of a [`crate::Pool`]. It is first used by the first job or key; a program that reads it
/// from a file can call [`PoolConfig::check`] before.
///
/// ```
/// use std::time::Duration;
/// use millrace_client::{Endpoint, Hedge, PoolConfig, TlsConfig};
///
/// let tls = TlsConfig {
///     ca: "/etc/millrace/ca.pem".into(),
///     cert: "/etc/millrace/gateway.pem".into(),
///     key: "/etc/millrace/gateway.key".into(),
///     server_name: None,
/// };
/// let remote: Endpoint = "tcp:10.0.0.7:4433".parse()?;
/// let local: Endpoint = "unix:/run/millrace/node.sock".parse()?;
/// let config = PoolConfig::new(vec![local, remote.with_tls(tls)])
///     .default_deadline(Duration::from_millis(800))
///     .hedge(Hedge::Adaptive);
/// config.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The nodes; at least one, at most [`MAX_NODES`].
    pub nodes: Vec<Endpoint>,
    /// Time limit for making a connection, TLS and protocol handshake included. Default 2 s, as long as a job: the
    /// kernel queues connections for a node that is starting, and a second one would stand behind the first.
    pub connect_timeout: Duration,
    /// Time between now and the deadline that [`crate::Pool::deadline`] returns. Default 2 s: below every TLS server's
    /// own handshake timeout.
    pub default_deadline: Duration,
    /// Jobs that this process may have in flight; beyond, [`ClientError::Busy`] at once.
    /// Default 8192: about 3 s of RSA-2048 on one core, and 4 MiB.
    pub max_in_flight: usize,
    /// Keys that this process may have open. Default 4096.
    pub max_keys: usize,
    /// Silence of a connection with jobs in flight after which it is sent a ping. Default 250 ms.
    pub ping_after: Duration,
    /// Further silence after which the connection is given up. Default 500 ms, so that a node that hangs
    /// is replaced within a second.
    pub dead_after: Duration,
    /// Name and version of the software, for the logs of the nodes; cut to 64 bytes.
    pub agent: String,
    /// Whether a job that waits is sent to a second node as well. Default: after the 99th percentile of the latencies.
    pub hedge: Hedge,
    /// Counters of this edge that are reported to the nodes, about once per second while there are jobs.
    /// Default: none.
    pub report: Option<ReportSource>,
    /// Source that the pool asks for changes of its nodes. Default: none.
    pub source: Option<Arc<dyn NodeSource>>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            connect_timeout: Duration::from_secs(2),
            default_deadline: Duration::from_secs(2),
            max_in_flight: 8192,
            max_keys: 4096,
            ping_after: Duration::from_millis(250),
            dead_after: Duration::from_millis(500),
            agent: concat!("millrace-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            hedge: Hedge::Adaptive,
            report: None,
            source: None,
        }
    }
}

/// One setter per field that is set as it is.
macro_rules! setters {
    ($($field:ident: $type:ty;)+) => {$(
        #[doc = concat!("Sets [`Self::", stringify!($field), "`].")]
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )+};
}

impl PoolConfig {
    /// The defaults with these nodes.
    #[must_use]
    pub fn new(nodes: Vec<Endpoint>) -> Self {
        Self { nodes, ..Self::default() }
    }

    setters! {
        connect_timeout: Duration;
        default_deadline: Duration;
        max_in_flight: usize;
        max_keys: usize;
        hedge: Hedge;
    }

    /// Sets [`Self::ping_after`] and [`Self::dead_after`].
    #[must_use]
    pub fn health(mut self, ping_after: Duration, dead_after: Duration) -> Self {
        self.ping_after = ping_after;
        self.dead_after = dead_after;
        self
    }

    /// Sets [`Self::agent`].
    #[must_use]
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = agent.into();
        self
    }

    /// Sets [`Self::report`].
    #[must_use]
    pub fn report(mut self, source: ReportSource) -> Self {
        self.report = Some(source);
        self
    }

    /// Sets [`Self::source`].
    #[must_use]
    pub fn source(mut self, source: Arc<dyn NodeSource>) -> Self {
        self.source = Some(source);
        self
    }

    /// Checks what can be checked without I/O.
    ///
    /// # Errors
    /// [`ClientError::Config`], naming what is wrong.
    pub fn check(&self) -> Result<(), ClientError> {
        let problem = if self.nodes.is_empty() {
            "no node is configured".to_owned()
        } else if self.nodes.len() > MAX_NODES {
            format!("more than {MAX_NODES} nodes are configured")
        } else if !(1..=MAX_IN_FLIGHT).contains(&self.max_in_flight) {
            format!("`max_in_flight` must be between 1 and {MAX_IN_FLIGHT}")
        } else {
            return Ok(());
        };
        Err(ClientError::Config(problem))
    }

    /// The agent, cut to what the protocol carries.
    pub(crate) fn agent_name(&self) -> String {
        let mut end = self.agent.len().min(MAX_NAME_LEN);
        while !self.agent.is_char_boundary(end) {
            end -= 1;
        }
        self.agent[..end].to_owned()
    }
}

/// Bound on `max_in_flight`: the table of jobs is scanned when a node is lost or a deadline passes.
const MAX_IN_FLIGHT: usize = 1 << 20;

/// Delay after which a job without an answer is sent to a second node, too. The first result counts; the other node is
/// asked to drop the job. At most one job in twenty is hedged, and five more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hedge {
    /// One node at a time, unless the first one was taken out for its silence.
    Off,
    /// After this time.
    After(Duration),
    /// After the 99th percentile of the recent latencies, and at least 5 ms.
    #[default]
    Adaptive,
}

/// Address at which a node listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A unix socket; the node knows the client by its user id.
    Unix(PathBuf),
    /// TCP with mutual TLS 1.3. An address is best: a name is resolved on the I/O thread, and callbacks and
    /// new connections wait for that (blocked callers only until their deadlines).
    Tcp {
        /// Address or name.
        host: String,
        /// Port of the node.
        port: u16,
        /// The trusted CA, and the client's certificate and key.
        tls: TlsConfig,
    },
}

/// The files of a TLS client, PEM each; they are read at every connection, so renewed ones are picked
/// up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificates that may sign the node's.
    pub ca: PathBuf,
    /// Chain of the client's certificate, its own first.
    pub cert: PathBuf,
    /// Private key of the client's certificate.
    pub key: PathBuf,
    /// Name that the node's certificate must hold, if it is not the host.
    pub server_name: Option<String>,
}

impl Endpoint {
    /// This endpoint with these TLS files; a unix socket stays as it is.
    #[must_use]
    pub fn with_tls(self, tls: TlsConfig) -> Self {
        match self {
            Self::Tcp { host, port, .. } => Self::Tcp { host, port, tls },
            unix @ Self::Unix(_) => unix,
        }
    }
}

/// Text that is no [`Endpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("an endpoint is `unix:/path` or `tcp:host:port` (`tcp:[address]:port` for IPv6)")]
pub struct EndpointError;

impl FromStr for Endpoint {
    type Err = EndpointError;

    /// Parses `unix:/path` and `tcp:host:port`; the latter still needs [`Endpoint::with_tls`].
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        match EndpointParts::parse(text).ok_or(EndpointError)? {
            EndpointParts::Unix(path) => Ok(Self::Unix(path.into())),
            EndpointParts::Tcp { host, port } => {
                Ok(Self::Tcp { host: host.to_owned(), port, tls: TlsConfig::default() })
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// Whether the protocol can carry this selector.
pub(crate) fn is_valid_selector(selector: &KeySelector) -> bool {
    match selector {
        KeySelector::Name(name) => {
            !name.is_empty() && name.len() <= millrace_operation::MAX_KEY_NAME_LEN
        }
        KeySelector::SpkiSha256(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_survives_its_text() {
        for text in ["unix:/run/millrace/node.sock", "tcp:node-1:4433", "tcp:[::1]:4433"] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.to_string(), text);
        }
        assert_eq!("tcp:::1:5".parse::<Endpoint>(), Err(EndpointError));
    }

    #[test]
    fn long_agent_is_cut_at_a_character() {
        let config = PoolConfig::default().agent("é".repeat(40));
        assert_eq!(config.agent_name().len(), 64);
        let config = PoolConfig::default().agent(format!("a{}", "é".repeat(40)));
        assert_eq!(config.agent_name().len(), 63);
    }

    #[test]
    fn unusable_configuration_is_refused() {
        assert!(PoolConfig::default().check().is_err());
        let unix = Endpoint::Unix("/x".into());
        assert!(PoolConfig::new(vec![unix.clone(); MAX_NODES + 1]).check().is_err());
        for max in [0, MAX_IN_FLIGHT + 1] {
            assert!(PoolConfig::new(vec![unix.clone()]).max_in_flight(max).check().is_err());
        }
        assert!(PoolConfig::new(vec![unix]).check().is_ok());
    }
}
