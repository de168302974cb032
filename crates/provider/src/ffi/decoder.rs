// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Decoders for `MILLRACE KEY` stubs: PEM to DER, and DER to a key object.
//!
//! OpenSSL tries the decoders, among its own, on every key file. So input that is not a stub is "carry on" (1), never
//! an error. The loader continues where the last decoder stopped. So a PEM block of another type is consumed whole, as
//! OpenSSL's decoder does. No connection is made: a stub has the public half.
//!
//! Two decoders for all key types, both with the name `DER`: the search for the decoders of one key compares each
//! decoder with each of the others, twice, and OpenSSL before 3.5 makes that search anew for each certificate and each
//! key of a server. With one decoder for each key type a server with 1,000 certificates took 60 % more CPU time to
//! start. OpenSSL adds decoders of this name to every search, also to one for a key type that the application names.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

use millrace_operation::stub::{self, MAX_PEM_LEN, MAX_STUB_LEN, Stub};

use super::about::teardown;
use super::core::Core;
use super::delegate::dispatch;
use super::ids;
use super::key::Key;
use super::libcrypto::Ptr;
use super::state::{Provider, guard};
use super::types::{Algorithm, Callback, Dispatch, Param, StaticTable};
use crate::algorithms::KeyType;
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

/// The decoders: PEM to DER, and DER to a key. None where no key type is offered.
pub(crate) fn algorithms(config: &Config) -> StaticTable<Algorithm> {
    let mut entries = Vec::new();
    if KeyType::ALL.iter().any(|key_type| config.offers(*key_type)) {
        entries.push(pem_row(table(decode_pem)));
        entries.push(Algorithm {
            names: c"DER".as_ptr(),
            properties: c"provider=millrace,input=der,structure=millrace".as_ptr(),
            implementation: table(decode_der),
            description: c"stub of a key in the Millrace pool".as_ptr(),
        });
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
        FREECTX => teardown<>;
        DOES_SELECTION => does_selection<>;
    } };
    rows.push((ids::decoder::DECODE, decode as *const c_void));
    StaticTable::dispatch(rows).as_ptr()
}

/// The provider serves as the context of its decoders: OpenSSL before 3.5 makes one at each step of each search.
pub(crate) unsafe extern "C" fn newctx<const ID: i32>(provctx: Ptr) -> Ptr {
    provctx
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
    // SAFETY: libcrypto passes what `newctx` returned: the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(pointer) };
    guard(provider, CARRY_ON, || {
        // SAFETY: libcrypto passes a BIO of the core.
        let Some(pem) = (unsafe { read_block(&provider.core, bio) }) else {
            return Ok(CARRY_ON);
        };
        let Some(der) = stub::pem_to_der(&pem) else {
            return Ok(CARRY_ON);
        };
        if let Some(error) = excluded(provider, &der) {
            // Servers log an error that a decoder raises, and none for a key that no decoder takes.
            provider.core.raise(&error);
            return Ok(0);
        }
        // SAFETY: libcrypto passes the callback with its argument, for this call.
        Ok(unsafe { hand_on(&der, callback, argument) })
    })
}

/// Gives the DER of a stub to the next decoder, or to a store, which looks for the decoder itself.
///
/// # Safety
/// `callback` may be called with `argument` now.
unsafe fn hand_on(der: &[u8], callback: Callback, argument: *mut c_void) -> c_int {
    let found = [Param::bytes(c"data", der), Param::text(c"data-structure", STRUCTURE), Param::END];
    // SAFETY: an array that a null key ends, which outlives the call; and by this function's contract.
    unsafe { callback(found.as_ptr(), argument) }
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
        let line = if searched == 0 {
            line.strip_prefix(stub::BYTE_ORDER_MARK).unwrap_or(line)
        } else {
            line
        };
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

unsafe extern "C" fn decode_der(
    pointer: Ptr,
    bio: Ptr,
    selection: c_int,
    callback: Callback,
    argument: *mut c_void,
    _passphrase: Passphrase,
    _passphrase_argument: *mut c_void,
) -> c_int {
    // SAFETY: libcrypto passes what `newctx` returned: the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(pointer) };
    guard(provider, CARRY_ON, || {
        if !selects_a_key(selection) {
            return Ok(CARRY_ON);
        }
        // SAFETY: libcrypto passes a BIO of the core.
        let der = unsafe { provider.core.read_all(bio, MAX_STUB_LEN) };
        let Some((der, stub)) = der.and_then(|der| Stub::from_der(&der).map(|stub| (der, stub)))
        else {
            return Ok(CARRY_ON);
        };
        let offered = |key_type: &&KeyType| {
            key_type.may_be_of(&stub.spki) && provider.config.offers(**key_type)
        };
        let Some(key_type) = KeyType::ALL.iter().find(offered) else {
            return Ok(CARRY_ON);
        };
        let key = Key::resident(provider, &stub.name, &stub.spki)?;
        if key.data.key_type != *key_type {
            return Ok(CARRY_ON);
        }
        // A store that reads a file of DER takes no key object of this provider, but what it can look for a decoder of.
        // SAFETY: libcrypto passes the callback with its argument, for this call.
        let taken = unsafe { hand_on(&der, callback, argument) };
        if taken != 0 {
            return Ok(taken);
        }
        // SAFETY: as above.
        unsafe { hand_over(key, callback, argument) }
    })
}

/// The bytes that pass a key object by reference: OpenSSL hands them to `keymgmt_load`. They are more than the pointer
/// that OpenSSL's own key managers expect, so that none of those ever takes a key object of this provider.
#[repr(C)]
pub(crate) struct Reference {
    object: Ptr,
    tag: *const u8,
}

/// The address of this byte marks references of this module.
static TAG: u8 = 0;

impl Reference {
    fn new(key: Key) -> Self {
        Self { object: key.into_object(), tag: &raw const TAG }
    }

    /// Takes the key object if its type is `key_type`; the owner of the reference sees that it was taken.
    ///
    /// # Safety
    /// `reference` is null or leads to `size` bytes, which nothing else uses during the call.
    pub(crate) unsafe fn take(
        reference: *const c_void,
        size: usize,
        key_type: KeyType,
    ) -> Option<Ptr> {
        if size != size_of::<Self>() {
            return None;
        }
        // SAFETY: by this function's contract there are as many bytes.
        let reference = unsafe { reference.cast_mut().cast::<Self>().as_mut() }?;
        if !std::ptr::eq(reference.tag, &raw const TAG) {
            return None;
        }
        // SAFETY: only `new` writes the tag, and puts a key object beside it; null once it was taken.
        if unsafe { Key::of(reference.object) }.ok()?.data.key_type != key_type {
            return None;
        }
        Some(std::mem::replace(&mut reference.object, std::ptr::null_mut()))
    }
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
    let mut reference = Reference::new(key);
    let place = &raw mut reference;
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
    let left = unsafe { (*place).object };
    if !left.is_null() {
        // SAFETY: the reference of `into_object`, which `load` did not take.
        drop(unsafe { Arc::from_raw(left.cast::<Key>().cast_const()) });
    }
    Ok(status)
}
