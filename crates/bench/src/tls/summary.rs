// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The last screen of the demonstration: what was gained, in a few sentences with their condition.

use std::fmt::Write as _;

use super::results::{Rounds, Saving, TlsReport};
use super::testbed::Measurement;
use super::{Mode, Server};
use crate::crypto::{self, MeasuredRates};
use crate::stats::Spread;
use crate::workload::BenchKey;

/// What a node signs with, as a table, and the sentences.
pub(super) fn render(results: &TlsReport, rates: &MeasuredRates) -> String {
    format!(
        "\nWhat a node signs with: RSA-2048 on one core, beside AWS-LC and OpenSSL called directly\n{}\n{}",
        crypto::rates_table(rates),
        sentences(results, rates)
    )
}

fn sentences(results: &TlsReport, rates: &MeasuredRates) -> String {
    let mut text = "What was gained here\n".to_owned();
    let counted = |saving: &&Saving| {
        results
            .plan
            .counts(saving.pooled.server, saving.pooled.mode)
    };
    for server in [Server::Haproxy, Server::Nginx] {
        let of = |key| {
            let mut savings = results.savings.iter().filter(counted);
            savings.rfind(|saving| saving.pooled.server == server && saving.pooled.key == key)
        };
        if let Some(saving) = of(BenchKey::Rsa2048) {
            let (local, saved) = (saving.full.local_us.median, saving.full.saved_us.median);
            let times = handshake_rate(results, saving).unwrap_or(1.0);
            let _ = writeln!(
                text,
                "  {server}, RSA-2048, TLS {}: {times:.1} times the handshakes/s on the gateway's core; CPU per\n    \
                 handshake {:.0} -> {:.0} µs, which is {:.0} % of what the private-key work costs it.",
                saving.pooled.tls,
                local,
                local - saved,
                saving.full.saved_of_ceiling.median * 100.0
            );
        }
        if let Some(saving) = of(BenchKey::P256) {
            let saved = saving.full.saved_us.median;
            let (sign, word) = if saved < 0.0 {
                (-saved, "more")
            } else {
                (saved, "less")
            };
            let _ = writeln!(
                text,
                "  {server}, P-256: {sign:.0} µs {word} CPU per handshake: pool these keys for custody."
            );
        }
    }
    if let Some((times, by)) = crypto::best_gain(rates) {
        let _ = writeln!(
            text,
            "  One core of a node signs {times:.1} times as many RSA-2048 as AWS-LC ({by})."
        );
    }
    let pooled = || {
        results
            .cells
            .iter()
            .filter(|rounds| rounds.cell.mode.is_pooled())
    };
    let completed: u64 = pooled().map(Rounds::completed).sum();
    let served: u64 = pooled().map(Rounds::served).sum();
    let failed: u64 = results.cells.iter().map(Rounds::failed).sum();
    let _ = writeln!(
        text,
        "  {completed} pooled handshakes, each verified, {failed} failed; the node counted {served}. The gateway\n    \
         had no private key."
    );
    let ifma = if results.machine.uses_ifma() {
        "with"
    } else {
        "without"
    };
    let _ = writeln!(
        text,
        "Condition: short rounds over loopback on a processor {ifma} AVX-512 IFMA, node and load generator on\n\
         one core. For figures to keep: make bench-tls, on an idle machine."
    );
    text
}

/// How many times the handshakes/s of local.
fn handshake_rate(results: &TlsReport, saving: &Saving) -> Option<f64> {
    let rates = |mode| {
        let cell = super::plan::Cell {
            mode,
            ..saving.pooled
        };
        let rounds = results.cells.iter().find(|rounds| rounds.cell == cell)?;
        let rate = |round: &Measurement| round.closed.as_ref().map(|load| load.handshakes_per_s);
        Some(rounds.rounds.iter().filter_map(rate).collect::<Vec<f64>>())
    };
    let (pooled, local) = (rates(saving.pooled.mode)?, rates(Mode::Local)?);
    Some(
        Spread::of(
            pooled
                .iter()
                .zip(local)
                .map(|(pooled, local)| pooled / local),
        )?
        .median,
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::TlsVersion;
    use super::super::plan::{Cell, TlsPlan};
    use super::super::results::Saved;
    use super::*;
    use crate::cli::TlsArgs;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        args: TlsArgs,
    }

    fn spread(median: f64) -> Spread {
        Spread {
            median,
            min: median,
            max: median,
        }
    }

    #[test]
    fn sentences_state_gain_loss_and_condition_in_fifteen_lines() {
        let typed = [
            "tls",
            "--demo",
            "--preload",
            "/nonexistent.so",
            "--part",
            "handshakes",
        ];
        let plan = TlsPlan::new(&Typed::parse_from(typed).args).expect("a plan");
        let mut report = TlsReport::new(&plan);
        for server in [Server::Haproxy, Server::Nginx] {
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
                let pooled = Cell {
                    server,
                    key,
                    tls,
                    mode: Mode::PooledPreload,
                };
                report.savings.push(Saving {
                    pooled,
                    equal: saved(),
                    full: saved(),
                });
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
