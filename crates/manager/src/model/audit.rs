// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The audit log: one entry per administrative change, each with the hash of the one before. An entry that is
//! changed, removed or inserted later breaks the chain; the hash of the newest entry, noted elsewhere, also reveals
//! a chain that was cut short or rewritten.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::store::StoreEntry;

/// Separates these hashes from all others.
const DOMAIN: &[u8] = b"millrace audit v1\0";

/// Bound on the detail of an entry, in bytes of JSON: a whole tenant with its identities.
pub const MAX_DETAIL_LEN: usize = 512 * 1024;

/// SHA-256 over an entry and its predecessor's hash, in hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AuditHash([u8; 32]);

impl AuditHash {
    /// Predecessor of the first entry.
    pub const START: Self = Self([0; 32]);
}

impl fmt::Display for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuditHash({self})")
    }
}

impl Serialize for AuditHash {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AuditHash {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || serde::de::Error::custom("an audit hash has 64 hexadecimal digits");
        let mut bytes = [0; 32];
        hex::decode_to_slice(&text, &mut bytes).map_err(|_| wrong())?;
        Ok(Self(bytes))
    }
}

impl JsonSchema for AuditHash {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AuditHash".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })
    }
}

/// One administrative change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AuditEntry {
    /// Its number; the first is 1.
    pub seq: u64,
    /// Time by the manager's clock, in milliseconds since 1970.
    pub time_ms: u64,
    /// The principal that changed it, with its role.
    pub actor: String,
    /// The change: `tenant-create`, `quota-set`, `node-remove`, …
    pub action: String,
    /// Name of the tenant, node, key or principal.
    pub subject: String,
    /// New values. Never a secret.
    pub detail: Value,
    /// Hash of the entry before; 64 zeros for the first.
    pub previous: AuditHash,
    /// Hash of this entry.
    pub hash: AuditHash,
}

/// The newest entry, as the store keeps it beside the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditHead {
    /// Number of the entry; 0 before the first.
    pub seq: u64,
    /// Hash of the entry.
    pub hash: AuditHash,
}

impl Default for AuditHead {
    fn default() -> Self {
        Self { seq: 0, hash: AuditHash::START }
    }
}

/// Place where a chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// A number is missing, repeated or out of order.
    #[error("entry {expected} of the audit log is missing: {found} stands in its place")]
    Missing {
        /// Number that should be there.
        expected: u64,
        /// Number that is there.
        found: u64,
    },
    /// The entry does not continue the one before.
    #[error("entry {0} of the audit log does not continue the one before")]
    Broken(u64),
    /// The entry was changed.
    #[error("entry {0} of the audit log was changed after it was written, outside of the manager")]
    Changed(u64),
    /// The entry cannot be read.
    #[error(
        "entry {seq} of the audit log is damaged: it was changed in the store, outside of the manager ({reason})"
    )]
    Damaged {
        /// Number of the entry.
        seq: u64,
        /// The mistake in its form.
        reason: String,
    },
    /// The log ends before its head.
    #[error("the audit log ends with entry {found}, and its head says {expected}")]
    Cut {
        /// Entry number that the audit head expects.
        expected: u64,
        /// Last entry.
        found: u64,
    },
}

/// Action of an entry that stands for one that cannot be read. No change has this name.
const DAMAGED: &str = "damaged";

impl AuditEntry {
    /// The entry under a key of the store.
    ///
    /// # Errors
    /// [`AuditError::Damaged`].
    pub fn read(stored: &StoreEntry) -> Result<Self, AuditError> {
        let number = stored.key.rsplit('/').next().and_then(|number| number.parse().ok());
        let seq = number.unwrap_or_default();
        let damaged = |reason: String| AuditError::Damaged { seq, reason };
        let entry: Self =
            serde_json::from_slice(&stored.value).map_err(|error| damaged(error.to_string()))?;
        if entry.seq == seq {
            Ok(entry)
        } else {
            Err(damaged(format!("it says that it is entry {}", entry.seq)))
        }
    }

    /// Stands for an entry that cannot be read, so that a listing goes on behind it. It breaks the chain.
    #[must_use]
    pub fn damaged(seq: u64, reason: String) -> Self {
        Self {
            seq,
            time_ms: 0,
            actor: "-".to_owned(),
            action: DAMAGED.to_owned(),
            subject: "outside of the manager".to_owned(),
            detail: Value::String(reason),
            previous: AuditHash::START,
            hash: AuditHash::START,
        }
    }

