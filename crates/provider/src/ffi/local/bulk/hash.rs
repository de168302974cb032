// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Digests and HMAC. A message is kept until its end, where its length is known. OpenSSL gets a message that is too
//! short for the kernel then, and one that is too long as soon as it is.

use std::ffi::{CStr, c_int};

use millrace_kernel_crypto::MAX_MESSAGE;
use zeroize::Zeroizing;

use super::super::entries::{context_listing, dupctx, hash_final, hash_update, listing, newctx};
use super::*;
use crate::algorithms::kernel_hmac;
use crate::bulk::{BulkAttempt, KernelKey};
use crate::ffi::delegate::dispatch;
use crate::ffi::handle::{free, with_context};
use crate::ffi::inner::succeeded;
use crate::ffi::memory::{bytes, write_len};
use crate::ffi::params::{octets, text};

/// The numbers of an operation's functions.
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub(super) new: i32,
    pub(super) free: i32,
    duplicate: i32,
    pub(super) update: i32,
    pub(super) finish: i32,
}

pub(super) const DIGEST: Numbers = Numbers {
    new: ids::digest::NEWCTX,
    free: ids::digest::FREECTX,
    duplicate: ids::digest::DUPCTX,
    update: ids::digest::UPDATE,
    finish: ids::digest::FINAL,
};
pub(super) const MAC: Numbers = Numbers {
    new: ids::mac::NEWCTX,
    free: ids::mac::FREECTX,
    duplicate: ids::mac::DUPCTX,
    update: ids::mac::UPDATE,
    finish: ids::mac::FINAL,
};

/// The context of a digest or an HMAC.
pub(super) struct BulkHash {
    provider: &'static Provider,
    inner: Inner,
    numbers: Numbers,
    key: KernelKey,
    /// The kernel has the digest of this HMAC, and the settings are those that it knows.
    is_known: bool,
    /// The message so far. `None` if OpenSSL has it.
    kept: Option<Zeroizing<Vec<u8>>>,
}

owned!(BulkHash);

pub(super) fn mac_rows<const A: usize>() -> Rows {
    let mut rows = dispatch! { mac {
        NEWCTX              => newctx<BulkHash, A>;
        INIT                => mac_init<>;
        UPDATE              => hash_update<BulkHash>;
        FINAL               => hash_final<BulkHash>;
        FREECTX             => free<BulkHash>;
        DUPCTX              => dupctx<BulkHash>;
        GET_CTX_PARAMS      => get_params<>;
        SET_CTX_PARAMS      => set_params<>;
        GETTABLE_PARAMS     => listing<BulkHash, A>;
        GETTABLE_CTX_PARAMS => context_listing<BulkHash, A>;
        SETTABLE_CTX_PARAMS => context_listing<BulkHash, A>;
    } };
    // Takes no context: OpenSSL's own function answers.
    rows.push((ids::mac::GET_PARAMS, std::ptr::null()));
    rows
}

impl Computing for BulkHash {
    fn algorithms(context: &'static InnerContext) -> &'static [Option<InnerAlgorithm>] {
        &context.bulk
    }

    fn make(provider: &'static Provider, algorithm: usize) -> Result<Self> {
        let algorithm = Bulk::ALL[algorithm];
        let row = algorithm.row();
        let is_digest = row.form == BulkForm::Digest;
        let numbers = if is_digest { DIGEST } else { MAC };
        let mut key = KernelKey::new(routes(provider)?, row.kernel);
        if is_digest {
            key.set(&[]);
        }
        let inner = Inner::new(algorithm, numbers.new, numbers.free)?;
        Ok(Self { provider, inner, numbers, key, is_known: is_digest, kept: None })
    }

    fn copy(&mut self) -> Result<Self> {
        let inner = self.inner.copy(self.numbers.duplicate)?;
        let key = self.key.copy();
        let Self { provider, numbers, is_known, .. } = *self;
        Ok(Self { provider, inner, numbers, key, is_known, kept: self.kept.clone() })
    }
}

impl HashContext for BulkHash {
    unsafe fn start(&mut self, id: i32, settings: *const Param) -> Result<c_int> {
        // SAFETY: `digest_init` takes a context and parameters, which are libcrypto's.
        let status = unsafe { self.inner.params(id, settings) }?;
        // SAFETY: by this function's contract. A digest has no parameters that the kernel needs.
        self.is_known = unsafe { entries(settings) }.next().is_none();
        self.begin();
        Ok(status)
    }

    unsafe fn update(&mut self, start: *const u8, len: usize) -> Result<c_int> {
        if let Some(kept) = &mut self.kept {
            if kept.len() + len <= MAX_MESSAGE {
                grow(kept, len);
                // SAFETY: by this function's contract.
                kept.extend_from_slice(unsafe { bytes(start, len) });
                return Ok(DONE);
            }
            self.yield_to_openssl()?;
        }
        // SAFETY: by this function's contract.
        unsafe { self.inner.hash(self.numbers.update, start, len) }
    }

