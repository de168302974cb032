// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A device over its socket, with a driver in this process: every answer against OpenSSL.

mod support;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millrace_backends::software::Software;
use millrace_service::settings::Settings;
use millrace_testkit::keys;
use millrace_virtio::device::{DeviceLimits, Limit, LimitsChange};
use millrace_virtio::spec::Status;
use millrace_virtio_guest::{
    EVENT_INDEX_FEATURE, Guest, INDIRECT_FEATURE, akcipher_request, cipher_request, cipher_session,
    rsa_session, words,
};
use openssl::bn::BigNum;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::rsa::{Padding, Rsa};
use openssl::sign::{Signer, Verifier};
use openssl::symm;

use support::Machine;

const ENCRYPT: u32 = 0x400;
const DECRYPT: u32 = 0x401;
const SIGN: u32 = 0x402;
const VERIFY: u32 = 0x403;

fn rsa_key() -> Rsa<Private> {
    Rsa::private_key_from_pem(keys::rsa_2048().pem.as_bytes()).expect("a good key")
}

fn openssl_raw_private(key: &Rsa<Private>, input: &[u8]) -> Vec<u8> {
    let mut out = vec![0; key.size() as usize];
    key.private_encrypt(input, &mut out, Padding::NONE).expect("a number below the modulus");
    out
}

#[test]
fn raw_rsa_is_equal_to_openssl_for_every_size_and_ring_feature() {
    let large = Rsa::private_key_from_pem(keys::rsa_4096().pem.as_bytes()).expect("a good key");
    let small = [512, 1024].map(|bits| Rsa::generate(bits).expect("a key"));
    for features in [0, INDIRECT_FEATURE, INDIRECT_FEATURE | EVENT_INDEX_FEATURE] {
        let machine = Machine::start();
        let mut guest = machine.connect(features);
        for key in small.iter().chain([&rsa_key(), &large]) {
            let len = key.size() as usize;
            let bits = 8 * len;
            let der = key.private_key_to_der().expect("DER");
            let session = guest
                .create(&[&rsa_session(true, der.len(), 0, 0), &der])
                .expect("an answer")
                .unwrap_or_else(|status| panic!("RSA-{bits} is refused with {status}"));
            // What Linux sends for a signature: one byte less than the modulus.
            let block: Vec<u8> = (0..=250).map(|n| n | 1).cycle().take(len - 1).collect();
            let request = akcipher_request(DECRYPT, session, block.len(), len);
            let answer = guest.request(0, &[&request, &block], len + 1).expect("an answer");
            assert_eq!(answer.status(), Status::Ok as u8, "RSA-{bits}");
            let padded = [&[0][..], &block].concat();
            assert_eq!(answer.result(), openssl_raw_private(key, &padded));
            // The public operation returns the block, with its leading zero.
            let request = akcipher_request(ENCRYPT, session, len, len);
            let signature = answer.result().to_vec();
            let answer = guest.request(0, &[&request, &signature], len + 1).expect("an answer");
            assert_eq!(answer.result(), padded);
            assert_eq!(guest.destroy(4, session).expect("an answer"), 0);
        }
    }
}

