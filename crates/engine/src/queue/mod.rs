// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The queue of one class: bounded, and fair between owners, then between the members of one owner, then between the
//! sessions of one member. Pure: time is an argument.
//!
//! ```text
//!  level    owner                      member            session
//!  high   ─ A (weight 2) ─┬─ identity 1 ─┬─ connection 1: ▪▪▪▪▪▪▪▪
//!                         │              └─ connection 2: ▪▪
//!                         └─ identity 2 ──── connection 3: ▪
//!  normal ─ B (weight 1) ─── identity 3 ──── connection 4: ▪
//! ```
//!
//! **Time.** Each owner has a virtual time: the cost of the jobs that it was given, divided by its weight
//! (start-time fair queueing, Goyal and others 1996). The owner of a level with the least virtual time is served next,
//! so owners that always have jobs waiting are served in proportion to their weights, however many members, sessions
//! or jobs each has. An owner that comes back starts at the least virtual time of those that wait: it is served next,
//! and gets no credit for its idle time. Members of an owner take turns, one job a turn, and so do the sessions of a
//! member.
//!
//! **Levels.** The three levels are served in the same way, with [`LEVEL_WEIGHTS`]: a level that uses less than its
//! part of the time is served before all lower ones, and none is starved, however many owners a level has.
//!
//! **Room.** While there is room, one owner may use all of it. In a full queue an owner that holds less than
//! its share ([`FairQueue::push`] states the bound) takes the place of the newest job of the owner that
//! exceeds its share the most.
//!
//! **Service rate.** The queue measures how fast its jobs are taken while some wait, and projects the wait of a further
//! job from that ([`FairQueue::projected_wait`]). The engine refuses at once a job that would start too late.
//!
//! **Memory.** An owner is forgotten when none of its jobs waits or is in service, and the others have
//! caught up with its virtual time; all owners are when the class is idle.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

#[cfg(test)]
mod burst_tests;
#[cfg(test)]
mod overload_tests;
mod owned;
mod owner;
mod rate;
#[cfg(test)]
mod tests;

use self::owned::OwnedJobs;
use self::owner::LEVEL_WEIGHTS;
pub use self::owner::{Owner, PriorityLevel};
pub(crate) use self::rate::Contention;
use self::rate::{Bursts, ServiceRate};

/// Virtual time that one unit of cost takes an owner of weight 1. Divided by weights up to
/// [`Owner::MAX_WEIGHT`], the cheapest job still costs a thousand steps, so rounding stays below 0.1 %.
const COST_SCALE: u128 = 1 << 20;

/// Slack for [`FairQueue::pop_unserved`], in jobs: virtual time advances only when a worker takes a turn of several
/// jobs, so an owner may run this far ahead of the others before it counts as above its share.
const AHEAD_JOBS: u128 = 16;

/// Owners of a level that [`FairQueue::pop_unserved`] looks at, those that were given least. One that has just come is
/// among them; with more of them waiting, each is served in its turn.
const MOST_LOOKED_AT: usize = 64;

/// The shortest pause of a client whose job would be too late, as a divisor of the projected wait. A shorter pause
/// costs the node more refused jobs. After a longer one clients come back together, and the wait that is projected for
/// the first of them is too short: with a quarter of it and 20 clients, 4 to 7 % of the jobs are late
/// (`overload_tests.rs`).
const MIN_PAUSE_DIVISOR: u32 = 16;

/// Properties of a job that the queue needs.
pub(crate) trait Waiting {
    fn owner(&self) -> Owner;
    fn session(&self) -> u64;
    /// Names the job within its session.
    fn id(&self) -> u64;
    /// Time after which the result of the job is useless.
    fn deadline(&self) -> Instant;
    /// Estimated service time, in any unit that all jobs of the queue share; at least 1.
    fn cost(&self) -> u32;
}

