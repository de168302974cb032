// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Everything that runs during a measurement: keys, the node, the gateways. Dropping the value ends all of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use tempfile::TempDir;

use super::gateway::{Edge, Gateway, Origin};
use super::load::{HandshakeTerms, LoadOutcome, Offer, Target, drive};
use super::observer::{LoadObserver, Seen};
use super::plan::{Cell, Handshake, TlsPlan};
use super::short::{self, Short, ShortLoad, ShortPath};
use super::{KeyPlace, Part, TlsServer};
use crate::bench_key::BenchKey;
use crate::cores;
use crate::error::BenchError;
use crate::keys::Identity;
use crate::node::{NodeOptions, NodeProcess};
use crate::process::temporary_folder;
use crate::progress::Progress;
use crate::relay::Relay;
use crate::speed::openssl_rate;
use crate::stats::Latencies;

/// Load before a measurement, for caches, connections and key imports.
const WARM_UP: Duration = Duration::from_millis(200);

/// Paced loads are this share of the maximum of the first measured mode: the load of a gateway with some room left.
const PACED_SHARE: f64 = 0.5;

/// Seconds for which `openssl speed` signs per round: 1 is its minimum.
const SPEED_SECONDS: u32 = 1;

/// Longest wait for the node's counters to include the last handshake: several readings, each a child process.
const COUNTER_LAG: Duration = Duration::from_secs(1);

/// Time between two readings of the node's counters: a gateway finishes tens of operations in it, so that counters that
/// stand still are final.
const READING_INTERVAL: Duration = Duration::from_millis(50);

/// One cell in one round: the loads of the chosen parts.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Measurement {
    /// Load with as many handshakes as possible: throughput and latency under full load.
    pub(super) closed: Option<LoadFigures>,
    /// Load with the same number of handshakes per second for all modes of a server, key and version. CPU time is
    /// compared here: a gateway that is not busy handles fewer events per turn, and takes longer for each.
    pub(super) paced: Option<LoadFigures>,
    /// Load with as many requests as possible, each over a new connection.
    pub(super) requests: Option<LoadFigures>,
    /// Number of jobs completed during all of them, by operation, from the node's counters.
    pub(super) served: BTreeMap<String, u64>,
}

impl Measurement {
    /// All loads of the round.
    pub(super) fn loads(&self) -> impl Iterator<Item = &LoadFigures> {
        let loads = [&self.closed, &self.paced, &self.requests];
        loads.into_iter().flatten()
    }

    /// The rate of the closed load.
    pub(super) fn handshakes_per_s(&self) -> Option<f64> {
        self.closed.as_ref().map(|load| load.handshakes_per_s)
    }
}

/// The figures of one load. CPU times are per completed handshake.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LoadFigures {
    pub(super) offered_per_s: Option<f64>,
    pub(super) completed: u64,
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) elapsed_s: f64,
    pub(super) handshakes_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) gateway_cpu_us: f64,
    pub(super) node_cpu_us: f64,
    pub(super) generator_cpu_us: f64,
    /// The gateway's CPU time by class.
    pub(super) seen: Option<Seen>,
    #[serde(skip)]
    pub(super) latencies: Latencies,
}

/// The running parts. Fields are dropped in order: gateways before the node, the folder last.
pub(super) struct GatewayTestbed {
    gateways: BTreeMap<(TlsServer, KeyPlace), Gateway>,
    origin: Option<Origin>,
    _relay: Option<Relay>,
    node: Option<NodeProcess>,
    identities: Vec<Identity>,
    /// Handshakes per second of paced loads, the same in every round and mode.
    paces: BTreeMap<(TlsServer, Handshake), f64>,
    pub(super) observer: LoadObserver,
    plan: TlsPlan,
    _dir: TempDir,
}

impl GatewayTestbed {
    /// Makes keys, starts the node (if something is pooled) and all gateways.
    pub(super) fn start(plan: &TlsPlan, progress: &mut Progress) -> Result<Self, BenchError> {
        let temporary = temporary_folder()?;
        let dir = temporary.path();
        let keys = plan.keys_to_make().into_iter();
        let identities: Vec<_> =
            keys.map(|key| Identity::make(key, dir)).collect::<Result<_, _>>()?;
        let has_origin = plan.parts.contains(&Part::Short);
        let origin = has_origin.then(|| Origin::start(plan.load_core, dir)).transpose()?;
        let pooled = plan.pools().then(|| start_pool(plan, &identities, dir)).transpose()?;
        let (node, relay, edge) = match pooled {
            Some((node, relay, edge)) => (Some(node), relay, Some(edge)),
            None => (None, None, None),
        };
        let mut gateways = BTreeMap::new();
        for &server in &plan.servers {
            for mode in plan.modes() {
                let edge = edge.as_ref();
                let origin = origin.as_ref();
                let core = plan.gateway_core;
                let started = Gateway::start((server, mode), edge, &identities, origin, core, dir)?;
                gateways.insert((server, mode), started);
            }
        }
        let pids: Vec<u32> = gateways.values().map(Gateway::id).collect();
        Ok(Self {
            observer: LoadObserver::new(&pids, progress),
            gateways,
            origin,
            _relay: relay,
            node,
            identities,
            paces: BTreeMap::new(),
            plan: plan.clone(),
            _dir: temporary,
        })
    }

