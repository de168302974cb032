// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Measures how well the engine fills a device, what waiting for it costs, and what it does to jobs of the
//! processor. The device is simulated: 63 tasks side by side, 400 µs each.
//!
//! ```text
//! cargo run --release -p millrace-testkit --example device_load [SECONDS] [WORKERS]
//! ```

#![expect(clippy::print_stdout, reason = "a program for people")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and ranks that are small and positive"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use millrace_engine::backend::Backend;
use millrace_engine::{Completion, CompletionSink, Engine, EngineConfig, Job, Key, Owner};
use millrace_operation::{Hash, Operation, PrivateKey};
use millrace_testkit::device::{DeviceControls, DeviceOptions, FakeDevice};
use millrace_testkit::fake::{FakeBackend, FakeOptions};

const CARD: &[u8] = b"key of the card";
const CPU: &[u8] = b"key of the processor";
/// Time of an RSA-2048 signature on one core.
const WORK: Duration = Duration::from_micros(300);
/// Jobs that the load keeps in the engine.
const WAITING: usize = 400;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let seconds = Duration::from_secs(arguments.next().unwrap_or(3));
    let workers = arguments.next().unwrap_or(1) as usize;
    println!("| load | jobs/s | mean in flight | workers' CPU, cores | polls/s |");
    println!("|---|---|---|---|---|");
    let full =
        DeviceOptions::default().capacity as f64 / DeviceOptions::default().latency.as_secs_f64();
    for (name, rate) in [("saturated", f64::MAX), ("10 %", full / 10.0), ("1 %", full / 100.0)] {
        let run = Run::new(workers);
        let load = run.load(rate, seconds);
        println!("| {name} | {load} |");
    }
    println!();
    println!("| job of the processor, 300 µs, every 5 ms | p50, ms | p99, ms |");
    println!("|---|---|---|");
    for (name, rate) in [("alone", 0.0), ("beside the saturated device", f64::MAX)] {
        let run = Run::new(workers);
        let mut times = thread::scope(|scope| {
            let beside = scope.spawn(|| (rate > 0.0).then(|| run.load(rate, seconds)));
            let times = run.probe(seconds);
            let _ = beside.join();
            times
        });
        times.sort();
        let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e3;
        println!("| {name} | {:.2} | {:.2} |", at(0.5), at(0.99));
    }
}

struct Run {
    engine: Engine,
    device: DeviceControls,
    card: Arc<Key>,
    cpu: Arc<Key>,
}

/// Counts the jobs in the engine and wakes its submitter.
#[derive(Default)]
struct Count {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    fewer: Condvar,
}

impl CompletionSink for Count {
    fn complete(&self, completions: &mut Vec<Completion>) {
        self.waiting.fetch_sub(completions.len(), Ordering::SeqCst);
        completions.clear();
        drop(self.lock.lock());
        self.fewer.notify_all();
    }
}

impl Run {
    fn new(workers: usize) -> Self {
        let device =
            FakeDevice::new(DeviceOptions { only_key: Some(CARD), ..DeviceOptions::default() });
        let controls = device.controls();
        let cpu = FakeBackend::new(FakeOptions {
            only_key: Some(CPU),
            work: WORK,
            ..FakeOptions::default()
        });
        let backends: Vec<Arc<dyn Backend>> = vec![Arc::new(device), Arc::new(cpu)];
        let config = EngineConfig { workers, ..EngineConfig::default() };
        let engine = Engine::start(config, backends).expect("it starts");
        let key = |name: &[u8]| engine.load_key(&PrivateKey::from_pkcs8(name.to_vec().into()));
        Self {
            card: key(CARD).expect("the device takes it"),
            cpu: key(CPU).expect("the processor takes it"),
            device: controls,
            engine,
        }
    }

    /// Offers `rate` jobs per second for the device, at most [`WAITING`] at once.
    fn load(&self, rate: f64, time: Duration) -> String {
        let count = Arc::new(Count::default());
        let session = self.engine.open_session(Arc::clone(&count) as _, Owner::new(1, 1));
        let start = Instant::now();
        let before = self.device.counts();
        let cpu = worker_time();
        let mut sent = 0.0_f64;
        while start.elapsed() < time {
            let due = (start.elapsed().as_secs_f64() * rate).min(sent + WAITING as f64) - sent;
            let room = WAITING - count.waiting.load(Ordering::SeqCst);
            let jobs = room.min(due as usize);
            if jobs == 0 {
                if rate < f64::MAX {
                    thread::sleep(Duration::from_micros(200));
                } else {
                    let held = count.lock.lock().expect("no panic");
                    drop(count.fewer.wait_timeout(held, Duration::from_millis(1)));
                }
                continue;
            }
            count.waiting.fetch_add(jobs, Ordering::SeqCst);
            sent += jobs as f64;
            let job = |id| Job {
                id,
                session: session.clone(),
                key: Arc::clone(&self.card),
                operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
                input: vec![0; 32],
                deadline: Instant::now() + Duration::from_secs(60),
            };
            self.engine.submit((0..jobs as u64).map(job).collect());
        }
        let after = self.device.counts();
        let elapsed = start.elapsed().as_secs_f64();
        let in_flight = (after.task_ns - before.task_ns) as f64 / elapsed / 1e9;
        format!(
            "{:.0} | {in_flight:.1} of 63 | {:.2} | {:.0}",
            (after.served - before.served) as f64 / elapsed,
            (worker_time() - cpu).as_secs_f64() / elapsed,
            (after.polls - before.polls) as f64 / elapsed
        )
    }

    /// Submits one job of the processor every 5 ms and returns how long each took.
    fn probe(&self, time: Duration) -> Vec<Duration> {
        let count = Arc::new(Count::default());
        let session = self.engine.open_session(Arc::clone(&count) as _, Owner::new(2, 1));
        let start = Instant::now();
        let mut times = Vec::new();
        while start.elapsed() < time {
            let sent = Instant::now();
            count.waiting.fetch_add(1, Ordering::SeqCst);
            self.engine.submit(vec![Job {
                id: 0,
                session: session.clone(),
                key: Arc::clone(&self.cpu),
                operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
                input: vec![0; 32],
                deadline: sent + Duration::from_secs(60),
            }]);
            let mut held = count.lock.lock().expect("no panic");
            while count.waiting.load(Ordering::SeqCst) > 0 {
                held = count.fewer.wait(held).expect("no panic");
            }
            drop(held);
            times.push(sent.elapsed());
            thread::sleep(Duration::from_millis(5));
        }
        times
    }
}

/// Processor time of the regular workers of the medium class.
fn worker_time() -> Duration {
    let mut nanoseconds = 0;
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").starts_with("mr-medium") {
            let first = read("schedstat").split(' ').next().map(str::parse::<u64>);
            nanoseconds += first.and_then(Result::ok).unwrap_or(0);
        }
    }
    Duration::from_nanos(nanoseconds)
}
