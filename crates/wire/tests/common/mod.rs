// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Helpers of several tests: one message of every shape, and comparison field by field (the messages have no
//! `PartialEq`, because they may hold secrets).
#![allow(dead_code, reason = "each test binary uses its part")]

use std::time::Duration;

use millrace_operation::{
    BackendKind, Hash, JobError, JobId, KeyError, KeyInfo, KeyType, MlDsaInput, Operation,
    OperationKind, OperationSet, Output, PrivateKey,
};
use millrace_wire::*;
use millrace_wire::{Decoder, EdgeCounter, EdgeReport, Message, WireError};
use zeroize::Zeroizing;

/// The example key of RFC 8410 section 10.3.
pub(crate) const PKCS8: [u8; 48] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
    0xd4, 0xee, 0x72, 0xdb, 0xf9, 0x13, 0x58, 0x4a, 0xd5, 0xb6, 0xd8, 0xf1, 0xf7, 0x69, 0xf8, 0xad,
    0x3a, 0xfe, 0x7c, 0x28, 0xcb, 0xf1, 0xd4, 0xfb, 0xe0, 0x97, 0xa8, 0x8f, 0x44, 0x75, 0x58, 0x42,
];

/// The public half of the same, from section 10.1.
pub(crate) const SPKI: [u8; 44] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00, 0x19, 0xbf, 0x44, 0x09,
    0x69, 0x84, 0xcd, 0xfe, 0x85, 0x41, 0xba, 0xc1, 0x67, 0xdc, 0x3b, 0x96, 0xc8, 0x50, 0x86, 0xaa,
    0x30, 0xb6, 0xb6, 0xcb, 0x0c, 0x5c, 0x38, 0xad, 0x70, 0x31, 0x66, 0xe1,
];

pub(crate) fn counting<const N: usize>() -> [u8; N] {
    std::array::from_fn(|i| u8::try_from(i % 256).unwrap())
}

pub(crate) fn job(id: JobId, operation: Operation, input: &[u8]) -> SubmittedJob {
    SubmittedJob {
        id,
        key: 7,
        budget: Duration::from_millis(250),
        operation,
        input: input.to_vec(),
    }
}

pub(crate) fn completion(id: JobId, result: Result<&[u8], JobError>) -> JobCompletion {
    let served = result.is_ok();
    JobCompletion {
        id,
        result: result.map(|output| Output::new(output.to_vec())),
        served_by: served.then_some(BackendKind::Simd),
        queue_time: Duration::from_nanos(12_345),
        service_time: Duration::from_nanos(if served { 678_901 } else { 0 }),
    }
}

/// Every operation once, in the order of the codes.
pub(crate) fn every_operation() -> Vec<Operation> {
    let hash = Hash::Sha256;
    let all = vec![
        Operation::RsaPkcs1Sign { hash: Hash::Md5Sha1 },
        Operation::RsaPssSign { hash, mgf_hash: Hash::Sha384, salt_len: 0x0102 },
        Operation::RsaOaepDecrypt { hash, mgf_hash: Hash::Sha1, label: b"label".to_vec() },
        Operation::RsaPkcs1Decrypt,
        Operation::RsaTlsPremaster { client_version: 0x0303 },
        Operation::RsaRaw,
        Operation::EcdsaSign { hash },
        Operation::Ecdh,
        Operation::X25519,
        Operation::Ed25519Sign,
        Operation::DhDerive,
        Operation::DsaSign { hash: Hash::Sha224 },
        Operation::MlDsaSign { input: MlDsaInput::Message },
    ];
    assert!(all.iter().map(Operation::kind).eq(OperationKind::ALL.iter().copied()));
    all
}

