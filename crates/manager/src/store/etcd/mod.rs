// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A store in etcd 3.5 or later, for several managers. It speaks etcd's JSON interface (the gRPC gateway, on every
//! client port by default): the `etcd-client` crate would need a C++ `protoc` on each machine that builds Millrace.
//!
//! ```text
//!  commit, read ── POST /v3/kv/txn, /v3/kv/range ──► the endpoint that answered last, or the next one
//!  changes ──◄── one thread per prefix ──◄── POST /v3/watch, a stream of JSON texts
//! ```
//!
//! No lease and no lock of etcd is used: a lease that its holder believes in can be over at the server, so expiry is
//! judged by the managers themselves, and every write is a transaction on revisions. Requests are HTTP/1.0 with one
//! connection each, so the end of an answer is the end of its connection; a pool of 1,000 nodes makes 100 a second.

mod answers;
mod connection;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_operation::sync::lock;
use serde_json::json;

use super::{Changes, Snapshot, Store, StoreEntry, StoreError, Transaction, Write};
use answers::{RangeAnswer, TxnAnswer};
use connection::{CALL, Client, Repeat};
use watch::Watch;

/// Entries per request.
const PAGE: usize = 500;

/// Addresses of the etcd members, and the credentials for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT` of each member.
    pub endpoints: Vec<String>,
    /// File with the certificates that sign the members'; needed for `https`.
    pub ca: Option<PathBuf>,
    /// Files with our certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl EtcdConfig {
    /// Reads the form of a command line: see [`super::open`].
    ///
    /// # Errors
    /// The text names no etcd.
    pub fn parse(location: &str) -> Result<Self, StoreError> {
        let wrong = |problem: &str| {
            StoreError::Configuration(format!(
                "{location:?} is not a store: {problem}; use sqlite:PATH, etcd://HOST:PORT,…, \
                 etcds://HOST:PORT,…?ca=FILE&cert=FILE&key=FILE, or memory:"
            ))
        };
        let (scheme, rest) =
            location.split_once("://").ok_or_else(|| wrong("the scheme is unknown"))?;
        let scheme = match scheme {
            "etcd" => "http",
            "etcds" => "https",
            _ => return Err(wrong("the scheme is unknown")),
        };
        let (hosts, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let mut config = Self {
            endpoints: hosts.split(',').map(|host| format!("{scheme}://{host}")).collect(),
            ..Self::default()
        };
        let mut certificate = None;
        let mut key = None;
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (name, file) =
                setting.split_once('=').ok_or_else(|| wrong("a setting has no value"))?;
            let file = Some(PathBuf::from(file));
            match name {
                "ca" => config.ca = file,
                "cert" => certificate = file,
                "key" => key = file,
                _ => return Err(wrong("a setting is unknown")),
            }
        }
        config.certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(wrong("cert and key belong together")),
        };
        Ok(config)
    }
}

/// Records in an etcd cluster, which several managers share.
pub struct EtcdStore {
    client: Arc<Client>,
    watches: Mutex<BTreeMap<String, Arc<Watch>>>,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EtcdStore").field(&self.client.endpoints).finish()
    }
}

impl EtcdStore {
    /// Prepares connections; etcd need not run yet.
    ///
    /// # Errors
    /// An endpoint or a file is wrong.
    pub fn open(config: &EtcdConfig) -> Result<Self, StoreError> {
        Ok(Self { client: Arc::new(Client::new(config)?), watches: Mutex::default() })
    }

    /// The watch of a prefix that has every change after `after`.
    fn watch(&self, prefix: &str, after: u64) -> Result<Arc<Watch>, StoreError> {
        let mut watches = lock(&self.watches);
        if let Some(watch) = watches.get(prefix) {
            let state = lock(&watch.state);
            if state.ended.is_none() && state.complete_after <= after {
                return Ok(Arc::clone(watch));
            }
            let error = state.ended.clone();
            drop(state);
            watch.end();
            watches.remove(prefix);
            if let Some(error @ StoreError::Compacted(_)) = error {
                return Err(error);
            }
        }
        let watch = Watch::start(&self.client, prefix, after)?;
        watches.insert(prefix.to_owned(), Arc::clone(&watch));
        Ok(watch)
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        lock(&self.watches).values().for_each(|watch| watch.end());
    }
}

impl Store for EtcdStore {
    fn commit(&self, transaction: &Transaction) -> Result<u64, StoreError> {
        transaction.check()?;
        let compare = |condition: &super::Condition| {
            json!({ "key": encode(&condition.key), "target": "MOD", "result": "EQUAL",
                    "mod_revision": condition.revision.to_string() })
        };
        let operation = |write: &Write| match write {
            Write::Put { key, value } => {
                json!({ "request_put": { "key": encode(key), "value": STANDARD.encode(value) } })
            }
            Write::Delete { key } => json!({ "request_delete_range": { "key": encode(key) } }),
        };
        let body = json!({
            "compare": transaction.when.iter().map(compare).collect::<Vec<_>>(),
            "success": transaction.then.iter().map(operation).collect::<Vec<_>>(),
        });
        let answer: TxnAnswer = self.client.call("/v3/kv/txn", &body, Repeat::OnlyUnsent)?;
        if answer.succeeded { Ok(answer.header.revision) } else { Err(StoreError::Conflict) }
    }

    fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.page(prefix, prefix, usize::MAX)
    }

    fn page(&self, prefix: &str, from: &str, limit: usize) -> Result<Snapshot, StoreError> {
        let mut from = from.max(prefix).to_owned();
        let mut snapshot = Snapshot::default();
        loop {
            let wanted = PAGE.min(limit - snapshot.entries.len());
            let mut body =
                json!({ "key": encode(&from), "range_end": encode(&end(prefix)), "limit": wanted });
            if snapshot.revision > 0 {
                // All pages at the revision of the first.
                body["revision"] = json!(snapshot.revision.to_string());
            }
            let answer: RangeAnswer = self.client.call("/v3/kv/range", &body, Repeat::Always)?;
            if snapshot.revision == 0 {
                snapshot.revision = answer.header.revision;
            }
            for kv in answer.kvs {
                snapshot.entries.push(StoreEntry {
                    key: decode_key(&kv.key)?,
                    value: decode(&kv.value)?.into(),
                    revision: kv.mod_revision,
                });
            }
            match snapshot.entries.last() {
                Some(last) if answer.more && snapshot.entries.len() < limit => {
                    from = format!("{}\0", last.key)
                }
                _ => return Ok(snapshot),
            }
        }
    }

    fn changes(&self, prefix: &str, after: u64, wait: Duration) -> Result<Changes, StoreError> {
        let watch = self.watch(prefix, after)?;
        let start = Instant::now();
        let mut state = lock(&watch.state);
        loop {
            let from = state.log.partition_point(|change| change.revision <= after);
            // No change is not known before the stream is open.
            let wait = if state.is_open() { wait } else { CALL };
            let left = wait.saturating_sub(start.elapsed());
            if from < state.log.len() || (left.is_zero() && state.is_open()) {
                return Ok(Changes {
                    revision: state.revision.max(after),
                    changes: state.log.range(from..).cloned().collect(),
                });
            }
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            if left.is_zero() {
                let problem = "etcd opens no stream of changes";
                return Err(StoreError::Unavailable(problem.to_owned()));
            }
            state = watch.moved.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Reads an answer of etcd, head and body, as each of those that etcd gives. For the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_as_any_answer(bytes: &[u8]) {
    let mut stream = std::io::Cursor::new(bytes.to_vec());
    let Ok((status, body)) = connection::receive(&mut stream) else {
        return;
    };
    if status != 200 {
        let _ = answers::refused(status, &body);
    }
    let _ = serde_json::from_slice::<TxnAnswer>(&body);
    if let Ok(range) = serde_json::from_slice::<RangeAnswer>(&body) {
        for kv in range.kvs {
            let _ = (decode_key(&kv.key), decode(&kv.value));
        }
    }
    let messages = serde_json::Deserializer::from_slice(&body).into_iter::<answers::WatchMessage>();
    for message in messages.map_while(Result::ok) {
        let Some(answer) = message.result else {
            return;
        };
        let events = answer.events.len();
        if let Ok(changes) = watch::changes_of(answer) {
            assert_eq!(changes.len(), events);
        }
    }
}

/// The end of the keys below a prefix, which are printable ASCII.
fn end(prefix: &str) -> String {
    format!("{prefix}\u{7f}")
}

fn encode(key: &str) -> String {
    STANDARD.encode(key)
}

fn decode(text: &str) -> Result<Vec<u8>, StoreError> {
    STANDARD.decode(text).map_err(|error| StoreError::Damaged(format!("etcd's answer: {error}")))
}

fn decode_key(text: &str) -> Result<String, StoreError> {
    String::from_utf8(decode(text)?)
        .map_err(|_| StoreError::Damaged("a key in etcd is not text".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_of_a_command_line_names_members_and_files() {
        let config =
            EtcdConfig::parse("etcds://a:2379,b:2379?ca=/ca.pem&cert=c.pem&key=k.pem").unwrap();
        assert_eq!(config.endpoints, ["https://a:2379", "https://b:2379"]);
        assert_eq!(config.ca, Some("/ca.pem".into()));
        assert_eq!(config.certificate, Some(("c.pem".into(), "k.pem".into())));
        assert_eq!(EtcdConfig::parse("etcd://a:1").unwrap().endpoints, ["http://a:1"]);
        for wrong in [
            "",
            "redis://a:1",
            "sqlite:",
            "etcds://a:1?x=y",
            "etcds://a:1?ca",
            "etcds://a:1?cert=c",
        ] {
            let error = super::super::open(wrong).unwrap_err();
            assert!(error.to_string().contains("is not a store"), "{wrong}: {error}");
        }
        assert!(super::super::open("etcd://nothing").is_err());
    }
}