#[test]
fn key_without_primes_serves_raw_rsa() {
    // Linux before 5.19 tests the driver with such keys. One has a private exponent without the zero byte that makes
    // it positive.
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let key = rsa_key();
    let integer = |bytes: Vec<u8>| {
        let sign = if bytes[0] & 0x80 == 0 { vec![] } else { vec![0] };
        millrace_operation::der::element(2, &[sign, bytes].concat())
    };
    let numbers = [key.n(), key.e(), key.d()].map(|number| integer(number.to_vec()));
    let der = |zeros: &[u8]| {
        let body = [&[2, 1, 0][..], &numbers.concat(), zeros].concat();
        millrace_operation::der::element(0x30, &body)
    };
    let good = der(&[2, 1, 0].repeat(5));
    let session = guest
        .create(&[&rsa_session(true, good.len(), 0, 0), &good])
        .expect("an answer")
        .expect("a session");
    let request = akcipher_request(DECRYPT, session, 256, 256);
    let block = [&[0][..], &[9; 255]].concat();
    let answer = guest.request(0, &[&request, &block], 257).expect("an answer");
    assert_eq!(answer.result(), openssl_raw_private(&key, &block));
    for zeros in [[2, 1, 0].repeat(4), [2, 1, 0].repeat(6), [2, 1, 3].repeat(5)] {
        let bad = der(&zeros);
        let created = guest.create(&[&rsa_session(true, bad.len(), 0, 0), &bad]);
        assert!(created.expect("an answer").is_err());
    }
}

#[test]
fn pkcs1_signature_and_verification_are_equal_to_openssl() {
    let machine = Machine::start();
    let mut guest = machine.connect(INDIRECT_FEATURE);
    let key = rsa_key();
    let (private, public) =
        (key.private_key_to_der().expect("DER"), key.public_key_to_der_pkcs1().expect("DER"));
    let pkey = PKey::from_rsa(key).expect("a key");
    for (code, digest) in [
        (5, MessageDigest::sha1()),
        (6, MessageDigest::sha256()),
        (7, MessageDigest::sha384()),
        (8, MessageDigest::sha512()),
        (9, MessageDigest::sha224()),
    ] {
        let message = b"what a guest signs";
        let hash = openssl::hash::hash(digest, message).expect("a digest");
        let signer = guest
            .create(&[&rsa_session(true, private.len(), 1, code), &private])
            .expect("an answer")
            .expect("a session");
        let request = akcipher_request(SIGN, signer, hash.len(), 256);
        let answer = guest.request(0, &[&request, &hash], 257).expect("an answer");
        let mut theirs = Signer::new(digest, &pkey).expect("a signer");
        let theirs = theirs.sign_oneshot_to_vec(message).expect("a signature");
        assert_eq!(answer.result(), theirs);

        let verifier = guest
            .create(&[&rsa_session(false, public.len(), 1, code), &public])
            .expect("an answer")
            .expect("a session");
        let request = akcipher_request(VERIFY, verifier, 256, hash.len());
        let good = guest.request(0, &[&request, &theirs, &hash], 1);
        assert_eq!(good.expect("an answer").status(), Status::Ok as u8);
        let mut forged = theirs.clone();
        forged[17] ^= 1;
        let bad = guest.request(0, &[&request, &forged, &hash], 1);
        assert_eq!(bad.expect("an answer").status(), Status::KeyRejected as u8);
    }
}

#[test]
fn pkcs1_encryption_and_decryption_meet_openssl() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let key = rsa_key();
    let der = key.private_key_to_der().expect("DER");
    let session = guest
        .create(&[&rsa_session(true, der.len(), 1, 0), &der])
        .expect("an answer")
        .expect("a session");
    let request = akcipher_request(ENCRYPT, session, 6, 256);
    let sealed = guest.request(0, &[&request, b"secret"], 257).expect("an answer");
    let mut out = vec![0; 256];
    let len = key
        .private_decrypt(sealed.result(), &mut out, Padding::PKCS1)
        .expect("OpenSSL decrypts it");
    assert_eq!(&out[..len], b"secret");
    let request = akcipher_request(DECRYPT, session, 256, 256);
    let opened = guest.request(0, &[&request, sealed.result()], 257).expect("an answer");
    assert_eq!(opened.result(), b"secret");
    // Implicit rejection: a wrong ciphertext decrypts to something, and its status tells nothing.
    let mut wrong = sealed.result().to_vec();
    wrong[255] ^= 1;
    let rejected = guest.request(0, &[&request, &wrong], 257).expect("an answer");
    assert_eq!(rejected.status(), Status::Ok as u8);
    assert_ne!(rejected.result(), b"secret");
}

