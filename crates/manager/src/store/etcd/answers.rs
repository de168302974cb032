// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Etcd's answers in JSON.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::store::StoreError;

/// 64-bit numbers are texts in the JSON form of protobuf, and fields with the value 0 are left out.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let value = Value::deserialize(from)?;
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    number.ok_or_else(|| serde::de::Error::custom("no number"))
}

/// The head of every answer: the revision of the store at that time.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    #[serde(deserialize_with = "number")]
    pub(super) revision: u64,
}

/// Answer to a transaction: whether its conditions held.
#[derive(Debug, Deserialize)]
pub(super) struct TxnAnswer {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
}

/// One page of the records in a range of keys; `more` if another one follows.
#[derive(Debug, Deserialize)]
pub(super) struct RangeAnswer {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) kvs: Vec<KeyValue>,
    #[serde(default)]
    pub(super) more: bool,
}

/// A record; key and value are in base64.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    pub(super) key: String,
    pub(super) value: String,
    #[serde(deserialize_with = "number")]
    pub(super) mod_revision: u64,
}

/// One message of a stream of changes.
#[derive(Debug, Deserialize)]
pub(super) struct WatchMessage {
    pub(super) result: Option<WatchAnswer>,
    pub(super) error: Option<Value>,
}

/// Changes of one or several revisions, or the end of the stream with its reason.
#[derive(Debug, Deserialize)]
pub(super) struct WatchAnswer {
    #[serde(default)]
    pub(super) events: Vec<WatchEvent>,
    #[serde(default)]
    pub(super) canceled: bool,
    #[serde(default, deserialize_with = "number")]
    pub(super) compact_revision: u64,
    #[serde(default)]
    pub(super) cancel_reason: String,
}

/// One change: a record was written, or removed if `kind` is `DELETE`.
#[derive(Debug, Deserialize)]
pub(super) struct WatchEvent {
    #[serde(default, rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) kv: KeyValue,
}

/// Why etcd refused: its gateway's form of a gRPC status.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refused {
    message: String,
    error: String,
}

pub(super) fn refused(status: u16, body: &[u8]) -> StoreError {
    let refused: Refused = serde_json::from_slice(body).unwrap_or_default();
    let message = if refused.message.is_empty() { refused.error } else { refused.message };
    if message.contains("database space exceeded") {
        StoreError::Full(message)
    } else if message.contains("revision has been compacted") {
        StoreError::Compacted(0)
    } else if message.contains("authentication") || message.contains("permission denied") {
        StoreError::Configuration(format!("etcd refuses us: {message}"))
    } else {
        StoreError::Unavailable(format!("etcd answers {status}: {message}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refusals_are_distinguished() {
        let of = |message: &str| {
            refused(503, json!({ "code": 8, "message": message }).to_string().as_bytes())
        };
        assert!(matches!(of("etcdserver: mvcc: database space exceeded"), StoreError::Full(_)));
        assert!(matches!(of("etcdserver: request timed out"), StoreError::Unavailable(_)));
        assert!(matches!(refused(500, b"\xff"), StoreError::Unavailable(_)));
    }
}
