// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key objects: inner key data plus what is known about the key at the pool.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use millrace_engine::PrivateKey;
use zeroize::Zeroizing;

use super::core;
use super::ids;
use super::inner::{self, Context, Inner};
use super::libcrypto::Ptr;
use super::provider::Provider;
use super::types::{Callback, Param};
use crate::config::{ALGORITHMS, Mode};
use crate::error::{Error, Reason, Result};
use crate::process::{Identity, Source};
use crate::remote::{FailureKind, PoolError};

pub(super) type New = unsafe extern "C" fn(Ptr) -> Ptr;
pub(super) type Free = unsafe extern "C" fn(Ptr);
pub(super) type Has = unsafe extern "C" fn(Ptr, c_int) -> c_int;
pub(super) type Import = unsafe extern "C" fn(Ptr, c_int, *const Param) -> c_int;
pub(super) type Export = unsafe extern "C" fn(Ptr, c_int, Callback, *mut c_void) -> c_int;
pub(super) type KeyParams = unsafe extern "C" fn(Ptr, *mut Param) -> c_int;

/// Where the private part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Origin {
    /// There is none (or none is known yet).
    Public = 0,
    /// Brought into this process by the application: the pool may have it too.
    Imported = 1,
    /// Generated in this process: it stays here.
    Generated = 2,
    /// In the pool.
    Resident = 3,
}

/// One key. OpenSSL holds it by a strong reference; operation contexts too.
pub(crate) struct Key {
    pub(crate) provider: &'static Provider,
    /// Index into [`ALGORITHMS`].
    pub(crate) algorithm: usize,
    /// Key data of the inner provider. Public half only if the pool holds the key.
    pub(crate) data: Ptr,
    origin: AtomicU8,
    /// Its name in the pool.
    name: Option<String>,
    identity: OnceLock<Arc<Identity>>,
}

// SAFETY: inner key data is reference counted and safe to read from any thread; it is written only
// while OpenSSL has it for itself (new, import, set_params).
unsafe impl Send for Key {}
// SAFETY: as above.
unsafe impl Sync for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        if let Ok(inner) = self.inner() {
            // SAFETY: the type of `keymgmt_free`.
            if let Ok(free) = unsafe { inner.function::<Free>(ids::OSSL_FUNC_KEYMGMT_FREE) } {
                // SAFETY: the key data is ours and is not used again.
                unsafe { free(self.data) };
            }
        }
        if self.identity.take().is_some() {
            self.provider.forget_unused();
        }
    }
}

impl Key {
    /// Wraps inner key data, which becomes the key's.
    pub(crate) fn wrap(
        provider: &'static Provider,
        algorithm: usize,
        data: Ptr,
        origin: Origin,
    ) -> Arc<Self> {
        let identity = OnceLock::new();
        let origin = AtomicU8::new(origin as u8);
        Arc::new(Self {
            provider,
            algorithm,
            data,
            origin,
            name: None,
            identity,
        })
    }

    /// An empty key.
    pub(crate) fn empty(provider: &'static Provider, algorithm: usize) -> Result<Arc<Self>> {
        let data = empty_data(algorithm)?;
        Ok(Self::wrap(provider, algorithm, data, Origin::Public))
    }

    /// The same key with other inner key data.
    pub(crate) fn like(&self, data: Ptr) -> Arc<Self> {
        Arc::new(Self {
            provider: self.provider,
            algorithm: self.algorithm,
            data,
            origin: AtomicU8::new(self.origin() as u8),
            name: self.name.clone(),
            identity: self.identity.clone(),
        })
    }

    /// A key that the pool holds under `name`; `spki` is its public half.
    pub(crate) fn resident(
        provider: &'static Provider,
        name: &str,
        spki: &[u8],
    ) -> Result<Arc<Self>> {
        let (algorithm, data) = public_data(spki)?;
        let identity = Identity {
            spki: spki.to_vec(),
            name: Some(name.to_owned()),
        };
        Ok(Arc::new(Self {
            provider,
            algorithm,
            data,
            origin: AtomicU8::new(Origin::Resident as u8),
            name: Some(name.to_owned()),
            identity: OnceLock::from(Arc::new(identity)),
        }))
    }

    /// The key behind a key object.
    ///
    /// # Safety
    /// `object` came from [`Self::into_object`] and was not freed yet.
    pub(crate) unsafe fn of<'a>(object: *const c_void) -> Result<&'a Self> {
        // SAFETY: the caller's promise; null is a mistake of the application.
        unsafe { object.cast::<Self>().as_ref() }
            .ok_or_else(|| Error::new(Reason::Key, "no key is set"))
    }

