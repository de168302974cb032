// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Nodes that die, and tenants that lack something: what the page, the API and the metrics show of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use millrace_service::grant::{GrantKeys, GrantSigner};
use millrace_service::overview::{
    BackendLine, BackendState, ClientRow, NodeRow, NodeState, Overview, VerdictLevel,
};
use millrace_service::rates::Rate;
use millrace_testkit::wait;
use serde_json::Value;

use super::metrics::ApiMetrics;
use super::pool_overview::{PoolParts, of_pool};
use super::standing::CountedPlaces;
use super::state::PoolState;
use super::views::NodeView;
use crate::Manager;
use crate::model::command::Command;
use crate::model::core::{Actor, LeaseTimes};
use crate::model::node::{Health, Heartbeat, Load, MAX_FORMER, Registration, TenantUsage, Usage};
use crate::model::principal::Role;
use crate::model::tenant::Tenant;
use crate::store::{MemoryStore, Store};

const ADMIN: Actor<'_> = Actor { name: "admin:test", role: Role::Admin };

/// Numbers of an overview and of a node's record that are no present figures.
const NO_FIGURES: [&str; 21] = [
    "applied",
    "at_ms",
    "capacity",
    "capacity_left",
    "clock-ms",
    "events",
    "fence",
    "free_ppm",
    "granted_ops",
    "keys",
    "lease",
    "process",
    "quota_ops",
    "registration",
    "seen",
    "seen_ms",
    "seen-ms",
    "serving",
    "totals",
    "version",
    "weight",
];

struct Pool {
    manager: Manager,
    state: PoolState,
    /// Nodes that live.
    alive: BTreeMap<&'static str, Alive>,
}

#[derive(Default)]
struct Alive {
    process: u64,
    fence: u64,
    applied: u64,
    load: Load,
}

