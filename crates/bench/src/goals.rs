// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The goals, beside what was measured. A number that is promised under a condition names it; where
//! the condition does not hold, the measured value has no verdict.

use std::borrow::Cow;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::BenchError;
use crate::stats::{MeanRatio, Spread};
use crate::table::table;

/// Relation of a measured value to its goal.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    JsonSchema,
    ValueEnum,
    strum::Display,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Reach {
    /// Less than the documented minimum
    #[value(skip)]
    Missed,
    /// The documented minimum
    Must,
    /// The target
    Aim,
}

/// A goal: a number that is promised, or aimed at.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Goal {
    what: Cow<'static, str>,
    /// The condition of the promise; `None` for a promise without one.
    condition: Option<&'static str>,
    must: f64,
    aim: f64,
    /// Whether smaller is better.
    at_most: bool,
    measured: MeasuredValue,
    /// `None` where the condition does not hold.
    reached: Option<Reach>,
}

/// A measured value with its range. The report serialises the fields of the one that it is.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum MeasuredValue {
    /// Median, minimum and maximum of the rounds.
    Rounds(Spread),
    /// Geometric mean of the rounds' ratios, with the range that holds it.
    Mean(MeanRatio),
}

impl MeasuredValue {
    /// The value that is compared with a bound.
    fn middle(self) -> f64 {
        match self {
            Self::Rounds(spread) => spread.median,
            Self::Mean(ratio) => ratio.mean,
        }
    }

    fn show(self, decimals: usize) -> String {
        match self {
            Self::Rounds(spread) => spread.show(decimals),
            Self::Mean(ratio) => ratio.show(decimals),
        }
    }
}

impl Goal {
    /// Reached if the median is at least `must`, and better still at least `aim`; `None` if it was not measured.
    pub(crate) fn at_least(
        what: impl Into<Cow<'static, str>>,
        must: f64,
        aim: f64,
        measured: impl Into<Option<Spread>>,
    ) -> Option<Self> {
        Some(Self::new(what.into(), [must, aim], MeasuredValue::Rounds(measured.into()?), 1.0))
    }

    /// Reached if the median is at most `must`, and better still at most `aim`; `None` if it was not measured.
    pub(crate) fn at_most(
        what: impl Into<Cow<'static, str>>,
        must: f64,
        aim: f64,
        measured: impl Into<Option<Spread>>,
    ) -> Option<Self> {
        Some(Self::new(what.into(), [must, aim], MeasuredValue::Rounds(measured.into()?), -1.0))
    }

    /// Reached if the mean ratio is at most `must`, and better still at most `aim`.
    pub(crate) fn at_most_on_average(
        what: impl Into<Cow<'static, str>>,
        must: f64,
        aim: f64,
        measured: MeanRatio,
    ) -> Self {
        Self::new(what.into(), [must, aim], MeasuredValue::Mean(measured), -1.0)
    }

    /// `sign` is 1 where more is better, and -1 where less is.
    fn new(
        what: Cow<'static, str>,
        [must, aim]: [f64; 2],
        measured: MeasuredValue,
        sign: f64,
    ) -> Self {
        let reaches = |bound: f64| sign * measured.middle() >= sign * bound;
        let reached = match (reaches(aim), reaches(must)) {
            (true, _) => Reach::Aim,
            (false, true) => Reach::Must,
            (false, false) => Reach::Missed,
        };
        Self {
            what,
            condition: None,
            must,
            aim,
            at_most: sign < 0.0,
            measured,
            reached: Some(reached),
        }
    }

    /// A goal that is promised under a condition only; `holds` is whether the condition holds in this run.
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

/// The goals of one report.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Goals(pub(crate) Vec<Goal>);

impl Goals {
    /// Tables under a title: goals whose condition holds, then those without a verdict; empty without goals.
    pub(crate) fn render(&self) -> String {
        self.render_as("median (range over the rounds)")
    }

    /// Tables of the goals, with a description of the values in the title.
    pub(crate) fn render_as(&self, values: &str) -> String {
        let (promised, others): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|goal| goal.reached.is_some());
        let titled = [
            (format!("Numbers to reach, {values}"), promised),
            (
                "Measured where nothing is promised: the condition does not hold here".to_owned(),
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
        let missed: Vec<&str> = self.0.iter().filter(short).map(|goal| &*goal.what).collect();
        if missed.is_empty() {
            Ok(())
        } else {
            Err(BenchError::Goals { wanted: wanted.into(), missed: missed.join("; ") })
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
        Spread { median, min: 0.0, max: 9.0 }
    }

    #[test]
    fn median_decides_what_is_reached() {
        let reached = |goal: Option<Goal>| goal.and_then(|goal| goal.reached).expect("it applies");
        let at_least = |median| reached(Goal::at_least("a", 2.0, 3.0, spread(median)));
        assert_eq!([1.9, 2.0, 3.0].map(at_least), [Reach::Missed, Reach::Must, Reach::Aim]);
        let at_most = |median| reached(Goal::at_most("a", 5.0, 3.0, spread(median)));
        assert_eq!([5.1, 5.0, 2.0].map(at_most), [Reach::Missed, Reach::Must, Reach::Aim]);
    }

    #[test]
    fn missed_goal_fails_only_where_required_and_where_its_condition_holds() {
        let goals = |holds| {
            let missed = Goal::at_least("rate", 2.0, 3.0, spread(1.0));
            let missed = missed.map(|goal| goal.only_if("no IFMA", holds));
            let other = Goal::at_least("other", 1.0, 3.0, spread(2.0));
            Goals(missed.into_iter().chain(other).collect())
        };
        assert!(goals(true).require(None).is_ok());
        let error = goals(true).require(Some(Reach::Must)).expect_err("one is missed");
        assert!(
            error.to_string().contains("rate") && !error.to_string().contains("other"),
            "{error}"
        );
        assert!(goals(false).require(Some(Reach::Must)).is_ok());
        assert!(goals(false).require(Some(Reach::Aim)).is_err());
        let text = goals(false).render();
        assert!(text.contains("rate [no IFMA]") && text.contains("nothing is promised"), "{text}");
        assert!(!text.contains("missed"), "{text}");
    }
}
