// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench tls --local`: servers that compute the ephemeral part of their handshakes themselves, against the same
//! servers without Millrace. There is no node, and nothing on this machine is changed.
//!
//! ```text
//!   core 0                                     core 1
//!   nginx or HAProxy, stock           ◄──TLS── load generator (this process): full TLS 1.3 handshakes, each checked
//!   the same with provider + preload  ◄──TLS──   for certificate, signature, group and number of tickets
//!        counters in a memory file     ───────►  what was computed in the server
//! ```
//!
//! All servers run from the start; those without load sleep. Each round loads each server once, in an order that is
//! permuted from round to round. The figure is the server's CPU time per handshake (`schedstat`), which other work on
//! the machine disturbs less than rates; ratios are taken within the round.
//!
//! | file | what |
//! |---|---|
//! | `plan.rs` | the servers that are measured |
//! | `servers.rs` | the servers as children |
//! | `results.rs`, `tables.rs` | the figures, as tables and a plot |

mod plan;
mod results;
mod servers;
mod tables;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use self::plan::{LocalCell, LocalMode, LocalPlan};
use self::results::{LocalFigures, LocalReport, LocalRound};
use self::servers::{LocalServer, OpensslConfig};
use super::load::{HandshakeTerms, Offer, Target, drive};
use super::{TlsArgs, TlsVersion};
use crate::bench_key::BenchKey;
use crate::cores;
use crate::error::BenchError;
use crate::keys::Identity;
use crate::node::{NodeOptions, NodeProcess};
use crate::plot;
use crate::process::temporary_folder;
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::stats::order;

pub use self::results::saved;

/// Load on each server before the first round: modules, caches and pairs made ahead.
const WARM_UP: Duration = Duration::from_millis(200);

/// Time for a server to end its last handshakes before its CPU time is read: the client sees the end of a connection
/// before the server has freed it.
const SETTLING: Duration = Duration::from_millis(5);

/// Longest wait for the node's counters to include the last handshake: several readings, each a child process.
const COUNTER_LAG: Duration = Duration::from_secs(1);

/// Time between two of these readings.
const COUNTER_INTERVAL: Duration = Duration::from_millis(20);

/// Runs `millrace bench tls --local`: measures, prints, and fails if anything did not verify.
///
/// # Errors
/// Why there are no figures, or that a verification failed (after the tables, which show where).
pub(super) fn run(args: &TlsArgs) -> Result<(), BenchError> {
    let plan = LocalPlan::new(args)?;
    cores::pin(plan.load_core)?;
    let report = measure(plan)?;
    if let Some(path) = &args.plot.svg {
        plot::write(&tables::plot(&report)?, path)?;
    }
    let text = if args.demo { tables::demonstration(&report) } else { tables::render(&report) };
    report.deliver(&args.report, &text)?;
    report.figures.verdict()?;
    // A short run, or one of another system's servers, is not advice for this machine.
    if !args.demo && report.plan.under.is_empty() {
        results::save(&report);
    }
    report.goals.require(args.report.require)
}

fn measure(plan: LocalPlan) -> Result<LocalReport, BenchError> {
    let steps = plan.cells.len() as u64 * (plan.rounds + 1);
    let mut progress = Progress::start(steps)?;
    let mut site = LocalSite::start(&plan, &mut progress)?;
    let mut rounds: BTreeMap<LocalCell, Vec<LocalRound>> = BTreeMap::new();
    for round in 0..plan.rounds {
        for place in order(plan.cells.len(), round) {
            let cell = plan.cells[place];
            progress.now(&format!("round {}: {cell}", round + 1))?;
            let measured = site.measure(&plan, place, plan.duration, &progress)?;
            rounds.entry(cell).or_default().push(measured);
            progress.step();
        }
    }
    drop(progress);
    let figures = LocalFigures::compare(&plan, rounds);
    let mut report = BenchReport::new("tls-local", results::SCHEMA, plan, figures);
    report.goals = results::goals(&report);
    Ok(report)
}

/// Everything that runs. Fields are dropped in order: servers before the node, the folder last.
struct LocalSite {
    /// Servers in the order of the plan's cells.
    servers: Vec<LocalServer>,
    node: Option<NodeProcess>,
    identities: BTreeMap<BenchKey, Identity>,
    _dir: tempfile::TempDir,
}