    /// One more reference to the key behind a key object.
    ///
    /// # Safety
    /// As [`Self::of`].
    pub(crate) unsafe fn share(object: *const c_void) -> Result<Arc<Self>> {
        // SAFETY: the caller's promise.
        unsafe { Self::of(object) }?;
        // SAFETY: the pointer came from `Arc::into_raw` and at least OpenSSL's reference is alive.
        unsafe { Arc::increment_strong_count(object.cast::<Self>()) };
        // SAFETY: the reference counted just now.
        Ok(unsafe { Arc::from_raw(object.cast()) })
    }

    /// Hands the reference to OpenSSL.
    pub(crate) fn into_object(self: Arc<Self>) -> *mut c_void {
        Arc::into_raw(self).cast_mut().cast()
    }

    pub(crate) fn origin(&self) -> Origin {
        match self.origin.load(Ordering::Relaxed) {
            1 => Origin::Imported,
            2 => Origin::Generated,
            3 => Origin::Resident,
            _ => Origin::Public,
        }
    }

    /// The private part was imported.
    pub(crate) fn set_imported(&self) {
        if self.origin() == Origin::Public {
            self.origin.store(Origin::Imported as u8, Ordering::Relaxed);
        }
    }

    /// Whether private operations of this key go to the pool.
    pub(crate) fn pooled(&self) -> bool {
        match self.origin() {
            Origin::Resident => true,
            Origin::Imported => {
                // X448, ED448 and X9.42 DH have no operation in the pool.
                let known = !matches!(
                    ALGORITHMS.get(self.algorithm),
                    Some(&("X448" | "ED448" | "DHX"))
                );
                known && self.provider.config.mode != Mode::Off
            }
            Origin::Public | Origin::Generated => false,
        }
    }

    /// The functions of its key type.
    pub(crate) fn inner(&self) -> Result<&'static Inner> {
        key_functions(self.algorithm)
    }

    /// Whether the inner key data has these parts.
    pub(crate) fn data_has(&self, selection: i32) -> bool {
        let Ok(inner) = self.inner() else {
            return false;
        };
        // SAFETY: the type of `keymgmt_has`.
        match unsafe { inner.function::<Has>(ids::OSSL_FUNC_KEYMGMT_HAS) } {
            // SAFETY: live key data of this type.
            Ok(has) => (unsafe { has(self.data, selection) }) == 1,
            Err(_) => false,
        }
    }

    /// An integer parameter of the key, like `bits`.
    pub(crate) fn integer(&self, name: &'static CStr) -> Result<c_int> {
        let mut value = 0;
        let mut request = [Param::int(name, &mut value), Param::END];
        self.get(&mut request)?;
        if request[0].is_set() {
            Ok(value)
        } else {
            Err(Error::library())
        }
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

    fn get(&self, request: &mut [Param]) -> Result<()> {
        // SAFETY: the type of `keymgmt_get_params`.
        let get = unsafe {
            self.inner()?
                .function::<KeyParams>(ids::OSSL_FUNC_KEYMGMT_GET_PARAMS)
        }?;
        // SAFETY: live key data and an array that a null key ends.
        let done = unsafe { get(self.data, request.as_mut_ptr()) };
        if done == 1 {
            Ok(())
        } else {
            Err(Error::library())
        }
    }

    /// Who the key is, for the pool.
    pub(crate) fn identity(&self) -> Result<Arc<Identity>> {
        if let Some(identity) = self.identity.get() {
            return Ok(Arc::clone(identity));
        }
        let spki = self.with_pkey(ids::SELECT_PUBLIC, |context, pkey| {
            // SAFETY: a live EVP_PKEY; the length is asked for first.
            encode(&|out| unsafe { (context.lib.i2d_PUBKEY)(pkey, out) })
        })?;
        let made = Arc::new(Identity {
            spki: spki.to_vec(),
            name: None,
        });
        // Whoever comes second takes the first one's: the pool counts users by it.
        let _ = self.identity.set(Arc::clone(&made));
        Ok(self.identity.get().map_or(made, Arc::clone))
    }

    /// How the key gets into the pool.
    pub(crate) fn source(&self) -> std::result::Result<Source, PoolError> {
        if self.name.is_some() {
            return Ok(Source::Resident);
        }
        let encoded = self.with_pkey(ids::SELECT_ALL, |context, pkey| {
            // SAFETY: a live EVP_PKEY with a private part.
            let info = unsafe { (context.lib.EVP_PKEY2PKCS8)(pkey) };
            if info.is_null() {
                return Err(Error::library());
            }
            // SAFETY: a live PKCS8_PRIV_KEY_INFO.
            let encoded =
                encode(&|out| unsafe { (context.lib.i2d_PKCS8_PRIV_KEY_INFO)(info, out) });
            // SAFETY: it is not used again; libcrypto wipes it.
            unsafe { (context.lib.PKCS8_PRIV_KEY_INFO_free)(info) };
            encoded
        });
        match encoded {
            Ok(encoded) => Ok(Source::Imported(PrivateKey::from_pkcs8(encoded))),
            Err(_) => Err(PoolError::new(
                FailureKind::Refused,
                "the key cannot be encoded as PKCS#8",
            )),
        }
    }

    /// Runs `with` on an `EVP_PKEY` of the private context that has the selected parts.
    fn with_pkey<T>(
        &self,
        selection: i32,
        with: impl FnOnce(&Context, Ptr) -> Result<T>,
    ) -> Result<T> {
        let context = inner::context()?;
        let name = ALGORITHM_NAMES
            .get(self.algorithm)
            .ok_or_else(Error::library)?;
        let mut build = Build {
            context,
            name: name.as_ptr(),
            selection,
            pkey: std::ptr::null_mut(),
        };
        // SAFETY: the type of `keymgmt_export`.
        let export = unsafe {
            self.inner()?
                .function::<Export>(ids::OSSL_FUNC_KEYMGMT_EXPORT)
        }?;
        // SAFETY: live key data; the callback gets the struct it expects and runs before this returns.
        unsafe {
            export(
                self.data,
                selection,
                build_pkey,
                std::ptr::from_mut(&mut build).cast(),
            )
        };
        if build.pkey.is_null() {
            return Err(Error::library());
        }
        let result = with(context, build.pkey);
        // SAFETY: made by the callback, not used again.
        unsafe { (context.lib.EVP_PKEY_free)(build.pkey) };
        result
    }
}

