// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Counters of the engine. Queue time and service time are separate, per backend and operation.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_operation::{BackendKind, Class, JobError, OperationKind};

/// Sub-buckets per doubling: neighbouring bounds are at most 25 % apart.
const SUB_BUCKETS: usize = 4;
/// The first bound is 2^9 ns (about half a microsecond): nothing that crosses a queue is faster.
const FIRST_SHIFT: u32 = 9;
/// The last bound is 2^35 ns (34 s): longer than any deadline.
const LAST_SHIFT: u32 = 35;
const BUCKETS: usize = (LAST_SHIFT - FIRST_SHIFT) as usize * SUB_BUCKETS + 1;

/// A histogram of durations, written from many threads without a lock.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// A copy of the counts.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            buckets: self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).collect(),
            sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)),
        }
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < 1 << FIRST_SHIFT {
        return 0;
    }
    let shift = ns.ilog2();
    if shift >= LAST_SHIFT {
        return BUCKETS - 1;
    }
    let sub = (ns >> (shift - 2)) & 0b11;
    // Both are small: shift < 35, sub < 4.
    (shift - FIRST_SHIFT) as usize * SUB_BUCKETS + usize::try_from(sub).unwrap_or(0)
}

/// Upper bound of a bucket, in nanoseconds, exclusive.
fn bound_of(bucket: usize) -> u64 {
    let octave = bucket / SUB_BUCKETS;
    let sub = (bucket % SUB_BUCKETS) as u64;
    (1 << (FIRST_SHIFT as usize + octave)) / 4 * (5 + sub)
}

/// A copy of a [`Histogram`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    buckets: Vec<u64>,
    /// Sum of all recorded durations, with those beyond the last bucket.
    pub sum: Duration,
}

impl HistogramSnapshot {
    /// Number of durations that were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The buckets as (exclusive upper bound, count); the bound of the last means infinity.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        self.buckets.iter().enumerate().map(|(i, n)| (Duration::from_nanos(bound_of(i)), *n))
    }

    /// An upper bound on the given quantile (0.0 to 1.0), at most 25 % above the true value; zero
    /// when nothing was counted.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        let count = self.count();
        if count == 0 {
            return Duration::ZERO;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank in a count of events; clamped to 1..=count"
        )]
        let rank = ((quantile * count as f64).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (bound, bucket) in self.buckets() {
            seen += bucket;
            if seen >= rank {
                return bound;
            }
        }
        Duration::from_nanos(bound_of(BUCKETS - 1))
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        let len = self.buckets.len().max(other.buckets.len());
        self.buckets.resize(len, 0);
        for (count, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *count = count.saturating_add(*more);
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Durations counted since `earlier`, a snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        Self {
            buckets: self.buckets.iter().zip(before).map(|(a, b)| a.saturating_sub(b)).collect(),
            sum: self.sum.saturating_sub(earlier.sum),
        }
    }
}

/// Counters of one backend and operation.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) queue_time: Histogram,
    pub(crate) service_time: Histogram,
}

/// All counters of an engine.
#[derive(Debug)]
pub(crate) struct Statistics {
    /// `[backend][operation]`, each allocated at once: about 95 KiB in all.
    series: Vec<Vec<Series>>,
    errors: [AtomicU64; JobError::ALL.len()],
    pub(crate) submitted: AtomicU64,
    pub(crate) ran_inline: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) faults: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

