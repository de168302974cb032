// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key objects that hold a key share: OpenSSL generates, imports and exports them by this dispatch table, and the
//! tables of `exchange` and `kem` compute with them.
//!
//! The pool never has them. Keys that sign are [`Key`](crate::ffi::key::Key)s instead.

use std::ffi::{CStr, c_int, c_void};

use zeroize::Zeroizing;

use super::{DONE, ShareObject};
use crate::algorithms::{Share, each_share};
use crate::error::{Error, Reason, Result};
use crate::ffi::delegate::{Rows, dispatch};
use crate::ffi::handle::{Failure, free, give, owned, with_context, with_object};
use crate::ffi::ids::{self, select};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::params::{entries, locate, octets, set_bytes, set_integer, text};
use crate::ffi::stack;
use crate::ffi::state::{Provider, guard};
use crate::ffi::types::{Callback, Param, StaticTable};
use crate::local::share::ShareKey;
use crate::local::{LocalError, schedule};

/// The rows of each share's dispatch table.
pub(super) const DISPATCH: [fn() -> Rows; Share::ALL.len()] = each_share!(rows);

#[rustfmt::skip]
fn rows<const S: usize>() -> Rows {
    dispatch! { keymgmt {
        NEW                  => new<S>;
        FREE                 => free<ShareObject>;
        GEN_INIT             => gen_init<S>;
        GEN_SET_PARAMS       => gen_set_params<>;
        GEN_SETTABLE_PARAMS  => gen_settable_params<>;
        GEN                  => generate<>;
        GEN_CLEANUP          => free<Generation>;
        GET_PARAMS           => get_params<>;
        GETTABLE_PARAMS      => gettable_params<>;
        SET_PARAMS           => set_params<>;
        SETTABLE_PARAMS      => settable_params<>;
        HAS                  => has<>;
        VALIDATE             => validate<>;
        MATCH                => matches<>;
        IMPORT               => import<>;
        IMPORT_TYPES         => types<>;
        EXPORT               => export<>;
        EXPORT_TYPES         => types<>;
        DUP                  => dup<>;
    } }
}

const GROUP: &CStr = c"group";
const HPKE_IKM: &CStr = c"dhkem-ikm";
const ENCODED_PUBLIC: &CStr = c"encoded-pub-key";
const PUBLIC: &CStr = c"pub";
const PRIVATE: &CStr = c"priv";

/// Both halves of a key.
const PAIR: c_int = select::PRIVATE_KEY | select::PUBLIC_KEY;

owned!(ShareObject);

/// The context of a key generation.
struct Generation {
    provider: &'static Provider,
    share: Share,
    /// The application wants a key without halves: libssl puts the peer's share into it later.
    without_pair: bool,
    /// Key material of HPKE that the pair is derived from.
    hpke_ikm: Option<Zeroizing<Vec<u8>>>,
}

owned!(Generation);

impl Generation {
    /// # Safety
    /// `params` is null or an array that a null key ends, whose entries describe readable memory.
    unsafe fn apply(&mut self, params: *const Param) -> Result<()> {
        // SAFETY: by this function's contract.
        if let Some(group) = unsafe { locate(params, GROUP) } {
            // SAFETY: by this function's contract.
            let name = unsafe { text(group) }.unwrap_or_default();
            let known = self.share.row().name.to_bytes();
            // OpenSSL 3.5 names its hybrids so.
            if !name.is_empty() && !known.eq_ignore_ascii_case(name.as_bytes()) {
                let text = format!("{name} is not a group of this key type");
                return Err(Error::new(Reason::Key, text));
            }
        }
        // SAFETY: by this function's contract.
        let ikm = unsafe { locate(params, HPKE_IKM).and_then(|param| octets(param)) };
        if let Some(ikm) = ikm.filter(|ikm| !ikm.is_empty()) {
            self.hpke_ikm = Some(Zeroizing::new(ikm.to_vec()));
        }
        Ok(())
    }

    fn run(&self) -> Result<ShareKey> {
        if self.without_pair {
            return Ok(ShareKey::empty(self.share));
        }
        let key = match (&self.hpke_ikm, self.share) {
            (None, share) => ShareKey::generate(share, self.provider.pair_maker())?,
            (Some(ikm), Share::X25519) => {
                ShareKey::from_private(self.share, &*schedule::hpke_x25519_scalar(ikm)?)?
            }
            (Some(_), _) => return Err(LocalError::Refused("HPKE has no such key").into()),
        };
        self.provider.stats.served_locally(self.share.row().primitive);
        Ok(key)
    }
}

unsafe extern "C" fn new<const S: usize, const ID: i32>(provctx: Ptr) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || {
        Ok(give(ShareObject::new(provider, ShareKey::empty(Share::ALL[S]))))
    })
}

