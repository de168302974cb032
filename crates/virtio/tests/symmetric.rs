// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Hashes, MACs, AEADs, chained algorithms and requests without a session, over the rings: every answer against
//! OpenSSL.

mod support;

use millrace_testkit::keys;
use millrace_virtio::spec::{CryptoService, Status, feature};
use millrace_virtio_guest::{
    Descriptor, Guest, INDIRECT_FEATURE, WRITE, cipher_request, cipher_session, control_request,
    data_request, words,
};
use openssl::hash::{MessageDigest, hash};
use openssl::pkey::PKey;
use openssl::rsa::{Padding, Rsa};
use openssl::sign::Signer;
use openssl::symm;
use vm_memory::{Bytes, GuestAddress};

use support::Machine;

const TEXT: [u8; 96] = [0x61; 96];
const IV: [u8; 16] = [0xa5; 16];

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a short text")
}

fn session(guest: &mut Guest, parts: &[&[u8]]) -> u64 {
    guest.create(parts).expect("an answer").expect("a session")
}

fn hmac(digest: MessageDigest, key: &[u8], text: &[u8]) -> Vec<u8> {
    let key = PKey::hmac(key).expect("a key");
    let mut signer = Signer::new(digest, &key).expect("a MAC");
    signer.sign_oneshot_to_vec(text).expect("a MAC")
}

fn cbc(key: &[u8], text: &[u8]) -> Vec<u8> {
    let cipher = symm::Cipher::aes_256_cbc();
    let mut sealed = symm::encrypt(cipher, key, Some(&IV), text).expect("a result");
    sealed.truncate(text.len());
    sealed
}

#[test]
fn hashes_and_macs_are_equal_to_openssl_also_when_they_are_cut() {
    let machine = Machine::start();
    let mut guest = machine.connect(INDIRECT_FEATURE);
    for (code, digest) in [
        (2, MessageDigest::sha1()),
        (3, MessageDigest::sha224()),
        (4, MessageDigest::sha256()),
        (5, MessageDigest::sha384()),
        (6, MessageDigest::sha512()),
    ] {
        for len in [digest.size(), 12] {
            let size = u32::try_from(len).expect("a short digest");
            let plain = session(&mut guest, &[&control_request(0x102, &words(&[code, size]))]);
            let request = data_request(0x100, plain, &words(&[length(&TEXT), size]));
            let answer = guest.request(0, &[&request, &TEXT], len + 1).expect("an answer");
            assert_eq!(answer.result(), &hash(digest, &TEXT).expect("a digest")[..len]);
            let key = [0x5a; 32];
            let create = control_request(0x202, &words(&[code, size, length(&key), 0]));
            let keyed = session(&mut guest, &[&create, &key]);
            let request = data_request(0x200, keyed, &words(&[length(&TEXT), size]));
            let answer = guest.request(0, &[&request, &TEXT], len + 1).expect("an answer");
            assert_eq!(answer.result(), &hmac(digest, &key, &TEXT)[..len]);
            // A request that wants another length than the session's, or the other service's session.
            let request = data_request(0x200, keyed, &words(&[length(&TEXT), size - 1]));
            let answer = guest.request(0, &[&request, &TEXT], len + 1).expect("an answer");
            assert_eq!(answer.status(), Status::Err as u8);
            let request = data_request(0x200, plain, &words(&[length(&TEXT), size]));
            let answer = guest.request(0, &[&request, &TEXT], len + 1).expect("an answer");
            assert_eq!(answer.status(), Status::InvalidSession as u8);
        }
    }
}

