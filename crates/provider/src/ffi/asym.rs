// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Asymmetric encryption: OpenSSL's own, except that a decryption with a pooled key goes to the pool.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use millrace_engine::Output;

use super::core::{guard, guard_bare, integer_in};
use super::ids;
use super::inner::{self, CIPHERS, Inner};
use super::key::Key;
use super::libcrypto::Ptr;
use super::params::string_in;
use super::private::{self, bytes, hand_out};
use super::provider::Provider;
use super::types::{Dispatch, Param};
use crate::error::{Error, Reason, Result};
use crate::names::hash_from_name;
use crate::operation_params::{self, PAD_TLS, RsaDecrypt};

type NewCtx = unsafe extern "C" fn(Ptr) -> Ptr;
type FreeCtx = unsafe extern "C" fn(Ptr);
type DupCtx = unsafe extern "C" fn(Ptr) -> Ptr;
type Init = unsafe extern "C" fn(Ptr, Ptr, *const Param) -> c_int;
type Crypt = unsafe extern "C" fn(Ptr, *mut u8, *mut usize, usize, *const u8, usize) -> c_int;
type GetParams = unsafe extern "C" fn(Ptr, *mut Param) -> c_int;
type SetParams = unsafe extern "C" fn(Ptr, *const Param) -> c_int;
type Listing = unsafe extern "C" fn(Ptr, Ptr) -> *const Param;

/// Longest name of a digest, with its terminator (`OSSL_MAX_NAME_SIZE`).
const MAX_NAME: usize = 50;

/// Length of a TLS premaster secret (`SSL_MAX_MASTER_KEY_LENGTH`).
const PREMASTER: usize = 48;

/// An encryption or decryption context.
struct Context {
    provider: &'static Provider,
    functions: &'static Inner,
    inner: Ptr,
    key: Option<Arc<Key>>,
    /// What the inner context does not give back: the version that was negotiated, and whether
    /// implicit rejection was switched off.
    negotiated_version: u32,
    explicit_rejection: bool,
}

impl Drop for Context {
    fn drop(&mut self) {
        let id = ids::OSSL_FUNC_ASYM_CIPHER_FREECTX;
        // SAFETY: the type of `asym_cipher_freectx`.
        if let Ok(free) = unsafe { self.functions.function::<FreeCtx>(id) } {
            // SAFETY: the inner context is ours and is not used again.
            unsafe { free(self.inner) };
        }
    }
}

impl Context {
    /// # Safety
    /// `settings` is null or an array that a null key ends.
    unsafe fn note(&mut self, settings: *const Param) {
        // SAFETY: the caller's promise.
        if let Some(version) = unsafe { integer_in(settings, c"tls-negotiated-version") } {
            self.negotiated_version = u32::try_from(version).unwrap_or(u32::MAX);
        }
        // SAFETY: the caller's promise.
        if let Some(implicit) = unsafe { integer_in(settings, c"implicit-rejection") } {
            self.explicit_rejection = implicit == 0;
        }
    }

    fn settings(&self) -> Result<RsaDecrypt> {
        let id = ids::OSSL_FUNC_ASYM_CIPHER_GET_CTX_PARAMS;
        // SAFETY: the type of `asym_cipher_get_ctx_params`.
        let get = unsafe { self.functions.function::<GetParams>(id) }?;
        let (mut pad_mode, mut client_version) = (0, 0);
        let (mut digest, mut mgf1) = ([0; MAX_NAME], [0; MAX_NAME]);
        let mut label: *const u8 = std::ptr::null();
        let mut request = [
            Param::int(c"pad-mode", &mut pad_mode),
            Param::string(c"digest", &mut digest),
            Param::string(c"mgf1-digest", &mut mgf1),
            Param::bytes_ptr(c"oaep-label", &mut label),
            Param::uint(c"tls-client-version", &mut client_version),
            Param::END,
        ];
        // SAFETY: a live inner context, an array that a null key ends.
        if unsafe { get(self.inner, request.as_mut_ptr()) } != 1 {
            return Err(Error::library());
        }
        let label_len = if request[3].is_set() {
            request[3].return_size
        } else {
            0
        };
        let named = |buffer: &[u8]| {
            let name = string_in(buffer).filter(|name| !name.is_empty())?;
            Some(hash_from_name(name))
        };
        Ok(RsaDecrypt {
            pad_mode,
            digest: named(&digest),
            mgf1: named(&mgf1),
            // SAFETY: the inner context has pointed at its label, of this length.
            label: unsafe { bytes(label, label_len) }.to_vec(),
            client_version,
            negotiated_version: self.negotiated_version,
            explicit_rejection: self.explicit_rejection,
        })
    }

