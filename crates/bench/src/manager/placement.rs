// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A large pool in this process: its nodes are records, its store is memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use millrace_manager::model::command::{Command, Refusal};
use millrace_manager::model::core::{Actor, Core, LeaseTimes};
use millrace_manager::model::name::{NodeName, TenantName};
use millrace_manager::model::node::{Health, Heartbeat, Load, Registration, TenantUsage, Usage};
use millrace_manager::model::principal::Role;
use millrace_manager::model::tenant::Tenant;
use millrace_manager::model::view::{PREFIX, View};
use millrace_manager::schema;
use millrace_manager::store::{MemoryStore, Store, StoreError, Transaction};
use millrace_service::grant::GrantSigner;
use millrace_service::overview::MAX_ROWS;
use millrace_service::rates::{JobClass, Rate};
use millrace_service::tenants::IdentityPattern;
use serde::Serialize;

use super::ManagerPlan;
use crate::error::BenchError;
use crate::progress::Progress;
use crate::stats::Latencies;

/// Nodes of each tenant: two grants.
const SPREAD: usize = 2;

/// Operations per second of a node.
const CAPACITY: u64 = 10_000;

/// Part of the whole capacity that the tenants take, in per cent.
const FILL: u64 = 75;

/// Zones of the pool.
const ZONES: usize = 10;

/// Bound on the transactions of one change: a tenant of two nodes needs a few.
const MAX_STEPS: usize = 100_000;

const ADMIN: Actor<'_> = Actor { name: "bench", role: Role::Admin };

/// The time of one kind of work.
#[derive(Debug, Serialize)]
pub(super) struct Placements {
    pub(super) what: String,
    pub(super) count: usize,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
}

impl Placements {
    fn of(what: &str, times: &[Duration]) -> Self {
        let mut latencies = Latencies::default();
        times.iter().for_each(|time| latencies.push(*time));
        Self {
            what: what.to_owned(),
            count: times.len(),
            p50_us: latencies.quantile_us(0.5),
            p99_us: latencies.quantile_us(0.99),
            max_us: latencies.quantile_us(1.0),
        }
    }
}

/// Fills the pool, and then measures one change after the other.
pub(super) fn measure(
    plan: &ManagerPlan,
    progress: &Progress,
) -> Result<Vec<Placements>, BenchError> {
    let tenants = plan.grants / SPREAD;
    let quota = plan.nodes as u64 * CAPACITY * FILL / 100 / tenants.max(1) as u64;
    let mut pool = SimulatedPool::new()?;
    let fences: Vec<u64> =
        (0..plan.nodes).map(|number| pool.register(number)).collect::<Result<_, _>>()?;
    // The tenants that are measured come last, into a pool that is full already.
    let measured = plan.placements.min(tenants);
    let mut placed = Vec::new();
    for number in 0..tenants {
        progress.check()?;
        let start = Instant::now();
        pool.create(number, quota.max(SPREAD as u64))?;
        pool.settle()?;
        if number >= tenants - measured {
            placed.push(start.elapsed());
        }
    }
    pool.verify(tenants)?;

    let signer = GrantSigner::generate().map_err(|error| setup(&error))?.0;
    let mut answered = Vec::new();
    for (number, fence) in fences.iter().enumerate() {
        let start = Instant::now();
        pool.heartbeat(number, *fence, &signer)?;
        answered.push(start.elapsed());
    }

    let name = node_name(0)?;
    let leaving = pool.core.view().tenants_of.get(&name).map_or(0, BTreeSet::len);
    let left = pool.core.leave(&name, fences[0]).map_err(refused)?;
    pool.commit(&left)?;
    let mut moved = Vec::new();
    loop {
        let start = Instant::now();
        let Some(transaction) = pool.core.next_change(pool.now) else {
            break;
        };
        pool.commit(&transaction)?;
        moved.push(start.elapsed());
        if moved.len() > MAX_STEPS {
            return Err(BenchError::Wrong("the pool does not settle".to_owned()));
        }
    }
    if moved.len() < leaving {
        let text = format!("{leaving} tenants lost a node, {} were divided again", moved.len());
        return Err(BenchError::Wrong(text));
    }
    pool.verify(tenants)?;
    Ok(vec![
        Placements::of("placement of a tenant (2 grants)", &placed),
        Placements::of("move of a tenant whose node has left", &moved),
        Placements::of("answer to a heartbeat, its grants signed", &answered),
    ])
}

struct SimulatedPool {
    store: MemoryStore,
    core: Core,
    /// The only time: no lease ends during the measurement.
    now: Instant,
}

impl SimulatedPool {
    fn new() -> Result<Self, BenchError> {
        let store = MemoryStore::new();
        schema::prepare(&store).map_err(|error| setup(&error))?;
        let snapshot = store.read(PREFIX).map_err(|error| setup(&error))?;
        let now = Instant::now();
        Ok(Self { core: Core::new(LeaseTimes::default(), &snapshot, now), store, now })
    }

