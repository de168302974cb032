// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A tenant's only job beside the bursts of another one, on one core, in simulated time: the express worker runs before
//! the regular ones, as where these have the lowest priority (`Placement::express_first`). Sockets, and the time that
//! threads take to switch, are not part of it.

use super::*;

/// Step of the simulated time, in microseconds.
const STEP: u64 = 10;

/// Service time of a job, in microseconds: an RSA-2048 signature.
const SERVICE: u64 = 280;

/// Pause of the victim between two jobs.
const THINK: u64 = 2_000;

/// A client at ten times its quota of a fifth of the core: it rests for 10 ms after each refusal, in which a burst's
/// worth of tokens comes together, and then sends these jobs, one each 140 µs on average.
const BURST: u64 = 7;
const REST: u64 = 10_000;
const BETWEEN: u64 = 140;

/// Jobs that a regular worker takes at once while one owner waits.
const TURN: usize = 16;

const VICTIM: u64 = 2;

#[derive(Clone, Copy)]
struct BurstJob {
    owner: u64,
    id: u64,
    deadline: Instant,
}

impl Waiting for BurstJob {
    fn owner(&self) -> Owner {
        Owner::new(self.owner, 1)
    }
    fn session(&self) -> u64 {
        self.owner
    }
    fn id(&self) -> u64 {
        self.id
    }
    fn deadline(&self) -> Instant {
        self.deadline
    }
    fn cost(&self) -> u32 {
        100
    }
}

/// A worker with the rest of its jobs and of the first one's service.
#[derive(Default)]
struct Worker {
    jobs: VecDeque<BurstJob>,
    left: u64,
}

impl Worker {
    fn take(&mut self, jobs: &[BurstJob]) {
        self.jobs = jobs.iter().copied().collect();
        self.left = SERVICE;
    }

    /// Runs for a step. Returns the job that has ended.
    fn run(&mut self) -> Option<BurstJob> {
        self.left -= STEP;
        if self.left > 0 {
            return None;
        }
        self.left = SERVICE;
        self.jobs.pop_front()
    }
}

/// Whose jobs the express worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    InUse,
    /// Those of every owner with nothing in service, however many wait. For comparison.
    AnyBacklog,
}

/// The core: an express worker, and regular ones that run in turn while it sleeps.
struct Core {
    rule: Rule,
    queue: FairQueue<BurstJob>,
    start: Instant,
    express: Worker,
    regular: Vec<Worker>,
    /// Jobs of the burst that ended while the victim's job was in the hands of a regular worker.
    overtaken: u64,
}

impl Core {
    fn new(rule: Rule, workers: usize) -> Self {
        Self {
            rule,
            queue: FairQueue::new(1_000, 1_000),
            start: Instant::now(),
            express: Worker::default(),
            regular: (0..workers).map(|_| Worker::default()).collect(),
            overtaken: 0,
        }
    }

    fn at(&self, us: u64) -> Instant {
        self.start + Duration::from_micros(us)
    }

    fn push(&mut self, owner: u64, id: u64) {
        let deadline = self.start + Duration::from_secs(3600);
        assert!(self.queue.push(BurstJob { owner, id, deadline }).is_none());
    }

    fn any_unserved(&self) -> Option<u64> {
        let queue = &self.queue;
        let fits = |(_, owner): &&(u128, u64)| {
            let owned = &queue.owners[owner];
            owned.in_service == 0 && queue.is_below_share(owned)
        };
        let order = queue.levels.iter().flat_map(|level| &level.order);
        let found = order.into_iter().find(fits).map(|(_, owner)| *owner);
        found.filter(|_| queue.is_serving() || queue.len() == 1)
    }

