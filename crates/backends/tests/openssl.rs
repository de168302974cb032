// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Compares the software backend with OpenSSL in thousands of random operations of every kind. OpenSSL
//! verifies our signatures, we decrypt its ciphertexts, both derive equal secrets, and deterministic results
//! are equal bit for bit.

use std::sync::Arc;

use millrace_backends::software::Software;
use millrace_engine::BackendError;
use millrace_operation::{Hash, KeyType, Operation};
use millrace_testkit::conformance::QueueDriver;
use millrace_testkit::keys::{self, TestKey};
use millrace_testkit::verify;
use openssl::rand::rand_bytes;

const HASHES: [Hash; 6] =
    [Hash::Sha1, Hash::Sha224, Hash::Sha256, Hash::Sha384, Hash::Sha512, Hash::Sha512_256];

fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rand_bytes(&mut bytes).expect("random bytes");
    bytes
}

fn driver() -> QueueDriver {
    QueueDriver::new(Arc::new(Software::new()))
}

/// RSA keys with a number of rounds for each: an operation takes 0.2 to 10 ms.
fn rsa_keys() -> [(TestKey, usize); 4] {
    [(keys::rsa_2048(), 40), (keys::rsa_3072(), 20), (keys::rsa_4096(), 10), (keys::rsa_8192(), 1)]
}

#[test]
fn pkcs1_signatures_equal_those_of_openssl() {
    let mut driver = driver();
    for (key, rounds) in rsa_keys() {
        let opened = driver.open_good(&key);
        for hash in HASHES.into_iter().chain([Hash::Md5Sha1]) {
            let operation = Operation::RsaPkcs1Sign { hash };
            for _ in 0..rounds {
                let digest = random(hash.digest_len());
                let ours = driver.output(opened.key, &operation, &digest);
                assert_eq!(*ours, verify::sign(&key, &operation, &digest), "{} {hash}", key.name);
            }
        }
    }
}

#[test]
fn pss_signatures_verify_for_every_pair_of_hashes_and_any_salt() {
    let mut driver = driver();
    for (key, rounds) in rsa_keys() {
        let opened = driver.open_good(&key);
        for hash in HASHES {
            let longest = key.key_type.modulus_len() - hash.digest_len() - 2;
            let lengths = [0, 1, hash.digest_len(), longest];
            for mgf_hash in HASHES {
                for salt_len in &lengths[..rounds.min(4)] {
                    let salt_len = u16::try_from(*salt_len).expect("a short salt");
                    let operation = Operation::RsaPssSign { hash, mgf_hash, salt_len };
                    let digest = random(hash.digest_len());
                    let signature = driver.output(opened.key, &operation, &digest);
                    let good =
                        verify::signature(&opened.info.spki, &operation, &digest, &signature);
                    assert!(good, "{} {operation:?}", key.name);
                }
            }
        }
    }
}

#[test]
fn oaep_decrypts_for_every_pair_of_hashes_any_label_and_any_length() {
    let mut driver = driver();
    for (key, rounds) in rsa_keys() {
        let opened = driver.open_good(&key);
        for hash in HASHES {
            let longest = key.key_type.modulus_len() - 2 * hash.digest_len() - 2;
            for mgf_hash in HASHES {
                for (label, len) in [(0, 0), (1, longest), (256, 32)].into_iter().take(rounds) {
                    let label = random(label);
                    let message = random(len);
                    let spki = &opened.info.spki;
                    let ciphertext = verify::encrypt_oaep(spki, hash, mgf_hash, &label, &message);
                    let decrypt = Operation::RsaOaepDecrypt { hash, mgf_hash, label };
                    let output = driver.output(opened.key, &decrypt, &ciphertext);
                    assert_eq!(*output, message, "{} {decrypt:?}", key.name);

                    let label = random(5);
                    let decrypt = Operation::RsaOaepDecrypt { hash, mgf_hash, label };
                    let result = driver.perform(opened.key, &decrypt, &ciphertext);
                    assert_eq!(result, Err(BackendError::BadInput), "another label");
                }
            }
        }
    }
}

#[test]
fn pkcs1_decrypts_every_length_and_never_fails() {
    let mut driver = driver();
    let decrypt = Operation::RsaPkcs1Decrypt;
    for (key, rounds) in rsa_keys() {
        let opened = driver.open_good(&key);
        let len = key.key_type.modulus_len();
        for message_len in (0..=len - 11).step_by(240 / rounds) {
            let message = random(message_len);
            let ciphertext = verify::encrypt_pkcs1(&opened.info.spki, &message);
            assert_eq!(*driver.output(opened.key, &decrypt, &ciphertext), message);
        }
        let mut lengths = std::collections::HashSet::new();
        for _ in 0..5 * rounds {
            let mut junk = random(len);
            junk[0] = 0;
            let made_up = driver.output(opened.key, &decrypt, &junk);
            assert_eq!(made_up, driver.output(opened.key, &decrypt, &junk), "not stable");
            lengths.insert(made_up.len());
        }
        assert!(lengths.len() > rounds, "the lengths of made-up messages do not vary");
    }
}

