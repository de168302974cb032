// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The calls into a libcrypto that was opened at run time. Every object is freed with its owner; none is
//! `Send`, because two threads may not use one of OpenSSL's contexts at once.
#![expect(clippy::needless_pass_by_ref_mut, reason = "what the pointers lead to is changed")]

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use zeroize::Zeroizing;

use crate::bench_key::BenchKey;
use crate::error::LibraryError;

/// An opaque object of libcrypto.
type Ptr = *mut c_void;

/// A C string.
type Text = *const c_char;

/// Frees an object; does nothing with null.
type Free = unsafe extern "C" fn(Ptr);

/// Makes a context ready for an operation.
type Init = unsafe extern "C" fn(Ptr) -> c_int;

/// Makes a context ready to sign or to verify: context, place for its inner context, hash, library context,
/// properties, key, parameters.
type InitDigest = unsafe extern "C" fn(Ptr, *mut Ptr, Text, Ptr, Text, Ptr, Ptr) -> c_int;

/// Finds an algorithm: library context, name, properties.
type Fetch = unsafe extern "C" fn(Ptr, Text, Text) -> Ptr;

/// `OPENSSL_VERSION`: the name and version of the library.
const VERSION: c_int = 0;

/// `OPENSSL_CPU_INFO`: its view of the processor.
const CPU_INFO: c_int = 9;

/// `EVP_CIPH_FLAG_AEAD_CIPHER`
const IS_AEAD: c_ulong = 0x20_0000;

/// `EVP_CTRL_AEAD_GET_TAG`
const GET_TAG: c_int = 0x10;

/// Bytes of an authentication tag.
const TAG_LEN: u8 = 16;

/// Room that a cipher may need beyond its input: one block.
const BLOCK: usize = 32;

/// `EVP_MAX_MD_SIZE`
const MAX_HASH_LEN: usize = 64;

/// Longest output of a key's operation: a signature of ML-DSA-87 has 4627 bytes.
const MAX_OUTPUT_LEN: usize = 8192;

macro_rules! symbols {
    ($($name:ident: $type:ty;)*) => {
        /// Functions of libcrypto. Names and signatures are those of its headers, since OpenSSL 3.0.
        #[allow(non_snake_case, reason = "the names of the library")]
        #[derive(Debug)]
        struct Functions {
            $($name: $type,)*
        }

        impl Functions {
            /// # Safety
            /// The functions of these names in `library` are libcrypto's.
            unsafe fn of(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        const NAME: &[u8] = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: a function of this name has this type since OpenSSL 3.0.
                        let found = unsafe { library.get::<$type>(NAME) };
                        *found.map_err(|_| stringify!($name))?
                    },)*
                })
            }
        }
    };
}

