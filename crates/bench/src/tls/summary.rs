// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The summary of the demonstration's handshakes: the gain in a few sentences, with its condition.

use std::fmt::Write as _;

use super::KeyPlace;
use super::results::{Saving, TlsReport};
use super::testbed::Measurement;
use crate::bench_key::BenchKey;
use crate::crypto::{self, MeasuredRates};

/// The rates of a node's signatures, as a table, and the sentences.
pub(super) fn render(report: &TlsReport, rates: &MeasuredRates) -> String {
    format!(
        "\nSignatures of a node: RSA-2048 on one core, beside AWS-LC and OpenSSL called directly\n{}\n{}",
        crypto::rates_table(rates),
        sentences(report, rates)
    )
}

fn sentences(report: &TlsReport, rates: &MeasuredRates) -> String {
    let plan = &report.plan;
    let figures = &report.figures;
    let mut text = "The gain here\n".to_owned();
    for &server in &plan.servers {
        let of = |key| {
            let mut savings = figures.savings.iter().map(|saving| (saving, saving.pooled));
            savings.rfind(|(_, pooled)| {
                (pooled.server, pooled.work.key) == (server, key)
                    && plan.counts(server, pooled.mode)
            })
        };
        if let Some((Saving { full, .. }, pooled)) = of(BenchKey::Rsa2048) {
            let local = full.local_us.median;
            let saved = full.saved_us.median;
            let pair = [pooled, pooled.with(KeyPlace::Local)];
            let times = figures.cells.ratio(pair, Measurement::handshakes_per_s);
            let _ = writeln!(
                text,
                "  {server}, RSA-2048, TLS {}: {:.1} times the handshakes/s on the gateway's core; CPU per\n    \
                 handshake {local:.0} -> {:.0} µs, which is {:.0} % of the cost of the private-key work.",
                pooled.work.tls,
                times.map_or(1.0, |times| times.median),
                local - saved,
                full.saved_of_ceiling.median * 100.0
            );
        }
        if let Some((Saving { full, .. }, _)) = of(BenchKey::P256) {
            let saved = full.saved_us.median;
            let word = if saved < 0.0 { "more" } else { "less" };
            let _ = writeln!(
                text,
                "  {server}, P-256: {:.0} µs {word} CPU per handshake: pool these keys for custody.",
                saved.abs()
            );
        }
    }
    if let Some((times, by)) = crypto::best_gain(rates) {
        let _ = writeln!(
            text,
            "  One core of a node signs {times:.1} times as many RSA-2048 as AWS-LC ({by})."
        );
    }
    let pooled = || figures.cells.iter().filter(|rounds| rounds.cell.mode.is_pooled());
    let completed: u64 = pooled().map(|rounds| rounds.completed()).sum();
    let served: u64 = pooled().map(|rounds| rounds.served()).sum();
    let failed: u64 = figures.cells.iter().map(|rounds| rounds.failed()).sum();
    let ifma = if report.machine.uses_ifma() { "with" } else { "without" };
    let _ = writeln!(
        text,
        "  {completed} pooled handshakes, each verified, {failed} failed; the node counted {served}. The gateway\n    \
         had no private key.\n\
         Condition: short rounds over loopback on a processor {ifma} AVX-512 IFMA, node and load generator on\n\
         one core. For figures to keep: make bench-tls, on an idle machine."
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Cell, Handshake, TlsPlan};
    use super::super::results::{SCHEMA, Saved, TlsFigures};
    use super::super::{TlsServer, TlsVersion};
    use super::*;
    use crate::stats::Spread;
    use crate::tls::TlsArgs;

    fn spread(median: f64) -> Spread {
        Spread { median, min: median, max: median }
    }

    #[test]
    fn sentences_state_gain_loss_and_condition_in_fifteen_lines() {
        let typed = ["--demo", "--preload", "/nonexistent.so", "--parts", "handshakes"];
        let plan = TlsPlan::new(&TlsArgs::typed(&typed).expect("arguments")).expect("a plan");
        let mut report = TlsReport::new("tls", SCHEMA, plan, TlsFigures::default());
        for server in [TlsServer::Haproxy, TlsServer::Nginx] {
            for (key, saved) in [(BenchKey::Rsa2048, 199.0), (BenchKey::P256, -19.0)] {
                let tls = TlsVersion::Tls13;
                let saved = || Saved {
                    per_s: 1.0,
                    local_us: spread(415.0),
                    saved_us: spread(saved),
                    offload_ceiling: 0.5,
                    speed_ceiling: spread(0.5),
                    saved_of_ceiling: spread(0.92),
                };
                let pooled =
                    Cell { server, work: Handshake { key, tls }, mode: KeyPlace::PooledPreload };
                report.figures.savings.push(Saving { pooled, equal: saved(), full: saved() });
            }
        }
        let rates = MeasuredRates {
            operation: "rsa-pkcs1-sign".to_owned(),
            key: BenchKey::Rsa2048,
            series: Vec::new(),
            openssl: Vec::new(),
        };
        let text = sentences(&report, &rates);
        assert!(text.lines().count() <= 15, "{text}");
        for part in ["415 -> 216 µs", "92 %", "19 µs more", "Condition: "] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
