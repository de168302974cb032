// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The inner library context: OpenSSL's own `default` provider, called through its dispatch tables.
//!
//! A function of an inner algorithm gets inner objects only: its own provider context, its own key
//! data. No property query leads out of the inner context, so nothing recurses into this provider, whatever
//! `openssl.cnf` prefers.
//!
//! Functions are called through [`call!`], which takes the number of the function and its C type.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use millrace_operation::Hash;

use super::core;
use super::ids::{self, FUNCTIONS};
use super::libcrypto::{Lib, LibError, Ptr};
use super::types::{Algorithm, Dispatch};
use crate::algorithms::{
    Aead, AlgorithmRow, Bulk, BulkForm, Cipher, Exchange, KeyType, Sha2, Share, Signature,
};
use crate::error::{Error, Reason, Result};
use crate::names;

/// One algorithm of the inner provider.
pub(crate) struct InnerAlgorithm {
    /// All its names, as OpenSSL wants them.
    pub(crate) names: *const c_char,
    table: [*const c_void; FUNCTIONS],
}

impl InnerAlgorithm {
    /// Whether the algorithm has the function with this id.
    pub(crate) fn has(&self, id: i32) -> bool {
        usize::try_from(id).is_ok_and(|index| self.table.get(index).is_some_and(|f| !f.is_null()))
    }

    /// The entry of the function with this id, to be handed on as it is.
    pub(crate) fn entry(&self, id: i32) -> Option<Dispatch> {
        let function = *self.table.get(usize::try_from(id).ok()?)?;
        (!function.is_null()).then_some(Dispatch { id, function })
    }

    /// The function with this id. Use [`call!`].
    ///
    /// # Safety
    /// `F` is the type that `core_dispatch.h` gives to the function with this id of this operation.
    pub(crate) unsafe fn function<F: Copy>(&self, id: i32) -> Result<F> {
        const { assert!(size_of::<F>() == size_of::<*const c_void>()) };
        let Some(entry) = self.entry(id) else {
            let text = "this OpenSSL does not have the function";
            return Err(Error::new(Reason::NotOffered, text));
        };
        // SAFETY: the address is not null, and by this function's contract that of an `F`, which is a
        // function pointer by its size.
        Ok(unsafe { std::mem::transmute_copy(&entry.function) })
    }
}

/// Calls the function `$id` of an inner algorithm with arguments and their C types. An error if
/// the algorithm does not have the function.
///
/// # Safety
/// For the `unsafe` block around it: the types are those that `core_dispatch.h` gives to this function
/// of this operation, and the arguments meet its contract.
macro_rules! call {
    ($functions:expr, $id:expr, fn($($argument:expr => $type:ty),* $(,)?) -> $result:ty) => {
        $functions
            .function::<unsafe extern "C" fn($($type),*) -> $result>($id)
            .map(|function| function($($argument),*))
    };
}
pub(crate) use call;

/// The outcome of a function of libcrypto that returns 1 for success.
pub(crate) fn succeeded(status: c_int) -> Result<()> {
    if status == 1 { Ok(()) } else { Err(Error::library()) }
}

/// The inner library context and what is offered from it.
pub(crate) struct InnerContext {
    pub(crate) lib: &'static Lib,
    pub(crate) libctx: Ptr,
    /// The inner provider.
    pub(crate) provider: Ptr,
    /// Context of the inner provider: first argument of its constructors.
    pub(crate) provctx: Ptr,
    /// Algorithms, at the index of their [`KeyType`], [`Signature`] and so on; `None` if this OpenSSL lacks one.
    pub(crate) keys: Vec<Option<InnerAlgorithm>>,
    pub(crate) signatures: Vec<Option<InnerAlgorithm>>,
    pub(crate) exchanges: Vec<Option<InnerAlgorithm>>,
    pub(crate) ciphers: Vec<Option<InnerAlgorithm>>,
    /// Key managers, by the index of [`Share`].
    pub(crate) shares: Vec<Option<InnerAlgorithm>>,
    /// Key encapsulations, by the index of [`Share`].
    pub(crate) kems: Vec<Option<InnerAlgorithm>>,
    pub(crate) tls13_kdf: Option<InnerAlgorithm>,
    /// Ciphers of records, by the index of [`Aead`].
    pub(crate) aeads: Vec<Option<InnerAlgorithm>>,
    /// Digests, by the index of [`Sha2`].
    pub(crate) sha2: Vec<Option<InnerAlgorithm>>,
    /// Algorithms that the kernel may serve, by the index of [`Bulk`].
    pub(crate) bulk: Vec<Option<InnerAlgorithm>>,
    digests: [OnceLock<Digest>; Hash::ALL.len()],
}

