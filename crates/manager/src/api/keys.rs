// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The private keys of the pool. A key comes in the body of one request and leaves the manager sealed to nodes; no
//! answer, error or log line has it.

use std::collections::BTreeSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_operation::{Hash, OperationKind};
use millrace_service::overview::now_ms;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::call::{Call, Precondition, Reply};
use super::problem::{Code, Problem};

use crate::ManagerError;
use crate::model::command::{Command, Refusal};
use crate::model::keys::PoolKey;
use crate::model::name::{KeyName, TenantName};
use crate::model::view::Versioned;
use crate::vault::{self, KeyRights, Vault, VaultError};

/// A key of the pool, without its private half.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct KeyView {
    /// Name under which gateways use the key.
    pub name: KeyName,
    /// Grows with each change.
    pub version: u64,
    /// Its type: `rsa-2048`, `p-256`, …
    #[serde(rename = "type")]
    pub key_type: String,
    /// SHA-256 of the public half, in hexadecimal digits.
    pub public: String,
    /// The public half: `SubjectPublicKeyInfo` in base64.
    pub spki: String,
    /// Tenants that may use it.
    pub tenants: BTreeSet<TenantName>,
    /// Allowed operations.
    pub operations: Vec<String>,
    /// Allowed hashes.
    pub hashes: Vec<String>,
    /// Number of former versions.
    pub former: usize,
    /// Time of the import, in seconds since 1970.
    pub created: u64,
    /// Id of the key-encryption key under which it is sealed.
    pub kek: String,
}

/// A private key for the pool.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NewKey {
    /// The private key in PEM: PKCS#8, PKCS#1 or SEC 1, not encrypted.
    pub private_key: String,
    /// Tenants that may use it; without them those of the key that is replaced.
    #[serde(default)]
    pub tenants: BTreeSet<TenantName>,
    /// Allowed operations; without them those of the key that is replaced, or signatures, OAEP and key agreement.
    #[serde(default)]
    pub operations: Vec<String>,
    /// Allowed hashes; without them those of the key that is replaced, or all.
    #[serde(default)]
    pub hashes: Vec<String>,
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewKey").field("tenants", &self.tenants).finish_non_exhaustive()
    }
}

impl Drop for NewKey {
    fn drop(&mut self) {
        self.private_key.zeroize();
    }
}

impl KeyView {
    fn of(key: &PoolKey) -> Result<Self, Problem> {
        let damaged = |error: &dyn fmt::Display| {
            let detail = format!("the record of key {} is damaged: {error}", key.name);
            Problem::new(Code::Internal, detail)
        };
        let bytes = STANDARD.decode(&key.sealed).map_err(|error| damaged(&error))?;
        let file = millrace_service::store::parse(&bytes).map_err(|error| damaged(&error))?;
        let policy = &file.metadata.policy;
        let operations = policy.operations.iter();
        Ok(Self {
            name: key.name.clone(),
            version: key.version,
            key_type: file.metadata.info.key_type.to_string(),
            public: key.public.clone(),
            spki: STANDARD.encode(&file.metadata.info.spki),
            tenants: key.tenants.clone(),
            operations: operations.map(|kind| kind.name().to_owned()).collect(),
            hashes: policy.hashes.iter().map(|hash| hash.name().to_owned()).collect(),
            former: key.former.len(),
            created: file.metadata.created,
            kek: file.kek().to_string(),
        })
    }
}

impl From<VaultError> for Problem {
    fn from(error: VaultError) -> Self {
        match error {
            VaultError::Pem(_) | VaultError::Refused(_) | VaultError::Operations(_) => {
                Self::new(Code::Invalid, error.to_string())
            }
            VaultError::Store(error) => ManagerError::Store(error).into(),
            VaultError::Missing { .. }
            | VaultError::OtherKek { .. }
            | VaultError::Kek(_)
            | VaultError::NoKeys
            | VaultError::Seal(_) => Self::new(Code::Conflict, error.to_string()),
        }
    }
}

