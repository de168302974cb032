// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The provider where it cannot be used: a mistake in its configuration, or a libcrypto that lacks something.
//!
//! OpenSSL drops the error of a provider that does not start, and a server only reports that its key file does not
//! decode. So the provider starts, offers nothing, and lists itself as inactive with the reason. It raises the reason
//! wherever a stub or a `millrace:` URI is read: there servers log it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::about::{PARAMS, ProviderStatus, answer, reason_strings, teardown};
use super::core::{Core, guard_bare};
use super::decoder::{CARRY_ON, newctx, pem_row, read_block};
use super::delegate::dispatch;
use super::ids;
use super::libcrypto::Ptr;
use super::store::{self, settable_ctx_params};
use super::types::{Algorithm, Callback, Dispatch, Param, StaticTable};
use crate::error::Error;

/// A provider that cannot be used. Never freed.
struct Unusable {
    core: Core,
    error: Error,
    name: &'static CStr,
}

impl Unusable {
    /// # Safety
    /// `pointer` is what [`start`] gave out.
    unsafe fn of(pointer: Ptr) -> &'static Self {
        // SAFETY: by this function's contract; never freed.
        unsafe { &*pointer.cast::<Self>() }
    }
}

/// The context and the functions of a provider that raises `error` wherever it is asked for a key.
pub(crate) fn start(core: Core, error: Error) -> (Ptr, *const Dispatch) {
    static TABLE: OnceLock<StaticTable<Dispatch>> = OnceLock::new();
    let text = format!("Millrace provider, not usable: {error}").replace('\0', " ");
    let name = CString::new(text).unwrap_or_default();
    let provider =
        Box::leak(Box::new(Unusable { core, error, name: Box::leak(name.into_boxed_c_str()) }));
    let table = TABLE.get_or_init(|| {
        StaticTable::dispatch(dispatch! { provider {
            TEARDOWN => teardown<>;
            GETTABLE_PARAMS => gettable_params<>;
            GET_PARAMS => get_params<>;
            QUERY_OPERATION => query_operation<>;
            GET_REASON_STRINGS => reason_strings<>;
        } })
    });
    (std::ptr::from_mut(provider).cast(), table.as_ptr())
}

unsafe extern "C" fn gettable_params<const ID: i32>(_provctx: Ptr) -> *const Param {
    static LIST: StaticTable<Param> = StaticTable(&PARAMS);
    LIST.as_ptr()
}

unsafe extern "C" fn get_params<const ID: i32>(provctx: Ptr, request: *mut Param) -> c_int {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Unusable::of(provctx) };
    guard_bare(0, || {
        // SAFETY: libcrypto passes null or an array of parameters that a null key ends, and the application has
        // passed the memory of each to be written.
        let answered =
            unsafe { answer(request, provider.name, ProviderStatus::Unusable, |_| None) };
        answered.then_some(1)
    })
}

unsafe extern "C" fn query_operation<const ID: i32>(
    _provctx: Ptr,
    operation: c_int,
    no_cache: *mut c_int,
) -> *const Algorithm {
    static DECODERS: OnceLock<StaticTable<Algorithm>> = OnceLock::new();
    static STORES: OnceLock<StaticTable<Algorithm>> = OnceLock::new();
    guard_bare(std::ptr::null(), || {
        // SAFETY: libcrypto passes a writable place.
        unsafe { no_cache.write(0) };
        let table = match operation {
            ids::op::DECODER => DECODERS.get_or_init(decoders),
            ids::op::STORE => STORES.get_or_init(stores),
            _ => return None,
        };
        Some(table.as_ptr())
    })
}

fn decoders() -> StaticTable<Algorithm> {
    let functions = StaticTable::dispatch(dispatch! { decoder {
        NEWCTX => newctx<>;
        FREECTX => teardown<>;
        DECODE => decode<>;
    } });
    StaticTable::leak(vec![pem_row(functions.as_ptr()), Algorithm::END])
}

unsafe extern "C" fn decode<const ID: i32>(
    pointer: Ptr,
    bio: Ptr,
    _selection: c_int,
    _callback: Callback,
    _argument: *mut c_void,
    _passphrase: *const c_void,
    _passphrase_argument: *mut c_void,
) -> c_int {
    // SAFETY: libcrypto passes what `newctx` returned: the provider.
    let provider = unsafe { Unusable::of(pointer) };
    guard_bare(CARRY_ON, || {
        // SAFETY: libcrypto passes a BIO of the core.
        unsafe { read_block(&provider.core, bio) }?;
        provider.core.raise(&provider.error);
        Some(0)
    })
}

fn stores() -> StaticTable<Algorithm> {
    store::loader_of(&StaticTable::dispatch(dispatch! { store {
        OPEN => open<>;
        SETTABLE_CTX_PARAMS => settable_ctx_params<>;
        LOAD => load<>;
        EOF => eof<>;
        CLOSE => eof<>;
    } }))
}

/// Always fails. So OpenSSL never calls the other functions of the loader, which it requires.
unsafe extern "C" fn open<const ID: i32>(provctx: Ptr, _uri: *const c_char) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Unusable::of(provctx) };
    guard_bare(std::ptr::null_mut(), || {
        provider.core.raise(&provider.error);
        None
    })
}

unsafe extern "C" fn load<const ID: i32>(
    _pointer: Ptr,
    _callback: Callback,
    _argument: *mut c_void,
    _passphrase: *const c_void,
    _passphrase_argument: *mut c_void,
) -> c_int {
    0
}

unsafe extern "C" fn eof<const ID: i32>(_pointer: Ptr) -> c_int {
    1
}
