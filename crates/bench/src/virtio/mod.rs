// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench virtio`: work through the rings of a device against the same work called directly.
//!
//! ```text
//!   core 0                                     core 1
//!   A  the software backend's queue, AWS-LC    (idle)
//!   B  millrace virtio run  ◄── rings in shared memory ── this process: a driver
//! ```
//!
//! A and B alternate in each round, in another order each time. The flood of another machine shares its core with the
//! driver that is measured; its driver has the lowest priority there, so that the measured one waits for the device and
//! not for the other's verification.

mod args;
mod driver;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::cipher::{AES_256, EncryptionContext, PaddedBlockEncryptingKey, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use millrace_operation::OperationKind;
use serde::Serialize;

pub use self::args::VirtioArgs;
use self::driver::{AES_IV, AES_KEY, GuestMachine, PAGE, RsaKey, VirtioDriver};
use crate::bench_key::BenchKey;
use crate::cores;
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::options::{MEASUREMENT, check_seconds};
use crate::pool::give_way;
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::stats::{Latencies, Spread, order};
use crate::table::{range, sharing, table};
use crate::workload::{Case, Contender, Keys, MeasuredBackend, Requests};

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 2;

/// Work before each measurement, the same for all.
const WARM_UP: Duration = Duration::from_millis(200);

/// Requests in flight of the machine that floods the device process.
const FLOOD: usize = 512;

/// Time between two requests of the machine beside the flood, as in `bench pool --fairness`: one request after the
/// other would ask for more than the half of a core that is its share beside one other machine.
const THINK_TIME: Duration = Duration::from_millis(2);

/// Runs `millrace bench virtio`.
pub fn run_virtio(args: &VirtioArgs) -> Result<(), BenchError> {
    check_seconds(args.seconds, &MEASUREMENT)?;
    let (device_core, load_core) = cores::two(args.device_core, args.load.load_core)?;
    let plan = VirtioPlan {
        rounds: args.rounds,
        duration: Duration::from_secs_f64(args.seconds),
        window: args.window,
        device_core,
        load_core,
    };
    cores::pin(load_core)?;
    let report = measure(plan)?;
    report.deliver(&args.report, &render(&report))?;
    report.goals.require(args.report.require)
}

/// The meaning of the options.
#[derive(Clone, Debug, Serialize)]
struct VirtioPlan {
    rounds: u64,
    duration: Duration,
    window: usize,
    device_core: usize,
    load_core: usize,
}

#[derive(Clone, Debug, Default, Serialize)]
struct VirtioRound {
    /// RSA-2048 by the software backend's queue on the device's core, with the same number in flight.
    backend_per_s: f64,
    /// RSA-2048 operations per second through the rings.
    rings_per_s: f64,
    /// A session of a known key made and destroyed, with others under way, µs.
    session_us: f64,
    /// A session made and destroyed, one at a time, µs: two round trips.
    session_alone_us: f64,
    /// AES-256-CBC operations on 4 KiB per second by AWS-LC on the device's core.
    library_aes_per_s: f64,
    /// AES-256-CBC operations on 4 KiB per second through the rings.
    aes_per_s: f64,
    /// Latency of RSA-2048 of one machine, one at a time with a pause between: p50 and p99, µs.
    alone_p50_us: f64,
    alone_p99_us: f64,
    /// Latency of the same machine while another has [`FLOOD`] requests in flight, µs.
    beside_flood_p50_us: f64,
    beside_flood_p99_us: f64,
    /// The same without pauses, alone and beside the flood: p99, µs.
    greedy_alone_p99_us: f64,
    greedy_beside_flood_p99_us: f64,
}

#[derive(Debug, Serialize)]
struct VirtioRounds {
    rounds: Vec<VirtioRound>,
}

type VirtioReport = BenchReport<VirtioPlan, VirtioRounds>;

fn measure(plan: VirtioPlan) -> Result<VirtioReport, BenchError> {
    let mut progress = Progress::start(plan.rounds)?;
    progress.now("starting the device")?;
    let mut machine = GuestMachine::start(plan.device_core)?;
    let case = Case::first_of(OperationKind::RsaPkcs1Sign);
    let case = case.ok_or_else(|| BenchError::Setup("no RSA-2048".to_owned()))?;
    let keys = Keys::generate(BenchKey::Rsa2048)?;
    let requests = Requests::new(case, &keys)?;
    let mut peers = VirtioPeers {
        plan: &plan,
        backend: Contender::backend(MeasuredBackend::Software, plan.window, &keys)?,
        requests: &requests,
        driver: VirtioDriver::connect(&machine, 0, RsaKey::generate()?)?,
        other: Some(VirtioDriver::connect(&machine, 1, RsaKey::generate()?)?),
    };
    let mut rounds = Vec::new();
    for number in 0..plan.rounds {
        progress.now(&format!("round {}", number + 1))?;
        rounds.push(peers.round(number)?);
        machine.check()?;
        progress.step();
    }
    let goals = goals(&rounds);
    let mut report = BenchReport::new("virtio", SCHEMA, plan, VirtioRounds { rounds });
    report.goals = goals;
    Ok(report)
}

struct VirtioPeers<'a> {
    plan: &'a VirtioPlan,
    backend: Contender,
    requests: &'a Requests<'a>,
    driver: VirtioDriver,
    /// The machine that floods.
    other: Option<VirtioDriver>,
}

