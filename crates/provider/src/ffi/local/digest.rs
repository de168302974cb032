// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The digests of the SHA-2 family, for a libcrypto that was built without assembly. Everything that applications ask
//! of a digest (its sizes and flags) is OpenSSL's own answer.

use std::ffi::c_int;

use super::DONE;
use super::entries::{Computing, HashContext, digest_rows};
use crate::algorithms::{Sha2, each_sha2};
use crate::error::{Error, Reason, Result};
use crate::ffi::delegate::Rows;
use crate::ffi::handle::owned;
use crate::ffi::ids;
use crate::ffi::inner::{self, InnerAlgorithm, InnerContext, call, succeeded};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::memory::{bytes, write_len};
use crate::ffi::state::Provider;
use crate::ffi::types::Param;
use crate::local::Digesting;

/// The rows of each digest's dispatch table.
pub(super) const DISPATCH: [fn() -> Rows; Sha2::ALL.len()] = each_sha2!(rows);

fn rows<const A: usize>() -> Rows {
    digest_rows::<Hashing, A>()
}

/// The context of a digest.
struct Hashing {
    provider: &'static Provider,
    kind: Sha2,
    /// `None` before the first initialisation, and after the end.
    state: Option<Digesting>,
}

owned!(Hashing);

impl Computing for Hashing {
    fn algorithms(context: &'static InnerContext) -> &'static [Option<InnerAlgorithm>] {
        &context.sha2
    }

    fn make(provider: &'static Provider, algorithm: usize) -> Result<Self> {
        Ok(Self { provider, kind: Sha2::ALL[algorithm], state: None })
    }

    fn copy(&mut self) -> Result<Self> {
        let state = self.state.as_ref().map(Digesting::copy);
        Ok(Self { provider: self.provider, kind: self.kind, state })
    }
}

impl HashContext for Hashing {
    unsafe fn start(&mut self, _: i32, _: *const Param) -> Result<c_int> {
        self.state = Some(Digesting::new(self.kind));
        Ok(DONE)
    }

    unsafe fn update(&mut self, data: *const u8, len: usize) -> Result<c_int> {
        let state = self.state.as_mut().ok_or_else(not_started)?;
        // SAFETY: by this function's contract.
        state.update(unsafe { bytes(data, len) });
        Ok(DONE)
    }

    unsafe fn finish(&mut self, out: *mut u8, out_len: *mut usize, room: usize) -> Result<c_int> {
        let row = self.kind.row();
        if out.is_null() || room < row.len {
            return Err(Error::new(Reason::Buffer, "the buffer is shorter than the digest"));
        }
        let result = self.state.as_mut().ok_or_else(not_started)?.finish();
        // Wiped where it is: moved, it would leave a copy behind.
        self.state = None;
        // SAFETY: not null, and `room` bytes are enough, by this function's contract.
        unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), out, row.len) };
        // SAFETY: by this function's contract.
        unsafe { write_len(out_len, row.len) };
        self.provider.stats.served_locally(row.primitive);
        Ok(DONE)
    }
}

fn not_started() -> Error {
    Error::new(Reason::Message, "the digest was not started")
}

/// A message like a record, to be measured by AWS-LC and by the installed OpenSSL.
pub(super) struct DigestSample {
    kind: Sha2,
    context: &'static InnerContext,
    theirs: &'static InnerAlgorithm,
    message: Vec<u8>,
}

impl DigestSample {
    pub(super) fn new(kind: Sha2, len: usize) -> Result<Self> {
        let context = inner::context()?;
        let theirs = inner::algorithm_at(&context.sha2, kind as usize)?;
        Ok(Self { kind, context, theirs, message: vec![0x5a; len] })
    }

    pub(super) fn digest_local(&self) -> Result<()> {
        let mut state = Digesting::new(self.kind);
        state.update(&self.message);
        std::hint::black_box(state.finish());
        Ok(())
    }

    pub(super) fn digest_openssl(&self) -> Result<()> {
        let provctx = self.context.provctx;
        // SAFETY: `digest_newctx` takes the context of the provider whose algorithm this is.
        let hash = unsafe { call!(self.theirs, ids::digest::NEWCTX, fn(provctx => Ptr) -> Ptr) }?;
        if hash.is_null() {
            return Err(Error::library());
        }
        let done = self.hash_openssl(hash);
        // SAFETY: takes the context made above, which is not used again.
        let freed = unsafe { call!(self.theirs, ids::digest::FREECTX, fn(hash => Ptr) -> ()) };
        done.and(freed)
    }

    fn hash_openssl(&self, hash: Ptr) -> Result<()> {
        let none: *const Param = std::ptr::null();
        // SAFETY: `digest_init` takes a live context and no parameters.
        succeeded(unsafe {
            call!(self.theirs, ids::digest::INIT, fn(hash => Ptr, none => *const Param) -> c_int)
        }?)?;
        let start = self.message.as_ptr();
        let len = self.message.len();
        // SAFETY: `digest_update` takes a live context, and bytes with their length.
        succeeded(unsafe {
            call!(self.theirs, ids::digest::UPDATE,
                fn(hash => Ptr, start => *const u8, len => usize) -> c_int)
        }?)?;
        let mut out = [0_u8; 64];
        let mut written = 0;
        let start = out.as_mut_ptr();
        let written = &raw mut written;
        let room = out.len();
        // SAFETY: `digest_final` takes a live context, a buffer with its length, and a place for that of the result.
        succeeded(unsafe {
            call!(self.theirs, ids::digest::FINAL,
                fn(hash => Ptr, start => *mut u8, written => *mut usize, room => usize) -> c_int)
        }?)
    }
}
