// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! More load than a worker can take, in simulated time: the queue and its refusals are the real ones, the worker takes
//! a fixed time for each job, and clients offer jobs at random times (open loop).
//!
//! ```text
//!  arrival ─► client ──way──► queue or refusal ──► worker, 16 jobs a turn ──way──► good, if within its budget
//!               ▲ rests                │
//!               └──────────way─────────┘
//! ```

use super::*;

/// Time of the worker for a job, s: RSA-2048 on one core.
const SERVICE: f64 = 278e-6;

/// Time after which a result is useless.
const BUDGET: f64 = 0.2;

/// Jobs that the worker takes at once: `CPU_TURN` of the medium class.
const TURN: usize = 16;

/// Simulated time and the begin of the counts, s: the queue learns the rate first.
const SECONDS: f64 = 6.0;
const COUNTED_FROM: f64 = 2.0;

#[derive(Clone, Copy, Debug)]
struct TimedJob {
    owner: Owner,
    id: u64,
    sent: f64,
    deadline: Instant,
}

impl Waiting for TimedJob {
    fn owner(&self) -> Owner {
        self.owner
    }
    fn session(&self) -> u64 {
        self.owner.id()
    }
    fn id(&self) -> u64 {
        self.id
    }
    fn deadline(&self) -> Instant {
        self.deadline
    }
    fn cost(&self) -> u32 {
        280
    }
}

/// Load of one simulated run, and how its clients behave.
#[derive(Clone, Copy, Debug)]
struct Overload {
    /// Offered jobs / what the worker can do.
    load: f64,
    /// Time from a client to the node, in seconds.
    way: f64,
    /// Clients, each a party of its own.
    clients: u64,
    /// Whether clients heed the time that a refusal names.
    heed: bool,
}

/// Per second of simulated time.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    good: f64,
    late: f64,
    /// Refused by the node.
    refused: f64,
}

struct Simulation {
    case: Overload,
    start: Instant,
    queue: FairQueue<TimedJob>,
    /// Time at which the worker ends its turn.
    free_at: f64,
    rates: Rates,
}

impl Simulation {
    fn run(case: Overload, seed: u64) -> Rates {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut simulation = Self {
            case,
            start: Instant::now(),
            queue: FairQueue::new(8192, 4096),
            free_at: 0.0,
            rates: Rates::default(),
        };
        // When each client begins to rest, and for how long.
        let mut rests = vec![(0.0, 0.0); usize::try_from(case.clients).unwrap()];
        let mut sent = 0.0;
        let mut id = 0;
        while sent < SECONDS {
            let client = random.u64(..case.clients);
            // Above 0, so that it has a logarithm.
            let unit = 1.0 - random.f64();
            sent += -unit.ln() * SERVICE / case.load;
            id += 1;
            let rest: &mut (f64, f64) = &mut rests[usize::try_from(client).unwrap()];
            if case.heed && (rest.0..rest.1).contains(&sent) {
                continue;
            }
            let Some(pause) = simulation.arrive(client, id, sent) else {
                continue;
            };
            // A client that rests already, or soon, learns nothing from a further refusal.
            if sent >= rest.1 {
                let heard = sent + 2.0 * case.way;
                *rest = (heard, heard + pause.clamp(0.001, 1.0));
            }
        }
        simulation.serve_until(SECONDS + 2.0 * BUDGET);
        let seconds = SECONDS - COUNTED_FROM;
        let Rates { good, late, refused } = simulation.rates;
        Rates { good: good / seconds, late: late / seconds, refused: refused / seconds }
    }

    fn at(&self, time: f64) -> Instant {
        self.start + Duration::from_secs_f64(time)
    }

    /// A job comes to the node. If it is refused: for how long its client should rest.
    fn arrive(&mut self, client: u64, id: u64, sent: f64) -> Option<f64> {
        let time = sent + self.case.way;
        self.serve_until(time);
        let owner = Owner::new(client, 1);
        let budget = Duration::from_secs_f64(BUDGET);
        let rest = self.queue.retry_after(owner, budget);
        if let Some(rest) = rest {
            self.rates.refused += counted(sent);
            return Some(rest.as_secs_f64());
        }
        let job = TimedJob { owner, id, sent, deadline: self.at(time) + budget };
        self.free_at = if self.queue.is_empty() { self.free_at.max(time) } else { self.free_at };
        assert!(self.queue.push(job).is_none(), "the queue is full");
        None
    }

    /// Lets the worker take its turns until `time`.
    fn serve_until(&mut self, time: f64) {
        while self.free_at < time && !self.queue.is_empty() {
            let mut turn = Vec::new();
            let mut expired = Vec::new();
            let now = self.at(self.free_at);
            self.queue.pop(TURN, now, &mut turn, &mut expired);
            for job in turn {
                self.free_at += SERVICE;
                self.queue.release(job.owner.id(), 1);
                let latency = self.free_at + self.case.way - job.sent;
                if latency <= BUDGET {
                    self.rates.good += counted(job.sent);
                } else {
                    self.rates.late += counted(job.sent);
                }
            }
        }
    }
}

fn counted(sent: f64) -> f64 {
    f64::from(u8::from((COUNTED_FROM..SECONDS).contains(&sent)))
}

#[test]
fn overloaded_worker_does_only_jobs_that_end_in_time() {
    for load in [1.5, 2.0, 3.0, 5.0] {
        for way in [0.000_2, 0.01] {
            for clients in [1, 20] {
                let case = Overload { load, way, clients, heed: true };
                let Rates { good, late, refused } = Simulation::run(case, 1);
                println!("{case:?}: {good:.0} good, {late:.0} late, {refused:.0} refused/s");
                assert!(good * SERVICE >= 0.96, "{case:?}: {good} good jobs/s");
                assert!(late * SERVICE <= 0.04, "{case:?}: {late} late jobs/s");
            }
        }
    }
}

/// The client sends a job at once, whatever the node says: refusals cost the node decoding, but no computation.
#[test]
fn client_that_ignores_refusals_costs_refusals_and_no_goodput() {
    let case = Overload { load: 5.0, way: 0.000_2, clients: 20, heed: false };
    let deaf = Simulation::run(case, 1);
    let heeding = Simulation::run(Overload { heed: true, ..case }, 1);
    assert!(deaf.good * SERVICE >= 0.97, "{deaf:?}");
    assert!(heeding.refused * 4.0 < deaf.refused, "{heeding:?}, beside {deaf:?}");
}
