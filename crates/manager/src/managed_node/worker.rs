// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The thread of a managed node: registers, sends heartbeats, installs the grants of the answers, and leaves the pool
//! at its end.
//!
//! It makes no decision about time; [`model::holder`](crate::model::holder) does. The service ends grants that expire.
//! Nothing on the path of a job waits for it.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use millrace_operation::sync::lock;
use millrace_service::Service;
use millrace_service::enforcement::{GrantAnswer, OnExpiry};
use millrace_service::grant::GrantKeys;
use millrace_service::overview::{ClassRate, Overview, OverviewSampler, VerdictLevel, now_ms};
use tracing::{info, warn};

use super::ManagedNode;
use super::keys::NodeKeys;
use crate::api::{Code, HeartbeatReport, Leave};
use crate::client::{ClientError, Condition, Write};
use crate::model::holder::{Due, GrantSet, Holder, Registered, SetError};
use crate::model::name::Zone;
use crate::model::node::{Health, Heartbeat, Load, Usage, rounded};

/// Longest time without a look at the clock: grants expire, and the node may have to stop.
const TURN: Duration = Duration::from_millis(250);

/// Least time between two samples: rates over less are noise, and heartbeats may come faster.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Rule of the node for a tenant whose grant has expired while the manager is away.
const ON_EXPIRY: OnExpiry = OnExpiry::SafeShare;

/// State of the thread, which owns it from [`Worker::run`] to its end. It shares `node_keys` with the thread
/// `mr-keys`; it never holds their lock during a request.
pub(super) struct Worker {
    node: ManagedNode,
    holder: Holder,
    sampler: OverviewSampler,
    /// The latest overview, and when it was taken.
    latest: Option<(Instant, Overview)>,
    keys: GrantKeys,
    /// Private keys of the manager.
    node_keys: Arc<Mutex<NodeKeys>>,
    service: Service,
    stopped: Receiver<()>,
    /// The latest complaint in the log: the same one is not repeated each second.
    complained: Option<String>,
}

impl Worker {
    pub(super) fn new(
        node: ManagedNode,
        node_keys: Arc<Mutex<NodeKeys>>,
        service: Service,
        stopped: Receiver<()>,
    ) -> Self {
        let profile = &node.profile;
        let rates = profile.capacity.iter().map(|(class, rate)| ClassRate {
            class: class.to_string(),
            ops_per_s: to_float(*rate),
        });
        let zone = profile.zone.as_ref().map_or("", Zone::as_str);
        Self {
            holder: Holder::new(profile.name.clone(), ON_EXPIRY, Instant::now()),
            sampler: OverviewSampler::new(service.clone()).with_capacity(rates.collect(), zone),
            latest: None,
            keys: GrantKeys::default(),
            node_keys,
            service,
            stopped,
            complained: None,
            node,
        }
    }

