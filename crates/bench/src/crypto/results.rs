// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What `bench crypto` measured: raw rounds, the tables, and the comparison with the numbers to reach.

use std::fmt::Write as _;

use serde::Serialize;

use super::load::{AtLoad, LoadRound, Loaded};
use super::rates::{MeasuredRates, Series, ratio};
use super::through::{Through, ThroughRound};
use super::{CryptoPlan, rsa_2048};
use crate::goals::{Goal, Goals};
use crate::machine::Machine;
use crate::report::{Table, median, sharing};
use crate::stats::Spread;
use crate::workload::{BenchKey, LanesKind, Subject};

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 2;

/// The load at which a p99 is promised, in percent of the peak.
const PROMISED_LOAD: u64 = 70;

/// The parts of a report; those that were not asked for are empty.
#[derive(Debug, Default, Serialize)]
pub(super) struct Parts {
    pub(super) rates: Vec<MeasuredRates>,
    pub(super) loads: Vec<Loaded>,
    /// One entry per worker count of the node.
    pub(super) nodes: Vec<Through>,
    /// RSA-2048 in lanes that need no IFMA, beside libraries that leave IFMA alone.
    pub(super) without_ifma: Option<MeasuredRates>,
}

/// The report of `bench crypto`.
#[derive(Debug, Serialize)]
pub(super) struct CryptoReport {
    schema: u32,
    benchmark: &'static str,
    machine: Machine,
    plan: CryptoPlan,
    #[serde(flatten)]
    pub(super) parts: Parts,
    pub(super) goals: Goals,
}

impl CryptoReport {
    pub(super) fn new(plan: &CryptoPlan, parts: Parts) -> Self {
        Self {
            schema: SCHEMA,
            benchmark: "crypto",
            machine: Machine::here(),
            plan: plan.clone(),
            goals: parts.goals(plan),
            parts,
        }
    }

    /// The tables.
    pub(super) fn render(&self) -> String {
        let plan = &self.plan;
        let mut text = format!(
            "{}\n\nOn core {}, jobs by load from core {}{}; {} rounds of {:.2} s, interleaved in changing order;\n\
             rates per second of CPU time and by the clock, medians; ratios of the former with their range over the\n\
             rounds; every output checked\n",
            self.machine.describe(),
            plan.core,
            plan.load_core,
            sharing(plan.core, plan.load_core),
            plan.rounds,
            plan.duration.as_secs_f64(),
        );
        let Parts {
            rates,
            loads,
            nodes,
            without_ifma,
        } = &self.parts;
        for measured in rates {
            let (operation, key) = (&measured.operation, measured.key);
            let _ = write!(text, "\n{operation}, {key}\n{}", rates_table(measured));
        }
        if let Some(measured) = without_ifma {
            let (operation, key) = (&measured.operation, measured.key);
            let head = "with AWS-LC and OpenSSL set to use no IFMA";
            let _ = write!(
                text,
                "\n{operation}, {key}, {head}\n{}",
                rates_table(measured)
            );
        }
        if !loads.is_empty() {
            let _ = write!(
                text,
                "\nLatency by offered load: Poisson arrivals, an engine with one worker per class;\n\
                 medians over the rounds, in µs; one at a time beside the library called directly\n{}",
                loads_table(loads, &plan.loads).render()
            );
        }
        for through in nodes {
            let Through {
                subject,
                at_once,
                workers,
                ..
            } = through;
            let _ = write!(
                text,
                "\nRSA-2048 signatures through a node on one core (workers per class: {workers}),\n\
                 beside {subject} called directly, {at_once} at once\n{}",
                node_table(through).render()
            );
        }
        text + &self.goals.render()
    }
}

/// The name of a contender; `library` is that of the library called directly.
pub(super) fn contender(subject: Option<Subject>, library: &str) -> String {
    subject.map_or_else(|| library.to_owned(), |subject| subject.to_string())
}

fn shown(spread: Option<Spread>, decimals: usize) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| spread.show(decimals))
}

