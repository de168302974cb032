// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Random numbers for jitter and for choosing nodes. Not for secrets.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014), seeded by the process's hash keys and its id: two forks of one
/// process must not choose alike.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Self {
        if cfg!(feature = "fuzzing") {
            // A finding has to be repeatable.
            return Self(1);
        }
        Self(RandomState::new().hash_one(std::process::id()))
    }

    /// Numbers that follow from `seed`.
    #[cfg(test)]
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        // The high half of a 64-bit product is below `bound`, so it fits.
        u32::try_from(((self.next() >> 32) * u64::from(bound)) >> 32).unwrap_or(0)
    }

    /// A time up to `bound`.
    pub(crate) fn up_to(&mut self, bound: Duration) -> Duration {
        bound.mul_f64(f64::from(self.below(u32::MAX)) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_below_their_bound_and_differ() {
        let mut random = Random::new();
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[random.below(7) as usize] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert!(random.up_to(Duration::from_secs(1)) <= Duration::from_secs(1));
    }
}
