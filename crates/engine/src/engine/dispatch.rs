// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The backends of an engine: which of them can serve a job, and which is in quarantine because a result of
//! it failed verification. `choice.rs` chooses among several.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::choice::{Choices, Decision, Group, KnownCosts};
use super::lock;
use super::measure::Measurement;
use super::{BackendStatus, StartError};
use crate::backend::{Backend, BackendKey, BackendKind, Capability, Description, Queue, Unusable};
use crate::error::KeyError;
use crate::key::{KeyInfo, KeyType, PrivateKey};
use crate::operation::OperationKind;

/// How long a backend is passed over after its first fault; doubled by each further one.
const FIRST_QUARANTINE: Duration = Duration::from_secs(30);

/// Doublings at most: 30 s · 2^7 is a little over an hour.
const MAX_DOUBLINGS: u32 = 7;

/// Backends at most: the set of those already tried for a job is a 32-bit mask.
const MAX_BACKENDS: usize = 32;

/// The backends of an engine, in order of preference.
#[derive(Debug)]
pub(crate) struct Backends {
    usable: Vec<Entry>,
    unusable: Vec<(Description, Unusable)>,
    started: Instant,
    choices: Choices,
}

/// A key that was opened in every backend that takes it.
pub(crate) struct Opened {
    pub(crate) info: KeyInfo,
    /// Its name in each backend, in the order of the backends.
    pub(crate) names: Vec<Option<BackendKey>>,
    /// By operation: the backends that do it with this key, as a mask.
    pub(crate) able: [u32; OperationKind::ALL.len()],
}

#[derive(Debug)]
struct Entry {
    backend: Arc<dyn Backend>,
    description: Description,
    capabilities: Vec<Capability>,
    /// Why the last queue that a worker asked for was refused; none if it was opened.
    queue_refused: Mutex<Option<String>>,
    faults: AtomicU32,
    /// Milliseconds after `started` until which it is passed over.
    quarantined_until_ms: AtomicU64,
}

impl Backends {
    pub(crate) fn probe(backends: Vec<Arc<dyn Backend>>) -> Result<Self, StartError> {
        let mut usable = Vec::new();
        let mut unusable = Vec::new();
        for backend in backends.into_iter().take(MAX_BACKENDS) {
            let description = backend.describe();
            match backend.probe() {
                Ok(()) => usable.push(Entry {
                    capabilities: backend.capabilities().to_vec(),
                    backend,
                    description,
                    queue_refused: Mutex::default(),
                    faults: AtomicU32::new(0),
                    quarantined_until_ms: AtomicU64::new(0),
                }),
                Err(reason) => unusable.push((description, reason)),
            }
        }
        if usable.is_empty() {
            let reasons: Vec<String> = unusable
                .iter()
                .map(|(d, reason)| format!("{}: {reason}", d.kind))
                .collect();
            return Err(StartError::NoBackend(reasons.join("; ")));
        }
        Ok(Self {
            usable,
            unusable,
            started: Instant::now(),
            choices: Choices::new(),
        })
    }

    /// Opens a key in every backend that takes it. Type and public half are those that the first one reads.
    pub(crate) fn open_key(&self, key: &PrivateKey) -> Result<Opened, KeyError> {
        let mut names = vec![None; self.usable.len()];
        let mut info: Option<KeyInfo> = None;
        let mut refusal = KeyError::NotOffered;
        for (name, entry) in names.iter_mut().zip(&self.usable) {
            match entry.backend.open_key(key) {
                // A backend that reads another key out of the same bytes must not serve it.
                Ok(opened) if info.as_ref().is_some_and(|known| *known != opened.info) => {
                    entry.backend.close_key(opened.key);
                }
                Ok(opened) => {
                    *name = Some(opened.key);
                    info = Some(opened.info);
                }
                // A special-purpose backend lacks most types; any other refusal says more.
                Err(KeyError::NotOffered) => {}
                Err(error) => refusal = error,
            }
        }
        match info {
            Some(info) => Ok(Opened {
                able: self.able(&names, info.key_type),
                info,
                names,
            }),
            None => Err(refusal),
        }
    }

    /// By operation: the backends that do it with a key that has these names, as a mask.
    fn able(
        &self,
        names: &[Option<BackendKey>],
        key_type: KeyType,
    ) -> [u32; OperationKind::ALL.len()] {
        let mut able = [0; OperationKind::ALL.len()];
        for (index, (name, entry)) in names.iter().zip(&self.usable).enumerate() {
            for (able, operation) in able.iter_mut().zip(OperationKind::ALL) {
                if name.is_some() && entry.covers(*operation, key_type) {
                    *able |= 1 << index;
                }
            }
        }
        able
    }

