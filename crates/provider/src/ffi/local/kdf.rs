// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `TLS13-KDF`, which libssl calls 21 times in a handshake. OpenSSL derives with digests that [`HkdfHash`] lacks.

use std::ffi::{CStr, CString, c_int};

use zeroize::Zeroize;

use super::DONE;
use crate::algorithms::Primitive;
use crate::error::{Error, Reason, Result};
use crate::ffi::delegate::{Rows, dispatch};
use crate::ffi::handle::{Failure, free, give, owned, with_context};
use crate::ffi::ids;
use crate::ffi::inner::{self, call, succeeded};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::params::{entries, integer, octets, set_unsigned, text};
use crate::ffi::state::{Provider, guard};
use crate::ffi::types::{Param, StaticTable};
use crate::local::hkdf::HkdfHash;
use crate::local::schedule::{ScheduleLabel, expand_label, next_secret};

/// Name of the KDF for OpenSSL.
pub(super) const NAME: &CStr = c"TLS13-KDF";

#[rustfmt::skip]
pub(super) fn rows() -> Rows {
    dispatch! { kdf {
        NEWCTX              => newctx<>;
        DUPCTX              => dupctx<>;
        FREECTX             => free<Derivation>;
        RESET               => reset<>;
        DERIVE              => derive<>;
        GET_CTX_PARAMS      => get_params<>;
        GETTABLE_CTX_PARAMS => gettable_params<>;
        SET_CTX_PARAMS      => set_params<>;
        SETTABLE_CTX_PARAMS => settable_params<>;
    } }
}

/// `EVP_KDF_HKDF_MODE_EXTRACT_ONLY` and `EVP_KDF_HKDF_MODE_EXPAND_ONLY`
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Extract = 1,
    Expand = 2,
}

/// Bytes of a setting that need no allocation: keys, transcripts and labels are not longer.
const SHORT: usize = 64;

/// A setting of bytes. One that is `SECRET` is wiped when it is replaced or dropped.
#[derive(Clone)]
struct Field<const SECRET: bool> {
    short: [u8; SHORT],
    /// The whole value, if it is longer than `short`.
    long: Vec<u8>,
    len: usize,
}

impl<const SECRET: bool> Default for Field<SECRET> {
    fn default() -> Self {
        Self { short: [0; SHORT], long: Vec::new(), len: 0 }
    }
}

impl<const SECRET: bool> Field<SECRET> {
    fn set(&mut self, bytes: &[u8]) {
        self.wipe();
        match self.short.get_mut(..bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => self.long = bytes.to_vec(),
        }
        self.len = bytes.len();
    }

    fn bytes(&self) -> &[u8] {
        self.short.get(..self.len).unwrap_or(&self.long)
    }

    /// The bytes, if there are some.
    fn some(&self) -> Option<&[u8]> {
        (self.len > 0).then(|| self.bytes())
    }

    fn wipe(&mut self) {
        if SECRET && self.len > 0 {
            let filled = self.len.min(SHORT);
            self.short[..filled].zeroize();
            self.long.zeroize();
        }
        self.len = 0;
    }
}

impl<const SECRET: bool> Drop for Field<SECRET> {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// The settings of a derivation, as OpenSSL names them.
#[derive(Clone, Default)]
struct Settings {
    mode: Option<Mode>,
    hash: Option<HkdfHash>,
    /// Name of a digest that only OpenSSL has, and the property query for it.
    openssl_digest: Option<(CString, Option<CString>)>,
    key: Field<true>,
    salt: Field<true>,
    prefix: Field<false>,
    label: Field<false>,
    data: Field<false>,
}

/// The context of a derivation.
struct Derivation {
    provider: &'static Provider,
    settings: Settings,
}

owned!(Derivation);

impl Settings {
    /// # Safety
    /// `params` is null or an array that a null key ends, whose entries describe readable memory.
    unsafe fn apply(&mut self, params: *const Param) -> Result<()> {
        let mut properties = None;
        // SAFETY: by this function's contract.
        for param in unsafe { entries(params) } {
            // SAFETY: the key of an entry is a C string.
            let name = unsafe { CStr::from_ptr(param.key) };
            // SAFETY: by this function's contract.
            let bytes = || unsafe { octets(param) }.unwrap_or_default();
            match name.to_bytes() {
                b"mode" => {
                    // SAFETY: by this function's contract.
                    self.mode = Some(unsafe { mode(param) }?);
                }
                b"digest" => {
                    // SAFETY: by this function's contract.
                    let name = unsafe { text(param) }.unwrap_or_default();
                    self.hash = HkdfHash::from_name(name);
                    self.openssl_digest = match self.hash {
                        Some(_) => None,
                        None => Some((c_string(name)?, None)),
                    };
                }
                b"properties" => {
                    // SAFETY: by this function's contract.
                    properties = unsafe { text(param) }.map(c_string).transpose()?;
                }
                b"key" => self.key.set(bytes()),
                b"salt" => self.salt.set(bytes()),
                b"prefix" => self.prefix.set(bytes()),
                b"label" => self.label.set(bytes()),
                b"data" => self.data.set(bytes()),
                _ => {}
            }
        }
        if let Some((_, place)) = &mut self.openssl_digest
            && properties.is_some()
        {
            *place = properties;
        }
        Ok(())
    }

