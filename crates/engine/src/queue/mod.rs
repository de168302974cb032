// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The queue of one class: bounded, and fair between owners, then between the sessions of one owner.
//! Pure: time is an argument.
//!
//! ```text
//!  owner A (weight 2) ─┬─ session 1: ▪▪▪▪▪▪▪▪       the owner with the least virtual time is next;
//!                      └─ session 2: ▪▪              its sessions take turns, one job a turn
//!  owner B (weight 1) ─── session 3: ▪
//! ```
//!
//! **Time.** Each owner has a virtual time: the cost of the jobs that it was given, divided by its weight
//! (start-time fair queueing). The owner with the least virtual time is served next, so owners that always
//! have jobs waiting are served in proportion to their weights, however many sessions or jobs each has. An
//! owner that comes back starts at the least virtual time of those that wait: it is served next,
//! and gets no credit for its idle time.
//!
//! **Room.** While there is room, one owner may use all of it. In a full queue an owner that holds less than
//! its share ([`FairQueue::push`] states the bound) takes the place of the newest job of the owner that
//! exceeds its share the most.
//!
//! **Memory.** An owner is forgotten when none of its jobs waits or is in service, and the others have
//! caught up with its virtual time; all owners are when the class is idle.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// Virtual time that one unit of cost takes an owner of weight 1. Divided by weights up to
/// [`Owner::MAX_WEIGHT`], the cheapest job still costs a thousand steps, so rounding stays below 0.1 %.
const COST_SCALE: u128 = 1 << 20;

/// An owner that has nothing in service counts as below its share until it was given this many jobs more
/// than the others ([`FairQueue::pop_unserved`]). Virtual time stands still while the others' jobs are in
/// service, which workers take a turn of several jobs at once.
const AHEAD_JOBS: u128 = 16;

/// How long a class counts as shared after jobs of two owners met: long beside the gaps between the requests
/// of a gateway in use, so that a single operation of an otherwise idle owner finds the class ready for it.
const CONTENTION_LASTS: Duration = Duration::from_millis(100);

/// The party that fairness goes by: all sessions with the same `id` share one turn and one share of the
/// queue. The engine does not know what an owner stands for; a node has one for each identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    id: u64,
    weight: u32,
}

impl Owner {
    /// The largest weight. With a thousand to one, the owner with weight 1 gets one job in a thousand, which
    /// at 3 ms a job is within the time that a handshake waits.
    pub const MAX_WEIGHT: u32 = 1_000;

    /// The owner named `id`, which gets service in proportion to `weight` (clamped to 1 to
    /// [`Self::MAX_WEIGHT`]). Where the sessions of one owner give several weights, the job queued last
    /// decides.
    #[must_use]
    pub fn new(id: u64, weight: u32) -> Self {
        Self {
            id,
            weight: weight.clamp(1, Self::MAX_WEIGHT),
        }
    }

    pub(crate) fn id(self) -> u64 {
        self.id
    }

    pub(crate) fn weight(self) -> u32 {
        self.weight
    }
}

/// What the queue needs to know of the jobs in it.
pub(crate) trait Waiting {
    fn owner(&self) -> Owner;
    fn session(&self) -> u64;
    /// Names the job within its session.
    fn id(&self) -> u64;
    /// When the job is useless.
    fn deadline(&self) -> Instant;
    /// Estimated service time, in any unit that all jobs of the queue share; at least 1.
    fn cost(&self) -> u32;
}

/// Jobs that wait, by owner and session.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    owners: HashMap<u64, OwnedJobs<T>>,
    /// Owners with jobs waiting: (virtual time, owner).
    order: BTreeSet<(u128, u64)>,
    /// Owners with no job waiting or in service that were given more than the others: (virtual time, owner).
    ahead: BTreeSet<(u128, u64)>,
    /// The least virtual time of an owner with jobs waiting, when a job was last taken.
    virtual_time: u128,
    /// Jobs that wait.
    len: usize,
    /// Jobs that workers hold.
    in_service: usize,
    /// Sum of the weights of the owners in `order`.
    weights: u64,
    limit: usize,
    session_limit: usize,
    /// No job here has an earlier deadline (it may be later: removals do not raise it).
    earliest_deadline: Option<Instant>,
}

/// What the queue holds of one owner.
#[derive(Debug)]
struct OwnedJobs<T> {
    weight: u32,
    virtual_time: u128,
    sessions: HashMap<u64, VecDeque<T>>,
    /// Sessions with jobs waiting, each once, next turn first.
    turns: VecDeque<u64>,
    waiting: usize,
    in_service: usize,
}

impl<T: Waiting> OwnedJobs<T> {
    fn new(virtual_time: u128) -> Self {
        Self {
            weight: 1,
            virtual_time,
            sessions: HashMap::new(),
            turns: VecDeque::new(),
            waiting: 0,
            in_service: 0,
        }
    }

