// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Known answers. The table maps Wycheproof's verdicts to required results:
//!
//! | file | verdict | required result |
//! |---|---|---|
//! | `rsa_pkcs1_*_sig_gen` | valid, acceptable (weak hash, small exponent) | the same signature |
//! | `rsa_pkcs1_*` | valid | the message |
//! | | invalid ciphertext (length, range) | `BadInput` |
//! | | invalid padding | a stable message that is not the one in the file: implicit rejection |
//! | `rsa_oaep_*` | valid / invalid | the message / `BadInput` |
//! | `ecdh_*` | valid | the secret |
//! | | invalid, acceptable (compressed, odd DER) | `BadInput`, or the test cannot be expressed as a job |
//! | implicit rejection | | the message, real or synthetic, bit for bit |
//! | `mldsa_*_sign_*` | valid | a signature that verifies; the one in the file verifies too |
//! | | invalid | the key is refused, or the context cannot be expressed as a job |
//! | `x25519` | zero secret | `BadInput` |
//! | | valid, acceptable (twist, non-canonical) | the secret |

use millrace_engine::BackendError;
use millrace_engine::backend::BackendKey;
use millrace_operation::{
    Curve, Hash, KeyError, KeyType, MlDsaInput, MlDsaSet, Operation, OperationKind,
};
use serde_json::Value;

use super::{ConformanceReport, QueueDriver};
use crate::vectors::{Vectors, bytes, tests, text};
use crate::{keys, verify};

/// Runs the tests of one group, and returns their number.
type GroupTest = fn(&mut QueueDriver, &Value) -> usize;

/// The files, each with the operation and type of key that it needs.
#[rustfmt::skip]
const FILES: [(&str, OperationKind, KeyType, GroupTest); 18] = {
    use OperationKind::{Ecdh, MlDsaSign, RsaOaepDecrypt, RsaPkcs1Decrypt, RsaPkcs1Sign, X25519};
    use MlDsaSet::{MlDsa44, MlDsa65, MlDsa87};
    [
        ("rsa_pkcs1_2048_sig_gen",            RsaPkcs1Sign,    KeyType::Rsa { bits: 2048 }, rsa_signatures),
        ("rsa_pkcs1_3072_sig_gen",            RsaPkcs1Sign,    KeyType::Rsa { bits: 3072 }, rsa_signatures),
        ("rsa_pkcs1_4096_sig_gen",            RsaPkcs1Sign,    KeyType::Rsa { bits: 4096 }, rsa_signatures),
        ("rsa_pkcs1_2048",                    RsaPkcs1Decrypt, KeyType::Rsa { bits: 2048 }, rsa_decryption),
        ("rsa_pkcs1_3072",                    RsaPkcs1Decrypt, KeyType::Rsa { bits: 3072 }, rsa_decryption),
        ("rsa_pkcs1_4096",                    RsaPkcs1Decrypt, KeyType::Rsa { bits: 4096 }, rsa_decryption),
        ("rsa_oaep_2048_sha1_mgf1sha1",       RsaOaepDecrypt,  KeyType::Rsa { bits: 2048 }, rsa_oaep),
        ("rsa_oaep_2048_sha256_mgf1sha1",     RsaOaepDecrypt,  KeyType::Rsa { bits: 2048 }, rsa_oaep),
        ("rsa_oaep_2048_sha256_mgf1sha256",   RsaOaepDecrypt,  KeyType::Rsa { bits: 2048 }, rsa_oaep),
        ("ecdh_secp256r1",                    Ecdh,            KeyType::Ec(Curve::P256),    ecdh),
        ("ecdh_secp384r1",                    Ecdh,            KeyType::Ec(Curve::P384),    ecdh),
        ("x25519",                            X25519,          KeyType::X25519,             x25519),
        ("mldsa_44_sign_seed",                MlDsaSign,       KeyType::MlDsa(MlDsa44),     |driver, group| ml_dsa(driver, MlDsa44, group)),
        ("mldsa_44_sign_noseed",              MlDsaSign,       KeyType::MlDsa(MlDsa44),     |driver, group| ml_dsa(driver, MlDsa44, group)),
        ("mldsa_65_sign_seed",                MlDsaSign,       KeyType::MlDsa(MlDsa65),     |driver, group| ml_dsa(driver, MlDsa65, group)),
        ("mldsa_65_sign_noseed",              MlDsaSign,       KeyType::MlDsa(MlDsa65),     |driver, group| ml_dsa(driver, MlDsa65, group)),
        ("mldsa_87_sign_seed",                MlDsaSign,       KeyType::MlDsa(MlDsa87),     |driver, group| ml_dsa(driver, MlDsa87, group)),
        ("mldsa_87_sign_noseed",              MlDsaSign,       KeyType::MlDsa(MlDsa87),     |driver, group| ml_dsa(driver, MlDsa87, group)),
    ]
};

