// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Checks whether the handshakes of a running nginx or HAProxy are pooled and asynchronous, and if not, why. Of another
//! program on OpenSSL 3 it reads no configuration of its own: it judges what keeps the provider out.
//!
//! ```text
//! hostfs   processes, the environment of the service, openssl.cnf ┐
//! server   nginx.conf, haproxy.cfg                                ┴─► evidence ─► judge ─► findings
//! ```
//!
//! | file | what |
//! |---|---|
//! | `server/` | nginx and HAProxy: their files and processes |
//! | `evidence.rs` | the facts about a server, collected |
//! | `judge/` | the findings about a server's files, memory and nodes, each after those that it depends on |
//! | `keys.rs` | the content of key files |
//! | `apparmor.rs` | the profile that confines the server |
//! | `access.rs` | whether the workers' user may use a socket or a file |
//! | `pool.rs` | the question to every node, and its answers |
//! | `configured_pool.rs` | the pool that a file names, for a question without a running server |
//! | `proof.rs`, `tls.rs` | handshakes, with counters before and after |
//! | `local.rs` | operations that the server computes in its own process, and its groups |
//! | `compression.rs` | the library that compresses nginx's responses |
//!
//! **The proof.** The check makes concurrent handshakes and holds their connections. The gateway's provider
//! counts how its operations ended and reports that to its nodes once per second; every node of the pool returns
//! the sum for the gateway's identity, wherever the node is. An operation that waits without blocking also has
//! an eventfd until its connection closes, so the number of eventfds that disappear with the connections is a
//! lower bound on the asynchronous operations. One handshake comes first, so that work done once per process is
//! not counted.
//!
//! A server that does not run is judged by its files, and by its own test of its configuration.
//!
//! The check changes nothing. Facts that are not visible (most, without root) are reported as unseen, neither
//! good nor bad.

mod access;
mod apparmor;
mod compression;
mod configured_pool;
mod evidence;
mod judge;
mod keys;
mod local;
pub mod pool;
mod proof;
mod server;
mod tls;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use millrace_edge::servers::{HAPROXY, NGINX};
use schemars::JsonSchema;
use serde::Serialize;
use strum::Display;

pub use configured_pool::{ConfiguredPool, PoolFileError};
pub use evidence::user_named;

use evidence::Gathered;
use pool::{AskedNodes, ProcessContext, Question};

/// The servers that can be checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema, Display)]
#[serde(into = "String")]
#[schemars(with = "String")]
#[strum(serialize_all = "lowercase")]
pub enum Server {
    /// nginx and its forks
    Nginx,
    /// HAProxy
    Haproxy,
    /// A program with this name, whose own configuration is not read
    #[strum(to_string = "{0}")]
    Other(String),
}

impl From<Server> for String {
    fn from(server: Server) -> Self {
        server.to_string()
    }
}

/// A text that is not the name of a program.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not the name of a program, such as nginx, haproxy or unbound")]
pub struct NoProgramName(String);

impl FromStr for Server {
    type Err = NoProgramName;

    fn from_str(name: &str) -> Result<Self, NoProgramName> {
        /// Bound on a name, in bytes: the kernel's bound on the name of a file (`NAME_MAX`).
        const MAX: usize = 255;
        let is_usual = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        match name {
            _ if NGINX.contains(&name) => Ok(Self::Nginx),
            _ if HAPROXY.contains(&name) => Ok(Self::Haproxy),
            // A unit of this name is one of the first guesses.
            _ if !name.starts_with(['-', '.'])
                && (1..=MAX).contains(&name.len())
                && name.chars().all(is_usual) =>
            {
                Ok(Self::Other(name.to_owned()))
            }
            _ => Err(NoProgramName(name.to_owned())),
        }
    }
}

/// The server to check, and how.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Program that serves TLS.
    pub server: Server,
    /// Process id of the server's master; by default found by name.
    pub pid: Option<u32>,
    /// Address of the server's TLS listener, `HOST:PORT`; by default from its configuration.
    pub connect: Option<String>,
    /// Server name (SNI) of the handshakes; by default from its configuration.
    pub server_name: Option<String>,
    /// Configuration file of the server; by default from its command line.
    pub config: Option<PathBuf>,
    /// The server's `openssl.cnf`; by default from its environment or that of its service.
    pub openssl_conf: Option<PathBuf>,
    /// Number of concurrent handshakes; 0: no proof.
    pub handshakes: usize,
    /// Whether to check the compression library alone, for an nginx without the provider.
    pub compression_only: bool,
    /// `/proc`, or a folder of the same form.
    pub proc: PathBuf,
}

/// Access to nodes.
pub trait Nodes {
    /// Asks every node as a process at this place would; `None` if this user may not take that place.
    fn ask(&self, place: &ProcessContext, question: &Question) -> Option<AskedNodes>;

    /// Number of private-key operations that the node on this machine has completed since its start. `socket`
    /// is its socket, if that is known.
    fn completed(&self, socket: Option<&Path>) -> Result<u64, Silence>;
}

