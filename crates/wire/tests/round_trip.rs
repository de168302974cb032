// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Encoded messages decode to equal messages, and decoded bytes encode to the same bytes.

mod common;

use std::time::Duration;

use common::*;
use millrace_operation::{
    BackendKind, Hash, HashAlgorithms, JobError, KeyError, KeyInfo, KeyKind, KeyType,
    MAX_KEY_NAME_LEN, MAX_LABEL_LEN, MAX_PRIVATE_KEY_LEN, MlDsaInput, Operation, OperationKind,
    OperationSet, Output, PrivateKey,
};
use millrace_wire::*;
use millrace_wire::{
    EdgeCounter, HEADER_LEN, MAX_FRAME_LEN, MAX_JOBS_PER_FRAME, MAX_NAME_LEN, MAX_SPKI_LEN, Message,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use zeroize::Zeroizing;

fn text(limit: usize) -> impl Strategy<Value = String> {
    vec(any::<char>().prop_filter("no control character", |c| !c.is_control()), 0..limit).prop_map(
        move |chars| {
            let mut text = String::new();
            for c in chars {
                if text.len() + c.len_utf8() <= limit {
                    text.push(c);
                }
            }
            text
        },
    )
}

fn hash() -> impl Strategy<Value = Hash> {
    select(Hash::ALL)
}

fn operation() -> impl Strategy<Value = Operation> {
    let label = vec(any::<u8>(), 0..=MAX_LABEL_LEN);
    (select(OperationKind::ALL), hash(), hash(), any::<u16>(), label).prop_map(
        |(kind, hash, mgf_hash, number, label)| match kind {
            OperationKind::RsaPkcs1Sign => Operation::RsaPkcs1Sign { hash },
            OperationKind::RsaPssSign => Operation::RsaPssSign { hash, mgf_hash, salt_len: number },
            OperationKind::RsaOaepDecrypt => Operation::RsaOaepDecrypt { hash, mgf_hash, label },
            OperationKind::RsaPkcs1Decrypt => Operation::RsaPkcs1Decrypt,
            OperationKind::RsaTlsPremaster => Operation::RsaTlsPremaster { client_version: number },
            OperationKind::RsaRaw => Operation::RsaRaw,
            OperationKind::EcdsaSign => Operation::EcdsaSign { hash },
            OperationKind::Ecdh => Operation::Ecdh,
            OperationKind::X25519 => Operation::X25519,
            OperationKind::Ed25519Sign => Operation::Ed25519Sign,
            OperationKind::DhDerive => Operation::DhDerive,
            OperationKind::DsaSign => Operation::DsaSign { hash },
            OperationKind::MlDsaSign => {
                Operation::MlDsaSign { input: MlDsaInput::ALL[usize::from(number) % 2] }
            }
        },
    )
}

/// Jobs with distinct ids in any order.
fn jobs() -> impl Strategy<Value = Vec<SubmittedJob>> {
    let input = vec(any::<u8>(), 0..600);
    let job = (any::<u64>(), any::<u32>(), any::<u32>(), operation(), input);
    vec(job, 1..40).prop_map(|jobs| {
        let mut ids = std::collections::HashSet::new();
        jobs.into_iter()
            .filter(|(id, ..)| ids.insert(*id))
            .map(|(id, key, budget, operation, input)| SubmittedJob {
                id,
                key,
                budget: Duration::from_micros(budget.into()),
                operation,
                input,
            })
            .collect()
    })
}

fn completions() -> impl Strategy<Value = Vec<JobCompletion>> {
    let result = prop_oneof![
        3 => vec(any::<u8>(), 0..1025).prop_map(|output| Ok(Output::new(output))),
        1 => select(JobError::ALL).prop_map(Err),
    ];
    let server = proptest::option::of(select(BackendKind::ALL));
    let completion = (any::<u64>(), result, server, any::<u32>(), any::<u32>());
    vec(completion, 1..40).prop_map(|completions| {
        let mut ids = std::collections::HashSet::new();
        completions
            .into_iter()
            .filter(|(id, ..)| ids.insert(*id))
            .map(|(id, result, served_by, queue, service)| JobCompletion {
                id,
                result,
                served_by,
                queue_time: Duration::from_nanos(queue.into()),
                service_time: Duration::from_nanos(service.into()),
            })
            .collect()
    })
}

fn client_message() -> impl Strategy<Value = ClientMessage> {
    let selector = prop_oneof![
        text(MAX_KEY_NAME_LEN).prop_map(KeySelector::Name),
        any::<[u8; 32]>().prop_map(KeySelector::SpkiSha256),
    ];
    prop_oneof![
        (any::<u16>(), any::<u16>(), any::<u64>(), text(MAX_NAME_LEN)).prop_map(
            |(a, b, features, agent)| ClientMessage::Hello(Hello {
                min_version: a.min(b),
                max_version: a.max(b),
                features,
                agent,
            })
        ),
        (any::<u32>(), selector)
            .prop_map(|(request, selector)| ClientMessage::OpenKey { request, selector }),
        (any::<u32>(), vec(any::<u8>(), 0..=MAX_PRIVATE_KEY_LEN)).prop_map(|(request, der)| {
            let key = PrivateKey::from_pkcs8(Zeroizing::new(der));
            ClientMessage::ImportKey { request, key }
        }),
        any::<u32>().prop_map(|handle| ClientMessage::CloseKey { handle }),
        jobs().prop_map(ClientMessage::Submit),
        any::<u64>().prop_map(|job| ClientMessage::Cancel { job }),
        any::<u64>().prop_map(|token| ClientMessage::Ping { token }),
        vec(any::<u64>(), EdgeCounter::ALL.len()).prop_map(|counts| {
            let counts: Vec<_> = EdgeCounter::ALL.iter().copied().zip(counts).collect();
            ClientMessage::Report(report(&counts))
        }),
    ]
}

fn key_type() -> impl Strategy<Value = KeyType> {
    (select(KeyKind::ALL), any::<u16>()).prop_map(|(kind, number)| {
        let (smallest, largest) = kind.sizes().unwrap_or((0, 0));
        let bits = smallest + number % (largest - smallest + 1);
        kind.with_bits(bits).expect("within the bounds of the kind")
    })
}

fn node_message() -> impl Strategy<Value = NodeMessage> {
    let refusal = prop_oneof![
        Just(KeyRefusal::NoSuchKey),
        select(KeyError::ALL).prop_map(KeyRefusal::Key),
        Just(KeyRefusal::TooManyKeys),
        Just(KeyRefusal::Draining),
        Just(KeyRefusal::ImportDisabled),
    ];
    let spki = vec(any::<u8>(), 0..=MAX_SPKI_LEN);
    prop_oneof![
        (any::<u16>(), any::<u64>(), text(MAX_NAME_LEN), any::<u32>(), any::<u32>()).prop_map(
            |(version, features, node, max_in_flight, max_keys)| {
                NodeMessage::Welcome(Welcome { version, features, node, max_in_flight, max_keys })
            }
        ),
        (any::<u32>(), any::<u32>(), key_type(), spki, any::<u32>(), any::<u32>()).prop_map(
            |(request, handle, key_type, spki, operations, hashes)| {
                NodeMessage::KeyOpened {
                    request,
                    handle,
                    info: KeyInfo { key_type, spki },
                    operations: OperationSet::from_bits(operations),
                    hashes: HashAlgorithms::from_bits(hashes),
                }
            }
        ),
        (any::<u32>(), refusal)
            .prop_map(|(request, reason)| NodeMessage::KeyRefused { request, reason }),
        completions().prop_map(NodeMessage::Complete),
        any::<u64>().prop_map(|token| NodeMessage::Pong { token }),
        Just(()).prop_map(|()| NodeMessage::Drain),
        select(Fault::ALL).prop_map(NodeMessage::Fault),
    ]
}

/// Kinds and payloads that are likely to decode: mutations of valid ones.
fn mutated<M: Message>(messages: Vec<M>) -> impl Strategy<Value = (u8, Vec<u8>)> {
    let frames: Vec<Vec<u8>> = messages.iter().map(encoded).collect();
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..3_u8);
    (select(frames), vec(change, 0..4)).prop_map(|(frame, changes)| {
        let kind = frame[4];
        let mut payload = frame[HEADER_LEN..].to_vec();
        for (index, byte, how) in changes {
            let at = index.index(payload.len() + 1);
            match how {
                0 if at < payload.len() => payload[at] = byte,
                1 if at < payload.len() => {
                    payload.remove(at);
                }
                _ => payload.insert(at, byte),
            }
        }
        (kind, payload)
    })
}

