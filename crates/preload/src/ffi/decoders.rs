// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keeps the decoders that libcrypto reads private keys and the public keys of certificates with.
//!
//! For each key OpenSSL before 3.2 searches for decoders: it compares each decoder with the names of all key managers,
//! and each with each other. A further provider makes that longer. The searches are two thirds of what a server with
//! 1,000 certificates does at its start, and most of what it does with a client's certificate. From 3.2 on libcrypto
//! keeps the result itself.
//!
//! ```text
//! PEM_read_bio_PrivateKey, ──► OSSL_DECODER_CTX_new_for_pkey ──► kept decoders, or those of a search
//! d2i_X509                     OSSL_DECODER_from_bio         ──► libcrypto's; the key goes to the caller's place
//!   (libcrypto's own)          OSSL_DECODER_CTX_free         ──► they are kept
//! ```
//!
//! Only the search is left out. libcrypto itself reads the file, asks for a password, writes errors and tries its older
//! formats. Decoders are kept by each thread, for the default library context and for one [`generation`]: those for PEM
//! files of any type of key, within libcrypto's reader of such files alone, and those for each type of public key. A
//! libcrypto whose calls do not come here searches as ever.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;

use super::generation;
use super::next::{self, Libcrypto};
use super::program::{is_haproxy, is_nginx};

/// The first OpenSSL that keeps the result of a search.
const OPENSSL_3_2: c_ulong = 0x3020_0000;

/// `EVP_PKEY_KEYPAIR`: what libcrypto asks of a file with a private key.
const KEY_PAIR: c_int = 0x87;
/// `EVP_PKEY_PUBLIC_KEY`: what it asks of the key in a certificate.
const PUBLIC_KEY: c_int = 0x86;

/// Bound on the decoders that a thread keeps: those for PEM files, and for the types of keys that certificates have.
const MAX_KEPT: usize = 8;

/// The purpose of a search for decoders.
#[derive(PartialEq, Eq)]
enum Wanted {
    /// Private keys of any type, in PEM.
    PrivateKey,
    /// Public keys of this type, as libcrypto names it.
    PublicKey(CString),
}

impl Wanted {
    /// The purpose of a search with these arguments, if its decoders can be kept.
    ///
    /// # Safety
    /// The pointers are null or lead to C strings.
    unsafe fn of(
        input: *const c_char,
        structure: *const c_char,
        key_type: *const c_char,
        selection: c_int,
    ) -> Option<Self> {
        // SAFETY: by this function's contract.
        let [input, structure, key_type] = [input, structure, key_type]
            .map(|text| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }));
        match (input?.to_bytes(), structure.map(CStr::to_bytes), key_type, selection) {
            (b"PEM", None, None, KEY_PAIR) => Some(Self::PrivateKey),
            (b"DER", Some(b"SubjectPublicKeyInfo"), Some(key_type), PUBLIC_KEY) => {
                Some(Self::PublicKey(key_type.to_owned()))
            }
            _ => None,
        }
    }
}

/// A decoder context of libcrypto.
struct KeyDecoders {
    wanted: Wanted,
    context: *mut c_void,
    /// Where the context writes a key, as long as it lives; null between two keys.
    place: *mut *mut c_void,
    /// Default library context of the search.
    library: *mut c_void,
    generation: u64,
}

impl Drop for KeyDecoders {
    fn drop(&mut self) {
        if let Some(libcrypto) = next::libcrypto() {
            // SAFETY: a context of libcrypto, or null, which nothing else uses.
            unsafe { (libcrypto.key_files.free_decoders)(self.context) };
            // SAFETY: made by `Box::into_raw`, and the context that knew it is gone.
            drop(unsafe { Box::from_raw(self.place) });
        }
    }
}

/// Decoders that libcrypto uses now, and where it wants the key.
struct Lent {
    decoders: KeyDecoders,
    result: *mut *mut c_void,
}

struct ThreadDecoders {
    /// Whether libcrypto's reader of private keys will ask for decoders.
    reading: bool,
    lent: Vec<Lent>,
    /// The one used last at the end.
    kept: Vec<KeyDecoders>,
}

thread_local! {
    /// Its decoders are freed with the thread, at the end of the program before libcrypto's own.
    static DECODERS: RefCell<ThreadDecoders> = const {
        RefCell::new(ThreadDecoders { reading: false, lent: Vec::new(), kept: Vec::new() })
    };
}

/// Works on the state of this thread, without calls of libcrypto. `None` at the end of the thread.
fn with_state<T>(work: impl FnOnce(&mut ThreadDecoders) -> T) -> Option<T> {
    DECODERS.try_with(|state| state.try_borrow_mut().ok().map(|mut state| work(&mut state))).ok()?
}

/// Drops the decoders that this thread keeps.
pub(super) fn forget() {
    if is_nginx() || is_haproxy() {
        drop(with_state(|state| mem::take(&mut state.kept)));
    }
}

/// Whether this libcrypto searches for each file anew, in a server that reads many, and all its calls come here: no
/// other library stands before this one.
fn are_worth_keeping(libcrypto: &Libcrypto) -> bool {
    static ARE: OnceLock<bool> = OnceLock::new();
    (is_nginx() || is_haproxy())
        && *ARE.get_or_init(|| {
            // SAFETY: takes nothing.
            let version = unsafe { (libcrypto.key_files.version)() };
            let calls = [
                c"OSSL_DECODER_CTX_new_for_pkey",
                c"OSSL_DECODER_from_bio",
                c"OSSL_DECODER_CTX_free",
            ];
            version < OPENSSL_3_2 && calls.into_iter().all(next::is_ours)
        })
}

