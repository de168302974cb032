// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Translation of OpenSSL's parameters into typed operations.
//!
//! Pure: no pointer, no library. What has no typed operation is `None`, and then done locally or
//! refused.

use millrace_operation::der::{DerReader, tag};
use millrace_operation::{Hash, MAX_LABEL_LEN, Operation};

use crate::names;

/// `RSA_PKCS1_PADDING`
pub const PAD_PKCS1: i32 = 1;
/// `RSA_PKCS1_OAEP_PADDING`
pub const PAD_OAEP: i32 = 4;
/// `RSA_PKCS1_PSS_PADDING`
pub const PAD_PSS: i32 = 6;
/// `RSA_PKCS1_WITH_TLS_PADDING`
pub const PAD_TLS: i32 = 7;

/// `RSA_PSS_SALTLEN_DIGEST`
pub const SALT_DIGEST: i32 = -1;
/// `RSA_PSS_SALTLEN_AUTO`
pub const SALT_AUTO: i32 = -2;
/// `RSA_PSS_SALTLEN_MAX`
pub const SALT_MAX: i32 = -3;
/// `RSA_PSS_SALTLEN_AUTO_DIGEST_MAX` (3.1 and later)
pub const SALT_AUTO_DIGEST_MAX: i32 = -4;

/// The digest that a context is set to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Digest {
    /// No digest is set yet.
    #[default]
    Unset,
    /// A digest that the pool has.
    Known(Hash),
    /// A digest that the pool does not have.
    Unsupported,
}

impl Digest {
    /// Longest name of a digest, with its terminator (`OSSL_MAX_NAME_SIZE`).
    pub const MAX_NAME: usize = 50;

    /// The digest with this OpenSSL name; an empty one means that none is set.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match names::hash_from_name(name) {
            Some(hash) => Self::Known(hash),
            None if name.is_empty() => Self::Unset,
            None => Self::Unsupported,
        }
    }

    /// The pool's digest, `default` if none is set.
    fn or(self, default: Hash) -> Option<Hash> {
        match self {
            Self::Unset => Some(default),
            Self::Known(hash) => Some(hash),
            Self::Unsupported => None,
        }
    }

    /// The name under which OpenSSL fetches it, if the pool has it.
    #[must_use]
    pub fn openssl_name(self) -> Option<&'static std::ffi::CStr> {
        match self {
            Self::Known(hash) => names::openssl_name(hash),
            Self::Unset | Self::Unsupported => None,
        }
    }
}

/// Settings of an RSA signature context.
#[derive(Clone, Copy, Debug)]
pub struct RsaSign {
    /// `OSSL_SIGNATURE_PARAM_PAD_MODE`
    pub pad_mode: i32,
    /// `OSSL_SIGNATURE_PARAM_DIGEST`
    pub digest: Digest,
    /// `OSSL_SIGNATURE_PARAM_MGF1_DIGEST`; that of the message unless set.
    pub mgf1: Digest,
    /// `OSSL_SIGNATURE_PARAM_PSS_SALTLEN`
    pub salt_len: i32,
    /// Bits of the modulus.
    pub bits: u32,
}

/// The operation that signs `digest` as `params` say, with its input.
#[must_use]
pub fn rsa_sign(params: &RsaSign, digest: &[u8]) -> Option<(Operation, Vec<u8>)> {
    let (operation, digest) = match (params.pad_mode, params.digest) {
        (PAD_PKCS1, Digest::Known(hash)) => (Operation::RsaPkcs1Sign { hash }, digest),
        // Padding without an algorithm is what MD5 and SHA-1 together have by definition.
        (PAD_PKCS1, Digest::Unset) if digest.len() == Hash::Md5Sha1.digest_len() => {
            let hash = Hash::Md5Sha1;
            (Operation::RsaPkcs1Sign { hash }, digest)
        }
        (PAD_PKCS1, Digest::Unset) => {
            let (hash, digest) = names::split_digest_info(digest)?;
            (Operation::RsaPkcs1Sign { hash }, digest)
        }
        (PAD_PSS, Digest::Known(hash)) => {
            let mgf_hash = params.mgf1.or(hash)?;
            let salt_len = pss_salt_len(params.salt_len, params.bits, hash)?;
            let operation = Operation::RsaPssSign { hash, mgf_hash, salt_len };
            (operation, digest)
        }
        _ => return None,
    };
    Some((operation, digest.to_vec()))
}

