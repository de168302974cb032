// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The nodes of a pool, asked from the place of one process: with its user, its root, its network and its files.
//! The caller asks ([`super::Nodes`]); this module has the question, the answers, and what each answer means.

use std::collections::BTreeMap;
use std::path::PathBuf;

use millrace_hostfs::process::User;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::Display;

/// Place from which nodes are asked: that of a worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessContext {
    /// A process whose network is used; `None`: this process's.
    pub pid: Option<u32>,
    /// Root of the process's file system, as this process sees it.
    pub root: PathBuf,
    /// User of the process.
    pub user: User,
    /// Whether the limits, the profile and the filters of the process are taken, too.
    pub is_confined: bool,
    /// The profile of AppArmor.
    pub profile: Option<String>,
}

/// Answers of nodes to a process, and facts about its place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AskedNodes {
    /// The answer of each node.
    pub answers: Vec<NodeAnswer>,
    /// Why the process may start no thread; `None` if it may.
    pub no_thread: Option<String>,
    /// Number of filters of system calls that were taken over from the process.
    pub filters: usize,
    /// Parts of its confinement that could not be taken, each with the reason.
    pub not_taken: Vec<String>,
    /// The files of the question that the kernel does not let this process read.
    pub denied: Vec<PathBuf>,
}

/// Question to every node of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Question {
    /// The endpoints, in the order of the configuration.
    pub nodes: Vec<String>,
    /// The files for `tcp:` endpoints, as the process sees them.
    pub tls: Option<ProviderTls>,
    /// The stubs whose keys to open.
    pub keys: Vec<KeyStub>,
    /// Files to open for reading, as the process sees them.
    pub files: Vec<PathBuf>,
}

/// The provider's TLS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderTls {
    /// `tls_ca`
    pub ca: PathBuf,
    /// `tls_cert`
    pub cert: PathBuf,
    /// `tls_key`
    pub key: PathBuf,
    /// `tls_server_name`
    pub server_name: Option<String>,
}

impl ProviderTls {
    /// The three files with the names of their settings.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &PathBuf); 3] {
        [("tls_ca", &self.ca), ("tls_cert", &self.cert), ("tls_key", &self.key)]
    }
}

/// A stub: a name in the pool and the public half of its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyStub {
    /// Name of the key in the pool.
    pub name: String,
    /// DER `SubjectPublicKeyInfo`.
    pub spki: Vec<u8>,
}

/// The nodes of a pool, as `millrace status --gateway --json` prints them.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PoolStatus {
    /// The file that names the pool.
    pub config: String,
    /// The user id with which the nodes were asked.
    pub uid: u32,
    /// One entry for each node, in the order of the file.
    pub nodes: Vec<PoolNode>,
}

/// One node: its state, or why it does not answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PoolNode {
    /// Endpoint of the node, as configured.
    pub node: String,
    /// The report of the node.
    pub state: Option<NodeReport>,
    /// Why there is no answer.
    pub fault: Option<NodeFault>,
}

impl From<NodeAnswer> for PoolNode {
    fn from(answer: NodeAnswer) -> Self {
        let (state, fault) = match answer.answer {
            Ok(state) => (Some(state), None),
            Err(fault) => (None, Some(fault)),
        };
        Self { node: answer.node, state, fault }
    }
}

/// Answer of one node to a [`Question`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// Endpoint of the node, as configured.
    pub node: String,
    /// Report of the node, or its fault.
    pub answer: Result<NodeReport, NodeFault>,
}

/// The report of a node about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeReport {
    /// Its name for itself.
    pub name: String,
    /// Name and version of its software; none from an older version.
    pub software: Option<String>,
    /// Whether it takes no new jobs.
    pub draining: bool,
    /// Time of one round trip, µs.
    pub latency_us: u64,
    /// For each stub of the question whether it can be used.
    pub keys: Vec<KeyAnswer>,
    /// Over TCP: the identity and the end of this client's certificate, and the end of the node's.
    pub certificates: Option<CertificateFacts>,
    /// The sum of the counters that the edges of this identity have reported; none from an older version.
    pub edges: Option<Edges>,
}

/// Facts of the certificates of a connection. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CertificateFacts {
    /// The name in this client's certificate, which policies name.
    pub identity: String,
    /// End of this client's certificate.
    pub own_expires: i64,
    /// End of the node's certificate.
    pub node_expires: i64,
}

/// Whether a node serves the key of a stub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyAnswer {
    /// The name of the key.
    pub name: String,
    /// Whether this identity may use the key, and if not, why.
    pub state: KeyState,
}

/// The answer about one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KeyState {
    /// This identity may use it.
    Usable,
    /// The node has no such key, or none for this identity: it answers both alike.
    NotThere,
    /// The key of that name is another one than the stub's.
    Replaced,
    /// The node refused it for this reason.
    Refused(String),
}

