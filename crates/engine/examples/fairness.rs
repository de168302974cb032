// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Measures what a flood by one owner costs another owner that has one job at a time.
//!
//! ```text
//! cargo run --release -p millrace-engine --example fairness [SECONDS] [MICROSECONDS] [WORKERS]
//! ```
//!
//! A thread keeps a flood of jobs waiting from a thousand sessions of one owner; another thread submits one
//! job of another owner at a time and waits for it. Rounds with and without the flood alternate, and the
//! table shows the victim's latency in both with their ratio, and the flood's rate with and without the
//! victim. A job is a fixed amount of arithmetic that takes MICROSECONDS (default 500) on an idle core.

#![expect(clippy::print_stdout, reason = "a program prints")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and ranks that are small and positive"
)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use millrace_engine::backend::{
    Backend, BackendKey, Capability, Description, Done, OpenedKey, Queue, Task, Unusable,
};
use millrace_engine::{
    Completion, CompletionSink, Engine, EngineConfig, EngineSession, Job, Key, Owner,
};
use millrace_operation::{
    BackendKind, Hash, KeyError, KeyInfo, KeyType, Operation, OperationKind, Output, PrivateKey,
};

const SESSIONS: usize = 1_000;
const WAITING: usize = 8_000;
const ROUNDS: usize = 5;

/// Arithmetic that takes the same number of instructions for each job.
#[derive(Debug)]
struct Arithmetic {
    steps: u64,
}

impl Arithmetic {
    fn new(duration: Duration) -> Self {
        let tried = 20_000_000;
        let start = Instant::now();
        work(tried);
        let steps = tried as f64 * duration.as_secs_f64() / start.elapsed().as_secs_f64();
        Self { steps: steps as u64 }
    }
}

fn work(steps: u64) {
    let mut state = black_box(1_u64);
    for _ in 0..steps {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

impl Backend for Arithmetic {
    fn describe(&self) -> Description {
        Description {
            kind: BackendKind::Software,
            version: "arithmetic".to_owned(),
            on_cpu: true,
            batch: 1,
        }
    }
    fn capabilities(&self) -> &[Capability] {
        const KEY: KeyType = KeyType::Rsa { bits: 2048 };
        &[Capability { operation: OperationKind::RsaPkcs1Sign, smallest: KEY, largest: KEY }]
    }
    fn probe(&self) -> Result<(), Unusable> {
        Ok(())
    }
    fn open_key(&self, _: &PrivateKey) -> Result<OpenedKey, KeyError> {
        let key_type = KeyType::Rsa { bits: 2048 };
        Ok(OpenedKey { key: BackendKey(0), info: KeyInfo { key_type, spki: vec![] } })
    }
    fn close_key(&self, _: BackendKey) {}
    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        Ok(Box::new(Tasks { steps: self.steps, tasks: VecDeque::new() }))
    }
}

struct Tasks {
    steps: u64,
    tasks: VecDeque<Task>,
}

impl Queue for Tasks {
    fn capacity(&self) -> usize {
        8
    }
    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        let taken = tasks.len().min(self.capacity() - self.tasks.len());
        self.tasks.extend(tasks.drain(..taken));
        taken
    }
    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        if let Some(task) = self.tasks.pop_front() {
            let start = Instant::now();
            work(self.steps);
            let result = Ok(Output::new(task.input.clone()));
            done.push(Done { task, result, service_time: start.elapsed() });
        }
        self.tasks.len()
    }
}

/// Counts completions.
#[derive(Default)]
struct Counter {
    done: AtomicUsize,
    refused: AtomicUsize,
    lock: Mutex<()>,
    news: Condvar,
}

impl CompletionSink for Counter {
    fn complete(&self, completions: &mut Vec<Completion>) {
        let refused = completions.iter().filter(|completion| completion.result.is_err()).count();
        self.refused.fetch_add(refused, Ordering::Relaxed);
        let _locked = self.lock.lock();
        self.done.fetch_add(completions.len(), Ordering::Relaxed);
        completions.clear();
        self.news.notify_all();
    }
}

impl Counter {
    fn wait_above(&self, count: usize) {
        let mut locked = self.lock.lock().expect("no thread panics");
        while self.done.load(Ordering::Relaxed) <= count {
            locked = self.news.wait(locked).expect("no thread panics");
        }
    }
}

