// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The report for people: one table per part, and what they mean.

use std::collections::BTreeMap;

use millrace_sampler::Class;

use super::reference::{published, published_short};
use super::results::{CellProfile, Rounds, Saved, Saving, ShortGain, ShortRounds, TlsReport};
use super::short::ShortCell;
use super::testbed::{Load, Measurement};
use super::{Mode, Part, Server};
use crate::report::Table;
use crate::stats::{Latencies, Spread};

/// The tables, and what they mean.
pub(super) fn render(results: &TlsReport, demo: bool, profile: bool) -> String {
    let mut text = format!("{}\n\n{}\n", results.machine.describe(), setting(results));
    if results.plan.parts.contains(&Part::Handshakes) {
        for &server in &results.plan.servers {
            text.push_str(&format!("\n{server}: handshakes\n"));
            text.push_str(&handshakes(results, server).render());
        }
    }
    if !results.savings.is_empty() {
        text.push_str("\nGateway CPU saved per handshake, median (range over the rounds)\n");
        text.push_str(&savings(results).render());
    }
    if results.plan.parts.contains(&Part::Requests) {
        text.push_str(&format!(
            "\nRequests over new connections, {} at a time: connect, full handshake, GET, close\n",
            results.plan.request_concurrency
        ));
        text.push_str(&requests(results).render());
        text.push_str(QUOTED);
    }
    if results.plan.parts.contains(&Part::Short) {
        text.push_str(&format!(
            "\nShort connections with AES128-SHA (TLS 1.2, RSA key exchange), {} at a time, files of 512 bytes\n",
            results.plan.request_concurrency
        ));
        text.push_str(&short(results).render());
        text.push_str(QUOTED_SHORT);
    }
    if profile {
        text.push_str(&profiles(results));
    }
    text.push_str(&results.goals.render());
    if let Some(reason) = &results.not_sampled {
        text.push_str(&format!(
            "\nCeilings are those of `openssl speed`, not sampled: {reason}\n"
        ));
    }
    let left_out: Vec<String> = results
        .plan
        .left_out()
        .map(|mode| mode.to_string())
        .collect();
    if !left_out.is_empty() {
        let modes = left_out.join(",");
        text.push_str(&format!(
            "\nNot measured in the demonstration: {modes} (--mode selects it)\n"
        ));
    }
    if demo {
        text.push_str(EXPLANATION);
    }
    text
}

fn setting(results: &TlsReport) -> String {
    let plan = &results.plan;
    let sharing = if plan.gateway_core == plan.load_core {
        format!(
            "everything shares core {}: figures are not comparable",
            plan.load_core
        )
    } else {
        format!(
            "gateway alone on core {}; node and load generator together on core {}",
            plan.gateway_core, plan.load_core
        )
    };
    let sharing = if plan.latency.is_zero() {
        sharing
    } else {
        let latency = plan.latency.as_millis();
        format!("{sharing};\nanswers of the node held back for {latency} ms")
    };
    format!(
        "Full handshakes, {} at a time, every signature checked; {} interleaved rounds, {:.1} s per load;\n{sharing}",
        plan.concurrency,
        plan.rounds,
        plan.duration.as_secs_f64(),
    )
}

fn median(rounds: &[Measurement], value: impl Fn(&Measurement) -> Option<f64>) -> f64 {
    Spread::of(rounds.iter().filter_map(value)).map_or(0.0, |spread| spread.median)
}

fn handshakes(results: &TlsReport, server: Server) -> Table {
    let mut table = Table::new(&[
        "key",
        "TLS",
        "mode",
        "handshakes/s",
        "p50 ms",
        "p99 ms",
        "gateway CPU ms",
        "other core CPU ms",
        "handshakes",
        "pool served",
        "share",
        "failed",
    ]);
    let cells = results.cells.iter();
    for one in cells.filter(|one| one.cell.server == server) {
        let Rounds { cell, rounds } = one;
        let mut latencies = Latencies::default();
        for load in rounds.iter().filter_map(|round| round.closed.as_ref()) {
            latencies.extend(&load.latencies);
        }
        let closed =
            |value: fn(&Load) -> f64| median(rounds, |round| round.closed.as_ref().map(value));
        let (completed, served) = (one.completed(), one.served());
        table.row([
            cell.key.to_string(),
            cell.tls.to_string(),
            cell.mode.to_string(),
            format!("{:.0}", closed(|load| load.handshakes_per_s)),
            format!("{:.2}", latencies.quantile_us(0.5) / 1e3),
            format!("{:.2}", latencies.quantile_us(0.99) / 1e3),
            format!("{:.3}", closed(|load| load.gateway_cpu_us) / 1e3),
            format!(
                "{:.3}",
                closed(|load| load.node_cpu_us + load.generator_cpu_us) / 1e3
            ),
            completed.to_string(),
            served.to_string(),
            format!("{:.0} %", 100.0 * served as f64 / completed.max(1) as f64),
            one.failed().to_string(),
        ]);
    }
    table
}