    /// Updates the weight. An owner without waiting jobs restarts at the current virtual time.
    fn enter(&mut self, owner: Owner, now: u128) {
        self.weight = owner.weight;
        if self.waiting == 0 {
            self.virtual_time = self.virtual_time.max(now);
        }
    }

    fn push(&mut self, job: T) {
        let session = job.session();
        let line = self.sessions.entry(session).or_default();
        if line.is_empty() {
            self.turns.push_back(session);
        }
        line.push_back(job);
        self.waiting += 1;
    }

    /// The next job, in turn.
    fn pop(&mut self) -> Option<T> {
        let session = self.turns.pop_front()?;
        let line = self.sessions.get_mut(&session)?;
        let job = line.pop_front();
        if line.is_empty() {
            self.sessions.remove(&session);
        } else {
            self.turns.push_back(session);
        }
        self.waiting -= usize::from(job.is_some());
        job
    }

    /// The newest job of the session with the most jobs. Linear in the sessions.
    fn evict(&mut self) -> Option<T> {
        let longest = self
            .sessions
            .iter()
            .max_by_key(|(session, line)| (line.len(), **session));
        let session = *longest?.0;
        let job = self.sessions.get_mut(&session)?.pop_back();
        self.waiting -= usize::from(job.is_some());
        self.forget_if_empty(session);
        job
    }

    fn remove(&mut self, session: u64, id: u64) -> Option<T> {
        let line = self.sessions.get_mut(&session)?;
        let position = line.iter().position(|job| job.id() == id)?;
        let job = line.remove(position);
        self.waiting -= usize::from(job.is_some());
        self.forget_if_empty(session);
        job
    }

    fn remove_session(&mut self, session: u64) -> VecDeque<T> {
        let line = self.sessions.remove(&session).unwrap_or_default();
        self.waiting -= line.len();
        self.turns.retain(|turn| *turn != session);
        line
    }

    fn forget_if_empty(&mut self, session: u64) {
        if self.sessions.get(&session).is_some_and(VecDeque::is_empty) {
            self.remove_session(session);
        }
    }

    /// Moves what has expired to `expired` and returns the earliest deadline of the rest.
    fn remove_expired(&mut self, now: Instant, expired: &mut Vec<T>) -> Option<Instant> {
        for line in self.sessions.values_mut() {
            // One turn of the line, which keeps the order of what stays.
            for _ in 0..line.len() {
                let Some(job) = line.pop_front() else { break };
                if job.deadline() <= now {
                    self.waiting -= 1;
                    expired.push(job);
                } else {
                    line.push_back(job);
                }
            }
        }
        self.sessions.retain(|_, line| !line.is_empty());
        self.turns.retain(|turn| self.sessions.contains_key(turn));
        self.sessions
            .values()
            .flatten()
            .map(Waiting::deadline)
            .min()
    }

    fn remove_all(&mut self) -> Vec<T> {
        self.waiting = 0;
        self.turns.clear();
        self.sessions.drain().flat_map(|(_, line)| line).collect()
    }

    /// Charges the owner for jobs of this cost.
    fn charge(&mut self, cost: u32) {
        self.virtual_time += self.time_of(cost);
    }

    fn time_of(&self, cost: u32) -> u128 {
        u128::from(cost) * COST_SCALE / u128::from(self.weight)
    }

    /// Whether the owner's virtual time leads the queue's by at most [`AHEAD_JOBS`] jobs of the cost of its next one.
    fn is_below_share(&self, now: u128) -> bool {
        let next = self
            .turns
            .front()
            .and_then(|session| self.sessions.get(session)?.front());
        let ahead = self.virtual_time.saturating_sub(now);
        next.is_some_and(|job| ahead <= AHEAD_JOBS * self.time_of(job.cost()))
    }
}

impl<T: Waiting> FairQueue<T> {
    /// A queue that holds at most `limit` jobs, and at most `session_limit` of one session.
    pub(crate) fn new(limit: usize, session_limit: usize) -> Self {
        Self {
            owners: HashMap::new(),
            order: BTreeSet::new(),
            ahead: BTreeSet::new(),
            virtual_time: 0,
            len: 0,
            in_service: 0,
            weights: 0,
            limit,
            session_limit,
            earliest_deadline: None,
        }
    }

