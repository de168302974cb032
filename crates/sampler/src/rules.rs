// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Classes by the name of a file or function.

use std::path::Path;

use super::Class;
use super::image::Image;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Libcrypto,
    /// The whole file is one class.
    Whole(Class),
    /// A program or library that may contain cryptography, recognised by the names of its functions.
    Other,
}

/// Beginnings of file names. The first match decides.
const FILES: &[(&str, Kind)] = &[
    ("libcrypto.so", Kind::Libcrypto),
    ("libcrypto-", Kind::Libcrypto),
    ("libssl.so", Kind::Whole(Class::Tls)),
    ("libmillrace_", Kind::Whole(Class::Edge)),
    ("libc.so", Kind::Whole(Class::Libc)),
    ("libc-", Kind::Whole(Class::Libc)),
    ("libc.musl", Kind::Whole(Class::Libc)),
    ("ld-linux", Kind::Whole(Class::Libc)),
    ("ld-musl", Kind::Whole(Class::Libc)),
    ("ld.so", Kind::Whole(Class::Libc)),
    ("libpthread", Kind::Whole(Class::Libc)),
    ("libjemalloc", Kind::Whole(Class::Libc)),
    ("libtcmalloc", Kind::Whole(Class::Libc)),
];

pub(super) fn kind(image: &Image) -> Kind {
    kind_of(image.file_name())
}

/// Whether the file of a mapping is a libcrypto.
pub(super) fn is_libcrypto(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| kind_of(name) == Kind::Libcrypto)
}

fn kind_of(name: &str) -> Kind {
    let rule = FILES.iter().find(|(start, _)| name.starts_with(start));
    rule.map_or(Kind::Other, |(_, kind)| *kind)
}

/// Parts of the names of functions in OpenSSL, AWS-LC, BoringSSL and our own lanes, in lower case. The
/// first match decides, so special parts stand before general ones.
const NAMES: &[(&str, Class)] = &[
    ("millrace_backends4simd", Class::RsaPrivate),
    ("rsa_default_public", Class::OtherPublicKey),
    ("rsa_verify", Class::OtherPublicKey),
    ("rsaz_", Class::RsaPrivate),
    ("extract_multiplier", Class::RsaPrivate),
    ("rsa_private", Class::RsaPrivate),
    ("rsa_default_private", Class::RsaPrivate),
    ("rsa_default_sign", Class::RsaPrivate),
    ("bn_power5", Class::RsaPrivate),
    ("bn_mul_mont_gather5", Class::RsaPrivate),
    ("bn_mod_exp_mont_consttime", Class::RsaPrivate),
    ("ecdsa_verify", Class::OtherPublicKey),
    ("ecdsa_sign", Class::EcPrivate),
    ("ed25519_sign", Class::EcPrivate),
    ("edwards25519", Class::EcPrivate),
    ("ml_dsa_verify", Class::OtherPublicKey),
    ("ml_dsa", Class::MlDsaPrivate),
    ("mldsa", Class::MlDsaPrivate),
    ("ecdh", Class::KeyAgreement),
    ("x25519", Class::KeyAgreement),
    ("curve25519", Class::KeyAgreement),
    ("aesni_", Class::Aes),
    ("aes_", Class::Aes),
    ("_aes", Class::Aes),
    ("ghash", Class::Aes),
    ("gcm", Class::Aes),
    ("vpaes", Class::Aes),
    ("chacha", Class::ChaCha),
    ("poly1305", Class::ChaCha),
    ("sha1_", Class::Hash),
    ("sha256", Class::Hash),
    ("sha512", Class::Hash),
    ("sha3", Class::Hash),
    ("keccak", Class::Hash),
    ("md5", Class::Hash),
    ("hmac", Class::Hash),
    ("hkdf", Class::Hash),
    ("rand_", Class::Random),
    ("drbg", Class::Random),
    ("bn_", Class::BigNumbers),
    ("p256", Class::BigNumbers),
    ("p384", Class::BigNumbers),
    ("nistz256", Class::BigNumbers),
    ("ec_group", Class::BigNumbers),
    ("ec_point", Class::BigNumbers),
];

/// Beginnings of the names of libcrypto's functions around the operations.
const OVERHEAD: &[&str] = &[
    "a2d_", "asn1_", "async_", "bio_", "bn_free", "bn_new", "buf_", "conf_", "crypto_", "d2i_",
    "err_", "evp_", "ex_", "i2d_", "obj_", "openssl_", "ossl_", "pem_", "pkcs", "sk_", "ui_",
    "x509", "lh_",
];

/// The class of a function in libcrypto, or in one linked into a program, by its name.
pub(super) fn by_name(name: &str, in_libcrypto: bool) -> Option<Class> {
    let name = name.to_ascii_lowercase();
    let rule = NAMES.iter().find(|(part, _)| name.contains(part));
    if let Some((_, class)) = rule {
        return Some(*class);
    }
    let overhead = in_libcrypto && OVERHEAD.iter().any(|start| name.starts_with(start));
    overhead.then_some(Class::Overhead)
}

/// Whether the function names of a program are those of a crypto library: it has AWS-LC, BoringSSL or OpenSSL
/// linked in.
pub(super) fn has_crypto_inside(image: &Image) -> bool {
    let telling = |name: &str| {
        name.starts_with("aws_lc_") || matches!(name, "EVP_DigestSign" | "RSA_sign" | "BN_mod_exp")
    };
    image
        .regions()
        .iter()
        .filter_map(|region| region.name.as_deref())
        .any(telling)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_names_give_their_class() {
        let cases = [
            ("aws_lc_0_47_0_rsaz_1024_mul_avx2", Some(Class::RsaPrivate)),
            ("aws_lc_0_47_0_bn_mul_mont", Some(Class::BigNumbers)),
            ("aesni_gcm_encrypt", Some(Class::Aes)),
            (
                "aws_lc_0_47_0_curve25519_x25519_byte",
                Some(Class::KeyAgreement),
            ),
            ("OSSL_PARAM_locate", Some(Class::Overhead)),
            ("EVP_DigestSign", Some(Class::Overhead)),
            ("ossl_ml_dsa_poly_ntt", Some(Class::MlDsaPrivate)),
            ("ossl_ml_dsa_verify", Some(Class::OtherPublicKey)),
            ("whatever", None),
        ];
        for (name, class) in cases {
            assert_eq!(by_name(name, true), class, "{name}");
        }
        assert_eq!(by_name("evp_of_the_application", false), None);
    }
}
