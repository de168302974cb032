// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which signatures of the pool are verified where verifying each would cost too much.
//!
//! OpenSSL 3.0 verifies an RSA-2048 signature in 17 µs, one by P-256 in 60, by Ed25519 in 100, by P-384 in 660 µs,
//! against some 300 µs that a handshake with a pooled key costs a gateway. So RSA signatures are verified all. Others
//! may cost a busy gateway 5 % and an idle one 1 % of a core: one in [`SampleRate::every`] is verified, at random, so
//! that no node knows which, and each one that comes [`SampleRate::after`] the last. A wrong one makes its node
//! doubtful, and then all results of that node are verified
//! (see [`millrace_client::ReplySource::is_doubtful`]).

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How thoroughly the caller checks a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scrutiny {
    /// Its form: this process has computed it.
    Form,
    /// Samples, where a check is dear.
    Sample,
    /// Fully: its node was wrong before, or is new.
    Full,
}

/// The share of results that is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRate {
    /// One result in this many.
    pub every: u64,
    /// Each result that comes this long after the last one that was verified.
    pub after: Duration,
}

impl SampleRate {
    /// For signatures that take up to 120 µs to verify: P-256, Ed25519, ML-DSA. 15 µs for each; 1 % of a core.
    pub const QUICK: Self = Self { every: 8, after: Duration::from_millis(10) };

    /// For those that take up to 1 ms: P-384, P-521, DSA. 15 µs for each; 1 % of a core.
    pub const SLOW: Self = Self { every: 64, after: Duration::from_millis(100) };
}

/// Chooses the samples of one process.
#[derive(Debug)]
pub struct SignatureSampler {
    start: Instant,
    /// Microseconds from the start to the last sample.
    last: AtomicU64,
    drawn: AtomicU64,
    random: RandomState,
}

impl Default for SignatureSampler {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            last: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
            random: RandomState::new(),
        }
    }
}

impl SignatureSampler {
    /// Whether a result that came at `now` is verified.
    pub fn picks(&self, rate: SampleRate, now: Instant) -> bool {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let now = micros(now.saturating_duration_since(self.start));
        // Two threads at once may both verify.
        let is_due = now.saturating_sub(self.last.load(Ordering::Relaxed)) >= micros(rate.after);
        let draw = self.random.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed));
        let is_picked = is_due || draw.is_multiple_of(rate.every);
        if is_picked {
            self.last.store(now, Ordering::Relaxed);
        }
        is_picked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seldom_results_are_verified_all_and_many_by_the_rate() {
        for rate in [SampleRate::QUICK, SampleRate::SLOW] {
            let sampler = SignatureSampler::default();
            let mut now = sampler.start;
            for _ in 0..100 {
                now += rate.after;
                assert!(sampler.picks(rate, now));
            }
            let count = (0..10_000).filter(|_| sampler.picks(rate, now)).count() as u64;
            let expected = 10_000 / rate.every;
            assert!(count > expected / 2 && count < expected * 2, "{count} of {expected}");
            let before = now + rate.after - Duration::from_micros(1);
            let draws = (0..rate.every * 20).filter(|_| sampler.picks(rate, before)).count();
            assert!(draws as u64 <= rate.every * 10, "not yet due: {draws}");
        }
    }
}
