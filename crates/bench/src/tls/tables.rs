// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The report for people: one table per part, and what they mean.

use std::collections::BTreeMap;

use millrace_sampler::Class;

use super::reference::{published, published_short};
use super::results::{CellProfile, Rounds, Saved, Saving, ShortRounds, TlsReport};
use super::short::ShortCell;
use super::testbed::{Load, Measurement};
use super::{Mode, Part, Server};
use crate::report::{Table, table};
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

fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Microseconds as milliseconds.
fn ms(us: f64, decimals: usize) -> String {
    format!("{:.decimals$}", us / 1e3)
}

#[rustfmt::skip]
fn handshakes(results: &TlsReport, server: Server) -> Table {
    let quantile = |one: &Rounds, fraction| {
        let mut latencies = Latencies::default();
        for load in one.rounds.iter().filter_map(|round| round.closed.as_ref()) {
            latencies.extend(&load.latencies);
        }
        ms(latencies.quantile_us(fraction), 2)
    };
    let closed = |one: &Rounds, value: fn(&Load) -> f64| {
        median(&one.rounds, |round| round.closed.as_ref().map(value))
    };
    let share = |one: &Rounds| 100.0 * one.served() as f64 / one.completed().max(1) as f64;
    table(results.cells.iter().filter(|one| one.cell.server == server), &[
        ("key", &|one| one.cell.key.to_string()),
        ("TLS", &|one| one.cell.tls.to_string()),
        ("mode", &|one| one.cell.mode.to_string()),
        ("handshakes/s", &|one| format!("{:.0}", closed(one, |load| load.handshakes_per_s))),
        ("p50 ms", &|one| quantile(one, 0.5)),
        ("p99 ms", &|one| quantile(one, 0.99)),
        ("gateway CPU ms", &|one| ms(closed(one, |load| load.gateway_cpu_us), 3)),
        ("other core CPU ms", &|one| ms(closed(one, |load| load.node_cpu_us + load.generator_cpu_us), 3)),
        ("handshakes", &|one| one.completed().to_string()),
        ("pool served", &|one| one.served().to_string()),
        ("share", &|one| format!("{:.0} %", share(one))),
        ("failed", &|one| one.failed().to_string()),
    ])
}

#[rustfmt::skip]
fn savings(results: &TlsReport) -> Table {
    type Row<'a> = (&'a Saving, &'static str, &'a Saved);
    fn loads(saving: &Saving) -> [Row<'_>; 2] {
        let Saving { equal, full, .. } = saving;
        [(saving, "equal", equal), (saving, "full", full)]
    }
    table::<Row<'_>>(results.savings.iter().flat_map(loads), &[
        ("server", &|(saving, ..)| saving.pooled.server.to_string()),
        ("key", &|(saving, ..)| saving.pooled.key.to_string()),
        ("TLS", &|(saving, ..)| saving.pooled.tls.to_string()),
        ("mode", &|(saving, ..)| saving.pooled.mode.to_string()),
        ("load", &|(_, load, _)| (*load).to_owned()),
        ("at/s", &|(.., saved)| format!("{:.0}", saved.per_s)),
        ("local ms", &|(.., saved)| saved.local_us.map(|us| us / 1e3).show(3)),
        ("saved ms", &|(.., saved)| saved.saved_us.map(|us| us / 1e3).show(3)),
        ("ceiling %", &|(.., saved)| format!("{:.1}", saved.offload_ceiling * 100.0)),
        ("by openssl speed", &|(.., saved)| format!("{:.1}", saved.speed_ceiling.median * 100.0)),
        ("saved % of ceiling", &|(.., saved)| saved.saved_of_ceiling.map(|share| share * 100.0).show(0)),
    ])
}

