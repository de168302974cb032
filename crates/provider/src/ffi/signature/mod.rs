// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Signatures: OpenSSL's own, except that a private operation of a pooled key goes to the pool.
//!
//! The inner context keeps all parameters and does every verification. When a message is signed with
//! a pooled key, the digest is computed here as well, because the inner context does not give it out;
//! if the private key is in this process the inner context hashes too, so that it can finish the
//! signature by itself at any moment.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use millrace_engine::operation::MAX_INPUT_LEN;
use millrace_engine::{Hash, Operation};

use super::ids;
use super::inner::{self, Inner, SIGNATURES};
use super::key::{Key, Origin};
use super::libcrypto::{Lib, Ptr};
use super::params::{integer, locate, string_in};
use super::private;
use super::provider::Provider;
use super::types::Param;
use crate::config::Verify;
use crate::error::{Error, Reason, Result};
use crate::names::hash_from_name;
use crate::operation_params::{self, PAD_PSS, RsaSign};

mod entries;

pub(crate) use entries::table_of;

type NewCtx = unsafe extern "C" fn(Ptr, *const c_char) -> Ptr;
type FreeCtx = unsafe extern "C" fn(Ptr);
type DupCtx = unsafe extern "C" fn(Ptr) -> Ptr;
type Init = unsafe extern "C" fn(Ptr, Ptr, *const Param) -> c_int;
type DigestInit = unsafe extern "C" fn(Ptr, *const c_char, Ptr, *const Param) -> c_int;
type Update = unsafe extern "C" fn(Ptr, *const u8, usize) -> c_int;
type Final = unsafe extern "C" fn(Ptr, *mut u8, *mut usize, usize) -> c_int;
type Produce = unsafe extern "C" fn(Ptr, *mut u8, *mut usize, usize, *const u8, usize) -> c_int;
type VerifyFinal = unsafe extern "C" fn(Ptr, *const u8, usize) -> c_int;
type VerifyFn = unsafe extern "C" fn(Ptr, *const u8, usize, *const u8, usize) -> c_int;
type GetParams = unsafe extern "C" fn(Ptr, *mut Param) -> c_int;
type SetParams = unsafe extern "C" fn(Ptr, *const Param) -> c_int;
type Listing = unsafe extern "C" fn(Ptr, Ptr) -> *const Param;
type MdListing = unsafe extern "C" fn(Ptr) -> *const Param;

/// Longest name of a digest, with its terminator (`OSSL_MAX_NAME_SIZE`).
const MAX_NAME: usize = 50;

/// Largest digest, in bytes.
const MAX_DIGEST: usize = 64;

/// Which signature algorithm.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    Ecdsa,
    Ed25519,
    Ed448,
    Dsa,
}

impl Kind {
    fn of(algorithm: usize) -> Self {
        // A digest may follow.
        match SIGNATURES
            .get(algorithm)
            .and_then(|name| name.split('-').next())
        {
            Some("RSA") => Self::Rsa,
            Some("ECDSA") => Self::Ecdsa,
            Some("ED25519") => Self::Ed25519,
            Some("DSA") => Self::Dsa,
            _ => Self::Ed448,
        }
    }
}

/// A signature context.
struct Context {
    provider: &'static Provider,
    functions: &'static Inner,
    kind: Kind,
    inner: Ptr,
    key: Option<Arc<Key>>,
    /// The digest of the message so far, while a message is signed with a pooled key.
    digest: Option<Hasher>,
    /// Whether what is signed at once is a message, not a digest (since OpenSSL 3.4).
    message: bool,
    /// Whether the application has set something that the pool does not know.
    special: bool,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the type of `signature_freectx`.
        if let Ok(free) = unsafe {
            self.functions
                .function::<FreeCtx>(ids::OSSL_FUNC_SIGNATURE_FREECTX)
        } {
            // SAFETY: the inner context is ours and is not used again.
            unsafe { free(self.inner) };
        }
    }
}

/// A running digest of the private library context.
struct Hasher {
    lib: &'static Lib,
    hash: Hash,
    ctx: Ptr,
}

impl Drop for Hasher {
    fn drop(&mut self) {
        // SAFETY: ours, not used again.
        unsafe { (self.lib.EVP_MD_CTX_free)(self.ctx) };
    }
}

impl Hasher {
    fn start(hash: Hash) -> Result<Self> {
        let context = inner::context()?;
        let digest = context.digest(hash)?;
        // SAFETY: takes nothing.
        let ctx = unsafe { (context.lib.EVP_MD_CTX_new)() };
        if ctx.is_null() {
            return Err(Error::library());
        }
        let hasher = Self {
            lib: context.lib,
            hash,
            ctx,
        };
        // SAFETY: a new context, a fetched digest, no parameters.
        let started = unsafe { (context.lib.EVP_DigestInit_ex2)(ctx, digest, std::ptr::null()) };
        if started == 1 {
            Ok(hasher)
        } else {
            Err(Error::library())
        }
    }

