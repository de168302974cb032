// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The calls of AWS-LC. X25519 by its own functions: a key of aws-lc-rs would compute its public half once more
//! whenever it is made from bytes.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use aws_lc_sys as aws;
use zeroize::Zeroizing;

use super::LocalError;
use crate::algorithms::{Aead, Sha2};

/// Bytes of a scalar, a public value and a secret of X25519.
pub(super) const X25519_LEN: usize = 32;

/// 32 bytes that are secret.
pub(super) type Secret = Zeroizing<[u8; X25519_LEN]>;

/// A fresh X25519 pair: public value and scalar.
pub(super) fn x25519_pair() -> ([u8; X25519_LEN], Secret) {
    let mut public = [0; X25519_LEN];
    let mut scalar = Secret::default();
    // SAFETY: writes 32 bytes to each, which have 32.
    unsafe { aws::X25519_keypair(public.as_mut_ptr(), scalar.as_mut_ptr()) };
    (public, scalar)
}

/// The public value of a scalar.
pub(super) fn x25519_public(scalar: &Secret) -> [u8; X25519_LEN] {
    let mut public = [0; X25519_LEN];
    // SAFETY: writes 32 bytes to the first and reads 32 of the second.
    unsafe { aws::X25519_public_from_private(public.as_mut_ptr(), scalar.as_ptr()) };
    public
}

/// The shared secret; an error if it is all zeros, which a peer of small order causes (RFC 7748, section 6.1).
pub(super) fn x25519(scalar: &Secret, peer: &[u8; X25519_LEN]) -> Result<Secret, LocalError> {
    let mut secret = Secret::default();
    // SAFETY: writes 32 bytes to the first and reads 32 of each of the others.
    let code = unsafe { aws::X25519(secret.as_mut_ptr(), scalar.as_ptr(), peer.as_ptr()) };
    if code != 1 {
        return Err(LocalError::Refused("the peer's X25519 share has a small order"));
    }
    Ok(secret)
}

/// A running hash. Its input may be secret, so it is wiped when it is dropped.
pub(crate) struct Digesting {
    kind: Sha2,
    state: DigestState,
}

#[derive(Clone)]
enum DigestState {
    /// SHA-224 and SHA-256
    Small(aws::SHA256_CTX),
    /// The others
    Large(aws::SHA512_CTX),
}

impl Digesting {
    pub(crate) fn new(kind: Sha2) -> Self {
        // These fill a state and do not fail.
        let state = match kind {
            Sha2::Sha224 | Sha2::Sha256 => {
                let mut state = MaybeUninit::<aws::SHA256_CTX>::zeroed();
                let start = state.as_mut_ptr();
                // SAFETY: each takes a state to be filled.
                unsafe {
                    match kind {
                        Sha2::Sha224 => aws::SHA224_Init(start),
                        _ => aws::SHA256_Init(start),
                    }
                };
                // SAFETY: plain numbers, for which all zeros are valid, and filled.
                DigestState::Small(unsafe { state.assume_init() })
            }
            Sha2::Sha384 | Sha2::Sha512 | Sha2::Sha512Of224 | Sha2::Sha512Of256 => {
                let mut state = MaybeUninit::<aws::SHA512_CTX>::zeroed();
                let start = state.as_mut_ptr();
                // SAFETY: each takes a state to be filled.
                unsafe {
                    match kind {
                        Sha2::Sha384 => aws::SHA384_Init(start),
                        Sha2::Sha512Of224 => aws::SHA512_224_Init(start),
                        Sha2::Sha512Of256 => aws::SHA512_256_Init(start),
                        _ => aws::SHA512_Init(start),
                    }
                };
                // SAFETY: as above.
                DigestState::Large(unsafe { state.assume_init() })
            }
        };
        Self { kind, state }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let start = bytes.as_ptr().cast();
        let len = bytes.len();
        // The digests of one size differ at their start and at their end alone.
        // SAFETY: each takes its own state, and bytes that are readable for their length.
        unsafe {
            match &mut self.state {
                DigestState::Small(state) => aws::SHA256_Update(state, start, len),
                DigestState::Large(state) => aws::SHA512_Update(state, start, len),
            }
        };
    }

