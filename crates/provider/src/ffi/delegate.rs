// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The layer between libcrypto and an algorithm of the inner context, shared by all operations.
//!
//! ```text
//!  libcrypto ── pointer ──► Wrapped<O> (or a key) ── inner pointer ──► OpenSSL's own object
//!                             key, settings that the pool needs
//! ```
//!
//! A dispatch table is written with [`dispatch!`], one row per function: its number, and the function of
//! this module (or of the operation) that serves it. Most rows only delegate: the function is called
//! with the inner object and all other arguments unchanged. The rest intercepts:
//! initialisations note the key, settings are noted on their way, and [`produce`] and [`finish`] try the
//! pool first.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use millrace_operation::Output;

use super::core::guard_bare;
use super::handle::{Failure, Handle, Owned, give, with_context, with_object};
use super::inner::{self, InnerAlgorithm, call};
use super::key::Key;
use super::libcrypto::Ptr;
use super::memory::{Buffer, bytes};
use super::state::{Provider, guard};
use super::types::{Algorithm, Dispatch, Param, StaticTable};
use crate::algorithms::AlgorithmRow;
use crate::error::{Error, Result};

/// One kind of operation contexts: their state in addition to the inner context, and what they intercept.
/// The value is reset with each initialisation.
pub(crate) trait DelegatedOperation: Default + 'static {
    const ROWS: &'static [AlgorithmRow];
    /// Numbers of the functions that every operation has, each under its own number.
    const NEW: i32;
    const FREE: i32;
    const GET_PARAMS: i32;
    /// Whether the constructor takes a property query, too.
    const NEW_TAKES_PROPERTIES: bool = false;
    /// Whether an operation with a key that is not pooled counts as `local`.
    const COUNTS_LOCAL: bool = true;

    fn inner(context: &'static inner::InnerContext) -> &'static [Option<InnerAlgorithm>];

    fn copy(&self) -> Result<Self>;

    /// Notes settings of the application that the inner context does not return.
    ///
    /// # Safety
    /// `settings` is null or an array that a null key ends, and its entries describe readable memory.
    unsafe fn note(&mut self, settings: *const Param);

    /// The length of the result, if the inner context does not know it for this key.
    fn result_len(_context: &Wrapped<Self>, _key: &Key) -> Result<Option<usize>> {
        Ok(None)
    }

    /// The function `id` has initialised the inner context.
    fn started(_context: &mut Wrapped<Self>, _id: i32) -> Result<()> {
        Ok(())
    }
}

/// An operation that takes its whole input in one call.
pub(crate) trait OneShot: DelegatedOperation {
    /// Does the operation in the pool. `None` if the inner context has to do it. The result may have `room` bytes.
    fn produce(
        context: &mut Wrapped<Self>,
        id: i32,
        key: &Key,
        input: &[u8],
        room: usize,
    ) -> Result<Option<Output>>;
}

/// An operation that got its input before the call that asks for the result.
pub(crate) trait Finish: DelegatedOperation {
    /// Does the operation in the pool. `None` if the inner context has to do it. The result may have `room` bytes.
    fn finish(context: &mut Wrapped<Self>, key: &Key, room: usize) -> Result<Option<Output>>;
}

/// The context of an operation, around one of the inner context.
pub(crate) struct Wrapped<O: DelegatedOperation> {
    pub(crate) provider: &'static Provider,
    pub(crate) row: &'static AlgorithmRow,
    pub(crate) functions: &'static InnerAlgorithm,
    pub(crate) inner: Ptr,
    pub(crate) key: Option<Arc<Key>>,
    pub(crate) state: O,
}

impl<O: DelegatedOperation> Owned for Wrapped<O> {
    fn provider(&self) -> &'static Provider {
        self.provider
    }
}

impl<O: DelegatedOperation> Handle for Wrapped<O> {
    fn functions(&self) -> &'static InnerAlgorithm {
        self.functions
    }

    fn inner(&self) -> Ptr {
        self.inner
    }
}

impl<O: DelegatedOperation> Drop for Wrapped<O> {
    fn drop(&mut self) {
        // SAFETY: `freectx` takes the inner context, which this handle owns and uses no more. Every
        // operation of OpenSSL has the function, so that nothing is left to do about an error.
        let _ = unsafe { call!(self.functions, O::FREE, fn(self.inner => Ptr) -> ()) };
    }
}

