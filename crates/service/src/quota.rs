// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The quota of one party at this node: [`Rates`] with what is left of them.
//!
//! The node refuses a job over the quota at once, so its client computes it without having waited. A party that uses
//! several nodes has a separate quota at each of them; a manager divides one quota among nodes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use millrace_operation::{KeyType, OperationKind};

use crate::bucket::Bucket;
use crate::rates::{JobClass, Rate, Rates};

/// The quota of one party, shared by its sessions.
#[derive(Debug, Default)]
pub struct Quota {
    /// Whether there is a limit. A party without one takes no lock.
    limited: AtomicBool,
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    rates: Rates,
    ops: Option<Bucket>,
    bytes: Option<Bucket>,
    classes: Vec<(JobClass, Bucket)>,
}

/// The rate that a job exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// Operations of all classes.
    Ops,
    /// Operations of a job class.
    Class,
    /// Bytes of input.
    Bytes,
}

impl Exceeded {
    /// Every value, in the order of [`Self::index`].
    pub const ALL: [Self; 3] = [Self::Ops, Self::Class, Self::Bytes];

    /// Index in [`Self::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ops => "ops",
            Self::Class => "class",
            Self::Bytes => "bytes",
        }
    }
}

/// Shortest time until a client over its quota tries again. The tokens of that time wait in the bucket, so the client
/// loses none. With the time of one token, the node would refuse several jobs for each that it serves.
const LEAST_REST: Duration = Duration::from_millis(10);

/// A job is over the quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverQuota {
    /// The rate that has the longest wait.
    pub exceeded: Exceeded,
    /// Delay after which the same job is within the quota, if no other job comes. At least 10 ms, or half the time of
    /// the burst if that is shorter.
    pub retry_after: Duration,
}

impl Quota {
    /// An unused quota.
    #[must_use]
    pub fn new(rates: Rates, now: Instant) -> Self {
        let quota = Self::default();
        quota.set_rates(&rates, now);
        quota
    }

    /// Changes the rates. What is left of a changed rate stays, at most its new burst; a rate that had no limit
    /// before begins with its burst.
    pub fn set_rates(&self, rates: &Rates, now: Instant) {
        let mut buckets = self.lock();
        if buckets.rates == *rates {
            return;
        }
        let before = std::mem::take(&mut *buckets);
        let class = |class: JobClass| {
            let mut classes = before.classes.iter();
            classes.find(|(known, _)| *known == class).map(|(_, bucket)| *bucket)
        };
        let classes = rates.classes.iter().filter_map(|(of, rate)| {
            let bucket = changed(class(*of), *rate, now)?;
            Some((*of, bucket))
        });
        *buckets = Buckets {
            ops: changed(before.ops, rates.ops, now),
            bytes: changed(before.bytes, rates.bytes, now),
            classes: classes.collect(),
            rates: rates.clone(),
        };
        self.limited.store(!rates.is_unlimited(), Ordering::Release);
    }

