// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

use millrace_virtio_guest::{
    akcipher_request, cipher_request, cipher_session, control_request, data_request, rsa_session,
    words,
};
use proptest::prelude::*;

use super::*;
use crate::spec::DATA_HEADER_LEN;

const LEGACY: RequestFormat = RequestFormat::new(0);
const STATELESS: RequestFormat = RequestFormat::new(feature::OFFERED);

/// Ranges of a parsed request lie inside its bytes, so the sum of what it holds is no more than was there.
fn held(parameters: &Parameters<'_>) -> usize {
    let check = |check: &HashOrMac<'_>| match check {
        HashOrMac::Hash { .. } => 0,
        HashOrMac::Mac { key, .. } => key.len(),
    };
    match parameters {
        Parameters::Cipher(cipher) => cipher.key.len(),
        Parameters::Chain { cipher, check: it, .. } => cipher.key.len() + check(it),
        Parameters::HashOrMac(it) => check(it),
        Parameters::Aead { key, .. }
        | Parameters::Rsa { key, .. }
        | Parameters::Ecdsa { key, .. } => key.len(),
    }
}

fn check_data(format: RequestFormat, bytes: &[u8], writable: usize) {
    let Ok(DataRequest { mode, operation }) = data(format, bytes, writable) else {
        return;
    };
    let parameters = match &mode {
        RequestMode::Session(_) => 0,
        RequestMode::Stateless(parameters) => held(parameters),
    };
    let (parts, room) = match operation {
        DataOperation::Cipher { iv, source, room, .. } => (iv.len() + source.len(), room),
        DataOperation::Chain(ChainOperation {
            iv, source, aad, cipher, hash, hash_len, ..
        }) => {
            assert!(cipher.0 <= cipher.1 && cipher.1 <= source.len());
            assert!(hash.0 <= hash.1 && hash.1 <= source.len());
            (iv.len() + source.len() + aad.len(), source.len() + hash_len)
        }
        DataOperation::HashOrMac { source, len, .. } => (source.len(), len),
        DataOperation::Aead { nonce, source, aad, room, .. } => {
            (nonce.len() + source.len() + aad.len(), room)
        }
        DataOperation::Akcipher { source, digest, room, .. } => (source.len() + digest.len(), room),
    };
    assert!(parameters + parts + DATA_HEADER_LEN <= bytes.len());
    assert!(room <= writable && room <= MAX_RESULT_LEN);
}

/// Words of which each is small, at a limit, or anything.
fn fields(count: usize) -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        4 => 0_u32..80,
        1 => Just(u32::MAX),
        1 => Just(0x8000_0000_u32),
        1 => any::<u32>(),
    ];
    proptest::collection::vec(word, 0..count).prop_map(|words| millrace_virtio_guest::words(&words))
}

proptest! {
    #[test]
    fn parsed_data_request_holds_only_bytes_that_are_there(
        service in 0_u32..6, operation in 0_u32..5, flag in 0_u32..2,
        fields in fields(40), writable in 0_usize..200, features in 0_u64..64,
    ) {
        let mut bytes = words(&[service << 8 | operation, 0, 1, 0, flag, 0]);
        bytes.extend(fields);
        check_data(RequestFormat::new(features), &bytes, writable);
    }

    #[test]
    fn parsed_control_request_holds_only_bytes_that_are_there(
        service in 0_u32..6, operation in 0_u32..6, fields in fields(40), features in 0_u64..64,
    ) {
        let mut bytes = words(&[service << 8 | operation, 0, 0, 0]);
        bytes.extend(fields);
        if let Ok(SessionCommand::Create(parameters)) = control(RequestFormat::new(features), &bytes) {
            prop_assert!(held(&parameters) + CONTROL_HEADER_LEN <= bytes.len());
        }
    }

    #[test]
    fn any_bytes_parse_or_are_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), features in any::<u64>(),
    ) {
        let format = RequestFormat::new(features);
        let _ = control(format, &bytes);
        check_data(format, &bytes, 100);
    }
}

/// A data request with these parts after its fields.
fn with(request: Vec<u8>, parts: usize) -> Vec<u8> {
    let mut request = request;
    request.resize(request.len() + parts, 7);
    request
}

