// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Everything that runs during a measurement: keys, the node, the gateways. Ends with its value.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use tempfile::TempDir;

use super::gateway::{Edge, Gateway, Origin};
use super::load::{Offer, Outcome, Target, drive};
use super::observer::{Observer, Seen};
use super::plan::{Cell, TlsPlan};
use super::short::{self, Path, ShortCell, ShortLoad};
use super::{Mode, Part, Server, TlsVersion};
use crate::cores;
use crate::error::BenchError;
use crate::keys::Identity;
use crate::node::{Node, NodeOptions};
use crate::process::{Stop, temporary_folder};
use crate::relay::Relay;
use crate::speed::openssl_rate;
use crate::stats::Latencies;
use crate::workload::BenchKey;

/// Load before a measurement, so that caches, connections and key imports are warm.
const WARM_UP: Duration = Duration::from_millis(200);

/// Paced loads are this share of what the first mode measured does at most: what a gateway with some
/// room left sees.
const PACED_SHARE: f64 = 0.5;

/// Seconds that `openssl speed` signs per round: 1 is the least that it takes.
const SPEED_SECONDS: u32 = 1;

/// How long the node's counters may lag behind the last handshake.
const COUNTER_LAG: Duration = Duration::from_millis(300);

/// One cell in one round: what was asked for of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measurement {
    /// As many handshakes as go: throughput and latency under full load.
    pub(super) closed: Option<Load>,
    /// The same number per second for all modes of a server, key and version: CPU time is compared
    /// here, because a gateway that is not busy handles fewer events per turn and so takes longer
    /// for each.
    pub(super) paced: Option<Load>,
    /// As many requests as go, each over a connection of its own.
    pub(super) requests: Option<Load>,
    /// By operation: what the node's own counters say it completed during all of them.
    pub(super) served: BTreeMap<String, u64>,
}

impl Measurement {
    /// All loads that there were.
    pub(super) fn loads(&self) -> impl Iterator<Item = &Load> {
        [&self.closed, &self.paced, &self.requests]
            .into_iter()
            .flatten()
    }
}

/// What one load did. CPU times are per completed handshake.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Load {
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
    /// What the gateway's CPU time went to.
    pub(super) seen: Option<Seen>,
    #[serde(skip)]
    pub(super) latencies: Latencies,
}

/// The running parts. Fields are dropped in order: gateways before the node, the folder last.
pub(super) struct Testbed {
    gateways: BTreeMap<(Server, Mode), Gateway>,
    origin: Option<Origin>,
    _relay: Option<Relay>,
    node: Option<Node>,
    identities: Vec<Identity>,
    /// Handshakes per second of paced loads, the same in every round and mode.
    paces: BTreeMap<(Server, BenchKey, TlsVersion), f64>,
    pub(super) observer: Observer,
    plan: TlsPlan,
    _dir: TempDir,
}

