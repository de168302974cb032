// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA private operations in the lanes of vector registers: four requests at once on one core, each with its
//! own key; the keys of a batch share only their size.
//!
//! A batch of four takes little longer than one operation of a library, so a busy core does two and a half to
//! four times as many. `docs/backends/simd.md` has the figures, their limits, and the variants that were
//! tried.
//!
//! | file | contents |
//! |---|---|
//! | `capabilities.rs` | the operations and sizes, as data |
//! | `keys.rs` | keys with the constants that lanes need |
//! | `queue/`, `operations.rs` | the hot path, and an operation on AWS-LC |
//! | `lanes.rs` | the vector operations as a trait, and the portable twin |
//! | `sys.rs` | the same as instructions: AVX-512 IFMA, and AVX-512F with products from doubles |
//! | `montgomery.rs` | modular arithmetic on eight numbers |
//! | `rsa/` | the private operation of four requests: blinding, CRT, verification |
//! | `numbers.rs` | the constants of a key |
//! | `x25519.rs` | eight public values of X25519, for gateways that make key shares in their own process |
//!
//! **Out of scope.** Other keys of a node: operations on curves are fast on AWS-LC, so batching them gains too little,
//! and RSA above 4096 bits does not fit the caches. Parsing: the software backend has parsed and checked each
//! key.
//!
//! **Single tasks.** A batch of one takes as long as a batch of four, and longer than the library. So a task runs on
//! AWS-LC in this backend if no other of its size waits when its turn comes. Refusing it as "not offered" would cost
//! it a second queue and would count an ordinary case as a failure. Its `served_by` is `simd`: the field
//! names the backend that answered, not the instructions. [`Simd::tally`] counts the tasks that ran in lanes.
//!
//! **Verification.** The lanes verify each result, blinded and unblinded; see `rsa/mod.rs`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_engine::backend::{
    Backend, BackendKey, Capability, Description, OpenedKey, Queue, Unusable,
};
use millrace_operation::{BackendKind, KeyError, PrivateKey};

mod capabilities;
mod keys;
mod lanes;
mod montgomery;
pub(crate) mod numbers;
mod operations;
mod queue;
mod rsa;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "intrinsics behind a check of the processor")]
mod sys;
mod x25519;

pub(crate) use rsa::verify::{ROOTS, RootKey, RootVerifier, RsaRoot};
pub use x25519::{X25519_BYTES, X25519_PAIRS, x25519_public_values};

use crate::key_table::{KeyTable, MAX_KEYS};
use crate::software;
use keys::SimdKey;
use lanes::{LANES, Lanes, Portable};
use queue::{Counters, SimdQueue};
use rsa::REQUESTS;

/// Fewest tasks of one size for which lanes are used. A batch of any number of tasks takes as long as 1.2 to
/// 2 operations on AWS-LC.
const LANES_FROM: usize = 2;

/// An implementation of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// AVX-512 with IFMA: Intel since Ice Lake, AMD since Zen 4.
    Avx512Ifma,
    /// AVX-512F and DQ: Intel since Skylake-SP. Products come from fused multiply-add of doubles.
    Avx512Fp52,
    /// Ordinary instructions, for any processor. Slower than a library; for tests.
    Portable,
}

impl Implementation {
    /// Every implementation, the fastest first.
    pub const ALL: [Self; 3] = [Self::Avx512Ifma, Self::Avx512Fp52, Self::Portable];

    /// Whether this processor has its instructions.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Ifma => sys::Ifma::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Fp52 => sys::Fp52::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512Ifma | Self::Avx512Fp52 => false,
            Self::Portable => true,
        }
    }

    /// Name in logs and status.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512Ifma => "AVX-512 IFMA",
            Self::Avx512Fp52 => "AVX-512F FP52",
            Self::Portable => "portable lanes",
        }
    }
}

/// Counters over all queues of a backend since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimdTally {
    /// Tasks that ran on AWS-LC, one at a time.
    pub single: u64,
    /// Batches that ran in lanes, by number of tasks: index 0 counts batches of one.
    pub batches: [u64; REQUESTS],
}

