// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Answers `EVP_*_fetch` from a cache. A TLS 1.3 handshake makes some 70 of these calls, each of which parses a
//! property query and takes locks, always with the same result.
//!
//! The cache is on in nginx and HAProxy where the environment variable [`VARIABLE`] says so. It begins with the first
//! handshake, when the configuration has long been read.
//!
//! Each thread has its own table, so that nothing is locked and no other thread's reference is touched. A call that
//! may change the result of a fetch (a provider loaded or unloaded, other default properties, a configuration
//! file) starts a new generation: every thread frees its methods at its next fetch, since a method keeps its
//! provider loaded. A program that exchanges its default context ends all caching.
//!
//! The functions are exported to every program with this library. Elsewhere each passes the call on.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::next::{self, Libcrypto};
use super::{decoders, generation, sigalgs};
use crate::methods::{MethodQuery, MethodTable};

/// Turns the cache on, with the value `on`.
pub(super) const VARIABLE: &str = "MILLRACE_FETCH_CACHE";

/// Whether the cache may begin with the first handshake.
static ALLOWED: AtomicBool = AtomicBool::new(false);
/// Counters of hits and misses; null while the provider has not named them.
static HITS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
static MISSES: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// The table of a thread; its methods are freed with the thread, at the end of the program before libcrypto's own.
struct ThreadMethods(MethodTable);

impl Drop for ThreadMethods {
    fn drop(&mut self) {
        self.renew(0);
    }
}

impl ThreadMethods {
    /// Frees all methods, and begins with this generation.
    fn renew(&mut self, generation: u64) {
        for (kind, method) in self.0.drain(generation) {
            let libcrypto = next::libcrypto();
            let functions = libcrypto.and_then(|known| known.methods.get(usize::from(kind)));
            if let Some(functions) = functions {
                // SAFETY: a method of this kind, with the reference that the table had.
                unsafe { (functions.free)(method as *mut c_void) };
            }
        }
    }
}

thread_local! {
    static METHODS: RefCell<ThreadMethods> =
        const { RefCell::new(ThreadMethods(MethodTable::EMPTY)) };
}

/// Reads the environment variable, before `main` of a program that is known.
pub(super) fn allow() {
    let wanted = std::env::var_os(VARIABLE).is_some_and(|value| value == "on");
    ALLOWED.store(wanted, Ordering::Relaxed);
}

/// A handshake begins: from now on fetches are kept.
pub(super) fn handshake_started() {
    if ALLOWED.load(Ordering::Relaxed) && ALLOWED.swap(false, Ordering::Relaxed) {
        begin();
    }
}

fn begin() {
    let Some(libcrypto) = next::libcrypto() else {
        return;
    };
    // Another library in front of this one gets the calls.
    if next::is_ours(c"EVP_MD_fetch") {
        // SAFETY: null changes nothing; the result is the context in use.
        let context = unsafe { (libcrypto.set_default)(ptr::null_mut()) };
        generation::start(context);
    }
}

/// The provider calls it at its start: hits and misses are counted there, for `millrace gateway check`.
///
/// # Safety
/// Both stay valid as long as the process lives.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn millrace_preload_count_fetches(
    hits: *mut AtomicU64,
    misses: *mut AtomicU64,
) {
    HITS.store(hits, Ordering::Release);
    MISSES.store(misses, Ordering::Release);
}

