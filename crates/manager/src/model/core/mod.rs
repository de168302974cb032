// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The manager without I/O: messages in, transactions and answers out. The caller commits the transactions, feeds
//! the changes of the store back, and passes the time.
//!
//! ```text
//!  message ─► Core ─► Transaction ─► store ─┬─► Ok: answer from the view        (a grant is signed only after the
//!                                           └─► Conflict: catch up, ask again    node's record was written)
//!  changes of the store, also those of other managers ─► Core::apply
//!  once a second ─► Core::next_change ─► Transaction ─► store
//! ```
//!
//! - `administration`: changes by users.
//! - `nodes`: registrations, heartbeats, grants.
//! - `work`: leases of silent nodes, and the division of quotas.
//!
//! Several managers may run on one store. None leads: a manager whose view is old fails at the conditions of its
//! transaction. The argument is in `docs/adr/0026-rights-of-a-shared-pool.md`; `tests/simulation` tries to break
//! it.

mod administration;
mod nodes;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use millrace_service::overview::NodeState;

use super::balance::Balance;
use super::command::{RecordKind, Refusal};
use super::name::{NodeName, TenantName};
use super::pace::SearchPace;
use super::plan::Endings;
use super::principal::Role;
use super::view::{SCHEMA, SCHEMA_VERSION, Table, Touched, View};
use crate::store::{Changes, Snapshot, Transaction};

/// Bound on the nodes of a pool: each writes its record every ten seconds, which is 1,000 writes a second.
pub const MAX_NODES: usize = 10_000;

/// Bound on the tenants of a pool. Every manager holds the records of all in memory. A node serves fewer
/// ([`MAX_NODE_TENANTS`](millrace_service::tenants::MAX_NODE_TENANTS)).
pub const MAX_TENANTS: usize = 100_000;

/// Bound on the principals of a pool: one for each node.
pub const MAX_PRINCIPALS: usize = 10_000;

/// Times of the pool. All managers of a pool have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Life of a grant and of a lease from the moment at which the node sent the heartbeat.
    pub ttl: Duration,
    /// Added to `ttl` before a manager counts a grant as expired: clocks run at rates that differ by less than
    /// 1 in 1000 (quartz: 1 in 10,000), and threads wake late.
    pub allowance: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(30), allowance: Duration::from_secs(1) }
    }
}

impl LeaseTimes {
    /// Time between two heartbeats: two may be lost.
    #[must_use]
    pub fn heartbeat(&self) -> Duration {
        self.ttl / 3
    }

    /// Time without a heartbeat after which a node counts as silent, for people: half as long again as between two.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.heartbeat() * 3 / 2
    }

    fn life(&self) -> Duration {
        self.ttl + self.allowance
    }
}

/// Time between two heartbeats of a node at which something is about to change.
pub const FAST_HEARTBEAT: Duration = Duration::from_millis(200);

/// Time for which nodes beat fast after the lease of one has ended: they are to get their new slices soon.
const HURRY: Duration = Duration::from_secs(5);

/// Least time between two heartbeats of each node in that time.
const HURRIED_HEARTBEAT: Duration = Duration::from_secs(1);

/// Time over which the heartbeats of hurried nodes are spread, for each node of the pool: 1,000 writes a second.
const SPREAD: Duration = Duration::from_millis(1);

/// The state of one manager.
#[derive(Debug)]
pub struct Core {
    times: LeaseTimes,
    view: View,
    /// Revision of each node's record, and the time since which it has not changed.
    unchanged_since: BTreeMap<NodeName, (u64, Instant)>,
    /// Tenants whose ledger may need a change.
    needs_plan: BTreeSet<TenantName>,
    /// Those of them that lost the last node that served them: they are planned before the others.
    starving: BTreeSet<TenantName>,
    /// Tenants whose quota is not divided as they ask.
    unsettled: BTreeSet<TenantName>,
    /// Tenants that fewer nodes serve than they ask for.
    underserved: BTreeSet<TenantName>,
    /// Search for room, after slices of other tenants have changed.
    room: RoomSearch,
    /// Tenants that need another look at a time.
    timers: BTreeMap<TenantName, Instant>,
    endings: Endings,
    /// Time until which nodes beat fast, because the lease of one has ended.
    hurry_until: Option<Instant>,
    /// Time until which no slice is raised, after the store was restored from a backup.
    frozen_until: Option<Instant>,
    store_away: bool,
    balance: Balance,
}

/// Tenants that lack nodes or part of their quota are planned again after a slice of another tenant has changed: it may
/// have left room.
#[derive(Debug, Default)]
struct RoomSearch {
    /// Whether a slice or a tenant has changed since the search began.
    changed: bool,
    open: BTreeSet<TenantName>,
    pace: SearchPace,
}

/// Caller of a command, as the audit log names it.
#[derive(Clone, Copy, Debug)]
pub struct Actor<'a> {
    /// Name for the audit log: `admin:NAME`.
    pub name: &'a str,
    /// Role of the caller.
    pub role: Role,
}

