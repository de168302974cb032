// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What was measured: raw rounds, the tables, and the comparison with the numbers to reach.

use std::fmt::Write as _;

use serde::Serialize;

use super::contender::{LanesKind, Subject};
use super::load::{AtLoad, Loaded, Round};
use super::rates::{Measured, Series, ratio};
use super::through::Through;
use super::{CryptoKey, Plan, rsa_2048};
use crate::goals::{self, Goal};
use crate::machine::Machine;
use crate::report::Table;
use crate::stats::Spread;

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// The load at which a p99 is promised, in percent of the peak.
const PROMISED_LOAD: u64 = 70;

/// The parts of a report; those that were not asked for are empty.
#[derive(Debug, Default, Serialize)]
pub(super) struct Parts {
    pub(super) rates: Vec<Measured>,
    pub(super) loads: Vec<Loaded>,
    pub(super) node: Option<Through>,
    /// RSA-2048 in lanes that need no IFMA, beside libraries that were told that there is none.
    pub(super) without_ifma: Option<Measured>,
}

/// A report.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    schema: u32,
    benchmark: &'static str,
    machine: Machine,
    plan: Plan,
    #[serde(flatten)]
    pub(super) parts: Parts,
    goals: Vec<Goal>,
}

impl Results {
    pub(super) fn new(machine: Machine, plan: &Plan, parts: Parts) -> Self {
        Self {
            schema: SCHEMA,
            benchmark: "crypto",
            machine,
            plan: plan.clone(),
            goals: parts.goals(plan),
            parts,
        }
    }

    /// The tables.
    pub(super) fn render(&self) -> String {
        let plan = &self.plan;
        let sharing = if plan.core == plan.load_core {
            " (the same: latencies are not comparable)"
        } else {
            ""
        };
        let mut text = format!(
            "{}\n\nOn core {}, jobs by load from core {}{sharing}; {} rounds of {:.2} s, interleaved;\n\
             rates per second of processor time, medians; ratios with their range over the rounds;\n\
             every output checked\n",
            self.machine.describe(),
            plan.core,
            plan.load_core,
            plan.rounds,
            plan.duration.as_secs_f64(),
        );
        if let Some(mask) = &plan.ia32cap {
            let _ = writeln!(text, "OPENSSL_ia32cap={mask}");
        }
        let Parts {
            rates,
            loads,
            node,
            without_ifma,
        } = &self.parts;
        for measured in rates {
            let (operation, key) = (&measured.operation, measured.key);
            let _ = write!(text, "\n{operation}, {key}\n{}", rates_table(measured));
        }
        if let Some(measured) = without_ifma {
            let (operation, key) = (&measured.operation, measured.key);
            let head = "with AWS-LC and OpenSSL told that there is no IFMA";
            let table = rates_table(measured);
            let _ = write!(text, "\n{operation}, {key}, {head}\n{table}");
        }
        if !loads.is_empty() {
            let _ = write!(
                text,
                "\nLatency by offered load: Poisson arrivals, an engine with one worker per class;\n\
                 medians over the rounds, in µs; one at a time beside the library called directly\n{}",
                loads_table(loads, &plan.loads).render()
            );
        }
        if let Some(through) = node {
            let _ = write!(
                text,
                "\nRSA-2048 signatures through a node on one core, beside {} called directly, {} at once\n{}",
                through.subject,
                through.at_once,
                node_table(through).render()
            );
        }
        if !self.goals.is_empty() {
            let _ = write!(
                text,
                "\nNumbers to reach, median (range over the rounds)\n{}",
                goals::table(&self.goals).render()
            );
        }
        text
    }
}

fn name(subject: Option<Subject>) -> String {
    subject.map_or_else(
        || "AWS-LC, called directly".to_owned(),
        |subject| subject.to_string(),
    )
}

fn shown(spread: Option<Spread>, decimals: usize) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| spread.show(decimals))
}

fn median(values: &[f64]) -> f64 {
    Spread::of(values.iter().copied()).map_or(0.0, |spread| spread.median)
}