symbols! {
    OpenSSL_version: unsafe extern "C" fn(c_int) -> Text;
    EVP_CIPHER_fetch: Fetch;
    EVP_CIPHER_free: Free;
    EVP_CIPHER_get_flags: unsafe extern "C" fn(Ptr) -> c_ulong;
    EVP_CIPHER_get_iv_length: Init;
    EVP_CIPHER_get_key_length: Init;
    EVP_CIPHER_CTX_new: unsafe extern "C" fn() -> Ptr;
    EVP_CIPHER_CTX_free: Free;
    EVP_CIPHER_CTX_ctrl: unsafe extern "C" fn(Ptr, c_int, c_int, Ptr) -> c_int;
    EVP_EncryptInit_ex: unsafe extern "C" fn(Ptr, Ptr, Ptr, *const u8, *const u8) -> c_int;
    EVP_EncryptUpdate: unsafe extern "C" fn(Ptr, *mut u8, *mut c_int, *const u8, c_int) -> c_int;
    EVP_EncryptFinal_ex: unsafe extern "C" fn(Ptr, *mut u8, *mut c_int) -> c_int;
    EVP_MD_fetch: Fetch;
    EVP_MD_free: Free;
    EVP_MD_CTX_new: unsafe extern "C" fn() -> Ptr;
    EVP_MD_CTX_free: Free;
    EVP_DigestInit_ex: unsafe extern "C" fn(Ptr, Ptr, Ptr) -> c_int;
    EVP_DigestUpdate: unsafe extern "C" fn(Ptr, *const u8, usize) -> c_int;
    EVP_DigestFinal_ex: unsafe extern "C" fn(Ptr, *mut u8, *mut u32) -> c_int;
    EVP_PKEY_CTX_new_from_name: Fetch;
    EVP_PKEY_CTX_new_from_pkey: unsafe extern "C" fn(Ptr, Ptr, Text) -> Ptr;
    EVP_PKEY_CTX_free: Free;
    EVP_PKEY_CTX_ctrl_str: unsafe extern "C" fn(Ptr, Text, Text) -> c_int;
    EVP_PKEY_paramgen_init: Init;
    EVP_PKEY_paramgen: unsafe extern "C" fn(Ptr, *mut Ptr) -> c_int;
    EVP_PKEY_keygen_init: Init;
    EVP_PKEY_keygen: unsafe extern "C" fn(Ptr, *mut Ptr) -> c_int;
    EVP_PKEY_free: Free;
    EVP_PKEY2PKCS8: unsafe extern "C" fn(Ptr) -> Ptr;
    EVP_PKEY_get1_encoded_public_key: unsafe extern "C" fn(Ptr, *mut *mut u8) -> usize;
    i2d_PKCS8_PRIV_KEY_INFO: unsafe extern "C" fn(Ptr, *mut *mut u8) -> c_int;
    PKCS8_PRIV_KEY_INFO_free: Free;
    CRYPTO_free: unsafe extern "C" fn(*mut u8, Text, c_int);
    EVP_PKEY_derive_init: Init;
    EVP_PKEY_derive_set_peer: unsafe extern "C" fn(Ptr, Ptr) -> c_int;
    EVP_PKEY_derive: unsafe extern "C" fn(Ptr, *mut u8, *mut usize) -> c_int;
    EVP_PKEY_encapsulate_init: unsafe extern "C" fn(Ptr, Ptr) -> c_int;
    EVP_PKEY_encapsulate: unsafe extern "C" fn(Ptr, *mut u8, *mut usize, *mut u8, *mut usize) -> c_int;
    EVP_PKEY_decapsulate_init: unsafe extern "C" fn(Ptr, Ptr) -> c_int;
    EVP_PKEY_decapsulate: unsafe extern "C" fn(Ptr, *mut u8, *mut usize, *const u8, usize) -> c_int;
    EVP_DigestSignInit_ex: InitDigest;
    EVP_DigestSign: unsafe extern "C" fn(Ptr, *mut u8, *mut usize, *const u8, usize) -> c_int;
    EVP_DigestVerifyInit_ex: InitDigest;
    EVP_DigestVerify: unsafe extern "C" fn(Ptr, *const u8, usize, *const u8, usize) -> c_int;
}

/// An object that is freed with its owner.
#[derive(Debug)]
struct Owned {
    object: Ptr,
    free: Free,
}

impl Owned {
    /// `None` if there is no object: the library could not make it.
    ///
    /// # Safety
    /// `object` is null, or belongs to the caller and is of the type that `free` frees.
    unsafe fn new(object: Ptr, free: Free) -> Option<Self> {
        (!object.is_null()).then_some(Self { object, free })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: as `new` demands.
        unsafe { (self.free)(self.object) };
    }
}

/// An opened library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Libcrypto {
    call: &'static Functions,
}