/// The simd backend.
pub struct Simd {
    implementation: Option<Implementation>,
    lanes_from: usize,
    keys: Arc<KeyTable<SimdKey>>,
    counters: Arc<Counters>,
}

impl Simd {
    /// Makes a backend without keys, on the fastest implementation that this processor runs. Without one
    /// [`probe`](Backend::probe) says why the backend is unusable.
    #[must_use]
    pub fn new() -> Self {
        let fast = [Implementation::Avx512Ifma, Implementation::Avx512Fp52];
        Self::of(fast.into_iter().find(|fast| fast.is_available()))
    }

    /// Makes a backend on the given implementation, for tests and measurements.
    #[must_use]
    pub fn with(implementation: Implementation) -> Self {
        Self::of(Some(implementation))
    }

    /// Sets the fewest tasks for which lanes are used. With 1 every task runs in lanes.
    #[must_use]
    pub fn lanes_from(mut self, tasks: usize) -> Self {
        self.lanes_from = tasks;
        self
    }

    /// The implementation in use; `None` if this processor runs none.
    #[must_use]
    pub fn implementation(&self) -> Option<Implementation> {
        self.implementation
    }

    /// Returns the counters over all queues.
    #[must_use]
    pub fn tally(&self) -> SimdTally {
        let Counters { single, batches } = &*self.counters;
        SimdTally {
            single: single.load(Ordering::Relaxed),
            batches: [0, 1, 2, 3].map(|at: usize| batches[at].load(Ordering::Relaxed)),
        }
    }

    fn of(implementation: Option<Implementation>) -> Self {
        Self {
            implementation,
            lanes_from: LANES_FROM,
            keys: Arc::new(KeyTable::new(MAX_KEYS)),
            counters: Arc::default(),
        }
    }

    fn queue<L: Lanes>(&self, lanes: L) -> Box<dyn Queue> {
        let keys = Arc::clone(&self.keys);
        let counters = Arc::clone(&self.counters);
        Box::new(SimdQueue::new(lanes, self.lanes_from, keys, counters))
    }
}

impl Default for Simd {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Simd({:?}, {} keys)", self.implementation, self.keys.len())
    }
}

impl Backend for Simd {
    fn describe(&self) -> Description {
        let lanes = self.implementation.map_or("no lanes", Implementation::name);
        Description {
            kind: BackendKind::Simd,
            version: format!("{lanes}, {LANES} lanes; alone {}", software::sys::version()),
            on_cpu: true,
            batch: REQUESTS,
        }
    }

    fn capabilities(&self) -> &[Capability] {
        capabilities::CAPABILITIES
    }

    fn probe(&self) -> Result<(), Unusable> {
        match self.implementation {
            Some(implementation) if implementation.is_available() => Ok(()),
            Some(implementation) => {
                Err(Unusable(format!("this processor does not have {}", implementation.name())))
            }
            None => Err(Unusable(
                "this processor has no AVX-512 (or the system does not enable it); RSA runs one \
                 operation at a time on the software backend"
                    .to_owned(),
            )),
        }
    }

    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
        let loaded = keys::load(key.dangerous_pkcs8())?;
        let info = loaded.info().clone();
        Ok(OpenedKey { key: self.keys.insert(loaded)?, info })
    }

    fn close_key(&self, key: BackendKey) {
        self.keys.remove(key);
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        self.probe()?;
        match self.implementation {
            #[cfg(target_arch = "x86_64")]
            Some(Implementation::Avx512Ifma) => sys::Ifma::detect().map(|lanes| self.queue(lanes)),
            #[cfg(target_arch = "x86_64")]
            Some(Implementation::Avx512Fp52) => sys::Fp52::detect().map(|lanes| self.queue(lanes)),
            Some(Implementation::Portable) => Some(self.queue(Portable)),
            _ => None,
        }
        .ok_or_else(|| Unusable("this processor has no lanes".to_owned()))
    }
}
