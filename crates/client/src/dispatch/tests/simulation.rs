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
//! What must hold, whatever the schedule:
//! - every job ends exactly once, by its deadline;
//! - its result is the one computed from its own input, unless a lying node changed it on purpose under the
//!   id of that very job;
//! - nothing hangs or spins: each client's next timer lies ahead once what is due was done;
//! - hedges and attempts stay within their bounds, counted where they arrive;
//! - nothing is left: when links are quiet, every table of client and node is empty.
//!
//! A schedule follows from its seed. A failure prints the seed; `MILLRACE_SEED=n` runs that schedule
//! alone. `MILLRACE_LONG=1` runs more schedules.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

use millrace_engine::policy::KeyPolicy;
use millrace_service::keys::{KeyEntry, KeySet};
use millrace_service::quota::Quota;
use millrace_service::session::{Effects, ReadyJob, Rules, SessionState};
use millrace_wire::JobId;

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

/// Milliseconds after which every link and timer is quiet.
const REST_MS: u32 = 60_000;

/// Milliseconds for which jobs are submitted and nodes get into trouble.
const SCRIPT_MS: u32 = 3_000;

#[test]
fn every_job_ends_once_in_any_schedule() {
    if let Ok(seed) = std::env::var("MILLRACE_SEED") {
        return Pool::run(seed.parse().expect("a number"));
    }
    let long = std::env::var_os("MILLRACE_LONG").is_some_and(|long| long == "1");
    let schedules = if long { SCHEDULES_LONG } else { SCHEDULES };
    let mut sums = Sums::default();
    for seed in 0..schedules {
        let ran = catch_unwind(AssertUnwindSafe(|| Pool::simulate(seed)));
        match ran {
            Ok(ran) => sums.add(&ran),
            Err(panic) => {
                eprintln!("the schedule with MILLRACE_SEED={seed} failed");
                resume_unwind(panic);
            }
        }
    }
    // A simulation in which nothing goes wrong shows nothing.
    let Sums {
        succeeded,
        failed,
        retries,
        hedge_wins,
        hedge_losses,
        late,
        lost,
        cancelled,
    } = sums;
    eprintln!("{sums:?}");
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
        assert!(
            count > schedules / 10,
            "{what}: {count} in {schedules} schedules"
        );
    }
}

/// What happened in all schedules.
#[derive(Debug, Default)]
struct Sums {
    succeeded: u64,
    failed: u64,
    retries: u64,
    hedge_wins: u64,
    hedge_losses: u64,
    late: u64,
    lost: u64,
    cancelled: u64,
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
    }
}

/// Names one connection for the whole schedule.
type LinkId = u64;

/// A client of the pool.
struct Client {
    dispatcher: Dispatcher,
    keys: Vec<Arc<KeyData>>,
    /// The link to each node, if there is one.
    links: Vec<Option<LinkId>>,
    /// Jobs with a callback, for cancelling.
    handles: Vec<JobRef>,
}

/// A connection: both ends of it.
struct Wire {
    client: usize,
    node: usize,
    /// Nothing is delivered before that: what is sent arrives in order, and late if the link stalls.
    to_node_from: u32,
    to_client_from: u32,
    session: SessionState<u8>,
    decoder: Decoder<ClientMessage>,
    /// Input of each job that came over it, by the job's id.
    inputs: HashMap<JobId, u64>,
    /// Jobs that the engine stub has not answered.
    computing: BTreeSet<JobId>,
    /// The node ends it when the session is idle.
    draining: bool,
}

/// A node.
struct SimNode {
    rules: Arc<Rules>,
    keys: KeySet<u8>,
    up: bool,
    draining: bool,
    /// Tells lies: answers twice, under other ids, with garbage.
    lies: bool,
    /// Most milliseconds that one job takes.
    slowness: u32,
    /// One job in this number fails; 0 is none.
    failing: u32,
}

/// Something that happens at some time.
enum Happening {
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
}

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open { deadline: u32 },
    Ended,
}

struct World {
    random: Random,
    start: Instant,
    /// Milliseconds since the start.
    now: u32,
    clients: Vec<Client>,
    nodes: Vec<SimNode>,
    links: BTreeMap<LinkId, Wire>,
    next_link: LinkId,
    agenda: BTreeMap<(u32, u64), Happening>,
    next_happening: u64,
    /// By the number of the job, which is what its input and its result say.
    fates: Arc<Mutex<Vec<Fate>>>,
    /// How often each job came to a node.
    arrivals: HashMap<u64, u32>,
}

