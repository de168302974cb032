// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The report of `bench crypto`: raw rounds, the tables, and the comparison with the goals.

use std::fmt::Write as _;

use serde::Serialize;

use super::load::{AtLoad, LoadRound, Loaded};
use super::rates::{MeasuredRates, RateSeries, ratio};
use super::through::{Through, ThroughRound};
use super::{CryptoPlan, rsa_2048};
use crate::bench_key::BenchKey;
use crate::goals::{Goal, Goals};
use crate::report::BenchReport;
use crate::stats::Spread;
use crate::table::{Column, dash, median, range, sharing, table, table_by};
use crate::workload::{LanesKind, MeasuredBackend};

/// Version of the JSON report: raised when a field changes its meaning.
pub(super) const SCHEMA: u32 = 2;

/// The load at which a p99 is promised, in percent of the peak.
const PROMISED_LOAD: u64 = 70;

/// The parts of a report; those that were not asked for are empty.
#[derive(Debug, Default, Serialize)]
pub(super) struct CryptoFigures {
    pub(super) rates: Vec<MeasuredRates>,
    pub(super) loads: Vec<Loaded>,
    /// One entry per worker count of the node.
    pub(super) nodes: Vec<Through>,
    /// RSA-2048 in lanes that need no IFMA, beside libraries that leave IFMA alone.
    pub(super) without_ifma: Option<MeasuredRates>,
}

/// The report of `bench crypto`.
pub(super) type CryptoReport = BenchReport<CryptoPlan, CryptoFigures>;

pub(super) fn render(report: &CryptoReport) -> String {
    let BenchReport { plan, figures: parts, .. } = report;
    let mut text = format!(
        "{}\n\nOn core {}, jobs by load from core {}{}; {} rounds of {:.2} s, interleaved in changing order;\n\
         rates per second of CPU time and by the clock, medians; ratios of the former with their range over the\n\
         rounds; outputs checked, of randomised ones a sample\n",
        report.machine.describe(),
        plan.core,
        plan.load_core,
        sharing(plan.core, plan.load_core),
        plan.rounds,
        plan.duration.as_secs_f64(),
    );
    let without = parts.without_ifma.iter();
    let without = without.map(|case| (case, ", with AWS-LC and OpenSSL set to use no IFMA"));
    for (measured, remark) in parts.rates.iter().map(|case| (case, "")).chain(without) {
        let operation = &measured.operation;
        let key = measured.key;
        let _ = write!(text, "\n{operation}, {key}{remark}\n{}", rates_table(measured));
    }
    if !parts.loads.is_empty() {
        let _ = write!(
            text,
            "\nLatency by offered load: Poisson arrivals, an engine with one worker per class;\n\
             medians over the rounds, in µs; one at a time beside the library called directly\n{}",
            loads_table(&parts.loads, &plan.loads)
        );
    }
    for through in &parts.nodes {
        let Through { subject, at_once, workers, .. } = through;
        let _ = write!(
            text,
            "\nRSA-2048 signatures through a node on one core (workers per class: {workers}),\n\
             beside {subject} called directly, {at_once} at once\n{}",
            node_table(through)
        );
    }
    text + &report.goals.render()
}

/// The name of a contender; `library` is that of the library called directly.
pub(super) fn contender(subject: Option<MeasuredBackend>, library: &str) -> String {
    subject.map_or_else(|| library.to_owned(), |subject| subject.to_string())
}

