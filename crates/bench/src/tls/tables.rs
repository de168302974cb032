// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The tables, one per part, and their explanation.

use std::collections::BTreeMap;

use millrace_sampler::SymbolClass;

use super::plan::{Cell, Handshake};
use super::reference::{PublishedRow, Signer, published, published_short};
use super::results::{CellProfile, CellRounds, Saved, Saving, TlsReport};
use super::short::{Short, ShortLoad};
use super::testbed::{LoadFigures, Measurement};
use super::{KeyPlace, Part, TlsServer};
use crate::stats::{Latencies, Spread};
use crate::table::{ReportTable, dash, median, range, table};

/// All rounds of one cell of either sort.
type Handshakes = CellRounds<Handshake, Measurement>;
type Shorts = CellRounds<Short, ShortLoad>;

/// The tables, and their explanation.
pub(super) fn render(report: &TlsReport, demo: bool, profile: bool) -> String {
    let plan = &report.plan;
    let figures = &report.figures;
    let concurrency = plan.request_concurrency;
    let mut text = format!("{}\n\n{}\n", report.machine.describe(), setting(report));
    let has = |part| plan.parts.contains(&part);
    for &server in plan.servers.iter().filter(|_| has(Part::Handshakes)) {
        text += &format!("\n{server}: handshakes\n{}", handshakes(report, server));
    }
    if !figures.savings.is_empty() {
        text += "\nGateway CPU saved per handshake, median (range over the rounds)\n";
        text += &savings(report);
    }
    if has(Part::Requests) {
        text += &format!(
            "\nRequests over new connections, {concurrency} at a time: connect, full handshake, GET, close\n{}{QUOTED}",
            requests(report)
        );
    }
    if has(Part::Short) {
        text += &format!(
            "\nShort connections with AES128-SHA (TLS 1.2, RSA key exchange), {concurrency} at a time, files of 512 bytes\n{}{QUOTED_SHORT}",
            short(report)
        );
    }
    if profile {
        text += &profiles(report);
    }
    text += &report.goals.render();
    if let Some(reason) = &figures.not_sampled {
        text += &format!("\nCeilings are those of `openssl speed`, not sampled: {reason}\n");
    }
    let left_out: Vec<String> = plan.left_out().map(|mode| mode.to_string()).collect();
    if !left_out.is_empty() {
        let modes = left_out.join(",");
        text += &format!("\nNot measured in the demonstration: {modes} (--modes selects it)\n");
    }
    text + if demo { EXPLANATION } else { "" }
}

fn setting(report: &TlsReport) -> String {
    let plan = &report.plan;
    let gateway = plan.gateway_core;
    let load = plan.load_core;
    let cores = if gateway == load {
        format!("everything shares core {load}: figures are not comparable")
    } else {
        format!("gateway alone on core {gateway}; node and load generator together on core {load}")
    };
    let late = match plan.latency.as_millis() {
        0 => String::new(),
        latency => format!(";\nanswers of the node delayed by {latency} ms"),
    };
    format!(
        "Full handshakes, {} at a time, every signature checked; {} interleaved rounds, {:.1} s per load;\n{cores}{late}",
        plan.concurrency,
        plan.rounds,
        plan.duration.as_secs_f64(),
    )
}

/// Microseconds as milliseconds.
fn ms(us: Option<Spread>, decimals: usize) -> String {
    median(us.map(|us| us.map(|us| us / 1e3)), decimals)
}

#[rustfmt::skip]
fn handshakes(report: &TlsReport, server: TlsServer) -> String {
    table(report.figures.cells.iter().filter(|measured| measured.cell.server == server), &[
        ("key", &|measured| measured.cell.work.key.to_string()),
        ("TLS", &|measured| measured.cell.work.tls.to_string()),
        ("mode", &|measured| measured.cell.mode.to_string()),
        ("handshakes/s", &|measured| median(measured.closed(|load| load.handshakes_per_s), 0)),
        ("p50 ms", &|measured| measured.quantile_ms(0.5)),
        ("p99 ms", &|measured| measured.quantile_ms(0.99)),
        ("gateway CPU ms", &|measured| ms(measured.closed(|load| load.gateway_cpu_us), 3)),
        ("other core CPU ms", &|measured| ms(measured.closed(|load| load.node_cpu_us + load.generator_cpu_us), 3)),
        ("handshakes", &|measured| measured.completed().to_string()),
        ("pool served", &|measured| measured.served().to_string()),
        ("share", &|measured| format!("{:.0} %", measured.served_percent())),
        ("failed", &|measured| measured.failed().to_string()),
    ])
    .render()
}

