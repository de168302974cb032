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

/// Bound on the sentences' lines: they are to be seen at once, with the prompt below.
#[cfg(test)]
const MAX_LINES: usize = 15;

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
