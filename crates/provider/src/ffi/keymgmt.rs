// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key management: OpenSSL's own, around inner key data.
//!
//! A private part is exported only if it is in this process; that of a key that only the pool has
//! cannot be.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use super::core::guard_bare;
use super::decoder::Reference;
use super::delegate::{Rows, dispatch, get_params, set_params};
use super::handle::{Failure, Handle, free, give, owned, with_object};
use super::ids;
use super::inner::{self, InnerAlgorithm, call, key_functions, succeeded};
use super::key::{InnerKeyData, Key, Origin};
use super::libcrypto::Ptr;
use super::private;
use super::state::{Provider, guard};
use super::types::{Callback, Param};
use crate::algorithms::{KeyType, each_key_type};
use crate::error::{Error, Reason};

/// The rows of each key type's dispatch table.
pub(crate) const DISPATCH: [fn() -> Rows; KeyType::ALL.len()] = each_key_type!(rows);

/// The rows of each key type's dispatch table, for keys that sign in this process.
pub(crate) const LOCAL: [fn() -> Rows; KeyType::ALL.len()] = each_key_type!(local_rows);

fn local_rows<const A: usize>() -> Rows {
    let mut rows = rows::<A>();
    rows.retain(|(id, _)| *id != ids::keymgmt::NEW);
    rows.extend(dispatch! { keymgmt { NEW => new_local<A>; } });
    rows
}

#[rustfmt::skip]
fn rows<const A: usize>() -> Rows {
    dispatch! { keymgmt {
        NEW                  => new<A>;
        FREE                 => free_key<>;
        GEN_INIT             => gen_init<A>;
        GEN_SET_TEMPLATE     => gen_set_template<>;
        GEN_SET_PARAMS       => set_params<Generation>;
        GEN_SETTABLE_PARAMS  => gen_settable_params<A>;
        GEN                  => generate<>;
        GEN_CLEANUP          => free<Generation>;
        LOAD                 => load<A>;
        GET_PARAMS           => get_params<Key>;
        GETTABLE_PARAMS      => listing<A>;
        SET_PARAMS           => set_params<Key>;
        SETTABLE_PARAMS      => listing<A>;
        QUERY_OPERATION_NAME => query_operation_name<A>;
        HAS                  => has<>;
        VALIDATE             => validate<>;
        MATCH                => matches<>;
        IMPORT               => import<>;
        IMPORT_TYPES         => types<A>;
        EXPORT               => export<>;
        EXPORT_TYPES         => types<A>;
        DUP                  => dup<>;
    } }
}

/// The context of a key generation, around one of the inner context.
struct Generation {
    provider: &'static Provider,
    key_type: KeyType,
    functions: &'static InnerAlgorithm,
    inner: Ptr,
}

owned!(Generation);

impl Handle for Generation {
    fn functions(&self) -> &'static InnerAlgorithm {
        self.functions
    }

    fn inner(&self) -> Ptr {
        self.inner
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        let id = ids::keymgmt::GEN_CLEANUP;
        // SAFETY: `keymgmt_gen_cleanup` takes the inner generation, which this handle owns and uses no
        // more. Every key type that can be generated has the function.
        let _ = unsafe { call!(self.functions, id, fn(self.inner => Ptr) -> ()) };
    }
}

/// The part of a selection that the inner key data can have: the private part of a resident key is in the pool.
fn held(key: &Key, selection: c_int) -> c_int {
    if key.origin() == Origin::Resident { selection & !ids::select::PRIVATE_KEY } else { selection }
}

unsafe extern "C" fn new<const A: usize, const ID: i32>(provctx: Ptr) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || {
        let data = InnerKeyData::empty(KeyType::ALL[A])?;
        Ok(Key::new(provider, data, Origin::Public).into_object())
    })
}

unsafe extern "C" fn new_local<const A: usize, const ID: i32>(provctx: Ptr) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || {
        let data = InnerKeyData::empty(KeyType::ALL[A])?;
        Ok(Key::local(provider, data, Origin::Public).into_object())
    })
}

unsafe extern "C" fn free_key<const ID: i32>(object: Ptr) {
    if object.is_null() {
        return;
    }
    guard_bare((), || {
        // SAFETY: libcrypto gives up the reference that `into_object` gave it.
        drop(unsafe { Arc::from_raw(object.cast::<Key>().cast_const()) });
        Some(())
    });
}

