// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA private operations on an NVIDIA GPU: tens of thousands at once, of keys that need have nothing in common
//! but their size. What it can do by its bounds, what limits it and what is unproven is in
//! `docs/backends/cuda.md`.
//!
//! | file | what is in it |
//! |---|---|
//! | `kernels/` | the kernels in CUDA C++, and their CPU twin |
//! | `variants.rs` | which kernels there are, and where they expect the numbers of a key |
//! | `device.rs` | what is asked of a device |
//! | `sys.rs` | a device behind NVIDIA's driver, found at run time |
//! | `measure.rs` | which kernel is fastest here, and from how many tasks on the device pays |
//!
//! **What it is not.** No toolkit is needed, neither to build nor to run: the kernels come as PTX inside the
//! binary, or as a fat binary beside it, and the driver is opened when the backend is made. No backend for
//! keys of curves.
//!
//! **Alone.** A launch takes milliseconds, however few tasks are in it. So a queue gives the device what pays,
//! and runs a task that has too little company on AWS-LC, right here; `served_by` then still says `cuda`,
//! since it names who answered. [`Cuda::tally`] tells how many went to the device.
//!
//! **Faults.** A kernel verifies each result and hands out zeros and an error if it is wrong; one in 64 is
//! verified again on this machine. The answer to a wrong one is
//! [`Fault`](millrace_engine::BackendError::Fault), so that the engine computes it elsewhere and passes over
//! this backend for a while. A device that is lost ends its tasks with
//! [`Failed`](millrace_engine::BackendError::Failed), which the engine retries elsewhere, and the backend is not
//! usable from then on.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use millrace_engine::backend::{
    Backend, BackendKey, Capability, Description, OpenedKey, Queue, Unusable,
};
use millrace_engine::{BackendKind, KeyError, PrivateKey};

mod capabilities;
pub mod device;
mod keys;
mod measure;
mod operations;
mod queue;
pub mod rates;
#[expect(unsafe_code, reason = "calls the driver's functions")]
mod sys;
mod variants;

pub use variants::{Arithmetic, VARIANTS, Variant};

use crate::software::{self, KeyTable, MAX_KEYS};
use device::{Device, DeviceError};
use keys::{CudaKey, Parts, Resident, Size};
use queue::CudaQueue;
use variants::SIZES;

/// Tasks that a worker should bring at once: what one block of threads computes at the cost of one.
const BATCH: usize = 16;

/// What the queues of a backend have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tasks that ran alone on AWS-LC.
    pub alone: u64,
    /// Launches on the device.
    pub launches: u64,
    /// Tasks in them.
    pub launched: u64,
    /// Results that were wrong.
    pub faults: u64,
}

#[derive(Default)]
struct Counters {
    alone: AtomicU64,
    launches: AtomicU64,
    launched: AtomicU64,
    faults: AtomicU64,
}

/// Whether the device still works. Shared by all who use it.
#[derive(Debug, Default)]
struct Health {
    lost: AtomicBool,
    reason: Mutex<String>,
}

impl Health {
    /// Remembers an error, if the device does not survive it.
    fn note(&self, error: &DeviceError) {
        if queue::is_fatal(error) {
            self.give_up(error);
        }
    }

    /// Uses the device no more.
    fn give_up(&self, error: &DeviceError) {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.lost.swap(true, Ordering::AcqRel) {
            *reason = error.to_string();
        }
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// What backend and queues share.
struct Shared {
    keys: KeyTable<CudaKey>,
    counters: Counters,
    health: Arc<Health>,
}

/// Whether the backend can be used.
enum State {
    Usable,
    Lost(String),
}

impl Shared {
    fn state(&self) -> State {
        if self.health.is_lost() {
            let reason = self.health.reason.lock();
            State::Lost(reason.unwrap_or_else(PoisonError::into_inner).clone())
        } else {
            State::Usable
        }
    }
}

/// The cuda backend.
pub struct Cuda {
    /// Opened when first asked for: to start a driver takes a good part of a second.
    device: OnceLock<Result<Arc<dyn Device>, Unusable>>,
    fat_binary: Option<PathBuf>,
    /// Memory for keys of each size, made when the first one comes.
    sizes: Mutex<[Option<Arc<Size>>; SIZES.len()]>,
    /// Kernels to choose from.
    kernels: Vec<&'static Variant>,
    device_from: Option<usize>,
    shared: Arc<Shared>,
}

impl Cuda {
    /// A backend without keys, on the first device of this machine that is fit for it. Where there is none it
    /// is not usable, and [`probe`](Backend::probe) says why. The device is opened when it is first needed.
    #[must_use]
    pub fn new() -> Self {
        Self::of(OnceLock::new())
    }

    /// Takes the kernels from this fat binary, if it is there; otherwise the driver assembles those that are
    /// inside.
    #[must_use]
    pub fn kernels(mut self, fat_binary: PathBuf) -> Self {
        self.fat_binary = Some(fat_binary);
        self
    }

    /// A backend that is not usable for a reason that its owner has.
    #[must_use]
    pub fn unusable(reason: Unusable) -> Self {
        Self::of(Err(reason).into())
    }

    /// A backend on this device, for tests.
    #[must_use]
    pub fn on(device: Arc<dyn Device>) -> Self {
        Self::of(Ok(device).into())
    }

    /// Uses only these kernels, whichever are faster. Keys of a size for which none is left run on AWS-LC.
    #[must_use]
    pub fn only(mut self, kernels: impl Fn(&Variant) -> bool) -> Self {
        self.kernels.retain(|variant| kernels(variant));
        self
    }

    /// Uses the device from this number of tasks on, whatever was measured; with 1 even for a task alone.
    #[must_use]
    pub fn device_from(mut self, tasks: usize) -> Self {
        self.device_from = Some(tasks);
        self
    }

    /// What its queues have done.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let Counters {
            alone,
            launches,
            launched,
            faults,
        } = &self.shared.counters;
        Tally {
            alone: alone.load(Ordering::Relaxed),
            launches: launches.load(Ordering::Relaxed),
            launched: launched.load(Ordering::Relaxed),
            faults: faults.load(Ordering::Relaxed),
        }
    }

