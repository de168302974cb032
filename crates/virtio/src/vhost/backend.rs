// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The rings of one device. One thread serves all of them: it reads requests, computes symmetric work in place,
//! submits private-key jobs in batches, and writes answers. Workers of the engine only put completions into the
//! mailbox.
//!
//! The last ring is the control queue. Answers of one pass are announced by one interrupt per ring, and by none if the
//! driver asked so by its event index.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use tracing::{debug, error, warn};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserProtocolFeatures,
    VhostUserVirtioFeatures,
};
use vhost_user_backend::{VhostUserBackend, VringEpollHandler, VringRwLock, VringT};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::GuestAddressSpace;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};
use vmm_sys_util::timerfd::TimerFd;

use super::chain;
use super::connection::{ConnectionState, Memory, Used};
use super::journal::Journal;
use super::mailbox::Mailbox;
use super::migration::Transfer;
use super::state_key::StateKey;
use super::{MAX_DATA_QUEUES, MAX_QUEUE_SIZE};
use crate::device::{DataAnswer, DataToken, Device, DeviceLimits, JOB_TIMEOUT, ReadGate};
use crate::spec::{config_space, feature};

/// Requests of one ring that are handled before their private-key jobs are submitted. More would delay the first
/// job, fewer would cost more calls of the engine.
const BATCH: usize = 64;

/// Number of answers that are announced at once while the rest of a batch is computed, so that the driver does not wait
/// for the whole batch.
const ANNOUNCED: usize = 16;

/// The vhost-user backend of one connection. Cheap to clone.
#[derive(Clone)]
pub(super) struct Backend {
    shared: Arc<Shared>,
}

struct Shared {
    data_queues: u16,
    state: Mutex<ConnectionState>,
    /// Notified when an answer was written, for [`Backend::stop_vring`].
    answered: Condvar,
    mailbox: Arc<Mailbox>,
    mail: EventConsumer,
    timer: Mutex<TimerFd>,
    draining: Arc<AtomicBool>,
    state_key: Option<Arc<StateKey>>,
    /// Ends the thread of the rings. The library's own exit event leaks a descriptor per connection.
    end: (EventConsumer, EventNotifier),
}

/// Parts that all devices of a process share.
#[derive(Clone, Default)]
pub(super) struct OfProcess {
    /// While it is set, the status of a device lacks `HW_READY`.
    pub(super) draining: Arc<AtomicBool>,
    /// The key under which states move.
    pub(super) state_key: Option<Arc<StateKey>>,
}