/// Messages of a client by their names in the specification.
pub(crate) fn client_messages() -> Vec<(&'static str, ClientMessage)> {
    let every = every_operation().into_iter().zip(1..).map(|(o, id)| job(id, o, &[0xaa, 0xbb]));
    vec![
        (
            "hello",
            ClientMessage::Hello(Hello {
                min_version: 1,
                max_version: 1,
                features: 0,
                agent: "millrace-client 0.1.0".to_owned(),
            }),
        ),
        (
            "open-key-by-name",
            ClientMessage::OpenKey { request: 1, selector: KeySelector::Name("www".to_owned()) },
        ),
        (
            "open-key-by-spki",
            ClientMessage::OpenKey {
                request: 2,
                selector: KeySelector::SpkiSha256(counting::<32>()),
            },
        ),
        (
            "import-key",
            ClientMessage::ImportKey {
                request: 3,
                key: PrivateKey::from_pkcs8(Zeroizing::new(PKCS8.to_vec())),
            },
        ),
        ("close-key", ClientMessage::CloseKey { handle: 7 }),
        (
            "submit",
            ClientMessage::Submit(vec![
                job(0x1001, Operation::EcdsaSign { hash: Hash::Sha256 }, &counting::<32>()),
                SubmittedJob { budget: Duration::ZERO, ..job(0x1002, Operation::Ed25519Sign, b"") },
            ]),
        ),
        ("submit-every-operation", ClientMessage::Submit(every.collect())),
        ("cancel", ClientMessage::Cancel { job: 0x1002 }),
        ("ping", ClientMessage::Ping { token: 0x0102_0304_0506_0708 }),
        (
            "report",
            ClientMessage::Report(report(&[
                (EdgeCounter::Pooled, 1000),
                (EdgeCounter::Paused, 1010),
                (EdgeCounter::FallbackTimedOut, 10),
            ])),
        ),
        ("describe", ClientMessage::Describe),
    ]
}

/// A report with these numbers.
pub(crate) fn report(counts: &[(EdgeCounter, u64)]) -> Box<EdgeReport> {
    let mut report = Box::<EdgeReport>::default();
    for (counter, count) in counts {
        report.set(*counter, *count);
    }
    report
}

/// Messages of a node by their names in the specification.
pub(crate) fn node_messages() -> Vec<(&'static str, NodeMessage)> {
    vec![
        (
            "welcome",
            NodeMessage::Welcome(Welcome {
                version: 1,
                features: 0,
                node: "node-1".to_owned(),
                max_in_flight: 4096,
                max_keys: 1024,
            }),
        ),
        (
            "key-opened",
            NodeMessage::KeyOpened {
                request: 1,
                handle: 7,
                info: KeyInfo { key_type: KeyType::Ed25519, spki: SPKI.to_vec() },
                operations: OperationSet::from_iter([OperationKind::Ed25519Sign]),
                hashes: Hash::ALL.iter().copied().collect(),
            },
        ),
        ("key-refused", NodeMessage::KeyRefused { request: 2, reason: KeyRefusal::NoSuchKey }),
        (
            "key-refused-key-error",
            NodeMessage::KeyRefused { request: 3, reason: KeyRefusal::Key(KeyError::Inconsistent) },
        ),
        (
            "complete",
            NodeMessage::Complete(vec![
                completion(0x1002, Ok(&counting::<64>())),
                completion(0x1001, Err(JobError::Busy)),
            ]),
        ),
        ("pong", NodeMessage::Pong { token: 0x0102_0304_0506_0708 }),
        ("drain", NodeMessage::Drain),
        ("fault", NodeMessage::Fault(Fault::Protocol)),
        (
            "description",
            NodeMessage::Description {
                software: "millrace/0.1.0".to_owned(),
                edges: report(&[(EdgeCounter::Pooled, 16)]),
            },
        ),
        ("retry-after", NodeMessage::RetryAfter { handle: 7, wait: Duration::from_millis(250) }),
    ]
}

pub(crate) fn encoded<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

