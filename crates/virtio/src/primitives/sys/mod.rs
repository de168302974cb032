// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! AWS-LC's C interface behind owning types. The only `unsafe` of this crate.
//!
//! Rules for the whole file:
//!
//! - A wrapper is the only owner of a non-null pointer, and frees it once, in `Drop`. AWS-LC zeroises all memory
//!   that it frees.
//! - Slices go in as pointer and length, and AWS-LC does not keep them.
//! - Each failure empties the thread's error queue.
//! - Lengths that AWS-LC takes as `int` are bounded by [`MAX_REQUEST_LEN`](crate::request::MAX_REQUEST_LEN).

use std::ffi::{c_int, c_long, c_uint};
use std::ptr::{self, NonNull};

use aws_lc_sys as aws;
use millrace_operation::{Curve, Hash};
use vm_memory::VolatileSlice;
use zeroize::Zeroize;

use crate::spec::{AeadAlgorithm, CipherAlgorithm, Direction, HashAlgorithm, MacAlgorithm};

/// Types that own an object of AWS-LC, and free it when they are dropped.
macro_rules! owner {
    ($(#[$doc:meta])* $visibility:vis $name:ident(aws::$object:ident), freed by aws::$free:ident;) => {
        $(#[$doc])*
        $visibility struct $name(NonNull<aws::$object>);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by AWS-LC; the wrapper is its only owner, and uses it no more.
                unsafe { aws::$free(self.0.as_ptr()) }
            }
        }

        // SAFETY: such an object has no thread affinity; its methods that change it take `&mut self`.
        unsafe impl Send for $name {}
    };
}

fn clear_errors() {
    // SAFETY: no arguments; touches only thread-local state.
    unsafe { aws::ERR_clear_error() }
}

/// `true` for 1, AWS-LC's success; otherwise empties the error queue.
fn succeeded(code: c_int) -> bool {
    if code != 1 {
        clear_errors();
    }
    code == 1
}

/// Owns what `pointer` points to, or empties the error queue if it is null.
fn owned<T>(pointer: *mut T) -> Option<NonNull<T>> {
    let owned = NonNull::new(pointer);
    if owned.is_none() {
        clear_errors();
    }
    owned
}

owner! {
    /// A context of a block or stream cipher with its key.
    Context(aws::EVP_CIPHER_CTX), freed by aws::EVP_CIPHER_CTX_free;
}

impl Context {
    fn new() -> Option<Self> {
        // SAFETY: no arguments.
        owned(unsafe { aws::EVP_CIPHER_CTX_new() }).map(Self)
    }

    /// Sets what is given of cipher, key and IV. The caller has checked their lengths.
    fn init(
        &mut self,
        cipher: Option<*const aws::EVP_CIPHER>,
        key: Option<&[u8]>,
        iv: Option<&[u8]>,
        direction: Direction,
    ) -> bool {
        let encrypt = c_int::from(direction == Direction::Encrypt);
        // SAFETY: the context is valid; a cipher is a static of the library; key and IV have the length that the
        // cipher takes, as the caller has checked, and null leaves a part as it is.
        succeeded(unsafe {
            aws::EVP_CipherInit_ex(
                self.0.as_ptr(),
                cipher.unwrap_or(ptr::null()),
                ptr::null_mut(),
                key.map_or(ptr::null(), <[u8]>::as_ptr),
                iv.map_or(ptr::null(), <[u8]>::as_ptr),
                encrypt,
            )
        })
    }

    /// Transforms `len` bytes. The context has no padding.
    ///
    /// # Safety
    /// `source` is readable and `target` writable for `len` bytes; they are the same place, or do not overlap. Other
    /// processes may change them during the call.
    unsafe fn update(&mut self, source: *const u8, target: *mut u8, len: usize) -> bool {
        let Ok(len) = c_int::try_from(len) else {
            return false;
        };
        let mut written: c_int = 0;
        // SAFETY: the context has a cipher, a key and an IV; a cipher without padding writes no more bytes than it
        // reads. The rest is the caller's promise; AWS-LC takes no address and no length from the bytes.
        let code = unsafe {
            aws::EVP_CipherUpdate(self.0.as_ptr(), target, &raw mut written, source, len)
        };
        succeeded(code) && written == len
    }

