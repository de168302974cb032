// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use openssl::symm;

use super::*;

#[test]
fn hashes_and_macs_are_equal_to_openssl() {
    let data = b"the quick brown fox";
    for (ours, theirs) in [
        (HashAlgorithm::Sha1, MessageDigest::sha1()),
        (HashAlgorithm::Sha224, MessageDigest::sha224()),
        (HashAlgorithm::Sha256, MessageDigest::sha256()),
        (HashAlgorithm::Sha384, MessageDigest::sha384()),
        (HashAlgorithm::Sha512, MessageDigest::sha512()),
        (HashAlgorithm::Sha3_224, MessageDigest::sha3_224()),
        (HashAlgorithm::Sha3_256, MessageDigest::sha3_256()),
        (HashAlgorithm::Sha3_384, MessageDigest::sha3_384()),
        (HashAlgorithm::Sha3_512, MessageDigest::sha3_512()),
    ] {
        let expected = openssl::hash::hash(theirs, data).unwrap().to_vec();
        assert_eq!(expected.len(), ours.digest_len());
        assert_eq!(hash(ours, data).unwrap(), expected);
    }
    let key = [0x5a; 32];
    for (ours, theirs) in [
        (MacAlgorithm::HmacSha1, MessageDigest::sha1()),
        (MacAlgorithm::HmacSha256, MessageDigest::sha256()),
        (MacAlgorithm::HmacSha512, MessageDigest::sha512()),
    ] {
        let pkey = PKey::hmac(&key).unwrap();
        let mut signer = Signer::new(theirs, &pkey).unwrap();
        let expected = signer.sign_oneshot_to_vec(data).unwrap();
        assert_eq!(mac(ours, &key, data).unwrap(), expected);
    }
    let pkey = PKey::cmac(&symm::Cipher::aes_256_cbc(), &key).unwrap();
    let mut signer = Signer::new_without_digest(&pkey).unwrap();
    let expected = signer.sign_oneshot_to_vec(data).unwrap();
    assert_eq!(mac(MacAlgorithm::CmacAes, &key, data).unwrap(), expected);
}

#[test]
fn aead_is_equal_to_openssl_and_refuses_a_wrong_tag() {
    let key = [0x21; 32];
    let (aad, text) = (b"header", vec![0x77; 100]);
    for (algorithm, theirs, nonce_len, tag_len) in [
        (AeadAlgorithm::Gcm, symm::Cipher::aes_256_gcm(), 12, 16),
        (AeadAlgorithm::ChaCha20Poly1305, symm::Cipher::chacha20_poly1305(), 12, 16),
    ] {
        let nonce = vec![9; nonce_len];
        let mut tag = vec![0; tag_len];
        let mut expected =
            symm::encrypt_aead(theirs, &key, Some(&nonce), aad, &text, &mut tag).unwrap();
        expected.extend_from_slice(&tag);
        let mut aead = Aead::new(algorithm, &key, tag_len).unwrap();
        let mut sealed = vec![0; text.len() + tag_len];
        aead.seal(&nonce, aad, &text, &mut sealed).unwrap();
        assert_eq!(sealed, expected, "{algorithm:?}");
        let mut opened = vec![0; text.len()];
        aead.open(&nonce, aad, &sealed, &mut opened).unwrap();
        assert_eq!(opened, text);
        *sealed.last_mut().unwrap() ^= 1;
        let error = aead.open(&nonce, aad, &sealed, &mut opened);
        assert_eq!(error, Err(AeadError::Tag));
        assert_eq!(opened, vec![0; text.len()], "no unverified text stays");
        let error = aead.seal(&[0; 5], aad, &text, &mut sealed);
        assert_eq!(error, Err(AeadError::Length));
        // Nothing to encrypt is a tag alone.
        let mut empty = vec![0; tag_len];
        aead.seal(&nonce, aad, &[], &mut empty).unwrap();
        aead.open(&nonce, aad, &empty, &mut []).unwrap();
    }
}

