// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Administrative changes, and why one is refused.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::name::{KeyName, NodeName, PrincipalName, TenantName};
use super::principal::{Principal, Role};
use super::tenant::{Placement, Quota, Tenant};
use super::view::Table;

/// An administrative change. Each is one transaction of the store and one entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Command {
    /// Makes a tenant.
    CreateTenant(Tenant),
    /// Replaces all values of a tenant.
    SetTenant(Tenant),
    /// Sets the quota of a tenant.
    SetQuota {
        /// Tenant whose quota changes.
        tenant: TenantName,
        /// Its new limit.
        #[schemars(with = "Value")]
        quota: Quota,
    },
    /// Says where a tenant is served.
    Place {
        /// Tenant to place.
        tenant: TenantName,
        /// Nodes and zones that may serve it.
        placement: Placement,
    },
    /// Removes a tenant that no key names. Its nodes stop serving it with the next heartbeat.
    RemoveTenant {
        /// Tenant to remove.
        tenant: TenantName,
    },
    /// Moves all tenants away from a node, or lets it take tenants again.
    DrainNode {
        /// Node to drain, or to use again.
        node: NodeName,
        /// Whether its tenants move away.
        drain: bool,
    },
    /// Removes a node. It loses its slices and keys, and cannot register again before it is readmitted. A removed
    /// node that is cut off keeps its safe share until it is reached or stopped: the operator says that it is gone.
    RemoveNode {
        /// Node to remove.
        node: NodeName,
    },
    /// Lets a removed node register again.
    ReadmitNode {
        /// Node to readmit.
        node: NodeName,
    },
    /// Makes or replaces a principal.
    SetPrincipal(Principal),
    /// Removes a principal.
    RemovePrincipal {
        /// Principal to remove.
        principal: PrincipalName,
    },
    /// Makes or replaces a key of the pool; the private key is sealed already.
    SetKey(super::keys::PoolKey),
    /// Removes a key. Nodes drop it with their next heartbeat.
    RemoveKey {
        /// Key to remove.
        key: KeyName,
    },
}

impl Command {
    /// Least role that may execute the command, whatever the records are. One that changes the identities of a tenant
    /// needs more: see [`Core::required_role`](super::core::Core::required_role).
    #[must_use]
    pub const fn role(&self) -> Role {
        match self {
            Self::CreateTenant(_)
            | Self::SetTenant(_)
            | Self::SetQuota { .. }
            | Self::Place { .. }
            | Self::RemoveTenant { .. }
            | Self::DrainNode { .. }
            | Self::RemoveNode { .. } => Role::Operator,
            Self::ReadmitNode { .. }
            | Self::SetPrincipal(_)
            | Self::RemovePrincipal { .. }
            | Self::SetKey(_)
            | Self::RemoveKey { .. } => Role::Admin,
        }
    }

    /// Name of the change in the audit log.
    #[must_use]
    pub const fn action(&self) -> &'static str {
        match self {
            Self::CreateTenant(_) => "tenant-create",
            Self::SetTenant(_) => "tenant-set",
            Self::SetQuota { .. } => "quota-set",
            Self::Place { .. } => "grant",
            Self::RemoveTenant { .. } => "tenant-remove",
            Self::DrainNode { drain: true, .. } => "node-drain",
            Self::DrainNode { drain: false, .. } => "node-undrain",
            Self::RemoveNode { .. } => "node-remove",
            Self::ReadmitNode { .. } => "node-readmit",
            Self::SetPrincipal(_) => "principal-set",
            Self::RemovePrincipal { .. } => "principal-remove",
            Self::SetKey(_) => "key-set",
            Self::RemoveKey { .. } => "key-remove",
        }
    }

    /// Name of what is changed.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Self::CreateTenant(tenant) | Self::SetTenant(tenant) => tenant.name.as_str(),
            Self::SetQuota { tenant, .. }
            | Self::Place { tenant, .. }
            | Self::RemoveTenant { tenant } => tenant.as_str(),
            Self::DrainNode { node, .. }
            | Self::RemoveNode { node }
            | Self::ReadmitNode { node } => node.as_str(),
            Self::SetPrincipal(principal) => principal.name.as_str(),
            Self::RemovePrincipal { principal } => principal.as_str(),
            Self::SetKey(key) => key.name.as_str(),
            Self::RemoveKey { key } => key.as_str(),
        }
    }

    /// New values for the audit log, without secrets: no token, no hash of one, no sealed key.
    #[must_use]
    pub fn detail(&self) -> Value {
        match self {
            Self::CreateTenant(tenant) | Self::SetTenant(tenant) => json!(tenant),
            Self::SetQuota { quota, .. } => json!(quota),
            Self::Place { placement, .. } => json!(placement),
            Self::SetPrincipal(principal) => {
                json!({ "role": principal.role, "expires-ms": principal.expires_ms })
            }
            Self::SetKey(key) => {
                json!({
                    "version": key.version, "public": key.public, "tenants": key.tenants,
                    "former": key.former.len(),
                })
            }
            Self::RemoveTenant { .. }
            | Self::DrainNode { .. }
            | Self::RemoveNode { .. }
            | Self::ReadmitNode { .. }
            | Self::RemovePrincipal { .. }
            | Self::RemoveKey { .. } => Value::Null,
        }
    }
}

