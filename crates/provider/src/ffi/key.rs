// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key objects: inner key data plus what is known about the key at the pool.
//!
//! OpenSSL holds a [`Key`] as its key data; the functions for key management, signatures and decryption borrow it. Key
//! data itself stays with OpenSSL's own provider, which parses, exports and compares it. A private half that has to go
//! to the pool is read from there at the first use.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use millrace_operation::PrivateKey;
use zeroize::Zeroizing;

use super::core::guard_bare;
use super::handle::{Handle, owned};
use super::ids;
use super::inner::{self, InnerAlgorithm, InnerContext, call, key_functions, succeeded};
use super::libcrypto::Ptr;
use super::params::string_in;
use super::signer::Signer;
use super::state::Provider;
use super::types::{Callback, Param};
use crate::algorithms::KeyType;
use crate::config::WaitMode;
use crate::error::{Error, Reason, Result};
use crate::process::{KeyIdentity, Source};
use crate::remote::{FailureKind, PoolError};

/// Origin of a key's private part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// There is no private part, or it has not been imported yet.
    Public,
    /// Brought into this process by the application: the pool may have it too.
    Imported,
    /// Generated in this process, which it never leaves.
    Generated,
    /// The private part is in the pool, and only there.
    Resident,
}

/// Key data of the inner provider, freed with this value.
pub(crate) struct InnerKeyData {
    pub(crate) key_type: KeyType,
    functions: &'static InnerAlgorithm,
    pointer: Ptr,
}

impl InnerKeyData {
    /// Takes over key data that a function of this key type made; null is its failure.
    pub(crate) fn taking(key_type: KeyType, pointer: Ptr) -> Result<Self> {
        let functions = key_functions(key_type)?;
        if pointer.is_null() {
            return Err(Error::library());
        }
        Ok(Self { key_type, functions, pointer })
    }

    pub(crate) fn empty(key_type: KeyType) -> Result<Self> {
        let provctx = inner::context()?.provctx;
        let functions = key_functions(key_type)?;
        // SAFETY: `keymgmt_new` takes the context of the provider whose key type this is.
        let pointer = unsafe { call!(functions, ids::keymgmt::NEW, fn(provctx => Ptr) -> Ptr) }?;
        Self::taking(key_type, pointer)
    }

    /// Key data of a `SubjectPublicKeyInfo`.
    fn public(spki: &[u8]) -> Result<Self> {
        let context = inner::context()?;
        let pkey = Pkey::from_spki(context, spki)?;
        let key_type = pkey.key_type()?;
        let data = Self::empty(key_type)?;
        let id = ids::keymgmt::IMPORT;
        exported(
            |callback, argument| {
                // SAFETY: a live EVP_PKEY, and a callback with the argument that `exported` made for it.
                unsafe {
                    (context.lib.EVP_PKEY_export)(pkey.0, ids::SELECT_PUBLIC, callback, argument)
                };
            },
            |params| {
                // SAFETY: `keymgmt_import` takes live key data and parameters, which are those of a key
                // of this type.
                let status = unsafe {
                    call!(data.functions, id,
                        fn(data.pointer => Ptr, ids::SELECT_PUBLIC => c_int, params => *const Param)
                            -> c_int)
                }?;
                succeeded(status)
            },
        )?;
        Ok(data)
    }
}

impl Drop for InnerKeyData {
    fn drop(&mut self) {
        // SAFETY: `keymgmt_free` takes the key data, which this value owns and uses no more. Every key
        // type of OpenSSL has the function, so that nothing is left to do about an error.
        let _ = unsafe { call!(self.functions, ids::keymgmt::FREE, fn(self.pointer => Ptr) -> ()) };
    }
}

/// One key. OpenSSL holds it by a strong reference; operation contexts too.
pub(crate) struct Key {
    pub(crate) provider: &'static Provider,
    /// Public half only if the key is resident in the pool.
    pub(crate) data: InnerKeyData,
    /// Origin of the private part when the key was made.
    origin: Origin,
    /// Whether the private part of a public key was imported since.
    imported: AtomicBool,
    /// Name of the key in the pool.
    name: Option<String>,
    identity: OnceLock<Arc<KeyIdentity>>,
    /// Whether the key came by the key manager of keys that sign in this process: the pool never gets it.
    is_local: bool,
    /// Implementation that signs with the key in this process, once it was asked for. `None` if none does.
    signer: OnceLock<Option<Signer>>,
}

// SAFETY: inner key data is reference counted and safe to read from any thread; it is written only
// while OpenSSL has it for itself (new, import, set_params).
unsafe impl Send for Key {}
// SAFETY: as for `Send`.
unsafe impl Sync for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        if self.identity.take().is_some() {
            self.provider.forget_unused();
        }
    }
}

owned!(Key);