impl Pool {
    fn run(seed: u64) {
        eprintln!("{:?}", Self::simulate(seed));
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
            next_happening: 0,
            fates: Arc::default(),
            arrivals: HashMap::new(),
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
                    self.at(at, Happening::Submit { client });
                }
                if self.one_in(3) {
                    let at = at + self.below(spread);
                    self.at(at, Happening::Cancel { client });
                }
            }
            if self.one_in(3) {
                let at = self.below(SCRIPT_MS);
                self.at(at, Happening::CloseKey { client });
            }
        }
        for node in 0..self.nodes.len() {
            for _ in 0..self.below(3) {
                let at = self.below(SCRIPT_MS);
                self.at(at, Happening::Trouble { node });
            }
            // In the end each node can be reached, or its clients would try again for ever.
            self.at(2 * SCRIPT_MS, Happening::Recovered { node });
        }
    }

    /// Runs until nothing more can happen.
    fn run(&mut self) {
        let mut at_once = 0;
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
            self.now = self.now.max(next);
            // Timers for jobs that are gone: pings, for example.
            assert!(self.now < REST_MS, "the pool does not come to rest");
            while let Some((&(at, number), _)) = self.agenda.first_key_value()
                && at <= self.now
            {
                let happening = self.agenda.remove(&(at, number)).expect("found just now");
                self.happen(happening);
            }
            let now = self.time();
            for client in 0..self.clients.len() {
                self.clients[client].dispatcher.handle_timeout(now);
                self.pump(client);
                let timer = self.clients[client].dispatcher.poll_timeout();
                assert!(
                    timer.is_none_or(|timer| timer > now),
                    "a timer stays in the past"
                );
            }
            for (number, fate) in lock(&self.fates).iter().enumerate() {
                if let Fate::Open { deadline } = fate {
                    assert!(*deadline > self.now, "job {number} outlived its deadline");
                }
            }
        }
    }

    /// What is owed once everything is quiet: nothing.
    fn settle(mut self) -> Sums {
        let fates = lock(&self.fates).clone();
        assert!(fates.iter().all(|fate| *fate == Fate::Ended), "a job hangs");
        let mut sums = Sums::default();
        let (mut attempts, mut allowed) = (0, 0);
        // A liar may keep what it owes to itself, and any other answer counts as a sign of life.
        let is_liar = |(_, wire): &(&LinkId, &Wire)| self.nodes[wire.node].lies;
        let liars = self.links.iter().filter(is_liar);
        let liars: Vec<LinkId> = liars.map(|(link, _)| *link).collect();
        for link in liars {
            self.happen(Happening::Cut { link });
        }
        for client in &mut self.clients {
            let stats = client.dispatcher.stats();
            assert_eq!(stats.in_flight, 0, "jobs are left");
            assert_eq!(client.dispatcher.callbacks_open, 0);
            for node in &mut client.dispatcher.nodes {
                assert_eq!(node.late_replies, 0, "late replies are left");
                let in_flight = node
                    .connection()
                    .map_or(0, |connection| connection.in_flight());
                assert_eq!(in_flight, 0, "a connection counts jobs that are gone");
            }
            client.dispatcher.trim_hedges();
            let waiting = client.dispatcher.hedging.as_ref();
            assert!(waiting.is_none_or(|hedging| hedging.waits_for_none()));
            let totals = stats.totals;
            assert_eq!(totals.hedges, totals.hedge_wins + totals.hedge_losses);
            assert!(totals.hedges <= 5 + totals.jobs / 20, "too many hedges");
            let retries = totals.retries;
            let retried = retries.connection_lost
                + retries.busy
                + retries.draining
                + retries.failed
                + retries.no_such_key
                + retries.not_offered
                + retries.key_refused;
            allowed += totals.jobs + retried + totals.hedges;
            sums.add(&Sums {
                succeeded: totals.succeeded,
                failed: totals.failed,
                retries: retried,
                hedge_wins: totals.hedge_wins,
                hedge_losses: totals.hedge_losses,
                late: totals.late_completions,
                lost: stats.nodes.iter().map(|node| node.counters.lost).sum(),
                cancelled: totals.cancelled,
            });
            for key in &client.keys {
                client.dispatcher.close_key(key.id);
            }
            assert_eq!(client.dispatcher.stats().keys, 0, "keys are left");
            client.dispatcher.close();
            assert!(client.dispatcher.outbox().callbacks.is_empty());
        }
        for (job, arrivals) in &self.arrivals {
            // Three tries, and a hedge for each.
            assert!(*arrivals <= 6, "job {job} was sent {arrivals} times");
            attempts += u64::from(*arrivals);
        }
        assert!(
            attempts <= allowed,
            "{attempts} attempts, {allowed} allowed"
        );
        for wire in self.links.values() {
            assert!(wire.computing.is_empty() && wire.session.idle());
        }
        sums
    }

    // ---- what happens -------------------------------------------------------------------------

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Connected { client, node } => self.connected(client, node),
            Happening::ToNode { link, bytes } => self.node_reads(link, &bytes),
            Happening::ToClient { link, bytes } => self.client_reads(link, &bytes),
            Happening::Cut { link } => {
                if let Some(wire) = self.links.remove(&link) {
                    let now = self.time();
                    let client = &mut self.clients[wire.client];
                    client.links[wire.node] = None;
                    let why = "the node closed the connection".to_owned();
                    client.dispatcher.handle_lost(wire.node, why, now);
                    self.pump(wire.client);
                }
            }
            Happening::Computed { link, job, result } => self.computed(link, job, result),
            Happening::Submit { client } => self.submit(client),
            Happening::CallerLooks {
                client,
                caller,
                job,
            } => {
                self.look(client, caller, job);
            }
            Happening::Cancel { client } => {
                let client = &mut self.clients[client];
                if !client.handles.is_empty() {
                    let index = pick(&mut self.random, client.handles.len());
                    client.dispatcher.cancel(client.handles[index]);
                }
            }
            Happening::CloseKey { client } => {
                let index = self.pick(KEYS);
                let client = &mut self.clients[client];
                client.dispatcher.close_key(client.keys[index].id);
                client.keys[index] = new_key(index);
            }
            Happening::Trouble { node } => self.trouble(node),
            Happening::Recovered { node } => {
                let node = &mut self.nodes[node];
                (node.up, node.draining) = (true, false);
            }
        }
    }

    fn submit(&mut self, client: usize) {
        let millis = 1 + self.below(800);
        let deadline = self.now + millis;
        let is_caller = self.one_in(4);
        let key = self.pick(KEYS);
        let now = self.time();
        let fates = Arc::clone(&self.fates);
        let number = lock(&fates).len() as u64;
        let owner = if is_caller {
            Owner::Caller { waiter: None }
        } else {
            Owner::Callback(Box::new(move |result| {
                end(&fates, number, &result.map(Some))
            }))
        };
        let mut input = vec![0; 32];
        input[..8].copy_from_slice(&number.to_le_bytes());
        let operation = Operation::EcdsaSign { hash: Hash::Sha256 };
        let request = Request::Operation { operation, input };
        let client_index = client;
        let client = &mut self.clients[client];
        let due = now + Duration::from_millis(millis.into());
        let job = Job::new(Arc::clone(&client.keys[key]), request, owner, due);
        let Ok(id) = client.dispatcher.submit(job, now) else {
            return;
        };
        lock(&self.fates).push(Fate::Open { deadline });
        if is_caller {
            let client = client_index;
            for at in [self.now + self.below(millis), deadline] {
                let happening = Happening::CallerLooks {
                    client,
                    caller: id,
                    job: number,
                };
                self.at(at, happening);
            }
        } else {
            client.handles.push(id);
        }
    }

    /// A blocked caller looks for its answer, and gives up at its deadline.
    fn look(&mut self, client: usize, caller: JobRef, job: u64) {
        let Fate::Open { deadline } = lock(&self.fates)[usize::try_from(job).expect("few")] else {
            return;
        };
        let dispatcher = &mut self.clients[client].dispatcher;
        if let Some(answer) = dispatcher.take_done(caller) {
            assert!(dispatcher.take_done(caller).is_none(), "answered twice");
            end(&self.fates, job, &answer);
        } else if deadline <= self.now {
            dispatcher.give_up(caller);
            end(&self.fates, job, &Err(ClientError::TimedOut));
        }
    }

    fn connected(&mut self, client: usize, node: usize) {
        let now = self.time();
        if !self.nodes[node].up {
            let dispatcher = &mut self.clients[client].dispatcher;
            return dispatcher.handle_lost(node, "connection refused".to_owned(), now);
        }
        let link = self.next_link;
        self.next_link += 1;
        let rules = Arc::clone(&self.nodes[node].rules);
        let quota = Arc::new(Quota::new(None, now));
        let session = SessionState::new(rules, Arc::from("uid:1"), quota);
        self.links.insert(
            link,
            Wire {
                client,
                node,
                to_node_from: self.now,
                to_client_from: self.now,
                session,
                decoder: Decoder::new(),
                inputs: HashMap::new(),
                computing: BTreeSet::new(),
                draining: false,
            },
        );
        self.clients[client].links[node] = Some(link);
        self.clients[client].dispatcher.handle_connected(node, now);
        if self.nodes[node].draining {
            self.drain(link);
        }
        if self.one_in(8) {
            // It will be cut in the middle of something.
            let at = self.now + self.below(SCRIPT_MS);
            self.at(at, Happening::Cut { link });
        }
    }

    /// A node dies, drains, hangs or becomes slow; after a while it is well again.
    fn trouble(&mut self, node: usize) {
        let links: Vec<LinkId> = self
            .links
            .iter()
            .filter(|(_, wire)| wire.node == node)
            .map(|(link, _)| *link)
            .collect();
        match self.below(4) {
            0 => {
                self.nodes[node].up = false;
                for link in links {
                    let at = self.now + self.below(3);
                    self.at(at, Happening::Cut { link });
                }
            }
            1 => {
                self.nodes[node].draining = true;
                for link in links {
                    self.drain(link);
                }
            }
            2 => {
                // The links stall in one direction or both; pings find it out, if it lasts.
                let until = self.now + self.below(1500);
                for link in links {
                    let choice = self.below(3);
                    let wire = self.links.get_mut(&link).expect("listed above");
                    if choice != 1 {
                        wire.to_node_from = wire.to_node_from.max(until);
                    }
                    if choice != 0 {
                        wire.to_client_from = wire.to_client_from.max(until);
                    }
                }
            }
            _ => self.nodes[node].slowness = 1 + self.below(1200),
        }
        let at = self.now + self.below(1000);
        self.at(at, Happening::Recovered { node });
    }

    fn drain(&mut self, link: LinkId) {
        let mut effects = Effects::default();
        if let Some(wire) = self.links.get_mut(&link) {
            wire.session.drain(&mut effects);
            wire.draining = true;
        }
        self.apply(link, effects);
    }

    // ---- bytes --------------------------------------------------------------------------------

    /// Moves what a client has to say, and delivers its answers.
    fn pump(&mut self, client: usize) {
        while let Some(node) = self.clients[client].dispatcher.poll_connect() {
            let at = self.now + self.below(5);
            self.at(at, Happening::Connected { client, node });
        }
        while let Some(node) = self.clients[client].dispatcher.poll_close() {
            // A lost link is gone already; one that the client gives up ends here.
            if let Some(link) = self.clients[client].links[node].take() {
                self.links.remove(&link);
            }
        }
        let outbox = mem::take(self.clients[client].dispatcher.outbox());
        for (callback, result) in outbox.callbacks {
            callback(result);
        }
        for node in 0..self.nodes.len() {
            let Some(link) = self.clients[client].links[node] else {
                continue;
            };
            let Some(out) = self.clients[client].dispatcher.poll_output(node) else {
                continue;
            };
            let bytes = out.pending().to_vec();
            out.consume(bytes.len());
            self.send(link, &bytes, true);
        }
    }

    /// Puts bytes on a link, in pieces.
    fn send(&mut self, link: LinkId, mut bytes: &[u8], to_node: bool) {
        while !bytes.is_empty() {
            let length = if self.one_in(4) {
                1 + self.pick(bytes.len())
            } else {
                bytes.len()
            };
            let (piece, rest) = bytes.split_at(length);
            bytes = rest;
            let (now, delay) = (self.now, self.below(3));
            let Some(wire) = self.links.get_mut(&link) else {
                return;
            };
            let from = if to_node {
                &mut wire.to_node_from
            } else {
                &mut wire.to_client_from
            };
            *from = (*from).max(now + delay);
            let (at, bytes) = (*from, piece.to_vec());
            let happening = if to_node {
                Happening::ToNode { link, bytes }
            } else {
                Happening::ToClient { link, bytes }
            };
            self.at(at, happening);
        }
    }

    fn client_reads(&mut self, link: LinkId, mut bytes: &[u8]) {
        let now = self.time();
        while !bytes.is_empty() {
            let Some(wire) = self.links.get(&link) else {
                return;
            };
            let (client, node) = (wire.client, wire.node);
            let dispatcher = &mut self.clients[client].dispatcher;
            let Some(connection) = dispatcher.connection(node) else {
                return;
            };
            let space = connection.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            connection.filled(count, now);
            bytes = &bytes[count..];
            dispatcher.handle_received(node, now);
            self.pump(client);
        }
    }

    fn node_reads(&mut self, link: LinkId, mut bytes: &[u8]) {
        let now = self.time();
        while !bytes.is_empty() {
            let Some(wire) = self.links.get_mut(&link) else {
                return;
            };
            let space = wire.decoder.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            wire.decoder.filled(count);
            bytes = &bytes[count..];
            let mut effects = Effects::default();
            while let Some(message) = wire
                .decoder
                .next()
                .expect("a client that keeps to the rules")
            {
                if let ClientMessage::Submit(jobs) = &message {
                    for job in jobs {
                        let number = number_in(&job.input);
                        wire.inputs.insert(job.id, number);
                        *self.arrivals.entry(number).or_default() += 1;
                    }
                }
                let keys = &self.nodes[wire.node].keys;
                wire.session
                    .receive(message, now, keys, &mut effects)
                    .expect("a client that keeps to the rules");
            }
            self.apply(link, effects);
        }
    }

    // ---- nodes --------------------------------------------------------------------------------

    /// Does what a session asks for.
    fn apply(&mut self, link: LinkId, effects: Effects<u8>) {
        let Effects {
            replies,
            jobs,
            refused,
            cancels,
            ..
        } = effects;
        for reply in replies {
            self.say(link, &reply);
        }
        let refused = refused
            .into_iter()
            .map(|(id, error)| completion(id, Err(error)));
        let refused: Vec<JobCompletion> = refused.collect();
        if !refused.is_empty() {
            self.say(link, &NodeMessage::Complete(refused));
        }
        for job in jobs {
            self.compute(link, &job);
        }
        for job in cancels {
            // The engine may be too late for it.
            if self.one_in(2) {
                let at = self.now + self.below(3);
                let result = Err(JobError::Cancelled);
                self.at(at, Happening::Computed { link, job, result });
            }
        }
        self.close_if_drained(link);
    }

    /// The engine stub: every job ends once, by its deadline.
    fn compute(&mut self, link: LinkId, job: &ReadyJob<u8>) {
        let Some(wire) = self.links.get_mut(&link) else {
            return;
        };
        wire.computing.insert(job.id);
        let node = &self.nodes[wire.node];
        let (lies, slowness, failing) = (node.lies, node.slowness, node.failing);
        let takes = self.below(slowness + 1);
        let fails = failing > 0 && self.one_in(failing);
        let left = job.deadline.saturating_duration_since(self.time());
        let left = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        let (takes, result) = if takes >= left {
            (left, Err(JobError::Expired))
        } else if fails {
            let all = JobError::ALL;
            (takes, Err(all[pick(&mut self.random, all.len())]))
        } else {
            (takes, Ok(number_in(&job.input)))
        };
        let (at, job) = (self.now + takes, job.id);
        self.at(at, Happening::Computed { link, job, result });
        if lies {
            self.lie(link, job);
        }
    }

    fn computed(&mut self, link: LinkId, job: JobId, result: Result<u64, JobError>) {
        let Some(wire) = self.links.get_mut(&link) else {
            return;
        };
        if !wire.computing.remove(&job) {
            return;
        }
        assert!(wire.session.completed(job), "the session knows the job");
        self.say(link, &NodeMessage::Complete(vec![completion(job, result)]));
        self.close_if_drained(link);
    }

    fn close_if_drained(&mut self, link: LinkId) {
        let done = self
            .links
            .get(&link)
            .is_some_and(|wire| wire.draining && wire.session.idle());
        if done && self.one_in(2) {
            let at = self.now + 1 + self.below(20);
            let from = self.links[&link].to_client_from;
            self.at(at.max(from), Happening::Cut { link });
        }
    }

    /// Answers under ids that are guessed, used up or of the other connections, twice, or with garbage.
    fn lie(&mut self, link: LinkId, job: JobId) {
        let Wire { client, inputs, .. } = &self.links[&link];
        let others: BTreeSet<JobId> = self
            .links
            .values()
            .filter(|wire| wire.client == *client)
            .flat_map(|wire| wire.inputs.keys().copied())
            .filter(|id| !inputs.contains_key(id))
            .collect();
        let others: Vec<JobId> = others.into_iter().collect();
        let number = inputs[&job];
        match self.below(8) {
            // Twice.
            0 => {
                let twice = [number; 2].map(|number| completion(job, Ok(number)));
                self.say(link, &NodeMessage::Complete(twice.into()));
            }
            // For a job that another node has.
            1 if !others.is_empty() => {
                let id = others[self.pick(others.len())];
                let forged = completion(id, Ok(u64::MAX));
                self.say(link, &NodeMessage::Complete(vec![forged]));
            }
            // For another attempt of the same job.
            2 => {
                let id = job ^ u64::from(1 + self.below(255));
                let made = self.links[&link].inputs.contains_key(&id);
                if !made {
                    self.say(
                        link,
                        &NodeMessage::Complete(vec![completion(id, Ok(number))]),
                    );
                }
            }
            // Garbage.
            3 => {
                let garbage: Vec<u8> = (0..1 + self.below(40)).map(|_| self.byte()).collect();
                self.send(link, &garbage, false);
            }
            // An answer to a request that was not made.
            4 => self.say(link, &opened(u32::MAX - 7)),
            _ => {}
        }
    }

    fn say(&mut self, link: LinkId, message: &NodeMessage) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send(link, &bytes, false);
    }

    // ---- time and chance ----------------------------------------------------------------------

    fn at(&mut self, at: u32, happening: Happening) {
        self.agenda
            .insert((at.max(self.now), self.next_happening), happening);
        self.next_happening += 1;
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

impl Client {
    fn new(nodes: usize, random: &mut Random, start: Instant) -> Self {
        let endpoints = (0..nodes).map(|n| Endpoint::Unix(format!("/{n}").into()));
        let hedge = match random.below(3) {
            0 => Hedge::Off,
            1 => Hedge::After(Duration::from_millis(u64::from(5 + random.below(40)))),
            _ => Hedge::Adaptive,
        };
        let config = PoolConfig::new(endpoints.collect())
            .max_in_flight(MAX_IN_FLIGHT)
            .max_keys(KEYS + 1)
            .hedge(hedge);
        let mut dispatcher = Dispatcher::new(&config, start);
        dispatcher.random = Random::seeded(u64::from(random.below(u32::MAX)));
        Self {
            dispatcher,
            keys: (0..KEYS).map(new_key).collect(),
            links: vec![None; nodes],
            handles: Vec::new(),
        }
    }
}

impl SimNode {
    fn new(random: &mut Random) -> Self {
        let rules = Rules {
            node: format!("n{}", random.below(1000)),
            allow_import: false,
            max_in_flight: 2 + random.below(20),
            max_keys: 64,
            max_budget: Duration::from_secs(10),
        };
        // The last keys may be missing, or be other keys by the same name.
        let missing = usize::from(random.below(4) == 0);
        let foreign = random.below(8) == 0;
        let keys = (0..KEYS - missing).map(|key| {
            let other = u8::from(foreign && key == KEYS - 1);
            let info = KeyInfo {
                key_type: KeyType::Ec(Curve::P256),
                spki: vec![1 + other; 91],
            };
            let policy = KeyPolicy {
                identities: vec!["*".to_owned()],
                ..KeyPolicy::signing()
            };
            Arc::new(KeyEntry::new(&format!("k{key}"), 0, info, policy))
        });
        Self {
            rules: Arc::new(rules),
            keys: keys.collect(),
            up: random.below(8) != 0,
            draining: false,
            lies: random.below(6) == 0,
            slowness: 1 + random.below(60),
            failing: if random.below(3) == 0 {
                2 + random.below(10)
            } else {
                0
            },
        }
    }
}

/// The job's owner gets its answer.
fn end(fates: &Mutex<Vec<Fate>>, number: u64, answer: &Answer) {
    let index = usize::try_from(number).expect("few");
    let fate = mem::replace(&mut lock(fates)[index], Fate::Ended);
    assert_ne!(fate, Fate::Ended, "job {number} ended twice");
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

fn new_key(number: usize) -> Arc<KeyData> {
    let selector = KeySelector::Name(format!("k{number}"));
    Arc::new(KeyData::new(KeySource::Selector(selector)))
}

fn pick(random: &mut Random, bound: usize) -> usize {
    random.below(u32::try_from(bound.max(1)).expect("small")) as usize
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