pub(super) fn keys(call: &Call) -> Result<Reply, Problem> {
    let all = call.api.manager.view(|view| {
        let keys = view.keys.values().map(|key| KeyView::of(&key.value));
        keys.collect::<Result<Vec<_>, _>>()
    });
    call.page(all?, |key| key.name.to_string())
}

fn find(call: &Call, name: &KeyName) -> Option<Versioned<PoolKey>> {
    call.api.manager.view(|view| view.keys.get(name).cloned())
}

fn present(call: &Call, name: &KeyName) -> Result<Versioned<PoolKey>, Problem> {
    let not_found = || Problem::new(Code::NotFound, format!("there is no key {name}"));
    find(call, name).ok_or_else(not_found)
}

fn vault(call: &Call) -> Result<&Vault, Problem> {
    Ok(call.api.manager.vault().ok_or(VaultError::NoKeys)?)
}

pub(super) fn key(call: &Call) -> Result<Reply, Problem> {
    let found = present(call, &call.name()?)?;
    Ok(Reply::json(&KeyView::of(&found.value)?)?.at(found.revision))
}

pub(super) fn put_key(call: &Call) -> Result<Reply, Problem> {
    let name = call.name::<KeyName>()?;
    let new = secret_body(call)?;
    let vault = vault(call)?;
    let before = find(call, &name);
    let seen = before.as_ref().map_or(0, |before| before.revision);
    match call.condition {
        Precondition::Absent if before.is_some() => {
            let detail = format!(
                "there is a key {name} already: replace it with --replace, or remove it first"
            );
            return Err(Problem::new(Code::Conflict, detail));
        }
        Precondition::Revision(expected) if expected != seen => {
            let found = seen;
            return Err(Refusal::Changed { expected, found }.into());
        }
        Precondition::None | Precondition::Absent | Precondition::Revision(_) => {}
    }
    let rights = KeyRights {
        tenants: new.tenants.clone(),
        operations: named(&new.operations, "operation", OperationKind::from_name)?,
        hashes: named(&new.hashes, "hash", Hash::from_name)?,
    };
    let before = before.map(|before| before.value);
    let pem = new.private_key.as_bytes();
    let made = vault.make(&name, pem, &rights, before.as_ref(), now_ms())?;
    let view = KeyView::of(&made)?;
    // The record that the new one takes over from must be the one that was read.
    let revision = call.change_at(Command::SetKey(made), Some(seen))?;
    let reply = Reply::json(&view)?.at(revision);
    Ok(if before.is_none() { reply.created() } else { reply })
}

pub(super) fn forget_former(call: &Call) -> Result<Reply, Problem> {
    let found = present(call, &call.name()?)?;
    let changed = PoolKey {
        version: vault::next_version(Some(&found.value), now_ms()),
        former: Vec::new(),
        ..found.value
    };
    let view = KeyView::of(&changed)?;
    let revision = call.change_at(Command::SetKey(changed), Some(found.revision))?;
    Ok(Reply::json(&view)?.at(revision))
}

pub(super) fn remove_key(call: &Call) -> Result<Reply, Problem> {
    let key = call.name()?;
    call.change(Command::RemoveKey { key })?;
    Ok(Reply::empty())
}

/// The body, which has a key: the error says where it is wrong, and nothing of what is there.
fn secret_body(call: &Call) -> Result<NewKey, Problem> {
    serde_json::from_slice(&call.body).map_err(|error| {
        let line = error.line();
        let column = error.column();
        let detail = format!(
            "the body is not a key at line {line}, column {column}: see NewKey in /v1/openapi.json"
        );
        Problem::new(Code::Invalid, detail)
    })
}

/// The set of the named values; `None` for no names.
fn named<T, S: FromIterator<T>>(
    names: &[String],
    what: &str,
    find: fn(&str) -> Option<T>,
) -> Result<Option<S>, Problem> {
    if names.is_empty() {
        return Ok(None);
    }
    let unknown = || Problem::new(Code::Invalid, format!("{what}s: one of them is not known"));
    let found = names.iter().map(|name| find(name).ok_or_else(unknown));
    found.collect::<Result<S, _>>().map(Some)
}