    /// Adds a job. Returns the job that is refused for it, if there was no room: this one, or one that
    /// waited.
    ///
    /// A job is refused if its session has `session_limit` jobs waiting. In a queue of `limit` jobs it is
    /// refused if its owner has `limit × weight / weights` jobs waiting, rounded down, where `weights` is the
    /// sum over all owners with jobs waiting and this one. Below that it takes the place of another owner's
    /// job. Where that share is less than one job, it takes a place only from an owner that has several.
    pub(crate) fn push(&mut self, job: T) -> Option<T> {
        let (owner, session, deadline) = (job.owner(), job.session(), job.deadline());
        let line = self
            .owners
            .get(&owner.id)
            .and_then(|owned| owned.sessions.get(&session));
        if line.map_or(0, VecDeque::len) >= self.session_limit {
            return Some(job);
        }
        let mut evicted = None;
        if self.len >= self.limit {
            let Some(gives_way) = self.gives_way_to(owner) else {
                return Some(job);
            };
            evicted = self.update(gives_way, OwnedJobs::evict).flatten();
        }
        let now = self.virtual_time;
        self.owners
            .entry(owner.id)
            .or_insert_with(|| OwnedJobs::new(now));
        self.update(owner.id, |owned| {
            owned.enter(owner, now);
            owned.push(job);
        });
        let earliest = self.earliest_deadline.get_or_insert(deadline);
        *earliest = deadline.min(*earliest);
        evicted
    }

    /// The owner whose newest job gives way to a job of `owner` in a full queue. Linear in the owners.
    fn gives_way_to(&self, owner: Owner) -> Option<u64> {
        let known = self.owners.get(&owner.id);
        let holds = known.map_or(0, |owned| owned.waiting) as u64;
        let counted = known.filter(|_| holds > 0).map_or(0, |owned| owned.weight);
        let weights = self.weights - u64::from(counted) + u64::from(owner.weight);
        let limit = self.limit as u64;
        let share = limit * u64::from(owner.weight) / weights;
        if holds >= share.max(1) {
            return None;
        }
        let owners = self.order.iter().map(|(_, id)| (*id, &self.owners[id]));
        // An owner that holds less than its share leaves another one that holds more.
        let over = owners.filter(|(_, owned)| {
            let several = share > 0 || owned.waiting > 1;
            several && owned.waiting as u64 * weights > limit * u64::from(owned.weight)
        });
        // The most jobs for its weight: compared without a division.
        let jobs = |a: &OwnedJobs<T>, b: &OwnedJobs<T>| a.waiting as u64 * u64::from(b.weight);
        over.max_by(|(_, a), (_, b)| jobs(a, b).cmp(&jobs(b, a)))
            .map(|(id, _)| id)
    }

    /// Takes up to `max` jobs, those of the owner with the least virtual time first. Jobs whose deadline has
    /// passed go to `expired` and do not count. What goes to `ready` is in service until [`Self::release`].
    pub(crate) fn pop(
        &mut self,
        max: usize,
        now: Instant,
        ready: &mut Vec<T>,
        expired: &mut Vec<T>,
    ) {
        let end = ready.len() + max;
        while ready.len() < end {
            let Some(&(_, owner)) = self.order.first() else {
                break;
            };
            self.pop_of(owner, now, ready, expired);
        }
    }

    /// Takes up to `max` jobs of one owner that has nothing in service and was not given more than the
    /// others, if there is one: of such owners the one with the least virtual time.
    pub(crate) fn pop_unserved(
        &mut self,
        max: usize,
        now: Instant,
        ready: &mut Vec<T>,
        expired: &mut Vec<T>,
    ) {
        let Some(owner) = self.unserved() else {
            return;
        };
        let end = ready.len() + max;
        while ready.len() < end
            && self
                .owners
                .get(&owner)
                .is_some_and(|owned| owned.waiting > 0)
        {
            self.pop_of(owner, now, ready, expired);
        }
    }

    /// Whether [`Self::pop_unserved`] would take something.
    pub(crate) fn has_unserved(&self) -> bool {
        self.unserved().is_some()
    }

    fn unserved(&self) -> Option<u64> {
        if self.in_service == 0 {
            // A worker is on its way.
            return None;
        }
        let owners = self.order.iter().map(|(_, id)| (*id, &self.owners[id]));
        let mut unserved = owners.filter(|(_, owned)| owned.in_service == 0);
        unserved
            .find(|(_, owned)| owned.is_below_share(self.virtual_time))
            .map(|(id, _)| id)
    }

    /// Takes the next job of an owner.
    fn pop_of(&mut self, owner: u64, now: Instant, ready: &mut Vec<T>, expired: &mut Vec<T>) {
        // The least virtual time, not this owner's: his may be ahead, and the others would lose what is due to
        // them.
        if let Some((least, _)) = self.order.first() {
            self.virtual_time = self.virtual_time.max(*least);
        }
        self.update(owner, |owned| match owned.pop() {
            Some(job) if job.deadline() <= now => expired.push(job),
            Some(job) => {
                owned.charge(job.cost());
                owned.in_service += 1;
                ready.push(job);
            }
            None => {}
        });
        self.forget_overtaken();
    }