    fn control(&mut self, command: c_int, argument: usize, data: *mut u8) -> bool {
        let Ok(argument) = c_int::try_from(argument) else {
            return false;
        };
        // SAFETY: the context has a cipher. For the commands used here `data` is null, or valid for `argument`
        // bytes.
        succeeded(unsafe {
            aws::EVP_CIPHER_CTX_ctrl(self.0.as_ptr(), command, argument, data.cast())
        })
    }
}

/// A cipher with its key schedule.
pub(crate) struct CipherContext {
    context: Context,
    algorithm: CipherAlgorithm,
    direction: Direction,
}

impl CipherContext {
    /// `None` for a key of a length that the algorithm does not have, or XTS keys that are equal.
    pub(crate) fn new(
        algorithm: CipherAlgorithm,
        key: &[u8],
        direction: Direction,
    ) -> Option<Self> {
        // SAFETY: each returns a static of the library.
        let cipher = unsafe {
            match (algorithm, key.len()) {
                (CipherAlgorithm::AesEcb, 16) => aws::EVP_aes_128_ecb(),
                (CipherAlgorithm::AesEcb, 24) => aws::EVP_aes_192_ecb(),
                (CipherAlgorithm::AesEcb, 32) => aws::EVP_aes_256_ecb(),
                (CipherAlgorithm::AesCbc, 16) => aws::EVP_aes_128_cbc(),
                (CipherAlgorithm::AesCbc, 24) => aws::EVP_aes_192_cbc(),
                (CipherAlgorithm::AesCbc, 32) => aws::EVP_aes_256_cbc(),
                (CipherAlgorithm::AesCtr, 16) => aws::EVP_aes_128_ctr(),
                (CipherAlgorithm::AesCtr, 24) => aws::EVP_aes_192_ctr(),
                (CipherAlgorithm::AesCtr, 32) => aws::EVP_aes_256_ctr(),
                (CipherAlgorithm::AesXts, 64) => aws::EVP_aes_256_xts(),
                _ => return None,
            }
        };
        let mut context = Context::new()?;
        if !context.init(Some(cipher), Some(key), None, direction) {
            return None;
        }
        // SAFETY: the context is valid and has a cipher.
        let code = unsafe { aws::EVP_CIPHER_CTX_set_padding(context.0.as_ptr(), 0) };
        succeeded(code).then_some(Self { context, algorithm, direction })
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether the algorithm reads each byte of its source once, so that a change during the call has no effect of its
    /// own: the others read a block of the ciphertext again for the next one.
    pub(crate) fn reads_once(&self) -> bool {
        matches!(
            (self.algorithm, self.direction),
            (CipherAlgorithm::AesCbc, Direction::Encrypt) | (CipherAlgorithm::AesCtr, _)
        )
    }

    /// Transforms `text`. `false` for an IV or a text of a length that the algorithm does not have.
    pub(crate) fn run(&mut self, iv: &[u8], text: &mut [u8]) -> bool {
        let place = text.as_mut_ptr();
        // SAFETY: `text` is readable and writable for its length.
        self.begin(iv, text.len()) && unsafe { self.context.update(place, place, text.len()) }
    }

    /// Transforms `source` into `target`, which another process sees and may change. They have the same length; they
    /// are the same place, or do not overlap. `false` as for [`Self::run`]; then `target` is as it was.
    pub(crate) fn run_volatile(
        &mut self,
        iv: &[u8],
        source: &VolatileSlice<'_>,
        target: &VolatileSlice<'_>,
    ) -> bool {
        let len = source.len();
        let (source, place) = (source.ptr_guard(), target.ptr_guard_mut());
        let apart = source.as_ptr().addr().abs_diff(place.as_ptr().addr());
        if target.len() != len || (apart != 0 && apart < len) {
            return false;
        }
        // SAFETY: a volatile slice is readable and writable for its length for as long as it lives, and both outlive
        // this call; the lengths and the overlap were checked.
        self.begin(iv, len) && unsafe { self.context.update(source.as_ptr(), place.as_ptr(), len) }
    }

    /// Sets the IV for a text of `len` bytes.
    fn begin(&mut self, iv: &[u8], len: usize) -> bool {
        let fits = match self.algorithm {
            CipherAlgorithm::AesEcb => iv.is_empty() && len.is_multiple_of(16),
            CipherAlgorithm::AesCbc => iv.len() == 16 && len.is_multiple_of(16),
            CipherAlgorithm::AesCtr => iv.len() == 16,
            // Below one block there is nothing to steal from (IEEE 1619 section 5.3).
            CipherAlgorithm::AesXts => iv.len() == 16 && (len == 0 || len >= 16),
        };
        let iv = (!iv.is_empty()).then_some(iv);
        fits && self.context.init(None, None, iv, self.direction)
    }
}

/// Authenticated encryption with a key.
pub(crate) enum Aead {
    /// GCM and ChaCha20-Poly1305.
    OneShot(OneShot),
    /// CCM, which AWS-LC's AEAD interface has only for some tag lengths.
    Ccm(Ccm),
}

owner! {
    /// A context of an AEAD whose messages are sealed in one call.
    pub(crate) OneShot(aws::EVP_AEAD_CTX), freed by aws::EVP_AEAD_CTX_free;
}

/// CCM by AWS-LC's cipher interface, with tags of any length.
pub(crate) struct Ccm {
    cipher: *const aws::EVP_CIPHER,
    key: zeroize::Zeroizing<Vec<u8>>,
}

// SAFETY: the pointer is to a static of the library.
unsafe impl Send for Ccm {}

/// Why an AEAD operation has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AeadError {
    /// The tag does not verify.
    Tag,
    /// A length that the algorithm does not have.
    Length,
}