fn of(values: &[f64]) -> f64 {
    Spread::of(values.iter().copied()).map_or(0.0, |spread| spread.median)
}

/// The rates of one case as a table.
pub(crate) fn rates_table(measured: &MeasuredRates) -> String {
    let mut table = Table::new(&[
        "by",
        "at once",
        "per CPU s",
        "per s",
        "µs per call",
        "/ AWS-LC",
        "/ OpenSSL",
    ]);
    let library = measured.library().map(|series| &series.rates);
    for Series {
        subject,
        at_once,
        rates,
        clock_rates,
    } in &measured.series
    {
        table.row([
            contender(*subject, "AWS-LC, called directly"),
            at_once.to_string(),
            format!("{:.0}", of(rates)),
            format!("{:.0}", of(clock_rates)),
            format!("{:.1}", *at_once as f64 * 1e6 / of(rates)),
            shown(library.and_then(|peer| ratio(rates, peer)), 2),
            shown(ratio(rates, &measured.openssl), 2),
        ]);
    }
    if !measured.openssl.is_empty() {
        let per_s = of(&measured.openssl);
        table.row([
            "OpenSSL, called directly".to_owned(),
            "1".to_owned(),
            format!("{per_s:.0}"),
            "-".to_owned(),
            format!("{:.1}", 1e6 / per_s),
            shown(library.and_then(|peer| ratio(&measured.openssl, peer)), 2),
            "1.00".to_owned(),
        ]);
    }
    table.render()
}

/// Median over the rounds of something at one load.
pub(super) fn at_load(
    rounds: &[LoadRound],
    percent: u64,
    value: impl Fn(&AtLoad) -> f64,
) -> Option<Spread> {
    let of = |round: &LoadRound| {
        let load = round.loads.iter().find(|load| load.percent == percent);
        load.map(&value)
    };
    Spread::of(rounds.iter().filter_map(of))
}

fn loads_table(loads: &[Loaded], percents: &[u64]) -> Table {
    let mut head: Vec<String> = [
        "operation",
        "served by",
        "peak/s",
        "one at a time",
        "direct",
    ]
    .map(str::to_owned)
    .into();
    head.extend(
        percents
            .iter()
            .map(|percent| format!("{percent} % p50 p99")),
    );
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let mut table = Table::new(&head);
    for one in loads {
        let show =
            |value: fn(&LoadRound) -> f64| median(Spread::of(one.rounds.iter().map(value)), 0);
        let quantiles = percents.iter().map(|percent| {
            let show = |value: fn(&AtLoad) -> f64| median(at_load(&one.rounds, *percent, value), 0);
            format!("{} {}", show(|load| load.p50_us), show(|load| load.p99_us))
        });
        let row = [
            format!("{} {}", one.operation, one.key),
            one.serving.to_string(),
            show(|round| round.peak_per_s),
            show(|round| round.lone_p50_us),
            show(|round| round.direct_p50_us),
        ];
        table.row(row.into_iter().chain(quantiles));
    }
    table
}

fn node_table(through: &Through) -> Table {
    let mut table = Table::new(&["", "direct", "node", "node / direct"]);
    let mut row =
        |name: &str, decimals, direct: fn(&ThroughRound) -> f64, node: fn(&ThroughRound) -> f64| {
            let values = |value: fn(&ThroughRound) -> f64| -> Vec<f64> {
                through.rounds.iter().map(value).collect()
            };
            let (direct, node) = (values(direct), values(node));
            table.row([
                name.to_owned(),
                format!("{:.decimals$}", of(&direct)),
                format!("{:.decimals$}", of(&node)),
                shown(ratio(&node, &direct), 3),
            ]);
        };
    row(
        "per second",
        0,
        |round| round.direct_per_s,
        |round| round.node_per_s,
    );
    row(
        "CPU µs each",
        1,
        |round| round.direct_cpu_us,
        |round| round.node_cpu_us,
    );
    table
}