/// Jobs that wait, by level, owner, member and session.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    owners: HashMap<u64, OwnedJobs<T>>,
    levels: [LevelState; PriorityLevel::ALL.len()],
    /// The time of the level that was served last, when it was chosen.
    level_time: u128,
    /// Jobs that wait.
    len: usize,
    /// Jobs that workers hold.
    in_service: usize,
    /// Sum of the weights of the owners with jobs waiting.
    weights: u64,
    limit: usize,
    session_limit: usize,
    /// Lower bound on the deadlines of the jobs that wait: removals do not raise it.
    earliest_deadline: Option<Instant>,
    service_rate: ServiceRate,
    bursts: Bursts,
}

/// The owners of one level.
#[derive(Debug, Default)]
struct LevelState {
    /// Owners with jobs waiting: (virtual time, owner).
    order: BTreeSet<(u128, u64)>,
    /// Owners with no job waiting or in service that were given more than the others: (virtual time, owner).
    ahead: BTreeSet<(u128, u64)>,
    /// Owners with jobs in service: (jobs that wait or are in service, owner).
    served: BTreeSet<(usize, u64)>,
    /// The least virtual time of an owner with jobs waiting, when a job was last taken.
    virtual_time: u128,
    /// Cost of the jobs that this level was given, divided by its weight.
    time: u128,
    /// Sum of the weights of the owners in `order`.
    weights: u64,
    /// Cost of the jobs that wait.
    backlog: u64,
}

impl LevelState {
    /// Charges the level for jobs of this cost.
    fn charge(&mut self, level: PriorityLevel, cost: u32) {
        self.time += u128::from(cost) * COST_SCALE / LEVEL_WEIGHTS[level.index()];
    }
}

