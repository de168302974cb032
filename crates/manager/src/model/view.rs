// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The records of the store at one revision, decoded and indexed.
//!
//! ```text
//!  millrace/schema         version of the records' form
//!  millrace/epoch          written by every change of a ledger: makes them one after the other
//!  millrace/node/NAME      Node          one write per heartbeat
//!  millrace/tenant/NAME    Tenant
//!  millrace/ledger/NAME    Ledger        written when slices change, not when grants are renewed
//!  millrace/principal/NAME Principal
//!  millrace/key/NAME       PoolKey
//!  millrace/audit-head     AuditHead     written by every administrative change
//!  millrace-audit/SEQ      AuditEntry    not in the view
//! ```
//!
//! A record that cannot be read leaves its former value in place and is listed in [`View::damaged`]; it is not
//! written until an operator has repaired it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use millrace_service::tenants::IdentityPattern;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::audit::AuditHead;
use super::keys::PoolKey;
use super::ledger::Ledger;
use super::name::{KeyName, NoName, NodeName, PrincipalName, TenantName};
use super::node::Node;
use super::placement;
use super::principal::Principal;
use super::tenant::Tenant;
use crate::store::{Change, Snapshot};

/// All records of a view are below this prefix.
pub const PREFIX: &str = "millrace/";

/// Entries of the audit log are below this prefix.
pub const AUDIT_PREFIX: &str = "millrace-audit/";

/// Key of the [`Schema`].
pub const SCHEMA: &str = "millrace/schema";

/// Version of the form of the records that this manager writes.
pub const SCHEMA_VERSION: u32 = 1;

/// The record at [`SCHEMA`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schema {
    /// Version of the form of all records.
    pub version: u32,
}

/// Key that every change of a ledger writes.
pub const EPOCH: &str = "millrace/epoch";

/// Key of the newest audit entry's number and hash.
pub const AUDIT_HEAD: &str = "millrace/audit-head";

/// Key of an audit entry: numbers sort as texts.
#[must_use]
pub fn audit_key(seq: u64) -> String {
    format!("{AUDIT_PREFIX}{seq:020}")
}

/// Kinds of records with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Nodes.
    Node,
    /// Tenants.
    Tenant,
    /// Ledgers of the tenants.
    Ledger,
    /// Principals.
    Principal,
    /// Keys.
    Key,
}

impl Table {
    const ALL: [Self; 5] = [Self::Node, Self::Tenant, Self::Ledger, Self::Principal, Self::Key];

    const fn folder(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Tenant => "tenant",
            Self::Ledger => "ledger",
            Self::Principal => "principal",
            Self::Key => "key",
        }
    }

    /// Key of the record with this name.
    #[must_use]
    pub fn key(self, name: &str) -> String {
        format!("{PREFIX}{}/{name}", self.folder())
    }

    fn split(key: &str) -> Option<(Self, &str)> {
        let (folder, name) = key.strip_prefix(PREFIX)?.split_once('/')?;
        let table = Self::ALL.into_iter().find(|table| table.folder() == folder)?;
        Some((table, name))
    }
}

/// A record with the revision of its last write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The record.
    pub value: T,
    /// The revision; 0 for one that is not in the store.
    pub revision: u64,
}

/// The records at one revision.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Revision of the store that this view shows.
    pub revision: u64,
    /// Version of the records' form; `None` in an empty store.
    pub schema: Option<Versioned<Schema>>,
    /// Revision of [`EPOCH`].
    pub epoch: u64,
    /// Nodes, also those that are gone or removed.
    pub nodes: BTreeMap<NodeName, Versioned<Node>>,
    /// Tenants by name.
    pub tenants: BTreeMap<TenantName, Versioned<Tenant>>,
    /// The tenant to which each identity belongs: at most one.
    pub tenant_of: BTreeMap<IdentityPattern, TenantName>,
    /// Ledgers, also of tenants that were removed and still have slices at a node.
    pub ledgers: BTreeMap<TenantName, Versioned<Ledger>>,
    /// Principals by name.
    pub principals: BTreeMap<PrincipalName, Versioned<Principal>>,
    /// Keys by name, without their private halves in clear.
    pub keys: BTreeMap<KeyName, Versioned<PoolKey>>,
    /// The newest audit entry.
    pub audit_head: Versioned<AuditHead>,
    /// Keys of records that cannot be read, with the reason.
    pub damaged: BTreeMap<String, String>,
    /// Tenants with an entry for the node in their ledger.
    pub tenants_of: BTreeMap<NodeName, BTreeSet<TenantName>>,
    /// Capacity that slices take, in parts per million of the node.
    reserved: BTreeMap<NodeName, u64>,
}

