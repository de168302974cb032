// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key agreement: OpenSSL's own, except that a derivation with a pooled key goes to the pool.
//!
//! Ephemeral keys are generated here and never pooled, so the (EC)DHE of a handshake costs one more
//! function call and nothing else.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use millrace_engine::{Operation, Output};

use super::core::{guard, guard_bare, integer_in};
use super::ids;
use super::inner::{self, EXCHANGES, Inner};
use super::key::{Key, Origin};
use super::libcrypto::Ptr;
use super::params::string_in;
use super::private::{self, hand_out};
use super::provider::Provider;
use super::types::{Dispatch, Param};
use crate::error::{Error, Reason, Result};

type NewCtx = unsafe extern "C" fn(Ptr) -> Ptr;
type FreeCtx = unsafe extern "C" fn(Ptr);
type DupCtx = unsafe extern "C" fn(Ptr) -> Ptr;
type Init = unsafe extern "C" fn(Ptr, Ptr, *const Param) -> c_int;
type SetPeer = unsafe extern "C" fn(Ptr, Ptr) -> c_int;
type Derive = unsafe extern "C" fn(Ptr, *mut u8, *mut usize, usize) -> c_int;
type GetParams = unsafe extern "C" fn(Ptr, *mut Param) -> c_int;
type SetParams = unsafe extern "C" fn(Ptr, *const Param) -> c_int;
type Listing = unsafe extern "C" fn(Ptr, Ptr) -> *const Param;

/// Longest public value of a peer: a group element of 8192 bits.
const MAX_PUBLIC: usize = 1024;

/// A key agreement context.
struct Context {
    provider: &'static Provider,
    algorithm: usize,
    functions: &'static Inner,
    inner: Ptr,
    key: Option<Arc<Key>>,
    peer: Option<Arc<Key>>,
    /// `OSSL_EXCHANGE_PARAM_PAD`: a finite-field secret keeps its leading zeros.
    pad: bool,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the type of `keyexch_freectx`.
        if let Ok(free) = unsafe {
            self.functions
                .function::<FreeCtx>(ids::OSSL_FUNC_KEYEXCH_FREECTX)
        } {
            // SAFETY: the inner context is ours and is not used again.
            unsafe { free(self.inner) };
        }
    }
}

impl Context {
    /// Notes the parameters that the inner context does not give back.
    ///
    /// # Safety
    /// `settings` is null or an array that a null key ends.
    unsafe fn note(&mut self, settings: *const Param) {
        // SAFETY: the caller's promise.
        if let Some(pad) = unsafe { integer_in(settings, c"pad") } {
            self.pad = pad != 0;
        }
    }

    /// Whether the secret goes through a key derivation function in the same call.
    fn has_kdf(&self) -> bool {
        let mut name = [0; 50];
        let mut request = [Param::string(c"kdf-type", &mut name), Param::END];
        let id = ids::OSSL_FUNC_KEYEXCH_GET_CTX_PARAMS;
        // SAFETY: the type of `keyexch_get_ctx_params`.
        let Ok(get) = (unsafe { self.functions.function::<GetParams>(id) }) else {
            return false;
        };
        // SAFETY: a live inner context, an array that a null key ends.
        let told = unsafe { get(self.inner, request.as_mut_ptr()) } == 1;
        !told || string_in(&name).is_some_and(|name| !name.is_empty())
    }

    /// Length of the secret, before zeros are stripped. The inner context would tell it only for a
    /// private key that it has.
    fn secret_len(&self, key: &Key) -> Result<usize> {
        let bytes = match EXCHANGES.get(self.algorithm) {
            Some(&"DH") => key.integer(c"max-size")?,
            _ => (key.integer(c"bits")? + 7) / 8,
        };
        usize::try_from(bytes).map_err(|_| Error::library())
    }

    /// Derives in the pool; `None` if the inner context shall do it.
    fn derive(&self, key: &Key) -> Result<Option<Output>> {
        let secret_len = self.secret_len(key)?;
        let public = match &self.peer {
            Some(peer) => peer.bytes(c"encoded-pub-key", MAX_PUBLIC)?,
            None => return Err(Error::new(Reason::Key, "no peer key is set")),
        };
        let plan = self.operation(&public).filter(|_| !self.has_kdf());
        // On the NIST curves there is a point whose x is zero; elsewhere zero means a peer of small order.
        let zero_is_good = EXCHANGES.get(self.algorithm) == Some(&"ECDH");
        let output = private::run(key, plan.map(|operation| (operation, public)), &|output| {
            output.len() == secret_len && (zero_is_good || output.iter().any(|byte| *byte != 0))
        })?;
        let strip = EXCHANGES.get(self.algorithm) == Some(&"DH") && !self.pad;
        Ok(output.map(|output| {
            if strip {
                without_leading_zeros(&output)
            } else {
                output
            }
        }))
    }