impl VirtioPeers<'_> {
    /// Everything once, in an order of the round's own.
    fn round(&mut self, number: u64) -> Result<VirtioRound, BenchError> {
        let mut round = VirtioRound::default();
        let VirtioPlan { duration, window, device_core, .. } = *self.plan;
        for turn in order(7, number) {
            match turn {
                0 => {
                    let backend = &mut self.backend;
                    let requests = self.requests;
                    let rate = backend.measure_on(device_core, WARM_UP, requests, duration)?;
                    round.backend_per_s = rate.per_s;
                }
                1 => {
                    self.driver.rsa(window, WARM_UP)?;
                    round.rings_per_s = self.driver.rsa(window, duration)?;
                }
                2 => round.session_us = self.driver.sessions(duration)?,
                3 => round.session_alone_us = self.driver.sessions_alone(duration)?,
                4 => {
                    cores::pinned(device_core, || library_aes(WARM_UP))??;
                    round.library_aes_per_s =
                        cores::pinned(device_core, || library_aes(duration))??;
                }
                5 => {
                    self.driver.aes(window, WARM_UP)?;
                    round.aes_per_s = self.driver.aes(window, duration)?;
                }
                _ => self.fairness(&mut round)?,
            }
        }
        Ok(round)
    }

    /// One machine alone, then beside another that floods: with pauses between its requests, and without.
    fn fairness(&mut self, round: &mut VirtioRound) -> Result<(), BenchError> {
        let alone = self.both_paces()?;
        let stop = AtomicBool::new(false);
        // A thread of its own for the other driver, which keeps the lowest priority to its end.
        let beside = thread::scope(|scope| {
            let mut other = self.other.take();
            let stopped = &stop;
            let flood = scope.spawn(move || {
                give_way();
                let done = other.as_mut().map_or(Ok(()), |other| other.flood(FLOOD, stopped));
                done.map(|()| other)
            });
            thread::sleep(WARM_UP);
            let beside = self.both_paces();
            stop.store(true, Ordering::Relaxed);
            let flooded =
                flood.join().map_err(|_| BenchError::Setup("the flood panicked".to_owned()))?;
            self.other = flooded?;
            beside
        })?;
        let [(alone, greedy_alone), (beside, greedy_beside)] = [alone, beside];
        round.alone_p50_us = alone.quantile_us(0.5);
        round.alone_p99_us = alone.quantile_us(0.99);
        round.beside_flood_p50_us = beside.quantile_us(0.5);
        round.beside_flood_p99_us = beside.quantile_us(0.99);
        round.greedy_alone_p99_us = greedy_alone.quantile_us(0.99);
        round.greedy_beside_flood_p99_us = greedy_beside.quantile_us(0.99);
        Ok(())
    }

    /// Latencies of the measured machine with pauses between its requests, and without.
    fn both_paces(&mut self) -> Result<(Latencies, Latencies), BenchError> {
        let duration = self.plan.duration;
        let paced = self.driver.rsa_alone(duration, THINK_TIME)?;
        Ok((paced, self.driver.rsa_alone(duration, Duration::ZERO)?))
    }
}