#[test]
fn aead_is_equal_to_openssl_and_a_wrong_tag_is_a_bad_message() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let (key, aad) = ([0x33; 32], [4; 20]);
    for (code, cipher) in [
        (1, symm::Cipher::aes_256_gcm()),
        (2, symm::Cipher::aes_256_ccm()),
        (3, symm::Cipher::chacha20_poly1305()),
    ] {
        let [seal, open] = [1, 2].map(|direction| {
            let create = control_request(0x302, &words(&[code, 32, 16, 0, direction]));
            session(&mut guest, &[&create, &key])
        });
        let nonce = &IV[..12];
        let mut tag = [0; 16];
        let mut expected = match code {
            // OpenSSL wants the length of the text first, which its binding does for this call alone.
            2 => {
                let mut context = openssl::cipher_ctx::CipherCtx::new().expect("a context");
                let ccm = openssl::cipher::Cipher::aes_256_ccm();
                context.encrypt_init(Some(ccm), None, None).expect("CCM");
                context.set_iv_length(12).expect("a nonce of 12 bytes");
                context.set_tag_length(16).expect("a tag of 16 bytes");
                context.encrypt_init(None, Some(&key), Some(nonce)).expect("a key");
                context.set_data_len(TEXT.len()).expect("a length");
                context.cipher_update(&aad, None).expect("additional data");
                let mut sealed = vec![0; TEXT.len()];
                context.cipher_update(&TEXT, Some(&mut sealed)).expect("a result");
                context.tag(&mut tag).expect("a tag");
                sealed
            }
            _ => {
                symm::encrypt_aead(cipher, &key, Some(nonce), &aad, &TEXT, &mut tag).expect("ours")
            }
        };
        expected.extend(tag);
        let lengths = words(&[12, length(&aad), length(&TEXT), length(&TEXT) + 16, 16]);
        let request = data_request(0x300, seal, &lengths);
        let parts: [&[u8]; 4] = [&request, nonce, &TEXT, &aad];
        let answer = guest.request(0, &parts, expected.len() + 1).expect("an answer");
        assert_eq!(answer.result(), expected, "algorithm {code}");
        let lengths = words(&[12, length(&aad), length(&expected), length(&TEXT), 16]);
        let request = data_request(0x301, open, &lengths);
        let parts: [&[u8]; 4] = [&request, nonce, &expected, &aad];
        let answer = guest.request(0, &parts, TEXT.len() + 1).expect("an answer");
        assert_eq!(answer.result(), TEXT);
        expected[3] ^= 1;
        let parts: [&[u8]; 4] = [&request, nonce, &expected, &aad];
        let answer = guest.request(0, &parts, TEXT.len() + 1).expect("an answer");
        assert_eq!((answer.status(), answer.len), (Status::BadMessage as u8, 1));
    }
}

/// A session of AES-256-CBC and HMAC-SHA-256; the order is 2 for the cipher first.
fn chain(guest: &mut Guest, order: u32, direction: u32) -> u64 {
    let mut fields = words(&[order, 2, 3, 32, direction, 0, 4, 32, 20]);
    fields.resize(48, 0);
    fields.extend(words(&[2, 0]));
    session(guest, &[&control_request(2, &fields), &[0x21; 32], &[0x44; 20]])
}

#[test]
fn chained_cipher_and_mac_are_equal_to_openssl_in_both_orders() {
    let machine = Machine::start();
    let mut guest = machine.connect(INDIRECT_FEATURE);
    let aad = [9; 8];
    let request = |session, opcode| {
        // The cipher covers bytes 16 to 80 of the source, the MAC all of it and the additional data before it.
        let mut fields = words(&[16, 96, 96, 16, 64, 0, 96, 8, 32]);
        fields.resize(40, 0);
        fields.extend(words(&[2, 0]));
        data_request(opcode, session, &fields)
    };
    let sealed = [&TEXT[..16], &cbc(&[0x21; 32], &TEXT[16..80]), &TEXT[80..]].concat();
    let mac = |text: &[u8]| hmac(MessageDigest::sha256(), &[0x44; 20], &[&aad[..], text].concat());
    for (order, hashed) in [(2, &sealed[..]), (1, &TEXT[..])] {
        let session = chain(&mut guest, order, 1);
        let parts: [&[u8]; 4] = [&request(session, 0), &IV, &TEXT, &aad];
        let answer = guest.request(0, &parts, 96 + 32 + 1).expect("an answer");
        assert_eq!(answer.result(), [&sealed[..], &mac(hashed)].concat(), "order {order}");
    }
    // A decryption checks first what it then decrypts.
    let session = chain(&mut guest, 1, 2);
    let parts: [&[u8]; 4] = [&request(session, 1), &IV, &sealed, &aad];
    let answer = guest.request(0, &parts, 96 + 32 + 1).expect("an answer");
    assert_eq!(answer.result(), [&TEXT[..], &mac(&sealed)].concat());
}

/// A request that brings its key: header and fixed fields of this length.
fn stateless(opcode: u32, fields: &[u32], len: usize) -> Vec<u8> {
    let mut fields = words(fields);
    fields.resize(len, 0);
    [words(&[opcode, 0, 0, 0, 0, 0]), fields].concat()
}

