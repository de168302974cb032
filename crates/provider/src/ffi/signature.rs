// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Signatures: OpenSSL's own, except that a private operation of a pooled key goes to the pool, and one of a key
//! that signs locally to AWS-LC.
//!
//! The inner context keeps all parameters and does every verification. It does not give out the digest of a message,
//! so the provider computes that for a pooled key. If the private key is in this process, the inner context hashes
//! the message, too, and can finish the signature at any moment.

use std::ffi::{CStr, c_char, c_int};
use std::time::Instant;

use millrace_operation::{Hash, MAX_INPUT_LEN, MlDsaInput, Operation, Output};

use super::delegate::{
    DelegatedOperation, Finish, OneShot, Rows, Wrapped, digest_init, dispatch, dupctx, finish,
    get_params, init, listing, newctx_with_properties, own_listing, produce, set_noted_params,
    status, transform, update, verify, verify_final,
};
use super::handle::{Handle, free, with_context};
use super::hasher::{Hasher, MAX_DIGEST};
use super::ids;
use super::inner::{self, InnerAlgorithm, call, succeeded};
use super::key::{Key, Origin};
use super::libcrypto::Ptr;
use super::memory::bytes;
use super::params::{digest_in, entries, integer};
use super::private::{self, JobWait};
use super::types::Param;
use crate::algorithms::{AlgorithmRow, Scheme, Signature, each_signature};
use crate::config::Verify;
use crate::error::{Error, Reason, Result};
use crate::operation_params::{self, Digest, PAD_PSS, RsaSign};
use crate::sampling::{SampleRate, Scrutiny};

type Context = Wrapped<Signing>;

/// The rows of each algorithm's dispatch table.
pub(crate) const DISPATCH: [fn() -> Rows; Signature::ALL.len()] = each_signature!(rows);

#[rustfmt::skip]
fn rows<const A: usize>() -> Rows {
    let mut rows = dispatch! { signature {
        NEWCTX                 => newctx_with_properties<Signing, A>;
        FREECTX                => free<Context>;
        DUPCTX                 => dupctx<Signing>;
        SIGN_INIT              => init<Signing>;
        SIGN                   => produce<Signing>;
        VERIFY_INIT            => init<Signing>;
        VERIFY                 => verify<Context>;
        VERIFY_RECOVER_INIT    => init<Signing>;
        VERIFY_RECOVER         => transform<Context>;
        DIGEST_SIGN_INIT       => digest_init<Signing>;
        DIGEST_SIGN_UPDATE     => update_signed<>;
        DIGEST_SIGN_FINAL      => finish<Signing>;
        DIGEST_SIGN            => produce<Signing>;
        DIGEST_VERIFY_INIT     => digest_init<Signing>;
        DIGEST_VERIFY_UPDATE   => update<Context>;
        DIGEST_VERIFY_FINAL    => verify_final<Context>;
        DIGEST_VERIFY          => verify<Context>;
        GET_CTX_PARAMS         => get_params<Context>;
        GETTABLE_CTX_PARAMS    => listing<Signing, A>;
        SET_CTX_PARAMS         => set_noted_params<Signing>;
        SETTABLE_CTX_PARAMS    => listing<Signing, A>;
        GET_CTX_MD_PARAMS      => get_params<Context>;
        GETTABLE_CTX_MD_PARAMS => own_listing<Context>;
        SET_CTX_MD_PARAMS      => set_noted_params<Signing>;
        SETTABLE_CTX_MD_PARAMS => own_listing<Context>;
        SIGN_MESSAGE_INIT      => init<Signing>;
        SIGN_MESSAGE_UPDATE    => update_signed<>;
        SIGN_MESSAGE_FINAL     => finish<Signing>;
        VERIFY_MESSAGE_INIT    => init<Signing>;
        VERIFY_MESSAGE_UPDATE  => update<Context>;
        VERIFY_MESSAGE_FINAL   => status<Context>;
    } };
    // Takes nothing: OpenSSL's own function answers.
    rows.push((ids::signature::QUERY_KEY_TYPES, std::ptr::null()));
    rows
}

/// State of a signature context, in addition to the inner one.
#[derive(Default)]
struct Signing {
    /// The digest of the message so far, while a message is signed with a pooled key.
    digest: Option<Hasher>,
    /// Whether the input of `sign` is a message, not a digest (since OpenSSL 3.4).
    takes_message: bool,
    /// Whether the application has set something that the pool does not know.
    special: bool,
    /// Whether the message so far is one [sequence](operation_params::is_sequence). `None` before its first part.
    sequence: Option<bool>,
}

