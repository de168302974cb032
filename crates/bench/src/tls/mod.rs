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
//! One *cell* is a server, a key, a TLS version and a mode. Each round measures each cell once, local next to pooled,
//! in an order that is permuted from round to round; ratios are taken within the round. Each load is sampled while it
//! runs: the share of private-key work in the gateway's CPU time is the offload ceiling.
//!
//! | file | what |
//! |---|---|
//! | `args.rs` | the options |
//! | `plan.rs` | the cells, and their order |
//! | `gateway.rs`, `testbed.rs` | the servers, and everything else that runs |
//! | `load.rs`, `short.rs` | the loads: handshakes and requests; short connections |
//! | `observer.rs` | the sampler |
//! | `results.rs`, `tables.rs`, `plots.rs` | the figures, as tables and plots |
//! | `summary.rs` | the gain in sentences, for the demonstration |
//! | `reference.rs` | published figures, labelled |
//! | `local/` | `--local`: servers that compute the ephemeral part of a handshake themselves, against the same without |

mod args;
mod gateway;
mod load;
mod local;
pub(crate) mod observer;
mod plan;
mod plots;
mod reference;
mod results;
mod short;
mod summary;
mod tables;
mod testbed;

use clap::ValueEnum;
use serde::Serialize;

pub use self::args::TlsArgs;
pub(crate) use self::gateway::{KeyPlace, TlsServer};
pub(crate) use self::load::{TlsCipher, TlsGroup};
pub use self::local::saved as last_local_run;
use self::plan::TlsPlan;
use self::results::{TlsFigures, TlsReport};
use self::testbed::GatewayTestbed;
use crate::cores;
use crate::crypto;
use crate::error::BenchError;
use crate::plot;
use crate::progress::Progress;
use crate::report::BenchReport;

/// A version of TLS.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum, strum::Display,
)]
pub(crate) enum TlsVersion {
    /// TLS 1.2
    #[value(name = "1.2")]
    #[serde(rename = "1.2")]
    #[strum(to_string = "1.2")]
    Tls12,
    /// TLS 1.3
    #[value(name = "1.3")]
    #[serde(rename = "1.3")]
    #[strum(to_string = "1.3")]
    Tls13,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// Handshakes: as many as possible, and the same number for all modes
    Handshakes,
    /// Requests over new connections, 100 at a time: as many as possible
    Requests,
    /// The same with TLS 1.2's RSA key exchange (AES128-SHA): files, and through a proxy
    Short,
}

/// Runs `millrace bench tls`: measures, prints, and fails if anything did not verify.
///
/// # Errors
/// Why there are no figures, or that a verification failed (after the tables, which show where).
pub fn run_tls(args: &TlsArgs) -> Result<(), BenchError> {
    if args.local {
        return local::run(args);
    }
    let plan = TlsPlan::new(args)?;
    cores::pin(plan.load_core)?;
    let report = measure(plan)?;
    if let Some(path) = &args.plot.svg {
        plot::write(&plots::render(&report)?, path)?;
    }
    let mut text = tables::render(&report, args.demo, args.profile);
    if args.demo {
        let rates = crypto::brief_rates(report.plan.gateway_core)?;
        text += &summary::render(&report, &rates);
    }
    report.deliver(&args.report, &text)?;
    report.figures.verdict(report.plan.request_concurrency)?;
    report.goals.require(args.report.require)
}

fn measure(plan: TlsPlan) -> Result<TlsReport, BenchError> {
    let mut progress = Progress::start(plan.steps())?;
    progress.now("starting the gateways")?;
    let mut testbed = GatewayTestbed::start(&plan, &mut progress)?;
    let mut figures = TlsFigures::default();
    for round in 0..plan.rounds {
        let number = round + 1;
        for key in plan.speeds() {
            progress.now(&format!("round {number}: {key} signatures by OpenSSL itself"))?;
            let each_us = 1e6 / testbed.openssl_sign_rate(key)?;
            figures.openssl_sign_us.entry(key).or_default().push(each_us);
            progress.step();
        }
        for cell in plan.in_modes(&plan.handshakes(), round) {
            progress.now(&format!("round {number}: {cell}"))?;
            figures.cells.add(cell, testbed.measure(cell, &progress)?);
            progress.step();
        }
        for cell in plan.in_modes(&plan.shorts(), round) {
            progress.now(&format!("round {number}: {cell}"))?;
            figures.short_cells.add(cell, testbed.measure_short(cell)?);
            progress.step();
        }
    }
    figures.compare(&testbed.observer);
    let mut report = BenchReport::new("tls", results::SCHEMA, plan, figures);
    report.goals = results::goals(&report);
    Ok(report)
}
