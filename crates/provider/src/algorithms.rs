// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The algorithms that the provider offers, one row each.
//!
//! A row has the first name of the algorithm in OpenSSL's `default` provider, from which its aliases are taken. An
//! algorithm that this OpenSSL lacks is not offered. OpenSSL calls a function without saying for which algorithm, so
//! the C boundary makes functions per row: `each_signature!(f)` and its siblings expand to `[f::<0>, f::<1>, …]`.

use std::ffi::CStr;

use millrace_kernel_crypto::BulkAlgorithm;
use millrace_operation::{Curve, MlDsaSet};

macro_rules! rows {
    ($d:tt $each:ident, $(#[$doc:meta])* $enum:ident: $row:ty = {
        $($variant:ident { $($field:tt)* })*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $enum {
            $(#[allow(missing_docs, reason = "the row says it")] $variant),*
        }

        impl $enum {
            /// Every variant, in the order of its index.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The rows, by index.
            pub const ROWS: &'static [$row] = {
                type Row = $row;
                &[$(Row { $($field)* }),*]
            };

            /// The row of this variant.
            #[must_use]
            pub const fn row(self) -> &'static $row {
                &Self::ROWS[self as usize]
            }
        }

        /// One generic function per row, in the order of the rows.
        #[allow(unused_macros, reason = "as below")]
        macro_rules! $each {
            ($d function:ident) => {
                [$($d function::<{ $crate::algorithms::$enum::$variant as usize }>),*]
            };
        }
        #[allow(unused_imports, reason = "a table without functions of its own")]
        pub(crate) use $each;
    };
}

/// A key type of OpenSSL that the provider offers.
#[derive(Debug)]
pub struct KeyTypeRow {
    /// First name of the key type in the `default` provider.
    pub name: &'static CStr,
    /// Object identifier in the `SubjectPublicKeyInfo`, DER with tag and length.
    pub oid: &'static [u8],
    /// Whether the pool has operations for it. The others are offered because a server may have such a key in addition
    /// to pooled ones; OpenSSL does their operations in this process.
    pub pooled: bool,
}

rows! { $ each_key_type,
    /// Key types of OpenSSL that the provider offers.
    KeyType: KeyTypeRow = {
        Rsa     { name: c"RSA",       pooled: true,  oid: &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 1] }
        RsaPss  { name: c"RSA-PSS",   pooled: false, oid: &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 10] }
        Ec      { name: c"EC",        pooled: true,  oid: &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1] }
        X25519  { name: c"X25519",    pooled: true,  oid: &[6, 3, 0x2b, 0x65, 0x6e] }
        X448    { name: c"X448",      pooled: false, oid: &[6, 3, 0x2b, 0x65, 0x6f] }
        Ed25519 { name: c"ED25519",   pooled: true,  oid: &[6, 3, 0x2b, 0x65, 0x70] }
        Ed448   { name: c"ED448",     pooled: false, oid: &[6, 3, 0x2b, 0x65, 0x71] }
        Dh      { name: c"DH",        pooled: true,  oid: &[6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 3, 1] }
        Dhx     { name: c"DHX",       pooled: false, oid: &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3e, 2, 1] }
        Dsa     { name: c"DSA",       pooled: true,  oid: &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1] }
        MlDsa44 { name: c"ML-DSA-44", pooled: true,  oid: &[6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 3, 17] }
        MlDsa65 { name: c"ML-DSA-65", pooled: true,  oid: &[6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 3, 18] }
        MlDsa87 { name: c"ML-DSA-87", pooled: true,  oid: &[6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 3, 19] }
    }
}

impl KeyType {
    /// First name of the key type in the `default` provider.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.row().name.to_str() {
            Ok(name) => name,
            Err(_) => panic!(),
        }
    }

    /// The key type of this name, compared without case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name().eq_ignore_ascii_case(name))
    }

    /// Whether a `SubjectPublicKeyInfo` names this key type in its algorithm: cheap, and before
    /// anything is parsed for good.
    #[must_use]
    pub fn may_be_of(self, spki: &[u8]) -> bool {
        // Two sequence headers of 2 to 4 bytes each stand before it.
        let head = spki.get(..24).unwrap_or(spki);
        let oid = self.row().oid;
        head.windows(oid.len()).any(|window| window == oid)
    }
}

