// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The digests of the SHA-2 family, for a libcrypto that was built without assembly. Everything that applications ask
//! of a digest (its sizes and flags) is OpenSSL's own answer.

use std::ffi::c_int;

use super::{DONE, Owned, give, with};
use crate::algorithms::{Sha2, each_sha2};
use crate::error::{Error, Reason, Result};
use crate::ffi::core::guard_bare;
use crate::ffi::delegate::{Failure, Rows, dispatch, free};
use crate::ffi::ids;
use crate::ffi::inner::{self, InnerAlgorithm, InnerContext, call};
use crate::ffi::key::succeeded;
use crate::ffi::libcrypto::Ptr;
use crate::ffi::private::bytes;
use crate::ffi::state::{Provider, guard};
use crate::ffi::types::Param;
use crate::local::Digesting;

/// The rows of each digest's dispatch table.
pub(super) const DISPATCH: [fn() -> Rows; Sha2::ALL.len()] = each_sha2!(rows);

#[rustfmt::skip]
fn rows<const A: usize>() -> Rows {
    let mut rows = dispatch! { digest {
        NEWCTX          => newctx<A>;
        INIT            => init<>;
        UPDATE          => update<>;
        FINAL           => finish<>;
        FREECTX         => free<Hashing>;
        DUPCTX          => dupctx<>;
        COPYCTX         => copyctx<>;
        GETTABLE_PARAMS => listing<A>;
    } };
    // Without a context and without ours in it: OpenSSL's own function answers.
    rows.push((ids::digest::GET_PARAMS, std::ptr::null()));
    rows
}

/// A digest in OpenSSL's hands.
struct Hashing {
    provider: &'static Provider,
    kind: Sha2,
    /// None before the first initialisation, and after the end.
    state: Option<Digesting>,
}

impl Owned for Hashing {
    fn provider(&self) -> &'static Provider {
        self.provider
    }
}

impl Hashing {
    fn copy(&self) -> Self {
        let state = self.state.as_ref().map(Digesting::copy);
        Self { provider: self.provider, kind: self.kind, state }
    }
}

fn not_started() -> Error {
    Error::new(Reason::Message, "the digest was not started")
}

unsafe extern "C" fn newctx<const A: usize, const ID: i32>(provctx: Ptr) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || Ok(give(Hashing { provider, kind: Sha2::ALL[A], state: None })))
}

unsafe extern "C" fn dupctx<const ID: i32>(pointer: Ptr) -> Ptr {
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, |hashing: &mut Hashing| Ok(give(hashing.copy()))) }
}

unsafe extern "C" fn copyctx<const ID: i32>(to: Ptr, from: Ptr) {
    // SAFETY: libcrypto passes a context of the same table, which nothing changes during the call.
    let Some(from) = (unsafe { from.cast::<Hashing>().as_ref() }) else {
        return;
    };
    let entry = |hashing: &mut Hashing| {
        *hashing = from.copy();
        Ok(DONE)
    };
    // SAFETY: libcrypto passes another context of this table.
    let _: c_int = unsafe { with(to, entry) };
}

unsafe extern "C" fn init<const ID: i32>(pointer: Ptr, _settings: *const Param) -> c_int {
    let entry = |hashing: &mut Hashing| {
        hashing.state = Some(Digesting::new(hashing.kind));
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, entry) }
}

unsafe extern "C" fn update<const ID: i32>(pointer: Ptr, data: *const u8, len: usize) -> c_int {
    let entry = |hashing: &mut Hashing| {
        let state = hashing.state.as_mut().ok_or_else(not_started)?;
        // SAFETY: libcrypto passes `len` readable bytes, which nothing changes during the call.
        state.update(unsafe { bytes(data, len) });
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, entry) }
}

unsafe extern "C" fn finish<const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
) -> c_int {
    let entry = |hashing: &mut Hashing| {
        let row = hashing.kind.row();
        if out.is_null() || room < row.len {
            return Err(Error::new(Reason::Buffer, "the buffer is shorter than the digest"));
        }
        let result = hashing.state.as_mut().ok_or_else(not_started)?.finish();
        // Wiped where it is: moved, it would leave a copy behind.
        hashing.state = None;
        // SAFETY: not null, and libcrypto passes a writable buffer of `room` bytes, which are enough.
        unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), out, row.len) };
        // SAFETY: libcrypto passes null or a place for the length.
        if let Some(out_len) = unsafe { out_len.as_mut() } {
            *out_len = row.len;
        }
        hashing.provider.stats.served_here(row.primitive);
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, entry) }
}

unsafe extern "C" fn listing<const A: usize, const ID: i32>(_provctx: Ptr) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        let functions = inner::algorithm_at(&context.sha2, A).ok()?;
        // SAFETY: the listing takes the context of the provider whose algorithm this is.
        unsafe { call!(functions, ID, fn(context.provctx => Ptr) -> *const Param) }.ok()
    })
}

/// A message like a record, to be measured.
pub(super) struct DigestSample {
    kind: Sha2,
    context: &'static InnerContext,
    theirs: &'static InnerAlgorithm,
    message: Vec<u8>,
}

impl DigestSample {
    /// # Errors
    /// If this OpenSSL does not have the digest.
    pub(super) fn new(kind: Sha2, len: usize) -> Result<Self> {
        let context = inner::context()?;
        let theirs = inner::algorithm_at(&context.sha2, kind as usize)?;
        Ok(Self { kind, context, theirs, message: vec![0x5a; len] })
    }

    pub(super) fn digest_here(&self) -> Result<()> {
        let mut state = Digesting::new(self.kind);
        state.update(&self.message);
        std::hint::black_box(state.finish());
        Ok(())
    }

    pub(super) fn digest_there(&self) -> Result<()> {
        let provctx = self.context.provctx;
        // SAFETY: `digest_newctx` takes the context of the provider whose algorithm this is.
        let hash = unsafe { call!(self.theirs, ids::digest::NEWCTX, fn(provctx => Ptr) -> Ptr) }?;
        if hash.is_null() {
            return Err(Error::library());
        }
        let done = self.hash_there(hash);
        // SAFETY: takes the context made above, which is not used again.
        let freed = unsafe { call!(self.theirs, ids::digest::FREECTX, fn(hash => Ptr) -> ()) };
        done.and(freed)
    }

    fn hash_there(&self, hash: Ptr) -> Result<()> {
        let none: *const Param = std::ptr::null();
        // SAFETY: `digest_init` takes a live context and no parameters.
        succeeded(unsafe {
            call!(self.theirs, ids::digest::INIT, fn(hash => Ptr, none => *const Param) -> c_int)
        }?)?;
        let (start, len) = (self.message.as_ptr(), self.message.len());
        // SAFETY: `digest_update` takes a live context, and bytes with their length.
        succeeded(unsafe {
            call!(self.theirs, ids::digest::UPDATE,
                fn(hash => Ptr, start => *const u8, len => usize) -> c_int)
        }?)?;
        let mut out = [0_u8; 64];
        let mut written = 0;
        let (start, written, room) = (out.as_mut_ptr(), &raw mut written, out.len());
        // SAFETY: `digest_final` takes a live context, a buffer with its length, and a place for that of the result.
        succeeded(unsafe {
            call!(self.theirs, ids::digest::FINAL,
                fn(hash => Ptr, start => *mut u8, written => *mut usize, room => usize) -> c_int)
        }?)
    }
}
