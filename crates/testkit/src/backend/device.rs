// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A backend that behaves like a card: each task takes a fixed time, a queue works on many side by side, and on
//! command tasks are lost, queues are refused, and the device is reset. It computes nothing.
//!
//! ```
//! use millrace_testkit::device::{FakeDevice, DeviceOptions};
//!
//! let device = FakeDevice::new(DeviceOptions::default());
//! let controls = device.controls();
//! controls.lose(3);                 // the next three tasks are never answered
//! controls.go_away("under reset");  // what is in flight fails, and the device does not serve
//! controls.come_back();
//! assert_eq!(controls.counts().served, 0);
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use millrace_engine::BackendError;
use millrace_engine::backend::{
    Backend, BackendKey, Capability, Description, Done, Health, OpenedKey, Queue, Task, Unusable,
};
use millrace_operation::sync::lock;
use millrace_operation::{
    BackendKind, KeyError, KeyInfo, KeyType, OperationKind, Output, PrivateKey,
};

/// The behaviour of a [`FakeDevice`].
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Kind of backend that the device claims to be.
    pub kind: BackendKind,
    /// The type of the keys that it opens.
    pub key_type: KeyType,
    /// The only key that it opens. `None` if it opens any.
    pub only_key: Option<&'static [u8]>,
    /// Time from submission to answer.
    pub latency: Duration,
    /// Tasks that one queue works on side by side.
    pub capacity: usize,
    /// Queues that may be open at once.
    pub max_queues: Option<usize>,
}

impl Default for DeviceOptions {
    /// A QAT instance: RSA-2048, 63 in flight, 400 µs.
    fn default() -> Self {
        Self {
            kind: BackendKind::Qat,
            key_type: KeyType::Rsa { bits: 2048 },
            only_key: None,
            latency: Duration::from_micros(400),
            capacity: 63,
            max_queues: None,
        }
    }
}

/// Counters of a [`FakeDevice`] so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tasks that ended with a result.
    pub served: u64,
    /// Tasks that ended as failed, because the device went away.
    pub failed: u64,
    /// Tasks that were lost.
    pub lost: u64,
    /// Calls of `poll`.
    pub polls: u64,
    /// Calls of `open_queue`.
    pub queues_asked_for: u64,
    /// Queues that are open.
    pub open_queues: usize,
    /// Most queues that were open at once.
    pub peak_open_queues: usize,
    /// Most tasks that were in flight in one queue.
    pub peak_in_flight: usize,
    /// Time integral of the tasks in flight in all queues, in task nanoseconds.
    pub task_ns: u128,
}

/// The handle by which a test changes a [`FakeDevice`]. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DeviceControls {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    away: Option<String>,
    /// Incremented by each reset: tasks of an earlier one fail.
    epoch: u64,
    lose: u64,
    return_lost: bool,
    on_hold: bool,
    takes_nothing: bool,
    refusal: Option<String>,
    next_key: u64,
    counts: Counts,
}

impl DeviceControls {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The next `tasks` tasks are not answered.
    pub fn lose(&self, tasks: u64) {
        self.lock().lose = tasks;
    }

    /// Queues that still hold lost tasks answer them now.
    pub fn return_lost(&self) {
        self.lock().return_lost = true;
    }

    /// The device holds its tasks in flight, whatever its latency.
    pub fn hold(&self) {
        self.lock().on_hold = true;
    }

    /// Ends [`Self::hold`].
    pub fn release(&self) {
        self.lock().on_hold = false;
    }

    /// The device takes no tasks, as one does that owes answers.
    pub fn take_nothing(&self) {
        self.lock().takes_nothing = true;
    }

    /// Ends [`Self::take_nothing`].
    pub fn take_again(&self) {
        self.lock().takes_nothing = false;
    }

    /// The device stops serving; what it has in flight ends as failed.
    pub fn go_away(&self, reason: &str) {
        let mut state = self.lock();
        state.away = Some(reason.to_owned());
        state.epoch += 1;
    }

    /// The device serves again.
    pub fn come_back(&self) {
        self.lock().away = None;
    }

    /// Sets the reason for which queues are refused; `None` opens them.
    pub fn refuse_queues(&self, reason: Option<&str>) {
        self.lock().refusal = reason.map(str::to_owned);
    }

    /// Counters of the device so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }
}

/// A device that exists only in this process.
#[derive(Debug)]
pub struct FakeDevice {
    options: DeviceOptions,
    capabilities: Vec<Capability>,
    controls: DeviceControls,
}