/// The salt length in bytes that a setting means when signing (RFC 8017 section 9.1.1).
fn pss_salt_len(setting: i32, bits: u32, hash: Hash) -> Option<u16> {
    let encoded_len = usize::try_from(bits.checked_sub(1)?.div_ceil(8)).ok()?;
    let max = encoded_len.checked_sub(hash.digest_len() + 2)?;
    let salt_len = match setting {
        SALT_DIGEST => hash.digest_len(),
        SALT_AUTO | SALT_MAX => max,
        SALT_AUTO_DIGEST_MAX => max.min(hash.digest_len()),
        fixed => usize::try_from(fixed).ok()?,
    };
    (salt_len <= max).then(|| u16::try_from(salt_len).ok()).flatten()
}

/// Settings of an RSA cipher context.
#[derive(Clone, Debug, Default)]
pub struct RsaDecrypt {
    /// `OSSL_ASYM_CIPHER_PARAM_PAD_MODE`
    pub pad_mode: i32,
    /// `OSSL_ASYM_CIPHER_PARAM_OAEP_DIGEST`; SHA-1 unless set.
    pub digest: Digest,
    /// `OSSL_ASYM_CIPHER_PARAM_MGF1_DIGEST`; that of the label unless set.
    pub mgf1: Digest,
    /// `OSSL_ASYM_CIPHER_PARAM_OAEP_LABEL`
    pub label: Vec<u8>,
    /// `OSSL_ASYM_CIPHER_PARAM_TLS_CLIENT_VERSION`
    pub client_version: u32,
    /// `OSSL_ASYM_CIPHER_PARAM_TLS_NEGOTIATED_VERSION`: the second version that a broken client may
    /// have put into the premaster secret. The pool accepts one version only.
    pub negotiated_version: u32,
    /// Implicit rejection was switched off by the application (3.2 and later).
    pub explicit_rejection: bool,
}

/// The operation that decrypts as `params` say.
#[must_use]
pub fn rsa_decrypt(params: &RsaDecrypt) -> Option<Operation> {
    match params.pad_mode {
        PAD_OAEP => {
            let hash = params.digest.or(Hash::Sha1)?;
            let mgf_hash = params.mgf1.or(hash)?;
            let label = params.label.clone();
            (label.len() <= MAX_LABEL_LEN).then_some(Operation::RsaOaepDecrypt {
                hash,
                mgf_hash,
                label,
            })
        }
        PAD_PKCS1 if !params.explicit_rejection => Some(Operation::RsaPkcs1Decrypt),
        PAD_TLS if params.negotiated_version == 0 => {
            let client_version = u16::try_from(params.client_version).ok()?;
            (client_version != 0).then_some(Operation::RsaTlsPremaster { client_version })
        }
        _ => None,
    }
}

/// The digest of an ECDSA or DSA signature. If none is set, only the length matters: it is the one with the length of
/// `digest`. `None` for a digest that the pool does not have: OpenSSL checks its length.
#[must_use]
pub fn dsa_hash(set: Digest, digest: &[u8]) -> Option<Hash> {
    let hash = match set {
        Digest::Known(hash) => hash,
        Digest::Unset => names::hash_by_len(digest.len())?,
        Digest::Unsupported => return None,
    };
    (hash.digest_len() == digest.len()).then_some(hash)
}

/// Whether these bytes have the form of a signature of DSA or ECDSA: a DER sequence of two positive
/// integers and nothing else.
#[must_use]
pub fn is_dsa_signature(der: &[u8]) -> bool {
    let mut outer = DerReader::new(der);
    let Some(body) = outer.take(tag::SEQUENCE) else {
        return false;
    };
    let mut body = DerReader::new(body);
    let mut positive = || body.take_unsigned().is_some_and(|number| !number.is_empty());
    positive() && positive() && body.is_empty() && outer.is_empty()
}

