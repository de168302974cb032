// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A whole pool in one process, over random schedules, with time moved by hand: clients (dispatcher and
//! connections), links, nodes (the session state of a real node, [`SessionState`]) and an engine stub.
//!
//! ```text
//!  jobs ──► Client ──bytes──► Link ──bytes──► Node: session ──► engine stub
//!             ▲               delay, pieces,   restart, drain,     time, errors,
//!             └── answers ◄── stall, cut ◄──── lies ◄───────────── silence
//! ```
//!
//! Properties that must hold, whatever the schedule:
//! - every job ends exactly once, by its deadline;
//! - its result is the one computed from its own input, unless a lying node changed it on purpose under the
//!   id of that very job;
//! - nothing hangs or spins: each client's next timer lies ahead once what is due was done;
//! - hedges and attempts stay within their bounds, counted where they arrive;
//! - nothing is left: when links are quiet, every table of client and node is empty.
//!
//! [`restarts`] adds schedules in which nodes that are well restart, [`bad_nodes`] those in which one node is bad, and
//! one more property each.
//!
//! A schedule follows from its seed. A failure prints the seed; `MILLRACE_SEED=n` runs that schedule
//! alone. `MILLRACE_LONG=1` runs more schedules.

mod bad_nodes;
mod client;
mod node;
mod restarts;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

use millrace_operation::JobId;
use millrace_operation::sync::lock;
use millrace_service::keys::{KeyEntry, KeySet};
use millrace_service::policy::KeyPolicy;
use millrace_service::session::{Effects, ReadyJob, SessionState};
use millrace_service::settings::Rules;

use self::bad_nodes::{Verdicts, Vice};
use self::client::{Client, new_key};
use self::node::{SimLink, SimNode};
use self::restarts::Down;
use super::*;
use crate::config::Hedge;

/// Schedules of a default run: about 4 s without optimization.
const SCHEDULES: u64 = 2_000;

/// Schedules with `MILLRACE_LONG=1`.
const SCHEDULES_LONG: u64 = 200_000;

/// Events without time passing that are taken for an endless loop.
const MAX_EVENTS_AT_ONCE: u32 = 20_000;

/// Keys that clients use. Some nodes lack the last ones.
const KEYS: usize = 3;

/// A client's bounds, small enough to be met.
const MAX_IN_FLIGHT: usize = 24;

/// Milliseconds after the last event of the script by which every link and timer is quiet.
const REST_MS: u32 = 60_000;

/// Milliseconds for which jobs are submitted and nodes get into trouble.
const SCRIPT_MS: u32 = 3_000;

/// Runs one in `part` of the schedules, or the one of `MILLRACE_SEED`. Gives what happened in all, and their number.
fn simulate_all(part: u64, simulate: fn(u64) -> Sums) -> (Sums, u64) {
    let mut sums = Sums::default();
    let seeds = match std::env::var("MILLRACE_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) if millrace_testkit::is_long() => 0..SCHEDULES_LONG / part,
        Err(_) => 0..SCHEDULES / part,
    };
    for seed in seeds.clone() {
        let ran = catch_unwind(AssertUnwindSafe(|| simulate(seed)));
        match ran {
            Ok(ran) => sums.add(&ran),
            Err(panic) => {
                eprintln!("the schedule with MILLRACE_SEED={seed} failed");
                resume_unwind(panic);
            }
        }
    }
    eprintln!("{sums:?}");
    (sums, seeds.end - seeds.start)
}

#[test]
fn every_job_ends_once_in_any_schedule() {
    let (sums, schedules) = simulate_all(1, simulate);
    if schedules == 1 {
        return;
    }
    // A simulation in which nothing goes wrong shows nothing.
    let Sums {
        succeeded, failed, retries, hedge_wins, hedge_losses, late, lost, cancelled, ..
    } = sums;
    for (what, count) in [
        ("results", succeeded),
        ("errors", failed),
        ("retries", retries),
        ("hedges won", hedge_wins),
        ("hedges lost", hedge_losses),
        ("late replies", late),
        ("lost connections", lost),
        ("cancelled jobs", cancelled),
    ] {
        assert!(count > schedules / 10, "{what}: {count} in {schedules} schedules");
    }
}

#[test]
fn schedule_follows_from_its_seed() {
    for seed in 0..5 {
        assert_eq!(simulate(seed), simulate(seed));
    }
}

/// Totals over all schedules.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    succeeded: u64,
    failed: u64,
    retries: u64,
    hedge_wins: u64,
    hedge_losses: u64,
    late: u64,
    lost: u64,
    cancelled: u64,
    wrong: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.retries += other.retries;
        self.hedge_wins += other.hedge_wins;
        self.hedge_losses += other.hedge_losses;
        self.late += other.late;
        self.lost += other.lost;
        self.cancelled += other.cancelled;
        self.wrong += other.wrong;
    }
}