impl FakeDevice {
    /// Makes a device with this behaviour. It offers every operation of its type of key.
    #[must_use]
    pub fn new(options: DeviceOptions) -> Self {
        let key_type = options.key_type;
        let fitting = OperationKind::ALL.iter().filter(|kind| kind.fits(key_type));
        Self {
            capabilities: fitting
                .map(|kind| Capability { operation: *kind, smallest: key_type, largest: key_type })
                .collect(),
            options,
            controls: DeviceControls::default(),
        }
    }

    /// The controls of this device.
    #[must_use]
    pub fn controls(&self) -> DeviceControls {
        self.controls.clone()
    }
}

impl Backend for FakeDevice {
    fn describe(&self) -> Description {
        Description {
            kind: self.options.kind,
            version: "fake device".to_owned(),
            on_cpu: false,
            batch: 1,
        }
    }

    fn capabilities(&self) -> &[Capability] {
        &self.capabilities
    }

    fn probe(&self) -> Result<(), Unusable> {
        Ok(())
    }

    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
        if self.options.only_key.is_some_and(|only| key.dangerous_pkcs8() != only) {
            return Err(KeyError::NotOffered);
        }
        let mut state = self.controls.lock();
        state.next_key += 1;
        Ok(OpenedKey {
            key: BackendKey(state.next_key),
            info: KeyInfo { key_type: self.options.key_type, spki: b"fake".to_vec() },
        })
    }

    fn close_key(&self, _key: BackendKey) {}

    fn health(&self) -> Health {
        match &self.controls.lock().away {
            None => Health::Up,
            Some(reason) => Health::Away(Unusable(reason.clone())),
        }
    }

    fn max_queues(&self) -> Option<usize> {
        self.options.max_queues
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        let mut state = self.controls.lock();
        state.counts.queues_asked_for += 1;
        let refusal = state.away.as_ref().or(state.refusal.as_ref());
        if let Some(reason) = refusal {
            return Err(Unusable(reason.clone()));
        }
        let counts = &mut state.counts;
        counts.open_queues += 1;
        counts.peak_open_queues = counts.peak_open_queues.max(counts.open_queues);
        Ok(Box::new(DeviceQueue {
            latency: self.options.latency,
            capacity: self.options.capacity,
            controls: self.controls.clone(),
            epoch: state.epoch,
            running: VecDeque::new(),
            lost: Vec::new(),
            counted_until: Instant::now(),
        }))
    }
}

struct DeviceQueue {
    latency: Duration,
    capacity: usize,
    controls: DeviceControls,
    epoch: u64,
    running: VecDeque<(Instant, Task)>,
    lost: Vec<(Instant, Task)>,
    counted_until: Instant,
}

impl DeviceQueue {
    fn in_flight(&self) -> usize {
        self.running.len() + self.lost.len()
    }

    /// Adds the tasks in flight since the last call to the time integral.
    fn count(&mut self, counts: &mut Counts, now: Instant) {
        let elapsed = now.saturating_duration_since(self.counted_until);
        counts.task_ns += elapsed.as_nanos() * self.in_flight() as u128;
        self.counted_until = now;
    }
}

impl Queue for DeviceQueue {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        let now = Instant::now();
        let controls = self.controls.clone();
        let mut state = controls.lock();
        self.count(&mut state.counts, now);
        let room = if state.takes_nothing { 0 } else { self.capacity - self.in_flight() };
        let taken = tasks.len().min(room);
        for task in tasks.drain(..taken) {
            if state.lose > 0 {
                state.lose -= 1;
                state.counts.lost += 1;
                self.lost.push((now, task));
            } else {
                self.running.push_back((now, task));
            }
        }
        let counts = &mut state.counts;
        counts.peak_in_flight = counts.peak_in_flight.max(self.in_flight());
        taken
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        let now = Instant::now();
        let controls = self.controls.clone();
        let mut state = controls.lock();
        self.count(&mut state.counts, now);
        state.counts.polls += 1;
        let gone = state.epoch != self.epoch;
        let on_hold = state.on_hold;
        let mut ended = Vec::new();
        while let Some((started, _)) = self.running.front()
            && (gone || (!on_hold && *started + self.latency <= now))
        {
            ended.extend(self.running.pop_front());
        }
        if gone || state.return_lost {
            ended.append(&mut self.lost);
        }
        for (started, task) in ended {
            let result = if gone {
                state.counts.failed += 1;
                Err(BackendError::Failed)
            } else {
                state.counts.served += 1;
                Ok(Output::new(task.input.clone()))
            };
            done.push(Done { task, result, service_time: now.saturating_duration_since(started) });
        }
        self.in_flight()
    }
}

impl Drop for DeviceQueue {
    fn drop(&mut self) {
        self.controls.lock().counts.open_queues -= 1;
    }
}
