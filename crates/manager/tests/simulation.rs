// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

// Long because: it is one simulator, its processes and the rules that it checks.

//! Random schedules of a pool in one process: two managers with views of different age, a store, nodes with clocks of
//! different rate, an operator; messages are lost, late and overtake each other, processes pause, end and start
//! again. After every event the rules that no schedule may break are checked, and after the faults have ended the
//! pool must be as the operator wants it.
//!
//! `MILLRACE_SEED=n cargo test -p millrace-manager --test simulation` runs one schedule again;
//! `MILLRACE_LONG=1` runs 20,000 instead of 200. Each rule of the hand-over is taken away once (`Mutation`), to show that the checks
//! notice.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::{Duration, Instant};

use millrace_manager::model::core::{Actor, Core, Terms};
use millrace_manager::model::holder::{Due, Holder, InForce};
use millrace_manager::model::keys::{HeldKeys, LEAVING, PoolKey};
use millrace_manager::model::ledger::{Dimension, amount};
use millrace_manager::model::view::{EPOCH, PREFIX, Table, View};
use millrace_manager::model::{
    Command, Health, Heartbeat, KeyName, Ledger, Load, NodeName, Refusal, Registration, Role,
    Tenant, TenantName, placement,
};
use millrace_manager::schema;
use millrace_manager::store::{Changes, MemoryStore, Store, StoreError, Transaction};
use millrace_manager::vault::next_version;
use millrace_service::enforcement::OnExpiry;
use millrace_service::grant::Grant;
use millrace_service::rates::{Rate, Rates};

const TTL_MS: u64 = 3000;
const ALLOWANCE_MS: u64 = 100;
/// Clocks differ by up to 1 %, so that two of them differ by less than the allowance within the life of a grant.
const DRIFT_PPM: u64 = 10_000;
/// Time with faults, and time to recover after them.
const CHAOS_MS: u64 = 60_000;
/// A removed node asks again after 30 s.
const CALM_MS: u64 = 30_000 + 4 * TTL_MS;
const NODES: usize = 4;
const MANAGERS: usize = 2;

const OPERATOR: Actor<'_> = Actor {
    name: "operator:simulation",
    role: Role::Admin,
};

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    None,
    /// A node says that it has applied grants which it has not seen.
    AckBeforeApplying,
    /// The life of a grant begins when it arrives.
    LifeFromReceipt,
    /// A node takes grants that are older than those in force.
    OlderGrants,
    /// A manager signs without having written the node's record.
    SignWithoutWriting,
    /// A manager counts a grant as expired before it is.
    ShortPatience,
    /// Ledgers are written without conditions.
    NoConditions,
    /// Ledgers of different tenants are written independently of each other.
    NoEpoch,
    /// A registration claims the end of a process that still runs.
    FalseProof,
    /// A manager gives every key to every node.
    KeysOfAllTenants,
    /// A node takes keys from every answer, also from one that is out of date.
    KeysOfOlderAnswers,
    /// A node keeps keys that an answer no longer names.
    KeysKept,
}

#[derive(Clone)]
struct Random(u64);

impl Random {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap()
    }
}

/// A clock that runs at its own rate.
#[derive(Clone, Copy)]
struct Clock {
    base: Instant,
    /// Parts per million of the true rate.
    rate: u64,
}

impl Clock {
    fn new(base: Instant, random: &mut Random) -> Self {
        Self {
            base,
            rate: 1_000_000 - DRIFT_PPM + random.below(2 * DRIFT_PPM),
        }
    }

    fn at(&self, ms: u64) -> Instant {
        self.base + Duration::from_micros(ms * self.rate / 1000)
    }
}

struct SimNode {
    name: NodeName,
    clock: Clock,
    holder: Holder,
    process: u64,
    former: Vec<u64>,
    alive: bool,
    paused_until: u64,
    /// Messages of this node, or to it, are lost.
    mute: bool,
    deaf: bool,
    waiting: Option<u64>,
    /// Keys on the node's disk: they outlive the process.
    keys: HeldKeys,
    buckets: BTreeMap<TenantName, Tokens>,
}

/// Rate at which a tenant may use a node: every token is used as soon as it is there, or saved up to the depth.
#[derive(Clone, Copy, Default)]
struct Tokens {
    rate: u64,
    saved: f64,
}

struct SimManager {
    core: Core,
    clock: Clock,
    paused_until: u64,
    /// Whether the manager is cut off from the store.
    cut: bool,
    /// Delay with which changes of the store reach the manager.
    lag: u64,
}

#[derive(Clone, Debug)]
enum Message {
    Register(Registration),
    Heartbeat(Heartbeat),
}

#[derive(Clone, Debug)]
enum Answer {
    Registered(millrace_manager::model::Lease),
    Set {
        fence: u64,
        revision: u64,
        grants: Vec<Grant>,
        /// All keys that the node is to have; it lacks the later ones.
        keys: Vec<(KeyName, u64)>,
        lacking: Vec<(KeyName, u64)>,
        next: Duration,
    },
    Fenced(u64),
    Removed,
}

