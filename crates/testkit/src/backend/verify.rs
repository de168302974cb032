// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The peer's side of each operation: verifies signatures, encrypts, agrees on secrets. It uses OpenSSL and,
//! for ML-DSA, RustCrypto; no backend uses these libraries.

use millrace_operation::{Curve, Hash, KeyType, ML_DSA_MU_LEN, MlDsaInput, MlDsaSet, Operation};
use ml_dsa::VerifyingKey;
use ml_dsa::pkcs8::{DecodePrivateKey, DecodePublicKey, EncodePublicKey};
use openssl::bn::{BigNum, BigNumContext};
use openssl::derive::Deriver;
use openssl::dh::Dh;
use openssl::ec::{EcGroup, EcKey, EcPoint};
use openssl::error::ErrorStack;
use openssl::hash::{MessageDigest, hash_xof};
use openssl::md::{Md, MdRef};
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey, Private, Public};
use openssl::pkey_ctx::PkeyCtx;
use openssl::rsa::{Padding, Rsa};
use openssl::sign::{RsaPssSaltlen, Signer, Verifier};

use crate::keys::{self, TestKey};

/// Returns OpenSSL's object for a digest.
///
/// # Panics
/// If OpenSSL does not have it.
#[must_use]
pub fn md(hash: Hash) -> &'static MdRef {
    let nid = match hash {
        Hash::Md5Sha1 => Nid::MD5_SHA1,
        Hash::Sha1 => Nid::SHA1,
        Hash::Sha224 => Nid::SHA224,
        Hash::Sha256 => Nid::SHA256,
        Hash::Sha384 => Nid::SHA384,
        Hash::Sha512 => Nid::SHA512,
        // The crate has no name for SHA-512/256, whose number is fixed in OpenSSL's obj_mac.h.
        Hash::Sha512_256 => Nid::from_raw(1095),
    };
    Md::from_nid(nid).unwrap_or_else(|| panic!("OpenSSL lacks {hash}"))
}

/// Computes the digest of a message.
///
/// # Panics
/// If OpenSSL fails.
#[must_use]
pub fn digest(hash: Hash, message: &[u8]) -> Vec<u8> {
    let digest = MessageDigest::from_nid(md(hash).type_()).expect("a digest");
    openssl::hash::hash(digest, message).expect("a digest").to_vec()
}

/// Whether `signature` is valid for `operation` on `input` under the public key in `spki`.
///
/// # Panics
/// If the operation is not a signature or the key cannot be read.
#[must_use]
pub fn signature(spki: &[u8], operation: &Operation, input: &[u8], signature: &[u8]) -> bool {
    match operation {
        Operation::MlDsaSign { input: form } => {
            ml_dsa(spki, *form, input, signature).unwrap_or(false)
        }
        Operation::Ed25519Sign => Verifier::new_without_digest(&public_key(spki))
            .and_then(|mut verifier| verifier.verify_oneshot(signature, input))
            .unwrap_or(false),
        Operation::RsaPkcs1Sign { .. }
        | Operation::RsaPssSign { .. }
        | Operation::EcdsaSign { .. }
        | Operation::DsaSign { .. } => {
            verify_digest(&public_key(spki), operation, input, signature).unwrap_or(false)
        }
        Operation::RsaOaepDecrypt { .. }
        | Operation::RsaPkcs1Decrypt
        | Operation::RsaTlsPremaster { .. }
        | Operation::RsaRaw
        | Operation::Ecdh
        | Operation::X25519
        | Operation::DhDerive => panic!("{:?} is not a signature", operation.kind()),
    }
}

fn public_key(spki: &[u8]) -> PKey<Public> {
    PKey::public_key_from_der(spki).expect("a public key")
}

/// Verifies an ML-DSA signature. `None` if key or signature do not parse.
fn ml_dsa(spki: &[u8], form: MlDsaInput, input: &[u8], signature: &[u8]) -> Option<bool> {
    macro_rules! with {
        ($($set:ident)*) => {
            $(if let Ok(key) = VerifyingKey::<ml_dsa::$set>::from_public_key_der(spki) {
                let signature = ml_dsa::Signature::try_from(signature).ok()?;
                return Some(match form {
                    MlDsaInput::Message => key.verify_with_context(input, b"", &signature),
                    MlDsaInput::Mu => key.verify_mu(&input.try_into().ok()?, &signature),
                });
            })*
        };
    }
    with!(MlDsa44 MlDsa65 MlDsa87);
    None
}

