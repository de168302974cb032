// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A token bucket: so many per second, and so many at once. No clock: time is an argument.

use std::time::{Duration, Instant};

/// Highest rate, in tokens per second: the time of one is counted in whole nanoseconds, which up to here
/// is exact to a thousandth.
pub const MAX_RATE: u32 = 1_000_000;

/// The generic cell rate algorithm (ITU-T I.371): instead of tokens and the time at which they were last
/// counted it keeps the moment at which the bucket will be full again.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Time in which one token comes.
    interval: Duration,
    /// Time in which an empty bucket fills.
    depth: Duration,
    full_at: Instant,
}

impl Bucket {
    /// A full bucket of `depth` tokens, into which come `rate` per second (1 to [`MAX_RATE`]; what is
    /// outside counts as the nearest of these). It holds at least one.
    pub fn new(rate: u32, depth: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / rate.clamp(1, MAX_RATE);
        Self {
            interval,
            depth: interval * depth.max(1),
            full_at: now,
        }
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.interval;
        let enough = full_at <= now + self.depth;
        if enough {
            self.full_at = full_at;
        }
        enough
    }

    /// Whether nobody can tell it from a new one.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut Bucket, now: Instant, tries: u32) -> u32 {
        let taken = (0..tries).filter(|_| bucket.take(now)).count();
        u32::try_from(taken).unwrap()
    }

    #[test]
    fn at_the_edge_and_one_past_it() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, 3, start);
        assert_eq!(taken(&mut bucket, start, 10), 3);
        let almost = start + Duration::from_micros(99_999);
        assert_eq!(taken(&mut bucket, almost, 10), 0);
        let one = start + Duration::from_millis(100);
        assert_eq!(taken(&mut bucket, one, 10), 1);
        assert!(!bucket.is_full(start + Duration::from_millis(399)));
        assert!(bucket.is_full(start + Duration::from_millis(400)));
        let late = start + Duration::from_secs(3600);
        assert_eq!(taken(&mut bucket, late, 10), 3, "nobody saves up more");
    }

    #[test]
    fn over_a_minute_it_is_the_rate_and_the_depth() {
        let start = Instant::now();
        for (rate, depth) in [(1, 1), (7, 5), (1000, 1000), (33_333, 100), (MAX_RATE, 10)] {
            let mut bucket = Bucket::new(rate, depth, start);
            let mut count = taken(&mut bucket, start, depth + 1);
            // Asked so often that no token is lost to a full bucket.
            let step = Duration::from_secs(1) / rate;
            let steps = 60 * u64::from(rate).min(100_000);
            for n in 1..=u32::try_from(steps).unwrap() {
                count += taken(&mut bucket, start + step * n, 3);
            }
            let most = f64::from(depth) + f64::from(u32::try_from(steps).unwrap());
            let ratio = f64::from(count) / most;
            assert!((0.98..=1.001).contains(&ratio), "{rate}/s: {ratio}");
        }
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_gives_nothing_away() {
        let start = Instant::now() + Duration::from_secs(10);
        let mut bucket = Bucket::new(5, 5, start);
        assert_eq!(taken(&mut bucket, start, 10), 5);
        let before = start.checked_sub(Duration::from_secs(5)).unwrap();
        assert_eq!(taken(&mut bucket, before, 10), 0);
    }
}
