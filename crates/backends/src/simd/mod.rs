// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA private operations in the lanes of vector registers: four requests at once on one core, with keys
//! that need have nothing in common but their size.
//!
//! A batch of four takes little longer than one operation on a library, so a busy core does two and a half
//! to four times as many. The figures, what limits them and what was tried are in `docs/backends/simd.md`.
//!
//! | file | what is in it |
//! |---|---|
//! | `lanes.rs` | what is asked of a processor, and the portable twin |
//! | `sys.rs` | the same in instructions: AVX-512 IFMA, and AVX-512F with products from doubles |
//! | `montgomery.rs` | modular arithmetic on eight numbers |
//! | `rsa.rs` | the private operation of four requests: blinding, CRT, verification |
//! | `numbers.rs` | the constants of a key |
//!
//! **What it is not.** No backend for other keys: those of curves are faster on AWS-LC than their batching
//! would be worth, and RSA above 4096 bits does not fit the caches. No library: it takes keys that the
//! software backend has parsed and checked.
//!
//! **Alone.** A batch of one would take as long as a batch of four, which is longer than the library. So a
//! task that is alone when its turn comes runs on AWS-LC, right here; handing it back as "not offered" would
//! cost it another queue, and would make an ordinary moment look like a failure. Its result says that the
//! simd backend served it, which is so: `served_by` names who answered, not which instructions it used, and
//! [`Simd::tally`] tells how many ran in lanes.
//!
//! **Verification.** Each result is verified in the lanes, blinded and unblinded; see `rsa.rs`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_engine::backend::{
    Backend, BackendKey, Capability, Description, OpenedKey, Queue, Unusable,
};
use millrace_engine::{BackendKind, KeyError, PrivateKey};

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

use crate::software::{self, KeyTable, MAX_KEYS};
use keys::SimdKey;
use lanes::{LANES, Lanes, Portable};
use queue::{Counters, SimdQueue};
use rsa::REQUESTS;

/// From how many tasks of one size on lanes are used. A batch takes as long as 1.2 to 2 operations on
/// AWS-LC, whatever is in it.
const LANES_FROM: usize = 2;

/// How lanes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// AVX-512 with IFMA: Intel since Ice Lake, AMD since Zen 4.
    Avx512Ifma,
    /// AVX-512F and DQ: Intel since Skylake-SP. Products come from fused multiply-add of doubles.
    Avx512Fp52,
    /// Ordinary instructions on any processor, slower than a library: for tests.
    Portable,
}

impl Implementation {
    /// Every implementation, the fastest first.
    pub const ALL: [Self; 3] = [Self::Avx512Ifma, Self::Avx512Fp52, Self::Portable];

    /// Whether it runs here.
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

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512Ifma => "AVX-512 IFMA",
            Self::Avx512Fp52 => "AVX-512F FP52",
            Self::Portable => "portable lanes",
        }
    }
}

/// What the queues of a backend have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tasks that ran alone on AWS-LC.
    pub alone: u64,
    /// Batches in lanes, by how many tasks they held: one, two, three, four.
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
    /// A backend without keys, on the fastest instructions of this processor. Where they are missing it
    /// is not usable, and [`probe`](Backend::probe) says why.
    #[must_use]
    pub fn new() -> Self {
        let fast = [Implementation::Avx512Ifma, Implementation::Avx512Fp52];
        Self::of(fast.into_iter().find(|fast| fast.is_available()))
    }

    /// A backend on this implementation, for tests and measurements.
    #[must_use]
    pub fn with(implementation: Implementation) -> Self {
        Self::of(Some(implementation))
    }

    /// Uses lanes from this number of tasks on; with 1 even for a task alone.
    #[must_use]
    pub fn lanes_from(mut self, tasks: usize) -> Self {
        self.lanes_from = tasks;
        self
    }

    /// The implementation in use, if there is one for this processor.
    #[must_use]
    pub fn implementation(&self) -> Option<Implementation> {
        self.implementation
    }

    /// What its queues have done.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let Counters { alone, batches } = &*self.counters;
        Tally {
            alone: alone.load(Ordering::Relaxed),
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
        let (keys, counters) = (Arc::clone(&self.keys), Arc::clone(&self.counters));
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
        write!(
            f,
            "Simd({:?}, {} keys)",
            self.implementation,
            self.keys.len()
        )
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
            Some(implementation) => Err(Unusable(format!(
                "this processor does not have {}",
                implementation.name()
            ))),
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
        Ok(OpenedKey {
            key: self.keys.insert(loaded)?,
            info,
        })
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