#[rustfmt::skip]
fn requests(results: &TlsReport) -> Table {
    let concurrency = results.plan.request_concurrency as f64;
    let rate = |round: &Measurement| round.requests.as_ref().map(|load| load.handshakes_per_s);
    let of = |one: &Rounds, value: fn(&Load) -> f64| {
        median(&one.rounds, |round| round.requests.as_ref().map(value))
    };
    let ratio = |one: &Rounds| {
        let local = super::plan::Cell { mode: Mode::Local, ..one.cell };
        let local = results.cells.iter().find(|other| other.cell == local && one.cell.mode.is_pooled())?;
        let pairs = one.rounds.iter().filter_map(rate).zip(local.rounds.iter().filter_map(rate));
        Spread::of(pairs.map(|(pooled, local)| pooled / local))
    };
    // The card's rows are shown beside what does not block.
    let quoted = |one: &Rounds, with| {
        let blocks = one.cell.server == Server::Nginx && one.cell.mode == Mode::Pooled;
        published(one.cell.key, one.cell.tls, with).filter(|_| !blocks)
    };
    let shown = |one: &Rounds| quoted(one, one.cell.mode.is_pooled());
    let quoted_ratio = |one: &Rounds| {
        let (with, without) = (quoted(one, true)?, quoted(one, false)?);
        one.cell.mode.is_pooled().then(|| format!("{:.2}", with.per_s / without.per_s))
    };
    table(results.cells.iter(), &[
        ("server", &|one| one.cell.server.to_string()),
        ("key", &|one| one.cell.key.to_string()),
        ("TLS", &|one| one.cell.tls.to_string()),
        ("mode", &|one| one.cell.mode.to_string()),
        ("requests/s", &|one| format!("{:.0}", median(&one.rounds, rate))),
        ("ms per request", &|one| format!("{:.2}", 1e3 * concurrency / median(&one.rounds, rate).max(f64::MIN_POSITIVE))),
        ("p99 ms", &|one| ms(of(one, |load| load.p99_us), 2)),
        ("gateway CPU ms", &|one| ms(of(one, |load| load.gateway_cpu_us), 3)),
        ("pooled / local", &|one| dash(ratio(one).map(|ratio| ratio.show(2)))),
        ("failed", &|one| one.failed().to_string()),
        ("quoted /s", &|one| dash(shown(one).map(|row| format!("{:.1}", row.per_s)))),
        ("quoted ms", &|one| dash(shown(one).map(|row| format!("{:.1}", row.ms)))),
        ("quoted with / without", &|one| dash(quoted_ratio(one))),
    ])
}

#[rustfmt::skip]
fn short(results: &TlsReport) -> Table {
    let concurrency = results.plan.request_concurrency as f64;
    let of = |one: &ShortRounds, value: fn(&super::short::ShortLoad) -> f64| {
        Spread::of(one.rounds.iter().map(value)).map_or(f64::MIN_POSITIVE, |spread| spread.median)
    };
    let gain = |one: &ShortRounds| results.short_gains.iter().find(|gain| gain.pooled == one.cell);
    table(results.short_cells.iter(), &[
        ("server", &|one| one.cell.server.to_string()),
        ("path", &|one| one.cell.path.to_string()),
        ("mode", &|one| one.cell.mode.to_string()),
        ("requests/s", &|one| format!("{:.0}", of(one, |load| load.per_s))),
        ("ms per request", &|one| format!("{:.2}", 1e3 * concurrency / of(one, |load| load.per_s))),
        ("gateway CPU ms", &|one| ms(of(one, |load| load.gateway_cpu_us), 3)),
        ("per gateway-CPU s", &|one| format!("{:.0}", 1e6 / of(one, |load| load.gateway_cpu_us))),
        ("pooled / local", &|one| dash(gain(one).map(|gain| gain.per_cpu.show(2)))),
        ("ceiling", &|one| dash(gain(one).and_then(|gain| Some(format!("{:.2}x", gain.allowed?))))),
        ("% of ceiling", &|one| dash(gain(one).and_then(|gain| Some(gain.of_allowed?.map(|share| share * 100.0).show(0))))),
        ("pool served", &|one| one.served().to_string()),
        ("quoted /s", &|one| quoted_short(one.cell).0),
        ("quoted ratio", &|one| quoted_short(one.cell).1),
    ])
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
         and has the event loop of both servers read the pool's answers.
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
