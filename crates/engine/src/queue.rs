// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The queue of one class: bounded, and fair between sessions. Pure: time is an argument.
//!
//! Sessions take turns, one job a turn, so a session with a thousand jobs waiting delays another
//! session's single job by one job and not by a thousand.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// What the queue needs to know of the things in it.
pub(crate) trait Waiting {
    /// Whose turn it takes.
    fn session(&self) -> u64;
    /// Its name within the session.
    fn id(&self) -> u64;
    /// When it is useless.
    fn deadline(&self) -> Instant;
}

/// Jobs that wait, by session.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    waiting: HashMap<u64, VecDeque<T>>,
    /// Sessions with something waiting, each once, next turn first.
    turns: VecDeque<u64>,
    len: usize,
    limit: usize,
    session_limit: usize,
    /// No job here has an earlier deadline (it may be later: removals do not raise it).
    earliest_deadline: Option<Instant>,
}

impl<T: Waiting> FairQueue<T> {
    /// A queue that holds at most `limit` jobs, and at most `session_limit` of one session.
    pub(crate) fn new(limit: usize, session_limit: usize) -> Self {
        Self {
            waiting: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
            limit,
            session_limit,
            earliest_deadline: None,
        }
    }

    /// Adds a job, or gives it back if the queue or its session's share is full.
    pub(crate) fn push(&mut self, job: T) -> Result<(), T> {
        if self.len >= self.limit {
            return Err(job);
        }
        let session = job.session();
        let deadline = job.deadline();
        let line = self.waiting.entry(session).or_default();
        if line.len() >= self.session_limit {
            return Err(job);
        }
        if line.is_empty() {
            self.turns.push_back(session);
        }
        line.push_back(job);
        self.len += 1;
        self.earliest_deadline = Some(
            self.earliest_deadline
                .map_or(deadline, |earliest| earliest.min(deadline)),
        );
        Ok(())
    }

    /// Takes up to `max` jobs in turn into `ready`; those whose deadline has passed go to `expired`
    /// and do not count.
    pub(crate) fn pop(
        &mut self,
        max: usize,
        now: Instant,
        ready: &mut Vec<T>,
        expired: &mut Vec<T>,
    ) {
        let mut taken = 0;
        while taken < max {
            let Some(session) = self.turns.pop_front() else {
                break;
            };
            let Some(line) = self.waiting.get_mut(&session) else {
                continue;
            };
            if let Some(job) = line.pop_front() {
                self.len -= 1;
                if job.deadline() <= now {
                    expired.push(job);
                } else {
                    ready.push(job);
                    taken += 1;
                }
            }
            if line.is_empty() {
                self.waiting.remove(&session);
            } else {
                self.turns.push_back(session);
            }
        }
        if self.len == 0 {
            self.earliest_deadline = None;
        }
    }

    /// Takes one job out, wherever it stands. Linear in the jobs of its session.
    pub(crate) fn remove(&mut self, session: u64, id: u64) -> Option<T> {
        let line = self.waiting.get_mut(&session)?;
        let position = line.iter().position(|job| job.id() == id)?;
        let job = line.remove(position);
        self.len -= 1;
        if line.is_empty() {
            self.forget(session);
        }
        job
    }

    /// Takes out everything of one session.
    pub(crate) fn remove_session(&mut self, session: u64) -> VecDeque<T> {
        let line = self.waiting.remove(&session).unwrap_or_default();
        if !line.is_empty() {
            self.len -= line.len();
            self.turns.retain(|turn| *turn != session);
        }
        line
    }

    /// Takes out everything.
    pub(crate) fn remove_all(&mut self) -> Vec<T> {
        self.turns.clear();
        self.len = 0;
        self.earliest_deadline = None;
        self.waiting.drain().flat_map(|(_, line)| line).collect()
    }

    /// Takes out what has expired. Does nothing, at no cost, before the earliest deadline.
    pub(crate) fn remove_expired(&mut self, now: Instant, expired: &mut Vec<T>) {
        if self.earliest_deadline.is_none_or(|earliest| earliest > now) {
            return;
        }
        let mut earliest: Option<Instant> = None;
        for line in self.waiting.values_mut() {
            for _ in 0..line.len() {
                let Some(job) = line.pop_front() else { break };
                let deadline = job.deadline();
                if deadline <= now {
                    self.len -= 1;
                    expired.push(job);
                } else {
                    earliest = Some(earliest.map_or(deadline, |earliest| earliest.min(deadline)));
                    line.push_back(job);
                }
            }
        }
        self.waiting.retain(|_, line| !line.is_empty());
        let waiting = &self.waiting;
        self.turns.retain(|turn| waiting.contains_key(turn));
        self.earliest_deadline = earliest;
    }

