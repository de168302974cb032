// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench crypto`: every operation on every backend that is usable here, beside the libraries called
//! directly. Three parts:
//!
//! | part | file | what |
//! |---|---|---|
//! | rates | `rates.rs` | operations per second on one core: AWS-LC and OpenSSL called directly, and each backend's queue with one to a full batch of tasks at once |
//! | loads | `load.rs` | latency by offered load (open loop) through an engine on one core |
//! | node | `through.rs` | how much of a batching backend's gain survives the trip through a node on one core |
//!
//! `args.rs` has the options, `figures.rs` the report as one picture, `results.rs` the report with its goals.
//!
//! The contenders alternate in interleaved rounds on one pinned core. Their order is permuted from round to round,
//! and every output is checked. `openssl speed` needs seconds: it is in each round of promised figures, else in the
//! first.
//!
//! A rate counts seconds of the thread's CPU time, like those of `openssl speed`, so that other programs on the core
//! do not change it. The rate by the clock stands beside it. Latencies and the node's rate are by the clock.
//!
//! On a processor with IFMA a child measures what one without it would do. `OPENSSL_ia32cap` keeps AWS-LC and OpenSSL
//! from using IFMA there, beside the lanes that need none.

mod args;
mod figures;
mod load;
mod rates;
mod results;
mod through;

use std::collections::BTreeMap;
use std::env;
use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use millrace_operation::{BackendKind, OperationKind};
use serde::{Deserialize, Serialize};
use strum::VariantArray;

pub use self::args::CryptoArgs;
pub(crate) use self::rates::MeasuredRates;
use self::results::{CryptoFigures, CryptoReport};
pub(crate) use self::results::{best_gain, rates_table};
use crate::bench_key::BenchKey;
use crate::cores;
use crate::error::BenchError;
use crate::options::check_seconds;
use crate::plot;
use crate::process::output_of;
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::workload::{CASES, Case, Keys, LanesKind, MeasuredBackend};

/// Bounds of a measurement, in seconds: shorter ones are noise, longer ones a typing error.
const SECONDS: std::ops::RangeInclusive<f64> = 0.01..=600.0;

/// Tells AWS-LC and OpenSSL that there is no AVX-512 IFMA (bit 21 of the second word).
const WITHOUT_IFMA: (&str, &str) = ("OPENSSL_ia32cap", ":~0x200000");

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CryptoPart {
    /// Operations per second on one core
    Rates,
    /// Latency by offered load
    Loads,
    /// Signatures through a node on one core
    Node,
}

/// Runs `millrace bench crypto`.
pub fn run_crypto(args: &CryptoArgs) -> Result<(), BenchError> {
    let plan = CryptoPlan::new(args)?;
    cores::pin(plan.load_core)?;
    let report = measure(plan)?;
    if let Some(path) = &args.plot.svg {
        plot::write(&figures::render(&report)?, path)?;
    }
    report.deliver(&args.report, &results::render(&report))?;
    report.goals.require(args.report.require)
}

/// The meaning of the options.
#[derive(Clone, Debug, Serialize)]
struct CryptoPlan {
    #[serde(skip)]
    operations: Vec<OperationKind>,
    keys: Vec<BenchKey>,
    subjects: Vec<MeasuredBackend>,
    parts: Vec<CryptoPart>,
    rounds: usize,
    duration: Duration,
    /// Loads to measure, in percent of the peak.
    loads: Vec<u64>,
    /// Worker threads per class of the nodes.
    workers: Vec<usize>,
    core: usize,
    load_core: usize,
    /// `OPENSSL_ia32cap` as it was found.
    ia32cap: Option<String>,
}

impl CryptoPlan {
    fn new(args: &CryptoArgs) -> Result<Self, BenchError> {
        check_seconds(args.seconds, &SECONDS)?;
        let (core, load_core) = cores::two(args.core, args.load.load_core)?;
        let plan = Self {
            operations: or_all(&args.operations, OperationKind::ALL),
            keys: or_all(&args.keys, BenchKey::VARIANTS),
            subjects: subjects(args)?,
            parts: or_all(&args.parts, CryptoPart::value_variants()),
            rounds: usize::try_from(args.rounds).unwrap_or(usize::MAX),
            duration: Duration::from_secs_f64(args.seconds),
            loads: args.loads.clone(),
            workers: cores::worker_counts(&args.workers)?,
            core,
            load_core,
            ia32cap: env::var(WITHOUT_IFMA.0).ok(),
        };
        if plan.cases().next().is_none() {
            let problem =
                "no such operation is measured with such a key: leave out --operations or --keys";
            return Err(BenchError::Usage(problem.to_owned()));
        }
        Ok(plan)
    }

