// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The entry point, the provider's parameters, and its tables of algorithms.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use millrace_client::{PoolConfig, ReportSource};
use millrace_engine::sync::lock;

use super::core::{self, Core, guard};
use super::delegate::{self, Rows, dispatch};
use super::inner::{self, InnerAlgorithm};
use super::libcrypto::{Lib, Ptr};
use super::params::{self, set_string_ptr, set_unsigned};
use super::types::{Algorithm, Callback, Dispatch, Item, Param, StaticTable};
use super::{
    asym, cells, decoder, ids, keyexch, keymgmt, local, preload, section, signature, store,
    unusable,
};
use crate::algorithms::{AlgorithmRow, Cipher, Exchange, KeyType, Primitive, Signature};
use crate::bulk::BulkRoutes;
use crate::config::{self, Config};
use crate::error::{Error, Reason, Result};
use crate::local::ahead::PairMaker;
use crate::process::ProcessState;
use crate::remote;
use crate::stats::Stats;

/// One loaded provider. It is never freed: see the page of [`super`].
pub(crate) struct Provider {
    pub(crate) core: Core,
    pub(crate) lib: &'static Lib,
    pub(crate) config: &'static Config,
    pub(crate) stats: Arc<Stats>,
    shared: &'static SharedProvider,
    verbose: bool,
}

/// State that all providers with the same configuration share, however often an application loads them: the pool (a
/// thread, connections, open keys) and the tables. Never freed either.
struct SharedProvider {
    config: Config,
    stats: Arc<Stats>,
    process: ProcessCell,
    tables: OnceLock<AlgorithmTables>,
    chosen: OnceLock<local::Chosen>,
    bulk: OnceLock<Option<BulkRoutes>>,
}

impl SharedProvider {
    fn of(config: Config) -> &'static Self {
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
            bulk: OnceLock::new(),
        }));
        all.push(fresh);
        fresh
    }
}

/// The algorithms that are offered.
struct AlgorithmTables {
    keys: StaticTable<Algorithm>,
    signatures: StaticTable<Algorithm>,
    exchanges: StaticTable<Algorithm>,
    ciphers: StaticTable<Algorithm>,
    decoders: StaticTable<Algorithm>,
    stores: StaticTable<Algorithm>,
    kems: StaticTable<Algorithm>,
    kdfs: StaticTable<Algorithm>,
    aeads: StaticTable<Algorithm>,
    digests: StaticTable<Algorithm>,
    macs: StaticTable<Algorithm>,
}

/// Environment variable: if set, a line on standard error for each operation that the pool did not do.
const LOG_VARIABLE: &str = "MILLRACE_LOG";

/// Properties of every algorithm, so that `provider=millrace` selects it; or `millrace.pool=yes`,
/// under applications that ask for providers themselves (stunnel: `provider!=fips`), because what
/// they say of a property replaces what `default_properties` says. A name that OpenSSL does not
/// know has to have a dot in it.
pub(crate) const PROPERTIES: &CStr = c"provider=millrace,millrace.pool=yes";

