// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench tls`: handshakes with real gateways, the key on the gateway against the key in the pool.
//!
//! ```text
//!   core 0                        core 1
//!   HAProxy or nginx   ◄──TLS──   load generator (this process; for short connections `ab`)
//!     local:  key.pem        ──►  origin: plain HTTP behind a gateway that is a proxy
//!     pooled: a file that    ──►  node: the key, the work, the counters
//!             names the key
//! ```
//!
//! One *cell* is a server, a key, a TLS version and a mode. In every round each cell is measured once, local
//! next to pooled, in an order that is permuted from round to round; ratios are taken within the round. Each
//! load is sampled while it runs: the share of private-key work in the gateway's CPU time is the offload
//! ceiling.
//!
//! | file | what |
//! |---|---|
//! | `plan.rs` | what is measured, in which order |
//! | `gateway.rs`, `testbed.rs` | the servers, and everything that runs |
//! | `load.rs`, `short.rs` | the loads: handshakes and requests; short connections |
//! | `observer.rs` | the sampler |
//! | `results.rs`, `tables.rs`, `plots.rs` | figures, and how they are shown |
//! | `summary.rs` | the last screen of the demonstration |
//! | `reference.rs` | figures of others, labelled |

mod gateway;
mod load;
mod observer;
mod plan;
mod plots;
mod reference;
mod results;
mod short;
mod summary;
mod tables;
mod testbed;

use std::fmt;

use clap::ValueEnum;
use serde::Serialize;

pub use self::gateway::{Mode, Server};
use self::plan::TlsPlan;
use self::results::TlsReport;
use self::testbed::Testbed;
use crate::cli::TlsArgs;
use crate::cores;
use crate::crypto;
use crate::error::BenchError;
use crate::plot;
use crate::process::Stop;
use crate::progress::Progress;
use crate::report;

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
pub enum TlsVersion {
    /// TLS 1.2
    #[value(name = "1.2")]
    #[serde(rename = "1.2")]
    Tls12,
    /// TLS 1.3
    #[value(name = "1.3")]
    #[serde(rename = "1.3")]
    Tls13,
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        })
    }
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Handshakes: as many as go, and the same number for all modes
    Handshakes,
    /// Requests over new connections, 100 at a time: as many as go
    Requests,
    /// The same with TLS 1.2's RSA key exchange (AES128-SHA): files, and through a proxy
    Short,
}

/// Measures, prints, and fails if anything did not verify.
pub(crate) fn run(args: &TlsArgs) -> Result<(), BenchError> {
    let plan = TlsPlan::new(args)?;
    let stop = Stop::on_signals()?;
    cores::pin(plan.load_core)?;
    let results = measure(&plan, &stop)?;
    if let Some(path) = &args.svg {
        plot::write(&plots::render(&results)?, path)?;
    }
    let demo = args
        .demo
        .then(|| crypto::brief_rates(plan.gateway_core, &stop))
        .transpose()?;
    report::deliver(&results, args.json.as_deref(), || {
        let mut text = tables::render(&results, args.demo, args.profile);
        text.extend(demo.iter().map(|rates| summary::render(&results, rates)));
        text
    })?;
    results.verdict()?;
    results.goals.require(args.require)
}

fn measure(plan: &TlsPlan, stop: &Stop) -> Result<TlsReport, BenchError> {
    let mut progress = Progress::new(plan.steps());
    progress.now("starting the gateways");
    let mut testbed = Testbed::start(plan, &mut |what| progress.now(what))?;
    let mut results = TlsReport::new(plan);
    for round in 0..plan.rounds {
        for key in plan.speeds() {
            progress.now(&format!(
                "round {}: {key} signatures by OpenSSL itself",
                round + 1
            ));
            results.add_operation(key, testbed.openssl_sign_rate(key)?);
            progress.step();
            stop.check()?;
        }
        for cell in plan.order(round) {
            progress.now(&format!("round {}: {cell}", round + 1));
            results.add(cell, testbed.measure(cell, stop)?);
            progress.step();
        }
        for cell in plan.short_order(round) {
            progress.now(&format!("round {}: {cell}", round + 1));
            results.add_short(cell, testbed.measure_short(cell)?);
            progress.step();
            stop.check()?;
        }
    }
    results.finish(&testbed.observer);
    Ok(results)
}