#[derive(Clone, Debug)]
enum Event {
    NodeTurn(usize),
    Pull(usize),
    Work(usize),
    Chaos,
    Operator,
    Arrive {
        manager: usize,
        node: usize,
        process: u64,
        sent: u64,
        message: Message,
    },
    Commit {
        manager: usize,
        transaction: Transaction,
        then: Then,
    },
    Answer {
        manager: usize,
        node: usize,
        process: u64,
        sent: u64,
        message: Message,
        revision: u64,
        lease: Option<millrace_manager::model::Lease>,
    },
    Deliver {
        node: usize,
        process: u64,
        sent: u64,
        answer: Answer,
    },
}

#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a simulation holds a few hundred of them"
)]
enum Then {
    Work,
    Reply {
        node: usize,
        process: u64,
        sent: u64,
        message: Message,
        lease: Option<millrace_manager::model::Lease>,
        tries: u32,
    },
}

struct Simulation {
    random: Random,
    mutation: Mutation,
    now: u64,
    next_number: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: BTreeMap<u64, Event>,
    store: MemoryStore,
    /// Everything that was committed, as a manager without delay would see it.
    truth: View,
    managers: Vec<SimManager>,
    nodes: Vec<SimNode>,
    calm: bool,
    processes: u64,
    /// Quotas of a tenant that a manager may still act on, with the time of their change.
    quotas: BTreeMap<TenantName, Vec<(u64, Rates)>>,
    /// Per tenant: operations executed, and those that the ledger allowed, with new bursts.
    executed: BTreeMap<TenantName, (f64, f64)>,
    marks: BTreeMap<TenantName, Vec<(f64, f64, f64)>>,
}

type Checked = Result<(), String>;

impl Simulation {
    fn new(seed: u64, mutation: Mutation) -> Self {
        let mut random = Random(seed);
        let base = Instant::now() + Duration::from_secs(3600);
        let store = MemoryStore::new();
        schema::prepare(&store).unwrap();
        let snapshot = store.read(PREFIX).unwrap();
        let patience = if mutation == Mutation::ShortPatience {
            TTL_MS / 3
        } else {
            TTL_MS
        };
        let terms = Terms {
            ttl: Duration::from_millis(patience),
            allowance: Duration::from_millis(ALLOWANCE_MS),
        };
        let managers = (0..MANAGERS)
            .map(|_| {
                let clock = Clock::new(base, &mut random);
                SimManager {
                    core: Core::new(terms, &snapshot, clock.at(0)),
                    clock,
                    paused_until: 0,
                    cut: false,
                    lag: 0,
                }
            })
            .collect();
        let nodes = (0..NODES)
            .map(|n| {
                let clock = Clock::new(base, &mut random);
                let name: NodeName = format!("node-{n}").parse().unwrap();
                SimNode {
                    holder: Holder::new(name.clone(), on_expiry(n), clock.at(0)),
                    name,
                    clock,
                    process: n as u64 + 1,
                    former: Vec::new(),
                    alive: true,
                    paused_until: 0,
                    mute: false,
                    deaf: false,
                    waiting: None,
                    keys: HeldKeys::default(),
                    buckets: BTreeMap::new(),
                }
            })
            .collect();
        let mut simulation = Self {
            random,
            mutation,
            now: 0,
            next_number: 0,
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            truth: View::of(&snapshot),
            store,
            managers,
            nodes,
            calm: false,
            processes: 1000,
            quotas: BTreeMap::new(),
            executed: BTreeMap::new(),
            marks: BTreeMap::new(),
        };
        for n in 0..NODES {
            simulation.after(0, Event::NodeTurn(n));
        }
        for m in 0..MANAGERS {
            simulation.after(0, Event::Pull(m));
            simulation.after(0, Event::Work(m));
        }
        simulation.after(0, Event::Operator);
        simulation.after(1000, Event::Chaos);
        simulation
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.next_number += 1;
        self.bodies.insert(self.next_number, event);
        self.events.push(Reverse((self.now + ms, self.next_number)));
    }

