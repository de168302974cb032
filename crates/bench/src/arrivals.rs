// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Random times at which jobs arrive, for a load that does not wait for the ends of jobs.

use std::time::Duration;

/// Arrival times of jobs, after the start.
pub(crate) fn arrivals(per_s: f64, time: Duration, seed: u64) -> Vec<Duration> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut arrivals = Vec::new();
    let mut seconds = 0.0;
    while seconds < time.as_secs_f64() {
        arrivals.push(Duration::from_secs_f64(seconds));
        // Above 0, so that it has a logarithm.
        let unit = 1.0 - random.f64();
        seconds += -unit.ln() / per_s;
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_random_with_the_wanted_rate_and_the_same_each_time() {
        let time = Duration::from_secs(10);
        let some = arrivals(1_000.0, time, 1);
        assert_eq!(some, arrivals(1_000.0, time, 1));
        assert_ne!(some, arrivals(1_000.0, time, 2));
        assert!((9_600..10_400).contains(&some.len()), "{}", some.len());
        assert!(some.is_sorted() && some.last().is_some_and(|last| *last < time));
        // Exponential: a share of 1 - 1/e of the gaps is shorter than the mean.
        let short =
            some.windows(2).filter(|pair| pair[1] - pair[0] < Duration::from_millis(1)).count();
        let share = short as f64 / some.len() as f64;
        assert!((0.61..0.655).contains(&share), "{share}");
    }
}
