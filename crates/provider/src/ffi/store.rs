// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The loader of `millrace:name` URIs.
//!
//! A URI names a key in the pool. Its public half is in the URI (`?spki=`, base64url), or the pool is asked for it when
//! the URI is opened, and has to be up then. The connection is closed before the key is handed out, so that a server
//! which forks workers afterwards does not fork the connection.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Instant;

use millrace_operation::stub::{self, KeyUri};

use super::core::guard_bare;
use super::decoder::hand_over;
use super::delegate::{PROPERTIES, dispatch};
use super::handle::{free, give};
use super::ids;
use super::key::Key;
use super::libcrypto::Ptr;
use super::params::integer_in;
use super::state::{Provider, guard};
use super::types::{Algorithm, Callback, Dispatch, Param, StaticTable};
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

/// The store loader for URIs `millrace:NAME`.
pub(crate) fn algorithms() -> StaticTable<Algorithm> {
    loader_of(&StaticTable::dispatch(dispatch! { store {
        OPEN => open<>;
        SETTABLE_CTX_PARAMS => settable_ctx_params<>;
        SET_CTX_PARAMS => set_ctx_params<>;
        LOAD => load<>;
        EOF => eof<>;
        CLOSE => close<>;
    } }))
}

/// The table of the loader with these functions.
pub(crate) fn loader_of(functions: &StaticTable<Dispatch>) -> StaticTable<Algorithm> {
    StaticTable::leak(vec![
        Algorithm {
            names: c"millrace".as_ptr(),
            properties: PROPERTIES.as_ptr(),
            implementation: functions.as_ptr(),
            description: c"keys in the Millrace pool".as_ptr(),
        },
        Algorithm::END,
    ])
}

unsafe extern "C" fn open<const ID: i32>(provctx: Ptr, uri: *const c_char) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null_mut(), || {
        if uri.is_null() {
            return Err(Error::library());
        }
        // SAFETY: not null, so libcrypto passes a C string.
        let text = unsafe { CStr::from_ptr(uri) }.to_str().unwrap_or("");
        let uri = stub::parse_uri(text).ok_or_else(|| {
            let text = "a key URI is millrace:name or millrace:name?spki=BASE64URL";
            Error::new(Reason::Key, text)
        })?;
        Ok(give(Loader { provider, uri, done: false }))
    })
}

impl Loader {
    fn key(&self) -> Result<Key> {
        if let Some(spki) = &self.uri.spki {
            return Key::resident(self.provider, &self.uri.name, spki);
        }
        let config = self.provider.config;
        let pool = remote::connect(config.pool());
        let opened = pool.open(&self.uri.name, None, Instant::now() + config.deadline);
        let remote = opened.map_err(|error| {
            let text = format!("key {} of the pool: {error}", self.uri.name);
            Error::new(Reason::Pool, text)
        })?;
        Key::resident(self.provider, &self.uri.name, &remote.info().spki)
    }
}

pub(crate) unsafe extern "C" fn settable_ctx_params<const ID: i32>(_provctx: Ptr) -> *const Param {
    static LIST: StaticTable<Param> =
        StaticTable(&[Param::listed(c"expect", ids::param::INTEGER), Param::END]);
    LIST.as_ptr()
}

unsafe extern "C" fn set_ctx_params<const ID: i32>(pointer: Ptr, settings: *const Param) -> c_int {
    guard_bare(0, || {
        // SAFETY: libcrypto passes what `open` returned, and uses a loader from one thread at a time.
        let loader = unsafe { pointer.cast::<Loader>().as_mut() }?;
        // SAFETY: libcrypto passes null or an array of parameters that a null key ends.
        if let Some(expect) = unsafe { integer_in(settings, c"expect") } {
            // Certificates are expected from other loaders.
            loader.done |= !matches!(expect, 0 | EXPECT_PUBLIC | EXPECT_KEY);
        }
        Some(1)
    })
}

unsafe extern "C" fn load<const ID: i32>(
    pointer: Ptr,
    callback: Callback,
    argument: *mut c_void,
    _passphrase: *const c_void,
    _passphrase_argument: *mut c_void,
) -> c_int {
    // SAFETY: libcrypto passes what `open` returned, and uses a loader from one thread at a time.
    let Some(loader) = (unsafe { pointer.cast::<Loader>().as_mut() }) else {
        return 0;
    };
    let provider = loader.provider;
    guard(provider, 0, || {
        if std::mem::replace(&mut loader.done, true) {
            return Ok(0);
        }
        let key = loader.key()?;
        // SAFETY: libcrypto passes the callback with its argument, for this call.
        unsafe { hand_over(key, callback, argument) }
    })
}

unsafe extern "C" fn eof<const ID: i32>(pointer: Ptr) -> c_int {
    // SAFETY: libcrypto passes what `open` returned, and does not free it during the call.
    let loader = unsafe { pointer.cast::<Loader>().as_ref() };
    c_int::from(loader.is_none_or(|loader| loader.done))
}

unsafe extern "C" fn close<const ID: i32>(pointer: Ptr) -> c_int {
    // SAFETY: libcrypto returns what `open` gave it, and does not use it again.
    unsafe { free::<Loader, ID>(pointer) };
    1
}