    pub(super) fn run(mut self) {
        // Before the manager says whom to serve, the node serves none.
        self.service.manage(self.keys.clone(), ON_EXPIRY, Instant::now());
        loop {
            let now = Instant::now();
            let wait = match self.holder.due(now) {
                Due::Nothing { until } => until.saturating_duration_since(now).min(TURN),
                Due::Register => {
                    self.register();
                    Duration::ZERO
                }
                Due::Heartbeat { fence, applied } => {
                    self.heartbeat(fence, applied);
                    Duration::ZERO
                }
            };
            match self.stopped.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.leave();
    }

    fn register(&mut self) {
        let sealing_key = lock(&self.node_keys).public_text();
        let registration = self.node.registration(self.holder.seen(), sealing_key);
        let answer: Result<Registered, _> = self.node.client.write(
            Write::Post,
            &self.node.path("register"),
            Condition::None,
            &registration,
        );
        let now = Instant::now();
        match answer {
            Ok(registered) => {
                self.complained = None;
                match GrantKeys::new(registered.grant_keys) {
                    Ok(keys) => {
                        self.service.manage(keys.clone(), ON_EXPIRY, now);
                        self.keys = keys;
                    }
                    Err(error) => {
                        return self.complain(format!("the manager's keys are not taken: {error}"));
                    }
                }
                let ttl = Duration::from_millis(registered.ttl_ms);
                self.holder.registered(&registered.lease, ttl, now);
                // The manager knows now that the former processes have ended.
                if let Err(error) = self.node.folder.forget_former() {
                    warn!("{error}");
                }
                info!(fence = registered.lease.fence, "registered at the manager");
            }
            Err(error) => self.refused(None, &error, now),
        }
    }

    fn heartbeat(&mut self, fence: u64, applied: u64) {
        let sent = Instant::now();
        let overview = self.sample(sent);
        let report = HeartbeatReport {
            heartbeat: Heartbeat {
                node: self.node.profile.name.clone(),
                fence,
                applied,
                clock_ms: now_ms(),
                load: load_of(&overview),
                health: health_of(&overview),
                keys: lock(&self.node_keys).versions(),
            },
            overview: Some(overview.shortened()),
        };
        let answer: Result<GrantSet, _> = self.node.client.write(
            Write::Post,
            &self.node.path("heartbeat"),
            Condition::None,
            &report,
        );
        let now = Instant::now();
        let set = match answer {
            Ok(set) => set,
            Err(error) => return self.refused(Some(fence), &error, now),
        };
        match self.take(&set, sent, now) {
            Ok(()) => self.complained = None,
            Err(reason) => {
                self.complain(format!("the manager's grants are not taken: {reason}"));
                self.holder.failed(now);
            }
        }
    }

    /// Puts an answer in force. The service comes first: the next heartbeat tells the manager that it has done so.
    fn take(&mut self, set: &GrantSet, sent: Instant, now: Instant) -> Result<(), SetError> {
        let before = self.service.settings().revision;
        // An answer whose grants are not taken brings no keys.
        let verified = set.verify(&self.keys)?;
        self.holder.check(&verified, sent, now)?;
        lock(&self.node_keys).install(set);
        let answer = GrantAnswer { fence: set.fence, sent, now, wall: SystemTime::now() };
        self.service.apply_grants_beside(&set.grants, &set.elsewhere, answer)?;
        self.holder.apply(verified, sent, now)?;
        lock(&self.node_keys).reconcile(&set.keys);
        if self.service.settings().revision != before {
            info!(revision = set.revision, tenants = set.grants.len(), "grants are in force");
        }
        Ok(())
    }

    fn sample(&mut self, now: Instant) -> Overview {
        if let Some((at, overview)) = &self.latest
            && now.saturating_duration_since(*at) < SAMPLE_INTERVAL
        {
            return overview.clone();
        }
        let overview = self.sampler.sample(now);
        self.latest = Some((now, overview.clone()));
        overview
    }

    fn refused(&mut self, fence: Option<u64>, error: &ClientError, now: Instant) {
        let code = error.problem().map(|problem| problem.code);
        match (code, fence) {
            (Some(Code::Fenced), Some(fence)) => {
                info!("the lease is over: registering again");
                self.holder.fenced(fence, now);
            }
            (Some(Code::Removed), _) => {
                self.complain("the node was removed from the pool: it serves no tenant".to_owned());
                let fence = self.holder.fence().unwrap_or_else(|| self.holder.seen());
                let answer = GrantAnswer { fence, sent: now, now, wall: SystemTime::now() };
                if let Err(error) = self.service.apply_grants(&[], answer) {
                    warn!(%error, "the former grants end by themselves");
                }
                lock(&self.node_keys).reconcile(&[]);
                self.holder.removed(now);
            }
            _ => {
                self.complain(format!("no answer from the manager: {error}"));
                self.holder.failed(now);
            }
        }
    }

    fn complain(&mut self, text: String) {
        if self.complained.as_ref() != Some(&text) {
            warn!("{text}");
            self.complained = Some(text);
        }
    }

    fn leave(&self) {
        let Some(fence) = self.holder.fence() else {
            return;
        };
        let path = self.node.path("leave");
        let left: Result<(), _> =
            self.node.client.write(Write::Post, &path, Condition::None, &Leave { fence });
        match left {
            Ok(()) => {
                if let Err(error) = self.node.folder.note_left() {
                    warn!("{error}");
                }
                info!("left the pool");
            }
            Err(error) => warn!("the manager does not know that this node has ended: {error}"),
        }
    }
}

fn load_of(overview: &Overview) -> Load {
    let Some(node) = overview.nodes.first() else {
        return Load::default();
    };
    Load {
        ops_per_second: rounded(node.ops_per_s),
        busy_ppm: u32::try_from(rounded(node.busy.unwrap_or(0.0) * 1e6)).unwrap_or(u32::MAX),
        waiting: node.waiting as u64,
        p99_us: rounded(node.p99_us),
        connections: node.connections,
        usage: Some(Usage::of(overview)),
    }
}

fn health_of(overview: &Overview) -> Health {
    match overview.verdict.level {
        VerdictLevel::Good => Health::Good,
        VerdictLevel::Warning | VerdictLevel::Critical => {
            Health::Degraded(overview.verdict.text.clone())
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "operations per second, far below 2^52")]
fn to_float(value: u64) -> f64 {
    value as f64
}