/// Computation of an algorithm, whichever digest its name fixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the schemes")]
pub enum Scheme {
    Rsa,
    Ecdsa,
    Dsa,
    Ed25519,
    Ed448,
    MlDsa(MlDsaSet),
    Ecdh,
    X25519,
    X448,
    Dh,
}

/// A signature, a key exchange or an asymmetric cipher.
#[derive(Debug)]
pub struct AlgorithmRow {
    /// First name of the algorithm in the `default` provider.
    pub name: &'static str,
    /// Computation of the algorithm.
    pub scheme: Scheme,
    /// The key types that it works with: offered if one of them is.
    pub keys: &'static [KeyType],
}

const RSA: &[KeyType] = &[KeyType::Rsa, KeyType::RsaPss];

// Those with a digest in their name came with OpenSSL 3.4, ML-DSA with 3.5; the digests are the pool's.
// The first row of a scheme takes any digest: results are verified with it.
rows! { $ each_signature,
    /// Signature algorithms of OpenSSL that the provider offers.
    Signature: AlgorithmRow = {
        Rsa            { name: "RSA",               scheme: Scheme::Rsa,     keys: RSA }
        Ecdsa          { name: "ECDSA",             scheme: Scheme::Ecdsa,   keys: &[KeyType::Ec] }
        Ed25519        { name: "ED25519",           scheme: Scheme::Ed25519, keys: &[KeyType::Ed25519] }
        Ed448          { name: "ED448",             scheme: Scheme::Ed448,   keys: &[KeyType::Ed448] }
        Dsa            { name: "DSA",               scheme: Scheme::Dsa,     keys: &[KeyType::Dsa] }
        MlDsa44        { name: "ML-DSA-44",         scheme: Scheme::MlDsa(MlDsaSet::MlDsa44), keys: &[KeyType::MlDsa44] }
        MlDsa65        { name: "ML-DSA-65",         scheme: Scheme::MlDsa(MlDsaSet::MlDsa65), keys: &[KeyType::MlDsa65] }
        MlDsa87        { name: "ML-DSA-87",         scheme: Scheme::MlDsa(MlDsaSet::MlDsa87), keys: &[KeyType::MlDsa87] }
        RsaSha1        { name: "RSA-SHA1",          scheme: Scheme::Rsa,     keys: RSA }
        RsaSha224      { name: "RSA-SHA2-224",      scheme: Scheme::Rsa,     keys: RSA }
        RsaSha256      { name: "RSA-SHA2-256",      scheme: Scheme::Rsa,     keys: RSA }
        RsaSha384      { name: "RSA-SHA2-384",      scheme: Scheme::Rsa,     keys: RSA }
        RsaSha512      { name: "RSA-SHA2-512",      scheme: Scheme::Rsa,     keys: RSA }
        RsaSha512Of256 { name: "RSA-SHA2-512/256",  scheme: Scheme::Rsa,     keys: RSA }
        EcdsaSha1      { name: "ECDSA-SHA1",        scheme: Scheme::Ecdsa,   keys: &[KeyType::Ec] }
        EcdsaSha224    { name: "ECDSA-SHA2-224",    scheme: Scheme::Ecdsa,   keys: &[KeyType::Ec] }
        EcdsaSha256    { name: "ECDSA-SHA2-256",    scheme: Scheme::Ecdsa,   keys: &[KeyType::Ec] }
        EcdsaSha384    { name: "ECDSA-SHA2-384",    scheme: Scheme::Ecdsa,   keys: &[KeyType::Ec] }
        EcdsaSha512    { name: "ECDSA-SHA2-512",    scheme: Scheme::Ecdsa,   keys: &[KeyType::Ec] }
        DsaSha1        { name: "DSA-SHA1",          scheme: Scheme::Dsa,     keys: &[KeyType::Dsa] }
        DsaSha224      { name: "DSA-SHA2-224",      scheme: Scheme::Dsa,     keys: &[KeyType::Dsa] }
        DsaSha256      { name: "DSA-SHA2-256",      scheme: Scheme::Dsa,     keys: &[KeyType::Dsa] }
        DsaSha384      { name: "DSA-SHA2-384",      scheme: Scheme::Dsa,     keys: &[KeyType::Dsa] }
        DsaSha512      { name: "DSA-SHA2-512",      scheme: Scheme::Dsa,     keys: &[KeyType::Dsa] }
    }
}