    pub(crate) fn close_key(&self, names: &[Option<BackendKey>]) {
        for (name, entry) in names.iter().zip(&self.usable) {
            if let Some(name) = name {
                entry.backend.close_key(*name);
            }
        }
    }

    /// The first backend, in order of preference, out of those in the mask `able`. A quarantined one
    /// comes last: what it computes is verified, so it is better than none.
    pub(crate) fn first(&self, able: u32) -> Option<usize> {
        (able != 0).then(|| self.preferred(able).trailing_zeros() as usize)
    }

    /// Chooses among the backends in the mask `able` (not empty) for `jobs` jobs of a group in one batch.
    pub(crate) fn decide(&self, group: Group, jobs: usize, able: u32) -> Decision {
        let together = |index: usize| self.usable[index].description.batch;
        self.choices
            .decide(group, jobs, self.preferred(able), together)
    }

    /// The backends of the mask that are not in quarantine; the mask itself if all are.
    fn preferred(&self, able: u32) -> u32 {
        let quarantined = (0..self.usable.len())
            .filter(|index| able & (1 << index) != 0 && self.is_quarantined(*index))
            .fold(0, |mask: u32, index| mask | 1 << index);
        match able & !quarantined {
            0 => able,
            free => free,
        }
    }

    pub(crate) fn record(&self, measured: &Measurement) {
        let Measurement {
            group,
            waiting,
            served,
            backend,
            busy,
        } = *measured;
        let cost_ns = busy.as_secs_f64() * 1e9 / served.max(1) as f64;
        self.choices.record(group, waiting, backend, cost_ns);
    }

    pub(crate) fn known(&self) -> Vec<KnownCosts> {
        self.choices.known()
    }

    /// Opens a queue for one worker. A refusal is kept for [`Self::status`].
    pub(crate) fn open_queue(&self, index: usize) -> Option<Box<dyn Queue>> {
        let entry = &self.usable[index];
        let opened = entry.backend.open_queue();
        *lock(&entry.queue_refused) = opened.as_ref().err().map(ToString::to_string);
        opened.ok()
    }

    /// Passes over a backend for a while.
    pub(crate) fn quarantine(&self, index: usize) {
        let entry = &self.usable[index];
        let faults = entry
            .faults
            .fetch_add(1, Ordering::Relaxed)
            .min(MAX_DOUBLINGS);
        let until = self.started.elapsed() + FIRST_QUARANTINE * (1 << faults);
        entry
            .quarantined_until_ms
            .store(millis(until), Ordering::Relaxed);
    }

    fn is_quarantined(&self, index: usize) -> bool {
        let until = self.usable[index]
            .quarantined_until_ms
            .load(Ordering::Relaxed);
        // The clock is read only for a backend that ever failed.
        until != 0 && millis(self.started.elapsed()) < until
    }

    /// The backends that compute on the calling thread, as a mask.
    pub(crate) fn on_cpu(&self) -> u32 {
        (0..self.usable.len())
            .filter(|index| self.is_on_cpu(*index))
            .fold(0, |mask, index| mask | 1 << index)
    }

    pub(crate) fn all_on_cpu(&self) -> bool {
        self.on_cpu().count_ones() as usize == self.usable.len()
    }

    /// Whether a backend computes on the calling thread.
    pub(crate) fn is_on_cpu(&self, index: usize) -> bool {
        self.usable[index].description.on_cpu
    }

    /// The largest batch that a backend computes together on a worker's core. Devices do not count: all
    /// workers fill them, and a worker that took enough for one alone would leave the other cores idle
    /// wherever another backend serves.
    pub(crate) fn batch(&self) -> usize {
        let on_cpu = self.usable.iter().filter(|entry| entry.description.on_cpu);
        let batch = on_cpu.map(|entry| entry.description.batch).max();
        batch.unwrap_or(1).max(1)
    }

    pub(crate) fn len(&self) -> usize {
        self.usable.len()
    }

    pub(crate) fn kind(&self, index: usize) -> BackendKind {
        self.usable[index].description.kind
    }

    pub(crate) fn status(&self) -> Vec<BackendStatus> {
        let usable = self
            .usable
            .iter()
            .enumerate()
            .map(|(index, entry)| BackendStatus {
                description: entry.description.clone(),
                unusable: None,
                queue_refused: lock(&entry.queue_refused).clone(),
                quarantined: self.is_quarantined(index),
            });
        let unusable = self
            .unusable
            .iter()
            .map(|(description, reason)| BackendStatus {
                description: description.clone(),
                unusable: Some(reason.to_string()),
                queue_refused: None,
                quarantined: false,
            });
        usable.chain(unusable).collect()
    }
}

impl Entry {
    fn covers(&self, operation: OperationKind, key_type: KeyType) -> bool {
        self.capabilities
            .iter()
            .any(|row| row.covers(operation, key_type))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