/// Counters of edges: how the operations of one identity ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Edges {
    /// Operations that the pool did.
    pub pooled: u64,
    /// Operations that waited without blocking.
    pub paused: u64,
    /// Operations for which a thread of the application waited, blocked.
    pub blocking: u64,
    /// Results of nodes that did not verify, and answers that broke the protocol.
    #[serde(default)]
    pub wrong: u64,
    /// Operations computed by the edge itself, by reason.
    pub fallbacks: BTreeMap<String, u64>,
}

impl Edges {
    /// Adds the counts of `after` that are above those of `before`.
    pub fn add_difference(&mut self, before: &Self, after: &Self) {
        self.pooled += after.pooled.saturating_sub(before.pooled);
        self.paused += after.paused.saturating_sub(before.paused);
        self.blocking += after.blocking.saturating_sub(before.blocking);
        self.wrong += after.wrong.saturating_sub(before.wrong);
        for (reason, count) in &after.fallbacks {
            let earlier = before.fallbacks.get(reason).copied().unwrap_or(0);
            if *count > earlier {
                *self.fallbacks.entry(reason.clone()).or_insert(0) += count - earlier;
            }
        }
    }

    /// Operations that have ended one way or the other.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.pooled + self.fallbacks.values().sum::<u64>()
    }
}

/// Why a process does not reach a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeFault {
    /// Where the way to the node ends.
    pub kind: FaultKind,
    /// The error in words.
    pub error: String,
}

/// Kinds of [`NodeFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum FaultKind {
    /// A certificate or key file of the client is missing, hidden from the user, or not valid.
    Files,
    /// No process listens there, or the socket is closed to the user.
    Refused,
    /// A filter, a policy or a namespace of the process forbids a step on the way.
    Forbidden,
    /// The name of the node has no address.
    Unresolved,
    /// No answer in time.
    Silent,
    /// The node's certificate was signed by another authority than `tls_ca`.
    OtherAuthority,
    /// The node's certificate has expired.
    NodeExpired,
    /// The node's certificate is for another name.
    WrongName,
    /// The node does not know the authority of the client's certificate.
    UnknownToNode,
    /// The client's certificate is revoked.
    Revoked,
    /// The client's certificate has expired.
    Expired,
    /// Another failure of TLS.
    Tls,
    /// The node closed the connection without a reason.
    Closed,
    /// The node refuses this identity.
    Unauthorized,
    /// The node has too many connections.
    Full,
    /// Node and client have no common version of the protocol.
    Version,
    /// The other side is not a node.
    NoNode,
}

impl FaultKind {
    /// Meaning of the fault, and the recommended action.
    #[must_use]
    pub fn meaning(self) -> (&'static str, &'static str) {
        const START: &str =
            "start the node (millrace up, systemctl start millrace), or correct `pool`";
        const ISSUE: &str =
            "issue it on the node, `millrace cert client NAME -o DIR`, and copy DIR here";
        match self {
            Self::Files => (
                "the certificate files cannot be used",
                "make the three files readable for this user (chgrp -R GROUP DIR && chmod -R g+rX DIR) \
                 and visible in its chroot, or correct tls_ca, tls_cert and tls_key",
            ),
            Self::Refused => ("no node answers", START),
            Self::Forbidden => {
                ("the server's process may not reach it", "see what the error names")
            }
            Self::Unresolved => ("its name has no address", "correct `pool`, or the name service"),
            Self::Silent => (
                "no answer",
                "is the host up, and does a firewall drop the packets? A node that hangs logs nothing",
            ),
            Self::OtherAuthority => (
                "certificate of another authority",
                "tls_ca holds one authority, so all nodes of a pool need certificates of it: copy ca.crt, \
                 ca.key and ca.crl of the first node to the others before their first start",
            ),
            Self::NodeExpired => (
                "the node's certificate has expired",
                "restart the node, which renews the certificates that it made; replace one of your own",
            ),
            Self::WrongName => (
                "the node's certificate is for another name",
                "use that name in `pool`, set tls_server_name, or start the node with --name",
            ),
            Self::UnknownToNode => {
                ("the node does not know the authority of this certificate", ISSUE)
            }
            Self::Revoked => ("this gateway's certificate is revoked", ISSUE),
            Self::Expired => ("this gateway's certificate has expired", ISSUE),
            Self::Tls => ("the TLS handshake fails", "the node's log has its side"),
            Self::Closed => (
                "the node closed the connection",
                "the node's log says why; a node that starts or drains does it for a moment",
            ),
            Self::Unauthorized => (
                "the node refuses this identity",
                "add it to `identities` in the node's node.toml and reload the node",
            ),
            Self::Full => (
                "the node has too many connections",
                "raise `connections` in the node's node.toml, or add a node",
            ),
            Self::Version => ("no common version of the protocol", "upgrade the older side"),
            Self::NoNode => {
                ("it is not a node", "correct `pool`: does another service listen there?")
            }
        }
    }
}