unsafe extern "C" fn gen_init<const S: usize, const ID: i32>(
    provctx: Ptr,
    selection: c_int,
    params: *const Param,
) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || {
        let mut generation = Generation {
            provider,
            share: Share::ALL[S],
            without_pair: selection & PAIR == 0,
            hpke_ikm: None,
        };
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        unsafe { generation.apply(params) }?;
        Ok(give(generation))
    })
}

unsafe extern "C" fn gen_set_params<const ID: i32>(pointer: Ptr, params: *const Param) -> c_int {
    let entry = |generation: &mut Generation| {
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        unsafe { generation.apply(params) }.map(|()| DONE)
    };
    // SAFETY: libcrypto passes what `gen_init` returned.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn gen_settable_params<const ID: i32>(_: Ptr, _provctx: Ptr) -> *const Param {
    static LIST: StaticTable<Param> = StaticTable(&[
        Param::listed(GROUP, ids::param::UTF8_STRING),
        Param::listed(HPKE_IKM, ids::param::OCTET_STRING),
        Param::END,
    ]);
    LIST.as_ptr()
}

unsafe extern "C" fn generate<const ID: i32>(
    pointer: Ptr,
    _callback: Option<Callback>,
    _argument: *mut c_void,
) -> Ptr {
    let entry = |generation: &mut Generation| {
        let key = stack::with_room(generation.provider, || generation.run())?;
        Ok(give(ShareObject::new(generation.provider, key)))
    };
    // SAFETY: libcrypto passes what `gen_init` returned.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn get_params<const ID: i32>(object: Ptr, request: *mut Param) -> c_int {
    let entry = |object: &ShareObject| {
        let key = object.key();
        let share = key.share();
        let row = key.share().row();
        let max_len = i64::try_from(share.max_len()).unwrap_or(0);
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        let count = unsafe { entries(request) }.count();
        for index in 0..count {
            // SAFETY: one of the entries counted above, and the application passes the array to be written.
            let param = unsafe { &mut *request.add(index) };
            // SAFETY: the key of a counted entry is not null, and so a C string.
            let name = unsafe { CStr::from_ptr(param.key) };
            // SAFETY: each entry describes memory that the application passes to be written.
            let good = unsafe {
                match name.to_bytes() {
                    b"bits" => set_integer(param, row.bits.into()),
                    b"security-bits" => set_integer(param, row.security_bits.into()),
                    b"max-size" => set_integer(param, max_len),
                    b"encoded-pub-key" | b"pub" => match key.public() {
                        Some(public) => set_bytes(param, public),
                        None => name == PUBLIC,
                    },
                    b"priv" if key.has_private() => set_bytes(param, &key.private()?),
                    _ => true,
                }
            };
            if !good {
                let text = "a parameter of the key has another type, or no room";
                return Err(Error::new(Reason::Buffer, text));
            }
        }
        Ok(DONE)
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}

unsafe extern "C" fn gettable_params<const ID: i32>(_provctx: Ptr) -> *const Param {
    static LIST: StaticTable<Param> = StaticTable(&[
        Param::listed(c"bits", ids::param::INTEGER),
        Param::listed(c"security-bits", ids::param::INTEGER),
        Param::listed(c"max-size", ids::param::INTEGER),
        Param::listed(ENCODED_PUBLIC, ids::param::OCTET_STRING),
        Param::listed(PUBLIC, ids::param::OCTET_STRING),
        Param::listed(PRIVATE, ids::param::OCTET_STRING),
        Param::END,
    ]);
    LIST.as_ptr()
}

/// The peer's share, as it came in the handshake.
unsafe extern "C" fn set_params<const ID: i32>(object: Ptr, params: *const Param) -> c_int {
    let entry = |object: &ShareObject| {
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        let Some(param) = (unsafe { locate(params, ENCODED_PUBLIC) }) else {
            return Ok(DONE);
        };
        // SAFETY: its entries describe readable memory.
        let public = unsafe { octets(param) }.unwrap_or_default();
        object.set(ShareKey::from_public(object.key().share(), public)?);
        Ok(DONE)
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}

unsafe extern "C" fn settable_params<const ID: i32>(_provctx: Ptr) -> *const Param {
    static LIST: StaticTable<Param> =
        StaticTable(&[Param::listed(ENCODED_PUBLIC, ids::param::OCTET_STRING), Param::END]);
    LIST.as_ptr()
}

/// Whether the selected halves are there. There is nothing else in a key share.
fn has_halves(key: &ShareKey, selection: c_int) -> bool {
    (selection & select::PUBLIC_KEY == 0 || key.public().is_some())
        && (selection & select::PRIVATE_KEY == 0 || key.has_private())
}

unsafe extern "C" fn has<const ID: i32>(object: *const c_void, selection: c_int) -> c_int {
    let entry = |object: &ShareObject| Ok(c_int::from(has_halves(&object.key(), selection)));
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}

unsafe extern "C" fn validate<const ID: i32>(
    object: *const c_void,
    selection: c_int,
    _kind: c_int,
) -> c_int {
    let entry = |object: &ShareObject| {
        let key = object.key();
        let mut good = has_halves(&key, selection);
        if good && selection & PAIR == PAIR {
            let again = ShareKey::from_private(key.share(), &key.private()?)?;
            good = again.public() == key.public();
        }
        Ok(c_int::from(good))
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}

unsafe extern "C" fn matches<const ID: i32>(
    first: *const c_void,
    second: *const c_void,
    selection: c_int,
) -> c_int {
    let entry = |first: &ShareObject| {
        // SAFETY: libcrypto passes null or a key object of this key manager.
        let (first, second) = (first.key(), unsafe { ShareObject::key_of(second) }?);
        let same = first.share() == second.share();
        // A private half has one public half, which is always known.
        let public = first.public().is_some() && first.public() == second.public();
        Ok(c_int::from(same && (selection & PAIR == 0 || public)))
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(first, entry) }
}

unsafe extern "C" fn import<const ID: i32>(
    object: Ptr,
    selection: c_int,
    params: *const Param,
) -> c_int {
    let entry = |object: &ShareObject| {
        let share = object.key().share();
        let half = |name: &CStr| {
            // SAFETY: libcrypto passes null or an array of parameters with its end, over readable memory.
            unsafe { locate(params, name).and_then(|param| octets(param)) }
        };
        let private = half(PRIVATE).filter(|_| selection & select::PRIVATE_KEY != 0);
        let key = match (private, half(PUBLIC)) {
            (Some(private), public) => {
                let key = ShareKey::from_private(share, private)?;
                if public.is_some() && public != key.public() {
                    let text = "the halves of the key do not belong together";
                    return Err(Error::new(Reason::Key, text));
                }
                key
            }
            (None, Some(public)) => ShareKey::from_public(share, public)?,
            (None, None) => return Err(Error::new(Reason::Key, "there is no key to import")),
        };
        object.set(key);
        Ok(DONE)
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}

unsafe extern "C" fn types<const ID: i32>(selection: c_int) -> *const Param {
    static BOTH: StaticTable<Param> = StaticTable(&[
        Param::listed(PUBLIC, ids::param::OCTET_STRING),
        Param::listed(PRIVATE, ids::param::OCTET_STRING),
        Param::END,
    ]);
    static ONE: StaticTable<Param> =
        StaticTable(&[Param::listed(PUBLIC, ids::param::OCTET_STRING), Param::END]);
    match selection & PAIR {
        0 => std::ptr::null(),
        select::PUBLIC_KEY => ONE.as_ptr(),
        _ => BOTH.as_ptr(),
    }
}

unsafe extern "C" fn export<const ID: i32>(
    object: Ptr,
    selection: c_int,
    callback: Callback,
    argument: *mut c_void,
) -> c_int {
    let entry = |object: &ShareObject| {
        let key = object.key();
        let private = if selection & select::PRIVATE_KEY != 0 && key.has_private() {
            Some(key.private()?)
        } else {
            None
        };
        let public = key.public().filter(|_| selection & PAIR != 0);
        let Some(public) = public else {
            return Err(Error::new(Reason::Key, "there is no key to export"));
        };
        let mut params = vec![Param::bytes(PUBLIC, public)];
        params.extend(private.as_ref().map(|bytes| Param::bytes(PRIVATE, bytes)));
        params.push(Param::END);
        // SAFETY: libcrypto passes the callback with its argument, for this call; the array has its end, and
        // its entries lie over bytes that live until the callback returns.
        Ok(unsafe { callback(params.as_ptr(), argument) })
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}

unsafe extern "C" fn dup<const ID: i32>(object: *const c_void, selection: c_int) -> Ptr {
    let entry = |object: &ShareObject| {
        let key = object.key();
        let copy = ShareObject::new(object.provider, ShareKey::empty(key.share()));
        if selection & select::PRIVATE_KEY != 0 {
            // Keys are never changed, only replaced.
            *millrace_operation::sync::lock(&copy.held) = key;
        } else if let Some(public) = key.public().filter(|_| selection & PAIR != 0) {
            copy.set(ShareKey::from_public(key.share(), public)?);
        }
        Ok(give(copy))
    };
    // SAFETY: libcrypto passes null or a key object of this key manager.
    unsafe { with_object(object, entry) }
}