    /// Signatures per second of OpenSSL itself on the gateway's core.
    pub(super) fn openssl_sign_rate(&self, key: BenchKey) -> Result<f64, BenchError> {
        let algorithm = match key {
            BenchKey::P256 => "ecdsap256",
            _ => "rsa2048",
        };
        openssl_rate(self.plan.gateway_core, algorithm, SPEED_SECONDS)
    }

    /// Measures one cell once.
    pub(super) fn measure(
        &mut self,
        cell: Cell<Handshake>,
        progress: &Progress,
    ) -> Result<Measurement, BenchError> {
        let target = self.target(cell)?;
        let mut offer = Offer {
            concurrency: self.plan.concurrency,
            duration: WARM_UP,
            request: false,
            per_s: None,
        };
        let warm = drive(&target, offer, progress)?;
        self.alive(cell, &warm)?;
        let before = self.served()?;
        offer.duration = self.plan.duration;
        let mut measurement = Measurement::default();
        if self.plan.parts.contains(&Part::Handshakes) {
            let closed = self.load(cell, &target, offer, progress)?;
            let pace = self.paces.entry((cell.server, cell.work));
            let pace = *pace.or_insert(closed.handshakes_per_s * PACED_SHARE);
            measurement.closed = Some(closed);
            let per_s = Some(pace);
            let paced = self.load(cell, &target, Offer { per_s, ..offer }, progress)?;
            measurement.paced = Some(paced);
        }
        if self.plan.parts.contains(&Part::Requests) {
            offer.concurrency = self.plan.request_concurrency;
            offer.request = true;
            measurement.requests = Some(self.load(cell, &target, offer, progress)?);
        }
        let completed = measurement.loads().map(|load| load.completed).sum();
        measurement.served = self.served_since(&before, cell.mode, completed)?;
        Ok(measurement)
    }

    fn load(
        &mut self,
        cell: Cell<Handshake>,
        target: &Target,
        offer: Offer,
        progress: &Progress,
    ) -> Result<LoadFigures, BenchError> {
        let drive = || drive(target, offer, progress);
        let (outcome, used) = self.metered(cell.server, cell.mode, drive)?;
        self.alive(cell, &outcome)?;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / outcome.completed as f64;
        let elapsed_s = outcome.elapsed.as_secs_f64();
        Ok(LoadFigures {
            offered_per_s: offer.per_s,
            completed: outcome.completed,
            elapsed_s,
            handshakes_per_s: outcome.completed as f64 / elapsed_s,
            p50_us: outcome.latencies.quantile_us(0.5),
            p99_us: outcome.latencies.quantile_us(0.99),
            gateway_cpu_us: each(used.gateway),
            node_cpu_us: each(used.node),
            generator_cpu_us: each(used.own),
            seen: used.seen,
            failures: outcome.failures,
            latencies: outcome.latencies,
        })
    }

