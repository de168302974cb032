// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether the kernel serves, and by which driver.
//!
//! ```text
//!        the driver is there, and a known answer comes
//!  Away ───────────────────────────────────────────────► Up
//!    ▲    the driver is gone · a call hangs · an error of   │
//!    └─── every call · several errors in a row ─────────────┘
//! ```
//!
//! The kernel computes RSA in portable code when no driver is loaded, and says so to no caller. So one thread looks
//! for the driver once a second, and while the backend is away it asks for the known answer.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread;
use std::time::Duration;

use millrace_engine::backend::{BackendDeviceStatus, Health, Unusable};
use millrace_operation::sync::lock;

use super::callers::{Callers, no_thread};
use super::errors::{Errno, Scope};
use super::keys::{self, CallError, KernelKey};
use super::sys::Calls;
use super::{DriverLookup, KernelTally};
use crate::counters::BackendDeviceCounters;
use crate::known_answer::{KnownAnswer, known_answer};

/// Interval of the looks at the driver: a call may run in the kernel's own code for this long after a driver went.
const INTERVAL: Duration = Duration::from_secs(1);

/// Errors of calls in a row after which the backend is away. Each costs its job a detour.
const MAX_ERRORS: u32 = 8;

/// Health, counters and callers of a backend.
pub(super) struct Watch {
    pub(super) callers: Arc<Callers>,
    /// Shared with requests that were given up, which end after their queue. Lost slots are those of such requests.
    pub(super) counters: Arc<BackendDeviceCounters>,
    pub(super) answer_time: Duration,
    driver: Arc<DriverLookup>,
    health: Mutex<KernelHealth>,
    errors: AtomicU32,
    known: Arc<(KernelKey, KnownAnswer)>,
    /// Whether a request for the known answer has not ended.
    asking: Arc<AtomicBool>,
    /// Its end tells the thread that nothing is left to watch.
    _end: mpsc::Sender<()>,
}

struct KernelHealth {
    health: Health,
    /// The driver that was found last.
    driver: String,
}

impl Watch {
    /// Starts the callers and looks once; from then on a thread looks.
    ///
    /// # Errors
    /// The kernel has no keyrings for this process, or no operations with keys.
    pub(super) fn start(
        calls: Arc<dyn Calls>,
        driver: Arc<DriverLookup>,
        callers: usize,
        answer_time: Duration,
    ) -> Result<Arc<Self>, Unusable> {
        let callers = Arc::new(Callers::start(calls, callers)?);
        let known = known_answer();
        let key = keys::load(&known.pkcs8).map_err(|error| Unusable(error.to_string()))?;
        let key = KernelKey::new(key, &known.pkcs8, Arc::clone(&callers));
        let (end, ended) = mpsc::channel();
        let watch = Arc::new(Self {
            callers,
            counters: Arc::default(),
            answer_time,
            driver,
            health: Mutex::new(KernelHealth {
                health: Health::Away(Unusable("starting".to_owned())),
                driver: String::new(),
            }),
            errors: AtomicU32::new(0),
            known: Arc::new((key, known)),
            asking: Arc::default(),
            _end: end,
        });
        if let Err(error @ Errno(libc::ENOSYS | libc::EOPNOTSUPP | libc::EPERM)) = watch.look() {
            return Err(Unusable(error.to_string()));
        }
        let watched = Arc::downgrade(&watch);
        thread::Builder::new()
            .name("kernel-watch".to_owned())
            .spawn(move || keep_looking(&watched, &ended))
            .map_err(no_thread)?;
        Ok(watch)
    }

    pub(super) fn health(&self) -> Health {
        lock(&self.health).health.clone()
    }

    pub(super) fn is_up(&self) -> bool {
        lock(&self.health).health == Health::Up
    }

    /// Counts a result.
    pub(super) fn served(&self) {
        self.errors.store(0, Ordering::Relaxed);
        self.counters.served.fetch_add(1, Ordering::Relaxed);
    }

    /// Judges an error of a call.
    pub(super) fn failed(&self, error: Errno) {
        match error.scope() {
            Scope::Backend => self.leave(error.to_string()),
            Scope::Quota => {}
            Scope::Key | Scope::Call => {
                let row = self.errors.fetch_add(1, Ordering::Relaxed) + 1;
                if row >= MAX_ERRORS {
                    self.leave(format!("{row} errors in a row: {error}"));
                }
            }
        }
    }

    /// Notes that requests were given up.
    pub(super) fn hangs(&self, requests: usize) {
        self.counters.lost.fetch_add(requests as u64, Ordering::Relaxed);
        self.leave(format!(
            "a call has not returned within {:?}: look at the kernel log and the device",
            self.answer_time
        ));
    }

    fn leave(&self, reason: String) {
        lock(&self.health).health = Health::Away(Unusable(reason));
    }

    /// Looks for the driver, and for the known answer unless the backend is up. The error is that of the known answer.
    fn look(&self) -> Result<(), Errno> {
        match (self.driver)() {
            Ok(driver) => lock(&self.health).driver = driver,
            Err(reason) => {
                self.leave(reason.0);
                return Ok(());
            }
        }
        if self.is_up() {
            return Ok(());
        }
        if self.asking.swap(true, Ordering::AcqRel) {
            return Ok(()); // an earlier one hangs
        }
        let asking = Arc::clone(&self.asking);
        let known = Arc::clone(&self.known);
        let answer = self.callers.ask(self.answer_time, move |calls| {
            let (key, known) = &*known;
            let answer = key.compute(calls, &known.input);
            asking.store(false, Ordering::Release);
            answer
        });
        match answer {
            Some(Ok(answer)) if *answer == self.known.1.answer => {
                self.errors.store(0, Ordering::Relaxed);
                self.counters.starts.fetch_add(1, Ordering::Relaxed);
                lock(&self.health).health = Health::Up;
            }
            Some(Ok(_)) => self.leave("the driver computes a wrong result".to_owned()),
            Some(Err(CallError::Refused)) => {
                self.leave("the driver takes no RSA-2048 key".to_owned());
            }
            Some(Err(CallError::Kernel(error))) => {
                self.leave(error.to_string());
                return Err(error);
            }
            None => self.leave("the driver gives no answer: look at the kernel log".to_owned()),
        }
        Ok(())
    }

    pub(super) fn tally(&self) -> KernelTally {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KernelTally {
            served: count(&self.counters.served),
            faults: count(&self.counters.faults),
            lost: count(&self.counters.lost),
        }
    }

    pub(super) fn device(&self) -> BackendDeviceStatus {
        let KernelHealth { health, driver } = &*lock(&self.health);
        let row = self.counters.status(driver, *health == Health::Up, self.callers.count);
        // Calls that hang keep their callers while the backend is away.
        let slots_lost = self.counters.slots_lost.load(Ordering::Relaxed);
        BackendDeviceStatus { in_flight: self.callers.in_flight(), slots_lost, ..row }
    }
}

/// Looks until the backend is dropped.
fn keep_looking(watched: &Weak<Watch>, ended: &mpsc::Receiver<()>) {
    while ended.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
        let Some(watch) = watched.upgrade() else {
            return;
        };
        // The reason is in the health.
        let _ = watch.look();
    }
}