/// The table whose record a change of the audit log wrote, if it is one that an administrator alone writes.
#[must_use]
pub fn table_of(action: &str) -> Option<Table> {
    match action {
        "tenant-create" | "tenant-set" | "quota-set" | "grant" | "tenant-remove" => {
            Some(Table::Tenant)
        }
        "principal-set" | "principal-remove" => Some(Table::Principal),
        "key-set" | "key-remove" => Some(Table::Key),
        _ => None,
    }
}

/// The kinds of records that a command names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// One with a quota and identities.
    Tenant,
    /// A process that serves jobs, or did.
    Node,
    /// A caller of the API with a role.
    Principal,
    /// A private key of the pool.
    Key,
}

impl std::fmt::Display for RecordKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tenant => "tenant",
            Self::Node => "node",
            Self::Principal => "principal",
            Self::Key => "key",
        })
    }
}

/// Why the manager does not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such thing.
    #[error("there is no {0} {1:?}")]
    NotFound(RecordKind, String),
    /// There is one already.
    #[error("there is a {0} {1:?} already")]
    Exists(RecordKind, String),
    /// Another tenant has the identity.
    #[error("the identity {identity} belongs to tenant {tenant}")]
    IdentityTaken {
        /// The identity or pattern.
        identity: String,
        /// The tenant that has it.
        tenant: TenantName,
    },
    /// The record has another revision than the caller has seen.
    #[error(
        "it was changed since it was read (revision {found} instead of {expected}): read it again"
    )]
    Changed {
        /// Revision that the caller has seen.
        expected: u64,
        /// Revision of the record.
        found: u64,
    },
    /// Values out of their bounds.
    #[error("{}", .0.join("; "))]
    Invalid(Vec<String>),
    /// The caller's role does not suffice.
    #[error("this needs the role {0:?}")]
    Role(Role),
    /// The caller's role does not suffice to say who may use a tenant's keys.
    #[error(
        "the identities of tenant {0} may use its keys: only an administrator adds or removes them, by whatever \
         command (millrace tenant set {0} --add-identity, --remove-identity)"
    )]
    Identities(TenantName),
    /// The node's lease is closed, or another process of the node has registered: register again.
    #[error("fence {given} is over (the lease has {current}): register again")]
    Fenced {
        /// Fence in the message.
        given: u64,
        /// Fence of the node's lease.
        current: u64,
    },
    /// An operator has removed the node.
    #[error("node {0} was removed from the pool: an administrator can readmit it")]
    Removed(NodeName),
    /// Keys name the tenant: one that is made later under its name would have them.
    #[error(
        "keys of the pool name tenant {tenant}: remove them first (millrace pool key remove {key})"
    )]
    HasKeys {
        /// Tenant that the key names.
        tenant: TenantName,
        /// One of the keys.
        key: KeyName,
    },
    /// The pool has as many as it can have.
    #[error("the pool has {1} {0}s, its bound")]
    TooMany(RecordKind, usize),
    /// A record of the store cannot be read.
    #[error("the record {0} of the store is damaged")]
    Damaged(String),
    /// A newer manager has changed the form of the store.
    #[error("the store has schema {found}, and this manager knows {known}: upgrade millrace")]
    Schema {
        /// Revision in the store.
        found: u32,
        /// Highest that is known here.
        known: u32,
    },
}