/// A fetched `EVP_MD`, kept for ever.
struct Digest(Ptr);

// SAFETY: an `EVP_MD` is reference counted and immutable.
unsafe impl Send for Digest {}
// SAFETY: as for `Send`.
unsafe impl Sync for Digest {}

// SAFETY: a library context is made to be shared between threads; the tables are constants of
// libcrypto.
unsafe impl Send for InnerContext {}
// SAFETY: as for `Send`.
unsafe impl Sync for InnerContext {}

static LIB: OnceLock<std::result::Result<Lib, LibError>> = OnceLock::new();
static CONTEXT: OnceLock<Result<InnerContext>> = OnceLock::new();

/// The libcrypto of this process.
///
/// # Errors
/// It lacks a function, or another libcrypto of this process uses the module already.
pub(crate) fn library(upcall: *const c_void) -> Result<&'static Lib> {
    let lib = LIB.get_or_init(|| Lib::holding(upcall)).as_ref().map_err(|why| {
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

/// The inner context, made at the first call.
pub(crate) fn context() -> Result<&'static InnerContext> {
    let Some(Ok(lib)) = LIB.get() else {
        return Err(Error::new(Reason::Internal, "used before it was initialised"));
    };
    CONTEXT.get_or_init(|| InnerContext::new(lib)).as_ref().map_err(Error::clone)
}

impl InnerContext {
    fn new(lib: &'static Lib) -> Result<Self> {
        let failed = |text: &str| Err(Error::new(Reason::Library, text));
        // SAFETY: takes nothing.
        let libctx = unsafe { (lib.OSSL_LIB_CTX_new)() };
        if libctx.is_null() {
            return failed("no inner library context could be made");
        }
        // SAFETY: takes a library context and a C string.
        let provider = unsafe { (lib.OSSL_PROVIDER_load)(libctx, c"default".as_ptr()) };
        if provider.is_null() {
            return failed("OpenSSL's default provider could not be loaded");
        }
        // SAFETY: takes a loaded provider.
        let provctx = unsafe { (lib.OSSL_PROVIDER_get0_provider_ctx)(provider) };
        let found = DefaultProvider { lib, provider };
        let share_names: Vec<&str> =
            Share::ROWS.iter().map(|row| row.name.to_str().unwrap_or_default()).collect();
        Ok(Self {
            lib,
            libctx,
            provider,
            provctx,
            keys: found.algorithms(ids::op::KEYMGMT, KeyType::ALL.iter().map(|key| key.name())),
            signatures: found.rows(ids::op::SIGNATURE, Signature::ROWS),
            exchanges: found.rows(ids::op::KEYEXCH, Exchange::ROWS),
            ciphers: found.rows(ids::op::ASYM_CIPHER, Cipher::ROWS),
            shares: found.algorithms(ids::op::KEYMGMT, share_names.iter().copied()),
            kems: found.algorithms(ids::op::KEM, share_names.iter().copied()),
            tls13_kdf: found.algorithms(ids::op::KDF, ["TLS13-KDF"]).pop().flatten(),
            aeads: found.algorithms(ids::op::CIPHER, Aead::ROWS.iter().map(|row| row.name)),
            sha2: found.algorithms(ids::op::DIGEST, Sha2::ROWS.iter().map(|row| row.name)),
            bulk: found.bulk(),
            digests: [const { OnceLock::new() }; Hash::ALL.len()],
        })
    }

    /// The `EVP_MD` of a digest in the inner context.
    pub(crate) fn digest(&self, hash: Hash) -> Result<Ptr> {
        let place = Hash::ALL.iter().position(|known| *known == hash);
        let cell = place.and_then(|index| self.digests.get(index)).ok_or_else(Error::library)?;
        if let Some(Digest(digest)) = cell.get() {
            return Ok(*digest);
        }
        let name = names::openssl_name(hash).ok_or_else(Error::library)?;
        // SAFETY: takes a library context, a C string and no properties.
        let digest =
            unsafe { (self.lib.EVP_MD_fetch)(self.libctx, name.as_ptr(), std::ptr::null()) };
        if digest.is_null() {
            return Err(Error::library());
        }
        // If another thread was first, one more reference stays: the digest is never freed anyway.
        let _ = cell.set(Digest(digest));
        Ok(digest)
    }
}

/// The loaded `default` provider.
struct DefaultProvider {
    lib: &'static Lib,
    provider: Ptr,
}

impl DefaultProvider {
    /// The algorithms of an operation, in the order of their first names; `None` for what this OpenSSL lacks.
    fn algorithms<'a>(
        &self,
        operation: c_int,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Vec<Option<InnerAlgorithm>> {
        let names: Vec<&str> = names.into_iter().collect();
        let query = self.lib.OSSL_PROVIDER_query_operation;
        let mut no_cache = 0;
        // SAFETY: a loaded provider and a writable flag. The provider is never unloaded, so its tables stay.
        let table = unsafe { query(self.provider, operation, &mut no_cache) };
        // SAFETY: what the query returns is null or an array of `OSSL_ALGORITHM` with its end.
        unsafe { find(table, &names) }
    }

    fn rows(&self, operation: c_int, rows: &[AlgorithmRow]) -> Vec<Option<InnerAlgorithm>> {
        self.algorithms(operation, rows.iter().map(|row| row.name))
    }

    /// The algorithms of [`Bulk`], each from the table of its form.
    fn bulk(&self) -> Vec<Option<InnerAlgorithm>> {
        Bulk::ROWS
            .iter()
            .map(|row| {
                let operation = match row.form {
                    BulkForm::Cipher => ids::op::CIPHER,
                    BulkForm::Digest => ids::op::DIGEST,
                    BulkForm::Mac => ids::op::MAC,
                };
                self.algorithms(operation, [row.name]).pop().flatten()
            })
            .collect()
    }
}

/// The functions of a key type.
pub(crate) fn key_functions(key_type: KeyType) -> Result<&'static InnerAlgorithm> {
    algorithm_at(&context()?.keys, key_type as usize)
}

