// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations per second on one core: everybody in turn, in an order that rotates from round to round.

use serde::{Deserialize, Serialize};

use super::Plan;
use super::contender::{Contender, Subject, batches};
use super::work::{CASES, Case, Keys, Work};
use crate::error::BenchError;
use crate::process::Stop;
use crate::progress::Progress;
use crate::speed::openssl_rate;
use crate::stats::Spread;

/// A warm-up is this part of a measurement: blinding pairs, caches, clock frequency.
const WARM_UP: u32 = 4;

/// What one contender did in one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Series {
    /// The backend; none for the library called directly.
    pub(super) subject: Option<Subject>,
    /// Tasks that were handed over at once.
    pub(super) at_once: usize,
    /// Per second and core, by round.
    pub(super) rates: Vec<f64>,
}

/// What was measured of one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) operation: String,
    pub(super) key: super::CryptoKey,
    /// The first is the library called directly, where it has an interface for this.
    pub(super) series: Vec<Series>,
    /// `openssl speed`, by round; of the first round only, where figures are not promised.
    pub(super) openssl: Vec<f64>,
}

impl Measured {
    /// The library called directly.
    pub(super) fn library(&self) -> Option<&Series> {
        self.series.iter().find(|series| series.subject.is_none())
    }

    /// The series of one subject at its largest batch.
    pub(super) fn full(&self, subject: Subject) -> Option<&Series> {
        let of = |series: &&Series| series.subject == Some(subject);
        self.series
            .iter()
            .filter(of)
            .max_by_key(|series| series.at_once)
    }
}

/// Ratios within rounds.
pub(super) fn ratio(ours: &[f64], peer: &[f64]) -> Option<Spread> {
    Spread::of(ours.iter().zip(peer).map(|(ours, peer)| ours / peer))
}

/// The cases that the plan asks for.
pub(super) fn cases(plan: &Plan) -> impl Iterator<Item = &'static Case> {
    CASES
        .iter()
        .filter(|case| plan.operations.contains(&case.operation) && plan.keys.contains(&case.key))
}

/// Measures one case.
pub(super) fn measure(
    plan: &Plan,
    case: Case,
    keys: &Keys,
    progress: &mut Progress,
    stop: &Stop,
) -> Result<Measured, BenchError> {
    let work = Work::new(case, keys)?;
    let mut contenders = contenders(plan, &work)?;
    for contender in &mut contenders {
        contender.measure(&work, plan.duration / WARM_UP)?;
    }
    let mut openssl = Vec::new();
    for round in 0..plan.rounds {
        progress.now(&format!("{case}, round {}", round + 1));
        for turn in 0..contenders.len() {
            let at = (round + turn) % contenders.len();
            let rate = contenders[at].measure(&work, plan.duration)?;
            contenders[at].rates.push(rate.per_core_s);
            stop.check()?;
        }
        // Where it takes two seconds each time for what nobody promises, once is enough.
        let again = round == 0 || case.stands_for_others() || case.is_common();
        if let Some(algorithm) = case.speed.filter(|_| again) {
            openssl.push(openssl_rate(plan.core, algorithm, 1)?);
        }
        stop.check()?;
        progress.step();
    }
    let series = contenders.into_iter().map(|contender| Series {
        subject: contender.subject,
        at_once: contender.at_once,
        rates: contender.rates,
    });
    Ok(Measured {
        operation: case.operation.to_string(),
        key: case.key,
        series: series.collect(),
        openssl,
    })
}

/// The library, and every backend that does this: at every size of batch where the operation stands for
/// others of the same cost, else at full ones.
fn contenders(plan: &Plan, work: &Work<'_>) -> Result<Vec<Contender>, BenchError> {
    let (case, keys) = (work.case, work.keys);
    let mut all = Vec::new();
    if work.has_library() {
        all.push(Contender::library());
    }
    for &subject in &plan.subjects {
        let backend = subject.make();
        let offers = backend
            .capabilities()
            .iter()
            .any(|row| row.operation == case.operation);
        if !offers {
            continue;
        }
        let full = backend.describe().batch;
        let sizes = if case.stands_for_others() {
            batches(full)
        } else {
            vec![full]
        };
        for at_once in sizes {
            all.push(Contender::backend(subject, at_once, keys)?);
        }
        if let (Subject::Simd(lanes), true) = (subject, case.stands_for_others()) {
            all.push(Contender::backend(Subject::SimdAlways(lanes), 1, keys)?);
        }
    }
    Ok(all)
}
