// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The backends of an engine: which of them can serve a job, which is away, and which is in quarantine because
//! a result of it failed verification. `choice.rs` chooses among several.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use millrace_operation::{
    BackendKind, Class, KeyError, KeyInfo, KeyType, OperationKind, PrivateKey,
};

use super::backend_set::{AtomicBackendSet, BackendIndex, BackendSet};
use super::choice::{BatchLoad, Choices, Decision, Group, KnownCosts};
use super::config::StartError;
use super::measure::Measurement;
use super::status::{BackendEvent, BackendStatus, Observer};
use crate::backend::{Backend, BackendKey, Capability, Description, Health, Queue, Unusable};

/// Time for which a backend is passed over after its first fault; doubled by each further one.
const FIRST_QUARANTINE: Duration = Duration::from_secs(30);

/// Doublings at most: 30 s · 2^7 is a little over an hour.
const MAX_DOUBLINGS: u32 = 7;

/// The backends of an engine, in order of preference.
#[derive(Debug)]
pub(crate) struct Backends {
    usable: Vec<Entry>,
    unusable: Vec<(Description, Unusable)>,
    started: Instant,
    choices: Choices,
    /// Changed by [`Self::check_health`] only.
    away: AtomicBackendSet,
    observer: Option<Arc<dyn Observer>>,
}

/// A key that was opened in every backend that takes it.
pub(crate) struct OpenedKeys {
    pub(crate) info: KeyInfo,
    /// Number of the key in each backend, in the order of the backends.
    pub(crate) backend_keys: Vec<Option<BackendKey>>,
    /// Backends that do each operation with this key, by the operation's index.
    pub(crate) able: [BackendSet; OperationKind::ALL.len()],
}

#[derive(Debug)]
struct Entry {
    backend: Arc<dyn Backend>,
    description: Description,
    capabilities: Vec<Capability>,
    queues: Arc<AtomicUsize>,
    /// Why the last queue that a worker asked for was refused; `None` if it was opened.
    queue_refused: Mutex<Option<String>>,
    queues_refused: AtomicU64,
    /// Why the backend is away; `None` if it is not.
    away: Mutex<Option<String>>,
    /// Number of times that the backend went away. A queue that was opened before the last is dropped once it is empty.
    generation: AtomicU32,
    /// Tasks that the backend held beyond the deadline of their jobs.
    lost: AtomicU64,
    faults: AtomicU32,
    /// Milliseconds after `started` until which it is passed over.
    quarantined_until_ms: AtomicU64,
}

/// A queue of a backend, which counts as open until it is dropped.
pub(super) struct OpenQueue {
    pub(super) queue: Box<dyn Queue>,
    /// The backend's generation when it was opened.
    pub(super) generation: u32,
    open: Arc<AtomicUsize>,
}