impl LocalSite {
    /// Makes keys, starts the node, if one is needed, and all servers, and warms each of them up.
    fn start(plan: &LocalPlan, progress: &mut Progress) -> Result<Self, BenchError> {
        progress.now("starting the servers")?;
        let dir = temporary_folder()?;
        let keys = plan.keys().into_iter();
        let identities: BTreeMap<_, _> = keys
            .map(|key| Ok((key, Identity::make(key, dir.path())?)))
            .collect::<Result<_, BenchError>>()?;
        let (node, stubs) =
            if plan.pools() { start_node(plan, &identities)? } else { (None, BTreeMap::new()) };
        let openssl = OpensslConfig::generate(plan)?;
        let mut site = Self { servers: Vec::new(), node, identities, _dir: dir };
        for (number, cell) in plan.cells.iter().enumerate() {
            let stub = stubs.get(&cell.key).filter(|_| cell.mode == LocalMode::LocalAndPool);
            let pool = site.node.as_ref().zip(stub.map(PathBuf::as_path));
            let identity = &site.identities[&cell.key];
            let cell = (number, cell);
            let server =
                LocalServer::start(plan, cell, identity, &openssl, pool, site._dir.path())?;
            site.servers.push(server);
        }
        for (place, cell) in plan.cells.iter().enumerate() {
            progress.now(&format!("first handshakes: {cell}"))?;
            site.measure(plan, place, WARM_UP, progress)?;
            progress.step();
        }
        Ok(site)
    }

    /// Loads one server, and says what that cost it.
    fn measure(
        &mut self,
        plan: &LocalPlan,
        place: usize,
        duration: Duration,
        progress: &Progress,
    ) -> Result<LocalRound, BenchError> {
        let cell = plan.cells[place];
        let server = &mut self.servers[place];
        let terms = HandshakeTerms {
            version: TlsVersion::Tls13,
            group: cell.group,
            cipher: plan.cipher,
            tickets: Some(cell.tickets),
        };
        let certificate = self.identities[&cell.key].certificate.clone();
        let target = Target::new(server.address, certificate, terms)?;
        let offer = Offer { concurrency: plan.concurrency, duration, request: false, per_s: None };
        let counted = server.counts();
        let cpu = server.cpu_time();
        let signed = self.node.as_ref().map(NodeProcess::completed).transpose()?;
        let outcome = drive(&target, offer, progress)?;
        thread::sleep(SETTLING);
        let cpu = server.cpu_time().saturating_sub(cpu);
        let counted = server.counts().since(&counted);
        server.check()?;
        if outcome.completed == 0 {
            let reasons = &outcome.failures;
            return Err(server.problem(format!("did no handshake ({cell}): {reasons:?}")));
        }
        let signed = match (signed, &self.node) {
            (Some(before), Some(node)) if cell.mode == LocalMode::LocalAndPool => {
                signed_since(node, &before, outcome.completed)?
            }
            _ => 0,
        };
        Ok(LocalRound {
            completed: outcome.completed,
            failures: outcome.failures,
            elapsed_s: outcome.elapsed.as_secs_f64(),
            server_cpu_us: cpu.as_secs_f64() * 1e6 / outcome.completed as f64,
            computed: counted.operations().map(|(name, count)| (name.to_owned(), count)).collect(),
            fetches: counted.fetches(),
            signed,
        })
    }
}

/// The operations that a node completed since `before`: read until they cover the handshakes, or time is up. Its
/// counters lag behind its answers.
fn signed_since(
    node: &NodeProcess,
    before: &BTreeMap<String, u64>,
    handshakes: u64,
) -> Result<u64, BenchError> {
    let before: u64 = before.values().sum();
    let started = Instant::now();
    loop {
        let now: u64 = node.completed()?.values().sum();
        let signed = now.saturating_sub(before);
        if signed >= handshakes || started.elapsed() > COUNTER_LAG {
            return Ok(signed);
        }
        thread::sleep(COUNTER_INTERVAL);
    }
}

/// A node that has every key, and the files that name them.
fn start_node(
    plan: &LocalPlan,
    identities: &BTreeMap<BenchKey, Identity>,
) -> Result<(Option<NodeProcess>, BTreeMap<BenchKey, PathBuf>), BenchError> {
    let node = NodeProcess::start(&NodeOptions::on(plan.load_core))?;
    let stubs: Result<_, BenchError> = identities
        .iter()
        .map(|(key, identity)| Ok((*key, node.import_key(&key.to_string(), &identity.key_file)?)))
        .collect();
    let stubs = stubs?;
    Ok((Some(node), stubs))
}
