// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The displayed data of a key, without secrets.

use std::iter;

use aws_lc_rs::digest;
use millrace_operation::stub::Stub;
use millrace_service::keys::{KeyReport, KeyRow};
use millrace_service::store::KeyMeta;
use schemars::JsonSchema;
use serde::Serialize;

use crate::output::{Table, date, or};
use crate::page::facts;

/// A version of a key as `list` and `show` print it. Scripts rely on the field names, which are those of the
/// JSON.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "Key")]
pub(crate) struct KeyView {
    name: String,
    #[serde(rename = "type")]
    key_type: String,
    /// Seconds since 1970.
    imported: u64,
    /// Time at which another key took its place, in seconds since 1970; null for the current version.
    pub(super) replaced: Option<u64>,
    identities: Vec<String>,
    operations: Vec<&'static str>,
    hashes: Vec<&'static str>,
    /// SHA-256 of the `SubjectPublicKeyInfo`, in hex. The provider finds a key by it.
    spki_sha256: String,
    /// URI with the public half, for programs that take URIs; null if the name cannot stand in one.
    uri: Option<String>,
    /// Id of the key-encryption key that sealed the file.
    kek: String,
    /// Whether the seal was opened and has verified the other fields.
    authenticated: bool,
    /// Why the file cannot be used, by this command or by the running node.
    pub(super) problem: Option<String>,
    /// Time of the last job since the node started, in seconds since 1970; null if no node answers.
    last_used: Option<u64>,
    /// Former versions, which nodes serve to gateways that have their stubs.
    pub(super) former: Vec<Self>,
}

impl KeyView {
    /// `node` is the report of the running node, if there is one.
    pub(super) fn new(meta: &KeyMeta, problem: Option<String>, node: Option<&KeyReport>) -> Self {
        let key_type = meta.info.key_type;
        // Only operations that this type of key has: others in the policy have no effect.
        let operations = meta.policy.operations.iter().filter(|kind| kind.fits(key_type));
        let spki_sha256 = spki_sha256(meta);
        let served = node.into_iter().flat_map(|node| &node.keys);
        let served: Vec<_> = served
            .filter(|row| row.name == meta.name && row.former == meta.replaced.is_some())
            .collect();
        let same = |row: &&&KeyRow| row.spki_sha256.as_ref() == Some(&spki_sha256);
        let reported = served.iter().find_map(|row| row.problem.clone());
        let last_used = served.iter().find(same).and_then(|row| row.last_used);
        Self {
            name: meta.name.clone(),
            key_type: key_type.to_string(),
            imported: meta.created,
            replaced: meta.replaced,
            identities: meta.policy.identities.clone(),
            operations: operations.map(|kind| kind.name()).collect(),
            hashes: meta.policy.hashes.iter().map(|hash| hash.name()).collect(),
            spki_sha256,
            uri: Stub::new(&meta.name, &meta.info.spki).map(|stub| stub.to_uri()),
            kek: meta.kek.to_string(),
            authenticated: meta.authenticated,
            problem: problem.or(reported),
            last_used,
            former: Vec::new(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_former_of(&self, key: &Self) -> bool {
        self.replaced.is_some() && self.name == key.name
    }

    fn state(&self) -> String {
        match (&self.problem, self.replaced) {
            (Some(problem), _) => format!("cannot be used: {problem}"),
            (None, Some(replaced)) => format!("former, replaced {}", date(replaced)),
            (None, None) if self.identities.is_empty() => "for no client".to_owned(),
            (None, None) => "ok".to_owned(),
        }
    }

    /// One fact per line.
    pub(super) fn page(&self) -> String {
        let mut rows = vec![
            ("name", self.name.clone()),
            ("type", self.key_type.clone()),
            ("imported", date(self.imported)),
            ("identities", self.identities.join(" ")),
            ("operations", self.operations.join(" ")),
            ("hashes", self.hashes.join(" ")),
            ("spki sha256", self.spki_sha256.clone()),
        ];
        rows.extend(self.uri.iter().map(|uri| ("uri", uri.clone())));
        rows.extend(self.last_used.map(|used| ("last used", date(used))));
        rows.extend(self.former.iter().map(|version| {
            let key_type = &version.key_type;
            let imported = date(version.imported);
            let replaced = date(version.replaced.unwrap_or(0));
            let used = version.last_used.map(|used| format!(", last used {}", date(used)));
            let problem = version.problem.as_ref();
            let problem = problem.map(|problem| format!(", cannot be used: {problem}"));
            let text = format!("{key_type}, imported {imported}, replaced {replaced}");
            ("former", text + &or(used, "") + &or(problem, ""))
        }));
        for (_, value) in rows.iter_mut().filter(|(_, value)| value.is_empty()) {
            "none".clone_into(value);
        }
        facts(&rows)
    }
}

/// The table of `key list`: each key, then its former versions.
#[rustfmt::skip]
pub(super) fn table(views: &[KeyView]) -> Table {
    let versions = views.iter().flat_map(|view| iter::once(view).chain(&view.former));
    Table::of(versions, &[
        ("name", &|view| view.name.clone()),
        ("type", &|view| view.key_type.clone()),
        ("imported", &|view| date(view.imported)),
        ("identities", &|view| view.identities.join(" ")),
        ("operations", &|view| view.operations.join(" ")),
        ("last used", &|view| or(view.last_used.map(date), "-")),
        ("state", &|view| view.state()),
    ])
}

/// SHA-256 of the public half, in hex.
pub(super) fn spki_sha256(meta: &KeyMeta) -> String {
    sha256(&meta.info.spki)
}

/// A digest in hex.
pub(in crate::commands) fn sha256(bytes: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, bytes);
    let digits = hash.as_ref().iter().map(|byte| format!("{byte:02x}"));
    digits.collect()
}
