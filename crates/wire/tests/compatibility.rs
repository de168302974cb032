// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Frames of earlier releases keep their meaning, and a peer of an earlier release receives only codes that
//! it knows.

use std::collections::BTreeMap;

use millrace_operation::{
    Hash, HashAlgorithms, JobError, KeyError, KeyInfo, KeyKind, OperationKind, OperationSet,
};
use millrace_wire::*;

/// The frames of a release by direction and name of the message.
fn frames(release: &'static str) -> BTreeMap<&'static str, Vec<u8>> {
    let lines = release.lines().filter(|line| !line.starts_with('#'));
    let frame = |line: &'static str| {
        let (name, hex) = line.split_once(' ').expect("a name and a frame");
        let digit = |index| u8::from_str_radix(&hex[index..index + 2], 16).expect("digits");
        (name, (0..hex.len()).step_by(2).map(digit).collect())
    };
    lines.map(frame).collect()
}

fn first_release() -> BTreeMap<&'static str, Vec<u8>> {
    frames(include_str!("fixtures/frames-0.1.txt"))
}

fn decoded<M: Message>(frame: &[u8]) -> M {
    M::decode(frame[4], &frame[HEADER_LEN..]).expect("a frame of an earlier release")
}

fn encoded(message: &impl Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

#[test]
fn frames_of_the_first_release_decode_and_encode_to_themselves() {
    let frames = first_release();
    assert_eq!(frames.len(), 18);
    for (name, frame) in frames {
        let again = match name.split_once('/') {
            Some(("client", _)) => encoded(&decoded::<ClientMessage>(&frame)),
            _ => encoded(&decoded::<NodeMessage>(&frame)),
        };
        assert_eq!(again, frame, "{name}");
    }
}

#[test]
fn codes_of_the_first_release_keep_their_meaning() {
    let frames = first_release();
    let ClientMessage::Submit(jobs) = decoded(&frames["client/submit-every-operation"]) else {
        panic!("not a submit")
    };
    let kinds: Vec<_> = jobs.iter().map(|job| job.operation.kind().name()).collect();
    assert_eq!(
        kinds,
        [
            "rsa-pkcs1-sign",
            "rsa-pss-sign",
            "rsa-oaep-decrypt",
            "rsa-pkcs1-decrypt",
            "rsa-tls-premaster",
            "rsa-raw",
            "ecdsa-sign",
            "ecdh-derive",
            "x25519-derive",
            "ed25519-sign",
            "dh-derive",
            "dsa-sign",
        ]
    );
    let NodeMessage::KeyOpened { info, operations, hashes, .. } =
        decoded(&frames["node/key-opened"])
    else {
        panic!("not an opened key")
    };
    assert_eq!(info.key_type.to_string(), "ed25519");
    assert!(operations.iter().eq([OperationKind::Ed25519Sign]));
    assert_eq!(hashes.iter().count(), 7);
    let NodeMessage::KeyRefused { reason, .. } = decoded(&frames["node/key-refused-key-error"])
    else {
        panic!("not a refusal")
    };
    assert_eq!(reason, KeyRefusal::Key(KeyError::Inconsistent));
    let NodeMessage::Complete(completions) = decoded(&frames["node/complete"]) else {
        panic!("not completions")
    };
    assert!(matches!(completions[1].result, Err(JobError::Busy)));
}

#[test]
fn old_client_receives_only_codes_that_it_knows() {
    let ClientMessage::Hello(hello) = decoded(&first_release()["client/hello"]) else {
        panic!("not a hello")
    };
    let (version, features) = negotiate_version(&hello).expect("a common version");
    assert_eq!((version, features), (1, 0));
    let vocabulary = Vocabulary::new(features);
    assert!(!vocabulary.has_retry_after(), "a message that it does not know");
    for kind in KeyKind::ALL.iter().copied().filter(|kind| vocabulary.has_key(*kind)) {
        let all: OperationSet = OperationKind::of(kind).collect();
        let message = NodeMessage::KeyOpened {
            request: 1,
            handle: 7,
            info: KeyInfo { key_type: kind.extremes()[1], spki: vec![0x30; 44] },
            operations: vocabulary.operations(all),
            hashes: vocabulary.hashes(Hash::ALL.iter().copied().collect::<HashAlgorithms>()),
        };
        let frame = encoded(&message);
        // The first release knew key types 1 to 8, operations 1 to 12, hashes 1 to 7.
        assert!((1..=8).contains(&frame[HEADER_LEN + 8]), "{}", kind.name());
        let tail = |from_end: usize| {
            let bytes = &frame[frame.len() - from_end..][..4];
            u32::from_le_bytes(bytes.try_into().expect("four bytes"))
        };
        assert_eq!((tail(8) & !0x1ffe, tail(4) & !0xfe), (0, 0), "{}", kind.name());
    }
}

#[test]
fn new_client_of_an_old_node_sends_no_new_operations() {
    let hello = Hello { min_version: 1, max_version: 1, features: FEATURES, agent: String::new() };
    // A node of the first release ignores the bits that it does not know.
    let NodeMessage::Welcome(mut welcome) = decoded(&first_release()["node/welcome"]) else {
        panic!("not a welcome")
    };
    welcome.features = hello.features & FEATURE_REPORTS;
    accept_version(&hello, &welcome).expect("the answer of an old node");
    let vocabulary = Vocabulary::new(welcome.features);
    let known = OperationKind::ALL.iter().copied().collect::<OperationSet>();
    assert_eq!(vocabulary.operations(known).bits(), 0x1ffe);
}
