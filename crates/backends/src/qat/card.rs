// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The cards of this machine, as one thing that starts, breaks and starts again.
//!
//! One thread controls it: it starts the library, lets it read the messages of the cards, and after a fatal
//! event, a reset or a silent instance it stops the library and starts it again. Queues reach the instances
//! through [`Running`], which is over as soon as something is wrong: then they end their jobs as failed, and
//! the library is not called until it has stopped.
//!
//! ```text
//!          start works                       event, silence, many lost requests
//!  Away ──────────────► Running (number n) ──────────────────────────────────► Away ──► Running (n + 1)
//!    ▲  back-off 0.25 s … 60 s │
//!    └─────────────────────────┘
//! ```
//!
//! A start is complete when the library has reported what it kept from an earlier session, and each instance has
//! computed a known answer.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millrace_engine::backend::BackendDeviceStatus;
use millrace_operation::sync::lock;
use millrace_qat::{QatError, QatLibrary, RestartPauses, drain};

use super::error::CardError;
use super::known_answer::{self, OWNER};
use super::sys::{self, Answer, Ring, Session};
use crate::counters::BackendDeviceCounters;

/// Most queues of one instance: eight workers keep its 63 slots busy.
pub(super) const SEATS: usize = 8;

/// Interval at which the library reads the messages of the cards. Intel's programs do it once a second; requests in
/// flight at a reset wait for this.
const EVENT_INTERVAL: Duration = Duration::from_millis(20);

/// Most starts of the library until nothing of an earlier session is left in it. A failure with requests in flight
/// makes the next session fail, too, and the end of a reset is reported to the next session.
const MAX_STARTS: u32 = 4;

/// Time that the known answer may take, in answer times: a card that has just been started is slower.
const KNOWN_ANSWER_TIMES: u32 = 10;

/// An instance that owes answers and gives none for this long is restarted.
const SILENCE: Duration = Duration::from_secs(2);

/// Time without an answer after a lost request from which an instance takes no tasks: one that is busy answers others
/// within a millisecond.
const SILENT_AFTER: Duration = Duration::from_millis(10);

/// Interval at which a silent instance is asked for the known answer: one that lost a single request takes tasks again
/// when it comes.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// Lost slots of one instance that are worth a restart, which costs all instances a quarter of a second.
const MANY_LOST: usize = sys::SLOTS / 4;

/// One backend per process: the library has one state.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Location of the library, and the devices that it may take.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) library: PathBuf,
    pub(super) memory: PathBuf,
    /// Virtual functions of each card.
    pub(super) functions: u16,
    /// Time for an answer to a request with a key of 2048 bits.
    pub(super) answer_time: Duration,
    /// Bus addresses of the virtual functions to use, of those that the library takes. All if this is empty.
    pub(super) only: Vec<String>,
}

impl Settings {
    /// Whether an instance of this virtual function may be used. The library tells no PCI domain.
    fn admits(&self, function: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|address| address.ends_with(function))
    }
}

/// The counters of all instances that the process has used, by name. Bounded by the machine's instances.
type AllCounters = BTreeMap<String, Arc<BackendDeviceCounters>>;

pub(super) struct Cards {
    pub(super) library: Arc<QatLibrary>,
    restarts: AtomicU64,
    counters: Mutex<AllCounters>,
    settings: Settings,
    state: Mutex<State>,
    changed: Condvar,
    stopping: AtomicBool,
    control: Mutex<Option<JoinHandle<()>>>,
}

enum State {
    /// The library has not been started yet.
    Starting,
    /// There is no instance, for this reason.
    Away(CardError),
    Up(Arc<Running>),
}

/// The instances between two starts.
pub(super) struct Running {
    /// Number of this start, from 1.
    pub(super) number: u64,
    pub(super) instances: Vec<Instance>,
    /// The library is about to stop, or has stopped.
    over: AtomicBool,
    restart_wanted: AtomicBool,
}

/// One instance, shared by up to [`SEATS`] queues. A request has the seat of its queue, and its number there.
pub(super) struct Instance {
    pub(super) counters: Arc<BackendDeviceCounters>,
    /// Bus address of its virtual function, and its number in it.
    pub(super) name: String,
    ring: Mutex<Ring>,
    /// Answers that one queue has collected for another, by seat.
    inboxes: Mutex<HashMap<usize, Inbox>>,
    seats: AtomicUsize,
    next_seat: AtomicUsize,
    /// Time since which it owes answers without giving any, in milliseconds of `clock`; 0 if it owes none.
    silent_since_ms: AtomicU64,
    /// Time at which it was last asked for the known answer, in milliseconds of `clock`.
    asked_ms: AtomicU64,
    clock: Instant,
}