pub(super) fn run(driver: &mut QueueDriver, report: &mut ConformanceReport) {
    for (name, kind, key_type, test) in FILES {
        if !driver.offers(kind, key_type) {
            report.left_out(name);
            continue;
        }
        let file = Vectors::wycheproof(name);
        let executed = file.groups.iter().map(|group| test(driver, group)).sum::<usize>();
        assert_eq!(executed, file.number_of_tests, "{name}");
        report.ran(name, executed);
    }
    if driver.offers(OperationKind::Ed25519Sign, KeyType::Ed25519) {
        ed25519_rfc8032(driver);
        report.ran("ed25519 of RFC 8032", RFC8032.len());
    } else {
        report.left_out("ed25519 of RFC 8032");
    }
    let file = Vectors::implicit_rejection();
    let mut executed = 0;
    for group in &file.groups {
        let bits = group["keySize"].as_u64().and_then(|bits| u16::try_from(bits).ok());
        let bits = bits.expect("a size of a key");
        if driver.offers(OperationKind::RsaPkcs1Decrypt, KeyType::Rsa { bits }) {
            executed += implicit_rejection(driver, group);
        } else {
            report.left_out(format!("implicit rejection, {bits} bits"));
        }
    }
    if executed > 0 {
        report.ran("implicit rejection", executed);
    }
}

/// Opens the key of a test, which the backend must accept.
fn open(driver: &QueueDriver, der: &[u8]) -> BackendKey {
    driver.open(der).expect("a good key").key
}

/// The hash with this name in Wycheproof.
pub(super) fn hash(name: &str) -> Hash {
    match name {
        "SHA-1" => Hash::Sha1,
        "SHA-224" => Hash::Sha224,
        "SHA-256" => Hash::Sha256,
        "SHA-384" => Hash::Sha384,
        "SHA-512" => Hash::Sha512,
        "SHA-512/256" => Hash::Sha512_256,
        other => panic!("unknown hash {other}"),
    }
}

/// The text that names a failing test.
fn case(test: &Value) -> String {
    format!("test {} ({})", test["tcId"], text(test, "comment"))
}

fn rsa_signatures(driver: &mut QueueDriver, group: &Value) -> usize {
    let key = open(driver, &bytes(group, "privateKeyPkcs8"));
    let hash = hash(text(group, "sha"));
    let operation = Operation::RsaPkcs1Sign { hash };
    for test in tests(group) {
        let digest = verify::digest(hash, &bytes(test, "msg"));
        let signature = driver.output(key, &operation, &digest);
        assert_eq!(signature.as_slice(), bytes(test, "sig"), "{}", case(test));
    }
    driver.close(key);
    tests(group).len()
}