    /// Decrypts in the pool; `None` if the inner context shall do it.
    fn decrypt(&self, key: &Key, ciphertext: &[u8], room: usize) -> Result<Option<Output>> {
        let settings = self.settings()?;
        let modulus_len =
            usize::try_from(key.integer(c"max-size")?).map_err(|_| Error::library())?;
        let tls = settings.pad_mode == PAD_TLS;
        let plan = operation_params::rsa_decrypt(&settings)
            .filter(|_| ciphertext.len() == modulus_len && (!tls || room >= PREMASTER))
            .map(|operation| (operation, ciphertext.to_vec()));
        private::run(key, plan, &|output| {
            if tls {
                output.len() == PREMASTER
            } else {
                output.len() <= modulus_len
            }
        })
    }
}

fn functions(algorithm: usize) -> Result<&'static Inner> {
    let functions = inner::context()?
        .ciphers
        .get(algorithm)
        .and_then(Option::as_ref);
    functions.ok_or_else(|| Error::new(Reason::NotOffered, "this OpenSSL does not have the cipher"))
}

/// The functions that are offered: those that OpenSSL has for the algorithm.
pub(crate) fn table_of(algorithm: usize) -> Result<Vec<Dispatch>> {
    const {
        assert!(
            CIPHERS.len() == 1,
            "the constructors below are those of RSA"
        )
    };
    let inner = functions(algorithm)?;
    let all: [(i32, *const c_void); 11] = [
        (ids::OSSL_FUNC_ASYM_CIPHER_NEWCTX, newctx as *const c_void),
        (ids::OSSL_FUNC_ASYM_CIPHER_FREECTX, freectx as *const c_void),
        (ids::OSSL_FUNC_ASYM_CIPHER_DUPCTX, dupctx as *const c_void),
        (
            ids::OSSL_FUNC_ASYM_CIPHER_ENCRYPT_INIT,
            encrypt_init as *const c_void,
        ),
        (ids::OSSL_FUNC_ASYM_CIPHER_ENCRYPT, encrypt as *const c_void),
        (
            ids::OSSL_FUNC_ASYM_CIPHER_DECRYPT_INIT,
            decrypt_init as *const c_void,
        ),
        (ids::OSSL_FUNC_ASYM_CIPHER_DECRYPT, decrypt as *const c_void),
        (
            ids::OSSL_FUNC_ASYM_CIPHER_GET_CTX_PARAMS,
            get_ctx_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_ASYM_CIPHER_GETTABLE_CTX_PARAMS,
            gettable_ctx_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_ASYM_CIPHER_SET_CTX_PARAMS,
            set_ctx_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_ASYM_CIPHER_SETTABLE_CTX_PARAMS,
            settable_ctx_params as *const c_void,
        ),
    ];
    let mut entries: Vec<Dispatch> = all
        .into_iter()
        .filter(|(id, _)| inner.has(*id))
        .map(|(id, function)| Dispatch { id, function })
        .collect();
    entries.push(Dispatch::END);
    Ok(entries)
}