    fn run(&mut self) -> Checked {
        while let Some(Reverse((at, number))) = self.events.pop() {
            let event = self.bodies.remove(&number).unwrap();
            self.execute_until(at);
            self.now = at;
            if at > CHAOS_MS && !self.calm {
                self.heal();
            }
            if at > CHAOS_MS + CALM_MS {
                return self.is_as_wanted();
            }
            self.handle(event)?;
            self.check()?;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Checked {
        match event {
            Event::NodeTurn(n) => self.node_turn(n),
            Event::Pull(m) => self.pull_turn(m),
            Event::Work(m) => self.work_turn(m),
            Event::Chaos => self.chaos(),
            Event::Operator => return self.operate(),
            Event::Arrive {
                manager,
                node,
                process,
                sent,
                message,
            } => {
                self.arrive(manager, node, process, sent, message, 0);
            }
            Event::Commit {
                manager,
                transaction,
                then,
            } => return self.commit(manager, transaction, then),
            Event::Answer {
                manager,
                node,
                process,
                sent,
                message,
                revision,
                lease,
            } => {
                self.answer(manager, node, process, sent, message, revision, lease);
            }
            Event::Deliver {
                node,
                process,
                sent,
                answer,
            } => self.deliver(node, process, sent, answer),
        }
        Ok(())
    }

    // ----- nodes

    fn node_turn(&mut self, n: usize) {
        let pause = 20 + self.random.below(150);
        self.after(pause, Event::NodeTurn(n));
        let now = self.now;
        let node = &mut self.nodes[n];
        if !node.alive || node.paused_until > now {
            return;
        }
        let local = node.clock.at(now);
        for name in node.keys.due(local) {
            node.keys.deleted(&name);
        }
        // A request that is not answered is given up after a second.
        if let Some(sent) = node.waiting {
            if now < sent + 1000 {
                return;
            }
            node.waiting = None;
            node.holder.failed(local);
        }
        let Ok(due) = node.holder.due(local) else {
            return;
        };
        node.waiting = Some(now);
        let truth = self.truth.revision;
        let message = match due {
            Due::Register => Message::Register(Registration {
                name: node.name.clone(),
                process: node.process,
                former: node.former.clone(),
                seen: node.holder.seen(),
                addresses: ["tcp://192.0.2.1:9463".to_owned()].into(),
                zone: None,
                capacity: [("rsa2048".parse().unwrap(), 1000)].into(),
                features: BTreeSet::new(),
                version: "0.1.0".to_owned(),
                sealing_key: None,
            }),
            Due::Heartbeat { fence, applied } => Message::Heartbeat(Heartbeat {
                node: node.name.clone(),
                fence,
                applied: if self.mutation == Mutation::AckBeforeApplying {
                    truth
                } else {
                    applied
                },
                clock_ms: 0,
                load: Load::default(),
                health: Health::default(),
                keys: node.keys.versions(),
            }),
        };
        let (process, mute) = (node.process, node.mute);
        let lost = mute || (!self.calm && self.random.percent(5));
        let manager = self.random.index(MANAGERS);
        let delay = self.delay();
        if !lost {
            self.after(
                delay,
                Event::Arrive {
                    manager,
                    node: n,
                    process,
                    sent: now,
                    message,
                },
            );
        }
    }

    /// Mostly a few milliseconds, sometimes longer than a grant lives.
    fn delay(&mut self) -> u64 {
        if self.calm || self.random.percent(90) {
            1 + self.random.below(20)
        } else if self.random.percent(80) {
            self.random.below(1000)
        } else {
            self.random.below(2 * TTL_MS)
        }
    }

    fn deliver(&mut self, n: usize, process: u64, sent: u64, answer: Answer) {
        let now = self.now;
        let node = &mut self.nodes[n];
        if !node.alive || node.process != process {
            return;
        }
        if node.paused_until > now {
            let wait = node.paused_until - now;
            self.after(
                wait,
                Event::Deliver {
                    node: n,
                    process,
                    sent,
                    answer,
                },
            );
            return;
        }
        if node.waiting == Some(sent) {
            node.waiting = None;
        }
        let local = node.clock.at(now);
        match answer {
            Answer::Registered(lease) => {
                if node.holder.fence().is_none_or(|fence| fence < lease.fence) {
                    node.holder
                        .registered(&lease, Duration::from_millis(TTL_MS), local);
                }
            }
            Answer::Set {
                fence,
                mut revision,
                grants,
                keys,
                lacking,
                next,
            } => {
                let check = node
                    .holder
                    .check(fence, revision, node.clock.at(sent), local);
                if check.is_ok() || self.mutation == Mutation::KeysOfOlderAnswers {
                    for (name, version) in lacking {
                        if node.keys.admit(&name, version, &keys).is_ok() {
                            node.keys.note(name, version);
                        }
                    }
                }
                let sent = match self.mutation {
                    Mutation::LifeFromReceipt => local,
                    _ => node.clock.at(sent),
                };
                if self.mutation == Mutation::OlderGrants && node.holder.fence() == Some(fence) {
                    revision = revision.max(node.holder.applied());
                }
                // A set that is not taken leaves the former one in force.
                let applied = node
                    .holder
                    .apply(fence, revision, grants, next, sent, local);
                if applied.is_ok() && self.mutation != Mutation::KeysKept {
                    node.keys.settle(&keys, local);
                }
            }
            Answer::Fenced(fence) => node.holder.fenced(fence, local),
            Answer::Removed => {
                node.keys.settle(&[], local);
                node.holder.removed(local);
            }
        }
    }

    // ----- managers

    fn arrive(
        &mut self,
        m: usize,
        n: usize,
        process: u64,
        sent: u64,
        message: Message,
        tries: u32,
    ) {
        let manager = &mut self.managers[m];
        if manager.paused_until > self.now {
            let wait = manager.paused_until - self.now;
            self.after(
                wait,
                Event::Arrive {
                    manager: m,
                    node: n,
                    process,
                    sent,
                    message,
                },
            );
            return;
        }
        let made = match &message {
            Message::Register(registration) => manager
                .core
                .register(registration, 0)
                .map(|(transaction, lease)| (transaction, Some(lease))),
            Message::Heartbeat(heartbeat) => manager
                .core
                .heartbeat(heartbeat, 0)
                .map(|made| (made, None)),
        };
        let (transaction, lease) = match made {
            Ok(made) => made,
            Err(refusal) => {
                // As the manager does: a refusal counts only if the view was fresh.
                if tries == 0 && !manager.cut {
                    self.pull(m, u64::MAX);
                    self.arrive(m, n, process, sent, message, 1);
                    return;
                }
                let answer = match (refusal, &message) {
                    (Refusal::Fenced { .. }, Message::Heartbeat(heartbeat)) => {
                        Answer::Fenced(heartbeat.fence)
                    }
                    (Refusal::Removed(_), _) => Answer::Removed,
                    _ => return,
                };
                if !self.managers[m].cut {
                    self.reply(n, process, sent, answer);
                }
                return;
            }
        };
        if self.mutation == Mutation::SignWithoutWriting && lease.is_none() {
            let revision = self.managers[m].core.view().revision;
            self.answer(m, n, process, sent, message, revision, None);
            return;
        }
        let then = Then::Reply {
            node: n,
            process,
            sent,
            message,
            lease,
            tries,
        };
        let delay = self.delay();
        self.after(
            delay,
            Event::Commit {
                manager: m,
                transaction,
                then,
            },
        );
    }

    fn commit(&mut self, m: usize, mut transaction: Transaction, then: Then) -> Checked {
        if self.managers[m].paused_until > self.now {
            let wait = self.managers[m].paused_until - self.now;
            self.after(
                wait,
                Event::Commit {
                    manager: m,
                    transaction,
                    then,
                },
            );
            return Ok(());
        }
        if self.managers[m].cut {
            // Half of the time the request gets through, and only its answer is lost.
            if self.random.percent(50) && self.store.commit(&transaction).is_ok() {
                self.learn()?;
            }
            self.managers[m].core.again(&transaction);
            return Ok(());
        }
        let ledgers = Table::Ledger.key("");
        match self.mutation {
            Mutation::NoConditions => transaction
                .when
                .retain(|c| c.key != EPOCH && !c.key.starts_with(&ledgers)),
            Mutation::NoEpoch => transaction.when.retain(|c| c.key != EPOCH),
            _ => {}
        }
        let done = self.store.commit(&transaction);
        self.learn()?;
        match (done, then) {
            (
                Ok(revision),
                Then::Reply {
                    node,
                    process,
                    sent,
                    message,
                    lease,
                    ..
                },
            ) => {
                let delay = self.delay();
                self.after(
                    delay,
                    Event::Answer {
                        manager: m,
                        node,
                        process,
                        sent,
                        message,
                        revision,
                        lease,
                    },
                );
            }
            (Ok(_), Then::Work) => {}
            (
                Err(StoreError::Conflict),
                Then::Reply {
                    node,
                    process,
                    sent,
                    message,
                    tries,
                    ..
                },
            ) if tries < 4 => {
                self.pull(m, u64::MAX);
                self.arrive(m, node, process, sent, message, tries + 1);
            }
            (Err(_), Then::Work) => self.managers[m].core.again(&transaction),
            (Err(_), _) => {}
        }
        Ok(())
    }

    /// The record of the node is written: the manager signs, from a view that has at least that revision.
    #[expect(clippy::too_many_arguments, reason = "the parts of one message")]
    fn answer(
        &mut self,
        m: usize,
        n: usize,
        process: u64,
        sent: u64,
        message: Message,
        revision: u64,
        lease: Option<millrace_manager::model::Lease>,
    ) {
        if self.managers[m].paused_until > self.now {
            let wait = self.managers[m].paused_until - self.now;
            self.after(
                wait,
                Event::Answer {
                    manager: m,
                    node: n,
                    process,
                    sent,
                    message,
                    revision,
                    lease,
                },
            );
            return;
        }
        if self.managers[m].core.view().revision < revision {
            // Exactly that revision or everything: both happen.
            let to = if self.random.percent(50) {
                revision
            } else {
                u64::MAX
            };
            self.pull(m, to);
        }
        let core = &self.managers[m].core;
        let answer = match &message {
            Message::Register(_) => lease.map(Answer::Registered),
            Message::Heartbeat(heartbeat) => {
                let grants = core.grants(&heartbeat.node, heartbeat.fence, 0);
                let keys: Vec<_> = if self.mutation == Mutation::KeysOfAllTenants {
                    let all = core.view().keys.values();
                    all.map(|key| (key.value.name.clone(), key.value.version))
                        .collect()
                } else {
                    let keys = core.keys(&heartbeat.node, heartbeat.fence).into_iter();
                    keys.map(|key| (key.name.clone(), key.version)).collect()
                };
                let lacks =
                    |(name, version): &&(KeyName, u64)| heartbeat.keys.get(name) != Some(version);
                grants.ok().map(|grants| Answer::Set {
                    fence: heartbeat.fence,
                    revision: core.view().revision,
                    grants,
                    lacking: keys.iter().filter(lacks).cloned().collect(),
                    keys,
                    next: core.next_heartbeat(&heartbeat.node, heartbeat.fence),
                })
            }
        };
        if let Some(answer) = answer {
            self.reply(n, process, sent, answer);
        }
    }

    fn reply(&mut self, n: usize, process: u64, sent: u64, answer: Answer) {
        let lost = self.nodes[n].deaf || (!self.calm && self.random.percent(5));
        let delay = self.delay();
        if !lost {
            self.after(
                delay,
                Event::Deliver {
                    node: n,
                    process,
                    sent,
                    answer,
                },
            );
        }
    }

    fn pull_turn(&mut self, m: usize) {
        let manager = &self.managers[m];
        let pause = if self.calm { 20 } else { 5 + manager.lag };
        if manager.paused_until <= self.now && !manager.cut {
            let known = manager.core.view().revision;
            let to = if self.random.percent(30) {
                known + self.random.below(5)
            } else {
                u64::MAX
            };
            self.pull(m, to);
        }
        let jitter = self.random.below(50);
        self.after(pause + jitter, Event::Pull(m));
    }

    /// Feeds the changes up to a revision to a manager.
    fn pull(&mut self, m: usize, to: u64) {
        let manager = &mut self.managers[m];
        let after = manager.core.view().revision;
        let mut changes: Changes = self.store.changes(PREFIX, after, Duration::ZERO).unwrap();
        changes.changes.retain(|change| change.revision <= to);
        changes.revision = changes.revision.min(to).max(after);
        let local = manager.clock.at(self.now);
        manager.core.apply(&changes, local);
    }

    fn work_turn(&mut self, m: usize) {
        let pause = 50 + self.random.below(100);
        self.after(pause, Event::Work(m));
        let manager = &mut self.managers[m];
        if manager.paused_until > self.now {
            return;
        }
        let local = manager.clock.at(self.now);
        for _ in 0..4 {
            let Some(transaction) = self.managers[m].core.work(local) else {
                return;
            };
            let delay = self.delay();
            self.after(
                delay,
                Event::Commit {
                    manager: m,
                    transaction,
                    then: Then::Work,
                },
            );
        }
    }

    // ----- the operator and faults

    fn operate(&mut self) -> Checked {
        if self.calm {
            return Ok(());
        }
        let pause = self.random.below(4000);
        self.after(pause, Event::Operator);
        let m = self.random.index(MANAGERS);
        self.pull(m, u64::MAX);
        let name: TenantName = format!("tenant-{}", self.random.below(3)).parse().unwrap();
        let exists = self.truth.tenants.contains_key(&name);
        let node = self.nodes[self.random.index(NODES)].name.clone();
        let key: KeyName = format!("key-of-{name}").parse().unwrap();
        let command = match self.random.below(14) {
            10..=12 => {
                let before = self.truth.keys.get(&key).map(|key| &key.value);
                Command::SetKey(PoolKey {
                    version: next_version(before, self.now),
                    name: key,
                    public: "00".repeat(32),
                    tenants: [name].into(),
                    sealed: "sealed".to_owned(),
                    former: Vec::new(),
                })
            }
            13 => Command::RemoveKey { key },
            0 if exists => Command::RemoveTenant { tenant: name },
            1 => Command::DrainNode {
                node,
                drain: self.random.percent(50),
            },
            2 if self.random.percent(20) => Command::RemoveNode { node },
            3 => Command::ReadmitNode { node },
            _ => {
                let mut tenant = Tenant::new(name);
                tenant.quota.ops = Rate::per_second([3, 40, 300, 900][self.random.index(4)]);
                if self.random.percent(40) {
                    let class = "rsa2048".parse().unwrap();
                    let part = tenant.quota.ops.per_second.div_ceil(2);
                    tenant.quota.classes.insert(class, Rate::per_second(part));
                }
                tenant.placement.spread = 1 + u32::try_from(self.random.below(4)).unwrap();
                if exists {
                    Command::SetTenant(tenant)
                } else {
                    Command::CreateTenant(tenant)
                }
            }
        };
        if let Command::RemoveNode { node } = &command {
            // An operator removes a node that is gone for good; one that still runs is the exception in the docs.
            let gone = self
                .nodes
                .iter_mut()
                .find(|gone| gone.name == *node)
                .unwrap();
            gone.alive = false;
        }
        if let Ok(transaction) = self.managers[m].core.command(OPERATOR, &command, None, 0) {
            let _ = self.store.commit(&transaction);
            self.learn()?;
        }
        Ok(())
    }

    fn chaos(&mut self) {
        if self.calm {
            return;
        }
        let pause = self.random.below(3000);
        self.after(pause, Event::Chaos);
        let (n, m) = (self.random.index(NODES), self.random.index(MANAGERS));
        let span = self.random.below(3 * TTL_MS);
        let now = self.now;
        match self.random.below(9) {
            0 => self.nodes[n].paused_until = now + span,
            1 => self.nodes[n].mute = !self.nodes[n].mute,
            2 => self.nodes[n].deaf = !self.nodes[n].deaf,
            3 => self.nodes[n].alive = false,
            4 | 5 => self.restart(n),
            6 => self.managers[m].paused_until = now + span,
            7 => {
                let manager = &mut self.managers[m];
                manager.cut = !manager.cut;
                if manager.cut {
                    manager.core.note_store_away();
                } else {
                    manager.core.note_store_back(manager.clock.at(now));
                }
            }
            8 => {
                self.managers[m].lag = self.random.below(2000);
                if self.random.percent(30) {
                    // The manager starts again: it knows no times.
                    let snapshot = self.store.read(PREFIX).unwrap();
                    let terms = self.managers[m].core.terms();
                    let local = self.managers[m].clock.at(now);
                    self.managers[m].core = Core::new(terms, &snapshot, local);
                }
            }
            _ => unreachable!(),
        }
    }

    fn restart(&mut self, n: usize) {
        self.processes += 1;
        let proven = self.random.percent(70);
        let now = self.now;
        let node = &mut self.nodes[n];
        if self.mutation == Mutation::FalseProof && node.alive {
            // The process goes on under a proof of its end.
            node.former = vec![node.process];
            node.process = self.processes;
            node.holder
                .fenced(node.holder.fence().unwrap_or(0), node.clock.at(now));
            node.waiting = None;
            return;
        }
        node.former = if proven {
            vec![node.process]
        } else {
            Vec::new()
        };
        node.process = self.processes;
        node.holder = Holder::new(node.name.clone(), on_expiry(n), node.clock.at(now));
        node.keys = HeldKeys::of_before(node.keys.versions());
        (node.alive, node.paused_until, node.waiting) = (true, 0, None);
        node.buckets.clear();
    }

    fn heal(&mut self) {
        self.calm = true;
        for n in 0..NODES {
            if !self.nodes[n].alive {
                self.restart(n);
            }
            let node = &mut self.nodes[n];
            (node.mute, node.deaf, node.paused_until) = (false, false, 0);
        }
        for manager in &mut self.managers {
            (manager.cut, manager.paused_until, manager.lag) = (false, 0, 0);
            manager.core.note_store_back(manager.clock.at(self.now));
        }
        for n in 0..NODES {
            let node = self.nodes[n].name.clone();
            for command in [
                Command::ReadmitNode { node: node.clone() },
                Command::DrainNode { node, drain: false },
            ] {
                self.pull(0, u64::MAX);
                let present = self.truth.node(&self.nodes[n].name);
                let needed = match &command {
                    Command::ReadmitNode { .. } => present.is_some_and(|node| node.removed),
                    _ => present.is_some_and(|node| node.drain),
                };
                if !needed {
                    continue;
                }
                if let Ok(transaction) = self.managers[0].core.command(OPERATOR, &command, None, 0)
                {
                    self.store.commit(&transaction).unwrap();
                    self.learn().unwrap();
                }
            }
        }
    }

    // ----- checks

    /// Takes what was committed into the true view, and checks every new ledger.
    fn learn(&mut self) -> Checked {
        let changes = self
            .store
            .changes(PREFIX, self.truth.revision, Duration::ZERO)
            .unwrap();
        for change in &changes.changes {
            let ledger = change
                .key
                .strip_prefix(&Table::Ledger.key(""))
                .map(|name| name.parse().unwrap());
            let before = ledger
                .as_ref()
                .and_then(|name: &TenantName| self.truth.ledgers.get(name))
                .cloned();
            self.truth.apply(change);
            if let Some(name) = ledger {
                let after = self
                    .truth
                    .ledgers
                    .get(&name)
                    .map(|ledger| ledger.value.clone())
                    .unwrap_or_default();
                self.check_ledger(
                    &name,
                    &before.map(|before| before.value).unwrap_or_default(),
                    &after,
                )?;
            }
            if let Some(name) = change.key.strip_prefix(&Table::Tenant.key("")) {
                let name: TenantName = name.parse().unwrap();
                if let Some(tenant) = self.truth.tenants.get(&name) {
                    let quotas = self.quotas.entry(name).or_default();
                    quotas.push((self.now, tenant.value.quota.clone()));
                    if quotas.len() > 8 {
                        quotas.remove(0);
                    }
                }
            }
        }
        self.truth.revision = changes.revision;
        Ok(())
    }

    /// Checks that a ledger's sum grows up to a quota that the operator has set, and not further.
    fn check_ledger(&self, name: &TenantName, before: &Ledger, after: &Ledger) -> Checked {
        let ops = |ledger: &Ledger| -> u128 {
            ledger
                .entries
                .iter()
                .map(|entry| amount(Dimension::Ops.of(&entry.held)))
                .sum()
        };
        let quotas = self.quotas.get(name).into_iter().flatten();
        let highest = quotas
            .map(|(_, quota)| amount(quota.ops))
            .max()
            .unwrap_or(0);
        if ops(after) > ops(before).max(highest) {
            return Err(format!(
                "the ledger of {name} holds {} of {highest}: {after:?}",
                ops(after)
            ));
        }
        for entry in &after.entries {
            let over = |target: &Rates| amount(target.ops) > amount(entry.held.ops);
            if entry.target.as_ref().is_some_and(over) {
                return Err(format!(
                    "the ledger of {name} gives more than it holds: {entry:?}"
                ));
            }
        }
        // Without over-commit a new or higher slice fits the node.
        for node in self.truth.nodes.keys() {
            let cost = |ledger: &Ledger| -> u64 {
                let capacity = &self.truth.nodes[node].value.registration.capacity;
                let entries = ledger.entries.iter().filter(|entry| entry.node == *node);
                entries
                    .map(|entry| placement::cost(&entry.held, capacity))
                    .sum()
            };
            let reserved = self.truth.reserved.get(node).copied().unwrap_or(0);
            if cost(after) > cost(before) && reserved > placement::WHOLE {
                return Err(format!(
                    "{node} has slices for {reserved} ppm of its capacity"
                ));
            }
        }
        Ok(())
    }

    /// Checks that nodes may serve no more at this moment than the ledger holds.
    fn check(&self) -> Checked {
        for (name, ledger) in self
            .truth
            .ledgers
            .iter()
            .map(|(name, ledger)| (name, &ledger.value))
        {
            let held: u128 = ledger
                .entries
                .iter()
                .map(|entry| amount(entry.held.ops))
                .sum();
            let in_force: u128 = self
                .nodes
                .iter()
                .map(|node| self.in_force(node, name, Dimension::Ops))
                .sum();
            if in_force > held {
                return Err(format!(
                    "{name}: nodes serve {in_force}/s, and the ledger holds {held}/s: {ledger:?}"
                ));
            }
        }
        for node in &self.nodes {
            let now = node.clock.at(self.now);
            let (InForce::Whole(grants) | InForce::Safe(grants)) = node.holder.in_force(now) else {
                continue;
            };
            for grant in grants.iter().filter(|_| node.alive) {
                let name: TenantName = grant.tenant.parse().unwrap();
                if !self.truth.ledgers.contains_key(&name) {
                    return Err(format!(
                        "{}: serves {name}, of which no ledger is left",
                        node.name
                    ));
                }
            }
        }
        for node in self.nodes.iter().filter(|node| node.alive) {
            self.check_keys(node)?;
        }
        for (name, (executed, allowed)) in &self.executed {
            if *executed > allowed + 1e-3 {
                return Err(format!(
                    "{name}: {executed} operations were executed, {allowed} allowed"
                ));
            }
            for (mark_executed, mark_allowed, saved) in self.marks.get(name).into_iter().flatten() {
                let (done, may) = (executed - mark_executed, allowed - mark_allowed + saved);
                if done > may + 1e-3 {
                    return Err(format!(
                        "{name}: {done} operations in a window, {may} allowed"
                    ));
                }
            }
        }
        Ok(())
    }

    /// A node with grants of its present lease holds keys of tenants that it serves, and that the ledger says are on it.
    /// Others are about to be deleted.
    fn check_keys(&self, node: &SimNode) -> Checked {
        let now = node.clock.at(self.now);
        let (InForce::Whole(grants) | InForce::Safe(grants)) = node.holder.in_force(now) else {
            return Ok(());
        };
        if node.holder.applied() == 0 {
            return Ok(());
        }
        let leaving = node.keys.due(now + LEAVING);
        for key in node.keys.versions().keys() {
            let tenant = key.as_str().strip_prefix("key-of-").unwrap();
            let serves = grants.iter().any(|grant| grant.tenant == tenant);
            let placed = self.truth.ledgers.get(tenant).is_some_and(|ledger| {
                let mut entries = ledger.value.entries.iter();
                entries.any(|entry| entry.node == node.name)
            });
            if !(leaving.contains(key) || serves && placed) {
                return Err(format!(
                    "{}: holds {key}, serves its tenant: {serves}, is to: {placed}",
                    node.name
                ));
            }
        }
        // A turn comes every 170 ms.
        let late = now - Duration::from_millis(400);
        if node.paused_until + 400 < self.now && !node.keys.due(late).is_empty() {
            return Err(format!("{}: keeps {:?}", node.name, node.keys.due(late)));
        }
        Ok(())
    }

    fn in_force(&self, node: &SimNode, tenant: &TenantName, dimension: Dimension) -> u128 {
        if !node.alive {
            return 0;
        }
        let (grants, safe) = match node.holder.in_force(node.clock.at(self.now)) {
            InForce::Nothing => return 0,
            InForce::Whole(grants) => (grants, false),
            InForce::Safe(grants) => (grants, true),
        };
        let of_tenant = grants
            .iter()
            .filter(|grant| grant.tenant == tenant.as_str());
        of_tenant
            .map(|grant| {
                let rates = if safe {
                    grant.rates.safe_share()
                } else {
                    grant.rates.clone()
                };
                amount(dimension.of(&rates))
            })
            .sum()
    }

    /// Every node executes as much as its token buckets allow until `at`, with some time of saving before.
    fn execute_until(&mut self, at: u64) {
        let seconds = (at - self.now) as f64 / 1000.0;
        let tenants: Vec<TenantName> = self.truth.ledgers.keys().cloned().collect();
        let saves = self.random.percent(50);
        for name in tenants {
            let ledger = &self.truth.ledgers[&name].value;
            let held: u128 = ledger
                .entries
                .iter()
                .map(|entry| amount(entry.held.ops))
                .sum();
            let mut executed = 0.0;
            let mut bursts = 0.0;
            let mut saved = 0.0;
            for n in 0..self.nodes.len() {
                let rate =
                    u64::try_from(self.in_force(&self.nodes[n], &name, Dimension::Ops)).unwrap();
                let runs = self.nodes[n].paused_until <= self.now;
                let tokens = self.nodes[n].buckets.entry(name.clone()).or_default();
                if rate > tokens.rate {
                    // A higher slice comes with the burst of the difference, one second.
                    let burst = (rate - tokens.rate) as f64;
                    tokens.saved += burst;
                    bursts += burst;
                }
                tokens.rate = rate;
                tokens.saved = (tokens.saved + rate as f64 * seconds).min(rate as f64);
                if runs && !saves {
                    executed += tokens.saved;
                    tokens.saved = 0.0;
                }
                saved += tokens.saved;
            }
            let total = self.executed.entry(name.clone()).or_default();
            total.0 += executed;
            // Grants may expire within the step, so the ledger's sum before it counts.
            total.1 += held as f64 * seconds + bursts;
            let total = *total;
            if at / 5000 != self.now / 5000 {
                let marks = self.marks.entry(name).or_default();
                marks.push((total.0, total.1, saved));
                if marks.len() > 4 {
                    marks.remove(0);
                }
            }
        }
    }

    /// After the faults: each quota is divided completely, and nodes serve exactly that.
    fn is_as_wanted(&self) -> Checked {
        self.keys_are_as_wanted()?;
        let mut wanted_cost = 0;
        for tenant in self.truth.tenants.values() {
            let capacity = [("rsa2048".parse().unwrap(), 1000)].into();
            wanted_cost += placement::cost(&tenant.value.quota, &capacity);
        }
        if wanted_cost > 2 * placement::WHOLE {
            // Little room: some tenants may be short.
            return Ok(());
        }
        for (name, tenant) in &self.truth.tenants {
            let quota = amount(tenant.value.quota.ops);
            let served: u128 = self
                .nodes
                .iter()
                .map(|node| self.in_force(node, name, Dimension::Ops))
                .sum();
            if served != quota {
                let ledger = self.truth.ledgers.get(name);
                return Err(format!(
                    "{name}: {served}/s of {quota}/s are served after the faults: {ledger:?}"
                ));
            }
        }
        for name in self.truth.ledgers.keys() {
            if !self.truth.tenants.contains_key(name) {
                return Err(format!("the ledger of {name} outlives its tenant"));
            }
        }
        Ok(())
    }
}

impl Simulation {
    /// After the faults: each node holds the latest versions of the keys of the tenants that it serves, and no others.
    fn keys_are_as_wanted(&self) -> Checked {
        for node in &self.nodes {
            let (InForce::Whole(grants) | InForce::Safe(grants)) =
                node.holder.in_force(node.clock.at(self.now))
            else {
                return Err(format!("{} has no grants after the faults", node.name));
            };
            let serves = |key: &PoolKey| {
                let mut tenants = grants.iter().map(|grant| &grant.tenant);
                tenants.any(|tenant| key.tenants.contains(tenant.as_str()))
            };
            let keys = self.truth.keys.values().map(|key| &key.value);
            let wanted: BTreeMap<KeyName, u64> = keys
                .filter(|key| serves(key))
                .map(|key| (key.name.clone(), key.version))
                .collect();
            let held = node.keys.versions();
            if held != wanted {
                return Err(format!(
                    "{} holds {held:?} and not {wanted:?} after the faults",
                    node.name
                ));
            }
        }
        Ok(())
    }
}

fn on_expiry(n: usize) -> OnExpiry {
    if n == 0 {
        OnExpiry::Refuse
    } else {
        OnExpiry::SafeShare
    }
}

fn run(seed: u64, mutation: Mutation) -> Checked {
    let mut simulation = Simulation::new(seed, mutation);
    let checked = simulation.run();
    checked.map_err(|problem| format!("seed {seed} at {} ms: {problem}", simulation.now))
}

/// Runs seeds on all cores; returns the first problem.
fn run_all(seeds: std::ops::Range<u64>, mutation: Mutation) -> Checked {
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let first = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= seeds.end || first.lock().unwrap().is_some() {
                        return;
                    }
                    if let Err(problem) = run(seed, mutation) {
                        first.lock().unwrap().get_or_insert(problem);
                    }
                }
            });
        }
    });
    first.into_inner().unwrap().map_or(Ok(()), Err)
}