    fn operation(&self, public: &[u8]) -> Option<Operation> {
        match EXCHANGES.get(self.algorithm) {
            // Compressed and hybrid points are for the inner context.
            Some(&"ECDH") if public.first() == Some(&4) => Some(Operation::Ecdh),
            Some(&"X25519") => Some(Operation::X25519),
            Some(&"DH") => Some(Operation::DhDerive),
            _ => None,
        }
    }
}

fn without_leading_zeros(secret: &[u8]) -> Output {
    let zeros = secret.iter().take_while(|byte| **byte == 0).count();
    Output::new(secret[zeros..].to_vec())
}

fn functions(algorithm: usize) -> Result<&'static Inner> {
    let functions = inner::context()?
        .exchanges
        .get(algorithm)
        .and_then(Option::as_ref);
    functions.ok_or_else(|| {
        Error::new(
            Reason::NotOffered,
            "this OpenSSL does not have the key exchange",
        )
    })
}

/// The functions that are offered: those that OpenSSL has for the algorithm.
pub(crate) fn table_of(algorithm: usize) -> Result<Vec<Dispatch>> {
    let inner = functions(algorithm)?;
    let new: NewCtx = match algorithm {
        0 => newctx::<0>,
        1 => newctx::<1>,
        2 => newctx::<2>,
        _ => newctx::<3>,
    };
    let gettable: Listing = match algorithm {
        0 => gettable_ctx_params::<0>,
        1 => gettable_ctx_params::<1>,
        2 => gettable_ctx_params::<2>,
        _ => gettable_ctx_params::<3>,
    };
    let settable: Listing = match algorithm {
        0 => settable_ctx_params::<0>,
        1 => settable_ctx_params::<1>,
        2 => settable_ctx_params::<2>,
        _ => settable_ctx_params::<3>,
    };
    let all: [(i32, *const c_void); 10] = [
        (ids::OSSL_FUNC_KEYEXCH_NEWCTX, new as *const c_void),
        (ids::OSSL_FUNC_KEYEXCH_FREECTX, freectx as *const c_void),
        (ids::OSSL_FUNC_KEYEXCH_DUPCTX, dupctx as *const c_void),
        (ids::OSSL_FUNC_KEYEXCH_INIT, init as *const c_void),
        (ids::OSSL_FUNC_KEYEXCH_SET_PEER, set_peer as *const c_void),
        (ids::OSSL_FUNC_KEYEXCH_DERIVE, derive as *const c_void),
        (
            ids::OSSL_FUNC_KEYEXCH_SET_CTX_PARAMS,
            set_ctx_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYEXCH_SETTABLE_CTX_PARAMS,
            settable as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYEXCH_GET_CTX_PARAMS,
            get_ctx_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYEXCH_GETTABLE_CTX_PARAMS,
            gettable as *const c_void,
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

unsafe extern "C" fn newctx<const A: usize>(provctx: Ptr) -> Ptr {
    // SAFETY: OpenSSL hands back the context of the provider.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null_mut(), || {
        let functions = functions(A)?;
        // SAFETY: the type of `keyexch_newctx`.
        let new = unsafe { functions.function::<NewCtx>(ids::OSSL_FUNC_KEYEXCH_NEWCTX) }?;
        // SAFETY: the inner provider's context.
        let inner = unsafe { new(inner::context()?.provctx) };
        if inner.is_null() {
            return Err(Error::library());
        }
        let (key, peer) = (None, None);
        let context = Context {
            provider,
            algorithm: A,
            functions,
            inner,
            key,
            peer,
            pad: false,
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
        // SAFETY: the type of `keyexch_dupctx`.
        let dup = unsafe {
            context
                .functions
                .function::<DupCtx>(ids::OSSL_FUNC_KEYEXCH_DUPCTX)
        }?;
        // SAFETY: a live inner context.
        let inner = unsafe { dup(context.inner) };
        if inner.is_null() {
            return Err(Error::library());
        }
        let copy = Context {
            provider: context.provider,
            algorithm: context.algorithm,
            functions: context.functions,
            inner,
            key: context.key.clone(),
            peer: context.peer.clone(),
            pad: context.pad,
        };
        Ok(Box::into_raw(Box::new(copy)).cast())
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, std::ptr::null_mut(), entry) }
}

unsafe extern "C" fn init(pointer: Ptr, object: Ptr, settings: *const Param) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: a key object.
        let key = unsafe { Key::share(object) }?;
        // SAFETY: the type of `keyexch_init`.
        let init = unsafe {
            context
                .functions
                .function::<Init>(ids::OSSL_FUNC_KEYEXCH_INIT)
        }?;
        // SAFETY: a live inner context and key data, the caller's settings.
        done(unsafe { init(context.inner, key.data, settings) })?;
        context.key = Some(key);
        context.peer = None;
        context.pad = false;
        // SAFETY: the caller's settings.
        unsafe { context.note(settings) };
        Ok(1)
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn set_peer(pointer: Ptr, object: Ptr) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: a key object.
        let peer = unsafe { Key::share(object) }?;
        // SAFETY: the type of `keyexch_set_peer`.
        let set = unsafe {
            context
                .functions
                .function::<SetPeer>(ids::OSSL_FUNC_KEYEXCH_SET_PEER)
        }?;
        // SAFETY: a live inner context and key data.
        done(unsafe { set(context.inner, peer.data) })?;
        context.peer = Some(peer);
        Ok(1)
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn derive(pointer: Ptr, secret: *mut u8, len: *mut usize, room: usize) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: the type of `keyexch_derive`.
        let inner = unsafe {
            context
                .functions
                .function::<Derive>(ids::OSSL_FUNC_KEYEXCH_DERIVE)
        }?;
        let pooled = context.key.as_ref().filter(|key| key.pooled()).cloned();
        if let Some(key) = pooled {
            if secret.is_null() && key.origin() == Origin::Resident {
                // SAFETY: a writable place, or null.
                let len = unsafe { len.as_mut() }.ok_or_else(Error::library)?;
                *len = context.secret_len(&key)?;
                return Ok(1);
            }
            if !secret.is_null()
                && let Some(output) = context.derive(&key)?
            {
                // SAFETY: the caller's buffer.
                unsafe { hand_out(&output, secret, len, room) }?;
                return Ok(1);
            }
        }
        // SAFETY: a live inner context, the caller's buffer.
        done(unsafe { inner(context.inner, secret, len, room) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn set_ctx_params(pointer: Ptr, settings: *const Param) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_KEYEXCH_SET_CTX_PARAMS;
        // SAFETY: the type of `keyexch_set_ctx_params`.
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

unsafe extern "C" fn get_ctx_params(pointer: Ptr, request: *mut Param) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_KEYEXCH_GET_CTX_PARAMS;
        // SAFETY: the type of `keyexch_get_ctx_params`.
        let get = unsafe { context.functions.function::<GetParams>(id) }?;
        // SAFETY: a live inner context, the caller's array.
        Ok(unsafe { get(context.inner, request) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

/// Delegates a listing of parameters; `pointer` may be null (`openssl list` asks so).
///
/// # Safety
/// As [`with`], if it is not null.
unsafe fn listing(pointer: Ptr, algorithm: usize, id: i32) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        // SAFETY: both listings have this type.
        let list = unsafe { functions(algorithm).ok()?.function::<Listing>(id) }.ok()?;
        // SAFETY: the caller's promise.
        let inner = unsafe { pointer.cast::<Context>().as_ref() };
        let inner = inner.map_or(std::ptr::null_mut(), |context| context.inner);
        // SAFETY: a live inner context or null, and the inner provider's context.
        Some(unsafe { list(inner, context.provctx) })
    })
}

unsafe extern "C" fn gettable_ctx_params<const A: usize>(
    pointer: Ptr,
    _provctx: Ptr,
) -> *const Param {
    // SAFETY: what OpenSSL passes.
    unsafe { listing(pointer, A, ids::OSSL_FUNC_KEYEXCH_GETTABLE_CTX_PARAMS) }
}

unsafe extern "C" fn settable_ctx_params<const A: usize>(
    pointer: Ptr,
    _provctx: Ptr,
) -> *const Param {
    // SAFETY: what OpenSSL passes.
    unsafe { listing(pointer, A, ids::OSSL_FUNC_KEYEXCH_SETTABLE_CTX_PARAMS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leading_zeros_are_stripped() {
        assert_eq!(
            without_leading_zeros(&[0, 0, 1, 0, 2]).as_slice(),
            &[1, 0, 2]
        );
        assert_eq!(without_leading_zeros(&[3]).as_slice(), &[3]);
        assert!(without_leading_zeros(&[0]).is_empty());
    }
}