impl<O: DelegatedOperation> Wrapped<O> {
    /// A new context of the algorithm at `index` of [`DelegatedOperation::ROWS`].
    pub(crate) fn new(provider: &'static Provider, index: usize) -> Result<Self> {
        let context = inner::context()?;
        let functions = inner::algorithm_at(O::inner(context), index)?;
        let row = O::ROWS.get(index).ok_or_else(Error::library)?;
        let provctx = context.provctx;
        // No properties: those of the application are not meant for the inner context.
        let none: *const c_char = std::ptr::null();
        // SAFETY: `newctx` takes the context of the provider whose algorithm this is, and a property
        // query or null where `core_dispatch.h` has it.
        let inner = unsafe {
            if O::NEW_TAKES_PROPERTIES {
                call!(functions, O::NEW, fn(provctx => Ptr, none => *const c_char) -> Ptr)
            } else {
                call!(functions, O::NEW, fn(provctx => Ptr) -> Ptr)
            }
        }?;
        if inner.is_null() {
            return Err(Error::library());
        }
        Ok(Self { provider, row, functions, inner, key: None, state: O::default() })
    }

    /// The key, if its private operations go to the pool or to AWS-LC.
    pub(crate) fn taken(&self) -> Option<&Arc<Key>> {
        self.key.as_ref().filter(|key| key.pooled() || key.signer().is_some())
    }

    /// Reads parameters of the inner context. `request` ends with [`Param::END`].
    pub(crate) fn get(&self, request: &mut [Param]) -> bool {
        debug_assert!(request.last().is_some_and(|param| param.key.is_null()));
        let request = request.as_mut_ptr();
        // SAFETY: `get_ctx_params` takes a live context and an array that a null key ends; its entries
        // were made by `Param`'s constructors over memory that the caller has borrowed.
        let status = unsafe {
            call!(self.functions, O::GET_PARAMS, fn(self.inner => Ptr, request => *mut Param) -> c_int)
        };
        status.is_ok_and(|status| status == 1)
    }

    /// A private operation: the result of the pool or of AWS-LC in `out`, or `false` if the inner context has to do
    /// it. Without a buffer the application only asks for the length.
    ///
    /// # Safety
    /// As [`Buffer::fill`].
    unsafe fn offload(
        &mut self,
        out: &Buffer,
        operation: impl FnOnce(&mut Self, &Key) -> Result<Option<Output>>,
    ) -> Result<bool> {
        if out.start.is_null() {
            let len = self.taken().map(|key| O::result_len(self, key)).transpose()?;
            return match len.flatten() {
                // SAFETY: by this function's contract.
                Some(len) => unsafe { out.set_len(len) }.map(|()| true),
                None => Ok(false),
            };
        }
        let Some(key) = self.taken().cloned() else {
            if O::COUNTS_LOCAL {
                self.provider.stats.local.add();
            }
            return Ok(false);
        };
        let Some(output) = operation(self, &key)? else {
            return Ok(false);
        };
        // SAFETY: by this function's contract, and it is not null.
        unsafe { out.fill(&output) }?;
        Ok(true)
    }
}

/// The rows of a dispatch table: `NUMBER => function<types and constants>;`. Each function has the number
/// as its last constant, so that one function serves many rows. This is where a number meets the C
/// type of its function: the names follow `core_dispatch.h`.
macro_rules! dispatch {
    ($ids:ident { $($id:ident => $function:ident<$($argument:ident),*>;)* }) => {
        vec![$((
            $crate::ffi::ids::$ids::$id,
            $function::<$($argument,)* { $crate::ffi::ids::$ids::$id }> as *const std::ffi::c_void,
        )),*]
    };
}
pub(crate) use dispatch;

/// Rows of a dispatch table: number and function.
pub(crate) type Rows = Vec<(i32, *const c_void)>;

/// The table of an algorithm: the rows whose function OpenSSL has as well, or whose number is in `own`.
/// A row without a function hands on OpenSSL's.
pub(crate) fn table(inner: &InnerAlgorithm, rows: Rows, own: &[i32]) -> Vec<Dispatch> {
    let mut entries = Vec::with_capacity(rows.len() + 1);
    for (id, function) in rows {
        match inner.entry(id) {
            Some(entry) if function.is_null() => entries.push(entry),
            Some(_) => entries.push(Dispatch { id, function }),
            None if own.contains(&id) => entries.push(Dispatch { id, function }),
            None => {}
        }
    }
    entries.push(Dispatch::END);
    entries
}

/// Functions that are called with the inner object and all other arguments unchanged.
macro_rules! delegates {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        pub(crate) unsafe extern "C" fn $name<H: Handle, const ID: i32>(
            pointer: Ptr,
            $($argument: $type),*
        ) -> $result {
            let entry = |handle: &H| {
                let functions = handle.functions();
                let inner = handle.inner();
                // SAFETY: the table's row pairs `ID` with this type. The inner object lives as long as
                // the handle; the other arguments are those of libcrypto for this very function.
                unsafe { call!(functions, ID, fn(inner => Ptr, $($argument => $type),*) -> $result) }
            };
            // SAFETY: libcrypto passes null or what the constructor of this table returned, an `H`.
            unsafe { with_object(pointer, entry) }
        }
    )*};
}

