// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The calls into a libcrypto that was opened at run time. Each wrapper owns what it made and frees it;
//! none of them is `Send`, because OpenSSL's contexts are not to be used by two threads at once.
#![expect(
    clippy::needless_pass_by_ref_mut,
    reason = "what the pointers lead to is changed"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use zeroize::Zeroizing;

use crate::error::LibraryError;
use crate::workload::BenchKey;

/// An opaque object of libcrypto.
type Ptr = *mut c_void;

/// `OPENSSL_VERSION`: the name and version of the library.
pub(super) const VERSION: c_int = 0;

/// `OPENSSL_CPU_INFO`: what it says of the processor.
pub(super) const CPU_INFO: c_int = 9;

/// `EVP_CTRL_AEAD_GET_TAG`
const GET_TAG: c_int = 0x10;

/// Room that a cipher may need beyond its input: one block.
const BLOCK: usize = 32;

macro_rules! symbols {
    ($($name:ident: $type:ty;)*) => {
        /// Functions of libcrypto. Names and signatures are those of its headers, since OpenSSL 3.0.
        #[allow(non_snake_case, reason = "the names of the library")]
        pub(super) struct Lib {
            $($name: $type,)*
        }

        impl Lib {
            /// # Safety
            /// `handle` is an open library whose functions of these names are libcrypto's.
            unsafe fn fill(handle: Ptr) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        const NAME: &str = concat!(stringify!($name), "\0");
                        // SAFETY: an open handle and a text that ends in NUL.
                        let address = unsafe { libc::dlsym(handle, NAME.as_ptr().cast()) };
                        if address.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: a function of this name has this type since OpenSSL 3.0.
                        unsafe { std::mem::transmute::<Ptr, $type>(address) }
                    },)*
                })
            }
        }
    };
}