/// The reason for which the node on this machine does not answer, as a sentence that names the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// No node runs there.
    NoNode(String),
    /// This user may not query the node.
    Hidden(String),
}

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    /// The subject of the check works.
    #[serde(rename = "ok")]
    Good,
    /// The subject is not visible to this user.
    Unseen,
    /// The subject works, but not as well as possible, or not for long.
    Warning,
    /// The subject does not work.
    Failure,
}

/// One check and its result.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CheckFinding {
    /// A fixed identifier for programs.
    pub check: &'static str,
    /// How much it matters.
    pub outcome: CheckOutcome,
    /// The evidence, in words.
    pub seen: String,
    /// The recommended action in words, if there is one.
    pub remedy: Option<String>,
    /// The commands that carry it out, in this order; read them before you use them.
    pub run: Vec<String>,
}

impl CheckFinding {
    fn new(
        check: &'static str,
        outcome: CheckOutcome,
        seen: impl Into<String>,
        remedy: impl Into<CheckRemedy>,
    ) -> Self {
        let CheckRemedy { advice, run } = remedy.into();
        Self { check, outcome, seen: seen.into(), remedy: advice, run }
    }
}

/// A count out of a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Proportion {
    /// Number of those that have the property.
    pub count: u64,
    /// Number of all.
    pub of: u64,
}

impl fmt::Display for Proportion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.count, self.of)
    }
}

/// The result of all checks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CheckReport {
    /// Program that serves TLS.
    pub server: Server,
    /// Process id of its master; `None` if none was found.
    pub pid: Option<u32>,
    /// Handshakes that the pool signed; `None` if that is not visible.
    pub pooled: Option<Proportion>,
    /// Handshakes that waited without blocking; `None` if that is not visible.
    pub asynchronous: Option<Proportion>,
    /// All checks, each after those that it depends on.
    pub findings: Vec<CheckFinding>,
}

impl CheckReport {
    /// Number of findings with this result.
    #[must_use]
    pub fn count(&self, outcome: CheckOutcome) -> usize {
        self.findings.iter().filter(|finding| finding.outcome == outcome).count()
    }

    fn add(
        &mut self,
        check: &'static str,
        outcome: CheckOutcome,
        seen: impl Into<String>,
        remedy: impl Into<CheckRemedy>,
    ) {
        self.findings.push(CheckFinding::new(check, outcome, seen, remedy));
    }
}

/// The recommended action of a finding, in words and as commands.
#[derive(Default)]
struct CheckRemedy {
    advice: Option<String>,
    run: Vec<String>,
}

impl CheckRemedy {
    /// Advice that these commands carry out.
    fn run(advice: String, run: impl IntoIterator<Item = String>) -> Self {
        Self { advice: Some(advice), run: run.into_iter().collect() }
    }

    /// The same commands, with the advice in another sentence.
    fn worded(self, words: impl FnOnce(String) -> String) -> Self {
        Self { advice: self.advice.map(words), ..self }
    }
}

impl From<&str> for CheckRemedy {
    fn from(advice: &str) -> Self {
        Some(advice.to_owned()).into()
    }
}

impl From<String> for CheckRemedy {
    fn from(advice: String) -> Self {
        Some(advice).into()
    }
}

impl From<Option<String>> for CheckRemedy {
    fn from(advice: Option<String>) -> Self {
        Self { advice, run: Vec::new() }
    }
}

/// A path as [`millrace_hostfs::Root`] takes it: paths in the text of configurations are UTF-8.
fn utf8(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Runs all checks.
#[must_use]
pub fn run(options: &CheckOptions, nodes: &dyn Nodes) -> CheckReport {
    let mut report = CheckReport {
        server: options.server.clone(),
        pid: None,
        pooled: None,
        asynchronous: None,
        findings: Vec::new(),
    };
    let evidence = match evidence::gather(options, &mut report) {
        Gathered::Evidence(evidence) => Some(*evidence),
        Gathered::Elsewhere => None,
        Gathered::Nothing => return report,
    };
    if options.compression_only {
        compression::require(options, evidence.as_ref(), &mut report);
        return report;
    }
    compression::judge(options, &mut report);
    let counted = local::counts(options, &report);
    let pool =
        evidence.as_ref().and_then(|evidence| judge::judge(options, evidence, nodes, &mut report));
    let provider = evidence.as_ref().and_then(|evidence| judge::Provider::of(options, evidence));
    // Handshakes with a server that does not run show nothing new.
    if evidence.as_ref().is_none_or(|evidence| evidence.running.is_some()) {
        proof::prove(
            options,
            evidence.as_ref(),
            nodes,
            pool.as_ref(),
            provider.as_ref(),
            &mut report,
        );
        if let Some(provider) = &provider {
            local::judge(options, counted.as_ref(), provider, &mut report);
        }
    }
    report
}

#[cfg(test)]
mod tests;