/// The rates of one case as a table.
pub(crate) fn rates_table(measured: &MeasuredRates) -> String {
    /// Name, tasks per call, rates by CPU time, rates by the clock.
    type Row<'a> = (String, usize, &'a [f64], &'a [f64]);
    let library = measured.library().map(|series| &*series.rates);
    let median = |rates: &[f64]| Spread::of(rates.iter().copied()).map(|rates| rates.median);
    let show =
        |value: Option<f64>, decimals| dash(value.map(|value| format!("{value:.decimals$}")));
    let direct = "OpenSSL, called directly".to_owned();
    let openssl: Row<'_> = (direct, 1, &measured.openssl, &[]);
    let rows = measured.series.iter().map(|series| -> Row<'_> {
        let name = contender(series.subject, "AWS-LC, called directly");
        (name, series.at_once, &series.rates, &series.clock_rates)
    });
    #[rustfmt::skip]
    let table = table::<Row<'_>>(rows.chain((!measured.openssl.is_empty()).then_some(openssl)), &[
        ("by", &|(name, ..)| name.clone()),
        ("at once", &|(_, at_once, ..)| at_once.to_string()),
        ("per CPU s", &|(.., rates, _)| show(median(rates), 0)),
        ("per s", &|(.., clock)| show(median(clock), 0)),
        ("µs per call", &|(_, at_once, rates, _)| show(median(rates).map(|rate| *at_once as f64 * 1e6 / rate), 1)),
        ("/ AWS-LC", &|(.., rates, _)| range(library.and_then(|peer| ratio(rates, peer)), 2)),
        ("/ OpenSSL", &|(.., rates, _)| range(ratio(rates, &measured.openssl), 2)),
    ]);
    table.render()
}

/// Median over the rounds of something at one load.
pub(super) fn at_load(
    rounds: &[LoadRound],
    percent: u64,
    value: impl Fn(&AtLoad) -> f64,
) -> Option<Spread> {
    let at = |round: &LoadRound| {
        let load = round.loads.iter().find(|load| load.percent == percent);
        load.map(&value)
    };
    Spread::over(rounds, at)
}

fn loads_table(loads: &[Loaded], percents: &[u64]) -> String {
    let show = |loaded: &Loaded, value: fn(&LoadRound) -> f64| {
        median(Spread::over(&loaded.rounds, value), 0)
    };
    let quantile = |loaded: &Loaded, percent, value: fn(&AtLoad) -> f64| {
        median(at_load(&loaded.rounds, percent, value), 0)
    };
    let quantiles = |loaded: &&Loaded, percent: &u64| {
        let p50 = quantile(loaded, *percent, |load| load.p50_us);
        format!("{p50} {}", quantile(loaded, *percent, |load| load.p99_us))
    };
    #[rustfmt::skip]
    let columns: [Column<'_, &Loaded>; 5] = [
        ("operation", &|loaded| format!("{} {}", loaded.operation, loaded.key)),
        ("served by", &|loaded| loaded.serving.to_string()),
        ("peak/s", &|loaded| show(loaded, |round| round.peak_per_s)),
        ("one at a time", &|loaded| show(loaded, |round| round.lone_p50_us)),
        ("direct", &|loaded| show(loaded, |round| round.direct_p50_us)),
    ];
    let head = |percent: &u64| format!("{percent} % p50 p99");
    table_by(loads, &columns, percents, head, quantiles).render()
}