rows! { $ each_exchange,
    /// The key exchanges.
    Exchange: AlgorithmRow = {
        Ecdh   { name: "ECDH",   scheme: Scheme::Ecdh,   keys: &[KeyType::Ec] }
        X25519 { name: "X25519", scheme: Scheme::X25519, keys: &[KeyType::X25519] }
        X448   { name: "X448",   scheme: Scheme::X448,   keys: &[KeyType::X448] }
        Dh     { name: "DH",     scheme: Scheme::Dh,     keys: &[KeyType::Dh, KeyType::Dhx] }
    }
}

rows! { $ each_cipher,
    /// The asymmetric ciphers.
    Cipher: AlgorithmRow = {
        Rsa { name: "RSA", scheme: Scheme::Rsa, keys: &[KeyType::Rsa] }
    }
}

/// A group of algorithms that the setting `local` names as one.
#[derive(Debug)]
pub struct PrimitiveRow {
    /// The word in the setting `local`, and the name of the algorithm.
    pub name: &'static str,
    /// The provider parameter that counts what was computed in this process.
    pub counter: &'static CStr,
    /// The keys that it signs with. `None` for a primitive without keys of the application.
    pub signs: Option<SigningKeys>,
    /// Gain from which the primitive is computed in this process.
    pub least_gain: LeastGain,
}

/// Cost in the installed OpenSSL, in percent of the cost by AWS-LC, above which AWS-LC computes a primitive.
#[derive(Clone, Copy, Debug)]
pub struct LeastGain {
    /// For a libcrypto with assembly for this processor.
    pub with_assembly: u64,
    /// For a libcrypto without assembly.
    pub without_assembly: u64,
}

/// For a call or two of a handshake: AWS-LC computes whatever is cheaper that way.
const CHEAPER: LeastGain = LeastGain { with_assembly: 100, without_assembly: 100 };

/// For algorithms that every record passes through: AWS-LC has to be clearly faster. A libcrypto with assembly keeps
/// its own, also where a busy machine distorts the measurement: AES-GCM with AVX-512 was 1.6 times as fast as OpenSSL
/// 3.0 on a quiet core, and 2.2 times under other load. Where OpenSSL without assembly is slower, it costs 2 to 38
/// times as much.
const CLEARLY_CHEAPER: LeastGain = LeastGain { with_assembly: 300, without_assembly: 150 };

/// Keys of the application that sign in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SigningKeys {
    /// Key type for OpenSSL.
    pub key_type: KeyType,
    /// Key type and size for the pool and its backends.
    pub exact: millrace_operation::KeyType,
    /// OpenSSL's name of the curve, where the type has several.
    pub group: Option<&'static CStr>,
}

const fn signs_ec(curve: Curve, group: &'static CStr) -> Option<SigningKeys> {
    Some(SigningKeys {
        key_type: KeyType::Ec,
        exact: millrace_operation::KeyType::Ec(curve),
        group: Some(group),
    })
}

const fn signs_ml_dsa(key_type: KeyType, set: MlDsaSet) -> Option<SigningKeys> {
    Some(SigningKeys { key_type, exact: millrace_operation::KeyType::MlDsa(set), group: None })
}

const ED25519: SigningKeys = SigningKeys {
    key_type: KeyType::Ed25519,
    exact: millrace_operation::KeyType::Ed25519,
    group: None,
};

