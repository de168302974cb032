// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The rings of one device. One thread serves all of them: it reads requests, computes symmetric work in place,
//! submits private-key jobs in batches, and writes answers. Workers of the engine only put completions into the
//! mailbox.
//!
//! The last ring is the control queue. Answers of one pass are announced by one interrupt per ring, and by none if the
//! driver asked so by its event index.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_engine::{Completion, CompletionSink};
use millrace_operation::sync::lock;
use millrace_service::sink::{Order, SessionSink};
use tracing::{debug, error, info, warn};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserProtocolFeatures,
    VhostUserVirtioFeatures,
};
use vhost_user_backend::{VhostUserBackend, VringEpollHandler, VringRwLock, VringState, VringT};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueT;
use vm_memory::{GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};
use vmm_sys_util::timerfd::TimerFd;

use super::chain::{self, Chain, MemorySnapshot, Room};
use super::journal::{Journal, MAX_ATTEMPTS};
use super::migration::{MigrationState, Transfer};
use super::scratch::Scratch;
use super::{MAX_DATA_QUEUES, MAX_QUEUE_SIZE};
use crate::device::{
    ControlOutcome, DataAnswer, DataOutcome, DataToken, Device, DeviceLimits, JOB_TIMEOUT, ReadGate,
};
use crate::spec::{Status, config_space, feature};

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// Requests of one ring that are handled before their private-key jobs are submitted. More would delay the first
/// job, fewer would cost more calls of the engine.
const BATCH: usize = 64;

/// Number of answers that are announced at once while the rest of a batch is computed, so that the driver does not wait
/// for the whole batch.
const ANNOUNCED: usize = 16;

/// The mailbox of a device: completions from the engine's workers.
pub(super) struct Mailbox {
    completions: Mutex<Vec<Completion>>,
    draining: AtomicBool,
    notify: EventNotifier,
}

impl Mailbox {
    /// A mailbox, and the event that tells of new mail.
    pub(super) fn new() -> io::Result<(Arc<Self>, EventConsumer)> {
        let (consumer, notify) =
            new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC)?;
        let mailbox =
            Self { completions: Mutex::default(), draining: AtomicBool::new(false), notify };
        Ok((Arc::new(mailbox), consumer))
    }

    /// Makes the thread of the rings look at everything.
    pub(super) fn wake(&self) {
        // Fails only if the counter of the event is full, and then the thread is awake.
        let _ = self.notify.notify();
    }

    fn take(&self) -> Vec<Completion> {
        mem::take(&mut *lock(&self.completions))
    }
}

impl CompletionSink for Mailbox {
    fn complete(&self, completions: &mut Vec<Completion>) {
        let mut waiting = lock(&self.completions);
        let first = waiting.is_empty();
        waiting.append(completions);
        drop(waiting);
        if first {
            self.wake();
        }
    }
}

impl SessionSink for Mailbox {
    fn order(&self, order: Order) {
        if order != Order::Serve {
            self.draining.store(true, Ordering::Release);
            self.wake();
        }
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mailbox")
    }
}

/// The vhost-user backend of one connection. Cheap to clone.
#[derive(Clone)]
pub(super) struct Backend {
    shared: Arc<Shared>,
}

struct Shared {
    data_queues: u16,
    state: Mutex<State>,
    /// Notified when an answer was written, for [`Backend::stop_vring`].
    answered: Condvar,
    mailbox: Arc<Mailbox>,
    mail: EventConsumer,
    timer: Mutex<TimerFd>,
    draining: Arc<AtomicBool>,
    /// Ends the thread of the rings. The library's own exit event leaks a descriptor per connection.
    end: (EventConsumer, EventNotifier),
}

struct State {
    device: Device,
    memory: Option<Memory>,
    waiting: HashMap<DataToken, PendingRequest>,
    journal: Journal,
    /// Whether the journal of an earlier process was read.
    is_taken: bool,
    /// The sessions of a former process are still to be made again.
    restore: bool,
    /// Whether requests of a ring were read since it was started.
    started: Vec<bool>,
    /// The position of the control ring after the last pass over it.
    control_position: u16,
    scratch: Scratch,
    /// The features that the driver acknowledged.
    features: u64,
    /// A state on its way from or to the monitor.
    transfer: Option<Transfer>,
}

/// A data request without an answer.
struct PendingRequest {
    queue: usize,
    head: u16,
    room: Room,
}