    fn copy(&self) -> Result<Self> {
        // SAFETY: takes nothing.
        let ctx = unsafe { (self.lib.EVP_MD_CTX_new)() };
        if ctx.is_null() {
            return Err(Error::library());
        }
        let copy = Self {
            lib: self.lib,
            hash: self.hash,
            ctx,
        };
        // SAFETY: two live contexts.
        let copied = unsafe { (self.lib.EVP_MD_CTX_copy_ex)(ctx, self.ctx) };
        if copied == 1 {
            Ok(copy)
        } else {
            Err(Error::library())
        }
    }

    /// # Safety
    /// `data` is readable for `len` bytes.
    unsafe fn update(&self, data: *const u8, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        let updated = unsafe { (self.lib.EVP_DigestUpdate)(self.ctx, data.cast(), len) };
        if updated == 1 {
            Ok(())
        } else {
            Err(Error::library())
        }
    }

    fn finish(&self, out: &mut [u8; MAX_DIGEST]) -> Result<usize> {
        let mut len = 0;
        // SAFETY: room for the largest digest.
        let done = unsafe { (self.lib.EVP_DigestFinal_ex)(self.ctx, out.as_mut_ptr(), &mut len) };
        let len = usize::try_from(len).map_err(|_| Error::library())?;
        if done == 1 && len == self.hash.digest_len() {
            Ok(len)
        } else {
            Err(Error::library())
        }
    }
}

impl Context {
    fn new(provider: &'static Provider, algorithm: usize) -> Result<Self> {
        let context = inner::context()?;
        let functions = functions(algorithm)?;
        // SAFETY: the type of `signature_newctx`.
        let new = unsafe { functions.function::<NewCtx>(ids::OSSL_FUNC_SIGNATURE_NEWCTX) }?;
        // SAFETY: the inner provider's context; no properties, since those of the application are not
        // meant for the private context.
        let inner = unsafe { new(context.provctx, std::ptr::null()) };
        if inner.is_null() {
            return Err(Error::library());
        }
        let kind = Kind::of(algorithm);
        Ok(Self {
            provider,
            functions,
            kind,
            inner,
            key: None,
            digest: None,
            message: false,
            special: false,
        })
    }

    /// Takes the key of an initialisation; null keeps the one that is set.
    ///
    /// # Safety
    /// `object` is null or a key object.
    unsafe fn take_key(&mut self, object: Ptr) -> Result<Ptr> {
        if object.is_null() {
            return Ok(std::ptr::null_mut());
        }
        // SAFETY: the caller's promise.
        let key = unsafe { Key::share(object) }?;
        let data = key.data;
        self.key = Some(key);
        Ok(data)
    }

    /// Notes what the pool does not know: the variants of Ed25519 with a prehash or a context, and nonces
    /// that are derived from the message (both since OpenSSL 3.2).
    ///
    /// # Safety
    /// `settings` is null or an array that a null key ends.
    unsafe fn note_settings(&mut self, settings: *const Param) {
        // SAFETY: the caller's promise.
        let find = |key| unsafe { locate(settings, key) };
        let variant = find(c"instance").is_some_and(|param| {
            // SAFETY: a string parameter has as many bytes as it says.
            let name = unsafe { private::bytes(param.data.cast(), param.data_size) };
            // Some count the terminator.
            let name = name.strip_suffix(&[0]).unwrap_or(name);
            !name.eq_ignore_ascii_case(b"Ed25519")
        });
        let context = find(c"context-string").is_some_and(|param| param.data_size > 0);
        // SAFETY: an entry of the caller's array.
        let nonce = find(c"nonce-type").map(|param| unsafe { integer(param) });
        self.special |= variant || context || nonce.is_some_and(|kind| kind != Some(0));
    }

    fn pooled(&self) -> Option<&Arc<Key>> {
        self.key.as_ref().filter(|key| key.pooled())
    }

    fn get(&self, request: &mut [Param]) -> bool {
        // SAFETY: the type of `signature_get_ctx_params`.
        let get = unsafe {
            self.functions
                .function::<GetParams>(ids::OSSL_FUNC_SIGNATURE_GET_CTX_PARAMS)
        };
        // SAFETY: a live inner context, an array that a null key ends.
        get.is_ok_and(|get| unsafe { get(self.inner, request.as_mut_ptr()) } == 1)
    }