impl Aead {
    /// `None` for a key or tag of a length that the algorithm does not have.
    pub(crate) fn new(algorithm: AeadAlgorithm, key: &[u8], tag_len: usize) -> Option<Self> {
        // SAFETY: each returns a static of the library.
        let aead = unsafe {
            match (algorithm, key.len()) {
                (AeadAlgorithm::Gcm, 16) => aws::EVP_aead_aes_128_gcm(),
                (AeadAlgorithm::Gcm, 24) => aws::EVP_aead_aes_192_gcm(),
                (AeadAlgorithm::Gcm, 32) => aws::EVP_aead_aes_256_gcm(),
                (AeadAlgorithm::ChaCha20Poly1305, 32) => aws::EVP_aead_chacha20_poly1305(),
                (AeadAlgorithm::Ccm, len) => {
                    let cipher = match len {
                        16 => aws::EVP_aes_128_ccm(),
                        24 => aws::EVP_aes_192_ccm(),
                        32 => aws::EVP_aes_256_ccm(),
                        _ => return None,
                    };
                    return Some(Self::Ccm(Ccm { cipher, key: key.to_vec().into() }));
                }
                _ => return None,
            }
        };
        // SAFETY: the algorithm is a static of the library, and `key` is readable for its length.
        owned(unsafe { aws::EVP_AEAD_CTX_new(aead, key.as_ptr(), key.len(), tag_len) })
            .map(OneShot)
            .map(Self::OneShot)
    }

    /// Encrypts `source` into `target`, which is `tag_len` bytes longer.
    pub(crate) fn seal(
        &mut self,
        nonce: &[u8],
        aad: &[u8],
        source: &[u8],
        target: &mut [u8],
    ) -> Result<(), AeadError> {
        match self {
            Self::OneShot(context) => {
                let done = nonce.len() == 12
                    && context.run(aws::EVP_AEAD_CTX_seal, nonce, aad, source, target);
                done.then_some(()).ok_or(AeadError::Length)
            }
            Self::Ccm(ccm) => ccm.seal(nonce, aad, source, target).ok_or(AeadError::Length),
        }
    }

    /// Decrypts `source`, whose end is the tag, into `target`, which is `tag_len` bytes shorter. `target` is zero
    /// after an error.
    pub(crate) fn open(
        &mut self,
        nonce: &[u8],
        aad: &[u8],
        source: &[u8],
        target: &mut [u8],
    ) -> Result<(), AeadError> {
        let opened = match self {
            Self::OneShot(context) if nonce.len() == 12 => context
                .run(aws::EVP_AEAD_CTX_open, nonce, aad, source, target)
                .then_some(())
                .ok_or(AeadError::Tag),
            Self::OneShot(_) => Err(AeadError::Length),
            Self::Ccm(ccm) => ccm.open(nonce, aad, source, target),
        };
        opened.inspect_err(|_| target.zeroize())
    }
}