    /// The result, in as many bytes as the hash has. The state stays to be wiped in its place.
    pub(crate) fn finish(&mut self) -> Zeroizing<[u8; MAX_DIGEST]> {
        let mut out = Zeroizing::new([0; MAX_DIGEST]);
        let start = out.as_mut_ptr();
        // SAFETY: each takes its own state, and room for its result, of which 64 bytes are the longest.
        unsafe {
            match &mut self.state {
                DigestState::Small(state) => match self.kind {
                    Sha2::Sha224 => aws::SHA224_Final(start, state),
                    _ => aws::SHA256_Final(start, state),
                },
                DigestState::Large(state) => match self.kind {
                    Sha2::Sha384 => aws::SHA384_Final(start, state),
                    Sha2::Sha512Of224 => aws::SHA512_224_Final(start, state),
                    Sha2::Sha512Of256 => aws::SHA512_256_Final(start, state),
                    _ => aws::SHA512_Final(start, state),
                },
            }
        };
        out
    }

    /// The same hash at the same place of its message.
    pub(crate) fn copy(&self) -> Self {
        Self { kind: self.kind, state: self.state.clone() }
    }
}

impl Drop for Digesting {
    fn drop(&mut self) {
        // SAFETY: wipes plain numbers, which are not used again; the variant's tag lies outside.
        unsafe {
            match &mut self.state {
                DigestState::Small(state) => cleanse(state),
                DigestState::Large(state) => cleanse(state),
            }
        }
    }
}

/// Bytes of the tag of a cipher.
pub(crate) const TAG_LEN: usize = 16;

/// A cipher of records: a key, and after [`start`](Self::start) a message. AWS-LC wipes both when this is dropped.
pub(crate) struct Ciphering(NonNull<aws::EVP_CIPHER_CTX>);

impl Ciphering {
    /// A cipher without a key.
    pub(crate) fn new(kind: Aead) -> Result<Self, LocalError> {
        let mut context = Self::empty()?;
        // SAFETY: each returns a constant.
        let cipher = unsafe {
            match kind {
                Aead::Aes128Gcm => aws::EVP_aes_128_gcm(),
                Aead::Aes192Gcm => aws::EVP_aes_192_gcm(),
                Aead::Aes256Gcm => aws::EVP_aes_256_gcm(),
                Aead::ChaCha20Poly1305 => aws::EVP_chacha20_poly1305(),
            }
        };
        context.initialise(cipher, std::ptr::null(), std::ptr::null(), true)?;
        Ok(context)
    }

    fn empty() -> Result<Self, LocalError> {
        // SAFETY: takes nothing.
        let context = unsafe { aws::EVP_CIPHER_CTX_new() };
        NonNull::new(context).map(Self).ok_or(LocalError::Failed)
    }

    /// `key` and `iv` are null or as long as the cipher takes them.
    fn initialise(
        &mut self,
        cipher: *const aws::EVP_CIPHER,
        key: *const u8,
        iv: *const u8,
        encrypts: bool,
    ) -> Result<(), LocalError> {
        // SAFETY: a live context, which is this value's alone.
        let context = unsafe { self.0.as_mut() };
        let no_engine = std::ptr::null_mut();
        let encrypts = encrypts.into();
        // SAFETY: a live context, a constant or null; the callers have checked the lengths of the others.
        let code = unsafe { aws::EVP_CipherInit_ex(context, cipher, no_engine, key, iv, encrypts) };
        succeeded(code)
    }

    fn control(&mut self, command: i32, len: usize, data: *mut u8) -> Result<(), LocalError> {
        let len = i32::try_from(len).map_err(|_| LocalError::Failed)?;
        // SAFETY: a live context; the callers pass `len` bytes that the command reads or writes, or null.
        succeeded(unsafe { aws::EVP_CIPHER_CTX_ctrl(self.0.as_ptr(), command, len, data.cast()) })
    }

