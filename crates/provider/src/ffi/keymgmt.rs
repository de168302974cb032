// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key management: OpenSSL's own, around inner key data.
//!
//! A private part is exported only if it is in this process; that of a key that the pool holds
//! cannot be.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use super::core::{guard, guard_bare};
use super::ids;
use super::inner;
use super::key::{Export, Import, Key, KeyParams, Origin, key_functions};
use super::libcrypto::Ptr;
use super::provider::Provider;
use super::types::{Callback, Dispatch, Param};
use crate::error::{Error, Reason, Result};

type GenInit = unsafe extern "C" fn(Ptr, c_int, *const Param) -> Ptr;
type GenTemplate = unsafe extern "C" fn(Ptr, Ptr) -> c_int;
type GenParams = unsafe extern "C" fn(Ptr, *const Param) -> c_int;
type GenSettable = unsafe extern "C" fn(Ptr, Ptr) -> *const Param;
type Gen = unsafe extern "C" fn(Ptr, Option<Callback>, *mut c_void) -> Ptr;
type GenCleanup = unsafe extern "C" fn(Ptr);
type Listing = unsafe extern "C" fn(Ptr) -> *const Param;
type Types = unsafe extern "C" fn(c_int) -> *const Param;
type SetParams = unsafe extern "C" fn(Ptr, *const Param) -> c_int;
type OperationName = unsafe extern "C" fn(c_int) -> *const c_char;
type Validate = unsafe extern "C" fn(Ptr, c_int, c_int) -> c_int;
type Match = unsafe extern "C" fn(Ptr, Ptr, c_int) -> c_int;
type Dup = unsafe extern "C" fn(Ptr, c_int) -> Ptr;

const PRIVATE: c_int = ids::OSSL_KEYMGMT_SELECT_PRIVATE_KEY;

/// A running key generation.
struct Generation {
    provider: &'static Provider,
    algorithm: usize,
    inner: Ptr,
}

/// The functions that are offered for a key type: those that OpenSSL has for it, and `load`.
pub(crate) fn table<const A: usize>() -> Result<Vec<Dispatch>> {
    let inner = key_functions(A)?;
    let all: [(i32, *const c_void); 22] = [
        (ids::OSSL_FUNC_KEYMGMT_NEW, new::<A> as *const c_void),
        (ids::OSSL_FUNC_KEYMGMT_FREE, free as *const c_void),
        (
            ids::OSSL_FUNC_KEYMGMT_GEN_INIT,
            gen_init::<A> as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYMGMT_GEN_SET_TEMPLATE,
            gen_set_template as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYMGMT_GEN_SET_PARAMS,
            gen_set_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYMGMT_GEN_SETTABLE_PARAMS,
            gen_settable_params::<A> as *const c_void,
        ),
        (ids::OSSL_FUNC_KEYMGMT_GEN, generate as *const c_void),
        (
            ids::OSSL_FUNC_KEYMGMT_GEN_CLEANUP,
            gen_cleanup as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYMGMT_GET_PARAMS,
            get_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYMGMT_GETTABLE_PARAMS,
            gettable_params::<A> as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYMGMT_SET_PARAMS,
            set_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYMGMT_SETTABLE_PARAMS,
            settable_params::<A> as *const c_void,
        ),
        (
            ids::OSSL_FUNC_KEYMGMT_QUERY_OPERATION_NAME,
            query_operation_name::<A> as *const c_void,
        ),
        (ids::OSSL_FUNC_KEYMGMT_HAS, has as *const c_void),
        (ids::OSSL_FUNC_KEYMGMT_VALIDATE, validate as *const c_void),
        (ids::OSSL_FUNC_KEYMGMT_MATCH, matches as *const c_void),
        (ids::OSSL_FUNC_KEYMGMT_IMPORT, import as *const c_void),
        (
            ids::OSSL_FUNC_KEYMGMT_IMPORT_TYPES,
            import_types::<A> as *const c_void,
        ),
        (ids::OSSL_FUNC_KEYMGMT_EXPORT, export as *const c_void),
        (
            ids::OSSL_FUNC_KEYMGMT_EXPORT_TYPES,
            export_types::<A> as *const c_void,
        ),
        (ids::OSSL_FUNC_KEYMGMT_DUP, dup as *const c_void),
        (ids::OSSL_FUNC_KEYMGMT_LOAD, load::<A> as *const c_void),
    ];
    let mut entries: Vec<Dispatch> = all
        .into_iter()
        .filter(|(id, _)| *id == ids::OSSL_FUNC_KEYMGMT_LOAD || inner.has(*id))
        .map(|(id, function)| Dispatch { id, function })
        .collect();
    entries.push(Dispatch::END);
    Ok(entries)
}