    /// Counts a job with an input of `bytes` against every rate that it belongs to.
    ///
    /// # Errors
    /// The job exceeds one of the rates; then it counts against none.
    pub fn take(
        &self,
        operation: OperationKind,
        key: KeyType,
        bytes: usize,
        now: Instant,
    ) -> Result<(), OverQuota> {
        if !self.limited.load(Ordering::Acquire) {
            return Ok(());
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut buckets = self.lock();
        let Buckets { rates: _, ops, bytes: of_bytes, classes } = &mut *buckets;
        let of_class = classes
            .iter_mut()
            .filter(|(class, _)| class.counts(operation, key))
            .map(|(_, bucket)| (Exceeded::Class, 1, bucket));
        let all = ops.iter_mut().map(|bucket| (Exceeded::Ops, 1, bucket));
        let of_bytes = of_bytes.iter_mut().map(|bucket| (Exceeded::Bytes, bytes, bucket));
        let mut asked: Vec<_> = all.chain(of_class).chain(of_bytes).collect();
        let lacking = asked.iter().filter(|(_, count, bucket)| !bucket.has(*count, now)).map(
            |(exceeded, count, bucket)| OverQuota {
                exceeded: *exceeded,
                retry_after: bucket
                    .ready_in(*count, now)
                    .max(LEAST_REST.min(bucket.fill_time() / 2)),
            },
        );
        if let Some(over) = lacking.max_by_key(|over| over.retry_after) {
            return Err(over);
        }
        for (_, count, bucket) in &mut asked {
            bucket.overdraw(*count, now);
        }
        Ok(())
    }

    /// Whether nothing has been taken that is not refilled.
    pub(crate) fn is_unused(&self, now: Instant) -> bool {
        let buckets = self.lock();
        let classes = buckets.classes.iter().map(|(_, bucket)| bucket);
        let mut all = buckets.ops.iter().chain(&buckets.bytes).chain(classes);
        all.all(|bucket| bucket.is_full(now))
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        lock(&self.buckets)
    }
}

/// The bucket of a rate after a change; `None` for no limit.
fn changed(before: Option<Bucket>, rate: Rate, now: Instant) -> Option<Bucket> {
    if rate.is_unlimited() {
        return None;
    }
    let per_second = rate.per_second;
    let depth = rate.depth();
    Some(match before {
        Some(bucket) => bucket.with_rate(per_second, depth, now),
        None => Bucket::new(per_second, depth, now),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const SIGN: OperationKind = OperationKind::RsaPssSign;
    const RSA: KeyType = KeyType::Rsa { bits: 2048 };

    fn take(quota: &Quota, now: Instant, tries: u32) -> usize {
        (0..tries).filter(|_| quota.take(SIGN, RSA, 32, now).is_ok()).count()
    }

    fn ops(per_second: u64) -> Rates {
        Rates { ops: Rate::per_second(per_second), ..Rates::default() }
    }

    #[test]
    fn job_over_one_of_its_rates_counts_against_none() {
        let now = Instant::now();
        let class = |text: &str| text.parse().unwrap();
        let rates = Rates {
            ops: Rate::per_second(10),
            bytes: Rate::per_second(1000),
            classes: BTreeMap::from([
                (class("rsa2048"), Rate::per_second(2)),
                (class("p-256"), Rate::per_second(1)),
            ]),
        };
        let quota = Quota::new(rates, now);
        assert_eq!(take(&quota, now, 5), 2, "of the class");
        let over = quota.take(SIGN, RSA, 32, now).unwrap_err();
        assert_eq!(over.exceeded, Exceeded::Class);
        assert_eq!(over.retry_after, Duration::from_millis(500));
        let other = KeyType::Rsa { bits: 3072 };
        let left = (0..20).filter(|_| quota.take(SIGN, other, 32, now).is_ok()).count();
        assert_eq!(left, 8, "refused jobs of the class took none of the rest");
        let over = quota.take(SIGN, other, 32, now).unwrap_err();
        assert_eq!(over.exceeded, Exceeded::Ops);
    }

    #[test]
    fn job_with_more_bytes_than_the_burst_waits_for_a_full_bucket() {
        let now = Instant::now();
        let rates = Rates { bytes: Rate { per_second: 1000, burst: 100 }, ..Rates::default() };
        let quota = Quota::new(rates, now);
        assert!(quota.take(SIGN, RSA, 600, now).is_ok());
        let over = quota.take(SIGN, RSA, 1, now).unwrap_err();
        assert_eq!(over.exceeded, Exceeded::Bytes);
        assert_eq!(over.retry_after, Duration::from_millis(501));
        assert!(quota.take(SIGN, RSA, 600, now + Duration::from_millis(599)).is_err());
        assert!(quota.take(SIGN, RSA, 600, now + Duration::from_millis(600)).is_ok());
    }

    #[test]
    fn changed_rate_acts_at_once_and_zero_is_no_limit() {
        let now = Instant::now();
        let quota = Quota::new(Rates::default(), now);
        assert_eq!(take(&quota, now, 100), 100);
        quota.set_rates(&ops(5), now);
        assert_eq!(take(&quota, now, 100), 5);
        quota.set_rates(&ops(5), now);
        assert_eq!(take(&quota, now, 100), 0, "the same rate does not refill");
        quota.set_rates(&ops(50), now);
        assert_eq!(take(&quota, now, 100), 0, "nor does a higher one");
        assert_eq!(take(&quota, now + Duration::from_millis(100), 100), 5);
        quota.set_rates(&Rates::default(), now);
        assert_eq!(take(&quota, now, 100), 100);
    }

    #[test]
    fn served_jobs_are_within_two_percent_of_the_quota_over_ten_seconds() {
        let start = Instant::now();
        for rate in [1, 10, 333, 5000] {
            let quota = Quota::new(ops(rate), start);
            let _ = take(&quota, start, u32::try_from(rate).unwrap());
            // Asked for five times as often as the rate allows, at a step that is not a multiple of it.
            let step = Duration::from_secs_f64(1.0 / (rate as f64 * 5.03));
            let mut now = start;
            let mut served = 0_u64;
            while now < start + Duration::from_secs(10) {
                now += step;
                served += u64::from(quota.take(SIGN, RSA, 32, now).is_ok());
            }
            let error = served.abs_diff(rate * 10) as f64 / (rate * 10) as f64;
            let within = error <= 0.02 || served.abs_diff(rate * 10) <= 1;
            assert!(within, "{rate}/s: {served}, error {error:.4}");
        }
    }

    /// Random times of arrival, `per_s` on average: a Poisson process, as `bench pool` offers it.
    fn arrivals(per_s: f64, seconds: f64, mut seed: u64) -> impl Iterator<Item = f64> {
        let mut time = 0.0;
        std::iter::from_fn(move || {
            // SplitMix64.
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut bits = seed;
            for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
                bits = (bits ^ (bits >> shift)).wrapping_mul(factor);
            }
            let unit = ((bits >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
            time += -unit.ln() / per_s;
            (time < seconds).then_some(time)
        })
    }

    /// The times, in seconds, at which jobs of an open loop are served. Its client sends no job from when it receives a
    /// refusal, `way` after the node, until the time that the refusal named has passed.
    fn served_in_open_loop(rate: Rate, factor: f64, way: f64, seed: u64) -> Vec<f64> {
        let start = Instant::now();
        let rates = Rates { ops: rate, ..Rates::default() };
        let quota = Quota::new(rates, start);
        let mut silent = (0.0, 0.0);
        let mut served = Vec::new();
        for sent in arrivals(rate.per_second as f64 * factor, SECONDS, seed) {
            if (silent.0..silent.1).contains(&sent) {
                continue;
            }
            let at = sent + way;
            match quota.take(SIGN, RSA, 32, start + Duration::from_secs_f64(at)) {
                Ok(()) => served.push(at),
                // While it is silent it has heard already.
                Err(_) if sent < silent.1 => {}
                Err(over) => silent = (at + way, at + way + over.retry_after.as_secs_f64()),
            }
        }
        served
    }

    const SECONDS: f64 = 34.0;

    /// Every window of ten seconds counts that begins after the burst is used up: at 1.5 times the rate, a burst of one
    /// second lasts for two.
    #[test]
    fn open_loop_gets_its_quota_within_two_percent_in_each_window_of_ten_seconds() {
        let mut worst = 0.0_f64;
        let cases = [100, 1_000, 6_000].into_iter().flat_map(|per_second| {
            let factors = [1.5, 3.0, 10.0, 40.0].into_iter();
            factors.flat_map(move |factor| {
                let ways = [0.000_2, 0.005, 0.05].into_iter();
                ways.map(move |way| (per_second, factor, way))
            })
        });
        for (seed, (per_second, factor, way)) in cases.enumerate() {
            for burst in [0, per_second / 5] {
                let rate = Rate { per_second, burst };
                let served = served_in_open_loop(rate, factor, way, seed as u64);
                for begin in (5..=24).map(f64::from) {
                    let inside = |at: &&f64| (begin..begin + 10.0).contains(*at);
                    let jobs = served.iter().filter(inside).count() as f64;
                    let error = (jobs / (per_second as f64 * 10.0) - 1.0).abs();
                    let case = format!("{per_second}/s, burst {burst}, {factor} times, {way} s");
                    assert!(error <= 0.02, "{case}: {jobs} jobs from {begin} s on");
                    worst = worst.max(error);
                }
                // The first window has the burst, too: the whole of it, and no more.
                let jobs = served.iter().filter(|at| **at < 10.0 + way).count() as f64;
                let most = per_second as f64 * 10.0 + rate.depth() as f64;
                assert!(jobs <= most + 1.0 && jobs >= 0.97 * most, "{jobs} of {most}");
            }
        }
        println!("largest error of a window: {:.2} %", worst * 100.0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever the times of jobs and of changes between two rates: never above the higher rate times the time
        /// plus its burst.
        #[test]
        fn served_jobs_never_exceed_rate_times_time_plus_burst(
            rates in prop::array::uniform2((1..2000_u64, 1..2000_u64)),
            steps in prop::collection::vec((0..50_000_u64, 0..40_u32, any::<bool>()), 1..200),
        ) {
            let start = Instant::now();
            let of = |(per_second, burst): (u64, u64)| Rates {
                ops: Rate { per_second, burst },
                ..Rates::default()
            };
            let quota = Quota::new(of(rates[0]), start);
            let mut now = start;
            let mut served = 0;
            for (us, tries, change) in steps {
                now += Duration::from_micros(us);
                if change {
                    quota.set_rates(&of(rates[usize::from(us % 2 == 0)]), now);
                }
                served += take(&quota, now, tries);
            }
            let rate = rates[0].0.max(rates[1].0) as f64;
            let burst = rates[0].1.max(rates[1].1) as f64;
            let most = rate * (now - start).as_secs_f64() + burst;
            prop_assert!(served as f64 <= most + 1e-6, "{} of {}", served, most);
        }
    }
}