impl DelegatedOperation for Signing {
    const ROWS: &'static [AlgorithmRow] = Signature::ROWS;
    const NEW: i32 = ids::signature::NEWCTX;
    const FREE: i32 = ids::signature::FREECTX;
    const GET_PARAMS: i32 = ids::signature::GET_CTX_PARAMS;
    const NEW_TAKES_PROPERTIES: bool = true;

    fn inner(context: &'static inner::InnerContext) -> &'static [Option<InnerAlgorithm>] {
        &context.signatures
    }

    fn copy(&self) -> Result<Self> {
        Ok(Self {
            digest: self.digest.as_ref().map(Hasher::copy).transpose()?,
            takes_message: self.takes_message,
            special: self.special,
            sequence: self.sequence,
        })
    }

    /// The pool does not know:
    /// - Ed25519 with a prehash or a context, and nonces that are derived from the message (since OpenSSL 3.2);
    /// - ML-DSA with a context, another encoding of the message or a given μ, or without fresh randomness (since 3.5).
    unsafe fn note(&mut self, settings: *const Param) {
        // SAFETY: by the trait's contract.
        for param in unsafe { entries(settings) } {
            // SAFETY: the key of an entry is a C string.
            self.special |= match unsafe { CStr::from_ptr(param.key) }.to_bytes() {
                b"instance" => {
                    // SAFETY: by the trait's contract the entry describes readable memory.
                    let name = unsafe { bytes(param.data.cast(), param.data_size) };
                    // Some callers count the terminator.
                    !name.strip_suffix(&[0]).unwrap_or(name).eq_ignore_ascii_case(b"Ed25519")
                }
                b"context-string" => param.data_size > 0,
                b"nonce-type" | b"deterministic" | b"mu" => {
                    // SAFETY: by the trait's contract the entry describes readable memory.
                    unsafe { integer(param) != Some(0) }
                }
                // SAFETY: by the trait's contract the entry describes readable memory.
                b"message-encoding" => unsafe { integer(param) != Some(1) },
                b"test-entropy" => true,
                _ => false,
            };
        }
    }

    /// Length of an ML-DSA signature with a pooled key: the inner context knows it only with the private key.
    fn result_len(context: &Context, key: &Key) -> Result<Option<usize>> {
        Ok(match context.row.scheme {
            Scheme::MlDsa(set) if key.origin() == Origin::Resident => Some(set.signature_len()),
            _ => None,
        })
    }

    fn started(context: &mut Context, id: i32) -> Result<()> {
        context.state.takes_message = id == ids::signature::SIGN_MESSAGE_INIT;
        match id {
            ids::signature::SIGN_MESSAGE_INIT | ids::signature::DIGEST_SIGN_INIT => {
                context.start_message()
            }
            _ => Ok(()),
        }
    }
}

impl OneShot for Signing {
    fn produce(
        context: &mut Context,
        id: i32,
        key: &Key,
        input: &[u8],
        _room: usize,
    ) -> Result<Option<Output>> {
        if id == ids::signature::DIGEST_SIGN {
            return context.sign_message(key, input);
        }
        match &mut context.state.digest {
            Some(_) => {
                context.state.update(input)?;
                context.sign_running(key)
            }
            None if context.state.takes_message => context.sign_message(key, input),
            None => context.sign_digest(key, input),
        }
    }
}

impl Finish for Signing {
    fn finish(context: &mut Context, key: &Key, _room: usize) -> Result<Option<Output>> {
        context.sign_running(key)
    }
}

impl Signing {
    /// Takes a part of a message that is signed by its digest.
    fn update(&mut self, part: &[u8]) -> Result<()> {
        let Some(digest) = &mut self.digest else {
            return Ok(());
        };
        self.sequence = Some(self.sequence.is_none() && operation_params::is_sequence(part));
        digest.update(part)
    }
}

/// How a job waits for a signature. HAProxy makes certificates in a callback inside a handshake
/// (`generate-certificates`), with a lock that handshakes of its other threads and jobs wait for.
fn job_wait(is_sequence: bool) -> JobWait {
    if is_sequence { JobWait::Block } else { JobWait::Pause }
}

impl Context {
    /// Starts a digest in the provider if the inner context does not sign and the pool knows the digest.
    fn start_message(&mut self) -> Result<()> {
        self.state.sequence = None;
        let signs_digests = matches!(self.row.scheme, Scheme::Rsa | Scheme::Ecdsa | Scheme::Dsa);
        let Some(key) = self.taken().filter(|_| signs_digests) else {
            return Ok(());
        };
        match self.digest_set() {
            Digest::Known(hash) => self.state.digest = Some(Hasher::start(hash)?),
            _ if key.origin() == Origin::Resident => {
                let text = "the pool holds the private key and does not sign with this digest";
                return Err(Error::new(Reason::NotOffered, text));
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the inner context must see the message: it cannot sign for a key of the pool alone.
    fn inner_hashes(&self) -> bool {
        self.state.digest.is_none()
            || self.key.as_ref().is_none_or(|key| key.origin() != Origin::Resident)
    }

    /// The digest of the inner context, also one that the inner provider chose.
    fn digest_set(&self) -> Digest {
        let mut name = [0; Digest::MAX_NAME];
        let mut request = [Param::string(c"digest", &mut name), Param::END];
        self.get(&mut request);
        digest_in(&name)
    }

    fn rsa_settings(&self, key: &Key) -> Result<RsaSign> {
        let mut pad_mode = 0;
        let mut salt_len = 0;
        let mut digest = [0; Digest::MAX_NAME];
        let mut mgf1 = [0; Digest::MAX_NAME];
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
        Ok(RsaSign { pad_mode, digest: digest_in(&digest), mgf1: digest_in(&mgf1), salt_len, bits })
    }

    /// Signs the message that was given in parts. `None` if the inner context has to do it.
    fn sign_running(&mut self, key: &Key) -> Result<Option<Output>> {
        let Some(digest) = &mut self.state.digest else {
            return private::run(key, None, &|_, _| false);
        };
        let mut value = [0; MAX_DIGEST];
        let len = digest.finish(&mut value)?;
        self.sign_digest(key, &value[..len])
    }

    /// Signs a digest in the pool. `None` if the inner context has to do it.
    fn sign_digest(&self, key: &Key, digest: &[u8]) -> Result<Option<Output>> {
        if self.state.special {
            return private::run(key, None, &|_, _| false);
        }
        match self.row.scheme {
            Scheme::Rsa => {
                let settings = self.rsa_settings(key)?;
                let request = operation_params::rsa_sign(&settings, digest);
                private::run_in_job(key, request, self.job_wait(), &|output, _| {
                    self.rsa_verifies(key, &settings, output, digest)
                })
            }
            Scheme::Ecdsa => self.sign_dsa(key, digest, |hash| Operation::EcdsaSign { hash }),
            Scheme::Dsa => self.sign_dsa(key, digest, |hash| Operation::DsaSign { hash }),
            Scheme::Ed25519
            | Scheme::Ed448
            | Scheme::MlDsa(_)
            | Scheme::Ecdh
            | Scheme::X25519
            | Scheme::X448
            | Scheme::Dh => private::run(key, None, &|_, _| false),
        }
    }

    fn job_wait(&self) -> JobWait {
        job_wait(self.state.sequence == Some(true))
    }

    /// Signs a digest by DSA or ECDSA.
    fn sign_dsa(
        &self,
        key: &Key,
        digest: &[u8],
        operation: fn(Hash) -> Operation,
    ) -> Result<Option<Output>> {
        let request = operation_params::dsa_hash(self.digest_set(), digest)
            .map(|hash| (operation(hash), digest.to_vec()));
        private::run_in_job(key, request, self.job_wait(), &|output, scrutiny| {
            operation_params::is_dsa_signature(output)
                && (!self.is_verified(key, output, scrutiny)
                    || self.digest_verifies(key, &[Param::END], output, digest))
        })
    }

    /// Signs a whole message in the pool. `None` if the inner context has to do it.
    fn sign_message(&self, key: &Key, message: &[u8]) -> Result<Option<Output>> {
        let (operation, len) = match self.row.scheme {
            Scheme::Ed25519 => (Operation::Ed25519Sign, 64),
            Scheme::MlDsa(set) => {
                (Operation::MlDsaSign { input: MlDsaInput::Message }, set.signature_len())
            }
            Scheme::Rsa
            | Scheme::Ecdsa
            | Scheme::Dsa
            | Scheme::Ed448
            | Scheme::Ecdh
            | Scheme::X25519
            | Scheme::X448
            | Scheme::Dh => return private::run(key, None, &|_, _| false),
        };
        if self.state.special || message.len() > MAX_INPUT_LEN {
            return private::run(key, None, &|_, _| false);
        }
        let wait = job_wait(operation_params::is_sequence(message));
        private::run_in_job(key, Some((operation, message.to_vec())), wait, &|output, scrutiny| {
            output.len() == len
                && (!self.is_verified(key, output, scrutiny)
                    || self.message_verifies(key, output, message))
        })
    }

    /// Verifies an RSA signature from the pool with the public key, in a context of its own.
    fn rsa_verifies(&self, key: &Key, settings: &RsaSign, signature: &[u8], digest: &[u8]) -> bool {
        let mut pad_mode = settings.pad_mode;
        let mut salt_len = settings.salt_len;
        let mut request = Vec::with_capacity(5);
        request.push(Param::int(c"pad-mode", &mut pad_mode));
        let name = settings.digest.openssl_name();
        request.extend(name.map(|name| Param::text(c"digest", name)));
        if settings.pad_mode == PAD_PSS {
            let mgf1 = settings.mgf1.openssl_name();
            request.extend(mgf1.map(|name| Param::text(c"mgf1-digest", name)));
            request.push(Param::int(c"saltlen", &mut salt_len));
        }
        request.push(Param::END);
        self.digest_verifies(key, &request, signature, digest)
    }

    /// Whether this signature, which is not by RSA, is verified with the public key.
    fn is_verified(&self, key: &Key, signature: &[u8], scrutiny: Scrutiny) -> bool {
        let provider = key.provider;
        match (provider.config.verify, scrutiny) {
            (Verify::All, _) | (Verify::On, Scrutiny::Full) => true,
            (Verify::On, Scrutiny::Form) => false,
            (Verify::On, Scrutiny::Sample) => {
                let is_quick = match self.row.scheme {
                    Scheme::Ecdsa => signature.len() <= QUICK_ECDSA_LEN,
                    Scheme::Ed25519 | Scheme::MlDsa(_) => true,
                    _ => false,
                };
                let rate = if is_quick { SampleRate::QUICK } else { SampleRate::SLOW };
                provider.process().sampler.picks(rate, Instant::now())
            }
        }
    }

    fn digest_verifies(
        &self,
        key: &Key,
        settings: &[Param],
        signature: &[u8],
        digest: &[u8],
    ) -> bool {
        debug_assert!(settings.last().is_some_and(|param| param.key.is_null()));
        let init = ids::signature::VERIFY_INIT;
        let set = ids::signature::SET_CTX_PARAMS;
        let (none, settings): (*const Param, _) = (std::ptr::null(), settings.as_ptr());
        self.verifies(ids::signature::VERIFY, signature, digest, |fresh| {
            // SAFETY: `verify_init` takes a live context, key data of the same key type and no settings.
            let started = unsafe {
                call!(fresh.functions, init,
                    fn(fresh.inner => Ptr, key.inner() => Ptr, none => *const Param) -> c_int)
            }?;
            // SAFETY: `set_ctx_params` takes a live context and an array that a null key ends.
            let set = unsafe {
                call!(fresh.functions, set, fn(fresh.inner => Ptr, settings => *const Param) -> c_int)
            }?;
            Ok(started == 1 && set == 1)
        })
    }

    fn message_verifies(&self, key: &Key, signature: &[u8], message: &[u8]) -> bool {
        let init = ids::signature::DIGEST_VERIFY_INIT;
        let (digest, none): (*const c_char, *const Param) = (std::ptr::null(), std::ptr::null());
        self.verifies(ids::signature::DIGEST_VERIFY, signature, message, |fresh| {
            // SAFETY: `digest_verify_init` takes a live context, no digest where the scheme has one of
            // its own, key data of the same key type and no settings.
            let started = unsafe {
                call!(fresh.functions, init,
                    fn(fresh.inner => Ptr, digest => *const c_char, key.inner() => Ptr, none => *const Param)
                        -> c_int)
            }?;
            Ok(started == 1)
        })
    }

    /// Verifies by the function `id` of a new context, which `start` initialises.
    fn verifies(
        &self,
        id: i32,
        signature: &[u8],
        signed: &[u8],
        start: impl FnOnce(&Self) -> Result<bool>,
    ) -> bool {
        let core = &self.provider.core;
        core.discarding_errors(|| self.try_verify(id, signature, signed, start)).unwrap_or(false)
    }

    fn try_verify(
        &self,
        id: i32,
        signature: &[u8],
        signed: &[u8],
        start: impl FnOnce(&Self) -> Result<bool>,
    ) -> Result<bool> {
        // The first algorithm of a scheme takes any digest.
        let plain = Signature::ROWS.iter().position(|row| row.scheme == self.row.scheme);
        let fresh = Self::new(self.provider, plain.ok_or_else(Error::library)?)?;
        if !start(&fresh)? {
            return Ok(false);
        }
        let sig = signature.as_ptr();
        let tbs = signed.as_ptr();
        // SAFETY: `verify` and `digest_verify` take a live context and two byte strings, which are the slices.
        let status = unsafe {
            call!(fresh.functions, id,
                fn(fresh.inner => Ptr, sig => *const u8, signature.len() => usize,
                    tbs => *const u8, signed.len() => usize) -> c_int)
        }?;
        Ok(status == 1)
    }
}

/// Longest ECDSA signature by a curve of 256 bits, in bytes. OpenSSL verifies those of larger curves slowly.
const QUICK_ECDSA_LEN: usize = 72;

/// Input of a signature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureInput {
    Digest,
    Message,
}

/// Signs by OpenSSL in a context of its own, and drops the signature: to measure it.
pub(crate) fn sign_by_openssl(key: &Key, input: &[u8], kind: SignatureInput) -> Result<()> {
    /// Bytes of room for a signature: more than the longest, that of ML-DSA-87.
    const ROOM: usize = 8192;
    let row = Signature::ROWS.iter().position(|row| row.keys.contains(&key.data.key_type));
    let fresh = Context::new(key.provider, row.ok_or_else(Error::library)?)?;
    let none: *const Param = std::ptr::null();
    let (started, sign) = match kind {
        SignatureInput::Digest => {
            // SAFETY: `sign_init` takes a live context, key data of the same key type and no settings.
            let started = unsafe {
                call!(fresh.functions, ids::signature::SIGN_INIT,
                    fn(fresh.inner => Ptr, key.inner() => Ptr, none => *const Param) -> c_int)
            };
            (started, ids::signature::SIGN)
        }
        SignatureInput::Message => {
            let digest: *const c_char = std::ptr::null();
            // SAFETY: `digest_sign_init` takes a live context, no digest where the scheme has one of its own, key
            // data of the same key type and no settings.
            let started = unsafe {
                call!(fresh.functions, ids::signature::DIGEST_SIGN_INIT,
                    fn(fresh.inner => Ptr, digest => *const c_char, key.inner() => Ptr, none => *const Param)
                        -> c_int)
            };
            (started, ids::signature::DIGEST_SIGN)
        }
    };
    succeeded(started?)?;
    let mut out = vec![0_u8; ROOM];
    let mut len = 0_usize;
    let out = out.as_mut_ptr();
    let len = &raw mut len;
    let start = input.as_ptr();
    let input_len = input.len();
    // SAFETY: `sign` and `digest_sign` take a live context, a buffer with its size and a place for the length, and
    // the input.
    succeeded(unsafe {
        call!(fresh.functions, sign,
            fn(fresh.inner => Ptr, out => *mut u8, len => *mut usize, ROOM => usize,
                start => *const u8, input_len => usize) -> c_int)
    }?)
}

/// Takes a part of the message that is signed.
unsafe extern "C" fn update_signed<const ID: i32>(
    pointer: Ptr,
    data: *const u8,
    len: usize,
) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: libcrypto passes `len` readable bytes, which nothing changes during the call.
        context.state.update(unsafe { bytes(data, len) })?;
        if !context.inner_hashes() {
            return Ok(1);
        }
        // SAFETY: the updating functions have this type; the arguments are those of libcrypto.
        unsafe {
            call!(context.functions, ID,
                fn(context.inner => Ptr, data => *const u8, len => usize) -> c_int)
        }
    };
    // SAFETY: libcrypto passes a context of this operation.
    unsafe { with_context(pointer, entry) }
}