fn job(session: &EngineSession, key: &Arc<Key>, id: u64) -> Job {
    Job {
        id,
        session: session.clone(),
        key: Arc::clone(key),
        operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
        input: vec![0; 32],
        deadline: Instant::now() + Duration::from_secs(600),
    }
}

/// Results of one round.
#[derive(Default)]
struct Round {
    latencies: Vec<Duration>,
    flood_per_s: f64,
    refused: usize,
}

/// Owners of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owners {
    Victim,
    Flood,
    Both,
}

fn round(engine: &Engine, key: &Arc<Key>, owners: Owners, length: Duration) -> Round {
    let flood_sink = Arc::new(Counter::default());
    let stop = AtomicBool::new(false);
    let mut round = Round::default();
    std::thread::scope(|scope| {
        if owners != Owners::Victim {
            scope.spawn(|| {
                let open =
                    || engine.open_session(Arc::clone(&flood_sink) as Arc<_>, Owner::new(1, 1));
                let sessions: Vec<EngineSession> = (0..SESSIONS).map(|_| open()).collect();
                let mut sent = 0;
                while !stop.load(Ordering::Relaxed) {
                    let done = flood_sink.done.load(Ordering::Relaxed);
                    let due = (done + WAITING).saturating_sub(sent);
                    let jobs =
                        (sent..sent + due).map(|id| job(&sessions[id % SESSIONS], key, id as u64));
                    engine.submit(jobs.collect());
                    sent += due;
                    flood_sink.wait_above(done + WAITING / 10);
                }
                sessions.iter().for_each(|session| engine.close_session(session));
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        let sink = Arc::new(Counter::default());
        let session = engine.open_session(Arc::clone(&sink) as Arc<_>, Owner::new(2, 1));
        let start = Instant::now();
        let before = flood_sink.done.load(Ordering::Relaxed);
        let mut id = 0;
        while start.elapsed() < length {
            if owners != Owners::Flood {
                let sent = Instant::now();
                engine.submit(vec![job(&session, key, id as u64)]);
                sink.wait_above(id);
                round.latencies.push(sent.elapsed());
                id += 1;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let served = flood_sink.done.load(Ordering::Relaxed) - before;
        round.flood_per_s = served as f64 / start.elapsed().as_secs_f64();
        round.refused = sink.refused.load(Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        engine.close_session(&session);
    });
    while engine.in_flight() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    round
}

fn quantile(latencies: &mut [Duration], quantile: f64) -> f64 {
    latencies.sort_unstable();
    let rank = (latencies.len() as f64 * quantile) as usize;
    latencies
        .get(rank)
        .or_else(|| latencies.last())
        .map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
}

fn main() {
    let arguments: Vec<u64> =
        std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let argument = |index: usize, default: u64| arguments.get(index).copied().unwrap_or(default);
    let length = Duration::from_secs(argument(0, 4));
    let backend = Arithmetic::new(Duration::from_micros(argument(1, 500)));
    let mut config = EngineConfig::default();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    config.workers = argument(2, workers as u64) as usize;
    println!("{} workers, jobs of {} µs", config.workers, argument(1, 500));
    let engine = Engine::start(config, vec![Arc::new(backend)]).expect("the backend is usable");
    let key = engine.load_key(&PrivateKey::from_pkcs8(vec![].into())).expect("any key will do");
    println!(
        "round | alone p50 p99 | flooded p50 p99 µs | ratio p50 p99 | flood/s alone, with victim | refused"
    );
    let mut ratios = Vec::new();
    for number in 0..ROUNDS {
        let mut alone = round(&engine, &key, Owners::Victim, length);
        let flood = round(&engine, &key, Owners::Flood, length / 2);
        let mut both = round(&engine, &key, Owners::Both, length);
        let of = |round: &mut Round| [0.5, 0.99].map(|q| quantile(&mut round.latencies, q));
        let a = of(&mut alone);
        let b = of(&mut both);
        println!(
            "{number} | {:.0} {:.0} | {:.0} {:.0} | {:.2} {:.2} | {:.0} {:.0} | {}",
            a[0],
            a[1],
            b[0],
            b[1],
            b[0] / a[0],
            b[1] / a[1],
            flood.flood_per_s,
            both.flood_per_s,
            both.refused,
        );
        ratios.push(b[1] / a[1]);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio of the p99: {:.2}", ratios[ROUNDS / 2]);
}