#[test]
fn number_not_below_the_modulus_is_refused() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let key = rsa_key();
    let der = key.private_key_to_der().expect("DER");
    let session = guest
        .create(&[&rsa_session(true, der.len(), 0, 0), &der])
        .expect("an answer")
        .expect("a session");
    let modulus = key.n().to_vec();
    let mut below = BigNum::from_slice(&modulus).expect("a number");
    below.sub_word(1).expect("a number");
    for (operation, input, status) in [
        (DECRYPT, modulus.clone(), Status::Err),
        (ENCRYPT, modulus.clone(), Status::Err),
        (DECRYPT, vec![0xff; 256], Status::Err),
        (DECRYPT, vec![0xff; 257], Status::Err),
        (DECRYPT, below.to_vec(), Status::Ok),
        (SIGN, vec![1; 255], Status::NotSupported),
    ] {
        let request = akcipher_request(operation, session, input.len(), 256);
        let answer = guest.request(0, &[&request, &input], 257).expect("an answer");
        assert_eq!(answer.status(), status as u8, "operation {operation:#x}");
    }
    // Room for less than a result.
    let request = akcipher_request(DECRYPT, session, 255, 255);
    let answer = guest.request(0, &[&request, &[1; 255]], 256).expect("an answer");
    assert_eq!((answer.status(), answer.len), (Status::Err as u8, 1));
}

#[test]
fn aes_is_equal_to_openssl_in_every_mode_and_size() {
    let machine = Machine::start();
    let mut guest = machine.connect(INDIRECT_FEATURE | EVENT_INDEX_FEATURE);
    for (algorithm, key_len, cipher) in [
        (3, 16, symm::Cipher::aes_128_cbc()),
        (3, 24, symm::Cipher::aes_192_cbc()),
        (3, 32, symm::Cipher::aes_256_cbc()),
        (4, 16, symm::Cipher::aes_128_ctr()),
        (4, 24, symm::Cipher::aes_192_ctr()),
        (4, 32, symm::Cipher::aes_256_ctr()),
        (13, 64, symm::Cipher::aes_256_xts()),
        (2, 32, symm::Cipher::aes_256_ecb()),
    ] {
        let key: Vec<u8> = (0..key_len).collect();
        let iv = if algorithm == 2 { vec![] } else { vec![0xa5; 16] };
        let [seal, open] = [1, 2].map(|direction| {
            guest
                .create(&[&cipher_session(algorithm, key.len(), direction), &key])
                .expect("an answer")
                .expect("a session")
        });
        for size in [16, 512, 4096, 65_536] {
            let text: Vec<u8> = (0..=252).cycle().take(size).collect();
            let request = cipher_request(0, seal, iv.len(), size, size);
            let answer = guest.request(0, &[&request, &iv, &text], size + 1).expect("an answer");
            assert_eq!(answer.status(), 0, "algorithm {algorithm}, {size} bytes");
            let mut theirs = symm::Crypter::new(
                cipher,
                symm::Mode::Encrypt,
                &key,
                (!iv.is_empty()).then_some(&iv),
            )
            .expect("a cipher");
            theirs.pad(false);
            let mut expected = vec![0; size + 16];
            let len = theirs.update(&text, &mut expected).expect("a result");
            assert_eq!(answer.result(), &expected[..len]);
            let request = cipher_request(1, open, iv.len(), size, size);
            let sealed = answer.result().to_vec();
            let answer = guest.request(0, &[&request, &iv, &sealed], size + 1).expect("an answer");
            assert_eq!(answer.result(), text);
        }
        // A session decrypts or encrypts, not both.
        let request = cipher_request(1, seal, iv.len(), 16, 16);
        let answer = guest.request(0, &[&request, &iv, &[0; 16]], 17);
        assert_eq!(answer.expect("an answer").status(), Status::Err as u8);
    }
}

