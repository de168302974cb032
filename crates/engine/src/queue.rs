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
//! owner that comes back starts at the least virtual time of those that wait: it is next, but has no claim on the time
//! in which it asked for nothing.
//!
//! **Room.** While there is room, one owner may use all of it. In a full queue an owner that holds less than
//! its share ([`FairQueue::push`] states the bound) takes the place of the newest job of the owner that
//! exceeds its share the most.
//!
//! **Memory.** An owner is forgotten when none of its jobs waits or is in service, and the others have
//! caught up with its virtual time; all owners are when the class is idle.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

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

    /// Takes notice that jobs of the owner arrive.
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

    /// Whether the owner was given no more than [`AHEAD_JOBS`] of its next job beyond what the others were.
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
        // Not the time of this owner: that may be ahead, and would take the others' lag from them.
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
    /// Takes notice of jobs of an owner, and returns whether another one submitted any lately.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Item {
        owner: Owner,
        session: u64,
        id: u64,
        deadline: Instant,
        cost: u32,
    }

    impl Waiting for Item {
        fn owner(&self) -> Owner {
            self.owner
        }
        fn session(&self) -> u64 {
            self.session
        }
        fn id(&self) -> u64 {
            self.id
        }
        fn deadline(&self) -> Instant {
            self.deadline
        }
        fn cost(&self) -> u32 {
            self.cost
        }
    }

    /// A queue with a time that stands still, and the names of what it gave out.
    struct Fixture {
        queue: FairQueue<Item>,
        now: Instant,
        later: Instant,
    }

    impl Fixture {
        fn new(limit: usize, session_limit: usize) -> Self {
            let now = Instant::now();
            let later = now + Duration::from_secs(1);
            Self {
                queue: FairQueue::new(limit, session_limit),
                now,
                later,
            }
        }

        fn item(&self, owner: Owner, session: u64, id: u64) -> Item {
            Item {
                owner,
                session,
                id,
                deadline: self.later,
                cost: 1,
            }
        }

        /// Adds a job of an owner of weight 1 that has one session. What was refused: (owner, id).
        fn push(&mut self, owner: u64, id: u64) -> Option<(u64, u64)> {
            let item = self.item(Owner::new(owner, 1), owner, id);
            self.queue.push(item).map(|item| (item.owner.id, item.id))
        }

        /// (owner, id) of up to `max` jobs.
        fn pop(&mut self, max: usize) -> Vec<(u64, u64)> {
            let (mut ready, mut expired) = (Vec::new(), Vec::new());
            self.queue.pop(max, self.now, &mut ready, &mut expired);
            ready.iter().map(|item| (item.owner.id, item.id)).collect()
        }

        fn pop_unserved(&mut self) -> Vec<(u64, u64)> {
            let (mut ready, mut expired) = (Vec::new(), Vec::new());
            self.queue
                .pop_unserved(1, self.now, &mut ready, &mut expired);
            ready.iter().map(|item| (item.owner.id, item.id)).collect()
        }

        fn waiting(&self, owner: u64) -> usize {
            self.queue
                .owners
                .get(&owner)
                .map_or(0, |owned| owned.waiting)
        }

        /// Compares every sum and set with what the jobs say.
        fn check(&self) {
            let queue = &self.queue;
            let owners = || queue.owners.values();
            assert_eq!(
                queue.len,
                owners().map(|owned| owned.waiting).sum::<usize>()
            );
            assert_eq!(
                queue.in_service,
                owners().map(|owned| owned.in_service).sum::<usize>()
            );
            for (id, owned) in &queue.owners {
                let held: usize = owned.sessions.values().map(VecDeque::len).sum();
                assert_eq!(owned.waiting, held);
                assert_eq!(owned.turns.len(), owned.sessions.len());
                assert!(
                    owned
                        .turns
                        .iter()
                        .all(|session| !owned.sessions[session].is_empty())
                );
                let place = (owned.virtual_time, *id);
                assert_eq!(queue.order.contains(&place), held > 0);
                let idle = held == 0 && owned.in_service == 0;
                assert_eq!(queue.ahead.contains(&place), idle);
                assert!(!idle || owned.virtual_time > queue.virtual_time);
            }
            let waiting = || owners().filter(|owned| owned.waiting > 0);
            assert_eq!(
                queue.weights,
                waiting().map(|owned| u64::from(owned.weight)).sum::<u64>()
            );
            assert_eq!(queue.order.len(), waiting().count());
            let idle = owners()
                .filter(|owned| owned.waiting + owned.in_service == 0)
                .count();
            assert_eq!(queue.ahead.len(), idle);
            assert!(queue.len + queue.in_service > 0 || queue.owners.is_empty());
            assert!(queue.len <= queue.limit);
        }
    }

    #[test]
    fn owners_take_turns_however_many_jobs_each_has() {
        let mut fixture = Fixture::new(100, 100);
        for id in 0..4 {
            assert_eq!(fixture.push(1, id), None);
        }
        fixture.push(2, 0);
        assert_eq!(fixture.pop(3), [(1, 0), (2, 0), (1, 1)]);
        fixture.push(2, 1);
        assert_eq!(fixture.pop(9), [(2, 1), (1, 2), (1, 3)]);
        assert!(fixture.queue.is_empty());
        fixture.check();
    }

    #[test]
    fn sessions_of_one_owner_share_its_turn() {
        let mut fixture = Fixture::new(100, 100);
        let (many, one) = (Owner::new(1, 1), Owner::new(2, 1));
        for id in 0..2 {
            for session in 10..30 {
                fixture.queue.push(fixture.item(many, session, id));
            }
            fixture.queue.push(fixture.item(one, 1, id));
        }
        // Twenty sessions: first those of the first turn, one job each, and every other job the other's.
        let served = fixture.pop(4);
        assert_eq!(served.iter().filter(|(owner, _)| *owner == 2).count(), 2);
        fixture.pop(18);
        assert_eq!(
            fixture.pop(20).iter().filter(|(_, id)| *id == 1).count(),
            20
        );
    }

    #[test]
    fn an_owner_that_comes_back_is_next_but_has_saved_nothing() {
        let mut fixture = Fixture::new(100, 100);
        for id in 0..40 {
            fixture.push(1, id);
        }
        fixture.pop(20);
        for id in 0..10 {
            fixture.push(2, id);
        }
        let served = fixture.pop(10);
        assert_eq!(served[0], (2, 0));
        assert_eq!(served.iter().filter(|(owner, _)| *owner == 2).count(), 5);
    }

    #[test]
    fn expensive_job_counts_as_many_cheap_ones() {
        let mut fixture = Fixture::new(1_000, 1_000);
        for id in 0..100 {
            let mut dear = fixture.item(Owner::new(1, 1), 1, id);
            dear.cost = 10;
            fixture.queue.push(dear);
            fixture.push(2, id);
        }
        let served = fixture.pop(55);
        assert_eq!(served.iter().filter(|(owner, _)| *owner == 1).count(), 5);
    }

    #[test]
    fn a_job_alone_for_its_owner_is_charged_like_one_of_many() {
        // One job of the first owner at a time: nothing of it waits when the next one is chosen.
        let mut fixture = Fixture::new(1_000, 1_000);
        for id in 0..200 {
            fixture.push(2, id);
        }
        let mut served = [0_u32; 2];
        for id in 0..100 {
            let mut dear = fixture.item(Owner::new(1, 1), 1, id);
            dear.cost = 9;
            if fixture.waiting(1) == 0 {
                fixture.queue.push(dear);
            }
            for (owner, _) in fixture.pop(1) {
                fixture.queue.release(owner, 1);
                served[usize::from(owner == 2)] += 1;
            }
            fixture.check();
        }
        assert!((9..=11).contains(&served[0]), "{served:?}");
    }

    #[test]
    fn bounds_hold_at_their_edge_and_one_past_it() {
        let mut fixture = Fixture::new(4, 3);
        for id in 0..3 {
            assert_eq!(fixture.push(1, id), None);
        }
        // The session is full, the queue is not.
        assert_eq!(fixture.push(1, 3), Some((1, 3)));
        let other = fixture.item(Owner::new(1, 1), 9, 3);
        assert!(fixture.queue.push(other).is_none());
        // The queue is full of one owner: another one's share is two, and it takes the newest jobs' places.
        assert_eq!(fixture.push(2, 0), Some((1, 2)));
        assert_eq!(fixture.push(2, 1), Some((1, 1)));
        assert_eq!(fixture.push(2, 2), Some((2, 2)));
        // Of three owners each one's share is one.
        assert!(fixture.push(3, 0).is_some_and(|(owner, _)| owner != 3));
        assert_eq!(fixture.push(3, 1), Some((3, 1)));
        assert!(fixture.push(4, 0).is_some_and(|(owner, _)| owner < 3));
        // Of five the share is none, and no owner has several.
        assert_eq!(fixture.push(5, 0), Some((5, 0)));
        fixture.check();
    }

    #[test]
    fn shares_of_the_queue_go_by_weight() {
        let mut fixture = Fixture::new(100, 100);
        for id in 0..100 {
            assert_eq!(fixture.push(1, id), None);
        }
        let heavy = Owner::new(2, 4);
        let refused = (0..100).map(|id| fixture.queue.push(fixture.item(heavy, 2, id)));
        let refused: Vec<u64> = refused.flatten().map(|item| item.owner.id).collect();
        assert_eq!(refused, [vec![1; 80], vec![2; 20]].concat());
        assert_eq!((fixture.waiting(1), fixture.waiting(2)), (20, 80));
    }

    #[test]
    fn weights_are_bounded() {
        assert_eq!(Owner::new(1, 0), Owner::new(1, 1));
        assert_eq!(Owner::new(1, u32::MAX), Owner::new(1, Owner::MAX_WEIGHT));
    }

    #[test]
    fn only_an_owner_with_nothing_in_service_is_unserved() {
        let mut fixture = Fixture::new(1_000, 1_000);
        for id in 0..500 {
            fixture.push(1, id);
        }
        fixture.pop(1);
        assert!(fixture.pop_unserved().is_empty());
        fixture.push(2, 0);
        fixture.push(2, 1);
        assert_eq!(fixture.pop_unserved(), [(2, 0)]);
        assert!(!fixture.queue.has_unserved());
        fixture.queue.release(2, 1);
        assert_eq!(fixture.pop_unserved(), [(2, 1)]);
    }

    #[test]
    fn an_owner_that_was_given_more_than_the_others_is_not_unserved() {
        let mut fixture = Fixture::new(1_000, 1_000);
        for id in 0..500 {
            fixture.push(1, id);
        }
        fixture.pop(1);
        let mut served = 0;
        for id in 0..100 {
            fixture.push(2, id);
            served += fixture.pop_unserved().len();
            fixture.queue.release(2, 1);
        }
        // The others wait at a virtual time of one job.
        assert_eq!(served as u128, AHEAD_JOBS + 2);
        fixture.pop(90);
        assert!(
            fixture.waiting(1) < 500 - 1,
            "the others were served in between"
        );
    }

    #[test]
    fn idle_owners_are_forgotten() {
        let mut fixture = Fixture::new(100, 100);
        for id in 0..4 {
            fixture.push(1, id);
            fixture.push(2, id);
        }
        fixture.pop(8);
        assert_eq!(fixture.queue.owners.len(), 2);
        fixture.queue.release(1, 4);
        fixture.queue.release(2, 4);
        assert_eq!(fixture.queue.owners.len(), 0);
        fixture.queue.pass(Owner::new(3, 1), 2, 2);
        assert_eq!(fixture.queue.owners.len(), 1);
        fixture.queue.release(3, 2);
        assert_eq!(fixture.queue.owners.len(), 0);
        fixture.check();
    }

    #[test]
    fn an_expired_job_is_set_aside_and_does_not_count() {
        let mut fixture = Fixture::new(9, 9);
        let mut late = fixture.item(Owner::new(1, 1), 1, 0);
        late.deadline = fixture.now;
        fixture.queue.push(late);
        fixture.push(1, 1);
        let (mut ready, mut expired) = (Vec::new(), Vec::new());
        fixture.queue.pop(1, fixture.now, &mut ready, &mut expired);
        assert_eq!((ready.len(), expired.len()), (1, 1));
        assert_eq!(ready[0].id, 1);
    }

    #[test]
    fn expired_jobs_are_found_without_a_pop_and_order_is_kept() {
        let mut fixture = Fixture::new(9, 9);
        let soon = fixture.now + Duration::from_millis(10);
        for (owner, id, is_soon) in [(1, 0, false), (1, 1, true), (1, 2, false), (2, 0, true)] {
            let mut item = fixture.item(Owner::new(owner, 1), owner, id);
            item.deadline = if is_soon { soon } else { fixture.later };
            fixture.queue.push(item);
        }
        let mut expired = Vec::new();
        fixture.queue.remove_expired(fixture.now, &mut expired);
        assert!(expired.is_empty());
        fixture.queue.remove_expired(soon, &mut expired);
        assert_eq!(expired.len(), 2);
        fixture.check();
        assert_eq!(fixture.pop(9), [(1, 0), (1, 2)]);
    }

    #[test]
    fn one_job_or_one_session_can_be_taken_out() {
        let mut fixture = Fixture::new(9, 9);
        fixture.push(1, 0);
        fixture.push(2, 0);
        fixture.push(2, 1);
        assert!(fixture.queue.remove(1, 1, 7).is_none());
        assert!(fixture.queue.remove(3, 3, 0).is_none());
        assert_eq!(fixture.queue.remove(1, 1, 0).map(|item| item.id), Some(0));
        assert_eq!(fixture.queue.remove_session(2, 2).len(), 2);
        assert!(fixture.queue.is_empty());
        assert!(fixture.pop(9).is_empty());
    }

    #[test]
    fn class_counts_as_shared_for_a_while_after_two_owners_met() {
        let now = Instant::now();
        let mut contention = Contention::default();
        assert!(!contention.note(1, now));
        assert!(!contention.note(1, now));
        assert!(contention.note(2, now));
        assert!(contention.note(2, now + CONTENTION_LASTS / 2));
        assert!(!contention.note(2, now + CONTENTION_LASTS));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push {
            owner: u64,
            session: u64,
            cost: u32,
            expires: bool,
        },
        Pop(usize),
        PopUnserved,
        Pass(u64),
        Release(u64),
        Remove {
            owner: u64,
            session: u64,
            id: u64,
        },
        CloseSession {
            owner: u64,
            session: u64,
        },
        Expire,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let (owner, session) = (1_u64..5, 0_u64..3);
        let push = (
            owner.clone(),
            session.clone(),
            1_u32..50,
            prop::bool::weighted(0.2),
        );
        let step = prop_oneof![
            8 => push.prop_map(|(owner, session, cost, expires)| {
                Step::Push { owner, session, cost, expires }
            }),
            2 => (1_usize..6).prop_map(Step::Pop),
            1 => Just(Step::PopUnserved),
            1 => owner.clone().prop_map(Step::Pass),
            3 => owner.clone().prop_map(Step::Release),
            1 => (owner.clone(), session.clone(), 0_u64..60)
                .prop_map(|(owner, session, id)| Step::Remove { owner, session, id }),
            1 => (owner, session).prop_map(|(owner, session)| Step::CloseSession { owner, session }),
            1 => Just(Step::Expire),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        // The same cases in every run: what fails is found again.
        #![proptest_config(ProptestConfig {
            rng_seed: RngSeed::Fixed(1),
            ..ProptestConfig::with_cases(128)
        })]

        #[test]
        fn each_job_leaves_once_in_order_and_no_owner_below_its_share_is_refused(
            steps in steps(),
            limit in 1_usize..20,
            weights in prop::array::uniform5(1_u32..6),
        ) {
            let mut fixture = Fixture::new(limit, 8);
            let owner = |id: u64| Owner::new(id, weights[usize::try_from(id).unwrap()]);
            let soon = fixture.now + Duration::from_millis(1);
            // What the queue must hold, and what is in service.
            let mut waiting: Vec<Item> = Vec::new();
            let mut in_service: HashMap<u64, usize> = HashMap::new();
            for (id, step) in (0_u64..).zip(steps) {
                let mut left: Vec<Item> = Vec::new();
                match step {
                    Step::Push { owner: name, session, cost, expires } => {
                        let deadline = if expires { soon } else { fixture.later };
                        // Sessions belong to one owner.
                        let session = name * 10 + session;
                        let item = Item { owner: owner(name), session, id, deadline, cost };
                        let held = waiting.iter().filter(|held| held.owner.id == name).count();
                        let line = waiting.iter().filter(|held| held.session == session).count();
                        let mut owners: Vec<u64> = waiting.iter().map(|held| held.owner.id).collect();
                        owners.push(name);
                        owners.sort_unstable();
                        owners.dedup();
                        let sum: u32 = owners.iter().map(|id| owner(*id).weight).sum();
                        let share = limit * owner(name).weight as usize / sum as usize;
                        waiting.push(item);
                        if let Some(refused) = fixture.queue.push(item) {
                            if refused == item {
                                prop_assert!(line == 8 || waiting.len() > limit && held >= share);
                            } else {
                                prop_assert!(waiting.len() > limit && held < share.max(1));
                                let newest = waiting.iter().rfind(|held| held.session == refused.session);
                                prop_assert_eq!(newest, Some(&refused));
                                let owner_of = |held: &&Item| held.owner.id == refused.owner.id;
                                let had = waiting.iter().filter(owner_of).count();
                                let weight = refused.owner.weight as usize;
                                prop_assert!(had * sum as usize > limit * weight);
                            }
                            left.push(refused);
                        }
                    }
                    Step::Pop(max) => {
                        let (mut ready, mut expired) = (Vec::new(), Vec::new());
                        let now = if max == 5 { soon } else { fixture.now };
                        fixture.queue.pop(max, now, &mut ready, &mut expired);
                        prop_assert_eq!(ready.len() + expired.len() > 0, !waiting.is_empty());
                        for item in &ready {
                            *in_service.entry(item.owner.id).or_default() += 1;
                        }
                        left.extend(ready.into_iter().chain(expired));
                        in_turn(&waiting, &left)?;
                    }
                    Step::PopUnserved => {
                        let (mut ready, mut expired) = (Vec::new(), Vec::new());
                        let any = fixture.queue.has_unserved();
                        fixture.queue.pop_unserved(1, fixture.now, &mut ready, &mut expired);
                        prop_assert_eq!(!ready.is_empty(), any);
                        for item in &ready {
                            let before = in_service.insert(item.owner.id, 1);
                            prop_assert_eq!(before.unwrap_or(0), 0);
                        }
                        left.extend(ready);
                        in_turn(&waiting, &left)?;
                    }
                    Step::Pass(name) => {
                        if waiting.is_empty() {
                            fixture.queue.pass(owner(name), 1, 1);
                            *in_service.entry(name).or_default() += 1;
                        }
                    }
                    Step::Release(owner) => {
                        if let Some(jobs) = in_service.get_mut(&owner).filter(|jobs| **jobs > 0) {
                            *jobs -= 1;
                            fixture.queue.release(owner, 1);
                        }
                    }
                    Step::Remove { owner, session, id } => {
                        left.extend(fixture.queue.remove(owner, owner * 10 + session, id));
                    }
                    Step::CloseSession { owner, session } => {
                        left.extend(fixture.queue.remove_session(owner, owner * 10 + session));
                    }
                    Step::Expire => {
                        let before = waiting.iter().filter(|item| item.deadline <= soon).count();
                        fixture.queue.remove_expired(soon, &mut left);
                        prop_assert_eq!(left.len(), before);
                    }
                }
                for gone in left {
                    let place = waiting.iter().position(|item| *item == gone);
                    waiting.remove(place.expect("a job leaves once"));
                }
                fixture.check();
                prop_assert_eq!(fixture.queue.len(), waiting.len());
            }
            prop_assert_eq!(fixture.queue.remove_all().len(), waiting.len());
            fixture.check();
        }

        #[test]
        fn owners_that_always_wait_are_served_in_proportion_to_their_weights(
            weights in prop::collection::vec(1_u32..10, 2..6),
            costs in prop::collection::vec(1_u32..20, 6),
            turn in 1_usize..9,
        ) {
            let mut fixture = Fixture::new(1_000, 1_000);
            let mut served = vec![0_u64; weights.len()];
            let mut id = 0;
            let mut top_up = |fixture: &mut Fixture, index: usize, jobs: usize| {
                let owner = Owner::new(index as u64, weights[index]);
                for _ in 0..jobs {
                    let mut item = fixture.item(owner, index as u64 * 10 + id % 3, id);
                    item.cost = costs[index];
                    id += 1;
                    assert!(fixture.queue.push(item).is_none());
                }
            };
            for index in 0..weights.len() {
                // However many wait: the first owner has the most.
                top_up(&mut fixture, index, if index == 0 { 300 } else { 9 });
            }
            for _ in 0..400 {
                for (owner, _) in fixture.pop(turn) {
                    let index = usize::try_from(owner).unwrap();
                    served[index] += u64::from(costs[index]);
                    fixture.queue.release(owner, 1);
                    top_up(&mut fixture, index, 1);
                }
            }
            let rates = || served.iter().zip(&weights).map(|(served, weight)| served / u64::from(*weight));
            let (least, most) = (rates().min().unwrap(), rates().max().unwrap());
            prop_assert!(most - least <= 20 + 20 / 10, "{:?} for {:?}", served, weights);
        }
    }

    /// Jobs of one session leave in the order in which they came.
    fn in_turn(waiting: &[Item], left: &[Item]) -> Result<(), TestCaseError> {
        for item in left {
            let earlier = |held: &&Item| held.session == item.session && held.id < item.id;
            for held in waiting.iter().filter(earlier) {
                prop_assert!(left.contains(held), "{} left before {}", item.id, held.id);
            }
        }
        Ok(())
    }
}
