// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations per second on one core: the contenders in turn, in an order permuted from round to round.

use serde::{Deserialize, Serialize};

use super::CryptoPlan;
use crate::bench_key::BenchKey;
use crate::error::BenchError;
use crate::progress::Progress;
use crate::speed::openssl_rate;
use crate::stats::{Spread, order};
use crate::workload::{Case, Contender, Keys, MeasuredBackend, Requests, batches};

/// A warm-up is this part of a measurement: blinding pairs, caches, clock frequency.
const WARM_UP: u32 = 4;

/// The rates of one contender in one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RateSeries {
    /// The backend; `None` for the library called directly.
    pub(crate) subject: Option<MeasuredBackend>,
    /// Tasks per call.
    pub(super) at_once: usize,
    /// Operations per second of CPU time, by round.
    pub(crate) rates: Vec<f64>,
    /// Operations per second by the clock, by round.
    pub(super) clock_rates: Vec<f64>,
}

/// The rates of all contenders in one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MeasuredRates {
    pub(crate) operation: String,
    pub(crate) key: BenchKey,
    /// The first is the library called directly, where it has an interface for this.
    pub(crate) series: Vec<RateSeries>,
    /// `openssl speed`, by round; of the first round only, where figures are not promised.
    pub(crate) openssl: Vec<f64>,
}

impl MeasuredRates {
    /// The library called directly.
    pub(crate) fn library(&self) -> Option<&RateSeries> {
        self.series.iter().find(|series| series.subject.is_none())
    }

    /// The series of one subject at its largest batch.
    pub(crate) fn full(&self, subject: MeasuredBackend) -> Option<&RateSeries> {
        let of = self.series.iter().filter(|series| series.subject == Some(subject));
        of.max_by_key(|series| series.at_once)
    }
}

/// Ratios within rounds.
pub(crate) fn ratio(ours: &[f64], peer: &[f64]) -> Option<Spread> {
    Spread::of_ratios(ours.iter().copied(), peer.iter().copied())
}

/// Measures one case.
pub(super) fn measure(
    plan: &CryptoPlan,
    case: Case,
    keys: &Keys,
    progress: &mut Progress,
) -> Result<MeasuredRates, BenchError> {
    let requests = Requests::new(case, keys)?;
    let mut contenders = contenders(plan, &requests)?;
    for contender in &mut contenders {
        contender.measure(&requests, plan.duration / WARM_UP)?;
    }
    let series = contenders.iter().map(|contender| RateSeries {
        subject: contender.subject,
        at_once: contender.at_once,
        rates: Vec::new(),
        clock_rates: Vec::new(),
    });
    let mut measured = MeasuredRates {
        operation: case.operation.to_string(),
        key: case.key,
        series: series.collect(),
        openssl: Vec::new(),
    };
    for round in 0..plan.rounds {
        progress.now(&format!("{case}, round {}", round + 1))?;
        for turn in order(contenders.len(), round as u64) {
            let rate = contenders[turn].measure(&requests, plan.duration)?;
            measured.series[turn].rates.push(rate.per_core_s);
            measured.series[turn].clock_rates.push(rate.per_s);
            progress.check()?;
        }
        // It takes two seconds each time: where nothing is promised, once is enough.
        let again = round == 0 || case.stands_for_others() || case.is_common();
        if let Some(algorithm) = case.speed.filter(|_| again) {
            measured.openssl.push(openssl_rate(plan.core, algorithm, 1)?);
        }
        progress.step();
    }
    Ok(measured)
}

/// The library, and every backend with this operation: at every size of batch where the operation stands for others
/// of the same cost, else at full ones.
fn contenders(plan: &CryptoPlan, requests: &Requests<'_>) -> Result<Vec<Contender>, BenchError> {
    let case = requests.case;
    let keys = requests.keys;
    let mut all = Vec::new();
    all.extend(requests.has_library().then(Contender::library));
    let offering = plan.subjects.iter().filter(|subject| subject.offers(case.operation));
    for &subject in offering {
        let full = subject.make().describe().batch;
        if !case.stands_for_others() {
            all.push(Contender::backend(subject, full, keys)?);
            continue;
        }
        for at_once in batches(full) {
            all.push(Contender::backend(subject, at_once, keys)?);
        }
        if let MeasuredBackend::Simd(lanes) = subject {
            all.push(Contender::backend(MeasuredBackend::SimdAlways(lanes), 1, keys)?);
        }
    }
    Ok(all)
}
