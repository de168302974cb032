// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Wycheproof files as requests with verdicts.
//!
//! `valid` must be accepted with the right result, `invalid` refused. `DECISIONS` decides about `acceptable`
//! vectors by their flags; a flag that is not in the table fails the test.

use std::fs;

use openssl::bn::{BigNum, BigNumContext};
use openssl::ec::{EcGroup, EcKey, EcPoint};
use openssl::nid::Nid;
use openssl::pkey::{Id, PKey};
use serde_json::Value;

use crate::artifacts::workspace;
use crate::operations::{Encryption, Request, Scheme};

/// The verdict that a request must get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This result (nothing, for a verification).
    Exactly(Vec<u8>),
    /// An error.
    Refused,
    /// An error, or anything but this: implicit rejection yields a message that depends on the key.
    Not(Vec<u8>),
    /// The answer of OpenSSL's default provider; if that is a result, it must be this one.
    LikeOpenssl(Vec<u8>),
}

/// One vector.
#[derive(Clone, Debug)]
pub struct Case {
    /// File and number.
    pub name: String,
    /// The request.
    pub request: Request,
    /// The required verdict.
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug)]
enum Decision {
    Accept,
    Refuse,
    LikeOpenssl,
}

/// Decisions about `acceptable` vectors. The first flag of this table that a vector has decides.
const DECISIONS: &[(&str, Decision)] = &[
    // All-zero shared secrets are refused (RFC 7748 section 6.1 allows it, TLS 1.3 demands it).
    ("ZeroSharedSecret", Decision::Refuse),
    // The rest of X25519 is defined for every input.
    ("Twist", Decision::Accept),
    ("NonCanonicalPublic", Decision::Accept),
    // SHA-1 signatures and e = 3: the key's owner requested them.
    ("WeakHash", Decision::Accept),
    ("SmallPublicKey", Decision::Accept),
    // DigestInfo without NULL: OpenSSL compares with the one encoding it makes itself.
    ("MissingNull", Decision::Refuse),
    // OpenSSL decodes the peer's public key on every path.
    ("CompressedPublic", Decision::LikeOpenssl),
    ("UnnamedCurve", Decision::LikeOpenssl),
    ("InvalidAsn", Decision::LikeOpenssl),
];

// One more decision, about vectors that Wycheproof calls "invalid": OpenSSL computes the cofactor of explicit
// parameters itself and ignores the encoded one. The other parameters are those of the named curve and the point
// is on it, so accepting them is safe.

/// The files that go through the provider, with their numbers of vectors.
pub const FILES: &[(&str, usize)] = &[
    ("rsa_pkcs1_2048_sig_gen", 43),
    ("rsa_pkcs1_3072_sig_gen", 26),
    ("rsa_pkcs1_4096_sig_gen", 24),
    ("rsa_signature_2048_sha256", 259),
    ("rsa_signature_2048_sha384", 258),
    ("rsa_signature_2048_sha512", 259),
    ("rsa_signature_3072_sha256", 259),
    ("rsa_signature_4096_sha512", 259),
    ("rsa_pss_2048_sha256_mgf1_0", 103),
    ("rsa_pss_2048_sha256_mgf1_32", 108),
    ("rsa_pss_3072_sha256_mgf1_32", 108),
    ("rsa_pss_4096_sha384_mgf1_48", 141),
    ("rsa_pss_4096_sha512_mgf1_64", 179),
    ("rsa_oaep_2048_sha1_mgf1sha1", 36),
    ("rsa_oaep_2048_sha256_mgf1sha1", 31),
    ("rsa_oaep_2048_sha256_mgf1sha256", 37),
    ("rsa_pkcs1_2048", 67),
    ("rsa_pkcs1_3072", 67),
    ("rsa_pkcs1_4096", 67),
    ("ecdsa_secp256r1_sha256", 484),
    ("ecdsa_secp384r1_sha384", 504),
    ("ecdh_secp256r1", 612),
    ("ecdh_secp384r1", 1047),
    ("x25519", 518),
    ("ed25519", 151),
];

/// The vectors of a file.
///
/// # Panics
/// If the file is not there or not as expected.
#[must_use]
pub fn load(file: &str) -> Vec<Case> {
    let path = workspace().join("vectors/wycheproof").join(format!("{file}_test.json"));
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let root: Value = serde_json::from_slice(&text).expect("a vector file is JSON");
    let mut cases = Vec::new();
    for group in root["testGroups"].as_array().expect("groups") {
        for test in group["tests"].as_array().expect("tests") {
            let name = format!("{file} {}", test["tcId"]);
            let (request, result) = request(group, test);
            let verdict = verdict(&name, group, test, result);
            cases.push(Case { name, request, verdict });
        }
    }
    cases
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().expect("hexadecimal text")).expect("hexadecimal digits")
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

