// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Rebalancing: moves tenants to a node that has become free, because it joined, came back or was undrained.
//!
//! Placement itself moves no tenant that has what it needs, so that the start of a node disturbs nothing. Here one
//! slice moves a second, from the fullest node to the emptiest, while they differ by much. A tenant without a quota
//! takes no measured part of a node; it moves only when its nodes fail or are drained.

use std::time::{Duration, Instant};

use millrace_service::overview::NodeState;

use super::name::{NodeName, TenantName};
use super::node::Node;
use super::placement::{WHOLE, cost};
use super::view::View;

/// Least time between two moves. Gateways follow a list of nodes within seconds.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Difference of the reserved parts of two nodes that is left as it is: a fifth of a node.
pub const MARGIN: u64 = WHOLE / 5;

/// Bound on the tenants that are tried in one look: planning each takes the time of a placement.
pub const TRIES: usize = 16;

/// State of the rebalancing: time of the next move, and the tenant after which the next search starts.
#[derive(Clone, Debug, Default)]
pub struct Balance {
    next: Option<Instant>,
    after: Option<TenantName>,
}

impl Balance {
    /// The node that tenants are to leave, and those for which it pays, if a look is due and finds some.
    pub fn due(&mut self, view: &View, now: Instant) -> Option<(NodeName, Vec<TenantName>)> {
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        self.next = Some(now + INTERVAL);
        let reserved = |name: &NodeName| view.reserved.get(name).copied().unwrap_or_default();
        let active = || {
            let nodes = view.nodes.iter().map(|(name, node)| (name, &node.value));
            nodes.filter(|(_, node)| node.state() == NodeState::Ready)
        };
        let (fullest, _) = active().max_by_key(|(name, _)| reserved(name))?;
        let (emptiest, target) = active().min_by_key(|(name, _)| reserved(name))?;
        if reserved(fullest) < reserved(emptiest).saturating_add(MARGIN) {
            return None;
        }
        let pays = |tenant: &&TenantName| {
            part(view, tenant, fullest, emptiest, target).is_some_and(|part| {
                part > 0
                    && reserved(emptiest).saturating_add(part).saturating_add(MARGIN / 2)
                        <= reserved(fullest)
            })
        };
        let all = view.tenants_of.get(fullest)?;
        let later = all.iter().filter(|name| self.after.as_ref().is_none_or(|after| *name > after));
        let again =
            all.iter().filter(|name| self.after.as_ref().is_some_and(|after| *name <= after));
        let found: Vec<TenantName> = later.chain(again).filter(pays).take(TRIES).cloned().collect();
        self.after = found.last().cloned();
        (!found.is_empty()).then(|| (fullest.clone(), found))
    }
}

/// Part of the node `to`, in ppm, that the tenant's slice at `from` would take; `None` if it may not move there.
fn part(
    view: &View,
    tenant: &TenantName,
    from: &NodeName,
    to: &NodeName,
    target: &Node,
) -> Option<u64> {
    let placement = &view.tenants.get(tenant)?.value.placement;
    let ledger = &view.ledgers.get(tenant)?.value;
    let allowed = placement.nodes.is_empty() || placement.nodes.contains(to);
    let serves = ledger.entries.iter().any(|entry| entry.node == *to);
    // A slice that is moving already has its end to wait for.
    let steady = ledger.entries.iter().all(|entry| !entry.is_falling());
    if !allowed || serves || !steady {
        return None;
    }
    let slice = ledger.entries.iter().find(|entry| entry.node == *from)?;
    Some(cost(slice.target.as_ref()?, &target.registration.capacity))
}
