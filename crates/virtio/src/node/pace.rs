// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Limits of the nodes, as a device meets them: how many jobs it offers after a refusal, and the rate that it keeps to
//! while no node answers. Time is an argument.
//!
//! A node tells its clients no rate. Between two refusals over the quota it serves as many jobs as the quota allows, so
//! that is the rate that a device knows. If several devices and gateways share a quota, each has seen its own part.

use std::time::{Duration, Instant};

use millrace_service::bucket::Bucket;

use crate::device::MAX_IN_FLIGHT;

/// Shortest time between two refusals from which a rate is learned. A shorter one would count single jobs.
const LEARN_OVER: Duration = Duration::from_secs(1);

/// Longest such time: in a longer one the device may have asked for less than the quota.
const STALE_AFTER: Duration = Duration::from_secs(3);

/// The pace of one device. `began` of the two counts is the time at which they were zero.
#[derive(Debug)]
pub(super) struct Pace {
    /// Jobs that may be at the nodes at once: half of what it was after a refusal, one more after each job that is
    /// served. All waiting jobs at once would be refused, and a node reads a client less often that is refused often.
    window: usize,
    /// The number of the next job that is offered.
    next: u64,
    /// Jobs below this number were offered before the window was halved.
    halved_at: u64,
    /// Jobs served since a refusal over the quota.
    since_refusal: Option<Count>,
    /// Jobs served in the present second, without a refusal.
    freely: Option<Count>,
    /// Jobs per second that the nodes last served under a quota; `None` if no quota has refused a job.
    per_second: Option<u64>,
    here: Option<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    began: Instant,
    jobs: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            window: MAX_IN_FLIGHT,
            next: 0,
            halved_at: 0,
            since_refusal: None,
            freely: None,
            per_second: None,
            here: None,
        }
    }
}

impl Pace {
    /// Whether one more job may go to the nodes, which have this many. Returns its number.
    pub(super) fn offer(&mut self, at_nodes: usize) -> Option<u64> {
        let number = self.next;
        (at_nodes < self.window).then(|| {
            self.next += 1;
            number
        })
    }

    /// A node has served a job.
    pub(super) fn served(&mut self, now: Instant) {
        self.window = (self.window + 1).min(MAX_IN_FLIGHT);
        if let Some(count) = &mut self.since_refusal {
            count.jobs += 1;
        }
        let count = self.freely.get_or_insert(Count { began: now, jobs: 0 });
        if now.saturating_duration_since(count.began) >= LEARN_OVER {
            *count = Count { began: now, jobs: 0 };
        }
        count.jobs += 1;
        let jobs = count.jobs;
        // More than a rate and its burst allow: the limit is higher now, or gone.
        if self.per_second.is_some_and(|known| jobs > known.saturating_mul(2)) {
            self.learn(jobs, now);
        }
    }

    /// A node has refused the job with this number: as busy, or over the quota.
    pub(super) fn refused(&mut self, number: u64, over_quota: bool, now: Instant) {
        if number >= self.halved_at {
            self.window = (self.window / 2).max(1);
            self.halved_at = self.next;
        }
        if !over_quota {
            return;
        }
        self.freely = None;
        let count = *self.since_refusal.get_or_insert(Count { began: now, jobs: 0 });
        let time = now.saturating_duration_since(count.began);
        if time < LEARN_OVER {
            return;
        }
        let per_second = u128::from(count.jobs) * 1000 / time.as_millis().max(1);
        let per_second = u64::try_from(per_second).unwrap_or(u64::MAX).max(1);
        let is_stale =
            time > STALE_AFTER && self.per_second.is_some_and(|known| known > per_second);
        if !is_stale {
            self.learn(per_second, now);
        }
        self.since_refusal = Some(Count { began: now, jobs: 0 });
    }

    fn learn(&mut self, per_second: u64, now: Instant) {
        self.per_second = Some(per_second);
        let depth = (per_second / 10).max(1);
        self.here = Some(match self.here {
            Some(bucket) => bucket.with_rate(per_second, depth, now),
            None => Bucket::new(per_second, depth, now),
        });
    }

    /// Whether a job may run on this host now; counts it.
    pub(super) fn take_here(&mut self, now: Instant) -> bool {
        self.here.as_mut().is_none_or(|bucket| bucket.take(1, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes with a quota of `rate` per second, asked every 10 ms for `seconds`; returns the jobs that were served.
    fn ask(pace: &mut Pace, rate: u64, from: Instant, seconds: u64) -> u64 {
        let mut quota = Bucket::new(rate, rate, from);
        let mut served = 0;
        for step in 1..=seconds * 100 {
            let now = from + Duration::from_millis(10 * step);
            let mut offered = Vec::new();
            while let Some(number) = pace.offer(offered.len()) {
                offered.push(number);
            }
            for number in offered {
                if quota.take(1, now) {
                    served += 1;
                    pace.served(now);
                } else {
                    pace.refused(number, true, now);
                }
            }
        }
        served
    }

    fn here(pace: &mut Pace, from: Instant, millis: u64) -> u64 {
        let tries = (0..millis * 10).map(|step| from + Duration::from_micros(100 * step));
        tries.filter(|now| pace.take_here(*now)).count() as u64
    }

    #[test]
    fn device_under_a_quota_gets_it_and_keeps_to_it_while_no_node_answers() {
        let start = Instant::now();
        for rate in [10, 50, 1000] {
            let mut pace = Pace::default();
            let served = ask(&mut pace, rate, start, 10);
            assert!(served <= 11 * rate && served * 100 >= 1090 * rate, "{served} at {rate}/s");
            let away = start + Duration::from_secs(10);
            let here = here(&mut pace, away, 10_000);
            let most = 10 * rate + rate / 10 + 1;
            assert!(here <= most + rate && here + rate >= 9 * rate, "{here} at {rate}/s");
        }
    }

    #[test]
    fn device_that_no_quota_has_refused_computes_at_any_rate() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(here(&mut pace, start, 100), 1000);
        let number = pace.offer(0).unwrap();
        pace.refused(number, false, start + Duration::from_secs(2));
        assert_eq!(here(&mut pace, start, 100), 1000, "busy is no quota");
    }

    #[test]
    fn lower_quota_is_learned_and_so_is_a_higher_one_before_it_refuses() {
        let start = Instant::now();
        let mut pace = Pace::default();
        ask(&mut pace, 100, start, 5);
        let later = start + Duration::from_secs(5);
        ask(&mut pace, 20, later, 8);
        assert!(pace.per_second.is_some_and(|rate| (15..=25).contains(&rate)), "{pace:?}");
        let now = later + Duration::from_secs(20);
        (0..200).for_each(|_| pace.served(now));
        assert!(pace.per_second.is_some_and(|rate| rate > 80), "{pace:?}");
    }

    #[test]
    fn window_is_halved_once_for_the_jobs_of_one_offer() {
        let now = Instant::now();
        let mut pace = Pace::default();
        let offered: Vec<u64> = (0..8).filter_map(|at| pace.offer(at)).collect();
        offered.iter().for_each(|number| pace.refused(*number, true, now));
        assert_eq!(pace.window, MAX_IN_FLIGHT / 2);
        for _ in 0..20 {
            let number = pace.offer(0).unwrap();
            pace.refused(number, true, now);
        }
        assert_eq!(pace.window, 1);
        assert!(pace.offer(1).is_none() && pace.offer(0).is_some());
        pace.served(now);
        assert_eq!(pace.window, 2);
    }
}