/// Runs an entry on the context behind a pointer that `newctx` or `dupctx` gave out.
///
/// # Safety
/// They did, `freectx` has not taken it back, and nobody else uses it meanwhile.
unsafe fn with<T>(pointer: Ptr, failed: T, entry: impl FnOnce(&mut Context) -> Result<T>) -> T {
    // SAFETY: the caller's promise.
    match unsafe { pointer.cast::<Context>().as_mut() } {
        Some(context) => guard(context.provider, failed, || entry(context)),
        None => failed,
    }
}

fn done(status: c_int) -> Result<c_int> {
    if status == 1 {
        Ok(1)
    } else {
        Err(Error::library())
    }
}

unsafe extern "C" fn newctx(provctx: Ptr) -> Ptr {
    // SAFETY: OpenSSL hands back the context of the provider.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null_mut(), || {
        let functions = functions(0)?;
        // SAFETY: the type of `asym_cipher_newctx`.
        let new = unsafe { functions.function::<NewCtx>(ids::OSSL_FUNC_ASYM_CIPHER_NEWCTX) }?;
        // SAFETY: the inner provider's context.
        let inner = unsafe { new(inner::context()?.provctx) };
        if inner.is_null() {
            return Err(Error::library());
        }
        let (negotiated_version, explicit_rejection) = (0, false);
        let context = Context {
            provider,
            functions,
            inner,
            key: None,
            negotiated_version,
            explicit_rejection,
        };
        Ok(Box::into_raw(Box::new(context)).cast())
    })
}

unsafe extern "C" fn freectx(pointer: Ptr) {
    if pointer.is_null() {
        return;
    }
    guard_bare((), || {
        // SAFETY: OpenSSL gives it back and does not use it again.
        drop(unsafe { Box::from_raw(pointer.cast::<Context>()) });
        Some(())
    });
}

unsafe extern "C" fn dupctx(pointer: Ptr) -> Ptr {
    let entry = |context: &mut Context| {
        // SAFETY: the type of `asym_cipher_dupctx`.
        let dup = unsafe {
            context
                .functions
                .function::<DupCtx>(ids::OSSL_FUNC_ASYM_CIPHER_DUPCTX)
        }?;
        // SAFETY: a live inner context.
        let inner = unsafe { dup(context.inner) };
        if inner.is_null() {
            return Err(Error::library());
        }
        let copy = Context {
            provider: context.provider,
            functions: context.functions,
            inner,
            key: context.key.clone(),
            negotiated_version: context.negotiated_version,
            explicit_rejection: context.explicit_rejection,
        };
        Ok(Box::into_raw(Box::new(copy)).cast())
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, std::ptr::null_mut(), entry) }
}

/// Delegates an initialisation with a key.
///
/// # Safety
/// As [`with`]; `object` is null or a key object, `settings` an array that a null key ends or null.
unsafe fn init(pointer: Ptr, id: i32, object: Ptr, settings: *const Param) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: the caller's promise.
        let key = unsafe { Key::share(object) }?;
        // SAFETY: both initialisations have this type.
        let init = unsafe { context.functions.function::<Init>(id) }?;
        // SAFETY: a live inner context and key data, the caller's settings.
        done(unsafe { init(context.inner, key.data, settings) })?;
        context.key = Some(key);
        context.negotiated_version = 0;
        context.explicit_rejection = false;
        // SAFETY: the caller's settings.
        unsafe { context.note(settings) };
        Ok(1)
    };
    // SAFETY: the caller's promise.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn encrypt_init(pointer: Ptr, object: Ptr, settings: *const Param) -> c_int {
    // SAFETY: what OpenSSL passes.
    unsafe {
        init(
            pointer,
            ids::OSSL_FUNC_ASYM_CIPHER_ENCRYPT_INIT,
            object,
            settings,
        )
    }
}