fn node_table(through: &Through) -> String {
    /// Name, decimals, called directly, through the node.
    type Row = (&'static str, usize, fn(&ThroughRound) -> f64, fn(&ThroughRound) -> f64);
    let over = |value: &dyn Fn(&ThroughRound) -> f64| Spread::over(&through.rounds, value);
    let rows: [Row; 2] = [
        ("per second", 0, |round| round.direct_per_s, |round| round.node_per_s),
        ("CPU µs each", 1, |round| round.direct_cpu_us, |round| round.node_cpu_us),
    ];
    #[rustfmt::skip]
    let table = table(rows, &[
        ("", &|(name, ..)| (*name).to_owned()),
        ("direct", &|(_, decimals, direct, _)| median(over(direct), *decimals)),
        ("node", &|(_, decimals, _, node)| median(over(node), *decimals)),
        ("node / direct", &|(.., direct, node)| range(over(&|round| node(round) / direct(round)), 3)),
    ]);
    table.render()
}

impl CryptoFigures {
    pub(super) fn goals(&self, plan: &CryptoPlan) -> Goals {
        let rates = rsa_2048(&self.rates);
        // With IFMA masked here, the library is that of a processor without it.
        let masked = plan.ia32cap.is_some();
        let is_without = masked || !LanesKind::Ifma.is_available();
        let without = self.without_ifma.as_ref();
        let without = without.or_else(|| rates.filter(|_| is_without));
        let ifma = rates.filter(|_| !masked).and_then(|case| gain(case, LanesKind::Ifma));
        let fp52 = without.and_then(|case| gain(case, LanesKind::Fp52));
        let mut goals = Vec::new();
        let what = "RSA-2048 sign, simd with IFMA / AWS-LC";
        goals.extend(Goal::at_least(what, 2.5, 4.0, ifma));
        let what = "RSA-2048 sign, simd without IFMA / AWS-LC without IFMA";
        goals.extend(Goal::at_least(what, 1.8, 2.4, fp52));
        let batched = |loaded: &&Loaded| {
            let first = loaded.serving.0.first();
            loaded.key == BenchKey::Rsa2048 && matches!(first, Some(MeasuredBackend::Simd(_)))
        };
        if let Some(Loaded { rounds, .. }) = self.loads.iter().find(batched) {
            let p99 = at_load(rounds, PROMISED_LOAD, |load| load.p99_us / 1e3);
            let what = "RSA-2048 sign with simd at 70 % of the peak, p99, ms";
            goals.extend(Goal::at_most(what, 5.0, 2.0, p99));
            let lone = Spread::over(rounds, |round| round.lone_p50_us / round.direct_p50_us);
            let what = "a job that is alone, through an engine / AWS-LC alone, p50";
            goals.extend(Goal::at_most(what, 1.3, 1.1, lone));
        }
        let is_simd = |through: &&Through| matches!(through.subject, MeasuredBackend::Simd(_));
        for through in self.nodes.iter().filter(is_simd) {
            // By CPU time: the core is full in both cases.
            let gain = |round: &ThroughRound| round.direct_cpu_us / round.node_cpu_us;
            let what = "RSA-2048 sign with simd through a node on one core / called directly";
            let what = format!("{what}, workers: {}", through.workers);
            let goal = Goal::at_least(what, 0.9, 0.95, Spread::over(&through.rounds, gain));
            let condition = "node with one worker per class";
            goals.extend(goal.map(|goal| goal.only_if(condition, through.workers == 1)));
        }
        Goals(goals)
    }
}

/// The best gain of a backend's full batches over the library, and which backend.
pub(crate) fn best_gain(measured: &MeasuredRates) -> Option<(f64, MeasuredBackend)> {
    let library = &measured.library()?.rates;
    let gain = |series: &RateSeries| Some((ratio(&series.rates, library)?.median, series.subject?));
    let gains = measured.series.iter().filter_map(gain);
    gains.max_by(|one, other| one.0.total_cmp(&other.0))
}

/// Full batches in these lanes against the library.
pub(super) fn gain(measured: &MeasuredRates, lanes: LanesKind) -> Option<Spread> {
    let full = measured.full(MeasuredBackend::Simd(lanes))?;
    ratio(&full.rates, &measured.library()?.rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> MeasuredRates {
        let series = |subject, at_once, rate: f64| RateSeries {
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
                series(Some(MeasuredBackend::Simd(LanesKind::Ifma)), 1, 1_000.0),
                series(Some(MeasuredBackend::Simd(LanesKind::Ifma)), 4, 3_000.0),
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
    fn lanes_without_ifma_are_compared_with_a_library_without_ifma() {
        let plan = CryptoPlan::for_tests(0);
        let mut slow = measured();
        slow.series[2].subject = Some(MeasuredBackend::Simd(LanesKind::Fp52));
        let parts = CryptoFigures {
            rates: vec![measured()],
            without_ifma: Some(slow),
            ..CryptoFigures::default()
        };
        let goals = parts.goals(&plan).render();
        let reached: Vec<&str> = goals.trim().lines().skip(2).collect();
        assert_eq!(reached.len(), 2, "{goals}");
        assert!(reached[0].contains("with IFMA") && reached[0].ends_with("must"), "{goals}");
        assert!(reached[1].contains("without IFMA") && reached[1].ends_with("aim"), "{goals}");
    }

    #[test]
    fn report_without_parts_names_its_core() {
        let plan = CryptoPlan::for_tests(0);
        let report = CryptoReport::new("crypto", SCHEMA, plan, CryptoFigures::default());
        assert!(render(&report).contains("On core 0"));
    }
}