impl Statistics {
    pub(crate) fn new() -> Self {
        let row = OperationKind::ALL.iter().map(|_| Series::default());
        Self {
            series: BackendKind::ALL.iter().map(|_| row.clone().collect()).collect(),
            errors: array::from_fn(|_| AtomicU64::new(0)),
            submitted: AtomicU64::new(0),
            ran_inline: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    pub(crate) fn series(&self, backend: BackendKind, operation: OperationKind) -> &Series {
        &self.series[backend.index()][operation.index()]
    }

    pub(crate) fn count_error(&self, error: JobError) {
        self.errors[error_index(error)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self, waiting: [usize; 3], in_flight: usize) -> EngineSnapshot {
        let mut series = Vec::new();
        for backend in BackendKind::ALL {
            for operation in OperationKind::ALL {
                let row = self.series(*backend, *operation);
                let completed = row.completed.load(Ordering::Relaxed);
                let failed = row.failed.load(Ordering::Relaxed);
                if completed + failed > 0 {
                    series.push(SeriesSnapshot {
                        backend: *backend,
                        operation: *operation,
                        completed,
                        failed,
                        queue_time: row.queue_time.snapshot(),
                        service_time: row.service_time.snapshot(),
                    });
                }
            }
        }
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EngineSnapshot {
            series,
            errors: JobError::ALL
                .iter()
                .map(|e| (*e, get(&self.errors[error_index(*e)])))
                .collect(),
            submitted: get(&self.submitted),
            ran_inline: get(&self.ran_inline),
            retried: get(&self.retried),
            faults: get(&self.faults),
            panics: get(&self.panics),
            dropped: get(&self.dropped),
            waiting: Class::ALL.map(|class| (class, waiting[class.index()])),
            in_flight,
        }
    }
}

fn error_index(error: JobError) -> usize {
    usize::from(error.code()) - 1
}

/// A copy of everything that an engine counts.
#[derive(Clone, Debug)]
pub struct EngineSnapshot {
    /// Per backend and operation; only those that served something.
    pub series: Vec<SeriesSnapshot>,
    /// Jobs that ended without a result, by reason.
    pub errors: Vec<(JobError, u64)>,
    /// Jobs given to [`Engine::submit`](crate::Engine::submit).
    pub submitted: u64,
    /// Number of submitted jobs that were computed on the thread that brought them.
    pub ran_inline: u64,
    /// Times that a job went to a further backend after one failed.
    pub retried: u64,
    /// Results that failed their verification. Each one quarantined its backend.
    pub faults: u64,
    /// Panics caught in a backend. Each one quarantined it.
    pub panics: u64,
    /// Completions dropped because their session had ended.
    pub dropped: u64,
    /// Jobs waiting now, per class.
    pub waiting: [(Class, usize); 3],
    /// Jobs submitted and not yet completed.
    pub in_flight: usize,
}

/// Counters of one backend and operation.
#[derive(Clone, Debug)]
pub struct SeriesSnapshot {
    /// The backend that the tasks went to.
    pub backend: BackendKind,
    /// The operation of the tasks.
    pub operation: OperationKind,
    /// Jobs that ended with a result.
    pub completed: u64,
    /// Tasks that this backend did not answer with a result (the job may have been served elsewhere).
    pub failed: u64,
    /// Time between submission and the start of service.
    pub queue_time: HistogramSnapshot,
    /// Time that the backend worked on the job.
    pub service_time: HistogramSnapshot,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_lies_between_the_bounds_of_its_bucket() {
        let mut ns = 1u64;
        while ns < 1 << LAST_SHIFT {
            let bucket = bucket_of(ns);
            assert!(ns < bound_of(bucket), "{ns} in bucket {bucket}");
            if bucket > 0 {
                assert!(ns >= bound_of(bucket - 1), "{ns} in bucket {bucket}");
            }
            ns += 1 + ns / 7;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_upper_bounds_within_a_quarter() {
        let histogram = Histogram::default();
        for us in 1..=1000 {
            histogram.record(Duration::from_micros(us));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.count(), 1000);
        for (quantile, true_us) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let ratio = snapshot.quantile(quantile).as_secs_f64() * 1e6 / true_us;
            assert!((1.0..=1.26).contains(&ratio), "p{quantile}: {ratio}");
        }
    }

    #[test]
    fn difference_of_snapshots_counts_only_new_durations() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(10));
        let before = histogram.snapshot();
        histogram.record(Duration::from_millis(10));
        let delta = histogram.snapshot().since(&before);
        assert_eq!(delta.count(), 1);
        assert_eq!(delta.sum, Duration::from_millis(10));
    }

    #[test]
    fn quantile_of_an_empty_histogram_is_zero() {
        assert_eq!(Histogram::default().snapshot().quantile(0.5), Duration::ZERO);
    }
}