#[test]
fn ecdsa_signature_verifies_at_openssl_and_here() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    for (key, curve) in [(keys::p_256(), 3), (keys::p_384(), 4), (keys::p_521(), 5)] {
        let pkey = PKey::private_key_from_pem(key.pem.as_bytes()).expect("a key");
        let ec = pkey.ec_key().expect("an EC key");
        let der = ec.private_key_to_der().expect("DER");
        let session = |key_type: u32, len: usize| {
            let len = u32::try_from(len).expect("a length");
            millrace_virtio_guest::control_request(0x404, &words(&[2, key_type, len, curve]))
        };
        let signer =
            guest.create(&[&session(2, der.len()), &der]).expect("an answer").expect("a session");
        let message = b"what a guest signs";
        let digest = openssl::hash::hash(MessageDigest::sha256(), message).expect("a digest");
        let request = akcipher_request(SIGN, signer, 32, 160);
        let answer = guest.request(0, &[&request, &digest], 161).expect("an answer");
        assert_eq!(answer.status(), 0);
        let mut verifier = Verifier::new(MessageDigest::sha256(), &pkey).expect("a verifier");
        let signature = answer.result().to_vec();
        assert!(verifier.verify_oneshot(&signature, message).expect("a verdict"));

        let mut context = openssl::bn::BigNumContext::new().expect("a context");
        let form = openssl::ec::PointConversionForm::UNCOMPRESSED;
        let point = ec.public_key().to_bytes(ec.group(), form, &mut context).expect("a point");
        let checker = guest
            .create(&[&session(1, point.len()), &point])
            .expect("an answer")
            .expect("a session");
        let request = akcipher_request(VERIFY, checker, signature.len(), 32);
        let good = guest.request(0, &[&request, &signature, &digest], 1);
        assert_eq!(good.expect("an answer").status(), 0);
        let bad = guest.request(0, &[&request, &signature, &[7; 32]], 1);
        assert_eq!(bad.expect("an answer").status(), Status::KeyRejected as u8);
        // The curve of the session and that of the key differ.
        let other = if curve == 3 { 4 } else { 3 };
        let len = u32::try_from(der.len()).expect("a length");
        let wrong = millrace_virtio_guest::control_request(0x404, &words(&[2, 2, len, other]));
        assert!(guest.create(&[&wrong, &der]).expect("an answer").is_err());
    }
}

#[test]
fn config_space_announces_what_the_device_has() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let config = guest.config().expect("the configuration space");
    assert_eq!(config, millrace_virtio::spec::config_space(1, true));
}

#[test]
fn jobs_count_for_the_identity_and_the_backend_that_served_them() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let der = rsa_key().private_key_to_der().expect("DER");
    let session = guest
        .create(&[&rsa_session(true, der.len(), 0, 0), &der])
        .expect("an answer")
        .expect("a session");
    let request = akcipher_request(DECRYPT, session, 255, 256);
    for _ in 0..3 {
        let answer = guest.request(0, &[&request, &[3; 255]], 257);
        assert_eq!(answer.expect("an answer").status(), 0);
    }
    let rows = machine.service.sessions();
    assert!(rows.iter().any(|row| row.identity == "vm:test"), "{rows:?}");
    let status = machine.devices.status();
    let statistics = &status[0].statistics;
    assert_eq!(statistics.asym_decrypt_ops, 3);
    assert_eq!(statistics.asym_decrypt_bytes, 3 * 255);
    let served = statistics.served_by.iter();
    let served: Vec<_> =
        served.map(|row| (row.operation, row.place, row.backend, row.ops)).collect();
    assert_eq!(served, [("asym-decrypt", "local", "software", 3)]);
    assert_eq!((statistics.sessions, statistics.keys), (1, 1));
}

