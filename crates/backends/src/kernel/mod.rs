// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA private operations on accelerators with a driver in the Linux kernel: virtio-crypto, Intel QAT, HiSilicon HPRE,
//! NXP CAAM and others, through `keyctl`. `docs/backends/kernel.md` says what a machine needs, and when not to use it.
//!
//! | file | contents |
//! |---|---|
//! | `capabilities.rs` | the operations and sizes, as data |
//! | `callers.rs` | the threads that block in system calls, and whose keyring it is |
//! | `errors.rs` | errors of the kernel, and what to do |
//! | `keys.rs` | keys on the host and in the kernel |
//! | `queue.rs` | the hot path |
//! | `sys.rs` | the system calls |
//! | `watch.rs` | whether a driver serves |
//!
//! **One operation.** Of the operations of `keyctl` only decryption without padding is used (`x^d mod n`): the host
//! pads, blinds and verifies, as for `qat` (ADR 36). The kernel's own padding has no PSS and no OAEP, and neither it
//! nor the drivers blind.
//!
//! **Faults.** A wrong result ends as [`Fault`](millrace_engine::BackendError::Fault). A call that does not return in
//! time, and an error, end as [`Failed`](millrace_engine::BackendError::Failed); after some of them the backend is
//! away until the kernel has computed a known answer.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_engine::backend::{
    Backend, BackendDeviceStatus, BackendKey, Capability, Description, Health, OpenedKey, Queue,
    Unusable,
};
use millrace_operation::{BackendKind, KeyError, PrivateKey};

mod callers;
mod capabilities;
mod errors;
mod keys;
mod queue;
#[expect(unsafe_code, reason = "makes system calls")]
mod sys;
#[cfg(test)]
mod tests;
mod watch;

use crate::key_table::{KeyTable, MAX_KEYS};
use errors::Scope;
use keys::{CallError, KernelKey};
use queue::KernelQueue;
use sys::{Calls, Keyctl};
use watch::Watch;

/// Threads that make calls, and so requests in flight at most. QEMU's backend for the same interface
/// (`cryptodev-lkcf`) has as many.
const CALLERS: usize = 64;

/// Time for an answer: a thousand times what drivers need, and less than the deadlines of jobs.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Counters over all queues of a backend since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelTally {
    /// Tasks that ended with a verified result.
    pub served: u64,
    /// Results that failed verification.
    pub faults: u64,
    /// Requests that were not answered in time.
    pub lost: u64,
}

/// Names the driver that serves RSA, or says why none does.
type DriverLookup = dyn Fn() -> Result<String, Unusable> + Send + Sync;

/// The kernel backend.
pub struct Kernel {
    calls: Arc<dyn Calls>,
    driver: Arc<DriverLookup>,
    answer_time: Duration,
    /// Started by the probe.
    watch: OnceLock<Result<Arc<Watch>, Unusable>>,
    keys: Arc<KeyTable<KernelKey>>,
}

impl Kernel {
    /// Makes a backend without keys. `driver` names the driver that the kernel prefers for RSA, or says why the backend
    /// must not be used, for instance because it is portable code; it is called once a second.
    #[must_use]
    pub fn new(driver: impl Fn() -> Result<String, Unusable> + Send + Sync + 'static) -> Self {
        Self::on(Arc::new(Keyctl), Arc::new(driver))
    }

    fn on(calls: Arc<dyn Calls>, driver: Arc<DriverLookup>) -> Self {
        Self {
            calls,
            driver,
            answer_time: ANSWER_TIME,
            watch: OnceLock::new(),
            keys: Arc::new(KeyTable::new(MAX_KEYS)),
        }
    }

    /// Sets how long a call may take.
    #[must_use]
    pub fn answer_time(mut self, time: Duration) -> Self {
        self.answer_time = time;
        self
    }

    /// Returns the counters over all queues.
    #[must_use]
    pub fn tally(&self) -> KernelTally {
        self.watched().map_or_else(KernelTally::default, |watch| watch.tally())
    }

    /// The watch, if a probe has started it.
    fn watched(&self) -> Option<&Arc<Watch>> {
        self.watch.get()?.as_ref().ok()
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} keys)", self.keys.len())
    }
}

impl Backend for Kernel {
    fn describe(&self) -> Description {
        Description {
            kind: BackendKind::Kernel,
            version: "Linux keyctl".to_owned(),
            on_cpu: false,
            batch: 1,
        }
    }

    fn capabilities(&self) -> &[Capability] {
        capabilities::CAPABILITIES
    }

    /// Succeeds without a driver, too: it may come later.
    fn probe(&self) -> Result<(), Unusable> {
        let started = self.watch.get_or_init(|| {
            let calls = Arc::clone(&self.calls);
            Watch::start(calls, Arc::clone(&self.driver), CALLERS, self.answer_time)
        });
        started.as_ref().map(|_| ()).map_err(Unusable::clone)
    }

    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
        let pkcs8 = key.dangerous_pkcs8();
        let rsa = keys::load(pkcs8)?;
        let watch = self.watched().ok_or(KeyError::NotOffered)?;
        let info = rsa.info().clone();
        let callers = Arc::clone(&watch.callers);
        let name = self.keys.insert(KernelKey::new(rsa, pkcs8, callers))?;
        // Tells at once of a key that the driver does not take. While the backend is away, the first request does.
        if watch.is_up()
            && let Some(key) = self.keys.find(name)
        {
            let added = watch.callers.ask(self.answer_time, move |calls| key.serial(calls));
            let refused = match added {
                Some(Err(CallError::Refused)) => Some(KeyError::NotOffered),
                Some(Err(CallError::Kernel(error))) if error.scope() == Scope::Quota => {
                    Some(KeyError::TooMany)
                }
                _ => None,
            };
            if let Some(error) = refused {
                self.keys.remove(name);
                return Err(error);
            }
        }
        Ok(OpenedKey { key: name, info })
    }

    fn close_key(&self, key: BackendKey) {
        self.keys.remove(key);
    }

    fn health(&self) -> Health {
        match self.watch.get() {
            Some(Ok(watch)) => watch.health(),
            Some(Err(reason)) => Health::Away(reason.clone()),
            None => Health::Away(Unusable("not started".to_owned())),
        }
    }

    fn devices(&self) -> Vec<BackendDeviceStatus> {
        self.watched().map(|watch| watch.device()).into_iter().collect()
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        let watch = match self.watch.get() {
            Some(started) => started.as_ref().map_err(Unusable::clone)?,
            None => return Err(Unusable("not started".to_owned())),
        };
        let watch = Arc::clone(watch);
        let keys = Arc::clone(&self.keys);
        Ok(Box::new(KernelQueue::new(watch, keys)))
    }
}
