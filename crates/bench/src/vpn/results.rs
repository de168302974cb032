// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The figures of `vpn bench`: tables, goals, plots.

use serde::Serialize;

use super::args::TunnelOpenSsl;
use super::cases::{BASE, CASES, CaseEngine, LinkCase, ONE_TUNED, TWO_PINNED};
use super::load::{MeasuredLink, MemberLoss};
use super::proof::LinkProof;
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::plot::{self, Axis, BarChart, Bars, LineChart, PlotLine, Value};
use crate::report::BenchReport;
use crate::stats::Spread;
use crate::table::{dash, median, range, table};

/// Bits of a byte, and bytes of a gigabyte in megabits: Mbit/s of a core that needs one second for a gigabyte.
const MBIT_PER_GB: f64 = 8000.0;

/// Cores of the host for which the prediction on paper is made.
const PAPER_CORES: f64 = 32.0;

/// Parameters of the measurement.
#[derive(Debug, Serialize)]
pub(super) struct VpnPlan {
    pub(super) rounds: u64,
    /// Seconds of load in each measurement.
    pub(super) seconds: u64,
    pub(super) flows: usize,
    /// Number of cores, which both ends share.
    pub(super) cores: usize,
    pub(super) openvpn: String,
    pub(super) openssl: TunnelOpenSsl,
}

/// One case over all rounds.
#[derive(Debug, Serialize)]
pub(super) struct VpnRow {
    #[serde(skip)]
    case: &'static LinkCase,
    name: &'static str,
    members: u16,
    cipher: &'static str,
    path_mtu: u16,
    pinned: bool,
    mbit: Option<Spread>,
    /// Throughput against one process, within each round.
    ratio: Option<Spread>,
    /// CPU seconds of the end that needs more, for a gigabyte.
    cpu_per_gb: Option<Spread>,
    /// CPU seconds for a gigabyte against one process, within each round.
    cpu_ratio: Option<Spread>,
    /// CPU seconds of the whole machine, for a gigabyte: both ends, the kernel and the load itself.
    machine_per_gb: Option<Spread>,
    /// Context switches of the whole machine for a megabyte (10^6 bytes).
    switches_per_mb: Option<Spread>,
    p50_us: Option<Spread>,
    p99_us: Option<Spread>,
    /// Mbit/s that a core of the end that needs more carries, predicted from its CPU time.
    mbit_per_core: Option<Spread>,
    /// Speed-up if ciphers and hashes cost the tunnel processes nothing.
    ceiling: Option<Spread>,
    /// Where the work of all rounds was done.
    proof: LinkProof,
    rounds: Vec<MeasuredLink>,
}

#[derive(Debug, Serialize)]
pub(super) struct VpnFigures {
    rows: Vec<VpnRow>,
    losses: Vec<MemberLoss>,
    /// Why there is no ceiling.
    not_sampled: Option<String>,
}

fn dearer_end(round: &MeasuredLink) -> Option<f64> {
    round.cpu_per_gb.map(|[a, b]| a.max(b))
}