    /// Commits a transaction, and feeds the change back as a manager does.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), BenchError> {
        let failed = |error: StoreError| BenchError::Wrong(format!("a transaction: {error}"));
        let revision = self.store.commit(transaction).map_err(failed)?;
        let after = self.core.view().revision;
        let changes = self.store.changes(PREFIX, after, Duration::ZERO);
        self.core.apply(&changes.map_err(failed)?, self.now);
        // A log that grows would be the benchmark's own cost.
        self.store.compact(revision);
        Ok(())
    }

    fn settle(&mut self) -> Result<(), BenchError> {
        for _ in 0..MAX_STEPS {
            match self.core.next_change(self.now) {
                Some(transaction) => self.commit(&transaction)?,
                None => return Ok(()),
            }
        }
        Err(BenchError::Wrong("the pool does not settle".to_owned()))
    }

    fn register(&mut self, number: usize) -> Result<u64, BenchError> {
        let registration = registration(number)?;
        let (transaction, lease) = self.core.register(&registration, 0).map_err(refused)?;
        self.commit(&transaction)?;
        Ok(lease.fence)
    }

    fn create(&mut self, number: usize, ops: u64) -> Result<(), BenchError> {
        let mut tenant = Tenant::new(tenant_name(number)?);
        tenant.quota.ops = Rate::per_second(ops);
        let identity = format!("cert:gateway-{number}").parse::<IdentityPattern>();
        tenant.identities.insert(identity.map_err(|error| setup(&error))?);
        let command = Command::CreateTenant(tenant);
        let transaction = self.core.command(ADMIN, &command, None, 0);
        self.commit(&transaction.map_err(refused)?)
    }

    fn heartbeat(
        &mut self,
        number: usize,
        fence: u64,
        signer: &GrantSigner,
    ) -> Result<(), BenchError> {
        let heartbeat = heartbeat(number, fence, self.core.view().revision)?;
        let transaction = self.core.heartbeat(&heartbeat, 0).map_err(refused)?;
        self.commit(&transaction)?;
        let (grants, _) = self.core.grants(&heartbeat.node, fence, 0).map_err(refused)?;
        for grant in grants {
            signer.sign(grant).map_err(|error| setup(&error))?;
        }
        Ok(())
    }

    /// The rules: the slices of each tenant are its quota, and no node holds more than it has.
    fn verify(&self, tenants: usize) -> Result<(), BenchError> {
        let view = self.core.view();
        for number in 0..tenants {
            let name = tenant_name(number)?;
            let given = slices_of(view, &name);
            let quota = view.tenants.get(&name).map(|tenant| tenant.value.quota.ops.per_second);
            if Some(given) != quota {
                let text = format!("tenant {name} has {given} of {quota:?} operations per second");
                return Err(BenchError::Wrong(text));
            }
        }
        let mut nodes = view.nodes.keys().map(|name| (name, view.reserved(name)));
        match nodes.find(|(_, part)| *part > 1_000_000) {
            Some((node, part)) => Err(BenchError::Wrong(format!("node {node} holds {part} ppm"))),
            None => Ok(()),
        }
    }
}

fn slices_of(view: &View, tenant: &TenantName) -> u64 {
    let ledger = view.ledgers.get(tenant);
    let entries = ledger.into_iter().flat_map(|ledger| &ledger.value.entries);
    let targets = entries.filter_map(|entry| entry.target.as_ref());
    targets.map(|target| target.ops.per_second).sum()
}

pub(super) fn node_name(number: usize) -> Result<NodeName, BenchError> {
    format!("bench-{number:05}").parse::<NodeName>().map_err(|error| setup(&error))
}

pub(super) fn tenant_name(number: usize) -> Result<TenantName, BenchError> {
    format!("tenant-{number:06}").parse::<TenantName>().map_err(|error| setup(&error))
}

pub(super) fn registration(number: usize) -> Result<Registration, BenchError> {
    let zone = format!("zone-{}", number % ZONES);
    let class = "rsa-2048".parse::<JobClass>();
    Ok(Registration {
        name: node_name(number)?,
        process: number as u64 + 1,
        former: Vec::new(),
        seen: 0,
        addresses: BTreeSet::from([format!("tcp://bench-{number:05}:7400")]),
        zone: zone.parse().ok(),
        capacity: BTreeMap::from([(class.map_err(|error| setup(&error))?, CAPACITY)]),
        features: BTreeSet::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        sealing_key: None,
    })
}

pub(super) fn heartbeat(number: usize, fence: u64, applied: u64) -> Result<Heartbeat, BenchError> {
    Ok(Heartbeat {
        node: node_name(number)?,
        fence,
        applied,
        clock_ms: 0,
        load: Load {
            ops_per_second: 1000 + number as u64,
            busy_ppm: 500_000,
            waiting: 7,
            p99_us: 1800,
            connections: 40,
            usage: Some(usage()?),
        },
        health: Health::Good,
        keys: BTreeMap::new(),
    })
}

/// The use of a node by as many tenants as a page shows.
fn usage() -> Result<Usage, BenchError> {
    let row = |number: usize| Ok((tenant_name(number)?, TenantUsage(20_000 + number as u64, 0)));
    let tenants: Result<_, BenchError> = (0..MAX_ROWS).map(row).collect();
    Ok(Usage { ops_milli: 1_000_000, p50_us: 700, tenants: tenants?, ..Usage::default() })
}

pub(super) fn setup(error: &dyn std::fmt::Display) -> BenchError {
    BenchError::Setup(error.to_string())
}

fn refused(error: Refusal) -> BenchError {
    BenchError::Wrong(format!("the manager refused: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pool_is_filled_measured_and_verified() {
        let plan =
            ManagerPlan { nodes: 12, grants: 60, placements: 5, store: None, traffic: Vec::new() };
        let progress = Progress::start(1).unwrap();
        let rows = measure(&plan, &progress).unwrap();
        assert_eq!(rows[0].count, 5);
        assert!(rows[1].count >= 2, "{rows:?}");
        assert_eq!(rows[2].count, 12);
        assert!(rows.iter().all(|row| row.p50_us > 0.0 && row.p50_us <= row.max_us));
    }
}