    /// Lets the workers take jobs, and runs one of them for a step.
    fn step(&mut self, us: u64) -> Option<BurstJob> {
        let now = self.at(us);
        let mut ready = Vec::new();
        let mut expired = Vec::new();
        if self.express.jobs.is_empty() {
            match self.rule {
                Rule::InUse => self.queue.pop_unserved(1, now, &mut ready, &mut expired),
                Rule::AnyBacklog => {
                    if let Some(owner) = self.any_unserved() {
                        self.queue.pop_of(owner, now, &mut ready, &mut expired);
                    }
                }
            }
            self.express.take(&ready);
        }
        if !self.express.jobs.is_empty() {
            let ended = self.express.run()?;
            let of_victim = |worker: &Worker| worker.jobs.iter().any(|job| job.owner == VICTIM);
            if self.regular.iter().any(of_victim) {
                self.overtaken += 1;
            }
            return Some(self.ended(ended));
        }
        let idle = self.regular.iter().position(|worker| worker.jobs.is_empty());
        if let Some(idle) = idle.filter(|_| !self.queue.is_empty()) {
            let share = self.queue.len().div_ceil(self.regular.len());
            let most = if self.queue.owners_waiting() > 1 { 1 } else { share.min(TURN) };
            self.queue.pop(most, now, &mut ready, &mut expired);
            self.regular[idle].take(&ready);
        }
        let turn = usize::try_from(us / STEP).unwrap_or(0) % self.regular.len();
        self.regular.rotate_left(turn);
        let busy = self.regular.iter_mut().find(|worker| !worker.jobs.is_empty());
        let ended = busy.and_then(Worker::run)?;
        Some(self.ended(ended))
    }

    fn ended(&mut self, job: BurstJob) -> BurstJob {
        self.queue.release(job.owner, 1);
        job
    }
}

/// Latencies of the victim beside the bursts, ascending, and the jobs of the bursts that overtook one of the victim's.
fn beside_bursts(rule: Rule, workers: usize, seconds: u64) -> (Vec<u64>, u64) {
    let mut random = fastrand::Rng::with_seed(7);
    let mut exponential = |mean: u64| {
        let unit = 1.0 - random.f64();
        let time = Duration::from_micros(mean).mul_f64(-unit.ln());
        (u64::try_from(time.as_micros()).unwrap() / STEP + 1) * STEP
    };
    let mut core = Core::new(rule, workers);
    let mut latencies = Vec::new();
    let mut id = 0;
    let mut of_burst = 0;
    let mut next_of_burst = 0;
    let mut next_of_victim = 0;
    let mut sent = 0;
    for us in (0..seconds * 1_000_000 / STEP).map(|step| step * STEP) {
        if us == next_of_burst {
            core.push(1, id);
            (id, of_burst) = (id + 1, of_burst + 1);
            let rest = if of_burst % BURST == 0 { REST } else { 0 };
            next_of_burst = us + rest + exponential(BETWEEN);
        }
        if us == next_of_victim {
            core.push(VICTIM, id);
            (id, sent) = (id + 1, us);
        }
        if core.step(us).is_some_and(|job| job.owner == VICTIM) {
            latencies.push(us + STEP - sent);
            next_of_victim = us + THINK + exponential(60);
        }
    }
    latencies.sort_unstable();
    let at = |percent: usize| latencies[latencies.len() * percent / 100];
    let most = latencies[latencies.len() - 1];
    println!(
        "{rule:?}, {workers} workers: p50 {} p99 {} most {most} µs; overtaken {} times by {} jobs",
        at(50),
        at(99),
        core.overtaken,
        latencies.len()
    );
    (latencies, core.overtaken)
}

/// Alone, a job of the victim takes [`SERVICE`]. Beside the bursts it takes as long, except beside the first burst,
/// whose first job looks like a single one.
#[test]
fn single_job_beside_bursts_takes_as_long_as_alone() {
    for workers in [1, 2] {
        let (latencies, overtaken) = beside_bursts(Rule::InUse, workers, 10);
        assert_eq!(overtaken, 0, "jobs of the bursts ran before the victim's");
        let p99 = latencies[latencies.len() * 99 / 100];
        assert_eq!(p99, SERVICE);
        assert!(latencies[latencies.len() - 1] <= 2 * SERVICE, "{latencies:?}");
        let (_, overtaken) = beside_bursts(Rule::AnyBacklog, workers, 10);
        assert!(overtaken > 0, "the simulation shows no difference");
    }
}
