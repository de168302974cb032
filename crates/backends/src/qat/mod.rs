// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA private operations and key agreements on Intel QAT cards of generation 4 and later, through Intel's user-space
//! library. `docs/backends/qat.md` says what a machine needs, and what is unproven: no card was available, and all of
//! this is tested on a stand-in for the card under the unmodified library.
//!
//! | file | contents |
//! |---|---|
//! | `agreement.rs` | key agreements as requests that check each other |
//! | `capabilities.rs` | the operations and sizes, as data |
//! | `card.rs` | start, events, restart: the thread of control, and the instances that queues share |
//! | `error.rs` | reasons for which the cards do not serve |
//! | `known_answer.rs` | the check of each instance after a start |
//! | `keys.rs` | keys on the host and in device memory |
//! | `queue.rs` | the hot path |
//! | `sys.rs` | Intel's libraries, opened at run time |
//!
//! **Not by default.** P-256 and X25519 ([`Qat::fast_curves`]): while a device offers an operation of the class `Fast`,
//! no such job runs on the thread that submits it.
//!
//! **Out of scope.** ECDSA, where verifying on the host costs more than signing; Ed25519, which the cards do not have;
//! cards of earlier generations, which Intel's current library does not have.
//!
//! **Faults.** The library reports an operation that the firmware flags as failed as success. So every result is
//! verified on the host, by a public operation or by requests that check each other; a wrong one ends as
//! [`Fault`](millrace_engine::BackendError::Fault). A request without an answer ends as
//! [`Failed`](millrace_engine::BackendError::Failed) after a tenth of a second (more for large keys); its slot
//! and its memory stay in use until the answer comes or the library has stopped. After a fatal event or a reset
//! all requests end as failed, and the library is stopped and started again.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_engine::backend::{
    Backend, BackendDeviceStatus, BackendKey, Capability, Description, Health, OpenedKey, Queue,
    Unusable,
};
use millrace_operation::{BackendKind, KeyError, PrivateKey};
use millrace_qat::DEFAULT_FILES;

mod agreement;
mod capabilities;
mod card;
mod error;
mod keys;
mod known_answer;
mod queue;
#[expect(unsafe_code, reason = "calls Intel's library")]
mod sys;

use crate::key_table::{KeyTable, MAX_KEYS};
use card::{Cards, Running, SEATS, Settings};
use keys::QatKey;
use queue::QatQueue;

/// Time for an answer to a request with a key of 2048 bits: two hundred times what a card needs.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// Counters over all queues of a backend since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QatTally {
    /// Requests that ended with a verified result.
    pub served: u64,
    /// Results that failed verification.
    pub faults: u64,
    /// Requests that were not answered in time.
    pub lost: u64,
    /// Starts of the library after the first.
    pub restarts: u64,
}

/// The qat backend. It uses all cards of the machine that the settings allow; one may exist per process.
pub struct Qat {
    settings: Settings,
    fast_curves: bool,
    /// Opened by the probe.
    card: OnceLock<Result<Arc<Cards>, Unusable>>,
    keys: Arc<KeyTable<QatKey>>,
}

impl Qat {
    /// Makes a backend without keys, on Intel's library under its usual names, that takes one virtual function
    /// of each card.
    #[must_use]
    pub fn new() -> Self {
        let [library, memory] = DEFAULT_FILES.map(PathBuf::from);
        Self {
            settings: Settings {
                library,
                memory,
                functions: 1,
                answer_time: ANSWER_TIME,
                only: Vec::new(),
            },
            fast_curves: false,
            card: OnceLock::new(),
            keys: Arc::new(KeyTable::new(MAX_KEYS)),
        }
    }

    /// Sets the files of Intel's library and of its memory allocator.
    #[must_use]
    pub fn libraries(mut self, library: PathBuf, memory: PathBuf) -> Self {
        self.settings.library = library;
        self.settings.memory = memory;
        self
    }

    /// Sets how many virtual functions of each card this process takes; the variable `QAT_POLICY` has
    /// precedence.
    #[must_use]
    pub fn functions(mut self, functions: u16) -> Self {
        self.settings.functions = functions;
        self
    }