    /// Sets the key. A message has to start after it.
    pub(crate) fn set_key(&mut self, kind: Aead, key: &[u8]) -> Result<(), LocalError> {
        if key.len() != kind.row().key_len {
            return Err(LocalError::Refused("the key has another length"));
        }
        self.initialise(std::ptr::null(), key.as_ptr(), std::ptr::null(), true)
    }

    /// Starts a message with this nonce.
    pub(crate) fn start(&mut self, nonce: &[u8], encrypts: bool) -> Result<(), LocalError> {
        self.control(aws::EVP_CTRL_AEAD_SET_IVLEN, nonce.len(), std::ptr::null_mut())?;
        self.initialise(std::ptr::null(), std::ptr::null(), nonce.as_ptr(), encrypts)
    }

    /// Takes additional authenticated data.
    ///
    /// # Errors
    /// If the message has begun, or the data is too long for the cipher.
    pub(crate) fn authenticate(&mut self, aad: &[u8]) -> Result<(), LocalError> {
        for part in aad.chunks(MAX_PART) {
            // SAFETY: a live context, and bytes that are readable for their length; null says that there is no output.
            let done = unsafe {
                let start = part.as_ptr();
                let len = part.len();
                aws::EVP_Cipher(self.0.as_ptr(), std::ptr::null_mut(), start, len)
            };
            if done < 0 {
                return Err(LocalError::Refused(
                    "data to be authenticated stands before the message",
                ));
            }
        }
        Ok(())
    }

    /// Encrypts or decrypts a part of the message.
    ///
    /// # Safety
    /// `input` is readable and `out` writable for `len` bytes. They are the same place, or do not overlap.
    ///
    /// # Errors
    /// If the message is too long for the cipher.
    pub(crate) unsafe fn process(
        &mut self,
        out: *mut u8,
        input: *const u8,
        len: usize,
    ) -> Result<(), LocalError> {
        let mut at = 0;
        while at < len {
            let part = (len - at).min(MAX_PART);
            // SAFETY: a live context; both places have `len` bytes by this function's contract, of which `part` follow
            // at this one.
            let done =
                unsafe { aws::EVP_Cipher(self.0.as_ptr(), out.add(at), input.add(at), part) };
            if done < 0 {
                return Err(LocalError::Refused("the message is too long for its cipher"));
            }
            at += part;
        }
        Ok(())
    }

    /// Ends an encryption.
    pub(crate) fn tag(&mut self) -> Result<[u8; TAG_LEN], LocalError> {
        self.finish()?;
        let mut tag = [0; TAG_LEN];
        self.control(aws::EVP_CTRL_AEAD_GET_TAG, TAG_LEN, tag.as_mut_ptr())?;
        Ok(tag)
    }

    /// Ends a decryption: whether this is the start of the message's tag. At least a byte of it is compared.
    pub(crate) fn verifies(&mut self, tag: &[u8]) -> bool {
        let mut copy = [0; TAG_LEN];
        let Some(room) = copy.get_mut(..tag.len()).filter(|room| !room.is_empty()) else {
            return false;
        };
        room.copy_from_slice(tag);
        let set = self.control(aws::EVP_CTRL_AEAD_SET_TAG, tag.len(), copy.as_mut_ptr());
        set.is_ok() && self.finish().is_ok()
    }

    fn finish(&mut self) -> Result<(), LocalError> {
        // SAFETY: a live context; without an input the function ends the message, and writes nothing for these ciphers.
        let done =
            unsafe { aws::EVP_Cipher(self.0.as_ptr(), std::ptr::null_mut(), std::ptr::null(), 0) };
        if done < 0 { Err(LocalError::Refused("the message is not authentic")) } else { Ok(()) }
    }

    /// The same cipher at the same place of its message.
    pub(crate) fn copy(&self) -> Result<Self, LocalError> {
        let copy = Self::empty()?;
        // SAFETY: two live contexts.
        succeeded(unsafe { aws::EVP_CIPHER_CTX_copy(copy.0.as_ptr(), self.0.as_ptr()) })?;
        Ok(copy)
    }
}