fn count(place: &AtomicPtr<AtomicU64>) {
    // SAFETY: null, or promised to be valid.
    if let Some(counter) = unsafe { place.load(Ordering::Acquire).as_ref() } {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A fetch of this kind, an index of [`Libcrypto::methods`].
///
/// # Safety
/// As for `EVP_MD_fetch(3)`.
unsafe fn fetch(
    kind: u8,
    context: *mut c_void,
    name: *const c_char,
    properties: *const c_char,
) -> *mut c_void {
    let Some(libcrypto) = next::libcrypto() else {
        return ptr::null_mut();
    };
    let functions = &libcrypto.methods[usize::from(kind)];
    // SAFETY: forwarded unchanged.
    let forward = || unsafe { (functions.fetch)(context, name, properties) };
    let Some(generation) = generation::of(context).filter(|_| !name.is_null()) else {
        return forward();
    };
    // SAFETY: not null, so a C string by this function's contract.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: as above.
    let properties = (!properties.is_null()).then(|| unsafe { CStr::from_ptr(properties) });
    let query = MethodQuery { kind, name, properties };
    if let Some(method) = kept(libcrypto, generation, query) {
        count(&HITS);
        return method;
    }
    count(&MISSES);
    let method = forward();
    if !method.is_null() {
        keep(libcrypto, generation, query, method);
    }
    method
}

/// A kept method, with a reference for the caller.
fn kept(libcrypto: &Libcrypto, generation: u64, query: MethodQuery<'_>) -> Option<*mut c_void> {
    let found = METHODS.try_with(|methods| {
        let mut methods = methods.try_borrow_mut().ok()?;
        if methods.0.generation() != generation {
            methods.renew(generation);
        }
        let method = methods.0.find(query)? as *mut c_void;
        // SAFETY: a method of this kind, which lives by the table's reference.
        let counted = unsafe { (libcrypto.methods[usize::from(query.kind)].up_ref)(method) } == 1;
        counted.then_some(method)
    });
    // At the end of a thread the table is gone.
    found.ok().flatten()
}

/// Keeps a method that was fetched while this generation was current.
fn keep(libcrypto: &Libcrypto, generation: u64, query: MethodQuery<'_>, method: *mut c_void) {
    // At the end of a thread the table is gone.
    let _ = METHODS.try_with(|methods| {
        let Ok(mut methods) = methods.try_borrow_mut() else {
            return;
        };
        let current = methods.0.generation() == generation && generation::is_current(generation);
        // The fetch itself may have fetched the same, inside a provider.
        let is_new = methods.0.find(query).is_none();
        if !current || !is_new || !methods.0.has_room(query) {
            return;
        }
        // SAFETY: a method of this kind, which the caller has a reference to.
        if unsafe { (libcrypto.methods[usize::from(query.kind)].up_ref)(method) } == 1 {
            methods.0.insert(query, method as usize);
        }
    });
}

macro_rules! fetches {
    ($($name:ident = $kind:literal;)*) => {$(
        /// Interposed: answered from the cache.
        ///
        /// # Safety
        /// As for the function of this name in libcrypto.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(
            context: *mut c_void,
            name: *const c_char,
            properties: *const c_char,
        ) -> *mut c_void {
            // SAFETY: by this function's contract.
            unsafe { fetch($kind, context, name, properties) }
        }
    )*};
}

// The numbers are indices of `Libcrypto::methods`.
fetches! {
    EVP_MD_fetch = 0;
    EVP_KDF_fetch = 1;
    EVP_MAC_fetch = 2;
    EVP_CIPHER_fetch = 3;
    EVP_SIGNATURE_fetch = 4;
    EVP_KEYMGMT_fetch = 5;
    EVP_KEYEXCH_fetch = 6;
    EVP_KEM_fetch = 7;
}

/// Makes every thread forget what it has kept, before and after a call that may change the results of fetches: before,
/// so that no kept method holds a provider that shall go; after, so that nothing of the time between is kept.
fn around<T>(call: impl FnOnce() -> T) -> T {
    renew();
    let result = call();
    renew();
    result
}

/// Begins a generation: this thread forgets at once, the others at their next fetch.
fn renew() {
    let generation = generation::advance();
    decoders::forget();
    if !generation::is_started() {
        return;
    }
    let _ = METHODS.try_with(|methods| {
        if let Ok(mut methods) = methods.try_borrow_mut() {
            methods.renew(generation);
        }
    });
    sigalgs::renew(generation);
}

macro_rules! changes {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $missing:expr;)*) => {$(
        /// Interposed: may change the results of fetches.
        ///
        /// # Safety
        /// As for the function of this name in libcrypto.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            type Next = unsafe extern "C" fn($($type),*) -> $result;
            static NEXT: std::sync::OnceLock<Option<Next>> = std::sync::OnceLock::new();
            let name = concat!(stringify!($name), "\0");
            // SAFETY: libcrypto's function of this name has this type.
            let next = NEXT.get_or_init(|| unsafe { next::in_libcrypto(name) });
            match next {
                // SAFETY: forwarded unchanged.
                Some(next) => around(|| unsafe { next($($argument),*) }),
                None => $missing,
            }
        }
    )*};
}

changes! {
    EVP_set_default_properties(context: *mut c_void, query: *const c_char) -> c_int = 0;
    EVP_default_properties_enable_fips(context: *mut c_void, enable: c_int) -> c_int = 0;
    OSSL_PROVIDER_load(context: *mut c_void, name: *const c_char) -> *mut c_void = ptr::null_mut();
    OSSL_PROVIDER_load_ex(context: *mut c_void, name: *const c_char, params: *mut c_void) -> *mut c_void
        = ptr::null_mut();
    OSSL_PROVIDER_try_load(context: *mut c_void, name: *const c_char, retain: c_int) -> *mut c_void
        = ptr::null_mut();
    OSSL_PROVIDER_try_load_ex(context: *mut c_void, name: *const c_char, params: *mut c_void, retain: c_int)
        -> *mut c_void = ptr::null_mut();
    OSSL_PROVIDER_unload(provider: *mut c_void) -> c_int = 0;
    OSSL_PROVIDER_add_builtin(context: *mut c_void, name: *const c_char, init: *const c_void) -> c_int = 0;
    OSSL_LIB_CTX_load_config(context: *mut c_void, file: *const c_char) -> c_int = 0;
    CONF_modules_load(conf: *const c_void, application: *const c_char, flags: std::ffi::c_ulong) -> c_int = 0;
    CONF_modules_load_file(file: *const c_char, application: *const c_char, flags: std::ffi::c_ulong)
        -> c_int = 0;
    CONF_modules_load_file_ex(context: *mut c_void, file: *const c_char, application: *const c_char,
        flags: std::ffi::c_ulong) -> c_int = 0;
    CONF_modules_unload(all: c_int) -> () = ();
}

/// Interposed: with another default context a null context means something else, so nothing is kept from then on.
///
/// # Safety
/// As for `OSSL_LIB_CTX_set0_default(3)`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn OSSL_LIB_CTX_set0_default(context: *mut c_void) -> *mut c_void {
    let Some(libcrypto) = next::libcrypto() else {
        return ptr::null_mut();
    };
    // libssl sets the context in use once more for each SSL_CTX while openssl.cnf has a section `ssl_conf`. An
    // asynchronous job passes null, which sets nothing.
    // SAFETY: null changes nothing; the result is the context in use.
    if !context.is_null() && context != unsafe { (libcrypto.set_default)(ptr::null_mut()) } {
        ALLOWED.store(false, Ordering::Relaxed);
        around(generation::stop);
    }
    // SAFETY: forwarded unchanged.
    unsafe { (libcrypto.set_default)(context) }
}