/// The request of a vector, and the result that it must have if it has one.
fn request(group: &Value, test: &Value) -> (Request, Vec<u8>) {
    let hash = || text(&group["sha"]);
    let verify = |scheme, signature| {
        Request::Verify(bytes(&group["publicKeyDer"]), scheme, bytes(&test["msg"]), signature)
    };
    match group["type"].as_str().expect("a type") {
        "RsassaPkcs1Generate" => {
            let key = bytes(&group["privateKeyPkcs8"]);
            let request = Request::Sign(key, Scheme::Pkcs1(hash()), bytes(&test["msg"]));
            (request, bytes(&test["sig"]))
        }
        "RsassaPkcs1Verify" => (verify(Scheme::Pkcs1(hash()), bytes(&test["sig"])), Vec::new()),
        "RsassaPssVerify" => {
            let salt = group["sLen"].as_u64().and_then(|salt| u16::try_from(salt).ok());
            let scheme = Scheme::Pss(hash(), text(&group["mgfSha"]), salt.expect("a salt length"));
            (verify(scheme, bytes(&test["sig"])), Vec::new())
        }
        "EcdsaVerify" => (verify(Scheme::Dsa(hash()), bytes(&test["sig"])), Vec::new()),
        "EddsaVerify" => (verify(Scheme::Ed25519, bytes(&test["sig"])), Vec::new()),
        "RsaesOaepDecrypt" => {
            let encryption =
                Encryption::Oaep(hash(), text(&group["mgfSha"]), bytes(&test["label"]));
            let key = bytes(&group["privateKeyPkcs8"]);
            (Request::Decrypt(key, encryption, bytes(&test["ct"])), bytes(&test["msg"]))
        }
        "RsaesPkcs1Decrypt" => {
            let key = bytes(&group["privateKeyPkcs8"]);
            let request = Request::Decrypt(key, Encryption::Pkcs1, bytes(&test["ct"]));
            (request, bytes(&test["msg"]))
        }
        "EcdhTest" => {
            let curve = text(&group["curve"]);
            let key = ec_key(&curve, &text(&test["private"]));
            (Request::Derive(key, bytes(&test["public"])), bytes(&test["shared"]))
        }
        "XdhComp" => {
            let key = PKey::private_key_from_raw_bytes(&bytes(&test["private"]), Id::X25519);
            let key = key.and_then(|key| key.private_key_to_pkcs8()).expect("an X25519 key");
            let peer = PKey::public_key_from_raw_bytes(&bytes(&test["public"]), Id::X25519);
            let peer = peer.and_then(|peer| peer.public_key_to_der()).expect("an X25519 key");
            (Request::Derive(key, peer), bytes(&test["shared"]))
        }
        other => panic!("vectors of type {other} have no request"),
    }
}

fn verdict(name: &str, group: &Value, test: &Value, result: Vec<u8>) -> Verdict {
    let flags = test["flags"].as_array().expect("flags");
    let has = |wanted: &[&str]| flags.iter().any(|flag| wanted.iter().any(|name| flag == name));
    match test["result"].as_str() {
        Some("valid") => Verdict::Exactly(result),
        Some("invalid") if group["type"] == "RsaesPkcs1Decrypt" => Verdict::Not(result),
        Some("invalid") if has(&["NoCofactor", "LargeCofactor"]) => Verdict::LikeOpenssl(result),
        Some("invalid") => Verdict::Refused,
        Some("acceptable") => {
            let decision = DECISIONS.iter().find(|(flag, _)| has(&[flag]));
            match decision {
                Some((_, Decision::Accept)) => Verdict::Exactly(result),
                Some((_, Decision::Refuse)) => Verdict::Refused,
                Some((_, Decision::LikeOpenssl)) => Verdict::LikeOpenssl(result),
                None => panic!("{name}: no decision for {flags:?}"),
            }
        }
        other => panic!("{name}: result {other:?}"),
    }
}

/// A key with this private number, PKCS#8.
fn ec_key(curve: &str, private: &str) -> Vec<u8> {
    let nid = match curve {
        "secp256r1" => Nid::X9_62_PRIME256V1,
        "secp384r1" => Nid::SECP384R1,
        "secp521r1" => Nid::SECP521R1,
        other => panic!("curve {other}"),
    };
    let group = EcGroup::from_curve_name(nid).expect("a curve");
    let number = BigNum::from_hex_str(private).expect("a number");
    let mut context = BigNumContext::new().expect("a context");
    let mut point = EcPoint::new(&group).expect("a point");
    point.mul_generator2(&group, &number, &mut context).expect("a public key");
    let key = EcKey::from_private_components(&group, &number, &point).expect("a key");
    PKey::from_ec_key(key).and_then(|key| key.private_key_to_pkcs8()).expect("PKCS#8")
}