impl Libcrypto {
    /// Opens a library by its path, or by its name as the loader finds it. It stays mapped as long as the
    /// process lives.
    pub(crate) fn open(path: &Path) -> Result<Self, LibraryError> {
        let failed = |reason: String| LibraryError::Open { path: path.to_owned(), reason };
        // SAFETY: the library's constructors run. It is one of this machine's that the user named, and nothing
        // of this process depends on what they do.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| failed(error.to_string()))?;
        // SAFETY: a library without libcrypto's names is refused; it is never unmapped.
        let functions = unsafe { Functions::of(&library) }
            .map_err(|name| failed(format!("it has no {name}: OpenSSL 3.0 or later is needed")))?;
        std::mem::forget(library);
        Ok(Self { call: Box::leak(Box::new(functions)) })
    }

    /// Version of the library and its view of the processor: `OpenSSL 3.0.17 1 Jul 2025; CPUINFO: …`, `N/A` if it was
    /// built without assembly.
    pub(crate) fn describe(self) -> String {
        let text = |what| {
            // SAFETY: it takes any number, and returns a static C string or null.
            let text = unsafe { (self.call.OpenSSL_version)(what) };
            // SAFETY: a static C string, if it is not null.
            let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
            text.unwrap_or_default().to_string_lossy()
        };
        format!("{}; {}", text(VERSION), text(CPU_INFO))
    }

    /// A cipher for packets: an AEAD (`AES-256-GCM`, `ChaCha20-Poly1305`) or `AES-256-CBC`.
    ///
    /// # Errors
    /// [`LibraryError::Missing`], also for a key of another length.
    pub(crate) fn cipher(self, name: &str, key: &[u8]) -> Result<PacketCipher, LibraryError> {
        PacketCipher::new(self.call, name, key).ok_or_else(|| LibraryError::missing(name))
    }

    /// A hash function.
    pub(crate) fn digest(self, name: &str) -> Result<BlockDigest, LibraryError> {
        BlockDigest::new(self.call, name).ok_or_else(|| LibraryError::missing(name))
    }

    /// A new key.
    pub(crate) fn key(self, kind: BenchKey) -> Result<KeyPair, LibraryError> {
        KeyPair::generate(self.call, kind).ok_or_else(|| LibraryError::missing(kind))
    }
}

/// The result of a call that must not fail.
fn done(result: Option<()>, what: &str) -> Result<(), LibraryError> {
    result.ok_or_else(|| LibraryError::Failed(format!("libcrypto failed in {what}")))
}

/// A length as OpenSSL counts it; `None` above its bound.
fn length(bytes: usize) -> Option<c_int> {
    c_int::try_from(bytes).ok()
}

/// Gives `output` room for `room` bytes, and truncates it to what `write` says that it wrote. `write` gets the
/// address and the length of the room, and returns 1 for success.
fn fill(
    output: &mut Vec<u8>,
    room: usize,
    write: impl FnOnce(*mut u8, &mut usize) -> c_int,
) -> Option<()> {
    output.clear();
    output.resize(room, 0);
    let mut len = room;
    let result = write(output.as_mut_ptr(), &mut len);
    output.truncate(len);
    (result == 1).then_some(())
}

/// A cipher with its key.
#[derive(Debug)]
pub(crate) struct PacketCipher {
    call: &'static Functions,
    context: Owned,
    iv_len: usize,
    tag_len: usize,
}

