// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A loaded provider, and the state that it shares with others of the same configuration. Every entry from C goes
//! through [`guard`] with it.

use std::ffi::CStr;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use millrace_client::{PoolConfig, ReportSource};
use millrace_operation::OperationKind;
use millrace_operation::sync::lock;

use super::core::Core;
use super::libcrypto::{Lib, Ptr};
use super::notice;
use super::types::{Algorithm, StaticTable};
use crate::algorithms::{KeyType, Primitive};
use crate::bulk::BulkRoutes;
use crate::config::Config;
use crate::error::{Error, Reason, Result};
use crate::process::ProcessState;
use crate::remote::{self, PoolError};
use crate::stats::Stats;

/// One loaded provider. It is never freed: see the page of [`super`].
pub(crate) struct Provider {
    pub(crate) core: Core,
    pub(crate) lib: &'static Lib,
    pub(crate) config: &'static Config,
    pub(crate) stats: Arc<Stats>,
    pub(super) shared: &'static SharedProvider,
    pub(super) verbose: bool,
}

/// State that all providers with the same configuration share, however often an application loads them: the pool (a
/// thread, connections, open keys) and the tables. Never freed either.
pub(super) struct SharedProvider {
    pub(super) config: Config,
    pub(super) stats: Arc<Stats>,
    process: ProcessCell,
    pub(super) tables: OnceLock<AlgorithmTables>,
    pub(super) chosen: OnceLock<Chosen>,
    /// Whether X25519 pairs are made ahead, measured with the first pair.
    pub(super) pairs_ahead: OnceLock<bool>,
    bulk: OnceLock<Option<BulkRoutes>>,
}

impl SharedProvider {
    pub(super) fn of(config: Config) -> &'static Self {
        static ALL: Mutex<Vec<&'static SharedProvider>> = Mutex::new(Vec::new());
        let mut all = lock(&ALL);
        if let Some(known) = all.iter().find(|shared| shared.config == config) {
            return known;
        }
        let process = ProcessCell(AtomicPtr::new(std::ptr::null_mut()));
        let fresh: &'static Self = Box::leak(Box::new(Self {
            config,
            stats: Arc::default(),
            process,
            tables: OnceLock::new(),
            chosen: OnceLock::new(),
            pairs_ahead: OnceLock::new(),
            bulk: OnceLock::new(),
        }));
        all.push(fresh);
        fresh
    }
}

/// The algorithms that are offered.
pub(super) struct AlgorithmTables {
    pub(super) keys: StaticTable<Algorithm>,
    pub(super) signatures: StaticTable<Algorithm>,
    pub(super) exchanges: StaticTable<Algorithm>,
    pub(super) ciphers: StaticTable<Algorithm>,
    pub(super) decoders: StaticTable<Algorithm>,
    pub(super) stores: StaticTable<Algorithm>,
    pub(super) kems: StaticTable<Algorithm>,
    pub(super) kdfs: StaticTable<Algorithm>,
    pub(super) aeads: StaticTable<Algorithm>,
    pub(super) digests: StaticTable<Algorithm>,
    pub(super) macs: StaticTable<Algorithm>,
}

/// Primitives that this process computes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    pub(super) primitives: [bool; Primitive::ALL.len()],
}

impl Chosen {
    pub(super) fn has(&self, primitive: Primitive) -> bool {
        self.primitives[primitive as usize]
    }

    /// Whether the primitive was chosen and signs with keys of this type.
    pub(super) fn signs(&self, primitive: Primitive, key_type: KeyType) -> bool {
        let signs = primitive.row().signs;
        self.has(primitive) && signs.is_some_and(|keys| keys.key_type == key_type)
    }
}

impl Provider {
    /// The provider behind a context that OpenSSL hands back.
    ///
    /// # Safety
    /// `provctx` is what `OSSL_provider_init` gave out.
    pub(crate) unsafe fn of(provctx: Ptr) -> &'static Self {
        // SAFETY: by this function's contract; providers are never freed.
        unsafe { &*provctx.cast::<Self>() }
    }

    /// The state of this process.
    pub(crate) fn process(&self) -> &'static Arc<ProcessState> {
        self.shared.process.get(|| ProcessState::new(remote::connect(self.pool_config())))
    }

    /// The pool of this process: its reports are about what this process does, not its ancestors.
    fn pool_config(&self) -> PoolConfig {
        let stats = Arc::clone(&self.stats);
        let before = self.stats.report();
        let source = ReportSource::new(move || stats.report().since(&before));
        self.config.pool().report(source)
    }

    /// Closes keys at the pool that have no key object any more.
    pub(crate) fn forget_unused(&self) {
        if let Some(process) = self.shared.process.existing() {
            process.sweep();
        }
    }

    /// Writes a line to standard error if `MILLRACE_LOG` is set.
    pub(crate) fn log(&self, line: &str) {
        if self.verbose {
            // Nothing can be done if standard error is closed.
            let _ = writeln!(std::io::stderr(), "millrace: {line}");
        }
    }

    /// Says that the pool did not do an operation: each time with `MILLRACE_LOG`, else once if no node can be reached.
    /// An error that the caller gets is written where it is raised.
    pub(crate) fn report(&self, operation: OperationKind, error: &PoolError, falls_back: bool) {
        if !self.verbose {
            notice::first(operation, error, falls_back);
        } else if falls_back {
            self.log(&format!("{operation}: {error}"));
        }
    }

    /// Routes to the kernel's ciphers, read at the first call. `None` if nothing goes to the kernel.
    pub(crate) fn bulk(&'static self) -> Option<&'static BulkRoutes> {
        self.shared.bulk.get_or_init(|| self.bulk_routes()).as_ref()
    }

    fn bulk_routes(&self) -> Option<BulkRoutes> {
        let path = self.config.kernel_bulk.as_deref()?;
        // SAFETY: takes nothing.
        let user = unsafe { libc::geteuid() };
        // SAFETY: takes any number, and returns a C string that is never freed.
        let libcrypto =
            self.lib.OpenSSL_version.map(|version| unsafe { CStr::from_ptr(version(0)) });
        let libcrypto = libcrypto.unwrap_or_default().to_string_lossy();
        match BulkRoutes::load(path, &libcrypto, user) {
            Ok(routes) => Some(routes),
            Err(error) => {
                self.log(&format!(
                    "{}: {error}; the kernel's ciphers are not used",
                    path.display()
                ));
                None
            }
        }
    }
}