    #[cfg(test)]
    fn for_tests(core: usize) -> Self {
        Self {
            operations: OperationKind::ALL.to_vec(),
            keys: vec![BenchKey::P256],
            subjects: vec![MeasuredBackend::Software],
            parts: CryptoPart::value_variants().to_vec(),
            rounds: 1,
            duration: Duration::from_millis(10),
            loads: vec![50],
            workers: vec![1],
            core,
            load_core: core,
            ia32cap: None,
        }
    }

    /// The cases that the options ask for.
    fn cases(&self) -> impl Iterator<Item = Case> {
        let asked = |case: &&Case| {
            self.operations.contains(&case.operation) && self.keys.contains(&case.key)
        };
        CASES.iter().filter(asked).copied()
    }

    fn has(&self, part: CryptoPart) -> bool {
        self.parts.contains(&part)
    }

    /// Whether the lanes that need no IFMA have to be measured again beside libraries that use none: otherwise their
    /// peer would be one that no processor without IFMA has.
    fn wants_a_run_without_ifma(&self) -> bool {
        let fp52 = self.subjects.contains(&MeasuredBackend::Simd(LanesKind::Fp52));
        let rsa = self.keys.contains(&BenchKey::Rsa2048)
            && self.operations.contains(&OperationKind::RsaPkcs1Sign);
        let has_ifma = LanesKind::Ifma.is_available() && self.ia32cap.is_none();
        fp52 && rsa && has_ifma && self.has(CryptoPart::Rates)
    }
}

/// The chosen values, or all if none was chosen.
fn or_all<T: Copy>(chosen: &[T], all: &[T]) -> Vec<T> {
    if chosen.is_empty() { all } else { chosen }.to_vec()
}

/// The backends to measure, the fastest first.
///
/// # Errors
/// [`BenchError::Usage`] if one that was named is not usable here.
fn subjects(args: &CryptoArgs) -> Result<Vec<MeasuredBackend>, BenchError> {
    let all = [BackendKind::Cuda, BackendKind::Simd, BackendKind::Software];
    let kinds = or_all(&args.backends, &all);
    let refused = |text: String| Err(BenchError::Usage(text));
    let mut subjects = Vec::new();
    if kinds.contains(&BackendKind::Cuda) {
        match MeasuredBackend::Cuda.make().probe() {
            Ok(()) => subjects.push(MeasuredBackend::Cuda),
            Err(reason) if args.backends.is_empty() => {
                let _ = writeln!(io::stderr(), "without cuda: {reason}");
            }
            Err(reason) => return refused(format!("--backends cuda: {reason}")),
        }
    }
    if kinds.contains(&BackendKind::Simd) {
        for lanes in or_all(&args.lanes, &[LanesKind::Ifma, LanesKind::Fp52]) {
            if lanes.is_available() {
                subjects.push(MeasuredBackend::Simd(lanes));
            } else if args.lanes.contains(&lanes) {
                return refused(format!("--lanes {lanes}: this processor does not have them"));
            }
        }
    }
    if kinds.contains(&BackendKind::Software) {
        subjects.push(MeasuredBackend::Software);
    }
    for kind in &args.backends {
        if !subjects.iter().any(|subject| subject.kind() == *kind) {
            return refused(format!("--backends {kind}: this machine or this benchmark has none"));
        }
    }
    Ok(subjects)
}

