// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The loader of `millrace:name` URIs.
//!
//! A URI names a key in the pool. Its public half is in the URI (`?spki=`, base64url) or is asked for
//! when the URI is opened; that needs the pool to be up at that moment. The connection is closed before
//! the key is handed out, so that a server which forks workers afterwards forks nothing of ours.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

use millrace_client::stub::{self, KeyUri};

use super::core::{guard, guard_bare, integer_in};
use super::decoder::hand_over;
use super::ids;
use super::key::Key;
use super::libcrypto::Ptr;
use super::provider::{PROPERTIES, Provider};
use super::types::{Algorithm, Callback, Dispatch, Param, Table};
use crate::error::{Error, Reason, Result};
use crate::remote;

/// `OSSL_STORE_INFO_PUBKEY`
const EXPECT_PUBLIC: i64 = 3;
/// `OSSL_STORE_INFO_PKEY`
const EXPECT_KEY: i64 = 4;

/// An open URI.
struct Loader {
    provider: &'static Provider,
    uri: KeyUri,
    done: bool,
}

/// The loader.
pub(crate) fn algorithms() -> Table<Algorithm> {
    let functions = Table::leak(vec![
        Dispatch {
            id: ids::OSSL_FUNC_STORE_OPEN,
            function: open as *const c_void,
        },
        Dispatch {
            id: ids::OSSL_FUNC_STORE_SETTABLE_CTX_PARAMS,
            function: settable_ctx_params as *const c_void,
        },
        Dispatch {
            id: ids::OSSL_FUNC_STORE_SET_CTX_PARAMS,
            function: set_ctx_params as *const c_void,
        },
        Dispatch {
            id: ids::OSSL_FUNC_STORE_LOAD,
            function: load as *const c_void,
        },
        Dispatch {
            id: ids::OSSL_FUNC_STORE_EOF,
            function: eof as *const c_void,
        },
        Dispatch {
            id: ids::OSSL_FUNC_STORE_CLOSE,
            function: close as *const c_void,
        },
        Dispatch::END,
    ]);
    Table::leak(vec![
        Algorithm {
            names: c"millrace".as_ptr(),
            properties: PROPERTIES.as_ptr(),
            implementation: functions.as_ptr(),
            description: c"keys in the Millrace pool".as_ptr(),
        },
        Algorithm::END,
    ])
}

unsafe extern "C" fn open(provctx: Ptr, uri: *const c_char) -> Ptr {
    // SAFETY: OpenSSL hands back the context of the provider.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null_mut(), || {
        if uri.is_null() {
            return Err(Error::library());
        }
        // SAFETY: a C string.
        let text = unsafe { CStr::from_ptr(uri) }.to_str().unwrap_or("");
        let uri = stub::parse_uri(text).ok_or_else(|| {
            let text = "a key URI is millrace:name or millrace:name?spki=BASE64URL";
            Error::new(Reason::Key, text)
        })?;
        Ok(Box::into_raw(Box::new(Loader {
            provider,
            uri,
            done: false,
        }))
        .cast())
    })
}

impl Loader {
    fn key(&self) -> Result<Arc<Key>> {
        if let Some(spki) = &self.uri.spki {
            return Key::resident(self.provider, &self.uri.name, spki);
        }
        let config = self.provider.config;
        let pool = remote::connect(config.pool());
        let opened = pool.open(&self.uri.name, Instant::now() + config.deadline);
        let remote = opened.map_err(|error| {
            let text = format!("key {} of the pool: {error}", self.uri.name);
            Error::new(Reason::Pool, text)
        })?;
        Key::resident(self.provider, &self.uri.name, &remote.info().spki)
    }
}

unsafe extern "C" fn settable_ctx_params(_provctx: Ptr) -> *const Param {
    static LIST: Table<Param> = Table(&[
        Param {
            key: c"expect".as_ptr(),
            data_type: ids::OSSL_PARAM_INTEGER.unsigned_abs(),
            ..Param::END
        },
        Param::END,
    ]);
    LIST.as_ptr()
}

unsafe extern "C" fn set_ctx_params(pointer: Ptr, settings: *const Param) -> c_int {
    guard_bare(0, || {
        // SAFETY: OpenSSL hands back a loader of ours, and nobody else uses it meanwhile.
        let loader = unsafe { pointer.cast::<Loader>().as_mut() }?;
        // SAFETY: the caller's array.
        if let Some(expect) = unsafe { integer_in(settings, c"expect") } {
            // Certificates are expected of somebody else.
            loader.done |= !matches!(expect, 0 | EXPECT_PUBLIC | EXPECT_KEY);
        }
        Some(1)
    })
}

unsafe extern "C" fn load(
    pointer: Ptr,
    callback: Callback,
    argument: *mut c_void,
    _passphrase: *const c_void,
    _passphrase_argument: *mut c_void,
) -> c_int {
    // SAFETY: OpenSSL hands back a loader of ours, and nobody else uses it meanwhile.
    let Some(loader) = (unsafe { pointer.cast::<Loader>().as_mut() }) else {
        return 0;
    };
    let provider = loader.provider;
    guard(provider, 0, || {
        if std::mem::replace(&mut loader.done, true) {
            return Ok(0);
        }
        let key = loader.key()?;
        // SAFETY: the caller's callback and argument.
        unsafe { hand_over(key, callback, argument) }
    })
}

unsafe extern "C" fn eof(pointer: Ptr) -> c_int {
    // SAFETY: OpenSSL hands back a loader of ours.
    let loader = unsafe { pointer.cast::<Loader>().as_ref() };
    c_int::from(loader.is_none_or(|loader| loader.done))
}

unsafe extern "C" fn close(pointer: Ptr) -> c_int {
    if pointer.is_null() {
        return 1;
    }
    guard_bare(0, || {
        // SAFETY: OpenSSL gives it back and does not use it again.
        drop(unsafe { Box::from_raw(pointer.cast::<Loader>()) });
        Some(1)
    })
}