/// `EVP_AEAD_CTX_seal` and `EVP_AEAD_CTX_open`.
type OneShotFunction = unsafe extern "C" fn(
    *const aws::EVP_AEAD_CTX,
    *mut u8,
    *mut usize,
    usize,
    *const u8,
    usize,
    *const u8,
    usize,
    *const u8,
    usize,
) -> c_int;

impl OneShot {
    fn run(
        &self,
        function: OneShotFunction,
        nonce: &[u8],
        aad: &[u8],
        source: &[u8],
        target: &mut [u8],
    ) -> bool {
        let mut len = 0;
        // SAFETY: the context is valid; all slices are valid for the lengths given, source and target do not
        // overlap, and AWS-LC writes no more than the length of `target`. Both functions have this type.
        let code = unsafe {
            function(
                self.0.as_ptr(),
                target.as_mut_ptr(),
                &raw mut len,
                target.len(),
                nonce.as_ptr(),
                nonce.len(),
                source.as_ptr(),
                source.len(),
                aad.as_ptr(),
                aad.len(),
            )
        };
        succeeded(code) && len == target.len()
    }
}

impl Ccm {
    /// A context that knows the lengths of nonce and tag, the nonce, and the length of the text.
    fn begin(
        &self,
        nonce: &[u8],
        tag: Result<usize, &mut [u8]>,
        text_len: usize,
        direction: Direction,
    ) -> Option<Context> {
        if !(7..=13).contains(&nonce.len()) {
            return None;
        }
        let mut context = Context::new()?;
        let (tag_len, tag) = match tag {
            Ok(len) => (len, ptr::null_mut()),
            Err(tag) => (tag.len(), tag.as_mut_ptr()),
        };
        let ready = context.init(Some(self.cipher), None, None, direction)
            && context.control(aws::EVP_CTRL_AEAD_SET_IVLEN, nonce.len(), ptr::null_mut())
            && context.control(aws::EVP_CTRL_AEAD_SET_TAG, tag_len, tag)
            && context.init(None, Some(&self.key), Some(nonce), direction)
            && context.ccm_update(None, None, text_len).is_some();
        ready.then_some(context)
    }

    fn seal(&self, nonce: &[u8], aad: &[u8], source: &[u8], target: &mut [u8]) -> Option<()> {
        let (text, tag) = target.split_at_mut_checked(source.len())?;
        let mut context = self.begin(nonce, Ok(tag.len()), source.len(), Direction::Encrypt)?;
        if !aad.is_empty() {
            context.ccm_update(Some(aad), None, aad.len())?;
        }
        context.ccm_update(Some(source), Some(text), source.len())?;
        context.control(aws::EVP_CTRL_AEAD_GET_TAG, tag.len(), tag.as_mut_ptr()).then_some(())
    }

    fn open(
        &self,
        nonce: &[u8],
        aad: &[u8],
        source: &[u8],
        target: &mut [u8],
    ) -> Result<(), AeadError> {
        let (text, tag) = source.split_at_checked(target.len()).ok_or(AeadError::Length)?;
        let mut tag = tag.to_vec();
        let mut context = self
            .begin(nonce, Err(&mut tag), text.len(), Direction::Decrypt)
            .ok_or(AeadError::Length)?;
        if !aad.is_empty() {
            context.ccm_update(Some(aad), None, aad.len()).ok_or(AeadError::Length)?;
        }
        // AWS-LC compares the tag in this call, in constant time.
        context.ccm_update(Some(text), Some(target), text.len()).ok_or(AeadError::Tag)
    }
}