    /// Puts jobs into service that never waited, and charges their owner for their cost together. To be
    /// used only while nothing waits.
    pub(crate) fn pass(&mut self, owner: Owner, jobs: usize, cost: u32) {
        let now = self.virtual_time;
        self.owners
            .entry(owner.id)
            .or_insert_with(|| OwnedJobs::new(now));
        let start = self.update(owner.id, |owned| {
            owned.enter(owner, now);
            owned.in_service += jobs;
            let start = owned.virtual_time;
            owned.charge(cost);
            start
        });
        self.virtual_time = start.unwrap_or(now);
        self.forget_overtaken();
    }

    /// Ends the service of jobs of one owner.
    pub(crate) fn release(&mut self, owner: u64, jobs: usize) {
        self.update(owner, |owned| {
            owned.in_service = owned.in_service.saturating_sub(jobs)
        });
    }

    /// Takes one job out, wherever it stands. Linear in the jobs of its session.
    pub(crate) fn remove(&mut self, owner: u64, session: u64, id: u64) -> Option<T> {
        self.update(owner, |owned| owned.remove(session, id))
            .flatten()
    }

    /// Takes out everything of one session.
    pub(crate) fn remove_session(&mut self, owner: u64, session: u64) -> VecDeque<T> {
        self.update(owner, |owned| owned.remove_session(session))
            .unwrap_or_default()
    }

    /// Takes out everything.
    pub(crate) fn remove_all(&mut self) -> Vec<T> {
        let owners: Vec<u64> = self.order.iter().map(|(_, id)| *id).collect();
        let lines = owners
            .into_iter()
            .filter_map(|owner| self.update(owner, OwnedJobs::remove_all));
        lines.flatten().collect()
    }

    /// Takes out what has expired. Does nothing, at no cost, before the earliest deadline.
    pub(crate) fn remove_expired(&mut self, now: Instant, expired: &mut Vec<T>) {
        if self.earliest_deadline.is_none_or(|earliest| earliest > now) {
            return;
        }
        let owners: Vec<u64> = self.order.iter().map(|(_, id)| *id).collect();
        let earliest = owners.into_iter().filter_map(|owner| {
            self.update(owner, |owned| owned.remove_expired(now, expired))
                .flatten()
        });
        self.earliest_deadline = earliest.min();
    }

    /// Jobs that wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether no job waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Owners with jobs waiting.
    pub(crate) fn owners_waiting(&self) -> usize {
        self.order.len()
    }

    /// Changes what is held of an owner, and everything that follows from it: the order, the sums, and
    /// whether the owner is still to be remembered.
    fn update<R>(&mut self, owner: u64, change: impl FnOnce(&mut OwnedJobs<T>) -> R) -> Option<R> {
        let owned = self.owners.get_mut(&owner)?;
        let place = (owned.virtual_time, owner);
        self.len -= owned.waiting;
        self.in_service -= owned.in_service;
        if self.order.remove(&place) {
            self.weights -= u64::from(owned.weight);
        } else {
            self.ahead.remove(&place);
        }
        let result = change(owned);
        let place = (owned.virtual_time, owner);
        self.len += owned.waiting;
        self.in_service += owned.in_service;
        if owned.waiting > 0 {
            self.weights += u64::from(owned.weight);
            self.order.insert(place);
        } else if owned.in_service > 0 {
            // In neither set: it comes back with its next job or its last completion.
        } else if owned.virtual_time > self.virtual_time {
            self.ahead.insert(place);
        } else {
            self.owners.remove(&owner);
        }
        if self.len == 0 && self.in_service == 0 {
            self.owners.clear();
            self.ahead.clear();
            self.earliest_deadline = None;
        }
        Some(result)
    }

    /// Forgets owners that the others have caught up with.
    fn forget_overtaken(&mut self) {
        while self
            .ahead
            .first()
            .is_some_and(|(time, _)| *time <= self.virtual_time)
        {
            if let Some((_, owner)) = self.ahead.pop_first() {
                self.owners.remove(&owner);
            }
        }
    }
}

/// Whether several owners use a class at present. Pure: time is an argument.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    last_owner: Option<u64>,
    /// Until when the class counts as shared, though one owner alone submits.
    until: Option<Instant>,
}

impl Contention {
    /// Records a submission; returns whether two owners submitted within [`CONTENTION_LASTS`].
    pub(crate) fn note(&mut self, owner: u64, now: Instant) -> bool {
        if self
            .last_owner
            .replace(owner)
            .is_some_and(|last| last != owner)
        {
            self.until = Some(now + CONTENTION_LASTS);
        }
        self.until.is_some_and(|until| now < until)
    }
}
