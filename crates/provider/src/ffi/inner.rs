// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The private library context: OpenSSL's own `default` provider, called through its dispatch tables.
//!
//! A function of an inner algorithm gets inner objects only: its own provider context, its own key
//! data. No property query leads out of the private context, so nothing recurses into us, whatever
//! `openssl.cnf` prefers.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use millrace_engine::Hash;

use super::core;
use super::ids::{self, FUNCTIONS};
use super::libcrypto::{Lib, Ptr};
use super::types::{Algorithm, Dispatch};
use crate::config::ALGORITHMS;
use crate::error::{Error, Reason, Result};
use crate::names;

/// Signature algorithms, by their first name in the `default` provider. Those with a digest in their
/// name came with OpenSSL 3.4 and stand behind the others; these are the digests that the pool has.
pub(crate) const SIGNATURES: [&str; 21] = [
    "RSA",
    "ECDSA",
    "ED25519",
    "ED448",
    "DSA",
    "RSA-SHA1",
    "RSA-SHA2-224",
    "RSA-SHA2-256",
    "RSA-SHA2-384",
    "RSA-SHA2-512",
    "RSA-SHA2-512/256",
    "ECDSA-SHA1",
    "ECDSA-SHA2-224",
    "ECDSA-SHA2-256",
    "ECDSA-SHA2-384",
    "ECDSA-SHA2-512",
    "DSA-SHA1",
    "DSA-SHA2-224",
    "DSA-SHA2-256",
    "DSA-SHA2-384",
    "DSA-SHA2-512",
];
/// Key exchanges.
pub(crate) const EXCHANGES: [&str; 4] = ["ECDH", "X25519", "X448", "DH"];
/// Asymmetric ciphers.
pub(crate) const CIPHERS: [&str; 1] = ["RSA"];

/// One algorithm of the inner provider.
pub(crate) struct Inner {
    /// All its names, as OpenSSL wants them.
    pub(crate) names: *const c_char,
    table: [*const c_void; FUNCTIONS],
}

impl Inner {
    /// Whether it has the function with this id.
    pub(crate) fn has(&self, id: i32) -> bool {
        usize::try_from(id).is_ok_and(|index| self.table.get(index).is_some_and(|f| !f.is_null()))
    }

    /// The entry of the function with this id, to be handed on as it is.
    pub(crate) fn entry(&self, id: i32) -> Option<Dispatch> {
        let function = *self.table.get(usize::try_from(id).ok()?)?;
        (!function.is_null()).then_some(Dispatch { id, function })
    }

    /// The function with this id.
    ///
    /// # Safety
    /// `F` is the type that `core_dispatch.h` gives to the function with this id of this operation.
    pub(crate) unsafe fn function<F: Copy>(&self, id: i32) -> Result<F> {
        const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
        let address = usize::try_from(id)
            .ok()
            .and_then(|index| self.table.get(index));
        match address {
            // SAFETY: a function pointer of the caller's type.
            Some(address) if !address.is_null() => Ok(unsafe { std::mem::transmute_copy(address) }),
            _ => Err(Error::new(
                Reason::NotOffered,
                "this OpenSSL does not have the function",
            )),
        }
    }
}

/// The private library context and what is offered from it.
pub(crate) struct Context {
    pub(crate) lib: &'static Lib,
    pub(crate) libctx: Ptr,
    /// The inner provider.
    pub(crate) provider: Ptr,
    /// Context of the inner provider: first argument of its constructors.
    pub(crate) provctx: Ptr,
    pub(crate) keys: [Option<Inner>; ALGORITHMS.len()],
    pub(crate) signatures: [Option<Inner>; SIGNATURES.len()],
    pub(crate) exchanges: [Option<Inner>; EXCHANGES.len()],
    pub(crate) ciphers: [Option<Inner>; CIPHERS.len()],
    digests: [OnceLock<Digest>; Hash::ALL.len()],
}

/// A fetched `EVP_MD`.
struct Digest(Ptr);

// SAFETY: an `EVP_MD` is reference counted and immutable.
unsafe impl Send for Digest {}
// SAFETY: as above.
unsafe impl Sync for Digest {}

// SAFETY: a library context is made to be shared between threads; the tables are constants of
// libcrypto.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

static LIB: OnceLock<std::result::Result<Lib, String>> = OnceLock::new();
static CONTEXT: OnceLock<std::result::Result<Context, &'static str>> = OnceLock::new();

/// The libcrypto of this process. There is one per process that can use this module.
///
/// # Errors
/// Why it cannot be used.
pub(crate) fn library(upcall: *const c_void) -> Result<&'static Lib> {
    let lib = LIB
        .get_or_init(|| Lib::holding(upcall))
        .as_ref()
        .map_err(|why| {
            let text = format!(
                "the OpenSSL that loads this provider cannot be used: {why}; \
             use a program that is linked with libcrypto dynamically"
            );
            Error::new(Reason::Library, text)
        })?;
    if lib.holds(upcall) {
        return Ok(lib);
    }
    let text =
        "another libcrypto in this process uses the provider already; it serves one at a time";
    Err(Error::new(Reason::Library, text))
}