    /// How many jobs wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn forget(&mut self, session: u64) {
        self.waiting.remove(&session);
        self.turns.retain(|turn| *turn != session);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    struct Item(u64, u64, Instant);

    impl Waiting for Item {
        fn session(&self) -> u64 {
            self.0
        }
        fn id(&self) -> u64 {
            self.1
        }
        fn deadline(&self) -> Instant {
            self.2
        }
    }

    fn pop_ids(queue: &mut FairQueue<Item>, max: usize, now: Instant) -> Vec<(u64, u64)> {
        let (mut ready, mut expired) = (Vec::new(), Vec::new());
        queue.pop(max, now, &mut ready, &mut expired);
        ready.iter().map(|item| (item.0, item.1)).collect()
    }

    #[test]
    fn sessions_take_turns() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut queue = FairQueue::new(100, 100);
        for id in 0..4 {
            queue.push(Item(1, id, later)).unwrap();
        }
        queue.push(Item(2, 0, later)).unwrap();
        assert_eq!(pop_ids(&mut queue, 3, now), [(1, 0), (2, 0), (1, 1)]);
        queue.push(Item(2, 1, later)).unwrap();
        assert_eq!(pop_ids(&mut queue, 9, now), [(1, 2), (2, 1), (1, 3)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn bounds_hold_at_their_edge() {
        let later = Instant::now() + Duration::from_secs(1);
        let mut queue = FairQueue::new(3, 2);
        queue.push(Item(1, 0, later)).unwrap();
        queue.push(Item(1, 1, later)).unwrap();
        assert_eq!(queue.push(Item(1, 2, later)), Err(Item(1, 2, later)));
        queue.push(Item(2, 0, later)).unwrap();
        assert_eq!(queue.push(Item(3, 0, later)), Err(Item(3, 0, later)));
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn an_expired_job_is_set_aside_and_does_not_count() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut queue = FairQueue::new(9, 9);
        queue.push(Item(1, 0, now)).unwrap();
        queue.push(Item(1, 1, later)).unwrap();
        let (mut ready, mut expired) = (Vec::new(), Vec::new());
        queue.pop(1, now, &mut ready, &mut expired);
        assert_eq!((ready.len(), expired.len()), (1, 1));
        assert_eq!(ready[0].1, 1);
    }

    #[test]
    fn expired_jobs_are_found_without_a_pop_and_order_is_kept() {
        let now = Instant::now();
        let soon = now + Duration::from_millis(10);
        let later = now + Duration::from_secs(1);
        let mut queue = FairQueue::new(9, 9);
        queue.push(Item(1, 0, later)).unwrap();
        queue.push(Item(1, 1, soon)).unwrap();
        queue.push(Item(1, 2, later)).unwrap();
        queue.push(Item(2, 0, soon)).unwrap();
        let mut expired = Vec::new();
        queue.remove_expired(now, &mut expired);
        assert!(expired.is_empty());
        queue.remove_expired(soon, &mut expired);
        assert_eq!(expired.len(), 2);
        assert_eq!(queue.len(), 2);
        assert_eq!(pop_ids(&mut queue, 9, now), [(1, 0), (1, 2)]);
    }

    #[test]
    fn one_job_or_one_session_can_be_taken_out() {
        let later = Instant::now() + Duration::from_secs(1);
        let mut queue = FairQueue::new(9, 9);
        queue.push(Item(1, 0, later)).unwrap();
        queue.push(Item(2, 0, later)).unwrap();
        queue.push(Item(2, 1, later)).unwrap();
        assert!(queue.remove(1, 7).is_none());
        assert!(queue.remove(3, 0).is_none());
        assert_eq!(queue.remove(1, 0), Some(Item(1, 0, later)));
        assert_eq!(queue.remove_session(2).len(), 2);
        assert!(queue.is_empty());
        assert!(pop_ids(&mut queue, 9, Instant::now()).is_empty());
    }
}