symbols! {
    OpenSSL_version: unsafe extern "C" fn(c_int) -> *const c_char;
    EVP_CIPHER_fetch: unsafe extern "C" fn(Ptr, *const c_char, *const c_char) -> Ptr;
    EVP_CIPHER_free: unsafe extern "C" fn(Ptr);
    EVP_CIPHER_get_iv_length: unsafe extern "C" fn(Ptr) -> c_int;
    EVP_CIPHER_get_key_length: unsafe extern "C" fn(Ptr) -> c_int;
    EVP_CIPHER_CTX_new: unsafe extern "C" fn() -> Ptr;
    EVP_CIPHER_CTX_free: unsafe extern "C" fn(Ptr);
    EVP_CIPHER_CTX_ctrl: unsafe extern "C" fn(Ptr, c_int, c_int, Ptr) -> c_int;
    EVP_EncryptInit_ex: unsafe extern "C" fn(Ptr, Ptr, Ptr, *const u8, *const u8) -> c_int;
    EVP_EncryptUpdate: unsafe extern "C" fn(Ptr, *mut u8, *mut c_int, *const u8, c_int) -> c_int;
    EVP_EncryptFinal_ex: unsafe extern "C" fn(Ptr, *mut u8, *mut c_int) -> c_int;
    EVP_MD_fetch: unsafe extern "C" fn(Ptr, *const c_char, *const c_char) -> Ptr;
    EVP_MD_free: unsafe extern "C" fn(Ptr);
    EVP_MD_CTX_new: unsafe extern "C" fn() -> Ptr;
    EVP_MD_CTX_free: unsafe extern "C" fn(Ptr);
    EVP_DigestInit_ex: unsafe extern "C" fn(Ptr, Ptr, Ptr) -> c_int;
    EVP_DigestUpdate: unsafe extern "C" fn(Ptr, *const c_void, usize) -> c_int;
    EVP_DigestFinal_ex: unsafe extern "C" fn(Ptr, *mut u8, *mut u32) -> c_int;
    EVP_PKEY_CTX_new_from_name: unsafe extern "C" fn(Ptr, *const c_char, *const c_char) -> Ptr;
    EVP_PKEY_CTX_new_from_pkey: unsafe extern "C" fn(Ptr, Ptr, *const c_char) -> Ptr;
    EVP_PKEY_CTX_free: unsafe extern "C" fn(Ptr);
    EVP_PKEY_CTX_ctrl_str: unsafe extern "C" fn(Ptr, *const c_char, *const c_char) -> c_int;
    EVP_PKEY_paramgen_init: unsafe extern "C" fn(Ptr) -> c_int;
    EVP_PKEY_paramgen: unsafe extern "C" fn(Ptr, *mut Ptr) -> c_int;
    EVP_PKEY_keygen_init: unsafe extern "C" fn(Ptr) -> c_int;
    EVP_PKEY_keygen: unsafe extern "C" fn(Ptr, *mut Ptr) -> c_int;
    EVP_PKEY_free: unsafe extern "C" fn(Ptr);
    EVP_PKEY2PKCS8: unsafe extern "C" fn(Ptr) -> Ptr;
    EVP_PKEY_get1_encoded_public_key: unsafe extern "C" fn(Ptr, *mut *mut u8) -> usize;
    i2d_PKCS8_PRIV_KEY_INFO: unsafe extern "C" fn(Ptr, *mut *mut u8) -> c_int;
    PKCS8_PRIV_KEY_INFO_free: unsafe extern "C" fn(Ptr);
    CRYPTO_free: unsafe extern "C" fn(Ptr, *const c_char, c_int);
    EVP_PKEY_derive_init: unsafe extern "C" fn(Ptr) -> c_int;
    EVP_PKEY_derive_set_peer: unsafe extern "C" fn(Ptr, Ptr) -> c_int;
    EVP_PKEY_derive: unsafe extern "C" fn(Ptr, *mut u8, *mut usize) -> c_int;
    EVP_PKEY_encapsulate_init: unsafe extern "C" fn(Ptr, Ptr) -> c_int;
    EVP_PKEY_encapsulate:
        unsafe extern "C" fn(Ptr, *mut u8, *mut usize, *mut u8, *mut usize) -> c_int;
    EVP_PKEY_decapsulate_init: unsafe extern "C" fn(Ptr, Ptr) -> c_int;
    EVP_PKEY_decapsulate: unsafe extern "C" fn(Ptr, *mut u8, *mut usize, *const u8, usize) -> c_int;
    EVP_DigestSignInit_ex: unsafe extern "C" fn(
        Ptr,
        *mut Ptr,
        *const c_char,
        Ptr,
        *const c_char,
        Ptr,
        Ptr,
    ) -> c_int;
    EVP_DigestSign: unsafe extern "C" fn(Ptr, *mut u8, *mut usize, *const u8, usize) -> c_int;
    EVP_DigestVerifyInit_ex: unsafe extern "C" fn(
        Ptr,
        *mut Ptr,
        *const c_char,
        Ptr,
        *const c_char,
        Ptr,
        Ptr,
    ) -> c_int;
    EVP_DigestVerify: unsafe extern "C" fn(Ptr, *const u8, usize, *const u8, usize) -> c_int;
}

impl std::fmt::Debug for Lib {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lib")
    }
}