impl Drop for Ciphering {
    fn drop(&mut self) {
        // SAFETY: a context of `EVP_CIPHER_CTX_new`, which is not used again.
        unsafe { aws::EVP_CIPHER_CTX_free(self.0.as_ptr()) };
    }
}

/// Most bytes that AWS-LC takes in one call, which counts them by an `int`: a multiple of all block sizes.
const MAX_PART: usize = 1 << 30;

fn succeeded(code: i32) -> Result<(), LocalError> {
    if code == 1 { Ok(()) } else { Err(LocalError::Failed) }
}

/// # Safety
/// All zeros are a value of `T`.
unsafe fn cleanse<T>(value: &mut T) {
    // SAFETY: writes zeros to the whole of the value, by this function's contract.
    unsafe { aws::OPENSSL_cleanse(std::ptr::from_mut(value).cast(), size_of::<T>()) };
}

/// Bytes of the longest result of a hash.
pub(crate) const MAX_DIGEST: usize = 64;

/// Whether two secrets are equal, in a time that depends on their lengths alone.
pub(crate) fn equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        // SAFETY: both are readable for this length.
        && unsafe { aws::CRYPTO_memcmp(one.as_ptr().cast(), other.as_ptr().cast(), one.len()) } == 0
}

/// Fresh random bytes.
pub(crate) fn random(bytes: &mut [u8]) {
    // It never fails: AWS-LC ends the process where there is no entropy.
    // SAFETY: writes the whole slice.
    unsafe { aws::RAND_bytes(bytes.as_mut_ptr(), bytes.len()) };
}

/// Nanoseconds since the machine was started, with the time that it slept.
pub(crate) fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: takes a place for a time.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// A pair of X25519 that was made ahead.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct KeptPair {
    pub(super) public: [u8; X25519_LEN],
    pub(super) scalar: [u8; X25519_LEN],
}

/// Most pairs that are kept: one batch of lanes, less the one that is used at once.
pub(super) const KEPT_PAIRS: usize = 7;

/// Pairs made ahead, all at one time.
#[repr(C)]
pub(super) struct KeptPairs {
    /// Pairs that are left, at the start of `pairs`.
    pub(super) count: u64,
    /// Time at which the pairs were made, by [`now`].
    pub(super) made: u64,
    pub(super) pairs: [KeptPair; KEPT_PAIRS],
}

/// Memory of one page for secrets. A forked child has zeros there, and no dump of the process contains it.
pub(super) struct SecretPage(NonNull<KeptPairs>);

impl SecretPage {
    /// A page for secrets; `None` where the kernel cannot promise the zeros (before Linux 4.14), or has no memory.
    pub(super) fn new() -> Option<Self> {
        const { assert!(size_of::<KeptPairs>() <= PAGE) };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping wherever there is room.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let page = Self(NonNull::new(start.cast())?);
        // SAFETY: the whole mapping of above, as in the calls below.
        let wiped = unsafe { libc::madvise(start, PAGE, libc::MADV_WIPEONFORK) } == 0;
        // SAFETY: as above.
        let not_dumped = unsafe { libc::madvise(start, PAGE, libc::MADV_DONTDUMP) } == 0;
        // Where locked memory is not allowed, the page may reach the swap.
        // SAFETY: as above.
        unsafe { libc::mlock(start, PAGE) };
        (wiped && not_dumped).then_some(page)
    }

    pub(super) fn pairs(&mut self) -> &mut KeptPairs {
        // SAFETY: mapped, aligned to a page, long enough, and zeros are a value; this is the only way to it.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for SecretPage {
    fn drop(&mut self) {
        // SAFETY: plain numbers.
        unsafe { cleanse(self.pairs()) };
        // SAFETY: the whole mapping of `new`, which is not used again.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

/// Bytes of a page on every processor that has the lanes.
const PAGE: usize = 4096;

/// Wipes a pair that was taken.
pub(super) fn wipe(pair: &mut KeptPair) {
    // SAFETY: plain numbers.
    unsafe { cleanse(pair) };
}