/// Names one connection for the whole schedule.
type LinkId = u64;

/// Something that happens at some time.
enum SimEvent {
    /// A client's attempt to connect is over.
    Connected {
        client: usize,
        node: usize,
    },
    ToNode {
        link: LinkId,
        bytes: Vec<u8>,
    },
    ToClient {
        link: LinkId,
        bytes: Vec<u8>,
    },
    /// The client sees the end of the connection.
    Cut {
        link: LinkId,
    },
    /// The engine stub has an answer.
    Computed {
        link: LinkId,
        job: JobId,
        result: Result<u64, JobError>,
    },
    Submit {
        client: usize,
    },
    CallerLooks {
        client: usize,
        caller: JobRef,
        job: u64,
    },
    Cancel {
        client: usize,
    },
    CloseKey {
        client: usize,
    },
    Trouble {
        node: usize,
    },
    Recovered {
        node: usize,
    },
    Down {
        node: usize,
        how: Down,
        until: u32,
    },
    Back {
        node: usize,
        how: Down,
    },
}

/// State of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
enum JobState {
    Open { deadline: u32 },
    Answered,
    Failed(ClientError),
}

struct World {
    random: Random,
    start: Instant,
    /// Milliseconds since the start.
    now: u32,
    clients: Vec<Client>,
    nodes: Vec<SimNode>,
    links: BTreeMap<LinkId, SimLink>,
    next_link: LinkId,
    agenda: BTreeMap<(u32, u64), SimEvent>,
    next_event: u64,
    /// State of each job, at the index that is its number; its input and its result contain that number.
    jobs: Arc<Mutex<Vec<JobState>>>,
    /// Number of arrivals of each job at a node.
    arrivals: HashMap<u64, u32>,
    /// Milliseconds that jobs have. `None` for any number.
    time_limit: Option<u32>,
    /// Time at which each job was submitted, in milliseconds since the start.
    submitted: Vec<u32>,
    /// Times in which nodes were stopped, from and to, in milliseconds since the start.
    stops: Vec<(u32, u32)>,
    /// The results that owners of jobs found to be wrong or right. `None` if they verify nothing.
    verdicts: Option<Arc<Mutex<Verdicts>>>,
    /// Time at which the run is over. `None` to wait for rest.
    end: Option<u32>,
}