impl Context {
    /// The three kinds of update that CCM needs: the length of the text, additional data, the text.
    fn ccm_update(
        &mut self,
        source: Option<&[u8]>,
        target: Option<&mut [u8]>,
        len: usize,
    ) -> Option<()> {
        let len = c_int::try_from(len).ok()?;
        let fits = match (&source, &target) {
            (Some(source), Some(target)) => source.len() == target.len(),
            (Some(_) | None, None) => true,
            (None, Some(_)) => false,
        };
        let mut written: c_int = 0;
        let source = source.map_or(ptr::null(), <[u8]>::as_ptr);
        let target = target.map_or(ptr::null_mut(), <[u8]>::as_mut_ptr);
        if !fits {
            return None;
        }
        // SAFETY: the context has a CCM cipher, a key and a nonce. A null source announces a length, a null target
        // means additional data; otherwise both are as long as `len` says.
        let code = unsafe {
            aws::EVP_CipherUpdate(self.0.as_ptr(), target, &raw mut written, source, len)
        };
        succeeded(code).then_some(())
    }
}

/// The function of a hash; it is a static of the library.
fn function(hash: HashAlgorithm) -> *const aws::EVP_MD {
    // SAFETY: each returns a static of the library.
    unsafe {
        match hash {
            HashAlgorithm::Sha1 => aws::EVP_sha1(),
            HashAlgorithm::Sha224 => aws::EVP_sha224(),
            HashAlgorithm::Sha256 => aws::EVP_sha256(),
            HashAlgorithm::Sha384 => aws::EVP_sha384(),
            HashAlgorithm::Sha512 => aws::EVP_sha512(),
            HashAlgorithm::Sha3_224 => aws::EVP_sha3_224(),
            HashAlgorithm::Sha3_256 => aws::EVP_sha3_256(),
            HashAlgorithm::Sha3_384 => aws::EVP_sha3_384(),
            HashAlgorithm::Sha3_512 => aws::EVP_sha3_512(),
        }
    }
}

/// The longest digest or MAC, in bytes.
const LONGEST: usize = aws::EVP_MAX_MD_SIZE as usize;

/// `None` if AWS-LC fails.
pub(crate) fn hash(algorithm: HashAlgorithm, data: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; LONGEST];
    let mut len: c_uint = 0;
    // SAFETY: `data` is readable for its length, `out` has room for the longest digest.
    let code = unsafe {
        aws::EVP_Digest(
            data.as_ptr().cast(),
            data.len(),
            out.as_mut_ptr(),
            &raw mut len,
            function(algorithm),
            ptr::null_mut(),
        )
    };
    out.truncate(len as usize);
    succeeded(code).then_some(out)
}

/// SHA-256, for the names of keys.
pub(crate) fn sha256(data: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    // SAFETY: `data` is readable for its length, `out` writable for a digest; the function cannot fail.
    unsafe { aws::SHA256(data.as_ptr(), data.len(), out.as_mut_ptr()) };
    out
}

/// `None` if AWS-LC refuses the key.
pub(crate) fn mac(algorithm: MacAlgorithm, key: &[u8], data: &[u8]) -> Option<Vec<u8>> {
    let hash = match algorithm {
        MacAlgorithm::HmacSha1 => HashAlgorithm::Sha1,
        MacAlgorithm::HmacSha224 => HashAlgorithm::Sha224,
        MacAlgorithm::HmacSha256 => HashAlgorithm::Sha256,
        MacAlgorithm::HmacSha384 => HashAlgorithm::Sha384,
        MacAlgorithm::HmacSha512 => HashAlgorithm::Sha512,
        MacAlgorithm::CmacAes => return cmac(key, data),
    };
    let mut out = vec![0; LONGEST];
    let mut len: c_uint = 0;
    // SAFETY: `key` and `data` are readable for their lengths, `out` has room for the longest MAC.
    let mac = unsafe {
        aws::HMAC(
            function(hash),
            key.as_ptr().cast(),
            key.len(),
            data.as_ptr(),
            data.len(),
            out.as_mut_ptr(),
            &raw mut len,
        )
    };
    out.truncate(len as usize);
    succeeded(c_int::from(!mac.is_null())).then_some(out)
}

fn cmac(key: &[u8], data: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; 16];
    // SAFETY: `key` and `data` are readable for their lengths, `out` has 16 bytes; AWS-LC refuses other lengths of
    // keys.
    let code = unsafe {
        aws::AES_CMAC(out.as_mut_ptr(), key.as_ptr(), key.len(), data.as_ptr(), data.len())
    };
    succeeded(code).then_some(out)
}

