// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The numbers to reach, beside what was measured. A number that is promised under a condition says so,
//! and where the condition does not hold the measured value is shown without a verdict.

use std::borrow::Cow;

use clap::ValueEnum;
use serde::Serialize;

use crate::error::BenchError;
use crate::report::Table;
use crate::stats::Spread;

/// How far a measured value reaches.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum, strum::Display,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Reach {
    /// Not even what is promised
    #[value(skip)]
    Missed,
    /// What is promised
    Must,
    /// What is aimed at
    Aim,
}

/// One of the numbers to reach.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    what: Cow<'static, str>,
    /// Under which condition it is promised; always, if there is none.
    condition: Option<&'static str>,
    must: f64,
    aim: f64,
    /// Whether smaller is better.
    at_most: bool,
    measured: Spread,
    /// None where the condition does not hold.
    reached: Option<Reach>,
}

impl Goal {
    /// Reached if the median is at least `must` (at most, with `at_most`), and better still with `aim`.
    pub(crate) fn new(
        what: impl Into<Cow<'static, str>>,
        at_most: bool,
        must: f64,
        aim: f64,
        measured: Spread,
    ) -> Self {
        let good = |bound: f64| match at_most {
            true => measured.median <= bound,
            false => measured.median >= bound,
        };
        let reached = match (good(must), good(aim)) {
            (_, true) => Reach::Aim,
            (true, false) => Reach::Must,
            (false, false) => Reach::Missed,
        };
        let (what, reached) = (what.into(), Some(reached));
        Self {
            what,
            condition: None,
            must,
            aim,
            at_most,
            measured,
            reached,
        }
    }

    pub(crate) fn at_least(
        what: impl Into<Cow<'static, str>>,
        must: f64,
        aim: f64,
        measured: Spread,
    ) -> Self {
        Self::new(what, false, must, aim, measured)
    }

    pub(crate) fn at_most(
        what: impl Into<Cow<'static, str>>,
        must: f64,
        aim: f64,
        measured: Spread,
    ) -> Self {
        Self::new(what, true, must, aim, measured)
    }

    /// The same, promised under a condition only; `holds` says whether that is so in this run.
    pub(crate) fn only_if(mut self, condition: &'static str, holds: bool) -> Self {
        self.condition = Some(condition);
        self.reached = self.reached.filter(|_| holds);
        self
    }
}

/// The numbers to reach of one report.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Goals(Vec<Goal>);

impl Extend<Goal> for Goals {
    fn extend<T: IntoIterator<Item = Goal>>(&mut self, goals: T) {
        self.0.extend(goals);
    }
}

impl FromIterator<Goal> for Goals {
    fn from_iter<T: IntoIterator<Item = Goal>>(goals: T) -> Self {
        Self(goals.into_iter().collect())
    }
}

impl Goals {
    /// Those whose condition holds, and those without a verdict, as tables under a title; nothing if there
    /// are none.
    pub(crate) fn render(&self) -> String {
        let (promised, others): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|goal| goal.reached.is_some());
        let mut text = String::new();
        if !promised.is_empty() {
            text.push_str("\nNumbers to reach, median (range over the rounds)\n");
            text.push_str(&table(&promised).render());
        }
        if !others.is_empty() {
            text.push_str(
                "\nMeasured where nothing is promised: the condition does not hold here\n",
            );
            text.push_str(&table(&others).render());
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

fn table(goals: &[&Goal]) -> Table {
    let mut table = Table::new(&["what", "must", "aim", "measured", "reached"]);
    for Goal {
        what,
        condition,
        must,
        aim,
        at_most,
        measured,
        reached,
    } in goals.iter().copied()
    {
        let sign = if *at_most { "≤" } else { "≥" };
        let decimals = match *must {
            must if must > 10.0 => 1,
            must if must > 1.0 => 2,
            _ => 3,
        };
        table.row([
            condition.map_or_else(
                || what.to_string(),
                |condition| format!("{what} [{condition}]"),
            ),
            format!("{sign} {must:.decimals$}"),
            format!("{sign} {aim:.decimals$}"),
            measured.show(decimals),
            reached.map_or_else(|| "-".to_owned(), |reached| reached.to_string()),
        ]);
    }
    table
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
        assert_eq!(
            reached(Goal::at_least("a", 2.0, 3.0, spread(1.9))),
            Reach::Missed
        );
        assert_eq!(
            reached(Goal::at_least("a", 2.0, 3.0, spread(2.0))),
            Reach::Must
        );
        assert_eq!(
            reached(Goal::at_least("a", 2.0, 3.0, spread(3.0))),
            Reach::Aim
        );
        assert_eq!(
            reached(Goal::at_most("a", 5.0, 3.0, spread(5.1))),
            Reach::Missed
        );
        assert_eq!(
            reached(Goal::at_most("a", 5.0, 3.0, spread(2.0))),
            Reach::Aim
        );
    }

    #[test]
    fn missed_goal_fails_only_where_required_and_where_its_condition_holds() {
        let goals = |holds| {
            let missed = Goal::at_least("rate", 2.0, 3.0, spread(1.0)).only_if("no IFMA", holds);
            [missed, Goal::at_least("other", 1.0, 3.0, spread(2.0))]
                .into_iter()
                .collect::<Goals>()
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
