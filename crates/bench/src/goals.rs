// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The numbers to reach, beside what was measured. A number that is promised under a condition names it; where
//! the condition does not hold, the measured value has no verdict.

use std::borrow::Cow;

use clap::ValueEnum;
use serde::Serialize;

use crate::error::BenchError;
use crate::report::table;
use crate::stats::Spread;

/// How far a measured value reaches.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum, strum::Display,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Reach {
    /// Less than promised
    #[value(skip)]
    Missed,
    /// As promised
    Must,
    /// As aimed at
    Aim,
}

/// One of the numbers to reach.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    what: Cow<'static, str>,
    /// The condition of the promise; `None` for a promise without one.
    condition: Option<&'static str>,
    must: f64,
    aim: f64,
    /// Whether smaller is better.
    at_most: bool,
    measured: Spread,
    /// `None` where the condition does not hold.
    reached: Option<Reach>,
}

impl Goal {
    /// Reached if the median is at least `must`, and better still at least `aim`.
    pub(crate) fn at_least(
        what: impl Into<Cow<'static, str>>,
        must: f64,
        aim: f64,
        measured: Spread,
    ) -> Self {
        let reached = match measured.median {
            median if median >= aim => Reach::Aim,
            median if median >= must => Reach::Must,
            _ => Reach::Missed,
        };
        Self {
            what: what.into(),
            condition: None,
            must,
            aim,
            at_most: false,
            measured,
            reached: Some(reached),
        }
    }

    /// Reached if the median is at most `must`, and better still at most `aim`.
    pub(crate) fn at_most(
        what: impl Into<Cow<'static, str>>,
        must: f64,
        aim: f64,
        measured: Spread,
    ) -> Self {
        let Self { reached, .. } = Self::at_least("", -must, -aim, measured.map(|value| -value));
        Self {
            at_most: true,
            reached,
            ..Self::at_least(what, must, aim, measured)
        }
    }

    /// The same, promised under a condition only; `holds` is whether it holds in this run.
    pub(crate) fn only_if(mut self, condition: &'static str, holds: bool) -> Self {
        self.condition = Some(condition);
        self.reached = self.reached.filter(|_| holds);
        self
    }

    /// A bound as the table shows it: with as many decimals as the promised one needs.
    fn bound(&self, bound: f64) -> String {
        let sign = if self.at_most { "≤" } else { "≥" };
        format!("{sign} {bound:.*}", self.decimals())
    }

    fn decimals(&self) -> usize {
        match self.must {
            must if must > 10.0 => 1,
            must if must > 1.0 => 2,
            _ => 3,
        }
    }
}

/// The numbers to reach of one report.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Goals(pub(crate) Vec<Goal>);

impl Goals {
    /// Those whose condition holds, and those without a verdict, as tables under a title; empty without goals.
    pub(crate) fn render(&self) -> String {
        let (promised, others): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|goal| goal.reached.is_some());
        let titled = [
            ("Numbers to reach, median (range over the rounds)", promised),
            (
                "Measured where nothing is promised: the condition does not hold here",
                others,
            ),
        ];
        let mut text = String::new();
        for (title, goals) in titled.into_iter().filter(|(_, goals)| !goals.is_empty()) {
            text.push_str(&format!("\n{title}\n{}", goals_table(&goals)));
        }
        text
    }

    /// # Errors
    /// [`BenchError::Goals`] if `wanted` is set and a promised number is not reached that far.
    pub(crate) fn require(&self, wanted: Option<Reach>) -> Result<(), BenchError> {
        let Some(wanted) = wanted else { return Ok(()) };
        let short = |goal: &&Goal| goal.reached.is_some_and(|reached| reached < wanted);
        let missed: Vec<&str> = self
            .0
            .iter()
            .filter(short)
            .map(|goal| &*goal.what)
            .collect();
        match missed.is_empty() {
            true => Ok(()),
            false => Err(BenchError::Goals {
                wanted,
                missed: missed.join("; "),
            }),
        }
    }
}

#[rustfmt::skip]
fn goals_table(goals: &[&Goal]) -> String {
    let what = |goal: &Goal| match goal.condition {
        Some(condition) => format!("{} [{condition}]", goal.what),
        None => goal.what.to_string(),
    };
    table(goals, &[
        ("what", &|goal| what(goal)),
        ("must", &|goal| goal.bound(goal.must)),
        ("aim", &|goal| goal.bound(goal.aim)),
        ("measured", &|goal| goal.measured.show(goal.decimals())),
        ("reached", &|goal| goal.reached.map_or_else(|| "-".to_owned(), |reached| reached.to_string())),
    ])
    .render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(median: f64) -> Spread {
        Spread {
            median,
            min: 0.0,
            max: 9.0,
        }
    }

    #[test]
    fn median_decides_what_is_reached() {
        let reached = |goal: Goal| goal.reached.expect("it applies");
        let at_least = |median| reached(Goal::at_least("a", 2.0, 3.0, spread(median)));
        assert_eq!(
            [1.9, 2.0, 3.0].map(at_least),
            [Reach::Missed, Reach::Must, Reach::Aim]
        );
        let at_most = |median| reached(Goal::at_most("a", 5.0, 3.0, spread(median)));
        assert_eq!(
            [5.1, 5.0, 2.0].map(at_most),
            [Reach::Missed, Reach::Must, Reach::Aim]
        );
    }

    #[test]
    fn missed_goal_fails_only_where_required_and_where_its_condition_holds() {
        let goals = |holds| {
            let missed = Goal::at_least("rate", 2.0, 3.0, spread(1.0)).only_if("no IFMA", holds);
            Goals(vec![missed, Goal::at_least("other", 1.0, 3.0, spread(2.0))])
        };
        assert!(goals(true).require(None).is_ok());
        let error = goals(true)
            .require(Some(Reach::Must))
            .expect_err("one is missed");
        assert!(
            error.to_string().contains("rate") && !error.to_string().contains("other"),
            "{error}"
        );
        assert!(goals(false).require(Some(Reach::Must)).is_ok());
        assert!(goals(false).require(Some(Reach::Aim)).is_err());
        let text = goals(false).render();
        assert!(
            text.contains("rate [no IFMA]") && text.contains("nothing is promised"),
            "{text}"
        );
        assert!(!text.contains("missed"), "{text}");
    }
}
