// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The cards of this machine as one process sees them.
//!
//! ```text
//! not asked ──► Away ──► Up ── event, request without an answer ──► Away ──► Up …
//!    first chunk    start works                                back-off 0.25 s … 60 s
//! ```
//!
//! A server forks its workers after it has loaded its libraries. So the library is opened early, while the process
//! may still open files, and started by the worker's first chunk, in a thread of the worker. A process that inherits
//! a started library from its parent does not use it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant as Time};

use millrace_edge::compression::{Counter, Counters};
use millrace_qat::{
    DEFAULT_FILES, QatError, QatLibrary, QatSession, RestartPauses, drain, has_event, prefer_policy,
};

use super::sys::{self, Answer, Instance, Submitted};
use crate::engine::ChunkEnd;

/// Virtual functions of each card that one process takes. A card has 16, so that 16 workers may use one.
const FUNCTIONS: u16 = 1;

/// Interval at which the library reads the messages of the cards; Intel's programs do it once a second.
const EVENT_INTERVAL: Duration = Duration::from_millis(100);

/// Longest wait of a process's end for the library to stop, which takes 80 ms: a card that is gone makes it wait.
const STOP_TIME: Duration = Duration::from_secs(2);

/// Time for which a thread polls without a pause: a card answers 64 KiB in 0.05 to 0.2 ms.
const SPIN: Duration = Duration::from_micros(100);
/// The pause between two polls after that.
const PAUSE: Duration = Duration::from_micros(50);

/// Intel's libraries.
#[derive(Clone, Debug)]
pub struct CardFiles {
    /// `MILLRACE_QAT_LIBRARY`, else `libqat.so.4`.
    pub library: PathBuf,
    /// `MILLRACE_QAT_MEMORY`, else `libusdm.so.0`.
    pub memory: PathBuf,
}

impl CardFiles {
    /// The variables that name other files than the usual ones.
    pub const VARIABLES: [&str; 2] = ["MILLRACE_QAT_LIBRARY", "MILLRACE_QAT_MEMORY"];

    /// Reads the variables.
    #[must_use]
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let [library, memory] =
            Self::VARIABLES.map(|name| variable(name).filter(|path| !path.is_empty()));
        let [usual_library, usual_memory] = DEFAULT_FILES;
        Self {
            library: library.map_or_else(|| usual_library.into(), PathBuf::from),
            memory: memory.map_or_else(|| usual_memory.into(), PathBuf::from),
        }
    }
}

/// Why a chunk was not compressed by a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declined {
    /// There is no card, it is being started, or it failed.
    Away,
    /// Other threads or processes use all of its instances.
    Busy,
    /// The request got no answer in time.
    Late,
    /// The output would be longer than the room for it.
    Overflow,
    /// The library or the card reported an error.
    Failed(i32),
}

/// The cards. There is one value of it in a process, as there is one library.
pub struct Card {
    library: Arc<QatLibrary>,
    counters: Counters,
    answer_time: Duration,
    report: fn(&str),
    /// The process that started the library; 0 while none has.
    process: AtomicU32,
    state: Mutex<State>,
    changed: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct State {
    running: Option<Arc<Running>>,
    stopped: bool,
}

/// The instances between two starts.
struct Running {
    instances: Vec<Mutex<Instance>>,
    /// An instance did not answer, or an event came: the library is about to stop.
    over: AtomicBool,
}

/// The card of this process, for [`stop_at_exit`].
static CARD: OnceLock<Arc<Card>> = OnceLock::new();

/// A lock that a panic does not poison. `millrace_operation::sync` has it for the crates above `operation`; this crate
/// does not depend on that one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Card(process {})", self.process.load(Ordering::Relaxed))
    }
}

impl Card {
    /// Opens Intel's libraries; starts nothing. Called before the program has other threads that use the environment.
    /// `report` gets each reason why there is no card, once.
    ///
    /// # Errors
    /// [`QatError::InUse`] if this process has opened the libraries already; otherwise why they cannot be used.
    pub fn open(
        files: &CardFiles,
        counters: Counters,
        answer_time: Duration,
        report: fn(&str),
    ) -> Result<Arc<Self>, QatError> {
        let library = sys::open(&files.library, &files.memory, FUNCTIONS)?;
        let card = Arc::new(Self {
            library,
            counters,
            answer_time,
            report,
            process: AtomicU32::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        });
        let kept = CARD.set(Arc::clone(&card));
        kept.map_err(|_| QatError::InUse)?;
        Ok(card)
    }