impl Handshakes {
    /// A figure of the closed load, over the rounds.
    fn closed(&self, value: fn(&LoadFigures) -> f64) -> Option<Spread> {
        Spread::over(&self.rounds, |round| round.closed.as_ref().map(value))
    }

    /// A figure of the load of requests, over the rounds.
    fn requests(&self, value: fn(&LoadFigures) -> f64) -> Option<Spread> {
        Spread::over(&self.rounds, |round| round.requests.as_ref().map(value))
    }

    /// A quantile of the latencies of all rounds of the closed load.
    fn quantile_ms(&self, fraction: f64) -> String {
        let mut latencies = Latencies::default();
        for load in self.rounds.iter().filter_map(|round| round.closed.as_ref()) {
            latencies.extend(&load.latencies);
        }
        format!("{:.2}", latencies.quantile_us(fraction) / 1e3)
    }

    /// Share of the handshakes that the pool served.
    fn served_percent(&self) -> f64 {
        100.0 * self.served() as f64 / self.completed().max(1) as f64
    }

    /// The published row beside this cell: with the card beside modes that are pooled and do not block.
    fn quoted(&self, signer: Signer) -> Option<&'static PublishedRow> {
        let Cell { server, work, mode } = self.cell;
        let blocks = (server, mode) == (TlsServer::Nginx, KeyPlace::Pooled);
        published(work, signer).filter(|_| !blocks)
    }

    fn quoted_beside(&self) -> Option<&'static PublishedRow> {
        self.quoted(if self.cell.mode.is_pooled() { Signer::Card } else { Signer::Processor })
    }

    /// The published gain by the card.
    fn quoted_ratio(&self) -> Option<String> {
        let card = self.quoted(Signer::Card)?;
        let processor = self.quoted(Signer::Processor)?;
        self.cell.mode.is_pooled().then(|| format!("{:.2}", card.per_s / processor.per_s))
    }
}

#[rustfmt::skip]
fn savings(report: &TlsReport) -> String {
    type Row<'a> = (Cell<Handshake>, &'static str, &'a Saved);
    fn loads(saving: &Saving) -> [Row<'_>; 2] {
        let Saving { pooled, equal, full } = saving;
        [(*pooled, "equal", equal), (*pooled, "full", full)]
    }
    table::<Row<'_>>(report.figures.savings.iter().flat_map(loads), &[
        ("server", &|(cell, ..)| cell.server.to_string()),
        ("key", &|(cell, ..)| cell.work.key.to_string()),
        ("TLS", &|(cell, ..)| cell.work.tls.to_string()),
        ("mode", &|(cell, ..)| cell.mode.to_string()),
        ("load", &|(_, load, _)| (*load).to_owned()),
        ("at/s", &|(.., saved)| format!("{:.0}", saved.per_s)),
        ("local ms", &|(.., saved)| saved.local_us.map(|us| us / 1e3).show(3)),
        ("saved ms", &|(.., saved)| saved.saved_us.map(|us| us / 1e3).show(3)),
        ("ceiling %", &|(.., saved)| format!("{:.1}", saved.offload_ceiling * 100.0)),
        ("by openssl speed", &|(.., saved)| format!("{:.1}", saved.speed_ceiling.median * 100.0)),
        ("saved % of ceiling", &|(.., saved)| saved.saved_of_ceiling.map(|share| share * 100.0).show(0)),
    ])
    .render()
}

#[rustfmt::skip]
fn requests(report: &TlsReport) -> String {
    let cells = &report.figures.cells;
    let concurrency = report.plan.request_concurrency as f64;
    let rate: fn(&LoadFigures) -> f64 = |load| load.handshakes_per_s;
    let ratio = |measured: &Handshakes| {
        let pair = [measured.cell, measured.cell.with(KeyPlace::Local)];
        let ratio = cells.ratio(pair, |round| round.requests.as_ref().map(rate));
        ratio.filter(|_| measured.cell.mode.is_pooled())
    };
    table(cells.iter(), &[
        ("server", &|measured| measured.cell.server.to_string()),
        ("key", &|measured| measured.cell.work.key.to_string()),
        ("TLS", &|measured| measured.cell.work.tls.to_string()),
        ("mode", &|measured| measured.cell.mode.to_string()),
        ("requests/s", &|measured| median(measured.requests(rate), 0)),
        ("ms per request", &|measured| median(measured.requests(rate).map(|rates| rates.map(|rate| 1e3 * concurrency / rate)), 2)),
        ("p99 ms", &|measured| ms(measured.requests(|load| load.p99_us), 2)),
        ("gateway CPU ms", &|measured| ms(measured.requests(|load| load.gateway_cpu_us), 3)),
        ("pooled / local", &|measured| range(ratio(measured), 2)),
        ("failed", &|measured| measured.failed().to_string()),
        ("quoted /s", &|measured| dash(measured.quoted_beside().map(|row| format!("{:.1}", row.per_s)))),
        ("quoted ms", &|measured| dash(measured.quoted_beside().map(|row| format!("{:.1}", row.ms)))),
        ("quoted with / without", &|measured| dash(measured.quoted_ratio())),
    ])
    .render()
}