impl Parts {
    fn goals(&self, plan: &CryptoPlan) -> Goals {
        let mut goals = Goals::default();
        let here = rsa_2048(&self.rates);
        // With IFMA masked here, the library is that of a processor without it.
        let without = self
            .without_ifma
            .as_ref()
            .or_else(|| here.filter(|_| plan.ia32cap.is_some() || !LanesKind::Ifma.is_available()));
        let with = here.filter(|_| plan.ia32cap.is_none());
        let lanes = |measured: Option<&MeasuredRates>, lanes| gain(measured?, lanes);
        goals.extend(
            lanes(with, LanesKind::Ifma).map(|gain| {
                Goal::at_least("RSA-2048 sign, simd with IFMA / AWS-LC", 2.5, 4.0, gain)
            }),
        );
        goals.extend(lanes(without, LanesKind::Fp52).map(|gain| {
            let what = "RSA-2048 sign, simd without IFMA / AWS-LC without IFMA";
            Goal::at_least(what, 1.8, 2.4, gain)
        }));
        let batched = |loaded: &&Loaded| {
            loaded.key == BenchKey::Rsa2048
                && matches!(loaded.serving.0.first(), Some(Subject::Simd(_)))
        };
        if let Some(loaded) = self.loads.iter().find(batched) {
            let p99 = at_load(&loaded.rounds, PROMISED_LOAD, |load| load.p99_us / 1e3);
            goals.extend(p99.map(|p99| {
                let what = "RSA-2048 sign with simd at 70 % of the peak, p99, ms";
                Goal::at_most(what, 5.0, 2.0, p99)
            }));
            let lone = |round: &LoadRound| round.lone_p50_us / round.direct_p50_us;
            goals.extend(Spread::of(loaded.rounds.iter().map(lone)).map(|lone| {
                let what = "a job that is alone, through an engine / AWS-LC alone, p50";
                Goal::at_most(what, 1.3, 1.1, lone)
            }));
        }
        for through in self
            .nodes
            .iter()
            .filter(|one| matches!(one.subject, Subject::Simd(_)))
        {
            // By CPU time: the core is full in both cases.
            let gain = |round: &ThroughRound| round.direct_cpu_us / round.node_cpu_us;
            goals.extend(Spread::of(through.rounds.iter().map(gain)).map(|gain| {
                let what = format!(
                    "RSA-2048 sign with simd through a node on one core / called directly, workers: {}",
                    through.workers
                );
                Goal::at_least(what, 0.9, 0.95, gain)
                    .only_if("node with one worker per class", through.workers == 1)
            }));
        }
        goals
    }
}

/// The best gain of a backend's full batches over the library, and which backend.
pub(crate) fn best_gain(measured: &MeasuredRates) -> Option<(f64, Subject)> {
    let library = &measured.library()?.rates;
    let gains = measured
        .series
        .iter()
        .filter_map(|series| Some((ratio(&series.rates, library)?.median, series.subject?)));
    gains.max_by(|one, other| one.0.total_cmp(&other.0))
}

/// Full batches in these lanes against the library.
pub(super) fn gain(measured: &MeasuredRates, lanes: LanesKind) -> Option<Spread> {
    let full = measured.full(Subject::Simd(lanes))?;
    ratio(&full.rates, &measured.library()?.rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> MeasuredRates {
        let series = |subject, at_once, rate: f64| Series {
            subject,
            at_once,
            rates: vec![rate, rate * 1.1, rate * 0.9],
            clock_rates: vec![rate; 3],
        };
        MeasuredRates {
            operation: "rsa-pkcs1-sign".to_owned(),
            key: BenchKey::Rsa2048,
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
        let plan = CryptoPlan::for_tests(0);
        let mut slow = measured();
        slow.series[2].subject = Some(Subject::Simd(LanesKind::Fp52));
        let parts = Parts {
            rates: vec![measured()],
            without_ifma: Some(slow),
            ..Parts::default()
        };
        let goals = parts.goals(&plan).render();
        let reached: Vec<&str> = goals.trim().lines().skip(2).collect();
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
        let results = CryptoReport::new(&CryptoPlan::for_tests(0), Parts::default());
        assert!(results.render().contains("On core 0"));
    }
}