#[test]
fn ccm_has_the_results_of_sp_800_38c() {
    let key: Vec<u8> = (0x40..0x50).collect();
    for (nonce_len, aad_len, text_len, tag_len, expected) in [
        (7, 8, 4, 4, "7162015b4dac255d"),
        (8, 16, 16, 6, "d2a1f0e051ea5f62081a7792073d593d1fc64fbfaccd"),
        (12, 20, 24, 8, "e3b201a9f5b71a7a9b1ceaeccd97e70b6176aad9a4428aa5484392fbc1b09951"),
    ] {
        let bytes = |first: u8, len: u8| (first..first + len).collect::<Vec<u8>>();
        let (nonce, aad, text) = (bytes(0x10, nonce_len), bytes(0, aad_len), bytes(0x20, text_len));
        let expected = hex::decode(expected).unwrap();
        let mut ccm = Aead::new(AeadAlgorithm::Ccm, &key, tag_len).unwrap();
        let mut sealed = vec![0; text.len() + tag_len];
        ccm.seal(&nonce, &aad, &text, &mut sealed).unwrap();
        assert_eq!(sealed, expected);
        let mut opened = vec![0; text.len()];
        ccm.open(&nonce, &aad, &sealed, &mut opened).unwrap();
        assert_eq!(opened, text);
        sealed[0] ^= 1;
        let error = ccm.open(&nonce, &aad, &sealed, &mut opened);
        assert_eq!(error, Err(AeadError::Tag));
        assert_eq!(opened, vec![0; text.len()], "no unverified text stays");
        let error = ccm.seal(&[0; 6], &aad, &text, &mut sealed);
        assert_eq!(error, Err(AeadError::Length));
        let mut empty = vec![0; tag_len];
        ccm.seal(&nonce, &aad, &[], &mut empty).unwrap();
        ccm.open(&nonce, &aad, &empty, &mut []).unwrap();
    }
}

#[test]
fn cipher_refuses_lengths_that_its_mode_does_not_have() {
    let mut cbc =
        CipherContext::new(CipherAlgorithm::AesCbc, &[1; 16], Direction::Encrypt).unwrap();
    for (iv, len) in [(15, 16), (17, 16), (0, 16), (16, 15), (16, 17)] {
        assert!(!cbc.run(&vec![0; iv], &mut vec![0; len]));
    }
    assert!(cbc.run(&[0; 16], &mut []));
    assert!(CipherContext::new(CipherAlgorithm::AesCbc, &[1; 17], Direction::Encrypt).is_none());
    assert!(
        CipherContext::new(CipherAlgorithm::AesXts, &[1; 64], Direction::Encrypt).is_none(),
        "XTS with two equal keys"
    );
}

#[test]
fn cipher_over_foreign_memory_is_equal_to_openssl_and_refuses_an_overlap() {
    let (key, iv, text) = ([3; 32], [8; 16], (0..=255).cycle().take(1024).collect::<Vec<u8>>());
    let reader = |direction| CipherContext::new(CipherAlgorithm::AesCtr, &key, direction).unwrap();
    let mut cbc = CipherContext::new(CipherAlgorithm::AesCbc, &key, Direction::Encrypt).unwrap();
    let mut expected = symm::encrypt(symm::Cipher::aes_256_cbc(), &key, Some(&iv), &text).unwrap();
    expected.truncate(text.len());
    let (mut source, mut target) = (text.clone(), vec![0; text.len()]);
    let places = (VolatileSlice::from(&mut source[..]), VolatileSlice::from(&mut target[..]));
    assert!(cbc.run_volatile(&iv, &places.0, &places.1));
    assert_eq!(target, expected);
    let place = VolatileSlice::from(&mut source[..]);
    assert!(cbc.run_volatile(&iv, &place, &place), "source and target are the same place");
    assert_eq!(source, expected);
    let mut ctr = reader(Direction::Decrypt);
    let expected = symm::decrypt(symm::Cipher::aes_256_ctr(), &key, Some(&iv), &text).unwrap();
    let mut memory = [&text[..], &[0; 512]].concat();
    let whole = VolatileSlice::from(&mut memory[..]);
    let part = |start| whole.subslice(start, text.len()).unwrap();
    assert!(!ctr.run_volatile(&iv, &part(0), &part(512)), "the target starts in the source");
    assert!(!ctr.run_volatile(&iv, &part(512), &part(0)), "the source starts in the target");
    assert!(!ctr.run_volatile(&iv, &part(0), &whole), "the target is longer");
    assert!(ctr.run_volatile(&iv, &part(0), &part(0)));
    assert_eq!(memory, [&expected[..], &[0; 512]].concat());
    assert!(cbc.reads_once() && ctr.reads_once());
    let decrypting = CipherContext::new(CipherAlgorithm::AesCbc, &key, Direction::Decrypt).unwrap();
    assert!(!decrypting.reads_once());
}

#[test]
fn rsa_key_that_contradicts_itself_is_refused() {
    let key = openssl::rsa::Rsa::generate(1024).unwrap();
    let der = key.private_key_to_der().unwrap();
    assert_eq!(Rsa::private(&der).unwrap().len(), 128);
    for position in [40, 200, 400, der.len() - 2] {
        let mut wrong = der.clone();
        wrong[position] ^= 0x40;
        assert!(Rsa::private(&wrong).is_none(), "byte {position}");
    }
    assert!(Rsa::private(&[&der[..], &[0]].concat()).is_none(), "a trailing byte");
    assert!(Rsa::private(&der[..der.len() - 1]).is_none());
    assert!(Rsa::public(&[]).is_none());
}