unsafe extern "C" fn gen_init<const A: usize, const ID: i32>(
    provctx: Ptr,
    selection: c_int,
    params: *const Param,
) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || {
        let key_type = KeyType::ALL[A];
        let functions = key_functions(key_type)?;
        let provctx = inner::context()?.provctx;
        // SAFETY: `keymgmt_gen_init` takes the context of the provider whose key type this is; the
        // other arguments are libcrypto's.
        let inner = unsafe {
            call!(functions, ID,
                fn(provctx => Ptr, selection => c_int, params => *const Param) -> Ptr)
        }?;
        if inner.is_null() {
            return Err(Error::library());
        }
        Ok(give(Generation { provider, key_type, functions, inner }))
    })
}

unsafe extern "C" fn gen_set_template<const ID: i32>(pointer: Ptr, template: Ptr) -> c_int {
    let entry = |generation: &Generation| {
        // SAFETY: libcrypto passes null or a key object of the same key manager.
        let template = unsafe { Key::of(template) }?;
        // SAFETY: `keymgmt_gen_set_template` takes a generation and key data of its key type.
        unsafe {
            call!(generation.functions, ID,
                fn(generation.inner => Ptr, template.inner() => Ptr) -> c_int)
        }
    };
    // SAFETY: libcrypto passes what `gen_init` returned.
    unsafe { with_object(pointer, entry) }
}

unsafe extern "C" fn gen_settable_params<const A: usize, const ID: i32>(
    _pointer: Ptr,
    _provctx: Ptr,
) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let provctx = inner::context().ok()?.provctx;
        let functions = key_functions(KeyType::ALL[A]).ok()?;
        // Without a generation, as `openssl list` asks.
        let none: Ptr = std::ptr::null_mut();
        // SAFETY: `keymgmt_gen_settable_params` takes a generation or null, and the context of the
        // provider whose key type this is.
        unsafe { call!(functions, ID, fn(none => Ptr, provctx => Ptr) -> *const Param) }.ok()
    })
}

unsafe extern "C" fn generate<const ID: i32>(
    pointer: Ptr,
    callback: Option<Callback>,
    argument: *mut c_void,
) -> Ptr {
    let entry = |generation: &Generation| {
        // SAFETY: `keymgmt_gen` takes a generation; the callback and its argument are libcrypto's.
        let pointer = unsafe {
            call!(generation.functions, ID,
                fn(generation.inner => Ptr, callback => Option<Callback>, argument => *mut c_void) -> Ptr)
        }?;
        let data = InnerKeyData::taking(generation.key_type, pointer)?;
        Ok(Key::new(generation.provider, data, Origin::Generated).into_object())
    };
    // SAFETY: libcrypto passes what `gen_init` returned.
    unsafe { with_object(pointer, entry) }
}

/// Takes over a key that a decoder or the store made.
unsafe extern "C" fn load<const A: usize, const ID: i32>(
    reference: *const c_void,
    size: usize,
) -> Ptr {
    // SAFETY: libcrypto passes a reference with its size, on which the caller waits.
    let take = || unsafe { Reference::take(reference, size, KeyType::ALL[A]) };
    guard_bare(std::ptr::null_mut(), take)
}

/// A listing of the inner key type that takes the provider's context.
unsafe extern "C" fn listing<const A: usize, const ID: i32>(_provctx: Ptr) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let provctx = inner::context().ok()?.provctx;
        let functions = key_functions(KeyType::ALL[A]).ok()?;
        // SAFETY: the listings have this type, and take the context of the provider whose key type this is.
        unsafe { call!(functions, ID, fn(provctx => Ptr) -> *const Param) }.ok()
    })
}

/// A listing of the inner key type for a selection.
unsafe extern "C" fn types<const A: usize, const ID: i32>(selection: c_int) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let functions = key_functions(KeyType::ALL[A]).ok()?;
        // SAFETY: `keymgmt_import_types` and `keymgmt_export_types` take any selection.
        unsafe { call!(functions, ID, fn(selection => c_int) -> *const Param) }.ok()
    })
}

