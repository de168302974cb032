// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Token bucket: a sustained rate (tokens per second) and a burst (tokens at once). It reads no clock: the
//! caller passes the time.

use std::time::{Duration, Instant};

/// Highest rate, in tokens per second. At 10^12 the interval of one token is 4 × 10^6 units of
/// `FRACTION_BITS`, so that rounding it changes the rate by less than one part in a million.
pub const MAX_RATE: u64 = 1_000_000_000_000;

/// Times are counted in nanoseconds with this many binary places: whole nanoseconds would double the rate of
/// a quota of 600 MB/s.
const FRACTION_BITS: u32 = 32;

/// The generic cell rate algorithm (ITU-T I.371): instead of a token count and the time of the last update,
/// it keeps the time at which the bucket will be full again.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Origin of the other times.
    origin: Instant,
    /// Time per token, in units of 2^-[`FRACTION_BITS`] ns.
    interval: u128,
    /// Time to fill an empty bucket, in the same units.
    depth: u128,
    full_at: u128,
}

impl Bucket {
    /// A full bucket that holds `depth` tokens (at least one) and gains `rate` tokens per second. A rate
    /// outside 1 to [`MAX_RATE`] counts as the nearest of these.
    #[must_use]
    pub fn new(rate: u64, depth: u64, now: Instant) -> Self {
        let interval = fixed(Duration::from_secs(1)) / u128::from(rate.clamp(1, MAX_RATE));
        Self { origin: now, interval, depth: interval * u128::from(depth.max(1)), full_at: 0 }
    }

    /// Takes `count` tokens. If the bucket holds fewer, takes none and returns `false`.
    pub fn take(&mut self, count: u64, now: Instant) -> bool {
        let now = self.time(now);
        let full_at = self.full_at.max(now) + self.interval * u128::from(count);
        let enough = full_at <= now + self.depth;
        if enough {
            self.full_at = full_at;
        }
        enough
    }

    /// Whether the bucket holds `count` tokens, or is full and cannot hold as many.
    #[must_use]
    pub fn has(&self, count: u64, now: Instant) -> bool {
        let now = self.time(now);
        self.full_at.max(now) + self.interval * u128::from(count) <= now + self.depth
            || self.full_at <= now
    }

    /// Takes `count` tokens, also more than the bucket holds: then it is empty for as long as the rate needs for
    /// what is missing. To be used after [`Self::has`].
    pub fn overdraw(&mut self, count: u64, now: Instant) {
        let now = self.time(now);
        self.full_at = self.full_at.max(now) + self.interval * u128::from(count);
    }

    /// Time until [`Self::has`] is true for `count` tokens.
    #[must_use]
    pub fn ready_in(&self, count: u64, now: Instant) -> Duration {
        let now = self.time(now);
        let wanted = (self.interval * u128::from(count)).min(self.depth);
        duration((self.full_at.max(now) + wanted).saturating_sub(now + self.depth))
    }

    /// Time in which an empty bucket fills up.
    #[must_use]
    pub fn fill_time(&self) -> Duration {
        duration(self.depth)
    }

    /// The bucket with another rate and depth, and as many tokens as this one holds, at most the new depth: a
    /// change of the rate is not a new burst. Time that an overdraft has still to run stays.
    #[must_use]
    pub fn with_rate(&self, rate: u64, depth: u64, now: Instant) -> Self {
        let mut changed = Self::new(rate, depth, now);
        let missing = self.full_at.saturating_sub(self.time(now));
        changed.full_at = if missing >= self.depth {
            changed.depth + (missing - self.depth)
        } else {
            let held = (self.depth - missing) / self.interval;
            changed.depth.saturating_sub(changed.interval.saturating_mul(held))
        };
        changed
    }

    /// Whether the bucket is in the same state as a new one.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at <= self.time(now)
    }

    fn time(&self, now: Instant) -> u128 {
        fixed(now.saturating_duration_since(self.origin))
    }
}

fn fixed(time: Duration) -> u128 {
    time.as_nanos() << FRACTION_BITS
}

fn duration(fixed: u128) -> Duration {
    Duration::from_nanos(u64::try_from(fixed >> FRACTION_BITS).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut Bucket, now: Instant, tries: u32) -> u32 {
        let taken = (0..tries).filter(|_| bucket.take(1, now)).count();
        u32::try_from(taken).unwrap()
    }

    #[test]
    fn burst_ends_at_depth_and_refills_at_rate() {
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
        assert_eq!(taken(&mut bucket, late, 10), 3, "the depth bounds savings");
    }

    #[test]
    fn tokens_over_a_minute_are_rate_plus_depth() {
        let start = Instant::now();
        for (rate, depth) in [(1, 1), (7, 5), (1000, 1000), (33_333, 100), (1_000_000, 10)] {
            let mut bucket = Bucket::new(u64::from(rate), u64::from(depth), start);
            let mut count = taken(&mut bucket, start, depth + 1);
            // Called often enough that the bucket never overflows and loses a token.
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
    fn rate_of_bytes_is_exact_where_a_nanosecond_is_coarse() {
        let start = Instant::now();
        // 600 MB/s: one byte every 1.67 ns, in packets of 1500 bytes for one second.
        let rate = 600_000_000;
        let packet = 1500;
        let mut bucket = Bucket::new(rate, 2 * packet, start);
        let sent = (1..=1_000_000)
            .filter(|us| bucket.take(packet, start + Duration::from_micros(*us)))
            .count() as u64;
        assert!((399_900..=400_001).contains(&sent), "{sent} packets of 400,000");
        assert!(
            !bucket.take(2 * packet + 1, start + Duration::from_secs(60)),
            "more than the depth"
        );
        assert!(bucket.take(packet, start + Duration::from_secs(60)), "a refusal takes nothing");
    }

    #[test]
    fn overdraft_is_paid_back_at_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(100, 10, start);
        assert!(bucket.has(50, start), "full");
        bucket.overdraw(50, start);
        assert!(!bucket.has(1, start));
        assert_eq!(bucket.ready_in(1, start), Duration::from_millis(410));
        assert_eq!(bucket.ready_in(50, start), Duration::from_millis(500));
        assert!(!bucket.has(1, start + Duration::from_millis(409)));
        assert!(bucket.has(1, start + Duration::from_millis(410)));
    }

    #[test]
    fn changed_rate_keeps_the_tokens_and_is_no_new_burst() {
        let start = Instant::now();
        let mut bucket = Bucket::new(100, 100, start);
        bucket.overdraw(80, start);
        for _ in 0..10 {
            bucket = bucket.with_rate(50, 50, start).with_rate(100, 100, start);
        }
        assert_eq!(taken(&mut bucket, start, 100), 20);
        let mut more = bucket.with_rate(1000, 1000, start);
        assert_eq!(taken(&mut more, start, 10), 0);
        assert_eq!(taken(&mut more, start + Duration::from_millis(10), 100), 10);
        let mut full = Bucket::new(10, 10, start).with_rate(10, 5, start);
        assert_eq!(taken(&mut full, start, 100), 5);
    }

    #[test]
    fn clock_that_stops_or_goes_back_grants_no_tokens() {
        let start = Instant::now() + Duration::from_secs(10);
        let mut bucket = Bucket::new(5, 5, start);
        assert_eq!(taken(&mut bucket, start, 10), 5);
        let before = start.checked_sub(Duration::from_secs(5)).unwrap();
        assert_eq!(taken(&mut bucket, before, 10), 0);
    }
}