/// Whether a message is one DER sequence and nothing else, as what is signed in certificates, requests and lists of
/// revocations. What TLS signs begins with 64 spaces, random bytes or a client's hello.
#[must_use]
pub fn is_sequence(message: &[u8]) -> bool {
    let mut reader = DerReader::new(message);
    reader.take(tag::SEQUENCE).is_some() && reader.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_told_from_what_tls_signs() {
        let long = [&[0x30, 0x82, 1, 0][..], &[5; 256]].concat();
        assert!(is_sequence(&long));
        assert!(is_sequence(&[0x30, 0]));
        assert!(!is_sequence(&long[..259]), "it is cut off");
        assert!(!is_sequence(&[&long[..], &[0]].concat()), "something follows");
        assert!(!is_sequence(&[b' '; 130]));
        assert!(!is_sequence(&[]));
    }

    fn pss(salt_len: i32, bits: u32) -> RsaSign {
        let digest = Digest::Known(Hash::Sha256);
        RsaSign { pad_mode: PAD_PSS, digest, mgf1: Digest::Unset, salt_len, bits }
    }

    fn salt_of(params: &RsaSign) -> Option<u16> {
        match rsa_sign(params, &[0; 32])?.0 {
            Operation::RsaPssSign { salt_len, .. } => Some(salt_len),
            _ => None,
        }
    }

    #[test]
    fn salt_lengths_are_resolved_as_openssl_does() {
        assert_eq!(salt_of(&pss(SALT_DIGEST, 2048)), Some(32));
        assert_eq!(salt_of(&pss(SALT_MAX, 2048)), Some(222));
        assert_eq!(salt_of(&pss(SALT_AUTO, 2049)), Some(222));
        assert_eq!(salt_of(&pss(SALT_AUTO_DIGEST_MAX, 2048)), Some(32));
        assert_eq!(salt_of(&pss(20, 2048)), Some(20));
        assert_eq!(salt_of(&pss(223, 2048)), None);
        assert_eq!(salt_of(&pss(-9, 2048)), None);
    }

    #[test]
    fn digest_names_tell_unset_known_and_unsupported_apart() {
        assert_eq!(Digest::named(""), Digest::Unset);
        assert_eq!(Digest::named("SHA2-256"), Digest::Known(Hash::Sha256));
        assert_eq!(Digest::named("SHA3-256"), Digest::Unsupported);
    }

    #[test]
    fn dsa_digest_is_the_one_set_or_the_one_of_that_length() {
        let set = Digest::Known(Hash::Sha256);
        assert_eq!(dsa_hash(set, &[0; 32]), Some(Hash::Sha256));
        assert_eq!(dsa_hash(set, &[0; 48]), None);
        assert_eq!(dsa_hash(Digest::Unset, &[0; 48]), Some(Hash::Sha384));
        assert_eq!(dsa_hash(Digest::Unsupported, &[0; 64]), None);
        assert_eq!(dsa_hash(Digest::Unsupported, &[0; 20]), None);
        assert_eq!(dsa_hash(Digest::Unset, &[0; 31]), None);
    }

    #[test]
    fn unknown_digest_is_no_operation() {
        let mut params = pss(SALT_DIGEST, 2048);
        params.digest = Digest::Unsupported;
        assert!(rsa_sign(&params, &[0; 32]).is_none());
        params = pss(SALT_DIGEST, 2048);
        params.mgf1 = Digest::Unsupported;
        assert!(rsa_sign(&params, &[0; 32]).is_none());
        params.pad_mode = 3;
        assert!(rsa_sign(&params, &[0; 32]).is_none());
    }

    #[test]
    fn bare_pkcs1_input_is_an_encoded_digest_or_md5_and_sha1() {
        let bare = RsaSign {
            pad_mode: PAD_PKCS1,
            digest: Digest::Unset,
            mgf1: Digest::Unset,
            salt_len: 0,
            bits: 2048,
        };
        let hash =
            |input: &[u8]| rsa_sign(&bare, input).and_then(|(operation, _)| operation.hash());
        assert_eq!(hash(&[0; 36]), Some(Hash::Md5Sha1));
        assert_eq!(hash(&[0; 32]), None);
        assert_eq!(hash(&[]), None);
    }

    #[test]
    fn tls_premaster_takes_one_version_only() {
        let params =
            RsaDecrypt { pad_mode: PAD_TLS, client_version: 0x0303, ..RsaDecrypt::default() };
        assert_eq!(
            rsa_decrypt(&params),
            Some(Operation::RsaTlsPremaster { client_version: 0x0303 })
        );
        let params = RsaDecrypt { negotiated_version: 0x0302, ..params };
        assert_eq!(rsa_decrypt(&params), None);
    }

    #[test]
    fn pkcs1_decryption_without_implicit_rejection_stays_local() {
        let params = RsaDecrypt { pad_mode: PAD_PKCS1, ..RsaDecrypt::default() };
        assert_eq!(rsa_decrypt(&params), Some(Operation::RsaPkcs1Decrypt));
        assert_eq!(rsa_decrypt(&RsaDecrypt { explicit_rejection: true, ..params }), None);
    }

    #[test]
    fn form_of_a_dsa_signature_is_strict() {
        assert!(is_dsa_signature(&[0x30, 6, 2, 1, 1, 2, 1, 0x7f]));
        assert!(is_dsa_signature(&[0x30, 7, 2, 2, 0, 0x80, 2, 1, 1]));
        for bad in [
            &[][..],
            &[0x30, 0],
            &[0x30, 6, 2, 1, 0, 2, 1, 1],
            &[0x30, 6, 2, 1, 0x80, 2, 1, 1],
            &[0x30, 6, 2, 1, 1, 2, 1, 1, 0],
            &[0x30, 7, 2, 2, 0, 1, 2, 1, 1],
            &[0x30, 3, 2, 1, 1],
            &[0x30, 6, 2, 9, 1, 2, 1, 1],
        ] {
            assert!(!is_dsa_signature(bad), "{bad:02x?}");
        }
    }
}