fn rates_table(measured: &Measured) -> String {
    let mut table = Table::new(&[
        "by",
        "at once",
        "per s",
        "µs per call",
        "/ AWS-LC",
        "/ OpenSSL",
    ]);
    let library = measured.library().map(|series| series.rates.clone());
    for Series {
        subject,
        at_once,
        rates,
    } in &measured.series
    {
        let per_s = median(rates);
        table.row([
            name(*subject),
            at_once.to_string(),
            format!("{per_s:.0}"),
            format!("{:.1}", *at_once as f64 * 1e6 / per_s),
            shown(library.as_ref().and_then(|peer| ratio(rates, peer)), 2),
            shown(ratio(rates, &measured.openssl), 2),
        ]);
    }
    if !measured.openssl.is_empty() {
        let per_s = median(&measured.openssl);
        table.row([
            "OpenSSL, called directly".to_owned(),
            "1".to_owned(),
            format!("{per_s:.0}"),
            format!("{:.1}", 1e6 / per_s),
            shown(
                library
                    .as_ref()
                    .and_then(|peer| ratio(&measured.openssl, peer)),
                2,
            ),
            "1.00".to_owned(),
        ]);
    }
    table.render()
}

/// Median over the rounds of something at one load.
pub(super) fn at_load(
    rounds: &[Round],
    percent: u64,
    value: impl Fn(&AtLoad) -> f64,
) -> Option<Spread> {
    let of = |round: &Round| {
        let at = round.loads.iter().find(|at| at.percent == percent);
        at.map(&value)
    };
    Spread::of(rounds.iter().filter_map(of))
}

fn loads_table(loads: &[Loaded], percents: &[u64]) -> Table {
    let mut head = vec![
        "operation".to_owned(),
        "served by".to_owned(),
        "peak/s".to_owned(),
        "one at a time".to_owned(),
        "direct".to_owned(),
    ];
    head.extend(
        percents
            .iter()
            .map(|percent| format!("{percent} % p50 p99")),
    );
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let mut table = Table::new(&head);
    for one in loads {
        let spread = |value: fn(&Round) -> f64| {
            Spread::of(one.rounds.iter().map(value)).map_or(0.0, |spread| spread.median)
        };
        let quantiles = percents.iter().map(|percent| {
            let show = |value: fn(&AtLoad) -> f64| {
                at_load(&one.rounds, *percent, value)
                    .map_or_else(|| "-".to_owned(), |spread| format!("{:.0}", spread.median))
            };
            format!("{} {}", show(|at| at.p50_us), show(|at| at.p99_us))
        });
        let row = [
            format!("{} {}", one.operation, one.key),
            one.serving.to_string(),
            format!("{:.0}", spread(|round| round.peak_per_s)),
            format!("{:.0}", spread(|round| round.lone_p50_us)),
            format!("{:.0}", spread(|round| round.direct_p50_us)),
        ];
        table.row(row.into_iter().chain(quantiles));
    }
    table
}

fn node_table(through: &Through) -> Table {
    let mut table = Table::new(&["", "direct", "node", "node / direct"]);
    let of = |value: fn(&super::through::Round) -> f64| {
        let values: Vec<f64> = through.rounds.iter().map(value).collect();
        (median(&values), values)
    };
    let (direct, directs) = of(|round| round.direct_per_s);
    let (node, nodes) = of(|round| round.node_per_s);
    table.row([
        "per second".to_owned(),
        format!("{direct:.0}"),
        format!("{node:.0}"),
        shown(ratio(&nodes, &directs), 3),
    ]);
    let (direct, directs) = of(|round| round.direct_cpu_us);
    let (node, nodes) = of(|round| round.node_cpu_us);
    table.row([
        "CPU µs each".to_owned(),
        format!("{direct:.1}"),
        format!("{node:.1}"),
        shown(ratio(&nodes, &directs), 3),
    ]);
    table
}