    /// Measures short connections once.
    pub(super) fn measure_short(&mut self, cell: Cell<Short>) -> Result<ShortLoad, BenchError> {
        let address = self.gateway(cell.server, cell.mode)?.short_address()?;
        let url = match cell.work.path {
            ShortPath::Files => format!("https://{address}/"),
            ShortPath::Proxy => format!("https://{address}/proxy/"),
        };
        let ask = |requests| short::ask(&url, requests, self.plan.request_concurrency);
        let warm = ask(short::WARM_UP_REQUESTS)?;
        let wanted = self.plan.duration.as_secs_f64() * warm.completed as f64 / warm.elapsed_s;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts from floats saturate, and the bounds follow"
        )]
        let requests = (wanted as u64).clamp(*short::REQUESTS.start(), *short::REQUESTS.end());
        let before = self.served()?;
        let (answer, used) = self.metered(cell.server, cell.mode, || ask(requests))?;
        let each = |time: Duration| time.as_secs_f64() * 1e6 / answer.completed as f64;
        let served = self.served_since(&before, cell.mode, answer.completed)?;
        self.check()?;
        Ok(ShortLoad {
            completed: answer.completed,
            elapsed_s: answer.elapsed_s,
            per_s: answer.completed as f64 / answer.elapsed_s,
            gateway_cpu_us: each(used.gateway),
            node_cpu_us: each(used.node),
            served,
            seen: used.seen,
        })
    }

    /// The CPU time that everything uses during a load, and the samples of the gateway.
    fn metered<T>(
        &self,
        server: TlsServer,
        mode: KeyPlace,
        load: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, LoadUsage), BenchError> {
        let gateway = self.gateway(server, mode)?;
        let times = || {
            let node = self.node.as_ref().map_or(Duration::ZERO, NodeProcess::cpu_time);
            [gateway.cpu_time(), node, cores::own_cpu_time()]
        };
        let sampler = self.observer.start(&[gateway.id()]);
        let before = times();
        let outcome = load()?;
        let after = times();
        let [gateway, node, own] =
            [0, 1, 2].map(|place: usize| after[place].saturating_sub(before[place]));
        let seen = self.observer.stop(sampler)?;
        Ok((outcome, LoadUsage { gateway, node, own, seen }))
    }

    fn target(&self, cell: Cell<Handshake>) -> Result<Target, BenchError> {
        let Handshake { key, tls } = cell.work;
        let address = self.gateway(cell.server, cell.mode)?.address(key)?;
        let identity = self.identities.iter().find(|identity| identity.kind == key);
        let identity =
            identity.ok_or_else(|| BenchError::Setup(format!("no {key} key was made")))?;
        Target::new(address, identity.certificate.clone(), HandshakeTerms::usual(tls))
    }

    fn gateway(&self, server: TlsServer, mode: KeyPlace) -> Result<&Gateway, BenchError> {
        let missing = || BenchError::Setup(format!("no gateway was started for {server}, {mode}"));
        self.gateways.get(&(server, mode)).ok_or_else(missing)
    }

    /// Fails if anything has ended that should not have.
    fn check(&mut self) -> Result<(), BenchError> {
        self.node.iter_mut().try_for_each(NodeProcess::check)?;
        self.origin.iter_mut().try_for_each(Origin::check)?;
        self.gateways.values_mut().try_for_each(Gateway::check)
    }

    /// A round without any handshake has no figures: something is broken, and the error has the first reasons and the
    /// log.
    fn alive(&mut self, cell: Cell<Handshake>, outcome: &LoadOutcome) -> Result<(), BenchError> {
        self.check()?;
        if outcome.completed == 0 {
            let reasons = &outcome.failures;
            let gateway = self.gateway(cell.server, cell.mode)?;
            return Err(gateway.problem(format!("did no handshake ({cell}): {reasons:?}")));
        }
        Ok(())
    }

    fn served(&self) -> Result<BTreeMap<String, u64>, BenchError> {
        let completed = self.node.as_ref().map(NodeProcess::completed).transpose()?;
        Ok(completed.unwrap_or_default())
    }

    /// The jobs that the node completed since `before`: read until they are as many as the handshakes and two readings
    /// agree, or until the allowed lag is over. The connections that ApacheBench opens beyond its count and drops may
    /// reach the node after its exit, and must not count as jobs of the next load.
    fn served_since(
        &self,
        before: &BTreeMap<String, u64>,
        mode: KeyPlace,
        handshakes: u64,
    ) -> Result<BTreeMap<String, u64>, BenchError> {
        let expected = if mode.is_pooled() { handshakes } else { 0 };
        let start = Instant::now();
        let mut last = None;
        loop {
            let mut served = self.served()?;
            for (operation, count) in &mut served {
                *count = count.saturating_sub(before.get(operation).copied().unwrap_or(0));
            }
            served.retain(|_, count| *count > 0);
            let total = served.values().sum::<u64>();
            let settled = total >= expected && last == Some(total);
            if settled || start.elapsed() > COUNTER_LAG {
                return Ok(served);
            }
            last = Some(total);
            thread::sleep(READING_INTERVAL);
        }
    }
}

/// The CPU time of everything during one load.
struct LoadUsage {
    gateway: Duration,
    node: Duration,
    /// CPU time of this process, the load generator of the handshakes.
    own: Duration,
    seen: Option<Seen>,
}

/// Starts a node that holds the keys, far away if the plan says so. The edge has what gateways need to use them.
fn start_pool(
    plan: &TlsPlan,
    identities: &[Identity],
    dir: &Path,
) -> Result<(NodeProcess, Option<Relay>, Edge), BenchError> {
    let node = NodeProcess::start(&NodeOptions::on(plan.load_core))?;
    let mut stubs = BTreeMap::new();
    for Identity { kind, key_file, .. } in identities {
        let name = kind.to_string();
        let stub = if *kind == BenchKey::Rsa2048 && plan.parts.contains(&Part::Short) {
            node.import_premaster_key(&name, key_file)?
        } else {
            node.import_key(&name, key_file)?
        };
        stubs.insert(*kind, stub);
    }
    let far = dir.join("far.sock");
    let (relay, socket) = match plan.latency {
        Duration::ZERO => (None, node.socket()),
        latency => (Some(Relay::start(&far, node.socket(), latency)?), &*far),
    };
    let edge = Edge {
        openssl_conf: node.openssl_config(socket, plan.provider.as_deref())?,
        stubs,
        preload: plan.preload.clone(),
    };
    Ok((node, relay, edge))
}
