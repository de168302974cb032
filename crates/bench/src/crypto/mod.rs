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
//! The contenders take turns in interleaved rounds on one pinned core, in an order that is permuted from round
//! to round, and every output is checked. (`openssl speed`, which needs seconds, is in each round for what is
//! promised, else in the first.) A rate is per second of the thread's CPU time, as those of `openssl speed`
//! are, so that other programs on the core do not change it; the rate by the clock stands beside it.
//! Latencies and the node's rate are by the clock.
//!
//! What a processor without IFMA would do is measured on one that has it, too: in a child with
//! `OPENSSL_ia32cap` set so that AWS-LC and OpenSSL leave IFMA alone, beside the lanes that need none.

mod figures;
mod load;
mod rates;
mod results;
mod through;

use std::collections::BTreeMap;
use std::env;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use millrace_engine::{BackendKind, OperationKind};

pub(crate) use self::rates::MeasuredRates;
use self::results::{CryptoReport, Parts};
pub(crate) use self::results::{best_gain, rates_table};
use crate::cli::{CryptoArgs, check_seconds};
use crate::cores;
use crate::error::BenchError;
use crate::plot;
use crate::process::Stop;
use crate::progress::Progress;
use crate::report;
use crate::workload::{BenchKey, CASES, Case, Keys, LanesKind, Subject};

/// Bounds of a measurement, in seconds: shorter ones are noise, longer ones a typing error.
const SECONDS: std::ops::RangeInclusive<f64> = 0.01..=600.0;

/// Tells AWS-LC and OpenSSL that there is no AVX-512 IFMA (bit 21 of the second word).
const WITHOUT_IFMA: (&str, &str) = ("OPENSSL_ia32cap", ":~0x200000");

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CryptoPart {
    /// Operations per second on one core
    Rates,
    /// Latency by offered load
    Loads,
    /// Signatures through a node on one core
    Node,
}

/// Runs the measurement and prints it.
pub(crate) fn run(args: &CryptoArgs) -> Result<(), BenchError> {
    let plan = CryptoPlan::new(args)?;
    let stop = Stop::on_signals()?;
    cores::pin(plan.load_core)?;
    let results = measure(&plan, &stop)?;
    if let Some(path) = &args.svg {
        plot::write(&figures::render(&results)?, path)?;
    }
    report::deliver(&results, args.json.as_deref(), || results.render())?;
    results.goals.require(args.require)
}