impl VpnFigures {
    pub(super) fn new(
        measured: Vec<(&'static LinkCase, Vec<MeasuredLink>)>,
        losses: Vec<MemberLoss>,
        not_sampled: Option<String>,
    ) -> Self {
        let of_base = |value: fn(&MeasuredLink) -> Option<f64>| -> Vec<Option<f64>> {
            let base = measured.iter().find(|(case, _)| *case == BASE);
            let rounds = base.map_or(&[][..], |(_, rounds)| &rounds[..]);
            rounds.iter().map(value).collect()
        };
        let base_mbit = of_base(|round| Some(round.mbit));
        let base_cpu = of_base(dearer_end);
        let against = |rounds: &[MeasuredLink],
                       base: &[Option<f64>],
                       value: fn(&MeasuredLink) -> Option<f64>| {
            let pairs = rounds.iter().zip(base);
            Spread::of(pairs.filter_map(|(round, base)| Some(value(round)? / (*base)?)))
        };
        let rows = measured
            .iter()
            .map(|(case, rounds)| {
                let cpu_per_gb = Spread::over(rounds, dearer_end);
                VpnRow {
                    case,
                    name: case.name,
                    members: case.members,
                    cipher: case.cipher,
                    path_mtu: case.path_mtu,
                    pinned: case.pinned,
                    mbit: Spread::over(rounds, |round| round.mbit),
                    ratio: against(rounds, &base_mbit, |round| Some(round.mbit)),
                    cpu_per_gb,
                    cpu_ratio: against(rounds, &base_cpu, dearer_end),
                    machine_per_gb: Spread::over(rounds, |round| round.machine_per_gb),
                    switches_per_mb: Spread::over(rounds, |round| round.switches_per_mb),
                    p50_us: Spread::over(rounds, |round| round.p50_us),
                    p99_us: Spread::over(rounds, |round| round.p99_us),
                    mbit_per_core: cpu_per_gb.map(|cpu| cpu.map(|cpu| MBIT_PER_GB / cpu)),
                    ceiling: Spread::over(rounds, |round| {
                        round.crypto_share.map(|share| 1.0 / (1.0 - share).max(1e-3))
                    }),
                    proof: LinkProof::sum(rounds.iter().map(|round| &round.proof)),
                    rounds: rounds.clone(),
                }
            })
            .collect();
        Self { rows, losses, not_sampled }
    }

    fn of(&self, case: &LinkCase) -> Option<&VpnRow> {
        self.rows.iter().find(|row| row.case == case)
    }

    pub(super) fn goals(&self) -> Goals {
        let two = self.of(TWO_PINNED);
        let tuned = self.of(ONE_TUNED);
        let reduced = Spread::over(&self.losses, |loss| loss.reduced_s);
        let broken = Spread::over(&self.losses, |loss| loss.broken as f64);
        #[rustfmt::skip]
        let goals = [
            Goal::at_least("2 pinned processes, throughput against 1", 1.25, 1.5, two.and_then(|row| row.ratio)),
            Goal::at_most("2 pinned processes, CPU s/GB of the dearer end against 1", 1.0, 0.9, two.and_then(|row| row.cpu_ratio)),
            Goal::at_least("tuned MTU and buffers, throughput against the default", 2.0, 3.0, tuned.and_then(|row| row.ratio)),
            Goal::at_most("one of four members lost: seconds below 70 % of the usual rate", 2.0, 1.0, reduced),
            Goal::at_most("one of four members lost: broken connections", 0.0, 0.0, broken),
        ];
        Goals(goals.into_iter().flatten().collect())
    }

    /// Throughput and CPU time as bars; the rate while a member dies as a line.
    pub(super) fn plots(&self) -> Result<String, BenchError> {
        let category = |row: &VpnRow| match row.proof.remark() {
            Some(remark) => format!("{} ({remark})", row.case.title),
            None => row.case.title.to_owned(),
        };
        let chart = |title: &str, axis: &str, value: &dyn Fn(&VpnRow) -> Option<Spread>| {
            // The cable alone would make all other bars unreadably short.
            let tunnels = self.rows.iter().filter(|row| row.members > 0);
            let values: Vec<Option<Value>> =
                tunnels.map(|row| value(row).map(Value::from)).collect();
            BarChart {
                title: title.to_owned(),
                axis: Axis::linear(axis),
                categories: self.rows.iter().filter(|row| row.members > 0).map(category).collect(),
                series: vec![Bars { name: "median and range over the rounds".to_owned(), values }],
            }
        };
        let mut parts = Vec::new();
        if self.rows.iter().any(|row| row.members > 0) {
            parts.push(
                chart("Throughput of a link, both ends on one machine", "Mbit/s", &|row| row.mbit)
                    .render()?,
            );
            parts.push(
                chart("CPU of the end that needs more", "CPU seconds per gigabyte", &|row| {
                    row.cpu_per_gb
                })
                .render()?,
            );
        }
        let line = |(number, loss): (usize, &MemberLoss)| PlotLine {
            name: format!("round {}", number + 1),
            points: loss
                .intervals
                .iter()
                .enumerate()
                .map(|(at, rate)| (at as f64 * 0.2, Value::from(*rate)))
                .collect(),
        };
        if !self.losses.is_empty() {
            let chart = LineChart {
                title: "One of four members is killed after 3 s".to_owned(),
                x: Axis::linear("seconds"),
                y: Axis::linear("Mbit/s"),
                series: self.losses.iter().enumerate().map(line).collect(),
            };
            parts.push(chart.render()?);
        }
        Ok(plot::stack(&parts))
    }
}

#[rustfmt::skip]
pub(super) fn text(report: &BenchReport<VpnPlan, VpnFigures>) -> String {
    let VpnPlan { rounds, seconds, flows, cores, openvpn, openssl } = &report.plan;
    let figures = &report.figures;
    let ms = |spread: Option<Spread>| dash(spread.map(|us| format!("{:.2}", us.median / 1e3)));
    let rows = table(&figures.rows, &[
        ("case", &|row: &&VpnRow| row.case.title.to_owned()),
        ("Mbit/s (range)", &|row| range(row.mbit, 0)),
        ("against 1 process", &|row| range(row.ratio, 2)),
        ("CPU s/GB, dearer end", &|row| range(row.cpu_per_gb, 2)),
        ("whole machine", &|row| median(row.machine_per_gb, 2)),
        ("switches/MB", &|row| median(row.switches_per_mb, 0)),
        ("p50 ms", &|row| ms(row.p50_us)),
        ("p99 ms", &|row| ms(row.p99_us)),
        ("Mbit/s per core", &|row| median(row.mbit_per_core, 0)),
        ("ceiling", &|row| dash(row.ceiling.map(|ceiling| format!("{:.2}x", ceiling.median)))),
    ]);
    let mut text = format!(
        "{}\n{openvpn}{openssl}; both ends on the same {cores} cores; {rounds} rounds of {seconds} s, {flows} connections\n\n{}",
        report.machine.describe(),
        rows.render(),
    );
    text.push_str(
        "\nCPU s/GB: of the tunnel processes; none where the kernel encrypts. Whole machine: both ends, the kernel and\n\
         the load; switches/MB: its context switches for 10^6 bytes. Mbit/s per core: 8000 / CPU s/GB; a core of a gateway carries it in one direction. Ceiling: the\n\
         speed-up if ciphers and hashes cost the processes nothing.\n\
         Compression is history: OpenVPN 2.7 does not send it, and it leaks what is compressed (VORACLE).\n",
    );
    let proofs = table(&figures.rows, &[
        ("proof", &|row: &&VpnRow| row.case.title.to_owned()),
        ("packets encrypted by", &|row| row.proof.packets(row.case)),
        ("signatures by the pool", &|row| row.proof.signatures()),
        ("counters of devices", &|row| row.proof.devices()),
    ]);
    text.push_str(&format!("\n{}\n", proofs.render()));
    if let Some(best) = best_per_core(figures) {
        text.push_str(&format!(
            "On paper: {PAPER_CORES:.0} cores with a process each carry {:.0} Gbit/s ({}), if memory and network do.\n",
            best.1 * PAPER_CORES / 1e3, best.0
        ));
    }
    if let Some(why) = &figures.not_sampled {
        text.push_str(&format!("No ceiling: {why}\n"));
    }
    if !figures.losses.is_empty() {
        let losses = table(figures.losses.iter().enumerate(), &[
            ("one of four members killed, round", &|(round, _): &(usize, &MemberLoss)| (round + 1).to_string()),
            ("usual Mbit/s", &|(_, loss)| format!("{:.0}", loss.usual)),
            ("s below 70 %", &|(_, loss)| format!("{:.1}", loss.reduced_s)),
            ("broken connections", &|(_, loss)| loss.broken.to_string()),
        ]);
        text.push_str(&format!("\n{}", losses.render()));
    }
    text + &report.goals.render()
}

/// The cases, as text.
pub(super) fn list() -> String {
    let cases = table(
        CASES,
        &[
            ("case", &|case: &&LinkCase| case.name.to_owned()),
            ("what", &|case| case.title.to_owned()),
        ],
    );
    cases.render()
}

/// The case with the most Mbit/s for a core among those at the MTU of an ordinary path.
fn best_per_core(figures: &VpnFigures) -> Option<(&'static str, f64)> {
    let processes = figures.rows.iter().filter(|row| row.case.engine == CaseEngine::OpenVpn);
    let ordinary = processes.filter(|row| row.path_mtu <= 1500);
    let rates = ordinary.filter_map(|row| Some((row.case.title, row.mbit_per_core?.median)));
    rates.max_by(|a, b| a.1.total_cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(mbit: f64, cpu: f64) -> MeasuredLink {
        MeasuredLink {
            mbit,
            cpu_per_gb: Some([cpu / 2.0, cpu]),
            machine_per_gb: 1.0,
            switches_per_mb: 1.0,
            p50_us: 1000.0,
            p99_us: 5000.0,
            probes: 10,
            lost_probes: 0,
            bytes: 1,
            retransmits: 0,
            crypto_share: Some(0.2),
            proof: LinkProof::default(),
        }
    }

    #[test]
    fn ratios_are_within_rounds_and_capacity_is_that_of_the_dearer_end() {
        let figures = VpnFigures::new(
            vec![
                (BASE, vec![measured(100.0, 8.0), measured(200.0, 8.0)]),
                (TWO_PINNED, vec![measured(150.0, 4.0), measured(300.0, 4.0)]),
            ],
            Vec::new(),
            None,
        );
        let two = figures.of(TWO_PINNED).expect("measured");
        let ratio = two.ratio.expect("a ratio");
        assert!((ratio.min - 1.5).abs() < 1e-9 && (ratio.max - 1.5).abs() < 1e-9);
        assert!((two.mbit_per_core.expect("a rate").median - 2000.0).abs() < 1e-9);
        assert!((two.ceiling.expect("a ceiling").median - 1.25).abs() < 1e-9);
        let text = figures.goals().render();
        assert!(text.contains("2 pinned processes, throughput against 1"), "{text}");
        assert!(!text.contains("tuned MTU"), "what was not measured has no goal");
        assert!(figures.plots().expect("plots").contains("2 processes, pinned"));
    }
}
