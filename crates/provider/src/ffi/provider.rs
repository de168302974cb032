// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The entry point, the functions of a usable provider, and its tables of algorithms.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::about::{PARAMS, ProviderStatus, answer, reason_strings, teardown};
use super::core::{self, Core, guard_bare};
use super::delegate::{LOCAL_PROPERTIES, Offering, PROPERTIES, Rows, dispatch, wrapped};
use super::inner::{self, InnerAlgorithm};
use super::libcrypto::Ptr;
use super::params::{locate, text};
use super::state::{AlgorithmTables, Chosen, Provider, SharedProvider, guard};
use super::types::{Algorithm, Callback, Dispatch, Param, StaticTable};
use super::{
    asym, cells, decoder, ids, keyexch, keymgmt, local, notice, preload, section, signature, store,
    unusable,
};
use crate::algorithms::{AlgorithmRow, Cipher, Exchange, KeyType, Primitive, Signature};
use crate::bulk::BulkRoutes;
use crate::config::{self, Config};
use crate::error::{Error, Reason, Result};

/// Environment variable: if set, a line on standard error for each operation that the pool did not do.
const LOG_VARIABLE: &str = "MILLRACE_LOG";

impl Provider {
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

impl AlgorithmTables {
    fn new(config: &Config, chosen: &Chosen, bulk: Option<&BulkRoutes>) -> Result<Self> {
        let context = inner::context()?;
        let local = local::Tables::new(chosen, bulk)?;
        let offers = KeyOffers { config, chosen };
        // Decoders hand keys over by `load`, whether OpenSSL's own key type has it or not.
        let load = [ids::keymgmt::LOAD];
        // Where a property query prefers neither, the first row is taken: the pool's.
        let keys = [
            wrapped(
                KeyType::ALL.iter().map(|key| offers.pools(*key)),
                &context.keys,
                &keymgmt::DISPATCH,
                &load,
                POOL,
            ),
            wrapped(
                KeyType::ALL.iter().map(|key| offers.signs_locally(*key)),
                &context.keys,
                &keymgmt::LOCAL,
                &load,
                LOCAL,
            ),
        ];
        Ok(Self {
            keys: ended([local.keys, keys.concat()].concat()),
            signatures: ended(offers.tables(
                Signature::ROWS,
                &context.signatures,
                &signature::DISPATCH,
            )),
            exchanges: ended(
                [
                    local.exchanges,
                    offers.tables(Exchange::ROWS, &context.exchanges, &keyexch::DISPATCH),
                ]
                .concat(),
            ),
            ciphers: ended(offers.tables(Cipher::ROWS, &context.ciphers, &asym::DISPATCH)),
            decoders: decoder::algorithms(config),
            stores: store::algorithms(),
            kems: ended(local.kems),
            kdfs: ended(local.kdfs),
            aeads: ended(local.aeads),
            digests: ended(local.digests),
            macs: ended(local.macs),
        })
    }
}

/// The key types that are offered, and where their private operations are done.
struct KeyOffers<'a> {
    config: &'a Config,
    chosen: &'a Chosen,
}

impl KeyOffers<'_> {
    /// Whether keys of this type may be the pool's.
    fn pools(&self, key: KeyType) -> bool {
        self.config.offers(key) && !(key == KeyType::X25519 && self.config.keeps_x25519())
    }

    fn signs_locally(&self, key: KeyType) -> bool {
        Primitive::ALL.iter().any(|primitive| self.chosen.signs(*primitive, key))
    }

    /// The algorithms of rows with a key type that is offered: those of the pool, then the local ones.
    fn tables(
        &self,
        rows: &[AlgorithmRow],
        inner: &'static [Option<InnerAlgorithm>],
        dispatch: &[fn() -> Rows],
    ) -> Vec<Algorithm> {
        let pooled = rows.iter().map(|row| row.keys.iter().any(|key| self.pools(*key)));
        let local = rows.iter().map(|row| row.keys.iter().any(|key| self.signs_locally(*key)));
        [wrapped(pooled, inner, dispatch, &[], POOL), wrapped(local, inner, dispatch, &[], LOCAL)]
            .concat()
    }
}

/// A table of algorithms, kept forever.
fn ended(mut entries: Vec<Algorithm>) -> StaticTable<Algorithm> {
    entries.push(Algorithm::END);
    StaticTable::leak(entries)
}

/// Algorithms with private operations in the pool.
const POOL: Offering =
    (PROPERTIES, c"OpenSSL's, with the private key operations in the Millrace pool");