type Inbox = Vec<Answer<(usize, u64)>>;

impl Cards {
    /// Opens the library, tries to start it, and keeps trying in its own thread.
    ///
    /// # Errors
    /// The library cannot be used, or another backend of this process uses it.
    pub(super) fn open(settings: Settings) -> Result<Arc<Self>, QatError> {
        let library = sys::open(&settings.library, &settings.memory, settings.functions)?;
        if IN_USE.swap(true, Ordering::AcqRel) {
            return Err(QatError::InUse);
        }
        let card = Arc::new(Self {
            library,
            settings,
            restarts: AtomicU64::new(0),
            counters: Mutex::default(),
            state: Mutex::new(State::Starting),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
            control: Mutex::default(),
        });
        let controlled = Arc::clone(&card);
        let thread = thread::Builder::new()
            .name("mr-qat".to_owned())
            .spawn(move || controlled.control())
            .map_err(|error| QatError::Thread(error.to_string()))?;
        *lock(&card.control) = Some(thread);
        card.wait_for_first_start();
        Ok(card)
    }

    /// Ends the thread of control, which stops the library.
    pub(super) fn close(&self) {
        self.stopping.store(true, Ordering::Release);
        self.changed.notify_all();
        if let Some(thread) = lock(&self.control).take() {
            // A panic in it has been reported.
            let _ = thread.join();
        }
    }

    /// The instances, or why there are none at present.
    pub(super) fn running(&self) -> Result<Arc<Running>, CardError> {
        match &*lock(&self.state) {
            State::Up(running) => Ok(Arc::clone(running)),
            State::Starting => Err(CardError::NotStarted),
            State::Away(reason) => Err(reason.clone()),
        }
    }

    /// Starts of the library after the first.
    pub(super) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// All instances that the process has used, with their counters.
    pub(super) fn devices(&self) -> Vec<BackendDeviceStatus> {
        let running = self.running().ok().filter(|running| !running.is_over());
        let mut devices = Vec::new();
        for (name, counters) in &*lock(&self.counters) {
            let mut instances = running.iter().flat_map(|running| &running.instances);
            let serving = instances.any(|instance| instance.name == *name && !instance.is_silent());
            let status = counters.status(name, serving, sys::SLOTS);
            // The library starts all instances at once.
            devices.push(BackendDeviceStatus { restarts: self.restarts(), ..status });
        }
        devices
    }

    /// Time for an answer with a modulus of this length, in bytes: it grows with the cube.
    pub(super) fn answer_time(&self, modulus_len: usize) -> Duration {
        let size = u32::try_from(modulus_len / 256).unwrap_or(1).clamp(1, 4);
        self.settings.answer_time * size.pow(3)
    }

    fn wait_for_first_start(&self) {
        let state = lock(&self.state);
        drop(self.changed.wait_while(state, |state| matches!(state, State::Starting)));
    }

    fn set(&self, state: State) {
        *lock(&self.state) = state;
        self.changed.notify_all();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The body of the thread of control.
    fn control(&self) {
        let mut pauses = RestartPauses::default();
        let mut number = 0;
        while !self.is_stopping() {
            let started = Instant::now();
            let served = match self.start(number + 1) {
                Ok((session, running)) => {
                    number += 1;
                    self.restarts.store(number - 1, Ordering::Relaxed);
                    self.set(State::Up(Arc::clone(&running)));
                    let reason = self.watch(&session, &running);
                    running.over.store(true, Ordering::Release);
                    self.set(State::Away(reason));
                    stop(session, &running);
                    Some(started.elapsed())
                }
                Err(reason) => {
                    self.set(State::Away(reason));
                    None
                }
            };
            self.sleep(pauses.after(served, Instant::now()));
        }
        IN_USE.store(false, Ordering::Release);
    }

    /// Starts the library, until nothing of an earlier session is left in it.
    fn start(&self, number: u64) -> Result<(Session, Arc<Running>), CardError> {
        let mut files = std::fs::read_dir("/dev/vfio").into_iter().flatten().flatten();
        // The groups of functions have numbers as names.
        if !files
            .any(|file| file.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit))
        {
            return Err(CardError::NoFunction);
        }
        let mut reason = CardError::NotStarted;
        for _ in 0..MAX_STARTS {
            let (session, mut rings) = Session::start(&self.library)?;
            rings.retain(|ring| self.settings.admits(&ring.function));
            match self.wait_until_started(&session, &mut rings) {
                Ok(()) => return Ok((session, Arc::new(self.running_of(number, rings)))),
                Err(why) => reason = why,
            }
            let mut all: Vec<&mut Ring> = rings.iter_mut().collect();
            drain(|| poll_late(&mut all));
            rings.iter_mut().for_each(Ring::stop);
            // The library first: it may still write into the rings' memory.
            drop(session);
            drop(rings);
            if self.is_stopping() {
                break;
            }
        }
        Err(reason)
    }

