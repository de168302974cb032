// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The numbers to reach, beside what was measured.

use std::borrow::Cow;

use serde::Serialize;

use crate::report::Table;
use crate::stats::Spread;

/// One of the numbers to reach.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    what: Cow<'static, str>,
    must: f64,
    aim: f64,
    /// Whether smaller is better.
    at_most: bool,
    measured: Spread,
    reached: &'static str,
}

impl Goal {
    /// Reached if the median is at least `must`, and better still at least `aim`.
    pub(crate) fn at_least(
        what: impl Into<Cow<'static, str>>,
        must: f64,
        aim: f64,
        measured: Spread,
    ) -> Self {
        Self::new(what.into(), must, aim, false, measured)
    }

    /// Reached if the median is at most `must`, and better still at most `aim`.
    pub(crate) fn at_most(
        what: impl Into<Cow<'static, str>>,
        must: f64,
        aim: f64,
        measured: Spread,
    ) -> Self {
        Self::new(what.into(), must, aim, true, measured)
    }

    fn new(what: Cow<'static, str>, must: f64, aim: f64, at_most: bool, measured: Spread) -> Self {
        let good = |bound: f64| {
            if at_most {
                measured.median <= bound
            } else {
                measured.median >= bound
            }
        };
        let reached = match (good(must), good(aim)) {
            (_, true) => "aim",
            (true, false) => "must",
            (false, false) => "missed",
        };
        Self {
            what,
            must,
            aim,
            at_most,
            measured,
            reached,
        }
    }
}

/// The goals as a table.
pub(crate) fn table(goals: &[Goal]) -> Table {
    let mut table = Table::new(&["what", "must", "aim", "measured", "reached"]);
    for Goal {
        what,
        must,
        aim,
        at_most,
        measured,
        reached,
    } in goals
    {
        let sign = if *at_most { "≤" } else { "≥" };
        let decimals = match *must {
            must if must > 10.0 => 1,
            must if must > 1.0 => 2,
            _ => 3,
        };
        table.row([
            what.to_string(),
            format!("{sign} {must:.decimals$}"),
            format!("{sign} {aim:.decimals$}"),
            measured.show(decimals),
            (*reached).to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides() {
        let spread = |median: f64| Spread {
            median,
            min: 0.0,
            max: 9.0,
        };
        let reached = |goal: Goal| goal.reached;
        assert_eq!(
            reached(Goal::at_least("a", 2.0, 3.0, spread(1.9))),
            "missed"
        );
        assert_eq!(reached(Goal::at_least("a", 2.0, 3.0, spread(2.0))), "must");
        assert_eq!(reached(Goal::at_least("a", 2.0, 3.0, spread(3.0))), "aim");
        assert_eq!(reached(Goal::at_most("a", 5.0, 3.0, spread(5.1))), "missed");
        assert_eq!(reached(Goal::at_most("a", 5.0, 3.0, spread(2.0))), "aim");
    }
}
