// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Decoders for `MILLRACE KEY` stubs: PEM to DER, and DER to a key object of its type.
//!
//! They stand beside OpenSSL's own in every load of a key file, so whatever is not a stub is "carry on"
//! (1), never an error; and a PEM block of somebody else is consumed whole, as OpenSSL's decoder does,
//! because the loader goes on from where the last decoder stopped. No connection is made: a stub
//! has the public half.

use std::ffi::{CStr, c_int, c_void};

use millrace_client::stub::{self, MAX_PEM_LEN, MAX_STUB_LEN, Stub};

use super::core::{guard, guard_bare};
use super::inner::Context;
use super::key::{Key, algorithm_name};
use super::libcrypto::Ptr;
use super::provider::{Provider, key_names};
use super::types::{Algorithm, Callback, Dispatch, Param, Table};
use super::{ids, key};
use crate::config::ALGORITHMS;
use crate::error::Result;

type Passphrase = *const c_void;

/// "Not mine": the next decoder is tried.
const CARRY_ON: c_int = 1;

/// Structure of the DER in a stub.
const STRUCTURE: &CStr = c"millrace";

/// Longest line that is read at once; longer ones come in pieces.
const LINE: usize = 1024;

/// Bound on what is read in search of a PEM block: certificate bundles of system size fit.
const MAX_SEARCH: usize = 16 * 1024 * 1024;

/// A decoder.
struct Decoder {
    provider: &'static Provider,
}

/// The decoders: PEM to DER, and DER to each key type that is offered.
pub(crate) fn algorithms(context: &Context, offered: impl Fn(&str) -> bool) -> Table<Algorithm> {
    let mut entries = vec![Algorithm {
        names: c"DER".as_ptr(),
        properties: c"provider=millrace,input=pem".as_ptr(),
        implementation: table(decode_pem),
        description: c"PEM stub of a key in the Millrace pool".as_ptr(),
    }];
    for (algorithm, name) in ALGORITHMS.iter().enumerate() {
        let decode = DECODERS.get(algorithm).copied();
        if let (true, Some(names), Some(decode)) =
            (offered(name), key_names(context, algorithm), decode)
        {
            entries.push(Algorithm {
                names,
                properties: c"provider=millrace,input=der,structure=millrace".as_ptr(),
                implementation: table(decode),
                description: c"stub of a key in the Millrace pool".as_ptr(),
            });
        }
    }
    entries.push(Algorithm::END);
    Table::leak(entries)
}

type Decode =
    unsafe extern "C" fn(Ptr, Ptr, c_int, Callback, *mut c_void, Passphrase, *mut c_void) -> c_int;

const DECODERS: [Decode; ALGORITHMS.len()] = [
    decode_der::<0>,
    decode_der::<1>,
    decode_der::<2>,
    decode_der::<3>,
    decode_der::<4>,
    decode_der::<5>,
    decode_der::<6>,
    decode_der::<7>,
    decode_der::<8>,
    decode_der::<9>,
];

fn table(decode: Decode) -> *const Dispatch {
    Table::leak(vec![
        Dispatch {
            id: ids::OSSL_FUNC_DECODER_NEWCTX,
            function: newctx as *const c_void,
        },
        Dispatch {
            id: ids::OSSL_FUNC_DECODER_FREECTX,
            function: freectx as *const c_void,
        },
        Dispatch {
            id: ids::OSSL_FUNC_DECODER_DOES_SELECTION,
            function: does_selection as *const c_void,
        },
        Dispatch {
            id: ids::OSSL_FUNC_DECODER_DECODE,
            function: decode as *const c_void,
        },
        Dispatch::END,
    ])
    .as_ptr()
}

unsafe extern "C" fn newctx(provctx: Ptr) -> Ptr {
    // SAFETY: OpenSSL hands back the context of the provider.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null_mut(), || {
        Ok(Box::into_raw(Box::new(Decoder { provider })).cast())
    })
}

unsafe extern "C" fn freectx(pointer: Ptr) {
    if pointer.is_null() {
        return;
    }
    guard_bare((), || {
        // SAFETY: OpenSSL gives it back and does not use it again.
        drop(unsafe { Box::from_raw(pointer.cast::<Decoder>()) });
        Some(())
    });
}

unsafe extern "C" fn does_selection(_provctx: Ptr, selection: c_int) -> c_int {
    c_int::from(selects_a_key(selection))
}

/// Whether a key is wanted, and not parameters alone. Nothing selected means: whatever there is.
fn selects_a_key(selection: c_int) -> bool {
    let key = ids::OSSL_KEYMGMT_SELECT_PRIVATE_KEY | ids::OSSL_KEYMGMT_SELECT_PUBLIC_KEY;
    selection == 0 || selection & key != 0
}