    /// The kernels in use, by size of key; those of sizes of which there was no key yet are not chosen.
    #[must_use]
    pub fn variants(&self) -> Vec<&'static Variant> {
        let sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        sizes.iter().flatten().map(|size| size.variant).collect()
    }

    fn of(device: OnceLock<Result<Arc<dyn Device>, Unusable>>) -> Self {
        Self {
            device,
            fat_binary: None,
            sizes: Mutex::default(),
            kernels: VARIANTS.iter().collect(),
            device_from: None,
            shared: Arc::new(Shared {
                keys: KeyTable::new(MAX_KEYS),
                counters: Counters::default(),
                health: Arc::default(),
            }),
        }
    }

    /// The device, or why there is none.
    fn device(&self) -> &Result<Arc<dyn Device>, Unusable> {
        self.device.get_or_init(|| {
            let driver = sys::Driver::open(self.fat_binary.as_deref())?;
            Ok(Arc::new(driver))
        })
    }

    /// Puts a key onto the device, if it fits and there is room; without that it is served by AWS-LC.
    fn admit(
        &self,
        device: &dyn Device,
        key: &software::keys::LoadedKey,
        pkcs8: &[u8],
    ) -> Option<Resident> {
        let parts = Parts::parse(pkcs8).ok()?;
        let at = parts.size()?;
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = match &sizes[at] {
            Some(size) => size.admit(&parts),
            None => measure::open_size(
                device,
                SIZES[at],
                (&self.kernels, self.device_from),
                (key, &parts),
                &self.shared.health,
            )
            .and_then(|size| {
                let size = Arc::new(size);
                sizes[at] = Some(Arc::clone(&size));
                size.admit(&parts)
            }),
        };
        admitted.unwrap_or_else(|error| {
            self.shared.health.note(&error);
            None
        })
    }
}

impl Default for Cuda {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = match self.device.get() {
            Some(Ok(device)) => &device.facts().name,
            Some(Err(_)) => "no device",
            None => "not opened",
        };
        write!(f, "Cuda({device}, {} keys)", self.shared.keys.len())
    }
}

impl Backend for Cuda {
    fn describe(&self) -> Description {
        let version = match self.device() {
            Ok(device) => {
                let facts = device.facts();
                let (major, minor) = facts.compute;
                let library = software::sys::version();
                format!(
                    "{} ({major}.{minor}), {}; alone {library}",
                    facts.name, facts.software
                )
            }
            Err(_) => "no device".to_owned(),
        };
        Description {
            kind: BackendKind::Cuda,
            version,
            on_cpu: false,
            batch: if self.device().is_ok() { BATCH } else { 1 },
        }
    }

    fn capabilities(&self) -> &[Capability] {
        capabilities::CAPABILITIES
    }

    fn probe(&self) -> Result<(), Unusable> {
        self.device().as_ref().map_err(Unusable::clone)?;
        match self.shared.state() {
            State::Usable => Ok(()),
            State::Lost(reason) => Err(Unusable(format!(
                "{reason}; restart the node to try it again"
            ))),
        }
    }

    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
        let pkcs8 = key.dangerous_pkcs8();
        let software = keys::load(pkcs8)?;
        let resident = match self.device() {
            Ok(device) if !self.shared.health.is_lost() => self.admit(&**device, &software, pkcs8),
            _ => None,
        };
        let key = CudaKey { software, resident };
        let info = key.info().clone();
        Ok(OpenedKey {
            key: self.shared.keys.insert(key)?,
            info,
        })
    }

    fn close_key(&self, key: BackendKey) {
        self.shared.keys.remove(key);
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        self.probe()?;
        Ok(Box::new(CudaQueue::new(Arc::clone(&self.shared))))
    }
}