delegates! {
    verify(sig: *const u8, sig_len: usize, tbs: *const u8, tbs_len: usize) -> c_int;
    verify_final(sig: *const u8, sig_len: usize) -> c_int;
    update(data: *const u8, len: usize) -> c_int;
    status() -> c_int;
    transform(out: *mut u8, out_len: *mut usize, room: usize, input: *const u8, len: usize) -> c_int;
    get_params(request: *mut Param) -> c_int;
    set_params(settings: *const Param) -> c_int;
    own_listing() -> *const Param;
}

pub(crate) unsafe extern "C" fn newctx<O: DelegatedOperation, const A: usize, const ID: i32>(
    provctx: Ptr,
) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || Ok(give(Wrapped::<O>::new(provider, A)?)))
}

pub(crate) unsafe extern "C" fn newctx_with_properties<
    O: DelegatedOperation,
    const A: usize,
    const ID: i32,
>(
    provctx: Ptr,
    _properties: *const c_char,
) -> Ptr {
    // SAFETY: the arguments are those of `newctx`.
    unsafe { newctx::<O, A, ID>(provctx) }
}

pub(crate) unsafe extern "C" fn dupctx<O: DelegatedOperation, const ID: i32>(pointer: Ptr) -> Ptr {
    let entry = |context: &mut Wrapped<O>| {
        let state = context.state.copy()?;
        // SAFETY: `dupctx` takes a live context.
        let inner = unsafe { call!(context.functions, ID, fn(context.inner => Ptr) -> Ptr) }?;
        if inner.is_null() {
            return Err(Error::library());
        }
        Ok(give(Wrapped {
            provider: context.provider,
            row: context.row,
            functions: context.functions,
            inner,
            key: context.key.clone(),
            state,
        }))
    };
    // SAFETY: libcrypto passes a context of this operation.
    unsafe { with_context(pointer, entry) }
}

/// An initialisation with a key.
pub(crate) unsafe extern "C" fn init<O: DelegatedOperation, const ID: i32>(
    pointer: Ptr,
    object: Ptr,
    settings: *const Param,
) -> c_int {
    let start = |context: &Wrapped<O>, data: Ptr| {
        // SAFETY: the initialisations with a key have this type; `data` is null or inner key data.
        unsafe {
            call!(context.functions, ID,
                fn(context.inner => Ptr, data => Ptr, settings => *const Param) -> c_int)
        }
    };
    // SAFETY: the arguments are libcrypto's.
    unsafe { initialise::<O, ID>(pointer, object, settings, start) }
}

/// An initialisation with the name of a digest, and a key.
pub(crate) unsafe extern "C" fn digest_init<O: DelegatedOperation, const ID: i32>(
    pointer: Ptr,
    digest: *const c_char,
    object: Ptr,
    settings: *const Param,
) -> c_int {
    let start = |context: &Wrapped<O>, data: Ptr| {
        // SAFETY: the two `digest_*_init` have this type; `data` is null or inner key data, and the name
        // is libcrypto's.
        unsafe {
            call!(context.functions, ID,
                fn(context.inner => Ptr, digest => *const c_char, data => Ptr, settings => *const Param)
                    -> c_int)
        }
    };
    // SAFETY: the arguments are libcrypto's.
    unsafe { initialise::<O, ID>(pointer, object, settings, start) }
}

/// Starts again with a key, null for the one that is set. `start` initialises the inner context with inner key
/// data, or null.
///
/// # Safety
/// The arguments are those of libcrypto: null or a context of this operation; null or a key object of this provider's
/// key manager; null or an array of parameters.
unsafe fn initialise<O: DelegatedOperation, const ID: i32>(
    pointer: Ptr,
    object: Ptr,
    settings: *const Param,
    start: impl FnOnce(&Wrapped<O>, Ptr) -> Result<c_int>,
) -> c_int {
    let entry = |context: &mut Wrapped<O>| {
        let mut data = std::ptr::null_mut();
        if !object.is_null() {
            // SAFETY: by this function's contract, and it is not null.
            let key = unsafe { Key::share(object) }?;
            data = key.inner();
            context.key = Some(key);
        }
        context.state = O::default();
        // SAFETY: by this function's contract.
        unsafe { context.state.note(settings) };
        let status = start(context, data)?;
        if status == 1 {
            O::started(context, ID)?;
        }
        Ok(status)
    };
    // SAFETY: by this function's contract.
    unsafe { with_context(pointer, entry) }
}

