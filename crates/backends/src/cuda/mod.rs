// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA private operations on an NVIDIA GPU: tens of thousands at once, each with its own key; the keys of one
//! launch share only their size and their public exponent. `docs/backends/cuda.md` has the performance
//! bounds, the limits, and the list of what is unproven.
//!
//! | file | contents |
//! |---|---|
//! | `kernels/` | the kernels in CUDA C++, and their CPU twin |
//! | `variants.rs` | the table of kernels, and the memory layout of a key |
//! | `device.rs` | the traits of a device |
//! | `sys.rs` | a device behind NVIDIA's driver, opened at run time |
//! | `capabilities.rs` | the operations and sizes, as data |
//! | `keys.rs` | keys on the host and in device memory |
//! | `job.rs` | tasks of a queue with their keys |
//! | `queue.rs`, `operations.rs` | the hot path, and an operation on AWS-LC |
//! | `measure.rs` | measures the fastest kernel, and the fewest tasks for which a launch is cheaper than AWS-LC |
//! | `rates.rs` | measures the rates of instructions on which the performance bounds rest |
//!
//! **Out of scope.** The CUDA toolkit is needed neither to build nor to run: the kernels are PTX inside the
//! binary, or a fat binary beside it, and the backend opens the driver when it is first used. Keys on curves
//! have no kernels.
//!
//! **Small batches.** A launch takes milliseconds, even with one task. So a queue launches only if enough
//! tasks wait, and otherwise runs the oldest on AWS-LC in the same worker. Its `served_by` is still `cuda`,
//! the backend that answered. [`Cuda::tally`] counts the tasks that went to the device.
//!
//! **Faults.** A kernel verifies each result. If it is wrong, the kernel returns zeros and an error. The host
//! verifies one result in 64 again. A wrong result ends as [`Fault`](millrace_engine::BackendError::Fault):
//! the engine computes the task elsewhere and quarantines this backend for a while. A device that is lost
//! ends its tasks with [`Failed`](millrace_engine::BackendError::Failed): the engine retries them elsewhere,
//! and the backend is unusable from then on.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use millrace_engine::backend::{
    Backend, BackendKey, Capability, Description, Health, OpenedKey, Queue, Unusable,
};
use millrace_operation::sync::lock;
use millrace_operation::{BackendKind, KeyError, PrivateKey};

mod capabilities;
pub mod device;
mod job;
mod keys;
mod measure;
mod operations;
mod queue;
pub mod rates;
#[expect(unsafe_code, reason = "calls the driver's functions")]
mod sys;
mod variants;

pub use variants::{Arithmetic, VARIANTS, Variant};

use crate::key_table::{KeyTable, MAX_KEYS};
use crate::software;
use device::{CudaDevice, DeviceError};
use keys::{CudaKey, Parts, Resident, Size};
use measure::KernelChoice;
use queue::CudaQueue;
use variants::SIZES;

/// Preferred tasks per submission: one block of threads computes 16 in the time of one.
const BATCH: usize = 16;

/// Counters over all queues of a backend since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaTally {
    /// Tasks that ran on AWS-LC, one at a time.
    pub on_cpu: u64,
    /// Launches on the device.
    pub launches: u64,
    /// Tasks in launches on the device.
    pub launched: u64,
    /// Results that failed verification.
    pub faults: u64,
}

#[derive(Default)]
struct Counters {
    on_cpu: AtomicU64,
    launches: AtomicU64,
    launched: AtomicU64,
    faults: AtomicU64,
}

/// Whether the device still works. The backend, its keys and its queues share it.
#[derive(Debug, Default)]
struct DeviceHealth {
    lost: AtomicBool,
    reason: Mutex<String>,
}

impl DeviceHealth {
    /// Marks the device as lost if the error is fatal.
    fn note(&self, error: &DeviceError) {
        if matches!(error, DeviceError::Lost(_)) {
            self.give_up(error);
        }
    }

