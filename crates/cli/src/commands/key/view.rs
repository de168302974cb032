// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The displayed data of a key, without secrets.

use std::fmt::Write as _;

use aws_lc_rs::digest;
use millrace_service::store::KeyMeta;
use schemars::JsonSchema;
use serde::Serialize;

use crate::output::date;
use crate::page::facts;

/// A key as `list` and `show` print it. Scripts rely on the field names, which are those of the JSON.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "Key")]
pub(crate) struct KeyView {
    name: String,
    #[serde(rename = "type")]
    key_type: String,
    /// Seconds since 1970.
    imported: u64,
    identities: Vec<String>,
    operations: Vec<&'static str>,
    hashes: Vec<&'static str>,
    /// SHA-256 of the `SubjectPublicKeyInfo`, in hex. The provider finds a key by it.
    spki_sha256: String,
    /// Whether the seal was opened and has verified the other fields.
    authenticated: bool,
}

impl KeyView {
    pub(crate) fn new(meta: &KeyMeta) -> Self {
        let key_type = meta.info.key_type;
        // Only operations that this type of key has: others in the policy have no effect.
        let operations = meta
            .policy
            .operations
            .iter()
            .filter(|kind| kind.fits(key_type));
        Self {
            name: meta.name.clone(),
            key_type: key_type.to_string(),
            imported: meta.created,
            identities: meta.policy.identities.clone(),
            operations: operations.map(|kind| kind.name()).collect(),
            hashes: meta.policy.hashes.iter().map(|hash| hash.name()).collect(),
            spki_sha256: hex(digest::digest(&digest::SHA256, &meta.info.spki).as_ref()),
            authenticated: meta.authenticated,
        }
    }

    /// The cells of the table.
    pub(crate) fn row(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.key_type.clone(),
            date(self.imported),
            self.identities.join(" "),
            self.operations.join(" "),
        ]
    }

    /// One fact per line.
    pub(crate) fn page(&self) -> String {
        let Self {
            name,
            key_type,
            imported,
            identities,
            operations,
            hashes,
            ..
        } = self;
        let none_if_empty = |text: String| {
            if text.is_empty() {
                "none".to_owned()
            } else {
                text
            }
        };
        let rows = [
            ("name", name.clone()),
            ("type", key_type.clone()),
            ("imported", date(*imported)),
            ("identities", identities.join(" ")),
            ("operations", operations.join(" ")),
            ("hashes", hashes.join(" ")),
            ("spki sha256", self.spki_sha256.clone()),
        ];
        facts(&rows.map(|(fact, value)| (fact, none_if_empty(value))))
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