rows! { $ each_primitive,
    /// Groups of algorithms that the setting `local` names as one.
    Primitive: PrimitiveRow = {
        X25519            { name: "X25519",            counter: c"millrace-local-x25519",            signs: None, least_gain: CHEAPER }
        X25519MlKem768    { name: "X25519MLKEM768",    counter: c"millrace-local-x25519mlkem768",    signs: None, least_gain: CHEAPER }
        SecP256r1MlKem768 { name: "SecP256r1MLKEM768", counter: c"millrace-local-secp256r1mlkem768", signs: None, least_gain: CHEAPER }
        MlKem768          { name: "ML-KEM-768",        counter: c"millrace-local-ml-kem-768",        signs: None, least_gain: CHEAPER }
        Tls13Kdf          { name: "TLS13-KDF",         counter: c"millrace-local-tls13-kdf",         signs: None, least_gain: CHEAPER }
        P384              { name: "P-384",             counter: c"millrace-local-p-384",     signs: signs_ec(Curve::P384, c"P-384"), least_gain: CHEAPER }
        P521              { name: "P-521",             counter: c"millrace-local-p-521",     signs: signs_ec(Curve::P521, c"P-521"), least_gain: CHEAPER }
        Ed25519           { name: "ED25519",           counter: c"millrace-local-ed25519",   signs: Some(ED25519), least_gain: CHEAPER }
        MlDsa44           { name: "ML-DSA-44",         counter: c"millrace-local-ml-dsa-44", signs: signs_ml_dsa(KeyType::MlDsa44, MlDsaSet::MlDsa44), least_gain: CHEAPER }
        MlDsa65           { name: "ML-DSA-65",         counter: c"millrace-local-ml-dsa-65", signs: signs_ml_dsa(KeyType::MlDsa65, MlDsaSet::MlDsa65), least_gain: CHEAPER }
        MlDsa87           { name: "ML-DSA-87",         counter: c"millrace-local-ml-dsa-87", signs: signs_ml_dsa(KeyType::MlDsa87, MlDsaSet::MlDsa87), least_gain: CHEAPER }
        AesGcm            { name: "AES-GCM",           counter: c"millrace-local-aes-gcm",           signs: None, least_gain: CLEARLY_CHEAPER }
        ChaCha20Poly1305  { name: "ChaCha20-Poly1305", counter: c"millrace-local-chacha20-poly1305", signs: None, least_gain: CLEARLY_CHEAPER }
        Sha256            { name: "SHA2-256",          counter: c"millrace-local-sha2-256",          signs: None, least_gain: CLEARLY_CHEAPER }
        Sha512            { name: "SHA2-512",          counter: c"millrace-local-sha2-512",          signs: None, least_gain: CLEARLY_CHEAPER }
    }
}

/// A cipher of TLS records that the provider may compute in the process.
#[derive(Debug)]
pub struct AeadRow {
    /// First name of the cipher in the `default` provider.
    pub name: &'static str,
    /// Primitive under which the setting `local` and the counters list the cipher.
    pub primitive: Primitive,
    /// Bytes of the key.
    pub key_len: usize,
}

rows! { $ each_aead,
    /// The ciphers of records, with their authentication.
    Aead: AeadRow = {
        Aes128Gcm        { name: "AES-128-GCM",       primitive: Primitive::AesGcm,           key_len: 16 }
        Aes192Gcm        { name: "AES-192-GCM",       primitive: Primitive::AesGcm,           key_len: 24 }
        Aes256Gcm        { name: "AES-256-GCM",       primitive: Primitive::AesGcm,           key_len: 32 }
        ChaCha20Poly1305 { name: "ChaCha20-Poly1305", primitive: Primitive::ChaCha20Poly1305, key_len: 32 }
    }
}

impl Aead {
    /// Whether this is AES in Galois/Counter mode, at any key size.
    #[must_use]
    pub const fn is_gcm(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm)
    }
}

/// A digest that the provider may compute in the process.
#[derive(Debug)]
pub struct Sha2Row {
    /// First name of the digest in the `default` provider.
    pub name: &'static str,
    /// Primitive under which the setting `local` and the counters list the digest.
    pub primitive: Primitive,
    /// Bytes of the result.
    pub len: usize,
}

rows! { $ each_sha2,
    /// The digests of the SHA-2 family.
    Sha2: Sha2Row = {
        Sha224      { name: "SHA2-224",     primitive: Primitive::Sha256, len: 28 }
        Sha256      { name: "SHA2-256",     primitive: Primitive::Sha256, len: 32 }
        Sha384      { name: "SHA2-384",     primitive: Primitive::Sha512, len: 48 }
        Sha512      { name: "SHA2-512",     primitive: Primitive::Sha512, len: 64 }
        Sha512Of224 { name: "SHA2-512/224", primitive: Primitive::Sha512, len: 28 }
        Sha512Of256 { name: "SHA2-512/256", primitive: Primitive::Sha512, len: 32 }
    }
}