    fn label(&self) -> ScheduleLabel<'_> {
        ScheduleLabel { prefix: self.prefix.bytes(), label: self.label.bytes() }
    }

    fn mode(&self) -> Result<Mode> {
        self.mode.ok_or_else(|| Error::new(Reason::Key, "TLS13-KDF: no mode is set"))
    }

    /// Derives by AWS-LC.
    fn derive(&self, hash: HkdfHash, out: &mut [u8]) -> Result<()> {
        match self.mode()? {
            Mode::Extract => {
                let previous = self.salt.some();
                let secret = self.key.some();
                next_secret(hash, previous, secret, self.label(), out)?;
            }
            Mode::Expand => {
                let Some(key) = self.key.some() else {
                    return Err(Error::new(Reason::Key, "TLS13-KDF: no key is set"));
                };
                expand_label(hash, key, self.label(), self.data.bytes(), out)?;
            }
        }
        Ok(())
    }

    /// Derives with OpenSSL's own function.
    fn derive_by_openssl(&self, out: &mut [u8]) -> Result<()> {
        let Some((digest, properties)) = &self.openssl_digest else {
            return Err(Error::new(Reason::Key, "TLS13-KDF: no digest is set"));
        };
        let context = inner::context()?;
        let Some(functions) = &context.tls13_kdf else {
            return Err(Error::new(Reason::NotOffered, "this OpenSSL has no TLS13-KDF"));
        };
        let mut mode = self.mode()? as c_int;
        let mut params = vec![Param::int(c"mode", &mut mode), Param::text(c"digest", digest)];
        let fields = [
            (c"key", self.key.some()),
            (c"salt", self.salt.some()),
            (c"prefix", self.prefix.some()),
            (c"label", self.label.some()),
            (c"data", self.data.some()),
        ];
        let given = fields.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
        params.extend(given.map(|(name, bytes)| Param::bytes(name, bytes)));
        params.extend(properties.iter().map(|text| Param::text(c"properties", text)));
        params.push(Param::END);
        // SAFETY: `kdf_newctx` takes the context of the provider whose algorithm this is.
        let inner =
            unsafe { call!(functions, ids::kdf::NEWCTX, fn(context.provctx => Ptr) -> Ptr) }?;
        if inner.is_null() {
            return Err(Error::library());
        }
        let start = out.as_mut_ptr();
        let len = out.len();
        let params = params.as_ptr();
        // SAFETY: `kdf_derive` takes a live context, a buffer with its length, and an array with its end.
        let status = unsafe {
            call!(functions, ids::kdf::DERIVE,
                fn(inner => Ptr, start => *mut u8, len => usize, params => *const Param) -> c_int)
        };
        // SAFETY: `kdf_freectx` takes the context made above, which is not used again.
        let freed = unsafe { call!(functions, ids::kdf::FREECTX, fn(inner => Ptr) -> ()) };
        freed?;
        succeeded(status?)
    }
}

/// An expansion as a handshake has it, to be measured: the key schedule of TLS_AES_256_GCM_SHA384.
pub(super) struct ScheduleSample(Settings);

impl ScheduleSample {
    pub(super) fn new() -> Result<Self> {
        let mut settings = Settings {
            mode: Some(Mode::Expand),
            hash: Some(HkdfHash::Sha384),
            openssl_digest: Some((c_string("SHA2-384")?, None)),
            ..Settings::default()
        };
        settings.key.set(&[7; SAMPLE_LEN]);
        settings.prefix.set(b"tls13 ");
        settings.label.set(b"c hs traffic");
        settings.data.set(&[9; SAMPLE_LEN]);
        Ok(Self(settings))
    }

    /// Derives the sample with AWS-LC.
    pub(super) fn derive_local(&self) -> Result<()> {
        self.0.derive(HkdfHash::Sha384, &mut [0; SAMPLE_LEN])
    }

    /// Derives the sample with the installed OpenSSL.
    pub(super) fn derive_openssl(&self) -> Result<()> {
        self.0.derive_by_openssl(&mut [0; SAMPLE_LEN])
    }
}

/// Bytes of a secret of the sample.
const SAMPLE_LEN: usize = 48;

