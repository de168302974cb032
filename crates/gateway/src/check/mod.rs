// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Looks at a running nginx or HAProxy and says whether its handshakes are pooled and asynchronous, and
//! if not, why.
//!
//! ```text
//! hostfs   processes, the environment of the service, openssl.cnf ┐
//! server   nginx.conf, haproxy.cfg                                 │
//! keys     the content of key files                                ├─► evidence ─► findings
//! access   whether the workers' user may use the socket            │
//! tls      handshakes, with counters before and after              ┘
//! ```
//!
//! **The proof.** Some handshakes are made at a time and held. The node's counters say how many were
//! signed there. The provider gives a connection whose operation waits without blocking an eventfd
//! that lives as long as the connection, so the workers' eventfds that go with the connections say how
//! many were asynchronous. A node that is quick answers some before they have to wait; of those, and where
//! descriptors are hidden, what the edge reports to the node says it, a second later, and also why an
//! edge did something itself. One handshake comes before, so that what happens once per process is not
//! counted.
//!
//! Everything is read, nothing is changed. What cannot be seen (without root, most) is said to be
//! unseen, and is neither good nor bad.

mod access;
mod evidence;
mod judge;
mod keys;
mod proof;
mod server;
mod tls;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use strum::Display;

pub use millrace_hostfs::process::User;

/// The servers that can be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Display)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Server {
    /// nginx and its forks
    Nginx,
    /// HAProxy
    Haproxy,
}

/// What to check.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server.
    pub server: Server,
    /// Its master; otherwise found by its name.
    pub pid: Option<u32>,
    /// Where it serves TLS, `HOST:PORT`; otherwise from its configuration.
    pub connect: Option<String>,
    /// The name to ask for; otherwise from its configuration.
    pub server_name: Option<String>,
    /// Its configuration file; otherwise from its command line.
    pub config: Option<PathBuf>,
    /// The `openssl.cnf` that it uses; otherwise from its environment, or that of its service.
    pub openssl_conf: Option<PathBuf>,
    /// Handshakes at a time; none: no proof.
    pub handshakes: usize,
    /// Where processes are: `/proc`.
    pub proc: PathBuf,
}

/// What only a node, or a client of one, can say.
pub trait Node {
    /// Private-key operations that the node has completed since it came up. `socket` is where the
    /// server's provider connects to, if that is known.
    ///
    /// # Errors
    /// No node answers this user.
    fn completed(&self, socket: Option<&Path>) -> Result<u64, Silence>;

    /// What the edges of this user (of all, if it is not known) have told the node; nothing if the node
    /// does not say.
    fn edges(&self, socket: Option<&Path>, uid: Option<u32>) -> Option<Edges>;

    /// Whether a node lets this user use this key over this socket; nothing if it cannot be tried.
    fn admits(&self, user: &User, socket: &Path, key: &str) -> Option<Result<(), Refusal>>;
}

/// What edges have counted, all together. They tell it about once per second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edges {
    /// Operations that waited without blocking.
    pub paused: u64,
    /// Operations that a thread of the application waited for.
    pub blocking: u64,
    /// Operations that the edge did itself, by reason.
    pub fallbacks: BTreeMap<String, u64>,
}

/// Why a node says nothing; each with a sentence that says where it was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// There is none.
    NoNode(String),
    /// This user may not ask it.
    Hidden(String),
}

/// Why a user may not use a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody answers on the socket, for this reason.
    NoNode(String),
    /// The node says no, for this reason.
    Refused(String),
}

/// How one thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// It could not be looked at.
    Unseen,
    /// It works, but not as well as it could, or not for long.
    Warning,
    /// It does not work.
    Failure,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Which thing: a fixed word for programs.
    pub check: &'static str,
    /// How it is.
    pub outcome: Outcome,
    /// What was seen.
    pub seen: String,
    /// What to do, if anything.
    pub remedy: Option<String>,
}

/// How many of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// How many were so.
    pub count: u64,
    /// Of how many.
    pub of: u64,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.count, self.of)
    }
}

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The server.
    pub server: Server,
    /// Its master.
    pub pid: Option<u32>,
    /// Handshakes that the pool signed; nothing if that was not seen.
    pub pooled: Option<Share>,
    /// Handshakes that waited without blocking; nothing if that was not seen.
    pub asynchronous: Option<Share>,
    /// Everything that was looked at, in the order in which one thing needs another.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many findings are like this.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        let like = |finding: &&Finding| finding.outcome == outcome;
        self.findings.iter().filter(like).count()
    }

    fn add(
        &mut self,
        check: &'static str,
        outcome: Outcome,
        seen: impl Into<String>,
        remedy: impl Into<Option<String>>,
    ) {
        self.findings.push(Finding {
            check,
            outcome,
            seen: seen.into(),
            remedy: remedy.into(),
        });
    }
}

/// A path as [`millrace_hostfs::Root`] takes it: paths in the text of configurations are UTF-8.
fn utf8(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Looks at everything.
#[must_use]
pub fn run(options: &Options, node: &dyn Node) -> Report {
    let mut report = Report {
        server: options.server,
        pid: options.pid,
        pooled: None,
        asynchronous: None,
        findings: Vec::new(),
    };
    let evidence = evidence::gather(options, &mut report);
    let socket = evidence
        .as_ref()
        .and_then(|evidence| judge::judge(options, evidence, node, &mut report));
    let asked = proof::Asked {
        node,
        socket: socket.as_deref(),
        uid: evidence
            .as_ref()
            .and_then(|evidence| evidence.workers.first())
            .map(|worker| worker.user.uid),
    };
    proof::prove(options, evidence.as_ref(), &asked, &mut report);
    report
}

#[cfg(test)]
mod tests;
