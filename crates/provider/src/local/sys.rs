// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The calls of AWS-LC. X25519 by its own functions: a key of aws-lc-rs would compute its public half once more
//! whenever it is made from bytes.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use aws_lc_sys as aws;
use zeroize::Zeroizing;

use super::LocalError;
use super::schedule::ScheduleHash;

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

/// A hash under way. What it has taken in may be secret, so it is wiped at its end.
struct Digesting(DigestState);

enum DigestState {
    Sha256(aws::SHA256_CTX),
    Sha384(aws::SHA512_CTX),
    Sha512(aws::SHA512_CTX),
}

impl Digesting {
    fn new(hash: ScheduleHash) -> Self {
        // SAFETY: plain numbers, for which all zeros are valid.
        let (mut small, mut large) = unsafe {
            (
                MaybeUninit::<aws::SHA256_CTX>::zeroed().assume_init(),
                MaybeUninit::<aws::SHA512_CTX>::zeroed().assume_init(),
            )
        };
        // These fill a state and do not fail.
        Self(match hash {
            ScheduleHash::Sha256 => {
                // SAFETY: takes a state to be filled.
                unsafe { aws::SHA256_Init(&mut small) };
                DigestState::Sha256(small)
            }
            ScheduleHash::Sha384 => {
                // SAFETY: as above.
                unsafe { aws::SHA384_Init(&mut large) };
                DigestState::Sha384(large)
            }
            ScheduleHash::Sha512 => {
                // SAFETY: as above.
                unsafe { aws::SHA512_Init(&mut large) };
                DigestState::Sha512(large)
            }
        })
    }

    fn update(&mut self, bytes: &[u8]) {
        let (start, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: each takes its own state, and bytes that are readable for their length.
        unsafe {
            match &mut self.0 {
                DigestState::Sha256(state) => aws::SHA256_Update(state, start, len),
                DigestState::Sha384(state) => aws::SHA384_Update(state, start, len),
                DigestState::Sha512(state) => aws::SHA512_Update(state, start, len),
            }
        };
    }

    /// The result, in as many bytes as the hash has.
    fn finish(mut self) -> Zeroizing<[u8; MAX_DIGEST]> {
        let mut out = Zeroizing::new([0; MAX_DIGEST]);
        let start = out.as_mut_ptr();
        // SAFETY: each takes its own state, and room for its result, of which 64 bytes are the longest.
        unsafe {
            match &mut self.0 {
                DigestState::Sha256(state) => aws::SHA256_Final(start, state),
                DigestState::Sha384(state) => aws::SHA384_Final(start, state),
                DigestState::Sha512(state) => aws::SHA512_Final(start, state),
            }
        };
        out
    }
}

impl Drop for Digesting {
    fn drop(&mut self) {
        // SAFETY: wipes plain numbers, which are not used again; the variant's tag lies outside.
        unsafe {
            match &mut self.0 {
                DigestState::Sha256(state) => cleanse(state),
                DigestState::Sha384(state) | DigestState::Sha512(state) => cleanse(state),
            }
        }
    }
}

/// # Safety
/// All zeros are a value of `T`.
unsafe fn cleanse<T>(value: &mut T) {
    // SAFETY: writes zeros to the whole of the value, by this function's contract.
    unsafe { aws::OPENSSL_cleanse(std::ptr::from_mut(value).cast(), size_of::<T>()) };
}

/// Bytes of the longest result of a hash.
pub(super) const MAX_DIGEST: usize = 64;

/// Bytes of the longest block of a hash.
const MAX_BLOCK: usize = 128;

/// HMAC (RFC 2104) over parts that follow each other. AWS-LC's own functions for it choose the hash by a table at each
/// step, which takes a third of the time of inputs as short as these.
fn hmac(hash: ScheduleHash, key: &[u8], parts: [&[u8]; 3]) -> Zeroizing<[u8; MAX_DIGEST]> {
    let digest_len = hash.digest_len();
    let block = &mut Zeroizing::new([0; MAX_BLOCK])[..hash.block_len()];
    if let Some(room) = block.get_mut(..key.len()) {
        room.copy_from_slice(key);
    } else {
        let mut short = Digesting::new(hash);
        short.update(key);
        block[..digest_len].copy_from_slice(&short.finish()[..digest_len]);
    }
    block.iter_mut().for_each(|byte| *byte ^= 0x36);
    let mut inner = Digesting::new(hash);
    inner.update(block);
    parts.iter().for_each(|part| inner.update(part));
    let inner = inner.finish();
    block.iter_mut().for_each(|byte| *byte ^= 0x36 ^ 0x5c);
    let mut outer = Digesting::new(hash);
    outer.update(block);
    outer.update(&inner[..digest_len]);
    outer.finish()
}

/// HKDF-Extract (RFC 5869) into `out`, which has the length of the hash.
pub(super) fn hkdf_extract(
    hash: ScheduleHash,
    salt: &[u8],
    secret: &[u8],
    out: &mut [u8],
) -> Result<(), LocalError> {
    if out.len() != hash.digest_len() {
        return Err(LocalError::Refused("an extracted key has the hash's length"));
    }
    let key = hmac(hash, salt, [secret, &[], &[]]);
    out.copy_from_slice(&key[..out.len()]);
    Ok(())
}

/// HKDF-Expand (RFC 5869) into the whole of `out`.
pub(super) fn hkdf_expand(
    hash: ScheduleHash,
    key: &[u8],
    info: &[u8],
    out: &mut [u8],
) -> Result<(), LocalError> {
    let digest_len = hash.digest_len();
    let mut before = Zeroizing::new([0; MAX_DIGEST]);
    let mut before_len = 0;
    for (index, part) in out.chunks_mut(digest_len).enumerate() {
        let number = u8::try_from(index + 1)
            .map_err(|_| LocalError::Refused("a label, a context or an output is too long"))?;
        before = hmac(hash, key, [&before[..before_len], info, &[number]]);
        before_len = digest_len;
        part.copy_from_slice(&before[..part.len()]);
    }
    Ok(())
}

/// Whether two secrets are equal, in a time that depends on their lengths alone.
pub(super) fn equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        // SAFETY: both are readable for this length.
        && unsafe { aws::CRYPTO_memcmp(one.as_ptr().cast(), other.as_ptr().cast(), one.len()) } == 0
}

/// Fresh random bytes.
pub(super) fn random(bytes: &mut [u8]) {
    // It never fails: AWS-LC ends the process where there is no entropy.
    // SAFETY: writes the whole slice.
    unsafe { aws::RAND_bytes(bytes.as_mut_ptr(), bytes.len()) };
}

/// Nanoseconds since the machine was started, with the time that it slept.
pub(super) fn now() -> u64 {
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
