// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Known answers and random comparison through the provider. An OpenSSL that prefers the provider gives the
//! results of Wycheproof's vectors, with private-key operations in the pool. It also agrees with an OpenSSL
//! in the system's own configuration.

use std::collections::BTreeMap;
use std::path::Path;

use millrace_tests::edge::EdgeOptions;
use millrace_tests::node::Node;
use millrace_tests::operations::{Encryption, Performer, Request, Scheme, Worker};
use millrace_tests::scaled;
use millrace_tests::vectors::{Case, FILES, Verdict, load};
use millrace_tests::world::World;
use openssl::encrypt::Encrypter;
use openssl::hash::MessageDigest;
use openssl::pkey::{Id, PKey, Private};
use openssl::rsa::{Padding, Rsa};

struct Setup {
    worker: Worker,
    node: Node,
    // Declared so that it is dropped last: the other fields use its folder.
    _world: World,
}

/// Starts a worker without fallback: only the pool can do its private-key operations.
fn start() -> Setup {
    assert!(std::env::var_os("OPENSSL_CONF").is_none(), "this process is the one without provider");
    let world = World::new();
    let node = world.node("node-1");
    let edge = EdgeOptions::to(node.endpoint())
        .preferred()
        .with("fallback", "off")
        .with("deadline_ms", 20_000)
        .with("fallback_after_ms", 20_000);
    let program = Path::new(env!("CARGO_BIN_EXE_millrace-tests-worker"));
    let worker = Worker::start(program, &edge.write(world.dir()));
    Setup { worker, node, _world: world }
}

/// Runs a vector. The error describes the difference from the expected result.
fn check(case: &Case, worker: &mut Worker, plain: &mut Performer) -> Option<String> {
    let answer = worker.perform(&case.request);
    let good = match (&case.verdict, &answer) {
        (Verdict::Exactly(expected), Ok(got)) => got == expected,
        (Verdict::Refused, Err(_)) | (Verdict::Not(_), Err(_)) => true,
        (Verdict::Not(unwanted), Ok(got)) => got != unwanted,
        (Verdict::LikeOpenssl(expected), _) => match plain.perform(&case.request) {
            Ok(theirs) => theirs == *expected && answer == Ok(theirs),
            Err(_) => answer.is_err(),
        },
        _ => false,
    };
    (!good).then(|| format!("{}: {answer:?} instead of {:?}", case.name, case.verdict))
}

/// The pool's operation for the vectors of a file, if they are private operations.
fn operation_of(file: &str) -> Option<&'static str> {
    match file {
        name if name.ends_with("sig_gen") => Some("rsa-pkcs1-sign"),
        name if name.starts_with("rsa_oaep") => Some("rsa-oaep-decrypt"),
        "rsa_pkcs1_2048" | "rsa_pkcs1_3072" | "rsa_pkcs1_4096" => Some("rsa-pkcs1-decrypt"),
        name if name.starts_with("ecdh") => Some("ecdh-derive"),
        "x25519" => Some("x25519-derive"),
        _ => None,
    }
}

fn wycheproof(select: impl Fn(&str) -> bool) {
    let Setup { _world, node, mut worker } = start();
    let mut plain = Performer::default();
    let mut wrong = Vec::new();
    let mut results: BTreeMap<&str, u64> = BTreeMap::new();
    let mut files = 0;
    for (file, count) in FILES.iter().filter(|(file, _)| select(file)) {
        let cases = load(file);
        assert_eq!(cases.len(), *count, "the number of vectors in {file}");
        for case in &cases {
            wrong.extend(check(case, &mut worker, &mut plain));
            let has_result = matches!(&case.verdict, Verdict::Exactly(_));
            if let (Some(operation), true) = (operation_of(file), has_result) {
                *results.entry(operation).or_insert(0) += 1;
            }
        }
        files += 1;
    }
    assert!(files > 0, "no file was selected");
    assert!(wrong.is_empty(), "{} vectors:\n{}", wrong.len(), wrong.join("\n"));
    // Without fallback each result came from the pool; the node's own count confirms it.
    let served = node.served();
    for (operation, count) in results {
        let pooled = served.of(operation);
        assert!(pooled >= count, "{operation}: {count} results, {pooled} of them from the pool");
    }
}

#[test]
fn wycheproof_rsa_signatures() {
    wycheproof(|file| file.ends_with("sig_gen"));
}

#[test]
fn wycheproof_rsa_verification() {
    wycheproof(|file| file.starts_with("rsa_signature") || file.starts_with("rsa_pss"));
}

#[test]
fn wycheproof_rsa_decryption() {
    wycheproof(|file| {
        file.starts_with("rsa_oaep") || operation_of(file) == Some("rsa-pkcs1-decrypt")
    });
}

#[test]
fn wycheproof_elliptic_curves() {
    wycheproof(|file| file.starts_with("ec"));
}

#[test]
fn wycheproof_curve_25519() {
    wycheproof(|file| file == "x25519" || file == "ed25519");
}

/// Each file is selected by exactly one of the tests above.
#[test]
fn every_file_is_used_once() {
    let selectors: [fn(&str) -> bool; 5] = [
        |file| file.ends_with("sig_gen"),
        |file| file.starts_with("rsa_signature") || file.starts_with("rsa_pss"),
        |file| file.starts_with("rsa_oaep") || operation_of(file) == Some("rsa-pkcs1-decrypt"),
        |file| file.starts_with("ec"),
        |file| file == "x25519" || file == "ed25519",
    ];
    for (file, _) in FILES {
        let uses = selectors.iter().filter(|select| select(file)).count();
        assert_eq!(uses, 1, "{file}");
    }
}