/// AES-256-CBC of one page after the other. AWS-LC's interface adds a block of padding.
fn library_aes(time: Duration) -> Result<f64, BenchError> {
    let failed = |_| BenchError::Setup("AWS-LC refuses AES-256-CBC".to_owned());
    let key = UnboundCipherKey::new(&AES_256, &AES_KEY).map_err(failed)?;
    let key = PaddedBlockEncryptingKey::cbc_pkcs7(key).map_err(failed)?;
    let start = Instant::now();
    let mut pages = 0_u64;
    let mut page = Vec::with_capacity(PAGE + 16);
    while start.elapsed() < time {
        for _ in 0..16 {
            page.clear();
            page.resize(PAGE, 7);
            let context = EncryptionContext::Iv128(FixedLength::from(AES_IV));
            key.less_safe_encrypt(&mut page, context).map_err(failed)?;
            pages += 1;
        }
    }
    let per_s = pages as f64 / start.elapsed().as_secs_f64();
    if page[..PAGE] != driver::sealed_page()? {
        return Err(BenchError::Wrong("AES-256-CBC by AWS-LC".to_owned()));
    }
    Ok(per_s)
}

fn ratio(
    rounds: &[VirtioRound],
    ours: impl Fn(&VirtioRound) -> f64,
    peer: impl Fn(&VirtioRound) -> f64,
) -> Option<Spread> {
    Spread::of_ratios(rounds.iter().map(ours), rounds.iter().map(peer))
}

fn goals(rounds: &[VirtioRound]) -> Goals {
    let session = Spread::over(rounds, |round| round.session_us);
    let rsa = ratio(rounds, |it| it.rings_per_s, |it| it.backend_per_s);
    let aes = ratio(rounds, |it| it.aes_per_s, |it| it.library_aes_per_s);
    let p99 = ratio(rounds, |it| it.beside_flood_p99_us, |it| it.alone_p99_us);
    let goals = [
        Goal::at_least("RSA-2048 through rings / backend alone", 0.95, 0.98, rsa),
        Goal::at_most("session of a known key, µs", 5.0, 3.0, session),
        Goal::at_least("AES-256-CBC of 4 KiB through rings / library", 0.8, 0.9, aes),
        Goal::at_most("p99 beside a flood / alone", 1.25, 1.1, p99),
    ];
    Goals(goals.into_iter().flatten().collect())
}

/// A figure of a round, with its name, unit and decimals.
type Figure = (&'static str, &'static str, usize, fn(&VirtioRound) -> f64);

#[rustfmt::skip]
const FIGURES: [Figure; 12] = [
    ("RSA-2048, backend alone", "1/s", 0, |it| it.backend_per_s),
    ("RSA-2048, through rings", "1/s", 0, |it| it.rings_per_s),
    ("session of a known key, many under way", "µs", 2, |it| it.session_us),
    ("session of a known key, one at a time", "µs", 1, |it| it.session_alone_us),
    ("AES-256-CBC 4 KiB, AWS-LC", "1/s", 0, |it| it.library_aes_per_s),
    ("AES-256-CBC 4 KiB, through rings", "1/s", 0, |it| it.aes_per_s),
    ("RSA-2048 every 2 ms, p50", "µs", 0, |it| it.alone_p50_us),
    ("RSA-2048 every 2 ms, p99", "µs", 0, |it| it.alone_p99_us),
    ("beside a flood, p50", "µs", 0, |it| it.beside_flood_p50_us),
    ("beside a flood, p99", "µs", 0, |it| it.beside_flood_p99_us),
    ("RSA-2048 without a pause, p99", "µs", 0, |it| it.greedy_alone_p99_us),
    ("beside a flood without a pause, p99", "µs", 0, |it| it.greedy_beside_flood_p99_us),
];

fn render(report: &VirtioReport) -> String {
    let VirtioPlan { rounds, window, device_core, load_core, .. } = report.plan;
    let spread = |figure: &Figure| Spread::over(&report.figures.rounds, figure.3);
    let figures = table(
        FIGURES.iter(),
        &[
            ("figure", &|figure| figure.0.to_owned()),
            ("unit", &|figure| figure.1.to_owned()),
            ("median (range)", &|figure| range(spread(figure), figure.2)),
        ],
    );
    format!(
        "{}\nDevice on core {device_core}, driver on core {load_core}{}; {window} in flight; {rounds} rounds.\n\n{}{}",
        report.machine.describe(),
        sharing(device_core, load_core),
        figures.render(),
        report.goals.render()
    )
}