impl Core {
    /// A manager with the records of a snapshot.
    #[must_use]
    pub fn new(times: LeaseTimes, snapshot: &Snapshot, now: Instant) -> Self {
        let view = View::of(snapshot);
        let unchanged_since =
            view.nodes.iter().map(|(name, node)| (name.clone(), (node.revision, now)));
        Self {
            times,
            unchanged_since: unchanged_since.collect(),
            needs_plan: view.tenants.keys().chain(view.ledgers.keys()).cloned().collect(),
            starving: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            underserved: BTreeSet::new(),
            room: RoomSearch::default(),
            timers: BTreeMap::new(),
            endings: Endings::default(),
            hurry_until: None,
            frozen_until: None,
            store_away: false,
            balance: Balance::default(),
            view,
        }
    }

    /// Records of the pool, as this manager last read them from the store.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// The times of the pool.
    #[must_use]
    pub const fn times(&self) -> LeaseTimes {
        self.times
    }

    /// Replaces the view, after changes were lost.
    pub fn reload(&mut self, snapshot: &Snapshot, now: Instant) {
        let former = std::mem::take(&mut self.unchanged_since);
        let endings = std::mem::take(&mut self.endings);
        *self = Self {
            endings,
            hurry_until: self.hurry_until,
            frozen_until: self.frozen_until,
            store_away: self.store_away,
            balance: std::mem::take(&mut self.balance),
            ..Self::new(self.times, snapshot, now)
        };
        for (name, seen) in former {
            // The silence of a node does not begin again with the reload.
            if self.unchanged_since.get(&name).is_some_and(|(revision, _)| *revision == seen.0) {
                self.unchanged_since.insert(name, seen);
            }
        }
    }

    /// Takes changes of the store in.
    pub fn apply(&mut self, changes: &Changes, now: Instant) {
        let known = self.view.revision;
        for change in changes.changes.iter().filter(|change| change.revision > known) {
            match self.view.apply(change) {
                Touched::Node { name, moved } => {
                    self.node_changed(&name, change.revision, moved, now)
                }
                Touched::Tenant(name) => {
                    self.room.changed = true;
                    self.needs_plan.insert(name);
                }
                Touched::Other => {}
            }
        }
        self.view.revision = self.view.revision.max(changes.revision);
    }

    fn node_changed(&mut self, name: &NodeName, revision: u64, moved: bool, now: Instant) {
        self.unchanged_since.insert(name.clone(), (revision, now));
        let tenants = || self.view.tenants_of.get(name).into_iter().flatten();
        if moved {
            if self.view.node(name).is_some_and(|node| node.state() == NodeState::Away) {
                self.hurry_until = Some(now + HURRY);
                let starving: Vec<TenantName> =
                    tenants().filter(|tenant| !self.is_served(tenant)).cloned().collect();
                self.starving.extend(starving);
            }
            let tenants = || self.view.tenants_of.get(name).into_iter().flatten();
            self.needs_plan.extend(tenants().cloned());
            self.needs_plan.append(&mut self.unsettled);
            self.needs_plan.append(&mut self.underserved);
        } else {
            // An acknowledgement frees what is falling.
            let falling = tenants().filter(|tenant| self.unsettled.contains(*tenant));
            self.needs_plan.extend(falling.cloned());
        }
    }

    /// A transaction that fails once another version of Millrace has changed the form of the records.
    fn transaction(&self) -> Result<Transaction, Refusal> {
        let damaged = || Refusal::Damaged(SCHEMA.to_owned());
        let present = self.view.schema.as_ref().ok_or_else(damaged)?;
        if present.value.version != SCHEMA_VERSION {
            return Err(Refusal::Schema { found: present.value.version, known: SCHEMA_VERSION });
        }
        let mut transaction = Transaction::default();
        transaction.require(SCHEMA, present.revision);
        Ok(transaction)
    }

    fn put<T: serde::Serialize>(
        &self,
        table: Table,
        name: &str,
        revision: u64,
        value: &T,
        transaction: &mut Transaction,
    ) -> Result<(), Refusal> {
        let key = self.undamaged_key(table, name)?;
        transaction.require(key.clone(), revision);
        transaction.put(key, json(value));
        Ok(())
    }

    fn remove(
        &self,
        table: Table,
        name: &str,
        revision: u64,
        transaction: &mut Transaction,
    ) -> Result<(), Refusal> {
        let key = self.undamaged_key(table, name)?;
        transaction.require(key.clone(), revision);
        transaction.delete(key);
        Ok(())
    }

    /// The key of a record, unless the record is damaged: then the view has a former value.
    fn undamaged_key(&self, table: Table, name: &str) -> Result<String, Refusal> {
        let key = table.key(name);
        if self.view.damaged.contains_key(&key) {
            return Err(Refusal::Damaged(key));
        }
        Ok(key)
    }
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    // Maps of our records have texts as keys, and no serializer of ours fails.
    serde_json::to_vec(value).unwrap_or_default()
}

fn check_problems(problems: Vec<String>) -> Result<(), Refusal> {
    if problems.is_empty() { Ok(()) } else { Err(Refusal::Invalid(problems)) }
}

const fn check_limit(kind: RecordKind, present: usize, most: usize) -> Result<(), Refusal> {
    if present >= most {
        return Err(Refusal::TooMany(kind, most));
    }
    Ok(())
}