/// The algorithm at `index`, or an error if this OpenSSL lacks it.
pub(crate) fn algorithm_at(
    algorithms: &[Option<InnerAlgorithm>],
    index: usize,
) -> Result<&InnerAlgorithm> {
    match algorithms.get(index) {
        Some(Some(inner)) => Ok(inner),
        _ => Err(Error::new(Reason::NotOffered, "this OpenSSL does not have the algorithm")),
    }
}

/// Finds algorithms by their first name.
///
/// # Safety
/// `table` is null or an array of `OSSL_ALGORITHM` that a null name ends.
unsafe fn find(table: *const Algorithm, wanted: &[&str]) -> Vec<Option<InnerAlgorithm>> {
    let mut found: Vec<Option<InnerAlgorithm>> = wanted.iter().map(|_| None).collect();
    let mut entry = table;
    while !entry.is_null() {
        // SAFETY: not null, and no null name was met so far, so the array continues.
        let algorithm = unsafe { *entry };
        if algorithm.names.is_null() {
            break;
        }
        // SAFETY: a name that is not null is a C string; those of libcrypto are constants.
        let names = unsafe { CStr::from_ptr(algorithm.names) }.to_str().unwrap_or("");
        let first = names.split(':').next().unwrap_or("");
        if let Some(index) = wanted.iter().position(|name| name.eq_ignore_ascii_case(first)) {
            let mut table = [std::ptr::null(); FUNCTIONS];
            for (id, function) in table.iter_mut().enumerate().skip(1) {
                let id = i32::try_from(id).unwrap_or(0);
                // SAFETY: an `OSSL_ALGORITHM` with a name points at a dispatch table with its end.
                *function = unsafe { core::function(algorithm.implementation, id) };
            }
            found[index] = Some(InnerAlgorithm { names: algorithm.names, table });
        }
        // SAFETY: this entry had a name, so another one follows it.
        entry = unsafe { entry.add(1) };
    }
    found
}