impl Parts {
    fn goals(&self, plan: &Plan) -> Vec<Goal> {
        let mut goals = Vec::new();
        let mut lanes = |what, must, aim, measured: Option<&Measured>, lanes| {
            if let Some(spread) = measured.and_then(|measured| gain(measured, lanes)) {
                goals.push(Goal::at_least(what, must, aim, spread));
            }
        };
        let here = rsa_2048(&self.rates);
        // With IFMA masked here, the library is that of a processor without it.
        let without = self
            .without_ifma
            .as_ref()
            .or_else(|| here.filter(|_| plan.ia32cap.is_some() || !LanesKind::Ifma.is_available()));
        let with = here.filter(|_| plan.ia32cap.is_none());
        let what = "RSA-2048 sign, simd with IFMA / AWS-LC";
        lanes(what, 2.5, 4.0, with, LanesKind::Ifma);
        let what = "RSA-2048 sign, simd without IFMA / AWS-LC without IFMA";
        lanes(what, 1.8, 2.4, without, LanesKind::Fp52);
        let batched = |loaded: &&Loaded| {
            loaded.key == CryptoKey::Rsa2048
                && matches!(loaded.serving.0.first(), Some(Subject::Simd(_)))
        };
        if let Some(loaded) = self.loads.iter().find(batched) {
            let p99 = at_load(&loaded.rounds, PROMISED_LOAD, |at| at.p99_us / 1e3);
            if let Some(spread) = p99 {
                let what = "RSA-2048 sign with simd at 70 % of the peak, p99, ms";
                goals.push(Goal::at_most(what, 5.0, 2.0, spread));
            }
            let lone = |round: &Round| round.lone_p50_us / round.direct_p50_us;
            if let Some(spread) = Spread::of(loaded.rounds.iter().map(lone)) {
                let what = "a job that is alone, through an engine / AWS-LC alone, p50";
                goals.push(Goal::at_most(what, 1.3, 1.1, spread));
            }
        }
        let on_lanes = |through: &&Through| matches!(through.subject, Subject::Simd(_));
        if let Some(through) = self.node.as_ref().filter(on_lanes) {
            // By processor time: the core is full in both cases.
            let gain = |round: &super::through::Round| round.direct_cpu_us / round.node_cpu_us;
            if let Some(spread) = Spread::of(through.rounds.iter().map(gain)) {
                let what = "RSA-2048 sign with simd through a node on one core / called directly";
                goals.push(Goal::at_least(what, 0.9, 0.95, spread));
            }
        }
        goals
    }
}

/// Full batches in these lanes against the library.
fn gain(measured: &Measured, lanes: LanesKind) -> Option<Spread> {
    let full = measured.full(Subject::Simd(lanes))?;
    ratio(&full.rates, &measured.library()?.rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        let series = |subject, at_once, rate: f64| Series {
            subject,
            at_once,
            rates: vec![rate, rate * 1.1, rate * 0.9],
        };
        Measured {
            operation: "rsa-pkcs1-sign".to_owned(),
            key: CryptoKey::Rsa2048,
            series: vec![
                series(None, 1, 1_000.0),
                series(Some(Subject::Simd(LanesKind::Ifma)), 1, 1_000.0),
                series(Some(Subject::Simd(LanesKind::Ifma)), 4, 3_000.0),
            ],
            openssl: vec![900.0, 990.0, 810.0],
        }
    }

    #[test]
    fn ratios_are_taken_within_rounds_and_full_batches_count() {
        let measured = measured();
        let spread = gain(&measured, LanesKind::Ifma).expect("a ratio");
        assert!((spread.min - 3.0).abs() < 1e-9 && (spread.max - 3.0).abs() < 1e-9);
        assert!(gain(&measured, LanesKind::Fp52).is_none());
        let table = rates_table(&measured);
        assert!(table.contains("simd ifma"), "{table}");
        assert!(table.contains("3.00 (3.00 to 3.00)"), "{table}");
        assert!(table.contains("OpenSSL, called directly"), "{table}");
    }

    #[test]
    fn without_ifma_the_lanes_are_compared_with_a_library_without_it() {
        let plan = Plan::for_tests(0);
        let mut slow = measured();
        slow.series[2].subject = Some(Subject::Simd(LanesKind::Fp52));
        let parts = Parts {
            rates: vec![measured()],
            without_ifma: Some(slow),
            ..Parts::default()
        };
        let goals = goals::table(&parts.goals(&plan)).render();
        let reached: Vec<&str> = goals.lines().skip(1).collect();
        assert_eq!(reached.len(), 2, "{goals}");
        assert!(
            reached[0].contains("with IFMA") && reached[0].ends_with("must"),
            "{goals}"
        );
        assert!(
            reached[1].contains("without IFMA") && reached[1].ends_with("aim"),
            "{goals}"
        );
    }

    #[test]
    fn a_report_without_parts_says_on_what_it_ran() {
        let results = Results::new(Machine::here(), &Plan::for_tests(0), Parts::default());
        assert!(results.render().contains("On core 0"));
    }
}
