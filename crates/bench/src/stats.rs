// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Quantiles of latencies, ratios with their range, and the order of measurements.

use std::time::Duration;

use hdrhistogram::Histogram;
use schemars::JsonSchema;
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
        let _ = self.0.record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        let _ = self.0.add(&other.0);
    }

    /// The smallest latency that a share of `fraction` of all does not exceed, in microseconds; 0 without any.
    pub(crate) fn quantile_us(&self, fraction: f64) -> f64 {
        self.0.value_at_quantile(fraction) as f64 / 1e3
    }
}

/// The numbers below `count` in the order of one round: another permutation in each round, so that no contender
/// always follows the same predecessor, and the same in every run.
pub(crate) fn order(count: usize, round: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    fastrand::Rng::with_seed(round).shuffle(&mut order);
    order
}

/// Median, minimum and maximum over several rounds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
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
        let min = *values.first()?;
        let max = *values.last()?;
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

    /// Median and range: `0.97 (0.95 to 0.98)`
    pub(crate) fn show(&self, decimals: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.decimals$} ({min:.decimals$} to {max:.decimals$})")
    }

    pub(crate) fn map(self, f: impl Fn(f64) -> f64) -> Self {
        let a = f(self.min);
        let b = f(self.max);
        Self { median: f(self.median), min: a.min(b), max: a.max(b) }
    }
}

/// Geometric mean of the ratios within rounds, and the range that holds it with a probability of 95 %: the middle 95 %
/// of the means of samples of the rounds, drawn with replacement (the percentile bootstrap).
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct MeanRatio {
    pub(crate) mean: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) rounds: usize,
}

impl MeanRatio {
    /// Mean of the ratios of our rounds to the peer's; `None` without any.
    pub(crate) fn of_ratios(
        ours: impl IntoIterator<Item = f64>,
        peer: impl IntoIterator<Item = f64>,
    ) -> Option<Self> {
        /// Samples that are drawn: the ends of the range are then certain to a tenth of its width.
        const SAMPLES: usize = 2000;
        let ratios = ours.into_iter().zip(peer).map(|(ours, peer)| ours / peer);
        let logarithms: Vec<f64> = ratios.map(f64::ln).collect();
        let rounds = logarithms.len();
        if rounds == 0 {
            return None;
        }
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / rounds as f64;
        let mut random = fastrand::Rng::with_seed(rounds as u64);
        let mut draw = || logarithms[random.usize(..rounds)];
        let mut means: Vec<f64> =
            (0..SAMPLES).map(|_| mean(&mut (0..rounds).map(|_| draw()))).collect();
        means.sort_by(f64::total_cmp);
        Some(Self {
            mean: mean(&mut logarithms.iter().copied()).exp(),
            low: means[SAMPLES / 40].exp(),
            high: means[SAMPLES - 1 - SAMPLES / 40].exp(),
            rounds,
        })
    }

    /// Mean and interval: `0.87 (0.84 to 0.90)`
    pub(crate) fn show(&self, decimals: usize) -> String {
        let Self { mean, low, high, .. } = self;
        format!("{mean:.decimals$} ({low:.decimals$} to {high:.decimals$})")
    }

    /// The change in per cent: -13 for a ratio of 0.87.
    pub(crate) fn percent(&self) -> f64 {
        (self.mean - 1.0) * 100.0
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
        for seen in &orders {
            let mut sorted = seen.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
        }
        assert_eq!(orders[3], order(5, 3));
        for first in 0..5 {
            assert!(orders.iter().any(|order| order[0] == first), "{first} is never first");
        }
    }

    #[test]
    fn mean_ratio_is_geometric_and_its_range_holds_it() {
        assert!(MeanRatio::of_ratios([], []).is_none());
        let alone = MeanRatio::of_ratios([1.0], [2.0]).expect("a ratio");
        assert_eq!(alone.show(2), "0.50 (0.50 to 0.50)");
        let found = MeanRatio::of_ratios([2.0, 1.0], [1.0, 2.0]).expect("two ratios");
        assert!((found.mean - 1.0).abs() < 1e-9 && found.percent().abs() < 1e-6);
        assert!((found.low - 0.5).abs() < 1e-9 && (found.high - 2.0).abs() < 1e-9);
        let noisy = |round: u32| 0.8 + 0.02 * f64::from(round % 5);
        let found = MeanRatio::of_ratios((0..40).map(noisy), [1.0; 40]).expect("ratios");
        assert!(found.low < found.mean && found.mean < found.high, "{found:?}");
        assert!(found.high - found.low < 0.03, "forty rounds make it narrow: {found:?}");
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
