// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Answers `EVP_PKEY_digestsign_supports_digest` from what libcrypto has said before. libssl asks it in every
//! handshake for the key of the certificate, and libcrypto starts a signature to find out.
//!
//! The answers are kept while the fetch cache is on, whose generations say when an answer may have changed. A kept
//! answer has a reference to its key, so that no other key gets its address.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};

use super::fetch;
use super::next::{self, Libcrypto};
use crate::answers::{DigestAnswers, DigestQuestion};

/// Functions of libcrypto for keys.
pub(super) struct KeyCalls {
    pub(super) supports_digest: SupportsDigest,
    pub(super) up_ref: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) free: unsafe extern "C" fn(*mut c_void),
}

/// `EVP_PKEY_digestsign_supports_digest`
pub(super) type SupportsDigest =
    unsafe extern "C" fn(*mut c_void, *mut c_void, *const c_char, *const c_char) -> c_int;

/// Result of libcrypto if it could not find out.
const UNKNOWN: c_int = -1;

/// The answers of a thread; their references are given back with the thread.
struct Kept(DigestAnswers);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(libcrypto) = next::libcrypto() {
            self.give_back(libcrypto, 0);
        }
    }
}

impl Kept {
    fn give_back(&mut self, libcrypto: &Libcrypto, generation: u64) {
        for key in self.0.stale(generation) {
            // SAFETY: the reference that was taken for this answer.
            unsafe { (libcrypto.keys.free)(key as *mut c_void) };
        }
    }
}

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept(DigestAnswers::EMPTY)) };
}

/// Gives the references of this thread back: an answer of another generation is of no use.
pub(super) fn renew(generation: u64) {
    let Some(libcrypto) = next::libcrypto() else {
        return;
    };
    // At the end of a thread the answers are gone.
    let _ = KEPT.try_with(|kept| {
        if let Ok(mut kept) = kept.try_borrow_mut() {
            kept.give_back(libcrypto, generation);
        }
    });
}

/// # Safety
/// `text` is null or a C string that lives for `'a`.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: by this function's contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// Interposed: answered from what is known.
///
/// # Safety
/// As for the function of this name in libcrypto.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn EVP_PKEY_digestsign_supports_digest(
    key: *mut c_void,
    context: *mut c_void,
    digest: *const c_char,
    properties: *const c_char,
) -> c_int {
    let Some(libcrypto) = next::libcrypto() else {
        return UNKNOWN;
    };
    // SAFETY: forwarded unchanged.
    let forward = || unsafe { (libcrypto.keys.supports_digest)(key, context, digest, properties) };
    let Some(generation) = fetch::generation_of(context).filter(|_| !key.is_null()) else {
        return forward();
    };
    let question = DigestQuestion {
        key: key as usize,
        // SAFETY: null or C strings, by this function's contract.
        digest: unsafe { text(digest) },
        // SAFETY: as above.
        properties: unsafe { text(properties) },
    };
    let ask = |kept: &RefCell<Kept>| {
        let mut kept = kept.try_borrow_mut().ok()?;
        let answer = kept.0.find(generation, question)?;
        if kept.0.is_due() {
            kept.give_back(libcrypto, generation);
        }
        Some(answer)
    };
    // At the end of a thread the answers are gone.
    if let Some(answer) = KEPT.try_with(ask).ok().flatten() {
        return answer;
    }
    let answer = forward();
    let keep = |kept: &RefCell<Kept>| {
        let Ok(mut kept) = kept.try_borrow_mut() else {
            return;
        };
        kept.give_back(libcrypto, generation);
        // The call may have loaded a provider.
        let current = fetch::generation_of(context) == Some(generation);
        if answer == UNKNOWN || !current || !kept.0.has_room(question) {
            return;
        }
        // SAFETY: a key that the caller has a reference to.
        if unsafe { (libcrypto.keys.up_ref)(key) } == 1 {
            kept.0.insert(question, answer);
        }
    };
    let _ = KEPT.try_with(keep);
    answer
}
