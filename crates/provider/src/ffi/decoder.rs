// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Decoders for `MILLRACE KEY` stubs: PEM to DER, and DER to a key object of its type.
//!
//! OpenSSL tries the decoders, among its own, on every key file. So input that is not a stub is "carry on" (1), never
//! an error. The loader continues where the last decoder stopped. So a PEM block of another type is consumed whole, as
//! OpenSSL's decoder does. No connection is made: a stub has the public half.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use millrace_operation::stub::{self, MAX_PEM_LEN, MAX_STUB_LEN, Stub};

use super::core::Core;
use super::delegate::dispatch;
use super::handle::{free, give};
use super::ids;
use super::inner::InnerContext;
use super::key::Key;
use super::libcrypto::Ptr;
use super::state::{Provider, guard};
use super::types::{Algorithm, Callback, Dispatch, Param, StaticTable};
use crate::algorithms::{KeyType, each_key_type};
use crate::config::Config;
use crate::error::{Error, Reason, Result};

type Passphrase = *const c_void;

/// "Not a stub": the next decoder is tried.
pub(crate) const CARRY_ON: c_int = 1;

/// Structure of the DER in a stub.
const STRUCTURE: &CStr = c"millrace";

/// Longest line that is read at once; longer ones come in pieces.
const LINE: usize = 1024;

/// Bound on the bytes that are read in search of a PEM block: certificate bundles of system size fit.
const MAX_SEARCH: usize = 16 * 1024 * 1024;

/// Context of `OSSL_DECODER`: finds stubs and keys of ours in DER and PEM.
struct Decoder {
    provider: &'static Provider,
}

/// The decoders: PEM to DER, and DER to each key type that is offered.
pub(crate) fn algorithms(context: &InnerContext, config: &Config) -> StaticTable<Algorithm> {
    let mut entries = vec![pem_row(table(decode_pem))];
    let decoders: [Decode; KeyType::ALL.len()] = each_key_type!(decode_der);
    let rows = KeyType::ALL.iter().zip(&context.keys).zip(decoders);
    for ((key_type, inner), decode) in rows {
        if let Some(inner) = inner.as_ref().filter(|_| config.offers(*key_type)) {
            entries.push(Algorithm {
                names: inner.names,
                properties: c"provider=millrace,input=der,structure=millrace".as_ptr(),
                implementation: table(decode),
                description: c"stub of a key in the Millrace pool".as_ptr(),
            });
        }
    }
    entries.push(Algorithm::END);
    StaticTable::leak(entries)
}

/// The row of the decoder from PEM to DER.
pub(crate) fn pem_row(implementation: *const Dispatch) -> Algorithm {
    Algorithm {
        names: c"DER".as_ptr(),
        properties: c"provider=millrace,input=pem".as_ptr(),
        implementation,
        description: c"PEM stub of a key in the Millrace pool".as_ptr(),
    }
}

type Decode =
    unsafe extern "C" fn(Ptr, Ptr, c_int, Callback, *mut c_void, Passphrase, *mut c_void) -> c_int;

fn table(decode: Decode) -> *const Dispatch {
    let mut rows = dispatch! { decoder {
        NEWCTX => newctx<>;
        FREECTX => free<Decoder>;
        DOES_SELECTION => does_selection<>;
    } };
    rows.push((ids::decoder::DECODE, decode as *const c_void));
    StaticTable::dispatch(rows).as_ptr()
}

unsafe extern "C" fn newctx<const ID: i32>(provctx: Ptr) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null_mut(), || Ok(give(Decoder { provider })))
}

unsafe extern "C" fn does_selection<const ID: i32>(_provctx: Ptr, selection: c_int) -> c_int {
    c_int::from(selects_a_key(selection))
}