impl<T: Waiting> FairQueue<T> {
    /// A queue that holds at most `limit` jobs, and at most `session_limit` of one session.
    pub(crate) fn new(limit: usize, session_limit: usize) -> Self {
        Self {
            owners: HashMap::new(),
            levels: Default::default(),
            level_time: 0,
            len: 0,
            in_service: 0,
            weights: 0,
            limit,
            session_limit,
            earliest_deadline: None,
            service_rate: ServiceRate::default(),
            bursts: Bursts::default(),
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
        let owner = job.owner();
        let session = job.session();
        let deadline = job.deadline();
        let known = self.owners.get(&owner.id);
        let member = known.and_then(|owned| owned.members.get(&owner.member));
        let line = member.and_then(|member| member.sessions.get(&session));
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
        self.enter(owner, |owned| owned.push(job));
        let earliest = self.earliest_deadline.get_or_insert(deadline);
        *earliest = deadline.min(*earliest);
        evicted
    }

    /// Changes what is held of an owner that may be new, or come with another weight or level.
    fn enter<R>(&mut self, owner: Owner, change: impl FnOnce(&mut OwnedJobs<T>) -> R) -> Option<R> {
        let now = self.levels[owner.level.index()].virtual_time;
        self.owners.entry(owner.id).or_insert_with(|| OwnedJobs::new(owner.level, now));
        self.update(owner.id, |owned| {
            owned.enter(owner, now);
            change(owned)
        })
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
        let mut largest: Option<(u64, &OwnedJobs<T>)> = None;
        for (_, id) in self.levels.iter().flat_map(|level| &level.order) {
            let owned = &self.owners[id];
            let several = share > 0 || owned.waiting > 1;
            // An owner that holds less than its share leaves another one that holds more.
            let over = owned.waiting as u64 * weights > limit * u64::from(owned.weight);
            if several && over && largest.is_none_or(|(_, known)| !owned.holds_less_than(known)) {
                largest = Some((*id, owned));
            }
        }
        largest.map(|(id, _)| id)
    }

    /// Time that a further job of `owner` would wait, by the measured rate. `None` before the rate was measured, and
    /// for an owner with no job waiting, which is served next in its level.
    ///
    /// Before that job come the waiting jobs of its owner, and what the others are due while those are served.
    pub(crate) fn projected_wait(&self, owner: Owner) -> Option<Duration> {
        let own = self.owners.get(&owner.id).filter(|owned| owned.waiting > 0)?;
        let level = &self.levels[own.level.index()];
        let due = own.backlog.saturating_mul(level.weights) / u64::from(own.weight);
        let of_level = u128::from(due.min(level.backlog));
        let others = PriorityLevel::ALL.into_iter().filter(|other| *other != own.level);
        let of_others = others.map(|other| {
            let [part, own_part] = [other, own.level].map(|level| LEVEL_WEIGHTS[level.index()]);
            let backlog = u128::from(self.levels[other.index()].backlog);
            backlog.min(of_level * part / own_part)
        });
        self.service_rate.time_of(of_level + of_others.sum::<u128>())
    }

    /// Time for which a client should send no job like this one of `owner`; `None` if the job would start within its
    /// budget. After that time a job with the same budget is not too late.
    ///
    /// The pause is at least a sixteenth of the projected wait ([`MIN_PAUSE_DIVISOR`]). So one refusal serves for many
    /// jobs, and the queue cannot run dry before the client sends again.
    ///
    /// A quarter of the budget is kept for the way to the node and back, and for the error of the projection. Without
    /// it a node under twice its peak load served every job a few milliseconds too late (goodput 0.19 of the peak).
    pub(crate) fn retry_after(&self, owner: Owner, budget: Duration) -> Option<Duration> {
        let wait = self.projected_wait(owner)?;
        let late = wait.checked_sub(budget - budget / 4)?;
        (!late.is_zero()).then(|| late.max(wait / MIN_PAUSE_DIVISOR))
    }

    /// Takes up to `max` jobs: of the level that is due, those of the owner with the least virtual time first. Jobs
    /// whose deadline has passed go to `expired` and do not count. What goes to `ready` is in service until
    /// [`Self::release`].
    pub(crate) fn pop(
        &mut self,
        max: usize,
        now: Instant,
        ready: &mut Vec<T>,
        expired: &mut Vec<T>,
    ) {
        let known = ready.len();
        let end = known + max;
        while ready.len() < end {
            let busy = self.levels.iter().filter(|level| !level.order.is_empty());
            let Some(level) = busy.min_by_key(|level| level.time) else {
                break;
            };
            let Some(&(_, owner)) = level.order.first() else {
                break;
            };
            self.level_time = self.level_time.max(level.time);
            self.pop_of(owner, now, ready, expired);
        }
        let taken = ready[known..].iter().map(|job| u64::from(job.cost())).sum();
        self.service_rate.note(taken, self.len > 0, now);
    }

    /// Takes up to `max` jobs of one owner that has nothing in service and leads the others by [`AHEAD_JOBS`] at most:
    /// of such owners of the highest level the one with the least virtual time.
    ///
    /// The caller may run before the workers, so an owner whose jobs come in bursts must not overtake the only job of
    /// another one. Two kinds of owners are therefore left to [`Self::pop`]:
    ///
    /// - An owner with more jobs than another one, of its level or a higher one, that is being served.
    /// - While none is being served, an owner with several jobs, now or lately ([`Bursts`]).
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
        let known = ready.len();
        let end = known + max;
        while ready.len() < end && self.owners.get(&owner).is_some_and(|owned| owned.waiting > 0) {
            self.pop_of(owner, now, ready, expired);
        }
        let taken = ready[known..].iter().map(|job| u64::from(job.cost())).sum();
        self.service_rate.note(taken, self.len > 0, now);
    }

    /// Whether [`Self::pop_unserved`] would take something.
    pub(crate) fn has_unserved(&self) -> bool {
        self.unserved().is_some()
    }

    /// Whether workers hold jobs of this queue.
    pub(crate) fn is_serving(&self) -> bool {
        self.in_service > 0
    }