fn done(status: c_int) -> Result<c_int> {
    if status == 1 {
        Ok(1)
    } else {
        Err(Error::library())
    }
}

unsafe extern "C" fn new<const A: usize>(provctx: Ptr) -> Ptr {
    // SAFETY: OpenSSL hands back the context of the provider.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null_mut(), || {
        Ok(Key::empty(provider, A)?.into_object())
    })
}

unsafe extern "C" fn free(object: Ptr) {
    if object.is_null() {
        return;
    }
    guard_bare((), || {
        // SAFETY: OpenSSL gives up its reference.
        drop(unsafe { Arc::from_raw(object.cast::<Key>().cast_const()) });
        Some(())
    });
}

unsafe extern "C" fn gen_init<const A: usize>(
    provctx: Ptr,
    selection: c_int,
    params: *const Param,
) -> Ptr {
    // SAFETY: OpenSSL hands back the context of the provider.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null_mut(), || {
        let context = inner::context()?;
        // SAFETY: the type of `keymgmt_gen_init`.
        let init =
            unsafe { key_functions(A)?.function::<GenInit>(ids::OSSL_FUNC_KEYMGMT_GEN_INIT) }?;
        // SAFETY: the inner provider's context; the caller's parameters.
        let inner = unsafe { init(context.provctx, selection, params) };
        if inner.is_null() {
            return Err(Error::library());
        }
        Ok(Box::into_raw(Box::new(Generation {
            provider,
            algorithm: A,
            inner,
        }))
        .cast())
    })
}

/// The generation behind a pointer that `gen_init` gave out.
///
/// # Safety
/// It did, and `gen_cleanup` has not taken it back.
unsafe fn generation<'a>(pointer: Ptr) -> Option<&'a Generation> {
    // SAFETY: the caller's promise.
    unsafe { pointer.cast::<Generation>().as_ref() }
}

unsafe extern "C" fn gen_set_template(pointer: Ptr, template: Ptr) -> c_int {
    // SAFETY: OpenSSL hands back what `gen_init` gave it.
    let Some(generation) = (unsafe { generation(pointer) }) else {
        return 0;
    };
    guard(generation.provider, 0, || {
        // SAFETY: a key object of the same key type.
        let template = unsafe { Key::of(template) }?;
        let inner = key_functions(generation.algorithm)?;
        // SAFETY: the type of `keymgmt_gen_set_template`.
        let set =
            unsafe { inner.function::<GenTemplate>(ids::OSSL_FUNC_KEYMGMT_GEN_SET_TEMPLATE) }?;
        // SAFETY: inner objects of one key type.
        done(unsafe { set(generation.inner, template.data) })
    })
}

unsafe extern "C" fn gen_set_params(pointer: Ptr, params: *const Param) -> c_int {
    // SAFETY: OpenSSL hands back what `gen_init` gave it.
    let Some(generation) = (unsafe { generation(pointer) }) else {
        return 0;
    };
    guard(generation.provider, 0, || {
        let inner = key_functions(generation.algorithm)?;
        // SAFETY: the type of `keymgmt_gen_set_params`.
        let set = unsafe { inner.function::<GenParams>(ids::OSSL_FUNC_KEYMGMT_GEN_SET_PARAMS) }?;
        // SAFETY: an inner generation, the caller's parameters.
        done(unsafe { set(generation.inner, params) })
    })
}