    /// Marks the device as lost for good; the first reason is kept.
    fn give_up(&self, error: &DeviceError) {
        let mut reason = lock(&self.reason);
        if !self.lost.swap(true, Ordering::AcqRel) {
            *reason = error.to_string();
        }
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// State that the backend shares with its queues.
struct CudaShared {
    keys: KeyTable<CudaKey>,
    counters: Counters,
    health: Arc<DeviceHealth>,
}

enum DeviceState {
    Usable,
    Lost(String),
}

impl CudaShared {
    fn state(&self) -> DeviceState {
        if self.health.is_lost() {
            DeviceState::Lost(lock(&self.health.reason).clone())
        } else {
            DeviceState::Usable
        }
    }
}

/// The cuda backend. It uses one device.
pub struct Cuda {
    /// Opened on first use, because starting the driver takes hundreds of milliseconds.
    device: OnceLock<Result<Arc<dyn CudaDevice>, Unusable>>,
    fat_binary: Option<PathBuf>,
    /// Device memory for keys per size, allocated with the first key of the size.
    sizes: Mutex<[Option<Arc<Size>>; SIZES.len()]>,
    /// Kernels to choose from.
    kernels: Vec<&'static Variant>,
    device_from: Option<usize>,
    shared: Arc<CudaShared>,
}

impl Cuda {
    /// Makes a backend without keys, on the first device of this machine that can run the kernels. Without
    /// such a device [`probe`](Backend::probe) says why. The device is opened on first use.
    #[must_use]
    pub fn new() -> Self {
        Self::of(OnceLock::new())
    }

    /// Loads the kernels from this fat binary if the file exists; otherwise the driver assembles the PTX
    /// inside the program.
    #[must_use]
    pub fn kernels(mut self, fat_binary: PathBuf) -> Self {
        self.fat_binary = Some(fat_binary);
        self
    }

    /// Makes a backend that is unusable for the given reason.
    #[must_use]
    pub fn unusable(reason: Unusable) -> Self {
        Self::of(Err(reason).into())
    }

    /// Makes a backend on the given device, for tests.
    #[must_use]
    pub fn on(device: Arc<dyn CudaDevice>) -> Self {
        Self::of(Ok(device).into())
    }

    /// Restricts the choice to these kernels. Keys of a size without a kernel run on AWS-LC.
    #[must_use]
    pub fn only(mut self, kernels: impl Fn(&Variant) -> bool) -> Self {
        self.kernels.retain(|variant| kernels(variant));
        self
    }

    /// Sets the fewest tasks for a launch, instead of the measured number. With 1 every task goes to the
    /// device.
    #[must_use]
    pub fn device_from(mut self, tasks: usize) -> Self {
        self.device_from = Some(tasks);
        self
    }

    /// Returns the counters over all queues.
    #[must_use]
    pub fn tally(&self) -> CudaTally {
        let Counters { on_cpu, launches, launched, faults } = &self.shared.counters;
        CudaTally {
            on_cpu: on_cpu.load(Ordering::Relaxed),
            launches: launches.load(Ordering::Relaxed),
            launched: launched.load(Ordering::Relaxed),
            faults: faults.load(Ordering::Relaxed),
        }
    }

    /// The kernels in use, one per size of key. A size gets its kernel when its first key is opened.
    #[must_use]
    pub fn variants(&self) -> Vec<&'static Variant> {
        let sizes = lock(&self.sizes);
        sizes.iter().flatten().map(|size| size.variant).collect()
    }

    fn of(device: OnceLock<Result<Arc<dyn CudaDevice>, Unusable>>) -> Self {
        Self {
            device,
            fat_binary: None,
            sizes: Mutex::default(),
            kernels: VARIANTS.iter().collect(),
            device_from: None,
            shared: Arc::new(CudaShared {
                keys: KeyTable::new(MAX_KEYS),
                counters: Counters::default(),
                health: Arc::default(),
            }),
        }
    }

    /// The device, opened on first use, or the reason why there is none.
    fn device(&self) -> &Result<Arc<dyn CudaDevice>, Unusable> {
        self.device.get_or_init(|| {
            let driver = sys::Driver::open(self.fat_binary.as_deref())?;
            Ok(Arc::new(driver))
        })
    }

    /// Copies a key to the device if a kernel has its size and there is room. `None` means AWS-LC serves the
    /// key.
    fn admit(
        &self,
        device: &dyn CudaDevice,
        key: &software::keys::LoadedKey,
        pkcs8: &[u8],
    ) -> Option<Resident> {
        let parts = Parts::parse(pkcs8).ok()?;
        let at = parts.size()?;
        let mut sizes = lock(&self.sizes);
        let admitted = match &sizes[at] {
            Some(size) => size.admit(&parts),
            None => measure::open_size(
                device,
                SIZES[at],
                KernelChoice { kernels: &self.kernels, device_from: self.device_from },
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
                format!("{} ({major}.{minor}), {}; alone {library}", facts.name, facts.software)
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
        match self.health() {
            Health::Up => Ok(()),
            Health::Away(reason) => Err(reason),
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
        Ok(OpenedKey { key: self.shared.keys.insert(key)?, info })
    }

    fn close_key(&self, key: BackendKey) {
        self.shared.keys.remove(key);
    }

    fn health(&self) -> Health {
        match self.shared.state() {
            DeviceState::Usable => Health::Up,
            DeviceState::Lost(reason) => {
                Health::Away(Unusable(format!("{reason}; restart the node to try it again")))
            }
        }
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        self.probe()?;
        Ok(Box::new(CudaQueue::new(Arc::clone(&self.shared))))
    }
}
