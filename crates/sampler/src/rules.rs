// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Classes by the name of a file or function.

use std::path::Path;

use super::SymbolClass;
use super::image::Image;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileClass {
    Libcrypto,
    /// The whole file is one class.
    Whole(SymbolClass),
    /// A program or library that may contain cryptography, recognised by the names of its functions.
    Other,
}

/// Beginnings of file names. The first match decides.
const FILES: &[(&str, FileClass)] = &[
    ("libcrypto.so", FileClass::Libcrypto),
    ("libcrypto-", FileClass::Libcrypto),
    ("libssl.so", FileClass::Whole(SymbolClass::Tls)),
    ("libmillrace_", FileClass::Whole(SymbolClass::Edge)),
    ("libc.so", FileClass::Whole(SymbolClass::Libc)),
    ("libc-", FileClass::Whole(SymbolClass::Libc)),
    ("libc.musl", FileClass::Whole(SymbolClass::Libc)),
    ("ld-linux", FileClass::Whole(SymbolClass::Libc)),
    ("ld-musl", FileClass::Whole(SymbolClass::Libc)),
    ("ld.so", FileClass::Whole(SymbolClass::Libc)),
    ("libpthread", FileClass::Whole(SymbolClass::Libc)),
    ("libjemalloc", FileClass::Whole(SymbolClass::Libc)),
    ("libtcmalloc", FileClass::Whole(SymbolClass::Libc)),
];

pub(super) fn kind(image: &Image) -> FileClass {
    kind_of(image.file_name())
}

/// Whether the file of a mapping is a libcrypto.
pub(super) fn is_libcrypto(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| kind_of(name) == FileClass::Libcrypto)
}

fn kind_of(name: &str) -> FileClass {
    let rule = FILES.iter().find(|(start, _)| name.starts_with(start));
    rule.map_or(FileClass::Other, |(_, kind)| *kind)
}

/// Parts of the names of functions in OpenSSL, AWS-LC, BoringSSL and our own lanes, in lower case. The
/// first match decides, so special parts stand before general ones.
const NAMES: &[(&str, SymbolClass)] = &[
    ("millrace_backends4simd", SymbolClass::RsaPrivate),
    ("rsa_default_public", SymbolClass::OtherPublicKey),
    ("rsa_verify", SymbolClass::OtherPublicKey),
    ("rsaz_", SymbolClass::RsaPrivate),
    ("extract_multiplier", SymbolClass::RsaPrivate),
    ("rsa_private", SymbolClass::RsaPrivate),
    ("rsa_default_private", SymbolClass::RsaPrivate),
    ("rsa_default_sign", SymbolClass::RsaPrivate),
    ("bn_power5", SymbolClass::RsaPrivate),
    ("bn_mul_mont_gather5", SymbolClass::RsaPrivate),
    ("bn_mod_exp_mont_consttime", SymbolClass::RsaPrivate),
    ("ecdsa_verify", SymbolClass::OtherPublicKey),
    ("ecdsa_sign", SymbolClass::EcPrivate),
    ("ed25519_sign", SymbolClass::EcPrivate),
    ("edwards25519", SymbolClass::EcPrivate),
    ("ml_dsa_verify", SymbolClass::OtherPublicKey),
    ("ml_dsa", SymbolClass::MlDsaPrivate),
    ("mldsa", SymbolClass::MlDsaPrivate),
    ("ecdh", SymbolClass::KeyAgreement),
    ("x25519", SymbolClass::KeyAgreement),
    ("curve25519", SymbolClass::KeyAgreement),
    ("aesni_", SymbolClass::Aes),
    ("aes_", SymbolClass::Aes),
    ("_aes", SymbolClass::Aes),
    ("ghash", SymbolClass::Aes),
    ("gcm", SymbolClass::Aes),
    ("vpaes", SymbolClass::Aes),
    ("chacha", SymbolClass::ChaCha),
    ("poly1305", SymbolClass::ChaCha),
    ("sha1_", SymbolClass::Hash),
    ("sha256", SymbolClass::Hash),
    ("sha512", SymbolClass::Hash),
    ("sha3", SymbolClass::Hash),
    ("keccak", SymbolClass::Hash),
    ("md5", SymbolClass::Hash),
    ("hmac", SymbolClass::Hash),
    ("hkdf", SymbolClass::Hash),
    ("rand_", SymbolClass::Random),
    ("drbg", SymbolClass::Random),
    ("bn_", SymbolClass::BigNumbers),
    ("p256", SymbolClass::BigNumbers),
    ("p384", SymbolClass::BigNumbers),
    ("nistz256", SymbolClass::BigNumbers),
    ("ec_group", SymbolClass::BigNumbers),
    ("ec_point", SymbolClass::BigNumbers),
];

/// Beginnings of the names of libcrypto's functions around the operations.
const OVERHEAD: &[&str] = &[
    "a2d_", "asn1_", "async_", "bio_", "bn_free", "bn_new", "buf_", "conf_", "crypto_", "d2i_",
    "err_", "evp_", "ex_", "i2d_", "obj_", "openssl_", "ossl_", "pem_", "pkcs", "sk_", "ui_",
    "x509", "lh_",
];

/// The class of a function that computes a cryptographic operation, by its name.
pub(super) fn operation_class(name: &str) -> Option<SymbolClass> {
    let name = name.to_ascii_lowercase();
    NAMES.iter().find(|(part, _)| name.contains(part)).map(|(_, class)| *class)
}

/// The class of a function of libcrypto: an operation, or the work around operations.
pub(super) fn libcrypto_function_class(name: &str) -> Option<SymbolClass> {
    let lower = name.to_ascii_lowercase();
    operation_class(name).or_else(|| {
        let is_overhead = OVERHEAD.iter().any(|start| lower.starts_with(start));
        is_overhead.then_some(SymbolClass::Overhead)
    })
}

/// Whether the function names of a program are those of a crypto library: it has AWS-LC, BoringSSL or OpenSSL
/// linked in.
pub(super) fn has_crypto_inside(image: &Image) -> bool {
    image.regions().iter().filter_map(|region| region.name.as_deref()).any(|name| {
        name.starts_with("aws_lc_") || matches!(name, "EVP_DigestSign" | "RSA_sign" | "BN_mod_exp")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_names_give_their_class() {
        let cases = [
            ("aws_lc_0_47_0_rsaz_1024_mul_avx2", Some(SymbolClass::RsaPrivate)),
            ("aws_lc_0_47_0_bn_mul_mont", Some(SymbolClass::BigNumbers)),
            ("aesni_gcm_encrypt", Some(SymbolClass::Aes)),
            ("aws_lc_0_47_0_curve25519_x25519_byte", Some(SymbolClass::KeyAgreement)),
            ("OSSL_PARAM_locate", Some(SymbolClass::Overhead)),
            ("EVP_DigestSign", Some(SymbolClass::Overhead)),
            ("ossl_ml_dsa_poly_ntt", Some(SymbolClass::MlDsaPrivate)),
            ("ossl_ml_dsa_verify", Some(SymbolClass::OtherPublicKey)),
            ("whatever", None),
        ];
        for (name, class) in cases {
            assert_eq!(libcrypto_function_class(name), class, "{name}");
        }
        assert_eq!(operation_class("evp_of_the_application"), None);
    }
}
