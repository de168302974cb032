// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Two saved runs side by side: before and after an update, one machine and another.
//!
//! The runs were not interleaved, so a difference is reported only where the ranges of the rounds do not overlap.

use serde::Serialize;

use super::results::{MeasuredPoint, SizesReport, number};
use crate::stats::Spread;
use crate::table::table;

/// One algorithm and size in both runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compared {
    pub(crate) algorithm: String,
    pub(crate) size: usize,
    pub(crate) implementation: String,
    /// Microseconds per operation in the first run.
    pub(crate) before_us: Spread,
    /// Microseconds per operation in the second.
    pub(crate) after_us: Spread,
    /// Speed of the second run divided by that of the first.
    pub(crate) speedup: f64,
    pub(crate) verdict: SizeChange,
}

/// Comparison of two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum SizeChange {
    Faster,
    Slower,
    #[strum(to_string = "ranges overlap")]
    NoDifference,
}

/// Everything that both runs have.
pub(crate) fn compare(before: &SizesReport, after: &SizesReport) -> Vec<Compared> {
    let mut rows = Vec::new();
    for old in &before.measured {
        let new = after.find(&old.algorithm, old.size, &old.implementation);
        let Some((before_us, after_us)) = old.spread().zip(new.and_then(MeasuredPoint::spread))
        else {
            continue;
        };
        let verdict = if after_us.max < before_us.min {
            SizeChange::Faster
        } else if after_us.min > before_us.max {
            SizeChange::Slower
        } else {
            SizeChange::NoDifference
        };
        rows.push(Compared {
            algorithm: old.algorithm.clone(),
            size: old.size,
            implementation: old.implementation.clone(),
            before_us,
            after_us,
            speedup: before_us.median / after_us.median,
            verdict,
        });
    }
    rows
}

/// The comparison as a table.
pub(crate) fn render(before: &SizesReport, after: &SizesReport, rows: &[Compared]) -> String {
    #[rustfmt::skip]
    let table = table(rows, &[
        ("algorithm", &|row| row.algorithm.clone()),
        ("bytes", &|row| if row.size == 0 { String::new() } else { row.size.to_string() }),
        ("with", &|row| row.implementation.clone()),
        ("before µs", &|row| number(row.before_us.median)),
        ("after µs", &|row| number(row.after_us.median)),
        ("times as fast", &|row| format!("{:.2}", row.speedup)),
        ("", &|row| row.verdict.to_string()),
    ]);
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    format!(
        "before: {}\nafter:  {}\n\n{}\n\
         {} faster, {} slower, {} without a difference beyond the range of the rounds\n",
        before.described,
        after.described,
        table.render(),
        count(SizeChange::Faster),
        count(SizeChange::Slower),
        count(SizeChange::NoDifference)
    )
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::report;
    use super::*;

    #[test]
    fn difference_is_named_only_outside_the_ranges() {
        let rows = compare(&report(1.0), &report(0.5));
        assert_eq!(rows.len(), 8);
        let of = |name: &'static str| rows.iter().filter(move |row| row.implementation == name);
        assert!(of("openssl").all(|row| row.verdict == SizeChange::NoDifference));
        assert!(of("aws-lc").all(|row| row.verdict == SizeChange::Faster));
        assert!(of("aws-lc").all(|row| (row.speedup - 2.0).abs() < 1e-9));
        let text = render(&report(1.0), &report(0.5), &rows);
        assert!(text.contains("4 faster, 0 slower, 4 without"), "{text}");
        let back = compare(&report(0.5), &report(1.0));
        assert_eq!(back.iter().filter(|row| row.verdict == SizeChange::Slower).count(), 4);
    }
}