/// Checks that a payload, if it decodes, encodes to the same bytes.
fn assert_canonical<M: Message>(kind: u8, payload: &[u8]) {
    if let Ok(message) = M::decode(kind, payload) {
        let frame = encoded(&message);
        assert_eq!(frame[4], kind);
        assert_eq!(&frame[HEADER_LEN..], payload);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn client_messages_survive(messages in vec(client_message(), 1..6), piece in 1..20_000_usize) {
        let stream: Vec<u8> = messages.iter().flat_map(encoded).collect();
        let decoded = decode_in_pieces::<ClientMessage>(&stream, piece).unwrap();
        prop_assert_eq!(decoded.len(), messages.len());
        for (a, b) in messages.iter().zip(&decoded) {
            assert_same_client(a, b);
        }
        let again: Vec<u8> = decoded.iter().flat_map(encoded).collect();
        prop_assert!(again == stream);
    }

    #[test]
    fn node_messages_survive(messages in vec(node_message(), 1..6), piece in 1..20_000_usize) {
        let stream: Vec<u8> = messages.iter().flat_map(encoded).collect();
        let decoded = decode_in_pieces::<NodeMessage>(&stream, piece).unwrap();
        prop_assert_eq!(decoded.len(), messages.len());
        for (a, b) in messages.iter().zip(&decoded) {
            assert_same_node(a, b);
        }
        let again: Vec<u8> = decoded.iter().flat_map(encoded).collect();
        prop_assert!(again == stream);
    }

    #[test]
    fn nearly_right_payloads_are_canonical_or_refused(
        (kind, payload) in mutated(client_messages().into_iter().map(|(_, m)| m).collect()),
        (node_kind, node_payload) in mutated(node_messages().into_iter().map(|(_, m)| m).collect()),
    ) {
        assert_canonical::<ClientMessage>(kind, &payload);
        assert_canonical::<NodeMessage>(node_kind, &node_payload);
    }

    #[test]
    fn arbitrary_streams_never_panic_and_stay_bounded(
        mut stream in vec(any::<u8>(), 0..9000),
        header in any::<bool>(),
        kind in any::<u8>(),
        piece in 1..5000_usize,
    ) {
        if header && stream.len() >= HEADER_LEN {
            let length = u32::try_from(stream.len() - HEADER_LEN).unwrap();
            stream[..4].copy_from_slice(&length.to_le_bytes());
            stream[4] = (kind % 8) | (kind & 0x80);
            stream[5..8].fill(0);
        }
        let _ = decode_in_pieces::<ClientMessage>(&stream, piece);
        let _ = decode_in_pieces::<NodeMessage>(&stream, piece);
    }
}

#[test]
fn batch_longer_than_a_frame_is_split_in_order() {
    let long = vec![0x55; 4000];
    let jobs: Vec<_> = (0..1000)
        .map(|id| {
            let input = if id % 3 == 0 { long.as_slice() } else { &long[..32] };
            job(id, Operation::Ed25519Sign, input)
        })
        .collect();
    let stream = encoded(&ClientMessage::Submit(jobs));
    let mut ids = Vec::new();
    for message in decode_in_pieces::<ClientMessage>(&stream, usize::MAX).unwrap() {
        let ClientMessage::Submit(jobs) = message else { panic!("only submits") };
        assert!(jobs.len() <= MAX_JOBS_PER_FRAME);
        ids.extend(jobs.iter().map(|job| job.id));
    }
    assert!(ids.into_iter().eq(0..1000));

    let completions: Vec<_> = (0..1000).rev().map(|id| completion(id, Ok(&long[..500]))).collect();
    let stream = encoded(&NodeMessage::Complete(completions));
    let mut ids = Vec::new();
    for message in decode_in_pieces::<NodeMessage>(&stream, 1000).unwrap() {
        assert!(encoded(&message).len() <= MAX_FRAME_LEN);
        let NodeMessage::Complete(completions) = message else { panic!("only completes") };
        ids.extend(completions.iter().map(|completion| completion.id));
    }
    assert!(ids.into_iter().eq((0..1000).rev()));
}

#[test]
fn empty_batch_is_not_sent() {
    assert!(encoded(&ClientMessage::Submit(Vec::new())).is_empty());
    assert!(encoded(&NodeMessage::Complete(Vec::new())).is_empty());
}