impl PacketCipher {
    fn new(call: &'static Functions, name: &str, key: &[u8]) -> Option<Self> {
        let text = CString::new(name).ok()?;
        // SAFETY: the default library context, a C string, no properties; a cipher is the caller's.
        let cipher = unsafe {
            let cipher = (call.EVP_CIPHER_fetch)(null_mut(), text.as_ptr(), null());
            Owned::new(cipher, call.EVP_CIPHER_free)?
        };
        // SAFETY: a live cipher.
        let [key_len, iv_len] = [call.EVP_CIPHER_get_key_length, call.EVP_CIPHER_get_iv_length]
            .map(|length| usize::try_from(unsafe { length(cipher.object) }).ok());
        // SAFETY: a live cipher.
        let is_aead = unsafe { (call.EVP_CIPHER_get_flags)(cipher.object) } & IS_AEAD != 0;
        // SAFETY: takes nothing, and gives a context of the caller's.
        let context = unsafe { Owned::new((call.EVP_CIPHER_CTX_new)(), call.EVP_CIPHER_CTX_free)? };
        key_len.filter(|len| *len == key.len())?;
        // SAFETY: a new context, a cipher (the context takes a reference), and a key of the cipher's length.
        let ready = unsafe {
            (call.EVP_EncryptInit_ex)(
                context.object,
                cipher.object,
                null_mut(),
                key.as_ptr(),
                null(),
            )
        };
        (ready == 1).then_some(Self {
            call,
            context,
            iv_len: iv_len?,
            tag_len: if is_aead { TAG_LEN.into() } else { 0 },
        })
    }

    /// Bytes of the cipher's nonce.
    pub(crate) fn iv_len(&self) -> usize {
        self.iv_len
    }

    /// Encrypts one packet into `output`, replacing what is there; the tag follows if the cipher has one.
    ///
    /// # Errors
    /// [`LibraryError::Failed`], also for a nonce of another length.
    pub(crate) fn seal(
        &mut self,
        iv: &[u8],
        packet: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), LibraryError> {
        done(self.try_seal(iv, packet, output), "encryption")
    }

    fn try_seal(&mut self, iv: &[u8], packet: &[u8], output: &mut Vec<u8>) -> Option<()> {
        let Self { call, context, .. } = self;
        let (context, tag_len, len) = (context.object, self.tag_len, length(packet.len())?);
        (iv.len() == self.iv_len).then_some(())?;
        fill(output, packet.len() + BLOCK + tag_len, |place, end| {
            let (mut written, mut rest) = (0, 0);
            // SAFETY: a context with cipher and key, an IV of the cipher's length, a readable packet, and room
            // for the packet and a block.
            let started = unsafe {
                (call.EVP_EncryptInit_ex)(context, null_mut(), null_mut(), null(), iv.as_ptr()) == 1
                    && (call.EVP_EncryptUpdate)(context, place, &mut written, packet.as_ptr(), len)
                        == 1
            };
            *end = usize::try_from(written).unwrap_or(0);
            // SAFETY: at most a block is written behind what is there.
            let ended = unsafe { (call.EVP_EncryptFinal_ex)(context, place.add(*end), &mut rest) };
            *end += usize::try_from(rest).unwrap_or(0);
            // SAFETY: there is room for the tag behind the packet and its last block.
            let tag = unsafe { place.add(*end).cast() };
            *end += tag_len;
            let tagged = tag_len == 0
                // SAFETY: as above.
                || unsafe { (call.EVP_CIPHER_CTX_ctrl)(context, GET_TAG, TAG_LEN.into(), tag) } == 1;
            c_int::from(started && ended == 1 && tagged)
        })
    }
}

/// A hash function with its context.
#[derive(Debug)]
pub(crate) struct BlockDigest {
    call: &'static Functions,
    digest: Owned,
    context: Owned,
}

impl BlockDigest {
    fn new(call: &'static Functions, name: &str) -> Option<Self> {
        let name = CString::new(name).ok()?;
        // SAFETY: the default library context, a C string, no properties; both objects are the caller's.
        unsafe {
            let digest = (call.EVP_MD_fetch)(null_mut(), name.as_ptr(), null());
            Some(Self {
                call,
                digest: Owned::new(digest, call.EVP_MD_free)?,
                context: Owned::new((call.EVP_MD_CTX_new)(), call.EVP_MD_CTX_free)?,
            })
        }
    }