fn rsa_decryption(driver: &mut QueueDriver, group: &Value) -> usize {
    let opened = driver.open(&bytes(group, "privateKeyPkcs8")).expect("a good key");
    let len = opened.info.key_type.modulus_len();
    for test in tests(group) {
        let ciphertext = bytes(test, "ct");
        let message = bytes(test, "msg");
        let result = driver.perform(opened.key, &Operation::RsaPkcs1Decrypt, &ciphertext);
        let out_of_range = ciphertext.len() != len || text(test, "comment") == "c = n";
        match (text(test, "result"), result) {
            ("valid", Ok(output)) => assert_eq!(output.as_slice(), message, "{}", case(test)),
            ("invalid", Err(BackendError::BadInput)) if out_of_range => {}
            ("invalid", Ok(output)) if !out_of_range => {
                assert_ne!(output.as_slice(), message, "{}", case(test));
                assert!(output.len() <= len - 11, "{}", case(test));
                let again = driver.output(opened.key, &Operation::RsaPkcs1Decrypt, &ciphertext);
                assert_eq!(output, again, "{}", case(test));
            }
            (_, result) => panic!("{}: {:?}", case(test), result.map(|out| out.len())),
        }
    }
    driver.close(opened.key);
    tests(group).len()
}

fn implicit_rejection(driver: &mut QueueDriver, group: &Value) -> usize {
    let key = open(driver, &bytes(group, "privateKeyPkcs8"));
    for test in tests(group) {
        let output = driver.output(key, &Operation::RsaPkcs1Decrypt, &bytes(test, "ct"));
        assert_eq!(hex::encode(output.as_slice()), text(test, "msg"), "{}", text(test, "comment"));
    }
    driver.close(key);
    tests(group).len()
}

fn rsa_oaep(driver: &mut QueueDriver, group: &Value) -> usize {
    let key = open(driver, &bytes(group, "privateKeyPkcs8"));
    for test in tests(group) {
        let operation = Operation::RsaOaepDecrypt {
            hash: hash(text(group, "sha")),
            mgf_hash: hash(text(group, "mgfSha")),
            label: bytes(test, "label"),
        };
        let result = driver.perform(key, &operation, &bytes(test, "ct"));
        match text(test, "result") {
            "valid" => {
                let output = result.unwrap_or_else(|error| panic!("{}: {error}", case(test)));
                assert_eq!(output.as_slice(), bytes(test, "msg"), "{}", case(test));
            }
            _ => assert_eq!(result, Err(BackendError::BadInput), "{}", case(test)),
        }
    }
    driver.close(key);
    tests(group).len()
}

/// The start of a `SubjectPublicKeyInfo` with an uncompressed point on a curve.
fn point_prefix(curve: Curve) -> &'static str {
    match curve {
        Curve::P256 => "3059301306072a8648ce3d020106082a8648ce3d030107034200",
        Curve::P384 => "3076301006072a8648ce3d020106052b81040022036200",
        Curve::P521 => panic!("no vectors for P-521"),
    }
}

fn ecdh(driver: &mut QueueDriver, group: &Value) -> usize {
    let curve = match text(group, "curve") {
        "secp256r1" => Curve::P256,
        "secp384r1" => Curve::P384,
        other => panic!("no vectors for {other}"),
    };
    for test in tests(group) {
        let private = bytes(test, "private");
        let scalar = &private[private.len().saturating_sub(curve.field_len())..];
        let key = open(driver, &keys::ec_private_key(curve, scalar));
        // Jobs carry uncompressed points. A test without such a point in the usual encoding cannot be
        // expressed.
        let public = text(test, "public");
        let point = public.strip_prefix(point_prefix(curve));
        let result = match point {
            Some(point) => {
                let point = hex::decode(point).expect("hexadecimal digits");
                driver.perform(key, &Operation::Ecdh, &point)
            }
            None => Err(BackendError::BadInput),
        };
        match (text(test, "result"), result) {
            ("valid", Ok(secret)) => {
                assert_eq!(secret.as_slice(), bytes(test, "shared"), "{}", case(test));
            }
            ("invalid" | "acceptable", Err(BackendError::BadInput)) => {}
            // Wycheproof regards compressed points as valid; jobs do not accept them.
            ("valid", Err(BackendError::BadInput)) if has_flag(test, "CompressedPoint") => {}
            (verdict, result) => {
                panic!("{}, {verdict}: {:?}", case(test), result.map(|out| out.len()))
            }
        }
        driver.close(key);
    }
    tests(group).len()
}

fn has_flag(test: &Value, flag: &str) -> bool {
    test["flags"].as_array().is_some_and(|flags| flags.iter().any(|value| value == flag))
}

