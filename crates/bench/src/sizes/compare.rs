// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Two saved runs side by side: before and after an update, one machine and another.
//!
//! They did not run interleaved, so a difference is named only where the ranges of the rounds do not
//! overlap.

use std::fmt::Write as _;

use serde::Serialize;

use super::results::{SizesReport, number};
use crate::report::Table;
use crate::stats::Spread;

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
    /// How many times as fast the second is.
    pub(crate) speedup: f64,
    pub(crate) verdict: Verdict,
}

/// What can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Faster,
    Slower,
    /// The ranges overlap.
    NoDifference,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifference => "ranges overlap",
        }
    }
}

/// Everything that both runs have.
pub(crate) fn compare(before: &SizesReport, after: &SizesReport) -> Vec<Compared> {
    let mut rows = Vec::new();
    for old in &before.measured {
        let new = after.measured.iter().find(|new| {
            new.algorithm == old.algorithm
                && new.size == old.size
                && new.implementation == old.implementation
        });
        let Some((before_us, after_us)) = old.spread().zip(new.and_then(|new| new.spread())) else {
            continue;
        };
        let verdict = if after_us.max < before_us.min {
            Verdict::Faster
        } else if after_us.min > before_us.max {
            Verdict::Slower
        } else {
            Verdict::NoDifference
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

/// The comparison for people.
pub(crate) fn render(before: &SizesReport, after: &SizesReport, rows: &[Compared]) -> String {
    let mut text = format!(
        "before: {}\nafter:  {}\n\n",
        before.described, after.described
    );
    let head = [
        "algorithm",
        "bytes",
        "with",
        "before µs",
        "after µs",
        "times as fast",
        "",
    ];
    let mut table = Table::new(&head);
    for row in rows {
        let size = if row.size == 0 {
            String::new()
        } else {
            row.size.to_string()
        };
        table.row([
            row.algorithm.clone(),
            size,
            row.implementation.clone(),
            number(row.before_us.median),
            number(row.after_us.median),
            format!("{:.2}", row.speedup),
            row.verdict.word().to_owned(),
        ]);
    }
    text.push_str(&table.render());
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let _ = writeln!(
        text,
        "\n{} faster, {} slower, {} without a difference that stands out of the rounds",
        count(Verdict::Faster),
        count(Verdict::Slower),
        count(Verdict::NoDifference)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::report;
    use super::*;

    #[test]
    fn a_difference_is_named_only_outside_the_ranges() {
        let rows = compare(&report(1.0), &report(0.5));
        assert_eq!(rows.len(), 8);
        let of = |name: &'static str| rows.iter().filter(move |row| row.implementation == name);
        assert!(of("openssl").all(|row| row.verdict == Verdict::NoDifference));
        assert!(of("aws-lc").all(|row| row.verdict == Verdict::Faster));
        assert!(of("aws-lc").all(|row| (row.speedup - 2.0).abs() < 1e-9));
        let text = render(&report(1.0), &report(0.5), &rows);
        assert!(text.contains("4 faster, 0 slower, 4 without"), "{text}");
        let back = compare(&report(0.5), &report(1.0));
        assert_eq!(
            back.iter()
                .filter(|row| row.verdict == Verdict::Slower)
                .count(),
            4
        );
    }
}