/// Properties of what is computed here: `?millrace.local=yes` prefers that and leaves every key where it is.
pub(crate) const LOCAL_PROPERTIES: &CStr =
    c"provider=millrace,millrace.pool=yes,millrace.local=yes";

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
        let (stats, before) = (Arc::clone(&self.stats), self.stats.report());
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

    /// Primitives that this process computes itself: chosen at the first question.
    pub(crate) fn chosen(&'static self) -> &'static local::Chosen {
        self.shared.chosen.get_or_init(|| local::Chosen::of(self))
    }

    /// Routes to the kernel's ciphers, read at the first question; none if there are none.
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

    /// Makes X25519 pairs as the configuration says, and counts those made ahead.
    pub(crate) fn pair_maker(&'static self) -> PairMaker<'static> {
        let ahead = self.chosen().pairs_ahead;
        PairMaker::new(ahead.then_some(&*self.stats))
    }

    fn tables(&'static self) -> Result<&'static AlgorithmTables> {
        if let Some(tables) = self.shared.tables.get() {
            return Ok(tables);
        }
        let tables = AlgorithmTables::new(self.config, self.chosen(), self.bulk())?;
        // Lost the race: the other's tables are the same.
        let _ = self.shared.tables.set(tables);
        self.shared.tables.get().ok_or_else(|| Error::new(Reason::Internal, "no tables"))
    }
}

/// The [`ProcessState`] of this process: a forked child finds its parent's and makes its own. Nothing is
/// locked, since at the moment of a fork another thread might hold the lock.
struct ProcessCell(AtomicPtr<Owned>);

struct Owned {
    pid: libc::pid_t,
    process: Arc<ProcessState>,
}

impl ProcessCell {
    fn existing(&self) -> Option<&'static Arc<ProcessState>> {
        // SAFETY: the cell holds null or a pointer that `get` has put there.
        unsafe { Self::of_this_process(self.0.load(Ordering::Acquire)) }
    }

    /// # Safety
    /// `owned` is null, or from `Box::into_raw` in `get` and never freed.
    unsafe fn of_this_process(owned: *const Owned) -> Option<&'static Arc<ProcessState>> {
        // SAFETY: by this function's contract.
        let owned = unsafe { owned.as_ref() }?;
        // SAFETY: takes nothing.
        (owned.pid == unsafe { libc::getpid() }).then_some(&owned.process)
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
        let fresh = Box::into_raw(Box::new(Owned { pid, process: Arc::new(make()) }));
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

impl AlgorithmTables {
    fn new(config: &Config, chosen: &local::Chosen, bulk: Option<&BulkRoutes>) -> Result<Self> {
        let context = inner::context()?;
        let local = local::Tables::new(chosen, bulk)?;
        let delegated =
            |key: KeyType| config.offers(key) && !(key == KeyType::X25519 && config.keeps_x25519());
        let signs_here =
            |key: KeyType| Primitive::ALL.iter().any(|primitive| chosen.signs(*primitive, key));
        // Decoders hand keys over by `load`, whether OpenSSL's own key type has it or not.
        let load = [ids::keymgmt::LOAD];
        // Where a property query prefers neither, the first row is taken: the pool's.
        let keys = [
            wrapped(
                KeyType::ALL.iter().map(|key| delegated(*key)),
                &context.keys,
                &keymgmt::DISPATCH,
                &load,
                POOL,
            ),
            wrapped(
                KeyType::ALL.iter().map(|key| signs_here(*key)),
                &context.keys,
                &keymgmt::STAYING,
                &load,
                HERE,
            ),
        ];
        let tables = |rows: &[AlgorithmRow], inner, dispatch: &[fn() -> Rows]| {
            let with = |offers: &dyn Fn(KeyType) -> bool, kind| {
                let offered = rows.iter().map(|row| row.keys.iter().any(|key| offers(*key)));
                wrapped(offered, inner, dispatch, &[], kind)
            };
            [with(&delegated, POOL), with(&signs_here, HERE)].concat()
        };
        Ok(Self {
            keys: ended([local.keys, keys.concat()].concat()),
            signatures: ended(tables(Signature::ROWS, &context.signatures, &signature::DISPATCH)),
            exchanges: ended(
                [local.exchanges, tables(Exchange::ROWS, &context.exchanges, &keyexch::DISPATCH)]
                    .concat(),
            ),
            ciphers: ended(tables(Cipher::ROWS, &context.ciphers, &asym::DISPATCH)),
            decoders: decoder::algorithms(context, config),
            stores: store::algorithms(),
            kems: ended(local.kems),
            kdfs: ended(local.kdfs),
            aeads: ended(local.aeads),
            digests: ended(local.digests),
            macs: ended(local.macs),
        })
    }
}

/// A table of algorithms, kept forever.
fn ended(mut entries: Vec<Algorithm>) -> StaticTable<Algorithm> {
    entries.push(Algorithm::END);
    StaticTable::leak(entries)
}

/// Properties and description of wrapped algorithms.
pub(super) type Offering = (&'static CStr, &'static CStr);

/// Algorithms with private operations in the pool.
const POOL: Offering =
    (PROPERTIES, c"OpenSSL's, with the private key operations in the Millrace pool");

/// Algorithms of keys that sign here.
const HERE: Offering =
    (LOCAL_PROPERTIES, c"OpenSSL's, with the signatures of AWS-LC in this process");

/// The algorithms that are offered and that the inner provider has, under its names.
pub(super) fn wrapped(
    offered: impl Iterator<Item = bool>,
    inner: &'static [Option<InnerAlgorithm>],
    dispatch: &[fn() -> Rows],
    own: &[i32],
    (properties, description): Offering,
) -> Vec<Algorithm> {
    let rows = offered.zip(inner).zip(dispatch);
    let rows = rows.filter_map(|((offered, inner), rows)| {
        let inner = inner.as_ref().filter(|_| offered)?;
        Some(Algorithm {
            names: inner.names,
            properties: properties.as_ptr(),
            implementation: StaticTable::leak(delegate::table(inner, rows(), own)).as_ptr(),
            description: description.as_ptr(),
        })
    });
    rows.collect()
}

/// Entry point: the only symbol that the module exports.
///
/// # Safety
/// Called by libcrypto as `core.h` describes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn OSSL_provider_init(
    handle: *const c_void,
    upcalls: *const Dispatch,
    functions: *mut *const Dispatch,
    provctx: *mut *mut c_void,
) -> c_int {
    if handle.is_null() || upcalls.is_null() || functions.is_null() || provctx.is_null() {
        return 0;
    }
    // SAFETY: libcrypto passes its handle and a table of its functions with their end.
    let core = unsafe { Core::new(handle, upcalls) };
    let error = match catch_unwind(AssertUnwindSafe(|| start(core))) {
        Ok(Ok(provider)) => {
            // SAFETY: not null, and libcrypto passes writable places.
            unsafe { provctx.write(std::ptr::from_ref(provider).cast_mut().cast()) };
            // SAFETY: not null, and libcrypto passes writable places.
            unsafe { functions.write(own_functions()) };
            return 1;
        }
        Ok(Err(error)) => error,
        Err(payload) => {
            std::mem::forget(payload);
            let text = "the millrace provider panicked at its start";
            Error::new(Reason::Internal, text)
        }
    };
    if variable(LOG_VARIABLE).is_some() {
        // Nothing can be done if standard error is closed.
        let _ = writeln!(std::io::stderr(), "millrace: {error}");
    }
    let (context, table) = unusable::start(core, error);
    // SAFETY: not null, and libcrypto passes writable places.
    unsafe { provctx.write(context) };
    // SAFETY: not null, and libcrypto passes writable places.
    unsafe { functions.write(table) };
    1
}

fn start(core: Core) -> Result<&'static Provider> {
    let lib = inner::library(core.upcall)?;
    let variable_file = variable(config::FILE_VARIABLE).map(PathBuf::from);
    let section = core::section(&core);
    config::check_section(&section::keys(&core, lib, &section))?;
    let config = config::load(&section, variable_file.as_deref())?;
    let shared = SharedProvider::of(config);
    if shared.config.computes_here()
        && let Some(cells) = cells::shared()
    {
        shared.stats.share(cells);
        preload::count_in(cells);
    }
    Ok(Box::leak(Box::new(Provider {
        core,
        lib,
        config: &shared.config,
        stats: Arc::clone(&shared.stats),
        shared,
        verbose: variable(LOG_VARIABLE).is_some(),
    })))
}