/// Why a record is not taken.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("no table of this version has it")]
    NoTable,
    #[error(transparent)]
    Name(#[from] NoName),
    #[error(transparent)]
    Form(#[from] serde_json::Error),
}

/// Record that a change affected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// A node.
    Node {
        /// Its name.
        name: NodeName,
        /// Whether more than its heartbeat fields changed.
        moved: bool,
    },
    /// A tenant or its ledger.
    Tenant(TenantName),
    /// Something that no placement depends on.
    Other,
}

impl View {
    /// The view of a snapshot of everything below [`PREFIX`].
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut view = Self::default();
        for entry in &snapshot.entries {
            view.take(&entry.key, Some(&entry.value), entry.revision);
        }
        view.revision = snapshot.revision;
        view
    }

    /// Takes a change of the store in. The caller sets [`View::revision`] after the last change of a commit.
    pub fn apply(&mut self, change: &Change) -> Touched {
        self.take(&change.key, change.value.as_deref(), change.revision)
    }

    /// The node, if there is one.
    #[must_use]
    pub fn node(&self, name: &NodeName) -> Option<&Node> {
        self.nodes.get(name).map(|node| &node.value)
    }

    /// Capacity of a node that slices take, in parts per million of it.
    #[must_use]
    pub fn reserved(&self, name: &NodeName) -> u64 {
        self.reserved.get(name).copied().unwrap_or_default()
    }

    /// Capacity that is left at a node, in parts per million of it.
    #[must_use]
    pub fn free(&self, name: &NodeName) -> u64 {
        placement::WHOLE.saturating_sub(self.reserved(name))
    }

    /// Whether a registration of a node is in the ledger of any tenant.
    #[must_use]
    pub fn has_entry(&self, node: &NodeName, fence: u64) -> bool {
        let tenants = self.tenants_of.get(node).into_iter().flatten();
        let mut ledgers = tenants.filter_map(|tenant| self.ledgers.get(tenant));
        ledgers.any(|ledger| ledger.value.entry(node, fence).is_some())
    }

    /// Patterns, with their tenants, of which each identity also matches `pattern`, without `pattern` itself.
    pub fn covered<'a>(
        &'a self,
        pattern: &'a IdentityPattern,
    ) -> impl Iterator<Item = (&'a IdentityPattern, &'a TenantName)> {
        let prefix = pattern.as_str().strip_suffix('*');
        let from = |prefix| (Bound::Included(prefix), Bound::Unbounded);
        let below = prefix.map(|prefix| self.tenant_of.range::<str, _>(from(prefix)));
        let below = below.into_iter().flatten();
        below
            .take_while(move |(other, _)| {
                prefix.is_some_and(|prefix| other.as_str().starts_with(prefix))
            })
            .filter(move |(other, _)| *other != pattern)
    }

    fn take(&mut self, key: &str, value: Option<&[u8]>, revision: u64) -> Touched {
        match self.try_take(key, value, revision) {
            Ok(touched) => {
                self.damaged.remove(key);
                touched
            }
            Err(error) => {
                self.damaged.insert(key.to_owned(), error.to_string());
                Touched::Other
            }
        }
    }

    fn try_take(
        &mut self,
        key: &str,
        value: Option<&[u8]>,
        revision: u64,
    ) -> Result<Touched, RecordError> {
        match key {
            SCHEMA => {
                self.schema = record(value, revision)?;
                return Ok(Touched::Other);
            }
            EPOCH => {
                self.epoch = if value.is_some() { revision } else { 0 };
                return Ok(Touched::Other);
            }
            AUDIT_HEAD => {
                self.audit_head = record(value, revision)?.unwrap_or_default();
                return Ok(Touched::Other);
            }
            _ => {}
        }
        let (table, name) = Table::split(key).ok_or(RecordError::NoTable)?;
        match table {
            Table::Node => self.take_node(name.parse()?, record(value, revision)?),
            Table::Tenant => {
                let name: TenantName = name.parse()?;
                self.take_tenant(&name, record(value, revision)?);
                Ok(Touched::Tenant(name))
            }
            Table::Ledger => {
                let name: TenantName = name.parse()?;
                let ledger = record::<Ledger>(value, revision)?;
                self.unindex(&name);
                replace(&mut self.ledgers, &name, ledger);
                self.index(&name);
                Ok(Touched::Tenant(name))
            }
            Table::Principal => {
                replace(&mut self.principals, &name.parse()?, record(value, revision)?);
                Ok(Touched::Other)
            }
            Table::Key => {
                replace(&mut self.keys, &name.parse()?, record(value, revision)?);
                Ok(Touched::Other)
            }
        }
    }

    fn take_tenant(&mut self, name: &TenantName, tenant: Option<Versioned<Tenant>>) {
        if let Some(former) = self.tenants.get(name) {
            for identity in &former.value.identities {
                self.tenant_of.remove(identity);
            }
        }
        for identity in tenant.iter().flat_map(|tenant| &tenant.value.identities) {
            self.tenant_of.insert(identity.clone(), name.clone());
        }
        replace(&mut self.tenants, name, tenant);
    }

    fn take_node(
        &mut self,
        name: NodeName,
        node: Option<Versioned<Node>>,
    ) -> Result<Touched, RecordError> {
        let before = self.nodes.get(&name).map(|node| &node.value);
        let after = node.as_ref().map(|node| &node.value);
        let standing = |node: &Node| (node.state(), node.lease.fence, node.lease.unproven.clone());
        let moved = before.map(standing) != after.map(standing);
        let other_capacity = before.map(|node| &node.registration.capacity)
            != after.map(|node| &node.registration.capacity);
        replace(&mut self.nodes, &name, node);
        if other_capacity {
            let tenants = self.tenants_of.get(&name).into_iter().flatten();
            let reserved = tenants.map(|tenant| self.reserved_by(tenant, &name)).sum();
            self.reserved.insert(name.clone(), reserved);
        }
        Ok(Touched::Node { name, moved: moved || other_capacity })
    }

    /// Adds the entries of a tenant's ledger to the indexes.
    fn index(&mut self, tenant: &TenantName) {
        for node in self.nodes_of(tenant) {
            *self.reserved.entry(node.clone()).or_default() += self.reserved_by(tenant, &node);
            self.tenants_of.entry(node).or_default().insert(tenant.clone());
        }
    }

    /// Takes the entries of a tenant's ledger out of the indexes.
    fn unindex(&mut self, tenant: &TenantName) {
        for node in self.nodes_of(tenant) {
            let part = self.reserved_by(tenant, &node);
            self.tenants_of.entry(node.clone()).or_default().remove(tenant);
            let reserved = self.reserved.entry(node).or_default();
            *reserved = reserved.saturating_sub(part);
        }
    }

    /// The nodes in a tenant's ledger.
    fn nodes_of(&self, tenant: &TenantName) -> BTreeSet<NodeName> {
        let entries = self.ledgers.get(tenant).into_iter().flat_map(|ledger| &ledger.value.entries);
        entries.map(|entry| entry.node.clone()).collect()
    }

    /// Capacity of a node that a tenant's slices take.
    fn reserved_by(&self, tenant: &TenantName, node: &NodeName) -> u64 {
        let (Some(ledger), Some(at)) = (self.ledgers.get(tenant), self.node(node)) else {
            return 0;
        };
        let entries = ledger.value.entries.iter().filter(|entry| entry.node == *node);
        entries.map(|entry| placement::cost(&entry.held, &at.registration.capacity)).sum()
    }
}

fn record<T: DeserializeOwned>(
    value: Option<&[u8]>,
    revision: u64,
) -> Result<Option<Versioned<T>>, RecordError> {
    let Some(value) = value else {
        return Ok(None);
    };
    Ok(Some(Versioned { value: serde_json::from_slice(value)?, revision }))
}

fn replace<K: Ord + Clone, T>(map: &mut BTreeMap<K, T>, key: &K, value: Option<T>) {
    match value {
        Some(value) => {
            map.insert(key.clone(), value);
        }
        None => {
            map.remove(key);
        }
    }
}