impl Lib {
    /// Opens the library by its path, or by its name as the loader finds it.
    ///
    /// # Errors
    /// [`LibraryError::Open`].
    pub(super) fn open(path: &Path) -> Result<Self, LibraryError> {
        let failed = |reason: String| LibraryError::Open {
            path: path.to_owned(),
            reason,
        };
        let text = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| failed("its name holds a NUL".to_owned()))?;
        // SAFETY: a C string. The library's constructors run; it is one of this machine's that the user
        // named, and nothing of ours depends on what they do.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: says why the call above failed, or nothing.
            let reason = unsafe { libc::dlerror() };
            if reason.is_null() {
                return Err(failed("the loader refuses it".to_owned()));
            }
            // SAFETY: a C string of the loader, valid until its next call in this thread.
            let reason = unsafe { CStr::from_ptr(reason) };
            return Err(failed(reason.to_string_lossy().into_owned()));
        }
        // SAFETY: an open handle; a library without libcrypto's names is refused.
        unsafe { Self::fill(handle) }
            .map_err(|name| failed(format!("it has no {name}: OpenSSL 3.0 or later is needed")))
    }

    /// What the library says of itself.
    pub(super) fn text(&self, what: c_int) -> String {
        // SAFETY: takes any number, and gives a static C string.
        let text = unsafe { (self.OpenSSL_version)(what) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: a static C string.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

/// Length as OpenSSL counts it; none above its bound.
fn length(bytes: usize) -> Option<c_int> {
    c_int::try_from(bytes).ok()
}

/// A cipher with its key.
#[derive(Debug)]
pub(super) struct Context {
    lib: &'static Lib,
    context: Ptr,
}

impl Context {
    /// The context, and the length of its IV.
    pub(super) fn new(lib: &'static Lib, name: &CStr, key: &[u8]) -> Option<(Self, usize)> {
        // SAFETY: the default library context, a C string, no properties.
        let cipher = unsafe { (lib.EVP_CIPHER_fetch)(ptr::null_mut(), name.as_ptr(), ptr::null()) };
        if cipher.is_null() {
            return None;
        }
        // SAFETY: a cipher; takes nothing else.
        let (key_len, iv_len) = unsafe {
            (
                (lib.EVP_CIPHER_get_key_length)(cipher),
                (lib.EVP_CIPHER_get_iv_length)(cipher),
            )
        };
        // SAFETY: takes nothing.
        let context = unsafe { (lib.EVP_CIPHER_CTX_new)() };
        let made = Self { lib, context };
        let fits = usize::try_from(key_len) == Ok(key.len()) && !context.is_null();
        // SAFETY: a new context, a cipher, and a key of the cipher's length.
        let ready = fits
            && unsafe {
                (lib.EVP_EncryptInit_ex)(
                    context,
                    cipher,
                    ptr::null_mut(),
                    key.as_ptr(),
                    ptr::null(),
                )
            } == 1;
        // SAFETY: ours; the context holds a reference of its own.
        unsafe { (lib.EVP_CIPHER_free)(cipher) };
        ready.then_some((made, usize::try_from(iv_len).ok()?))
    }

    /// Seals one packet under a new IV, with a tag of `tag_len` bytes.
    pub(super) fn seal(
        &mut self,
        iv: &[u8],
        packet: &[u8],
        tag_len: usize,
        output: &mut Vec<u8>,
    ) -> Option<()> {
        let Self { lib, context } = *self;
        output.clear();
        output.resize(packet.len() + BLOCK + tag_len, 0);
        let (mut written, mut rest) = (0, 0);
        // SAFETY: a context with cipher and key, an IV of the cipher's length.
        let started = unsafe {
            (lib.EVP_EncryptInit_ex)(
                context,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null(),
                iv.as_ptr(),
            )
        };
        // SAFETY: the output has room for the packet and a block more.
        let sealed = started == 1
            && unsafe {
                (lib.EVP_EncryptUpdate)(
                    context,
                    output.as_mut_ptr(),
                    &mut written,
                    packet.as_ptr(),
                    length(packet.len())?,
                )
            } == 1;
        let written = usize::try_from(written).ok().filter(|_| sealed)?;
        // SAFETY: at most a block is written behind what is there.
        let ended = unsafe {
            (lib.EVP_EncryptFinal_ex)(context, output.get_mut(written..)?.as_mut_ptr(), &mut rest)
        };
        let end = written + usize::try_from(rest).ok().filter(|_| ended == 1)?;
        if tag_len > 0 {
            let room = output.get_mut(end..end + tag_len)?;
            // SAFETY: room for a tag of that length.
            let got = unsafe {
                (lib.EVP_CIPHER_CTX_ctrl)(
                    context,
                    GET_TAG,
                    length(tag_len)?,
                    room.as_mut_ptr().cast(),
                )
            };
            (got == 1).then_some(())?;
        }
        output.truncate(end + tag_len);
        Some(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: ours, or null, which is allowed.
        unsafe { (self.lib.EVP_CIPHER_CTX_free)(self.context) };
    }
}

/// A hash function with its context.
#[derive(Debug)]
pub(super) struct Digester {
    lib: &'static Lib,
    digest: Ptr,
    context: Ptr,
}

impl Digester {
    pub(super) fn new(lib: &'static Lib, name: &CStr) -> Option<Self> {
        // SAFETY: the default library context, a C string, no properties.
        let digest = unsafe { (lib.EVP_MD_fetch)(ptr::null_mut(), name.as_ptr(), ptr::null()) };
        if digest.is_null() {
            return None;
        }
        // SAFETY: takes nothing.
        let context = unsafe { (lib.EVP_MD_CTX_new)() };
        let made = Self {
            lib,
            digest,
            context,
        };
        (!context.is_null()).then_some(made)
    }

    pub(super) fn hash(&mut self, block: &[u8], output: &mut Vec<u8>) -> Option<()> {
        /// `EVP_MAX_MD_SIZE`
        const MAX_LEN: usize = 64;
        let Self {
            lib,
            digest,
            context,
        } = *self;
        output.clear();
        output.resize(MAX_LEN, 0);
        let mut written = 0;
        // SAFETY: a context, a hash function, readable bytes, and room for the longest hash.
        let done = unsafe {
            (lib.EVP_DigestInit_ex)(context, digest, ptr::null_mut()) == 1
                && (lib.EVP_DigestUpdate)(context, block.as_ptr().cast(), block.len()) == 1
                && (lib.EVP_DigestFinal_ex)(context, output.as_mut_ptr(), &mut written) == 1
        };
        output.truncate(usize::try_from(written).ok()?);
        done.then_some(())
    }
}

impl Drop for Digester {
    fn drop(&mut self) {
        // SAFETY: ours, or null, which is allowed.
        unsafe {
            (self.lib.EVP_MD_CTX_free)(self.context);
            (self.lib.EVP_MD_free)(self.digest);
        }
    }
}

/// A key pair, with a context for signatures.
#[derive(Debug)]
pub(super) struct PublicKeyContext {
    lib: &'static Lib,
    key: Ptr,
    digest: Ptr,
}

impl PublicKeyContext {
    /// A new key pair.
    pub(super) fn generate(lib: &'static Lib, kind: BenchKey) -> Option<Self> {
        let (name, option): (&CStr, Option<(&CStr, &CStr)>) = match kind {
            BenchKey::Rsa2048 => (c"RSA", Some((c"rsa_keygen_bits", c"2048"))),
            BenchKey::Rsa3072 => (c"RSA", Some((c"rsa_keygen_bits", c"3072"))),
            BenchKey::Rsa4096 => (c"RSA", Some((c"rsa_keygen_bits", c"4096"))),
            BenchKey::P256 => (c"EC", Some((c"ec_paramgen_curve", c"P-256"))),
            BenchKey::P384 => (c"EC", Some((c"ec_paramgen_curve", c"P-384"))),
            BenchKey::X25519 => (c"X25519", None),
            BenchKey::Ed25519 => (c"ED25519", None),
            BenchKey::Dh2048 => (c"DH", Some((c"group", c"ffdhe2048"))),
            BenchKey::Dsa2048 => return Self::generate_dsa(lib),
            BenchKey::MlKem768 => (c"ML-KEM-768", None),
            BenchKey::MlDsa44 => (c"ML-DSA-44", None),
            BenchKey::MlDsa65 => (c"ML-DSA-65", None),
            BenchKey::MlDsa87 => (c"ML-DSA-87", None),
        };
        Generator::named(lib, name)?.keygen(option)
    }

    /// DSA has no named groups: parameters first, then the key.
    fn generate_dsa(lib: &'static Lib) -> Option<Self> {
        let context = Generator::named(lib, c"DSA")?;
        let mut parameters = ptr::null_mut();
        // SAFETY: a context, C strings, and a place for the result.
        let made = unsafe {
            (lib.EVP_PKEY_paramgen_init)(context.context) == 1
                && context.set((c"dsa_paramgen_bits", c"2048"))
                && context.set((c"dsa_paramgen_q_bits", c"256"))
                && (lib.EVP_PKEY_paramgen)(context.context, &mut parameters) == 1
        };
        let parameters = Self::owning(lib, parameters).filter(|_| made)?;
        Generator::of(&parameters)?.keygen(None)
    }

    /// A second key pair in the same group.
    pub(super) fn sibling(&self, kind: BenchKey) -> Option<Self> {
        Self::generate(self.lib, kind)
    }

    fn owning(lib: &'static Lib, key: Ptr) -> Option<Self> {
        if key.is_null() {
            return None;
        }
        // SAFETY: takes nothing.
        let digest = unsafe { (lib.EVP_MD_CTX_new)() };
        let made = Self { lib, key, digest };
        (!digest.is_null()).then_some(made)
    }

    pub(super) fn sign(
        &mut self,
        hash: Option<&CStr>,
        message: &[u8],
        signature: &mut Vec<u8>,
    ) -> Option<()> {
        /// Longest signature that is made here: ML-DSA-87 has 4627 bytes.
        const MAX_LEN: usize = 8192;
        let hash = hash.map_or(ptr::null(), CStr::as_ptr);
        let Self { lib, key, digest } = *self;
        signature.clear();
        signature.resize(MAX_LEN, 0);
        let mut len = signature.len();
        // SAFETY: contexts and key are live, the message readable, the signature has `len` bytes of room.
        let done = unsafe {
            (lib.EVP_DigestSignInit_ex)(
                digest,
                ptr::null_mut(),
                hash,
                ptr::null_mut(),
                ptr::null(),
                key,
                ptr::null_mut(),
            ) == 1
                && (lib.EVP_DigestSign)(
                    digest,
                    signature.as_mut_ptr(),
                    &mut len,
                    message.as_ptr(),
                    message.len(),
                ) == 1
        };
        signature.truncate(len);
        done.then_some(())
    }

    pub(super) fn verify(&mut self, hash: Option<&CStr>, message: &[u8], signature: &[u8]) -> bool {
        let hash = hash.map_or(ptr::null(), CStr::as_ptr);
        let Self { lib, key, digest } = *self;
        // SAFETY: contexts and key are live, both texts readable.
        unsafe {
            (lib.EVP_DigestVerifyInit_ex)(
                digest,
                ptr::null_mut(),
                hash,
                ptr::null_mut(),
                ptr::null(),
                key,
                ptr::null_mut(),
            ) == 1
                && (lib.EVP_DigestVerify)(
                    digest,
                    signature.as_ptr(),
                    signature.len(),
                    message.as_ptr(),
                    message.len(),
                ) == 1
        }
    }

    /// `padded`: a Diffie-Hellman secret as long as the prime.
    pub(super) fn derive(&self, peer: &Self, padded: bool, secret: &mut Vec<u8>) -> Option<()> {
        /// Longest secret that is agreed on here: ffdhe2048 has 256 bytes.
        const MAX_LEN: usize = 512;
        let lib = self.lib;
        let context = Generator::of(self)?;
        secret.clear();
        secret.resize(MAX_LEN, 0);
        let mut len = secret.len();
        // SAFETY: context and keys are live, the secret has `len` bytes of room.
        let done = unsafe {
            // Finite-field secrets keep their leading zeros, as TLS 1.3 has them; others have none.
            (lib.EVP_PKEY_derive_init)(context.context) == 1
                && (!padded || context.set((c"dh_pad", c"1")))
                && (lib.EVP_PKEY_derive_set_peer)(context.context, peer.key) == 1
                && (lib.EVP_PKEY_derive)(context.context, secret.as_mut_ptr(), &mut len) == 1
        };
        secret.truncate(len);
        done.then_some(())
    }

    /// The private key in PKCS#8.
    pub(super) fn pkcs8(&self) -> Option<Zeroizing<Vec<u8>>> {
        let lib = self.lib;
        // SAFETY: a live key; what is made is freed below.
        let info = unsafe { (lib.EVP_PKEY2PKCS8)(self.key) };
        if info.is_null() {
            return None;
        }
        // SAFETY: a live structure; without a place to write to, only the length is computed.
        let len = unsafe { (lib.i2d_PKCS8_PRIV_KEY_INFO)(info, ptr::null_mut()) };
        let mut der = Zeroizing::new(vec![0; usize::try_from(len).unwrap_or(0)]);
        let mut place = der.as_mut_ptr();
        // SAFETY: `place` has room for the length that was just computed; the structure is ours and is
        // used no more after it is freed.
        let written = unsafe {
            let written = (lib.i2d_PKCS8_PRIV_KEY_INFO)(info, &mut place);
            (lib.PKCS8_PRIV_KEY_INFO_free)(info);
            written
        };
        (written > 0 && written == len).then_some(der)
    }

    /// The public value as TLS sends it.
    pub(super) fn public_value(&self) -> Option<Vec<u8>> {
        /// Longest public value that is asked for here: ffdhe2048 has 256 bytes.
        const MAX_LEN: usize = 1024;
        let mut bytes: *mut u8 = ptr::null_mut();
        // SAFETY: a live key and a place for the address of what is made.
        let len = unsafe { (self.lib.EVP_PKEY_get1_encoded_public_key)(self.key, &mut bytes) };
        if bytes.is_null() || len == 0 || len > MAX_LEN {
            return None;
        }
        // SAFETY: the library made `len` bytes there; they are copied before they are freed.
        unsafe {
            let value = std::slice::from_raw_parts(bytes, len).to_vec();
            (self.lib.CRYPTO_free)(bytes.cast(), ptr::null(), 0);
            Some(value)
        }
    }

    pub(super) fn encapsulate(&self, capsule: &mut Vec<u8>, secret: &mut Vec<u8>) -> Option<()> {
        /// ML-KEM-768: 1088 bytes of capsule, 32 of secret.
        const MAX_LEN: usize = 2048;
        let lib = self.lib;
        let context = Generator::of(self)?;
        for room in [&mut *capsule, &mut *secret] {
            room.clear();
            room.resize(MAX_LEN, 0);
        }
        let (mut capsule_len, mut secret_len) = (MAX_LEN, MAX_LEN);
        // SAFETY: a live context; both places have as much room as is said.
        let done = unsafe {
            (lib.EVP_PKEY_encapsulate_init)(context.context, ptr::null_mut()) == 1
                && (lib.EVP_PKEY_encapsulate)(
                    context.context,
                    capsule.as_mut_ptr(),
                    &mut capsule_len,
                    secret.as_mut_ptr(),
                    &mut secret_len,
                ) == 1
        };
        capsule.truncate(capsule_len);
        secret.truncate(secret_len);
        done.then_some(())
    }

    pub(super) fn decapsulate(&self, capsule: &[u8], secret: &mut Vec<u8>) -> Option<()> {
        /// As above.
        const MAX_LEN: usize = 64;
        let lib = self.lib;
        let context = Generator::of(self)?;
        secret.clear();
        secret.resize(MAX_LEN, 0);
        let mut len = secret.len();
        // SAFETY: a live context, a readable capsule, a secret with `len` bytes of room.
        let done = unsafe {
            (lib.EVP_PKEY_decapsulate_init)(context.context, ptr::null_mut()) == 1
                && (lib.EVP_PKEY_decapsulate)(
                    context.context,
                    secret.as_mut_ptr(),
                    &mut len,
                    capsule.as_ptr(),
                    capsule.len(),
                ) == 1
        };
        secret.truncate(len);
        done.then_some(())
    }
}

impl Drop for PublicKeyContext {
    fn drop(&mut self) {
        // SAFETY: ours, or null, which is allowed.
        unsafe {
            (self.lib.EVP_MD_CTX_free)(self.digest);
            (self.lib.EVP_PKEY_free)(self.key);
        }
    }
}

/// An `EVP_PKEY_CTX`.
struct Generator {
    lib: &'static Lib,
    context: Ptr,
}

impl Generator {
    /// For a new key of this algorithm.
    fn named(lib: &'static Lib, name: &CStr) -> Option<Self> {
        // SAFETY: the default library context, a C string, no properties.
        let context = unsafe {
            (lib.EVP_PKEY_CTX_new_from_name)(ptr::null_mut(), name.as_ptr(), ptr::null())
        };
        (!context.is_null()).then_some(Self { lib, context })
    }

    /// For an operation with this key.
    fn of(key: &PublicKeyContext) -> Option<Self> {
        let lib = key.lib;
        // SAFETY: the default library context, a live key (the context takes a reference).
        let context =
            unsafe { (lib.EVP_PKEY_CTX_new_from_pkey)(ptr::null_mut(), key.key, ptr::null()) };
        (!context.is_null()).then_some(Self { lib, context })
    }

    fn set(&self, (name, value): (&CStr, &CStr)) -> bool {
        // SAFETY: a live context and two C strings.
        unsafe {
            (self.lib.EVP_PKEY_CTX_ctrl_str)(self.context, name.as_ptr(), value.as_ptr()) == 1
        }
    }

    fn keygen(&self, option: Option<(&CStr, &CStr)>) -> Option<PublicKeyContext> {
        let mut key = ptr::null_mut();
        // SAFETY: a live context and a place for the result.
        let made = unsafe {
            (self.lib.EVP_PKEY_keygen_init)(self.context) == 1
                && option.is_none_or(|option| self.set(option))
                && (self.lib.EVP_PKEY_keygen)(self.context, &mut key) == 1
        };
        PublicKeyContext::owning(self.lib, key).filter(|_| made)
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        // SAFETY: ours.
        unsafe { (self.lib.EVP_PKEY_CTX_free)(self.context) };
    }
}