/// The private context, made at the first call.
///
/// # Errors
/// If libcrypto cannot make one.
pub(crate) fn context() -> Result<&'static Context> {
    let lib = LIB.get().and_then(|lib| lib.as_ref().ok());
    let lib = lib.ok_or_else(|| Error::new(Reason::Internal, "used before it was initialised"))?;
    CONTEXT
        .get_or_init(|| Context::new(lib))
        .as_ref()
        .map_err(|why| Error::new(Reason::Library, *why))
}

impl Context {
    fn new(lib: &'static Lib) -> std::result::Result<Self, &'static str> {
        // SAFETY: takes nothing.
        let libctx = unsafe { (lib.OSSL_LIB_CTX_new)() };
        if libctx.is_null() {
            return Err("no private library context could be made");
        }
        // SAFETY: a library context and a C string.
        let provider = unsafe { (lib.OSSL_PROVIDER_load)(libctx, c"default".as_ptr()) };
        if provider.is_null() {
            return Err("OpenSSL's default provider could not be loaded");
        }
        // SAFETY: a loaded provider; its context is only handed back to its own functions.
        let provctx = unsafe { (lib.OSSL_PROVIDER_get0_provider_ctx)(provider) };
        let table = |operation: c_int| {
            let mut no_cache = 0;
            // SAFETY: a loaded provider, which is never unloaded, so that its tables stay.
            unsafe { (lib.OSSL_PROVIDER_query_operation)(provider, operation, &mut no_cache) }
        };
        let keys = table(ids::OSSL_OP_KEYMGMT);
        let signatures = table(ids::OSSL_OP_SIGNATURE);
        let exchanges = table(ids::OSSL_OP_KEYEXCH);
        let ciphers = table(ids::OSSL_OP_ASYM_CIPHER);
        Ok(Self {
            lib,
            libctx,
            provider,
            provctx,
            // SAFETY: arrays of `OSSL_ALGORITHM` of the inner provider.
            keys: unsafe { find(keys, ALGORITHMS) },
            // SAFETY: as above.
            signatures: unsafe { find(signatures, SIGNATURES) },
            // SAFETY: as above.
            exchanges: unsafe { find(exchanges, EXCHANGES) },
            // SAFETY: as above.
            ciphers: unsafe { find(ciphers, CIPHERS) },
            digests: [const { OnceLock::new() }; Hash::ALL.len()],
        })
    }

    /// The `EVP_MD` of a digest in the private context.
    pub(crate) fn digest(&self, hash: Hash) -> Result<Ptr> {
        let place = Hash::ALL.iter().position(|known| *known == hash);
        let cell = place
            .and_then(|index| self.digests.get(index))
            .ok_or_else(Error::library)?;
        if let Some(Digest(digest)) = cell.get() {
            return Ok(*digest);
        }
        let name = names::openssl_name(hash).ok_or_else(Error::library)?;
        // SAFETY: a library context, a C string, no properties.
        let digest =
            unsafe { (self.lib.EVP_MD_fetch)(self.libctx, name.as_ptr(), std::ptr::null()) };
        if digest.is_null() {
            return Err(Error::library());
        }
        // Lost the race: one more reference stays, which is nothing.
        let _ = cell.set(Digest(digest));
        Ok(digest)
    }
}

/// Finds algorithms by their first name.
///
/// # Safety
/// `table` is null or an array of `OSSL_ALGORITHM` that a null name ends.
unsafe fn find<const N: usize>(table: *const Algorithm, wanted: [&str; N]) -> [Option<Inner>; N] {
    let mut found = [const { None }; N];
    let mut entry = table;
    while !entry.is_null() {
        // SAFETY: no null name was met so far, so the array goes on.
        let algorithm = unsafe { *entry };
        if algorithm.names.is_null() {
            break;
        }
        // SAFETY: names are C strings.
        let names = unsafe { CStr::from_ptr(algorithm.names) }
            .to_str()
            .unwrap_or("");
        let first = names.split(':').next().unwrap_or("");
        if let Some(index) = wanted
            .iter()
            .position(|name| name.eq_ignore_ascii_case(first))
        {
            let mut table = [std::ptr::null(); FUNCTIONS];
            for (id, function) in table.iter_mut().enumerate().skip(1) {
                let id = i32::try_from(id).unwrap_or(0);
                // SAFETY: the dispatch table of an algorithm.
                *function = unsafe { core::function(algorithm.implementation, id) };
            }
            found[index] = Some(Inner {
                names: algorithm.names,
                table,
            });
        }
        // SAFETY: as above.
        entry = unsafe { entry.add(1) };
    }
    found
}