    /// The hash of one block.
    pub(crate) fn hash(&mut self, block: &[u8], output: &mut Vec<u8>) -> Result<(), LibraryError> {
        let (call, context) = (self.call, self.context.object);
        let hashed = fill(output, MAX_HASH_LEN, |place, len| {
            let mut written = 0;
            // SAFETY: a context, a hash function, a readable block, and room for the longest hash.
            let hashed = unsafe {
                (call.EVP_DigestInit_ex)(context, self.digest.object, null_mut()) == 1
                    && (call.EVP_DigestUpdate)(context, block.as_ptr(), block.len()) == 1
                    && (call.EVP_DigestFinal_ex)(context, place, &mut written) == 1
            };
            *len = usize::try_from(written).unwrap_or(0);
            c_int::from(hashed)
        });
        done(hashed, "hashing")
    }
}

/// A key pair, with a context for signatures.
#[derive(Debug)]
pub(crate) struct KeyPair {
    call: &'static Functions,
    kind: BenchKey,
    key: Owned,
    digest: Owned,
}

impl KeyPair {
    fn generate(call: &'static Functions, kind: BenchKey) -> Option<Self> {
        /// The name of an option of key generation, and its value.
        type Setting = (&'static CStr, &'static CStr);
        let bits = c"rsa_keygen_bits";
        let (name, settings): (&CStr, &[Setting]) = match kind {
            BenchKey::Rsa2048 => (c"RSA", &[(bits, c"2048")]),
            BenchKey::Rsa3072 => (c"RSA", &[(bits, c"3072")]),
            BenchKey::Rsa4096 => (c"RSA", &[(bits, c"4096")]),
            BenchKey::P256 => (c"EC", &[(c"ec_paramgen_curve", c"P-256")]),
            BenchKey::P384 => (c"EC", &[(c"ec_paramgen_curve", c"P-384")]),
            BenchKey::P521 => (c"EC", &[(c"ec_paramgen_curve", c"P-521")]),
            BenchKey::X25519 => (c"X25519", &[]),
            BenchKey::Ed25519 => (c"ED25519", &[]),
            BenchKey::Dh2048 => (c"DH", &[(c"group", c"ffdhe2048")]),
            BenchKey::Dsa2048 => {
                let sizes: &[Setting] =
                    &[(c"dsa_paramgen_bits", c"2048"), (c"dsa_paramgen_q_bits", c"256")];
                (c"DSA", sizes)
            }
            BenchKey::MlKem768 => (c"ML-KEM-768", &[]),
            BenchKey::MlDsa44 => (c"ML-DSA-44", &[]),
            BenchKey::MlDsa65 => (c"ML-DSA-65", &[]),
            BenchKey::MlDsa87 => (c"ML-DSA-87", &[]),
        };
        // SAFETY: the default library context, a C string, no properties; a context is the caller's.
        let mut context = unsafe {
            let context = (call.EVP_PKEY_CTX_new_from_name)(null_mut(), name.as_ptr(), null());
            Owned::new(context, call.EVP_PKEY_CTX_free)?
        };
        let generate =
            |context: &Owned,
             init: Init,
             settings: &[Setting],
             generate: unsafe extern "C" fn(Ptr, *mut Ptr) -> c_int| {
                let (context, mut made) = (context.object, null_mut());
                // SAFETY: a live context, C strings, and a place for the result.
                let ready = unsafe {
                    init(context) == 1
                        && settings.iter().all(|(name, value)| {
                            (call.EVP_PKEY_CTX_ctrl_str)(context, name.as_ptr(), value.as_ptr())
                                == 1
                        })
                        && generate(context, &mut made) == 1
                };
                // SAFETY: null, or a key of the caller's.
                unsafe { Owned::new(made, call.EVP_PKEY_free) }.filter(|_| ready)
            };
        let mut settings = settings;
        if kind == BenchKey::Dsa2048 {
            // DSA has no named groups: parameters first, then the key.
            let parameters =
                generate(&context, call.EVP_PKEY_paramgen_init, settings, call.EVP_PKEY_paramgen)?;
            context = new_context(call, &parameters)?;
            settings = &[];
        }
        let key = generate(&context, call.EVP_PKEY_keygen_init, settings, call.EVP_PKEY_keygen)?;
        // SAFETY: takes nothing, and gives a context of the caller's.
        let digest = unsafe { Owned::new((call.EVP_MD_CTX_new)(), call.EVP_MD_CTX_free)? };
        Some(Self { call, kind, key, digest })
    }