/// Whether a key is wanted, and not parameters alone. An empty selection allows anything.
fn selects_a_key(selection: c_int) -> bool {
    let key = ids::select::PRIVATE_KEY | ids::select::PUBLIC_KEY;
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
    // SAFETY: libcrypto passes what `newctx` returned, and does not free it during the call.
    let Some(decoder) = (unsafe { pointer.cast::<Decoder>().as_ref() }) else {
        return CARRY_ON;
    };
    guard(decoder.provider, CARRY_ON, || {
        // SAFETY: libcrypto passes a BIO of the core.
        let Some(pem) = (unsafe { read_block(&decoder.provider.core, bio) }) else {
            return Ok(CARRY_ON);
        };
        let Some(der) = stub::pem_to_der(&pem) else {
            return Ok(CARRY_ON);
        };
        if let Some(error) = excluded(decoder.provider, &der) {
            // Servers log an error that a decoder raises, and none for a key that no decoder takes.
            decoder.provider.core.raise(&error);
            return Ok(0);
        }
        let found =
            [Param::bytes(c"data", &der), Param::text(c"data-structure", STRUCTURE), Param::END];
        // SAFETY: the callback takes an array that a null key ends, which outlives the call, and the
        // argument that came with it.
        Ok(unsafe { callback(found.as_ptr(), argument) })
    })
}

/// The error of a stub for a key type that this process computes.
fn excluded(provider: &Provider, der: &[u8]) -> Option<Error> {
    let stub = Stub::from_der(der).filter(|_| provider.config.keeps_x25519())?;
    KeyType::X25519.may_be_of(&stub.spki).then(|| {
        let text = "an X25519 key of the pool cannot be used while the setting `local` has X25519; \
                    name the other primitives there";
        Error::new(Reason::Config, text)
    })
}

/// Reads the next PEM block and gives it back if it is a stub.
///
/// # Safety
/// `bio` is an `OSSL_CORE_BIO`.
pub(crate) unsafe fn read_block(core: &Core, bio: Ptr) -> Option<String> {
    let mut buffer = [0; LINE];
    let mut block: Option<Vec<u8>> = None;
    let mut inside = false;
    let mut searched = 0;
    // SAFETY: by this function's contract.
    while let Some(line) = unsafe { core.read_line(bio, &mut buffer) } {
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
    // SAFETY: libcrypto passes what `newctx` returned, and does not free it during the call.
    let Some(decoder) = (unsafe { pointer.cast::<Decoder>().as_ref() }) else {
        return CARRY_ON;
    };
    guard(decoder.provider, CARRY_ON, || {
        if !selects_a_key(selection) {
            return Ok(CARRY_ON);
        }
        // SAFETY: libcrypto passes a BIO of the core.
        let der = unsafe { decoder.provider.core.read_all(bio, MAX_STUB_LEN) };
        let Some(stub) = der.as_deref().and_then(Stub::from_der) else {
            return Ok(CARRY_ON);
        };
        if !KeyType::ALL[A].may_be_of(&stub.spki) {
            return Ok(CARRY_ON);
        }
        let key = Key::resident(decoder.provider, &stub.name, &stub.spki)?;
        if key.data.key_type != KeyType::ALL[A] {
            return Ok(CARRY_ON);
        }
        // SAFETY: libcrypto passes the callback with its argument, for this call.
        unsafe { hand_over(key, callback, argument) }
    })
}

/// Gives a key object to OpenSSL, which takes it by `keymgmt_load`.
///
/// # Safety
/// `callback` may be called with `argument` now.
pub(crate) unsafe fn hand_over(
    key: Key,
    callback: Callback,
    argument: *mut c_void,
) -> Result<c_int> {
    let mut kind = ids::object::PKEY;
    let name = key.data.key_type.row().name;
    let mut object = key.into_object();
    let place = std::ptr::from_mut(&mut object);
    let found = [
        Param::int(c"type", &mut kind),
        Param::text(c"data-type", name),
        Param::reference(c"reference", place),
        Param::END,
    ];
    // SAFETY: an array that a null key ends, which outlives the call; and by this function's contract.
    let status = unsafe { callback(found.as_ptr(), argument) };
    // SAFETY: a place of ours. Read through the pointer, because `load` writes null through it when it takes
    // the object.
    let left = unsafe { place.read() };
    if !left.is_null() {
        // SAFETY: the reference of `into_object`, which `load` did not take.
        drop(unsafe { Arc::from_raw(left.cast::<Key>().cast_const()) });
    }
    Ok(status)
}