fn x25519(driver: &mut QueueDriver, group: &Value) -> usize {
    for test in tests(group) {
        let private = bytes(test, "private").try_into().expect("32 bytes");
        let key = open(driver, &keys::x25519_private_key(&private));
        let result = driver.perform(key, &Operation::X25519, &bytes(test, "public"));
        if has_flag(test, "ZeroSharedSecret") {
            assert_eq!(result, Err(BackendError::BadInput), "{}", case(test));
        } else {
            let secret = result.unwrap_or_else(|error| panic!("{}: {error}", case(test)));
            assert_eq!(secret.as_slice(), bytes(test, "shared"), "{}", case(test));
        }
        driver.close(key);
    }
    tests(group).len()
}

/// Uses Wycheproof's keys and messages. Its signatures are deterministic and ours are hedged, so its
/// signatures test the verifier, and the verifier checks ours.
fn ml_dsa(driver: &mut QueueDriver, set: MlDsaSet, group: &Value) -> usize {
    let der = match group.get("privateSeed") {
        Some(_) => keys::ml_dsa_seed_private_key(set, &bytes(group, "privateSeed")),
        None => keys::ml_dsa_expanded_private_key(set, &bytes(group, "privateKey")),
    };
    if let Some(Value::String(theirs)) = group.get("privateKeyPkcs8") {
        assert!(theirs.is_empty() || *theirs == hex::encode(&der));
    }
    let opened = driver.open(&der);
    for test in tests(group) {
        let expected = if has_flag(test, "IncorrectPrivateKeyLength") {
            Some(KeyError::Malformed)
        } else {
            has_flag(test, "InvalidPrivateKey").then_some(KeyError::Inconsistent)
        };
        let opened = match (&opened, expected) {
            (Ok(opened), None) => opened,
            (Err(error), Some(expected)) if *error == expected => continue,
            (result, _) => panic!("{}: {result:?}", case(test)),
        };
        let spki = &opened.info.spki;
        assert!(spki.ends_with(&bytes(group, "publicKey")), "{}", case(test));
        let field = |name| test.get(name).map(|_| bytes(test, name));
        let context = field("ctx").unwrap_or_default();
        let mu = field("mu");
        if context.len() > 255 {
            assert_eq!(text(test, "result"), "invalid", "{}", case(test));
            continue;
        }
        let message = field("msg");
        if let (Some(message), Some(mu)) = (&message, &mu) {
            assert_eq!(verify::ml_dsa_mu(spki, &context, message).as_slice(), mu, "{}", case(test));
        }
        let (input, asked) = match (message, mu) {
            (Some(message), _) if context.is_empty() => (MlDsaInput::Message, message),
            (Some(message), _) => {
                (MlDsaInput::Mu, verify::ml_dsa_mu(spki, &context, &message).to_vec())
            }
            (None, mu) => (MlDsaInput::Mu, mu.expect("a message or its representative")),
        };
        let operation = Operation::MlDsaSign { input };
        let theirs = bytes(test, "sig");
        assert!(verify::signature(spki, &operation, &asked, &theirs), "{}", case(test));
        let ours = driver.output(opened.key, &operation, &asked);
        assert!(verify::signature(spki, &operation, &asked, &ours), "{}", case(test));
    }
    if let Ok(opened) = opened {
        driver.close(opened.key);
    }
    tests(group).len()
}

/// Seed, message and signature of RFC 8032 section 7.1, tests 1 to 3.
const RFC8032: [(&str, &str, &str); 3] = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155\
         5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
         085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac\
         18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
];

fn ed25519_rfc8032(driver: &mut QueueDriver) {
    for (seed, message, signature) in RFC8032 {
        let seed = hex::decode(seed).expect("digits").try_into().expect("32 bytes");
        let message = hex::decode(message).expect("digits");
        let key = open(driver, &keys::ed25519_private_key(&seed));
        let output = driver.output(key, &Operation::Ed25519Sign, &message);
        assert_eq!(hex::encode(output.as_slice()), signature);
        driver.close(key);
    }
}