    /// Compresses a chunk into at most `output.len()` bytes, and returns how many.
    pub(super) fn compress(
        self: &Arc<Self>,
        level: u8,
        input: &[u8],
        end: ChunkEnd,
        output: &mut [u8],
    ) -> Result<usize, Declined> {
        if input.len() > sys::MAX_INPUT_LEN {
            return Err(Declined::Overflow);
        }
        let running = self.running().ok_or(Declined::Away)?;
        let mut free = running.instances.iter().filter_map(|instance| instance.try_lock().ok());
        let mut instance = free.next().ok_or(Declined::Busy)?;
        drop(free);
        // An event may have come while the lock was taken.
        if running.is_over() {
            return Err(Declined::Away);
        }
        match instance.submit(level, input, end) {
            Submitted::Taken => {}
            Submitted::Full => return Err(Declined::Busy),
            Submitted::NotOffered(status) => return Err(Declined::Failed(status)),
            Submitted::Refused(status) => {
                running.over.store(true, Ordering::Release);
                return Err(Declined::Failed(status));
            }
        }
        let start = Time::now();
        let answer = loop {
            if let Some(answer) = instance.poll() {
                break answer;
            }
            let waited = start.elapsed();
            if waited >= self.answer_time {
                // Its memory belongs to the card until the library has stopped.
                running.over.store(true, Ordering::Release);
                self.changed.notify_all();
                return Err(Declined::Late);
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else {
                thread::sleep(PAUSE);
            }
        };
        match answer {
            Answer::Done(length) if length > output.len() => Err(Declined::Overflow),
            Answer::Done(length) => {
                output[..length].copy_from_slice(instance.output(length));
                Ok(length)
            }
            Answer::Overflow => Err(Declined::Overflow),
            Answer::Failed(status) => Err(Declined::Failed(status)),
        }
    }

    /// The instances, in the process that started the library; the first call starts it.
    fn running(self: &Arc<Self>) -> Option<Arc<Running>> {
        let own = std::process::id();
        match self.process.load(Ordering::Acquire) {
            0 => {
                self.begin(own);
                None
            }
            process if process == own => {
                let state = self.state.try_lock().ok()?;
                state.running.clone().filter(|running| !running.is_over())
            }
            // Inherited: its memory does not exist here, and the library believes that it is started.
            _ => None,
        }
    }

    fn begin(self: &Arc<Self>, own: u32) {
        let mine = self.process.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
        if mine.is_err() {
            return;
        }
        // nginx forgets variables that none of its directives names. Its workers have no other thread yet that reads
        // the environment; servers with several threads keep what `open` has set.
        prefer_policy(FUNCTIONS);
        let card = Arc::clone(self);
        match sys::spawn("millrace-qat", move || card.control()) {
            Ok(_) => sys::at_exit(stop_at_exit),
            Err(error) => (self.report)(&QatError::Thread(error.to_string()).to_string()),
        }
    }

    /// The body of the thread that starts and stops the library.
    fn control(self: Arc<Self>) {
        let mut pauses = RestartPauses::default();
        let mut said = String::new();
        let mut starts = 0_u64;
        while !self.is_stopping() {
            let started = Time::now();
            let (served, reason) = match sys::start(&self.library) {
                Ok((session, instances)) => {
                    self.counters.add(Counter::QatRestarts, u64::from(starts > 0));
                    starts += 1;
                    let running = Arc::new(Running {
                        instances: instances.into_iter().map(Mutex::new).collect(),
                        over: AtomicBool::new(false),
                    });
                    lock(&self.state).running = Some(Arc::clone(&running));
                    let reason = self.watch(&running, || session.poll_events());
                    lock(&self.state).running = None;
                    running.over.store(true, Ordering::Release);
                    stop(session, &running);
                    (Some(started.elapsed()), reason)
                }
                Err(error) => (None, error.to_string()),
            };
            if reason != said && !self.is_stopping() {
                (self.report)(&format!("QAT: {reason}; the processor compresses in its place"));
                said = reason;
            }
            self.sleep_until(pauses.after(served, Time::now()), || false);
        }
        lock(&self.state).stopped = true;
        self.changed.notify_all();
    }

    /// Returns when the library must stop, with the reason.
    fn watch(&self, running: &Running, poll_events: impl Fn()) -> String {
        loop {
            self.sleep_until(EVENT_INTERVAL, || running.is_over());
            if self.is_stopping() {
                return "the program ends".to_owned();
            }
            if running.over.load(Ordering::Acquire) {
                return "a card lost or refused a request, and is being started again".to_owned();
            }
            // No thread may poll between the library's reading of an event and our hearing of it.
            let held: Vec<_> = running.instances.iter().map(lock).collect();
            if !has_event() {
                poll_events();
            }
            drop(held);
            if has_event() {
                return "a card reported a failure or a reset, and is being started again"
                    .to_owned();
            }
        }
    }

    fn sleep_until(&self, time: Duration, over: impl Fn() -> bool) {
        let state = lock(&self.state);
        drop(self.changed.wait_timeout_while(state, time, |_| !self.is_stopping() && !over()));
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// Stops the library while no thread is inside it, after the cards have answered what they have. The memory is freed
/// afterwards.
fn stop(session: QatSession, running: &Running) {
    let mut held: Vec<_> = running.instances.iter().map(lock).collect();
    drain(|| {
        // After an event no instance may be polled, and the card does nothing any more.
        let waiting = held.iter_mut().filter(|instance| instance.is_waiting() && !has_event());
        waiting.filter_map(|instance| instance.poll().is_none().then_some(())).count()
    });
    drop(session);
    drop(held);
}

impl Running {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || has_event()
    }
}

/// Stops the library before its own exit handlers run, in the process that started it.
extern "C" fn stop_at_exit() {
    let Some(card) = CARD.get() else { return };
    if card.process.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    card.stopping.store(true, Ordering::Release);
    card.changed.notify_all();
    let state = lock(&card.state);
    drop(card.changed.wait_timeout_while(state, STOP_TIME, |state| !state.stopped));
}