    /// The digest that is set: nothing, or the pool's if it has it.
    fn digest_set(&self) -> Option<Option<Hash>> {
        let mut name = [0; MAX_NAME];
        let mut request = [Param::string(c"digest", &mut name), Param::END];
        self.get(&mut request);
        named(&name)
    }

    fn rsa_settings(&self, key: &Key) -> Result<RsaSign> {
        let (mut pad_mode, mut salt_len) = (0, 0);
        let (mut digest, mut mgf1) = ([0; MAX_NAME], [0; MAX_NAME]);
        let mut request = [
            Param::int(c"pad-mode", &mut pad_mode),
            Param::string(c"digest", &mut digest),
            Param::string(c"mgf1-digest", &mut mgf1),
            Param::int(c"saltlen", &mut salt_len),
            Param::END,
        ];
        if !self.get(&mut request) {
            return Err(Error::library());
        }
        let bits = u32::try_from(key.integer(c"bits")?).map_err(|_| Error::library())?;
        Ok(RsaSign {
            pad_mode,
            digest: named(&digest),
            mgf1: named(&mgf1),
            salt_len,
            bits,
        })
    }

    /// Signs a digest in the pool; `None` if the inner context shall do it.
    fn sign_digest(&self, key: &Key, digest: &[u8]) -> Result<Option<millrace_engine::Output>> {
        match self.kind {
            _ if self.special => private::run(key, None, &|_| false),
            Kind::Rsa => {
                let settings = self.rsa_settings(key)?;
                let plan = operation_params::rsa_sign(&settings, digest);
                let verified = |output: &[u8]| self.rsa_verifies(key, &settings, output, digest);
                private::run(key, plan, &verified)
            }
            Kind::Ecdsa | Kind::Dsa => {
                let hash = operation_params::dsa_hash(self.digest_set(), digest);
                let plan = hash
                    .filter(|hash| hash.digest_len() == digest.len())
                    .map(|hash| {
                        let operation = match self.kind {
                            Kind::Dsa => Operation::DsaSign { hash },
                            _ => Operation::EcdsaSign { hash },
                        };
                        (operation, digest.to_vec())
                    });
                private::run(key, plan, &|output| self.dsa_verifies(key, output, digest))
            }
            Kind::Ed25519 | Kind::Ed448 => private::run(key, None, &|_| false),
        }
    }

    /// Signs a whole message with Ed25519 in the pool.
    fn sign_message(&self, key: &Key, message: &[u8]) -> Result<Option<millrace_engine::Output>> {
        let plain = self.kind == Kind::Ed25519 && !self.special;
        let fits = plain && message.len() <= MAX_INPUT_LEN;
        let plan = fits.then(|| (Operation::Ed25519Sign, message.to_vec()));
        private::run(key, plan, &|output| {
            output.len() == 64
                && (key.provider.config.verify != Verify::All
                    || self.message_verifies(key, output, message))
        })
    }

    /// Verifies an RSA signature from the pool with the public key, in a context of its own.
    fn rsa_verifies(&self, key: &Key, settings: &RsaSign, signature: &[u8], digest: &[u8]) -> bool {
        let mut pad_mode = settings.pad_mode;
        let mut salt_len = settings.salt_len;
        let name = settings
            .digest
            .flatten()
            .and_then(crate::names::openssl_name);
        let mgf1 = settings.mgf1.flatten().and_then(crate::names::openssl_name);
        let mut request = Vec::with_capacity(5);
        request.push(Param::int(c"pad-mode", &mut pad_mode));
        request.extend(name.map(|name| Param::text(c"digest", name)));
        if settings.pad_mode == PAD_PSS {
            request.extend(mgf1.map(|name| Param::text(c"mgf1-digest", name)));
            request.push(Param::int(c"saltlen", &mut salt_len));
        }
        request.push(Param::END);
        self.verifies(key, &request, signature, digest)
    }

    /// Checks the form of an (EC)DSA signature from the pool, and verifies it if so configured.
    fn dsa_verifies(&self, key: &Key, signature: &[u8], digest: &[u8]) -> bool {
        operation_params::is_dsa_signature(signature)
            && (key.provider.config.verify != Verify::All
                || self.verifies(key, &[Param::END], signature, digest))
    }