/// Interposed: the search within may be left out.
///
/// # Safety
/// As for `PEM_read_bio_PrivateKey_ex(3)`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn PEM_read_bio_PrivateKey_ex(
    bio: *mut c_void,
    key: *mut *mut c_void,
    callback: *const c_void,
    argument: *mut c_void,
    library: *mut c_void,
    properties: *const c_char,
) -> *mut c_void {
    let Some(libcrypto) = next::libcrypto() else {
        return ptr::null_mut();
    };
    let read = libcrypto.key_files.read_private_key;
    // SAFETY: forwarded unchanged.
    let forward = || unsafe { read(bio, key, callback, argument, library, properties) };
    if !are_worth_keeping(libcrypto) {
        return forward();
    }
    // A callback for a password may read another key.
    let before = with_state(|state| mem::replace(&mut state.reading, true));
    let result = forward();
    let _ = with_state(|state| state.reading = before == Some(true));
    result
}

/// Interposed: gives libcrypto the kept decoders.
///
/// # Safety
/// As for `OSSL_DECODER_CTX_new_for_pkey(3)`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn OSSL_DECODER_CTX_new_for_pkey(
    result: *mut *mut c_void,
    input: *const c_char,
    structure: *const c_char,
    key_type: *const c_char,
    selection: c_int,
    library: *mut c_void,
    properties: *const c_char,
) -> *mut c_void {
    let Some(libcrypto) = next::libcrypto() else {
        return ptr::null_mut();
    };
    // SAFETY: forwarded, with a place for the key.
    let search = |place| unsafe {
        let new = libcrypto.key_files.new_decoders;
        new(place, input, structure, key_type, selection, library, properties)
    };
    let is_default = library.is_null() && properties.is_null();
    let wanted = if is_default && are_worth_keeping(libcrypto) {
        // SAFETY: null or C strings, by this function's contract.
        unsafe { Wanted::of(input, structure, key_type, selection) }
    } else {
        None
    };
    let kept = wanted.and_then(|wanted| {
        with_state(|state| {
            if wanted == Wanted::PrivateKey && !mem::replace(&mut state.reading, false) {
                return None;
            }
            let place = state.kept.iter().position(|kept| kept.wanted == wanted);
            Some((wanted, place.map(|place| state.kept.remove(place))))
        })?
    });
    let Some((wanted, kept)) = kept else {
        return search(result);
    };
    let generation = generation::current();
    // SAFETY: null changes nothing; the result is the context in use.
    let library = unsafe { (libcrypto.set_default)(ptr::null_mut()) };
    let is_valid = |kept: &KeyDecoders| (kept.generation, kept.library) == (generation, library);
    let decoders = kept.filter(is_valid).unwrap_or_else(|| {
        let place = Box::into_raw(Box::new(ptr::null_mut()));
        KeyDecoders { wanted, context: search(place), place, library, generation }
    });
    let context = decoders.context;
    if !context.is_null() {
        let _ = with_state(|state| state.lent.push(Lent { decoders, result }));
    }
    context
}

/// Interposed: a key of the kept decoders goes where their user wants it.
///
/// # Safety
/// As for `OSSL_DECODER_from_bio(3)`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn OSSL_DECODER_from_bio(
    context: *mut c_void,
    bio: *mut c_void,
) -> c_int {
    let Some(libcrypto) = next::libcrypto() else {
        return 0;
    };
    // SAFETY: forwarded unchanged.
    let forward = || unsafe { (libcrypto.key_files.decode)(context, bio) };
    let places = with_state(|state| {
        let lent = state.lent.iter().find(|lent| lent.decoders.context == context)?;
        Some((lent.decoders.place, lent.result))
    });
    let Some(Some((place, result))) = places else {
        return forward();
    };
    // SAFETY: the context has its place as long as it lives, and `result` is libcrypto's own variable.
    unsafe { place.write(result.read()) };
    let status = forward();
    // SAFETY: as above; libcrypto frees the context after this call.
    unsafe { result.write(place.replace(ptr::null_mut())) };
    status
}

/// Interposed: the kept decoders stay.
///
/// # Safety
/// As for `OSSL_DECODER_CTX_free(3)`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn OSSL_DECODER_CTX_free(context: *mut c_void) {
    let Some(libcrypto) = next::libcrypto() else {
        return;
    };
    let taken = with_state(|state| {
        let place = state.lent.iter().position(|lent| lent.decoders.context == context)?;
        Some(state.lent.remove(place))
    });
    let Some(Some(Lent { decoders, result })) = taken else {
        // SAFETY: forwarded unchanged.
        return unsafe { (libcrypto.key_files.free_decoders)(context) };
    };
    // SAFETY: the context has its place as long as it lives.
    let key = unsafe { decoders.place.replace(ptr::null_mut()) };
    // A compiler may have put `OSSL_DECODER_from_bio` into its caller, so that the key has not passed it.
    if !key.is_null() {
        // SAFETY: libcrypto's own variable, which it looks at after this call.
        unsafe { result.write(key) };
    }
    // The callback of this file, and what it may have answered, are forgotten.
    let set_password = libcrypto.key_files.set_password;
    // SAFETY: a context that nothing else uses, and a callback that takes anything.
    let forgotten = unsafe { set_password(context, no_password, ptr::null_mut()) };
    if forgotten == 1 && generation::is_current(decoders.generation) {
        drop(with_state(|state| {
            state.kept.push(decoders);
            (state.kept.len() > MAX_KEPT).then(|| state.kept.remove(0))
        }));
    }
}

extern "C" fn no_password(_: *mut c_char, _: c_int, _: c_int, _: *mut c_void) -> c_int {
    -1
}
