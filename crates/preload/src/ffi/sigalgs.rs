// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Answers `EVP_PKEY_digestsign_supports_digest` from what libcrypto has said before. libssl asks it in every
//! handshake for the key of the certificate, and libcrypto starts a signature to find out.
//!
//! The answers are kept while the fetch cache is on, whose generations say when an answer may have changed. A kept
//! answer has a reference to its key, so that no other key gets its address.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};

use super::generation;
use super::next::{self, Libcrypto};
use crate::answers::{DigestAnswers, DigestQuestion};

/// Result of libcrypto if it could not find out.
const UNKNOWN: c_int = -1;

/// The answers of a thread; their references are given back with the thread.
struct ThreadAnswers(DigestAnswers);

impl Drop for ThreadAnswers {
    fn drop(&mut self) {
        if let Some(libcrypto) = next::libcrypto() {
            self.give_back(libcrypto, 0);
        }
    }
}

impl ThreadAnswers {
    fn give_back(&mut self, libcrypto: &Libcrypto, generation: u64) {
        for key in self.0.stale(generation) {
            // SAFETY: the reference that was taken for this answer.
            unsafe { (libcrypto.keys.free)(key as *mut c_void) };
        }
    }
}

thread_local! {
    static ANSWERS: RefCell<ThreadAnswers> =
        const { RefCell::new(ThreadAnswers(DigestAnswers::EMPTY)) };
}

/// Gives the references of this thread back: an answer of another generation is of no use.
pub(super) fn renew(generation: u64) {
    let Some(libcrypto) = next::libcrypto() else {
        return;
    };
    // At the end of a thread the answers are gone.
    let _ = ANSWERS.try_with(|answers| {
        if let Ok(mut answers) = answers.try_borrow_mut() {
            answers.give_back(libcrypto, generation);
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
    let Some(generation) = generation::of(context).filter(|_| !key.is_null()) else {
        return forward();
    };
    let question = DigestQuestion {
        key: key as usize,
        // SAFETY: null or C strings, by this function's contract.
        digest: unsafe { text(digest) },
        // SAFETY: as above.
        properties: unsafe { text(properties) },
    };
    // At the end of a thread the answers are gone.
    let known = ANSWERS.try_with(|answers| {
        let mut answers = answers.try_borrow_mut().ok()?;
        let answer = answers.0.find(generation, question)?;
        if answers.0.is_due() {
            answers.give_back(libcrypto, generation);
        }
        Some(answer)
    });
    if let Ok(Some(answer)) = known {
        return answer;
    }
    let answer = forward();
    let _ = ANSWERS.try_with(|answers| {
        let Ok(mut answers) = answers.try_borrow_mut() else {
            return;
        };
        answers.give_back(libcrypto, generation);
        // The call may have loaded a provider.
        let current = generation::of(context) == Some(generation);
        if answer == UNKNOWN || !current || !answers.0.has_room(question) {
            return;
        }
        // SAFETY: a key that the caller has a reference to.
        if unsafe { (libcrypto.keys.up_ref)(key) } == 1 {
            answers.0.insert(question, answer);
        }
    });
    answer
}