unsafe extern "C" fn gen_settable_params<const A: usize>(
    _pointer: Ptr,
    _provctx: Ptr,
) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        let id = ids::OSSL_FUNC_KEYMGMT_GEN_SETTABLE_PARAMS;
        // SAFETY: the type of `keymgmt_gen_settable_params`.
        let list = unsafe { key_functions(A).ok()?.function::<GenSettable>(id) }.ok()?;
        // SAFETY: a listing without a generation is allowed (`openssl list` asks so).
        Some(unsafe { list(std::ptr::null_mut(), context.provctx) })
    })
}

unsafe extern "C" fn generate(
    pointer: Ptr,
    callback: Option<Callback>,
    argument: *mut c_void,
) -> Ptr {
    // SAFETY: OpenSSL hands back what `gen_init` gave it.
    let Some(generation) = (unsafe { generation(pointer) }) else {
        return std::ptr::null_mut();
    };
    guard(generation.provider, std::ptr::null_mut(), || {
        // SAFETY: the type of `keymgmt_gen`.
        let make = unsafe {
            key_functions(generation.algorithm)?.function::<Gen>(ids::OSSL_FUNC_KEYMGMT_GEN)
        }?;
        // SAFETY: an inner generation; the callback and its argument are the caller's.
        let data = unsafe { make(generation.inner, callback, argument) };
        if data.is_null() {
            return Err(Error::library());
        }
        let origin = Origin::Generated;
        Ok(Key::wrap(generation.provider, generation.algorithm, data, origin).into_object())
    })
}

unsafe extern "C" fn gen_cleanup(pointer: Ptr) {
    if pointer.is_null() {
        return;
    }
    guard_bare((), || {
        // SAFETY: OpenSSL gives it back and does not use it again.
        let generation = unsafe { Box::from_raw(pointer.cast::<Generation>()) };
        let inner = key_functions(generation.algorithm).ok()?;
        // SAFETY: the type of `keymgmt_gen_cleanup`.
        let cleanup =
            unsafe { inner.function::<GenCleanup>(ids::OSSL_FUNC_KEYMGMT_GEN_CLEANUP) }.ok()?;
        // SAFETY: an inner generation that is not used again.
        unsafe { cleanup(generation.inner) };
        Some(())
    });
}

/// Takes over a key that a decoder or the store made: the reference is the address of a place that
/// holds its key object.
unsafe extern "C" fn load<const A: usize>(reference: *const c_void, size: usize) -> Ptr {
    guard_bare(std::ptr::null_mut(), || {
        if reference.is_null() || size != size_of::<Ptr>() {
            return None;
        }
        let place = reference.cast_mut().cast::<Ptr>();
        // SAFETY: our decoder and store pass the address of a pointer.
        let object = unsafe { place.read() };
        // SAFETY: it is null or a key object.
        if unsafe { Key::of(object) }.ok()?.algorithm != A {
            return None;
        }
        // SAFETY: as above; taken, so that whoever made it does not free it.
        unsafe { place.write(std::ptr::null_mut()) };
        Some(object)
    })
}

unsafe extern "C" fn get_params(object: Ptr, params: *mut Param) -> c_int {
    // SAFETY: a key object.
    let Ok(key) = (unsafe { Key::of(object) }) else {
        return 0;
    };
    guard(key.provider, 0, || {
        // SAFETY: the type of `keymgmt_get_params`.
        let get = unsafe {
            key.inner()?
                .function::<KeyParams>(ids::OSSL_FUNC_KEYMGMT_GET_PARAMS)
        }?;
        // SAFETY: live key data, the caller's parameters.
        done(unsafe { get(key.data, params) })
    })
}

