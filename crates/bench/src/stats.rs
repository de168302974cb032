// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Quantiles of latencies, ratios with their range, and the order of measurements.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies of one round, or of several merged. Quantiles are exact to 0.1 %.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        /// Decimal digits that a recorded value keeps: 1 to 5 are allowed.
        const DIGITS: u8 = 3;
        Self(Histogram::new(DIGITS).expect("three digits are allowed"))
    }
}

impl Latencies {
    pub(crate) fn push(&mut self, latency: Duration) {
        // Fails only where a histogram may not grow; these may.
        let _ = self
            .0
            .record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        let _ = self.0.add(&other.0);
    }

    /// The smallest latency that a share of `fraction` of all does not exceed, in microseconds; 0 without any.
    pub(crate) fn quantile_us(&self, fraction: f64) -> f64 {
        self.0.value_at_quantile(fraction) as f64 / 1e3
    }
}

/// Numbers that are the same in every run: splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Above 0, at most 1.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

/// The numbers below `count` in the order of one round: another permutation in each round, so that no contender
/// always follows the same predecessor, and the same in every run.
pub(crate) fn order(count: usize, round: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = Random(round);
    for last in (1..count).rev() {
        #[expect(clippy::cast_possible_truncation, reason = "a remainder below `count`")]
        order.swap(last, (random.next() % (last as u64 + 1)) as usize);
    }
    order
}

/// Median, minimum and maximum over several rounds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of these values; `None` without any.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max })
    }

    /// The spread of something over rounds; rounds without a value do not count.
    pub(crate) fn over<'a, R: 'a, V: Into<Option<f64>>>(
        rounds: impl IntoIterator<Item = &'a R>,
        value: impl Fn(&R) -> V,
    ) -> Option<Self> {
        Self::of(rounds.into_iter().filter_map(|round| value(round).into()))
    }

    /// The spread of ratios within rounds.
    pub(crate) fn of_ratios(
        ours: impl IntoIterator<Item = f64>,
        peer: impl IntoIterator<Item = f64>,
    ) -> Option<Self> {
        Self::of(ours.into_iter().zip(peer).map(|(ours, peer)| ours / peer))
    }

    /// `0.97 (0.95 to 0.98)`
    pub(crate) fn show(&self, decimals: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})")
    }

    pub(crate) fn map(self, f: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (f(self.min), f(self.max));
        Self {
            median: f(self.median),
            min: a.min(b),
            max: a.max(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_a_thousandth() {
        let mut latencies = Latencies::default();
        assert!(latencies.quantile_us(0.5).abs() < f64::EPSILON);
        for micros in (1..=100).rev() {
            latencies.push(Duration::from_micros(micros));
        }
        for (fraction, micros) in [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            let found = latencies.quantile_us(fraction);
            assert!((found / micros - 1.0).abs() < 1e-3, "{fraction}: {found}");
        }
    }

    #[test]
    fn order_is_a_permutation_that_differs_between_rounds_and_not_between_runs() {
        let orders: Vec<Vec<usize>> = (0..20).map(|round| order(5, round)).collect();
        for one in &orders {
            let mut sorted = one.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        assert_eq!(orders[3], order(5, 3));
        for first in 0..5 {
            assert!(
                orders.iter().any(|order| order[0] == first),
                "{first} is never first"
            );
        }
    }

    #[test]
    fn spread_of_an_even_count_takes_the_middle() {
        assert!(Spread::of([]).is_none());
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0]).expect("four values");
        assert!((spread.median - 2.5).abs() < 1e-9);
        assert!((spread.min - 1.0).abs() < 1e-9);
        assert!((spread.max - 4.0).abs() < 1e-9);
        assert_eq!(spread.show(1), "2.5 (1.0 to 4.0)");
    }
}