impl Backend {
    /// A backend for the device.
    pub(super) fn new(
        device: Device,
        data_queues: u16,
        mailbox: Arc<Mailbox>,
        mail: EventConsumer,
        journal: Journal,
        of_process: OfProcess,
    ) -> io::Result<Self> {
        let OfProcess { draining, state_key } = of_process;
        let data_queues = data_queues.clamp(1, MAX_DATA_QUEUES);
        let state = ConnectionState::new(device, data_queues, journal);
        Ok(Self {
            shared: Arc::new(Shared {
                data_queues,
                state: Mutex::new(state),
                answered: Condvar::new(),
                mailbox,
                mail,
                timer: Mutex::new(TimerFd::new()?),
                draining,
                state_key,
                end: new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC)?,
            }),
        })
    }

    /// Makes the thread of the rings listen to the mailbox and the timer.
    pub(super) fn listen(&self, handler: &VringEpollHandler<Self>) -> io::Result<()> {
        let mail = self.shared.mail.as_raw_fd();
        handler.register_listener(mail, EventSet::IN, self.mail_event().into())?;
        let timer = lock(&self.shared.timer).as_raw_fd();
        handler.register_listener(timer, EventSet::IN, self.timer_event().into())?;
        let end = self.shared.end.0.as_raw_fd();
        handler.register_listener(end, EventSet::IN, self.end_event().into())
    }

    /// Ends the thread of the rings.
    pub(super) fn end(&self) {
        if let Err(error) = self.shared.end.1.notify() {
            error!(%error, "the thread of a device does not end");
        }
    }

    /// Changes the limits of the device at once: requests that a former limit holds are looked at again.
    pub(super) fn set_limits(&self, limits: DeviceLimits) {
        self.with_device(|device| device.set_limits(limits, Instant::now()));
        self.shared.mailbox.wake();
    }

    /// Runs `use_device` under the lock of the device, for which the thread of the rings waits.
    pub(super) fn with_device<R>(&self, use_device: impl FnOnce(&mut Device) -> R) -> R {
        use_device(&mut lock(&self.shared.state).device)
    }

    fn queues(&self) -> u16 {
        self.shared.data_queues + 1
    }

    // The library has the events up to the number of queues for itself.
    fn mail_event(&self) -> u16 {
        self.queues() + 1
    }

    fn timer_event(&self) -> u16 {
        self.queues() + 2
    }

    fn end_event(&self) -> u16 {
        self.queues() + 3
    }

    /// Serves what an event announces. Whatever a guest does, this ends without an error: an error would end the
    /// thread of the rings.
    fn serve(&self, event: u16, rings: &[VringRwLock]) {
        if event == self.mail_event() {
            let _ = self.shared.mail.consume();
            self.take_mail(rings);
            self.pass_over_control(&rings[usize::from(self.shared.data_queues)]);
            self.pass_over_data(rings);
        } else if event == self.timer_event() {
            let _ = lock(&self.shared.timer).wait();
            self.pass_over_data(rings);
        } else if event == self.shared.data_queues {
            self.pass_over_control(&rings[usize::from(event)]);
        } else if let Some(ring) = rings.get(usize::from(event)) {
            self.pass(usize::from(event), ring, rings);
        }
    }

    fn pass_over_data(&self, rings: &[VringRwLock]) {
        for (queue, ring) in rings.iter().enumerate().take(self.shared.data_queues.into()) {
            self.pass(queue, ring, rings);
        }
    }

    /// Writes the answers of jobs that ended.
    fn take_mail(&self, rings: &[VringRwLock]) {
        let completions = self.shared.mailbox.take();
        let mut state = lock(&self.shared.state);
        let mut answers = Vec::new();
        state.device.complete(completions, Instant::now(), &mut answers);
        self.answer(state, answers, rings);
    }

    /// Handles the requests of a data ring until there are none, a throttle holds them, or enough jobs are at the
    /// pool. In the latter cases the timer or a completion starts the next pass.
    fn pass(&self, queue: usize, ring: &VringRwLock, rings: &[VringRwLock]) {
        loop {
            let _ = ring.disable_notification();
            let mut any = false;
            loop {
                match self.batch(queue, ring, rings) {
                    Ok(0) => break,
                    Ok(_) => any = true,
                    // The timer or a completion comes. Until then no kick is needed.
                    Err(Held) => return,
                }
            }
            // A ring whose indices are wrong always seems to have more.
            match ring.enable_notification() {
                Ok(true) if any => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Handles up to [`BATCH`] requests and submits their jobs. Returns the number of requests.
    fn batch(
        &self,
        queue: usize,
        ring: &VringRwLock,
        rings: &[VringRwLock],
    ) -> Result<usize, Held> {
        let mut state = lock(&self.shared.state);
        let Some(memory) = state.memory.as_ref().map(GuestAddressSpace::memory) else {
            return Ok(0);
        };
        let mut done: Vec<Used> = Vec::new();
        let mut held = None;
        let mut handled = 0;
        for (chain, attempts) in state.start(queue, ring, &memory) {
            handled += 1;
            done.extend(state.data(queue, chain, attempts, &memory, Instant::now()));
        }
        while handled < BATCH {
            let now = Instant::now();
            let most = match state.device.read_gate(now) {
                ReadGate::Open(most) => most.min(ANNOUNCED),
                ReadGate::After(wait) => {
                    held = Some(Some(wait));
                    break;
                }
                ReadGate::OnCompletion => {
                    held = Some(None);
                    break;
                }
            };
            let chains = chain::pop(ring, &memory, most);
            if chains.is_empty() {
                break;
            }
            for chain in chains {
                handled += 1;
                done.extend(state.data(queue, chain, 0, &memory, now));
            }
            if done.len() >= ANNOUNCED {
                self.announce(&state, &done, rings);
                done.clear();
            }
        }
        let now = Instant::now();
        let mut answers = Vec::new();
        state.device.submit(now, &mut answers);
        let retry = state.device.next_retry(now);
        state.note_used(&memory, answers, &mut done);
        self.announce(&state, &done, rings);
        drop(state);
        self.shared.answered.notify_all();
        let wait = held.flatten().into_iter().chain(retry).min();
        if let Some(wait) = wait {
            // Zero would disarm the timer.
            let wait = wait.max(Duration::from_micros(1));
            if let Err(error) = lock(&self.shared.timer).reset(wait, None) {
                error!(%error, "cannot arm the timer of a device");
            }
        }
        match held {
            Some(_) => Err(Held),
            None => Ok(handled),
        }
    }

    /// Handles the requests of the control ring.
    fn pass_over_control(&self, ring: &VringRwLock) {
        loop {
            let _ = ring.disable_notification();
            let mut state = lock(&self.shared.state);
            let Some(memory) = state.memory.as_ref().map(GuestAddressSpace::memory) else {
                return;
            };
            // A driver that starts over starts a fresh ring, and no other message reports it. A machine that was
            // paused continues where it was.
            if ring.queue_next_avail() == 0 && mem::take(&mut state.control_position) != 0 {
                debug!("a driver started again: its former sessions end");
                state.device.clear_sessions();
                state.journal.end_sessions();
            }
            let mut any = false;
            let queue = usize::from(self.shared.data_queues);
            for (chain, attempts) in state.start(queue, ring, &memory) {
                any = true;
                state.control(queue, chain, attempts, &memory, ring);
            }
            while let Some(chain) = chain::pop(ring, &memory, 1).pop() {
                any = true;
                state.control(queue, chain, 0, &memory, ring);
            }
            state.control_position = ring.queue_next_avail();
            if any {
                signal(ring);
            }
            drop(state);
            self.shared.answered.notify_all();
            // A ring whose indices are wrong always seems to have more.
            match ring.enable_notification() {
                Ok(true) if any => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    fn answer(
        &self,
        mut state: MutexGuard<'_, ConnectionState>,
        answers: Vec<(DataToken, DataAnswer)>,
        rings: &[VringRwLock],
    ) {
        let Some(memory) = state.memory.as_ref().map(GuestAddressSpace::memory) else {
            return;
        };
        let mut done = Vec::new();
        state.note_used(&memory, answers, &mut done);
        self.announce(&state, &done, rings);
    }

    /// Puts answered requests into their rings, with one interrupt per ring. The state is locked, so that a ring does
    /// not stop between an answer and its announcement.
    fn announce(&self, state: &ConnectionState, done: &[Used], rings: &[VringRwLock]) {
        if done.is_empty() {
            return;
        }
        for (queue, ring) in rings.iter().enumerate() {
            let mut any = false;
            let mut guard = ring.get_mut();
            for Used { head, len, .. } in done.iter().filter(|used| used.queue == queue) {
                any = true;
                state.add_used(queue, &mut guard, *head, *len);
            }
            drop(guard);
            if any {
                signal(ring);
            }
        }
        self.shared.answered.notify_all();
    }
}

/// A data ring waits for the timer or for a completion.
struct Held;

fn signal(ring: &VringRwLock) {
    // A ring whose indices cannot be read gets the interrupt.
    if ring.needs_notification().unwrap_or(true)
        && let Err(error) = ring.signal_used_queue()
    {
        debug!(%error, "cannot interrupt a guest");
    }
}

impl VhostUserBackend for Backend {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        self.queues().into()
    }

    fn max_queue_size(&self) -> usize {
        MAX_QUEUE_SIZE.into()
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
            | feature::OFFERED
    }

    fn acked_features(&self, features: u64) {
        let mut state = lock(&self.shared.state);
        state.device.set_features(features);
        state.features = features;
        state.take_connection();
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::DEVICE_STATE
    }

    fn reset_device(&self) {
        let mut state = lock(&self.shared.state);
        state.device.reset(Instant::now());
        state.journal.end_sessions();
        for ring in 0..usize::from(self.queues()) {
            state.started[ring] = false;
            state.journal.stopped(ring);
        }
    }

    // The rings keep it.
    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let ready =
            !self.shared.draining.load(Ordering::Acquire) && !self.shared.mailbox.is_draining();
        let space = config_space(self.shared.data_queues, ready);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
        // The library turns an answer of another length into an error.
        space.get(start..end).unwrap_or_default().to_vec()
    }

    fn update_memory(&self, memory: Memory) -> io::Result<()> {
        lock(&self.shared.state).memory = Some(memory);
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        vec![(1 << self.queues()) - 1]
    }

    /// Waits until every request of the ring that was read is answered, so that none is lost when the machine is
    /// paused. A job ends by its deadline, so the wait does, too.
    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        let queue = usize::try_from(queue).unwrap_or(usize::MAX);
        // A ring of a former process that no event has announced yet is served once before it stops.
        self.shared.mailbox.wake();
        let under_way = |state: &mut ConnectionState| {
            let is_behind = state.started.get(queue) == Some(&false);
            state.waiting.values().any(|it| it.queue == queue)
                || (is_behind && state.journal.is_running(queue))
        };
        let state = lock(&self.shared.state);
        let (mut state, waited) = self
            .shared
            .answered
            .wait_timeout_while(state, 2 * JOB_TIMEOUT, under_way)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            error!(queue, "requests of a stopped ring have no answer");
            state.waiting.retain(|_, waiting| waiting.queue != queue);
        }
        if let Some(started) = state.started.get_mut(queue) {
            *started = false;
            state.journal.stopped(queue);
        }
        Ok(())
    }

    fn set_device_state_fd(
        &self,
        direction: VhostTransferStateDirection,
        VhostTransferStatePhase::STOPPED: VhostTransferStatePhase,
        file: File,
    ) -> io::Result<Option<File>> {
        let mut state = lock(&self.shared.state);
        if state.transfer.is_some() || state.started.contains(&true) {
            return Err(io::Error::other("rings run, or another state is on its way"));
        }
        let key = self.shared.state_key.clone();
        state.transfer = Some(match direction {
            VhostTransferStateDirection::SAVE => Transfer::save(state.saved(), file, key)?,
            VhostTransferStateDirection::LOAD => Transfer::load(file, key)?,
        });
        Ok(None)
    }

    fn check_device_state(&self) -> io::Result<()> {
        let transfer = lock(&self.shared.state)
            .transfer
            .take()
            .ok_or_else(|| io::Error::other("no state is on its way"))?;
        let finished = transfer.finish().inspect_err(|error| {
            warn!(%error, "the state of a device did not go over");
        });
        if let Some(loaded) = finished? {
            lock(&self.shared.state).load(loaded);
        }
        Ok(())
    }

    fn handle_event(
        &self,
        event: u16,
        _set: EventSet,
        rings: &[VringRwLock],
        _thread: usize,
    ) -> io::Result<()> {
        if event == self.end_event() {
            // The library ends the thread at an error, and only then.
            return Err(io::Error::other("the connection has ended"));
        }
        self.serve(event, rings);
        Ok(())
    }
}