impl Testbed {
    /// Makes keys, starts the node (if something is pooled) and all gateways.
    pub(super) fn start(
        plan: &TlsPlan,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, BenchError> {
        let dir = temporary_folder()?;
        let made: Result<Vec<_>, _> = plan
            .keys_to_make()
            .into_iter()
            .map(|key| Identity::make(key, dir.path()))
            .collect();
        let identities = made?;
        let origin = plan
            .parts
            .contains(&Part::Short)
            .then(|| Origin::start(plan.load_core, dir.path()))
            .transpose()?;
        let pooled = plan
            .pools()
            .then(|| start_pool(plan, &identities, &dir))
            .transpose()?;
        let (node, relay, edge) = match pooled {
            Some((node, relay, edge)) => (Some(node), relay, Some(edge)),
            None => (None, None, None),
        };
        let mut gateways = BTreeMap::new();
        for &server in &plan.servers {
            for mode in plan.modes() {
                let short = origin.as_ref().map(|origin| &origin.short);
                let (edge, core) = (edge.as_ref(), plan.gateway_core);
                let gateway =
                    Gateway::start(server, mode, edge, &identities, short, core, dir.path())?;
                gateways.insert((server, mode), gateway);
            }
        }
        let pids: Vec<u32> = gateways.values().map(Gateway::id).collect();
        Ok(Self {
            observer: Observer::new(&pids, progress),
            gateways,
            origin,
            _relay: relay,
            node,
            identities,
            paces: BTreeMap::new(),
            plan: plan.clone(),
            _dir: dir,
        })
    }

    /// What OpenSSL itself does on the gateway's core.
    pub(super) fn openssl_sign_rate(&self, key: BenchKey) -> Result<f64, BenchError> {
        let algorithm = match key {
            BenchKey::P256 => "ecdsap256",
            _ => "rsa2048",
        };
        openssl_rate(self.plan.gateway_core, algorithm, SPEED_SECONDS)
    }

    /// Measures one cell once.
    pub(super) fn measure(&mut self, cell: Cell, stop: &Stop) -> Result<Measurement, BenchError> {
        let target = self.target(cell)?;
        let mut offer = Offer {
            concurrency: self.plan.concurrency,
            duration: WARM_UP,
            request: false,
            per_s: None,
        };
        let warm = drive(&target, offer, stop)?;
        self.alive(cell, &warm)?;
        let before = self.served()?;
        offer.duration = self.plan.duration;
        let (mut closed, mut paced, mut requests) = (None, None, None);
        if self.plan.parts.contains(&Part::Handshakes) {
            let load = self.load(cell, &target, offer, stop)?;
            let pair = (cell.server, cell.key, cell.tls);
            let pace = self.paces.entry(pair);
            let pace = *pace.or_insert(load.handshakes_per_s * PACED_SHARE);
            closed = Some(load);
            let offer = Offer {
                per_s: Some(pace),
                ..offer
            };
            paced = Some(self.load(cell, &target, offer, stop)?);
        }
        if self.plan.parts.contains(&Part::Requests) {
            let offer = Offer {
                concurrency: self.plan.request_concurrency,
                request: true,
                ..offer
            };
            requests = Some(self.load(cell, &target, offer, stop)?);
        }
        let mut measurement = Measurement {
            closed,
            paced,
            requests,
            served: BTreeMap::new(),
        };
        let completed = measurement.loads().map(|load| load.completed).sum();
        measurement.served = self.served_since(&before, cell.mode, completed)?;
        Ok(measurement)
    }

    fn load(
        &mut self,
        cell: Cell,
        target: &Target,
        offer: Offer,
        stop: &Stop,
    ) -> Result<Load, BenchError> {
        let gateway = self.gateway(cell.server, cell.mode)?;
        let sampler = self.observer.start(gateway.id());
        let gateway_before = gateway.cpu_time();
        let node_before = self.node_cpu_time();
        let own_before = cores::own_cpu_time();
        let outcome = drive(target, offer, stop)?;
        let own = cores::own_cpu_time().saturating_sub(own_before);
        let node = self.node_cpu_time().saturating_sub(node_before);
        let gateway_after = self.gateway(cell.server, cell.mode)?.cpu_time();
        let gateway = gateway_after.saturating_sub(gateway_before);
        let seen = self.observer.stop(sampler)?;
        self.alive(cell, &outcome)?;
        let per_handshake = |time: Duration| time.as_secs_f64() * 1e6 / outcome.completed as f64;
        Ok(Load {
            offered_per_s: offer.per_s,
            completed: outcome.completed,
            elapsed_s: outcome.elapsed.as_secs_f64(),
            handshakes_per_s: outcome.completed as f64 / outcome.elapsed.as_secs_f64(),
            p50_us: outcome.latencies.quantile_us(0.5),
            p99_us: outcome.latencies.quantile_us(0.99),
            gateway_cpu_us: per_handshake(gateway),
            node_cpu_us: per_handshake(node),
            generator_cpu_us: per_handshake(own),
            seen,
            failures: outcome.failures,
            latencies: outcome.latencies,
        })
    }

    /// Measures short connections once.
    pub(super) fn measure_short(&mut self, cell: ShortCell) -> Result<ShortLoad, BenchError> {
        let address = self.gateway(cell.server, cell.mode)?.short_address()?;
        let url = match cell.path {
            Path::Files => format!("https://{address}/"),
            Path::Proxy => format!("https://{address}/proxy/"),
        };
        let concurrency = self.plan.request_concurrency;
        let warm = short::ask(&url, short::WARM_UP_REQUESTS, concurrency)?;
        let wanted = self.plan.duration.as_secs_f64() * warm.completed as f64 / warm.elapsed_s;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts from floats saturate, and the bounds follow"
        )]
        let requests = (wanted as u64).clamp(*short::REQUESTS.start(), *short::REQUESTS.end());
        let before = self.served()?;
        let gateway = self.gateway(cell.server, cell.mode)?;
        let sampler = self.observer.start(gateway.id());
        let gateway_before = gateway.cpu_time();
        let node_before = self.node_cpu_time();
        let answer = short::ask(&url, requests, concurrency)?;
        let gateway = self.gateway(cell.server, cell.mode)?.cpu_time();
        let node = self.node_cpu_time().saturating_sub(node_before);
        let seen = self.observer.stop(sampler)?;
        let per_request = |time: Duration| time.as_secs_f64() * 1e6 / answer.completed as f64;
        let (gateway_cpu_us, node_cpu_us) = (
            per_request(gateway.saturating_sub(gateway_before)),
            per_request(node),
        );
        self.check()?;
        Ok(ShortLoad {
            completed: answer.completed,
            elapsed_s: answer.elapsed_s,
            per_s: answer.completed as f64 / answer.elapsed_s,
            gateway_cpu_us,
            node_cpu_us,
            served: self.served_since(&before, cell.mode, answer.completed)?,
            seen,
        })
    }

    fn target(&self, cell: Cell) -> Result<Target, BenchError> {
        let address = self.gateway(cell.server, cell.mode)?.address(cell.key)?;
        let identity = self
            .identities
            .iter()
            .find(|identity| identity.kind == cell.key);
        let identity =
            identity.ok_or_else(|| BenchError::Setup(format!("no {} key was made", cell.key)))?;
        Target::new(address, identity.certificate.clone(), cell.tls)
    }

    fn gateway(&self, server: Server, mode: Mode) -> Result<&Gateway, BenchError> {
        self.gateways.get(&(server, mode)).ok_or_else(|| {
            BenchError::Setup(format!("no gateway was started for {server}, {mode}"))
        })
    }

    /// # Errors
    /// If anything has ended that should not have.
    fn check(&mut self) -> Result<(), BenchError> {
        if let Some(node) = &mut self.node {
            node.check()?;
        }
        if let Some(origin) = &mut self.origin {
            origin.check()?;
        }
        self.gateways.values_mut().try_for_each(Gateway::check)
    }

    /// A round without any handshake has no figures: then something is broken, and the first reasons
    /// and the log say what.
    fn alive(&mut self, cell: Cell, outcome: &Outcome) -> Result<(), BenchError> {
        self.check()?;
        if outcome.completed == 0 {
            let reasons = &outcome.failures;
            let gateway = self.gateway(cell.server, cell.mode)?;
            return Err(gateway.problem(format!("did no handshake ({cell}): {reasons:?}")));
        }
        Ok(())
    }

    fn served(&self) -> Result<BTreeMap<String, u64>, BenchError> {
        self.node
            .as_ref()
            .map_or_else(|| Ok(BTreeMap::new()), Node::completed)
    }

    fn node_cpu_time(&self) -> Duration {
        self.node.as_ref().map_or(Duration::ZERO, Node::cpu_time)
    }

    /// What the node completed since `before`: read until it agrees with the handshakes or the lag
    /// that is allowed is over.
    fn served_since(
        &self,
        before: &BTreeMap<String, u64>,
        mode: Mode,
        handshakes: u64,
    ) -> Result<BTreeMap<String, u64>, BenchError> {
        let expected = if mode.is_pooled() { handshakes } else { 0 };
        let start = Instant::now();
        loop {
            let mut served = self.served()?;
            for (operation, count) in &mut served {
                *count = count.saturating_sub(before.get(operation).copied().unwrap_or(0));
            }
            served.retain(|_, count| *count > 0);
            if served.values().sum::<u64>() >= expected || start.elapsed() > COUNTER_LAG {
                return Ok(served);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Starts a node that holds the keys, far away if the plan says so, and writes what gateways need to use
/// them.
fn start_pool(
    plan: &TlsPlan,
    identities: &[Identity],
    dir: &TempDir,
) -> Result<(Node, Option<Relay>, Edge), BenchError> {
    let options = NodeOptions {
        core: plan.load_core,
        workers: 1,
        software_only: false,
        tcp: false,
    };
    let node = Node::start(dir.path(), &options)?;
    let mut key_files = BTreeMap::new();
    for identity in identities {
        let name = identity.kind.to_string();
        let premaster = identity.kind == BenchKey::Rsa2048 && plan.parts.contains(&Part::Short);
        node.import_key(&name, &identity.key_file, premaster)?;
        key_files.insert(identity.kind, node.write_stub(&name)?);
    }
    let (relay, endpoint) = if plan.latency.is_zero() {
        (None, node.endpoint())
    } else {
        let path = dir.path().join("far.sock");
        let relay = Relay::start(&path, node.socket(), plan.latency)?;
        (Some(relay), format!("unix:{}", path.display()))
    };
    let config = node.openssl_config(&endpoint, plan.provider.as_deref())?;
    let edge = Edge {
        environment: vec![("OPENSSL_CONF", config.into_os_string())],
        key_files,
        preload: plan.preload.clone(),
    };
    Ok((node, relay, edge))
}