unsafe extern "C" fn query_operation_name<const A: usize, const ID: i32>(
    operation: c_int,
) -> *const c_char {
    guard_bare(std::ptr::null(), || {
        let functions = key_functions(KeyType::ALL[A]).ok()?;
        // SAFETY: `keymgmt_query_operation_name` takes the number of any operation.
        unsafe { call!(functions, ID, fn(operation => c_int) -> *const c_char) }.ok()
    })
}

unsafe extern "C" fn has<const ID: i32>(object: *const c_void, selection: c_int) -> c_int {
    let entry = |key: &Key| Ok(c_int::from(key.data_has(held(key, selection))));
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}

unsafe extern "C" fn validate<const ID: i32>(
    object: *const c_void,
    selection: c_int,
    kind: c_int,
) -> c_int {
    let entry = |key: &Key| {
        let here = held(key, selection);
        // SAFETY: `keymgmt_validate` takes live key data, any selection and any kind of check.
        let status = unsafe {
            call!(key.functions(), ID,
                fn(key.inner() => Ptr, here => c_int, kind => c_int) -> c_int)
        }?;
        if status == 1 && here != selection {
            private::check(key)?;
        }
        Ok(status)
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}

unsafe extern "C" fn matches<const ID: i32>(
    first: *const c_void,
    second: *const c_void,
    selection: c_int,
) -> c_int {
    let entry = |first: &Key| {
        // SAFETY: libcrypto passes null or a key object of this key manager.
        let second = unsafe { Key::of(second) }?;
        if first.data.key_type != second.data.key_type {
            return Ok(0);
        }
        let mut compared = held(first, held(second, selection));
        if compared != selection {
            // The public halves decide: this process does not have the private ones.
            compared |= ids::select::PUBLIC_KEY;
        }
        // SAFETY: `keymgmt_match` takes live key data of one type, and any selection.
        unsafe {
            call!(first.functions(), ID,
                fn(first.inner() => Ptr, second.inner() => Ptr, compared => c_int) -> c_int)
        }
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(first, entry) }
}

unsafe extern "C" fn import<const ID: i32>(
    object: Ptr,
    selection: c_int,
    params: *const Param,
) -> c_int {
    let entry = |key: &Key| {
        // SAFETY: `keymgmt_import` takes live key data; the other arguments are libcrypto's.
        let status = unsafe {
            call!(key.functions(), ID,
                fn(key.inner() => Ptr, selection => c_int, params => *const Param) -> c_int)
        }?;
        succeeded(status)?;
        if key.data_has(ids::select::PRIVATE_KEY) {
            key.set_imported();
        }
        Ok(status)
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}

unsafe extern "C" fn export<const ID: i32>(
    object: Ptr,
    selection: c_int,
    callback: Callback,
    argument: *mut c_void,
) -> c_int {
    let entry = |key: &Key| {
        if held(key, selection) != selection {
            let text = "the private key is held by the pool and cannot be exported; its public half can: \
                        openssl pkey -pubout, -text_pub";
            return Err(Error::new(Reason::KeyStays, text));
        }
        // SAFETY: `keymgmt_export` takes live key data; the other arguments are libcrypto's.
        let status = unsafe {
            call!(key.functions(), ID,
                fn(key.inner() => Ptr, selection => c_int, callback => Callback,
                    argument => *mut c_void) -> c_int)
        }?;
        // The default provider takes over keys on this curve under the name SM2 only.
        if status != 1 && key.data.key_type == KeyType::Ec && key.is_on_curve("SM2") {
            let text = "an SM2 key that was generated as type EC cannot be written; generate it as type SM2 \
                        (openssl genpkey -algorithm SM2)";
            return Err(Error::new(Reason::NotOffered, text));
        }
        Ok(status)
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}

unsafe extern "C" fn dup<const ID: i32>(object: *const c_void, selection: c_int) -> Ptr {
    let entry = |key: &Key| {
        // SAFETY: `keymgmt_dup` takes live key data and any selection.
        let pointer = unsafe {
            call!(key.functions(), ID, fn(key.inner() => Ptr, selection => c_int) -> Ptr)
        }?;
        let data = InnerKeyData::taking(key.data.key_type, pointer)?;
        let copy = if selection & ids::select::PRIVATE_KEY != 0 {
            key.like(data)
        } else {
            key.public_like(data)
        };
        Ok(copy.into_object())
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}