    fn running_of(&self, number: u64, rings: Vec<Ring>) -> Running {
        let mut all = lock(&self.counters);
        let mut instances = Vec::new();
        for ring in rings {
            let counters = all.entry(ring.name.clone()).or_default();
            instances.push(Instance::new(ring, Arc::clone(counters)));
        }
        Running {
            number,
            instances,
            over: AtomicBool::new(false),
            restart_wanted: AtomicBool::new(false),
        }
    }

    /// Lets the library report what it kept from an earlier session, and has each instance compute a known answer,
    /// before a job depends on it.
    fn wait_until_started(&self, session: &Session, rings: &mut [Ring]) -> Result<(), CardError> {
        if rings.is_empty() {
            return Err(CardError::NotAdmitted(self.settings.only.join(", ")));
        }
        session.poll_events();
        if sys::is_broken() {
            return Err(CardError::EventAtStart);
        }
        let limit = self.settings.answer_time * KNOWN_ANSWER_TIMES;
        for ring in rings {
            if !ring.runs() {
                return Err(CardError::InError(ring.name.clone()));
            }
            known_answer::check(&self.library, ring, limit)?;
        }
        Ok(())
    }

    /// Returns when the library must stop, with the reason.
    fn watch(&self, session: &Session, running: &Running) -> CardError {
        loop {
            self.sleep(EVENT_INTERVAL);
            if self.is_stopping() {
                return CardError::Closed;
            }
            if !poll_events(session, running) {
                return CardError::Event;
            }
            if running.restart_wanted.load(Ordering::Acquire) {
                return CardError::Requests;
            }
            for instance in &running.instances {
                instance.ask_if_silent(&self.library);
                if instance.is_silent_for(SILENCE) {
                    return CardError::Silent(instance.name.clone());
                }
            }
        }
    }

    fn sleep(&self, time: Duration) {
        let state = lock(&self.state);
        drop(self.changed.wait_timeout_while(state, time, |_| !self.is_stopping()));
    }
}

/// Lets the library read the messages of the cards, and returns whether all instances still run. Where one does not,
/// all of them are stopped before a queue has its ring again: the library reports no second failure, and polled in
/// its state of error it crashes (24.02).
fn poll_events(session: &Session, running: &Running) -> bool {
    let mut rings = running.lock_rings();
    session.poll_events();
    let run = rings.iter().all(|ring| ring.runs());
    if !run {
        rings.iter_mut().for_each(|ring| ring.stop());
    }
    run
}

/// Collects answers whose tasks have ended, and returns the number of requests without one. A card that has failed has
/// none.
fn poll_late(rings: &mut [&mut Ring]) -> usize {
    let mut late = Vec::new();
    rings.iter_mut().for_each(|ring| ring.poll(&mut late));
    let alive = rings.iter().filter(|ring| ring.is_alive());
    alive.map(|ring| ring.in_flight()).sum()
}

/// Stops the library while no thread is inside it: each ring is locked. Their memory is freed later, with the
/// last queue.
fn stop(session: Session, running: &Running) {
    let mut rings = running.lock_rings();
    let mut all: Vec<&mut Ring> = rings.iter_mut().map(|ring| &mut **ring).collect();
    drain(|| poll_late(&mut all));
    rings.iter_mut().for_each(|ring| ring.stop());
    drop(session);
    drop(rings);
}

impl Running {
    fn lock_rings(&self) -> Vec<MutexGuard<'_, Ring>> {
        let instances = self.instances.iter();
        instances.map(|instance| lock(&instance.ring)).collect()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || sys::is_broken()
    }

    /// Asks the thread of control to stop and start the library.
    pub(super) fn want_restart(&self) {
        self.restart_wanted.store(true, Ordering::Release);
    }

    /// Takes a seat at the instance with the fewest queues; `None` if all are taken.
    pub(super) fn take_seat(&self) -> Option<(usize, usize)> {
        let instances = self.instances.iter().enumerate();
        let (index, instance) =
            instances.min_by_key(|(_, instance)| instance.seats.load(Ordering::Relaxed))?;
        if instance.seats.fetch_add(1, Ordering::Relaxed) >= SEATS {
            instance.seats.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        // Never used again: an answer for a queue that is gone must not reach another.
        let seat = instance.next_seat.fetch_add(1, Ordering::Relaxed);
        Some((index, seat))
    }
}