/// What the options mean.
#[derive(Clone, Debug, Serialize)]
struct CryptoPlan {
    #[serde(skip)]
    operations: Vec<OperationKind>,
    keys: Vec<BenchKey>,
    subjects: Vec<Subject>,
    parts: Vec<CryptoPart>,
    rounds: usize,
    duration: Duration,
    /// In percent of the peak.
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
        let (core, load_core) = cores::two(args.core, args.load_core)?;
        let plan = Self {
            operations: or_all(&args.operation, OperationKind::ALL),
            keys: or_all(&args.key, BenchKey::VARIANTS),
            subjects: subjects(args)?,
            parts: or_all(&args.part, CryptoPart::value_variants()),
            rounds: usize::try_from(args.rounds).unwrap_or(usize::MAX),
            duration: Duration::from_secs_f64(args.seconds),
            loads: args.load.clone(),
            workers: cores::worker_counts(&args.workers)?,
            core,
            load_core,
            ia32cap: env::var(WITHOUT_IFMA.0).ok(),
        };
        if plan.cases().next().is_none() {
            return Err(BenchError::Usage(
                "no such operation is measured with such a key: leave out --operation or --key"
                    .to_owned(),
            ));
        }
        Ok(plan)
    }

    #[cfg(test)]
    fn for_tests(core: usize) -> Self {
        Self {
            operations: OperationKind::ALL.to_vec(),
            keys: vec![BenchKey::P256],
            subjects: vec![Subject::Software],
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

    /// Whether the lanes that need no IFMA have to be measured again beside libraries that use none:
    /// here they would be compared with what no processor that needs them has.
    fn wants_a_run_without_ifma(&self) -> bool {
        let fp52 = self.subjects.contains(&Subject::Simd(LanesKind::Fp52));
        let rsa = self.keys.contains(&BenchKey::Rsa2048)
            && self.operations.contains(&OperationKind::RsaPkcs1Sign);
        let here = LanesKind::Ifma.is_available() && self.ia32cap.is_none();
        fp52 && rsa && here && self.has(CryptoPart::Rates)
    }
}

fn or_all<T: Copy>(chosen: &[T], all: &[T]) -> Vec<T> {
    if chosen.is_empty() {
        all.to_vec()
    } else {
        chosen.to_vec()
    }
}

/// The backends to measure, the fastest first.
fn subjects(args: &CryptoArgs) -> Result<Vec<Subject>, BenchError> {
    let all = [BackendKind::Cuda, BackendKind::Simd, BackendKind::Software];
    let kinds = or_all(&args.backend, &all);
    let mut subjects = Vec::new();
    if kinds.contains(&BackendKind::Cuda) {
        match Subject::Cuda.make().probe() {
            Ok(()) => subjects.push(Subject::Cuda),
            Err(reason) if args.backend.is_empty() => eprintln!("without cuda: {reason}"),
            Err(reason) => {
                return Err(BenchError::Usage(format!("--backend cuda: {reason}")));
            }
        }
    }
    if kinds.contains(&BackendKind::Simd) {
        let asked = !args.lanes.is_empty();
        for lanes in or_all(&args.lanes, &[LanesKind::Ifma, LanesKind::Fp52]) {
            match (lanes.is_available(), asked) {
                (true, _) => subjects.push(Subject::Simd(lanes)),
                (false, true) => {
                    return Err(BenchError::Usage(format!(
                        "--lanes {lanes}: this processor does not have them"
                    )));
                }
                (false, false) => {}
            }
        }
    }
    if kinds.contains(&BackendKind::Software) {
        subjects.push(Subject::Software);
    }
    if args.backend.is_empty() {
        return Ok(subjects);
    }
    for kind in kinds {
        if !subjects.iter().any(|subject| subject.kind() == kind) {
            return Err(BenchError::Usage(format!(
                "--backend {kind}: this machine or this benchmark has none"
            )));
        }
    }
    Ok(subjects)
}

fn measure(plan: &CryptoPlan, stop: &Stop) -> Result<CryptoReport, BenchError> {
    let rates = plan.has(CryptoPart::Rates);
    let cases: Vec<_> = plan.cases().collect();
    // Latency by load for the first operation on the keys that servers have.
    let mut loaded = cases.clone();
    loaded.retain(|case| plan.has(CryptoPart::Loads) && case.is_common());
    let through = plan.has(CryptoPart::Node) && plan.keys.contains(&BenchKey::Rsa2048);
    let nodes = if through { plan.workers.len() } else { 0 };
    let groups = if rates { cases.len() } else { 0 } + loaded.len() + nodes;
    let extra = usize::from(plan.wants_a_run_without_ifma());
    let mut progress = Progress::new((groups * plan.rounds + extra) as u64);
    let mut keys = KeyRing::default();
    let mut parts = Parts::default();
    if rates {
        for &case in &cases {
            let keys = keys.of(case.key, &mut progress)?;
            let one = cores::pinned(plan.core, || {
                rates::measure(plan, case, keys, &mut progress, stop)
            })??;
            parts.rates.push(one);
        }
    }
    for &case in &loaded {
        let keys = keys.of(case.key, &mut progress)?;
        parts
            .loads
            .extend(load::measure(plan, case, keys, &mut progress, stop)?);
    }
    if through {
        let keys = keys.of(BenchKey::Rsa2048, &mut progress)?;
        parts.nodes = through::measure(plan, keys, &mut progress, stop)?;
    }
    if plan.wants_a_run_without_ifma() {
        progress.now("once more with libraries that leave IFMA alone");
        parts.without_ifma = Some(without_ifma(plan)?);
        progress.step();
    }
    Ok(CryptoReport::new(plan, parts))
}

/// Keys by type, made when first needed.
#[derive(Default)]
struct KeyRing(BTreeMap<BenchKey, Keys>);

impl KeyRing {
    fn of(&mut self, key: BenchKey, progress: &mut Progress) -> Result<&Keys, BenchError> {
        let made = match self.0.remove(&key) {
            Some(made) => made,
            None => {
                progress.now(&format!("making {key} keys"));
                Keys::generate(key)?
            }
        };
        Ok(self.0.entry(key).or_insert(made))
    }
}

/// The rates of RSA-2048 signatures in lanes without IFMA, measured by a child whose libraries leave
/// IFMA alone, as they do on processors that lack it.
fn without_ifma(plan: &CryptoPlan) -> Result<MeasuredRates, BenchError> {
    let program = env::current_exe().map_err(BenchError::system("find this program"))?;
    let mut command = Command::new(program);
    command
        .args(["bench", "crypto", "--part", "rates", "--json", "-"])
        .args(["--operation", "rsa-pkcs1-sign", "--key", "rsa-2048"])
        .args(["--lanes", "fp52"])
        .args(["--rounds", &plan.rounds.to_string()])
        .args(["--seconds", &plan.duration.as_secs_f64().to_string()])
        .args(["--core", &plan.core.to_string()])
        .args(["--load-core", &plan.core.to_string()])
        .env(WITHOUT_IFMA.0, WITHOUT_IFMA.1)
        .stdin(Stdio::null());
    let output = cores::pinned(plan.core, || command.output())?
        .map_err(BenchError::system("run millrace bench crypto"))?;
    if !output.status.success() {
        return Err(BenchError::Child {
            name: "millrace bench crypto, without IFMA,".to_owned(),
            problem: format!("failed ({})", output.status),
            log: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    #[derive(Deserialize)]
    struct Report {
        rates: Vec<MeasuredRates>,
    }
    let report: Report = serde_json::from_slice(&output.stdout)
        .map_err(|error| BenchError::Setup(format!("the run without IFMA: {error}")))?;
    let missing = || BenchError::Setup("the run without IFMA measured nothing".to_owned());
    report.rates.into_iter().next().ok_or_else(missing)
}

/// The rates of RSA-2048 signatures on this core, measured briefly: what a demonstration shows.
pub(crate) fn brief_rates(core: usize, stop: &Stop) -> Result<MeasuredRates, BenchError> {
    let mut subjects = vec![Subject::Software];
    let lanes = [LanesKind::Ifma, LanesKind::Fp52]
        .into_iter()
        .find(|lanes| lanes.is_available());
    subjects.extend(lanes.map(Subject::Simd));
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
    cores::pinned(core, || {
        rates::measure(&plan, case, &keys, &mut Progress::new(2), stop)
    })?
}

/// The measured case of RSA-2048 signatures, if there is one.
fn rsa_2048(measured: &[MeasuredRates]) -> Option<&MeasuredRates> {
    let name = OperationKind::RsaPkcs1Sign.name();
    measured
        .iter()
        .find(|one| one.key == BenchKey::Rsa2048 && one.operation == name)
}