#[test]
fn no_schedule_gives_a_tenant_more_than_its_quota() {
    let seeds = match std::env::var("MILLRACE_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("MILLRACE_SEED is a number");
            seed..seed + 1
        }
        Err(_) if millrace_testkit::is_long() => 0..20_000,
        Err(_) => 0..200,
    };
    if let Err(problem) = run_all(seeds, Mutation::None) {
        panic!(
            "{problem}\nrun it again: MILLRACE_SEED=n cargo test -p millrace-manager --test simulation"
        );
    }
}

#[test]
fn simulation_notices_each_rule_that_is_left_out() {
    for mutation in [
        Mutation::AckBeforeApplying,
        Mutation::LifeFromReceipt,
        Mutation::OlderGrants,
        Mutation::SignWithoutWriting,
        Mutation::ShortPatience,
        Mutation::NoConditions,
        Mutation::NoEpoch,
        Mutation::FalseProof,
        Mutation::KeysOfAllTenants,
        Mutation::KeysOfOlderAnswers,
        Mutation::KeysKept,
    ] {
        let problem =
            run_all(0..2_000, mutation).expect_err(&format!("{mutation:?} goes unnoticed"));
        println!("{mutation:?}: {problem}");
    }
}

#[test]
fn schedule_of_a_seed_is_always_the_same() {
    for seed in 0..5 {
        let mutation = Mutation::AckBeforeApplying;
        assert_eq!(run(seed, mutation), run(seed, mutation));
    }
}
