// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The waiting jobs of one owner, by member and session.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::{COST_SCALE, Owner, PriorityLevel, Waiting};

/// Jobs of one owner in the queue.
#[derive(Debug)]
pub(super) struct OwnedJobs<T> {
    pub(super) weight: u32,
    pub(super) level: PriorityLevel,
    pub(super) virtual_time: u128,
    pub(super) members: HashMap<u64, Member<T>>,
    /// Members with jobs waiting, each once, next turn first.
    pub(super) turns: VecDeque<u64>,
    pub(super) waiting: usize,
    /// Cost of the jobs that wait.
    pub(super) backlog: u64,
    pub(super) in_service: usize,
}

/// Jobs of one member of an owner in the queue.
#[derive(Debug)]
pub(super) struct Member<T> {
    pub(super) sessions: HashMap<u64, VecDeque<T>>,
    /// Sessions with jobs waiting, each once, next turn first.
    pub(super) turns: VecDeque<u64>,
    pub(super) waiting: usize,
}

impl<T> Default for Member<T> {
    fn default() -> Self {
        Self { sessions: HashMap::new(), turns: VecDeque::new(), waiting: 0 }
    }
}

impl<T: Waiting> Member<T> {
    pub(super) fn push(&mut self, job: T) {
        let session = job.session();
        let line = self.sessions.entry(session).or_default();
        if line.is_empty() {
            self.turns.push_back(session);
        }
        line.push_back(job);
        self.waiting += 1;
    }

    /// The next job, in turn.
    pub(super) fn pop(&mut self) -> Option<T> {
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

    pub(super) fn peek(&self) -> Option<&T> {
        self.sessions.get(self.turns.front()?)?.front()
    }

    /// The newest job of the session with the most jobs. Linear in the sessions.
    pub(super) fn evict(&mut self) -> Option<T> {
        let longest = self.sessions.iter().max_by_key(|(session, line)| (line.len(), **session));
        let session = *longest?.0;
        let job = self.sessions.get_mut(&session)?.pop_back();
        self.waiting -= usize::from(job.is_some());
        self.forget_if_empty(session);
        job
    }

    pub(super) fn remove(&mut self, session: u64, id: u64) -> Option<T> {
        let line = self.sessions.get_mut(&session)?;
        let position = line.iter().position(|job| job.id() == id)?;
        let job = line.remove(position);
        self.waiting -= usize::from(job.is_some());
        self.forget_if_empty(session);
        job
    }

    pub(super) fn remove_session(&mut self, session: u64) -> VecDeque<T> {
        let line = self.sessions.remove(&session).unwrap_or_default();
        self.waiting -= line.len();
        self.turns.retain(|turn| *turn != session);
        line
    }

    pub(super) fn forget_if_empty(&mut self, session: u64) {
        if self.sessions.get(&session).is_some_and(VecDeque::is_empty) {
            self.remove_session(session);
        }
    }

    pub(super) fn remove_expired(&mut self, now: Instant, expired: &mut Vec<T>) {
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
    }

    pub(super) fn jobs(&self) -> impl Iterator<Item = &T> {
        self.sessions.values().flatten()
    }
}

impl<T: Waiting> OwnedJobs<T> {
    pub(super) fn new(level: PriorityLevel, virtual_time: u128) -> Self {
        Self {
            weight: 1,
            level,
            virtual_time,
            members: HashMap::new(),
            turns: VecDeque::new(),
            waiting: 0,
            backlog: 0,
            in_service: 0,
        }
    }

    /// Updates weight and level. `now` is the virtual time of the level. An owner without waiting jobs restarts
    /// there, and so does one that comes from another level.
    pub(super) fn enter(&mut self, owner: Owner, now: u128) {
        self.weight = owner.weight;
        if self.level != owner.level {
            self.level = owner.level;
            self.virtual_time = now;
        } else if self.waiting == 0 {
            self.virtual_time = self.virtual_time.max(now);
        }
    }