impl Handle for Key {
    fn functions(&self) -> &'static InnerAlgorithm {
        self.data.functions
    }

    fn inner(&self) -> Ptr {
        self.data.pointer
    }
}

impl Key {
    pub(crate) fn new(provider: &'static Provider, data: InnerKeyData, origin: Origin) -> Self {
        Self {
            provider,
            data,
            origin,
            imported: AtomicBool::new(false),
            name: None,
            identity: OnceLock::new(),
            is_local: false,
            signer: OnceLock::new(),
        }
    }

    /// A key whose private operations are done in this process, by the [`Signer`] or by OpenSSL.
    pub(crate) fn local(provider: &'static Provider, data: InnerKeyData, origin: Origin) -> Self {
        let mut key = Self::new(provider, data, origin);
        key.is_local = true;
        key
    }

    /// This key with other inner key data.
    pub(crate) fn like(&self, data: InnerKeyData) -> Self {
        let mut key = Self::new(self.provider, data, self.origin());
        key.name.clone_from(&self.name);
        key.identity = self.identity.clone();
        key.is_local = self.is_local;
        key
    }

    /// The public half of the same key.
    pub(crate) fn public_like(&self, data: InnerKeyData) -> Self {
        let mut key = Self::new(self.provider, data, Origin::Public);
        key.is_local = self.is_local;
        key
    }

    /// A key that only the pool has, under `name`; `spki` is its public half.
    pub(crate) fn resident(provider: &'static Provider, name: &str, spki: &[u8]) -> Result<Self> {
        let identity = KeyIdentity { spki: spki.to_vec(), name: Some(name.to_owned()) };
        let data = InnerKeyData::public(spki)?;
        if data.key_type == KeyType::X25519 && provider.config.keeps_x25519() {
            // Its key manager holds no keys of the pool; the decoder of stubs has said so.
            return Err(Error::new(Reason::Config, "X25519 is computed in this process"));
        }
        let mut key = Self::new(provider, data, Origin::Resident);
        key.name = Some(name.to_owned());
        key.identity = OnceLock::from(Arc::new(identity));
        Ok(key)
    }

    /// The key behind a key object.
    ///
    /// # Safety
    /// `object` is null or came from [`Self::into_object`] and is not freed for `'a`.
    pub(crate) unsafe fn of<'a>(object: *const c_void) -> Result<&'a Self> {
        // SAFETY: by this function's contract; null is a mistake of the application.
        unsafe { object.cast::<Self>().as_ref() }
            .ok_or_else(|| Error::new(Reason::Key, "no key is set"))
    }

    /// One more reference to the key behind a key object.
    ///
    /// # Safety
    /// As [`Self::of`].
    pub(crate) unsafe fn share(object: *const c_void) -> Result<Arc<Self>> {
        // SAFETY: by this function's contract.
        unsafe { Self::of(object) }?;
        // SAFETY: not null, so it came from `Arc::into_raw`, and OpenSSL's reference is alive.
        unsafe { Arc::increment_strong_count(object.cast::<Self>()) };
        // SAFETY: takes over the reference that was counted just now.
        Ok(unsafe { Arc::from_raw(object.cast()) })
    }

    /// Hands a reference to OpenSSL.
    pub(crate) fn into_object(self) -> Ptr {
        Arc::into_raw(Arc::new(self)).cast_mut().cast()
    }

    pub(crate) fn origin(&self) -> Origin {
        match self.origin {
            Origin::Public if self.imported.load(Ordering::Relaxed) => Origin::Imported,
            origin => origin,
        }
    }

    /// The private part was imported.
    pub(crate) fn set_imported(&self) {
        self.imported.store(true, Ordering::Relaxed);
    }

    /// Whether private operations of this key go to the pool.
    pub(crate) fn pooled(&self) -> bool {
        match self.origin() {
            Origin::Resident => true,
            Origin::Imported => {
                !self.is_local
                    && self.data.key_type.row().pooled
                    && self.provider.config.mode != WaitMode::Off
            }
            Origin::Public | Origin::Generated => false,
        }
    }

    /// The implementation that signs with this key in this process, in place of OpenSSL.
    pub(super) fn signer(&self) -> Option<&Signer> {
        if !self.is_local || self.origin() != Origin::Imported {
            return None;
        }
        if self.signer.get().is_none() {
            // Made outside of the cell: a fork finds that empty or filled, and never half-way.
            let signer = self.load_signer().filter(|signer| signer.is_chosen(self.provider));
            // Lost the race: the other thread's is the same.
            let _ = self.signer.set(signer);
        }
        self.signer.get()?.as_ref()
    }

    /// A signer with the private part, whether it is chosen or not.
    pub(super) fn load_signer(&self) -> Option<Signer> {
        // Keys of other types are not encoded for nothing.
        if !Signer::signs_with(self.data.key_type) {
            return None;
        }
        match self.source() {
            Ok(Source::Imported(private)) => Signer::load(self.provider, &private),
            Ok(Source::Resident) | Err(_) => None,
        }
    }