fn savings(results: &TlsReport) -> Table {
    let mut table = Table::new(&[
        "server",
        "key",
        "TLS",
        "mode",
        "load",
        "at/s",
        "local ms",
        "saved ms",
        "ceiling %",
        "by openssl speed",
        "saved % of ceiling",
    ]);
    for Saving {
        pooled,
        equal,
        full,
    } in &results.savings
    {
        for (load, saved) in [("equal", equal), ("full", full)] {
            let Saved {
                per_s,
                local_us,
                saved_us,
                offload_ceiling,
                speed_ceiling,
                saved_of_ceiling,
            } = saved;
            table.row([
                pooled.server.to_string(),
                pooled.key.to_string(),
                pooled.tls.to_string(),
                pooled.mode.to_string(),
                load.to_owned(),
                format!("{per_s:.0}"),
                local_us.map(|us| us / 1e3).show(3),
                saved_us.map(|us| us / 1e3).show(3),
                format!("{:.1}", offload_ceiling * 100.0),
                format!("{:.1}", speed_ceiling.median * 100.0),
                saved_of_ceiling.map(|share| share * 100.0).show(0),
            ]);
        }
    }
    table
}

fn requests(results: &TlsReport) -> Table {
    let mut table = Table::new(&[
        "server",
        "key",
        "TLS",
        "mode",
        "requests/s",
        "ms per request",
        "p99 ms",
        "gateway CPU ms",
        "pooled / local",
        "failed",
        "quoted /s",
        "quoted ms",
        "quoted with / without",
    ]);
    let concurrency = results.plan.request_concurrency as f64;
    for one in &results.cells {
        let Rounds { cell, rounds } = one;
        let rate = |round: &Measurement| round.requests.as_ref().map(|load| load.handshakes_per_s);
        let per_s = median(rounds, rate);
        let twin = |other: &&Rounds| {
            let same = (other.cell.server, other.cell.key, other.cell.tls);
            same == (cell.server, cell.key, cell.tls) && other.cell.mode == Mode::Local
        };
        let local = results.cells.iter().find(twin);
        let ratio = local.filter(|_| cell.mode.is_pooled()).and_then(|local| {
            let local = local.rounds.iter().filter_map(rate);
            Spread::of(
                rounds
                    .iter()
                    .filter_map(rate)
                    .zip(local)
                    .map(|(a, b)| a / b),
            )
        });
        let requests =
            |value: fn(&Load) -> f64| median(rounds, |round| round.requests.as_ref().map(value));
        // The card's rows are shown beside what does not block.
        let blocks = cell.server == Server::Nginx && cell.mode == Mode::Pooled;
        let quoted = published(cell.key, cell.tls, cell.mode.is_pooled()).filter(|_| !blocks);
        let without = published(cell.key, cell.tls, false);
        let quoted_ratio = quoted
            .zip(without)
            .filter(|_| cell.mode.is_pooled())
            .map(|(with, without)| with.per_s / without.per_s);
        let show = |value: Option<f64>, decimals: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
        };
        table.row([
            cell.server.to_string(),
            cell.key.to_string(),
            cell.tls.to_string(),
            cell.mode.to_string(),
            format!("{per_s:.0}"),
            format!("{:.2}", 1e3 * concurrency / per_s.max(f64::MIN_POSITIVE)),
            format!("{:.2}", requests(|load| load.p99_us) / 1e3),
            format!("{:.3}", requests(|load| load.gateway_cpu_us) / 1e3),
            ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.show(2)),
            one.failed().to_string(),
            show(quoted.map(|row| row.per_s), 1),
            show(quoted.map(|row| row.ms), 1),
            show(quoted_ratio, 2),
        ]);
    }
    table
}