/// The [`ProcessState`] of this process: a forked child finds its parent's and makes its own. Nothing is
/// locked, since at the moment of a fork another thread might hold the lock.
struct ProcessCell(AtomicPtr<PidState>);

struct PidState {
    pid: libc::pid_t,
    process: Arc<ProcessState>,
}

impl ProcessCell {
    fn existing(&self) -> Option<&'static Arc<ProcessState>> {
        // SAFETY: the cell holds null or a pointer that `get` has put there.
        unsafe { Self::of_this_process(self.0.load(Ordering::Acquire)) }
    }

    /// # Safety
    /// `state` is null, or from `Box::into_raw` in `get` and never freed.
    unsafe fn of_this_process(state: *const PidState) -> Option<&'static Arc<ProcessState>> {
        // SAFETY: by this function's contract.
        let state = unsafe { state.as_ref() }?;
        // SAFETY: takes nothing.
        (state.pid == unsafe { libc::getpid() }).then_some(&state.process)
    }

    fn get(&self, make: impl FnOnce() -> ProcessState) -> &'static Arc<ProcessState> {
        // Read once: if another thread replaces it from now on, the exchange must fail.
        let old = self.0.load(Ordering::Acquire);
        // SAFETY: the cell holds null or a pointer that this function has put there.
        if let Some(process) = unsafe { Self::of_this_process(old) } {
            return process;
        }
        // SAFETY: takes nothing.
        let pid = unsafe { libc::getpid() };
        let fresh = Box::into_raw(Box::new(PidState { pid, process: Arc::new(make()) }));
        match self.0.compare_exchange(old, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: made above, and never freed from now on. The parent's, if there was one, is not
            // freed either: its locks may be held for ever.
            Ok(_) => unsafe { &(*fresh).process },
            Err(winner) => {
                // SAFETY: made above, and the failed exchange has not shared it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: not null, from another call of this function, never freed.
                unsafe { &(*winner).process }
            }
        }
    }
}

/// Runs an entry from C: no panic crosses the C boundary, an error goes to OpenSSL's error stack, and the caller gets
/// `failed`.
pub(crate) fn guard<T>(provider: &Provider, failed: T, entry: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(entry)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            // Some programs drop what is on the error stack (`openssl cms -decrypt` on purpose, `openssl spkac`).
            if !error.silent {
                provider.log(&error.text);
            }
            provider.core.raise(&error);
            failed
        }
        Err(payload) => {
            // Dropping the payload could panic again.
            std::mem::forget(payload);
            provider.stats.panics.add();
            let text = "the millrace provider panicked; please report it";
            provider.core.raise(&Error::new(Reason::Internal, text));
            failed
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use millrace_operation::PrivateKey;

    use super::*;
    use crate::remote::{FailureKind, Pool, PoolError, Remote};

    /// A pool that is never used.
    struct UnusedPool;

    impl Pool for UnusedPool {
        fn open(
            &self,
            _: &str,
            _: Option<&[u8]>,
            _: std::time::Instant,
        ) -> std::result::Result<Arc<dyn Remote>, PoolError> {
            Err(PoolError::new(FailureKind::NoNode, "unused"))
        }

        fn import(
            &self,
            _: PrivateKey,
            by: std::time::Instant,
        ) -> std::result::Result<Arc<dyn Remote>, PoolError> {
            self.open("", None, by)
        }
    }

    #[test]
    fn threads_that_race_for_the_process_get_the_same_one() {
        const THREADS: usize = 4;
        for _ in 0..500 {
            let cell = ProcessCell(AtomicPtr::new(std::ptr::null_mut()));
            let start = Barrier::new(THREADS);
            let first = || {
                start.wait();
                Arc::as_ptr(cell.get(|| ProcessState::new(Arc::new(UnusedPool)))) as usize
            };
            let found: Vec<usize> = thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(first)).collect();
                let found = threads.into_iter().map(|thread| thread.join());
                found.collect::<std::result::Result<_, _>>().expect("no panic")
            });
            assert!(found.iter().all(|process| *process == found[0]), "{found:?}");
        }
    }
}