    fn unserved(&self) -> Option<u64> {
        let serving = self.is_serving();
        let mut most = if serving { usize::MAX } else { 1 };
        self.levels.iter().find_map(|level| {
            let least = level.served.first().map_or(usize::MAX, |(jobs, _)| *jobs);
            most = most.min(least);
            let mut owners = level.order.iter().take(MOST_LOOKED_AT).map(|(_, id)| *id);
            owners.find(|id| {
                let owned = &self.owners[id];
                owned.in_service == 0
                    && owned.waiting <= most
                    && (serving || !self.bursts.has(*id))
                    && self.is_below_share(owned)
            })
        })
    }

    /// Whether the owner leads its level, and its level the others, by at most [`AHEAD_JOBS`] jobs of the cost of its
    /// next one.
    fn is_below_share(&self, owned: &OwnedJobs<T>) -> bool {
        let Some(cost) = owned.next_cost() else {
            return false;
        };
        let level = &self.levels[owned.level.index()];
        let ahead = owned.virtual_time.saturating_sub(level.virtual_time);
        let level_ahead = level.time.saturating_sub(self.level_time);
        let of_level = u128::from(cost) * COST_SCALE / LEVEL_WEIGHTS[owned.level.index()];
        ahead <= AHEAD_JOBS * owned.time_of(cost)
            && (self.is_only_level(owned.level) || level_ahead <= AHEAD_JOBS * of_level)
    }

    /// Whether no other level has jobs waiting.
    fn is_only_level(&self, level: PriorityLevel) -> bool {
        let mut others = PriorityLevel::ALL.into_iter().filter(|other| *other != level);
        others.all(|other| self.levels[other.index()].order.is_empty())
    }

    /// Takes the next job of an owner.
    fn pop_of(&mut self, owner: u64, now: Instant, ready: &mut Vec<T>, expired: &mut Vec<T>) {
        let Some(level) = self.owners.get(&owner).map(|owned| owned.level) else {
            return;
        };
        let state = &mut self.levels[level.index()];
        // The least virtual time, not this owner's own: that may be ahead, and the others would lose what is due
        // to them.
        if let Some((least, _)) = state.order.first() {
            state.virtual_time = state.virtual_time.max(*least);
        }
        self.bursts.pass(now);
        if self.owners.get(&owner).is_some_and(|owned| owned.waiting + owned.in_service > 1) {
            self.bursts.note(owner, now);
        }
        let cost = self.update(owner, |owned| match owned.pop() {
            Some(job) if job.deadline() <= now => {
                expired.push(job);
                0
            }
            Some(job) => {
                let cost = job.cost();
                owned.charge(cost);
                owned.in_service += 1;
                ready.push(job);
                cost
            }
            None => 0,
        });
        self.levels[level.index()].charge(level, cost.unwrap_or(0));
        self.forget_overtaken(level);
    }

    /// Puts jobs into service that never waited, and charges their owner for their cost together. To be
    /// used only while nothing waits.
    pub(crate) fn pass(&mut self, owner: Owner, jobs: usize, cost: u32) {
        let start = self.enter(owner, |owned| {
            owned.in_service += jobs;
            let start = owned.virtual_time;
            owned.charge(cost);
            start
        });
        let level = &mut self.levels[owner.level.index()];
        level.virtual_time = start.unwrap_or(level.virtual_time);
        level.time = level.time.max(self.level_time);
        self.level_time = level.time;
        level.charge(owner.level, cost);
        self.forget_overtaken(owner.level);
    }

    /// Ends the service of jobs of one owner.
    pub(crate) fn release(&mut self, owner: u64, jobs: usize) {
        self.update(owner, |owned| owned.in_service = owned.in_service.saturating_sub(jobs));
    }

