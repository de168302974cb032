// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Share of a batching backend's gain that survives the trip through a node: RSA-2048 signatures through nodes on one
//! core, beside the same backend called directly on that core.

use std::collections::BTreeMap;

use millrace_operation::OperationKind;
use serde::Serialize;

use super::CryptoPlan;
use crate::bench_key::BenchKey;
use crate::error::BenchError;
use crate::node::{NodeOptions, NodeProcess};
use crate::pool::remote::RemotePool;
use crate::progress::Progress;
use crate::stats::order;
use crate::workload::{Case, Contender, Keys, MeasuredBackend, Requests};

/// Jobs in flight at the node: what a busy gateway has.
const WINDOW: usize = 128;

/// A round lasts this many times as long as a measurement: it has to fill and to drain.
const LONGER: u32 = 5;

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ThroughRound {
    /// Signatures per second of the backend, called directly with full batches, by the clock.
    pub(super) direct_per_s: f64,
    /// Signatures per second through the node, pipelined, by the clock.
    pub(super) node_per_s: f64,
    /// CPU time per signature, of all threads of the node: other programs do not change it.
    pub(super) direct_cpu_us: f64,
    pub(super) node_cpu_us: f64,
    /// Number of jobs that each backend served.
    pub(super) served_by: BTreeMap<&'static str, u64>,
}

/// The rounds with one node.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Through {
    pub(super) subject: MeasuredBackend,
    pub(super) at_once: usize,
    /// Worker threads per class of the node.
    pub(super) workers: usize,
    pub(super) rounds: Vec<ThroughRound>,
}

/// Measures the first backend of the plan that batches RSA, with a node for each worker count; empty if there is no
/// such backend.
pub(super) fn measure(
    plan: &CryptoPlan,
    keys: &Keys,
    progress: &mut Progress,
) -> Result<Vec<Through>, BenchError> {
    let full = |subject: &MeasuredBackend| subject.make().describe().batch;
    let fastest = plan.subjects.iter().find(|subject| full(subject) > 1);
    let case = Case::find(OperationKind::RsaPkcs1Sign, BenchKey::Rsa2048);
    let (Some(&subject), Some(case)) = (fastest, case) else {
        return Ok(Vec::new());
    };
    let at_once = full(&subject);
    let requests = Requests::new(case, keys)?;
    let mut contender = Contender::backend(subject, at_once, keys)?;
    let mut all = Vec::new();
    for &workers in &plan.workers {
        progress.now("starting a node")?;
        let mut node = NodeProcess::start(&NodeOptions { workers, ..NodeOptions::on(plan.core) })?;
        let remote = RemotePool::open(&node.endpoint(), &requests)?;
        let mut rounds = Vec::new();
        for number in 0..plan.rounds {
            let what = format!("through a node with {workers} workers, round {}", number + 1);
            progress.now(&what)?;
            let mut round = ThroughRound::default();
            for turn in order(2, number as u64) {
                if turn == 0 {
                    let warm_up = plan.duration;
                    let time = plan.duration * LONGER;
                    let rate = contender.measure_on(plan.core, warm_up, &requests, time)?;
                    round.direct_per_s = rate.per_s;
                    round.direct_cpu_us = 1e6 / rate.per_core_s;
                    continue;
                }
                remote.pipelined(WINDOW, plan.duration)?;
                let cpu = node.cpu_time();
                let pipelined = remote.pipelined(WINDOW, plan.duration * LONGER)?;
                round.node_per_s = pipelined.per_s;
                round.node_cpu_us = pipelined.each_us(node.cpu_time().saturating_sub(cpu));
                round.served_by = pipelined.served_by;
            }
            rounds.push(round);
            node.check()?;
            progress.step();
        }
        all.push(Through { subject, at_once, workers, rounds });
    }
    Ok(all)
}