/// A listing of the inner key type that takes the provider's context.
fn listing(algorithm: usize, id: i32) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        // SAFETY: the type of `keymgmt_gettable_params` and `keymgmt_settable_params`.
        let list = unsafe { key_functions(algorithm).ok()?.function::<Listing>(id) }.ok()?;
        // SAFETY: the inner provider's context.
        Some(unsafe { list(context.provctx) })
    })
}

unsafe extern "C" fn gettable_params<const A: usize>(_provctx: Ptr) -> *const Param {
    listing(A, ids::OSSL_FUNC_KEYMGMT_GETTABLE_PARAMS)
}

unsafe extern "C" fn settable_params<const A: usize>(_provctx: Ptr) -> *const Param {
    listing(A, ids::OSSL_FUNC_KEYMGMT_SETTABLE_PARAMS)
}

unsafe extern "C" fn set_params(object: Ptr, params: *const Param) -> c_int {
    // SAFETY: a key object.
    let Ok(key) = (unsafe { Key::of(object) }) else {
        return 0;
    };
    guard(key.provider, 0, || {
        // SAFETY: the type of `keymgmt_set_params`.
        let set = unsafe {
            key.inner()?
                .function::<SetParams>(ids::OSSL_FUNC_KEYMGMT_SET_PARAMS)
        }?;
        // SAFETY: live key data, the caller's parameters.
        done(unsafe { set(key.data, params) })
    })
}

unsafe extern "C" fn query_operation_name<const A: usize>(operation: c_int) -> *const c_char {
    guard_bare(std::ptr::null(), || {
        let id = ids::OSSL_FUNC_KEYMGMT_QUERY_OPERATION_NAME;
        // SAFETY: the type of `keymgmt_query_operation_name`.
        let query = unsafe { key_functions(A).ok()?.function::<OperationName>(id) }.ok()?;
        // SAFETY: takes any number.
        Some(unsafe { query(operation) })
    })
}

unsafe extern "C" fn has(object: *const c_void, selection: c_int) -> c_int {
    guard_bare(0, || {
        // SAFETY: a key object.
        let key = unsafe { Key::of(object) }.ok()?;
        let held = key.origin() == Origin::Resident;
        let selection = if held {
            selection & !PRIVATE
        } else {
            selection
        };
        Some(c_int::from(key.data_has(selection)))
    })
}

unsafe extern "C" fn validate(object: *const c_void, selection: c_int, kind: c_int) -> c_int {
    // SAFETY: a key object.
    let Ok(key) = (unsafe { Key::of(object) }) else {
        return 0;
    };
    guard(key.provider, 0, || {
        let held = key.origin() == Origin::Resident;
        let selection = if held {
            selection & !PRIVATE
        } else {
            selection
        };
        // SAFETY: the type of `keymgmt_validate`.
        let check = unsafe {
            key.inner()?
                .function::<Validate>(ids::OSSL_FUNC_KEYMGMT_VALIDATE)
        }?;
        // SAFETY: live key data.
        done(unsafe { check(key.data, selection, kind) })
    })
}

unsafe extern "C" fn matches(
    first: *const c_void,
    second: *const c_void,
    selection: c_int,
) -> c_int {
    guard_bare(0, || {
        // SAFETY: key objects.
        let (first, second) = unsafe { (Key::of(first).ok()?, Key::of(second).ok()?) };
        let mut selection = selection;
        if first.origin() == Origin::Resident || second.origin() == Origin::Resident {
            // The public halves decide: nobody has the private ones to compare.
            if selection & PRIVATE != 0 {
                selection = (selection & !PRIVATE) | ids::OSSL_KEYMGMT_SELECT_PUBLIC_KEY;
            }
        }
        if first.algorithm != second.algorithm {
            return None;
        }
        // SAFETY: the type of `keymgmt_match`.
        let same = unsafe {
            first
                .inner()
                .ok()?
                .function::<Match>(ids::OSSL_FUNC_KEYMGMT_MATCH)
        }
        .ok()?;
        // SAFETY: live key data of one type.
        Some(unsafe { same(first.data, second.data, selection) })
    })
}

