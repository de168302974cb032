// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Compares the times of two classes of secrets (after Reparaz, Balasch and Verbauwhede, "Dude, is my code
//! constant time?"): many measurements of both in random order, compared with Welch's t-test.
//!
//! If the times differ, t grows with the number of measurements; the usual threshold is 4.5. The order is
//! random, so load on the machine affects both classes alike and only widens their distributions. This test
//! still uses a higher threshold, in each of several trials, so that no ordinary run fails by chance. So a
//! short run finds only large leaks: a secret that affects a tenth of the time. The long run
//! (`MILLRACE_LONG=1`, alone on the machine) finds a thousandth.

use std::time::Instant;

use super::is_long;

/// The times differ if t is above this in each trial.
const SUSPICIOUS: f64 = 10.0;

/// Number of trials.
const TRIALS: usize = 5;

/// Share of the measurements, in percent, that counts, the fastest first. The slower ones were interrupted.
const COUNTED_PERCENT: usize = 90;

/// The size of a timing test.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Measurements per class and trial.
    pub measurements: usize,
}

impl Timing {
    /// Timing for an ordinary test run; with `MILLRACE_LONG` it has enough measurements to find small leaks.
    #[must_use]
    pub fn from_environment() -> Self {
        Self { measurements: if is_long() { 20_000 } else { 200 } }
    }

    /// Calls `run(class)` for classes 0 and 1 in random order. `run` returns its time in nanoseconds.
    ///
    /// # Panics
    /// If the times of the classes differ in each of several trials.
    pub fn same_time(&self, what: &str, mut run: impl FnMut(usize) -> u64) {
        // The same order in every run.
        let mut order = fastrand::Rng::with_seed(1);
        for class in [0, 1, 1, 0] {
            run(class);
        }
        for trial in 1..=TRIALS {
            let mut classes = [Vec::new(), Vec::new()];
            for _ in 0..2 * self.measurements {
                let class = order.usize(..2);
                classes[class].push(run(class));
            }
            let t = welch(&classes);
            println!("{what}: t = {t:.2} ({} measurements per class)", self.measurements);
            if t.abs() < SUSPICIOUS {
                return;
            }
            assert!(trial < TRIALS, "{what}: the classes take unlike times");
        }
    }
}

/// Runs `work` and returns its time in nanoseconds.
pub fn nanoseconds(work: impl FnOnce()) -> u64 {
    let start = Instant::now();
    work();
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Welch's t of two classes over the fastest nine tenths of all measurements.
#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds are small")]
fn welch(classes: &[Vec<u64>; 2]) -> f64 {
    let mut all = classes.concat();
    all.sort_unstable();
    let limit = all[all.len() * COUNTED_PERCENT / 100];
    let [a, b] = classes.each_ref().map(|class| {
        let kept: Vec<_> =
            class.iter().filter(|time| **time <= limit).map(|time| *time as f64).collect();
        let count = kept.len() as f64;
        let mean = kept.iter().sum::<f64>() / count;
        let variance = kept.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    });
    (a.0 - b.0) / (a.1 + b.1).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times between 1000 and 1099 ns in some order, plus `adds` for class 1.
    fn noisy(adds: u64) -> impl FnMut(usize) -> u64 {
        let mut random = fastrand::Rng::with_seed(1);
        move |class| 1_000 + random.u64(..100) + class as u64 * adds
    }

    const SHORT: Timing = Timing { measurements: 300 };

    #[test]
    fn noise_alone_is_not_reported_as_a_difference() {
        SHORT.same_time("noise", noisy(0));
    }

    #[test]
    #[should_panic(expected = "unlike times")]
    fn tenth_is_found_even_in_a_short_run() {
        SHORT.same_time("a tenth", noisy(100));
    }

    #[test]
    #[should_panic(expected = "unlike times")]
    fn smaller_difference_is_found_in_a_longer_run() {
        let long = Timing { measurements: 20_000 };
        long.same_time("a hundredth", noisy(10));
    }
}