/// The inputs of the defects that other devices had; `docs/guide/virtual-machines.md` lists them.
#[test]
fn replayed_defects_of_other_devices_are_refused() {
    const HUGE: usize = u32::MAX as usize;
    let chain = |lengths: [usize; 9]| {
        let lengths = lengths.map(|len| u32::try_from(len).expect("32 bits"));
        let mut fields = words(&lengths);
        fields.resize(40, 0);
        fields.extend(words(&[2, 0]));
        with(data_request(0, 1, &fields), 64)
    };
    let refused: [(&str, Vec<u8>); 16] = [
        // Lengths whose sum wraps to a small number in 32 bits.
        ("CVE-2017-5931", chain([16, HUGE - 15, HUGE - 15, 0, 0, 0, 0, 16, 16])),
        ("CVE-2017-5931", with(cipher_request(0, 1, HUGE, HUGE, 2), 64)),
        ("CVE-2017-5931", chain([0, 32, 32, HUGE, 32, 0, 0, 0, 0])),
        ("CVE-2017-5931", chain([0, 32, 32, 0, 0, 32, HUGE, 0, 0])),
        // 4 GiB of source and result.
        ("CVE-2025-14876", with(akcipher_request(0x401, 1, HUGE, HUGE), 64)),
        ("CVE-2025-14876", with(akcipher_request(0x401, 1, 0x8000_0000, 0x8000_0000), 64)),
        ("CVE-2025-14876", with(akcipher_request(0x401, 1, 64, HUGE), 64)),
        ("CVE-2025-14876", with(akcipher_request(0x403, 1, 64, HUGE), 64)),
        // IV above its field.
        ("CVE-2020-14376", with(cipher_request(0, 1, HUGE, 16, 16), 64)),
        ("CVE-2020-14376", with(cipher_request(0, 1, 65, 0, 0), 64)),
        // Result above the room for it.
        ("CVE-2020-14377", with(cipher_request(0, 1, 16, 16, 1025), 64)),
        ("CVE-2020-14377", with(akcipher_request(0x401, 1, 64, 1025), 64)),
        // Fewer bytes than the request says.
        ("CVE-2020-14374", with(cipher_request(0, 1, 16, 64, 64), 79)),
        ("CVE-2022-2132", data_request(0, 1, &[])[..71].to_vec()),
        ("CVE-2022-2132", data_request(0, 1, &[])[..3].to_vec()),
        ("no service 5", data_request(0x500, 1, &words(&[0, 0]))),
    ];
    for (name, request) in refused {
        assert!(data(LEGACY, &request, 1024).is_err(), "{name}");
    }
    let keys = [
        ("CVE-2020-10724", cipher_session(3, 65, 1)),
        ("CVE-2020-10724", cipher_session(3, HUGE, 1)),
        ("CVE-2025-14876", rsa_session(true, HUGE, 0, 0)),
        ("CVE-2025-14876", rsa_session(true, MAX_KEY_LEN + 1, 0, 0)),
        ("MAC key of 513 bytes", control_request(0x202, &words(&[4, 32, 513, 0]))),
        ("empty key", rsa_session(true, 0, 0, 0)),
    ];
    for (name, request) in keys {
        let request = with(request, MAX_KEY_LEN + 1);
        assert!(control(LEGACY, &request).is_err(), "{name}");
    }
}

#[test]
fn longest_keys_are_accepted() {
    for (request, len) in [
        (cipher_session(13, 64, 1), 64),
        (control_request(0x202, &words(&[4, 32, 512, 0])), 512),
        (rsa_session(true, MAX_KEY_LEN, 0, 0), MAX_KEY_LEN),
    ] {
        assert!(control(LEGACY, &with(request, len)).is_ok());
    }
}

#[test]
fn stateless_request_brings_key_and_parameters() {
    // The fields of a cipher request: algorithm, key length, direction; lengths; padding to 72; its type.
    let mut fields = words(&[3, 16, 1, 16, 32, 32]);
    fields.resize(72, 0);
    fields.extend(words(&[1]));
    let mut request = words(&[0, 0, 9, 0, 0, 0]);
    request.extend(fields);
    for (byte, len) in [(1, 16), (2, 16), (3, 32)] {
        request.extend(vec![byte; len]);
    }
    let parsed = data(STATELESS, &request, 32).expect("a request");
    let RequestMode::Stateless(Parameters::Cipher(cipher)) = parsed.mode else {
        panic!("{parsed:?}");
    };
    assert_eq!((cipher.key, cipher.direction), (&[1; 16][..], Direction::Encrypt));
    let DataOperation::Cipher { iv, source, .. } = parsed.operation else {
        panic!("no cipher");
    };
    assert_eq!((iv, source), (&[2; 16][..], &[3; 32][..]));
    // Without the feature the same request needs a session.
    let revision_1 = RequestFormat::new(feature::REVISION_1);
    assert_eq!(data(revision_1, &request, 32), Err(Status::Err));
    // A stateless feature without revision 1 has no effect.
    let alone = RequestFormat::new(feature::stateless(CryptoService::Cipher));
    assert!(!alone.stateless(CryptoService::Cipher));
}

#[test]
fn session_of_revision_1_has_fields_of_their_own_length() {
    let mut request = words(&[0x102, 0, 0, 0, 4, 32]);
    let created = control(RequestFormat::new(feature::REVISION_1), &request);
    let expected = HashOrMac::Hash { algorithm: HashAlgorithm::Sha256, len: 32 };
    assert_eq!(created, Ok(SessionCommand::Create(Parameters::HashOrMac(expected))));
    assert_eq!(control(LEGACY, &request), Err(Status::Err));
    request.resize(72, 0);
    assert!(control(LEGACY, &request).is_ok());
}