    fn verifies(&self, key: &Key, settings: &[Param], signature: &[u8], digest: &[u8]) -> bool {
        let verify = || -> Result<bool> {
            let fresh = self.sibling()?;
            let functions = fresh.functions;
            // SAFETY: the type of `signature_verify_init`.
            let init = unsafe { functions.function::<Init>(ids::OSSL_FUNC_SIGNATURE_VERIFY_INIT) }?;
            // SAFETY: a live inner context and key data.
            if unsafe { init(fresh.inner, key.data, std::ptr::null()) } != 1 {
                return Ok(false);
            }
            // SAFETY: the type of `signature_set_ctx_params`.
            let set = unsafe {
                functions.function::<SetParams>(ids::OSSL_FUNC_SIGNATURE_SET_CTX_PARAMS)
            }?;
            // SAFETY: a live inner context, an array that a null key ends.
            if unsafe { set(fresh.inner, settings.as_ptr()) } != 1 {
                return Ok(false);
            }
            // SAFETY: the type of `signature_verify`.
            let verify =
                unsafe { functions.function::<VerifyFn>(ids::OSSL_FUNC_SIGNATURE_VERIFY) }?;
            let (sig, tbs) = (signature.as_ptr(), digest.as_ptr());
            // SAFETY: a live inner context; lengths of slices.
            Ok(unsafe { verify(fresh.inner, sig, signature.len(), tbs, digest.len()) } == 1)
        };
        self.provider.core.quietly(|| verify().unwrap_or(false))
    }

    fn message_verifies(&self, key: &Key, signature: &[u8], message: &[u8]) -> bool {
        let verify = || -> Result<bool> {
            let fresh = self.sibling()?;
            let functions = fresh.functions;
            let id = ids::OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_INIT;
            // SAFETY: the type of `signature_digest_verify_init`.
            let init = unsafe { functions.function::<DigestInit>(id) }?;
            // SAFETY: a live inner context and key data.
            if unsafe { init(fresh.inner, std::ptr::null(), key.data, std::ptr::null()) } != 1 {
                return Ok(false);
            }
            let id = ids::OSSL_FUNC_SIGNATURE_DIGEST_VERIFY;
            // SAFETY: the type of `signature_digest_verify`.
            let verify = unsafe { functions.function::<VerifyFn>(id) }?;
            let (sig, tbs) = (signature.as_ptr(), message.as_ptr());
            // SAFETY: a live inner context; lengths of slices.
            Ok(unsafe { verify(fresh.inner, sig, signature.len(), tbs, message.len()) } == 1)
        };
        self.provider.core.quietly(|| verify().unwrap_or(false))
    }

    /// A new context of the same algorithm, which takes any digest.
    fn sibling(&self) -> Result<Self> {
        let algorithm = match self.kind {
            Kind::Rsa => 0,
            Kind::Ecdsa => 1,
            Kind::Ed25519 => 2,
            Kind::Ed448 => 3,
            Kind::Dsa => 4,
        };
        Self::new(self.provider, algorithm)
    }
}

fn functions(algorithm: usize) -> Result<&'static Inner> {
    let functions = inner::context()?
        .signatures
        .get(algorithm)
        .and_then(Option::as_ref);
    functions.ok_or_else(|| {
        Error::new(
            Reason::NotOffered,
            "this OpenSSL does not have the signature",
        )
    })
}

/// What a buffer for the name of a digest says: nothing, a digest of the pool, or another.
fn named(buffer: &[u8]) -> Option<Option<Hash>> {
    let name = string_in(buffer).filter(|name| !name.is_empty())?;
    Some(hash_from_name(name))
}

impl Context {
    /// Starts our own digest if the key is pooled and the digest is one of the pool's.
    fn start_digest(&mut self) -> Result<c_int> {
        if !matches!(self.kind, Kind::Rsa | Kind::Ecdsa | Kind::Dsa) {
            return Ok(1);
        }
        let Some(key) = self.pooled() else {
            return Ok(1);
        };
        match self.digest_set() {
            Some(Some(hash)) => self.digest = Some(Hasher::start(hash)?),
            _ if key.origin() == Origin::Resident => {
                let text = "the pool holds the private key and does not sign with this digest";
                return Err(Error::new(Reason::NotOffered, text));
            }
            _ => {}
        }
        Ok(1)
    }

    /// The digest of the whole message, of which this is the last part.
    ///
    /// # Safety
    /// `tbs` is readable for `len` bytes.
    unsafe fn finish_message(
        &self,
        tbs: *const u8,
        len: usize,
        value: &mut [u8; MAX_DIGEST],
    ) -> Result<Option<usize>> {
        let Some(digest) = &self.digest else {
            return Ok(None);
        };
        // SAFETY: the caller's promise.
        unsafe { digest.update(tbs, len) }?;
        digest.finish(value).map(Some)
    }

    /// Whether the inner context must see the message: it cannot sign for a key that is held.
    fn inner_hashes(&self) -> bool {
        self.digest.is_none()
            || self
                .key
                .as_ref()
                .is_none_or(|key| key.origin() != Origin::Resident)
    }
}