#[test]
fn requests_without_a_session_are_equal_to_openssl_for_every_service() {
    let machine = Machine::start();
    let services = CryptoService::ALL.iter().map(|service| feature::stateless(*service));
    let mut guest = machine.connect(services.fold(feature::REVISION_1, |all, one| all | one));
    let key = [0x6c; 32];
    let answer = |guest: &mut Guest, parts: &[&[u8]], room: usize| {
        let answer = guest.request(0, parts, room + 1).expect("an answer");
        assert_eq!(answer.status(), 0, "{:?}", &parts[0][..4]);
        answer.result().to_vec()
    };
    let mut cipher = stateless(0, &[3, 32, 1, 16, 96, 96], 72);
    cipher.extend(words(&[1]));
    assert_eq!(answer(&mut guest, &[&cipher, &key, &IV, &TEXT], 96), cbc(&key, &TEXT));
    let request = stateless(0x100, &[4, 96, 32], 16);
    let digest = hash(MessageDigest::sha256(), &TEXT).expect("a digest");
    assert_eq!(answer(&mut guest, &[&request, &TEXT], 32), &*digest);
    let request = stateless(0x200, &[4, 32, 96, 32], 16);
    let mac = hmac(MessageDigest::sha256(), &key, &TEXT);
    assert_eq!(answer(&mut guest, &[&request, &key, &TEXT], 32), mac);
    let request = stateless(0x300, &[1, 32, 1, 12, 16, 0, 96, 112], 32);
    let mut tag = [0; 16];
    let gcm = symm::Cipher::aes_256_gcm();
    let sealed = symm::encrypt_aead(gcm, &key, Some(&IV[..12]), &[], &TEXT, &mut tag);
    let sealed = [&sealed.expect("a result")[..], &tag].concat();
    assert_eq!(answer(&mut guest, &[&request, &key, &IV[..12], &TEXT], 112), sealed);
    let rsa = Rsa::private_key_from_pem(keys::rsa_2048().pem.as_bytes()).expect("a key");
    let der = rsa.private_key_to_der().expect("DER");
    let block = [&[0][..], &[5; 255]].concat();
    let mut signed = vec![0; 256];
    rsa.private_encrypt(&block, &mut signed, Padding::NONE).expect("a result");
    let request = stateless(0x401, &[1, 2, length(&der), 0, 0, 256, 256], 28);
    assert_eq!(answer(&mut guest, &[&request, &der, &block], 256), signed);
    assert_eq!(machine.devices.status()[0].statistics.sessions, 0);
}

/// Buffers that a good driver would not give: CVE-2024-3446 was one that the device wrote while it read it.
#[test]
fn cipher_whose_source_and_target_meet_breaks_nothing() {
    let machine = Machine::start();
    let mut guest = machine.connect(0);
    let key = [7; 32];
    let aes = session(&mut guest, &[&cipher_session(3, key.len(), 1), &key]);
    let text: Vec<u8> = (0..=255).cycle().take(1024).collect();
    let header = guest.buffer(&cipher_request(0, aes, 16, 1024, 1024)).expect("room");
    let iv = guest.buffer(&IV).expect("room");
    let status = guest.buffer(&[0xee]).expect("room");
    let expected = cbc(&key, &text);
    for shift in [0_i64, 16, -16, 512, -512, 1023, -1023, 1024] {
        let place = guest.reserve(4096) + 1024;
        let target = place.checked_add_signed(shift).expect("an address");
        guest.memory.write_slice(&text, GuestAddress(place)).expect("memory");
        let part = |address, len, flags| Descriptor { address, len, flags, next: 0 };
        let chain = vec![
            part(header, 72, 0),
            part(iv, 16, 0),
            part(place, 1024, 0),
            part(target, 1024, WRITE),
            part(status, 1, WRITE),
        ];
        let ticket = guest.offer(0, chain, target, 1024).expect("room");
        guest.kick(0).expect("a kick");
        let answer = guest.wait(ticket).expect("an answer");
        assert_eq!((answer.len, &answer.bytes), (1025, &expected), "target {shift} bytes behind");
    }
}

#[test]
fn cipher_whose_source_is_in_pieces_or_at_the_end_of_memory_serves() {
    let machine = Machine::start();
    let mut guest = machine.connect(INDIRECT_FEATURE);
    let key = [7; 32];
    let aes = session(&mut guest, &[&cipher_session(3, key.len(), 1), &key]);
    let text: Vec<u8> = (0..=254).cycle().take(2048).collect();
    let request = cipher_request(0, aes, 16, 2048, 2048);
    for cut in [1, 16, 700, 1024, 1500, 2047] {
        let parts: [&[u8]; 4] = [&request, &IV, &text[..cut], &text[cut..]];
        let answer = guest.request(0, &parts, 2049).expect("an answer");
        assert_eq!(answer.result(), cbc(&key, &text), "cut at {cut}");
    }
    // Head and IV in one buffer, and bytes behind the source that no length covers.
    let answer = guest.request(0, &[&[&request[..], &IV].concat(), &text], 2049);
    assert_eq!(answer.expect("an answer").result(), cbc(&key, &text));
    let parts: [&[u8]; 3] = [&request, &IV, &[&text[..], &[1; 600]].concat()];
    let answer = guest.request(0, &parts, 2049).expect("an answer");
    assert_eq!(answer.result(), cbc(&key, &text));
    // Lengths that differ (CVE-2023-3180), and room that is too small.
    for (source, target, room) in
        [(2048, 2032, 2049), (2032, 2048, 2049), (2048, 2048, 2048), (2047, 2047, 2049)]
    {
        let request = cipher_request(0, aes, 16, source, target);
        let answer = guest.request(0, &[&request, &IV, &text[..source]], room).expect("an answer");
        assert_eq!(
            (answer.status(), answer.len),
            (Status::Err as u8, 1),
            "{source} {target} {room}"
        );
    }
}