fn random(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    openssl::rand::rand_bytes(&mut bytes).expect("random bytes");
    bytes
}

fn pkcs8(key: &PKey<Private>) -> Vec<u8> {
    key.private_key_to_pkcs8().expect("PKCS#8")
}

fn spki(key: &PKey<Private>) -> Vec<u8> {
    key.public_key_to_der().expect("a public key")
}

/// The pool and OpenSSL's default provider agree on random operations: deterministic results are equal byte
/// for byte, and each side verifies the other's randomised results.
#[test]
fn pool_and_openssl_agree_on_rsa() {
    let Setup { _world, node, mut worker } = start();
    let mut plain = Performer::default();
    let rounds = scaled(10, 1000);
    let mut operations = 0;
    for bits in [2048, 3072] {
        let key = PKey::from_rsa(Rsa::generate(bits).expect("a key")).expect("a key");
        for round in 0..rounds {
            let message = random(round * 7);
            let hash = ["SHA1", "SHA224", "SHA256", "SHA384", "SHA512"][round % 5].to_owned();
            let pkcs1 = Request::Sign(pkcs8(&key), Scheme::Pkcs1(hash.clone()), message.clone());
            assert_eq!(worker.perform(&pkcs1), plain.perform(&pkcs1));
            let salt = u16::try_from(round % 33).expect("small");
            let pss = Scheme::Pss(hash.clone(), hash.clone(), salt);
            let sign = Request::Sign(pkcs8(&key), pss.clone(), message.clone());
            let signature = worker.perform(&sign).expect("a signature");
            let verify = Request::Verify(spki(&key), pss, message.clone(), signature);
            assert_eq!(plain.perform(&verify), Ok(Vec::new()));
            let short = &message[..message.len().min(60)];
            let ciphertext = encrypt_oaep(&key, short);
            let oaep = Encryption::Oaep("SHA256".to_owned(), "SHA1".to_owned(), Vec::new());
            let decrypt = Request::Decrypt(pkcs8(&key), oaep, ciphertext);
            assert_eq!(worker.perform(&decrypt).as_deref(), Ok(short));
            operations += 3;
        }
    }
    assert_eq!(node.served().total(), operations);
}

fn encrypt_oaep(key: &PKey<Private>, message: &[u8]) -> Vec<u8> {
    let mut encrypter = Encrypter::new(key).expect("an encrypter");
    encrypter.set_rsa_padding(Padding::PKCS1_OAEP).expect("OAEP");
    encrypter.set_rsa_oaep_md(MessageDigest::sha256()).expect("a digest");
    encrypter.set_rsa_mgf1_md(MessageDigest::sha1()).expect("a digest");
    let mut ciphertext = vec![0; encrypter.encrypt_len(message).expect("a length")];
    let length = encrypter.encrypt(message, &mut ciphertext).expect("a ciphertext");
    ciphertext.truncate(length);
    ciphertext
}

#[test]
fn pool_and_openssl_agree_on_curves() {
    let Setup { _world, node, mut worker } = start();
    let mut plain = Performer::default();
    let rounds = scaled(20, 1000);
    let mut operations = 0;
    let curves = ["prime256v1", "secp384r1", "secp521r1"];
    for round in 0..rounds {
        let curve = curves[round % curves.len()];
        let (one, two) = (ec_key(curve), ec_key(curve));
        let hash = ["SHA256", "SHA384", "SHA512"][round % 3].to_owned();
        let message = random(round * 11);
        let scheme = Scheme::Dsa(hash);
        let sign = Request::Sign(pkcs8(&one), scheme.clone(), message.clone());
        let signature = worker.perform(&sign).expect("a signature");
        let verify = Request::Verify(spki(&one), scheme, message.clone(), signature);
        assert_eq!(plain.perform(&verify), Ok(Vec::new()));
        let derive = Request::Derive(pkcs8(&one), spki(&two));
        assert_eq!(worker.perform(&derive), plain.perform(&derive));
        let (one, two) = (raw_key(Id::X25519), raw_key(Id::X25519));
        let derive = Request::Derive(pkcs8(&one), spki(&two));
        assert_eq!(worker.perform(&derive), plain.perform(&derive));
        let key = raw_key(Id::ED25519);
        let sign = Request::Sign(pkcs8(&key), Scheme::Ed25519, message);
        assert_eq!(worker.perform(&sign), plain.perform(&sign));
        operations += 4;
    }
    assert_eq!(node.served().total(), operations);
}

fn ec_key(curve: &str) -> PKey<Private> {
    use openssl::ec::{EcGroup, EcKey};
    use openssl::nid::Nid;
    let nid = match curve {
        "prime256v1" => Nid::X9_62_PRIME256V1,
        "secp384r1" => Nid::SECP384R1,
        _ => Nid::SECP521R1,
    };
    let group = EcGroup::from_curve_name(nid).expect("a curve");
    PKey::from_ec_key(EcKey::generate(&group).expect("a key")).expect("a key")
}

fn raw_key(id: Id) -> PKey<Private> {
    PKey::private_key_from_raw_bytes(&random(32), id).expect("a key")
}