    /// Whether the inner key data has these parts.
    pub(crate) fn data_has(&self, selection: c_int) -> bool {
        let id = ids::keymgmt::HAS;
        // SAFETY: `keymgmt_has` takes live key data and any selection.
        let status = unsafe {
            call!(self.functions(), id, fn(self.inner() => Ptr, selection => c_int) -> c_int)
        };
        status.is_ok_and(|status| status == 1)
    }

    /// An integer parameter of the key, like `bits`.
    pub(crate) fn integer(&self, name: &'static CStr) -> Result<c_int> {
        let mut value = 0;
        let mut request = [Param::int(name, &mut value), Param::END];
        self.get(&mut request)?;
        if request[0].is_set() { Ok(value) } else { Err(Error::library()) }
    }

    /// A parameter of the key that is bytes, at most `limit` of them.
    pub(crate) fn bytes(&self, name: &'static CStr, limit: usize) -> Result<Vec<u8>> {
        let mut value = vec![0; limit];
        let mut request = [Param::buffer(name, &mut value), Param::END];
        self.get(&mut request)?;
        if !request[0].is_set() || request[0].return_size > limit {
            return Err(Error::library());
        }
        let len = request[0].return_size;
        value.truncate(len);
        Ok(value)
    }

    /// Whether the key is on the curve that OpenSSL gives this name.
    pub(crate) fn is_on_curve(&self, name: &str) -> bool {
        let mut value = [0; 50];
        let mut request = [Param::string(c"group", &mut value), Param::END];
        self.get(&mut request).is_ok() && string_in(&value) == Some(name)
    }

    fn get(&self, request: &mut [Param; 2]) -> Result<()> {
        let id = ids::keymgmt::GET_PARAMS;
        let request = request.as_mut_ptr();
        // SAFETY: `keymgmt_get_params` takes live key data and an array that a null key ends; all
        // callers end theirs with `Param::END`, and have borrowed the memory of its entry.
        let status = unsafe {
            call!(self.functions(), id, fn(self.inner() => Ptr, request => *mut Param) -> c_int)
        }?;
        succeeded(status)
    }

    /// Identity of the key at the pool.
    pub(crate) fn identity(&self) -> Result<Arc<KeyIdentity>> {
        if let Some(identity) = self.identity.get() {
            return Ok(Arc::clone(identity));
        }
        let context = inner::context()?;
        let pkey = self.pkey(context, ids::SELECT_PUBLIC)?;
        // SAFETY: `i2d_PUBKEY` takes a live EVP_PKEY, and null or a place with room for what it wrote
        // the length of before.
        let spki = encode(&|out| unsafe { (context.lib.i2d_PUBKEY)(pkey.0, out) })?;
        let made = Arc::new(KeyIdentity { spki: spki.to_vec(), name: None });
        // The pool counts users by the identity, so the first one that was set stays.
        Ok(Arc::clone(self.identity.get_or_init(|| made)))
    }

    /// Source from which the pool gets the key.
    pub(crate) fn source(&self) -> std::result::Result<Source, PoolError> {
        if self.name.is_some() {
            return Ok(Source::Resident);
        }
        let encoded = inner::context().and_then(|context| {
            let pkey = self.pkey(context, ids::SELECT_ALL)?;
            // SAFETY: `EVP_PKEY2PKCS8` takes a live EVP_PKEY.
            let info = unsafe { (context.lib.EVP_PKEY2PKCS8)(pkey.0) };
            if info.is_null() {
                return Err(Error::library());
            }
            // SAFETY: the encoder takes a live PKCS8_PRIV_KEY_INFO, and null or a place with room for
            // what it wrote the length of before.
            let encoded =
                encode(&|out| unsafe { (context.lib.i2d_PKCS8_PRIV_KEY_INFO)(info, out) });
            // SAFETY: made above and not used again; libcrypto wipes it.
            unsafe { (context.lib.PKCS8_PRIV_KEY_INFO_free)(info) };
            encoded
        });
        match encoded {
            Ok(encoded) => Ok(Source::Imported(PrivateKey::from_pkcs8(encoded))),
            Err(_) => {
                Err(PoolError::new(FailureKind::Refused, "the key cannot be encoded as PKCS#8"))
            }
        }
    }

