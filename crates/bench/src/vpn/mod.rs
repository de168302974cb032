// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace vpn bench`: links between two network namespaces of this machine, by `millrace vpn up` itself.
//!
//! ```text
//!   namespace a                               namespace b
//!   iperf3 server ◄── mr-0 … ◄── UDP ──────── … mr-0 ◄── iperf3 client
//!   echo server       openvpn    cable        openvpn    probes (latency)
//! ```
//!
//! Each case is a link.toml. Each round brings up each case once, in an order that is permuted from round to round;
//! ratios are taken within the round. Before a load bytes are sent through the link and compared; after it the
//! counters of the tunnel devices prove that the load went through them.
//!
//! | file | what |
//! |---|---|
//! | `args.rs` | the options |
//! | `cases.rs` | the cases |
//! | `choose.rs` | the candidates of `engine = "auto"` |
//! | `namespace.rs` | network namespaces, and sockets in them |
//! | `testbed.rs` | both ends of a link |
//! | `wireguard.rs` | a tunnel of WireGuard between the same namespaces |
//! | `load.rs` | iperf3, latencies, CPU time; a member that is killed |
//! | `proof.rs` | counters of the pool and of devices, and the kernel's drivers |
//! | `results.rs` | the figures, as tables, goals and plots |

mod args;
mod cases;
mod choose;
mod load;
mod namespace;
mod proof;
mod results;
mod testbed;
mod wireguard;

use millrace_hostfs::child::find_program;

pub use self::args::VpnArgs;
use self::load::{MeasuredLink, MemberLoss};
use self::proof::CountersBefore;
use self::results::{VpnFigures, VpnPlan};
use self::testbed::{LinkTestbed, TunnelSampling};
use crate::cores;
use crate::error::BenchError;
use crate::plot;
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::stats::order;

pub use self::cases::CaseEngine;
pub(crate) use self::cases::{CASES, LinkCase, MAX_FLOWS};
pub use self::choose::{LinkRound, LinkToMeasure, measure_links};

/// Measures, prints and writes.
///
/// # Errors
/// [`BenchError`]; a byte that changes on its way ends the run.
pub fn run_vpn(args: &VpnArgs) -> Result<(), BenchError> {
    if args.list {
        let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        return args.deliver(&names, &results::list());
    }
    let cases: Vec<&'static LinkCase> = match &args.cases[..] {
        [] => cases::usual_cases(find_program("charon-systemd").is_some()),
        asked => asked.to_vec(),
    };
    let losses = u64::from(!args.no_loss);
    let mut progress = Progress::start(args.rounds * (cases.len() as u64 + losses))?;
    progress.now("two network namespaces")?;
    let testbed = LinkTestbed::new(cases.iter().copied(), TunnelSampling::Ceiling, &args.openssl)?;
    let mut measured: Vec<(&'static LinkCase, Vec<MeasuredLink>)> =
        cases.iter().map(|case| (*case, Vec::new())).collect();
    let mut lost: Vec<MemberLoss> = Vec::new();
    for round in 0..args.rounds {
        for index in order(cases.len(), round) {
            let (case, rounds) = &mut measured[index];
            progress.now(case.title)?;
            let before = CountersBefore::read(testbed.node.as_ref())?;
            let link = testbed.up(case, "", &mut progress)?;
            let mut measured = link.measure(args.seconds, args.flows, &progress)?;
            measured.proof = before.proof(case, testbed.node.as_ref())?;
            rounds.push(measured);
            link.down()?;
            progress.step();
        }
        if !args.no_loss {
            progress.now("four members, one of them killed")?;
            let link = testbed.up(cases::LOSS, "", &mut progress)?;
            lost.push(link.lose_a_member(args.flows, &progress)?);
            link.down()?;
            progress.step();
        }
    }
    let plan = VpnPlan {
        rounds: args.rounds,
        seconds: args.seconds,
        flows: args.flows,
        cores: cores::usable()?.len(),
        openvpn: testbed.openvpn(),
        openssl: testbed.openssl.clone(),
    };
    let figures = VpnFigures::new(measured, lost, testbed.blind());
    drop(progress);
    drop(testbed);
    let mut report = BenchReport::new("vpn", 1, plan, figures);
    report.goals = report.figures.goals();
    if let Some(svg) = &args.plot.svg {
        plot::write(&report.figures.plots()?, svg)?;
    }
    report.deliver(&args.report, &results::text(&report))?;
    report.goals.require(args.report.require)
}