/// Algorithms of keys that sign in this process.
const LOCAL: Offering =
    (LOCAL_PROPERTIES, c"OpenSSL's, with the signatures of AWS-LC in this process");

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
    notice::note_standard_error();
    let lib = inner::library(core.upcall)?;
    let variable_file = variable(config::FILE_VARIABLE).map(PathBuf::from);
    let section = core::section(&core);
    config::check_section(&section::keys(&core, lib, &section))?;
    let config = config::load(&section, variable_file.as_deref())?;
    let shared = SharedProvider::of(config);
    if shared.config.computes_locally()
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

/// The capabilities of the inner provider, where their keys are offered here, and TLS groups that it lacks.
/// Capabilities are TLS groups and, since OpenSSL 3.5, TLS signature algorithms. libssl takes one only from the
/// provider whose key type it fetches, which is this one wherever it is preferred.
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
        let keys = provider.tables()?.keys.0;
        let mut filter = GroupFilter { keys, last: ("", false), callback, argument };
        // SAFETY: takes a loaded provider, which is never unloaded, and a callback with its argument; the rest is
        // libcrypto's for this very function.
        let done = unsafe {
            (provider.lib.OSSL_PROVIDER_get_capabilities)(
                context.provider,
                capability,
                announce_offered,
                (&raw mut filter).cast(),
            )
        };
        if done != 1 {
            return Ok(done);
        }
        // SAFETY: libcrypto's, for this very function.
        unsafe { local::announce(provider.chosen(), capability, callback, argument) }
    })
}

/// The callback of libssl, which gets those groups of the inner provider whose key type is offered here.
struct GroupFilter<'a> {
    keys: &'static [Algorithm],
    /// The key type of the group before, and whether it is offered: most groups are of one type.
    last: (&'a str, bool),
    callback: Callback,
    argument: *mut c_void,
}

impl<'a> GroupFilter<'a> {
    fn offers(&mut self, key_type: &'a str) -> bool {
        if self.last.0 != key_type {
            let is_offered = self.keys.iter().any(|row| has_name(row, key_type.as_bytes()));
            self.last = (key_type, is_offered);
        }
        self.last.1
    }
}

/// Whether `name` is one of the names of an algorithm, which colons separate.
fn has_name(row: &Algorithm, name: &[u8]) -> bool {
    if row.names.is_null() {
        return false;
    }
    // SAFETY: not null, and the names in the tables are C strings that live for ever.
    let names = unsafe { CStr::from_ptr(row.names) }.to_bytes();
    names.split(|byte| *byte == b':').any(|known| known.eq_ignore_ascii_case(name))
}

/// Passes a group or a signature algorithm on, unless it is a group that no key of this provider can be in. libssl
/// would look at it for nothing, for each server of a configuration.
unsafe extern "C" fn announce_offered(params: *const Param, argument: *mut c_void) -> c_int {
    guard_bare(1, || {
        // SAFETY: `get_capabilities` passes its filter, which lives until the inner provider returns.
        let filter = unsafe { argument.cast::<GroupFilter<'_>>().as_mut() }?;
        // SAFETY: the inner provider passes an array that a null key ends, over strings of its own.
        let key_type = unsafe { locate(params, c"tls-group-alg").and_then(|param| text(param)) };
        if let Some(key_type) = key_type
            && !filter.offers(key_type)
        {
            return None;
        }
        // SAFETY: libcrypto's callback with its argument, for this call.
        Some(unsafe { (filter.callback)(params, filter.argument) })
    })
}

unsafe extern "C" fn gettable_params<const ID: i32>(provctx: Ptr) -> *const Param {
    static LIST: OnceLock<StaticTable<Param>> = OnceLock::new();
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null(), || {
        let list = LIST.get_or_init(|| {
            let counters = provider
                .stats
                .each()
                .map(|(name, _)| Param::listed(name, ids::param::UNSIGNED_INTEGER));
            let [own @ .., end] = PARAMS;
            StaticTable::leak(own.into_iter().chain(counters).chain([end]).collect())
        });
        Ok(list.as_ptr())
    })
}

unsafe extern "C" fn get_params<const ID: i32>(provctx: Ptr, request: *mut Param) -> c_int {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, 0, || {
        let counter = |key: &CStr| Some(provider.stats.each().find(|(name, _)| *name == key)?.1);
        // SAFETY: libcrypto passes null or an array of parameters that a null key ends, and the application has
        // passed the memory of each to be written.
        if unsafe { answer(request, c"Millrace provider", ProviderStatus::Usable, counter) } {
            Ok(1)
        } else {
            let text = "a parameter has an unexpected type";
            Err(Error::new(Reason::Internal, text))
        }
    })
}
