// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys that the software backend accepts, and the errors for the others.

use millrace_backends::software::Software;
use millrace_engine::backend::Backend;
use millrace_operation::KeyError;
use millrace_testkit::keys;
use openssl::bn::{BigNum, BigNumRef};
use openssl::dh::Dh;
use openssl::pkey::PKey;

#[test]
fn good_keys_are_accepted_with_the_public_half_that_openssl_sees() {
    let backend = Software::new();
    for key in keys::all() {
        let opened = backend.open_key(&key.private_key()).expect(key.name);
        assert_eq!(opened.info.key_type, key.key_type, "{}", key.name);
        // OpenSSL 3.0 does not read version 2 of PKCS#8.
        if key.name != "ed25519_v2" {
            let spki = millrace_testkit::verify::spki(&key);
            assert_eq!(hex(&opened.info.spki), hex(&spki), "{}", key.name);
        }
    }
}

#[test]
fn bad_keys_are_refused_with_the_matching_error() {
    let backend = Software::new();
    for key in keys::bad() {
        let error = backend.open_key(&key.private_key()).map(|opened| opened.info.key_type);
        assert_eq!(error, Err(key.error), "{}", key.name);
    }
}

#[test]
fn truncated_or_changed_keys_cause_no_panic() {
    let backend = Software::new();
    let keys = [
        keys::p_256(),
        keys::ed25519(),
        keys::x25519(),
        keys::rsa_2048(),
        keys::dh_ffdhe2048(),
        keys::dhx_2048(),
        keys::dsa_2048(),
    ];
    for key in keys {
        for len in 0..key.der.len() {
            let refused = backend.open_key(&keys::private_key(&key.der[..len])).map(|_| ());
            assert_eq!(refused, Err(KeyError::Malformed), "{} cut to {len}", key.name);
        }
        for at in 0..key.der.len() {
            let mut der = key.der.to_vec();
            der[at] ^= 0x01;
            // Some changes make another good key; none may cause a panic or a wrong result.
            if let Ok(opened) = backend.open_key(&keys::private_key(&der)) {
                backend.close_key(opened.key);
            }
        }
    }
}

#[test]
fn named_dh_groups_are_accepted_at_any_size_others_up_to_a_bound() {
    // Above 4096 bits a group is not tested for safety, so these are accepted by name.
    let backend = Software::new();
    for prime in [BigNum::get_rfc3526_prime_6144(), BigNum::get_rfc3526_prime_8192()] {
        let prime = prime.expect("a number");
        let der = dh_key(&prime, 2);
        let opened = backend.open_key(&keys::private_key(&der)).expect("a named group");
        assert_eq!(opened.info.key_type.modulus_len(), prime.to_vec().len());
        // The same with another generator has no name.
        let der = dh_key(&prime, 5);
        let refused = backend.open_key(&keys::private_key(&der)).map(|_| ());
        assert_eq!(refused, Err(KeyError::Size));
    }
}

/// A Diffie-Hellman key on the group of this prime and generator.
fn dh_key(prime: &BigNumRef, generator: u32) -> Vec<u8> {
    let number = BigNum::from_u32(generator).expect("a number");
    let group = Dh::from_pqg(prime.to_owned().expect("a number"), None, number).expect("a group");
    let private = BigNum::from_slice(&[0x5a; 64]).expect("a number");
    let key = group.set_private_key(private).and_then(PKey::from_dh).expect("a key");
    key.private_key_to_pkcs8().expect("DER")
}

#[test]
fn oversized_key_is_refused_without_parsing() {
    let backend = Software::new();
    let huge = vec![0x30; 100_000];
    assert_eq!(backend.open_key(&keys::private_key(&huge)).map(|_| ()), Err(KeyError::Malformed));
}

#[test]
fn debug_of_key_and_backend_shows_no_secrets() {
    let backend = Software::new();
    let key = keys::rsa_2048().private_key();
    backend.open_key(&key).expect("a good key");
    assert_eq!(format!("{key:?}"), format!("PrivateKey({} bytes)", keys::rsa_2048().der.len()));
    assert_eq!(format!("{backend:?}"), "Software(1 keys)");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