#[rustfmt::skip]
fn short(report: &TlsReport) -> String {
    let figures = &report.figures;
    let concurrency = report.plan.request_concurrency as f64;
    let of = |measured: &Shorts, value: &dyn Fn(&ShortLoad) -> f64| Spread::over(&measured.rounds, value);
    let gain = |measured: &Shorts| figures.short_gains.iter().find(|gain| gain.pooled == measured.cell);
    let of_allowed = |measured| gain(measured)?.of_allowed.map(|share| share.map(|share| share * 100.0));
    table(figures.short_cells.iter(), &[
        ("server", &|measured| measured.cell.server.to_string()),
        ("path", &|measured| measured.cell.work.path.to_string()),
        ("mode", &|measured| measured.cell.mode.to_string()),
        ("requests/s", &|measured| median(of(measured, &|load| load.per_s), 0)),
        ("ms per request", &|measured| median(of(measured, &|load| 1e3 * concurrency / load.per_s), 2)),
        ("gateway CPU ms", &|measured| ms(of(measured, &|load| load.gateway_cpu_us), 3)),
        ("per gateway-CPU s", &|measured| median(of(measured, &|load| 1e6 / load.gateway_cpu_us), 0)),
        ("pooled / local", &|measured| range(gain(measured).map(|gain| gain.per_cpu), 2)),
        ("ceiling", &|measured| dash(gain(measured).and_then(|gain| Some(format!("{:.2}x", gain.allowed?))))),
        ("% of ceiling", &|measured| range(of_allowed(measured), 0)),
        ("pool served", &|measured| measured.served().to_string()),
        ("quoted /s", &|measured| quoted_short(measured.cell).0),
        ("quoted ratio", &|measured| quoted_short(measured.cell).1),
    ])
    .render()
}

fn quoted_short(cell: Cell<Short>) -> (String, String) {
    let (without, with) = published_short(cell.work.path);
    match cell.mode {
        KeyPlace::Local => (format!("{without:.0}"), "-".to_owned()),
        KeyPlace::Pooled if cell.server == TlsServer::Nginx => ("-".to_owned(), "-".to_owned()),
        KeyPlace::Pooled | KeyPlace::PooledPreload => {
            (format!("{with:.0}"), format!("{:.2}x", with / without))
        }
    }
}

/// CPU time by class: one table per group, one column per mode.
fn profiles(report: &TlsReport) -> String {
    let mut groups: BTreeMap<&str, Vec<&CellProfile>> = BTreeMap::new();
    for profile in &report.figures.profiles {
        groups.entry(&profile.group).or_default().push(profile);
    }
    let mut text = String::new();
    for (group, profiles) in groups {
        let modes = profiles.iter().map(|profile| profile.mode.to_string());
        let mut table = ReportTable::new(["class".to_owned()].into_iter().chain(modes));
        let mut row = |name: &str, value: &dyn Fn(&CellProfile) -> String| {
            let cells = profiles.iter().map(|profile| value(profile));
            table.row([name.to_owned()].into_iter().chain(cells));
        };
        for &class in SymbolClass::ALL {
            let us = |cell: &CellProfile| cell.cpu_us * cell.profile.class(class).share;
            if profiles.iter().any(|cell| us(cell) >= 0.05) {
                row(class.name(), &|cell| format!("{:.1}", us(cell)));
            }
        }
        row("all", &|cell| format!("{:.1}", cell.cpu_us));
        row("samples", &|cell| cell.profile.samples.to_string());
        let title = "The gateway's CPU time by class, µs per handshake or request";
        text += &format!("\n{title}: {group}\n{}", table.render());
    }
    text
}

/// The source of the quoted columns.
const QUOTED: &str = include_str!("../../texts/quoted-requests.txt");

const QUOTED_SHORT: &str = include_str!("../../texts/quoted-short.txt");

const EXPLANATION: &str = include_str!("../../texts/demo-explanation.txt");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_misprint_is_the_published_one() {
        assert!(QUOTED.contains("130"));
        let odd = Handshake {
            key: crate::bench_key::BenchKey::P256,
            tls: super::super::TlsVersion::Tls12,
        };
        let odd = published(odd, Signer::Processor);
        let odd = odd.expect("a row");
        assert!((odd.per_s * odd.ms / 1e3 - 130.0).abs() < 0.1);
    }
}