/// Runs the schedule of this seed.
///
/// # Panics
/// If a property does not hold.
fn simulate(seed: u64) -> Sums {
    let mut world = World::new(seed);
    world.script();
    world.run();
    world.settle()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let start = Instant::now();
        let node_count = 1 + pick(&mut random, 3);
        let nodes = (0..node_count).map(|_| SimNode::new(&mut random));
        let nodes: Vec<SimNode> = nodes.collect();
        let clients = 1 + pick(&mut random, 2);
        let clients = (0..clients).map(|_| Client::new(node_count, &mut random, start));
        let clients = clients.collect();
        Self {
            clients,
            nodes,
            random,
            start,
            now: 0,
            links: BTreeMap::new(),
            next_link: 0,
            agenda: BTreeMap::new(),
            next_event: 0,
            jobs: Arc::default(),
            arrivals: HashMap::new(),
            time_limit: None,
            submitted: Vec::new(),
            stops: Vec::new(),
            verdicts: None,
            end: None,
        }
    }

    /// Fills the agenda: jobs in bursts, and trouble.
    fn script(&mut self) {
        for client in 0..self.clients.len() {
            let bursts = 1 + self.below(4);
            for _ in 0..bursts {
                let at = self.below(SCRIPT_MS);
                let spread = 1 + self.below(200);
                for _ in 0..1 + self.below(10) {
                    let at = at + self.below(spread);
                    self.at(at, SimEvent::Submit { client });
                }
                if self.one_in(3) {
                    let at = at + self.below(spread);
                    self.at(at, SimEvent::Cancel { client });
                }
            }
            if self.one_in(3) {
                let at = self.below(SCRIPT_MS);
                self.at(at, SimEvent::CloseKey { client });
            }
        }
        for node in 0..self.nodes.len() {
            for _ in 0..self.below(3) {
                let at = self.below(SCRIPT_MS);
                self.at(at, SimEvent::Trouble { node });
            }
            // In the end each node can be reached, or its clients would try again for ever.
            self.at(2 * SCRIPT_MS, SimEvent::Recovered { node });
        }
    }

    /// Runs until nothing more can handle.
    fn run(&mut self) {
        let mut at_once = 0;
        let scripted = self.agenda.keys().next_back();
        let rest = scripted.map_or(0, |(at, _)| *at) + REST_MS;
        loop {
            for client in 0..self.clients.len() {
                self.pump(client);
            }
            let event = self.agenda.keys().next().map(|(at, _)| *at);
            let timers = self.clients.iter().filter_map(|client| {
                let timer = client.dispatcher.poll_timeout()?;
                // Rounded up, as epoll's timer is.
                let wait = timer.saturating_duration_since(self.start);
                u32::try_from(wait.as_nanos().div_ceil(1_000_000)).ok()
            });
            let Some(next) = timers.chain(event).min() else {
                return;
            };
            at_once = if next > self.now { 0 } else { at_once + 1 };
            assert!(at_once < MAX_EVENTS_AT_ONCE, "time does not pass");
            if self.end.is_some_and(|end| next > end) {
                return;
            }
            self.now = self.now.max(next);
            // Timers for jobs that are gone: pings, for example.
            assert!(self.now < rest, "the pool does not come to rest");
            while let Some((&(at, number), _)) = self.agenda.first_key_value()
                && at <= self.now
            {
                let event = self.agenda.remove(&(at, number)).expect("found just now");
                self.handle(event);
            }
            let now = self.time();
            for client in 0..self.clients.len() {
                self.clients[client].dispatcher.handle_timeout(now);
                self.pump(client);
                let timer = self.clients[client].dispatcher.poll_timeout();
                assert!(timer.is_none_or(|timer| timer > now), "a timer stays in the past");
            }
            for (number, job) in lock(&self.jobs).iter().enumerate() {
                if let JobState::Open { deadline } = job {
                    assert!(*deadline > self.now, "job {number} outlived its deadline");
                }
            }
        }
    }

    /// Checks that nothing is left once everything is quiet.
    fn settle(mut self) -> Sums {
        let jobs = lock(&self.jobs).clone();
        let open = |job: &JobState| matches!(job, JobState::Open { .. });
        assert!(!jobs.iter().any(open), "a job hangs");
        let mut sums = Sums::default();
        let (mut attempts, mut allowed) = (0, 0);
        // A liar may keep what it owes to itself, and any other answer counts as a sign of life.
        let is_liar = |(_, sim): &(&LinkId, &SimLink)| self.nodes[sim.node].lies;
        let liars = self.links.iter().filter(is_liar);
        let liars: Vec<LinkId> = liars.map(|(link, _)| *link).collect();
        for link in liars {
            self.handle(SimEvent::Cut { link });
        }
        for client in &mut self.clients {
            let stats = client.dispatcher.stats();
            assert_eq!(stats.in_flight, 0, "jobs are left");
            assert_eq!(client.dispatcher.callbacks_open, 0);
            for node in &mut client.dispatcher.nodes {
                assert_eq!(node.late_replies, 0, "late replies are left");
                let in_flight = node.connection().map_or(0, |connection| connection.in_flight());
                assert_eq!(in_flight, 0, "a connection counts jobs that are gone");
            }
            client.dispatcher.trim_hedges();
            let waiting = client.dispatcher.hedging.as_ref();
            assert!(waiting.is_none_or(|hedging| hedging.waits_for_none()));
            let totals = stats.totals;
            assert_eq!(totals.hedges + totals.rescues, totals.hedge_wins + totals.hedge_losses);
            assert!(totals.hedges <= 5 + totals.jobs / 20, "too many hedges");
            let retries = totals.retries;
            let retried = retries.connection_lost
                + retries.busy
                + retries.over_quota
                + retries.draining
                + retries.failed
                + retries.no_such_key
                + retries.not_offered
                + retries.key_refused;
            allowed += totals.jobs + retried + totals.hedges + totals.rescues;
            sums.add(&Sums {
                succeeded: totals.succeeded,
                failed: totals.failed,
                retries: retried,
                hedge_wins: totals.hedge_wins,
                hedge_losses: totals.hedge_losses,
                late: totals.late_completions,
                lost: stats.nodes.iter().map(|node| node.counters.lost).sum(),
                cancelled: totals.cancelled,
                wrong: 0,
            });
            for key in &client.keys {
                client.dispatcher.close_key(key.id);
            }
            assert_eq!(client.dispatcher.stats().keys, 0, "keys are left");
            client.dispatcher.close();
            assert!(client.dispatcher.deliveries().callbacks.is_empty());
        }
        for (job, arrivals) in &self.arrivals {
            // Three tries, and a hedge for each.
            assert!(*arrivals <= 6, "job {job} was sent {arrivals} times");
            attempts += u64::from(*arrivals);
        }
        assert!(attempts <= allowed, "{attempts} attempts, {allowed} allowed");
        for sim in self.links.values() {
            assert!(sim.computing.is_empty() && sim.session.idle());
        }
        sums
    }

    // ---- what happens -------------------------------------------------------------------------

    fn handle(&mut self, event: SimEvent) {
        match event {
            SimEvent::Connected { client, node } => self.connected(client, node),
            SimEvent::ToNode { link, bytes } => self.node_reads(link, &bytes),
            SimEvent::ToClient { link, bytes } => self.client_reads(link, &bytes),
            SimEvent::Cut { link } => {
                if let Some(sim) = self.links.remove(&link) {
                    let now = self.time();
                    let client = &mut self.clients[sim.client];
                    client.links[sim.node] = None;
                    let why = "the node closed the connection".to_owned();
                    client.dispatcher.handle_lost(sim.node, why, now);
                    self.pump(sim.client);
                }
            }
            SimEvent::Computed { link, job, result } => self.computed(link, job, result),
            SimEvent::Submit { client } => self.submit(client),
            SimEvent::CallerLooks { client, caller, job } => {
                self.look(client, caller, job);
            }
            SimEvent::Cancel { client } => {
                let client = &mut self.clients[client];
                if !client.handles.is_empty() {
                    let index = pick(&mut self.random, client.handles.len());
                    client.dispatcher.cancel(client.handles[index]);
                }
            }
            SimEvent::CloseKey { client } => {
                let index = self.pick(KEYS);
                let client = &mut self.clients[client];
                client.dispatcher.close_key(client.keys[index].id);
                client.keys[index] = new_key(index);
            }
            SimEvent::Trouble { node } => self.trouble(node),
            SimEvent::Recovered { node } => {
                let node = &mut self.nodes[node];
                (node.up, node.draining) = (true, false);
            }
            SimEvent::Down { node, how, until } => self.go_down(node, how, until),
            SimEvent::Back { node, how } => self.come_back(node, how),
        }
    }

    // ---- bytes --------------------------------------------------------------------------------

    /// Puts bytes on a link, in pieces.
    fn send(&mut self, link: LinkId, mut bytes: &[u8], to_node: bool) {
        while !bytes.is_empty() {
            let length = if self.one_in(4) { 1 + self.pick(bytes.len()) } else { bytes.len() };
            let (piece, rest) = bytes.split_at(length);
            bytes = rest;
            let (now, delay) = (self.now, self.below(3));
            let Some(sim) = self.links.get_mut(&link) else {
                return;
            };
            let from = if to_node { &mut sim.to_node_from } else { &mut sim.to_client_from };
            *from = (*from).max(now + delay);
            let (at, bytes) = (*from, piece.to_vec());
            let event = if to_node {
                SimEvent::ToNode { link, bytes }
            } else {
                SimEvent::ToClient { link, bytes }
            };
            self.at(at, event);
        }
    }

    // ---- time and chance ----------------------------------------------------------------------

    fn at(&mut self, at: u32, event: SimEvent) {
        self.agenda.insert((at.max(self.now), self.next_event), event);
        self.next_event += 1;
    }

    fn time(&self) -> Instant {
        self.start + Duration::from_millis(self.now.into())
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.random.below(bound.max(1))
    }

    fn pick(&mut self, bound: usize) -> usize {
        pick(&mut self.random, bound)
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    fn byte(&mut self) -> u8 {
        self.below(256).to_le_bytes()[0]
    }
}

/// The job's owner gets its answer.
fn end(jobs: &Mutex<Vec<JobState>>, number: u64, answer: &JobAnswer) {
    let index = usize::try_from(number).expect("few");
    let job = match answer {
        Ok(_) => JobState::Answered,
        Err(error) => JobState::Failed(error.clone()),
    };
    let before = mem::replace(&mut lock(jobs)[index], job);
    assert!(matches!(before, JobState::Open { .. }), "job {number} ended twice");
    if let Ok(reply) = answer {
        let reply = reply.as_ref().expect("an operation has a reply");
        let found = number_in(&reply.output);
        assert_eq!(found, number, "the result of another job");
    }
}

fn completion(id: JobId, result: Result<u64, JobError>) -> JobCompletion {
    JobCompletion {
        id,
        result: result.map(|number| Output::new(number.to_le_bytes().to_vec())),
        served_by: None,
        queue_time: Duration::ZERO,
        service_time: Duration::ZERO,
    }
}

/// The number of the job, which its input and its result begin with.
fn number_in(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

fn pick(random: &mut Random, bound: usize) -> usize {
    random.below(u32::try_from(bound.max(1)).expect("small")) as usize
}