/// [`ALGORITHMS`] for C.
const ALGORITHM_NAMES: [&CStr; ALGORITHMS.len()] = [
    c"RSA", c"RSA-PSS", c"EC", c"X25519", c"X448", c"ED25519", c"ED448", c"DH", c"DHX", c"DSA",
];

/// The name of a key type, for C.
pub(crate) fn algorithm_name(algorithm: usize) -> &'static CStr {
    ALGORITHM_NAMES.get(algorithm).copied().unwrap_or(c"")
}

/// Whether a `SubjectPublicKeyInfo` names this key type in its algorithm: cheap, and before anything is
/// parsed for good.
pub(crate) fn may_be_of(spki: &[u8], algorithm: usize) -> bool {
    /// Object identifiers with tag and length, in the order of [`ALGORITHMS`].
    const OIDS: [&[u8]; ALGORITHMS.len()] = [
        &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1],
        &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10],
        &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1],
        &[6, 3, 0x2b, 0x65, 0x6e],
        &[6, 3, 0x2b, 0x65, 0x6f],
        &[6, 3, 0x2b, 0x65, 0x70],
        &[6, 3, 0x2b, 0x65, 0x71],
        &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 3, 1],
        &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3e, 2, 1],
        &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1],
    ];
    // Two sequence headers of 2 to 4 bytes each stand before it.
    let head = spki.get(..spki.len().min(24)).unwrap_or(spki);
    OIDS.get(algorithm)
        .is_some_and(|oid| head.windows(oid.len()).any(|window| window == *oid))
}

/// The functions of a key type.
pub(crate) fn key_functions(algorithm: usize) -> Result<&'static Inner> {
    let context = inner::context()?;
    let inner = context.keys.get(algorithm).and_then(Option::as_ref);
    inner.ok_or_else(|| {
        Error::new(
            Reason::NotOffered,
            "this OpenSSL does not have the key type",
        )
    })
}

/// Empty inner key data.
fn empty_data(algorithm: usize) -> Result<Ptr> {
    let context = inner::context()?;
    // SAFETY: the type of `keymgmt_new`.
    let new = unsafe { key_functions(algorithm)?.function::<New>(ids::OSSL_FUNC_KEYMGMT_NEW) }?;
    // SAFETY: the context of the inner provider.
    let data = unsafe { new(context.provctx) };
    if data.is_null() {
        Err(Error::library())
    } else {
        Ok(data)
    }
}

