// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Grants that a node may act on: verified offline, fenced, and in force until they expire. Pure: time is an argument.
//!
//! ```text
//!  grants ──verify──► node, registration, revision, time? ──► in force ──expires──► safe share, or refused
//!                                       └─ no: what was in force stays
//! ```
//!
//! **Time.** A grant is in force until the earlier of two ends: its lifetime after the request was sent whose answer
//! brought it, by this process's monotonic clock, and its own end by the wall clock. A clock that is set back thus
//! extends no grant, and neither does an answer that was under way for long.
//!
//! **Fencing.** A grant counts only for the registration (its *fence*) for which it was signed, and none replaces one
//! with a higher revision. Grants of an earlier registration stay in force until they expire or are replaced: the
//! manager counts them for that long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::grant::{Grant, GrantError, GrantKeys, SignedGrant};
use crate::policy::TENANT_PREFIX;
use crate::tenants::{Bounds, Directory, IdentityPattern, MAX_NODE_TENANTS, Terms};

/// Largest difference between the clocks of manager and node with which a grant does not count as one of the future. A
/// grant that the node takes early adds at most this much of its slice to what the tenant gets.
pub const CLOCK_ALLOWANCE: Duration = Duration::from_secs(1);

/// Treatment of a tenant whose grant has expired while the manager is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnExpiry {
    /// Serve a quarter of the slice ([`Rates::safe_share`](crate::rates::Rates::safe_share)), which managers keep
    /// reserved: a gateway never stands still because its manager is away.
    #[default]
    SafeShare,
    /// Refuse its identities.
    Refuse,
}

/// The manager's answer that brings grants.
#[derive(Clone, Copy, Debug)]
pub struct GrantAnswer {
    /// Registration of the node for which the answer is.
    pub fence: u64,
    /// Time at which the node sent the request.
    pub sent: Instant,
    /// Time at which the answer came.
    pub now: Instant,
    /// Time at which the answer came, by the wall clock.
    pub wall: SystemTime,
}

/// The grants of a node.
#[derive(Debug)]
pub(crate) struct GrantBook {
    node: String,
    keys: GrantKeys,
    on_expiry: OnExpiry,
    fence: u64,
    /// Highest revision seen, by tenant. Bound: [`MAX_NODE_TENANTS`] tenants with a grant, and those without one are
    /// forgotten when the registration changes.
    seen: BTreeMap<String, u64>,
    held: BTreeMap<String, Held>,
    /// Identities of tenants without a grant here that a pattern of a tenant with one covers.
    elsewhere: BTreeSet<IdentityPattern>,
}

#[derive(Clone, Debug)]
struct Held {
    grant: Grant,
    until: Instant,
    expired: bool,
}

/// A grant as `/status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrantRow {
    /// Name of the tenant.
    pub tenant: String,
    /// Id of the grant, in hexadecimal digits.
    pub id: String,
    /// Revision of the store from which the manager signed it.
    pub revision: u64,
    /// Whether it has expired, and only its safe share is served.
    pub expired: bool,
    /// Time of its end, in seconds since 1970.
    pub expires: u64,
}

impl GrantBook {
    pub(crate) fn new(node: &str, keys: GrantKeys, on_expiry: OnExpiry) -> Self {
        Self {
            node: node.to_owned(),
            keys,
            on_expiry,
            fence: 0,
            seen: BTreeMap::new(),
            held: BTreeMap::new(),
            elsewhere: BTreeSet::new(),
        }
    }

    /// Replaces the keys that may sign grants. Grants in force stay.
    pub(crate) fn trust(&mut self, keys: GrantKeys, on_expiry: OnExpiry) {
        self.keys = keys;
        self.on_expiry = on_expiry;
    }