    /// A context for an operation with this key.
    fn context(&self) -> Option<Owned> {
        new_context(self.call, &self.key)
    }

    /// Makes the context ready to sign or to verify. The hash is SHA-256, except where the algorithm has one of its
    /// own.
    fn is_ready(&mut self, init: InitDigest) -> bool {
        let hash = match self.kind {
            BenchKey::Ed25519 | BenchKey::MlDsa44 | BenchKey::MlDsa65 | BenchKey::MlDsa87 => null(),
            _ => c"SHA256".as_ptr(),
        };
        let (digest, key) = (self.digest.object, self.key.object);
        // SAFETY: a live context and key, a C string or null; the defaults for everything else.
        unsafe { init(digest, null_mut(), hash, null_mut(), null(), key, null_mut()) == 1 }
    }

    /// Signs a message, as TLS does.
    pub(crate) fn sign(
        &mut self,
        message: &[u8],
        signature: &mut Vec<u8>,
    ) -> Result<(), LibraryError> {
        let ready = self.is_ready(self.call.EVP_DigestSignInit_ex).then_some(());
        let (sign, digest) = (self.call.EVP_DigestSign, self.digest.object);
        let signed = ready.and_then(|()| {
            // SAFETY: a context that is ready, a signature with `len` bytes of room, a readable message.
            fill(signature, MAX_OUTPUT_LEN, |place, len| unsafe {
                sign(digest, place, len, message.as_ptr(), message.len())
            })
        });
        done(signed, "signing")
    }

    /// Whether a signature is good.
    pub(crate) fn verify(&mut self, message: &[u8], signature: &[u8]) -> bool {
        let (verify, digest) = (self.call.EVP_DigestVerify, self.digest.object);
        let (signature, len) = (signature.as_ptr(), signature.len());
        self.is_ready(self.call.EVP_DigestVerifyInit_ex)
            // SAFETY: a context that is ready, a readable signature and message.
            && unsafe { verify(digest, signature, len, message.as_ptr(), message.len()) == 1 }
    }

    /// The secret agreed on with the public half of `peer`. Finite-field secrets keep their leading zeros, as in
    /// TLS 1.3.
    pub(crate) fn derive(&self, peer: &Self, secret: &mut Vec<u8>) -> Result<(), LibraryError> {
        let (call, peer) = (self.call, peer.key.object);
        let padded = self.kind == BenchKey::Dh2048;
        let (name, value) = (c"dh_pad".as_ptr(), c"1".as_ptr());
        let derived = self.context().and_then(|context| {
            let context = context.object;
            // SAFETY: a live context and key, C strings, a secret with `len` bytes of room.
            fill(secret, MAX_OUTPUT_LEN, |place, len| unsafe {
                let ready = (call.EVP_PKEY_derive_init)(context) == 1
                    && (!padded || (call.EVP_PKEY_CTX_ctrl_str)(context, name, value) == 1)
                    && (call.EVP_PKEY_derive_set_peer)(context, peer) == 1
                    && (call.EVP_PKEY_derive)(context, place, len) == 1;
                c_int::from(ready)
            })
        });
        done(derived, "agreement")
    }