/// Kind of operation for OpenSSL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the operations")]
pub enum BulkForm {
    Cipher,
    Digest,
    Mac,
}

/// Facts about an algorithm that the kernel may serve.
#[derive(Debug)]
pub struct BulkRow {
    /// First name of the algorithm in the `default` provider.
    pub name: &'static str,
    /// Kind of operation.
    pub form: BulkForm,
    /// The kernel's algorithm; for HMAC that of SHA-256, since the digest is a parameter.
    pub kernel: BulkAlgorithm,
    /// The primitive that computes the same in this process; where that is chosen, the kernel is not asked.
    pub local: Option<Primitive>,
}

rows! { $ each_bulk,
    /// The algorithms that the kernel may serve, where that was measured to pay.
    Bulk: BulkRow = {
        Aes128Cbc { name: "AES-128-CBC", form: BulkForm::Cipher, kernel: BulkAlgorithm::AesCbc,     local: None }
        Aes192Cbc { name: "AES-192-CBC", form: BulkForm::Cipher, kernel: BulkAlgorithm::AesCbc,     local: None }
        Aes256Cbc { name: "AES-256-CBC", form: BulkForm::Cipher, kernel: BulkAlgorithm::AesCbc,     local: None }
        Aes128Ctr { name: "AES-128-CTR", form: BulkForm::Cipher, kernel: BulkAlgorithm::AesCtr,     local: None }
        Aes192Ctr { name: "AES-192-CTR", form: BulkForm::Cipher, kernel: BulkAlgorithm::AesCtr,     local: None }
        Aes256Ctr { name: "AES-256-CTR", form: BulkForm::Cipher, kernel: BulkAlgorithm::AesCtr,     local: None }
        Aes128Gcm { name: "AES-128-GCM", form: BulkForm::Cipher, kernel: BulkAlgorithm::AesGcm,     local: Some(Primitive::AesGcm) }
        Aes192Gcm { name: "AES-192-GCM", form: BulkForm::Cipher, kernel: BulkAlgorithm::AesGcm,     local: Some(Primitive::AesGcm) }
        Aes256Gcm { name: "AES-256-GCM", form: BulkForm::Cipher, kernel: BulkAlgorithm::AesGcm,     local: Some(Primitive::AesGcm) }
        Sha1      { name: "SHA1",        form: BulkForm::Digest, kernel: BulkAlgorithm::Sha1,       local: None }
        Sha224    { name: "SHA2-224",    form: BulkForm::Digest, kernel: BulkAlgorithm::Sha224,     local: Some(Primitive::Sha256) }
        Sha256    { name: "SHA2-256",    form: BulkForm::Digest, kernel: BulkAlgorithm::Sha256,     local: Some(Primitive::Sha256) }
        Sha384    { name: "SHA2-384",    form: BulkForm::Digest, kernel: BulkAlgorithm::Sha384,     local: Some(Primitive::Sha512) }
        Sha512    { name: "SHA2-512",    form: BulkForm::Digest, kernel: BulkAlgorithm::Sha512,     local: Some(Primitive::Sha512) }
        Hmac      { name: "HMAC",        form: BulkForm::Mac,    kernel: BulkAlgorithm::HmacSha256, local: None }
    }
}

/// The kernel's HMACs, with the names of their digests.
pub(crate) const HMACS: [(BulkAlgorithm, &[&str]); 5] = [
    (BulkAlgorithm::HmacSha1, &["SHA1", "SHA-1"]),
    (BulkAlgorithm::HmacSha224, &["SHA224", "SHA2-224", "SHA-224"]),
    (BulkAlgorithm::HmacSha256, &["SHA256", "SHA2-256", "SHA-256"]),
    (BulkAlgorithm::HmacSha384, &["SHA384", "SHA2-384", "SHA-384"]),
    (BulkAlgorithm::HmacSha512, &["SHA512", "SHA2-512", "SHA-512"]),
];