fn measure(plan: CryptoPlan) -> Result<CryptoReport, BenchError> {
    let mut cases: Vec<_> = plan.cases().collect();
    // Latency by load for the first operation on the keys that servers have.
    let mut loaded = cases.clone();
    loaded.retain(|case| plan.has(CryptoPart::Loads) && case.is_common());
    cases.retain(|_| plan.has(CryptoPart::Rates));
    let through = plan.has(CryptoPart::Node) && plan.keys.contains(&BenchKey::Rsa2048);
    let nodes = if through { plan.workers.len() } else { 0 };
    let groups = cases.len() + loaded.len() + nodes;
    let extra = usize::from(plan.wants_a_run_without_ifma());
    let mut progress = Progress::start((groups * plan.rounds + extra) as u64)?;
    let mut keys = KeyRing::default();
    let mut parts = CryptoFigures::default();
    for case in cases {
        let keys = keys.of(case.key, &mut progress)?;
        let rates = || rates::measure(&plan, case, keys, &mut progress);
        parts.rates.push(cores::pinned(plan.core, rates)??);
    }
    for case in loaded {
        let keys = keys.of(case.key, &mut progress)?;
        parts.loads.extend(load::measure(&plan, case, keys, &mut progress)?);
    }
    if through {
        let keys = keys.of(BenchKey::Rsa2048, &mut progress)?;
        parts.nodes = through::measure(&plan, keys, &mut progress)?;
    }
    if plan.wants_a_run_without_ifma() {
        progress.now("once more with libraries that do not use IFMA")?;
        parts.without_ifma = Some(without_ifma(&plan)?);
    }
    let goals = parts.goals(&plan);
    let mut report = BenchReport::new("crypto", results::SCHEMA, plan, parts);
    report.goals = goals;
    Ok(report)
}

/// Keys by type, made when first needed.
#[derive(Default)]
struct KeyRing(BTreeMap<BenchKey, Keys>);

impl KeyRing {
    fn of(&mut self, key: BenchKey, progress: &mut Progress) -> Result<&Keys, BenchError> {
        let made = match self.0.remove(&key) {
            Some(made) => made,
            None => {
                progress.now(&format!("making {key} keys"))?;
                Keys::generate(key)?
            }
        };
        Ok(self.0.entry(key).or_insert(made))
    }
}

/// The rates of RSA-2048 signatures in lanes without IFMA, measured by a child whose libraries do not use IFMA, as
/// on processors that lack it.
fn without_ifma(plan: &CryptoPlan) -> Result<MeasuredRates, BenchError> {
    #[derive(Deserialize)]
    struct Rates {
        rates: Vec<MeasuredRates>,
    }
    let program = env::current_exe().map_err(BenchError::system("find this program"))?;
    let core = plan.core.to_string();
    let mut command = Command::new(program);
    command
        .args(["bench", "crypto", "--parts", "rates", "--json"])
        .args(["--operations", "rsa-pkcs1-sign", "--keys", "rsa-2048"])
        .args(["--lanes", "fp52", "--core", &core, "--load-core", &core])
        .args(["--rounds", &plan.rounds.to_string()])
        .args(["--duration", &plan.duration.as_secs_f64().to_string()])
        .env(WITHOUT_IFMA.0, WITHOUT_IFMA.1);
    let name = "millrace bench crypto, without IFMA,";
    let text = cores::pinned(plan.core, || output_of(name, &mut command))??;
    let report: Rates = serde_json::from_str(&text)
        .map_err(|error| BenchError::Setup(format!("the run without IFMA: {error}")))?;
    let missing = || BenchError::Setup("the run without IFMA measured nothing".to_owned());
    report.rates.into_iter().next().ok_or_else(missing)
}

/// The rates of RSA-2048 signatures on this core, measured briefly: what a demonstration shows.
pub(crate) fn brief_rates(core: usize) -> Result<MeasuredRates, BenchError> {
    let mut lanes = [LanesKind::Ifma, LanesKind::Fp52].into_iter();
    let lanes = lanes.find(|lanes| lanes.is_available()).map(MeasuredBackend::Simd);
    let subjects = [MeasuredBackend::Software].into_iter().chain(lanes).collect();
    let plan = CryptoPlan {
        operations: vec![OperationKind::RsaPkcs1Sign],
        keys: vec![BenchKey::Rsa2048],
        subjects,
        parts: vec![CryptoPart::Rates],
        rounds: 2,
        duration: Duration::from_millis(100),
        loads: Vec::new(),
        workers: Vec::new(),
        core,
        load_core: core,
        ia32cap: None,
    };
    let case = Case::find(OperationKind::RsaPkcs1Sign, BenchKey::Rsa2048);
    let case = case.ok_or_else(|| BenchError::Setup("there is no case of RSA-2048".to_owned()))?;
    let keys = Keys::generate(case.key)?;
    let mut progress = Progress::start(2)?;
    cores::pinned(core, || rates::measure(&plan, case, &keys, &mut progress))?
}

/// The measured case of RSA-2048 signatures, if there is one.
fn rsa_2048(measured: &[MeasuredRates]) -> Option<&MeasuredRates> {
    let wanted = (OperationKind::RsaPkcs1Sign.name(), BenchKey::Rsa2048);
    measured.iter().find(|case| (&*case.operation, case.key) == wanted)
}