    /// Whether it stands for one that cannot be read.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.action == DAMAGED
    }

    /// The entry after `head`.
    #[must_use]
    pub fn after(
        head: &AuditHead,
        time_ms: u64,
        actor: &str,
        action: &str,
        subject: &str,
        detail: Value,
    ) -> Self {
        let mut entry = Self {
            seq: head.seq + 1,
            time_ms,
            actor: actor.to_owned(),
            action: action.to_owned(),
            subject: subject.to_owned(),
            detail,
            previous: head.hash,
            hash: AuditHash::START,
        };
        entry.hash = entry.compute();
        entry
    }

    /// The head of the log after this entry.
    #[must_use]
    pub fn head(&self) -> AuditHead {
        AuditHead { seq: self.seq, hash: self.hash }
    }

    /// Hash over all other fields: numbers in 8 bytes, texts after their length, in the order of the fields. The
    /// text of `detail` is its JSON with sorted keys and without spaces.
    fn compute(&self) -> AuditHash {
        let Self { seq, time_ms, actor, action, subject, detail, previous, hash: _ } = self;
        let mut context = Context::new(&SHA256);
        context.update(DOMAIN);
        context.update(&previous.0);
        for number in [*seq, *time_ms] {
            context.update(&number.to_be_bytes());
        }
        for text in [actor, action, subject, &detail.to_string()] {
            context.update(&(text.len() as u64).to_be_bytes());
            context.update(text.as_bytes());
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(context.finish().as_ref());
        AuditHash(hash)
    }
}

/// Checks entries in their order, page after page.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuditVerifier(AuditHead);

impl AuditVerifier {
    /// Continues after an entry that was verified before.
    #[must_use]
    pub const fn after(head: AuditHead) -> Self {
        Self(head)
    }

    /// Checks the next entry.
    ///
    /// # Errors
    /// The chain is broken here.
    pub fn take(&mut self, entry: &AuditEntry) -> Result<(), AuditError> {
        let expected = self.0.seq + 1;
        if entry.seq != expected {
            return Err(AuditError::Missing { expected, found: entry.seq });
        }
        if entry.is_damaged() {
            let reason = entry.detail.as_str().unwrap_or_default().to_owned();
            return Err(AuditError::Damaged { seq: entry.seq, reason });
        }
        if entry.previous != self.0.hash {
            return Err(AuditError::Broken(entry.seq));
        }
        if entry.compute() != entry.hash {
            return Err(AuditError::Changed(entry.seq));
        }
        self.0 = entry.head();
        Ok(())
    }

    /// Checks that the last entry is the one that the head names.
    ///
    /// # Errors
    /// Entries are missing at the end, or the head is of another chain.
    pub fn finish(self, head: &AuditHead) -> Result<(), AuditError> {
        if self.0.seq != head.seq {
            return Err(AuditError::Cut { expected: head.seq, found: self.0.seq });
        }
        if self.0.hash != head.hash {
            return Err(AuditError::Changed(head.seq));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chain(length: u64) -> (Vec<AuditEntry>, AuditHead) {
        let mut entries = Vec::new();
        let mut head = AuditHead::default();
        for n in 0..length {
            let entry = AuditEntry::after(
                &head,
                1000 + n,
                "admin:root",
                "quota-set",
                "acme",
                json!({ "ops": n }),
            );
            head = entry.head();
            entries.push(entry);
        }
        (entries, head)
    }

    fn verify(entries: &[AuditEntry], head: &AuditHead) -> Result<(), AuditError> {
        let mut verifier = AuditVerifier::default();
        entries.iter().try_for_each(|entry| verifier.take(entry))?;
        verifier.finish(head)
    }

    #[test]
    fn chain_survives_json() {
        let (entries, head) = chain(3);
        let text = serde_json::to_string(&entries).unwrap();
        let read: Vec<AuditEntry> = serde_json::from_str(&text).unwrap();
        assert_eq!(verify(&read, &head), Ok(()));
    }

    #[test]
    fn every_changed_field_of_an_entry_breaks_the_chain() {
        let changes: [fn(&mut AuditEntry); 7] = [
            |e| e.time_ms += 1,
            |e| e.actor.push('x'),
            |e| e.action.push('x'),
            |e| e.subject.push('x'),
            |e| e.detail = json!({}),
            |e| e.previous = AuditHash::START,
            |e| e.hash = AuditHash::START,
        ];
        for (n, change) in changes.into_iter().enumerate() {
            let (mut entries, head) = chain(4);
            change(&mut entries[2]);
            assert!(verify(&entries, &head).is_err(), "change {n}");
        }
        // Text that moves from one field to the next is another entry.
        let (mut entries, head) = chain(1);
        entries[0].actor = "admin:root".to_owned() + "quota";
        entries[0].action = "-set".to_owned();
        assert_eq!(verify(&entries, &head), Err(AuditError::Changed(1)));
    }

    #[test]
    fn removed_and_forged_entries_are_noticed() {
        let (entries, head) = chain(4);
        let missing = [&entries[..1], &entries[2..]].concat();
        assert_eq!(verify(&missing, &head), Err(AuditError::Missing { expected: 2, found: 3 }));
        assert_eq!(verify(&entries[..3], &head), Err(AuditError::Cut { expected: 4, found: 3 }));
        let (mut other, _) = chain(4);
        other[3] = AuditEntry::after(&other[2].head(), 9, "admin:mallory", "x", "y", Value::Null);
        assert_eq!(verify(&other, &head), Err(AuditError::Changed(4)));
    }
}