    /// Sets how long an answer to a request with a key of 2048 bits may take. A larger key gets more by the cube
    /// of its size.
    #[must_use]
    pub fn answer_time(mut self, time: Duration) -> Self {
        self.settings.answer_time = time;
        self
    }

    /// Sets the virtual functions to use, by bus address, of those that the library takes. The others stay taken and
    /// idle. An empty list means all.
    #[must_use]
    pub fn only(mut self, functions: Vec<String>) -> Self {
        self.settings.only = functions;
        self
    }

    /// Sets whether the card is offered ECDH on P-256 and X25519. A processor does either in some ten microseconds, so
    /// they pay where cores are short and many jobs come at once; a lone job waits for a worker then.
    #[must_use]
    pub fn fast_curves(mut self, offered: bool) -> Self {
        self.fast_curves = offered;
        self
    }

    /// Returns the counters over all queues.
    #[must_use]
    pub fn tally(&self) -> QatTally {
        let Some(Ok(card)) = self.card.get() else {
            return QatTally::default();
        };
        let devices = card.devices();
        let sum = |count: fn(&BackendDeviceStatus) -> u64| devices.iter().map(count).sum();
        QatTally {
            served: sum(|device| device.served),
            faults: sum(|device| device.faults),
            lost: sum(|device| device.lost),
            restarts: card.restarts(),
        }
    }

    fn card(&self) -> Result<&Arc<Cards>, Unusable> {
        let card = self.card.get_or_init(|| {
            Cards::open(self.settings.clone()).map_err(|error| Unusable(error.to_string()))
        });
        card.as_ref().map_err(Unusable::clone)
    }

    /// The instances that serve now.
    fn running(&self) -> Result<Arc<Running>, Unusable> {
        self.card()?.running().map_err(|error| Unusable(error.to_string()))
    }
}

impl Default for Qat {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Qat {
    fn drop(&mut self) {
        if let Some(Ok(card)) = self.card.get() {
            card.close();
        }
    }
}

impl fmt::Debug for Qat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qat({:?}, {} keys)", self.settings.library, self.keys.len())
    }
}

impl Backend for Qat {
    /// Names the library alone: it is opened by [`probe`](Backend::probe).
    fn describe(&self) -> Description {
        let version = match self.card.get() {
            Some(Ok(card)) => card.library.version().to_owned(),
            Some(Err(_)) | None => self.settings.library.display().to_string(),
        };
        Description { kind: BackendKind::Qat, version, on_cpu: false, batch: 1 }
    }

    fn capabilities(&self) -> &[Capability] {
        capabilities::offered(self.fast_curves)
    }

    fn probe(&self) -> Result<(), Unusable> {
        self.card().map(|_| ())
    }

    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
        let key = keys::load(key.dangerous_pkcs8())?;
        let info = key.info().clone();
        if !self.capabilities().iter().any(|row| row.covers(row.operation, info.key_type)) {
            return Err(KeyError::NotOffered);
        }
        Ok(OpenedKey { key: self.keys.insert(key)?, info })
    }

    fn close_key(&self, key: BackendKey) {
        self.keys.remove(key);
    }

    fn health(&self) -> Health {
        match self.running() {
            Ok(running) if !running.is_over() => Health::Up,
            Ok(_) => Health::Away(Unusable("a card reported a fatal error or a reset".to_owned())),
            Err(reason) => Health::Away(reason),
        }
    }

    fn devices(&self) -> Vec<BackendDeviceStatus> {
        match self.card.get() {
            Some(Ok(card)) => card.devices(),
            Some(Err(_)) | None => Vec::new(),
        }
    }

    fn max_queues(&self) -> Option<usize> {
        let running = self.running().ok()?;
        Some(running.instances.len() * SEATS)
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        let card = self.card()?;
        let running = self.running()?;
        let seat = running.take_seat().ok_or_else(|| {
            Unusable(format!("all {} instances have {SEATS} queues", running.instances.len()))
        })?;
        let card = Arc::clone(card);
        let keys = Arc::clone(&self.keys);
        Ok(Box::new(QatQueue::new(card, keys, running, seat)))
    }
}