impl Instance {
    fn new(ring: Ring, counters: Arc<BackendDeviceCounters>) -> Self {
        Self {
            counters,
            name: ring.name.clone(),
            ring: Mutex::new(ring),
            inboxes: Mutex::default(),
            seats: AtomicUsize::new(0),
            next_seat: AtomicUsize::new(0),
            silent_since_ms: AtomicU64::new(0),
            asked_ms: AtomicU64::new(0),
            clock: Instant::now(),
        }
    }

    /// The ring, unless another thread has it: a queue looks again later.
    pub(super) fn try_ring(&self) -> Option<MutexGuard<'_, Ring>> {
        match self.ring.try_lock() {
            Ok(ring) => Some(ring),
            Err(std::sync::TryLockError::Poisoned(ring)) => Some(ring.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Collects answers, those of other queues into their inboxes, and returns those of this seat.
    pub(super) fn collect(&self, seat: usize) -> Inbox {
        let mut own = lock(&self.inboxes).get_mut(&seat).map(std::mem::take).unwrap_or_default();
        let Some(mut ring) = self.try_ring() else {
            return own;
        };
        let mut answers = Vec::new();
        let before = ring.in_flight();
        ring.poll(&mut answers);
        // A late answer, which has no owner any more, counts as well.
        let answered = ring.in_flight() < before;
        self.note(&ring);
        drop(ring);
        if answered {
            self.silent_since_ms.store(0, Ordering::Relaxed);
        }
        let mut inboxes = None;
        for answer in answers {
            if answer.owner.0 == seat {
                own.push(answer);
            } else {
                let inboxes = inboxes.get_or_insert_with(|| lock(&self.inboxes));
                inboxes.entry(answer.owner.0).or_default().push(answer);
            }
        }
        own
    }

    /// Requests of a queue were not answered in time.
    pub(super) fn lose(&self, running: &Running, seat: usize, requests: &[u64]) {
        let mut ring = lock(&self.ring);
        ring.forget(|owner| owner.0 == seat && requests.contains(&owner.1));
        if ring.lost() >= MANY_LOST {
            running.want_restart();
        }
        self.note(&ring);
        drop(ring);
        let counted = requests.len() as u64;
        self.counters.lost.fetch_add(counted, Ordering::Relaxed);
        let now = self.now_ms();
        let _ = self.silent_since_ms.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes what the ring holds, for the metrics.
    pub(super) fn note(&self, ring: &Ring) {
        let BackendDeviceCounters { in_flight, slots_lost, .. } = &*self.counters;
        in_flight.store(ring.in_flight(), Ordering::Relaxed);
        slots_lost.store(ring.lost(), Ordering::Relaxed);
    }

    /// Whether the instance has lost a request and has answered nothing for some time since. It takes no tasks then.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent_for(SILENT_AFTER)
    }

    fn is_silent_for(&self, time: Duration) -> bool {
        let since = self.silent_since_ms.load(Ordering::Relaxed);
        since != 0 && Duration::from_millis(self.now_ms().saturating_sub(since)) >= time
    }

    /// Asks a silent instance for the known answer now and then, and looks for answers: no queue may be polling it any
    /// more.
    fn ask_if_silent(&self, library: &Arc<QatLibrary>) {
        if !self.is_silent() {
            return;
        }
        drop(self.collect(OWNER.0));
        let asked = Duration::from_millis(self.asked_ms.load(Ordering::Relaxed));
        let now = Duration::from_millis(self.now_ms());
        if !self.is_silent() || now.saturating_sub(asked) < ASK_INTERVAL {
            return;
        }
        let Some(mut ring) = self.try_ring() else {
            return;
        };
        self.asked_ms.store(self.now_ms(), Ordering::Relaxed);
        // One that did not arrive after a request is lost. An instance that refuses requests is restarted after
        // `SILENCE`.
        ring.forget(|owner| *owner == OWNER);
        let _ = known_answer::ask(library, &mut ring);
        self.note(&ring);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// A queue is gone: its requests are answered to no one.
    pub(super) fn leave(&self, seat: usize) {
        lock(&self.ring).forget(|owner| owner.0 == seat);
        lock(&self.inboxes).remove(&seat);
        self.seats.fetch_sub(1, Ordering::Relaxed);
    }
}