owner! {
    /// An RSA key: the public half of any, or the whole of one below the engine's smallest size.
    pub(crate) Rsa(aws::RSA), freed by aws::RSA_free;
}

// SAFETY: AWS-LC documents that any number of threads may use an RSA object that none changes; its lazy contexts are
// under the object's own lock.
unsafe impl Sync for Rsa {}

owner! {
    /// A number, perhaps a secret.
    Number(aws::BIGNUM), freed by aws::BN_clear_free;
}

impl Number {
    fn new(bytes: &[u8]) -> Option<Self> {
        // SAFETY: `bytes` is readable for its length; null asks for a new number.
        owned(unsafe { aws::BN_bin2bn(bytes.as_ptr(), bytes.len(), ptr::null_mut()) }).map(Self)
    }
}

/// Smallest RSA modulus that a guest may use, in bits: Linux tests the device with such a key before it offers
/// RSA to anything else.
const MIN_BITS: u32 = 512;

/// Largest RSA modulus that a guest may use, in bits, as in the engine.
const MAX_BITS: u32 = 8192;

impl Rsa {
    /// Reads an `RSAPublicKey`. `None` if it does not parse, has trailing bytes, or a size or exponent out of range.
    pub(crate) fn public(der: &[u8]) -> Option<Self> {
        // SAFETY: `der` is readable for its length.
        owned(unsafe { aws::RSA_public_key_from_bytes(der.as_ptr(), der.len()) })
            .map(Self)
            .filter(Self::sized)
    }

    /// Reads an `RSAPrivateKey` and checks its parts. `None` as for a public key, or if they contradict each other.
    pub(crate) fn private(der: &[u8]) -> Option<Self> {
        // SAFETY: `der` is readable for its length.
        let key = owned(unsafe { aws::RSA_private_key_from_bytes(der.as_ptr(), der.len()) })
            .map(Self)
            .filter(Self::sized)?;
        // SAFETY: the key is valid.
        succeeded(unsafe { aws::RSA_check_key(key.0.as_ptr()) }).then_some(key)
    }

    /// Makes a private key of modulus, public and private exponent, big-endian, for a key that has no primes. AWS-LC
    /// verifies each result with the public exponent, as for every key.
    pub(crate) fn private_without_primes(n: &[u8], e: &[u8], d: &[u8]) -> Option<Self> {
        let [n, e, d] = [Number::new(n)?, Number::new(e)?, Number::new(d)?];
        // SAFETY: all numbers are valid; AWS-LC copies them.
        owned(unsafe { aws::RSA_new_private_key_no_crt(n.0.as_ptr(), e.0.as_ptr(), d.0.as_ptr()) })
            .map(Self)
            .filter(Self::sized)
    }

    fn sized(&self) -> bool {
        // SAFETY: the key is valid.
        (MIN_BITS..=MAX_BITS).contains(&unsafe { aws::RSA_bits(self.0.as_ptr()) })
    }