/// The message representative μ of ML-DSA (FIPS 204 algorithm 7, step 6) with a context of at most 255 bytes.
///
/// # Panics
/// If `spki` is not an ML-DSA key, the context is too long, or OpenSSL fails.
#[must_use]
pub fn ml_dsa_mu(spki: &[u8], context: &[u8], message: &[u8]) -> [u8; ML_DSA_MU_LEN] {
    let shake = |parts: &[&[u8]]| {
        let mut out = [0; ML_DSA_MU_LEN];
        hash_xof(MessageDigest::shake_256(), &parts.concat(), &mut out).expect("a digest");
        out
    };
    let sets = [MlDsaSet::MlDsa44, MlDsaSet::MlDsa65, MlDsaSet::MlDsa87];
    // The key is at the end of the `SubjectPublicKeyInfo`, after fewer than 32 bytes.
    let len = sets.map(MlDsaSet::public_key_len).into_iter().filter(|len| *len < spki.len()).max();
    let public = &spki[spki.len() - len.expect("an ML-DSA key")..];
    let context_len = u8::try_from(context.len()).expect("a context of at most 255 bytes");
    shake(&[&shake(&[public]), &[0, context_len], context, message])
}

fn verify_digest(
    key: &PKey<Public>,
    operation: &Operation,
    digest: &[u8],
    signature: &[u8],
) -> Result<bool, ErrorStack> {
    let mut context = PkeyCtx::new(key)?;
    context.verify_init()?;
    match operation {
        Operation::RsaPkcs1Sign { hash } => {
            context.set_rsa_padding(Padding::PKCS1)?;
            context.set_signature_md(md(*hash))?;
        }
        Operation::RsaPssSign { hash, mgf_hash, salt_len } => {
            context.set_rsa_padding(Padding::PKCS1_PSS)?;
            context.set_signature_md(md(*hash))?;
            context.set_rsa_mgf1_md(md(*mgf_hash))?;
            context.set_rsa_pss_saltlen(RsaPssSaltlen::custom(i32::from(*salt_len)))?;
        }
        // ECDSA and DSA have no parameters beside the key.
        _ => {}
    }
    context.verify(digest, signature)
}

/// The public half of a test key, as `SubjectPublicKeyInfo`.
///
/// # Panics
/// If OpenSSL cannot read the key.
#[must_use]
pub fn spki(key: &TestKey) -> Vec<u8> {
    if let KeyType::MlDsa(set) = key.key_type {
        return ml_dsa_spki(set);
    }
    let key = PKey::private_key_from_pkcs8(key.der).expect("a private key");
    key.public_key_to_der().expect("a public key")
}

/// The public half of the test key of an ML-DSA parameter set.
fn ml_dsa_spki(set: MlDsaSet) -> Vec<u8> {
    macro_rules! public {
        ($set:ident, $key:expr) => {{
            let key = ml_dsa::SigningKey::<ml_dsa::$set>::from_pkcs8_der($key.der);
            let public = key.expect("a private key").expanded_key().verifying_key();
            public.to_public_key_der().expect("a public key").into_vec()
        }};
    }
    match set {
        MlDsaSet::MlDsa44 => public!(MlDsa44, keys::ml_dsa_44()),
        MlDsaSet::MlDsa65 => public!(MlDsa65, keys::ml_dsa_65()),
        MlDsaSet::MlDsa87 => public!(MlDsa87, keys::ml_dsa_87()),
    }
}

/// The modulus of an RSA key, big-endian.
///
/// # Panics
/// If `key` is not an RSA key.
#[must_use]
pub fn rsa_modulus(spki: &[u8]) -> Vec<u8> {
    rsa(spki).n().to_vec()
}

fn rsa(spki: &[u8]) -> Rsa<Public> {
    let key = PKey::public_key_from_der(spki).and_then(|key| key.rsa());
    key.expect("an RSA key")
}

fn encrypt(spki: &[u8], value: &[u8], padding: Padding) -> Vec<u8> {
    let rsa = rsa(spki);
    let mut out = vec![0; rsa.size() as usize];
    rsa.public_encrypt(value, &mut out, padding).expect("a value that fits");
    out
}

/// The prime of a Diffie-Hellman key, big-endian.
///
/// # Panics
/// If `key` is not a Diffie-Hellman key.
#[must_use]
pub fn dh_prime(key: &TestKey) -> Vec<u8> {
    let key = PKey::private_key_from_pkcs8(key.der).and_then(|key| key.dh());
    key.expect("a Diffie-Hellman key").prime_p().to_vec()
}

/// Computes `value^e mod n`: reverses a private RSA operation, or encrypts without padding.
///
/// # Panics
/// If OpenSSL fails.
#[must_use]
pub fn rsa_public(spki: &[u8], value: &[u8]) -> Vec<u8> {
    encrypt(spki, value, Padding::NONE)
}

/// Encrypts with PKCS#1 v1.5 padding.
///
/// # Panics
/// If the message is too long.
#[must_use]
pub fn encrypt_pkcs1(spki: &[u8], message: &[u8]) -> Vec<u8> {
    encrypt(spki, message, Padding::PKCS1)
}