    /// Replaces all grants by those of an answer: a tenant without one in it is no longer served.
    ///
    /// # Errors
    /// The first grant that is not accepted; then nothing changes.
    pub(crate) fn apply(
        &mut self,
        grants: &[SignedGrant],
        answer: GrantAnswer,
    ) -> Result<(), GrantError> {
        if grants.len() > MAX_NODE_TENANTS {
            return Err(GrantError::TooMany(MAX_NODE_TENANTS));
        }
        if answer.fence < self.fence {
            return Err(GrantError::OtherFence { granted: answer.fence, own: self.fence });
        }
        let fresh = answer.fence > self.fence;
        let mut held = BTreeMap::new();
        for signed in grants {
            let accepted = self.check(signed, answer, fresh)?;
            held.insert(accepted.grant.tenant.clone(), accepted);
        }
        if fresh {
            self.fence = answer.fence;
            self.seen.clear();
        }
        for (tenant, Held { grant, .. }) in &held {
            self.seen.insert(tenant.clone(), grant.revision);
        }
        self.held = held;
        Ok(())
    }

    /// Notes the identities of tenants without a grant here that patterns in the grants cover.
    pub(crate) fn exclude(&mut self, elsewhere: &BTreeSet<IdentityPattern>) {
        self.elsewhere.clone_from(elsewhere);
    }

    fn check(
        &self,
        signed: &SignedGrant,
        answer: GrantAnswer,
        fresh: bool,
    ) -> Result<Held, GrantError> {
        let grant = signed.verify(&self.keys)?;
        if grant.node != self.node {
            return Err(GrantError::OtherNode(grant.node.clone()));
        }
        if grant.fence != answer.fence {
            return Err(GrantError::OtherFence { granted: grant.fence, own: answer.fence });
        }
        let seen = self.seen.get(&grant.tenant).filter(|_| !fresh);
        if let Some(seen) = seen.filter(|seen| **seen > grant.revision) {
            return Err(GrantError::OutOfDate { revision: grant.revision, seen: *seen });
        }
        let wall = since_epoch(answer.wall);
        let begins = Duration::from_millis(grant.not_before_ms);
        if begins > wall + CLOCK_ALLOWANCE {
            return Err(GrantError::NotYet(begins - wall));
        }
        let ends = Duration::from_millis(grant.expires_ms);
        let left = ends.checked_sub(wall).filter(|left| !left.is_zero());
        let left = left.ok_or_else(|| GrantError::Expired(wall.saturating_sub(ends)))?;
        let until = (answer.sent + grant.lifetime()).min(answer.now + left);
        if until <= answer.now {
            return Err(GrantError::Expired(answer.now - until));
        }
        Ok(Held { grant: grant.clone(), until, expired: false })
    }

    /// Notices grants that have expired by either clock. What has expired stays so.
    pub(crate) fn expire(&mut self, now: Instant, wall: SystemTime) {
        let wall = since_epoch(wall);
        for held in self.held.values_mut() {
            let by_wall = Duration::from_millis(held.grant.expires_ms) <= wall;
            held.expired |= held.until <= now || by_wall;
        }
        if self.on_expiry == OnExpiry::Refuse {
            self.held.retain(|_, held| !held.expired);
        }
    }

    /// Time at which the next grant expires.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        let held = self.held.values().filter(|held| !held.expired);
        held.map(|held| held.until).min()
    }

    /// The tenants that the node serves now, and no identity but theirs.
    pub(crate) fn directory(&self) -> Directory {
        let mut directory = Directory::closed(&self.node);
        for Held { grant, expired, .. } in self.held.values() {
            let rates = if *expired { grant.rates.safe_share() } else { grant.rates.clone() };
            let terms = Terms {
                party: format!("{TENANT_PREFIX}{}", grant.tenant).into(),
                weight: grant.weight,
                priority: grant.priority,
                rates,
                bounds: Bounds::default(),
            };
            directory.add(terms, &grant.identities);
        }
        directory.exclude(&self.elsewhere);
        directory
    }

    /// Rows of the grants, one each, by tenant.
    pub(crate) fn rows(&self) -> Vec<GrantRow> {
        let rows = self.held.values().map(|Held { grant, expired, .. }| GrantRow {
            tenant: grant.tenant.clone(),
            id: hex::encode(grant.id),
            revision: grant.revision,
            expired: *expired,
            expires: grant.expires_ms / 1000,
        });
        rows.collect()
    }
}

fn since_epoch(wall: SystemTime) -> Duration {
    wall.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests;