    /// Takes one job out, wherever it stands. Linear in the jobs of its session.
    pub(crate) fn remove(&mut self, owner: Owner, session: u64, id: u64) -> Option<T> {
        self.update(owner.id, |owned| owned.remove(owner.member, session, id)).flatten()
    }

    /// Takes out everything of one session.
    pub(crate) fn remove_session(&mut self, owner: Owner, session: u64) -> VecDeque<T> {
        self.update(owner.id, |owned| owned.remove_session(owner.member, session))
            .unwrap_or_default()
    }

    /// Takes out everything.
    pub(crate) fn remove_all(&mut self) -> Vec<T> {
        let owners = self.waiting_owners().into_iter();
        let lines = owners.filter_map(|owner| self.update(owner, OwnedJobs::remove_all));
        lines.flatten().collect()
    }

    /// Takes out what has expired. Does nothing, at no cost, before the earliest deadline.
    pub(crate) fn remove_expired(&mut self, now: Instant, expired: &mut Vec<T>) {
        if self.earliest_deadline.is_none_or(|earliest| earliest > now) {
            return;
        }
        let owners = self.waiting_owners().into_iter();
        let earliest = owners.filter_map(|owner| {
            self.update(owner, |owned| owned.remove_expired(now, expired)).flatten()
        });
        self.earliest_deadline = earliest.min();
    }

    fn waiting_owners(&self) -> Vec<u64> {
        let owners = self.levels.iter().flat_map(|level| &level.order);
        owners.map(|(_, id)| *id).collect()
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
        self.levels.iter().map(|level| level.order.len()).sum()
    }

    /// Changes what is held of an owner, and everything that follows from it: the order, the sums, and
    /// whether the owner is still to be remembered.
    fn update<R>(&mut self, owner: u64, change: impl FnOnce(&mut OwnedJobs<T>) -> R) -> Option<R> {
        let idle = self.levels.each_ref().map(|level| level.order.is_empty());
        let owned = self.owners.get_mut(&owner)?;
        let place = (owned.virtual_time, owner);
        self.len -= owned.waiting;
        self.in_service -= owned.in_service;
        let level = &mut self.levels[owned.level.index()];
        level.backlog -= owned.backlog;
        level.served.remove(&(owned.waiting + owned.in_service, owner));
        if level.order.remove(&place) {
            self.weights -= u64::from(owned.weight);
            level.weights -= u64::from(owned.weight);
        } else {
            level.ahead.remove(&place);
        }
        let result = change(owned);
        let place = (owned.virtual_time, owner);
        self.len += owned.waiting;
        self.in_service += owned.in_service;
        let level = &mut self.levels[owned.level.index()];
        level.backlog += owned.backlog;
        if owned.in_service > 0 {
            level.served.insert((owned.waiting + owned.in_service, owner));
        }
        if owned.waiting > 0 {
            self.weights += u64::from(owned.weight);
            level.weights += u64::from(owned.weight);
            level.order.insert(place);
            if idle[owned.level.index()] {
                // As with owners: no credit for the time without jobs.
                level.time = level.time.max(self.level_time);
            }
        } else if owned.in_service > 0 {
            // In neither set: it comes back with its next job or its last completion.
        } else if owned.virtual_time > level.virtual_time {
            level.ahead.insert(place);
        } else {
            self.owners.remove(&owner);
        }
        if self.len == 0 && self.in_service == 0 {
            self.owners.clear();
            for level in &mut self.levels {
                level.ahead.clear();
                level.time = 0;
            }
            self.level_time = 0;
            self.earliest_deadline = None;
        }
        Some(result)
    }

    /// Forgets owners that the others have caught up with.
    fn forget_overtaken(&mut self, level: PriorityLevel) {
        let level = &mut self.levels[level.index()];
        while level.ahead.first().is_some_and(|(time, _)| *time <= level.virtual_time) {
            if let Some((_, owner)) = level.ahead.pop_first() {
                self.owners.remove(&owner);
            }
        }
    }
}