unsafe extern "C" fn decrypt_init(pointer: Ptr, object: Ptr, settings: *const Param) -> c_int {
    // SAFETY: what OpenSSL passes.
    unsafe {
        init(
            pointer,
            ids::OSSL_FUNC_ASYM_CIPHER_DECRYPT_INIT,
            object,
            settings,
        )
    }
}

unsafe extern "C" fn encrypt(
    pointer: Ptr,
    out: *mut u8,
    outlen: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_ASYM_CIPHER_ENCRYPT;
        // SAFETY: the type of `asym_cipher_encrypt`.
        let encrypt = unsafe { context.functions.function::<Crypt>(id) }?;
        // SAFETY: a live inner context, the caller's buffers.
        Ok(unsafe { encrypt(context.inner, out, outlen, room, input, len) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn decrypt(
    pointer: Ptr,
    out: *mut u8,
    outlen: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    let entry = |context: &mut Context| {
        let pooled = context
            .key
            .as_ref()
            .filter(|key| key.pooled() && !out.is_null())
            .cloned();
        if let Some(key) = pooled {
            // SAFETY: the caller's input.
            let ciphertext = unsafe { bytes(input, len) };
            if let Some(output) = context.decrypt(&key, ciphertext, room)? {
                // SAFETY: the caller's buffer.
                unsafe { hand_out(&output, out, outlen, room) }?;
                return Ok(1);
            }
        }
        let id = ids::OSSL_FUNC_ASYM_CIPHER_DECRYPT;
        // SAFETY: the type of `asym_cipher_decrypt`.
        let decrypt = unsafe { context.functions.function::<Crypt>(id) }?;
        // SAFETY: a live inner context, the caller's buffers. The status is passed on as it is: it is
        // part of what OpenSSL computes in constant time.
        Ok(unsafe { decrypt(context.inner, out, outlen, room, input, len) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn get_ctx_params(pointer: Ptr, request: *mut Param) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_ASYM_CIPHER_GET_CTX_PARAMS;
        // SAFETY: the type of `asym_cipher_get_ctx_params`.
        let get = unsafe { context.functions.function::<GetParams>(id) }?;
        // SAFETY: a live inner context, the caller's array.
        Ok(unsafe { get(context.inner, request) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn set_ctx_params(pointer: Ptr, settings: *const Param) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_ASYM_CIPHER_SET_CTX_PARAMS;
        // SAFETY: the type of `asym_cipher_set_ctx_params`.
        let set = unsafe { context.functions.function::<SetParams>(id) }?;
        // SAFETY: a live inner context, the caller's array.
        let status = unsafe { set(context.inner, settings) };
        // SAFETY: the caller's array.
        unsafe { context.note(settings) };
        Ok(status)
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

/// Delegates a listing of parameters; `pointer` may be null (`openssl list` asks so).
///
/// # Safety
/// As [`with`], if it is not null.
unsafe fn listing(pointer: Ptr, id: i32) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        // SAFETY: both listings have this type.
        let list = unsafe { functions(0).ok()?.function::<Listing>(id) }.ok()?;
        // SAFETY: the caller's promise.
        let inner = unsafe { pointer.cast::<Context>().as_ref() };
        let inner = inner.map_or(std::ptr::null_mut(), |context| context.inner);
        // SAFETY: a live inner context or null, and the inner provider's context.
        Some(unsafe { list(inner, context.provctx) })
    })
}

unsafe extern "C" fn gettable_ctx_params(pointer: Ptr, _provctx: Ptr) -> *const Param {
    // SAFETY: what OpenSSL passes.
    unsafe { listing(pointer, ids::OSSL_FUNC_ASYM_CIPHER_GETTABLE_CTX_PARAMS) }
}

unsafe extern "C" fn settable_ctx_params(pointer: Ptr, _provctx: Ptr) -> *const Param {
    // SAFETY: what OpenSSL passes.
    unsafe { listing(pointer, ids::OSSL_FUNC_ASYM_CIPHER_SETTABLE_CTX_PARAMS) }
}
