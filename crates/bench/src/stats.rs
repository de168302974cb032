// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Quantiles of latencies, and ratios with their range.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Latencies of one round, or of several merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    nanos: Vec<u64>,
}

impl Latencies {
    pub(crate) fn push(&mut self, latency: Duration) {
        self.nanos
            .push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.nanos.extend_from_slice(&other.nanos);
    }

    /// The `fraction` quantile (nearest rank), in microseconds; 0 if there is nothing.
    pub(crate) fn quantile_us(&mut self, fraction: f64) -> f64 {
        let Some(last) = self.nanos.len().checked_sub(1) else {
            return 0.0;
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank between 0 and the length, which fits"
        )]
        let rank = (fraction * last as f64).round() as usize;
        let (_, value, _) = self.nanos.select_nth_unstable(rank.min(last));
        *value as f64 / 1e3
    }
}

/// Median, minimum and maximum of what was measured in several rounds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of these values; nothing if there is none.
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

    /// `0.97 (0.95 to 0.98)`, with so many decimals.
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
    fn quantiles_are_nearest_ranks() {
        let mut latencies = Latencies::default();
        assert!(latencies.quantile_us(0.5).abs() < f64::EPSILON);
        for micros in (1..=101).rev() {
            latencies.push(Duration::from_micros(micros));
        }
        assert!((latencies.quantile_us(0.5) - 51.0).abs() < 1e-9);
        assert!((latencies.quantile_us(0.99) - 100.0).abs() < 1e-9);
        assert!((latencies.quantile_us(1.0) - 101.0).abs() < 1e-9);
    }

    #[test]
    fn the_spread_of_an_even_count_takes_the_middle() {
        assert!(Spread::of([]).is_none());
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0]).expect("four values");
        assert!((spread.median - 2.5).abs() < 1e-9);
        assert!((spread.min - 1.0).abs() < 1e-9);
        assert!((spread.max - 4.0).abs() < 1e-9);
        assert_eq!(spread.show(1), "2.5 (1.0 to 4.0)");
    }
}