/// Encrypts with OAEP padding.
///
/// # Panics
/// If the message is too long.
#[must_use]
pub fn encrypt_oaep(
    spki: &[u8],
    hash: Hash,
    mgf_hash: Hash,
    label: &[u8],
    message: &[u8],
) -> Vec<u8> {
    let mut context = PkeyCtx::new(&public_key(spki)).expect("a context");
    context.encrypt_init().expect("encryption");
    context.set_rsa_padding(Padding::PKCS1_OAEP).expect("padding");
    context.set_rsa_oaep_md(md(hash)).expect("a digest");
    context.set_rsa_mgf1_md(md(mgf_hash)).expect("a digest");
    if !label.is_empty() {
        context.set_rsa_oaep_label(label).expect("a label");
    }
    let mut out = Vec::new();
    context.encrypt_to_vec(message, &mut out).expect("a message that fits");
    out
}

/// Signs with the private key in OpenSSL. Only for deterministic signatures: PKCS#1 v1.5 or Ed25519.
///
/// # Panics
/// If OpenSSL fails.
#[must_use]
pub fn sign(key: &TestKey, operation: &Operation, input: &[u8]) -> Vec<u8> {
    let private = PKey::private_key_from_pkcs8(key.der).expect("a private key");
    if *operation == Operation::Ed25519Sign {
        let mut signer = Signer::new_without_digest(&private).expect("a signer");
        return signer.sign_oneshot_to_vec(input).expect("a signature");
    }
    let Operation::RsaPkcs1Sign { hash } = operation else {
        panic!("{:?} is not deterministic", operation.kind())
    };
    let mut context = PkeyCtx::new(&private).expect("a context");
    context.sign_init().expect("signing");
    context.set_rsa_padding(Padding::PKCS1).expect("padding");
    context.set_signature_md(md(*hash)).expect("a digest");
    let mut out = Vec::new();
    context.sign_to_vec(input, &mut out).expect("a signature");
    out
}

/// Returns a fresh public value of a peer, in the form of a job's input, and the secret that OpenSSL computes
/// from `key` and that value.
///
/// # Panics
/// If `key` is not for key agreement.
#[must_use]
pub fn agreement(key: &TestKey) -> (Vec<u8>, Vec<u8>) {
    let ours = PKey::private_key_from_pkcs8(key.der).expect("a private key");
    match ours.id() {
        Id::X25519 => {
            let peer = PKey::generate_x25519().expect("a key");
            (peer.raw_public_key().expect("a public key"), derive(&ours, &peer))
        }
        Id::EC => {
            let name = ours.ec_key().expect("an EC key").group().curve_name().expect("a name");
            let group = EcGroup::from_curve_name(name).expect("a group");
            let peer = EcKey::generate(&group).expect("a key");
            let mut context = BigNumContext::new().expect("a context");
            let form = openssl::ec::PointConversionForm::UNCOMPRESSED;
            let point = peer.public_key().to_bytes(&group, form, &mut context).expect("a point");
            (point, derive(&ours, &PKey::from_ec_key(peer).expect("a key")))
        }
        _ => dh_agreement(&ours.dh().expect("a key with key agreement")),
    }
}

/// A multiple of an uncompressed point, computed by OpenSSL.
///
/// # Panics
/// If the point is not on the curve.
#[must_use]
pub fn multiple(curve: Curve, scalar: &[u8], point: &[u8]) -> Vec<u8> {
    let name = match curve {
        Curve::P256 => Nid::X9_62_PRIME256V1,
        Curve::P384 => Nid::SECP384R1,
        Curve::P521 => Nid::SECP521R1,
    };
    let group = EcGroup::from_curve_name(name).expect("a group");
    let mut context = BigNumContext::new().expect("a context");
    let point = EcPoint::from_bytes(&group, point, &mut context).expect("a point");
    let scalar = BigNum::from_slice(scalar).expect("a number");
    let mut product = EcPoint::new(&group).expect("a point");
    product.mul2(&group, &point, &scalar, &mut context).expect("a product");
    let form = openssl::ec::PointConversionForm::UNCOMPRESSED;
    product.to_bytes(&group, form, &mut context).expect("a point")
}

fn derive(ours: &PKey<Private>, peer: &PKey<Private>) -> Vec<u8> {
    let mut deriver = Deriver::new(ours).expect("a key");
    deriver.set_peer(peer).expect("a peer");
    deriver.derive_to_vec().expect("a secret")
}

/// Computes with plain numbers, because the `openssl` crate's derivation strips leading zeros.
fn dh_agreement(ours: &Dh<Private>) -> (Vec<u8>, Vec<u8>) {
    let p = ours.prime_p();
    let g = ours.generator();
    let mut context = BigNumContext::new().expect("a context");
    let mut random = BigNum::new().expect("a number");
    p.rand_range(&mut random).expect("a number");
    let mut public = BigNum::new().expect("a number");
    public.mod_exp(g, &random, p, &mut context).expect("a power");
    let mut secret = BigNum::new().expect("a number");
    secret.mod_exp(&public, ours.private_key(), p, &mut context).expect("a power");
    let secret = secret.to_vec_padded(p.num_bytes()).expect("a number below p");
    (public.to_vec(), secret)
}