    /// Length of the modulus, in bytes.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the key is valid.
        unsafe { aws::RSA_size(self.0.as_ptr()) as usize }
    }

    /// `input^e mod n`; `input` is as long as the modulus and below it.
    pub(crate) fn encrypt_raw(&self, input: &[u8]) -> Option<Vec<u8>> {
        self.run(aws::RSA_encrypt, input, aws::RSA_NO_PADDING)
    }

    /// The input with PKCS#1 v1.5 padding of type 2, encrypted.
    pub(crate) fn encrypt_pkcs1(&self, input: &[u8]) -> Option<Vec<u8>> {
        self.run(aws::RSA_encrypt, input, aws::RSA_PKCS1_PADDING)
    }

    /// `input^d mod n`, blinded and verified by AWS-LC; `input` is as long as the modulus and below it.
    pub(crate) fn decrypt_raw(&self, input: &[u8]) -> Option<Vec<u8>> {
        self.run(aws::RSA_sign_raw, input, aws::RSA_NO_PADDING)
    }

    /// The input with PKCS#1 v1.5 padding of type 1, signed. The input is a digest in its `DigestInfo`.
    pub(crate) fn sign_pkcs1(&self, input: &[u8]) -> Option<Vec<u8>> {
        self.run(aws::RSA_sign_raw, input, aws::RSA_PKCS1_PADDING)
    }

    /// Whether `signature` is one with PKCS#1 v1.5 padding over `digest`. Without a hash the block has no
    /// `DigestInfo`.
    pub(crate) fn verify_pkcs1(&self, hash: Option<Hash>, digest: &[u8], signature: &[u8]) -> bool {
        let nid = match hash {
            Some(Hash::Sha1) => aws::NID_sha1,
            Some(Hash::Sha224) => aws::NID_sha224,
            Some(Hash::Sha256) => aws::NID_sha256,
            Some(Hash::Sha384) => aws::NID_sha384,
            Some(Hash::Sha512) => aws::NID_sha512,
            Some(Hash::Md5Sha1 | Hash::Sha512_256) => return false,
            None => {
                let block = self.run(aws::RSA_verify_raw, signature, aws::RSA_PKCS1_PADDING);
                return block.is_some_and(|block| block == digest);
            }
        };
        // SAFETY: the key is valid; both slices are readable for their lengths.
        succeeded(unsafe {
            aws::RSA_verify(
                nid,
                digest.as_ptr(),
                digest.len(),
                signature.as_ptr(),
                signature.len(),
                self.0.as_ptr(),
            )
        })
    }

    fn run(&self, function: RsaFunction, input: &[u8], padding: c_int) -> Option<Vec<u8>> {
        let mut out = vec![0; self.len()];
        let mut len = 0;
        // SAFETY: the key is valid; both slices are valid for the lengths given, and AWS-LC writes no more than the
        // length of `out`. All functions passed here have this type.
        let code = unsafe {
            function(
                self.0.as_ptr(),
                &raw mut len,
                out.as_mut_ptr(),
                out.len(),
                input.as_ptr(),
                input.len(),
                padding,
            )
        };
        out.truncate(len);
        succeeded(code).then_some(out)
    }
}

/// `RSA_encrypt`, `RSA_sign_raw` and `RSA_verify_raw`.
type RsaFunction = unsafe extern "C" fn(
    *mut aws::RSA,
    *mut usize,
    *mut u8,
    usize,
    *const u8,
    usize,
    c_int,
) -> c_int;

owner! {
    /// A public key on a NIST curve.
    pub(crate) EcPublic(aws::EC_KEY), freed by aws::EC_KEY_free;
}

// SAFETY: after construction the key is only read.
unsafe impl Sync for EcPublic {}

impl EcPublic {
    /// Reads a point (SEC 1 section 2.3.3). `None` unless it is on the curve.
    pub(crate) fn from_point(curve: Curve, point: &[u8]) -> Option<Self> {
        let nid = match curve {
            Curve::P256 => aws::NID_X9_62_prime256v1,
            Curve::P384 => aws::NID_secp384r1,
            Curve::P521 => aws::NID_secp521r1,
        };
        // SAFETY: any number may be asked for.
        let key = Self(owned(unsafe { aws::EC_KEY_new_by_curve_name(nid) })?);
        let len = c_long::try_from(point.len()).ok()?;
        let (mut object, mut bytes) = (key.0.as_ptr(), point.as_ptr());
        // SAFETY: the key is valid, ours alone, and has a group; `point` is readable for its length. AWS-LC fills the
        // given key and does not keep the bytes.
        let read = unsafe { aws::o2i_ECPublicKey(&raw mut object, &raw mut bytes, len) };
        owned(read).map(|_| key)
    }

    /// Whether `signature`, a DER `Ecdsa-Sig-Value`, is one over `digest`.
    pub(crate) fn verify(&self, digest: &[u8], signature: &[u8]) -> bool {
        // SAFETY: the key is valid and complete; both slices are readable for their lengths. The type is ignored.
        succeeded(unsafe {
            aws::ECDSA_verify(
                0,
                digest.as_ptr(),
                digest.len(),
                signature.as_ptr(),
                signature.len(),
                self.0.as_ptr(),
            )
        })
    }
}

#[cfg(test)]
mod tests;