unsafe extern "C" fn import(object: Ptr, selection: c_int, params: *const Param) -> c_int {
    // SAFETY: a key object.
    let Ok(key) = (unsafe { Key::of(object) }) else {
        return 0;
    };
    guard(key.provider, 0, || {
        // SAFETY: the type of `keymgmt_import`.
        let import = unsafe {
            key.inner()?
                .function::<Import>(ids::OSSL_FUNC_KEYMGMT_IMPORT)
        }?;
        // SAFETY: live key data, the caller's parameters.
        done(unsafe { import(key.data, selection, params) })?;
        if key.data_has(PRIVATE) {
            key.set_imported();
        }
        Ok(1)
    })
}

/// A listing of the inner key type for a selection.
fn types(algorithm: usize, id: i32, selection: c_int) -> *const Param {
    guard_bare(std::ptr::null(), || {
        // SAFETY: the type of `keymgmt_import_types` and `keymgmt_export_types`.
        let list = unsafe { key_functions(algorithm).ok()?.function::<Types>(id) }.ok()?;
        // SAFETY: takes any number.
        Some(unsafe { list(selection) })
    })
}

unsafe extern "C" fn import_types<const A: usize>(selection: c_int) -> *const Param {
    types(A, ids::OSSL_FUNC_KEYMGMT_IMPORT_TYPES, selection)
}

unsafe extern "C" fn export_types<const A: usize>(selection: c_int) -> *const Param {
    types(A, ids::OSSL_FUNC_KEYMGMT_EXPORT_TYPES, selection)
}

unsafe extern "C" fn export(
    object: Ptr,
    selection: c_int,
    callback: Callback,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: a key object.
    let Ok(key) = (unsafe { Key::of(object) }) else {
        return 0;
    };
    guard(key.provider, 0, || {
        if selection & PRIVATE != 0 && key.origin() == Origin::Resident {
            let text = "the private key is held by the pool and cannot be exported";
            return Err(Error::new(Reason::KeyStays, text));
        }
        // SAFETY: the type of `keymgmt_export`.
        let export = unsafe {
            key.inner()?
                .function::<Export>(ids::OSSL_FUNC_KEYMGMT_EXPORT)
        }?;
        // SAFETY: live key data; the callback and its argument are the caller's.
        done(unsafe { export(key.data, selection, callback, argument) })
    })
}

unsafe extern "C" fn dup(object: *const c_void, selection: c_int) -> Ptr {
    // SAFETY: a key object.
    let Ok(key) = (unsafe { Key::of(object) }) else {
        return std::ptr::null_mut();
    };
    guard(key.provider, std::ptr::null_mut(), || {
        // SAFETY: the type of `keymgmt_dup`.
        let dup = unsafe { key.inner()?.function::<Dup>(ids::OSSL_FUNC_KEYMGMT_DUP) }?;
        // SAFETY: live key data.
        let data = unsafe { dup(key.data, selection) };
        if data.is_null() {
            return Err(Error::library());
        }
        let whole = selection & PRIVATE != 0;
        let copy = if whole {
            key.like(data)
        } else {
            Key::wrap(key.provider, key.algorithm, data, Origin::Public)
        };
        Ok(copy.into_object())
    })
}

/// Builds the table of the key type with this index.
pub(crate) fn table_of(algorithm: usize) -> Result<Vec<Dispatch>> {
    match algorithm {
        0 => table::<0>(),
        1 => table::<1>(),
        2 => table::<2>(),
        3 => table::<3>(),
        4 => table::<4>(),
        5 => table::<5>(),
        6 => table::<6>(),
        7 => table::<7>(),
        8 => table::<8>(),
        9 => table::<9>(),
        _ => Err(Error::new(Reason::Internal, "no such key type")),
    }
}

const _: () = assert!(
    crate::config::ALGORITHMS.len() == 10,
    "table_of lists them all"
);