impl Pool {
    fn new(nodes: &[&'static str]) -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let (signer, _) = GrantSigner::generate().unwrap();
        let times =
            LeaseTimes { ttl: Duration::from_secs(3), allowance: Duration::from_millis(100) };
        let manager = Manager::start(store, signer, &GrantKeys::default(), times).unwrap();
        let state = PoolState::new(manager.clone(), "p");
        let mut pool = Self { manager, state, alive: BTreeMap::new() };
        for name in nodes {
            pool.register(name, 1);
        }
        pool
    }

    fn register(&mut self, name: &'static str, process: u64) {
        let registration = Registration {
            name: name.parse().unwrap(),
            process,
            former: (1..process).rev().take(MAX_FORMER).collect(),
            seen: 0,
            addresses: ["tcp://192.0.2.1:9463".to_owned()].into(),
            zone: None,
            capacity: [("rsa2048".parse().unwrap(), 1000)].into(),
            features: BTreeSet::new(),
            version: "0.1.0".to_owned(),
            sealing_key: None,
        };
        let fence = self.manager.register(&registration).unwrap().lease.fence;
        self.alive.insert(name, Alive { process, fence, ..Alive::default() });
    }

    fn create(&self, name: &str, ops: u64, node: &str) {
        let mut tenant = Tenant::new(name.parse().unwrap());
        tenant.quota.ops = Rate::per_second(ops);
        tenant.placement.nodes = [node.parse().unwrap()].into();
        self.manager.execute(ADMIN, &Command::CreateTenant(tenant), None).unwrap();
    }

    fn beat(&mut self) {
        let mut late = Vec::new();
        for (name, node) in &mut self.alive {
            let heartbeat = Heartbeat {
                node: name.parse().unwrap(),
                fence: node.fence,
                applied: node.applied,
                clock_ms: 1_000_000,
                load: node.load.clone(),
                health: Health::Good,
                keys: BTreeMap::new(),
            };
            match self.manager.heartbeat(&heartbeat) {
                Ok(set) => node.applied = set.revision,
                // This test had no processor for the time of a lease.
                Err(_) => late.push((*name, node.process + 1, node.load.clone())),
            }
        }
        for (name, process, load) in late {
            self.register(name, process);
            self.alive.get_mut(name).unwrap().load = load;
        }
    }

    /// Lets the living nodes send heartbeats, and the manager look, until the overview is as wanted.
    #[track_caller]
    fn until(&mut self, what: &str, wanted: impl Fn(&Overview) -> bool) -> Overview {
        let mut last = None;
        wait::until(what, || {
            self.beat();
            self.state.observe();
            let overview = self.state.overview();
            let found = wanted(&overview);
            last = Some(overview);
            found
        });
        last.unwrap()
    }

    /// The record of a node, as the API shows it.
    fn node(&self, name: &str) -> NodeView {
        let name = name.parse().unwrap();
        self.manager.view_with_silent(|view, silent| {
            NodeView::of(view, silent, &name, view.node(&name).unwrap())
        })
    }

    /// Names of all present figures that are not 0: of the overview, of the record of node `a`, and of the metrics.
    fn figures(&self) -> BTreeSet<String> {
        let overview = self.state.overview();
        let mut found = BTreeSet::new();
        let whole = self.state.whole();
        for document in [
            serde_json::to_value(&overview).unwrap(),
            serde_json::to_value(&whole).unwrap(),
            serde_json::to_value(self.node("a")).unwrap(),
        ] {
            add_figures("", &document, &mut found);
        }
        let page = self.manager.view(|view| {
            ApiMetrics::default().render(view, &overview, 0, &CountedPlaces::default())
        });
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        for (name, value) in samples.filter_map(|line| line.rsplit_once(' ')) {
            let rate = ["_per_second", "_ratio", "_seconds"];
            let name = name.split('{').next().unwrap();
            let standing = ["quota_operations", "granted_operations", "capacity_left"];
            if rate.iter().any(|end| name.ends_with(end))
                && !standing.iter().any(|word| name.contains(word))
                && value.parse::<f64>().unwrap() != 0.0
            {
                found.insert(name.to_owned());
            }
        }
        found
    }
}

fn add_figures(name: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| !NO_FIGURES.contains(&&***name)) {
                add_figures(name, value, found);
            }
        }
        Value::Array(rows) => rows.iter().for_each(|row| add_figures(name, row, found)),
        Value::Number(number) if number.as_f64() != Some(0.0) => {
            found.insert(name.to_owned());
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The load of a node with each figure.
fn load() -> Load {
    Load {
        ops_per_second: 300,
        busy_ppm: 500_000,
        waiting: 7,
        p99_us: 900,
        connections: 3,
        usage: Some(Usage {
            ops_milli: 300_000,
            p50_us: 400,
            failed_milli: 1000,
            fallback_ppm: 5000,
            saved_milli: 100,
            tenants: [("acme".parse().unwrap(), TenantUsage(300_000, 2000))].into(),
            refused: [("acme".parse().unwrap(), 1000)].into(),
        }),
    }
}

/// The report of a node with each figure.
fn report(name: &str) -> Overview {
    let row = NodeRow {
        ops_per_s: 300.0,
        waiting: 7,
        connections: 3,
        p50_us: 400.0,
        p99_us: 900.0,
        busy: Some(0.5),
        backends: vec![BackendLine {
            backend: "simd".to_owned(),
            state: BackendState::Ready,
            reason: String::new(),
            ops_per_s: 300.0,
            share: 1.0,
            service_us: Some(40.0),
        }],
        ..NodeRow::new(name, NodeState::Ready)
    };
    let client = ClientRow {
        identity: "cert:gw-1".to_owned(),
        node: name.to_owned(),
        agent: "nginx".to_owned(),
        connections: 3,
        pooled: 90,
        fallbacks: 1,
        fallback_reason: "busy".to_owned(),
        async_share: Some(1.0),
    };
    let parts = PoolParts { nodes: vec![row], ..PoolParts::default() };
    Overview { clients: vec![client], ..of_pool(name, 1, parts) }
}

#[test]
fn nothing_shows_present_figures_of_a_node_that_is_gone() {
    let mut pool = Pool::new(&["a", "b"]);
    pool.create("acme", 500, "a");
    pool.alive.get_mut("a").unwrap().load = load();
    pool.state.take("a".parse().unwrap(), report("a"));
    pool.until("the tenant is served", |overview| overview.tenants[0].granted_ops > 0.0);
    let before = pool.figures();
    for figure in [
        "ops_per_s",
        "waiting",
        "connections",
        "p50_us",
        "p99_us",
        "busy",
        "share",
        "service_us",
        "fallback_share",
        "failed_per_s",
        "cpu_saved",
        "used_ops",
        "throttled_per_s",
        "refused_per_s",
        "pooled",
        "async_share",
        "ops-per-second",
        "busy-ppm",
        "p99-us",
        "ops-milli",
        "millrace_pool_operations_per_second",
        "millrace_pool_node_operations_per_second",
        "millrace_pool_tenant_operations_per_second",
        "millrace_pool_tenant_refused_per_second",
    ] {
        assert!(before.contains(figure), "{figure} in {before:?}");
    }

    pool.alive.remove("a");
    let is_away = |overview: &Overview| overview.nodes[0].state == NodeState::Away;
    // `b` lives and does nothing: each figure would be of `a`.
    let nothing = BTreeSet::new();
    pool.until("it is not heard", |overview| overview.nodes[0].silent || is_away(overview));
    assert_eq!(pool.figures(), nothing);
    pool.until("its lease has ended", is_away);
    assert_eq!(pool.figures(), nothing);
    assert!(pool.node("a").node.seen_ms > 0, "the time of the last heartbeat stays");
}

#[test]
fn page_is_not_good_while_a_tenant_lacks_something_and_each_change_is_an_event() {
    let mut pool = Pool::new(&["a", "b"]);
    pool.create("acme", 100, "a");
    pool.create("batch", 100, "b");
    let is_good = |overview: &Overview| overview.verdict.level == VerdictLevel::Good;
    pool.until("both are served", is_good);
    let told = |overview: &Overview, text: &str| {
        overview.events.iter().any(|event| event.text.contains(text))
    };

    // Too little capacity.
    pool.create("big", 50_000, "b");
    let seen = pool.until("the lack is seen", |overview| told(overview, "tenant big"));
    assert_ne!(seen.verdict.level, VerdictLevel::Good, "{:?}", seen.verdict);
    assert!(seen.verdict.text.contains("tenant big"), "{:?}", seen.verdict);
    let big = Command::RemoveTenant { tenant: "big".parse().unwrap() };
    pool.manager.execute(ADMIN, &big, None).unwrap();
    pool.until("it is over", |overview| is_good(overview) && told(overview, "no longer: "));

    // Refused, with a share of failures that is far from critical.
    let usage = Usage {
        ops_milli: 10_000_000,
        refused: [("batch".parse().unwrap(), 1)].into(),
        ..Usage::default()
    };
    let refused = "operations of tenant batch are refused for want of capacity";
    pool.alive.get_mut("b").unwrap().load.usage = Some(usage);
    let seen = pool.until("the refusal is seen", |overview| told(overview, refused));
    assert_eq!(seen.verdict.level, VerdictLevel::Warning, "{:?}", seen.verdict);
    assert!(seen.verdict.text.contains(refused), "{:?}", seen.verdict);
    pool.alive.get_mut("b").unwrap().load.usage = None;
    pool.until("it is over", |overview| {
        is_good(overview) && told(overview, &format!("no longer: {refused}"))
    });

    // The only node of a tenant dies, and comes back.
    pool.alive.remove("a");
    let none = "no node serves tenant acme";
    let seen = pool.until("its node is away", |overview| {
        told(overview, none) && told(overview, "node a is away")
    });
    assert_eq!(seen.verdict.level, VerdictLevel::Critical, "{:?}", seen.verdict);
    pool.register("a", 9);
    pool.until("the node is back", |overview| {
        is_good(overview)
            && told(overview, &format!("no longer: {none}"))
            && told(overview, "no longer: node a is away")
    });
}
