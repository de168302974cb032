// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tenants, their quotas and where they are placed.

use std::collections::BTreeSet;

use millrace_engine::Owner;
use millrace_service::rates::Rates;
use millrace_service::tenants::{IdentityPattern, MAX_TENANT_IDENTITIES, Priority};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::name::{NodeName, TenantName, Zone};

/// The limit of a tenant over all its nodes together.
pub type Quota = Rates;

/// The part of a quota that one node may serve.
pub type Slice = Rates;

/// Bound on [`Placement::nodes`] and [`Placement::zones`].
pub const MAX_PLACES: usize = 64;

/// Nodes of a tenant that asks for no number: one can fail.
pub const DEFAULT_SPREAD: u32 = 2;

/// Most nodes of one tenant. Its ledger is one record of the store, about 300 bytes per node, and a record of etcd
/// has at most 1.5 MiB.
pub const MAX_SPREAD: u32 = 1000;

/// A tenant, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tenant {
    /// Name of the tenant.
    pub name: TenantName,
    /// Share of a busy node, relative to other tenants.
    #[serde(default = "one")]
    pub weight: u32,
    /// Order in which it is served at a busy node.
    #[serde(default)]
    #[schemars(with = "String")]
    pub priority: Priority,
    /// Its limit over all nodes.
    #[serde(default)]
    #[schemars(with = "serde_json::Value")]
    pub quota: Quota,
    /// Identities that belong to it.
    #[serde(default)]
    #[schemars(with = "BTreeSet<String>")]
    pub identities: BTreeSet<IdentityPattern>,
    /// Nodes that are to serve it.
    #[serde(default)]
    pub placement: Placement,
}

fn one() -> u32 {
    1
}

/// Nodes that are to serve a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Placement {
    /// Number of nodes; more if its quota does not fit on them.
    pub spread: u32,
    /// Only these nodes; empty for all.
    pub nodes: BTreeSet<NodeName>,
    /// Zones that are taken first, in this order.
    pub zones: Vec<Zone>,
    /// Whether its slices may exceed the free capacity of its nodes.
    pub over_commit: bool,
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            spread: DEFAULT_SPREAD,
            nodes: BTreeSet::new(),
            zones: Vec::new(),
            over_commit: false,
        }
    }
}

impl Tenant {
    /// A tenant without limits and identities.
    #[must_use]
    pub fn new(name: TenantName) -> Self {
        Self {
            name,
            weight: 1,
            priority: Priority::default(),
            quota: Quota::default(),
            identities: BTreeSet::new(),
            placement: Placement::default(),
        }
    }

    /// Every field that is out of its bounds.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.quota.problems();
        let mut check = |bad: bool, problem: String| {
            if bad {
                problems.push(problem);
            }
        };
        check(
            !(1..=Owner::MAX_WEIGHT).contains(&self.weight),
            format!("weight: 1 to {}", Owner::MAX_WEIGHT),
        );
        check(
            self.identities.len() > MAX_TENANT_IDENTITIES,
            format!("identities: at most {MAX_TENANT_IDENTITIES}"),
        );
        let placement = &self.placement;
        check(
            !(1..=MAX_SPREAD).contains(&placement.spread),
            format!("placement.spread: 1 to {MAX_SPREAD}"),
        );
        check(
            placement.nodes.len().max(placement.zones.len()) > MAX_PLACES,
            format!("placement: at most {MAX_PLACES} nodes and {MAX_PLACES} zones"),
        );
        problems
    }
}