/// # Safety
/// `param` describes readable memory.
unsafe fn mode(param: &Param) -> Result<Mode> {
    // SAFETY: by this function's contract.
    let (name, number) = unsafe { (text(param), integer(param)) };
    match (name, number) {
        (Some("EXTRACT_ONLY"), _) | (_, Some(1)) => Ok(Mode::Extract),
        (Some("EXPAND_ONLY"), _) | (_, Some(2)) => Ok(Mode::Expand),
        _ => Err(Error::new(
            Reason::NotOffered,
            "TLS13-KDF: the mode is EXTRACT_ONLY or EXPAND_ONLY",
        )),
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(Reason::Key, "a name with a zero byte"))
}

unsafe extern "C" fn newctx<const ID: i32>(provctx: Ptr) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || Ok(give(Derivation { provider, settings: Settings::default() })))
}

unsafe extern "C" fn dupctx<const ID: i32>(pointer: Ptr) -> Ptr {
    let entry = |derivation: &mut Derivation| {
        Ok(give(Derivation {
            provider: derivation.provider,
            settings: derivation.settings.clone(),
        }))
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn reset<const ID: i32>(pointer: Ptr) {
    let entry = |derivation: &mut Derivation| {
        derivation.settings = Settings::default();
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    let _: c_int = unsafe { with_context(pointer, entry) };
}

unsafe extern "C" fn derive<const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    len: usize,
    params: *const Param,
) -> c_int {
    let entry = |derivation: &mut Derivation| {
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        unsafe { derivation.settings.apply(params) }?;
        if out.is_null() || len == 0 {
            return Err(Error::new(Reason::Buffer, "TLS13-KDF: there is no buffer"));
        }
        // The memory may hold nothing yet.
        // SAFETY: libcrypto passes a writable buffer of `len` bytes.
        unsafe { out.write_bytes(0, len) };
        // SAFETY: the same buffer, which the application leaves alone during the call.
        let out = unsafe { std::slice::from_raw_parts_mut(out, len) };
        match derivation.settings.hash {
            Some(hash) => {
                derivation.settings.derive(hash, out)?;
                derivation.provider.stats.served_locally(Primitive::Tls13Kdf);
            }
            None => derivation.settings.derive_by_openssl(out)?,
        }
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn set_params<const ID: i32>(pointer: Ptr, params: *const Param) -> c_int {
    let entry = |derivation: &mut Derivation| {
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        unsafe { derivation.settings.apply(params) }.map(|()| DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

/// The length of the output: an extraction has that of the hash, an expansion any.
unsafe extern "C" fn get_params<const ID: i32>(pointer: Ptr, request: *mut Param) -> c_int {
    let entry = |derivation: &mut Derivation| {
        let settings = &derivation.settings;
        let len = match (settings.mode, settings.hash) {
            (Some(Mode::Extract), Some(hash)) => hash.digest_len() as u64,
            (Some(Mode::Extract), None) => 0,
            (Some(Mode::Expand) | None, _) => u64::MAX,
        };
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        let count = unsafe { entries(request) }.count();
        for index in 0..count {
            // SAFETY: one of the entries counted above, and the application passes the array to be written.
            let param = unsafe { &mut *request.add(index) };
            // SAFETY: the key of a counted entry is not null, and so a C string.
            let is_size = unsafe { CStr::from_ptr(param.key) } == c"size";
            // SAFETY: each entry describes memory that the application passes to be written.
            if is_size && (len == 0 || !unsafe { set_unsigned(param, len) }) {
                return Err(Error::new(Reason::Key, "TLS13-KDF: the size is not known"));
            }
        }
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn gettable_params<const ID: i32>(_: Ptr, _provctx: Ptr) -> *const Param {
    static LIST: StaticTable<Param> =
        StaticTable(&[Param::listed(c"size", ids::param::UNSIGNED_INTEGER), Param::END]);
    LIST.as_ptr()
}

unsafe extern "C" fn settable_params<const ID: i32>(_: Ptr, _provctx: Ptr) -> *const Param {
    static LIST: StaticTable<Param> = StaticTable(&[
        Param::listed(c"mode", ids::param::UTF8_STRING),
        Param::listed(c"mode", ids::param::INTEGER),
        Param::listed(c"properties", ids::param::UTF8_STRING),
        Param::listed(c"digest", ids::param::UTF8_STRING),
        Param::listed(c"key", ids::param::OCTET_STRING),
        Param::listed(c"salt", ids::param::OCTET_STRING),
        Param::listed(c"prefix", ids::param::OCTET_STRING),
        Param::listed(c"label", ids::param::OCTET_STRING),
        Param::listed(c"data", ids::param::OCTET_STRING),
        Param::END,
    ]);
    LIST.as_ptr()
}