    /// A new secret and its capsule for this key.
    pub(crate) fn encapsulate(
        &self,
        capsule: &mut Vec<u8>,
        secret: &mut Vec<u8>,
    ) -> Result<(), LibraryError> {
        let call = self.call;
        let made = self.context().and_then(|context| {
            let context = context.object;
            let mut inner = None;
            let outer = fill(capsule, MAX_OUTPUT_LEN, |capsule, capsule_len| {
                // SAFETY: a live context; capsule and secret have as many bytes of room as their lengths say.
                inner = fill(secret, MAX_OUTPUT_LEN, |secret, secret_len| unsafe {
                    let ready = (call.EVP_PKEY_encapsulate_init)(context, null_mut()) == 1;
                    let encapsulate = call.EVP_PKEY_encapsulate;
                    c_int::from(
                        ready
                            && encapsulate(context, capsule, capsule_len, secret, secret_len) == 1,
                    )
                });
                1
            });
            inner.and(outer)
        });
        done(made, "encapsulation")
    }

    /// The secret in a capsule.
    pub(crate) fn decapsulate(
        &self,
        capsule: &[u8],
        secret: &mut Vec<u8>,
    ) -> Result<(), LibraryError> {
        let call = self.call;
        let opened = self.context().and_then(|context| {
            let (context, (capsule, capsule_len)) =
                (context.object, (capsule.as_ptr(), capsule.len()));
            // SAFETY: a live context, a readable capsule, a secret with `len` bytes of room.
            fill(secret, MAX_OUTPUT_LEN, |place, len| unsafe {
                let ready = (call.EVP_PKEY_decapsulate_init)(context, null_mut()) == 1;
                let decapsulate = call.EVP_PKEY_decapsulate;
                c_int::from(ready && decapsulate(context, place, len, capsule, capsule_len) == 1)
            })
        });
        done(opened, "decapsulation")
    }

    /// The private key in PKCS#8, not encrypted.
    pub(crate) fn pkcs8(&self) -> Result<Zeroizing<Vec<u8>>, LibraryError> {
        let call = self.call;
        let mut der = Zeroizing::new(Vec::new());
        // SAFETY: a live key; the structure is the caller's.
        let info = unsafe {
            let info = (call.EVP_PKEY2PKCS8)(self.key.object);
            Owned::new(info, call.PKCS8_PRIV_KEY_INFO_free)
        };
        let encoded = info.and_then(|info| {
            let encode = call.i2d_PKCS8_PRIV_KEY_INFO;
            // SAFETY: a live structure; without a place to write to, only the length is computed.
            let len = unsafe { encode(info.object, null_mut()) };
            let room = usize::try_from(len).ok().filter(|len| *len > 0)?;
            // SAFETY: the same structure, and room for the length that was just computed.
            fill(&mut der, room, |mut place, _| unsafe {
                c_int::from(encode(info.object, &mut place) == len)
            })
        });
        done(encoded, "encoding a key").map(|()| der)
    }

    /// The public value as TLS sends it.
    pub(crate) fn public_value(&self) -> Result<Vec<u8>, LibraryError> {
        let (mut bytes, mut value) = (null_mut(), Vec::new());
        // SAFETY: a live key and a place for the address of the value.
        let len =
            unsafe { (self.call.EVP_PKEY_get1_encoded_public_key)(self.key.object, &mut bytes) };
        let is_made = !bytes.is_null() && len > 0;
        if is_made {
            // SAFETY: the library made `len` bytes there; they are copied before they are freed.
            unsafe {
                value.extend_from_slice(std::slice::from_raw_parts(bytes, len));
                (self.call.CRYPTO_free)(bytes, null(), 0);
            }
        }
        done(is_made.then_some(()), "encoding a public value").map(|()| value)
    }
}

/// A context for an operation with this key, or for making a key from these parameters.
fn new_context(call: &Functions, key: &Owned) -> Option<Owned> {
    // SAFETY: the default library context, a live key (the context takes a reference), no properties; the context
    // is the caller's.
    unsafe {
        let context = (call.EVP_PKEY_CTX_new_from_pkey)(null_mut(), key.object, null());
        Owned::new(context, call.EVP_PKEY_CTX_free)
    }
}