/// Linux 6.1 tests the driver with such a key (crypto/testmgr.h), and does not use the device if it is refused.
#[test]
fn public_key_whose_modulus_lacks_its_sign_byte_serves() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let key = rsa_key();
    let element = millrace_operation::der::element;
    let numbers = [key.n(), key.e()].map(|number| element(2, &number.to_vec()));
    let der = element(0x30, &numbers.concat());
    let session = guest
        .create(&[&rsa_session(false, der.len(), 0, 0), &der])
        .expect("an answer")
        .expect("a session");
    let request = akcipher_request(ENCRYPT, session, 8, 256);
    let answer = guest.request(0, &[&request, &[7; 8]], 257).expect("an answer");
    let block = [&[0; 248][..], &[7; 8]].concat();
    let mut expected = vec![0; 256];
    key.public_encrypt(&block, &mut expected, Padding::NONE).expect("a result");
    assert_eq!(answer.result(), expected);
}

/// The RSA-1024 key with which Linux tests the driver (crypto/testmgr.h).
#[test]
fn key_of_linux_self_test_serves_raw_rsa() {
    let numbers = [
        "00BBF82F090682CE9C2338AC2B9DA871F7368D07EED41043A440D6B6F07454F51FB8DFBAAF035C02AB61EA48CEEB6FCD4876ED520D60E1EC4619719D8A5B8B807FAFB8E0A3DFC737723EE6B4B7D93A2584EE6A649D060953748834B2454598394EE0AAB12D7B61A51F527A9A41F6C1687FE2537298CA2A8F5946F8E5FD091DBDCB",
        "11",
        "00A5DAFC5341FAF289C4B988DB30C1CDF83F31251E0668B42784813801579641B29410B3C7998D6BC465745E5C392669D6870DA2C082A939E37FDCB82EC93EDAC97FF3AD5950ACCFBC111C76F1A9529444E56AAF68C56C092CD38DC3BEF5D20A939926ED4F74A13EDDFBE1A1CECC4894AF9428C2B7B8883FE4463A4BC85B1CB3C1",
        "00EECFAE81B1B9B3C908810B10A1B5600199EB9F44AEF4FDA493B81A9E3D84F632124EF0236E5D1E3B7E28FAE7AA040A2D5B252176459D1F397541BA2A58FB6599",
        "00C97FB1F027F453F6341233EAAAD1D9353F6C42D08866B1D05A0F2035028B9D869840B41666B42E92EA0DA3B43204B5CFCE3352524D0416A5A441E700AF461503",
        "54494CA63EBA0337E4E24023FCD69A5AEB07DDDC0183A4D0AC9B54B051F2B13ED9490975EAB77414FF59C1F7692E9A2E202B38FC910A474174ADC93C1F67C981",
        "471E0290FF0AF0750351B7F878864CA961ADBD3A8A7E991C5C0556A94C3146A7F9803F8F6F8AE342E931FD8AE47A220D1B99A495849807FE39F9245A9836DA3D",
        "00B06C4FDABB6301198D265BDBAE9423B380F271F73453885093077FCD39E2119FC98632154F5883B167A967BF402B4E9E2E0F9656E698EA3666EDFB25798039F7",
    ];
    let element = millrace_operation::der::element;
    let encoded = numbers.map(|number| element(2, &hex::decode(number).expect("digits")));
    let der = element(0x30, &[&[2, 1, 0][..], &encoded.concat()].concat());
    let key = Rsa::private_key_from_der(&der).expect("OpenSSL takes it");
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let created = guest.create(&[&rsa_session(true, der.len(), 0, 0), &der]);
    let session = created.expect("an answer").expect("a session");
    let request = akcipher_request(DECRYPT, session, 128, 128);
    let block = [&[0][..], &[9; 127]].concat();
    let answer = guest.request(0, &[&request, &block], 129).expect("an answer");
    assert_eq!(answer.result(), openssl_raw_private(&key, &block));
}