unsafe extern "C" fn decode_pem(
    pointer: Ptr,
    bio: Ptr,
    _selection: c_int,
    callback: Callback,
    argument: *mut c_void,
    _passphrase: Passphrase,
    _passphrase_argument: *mut c_void,
) -> c_int {
    // SAFETY: OpenSSL hands back a decoder of ours.
    let Some(decoder) = (unsafe { pointer.cast::<Decoder>().as_ref() }) else {
        return CARRY_ON;
    };
    guard(decoder.provider, CARRY_ON, || {
        // SAFETY: the core's BIO.
        let Some(pem) = (unsafe { read_block(decoder.provider, bio) }) else {
            return Ok(CARRY_ON);
        };
        let Some(der) = stub::pem_to_der(&pem) else {
            return Ok(CARRY_ON);
        };
        let found = [
            Param::bytes(c"data", &der),
            Param::text(c"data-structure", STRUCTURE),
            Param::END,
        ];
        // SAFETY: an array that a null key ends, alive during the call; the caller's argument.
        Ok(unsafe { callback(found.as_ptr(), argument) })
    })
}

/// Reads the next PEM block and gives it back if it is a stub.
///
/// # Safety
/// `bio` is an `OSSL_CORE_BIO`.
unsafe fn read_block(provider: &Provider, bio: Ptr) -> Option<String> {
    let mut buffer = [0; LINE];
    let mut block: Option<Vec<u8>> = None;
    let mut inside = false;
    let mut searched = 0;
    // SAFETY: the caller's promise.
    while let Some(line) = unsafe { provider.core.read_line(bio, &mut buffer) } {
        searched += line.len();
        if searched > MAX_SEARCH {
            return None;
        }
        if !inside && line.starts_with(b"-----BEGIN ") {
            inside = true;
            block = stub::is_begin(line).then(Vec::new);
        }
        if let Some(block) = &mut block {
            if block.len() + line.len() > MAX_PEM_LEN {
                return None;
            }
            block.extend_from_slice(line);
        }
        if inside && line.starts_with(b"-----END ") {
            break;
        }
    }
    String::from_utf8(block?).ok()
}

unsafe extern "C" fn decode_der<const A: usize>(
    pointer: Ptr,
    bio: Ptr,
    selection: c_int,
    callback: Callback,
    argument: *mut c_void,
    _passphrase: Passphrase,
    _passphrase_argument: *mut c_void,
) -> c_int {
    // SAFETY: OpenSSL hands back a decoder of ours.
    let Some(decoder) = (unsafe { pointer.cast::<Decoder>().as_ref() }) else {
        return CARRY_ON;
    };
    guard(decoder.provider, CARRY_ON, || {
        if !selects_a_key(selection) {
            return Ok(CARRY_ON);
        }
        // SAFETY: the core's BIO.
        let der = unsafe { decoder.provider.core.read_all(bio, MAX_STUB_LEN) };
        let Some(stub) = der.as_deref().and_then(Stub::from_der) else {
            return Ok(CARRY_ON);
        };
        if !key::may_be_of(&stub.spki, A) {
            return Ok(CARRY_ON);
        }
        let key = Key::resident(decoder.provider, &stub.name, &stub.spki)?;
        if key.algorithm != A {
            return Ok(CARRY_ON);
        }
        // SAFETY: the caller's callback and argument.
        unsafe { hand_over(key, callback, argument) }
    })
}

/// Gives a key object to OpenSSL, which takes it by `keymgmt_load`.
///
/// # Safety
/// `callback` may be called with `argument` now.
pub(crate) unsafe fn hand_over(
    key: std::sync::Arc<Key>,
    callback: Callback,
    argument: *mut c_void,
) -> Result<c_int> {
    let mut kind = ids::OSSL_OBJECT_PKEY;
    let name = algorithm_name(key.algorithm);
    let mut object = key.into_object();
    let place = std::ptr::from_mut(&mut object);
    let found = [
        Param::int(c"type", &mut kind),
        Param::text(c"data-type", name),
        Param::reference(c"reference", place),
        Param::END,
    ];
    // SAFETY: an array that a null key ends, alive during the call; the caller's promise.
    let status = unsafe { callback(found.as_ptr(), argument) };
    // SAFETY: `load` has written null here if it took the object.
    let left = unsafe { place.read() };
    if !left.is_null() {
        // SAFETY: the reference that nobody took.
        drop(unsafe { std::sync::Arc::from_raw(left.cast::<Key>().cast_const()) });
    }
    Ok(status)
}
