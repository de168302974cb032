// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The documents that the API takes and gives, beside the records themselves.

use std::collections::BTreeSet;
use std::fmt;

use millrace_service::overview::{NodeState, Overview};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::model::name::{NodeName, PrincipalName, TenantName};
use crate::model::node::{Heartbeat, Load, Node};
use crate::model::principal::{Credential, Principal, Role};
use crate::model::tenant::Quota;
use crate::model::view::View;

/// A node as the API shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeView {
    /// Name of the node.
    pub name: NodeName,
    /// State in the pool.
    pub state: NodeState,
    /// Its record. The load is that of the last heartbeat, and 0 once the next one is overdue.
    pub node: Node,
    /// Tenants that are placed on it.
    pub tenants: BTreeSet<TenantName>,
    /// Capacity that no tenant holds, in parts per million.
    pub free_ppm: u64,
}

impl NodeView {
    pub(super) fn of(
        view: &View,
        silent: &BTreeSet<NodeName>,
        name: &NodeName,
        node: &Node,
    ) -> Self {
        let mut node = node.clone();
        if !node.serves() || silent.contains(name) {
            // What it did last is not what it does.
            node.load = Load::default();
        }
        Self {
            name: name.clone(),
            state: node.state(),
            node,
            tenants: view.tenants_of.get(name).cloned().unwrap_or_default(),
            free_ppm: view.free(name),
        }
    }
}

/// Report that a node sends every few seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatReport {
    /// Report of the node, for the lease and the grants.
    pub heartbeat: Heartbeat,
    /// For the page. A report in the form of another version is left out, and the heartbeat counts.
    #[serde(default, deserialize_with = "readable")]
    pub overview: Option<Overview>,
}

fn readable<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Overview>, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

/// The end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    /// Fence of the lease.
    pub fence: u64,
}

/// A new quota.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuotaBody {
    /// Rates: 0 means no limit.
    #[schemars(with = "serde_json::Value")]
    pub quota: Quota,
}

/// Nodes that serve a tenant, for its gateways.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantGrants {
    /// Name of the tenant.
    pub tenant: TenantName,
    /// Nodes that serve the tenant now.
    pub nodes: Vec<GrantedNode>,
    /// Whether the nodes have not the capacity for the whole quota.
    pub short: bool,
}

impl TenantGrants {
    /// The nodes that serve `tenant` in this view.
    pub(super) fn of(view: &View, tenant: &TenantName) -> Self {
        let ledger =
            view.ledgers.get(tenant).map(|ledger| ledger.value.clone()).unwrap_or_default();
        let granted = ledger.entries.iter().filter_map(|entry| {
            let node = view.node(&entry.node)?;
            let slice = entry.target.clone()?;
            (node.lease.fence == entry.fence).then(|| GrantedNode {
                node: entry.node.clone(),
                state: node.state(),
                addresses: node.registration.addresses.clone(),
                slice,
            })
        });
        Self { tenant: tenant.clone(), nodes: granted.collect(), short: ledger.short }
    }
}

/// A node that serves a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GrantedNode {
    /// Its name.
    pub node: NodeName,
    /// State in the pool.
    pub state: NodeState,
    /// Its addresses: `tcp://HOST:PORT`.
    pub addresses: BTreeSet<String>,
    /// The slice of the quota that it serves.
    #[schemars(with = "serde_json::Value")]
    pub slice: Quota,
}

/// The records and entries of the audit log that are not as a manager wrote them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecordFindings {
    /// Number of records and places of the log.
    pub count: usize,
    /// The first of them, a sentence each.
    pub texts: Vec<String>,
}

/// A principal that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Its rights.
    pub role: Role,
    /// The identity of a client certificate, `cert:NAME`; without one the answer has a new token.
    #[serde(default)]
    pub identity: Option<String>,
    /// Time from now after which it is no longer valid, in seconds; without one it has no end.
    #[serde(default)]
    pub valid_s: Option<u64>,
}

/// A principal that was made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// Name of the principal.
    pub name: PrincipalName,
    /// Its rights.
    pub role: Role,
    /// The token. The manager keeps only its hash.
    #[serde(default)]
    pub token: Option<String>,
    /// End of its validity, in milliseconds since 1970.
    #[serde(default)]
    pub expires_ms: Option<u64>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.name)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// A principal without its credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PrincipalView {
    /// Name of the principal.
    pub name: PrincipalName,
    /// Its rights.
    pub role: Role,
    /// The identity of its certificate; `None` for a token.
    #[serde(default)]
    pub identity: Option<String>,
    /// End of its validity, in milliseconds since 1970.
    #[serde(default)]
    pub expires_ms: Option<u64>,
}

impl PrincipalView {
    pub(super) fn of(principal: &Principal) -> Self {
        Self {
            name: principal.name.clone(),
            role: principal.role,
            identity: match &principal.credential {
                Credential::Identity(identity) => Some(identity.clone()),
                Credential::Token(_) => None,
            },
            expires_ms: principal.expires_ms,
        }
    }
}