/// An environment variable, unless the program runs with more rights than its user.
fn variable(name: &str) -> Option<std::ffi::OsString> {
    // SAFETY: takes any number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The functions of the provider itself.
fn own_functions() -> *const Dispatch {
    static TABLE: OnceLock<StaticTable<Dispatch>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        StaticTable::dispatch(dispatch! { provider {
            TEARDOWN => teardown<>;
            GETTABLE_PARAMS => gettable_params<>;
            GET_PARAMS => get_params<>;
            QUERY_OPERATION => query_operation<>;
            GET_REASON_STRINGS => reason_strings<>;
            GET_CAPABILITIES => get_capabilities<>;
        } })
    });
    table.as_ptr()
}

/// Nothing: at exit libcrypto is half gone, and elsewhere a late completion may be under way.
pub(crate) unsafe extern "C" fn teardown<const ID: i32>(_provctx: Ptr) {}

unsafe extern "C" fn query_operation<const ID: i32>(
    provctx: Ptr,
    operation: c_int,
    no_cache: *mut c_int,
) -> *const Algorithm {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null(), || {
        // SAFETY: libcrypto passes a writable place.
        unsafe { no_cache.write(0) };
        let table = match operation {
            ids::op::KEYMGMT => &provider.tables()?.keys,
            ids::op::SIGNATURE => &provider.tables()?.signatures,
            ids::op::KEYEXCH => &provider.tables()?.exchanges,
            ids::op::ASYM_CIPHER => &provider.tables()?.ciphers,
            ids::op::DECODER => &provider.tables()?.decoders,
            ids::op::STORE => &provider.tables()?.stores,
            ids::op::KEM => &provider.tables()?.kems,
            ids::op::KDF => &provider.tables()?.kdfs,
            ids::op::CIPHER => &provider.tables()?.aeads,
            ids::op::DIGEST => &provider.tables()?.digests,
            ids::op::MAC => &provider.tables()?.macs,
            _ => return Ok(std::ptr::null()),
        };
        Ok(table.as_ptr())
    })
}

