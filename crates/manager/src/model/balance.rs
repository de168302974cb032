// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Rebalancing: moves tenants to a node that has become free, because it joined, came back or was undrained.
//!
//! Placement itself moves no tenant that has what it needs, so that the start of a node disturbs nothing. Here one
//! slice moves a second, from the fullest node to the emptiest, while they differ by much. A tenant without a quota
//! takes no measured part of a node; it moves only when its nodes fail or are drained.

use std::time::Instant;

use millrace_service::overview::NodeState;

use super::name::{NodeName, TenantName};
use super::node::Node;
use super::pace::{SearchPace, TRIES};
use super::placement::{WHOLE, cost};
use super::view::View;

/// Difference of the reserved parts of two nodes that is left as it is: a fifth of a node.
pub const MARGIN: u64 = WHOLE / 5;

/// State of the rebalancing: time of the next move, and the tenant after which the next search starts.
#[derive(Clone, Debug, Default)]
pub struct Balance {
    pace: SearchPace,
    after: Option<TenantName>,
}

impl Balance {
    /// The node that tenants are to leave, and those for which it pays, if a look is due and finds some.
    pub fn due(&mut self, view: &View, now: Instant) -> Option<(NodeName, Vec<TenantName>)> {
        if !self.pace.is_due(now) {
            return None;
        }
        self.pace.begin(now);
        let ready = view.nodes.iter().filter(|(_, node)| node.value.state() == NodeState::Ready);
        let fullest = ready.clone().map(|(name, _)| name).max_by_key(|name| view.reserved(name))?;
        let (emptiest, target) = ready.min_by_key(|(name, _)| view.reserved(name))?;
        let gap = view.reserved(fullest).saturating_sub(view.reserved(emptiest));
        if gap < MARGIN {
            return None;
        }
        let (before, later): (Vec<&TenantName>, Vec<&TenantName>) = view
            .tenants_of
            .get(fullest)?
            .iter()
            .partition(|name| Some(*name) <= self.after.as_ref());
        let found: Vec<TenantName> = later
            .into_iter()
            .chain(before)
            .filter(|tenant| {
                let part = part(view, tenant, fullest, emptiest, &target.value);
                part.is_some_and(|part| part > 0 && part.saturating_add(MARGIN / 2) <= gap)
            })
            .take(TRIES)
            .cloned()
            .collect();
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
