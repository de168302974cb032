// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Measures how the rate of an engine grows with its workers, also on a machine with fewer cores: a job sleeps for a
//! fixed time instead of computing, so each worker stands for a core of its own.
//!
//! ```text
//! make bench-workers [ARGS="SECONDS MICROSECONDS ROUNDS"]
//! ```
//!
//! Queue, workers and completions are those of a node; sockets are not part of it. Two owners with one session each
//! keep jobs waiting. All worker counts take turns in each round, and ratios are computed within a round. The reference
//! is one thread that sleeps as often as it can, without an engine.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millrace_engine::{
    Completion, CompletionSink, Engine, EngineConfig, EngineSession, Job, Key, Owner,
};
use millrace_operation::{Hash, Operation, PrivateKey};
use millrace_testkit::fake::{FakeBackend, FakeOptions};

const WORKERS: [usize; 4] = [1, 2, 4, 8];

/// Jobs of each owner that the load keeps in the engine: several turns of eight workers.
const WAITING: usize = 256;

/// Counts the jobs of one owner in the engine and wakes the load.
#[derive(Default)]
struct Count {
    waiting: AtomicUsize,
    done: AtomicUsize,
    lock: Mutex<()>,
    fewer: Condvar,
}

impl CompletionSink for Count {
    fn complete(&self, completions: &mut Vec<Completion>) {
        assert!(completions.iter().all(|completion| completion.result.is_ok()), "refused");
        self.waiting.fetch_sub(completions.len(), Ordering::SeqCst);
        self.done.fetch_add(completions.len(), Ordering::SeqCst);
        completions.clear();
        drop(self.lock.lock());
        self.fewer.notify_all();
    }
}

struct Client {
    count: Arc<Count>,
    session: EngineSession,
}

impl Client {
    /// Keeps [`WAITING`] jobs in the engine while `time` runs.
    fn load(&self, engine: &Engine, key: &Arc<Key>, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            let due = WAITING - self.count.waiting.load(Ordering::SeqCst);
            if due < WAITING / 4 {
                let held = self.count.lock.lock().expect("no panic");
                drop(self.count.fewer.wait_timeout(held, Duration::from_millis(1)));
                continue;
            }
            self.count.waiting.fetch_add(due, Ordering::SeqCst);
            let job = |id| Job {
                id,
                session: self.session.clone(),
                key: Arc::clone(key),
                operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
                input: vec![0; 32],
                deadline: Instant::now() + Duration::from_secs(60),
            };
            engine.submit((0..due as u64).map(job).collect());
        }
    }
}

/// Jobs per second with this number of workers, and the part of them that the first of two owners got.
fn rate(workers: usize, work: Duration, time: Duration) -> (f64, f64) {
    let backend = FakeBackend::new(FakeOptions { work, sleeps: true, ..FakeOptions::default() });
    let config = EngineConfig { workers, ..EngineConfig::default() };
    let engine = Engine::start(config, vec![Arc::new(backend)]).expect("it starts");
    let key = engine.load_key(&PrivateKey::from_pkcs8(vec![].into()));
    let key = key.expect("any key will do");
    let clients = [1, 2].map(|owner| {
        let count = Arc::new(Count::default());
        let session = engine.open_session(Arc::clone(&count) as _, Owner::new(owner, 1));
        Client { count, session }
    });
    let warm_up = Duration::from_millis(200);
    let done = || clients.each_ref().map(|client| client.count.done.load(Ordering::SeqCst));
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| client.load(&engine, &key, warm_up + time));
        }
        thread::sleep(warm_up);
        let start = Instant::now();
        let before = done();
        thread::sleep(time.saturating_sub(warm_up));
        let elapsed = start.elapsed();
        let after = done();
        let [first, second] = [0, 1].map(|at| (after[at] - before[at]) as f64);
        let all = first + second;
        (all / elapsed.as_secs_f64(), first / all)
    })
}

/// Sleeps per second of one thread.
fn reference(work: Duration, time: Duration) -> f64 {
    let start = Instant::now();
    let mut count = 0_u32;
    while start.elapsed() < time {
        thread::sleep(work);
        count += 1;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// Median and range.
fn spread(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let first = values[0];
    let last = values[values.len() - 1];
    format!("{:.3} ({first:.3} to {last:.3})", values[values.len() / 2])
}

fn main() {
    let arguments: Vec<u64> =
        std::env::args().skip(1).map(|text| text.parse().expect("a number")).collect();
    let argument = |at: usize, default| arguments.get(at).copied().unwrap_or(default);
    let time = Duration::from_secs(argument(0, 3));
    let work = Duration::from_micros(argument(1, 2_000));
    let rounds = argument(2, 5);
    let mut measured: Vec<(f64, [(f64, f64); WORKERS.len()])> = Vec::new();
    for _ in 0..rounds {
        let alone = reference(work, time);
        measured.push((alone, WORKERS.map(|workers| rate(workers, work, time))));
    }
    println!("jobs of {} µs, {rounds} rounds of {time:?}", work.as_micros());
    println!(
        "| workers | jobs/s | of one worker | of workers × thread alone | first owner's part |"
    );
    println!("|---|---|---|---|---|");
    for (at, workers) in WORKERS.iter().enumerate() {
        let rounds = || measured.iter().map(|(alone, rates)| (alone, rates[0].0, rates[at]));
        let mut rates: Vec<f64> = rounds().map(|(_, _, (rate, _))| rate).collect();
        rates.sort_by(f64::total_cmp);
        println!(
            "| {workers} | {:.0} | {} | {} | {} |",
            rates[rates.len() / 2],
            spread(rounds().map(|(_, one, (rate, _))| rate / one)),
            spread(rounds().map(|(alone, _, (rate, _))| rate / (alone * *workers as f64))),
            spread(rounds().map(|(_, _, (_, part))| part)),
        );
    }
}