/// A request whose answer is in the guest's memory: an entry for the used ring (virtio 1.3, section 2.7.8).
struct Used {
    queue: usize,
    /// Index of the first descriptor.
    head: u16,
    /// Bytes written.
    len: u32,
}

impl Backend {
    /// A backend for the device. While `draining` is set, its status lacks `HW_READY`.
    pub(super) fn new(
        device: Device,
        data_queues: u16,
        mailbox: Arc<Mailbox>,
        mail: EventConsumer,
        journal: Journal,
        draining: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let data_queues = data_queues.clamp(1, MAX_DATA_QUEUES);
        let state = State {
            is_taken: false,
            restore: false,
            journal,
            started: vec![false; usize::from(data_queues) + 1],
            device,
            memory: None,
            waiting: HashMap::new(),
            control_position: 0,
            scratch: Scratch::default(),
            features: 0,
            transfer: None,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                data_queues,
                state: Mutex::new(state),
                answered: Condvar::new(),
                mailbox,
                mail,
                timer: Mutex::new(TimerFd::new()?),
                draining,
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
            // A driver that starts over starts a fresh ring, and no other message tells of it. A machine that was
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
        mut state: MutexGuard<'_, State>,
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
    fn announce(&self, state: &State, done: &[Used], rings: &[VringRwLock]) {
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

impl State {
    /// Called before requests of a ring are read. When the ring has just been started and a former process died while
    /// it served the ring, the requests that were under way are returned with the number of attempts that were made:
    /// each is read again from the guest's memory, where it is until its answer is in the used ring.
    fn start(
        &mut self,
        queue: usize,
        ring: &VringRwLock,
        memory: &MemorySnapshot,
    ) -> Vec<(Chain, u64)> {
        // A ring that is stopped has no requests, unless a former process has left some.
        let is_running = ring.get_ref().get_queue().ready() || self.journal.is_running(queue);
        if !is_running || mem::replace(&mut self.started[queue], true) {
            return Vec::new();
        }
        self.restore_sessions();
        let Ok(used) = ring.queue_used_idx() else {
            return Vec::new();
        };
        if !self.journal.started(queue, used) {
            return Vec::new();
        }
        let unfinished = self.journal.unfinished(queue, used);
        let mut guard = ring.get_mut();
        let kept = guard.get_queue_mut();
        let under_way = u16::try_from(unfinished.len()).unwrap_or(MAX_QUEUE_SIZE);
        kept.set_next_avail(used.wrapping_add(under_way));
        kept.set_next_used(used);
        info!(queue, requests = under_way, "a ring of a former process continues");
        let heads: Vec<u16> = unfinished.iter().map(|request| request.head).collect();
        let chains = chain::read_again(kept, memory, &heads).unwrap_or_else(|| {
            error!(queue, "requests of a former process cannot be read again");
            Vec::new()
        });
        let attempts = unfinished.into_iter().map(|request| request.attempts);
        chains.into_iter().zip(attempts).collect()
    }

    /// Looks once what a former process has left of the connection.
    fn take_connection(&mut self) {
        if !mem::replace(&mut self.is_taken, true) {
            let rings = u16::try_from(self.started.len()).unwrap_or(u16::MAX);
            self.restore = self.journal.take_connection(rings);
        }
    }

    /// The sessions, for another host.
    fn saved(&mut self) -> MigrationState {
        let (next, mut sessions) = self.journal.sessions();
        sessions.sort_unstable_by_key(|(id, _)| *id);
        MigrationState { features: self.features, next, sessions }
    }

    /// Takes the sessions of another host. They are made when the first ring starts, as those of a former process.
    fn load(&mut self, loaded: MigrationState) {
        self.take_connection();
        self.device.clear_sessions();
        self.journal.end_sessions();
        let MigrationState { features: _, next, sessions } = loaded;
        info!(sessions = sessions.len(), "a device of another host continues here");
        for (id, request) in &sessions {
            self.journal.session_created(*id, request);
        }
        self.journal.continue_at(next);
        self.restore = true;
    }

    /// Makes the sessions of a former process again.
    fn restore_sessions(&mut self) {
        if !mem::take(&mut self.restore) {
            return;
        }
        let now = Instant::now();
        let (next, sessions) = self.journal.sessions();
        for (id, request) in sessions {
            let device = &mut self.device;
            let made =
                panic::catch_unwind(AssertUnwindSafe(|| device.restore(id, next, &request, now)));
            if !made.unwrap_or(false) {
                warn!(session = id, "a session of a former process is lost");
                self.journal.session_ended(id);
            }
        }
    }

    /// Puts an answered request into its ring.
    fn add_used(&self, queue: usize, ring: &mut VringState, head: u16, len: u32) {
        self.journal.answering(queue, head);
        if let Err(error) = ring.add_used(head, len) {
            warn!(%error, "cannot answer a request");
        }
        let used = ring.get_queue().next_used();
        self.journal.answered(queue, head, used);
    }

    /// Handles one data request; `None` if its answer comes later.
    fn data(
        &mut self,
        queue: usize,
        chain: Chain,
        attempts: u64,
        memory: &MemorySnapshot,
        now: Instant,
    ) -> Option<Used> {
        let head = chain.head_index();
        self.journal.began(queue, head, attempts);
        let mut scratch = mem::take(&mut self.scratch);
        let good = scratch.parts.take(chain) && scratch.parts.room.len() > 0;
        let outcome = if attempts >= MAX_ATTEMPTS {
            error!("a request was under way when two processes died; it is answered with an error");
            DataOutcome::failed()
        } else if good {
            let device = &mut self.device;
            panic::catch_unwind(AssertUnwindSafe(|| scratch.handle(device, memory, now)))
                .unwrap_or_else(|_| {
                    error!("a data request made the device panic; it is answered with an error");
                    DataOutcome::failed()
                })
        } else {
            self.device.count_malformed();
            DataOutcome::failed()
        };
        let room = &mut scratch.parts.room;
        let len = match outcome {
            DataOutcome::Done(answer) => Some(room.data(&**memory, &answer.result, answer.status)),
            DataOutcome::InRequest(place) => {
                Some(room.data(&**memory, &scratch.request[place], Status::Ok))
            }
            DataOutcome::Written(len) => Some(room.status(&**memory, len, Status::Ok)),
            DataOutcome::Pending(token) => {
                self.waiting.insert(token, PendingRequest { queue, head, room: mem::take(room) });
                None
            }
        };
        self.scratch = scratch;
        len.map(|len| Used { queue, head, len })
    }

    /// Handles one control request.
    fn control(
        &mut self,
        queue: usize,
        chain: Chain,
        attempts: u64,
        memory: &MemorySnapshot,
        ring: &VringRwLock,
    ) {
        let head = chain.head_index();
        self.journal.began(queue, head, attempts);
        // Keys do not stay in a buffer.
        let mut request = zeroize::Zeroizing::new(Vec::new());
        let parts = &mut self.scratch.parts;
        let len = parts.take(chain).then(|| parts.read(&**memory, &mut request)).flatten();
        let outcome = match len {
            Some(_) if attempts < MAX_ATTEMPTS => {
                let device = &mut self.device;
                let handled = panic::catch_unwind(AssertUnwindSafe(|| {
                    device.control(&request, Instant::now())
                }));
                handled.unwrap_or_else(|_| {
                    error!("a control request made the device panic; it is answered with an error");
                    ControlOutcome::failed(&request)
                })
            }
            Some(_) => ControlOutcome::failed(&request),
            None => {
                self.device.count_malformed();
                ControlOutcome::failed(&[])
            }
        };
        for id in outcome.ended {
            self.journal.session_ended(id);
        }
        if let Some(id) = outcome.created {
            self.journal.session_created(id, &request);
        }
        let used = self.scratch.parts.room.control(&**memory, &outcome.answer);
        self.add_used(queue, &mut ring.get_mut(), head, used);
    }

    /// Writes answers to guest memory, and appends their requests to `done`.
    fn note_used(
        &mut self,
        memory: &MemorySnapshot,
        answers: Vec<(DataToken, DataAnswer)>,
        done: &mut Vec<Used>,
    ) {
        for (token, answer) in answers {
            if let Some(PendingRequest { queue, head, room }) = self.waiting.remove(&token) {
                let len = room.data(&**memory, &answer.result, answer.status);
                done.push(Used { queue, head, len });
            }
        }
    }
}

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
        let ready = !self.shared.draining.load(Ordering::Acquire)
            && !self.shared.mailbox.draining.load(Ordering::Acquire);
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
        let under_way = |state: &mut State| {
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
        state.transfer = Some(match direction {
            VhostTransferStateDirection::SAVE => Transfer::save(state.saved(), file)?,
            VhostTransferStateDirection::LOAD => Transfer::load(file)?,
        });
        Ok(None)
    }

    fn check_device_state(&self) -> io::Result<()> {
        let transfer = lock(&self.shared.state).transfer.take();
        let transfer = transfer.ok_or_else(|| io::Error::other("no state is on its way"))?;
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