    unsafe fn finish(&mut self, out: *mut u8, out_len: *mut usize, room: usize) -> Result<c_int> {
        // SAFETY: by this function's contract.
        if let Some(len) = unsafe { self.by_kernel(out, room) } {
            self.kept = None;
            // SAFETY: by this function's contract.
            unsafe { write_len(out_len, len) };
            return Ok(DONE);
        }
        self.yield_to_openssl()?;
        // SAFETY: by this function's contract.
        unsafe { self.inner.finish(self.numbers.finish, out, out_len, room) }
    }
}

impl BulkHash {
    /// Begins a message.
    fn begin(&mut self) {
        self.kept = (self.is_known && self.key.may_take()).then(Zeroizing::default);
    }

    /// Gives OpenSSL what was kept.
    fn yield_to_openssl(&mut self) -> Result<()> {
        let Some(kept) = self.kept.take().filter(|kept| !kept.is_empty()) else {
            return Ok(());
        };
        // SAFETY: the bytes of a slice.
        succeeded(unsafe { self.inner.hash(self.numbers.update, kept.as_ptr(), kept.len()) }?)
    }

    /// Has the kernel hash what was kept; returns the length of the result.
    ///
    /// # Safety
    /// `out` is null or writable for `room` bytes.
    unsafe fn by_kernel(&mut self, out: *mut u8, room: usize) -> Option<usize> {
        let message = self.kept.as_ref().filter(|kept| self.key.takes(kept.len()))?;
        let len = self.key.hash_len()?;
        if out.is_null() || room < len {
            return None;
        }
        let mut result = Zeroizing::new([0; 64]);
        let result = &mut result[..len];
        let outcome = self.key.run(check::known(), |session| session.hash(message, result));
        if let BulkAttempt::Failed(error) = &outcome {
            note_failure(self.provider, error);
        }
        if !matches!(outcome, BulkAttempt::Done(())) {
            return None;
        }
        self.provider.stats.kernel_bulk.add();
        // SAFETY: not null, and `room` is at least the length of the result, by this function's contract.
        unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), out, len) };
        Some(len)
    }

    /// # Safety
    /// `settings` is null or an array that a null key ends.
    unsafe fn note(&mut self, settings: *const Param) {
        // SAFETY: by this function's contract.
        for param in unsafe { entries(settings) } {
            // SAFETY: the key of an entry is a C string.
            match unsafe { CStr::from_ptr(param.key) }.to_bytes() {
                b"digest" => {
                    // SAFETY: by this function's contract.
                    let kernel = unsafe { text(param) }.and_then(kernel_hmac);
                    self.is_known = kernel.is_some();
                    if let Some(kernel) = kernel {
                        self.key.set_algorithm(kernel);
                    }
                }
                b"key" => {
                    // SAFETY: by this function's contract.
                    self.key.set(unsafe { octets(param) }.unwrap_or_default());
                }
                b"properties" | b"digest-noinit" | b"digest-oneshot" => {}
                // The length of a record of TLS, and what a later OpenSSL has.
                _ => self.is_known = false,
            }
        }
    }
}

/// Makes room for more bytes in a message. The former place is wiped, which `Vec` alone would not do.
fn grow(kept: &mut Zeroizing<Vec<u8>>, len: usize) {
    let needed = kept.len() + len;
    if kept.capacity() < needed {
        let mut larger = Zeroizing::new(Vec::with_capacity(needed.next_power_of_two().max(2048)));
        larger.extend_from_slice(kept);
        *kept = larger;
    }
}

unsafe extern "C" fn mac_init<const ID: i32>(
    pointer: Ptr,
    key: *const u8,
    key_len: usize,
    settings: *const Param,
) -> c_int {
    let entry = |context: &mut BulkHash| {
        // SAFETY: libcrypto passes null or a key with its length, and null or an array of parameters with its end.
        let status = unsafe { context.inner.start_mac(key, key_len, settings) }?;
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        unsafe { context.note(settings) };
        if !key.is_null() {
            // SAFETY: not null, and libcrypto passes readable bytes with their length.
            context.key.set(unsafe { bytes(key, key_len) });
        }
        context.begin();
        Ok(status)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn set_params<const ID: i32>(pointer: Ptr, settings: *const Param) -> c_int {
    let entry = |context: &mut BulkHash| {
        context.yield_to_openssl()?;
        // SAFETY: libcrypto's parameters for this function.
        let status = unsafe { context.inner.params(ID, settings) }?;
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        unsafe { context.note(settings) };
        Ok(status)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn get_params<const ID: i32>(pointer: Ptr, request: *mut Param) -> c_int {
    // SAFETY: libcrypto passes a context of this table, and parameters for this function.
    unsafe { with_context(pointer, |context: &mut BulkHash| context.inner.params(ID, request)) }
}