impl Drop for OpenQueue {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Backends {
    /// Probes each backend, in the order of preference. Fails if none of them serves now.
    pub(crate) fn probe(
        backends: Vec<Arc<dyn Backend>>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<Self, StartError> {
        let mut usable = Vec::new();
        let mut unusable = Vec::new();
        for backend in backends {
            let description = backend.describe();
            let probed = if usable.len() < BackendSet::CAPACITY {
                backend.probe()
            } else {
                let most = BackendSet::CAPACITY;
                Err(Unusable(format!("an engine uses at most {most} backends")))
            };
            match probed {
                Ok(()) => usable.push(Entry {
                    capabilities: backend.capabilities().to_vec(),
                    backend,
                    description,
                    queues: Arc::default(),
                    queue_refused: Mutex::default(),
                    queues_refused: AtomicU64::new(0),
                    away: Mutex::default(),
                    generation: AtomicU32::new(0),
                    lost: AtomicU64::new(0),
                    faults: AtomicU32::new(0),
                    quarantined_until_ms: AtomicU64::new(0),
                }),
                Err(reason) => unusable.push((description, reason)),
            }
        }
        let backends = Self {
            usable,
            unusable,
            started: Instant::now(),
            choices: Choices::new(),
            away: AtomicBackendSet::default(),
            observer,
        };
        backends.check_health();
        if backends.away.load().len() == backends.usable.len() {
            let mut reasons = Vec::new();
            for BackendStatus { description, unusable, away, .. } in backends.status() {
                let reason = unusable.or(away).unwrap_or_default();
                reasons.push(format!("{}: {reason}", description.kind));
            }
            return Err(StartError::NoBackend(reasons.join("; ")));
        }
        Ok(backends)
    }

    /// Asks every backend whether it serves. Called by one thread at a time.
    pub(crate) fn check_health(&self) {
        for (backend, entry) in self.entries() {
            let reason = match entry.backend.health() {
                Health::Up => None,
                Health::Away(reason) => Some(reason.to_string()),
            };
            let away = self.away.load();
            (*lock(&entry.away)).clone_from(&reason);
            match (away.contains(backend), reason) {
                (false, Some(reason)) => {
                    entry.generation.fetch_add(1, Ordering::Relaxed);
                    self.away.store(away.with(backend));
                    self.note(backend, &BackendEvent::Away(reason));
                }
                (true, None) => {
                    self.away.store(away.without(backend));
                    self.note(backend, &BackendEvent::Back);
                }
                (false, None) | (true, Some(_)) => {}
            }
        }
    }

    fn entries(&self) -> impl Iterator<Item = (BackendIndex, &Entry)> {
        (0..).map(BackendIndex).zip(&self.usable)
    }

    fn note(&self, backend: BackendIndex, event: &BackendEvent) {
        if let Some(observer) = &self.observer {
            observer.note(self.kind(backend), event);
        }
    }

    /// Counts tasks that a backend held beyond the deadline of their jobs, and passes over it for a while.
    pub(crate) fn note_lost(&self, backend: BackendIndex, tasks: usize) {
        let entry = &self.usable[backend.0];
        entry.lost.fetch_add(tasks as u64, Ordering::Relaxed);
        self.note(backend, &BackendEvent::Lost(tasks));
        self.quarantine(backend);
    }

    /// Opens a key in every backend that takes it. Type and public half are those that the first one reads.
    pub(crate) fn open_key(&self, key: &PrivateKey) -> Result<OpenedKeys, KeyError> {
        let mut backend_keys = vec![None; self.usable.len()];
        let mut info: Option<KeyInfo> = None;
        let mut refusal = KeyError::NotOffered;
        for (backend_key, entry) in backend_keys.iter_mut().zip(&self.usable) {
            match entry.backend.open_key(key) {
                // A backend that reads another key out of the same bytes must not serve it.
                Ok(opened) if info.as_ref().is_some_and(|known| *known != opened.info) => {
                    entry.backend.close_key(opened.key);
                }
                Ok(opened) => {
                    *backend_key = Some(opened.key);
                    info = Some(opened.info);
                }
                // A special-purpose backend lacks most types; any other refusal says more.
                Err(KeyError::NotOffered) => {}
                Err(error) => refusal = error,
            }
        }
        match info {
            Some(info) => {
                Ok(OpenedKeys { able: self.able(&backend_keys, info.key_type), info, backend_keys })
            }
            None => Err(refusal),
        }
    }

    /// Backends that do each operation with a key that is open in those of `backend_keys`, by the operation's index.
    fn able(
        &self,
        backend_keys: &[Option<BackendKey>],
        key_type: KeyType,
    ) -> [BackendSet; OperationKind::ALL.len()] {
        let mut able = [BackendSet::EMPTY; OperationKind::ALL.len()];
        for (backend_key, (backend, entry)) in backend_keys.iter().zip(self.entries()) {
            for (able, operation) in able.iter_mut().zip(OperationKind::ALL) {
                if backend_key.is_some() && entry.covers(*operation, key_type) {
                    *able = able.with(backend);
                }
            }
        }
        able
    }

    pub(crate) fn close_key(&self, backend_keys: &[Option<BackendKey>]) {
        for (backend_key, entry) in backend_keys.iter().zip(&self.usable) {
            if let Some(key) = backend_key {
                entry.backend.close_key(*key);
            }
        }
    }

    /// The first backend of `able`, in order of preference. One that is away or in quarantine comes last: what
    /// it computes is verified, so it is better than none.
    pub(crate) fn first(&self, able: BackendSet) -> Option<BackendIndex> {
        self.preferred(able).first()
    }

    /// Chooses among the backends of `able` (not empty) for `jobs` jobs of a group in one batch, beside
    /// `on_devices` tasks that devices hold for the same worker.
    pub(crate) fn decide(
        &self,
        group: Group,
        jobs: usize,
        on_devices: usize,
        able: BackendSet,
    ) -> Decision {
        let load = BatchLoad { jobs, on_devices };
        self.choices.decide(group, load, self.preferred(able), |backend| {
            self.usable[backend.0].description.batch
        })
    }

    /// The backends of `able` that are there and not in quarantine; else those that are there; else all.
    fn preferred(&self, able: BackendSet) -> BackendSet {
        let present = able.minus(self.away.load()).or(able);
        let free: BackendSet =
            present.iter().filter(|backend| !self.is_quarantined(*backend)).collect();
        free.or(present)
    }

    pub(crate) fn record(&self, measured: &Measurement) {
        let Measurement { group, together, served, backend, busy } = *measured;
        let cost_ns = busy.as_secs_f64() * 1e9 / served.max(1) as f64;
        self.choices.record(group, together, backend, cost_ns);
    }

    pub(crate) fn known(&self) -> Vec<KnownCosts> {
        self.choices.known()
    }

    /// Opens a queue for one worker, unless as many are open as the backend allows. A refusal by the backend is
    /// counted, kept for [`Self::status`], and reported if it is a new one.
    pub(super) fn open_queue(&self, backend: BackendIndex) -> Option<OpenQueue> {
        let entry = &self.usable[backend.0];
        let bound = entry.backend.max_queues().unwrap_or(usize::MAX);
        let taken = entry.queues.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < bound).then_some(open + 1)
        });
        taken.ok()?;
        // Read before: a queue that is opened while the device goes away counts as an old one.
        let generation = self.generation(backend);
        match entry.backend.open_queue() {
            Ok(queue) => {
                *lock(&entry.queue_refused) = None;
                Some(OpenQueue { queue, generation, open: Arc::clone(&entry.queues) })
            }
            Err(Unusable(reason)) => {
                entry.queues.fetch_sub(1, Ordering::Relaxed);
                entry.queues_refused.fetch_add(1, Ordering::Relaxed);
                let before = lock(&entry.queue_refused).replace(reason.clone());
                if before.as_ref() != Some(&reason) {
                    self.note(backend, &BackendEvent::QueueRefused(reason));
                }
                None
            }
        }
    }

    /// Number of times that a backend went away.
    pub(crate) fn generation(&self, backend: BackendIndex) -> u32 {
        self.usable[backend.0].generation.load(Ordering::Relaxed)
    }

    /// Passes over a backend for a while.
    pub(crate) fn quarantine(&self, backend: BackendIndex) {
        let entry = &self.usable[backend.0];
        let faults = entry.faults.fetch_add(1, Ordering::Relaxed).min(MAX_DOUBLINGS);
        let duration = FIRST_QUARANTINE * (1 << faults);
        let until = self.started.elapsed() + duration;
        entry.quarantined_until_ms.store(millis(until), Ordering::Relaxed);
        self.note(backend, &BackendEvent::Quarantined(duration));
    }

    fn is_quarantined(&self, backend: BackendIndex) -> bool {
        let until = self.usable[backend.0].quarantined_until_ms.load(Ordering::Relaxed);
        // The clock is read only for a backend that ever failed.
        until != 0 && millis(self.started.elapsed()) < until
    }

    /// The backends that compute on the calling thread.
    pub(crate) fn on_cpu(&self) -> BackendSet {
        let on_cpu = self.entries().filter(|(_, entry)| entry.description.on_cpu);
        on_cpu.map(|(backend, _)| backend).collect()
    }

    /// Whether every backend that serves a class computes on the core of its worker, by class.
    pub(crate) fn only_on_cpu(&self) -> [bool; Class::ALL.len()] {
        let mut only_on_cpu = [true; Class::ALL.len()];
        let devices = self.usable.iter().filter(|entry| !entry.description.on_cpu);
        for row in devices.flat_map(|device| &device.capabilities) {
            let first = Class::of(row.smallest);
            let last = Class::of(row.largest);
            only_on_cpu[first.index()..=last.index()].fill(false);
        }
        only_on_cpu
    }

    /// Whether a backend computes on the calling thread.
    pub(crate) fn is_on_cpu(&self, backend: BackendIndex) -> bool {
        self.usable[backend.0].description.on_cpu
    }

    /// The largest batch that a backend computes together on a worker's core. Devices do not count: all
    /// workers fill them, and a worker that took enough for one alone would leave the other cores idle
    /// wherever another backend serves.
    pub(crate) fn batch(&self) -> usize {
        let on_cpu = self.usable.iter().filter(|entry| entry.description.on_cpu);
        on_cpu.map(|entry| entry.description.batch).fold(1, usize::max)
    }

    pub(crate) fn len(&self) -> usize {
        self.usable.len()
    }

    pub(crate) fn kind(&self, backend: BackendIndex) -> BackendKind {
        self.usable[backend.0].description.kind
    }

    pub(crate) fn status(&self) -> Vec<BackendStatus> {
        let usable = self.entries().map(|(backend, entry)| BackendStatus {
            description: entry.description.clone(),
            unusable: None,
            away: lock(&entry.away).clone(),
            queues: entry.queues.load(Ordering::Relaxed),
            queue_refused: lock(&entry.queue_refused).clone(),
            queues_refused: entry.queues_refused.load(Ordering::Relaxed),
            lost: entry.lost.load(Ordering::Relaxed),
            devices: entry.backend.devices(),
            quarantined: self.is_quarantined(backend),
        });
        let unusable = self.unusable.iter().map(|(description, reason)| BackendStatus {
            description: description.clone(),
            unusable: Some(reason.to_string()),
            away: None,
            queues: 0,
            queue_refused: None,
            queues_refused: 0,
            lost: 0,
            devices: Vec::new(),
            quarantined: false,
        });
        usable.chain(unusable).collect()
    }
}

impl Entry {
    fn covers(&self, operation: OperationKind, key_type: KeyType) -> bool {
        self.capabilities.iter().any(|row| row.covers(operation, key_type))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