#[test]
fn implicit_rejection_message_depends_on_the_key() {
    let mut driver = driver();
    let other = openssl::rsa::Rsa::generate(2048).expect("a key");
    let other = openssl::pkey::PKey::from_rsa(other).expect("a key");
    let other = other.private_key_to_pkcs8().expect("DER");
    let keys = [keys::rsa_2048().der.to_vec(), other];
    let [first, second] = keys.map(|der| driver.open(&der).expect("a good key").key);
    for _ in 0..20 {
        let mut junk = random(256);
        junk[0] = 0;
        let made_up =
            [first, second].map(|key| driver.output(key, &Operation::RsaPkcs1Decrypt, &junk));
        assert!(made_up[0] != made_up[1] || made_up[0].len() < 3);
    }
}

#[test]
fn premaster_secret_decrypts_and_a_malformed_one_is_the_same_each_time() {
    let mut driver = driver();
    let operation = Operation::RsaTlsPremaster { client_version: 0x0303 };
    for (key, rounds) in rsa_keys() {
        let opened = driver.open_good(&key);
        for round in 0..5 * rounds {
            let mut premaster = random(48);
            premaster[..2].copy_from_slice(&[3, 3]);
            let good = verify::encrypt_pkcs1(&opened.info.spki, &premaster);
            assert_eq!(*driver.output(opened.key, &operation, &good), premaster);
            let wrong = match round % 3 {
                0 => [&[3, 2], &premaster[2..]].concat(), // another version
                1 => premaster[..47].to_vec(),
                _ => [&premaster[..], &[0]].concat(),
            };
            let bad = verify::encrypt_pkcs1(&opened.info.spki, &wrong);
            let first = driver.output(opened.key, &operation, &bad);
            assert_eq!((first.len(), &first[..2]), (48, &[3, 3][..]));
            assert_eq!(first, driver.output(opened.key, &operation, &bad));
            assert_ne!(first[2..], premaster[2..]);
        }
    }
}

#[test]
fn public_operation_reverses_raw_rsa() {
    let mut driver = driver();
    for (key, rounds) in rsa_keys() {
        let opened = driver.open_good(&key);
        for _ in 0..5 * rounds {
            let mut number = random(key.key_type.modulus_len());
            number[0] &= 0x7f;
            let output = driver.output(opened.key, &Operation::RsaRaw, &number);
            assert_eq!(verify::rsa_public(&opened.info.spki, &output), number, "{}", key.name);
        }
    }
}

#[test]
fn ecdsa_dsa_and_ed25519_signatures_verify() {
    let mut driver = driver();
    for (key, rounds) in
        [(keys::p_256(), 200), (keys::p_384(), 50), (keys::p_521(), 50), (keys::dsa_2048(), 50)]
    {
        let opened = driver.open_good(&key);
        for hash in HASHES {
            let operation = match key.key_type {
                KeyType::Dsa { .. } => Operation::DsaSign { hash },
                _ => Operation::EcdsaSign { hash },
            };
            let mut seen = std::collections::HashSet::new();
            for _ in 0..rounds {
                let digest = random(hash.digest_len());
                let signature = driver.output(opened.key, &operation, &digest);
                let good = verify::signature(&opened.info.spki, &operation, &digest, &signature);
                assert!(good, "{} {hash}", key.name);
                assert!(seen.insert(signature.to_vec()), "a signature came twice");
            }
        }
    }
    let opened = driver.open_good(&keys::ed25519());
    for len in 0..300 {
        let message = random(len * 50);
        let signature = driver.output(opened.key, &Operation::Ed25519Sign, &message);
        let theirs = verify::sign(&keys::ed25519(), &Operation::Ed25519Sign, &message);
        assert_eq!(*signature, theirs);
    }
}

#[test]
fn key_agreement_secrets_equal_those_of_openssl() {
    let mut driver = driver();
    for (key, operation, rounds) in [
        (keys::p_256(), Operation::Ecdh, 500),
        (keys::p_384(), Operation::Ecdh, 100),
        (keys::p_521(), Operation::Ecdh, 100),
        (keys::x25519(), Operation::X25519, 500),
        (keys::dh_explicit_2048(), Operation::DhDerive, 20),
        (keys::dh_ffdhe8192(), Operation::DhDerive, 1),
        (keys::dhx_2048(), Operation::DhDerive, 20),
        // Enough rounds for a secret that starts with a zero byte.
        (keys::dh_ffdhe2048(), Operation::DhDerive, 1_000),
    ] {
        let opened = driver.open_good(&key);
        let mut padded = 0;
        for _ in 0..rounds {
            let (peer, secret) = verify::agreement(&key);
            let ours = driver.output(opened.key, &operation, &peer);
            assert_eq!(*ours, secret, "{}", key.name);
            padded += usize::from(secret[0] == 0);
        }
        // With probability 2 % none of a thousand secrets starts with a zero byte, so a single run cannot
        // assert it. The lengths are compared in all of them.
        println!("{}: {padded} of {rounds} secrets start with a zero byte", key.name);
    }
}

#[test]
fn many_threads_use_one_key_at_once() {
    let backend = Arc::new(Software::new());
    let key = keys::rsa_2048();
    let opened = QueueDriver::new(backend.clone()).open_good(&key);
    let operation = Operation::RsaPkcs1Sign { hash: Hash::Sha256 };
    let expected = verify::sign(&key, &operation, &[7; 32]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut driver = QueueDriver::new(backend.clone());
                for _ in 0..50 {
                    assert_eq!(*driver.output(opened.key, &operation, &[7; 32]), expected);
                }
            });
        }
    });
}