fn short(results: &TlsReport) -> Table {
    let mut table = Table::new(&[
        "server",
        "path",
        "mode",
        "requests/s",
        "ms per request",
        "gateway CPU ms",
        "per gateway-CPU s",
        "pooled / local",
        "ceiling",
        "% of ceiling",
        "pool served",
        "quoted /s",
        "quoted ratio",
    ]);
    let concurrency = results.plan.request_concurrency as f64;
    for one in &results.short_cells {
        let ShortRounds { cell, rounds } = one;
        let of = |value: fn(&super::short::ShortLoad) -> f64| {
            Spread::of(rounds.iter().map(value)).map_or(0.0, |spread| spread.median)
        };
        let (per_s, cpu_us) = (of(|load| load.per_s), of(|load| load.gateway_cpu_us));
        let gain = results.short_gains.iter().find(|gain| gain.pooled == *cell);
        let dash = || "-".to_owned();
        let (quoted_per_s, quoted_ratio) = quoted_short(*cell);
        table.row([
            cell.server.to_string(),
            cell.path.to_string(),
            cell.mode.to_string(),
            format!("{per_s:.0}"),
            format!("{:.2}", 1e3 * concurrency / per_s.max(f64::MIN_POSITIVE)),
            format!("{:.3}", cpu_us / 1e3),
            format!("{:.0}", 1e6 / cpu_us.max(f64::MIN_POSITIVE)),
            gain.map_or_else(dash, |gain| gain.per_cpu.show(2)),
            gain.and_then(|gain| gain.allowed)
                .map_or_else(dash, |allowed| format!("{allowed:.2}x")),
            gain.and_then(|gain: &ShortGain| gain.of_allowed)
                .map_or_else(dash, |share| share.map(|share| share * 100.0).show(0)),
            one.served().to_string(),
            quoted_per_s,
            quoted_ratio,
        ]);
    }
    table
}

fn quoted_short(cell: ShortCell) -> (String, String) {
    let (without, with) = published_short(cell.path);
    match cell.mode {
        Mode::Local => (format!("{without:.0}"), "-".to_owned()),
        Mode::Pooled if cell.server == Server::Nginx => ("-".to_owned(), "-".to_owned()),
        Mode::Pooled | Mode::PooledPreload => {
            (format!("{with:.0}"), format!("{:.2}x", with / without))
        }
    }
}

/// Where the CPU time goes: one table per group, one column per mode.
fn profiles(results: &TlsReport) -> String {
    let mut groups: BTreeMap<&str, Vec<&CellProfile>> = BTreeMap::new();
    for profile in &results.profiles {
        groups.entry(&profile.group).or_default().push(profile);
    }
    let mut text = String::new();
    for (group, profiles) in groups {
        text.push_str(&format!(
            "\nWhere the gateway's CPU time goes, µs per handshake or request: {group}\n"
        ));
        let head: Vec<&str> = ["class"]
            .into_iter()
            .chain(profiles.iter().map(|one| one.mode.name()))
            .collect();
        let mut table = Table::new(&head);
        let in_all = |class: Class| -> Vec<f64> {
            let each = profiles.iter();
            each.map(|one| one.cpu_us * one.profile.class(class).share)
                .collect()
        };
        for class in Class::ALL {
            let values = in_all(class);
            if values.iter().any(|us| *us >= 0.05) {
                let cells = values.iter().map(|us| format!("{us:.1}"));
                table.row([class.to_string()].into_iter().chain(cells));
            }
        }
        let sums = profiles.iter().map(|one| format!("{:.1}", one.cpu_us));
        table.row(["all".to_owned()].into_iter().chain(sums));
        let samples = profiles.iter().map(|one| one.profile.samples.to_string());
        table.row(["samples".to_owned()].into_iter().chain(samples));
        text.push_str(&table.render());
    }
    text
}

/// What the quoted columns are.
const QUOTED: &str = "\
Quoted: an article about a QAT card under a patched nginx, tested with ab, on a machine it does not name; not repeated
here. Its rate times its time is 100 requests, but 130 for ECC with TLS 1.2: one of the two is a misprint.
";

const QUOTED_SHORT: &str = "\
Quoted: a talk of 2024, a virtual machine with two cores (four hyper-threads) and a pool behind virtio-crypto; not
repeated here. Ceiling: how many times as many requests the gateway's core could serve if the private-key work
were free, sampled in this run.
";

const EXPLANATION: &str = "
local:   the key is a PEM file on the gateway; OpenSSL signs there.
pooled:  the gateway has a file that only names the key. The key and the work
         are in the node, whose own counters are the column \"pool served\".
pooled-preload: the same with the library that makes stock nginx asynchronous
         and has the event loop of both servers look after the pool's sockets.
share:   operations served by the pool per handshake.
gateway CPU ms: CPU time of the whole gateway process tree per handshake.
ceiling: the share of private-key work in the local gateway's CPU time, the most
         that any accelerator could save; sampled while the gateway worked.
         Beside it what `openssl speed` says a signature costs, in a loop.
saved % of ceiling: how much of that the pool saved; at equal load (half of
         what the local gateway does at most) and with as many as go.
Where node and load generator share a core they bound pooled requests/s; with
a pool on other machines the gateway CPU time is what decides.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_what_was_published() {
        assert!(QUOTED.contains("130"));
        let odd = published(
            crate::workload::BenchKey::P256,
            super::super::TlsVersion::Tls12,
            false,
        );
        let odd = odd.expect("a row");
        assert!((odd.per_s * odd.ms / 1e3 - 130.0).abs() < 0.1);
    }
}