/// Inner key data of a public key, and its type.
fn public_data(spki: &[u8]) -> Result<(usize, Ptr)> {
    let context = inner::context()?;
    let mut cursor = spki.as_ptr();
    let len = c_long::try_from(spki.len()).map_err(|_| Error::library())?;
    // SAFETY: `len` readable bytes; a library context; no properties.
    let pkey = unsafe {
        (context.lib.d2i_PUBKEY_ex)(
            std::ptr::null_mut(),
            &mut cursor,
            len,
            context.libctx,
            std::ptr::null(),
        )
    };
    if pkey.is_null() {
        return Err(Error::new(
            Reason::Key,
            "the public key of the stub does not parse",
        ));
    }
    let result = take_public(context, pkey);
    // SAFETY: made above, not used again.
    unsafe { (context.lib.EVP_PKEY_free)(pkey) };
    result
}

fn take_public(context: &Context, pkey: Ptr) -> Result<(usize, Ptr)> {
    // SAFETY: a live EVP_PKEY; the name is a constant of libcrypto.
    let name = unsafe { (context.lib.EVP_PKEY_get0_type_name)(pkey) };
    if name.is_null() {
        return Err(Error::library());
    }
    // SAFETY: a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("");
    let algorithm = ALGORITHMS
        .iter()
        .position(|known| known.eq_ignore_ascii_case(name))
        .ok_or_else(|| Error::new(Reason::Key, format!("keys of type {name} are not offered")))?;
    let data = empty_data(algorithm)?;
    let mut fill = Fill {
        algorithm,
        data,
        done: false,
    };
    let argument = std::ptr::from_mut(&mut fill).cast();
    // SAFETY: a live EVP_PKEY; the callback gets the struct it expects and runs before this returns.
    unsafe { (context.lib.EVP_PKEY_export)(pkey, ids::SELECT_PUBLIC, fill_data, argument) };
    if fill.done {
        return Ok((algorithm, data));
    }
    // SAFETY: the type of `keymgmt_free`; the data is not used again.
    unsafe { key_functions(algorithm)?.function::<Free>(ids::OSSL_FUNC_KEYMGMT_FREE)?(data) };
    Err(Error::library())
}

/// What [`build_pkey`] works on.
struct Build<'a> {
    context: &'a Context,
    name: *const c_char,
    selection: c_int,
    pkey: Ptr,
}

/// Makes an `EVP_PKEY` of exported parameters.
unsafe extern "C" fn build_pkey(params: *const Param, argument: *mut c_void) -> c_int {
    core::guard_bare(0, || {
        // SAFETY: the caller passes on what `with_pkey` gave it.
        let build = unsafe { argument.cast::<Build<'_>>().as_mut() }?;
        let lib = build.context.lib;
        // SAFETY: a library context, a C string, no properties.
        let ctx = unsafe {
            (lib.EVP_PKEY_CTX_new_from_name)(build.context.libctx, build.name, std::ptr::null())
        };
        if ctx.is_null() {
            return None;
        }
        // SAFETY: a live context; parameters that the inner provider has exported (they are not
        // written to, whatever the type says).
        let done = unsafe {
            (lib.EVP_PKEY_fromdata_init)(ctx) == 1
                && (lib.EVP_PKEY_fromdata)(ctx, &mut build.pkey, build.selection, params.cast_mut())
                    == 1
        };
        // SAFETY: not used again.
        unsafe { (lib.EVP_PKEY_CTX_free)(ctx) };
        done.then_some(1)
    })
}

/// What [`fill_data`] works on.
struct Fill {
    algorithm: usize,
    data: Ptr,
    done: bool,
}

/// Imports exported parameters into inner key data.
unsafe extern "C" fn fill_data(params: *const Param, argument: *mut c_void) -> c_int {
    core::guard_bare(0, || {
        // SAFETY: the caller passes on what `take_public` gave it.
        let fill = unsafe { argument.cast::<Fill>().as_mut() }?;
        let inner = key_functions(fill.algorithm).ok()?;
        // SAFETY: the type of `keymgmt_import`.
        let import = unsafe { inner.function::<Import>(ids::OSSL_FUNC_KEYMGMT_IMPORT) }.ok()?;
        // SAFETY: live key data of this type, parameters of an export.
        fill.done = unsafe { import(fill.data, ids::SELECT_PUBLIC, params) } == 1;
        fill.done.then_some(1)
    })
}

/// Runs an `i2d` function: once for the length, once for the bytes.
fn encode(i2d: &dyn Fn(*mut *mut u8) -> c_int) -> Result<Zeroizing<Vec<u8>>> {
    let len = usize::try_from(i2d(std::ptr::null_mut())).map_err(|_| Error::library())?;
    if len == 0 {
        return Err(Error::library());
    }
    let mut bytes = Zeroizing::new(vec![0; len]);
    let mut cursor = bytes.as_mut_ptr();
    let written = i2d(&mut cursor);
    if usize::try_from(written) == Ok(len) {
        Ok(bytes)
    } else {
        Err(Error::library())
    }
}