/// A private operation on an input: in the pool, or by the inner context.
pub(crate) unsafe extern "C" fn produce<O: OneShot, const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    let entry = |context: &mut Wrapped<O>| {
        let buffer = Buffer::new(out, out_len, room);
        let operation = |context: &mut Wrapped<O>, key: &Key| {
            // SAFETY: libcrypto passes `len` readable bytes, which nothing changes during the call.
            O::produce(context, ID, key, unsafe { bytes(input, len) }, room)
        };
        // SAFETY: libcrypto passes null or a buffer of `room` bytes, with a place for its length.
        if unsafe { context.offload(&buffer, operation) }? {
            return Ok(1);
        }
        let functions = context.functions;
        // SAFETY: the one-shot functions have this type; the arguments are those of libcrypto. The
        // status is passed on as it is: for a decryption it is part of what OpenSSL computes in
        // constant time.
        unsafe {
            call!(functions, ID,
                fn(context.inner => Ptr, out => *mut u8, out_len => *mut usize, room => usize,
                    input => *const u8, len => usize) -> c_int)
        }
    };
    // SAFETY: libcrypto passes a context of this operation.
    unsafe { with_context(pointer, entry) }
}

/// A private operation on what was given before: in the pool, or by the inner context.
pub(crate) unsafe extern "C" fn finish<O: Finish, const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
) -> c_int {
    let entry = |context: &mut Wrapped<O>| {
        let buffer = Buffer::new(out, out_len, room);
        let operation = |context: &mut Wrapped<O>, key: &Key| O::finish(context, key, room);
        // SAFETY: libcrypto passes null or a buffer of `room` bytes, with a place for its length.
        if unsafe { context.offload(&buffer, operation) }? {
            return Ok(1);
        }
        let functions = context.functions;
        // SAFETY: the finishing functions have this type; the arguments are those of libcrypto.
        unsafe {
            call!(functions, ID,
                fn(context.inner => Ptr, out => *mut u8, out_len => *mut usize, room => usize) -> c_int)
        }
    };
    // SAFETY: libcrypto passes a context of this operation.
    unsafe { with_context(pointer, entry) }
}

/// Sets parameters, and notes those that the pool needs.
pub(crate) unsafe extern "C" fn set_noted_params<O: DelegatedOperation, const ID: i32>(
    pointer: Ptr,
    settings: *const Param,
) -> c_int {
    let entry = |context: &mut Wrapped<O>| {
        // SAFETY: libcrypto passes null or an array of parameters that a null key ends.
        unsafe { context.state.note(settings) };
        // SAFETY: the functions that set parameters have this type; the array is the same.
        unsafe {
            call!(context.functions, ID, fn(context.inner => Ptr, settings => *const Param) -> c_int)
        }
    };
    // SAFETY: libcrypto passes a context of this operation.
    unsafe { with_context(pointer, entry) }
}

/// Lists parameters; without a context too (`openssl list` asks so).
pub(crate) unsafe extern "C" fn listing<O: DelegatedOperation, const A: usize, const ID: i32>(
    pointer: Ptr,
    _provctx: Ptr,
) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        let functions = inner::algorithm_at(O::inner(context), A).ok()?;
        // SAFETY: libcrypto passes null or a live context of this operation.
        let wrapped = unsafe { pointer.cast::<Wrapped<O>>().as_ref() };
        let inner = wrapped.map_or(std::ptr::null_mut(), |wrapped| wrapped.inner);
        // SAFETY: the listings have this type; they take a live context or null, and the context of the
        // provider whose algorithm this is.
        unsafe { call!(functions, ID, fn(inner => Ptr, context.provctx => Ptr) -> *const Param) }
            .ok()
    })
}

/// Properties of every algorithm, so that `provider=millrace` selects it. An application that names providers itself
/// (stunnel: `provider!=fips`) replaces that part of `default_properties`; `millrace.pool=yes` selects under it, too.
/// OpenSSL requires a dot in names of properties that it does not define.
pub(crate) const PROPERTIES: &CStr = c"provider=millrace,millrace.pool=yes";

/// Properties of what this process computes: `?millrace.local=yes` prefers that, and sends no key to the pool.
pub(crate) const LOCAL_PROPERTIES: &CStr =
    c"provider=millrace,millrace.pool=yes,millrace.local=yes";

/// Properties and description of wrapped algorithms.
pub(super) type Offering = (&'static CStr, &'static CStr);

/// The algorithms that are offered and that the inner provider has, under its names.
pub(super) fn wrapped(
    offered: impl Iterator<Item = bool>,
    inner: &'static [Option<InnerAlgorithm>],
    dispatch: &[fn() -> Rows],
    own: &[i32],
    (properties, description): Offering,
) -> Vec<Algorithm> {
    offered
        .zip(inner)
        .zip(dispatch)
        .filter_map(|((offered, inner), rows)| {
            let inner = inner.as_ref().filter(|_| offered)?;
            Some(Algorithm {
                names: inner.names,
                properties: properties.as_ptr(),
                implementation: StaticTable::leak(table(inner, rows(), own)).as_ptr(),
                description: description.as_ptr(),
            })
        })
        .collect()
}