/// The kernel's HMAC with a digest of this name.
#[must_use]
pub fn kernel_hmac(digest: &str) -> Option<BulkAlgorithm> {
    HMACS
        .iter()
        .find(|(_, names)| names.iter().any(|name| name.eq_ignore_ascii_case(digest)))
        .map(|(algorithm, _)| *algorithm)
}

/// The half of a hybrid that is not ML-KEM, or the whole of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareCurve {
    /// X25519
    X25519,
    /// NIST P-256, with uncompressed points
    P256,
}

/// Components of a share, in the order of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// A curve alone
    Curve(ShareCurve),
    /// ML-KEM-768 alone
    MlKem,
    /// ML-KEM-768, then a curve
    MlKemThen(ShareCurve),
    /// A curve, then ML-KEM-768
    ThenMlKem(ShareCurve),
}

/// A TLS group that libssl learns from its provider.
#[derive(Clone, Copy, Debug)]
pub struct GroupRow {
    /// The name in `ssl_ecdh_curve` and `-groups`.
    pub name: &'static CStr,
    /// TLS code point of the group.
    pub id: u32,
}

/// A key share that the provider may compute in the process.
#[derive(Debug)]
pub struct ShareRow {
    /// Names of the share in the `default` provider.
    pub names: &'static CStr,
    /// First of these names.
    pub name: &'static CStr,
    /// Primitive under which the setting `local` and the counters list the share.
    pub primitive: Primitive,
    /// Components of the share.
    pub parts: Parts,
    /// Key size and security strength in bits, as the `default` provider of OpenSSL 3.5 reports them.
    pub bits: i32,
    /// Security strength in bits, see `bits`.
    pub security_bits: i32,
    /// TLS group of the share. `None` where every OpenSSL 3 announces it.
    pub group: Option<GroupRow>,
    /// Whether an OpenSSL that has the share keeps it: its keys are also key files, not only key shares.
    pub yields: bool,
}

rows! { $ each_share,
    /// The key shares.
    Share: ShareRow = {
        X25519 {
            names: c"X25519:1.3.101.110", name: c"X25519", primitive: Primitive::X25519,
            parts: Parts::Curve(ShareCurve::X25519), bits: 253, security_bits: 128, group: None, yields: false
        }
        X25519MlKem768 {
            names: c"X25519MLKEM768", name: c"X25519MLKEM768", primitive: Primitive::X25519MlKem768,
            parts: Parts::MlKemThen(ShareCurve::X25519), bits: 768, security_bits: 192,
            group: Some(GroupRow { name: c"X25519MLKEM768", id: 0x11ec }), yields: false
        }
        SecP256r1MlKem768 {
            names: c"SecP256r1MLKEM768", name: c"SecP256r1MLKEM768", primitive: Primitive::SecP256r1MlKem768,
            parts: Parts::ThenMlKem(ShareCurve::P256), bits: 768, security_bits: 192,
            group: Some(GroupRow { name: c"SecP256r1MLKEM768", id: 0x11eb }), yields: false
        }
        MlKem768 {
            names: c"ML-KEM-768:MLKEM768:id-alg-ml-kem-768:2.16.840.1.101.3.4.4.2", name: c"ML-KEM-768",
            primitive: Primitive::MlKem768, parts: Parts::MlKem, bits: 768, security_bits: 192,
            group: Some(GroupRow { name: c"MLKEM768", id: 0x0201 }), yields: true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_row_of_each_scheme_has_no_digest_in_its_name() {
        for (index, row) in Signature::ROWS.iter().enumerate() {
            let first = Signature::ROWS.iter().position(|known| known.scheme == row.scheme);
            assert_eq!(first == Some(index), !row.name.contains("-SHA"), "{}", row.name);
        }
    }

    #[test]
    fn spki_is_matched_by_its_own_key_type_only() {
        for key_type in KeyType::ALL {
            let spki = [&[0x30, 0x82, 1, 0, 0x30, 13][..], key_type.row().oid, &[5, 0, 3]].concat();
            for other in KeyType::ALL {
                assert_eq!(other.may_be_of(&spki), other == key_type, "{other:?} {key_type:?}");
            }
        }
        assert!(!KeyType::Ec.may_be_of(&[]));
    }
}