#[test]
fn throttle_of_a_live_device_changes_at_once_and_drops_no_request() {
    let slow = DeviceLimits { ops: None, bps: Some(1) };
    let machine = Machine::with(Settings::default(), slow, Arc::new(Software::new()));
    let mut guest = machine.connect(0);
    let session = guest
        .create(&[&cipher_session(3, 32, 1), &[7; 32]])
        .expect("an answer")
        .expect("a session");
    let offer = |guest: &mut Guest, count: u8| -> Vec<_> {
        let request = cipher_request(0, session, 16, 4096, 4096);
        let mut tickets = Vec::new();
        for n in 0..count {
            let parts: [&[u8]; 3] = [&request, &[n; 16], &[n; 4096]];
            tickets.push(guest.ask(0, &parts, 4097).expect("room"));
        }
        guest.kick(0).expect("a kick");
        tickets
    };
    // The first request overdraws the limit by more than an hour.
    let tickets = offer(&mut guest, 10);
    guest.wait(tickets[0]).expect("the first answer");
    let throttled = || machine.devices.status()[0].statistics.throttled;
    while throttled() == 0 {
        thread::yield_now();
    }
    assert_eq!(guest.collect(0).expect("a ring"), 0, "the others wait");
    let limits = |ops, bps| {
        let change = LimitsChange { ops, bps };
        assert!(machine.devices.set_limits(&machine.socket, change));
    };
    limits(None, Some(Limit::None));
    for (n, ticket) in (0_u8..).zip(tickets).skip(1) {
        let answer = guest.wait(ticket).expect("an answer");
        let mut expected =
            symm::encrypt(symm::Cipher::aes_256_cbc(), &[7; 32], Some(&[n; 16]), &[n; 4096])
                .expect("a result");
        expected.truncate(4096);
        assert_eq!(answer.result(), expected);
    }
    let before = throttled();
    limits(Some(Limit::PerSecond(100)), None);
    let status = &machine.devices.status()[0];
    assert_eq!((status.throttle_ops, status.throttle_bps), (Some(100), None));
    let tickets = offer(&mut guest, 50);
    for ticket in tickets {
        guest.wait(ticket).expect("an answer");
    }
    assert!(throttled() > before, "the new limit holds");
}

#[test]
fn guest_that_asks_for_one_interrupt_after_many_answers_gets_one() {
    let machine = Machine::start();
    let mut guest = machine.connect(INDIRECT_FEATURE | EVENT_INDEX_FEATURE);
    let created = guest.create(&[&cipher_session(3, 32, 1), &[7; 32]]);
    let session = created.expect("an answer").expect("a session");
    let request = cipher_request(0, session, 16, 16, 16);
    let parts: [&[u8]; 3] = [&request, &[1; 16], &[2; 16]];
    // A device that has never interrupted interrupts at its first answer.
    assert_eq!(guest.request(0, &parts, 17).expect("an answer").status(), 0);
    for (after, expected) in [(100, 1), (101, 0)] {
        guest.interrupt_after(0, after).expect("an event index");
        let _ = guest.interrupts(0);
        let tickets: Vec<_> =
            (0..100).map(|_| guest.ask(0, &parts, 17).expect("room for a request")).collect();
        guest.kick(0).expect("a kick");
        let end = Instant::now() + Duration::from_secs(60);
        let mut answered = 0;
        while answered < tickets.len() {
            assert!(Instant::now() < end, "{answered} answers");
            answered += guest.collect(0).expect("answers");
            thread::yield_now();
        }
        // The device interrupts after it has written the answers; a request of the other ring comes behind that.
        assert_eq!(guest.destroy(0, u64::MAX).expect("an answer"), Status::InvalidSession as u8);
        assert_eq!(guest.interrupts(0), expected, "after {after} answers");
        for ticket in tickets {
            assert_eq!(guest.take(ticket).expect("memory").expect("an answer").status(), 0);
        }
    }
}