/// Decodes a stream that is given in pieces of at most `piece` bytes.
pub(crate) fn decode_in_pieces<M: Message>(
    mut bytes: &[u8],
    piece: usize,
) -> Result<Vec<M>, WireError> {
    let mut decoder = Decoder::<M>::new();
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let space = decoder.space();
        assert!(space.len() >= MIN_SPACE);
        let count = bytes.len().min(piece).min(space.len());
        space[..count].copy_from_slice(&bytes[..count]);
        decoder.filled(count);
        bytes = &bytes[count..];
        while let Some(message) = decoder.next()? {
            messages.push(message);
        }
    }
    Ok(messages)
}

pub(crate) fn assert_same_client(a: &ClientMessage, b: &ClientMessage) {
    use ClientMessage::*;
    match (a, b) {
        (Hello(a), Hello(b)) => assert_eq!(a, b),
        (OpenKey { request: r1, selector: s1 }, OpenKey { request: r2, selector: s2 }) => {
            assert_eq!((r1, s1), (r2, s2))
        }
        (ImportKey { request: r1, key: k1 }, ImportKey { request: r2, key: k2 }) => {
            assert_eq!((r1, k1.dangerous_pkcs8()), (r2, k2.dangerous_pkcs8()));
        }
        (CloseKey { handle: a }, CloseKey { handle: b }) => assert_eq!(a, b),
        (Submit(a), Submit(b)) => assert_same_jobs(a, b),
        (Cancel { job: a }, Cancel { job: b }) => assert_eq!(a, b),
        (Ping { token: a }, Ping { token: b }) => assert_eq!(a, b),
        (Report(a), Report(b)) => assert_eq!(a, b),
        (Describe, Describe) => {}
        _ => panic!("{a:?} is not {b:?}"),
    }
}

pub(crate) fn assert_same_jobs(a: &[SubmittedJob], b: &[SubmittedJob]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let SubmittedJob { id, key, budget, operation, input } = a;
        assert_eq!((*id, *key, *budget), (b.id, b.key, b.budget));
        assert_eq!((operation, input), (&b.operation, &b.input));
    }
}

pub(crate) fn assert_same_node(a: &NodeMessage, b: &NodeMessage) {
    use NodeMessage::*;
    match (a, b) {
        (Welcome(a), Welcome(b)) => assert_eq!(a, b),
        (
            KeyOpened { request: r1, handle: h1, info: i1, operations: o1, hashes: d1 },
            KeyOpened { request: r2, handle: h2, info: i2, operations: o2, hashes: d2 },
        ) => assert_eq!((r1, h1, i1, o1, d1), (r2, h2, i2, o2, d2)),
        (KeyRefused { request: r1, reason: w1 }, KeyRefused { request: r2, reason: w2 }) => {
            assert_eq!((r1, w1), (r2, w2))
        }
        (Complete(a), Complete(b)) => assert_same_completions(a, b),
        (Pong { token: a }, Pong { token: b }) => assert_eq!(a, b),
        (Drain, Drain) => {}
        (Fault(a), Fault(b)) => assert_eq!(a, b),
        (Description { software, edges }, Description { software: other, edges: counts }) => {
            assert_eq!((software, edges), (other, counts))
        }
        (RetryAfter { handle: h1, wait: w1 }, RetryAfter { handle: h2, wait: w2 }) => {
            assert_eq!((h1, w1), (h2, w2))
        }
        _ => panic!("{a:?} is not {b:?}"),
    }
}

pub(crate) fn assert_same_completions(a: &[JobCompletion], b: &[JobCompletion]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let JobCompletion { id, result, served_by, queue_time, service_time } = a;
        assert_eq!((*id, *served_by), (b.id, b.served_by));
        assert_eq!((*queue_time, *service_time), (b.queue_time, b.service_time));
        assert_eq!(
            result.as_ref().map(|output| output.as_slice()),
            b.result.as_ref().map(|output| output.as_slice())
        );
    }
}
