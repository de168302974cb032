// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What of a batching backend's gain arrives through a node: RSA-2048 signatures through a node with
//! one worker per class on one core, beside the same backend called directly on that core.

use std::collections::BTreeMap;

use millrace_client::Endpoint;
use serde::Serialize;

use super::Plan;
use super::contender::{Contender, Rate, Subject};
use super::work::{CASES, CryptoKey, Keys, Work};
use crate::cores;
use crate::error::BenchError;
use crate::node::{Node, NodeOptions};
use crate::pool::Workload;
use crate::pool::remote::Remote;
use crate::pool::workload::Job;
use crate::process::Stop;
use crate::progress::Progress;

/// Jobs in flight at the node: what a busy gateway has.
const WINDOW: usize = 128;

/// A round lasts so many times as long as a measurement: it has to fill and to drain.
const LONGER: u32 = 5;

/// One round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Round {
    /// The backend, called directly with full batches, by the clock.
    pub(super) direct_per_s: f64,
    /// Through the node, pipelined, by the clock.
    pub(super) node_per_s: f64,
    /// CPU time per signature, of all threads of the node: does not suffer from what else runs.
    pub(super) direct_cpu_us: f64,
    pub(super) node_cpu_us: f64,
    /// By backend: how many jobs each served.
    pub(super) served_by: BTreeMap<String, u64>,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Through {
    pub(super) subject: Subject,
    pub(super) at_once: usize,
    pub(super) rounds: Vec<Round>,
}

/// Measures the first backend of the plan that batches RSA; nothing if there is none.
pub(super) fn measure(
    plan: &Plan,
    keys: &Keys,
    progress: &mut Progress,
    stop: &Stop,
) -> Result<Option<Through>, BenchError> {
    let full = |subject: &Subject| subject.make().describe().batch;
    let fastest = plan.subjects.iter().find(|subject| full(subject) > 1);
    let case = CASES.iter().find(|case| case.key == CryptoKey::Rsa2048);
    let (Some(&subject), Some(&case)) = (fastest, case) else {
        return Ok(None);
    };
    let at_once = full(&subject);
    progress.now("starting a node");
    let dir = tempfile::Builder::new()
        .prefix("millrace-bench-")
        .tempdir()
        .map_err(BenchError::system("create a temporary folder"))?;
    let options = NodeOptions {
        core: plan.core,
        workers: 1,
        software_only: false,
        tcp: false,
    };
    let mut node = Node::start(dir.path(), &options)?;
    let endpoint: Endpoint = node
        .endpoint()
        .parse()
        .map_err(|error| BenchError::Setup(format!("the node's endpoint: {error}")))?;
    let job = Job::new(Workload::RsaPkcs1Sign)?;
    let remote = Remote::open(&endpoint, &job)?;
    let work = Work::new(case, keys)?;
    let mut contender = Contender::backend(subject, at_once, keys)?;
    remote.pipelined(WINDOW, plan.duration)?;
    let mut rounds = Vec::new();
    for number in 0..plan.rounds {
        progress.now(&format!("through a node, round {}", number + 1));
        let direct = |contender: &mut Contender| -> Result<Rate, BenchError> {
            cores::pinned(plan.core, || {
                contender.measure(&work, plan.duration * LONGER)
            })?
        };
        let mut first = None;
        if number.is_multiple_of(2) {
            first = Some(direct(&mut contender)?);
        }
        let cpu = node.cpu_time();
        let through = remote.pipelined(WINDOW, plan.duration * LONGER)?;
        let cpu = node.cpu_time().saturating_sub(cpu);
        let direct = match first {
            Some(first) => first,
            None => direct(&mut contender)?,
        };
        rounds.push(Round {
            direct_per_s: direct.per_s,
            node_per_s: through.per_s,
            direct_cpu_us: 1e6 / direct.per_core_s,
            node_cpu_us: cpu.as_secs_f64() * 1e6 / through.jobs as f64,
            served_by: through.served_by,
        });
        node.check()?;
        stop.check()?;
        progress.step();
    }
    Ok(Some(Through {
        subject,
        at_once,
        rounds,
    }))
}