    pub(super) fn push(&mut self, job: T) {
        let id = job.owner().member;
        let member = self.members.entry(id).or_default();
        if member.waiting == 0 {
            self.turns.push_back(id);
        }
        self.waiting += 1;
        self.backlog += u64::from(job.cost());
        member.push(job);
    }

    /// The next job, in turn.
    pub(super) fn pop(&mut self) -> Option<T> {
        let id = self.turns.pop_front()?;
        let member = self.members.get_mut(&id)?;
        let job = member.pop();
        if member.waiting == 0 {
            self.members.remove(&id);
        } else {
            self.turns.push_back(id);
        }
        self.gone(job.iter());
        job
    }

    /// The newest job of the member with the most jobs, of its session with the most. Linear in the members.
    pub(super) fn evict(&mut self) -> Option<T> {
        let longest = self.members.iter().max_by_key(|(id, member)| (member.waiting, **id));
        let id = *longest?.0;
        let job = self.members.get_mut(&id)?.evict();
        self.forget_if_empty(id);
        self.gone(job.iter());
        job
    }

    pub(super) fn remove(&mut self, member: u64, session: u64, id: u64) -> Option<T> {
        let job = self.members.get_mut(&member)?.remove(session, id);
        self.forget_if_empty(member);
        self.gone(job.iter());
        job
    }

    pub(super) fn remove_session(&mut self, member: u64, session: u64) -> VecDeque<T> {
        let Some(of_member) = self.members.get_mut(&member) else {
            return VecDeque::new();
        };
        let jobs = of_member.remove_session(session);
        self.forget_if_empty(member);
        self.gone(jobs.iter());
        jobs
    }

    pub(super) fn forget_if_empty(&mut self, member: u64) {
        let known = self.members.get(&member);
        if known.is_some_and(|member| member.waiting == 0) {
            self.members.remove(&member);
            self.turns.retain(|turn| *turn != member);
        }
    }

    /// Subtracts jobs that wait no longer.
    pub(super) fn gone<'a>(&mut self, jobs: impl Iterator<Item = &'a T>)
    where
        T: 'a,
    {
        for job in jobs {
            self.waiting -= 1;
            self.backlog -= u64::from(job.cost());
        }
    }

    /// Moves what has expired to `expired` and returns the earliest deadline of the rest.
    pub(super) fn remove_expired(&mut self, now: Instant, expired: &mut Vec<T>) -> Option<Instant> {
        let known = expired.len();
        for member in self.members.values_mut() {
            member.remove_expired(now, expired);
        }
        self.members.retain(|_, member| member.waiting > 0);
        self.turns.retain(|turn| self.members.contains_key(turn));
        self.gone(expired[known..].iter());
        let jobs = self.members.values().flat_map(Member::jobs);
        jobs.map(Waiting::deadline).min()
    }

    pub(super) fn remove_all(&mut self) -> Vec<T> {
        self.waiting = 0;
        self.backlog = 0;
        self.turns.clear();
        let members = self.members.drain().map(|(_, member)| member.sessions);
        members.flat_map(HashMap::into_values).flatten().collect()
    }

    /// Whether another owner holds more jobs for its weight: compared without a division.
    pub(super) fn holds_less_than(&self, other: &Self) -> bool {
        self.waiting as u64 * u64::from(other.weight)
            < other.waiting as u64 * u64::from(self.weight)
    }

    /// Charges the owner for jobs of this cost.
    pub(super) fn charge(&mut self, cost: u32) {
        self.virtual_time += self.time_of(cost);
    }

    pub(super) fn time_of(&self, cost: u32) -> u128 {
        u128::from(cost) * COST_SCALE / u128::from(self.weight)
    }

    pub(super) fn next_cost(&self) -> Option<u32> {
        let next = self.members.get(self.turns.front()?)?.peek()?;
        Some(next.cost())
    }
}