/// The capabilities of the inner provider, and TLS groups that it does not have: TLS groups and, since OpenSSL 3.5, TLS
/// signature algorithms. libssl takes one only from the provider whose key type it fetches, and that is this one
/// wherever it is preferred.
unsafe extern "C" fn get_capabilities<const ID: i32>(
    provctx: Ptr,
    capability: *const c_char,
    callback: Callback,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, 0, || {
        let context = inner::context()?;
        // SAFETY: takes a loaded provider, which is never unloaded; the rest is libcrypto's for this very
        // function.
        let done = unsafe {
            (provider.lib.OSSL_PROVIDER_get_capabilities)(
                context.provider,
                capability,
                callback,
                argument,
            )
        };
        if done != 1 {
            return Ok(done);
        }
        // SAFETY: libcrypto's, for this very function.
        unsafe { local::announce(provider.chosen(), capability, callback, argument) }
    })
}

unsafe extern "C" fn gettable_params<const ID: i32>(provctx: Ptr) -> *const Param {
    static LIST: OnceLock<StaticTable<Param>> = OnceLock::new();
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null(), || {
        let list = LIST.get_or_init(|| {
            let counters = provider.stats.each();
            let counters =
                counters.map(|(name, _)| Param::listed(name, ids::param::UNSIGNED_INTEGER));
            let [own @ .., end] = PARAMS;
            StaticTable::leak(own.into_iter().chain(counters).chain([end]).collect())
        });
        Ok(list.as_ptr())
    })
}

/// The version of this crate, for C.
pub(crate) const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!(),
    };

/// The parameters of every provider; those of a usable one include counters, too.
pub(crate) const PARAMS: [Param; 5] = [
    Param::listed(c"name", ids::param::UTF8_PTR),
    Param::listed(c"version", ids::param::UTF8_PTR),
    Param::listed(c"buildinfo", ids::param::UTF8_PTR),
    Param::listed(c"status", ids::param::UNSIGNED_INTEGER),
    Param::END,
];

/// Fills the entries of a request that are in [`PARAMS`] or have a counter. Returns `false` at the first entry of
/// an unexpected type.
///
/// # Safety
/// `request` is null or an array that a null key ends, and each entry describes writable memory.
pub(crate) unsafe fn answer(
    request: *mut Param,
    name: &'static CStr,
    is_usable: bool,
    counter: impl Fn(&CStr) -> Option<u64>,
) -> bool {
    // SAFETY: by this function's contract.
    let count = unsafe { params::entries(request) }.count();
    (0..count).all(|index| {
        // SAFETY: one of the entries counted above, which may be written by this function's contract.
        let param = unsafe { &mut *request.add(index) };
        // SAFETY: the key of a counted entry is not null, and so a C string.
        let key = unsafe { CStr::from_ptr(param.key) };
        // SAFETY: by this function's contract each entry describes writable memory.
        unsafe {
            match key.to_bytes() {
                b"name" => set_string_ptr(param, name),
                b"version" | b"buildinfo" => set_string_ptr(param, VERSION),
                b"status" => {
                    // Some callers ask for a signed integer: 0 and 1 are the same in both types.
                    param.data_type = ids::param::UNSIGNED_INTEGER.unsigned_abs();
                    set_unsigned(param, is_usable.into())
                }
                _ => counter(key).is_none_or(|value| set_unsigned(param, value)),
            }
        }
    })
}

unsafe extern "C" fn get_params<const ID: i32>(provctx: Ptr, request: *mut Param) -> c_int {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, 0, || {
        let counter = |key: &CStr| Some(provider.stats.each().find(|(name, _)| *name == key)?.1);
        // SAFETY: libcrypto passes null or an array of parameters that a null key ends, and the application has
        // passed the memory of each to be written.
        if unsafe { answer(request, c"Millrace provider", true, counter) } {
            Ok(1)
        } else {
            let text = "a parameter has an unexpected type";
            Err(Error::new(Reason::Internal, text))
        }
    })
}

pub(crate) unsafe extern "C" fn reason_strings<const ID: i32>(_provctx: Ptr) -> *const Item {
    static LIST: OnceLock<StaticTable<Item>> = OnceLock::new();
    core::guard_bare(std::ptr::null(), || {
        let list = LIST.get_or_init(|| {
            let text = |(reason, text): &(Reason, &'static CStr)| Item {
                id: *reason as u32,
                pointer: text.as_ptr().cast(),
            };
            let mut entries: Vec<Item> = Reason::TEXTS.iter().map(text).collect();
            entries.push(Item { id: 0, pointer: std::ptr::null() });
            StaticTable::leak(entries)
        });
        Some(list.as_ptr())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use millrace_engine::PrivateKey;

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