    /// An `EVP_PKEY` of the inner context with the selected parts.
    fn pkey(&self, context: &'static InnerContext, selection: c_int) -> Result<Pkey> {
        let name = self.data.key_type.row().name;
        let id = ids::keymgmt::EXPORT;
        exported(
            |callback, argument| {
                // SAFETY: `keymgmt_export` takes live key data, and a callback with the argument that
                // `exported` made for it. What it returns is seen by whether the callback was called.
                let _ = unsafe {
                    call!(self.functions(), id,
                        fn(self.inner() => Ptr, selection => c_int, callback => Callback,
                            argument => *mut c_void) -> c_int)
                };
            },
            // SAFETY: the parameters are those that the key's own functions have exported.
            |params| unsafe { Pkey::from_params(context, name, selection, params) },
        )
    }
}

/// An `EVP_PKEY` of the inner context, freed with this value.
struct Pkey(Ptr, &'static InnerContext);

impl Drop for Pkey {
    fn drop(&mut self) {
        // SAFETY: a reference of our own, not used again.
        unsafe { (self.1.lib.EVP_PKEY_free)(self.0) };
    }
}

impl Pkey {
    fn from_spki(context: &'static InnerContext, spki: &[u8]) -> Result<Self> {
        let mut cursor = spki.as_ptr();
        let len = c_long::try_from(spki.len()).map_err(|_| Error::library())?;
        let reuse = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: no object to use again, `len` readable bytes, a library context, no properties.
        let pkey =
            unsafe { (context.lib.d2i_PUBKEY_ex)(reuse, &mut cursor, len, context.libctx, none) };
        if pkey.is_null() {
            let text = "the public key of the stub does not parse";
            return Err(Error::new(Reason::Key, text));
        }
        Ok(Self(pkey, context))
    }

    /// # Safety
    /// `params` is an array that a null key ends, which describes a key of the type `name`.
    unsafe fn from_params(
        context: &'static InnerContext,
        name: &CStr,
        selection: c_int,
        params: *const Param,
    ) -> Result<Self> {
        let lib = context.lib;
        // SAFETY: a library context, a C string, no properties.
        let ctx = unsafe {
            (lib.EVP_PKEY_CTX_new_from_name)(context.libctx, name.as_ptr(), std::ptr::null())
        };
        if ctx.is_null() {
            return Err(Error::library());
        }
        let mut pkey = std::ptr::null_mut();
        // SAFETY: a live context, a place for the key, and by this function's contract parameters, which
        // are not written to, whatever the type says.
        let made = unsafe {
            (lib.EVP_PKEY_fromdata_init)(ctx) == 1
                && (lib.EVP_PKEY_fromdata)(ctx, &mut pkey, selection, params.cast_mut()) == 1
        };
        // SAFETY: made above and not used again.
        unsafe { (lib.EVP_PKEY_CTX_free)(ctx) };
        if made && !pkey.is_null() { Ok(Self(pkey, context)) } else { Err(Error::library()) }
    }

    fn key_type(&self) -> Result<KeyType> {
        // SAFETY: a live EVP_PKEY.
        let name = unsafe { (self.1.lib.EVP_PKEY_get0_type_name)(self.0) };
        if name.is_null() {
            return Err(Error::library());
        }
        // SAFETY: not null, so it is a C string that lives as long as the EVP_PKEY.
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("");
        KeyType::from_name(name)
            .ok_or_else(|| Error::new(Reason::Key, format!("keys of type {name} are not offered")))
    }
}

/// Result of `receive` for the parameters that `export` hands to a callback.
fn exported<T>(
    export: impl FnOnce(Callback, *mut c_void),
    mut receive: impl FnMut(*const Param) -> Result<T>,
) -> Result<T> {
    struct Exported<'a, T> {
        receive: &'a mut dyn FnMut(*const Param) -> Result<T>,
        result: Result<T>,
    }
    unsafe extern "C" fn callback<T>(params: *const Param, argument: *mut c_void) -> c_int {
        guard_bare(0, || {
            // SAFETY: the exporter passes on the argument, which is the struct below; it outlives the
            // call of the exporter, and nothing else refers to it until that returns.
            let exported = unsafe { argument.cast::<Exported<'_, T>>().as_mut() }?;
            exported.result = (exported.receive)(params);
            Some(c_int::from(exported.result.is_ok()))
        })
    }
    let mut exported = Exported { receive: &mut receive, result: Err(Error::library()) };
    export(callback::<T>, std::ptr::from_mut(&mut exported).cast());
    exported.result
}

/// Runs an `i2d` function: once for the length, once for the bytes.
fn encode(i2d: &dyn Fn(*mut *mut u8) -> c_int) -> Result<Zeroizing<Vec<u8>>> {
    let len = usize::try_from(i2d(std::ptr::null_mut())).map_err(|_| Error::library())?;
    if len == 0 {
        return Err(Error::library());
    }
    let mut bytes = Zeroizing::new(vec![0; len]);
    let mut cursor = bytes.as_mut_ptr();
    if usize::try_from(i2d(&mut cursor)) == Ok(len) { Ok(bytes) } else { Err(Error::library()) }
}
