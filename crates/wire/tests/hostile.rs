// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Bytes of a broken or hostile peer: the decoder refuses each with the matching error.

mod common;

use std::time::Duration;

use common::*;
use millrace_operation::{
    Hash, HashAlgorithms, JobError, KeyInfo, KeyType, MAX_INPUT_LEN, MAX_KEY_NAME_LEN,
    MAX_LABEL_LEN, MAX_PRIVATE_KEY_LEN, Operation, OperationSet, PrivateKey,
};
use millrace_wire::*;
use millrace_wire::{CompleteWriter, SubmitWriter, parse_header};
use millrace_wire::{
    Decoder, EdgeCounter, HEADER_LEN, MAX_BUFFER, MAX_FRAME_LEN, MAX_JOBS_PER_FRAME, MAX_NAME_LEN,
    MAX_OUTPUT_LEN, MAX_PAYLOAD_LEN, MAX_SPKI_LEN, MIN_SPACE, Message, Peer, WireError,
};
use zeroize::Zeroizing;

fn client(bytes: &[u8]) -> Result<Vec<ClientMessage>, WireError> {
    decode_in_pieces(bytes, usize::MAX)
}

fn node(bytes: &[u8]) -> Result<Vec<NodeMessage>, WireError> {
    decode_in_pieces(bytes, usize::MAX)
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    frame.extend_from_slice(&[kind, 0, 0, 0]);
    frame.extend_from_slice(payload);
    frame
}

fn client_frames() -> Vec<Vec<u8>> {
    client_messages().iter().map(|(_, message)| encoded(message)).collect()
}

fn node_frames() -> Vec<Vec<u8>> {
    node_messages().iter().map(|(_, message)| encoded(message)).collect()
}

#[test]
fn truncated_frame_yields_no_message() {
    for frame in client_frames() {
        for end in 0..frame.len() {
            assert!(client(&frame[..end]).unwrap().is_empty());
        }
    }
    for frame in node_frames() {
        for end in 0..frame.len() {
            assert!(node(&frame[..end]).unwrap().is_empty());
        }
    }
}

#[test]
fn payload_truncated_at_any_byte_is_an_error() {
    fn check<M: Message + std::fmt::Debug>(frames: Vec<Vec<u8>>) {
        for frame in frames {
            let (kind, payload) = (frame[4], &frame[HEADER_LEN..]);
            for end in 0..payload.len() {
                let error = M::decode(kind, &payload[..end]).unwrap_err();
                assert!(matches!(error, WireError::Truncated(_)), "{error}");
                assert_eq!(error.fault(), Fault::Protocol);
            }
            let mut longer = payload.to_vec();
            longer.push(0);
            assert_eq!(M::decode(kind, &longer).unwrap_err(), WireError::Trailing(1));
        }
    }
    check::<ClientMessage>(client_frames());
    check::<NodeMessage>(node_frames());
}

#[test]
fn stream_cut_at_any_byte_decodes_to_the_same_messages() {
    let stream: Vec<u8> = client_frames().concat();
    let messages = client_messages();
    for cut in 0..=stream.len() {
        let mut decoder = Decoder::<ClientMessage>::new();
        let mut decoded = Vec::new();
        for part in [&stream[..cut], &stream[cut..]] {
            decoder.space()[..part.len()].copy_from_slice(part);
            decoder.filled(part.len());
            while let Some(message) = decoder.next().unwrap() {
                decoded.push(message);
            }
        }
        assert_eq!(decoder.buffered(), 0);
        assert_eq!(decoded.len(), messages.len());
        for ((_, a), b) in messages.iter().zip(&decoded) {
            assert_same_client(a, b);
        }
    }
    let stream: Vec<u8> = node_frames().concat();
    let decoded = decode_in_pieces::<NodeMessage>(&stream, 1).unwrap();
    for ((_, a), b) in node_messages().iter().zip(&decoded) {
        assert_same_node(a, b);
    }
}

#[test]
fn other_protocol_is_recognised_by_its_first_bytes() {
    let tls: &[u8] = &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
    let alert: &[u8] = &[0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x28, 0x00];
    assert_eq!(client(tls).unwrap_err(), WireError::NotMillrace(Peer::Tls));
    assert_eq!(node(alert).unwrap_err(), WireError::NotMillrace(Peer::Tls));
    for text in ["GET / HTTP/1.1\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 400 Bad Request\r\n"] {
        let error = client(text.as_bytes()).unwrap_err();
        assert_eq!(error, WireError::NotMillrace(Peer::Text));
        assert_eq!(node(text.as_bytes()).unwrap_err(), error);
        assert_eq!(error.fault(), Fault::Protocol);
    }
}

#[test]
fn hello_without_magic_number_is_refused() {
    let mut hello = encoded(&client_messages()[0].1);
    hello[HEADER_LEN] ^= 1;
    assert_eq!(client(&hello).unwrap_err(), WireError::Magic);
    let mut welcome = encoded(&node_messages()[0].1);
    welcome[HEADER_LEN + 7] ^= 1;
    assert_eq!(node(&welcome).unwrap_err(), WireError::Magic);
}

#[test]
fn bad_header_is_refused_before_its_payload_arrives() {
    let header = |length: u32, kind, flags, reserved| {
        let [a, b, c, d] = length.to_le_bytes();
        parse_header::<ClientMessage>([a, b, c, d, kind, flags, reserved, 0]).unwrap_err()
    };
    assert_eq!(header(8, 0x00, 0, 0), WireError::UnknownKind(0x00));
    assert_eq!(header(8, 0x0a, 0, 0), WireError::UnknownKind(0x0a));
    assert_eq!(header(8, 0xff, 0, 0), WireError::UnknownKind(0xff));
    assert_eq!(header(8, 0x81, 0, 0), WireError::WrongDirection(0x81));
    assert_eq!(header(8, 0x07, 0x80, 0), WireError::Flags(0x80));
    assert_eq!(header(8, 0x07, 0, 1), WireError::Reserved(1));
    let error = header(9, 0x07, 0, 0);
    assert_eq!(error, WireError::TooLarge { kind: 0x07, length: 9, limit: 8 });
    assert_eq!(error.fault(), Fault::TooLarge);
    assert!(parse_header::<NodeMessage>([0, 0, 0, 0, 0x07, 0, 0, 0]).is_err());

    let limit = u32::try_from(MAX_PAYLOAD_LEN).unwrap();
    let [a, b, c, d] = limit.to_le_bytes();
    let parsed = parse_header::<ClientMessage>([a, b, c, d, 0x05, 0, 0, 0]);
    assert_eq!(parsed, Ok((0x05, MAX_PAYLOAD_LEN)));
    assert!(matches!(header(limit + 1, 0x05, 0, 0), WireError::TooLarge { .. }));
}

#[test]
fn decoder_repeats_its_first_error() {
    let mut stream = frame(0x07, &[0; 8]);
    stream.extend(frame(0x55, &[]));
    stream.extend(frame(0x07, &[0; 8]));
    let mut decoder = Decoder::<ClientMessage>::new();
    decoder.space()[..stream.len()].copy_from_slice(&stream);
    decoder.filled(stream.len());
    assert!(matches!(decoder.next(), Ok(Some(ClientMessage::Ping { token: 0 }))));
    for _ in 0..3 {
        assert_eq!(decoder.next().unwrap_err(), WireError::UnknownKind(0x55));
    }
}

#[test]
fn decoder_repeats_a_payload_error_although_the_next_frame_is_good() {
    let stream = [frame(0x07, &[0; 7]), frame(0x07, &[0; 8])].concat();
    let mut decoder = Decoder::<ClientMessage>::new();
    decoder.space()[..stream.len()].copy_from_slice(&stream);
    decoder.filled(stream.len());
    for _ in 0..3 {
        assert_eq!(decoder.next().unwrap_err(), WireError::Truncated("token"));
    }
}

#[test]
fn other_protocol_is_recognised_only_at_the_first_frame() {
    let stream = [frame(0x07, &[0; 8]).as_slice(), b"GET / HTTP/1.1"].concat();
    assert_eq!(client(&stream).unwrap_err(), WireError::UnknownKind(b'/'));
}

#[test]
fn fields_at_their_bound_decode_and_one_above_are_refused() {
    // Texts at their bound, and with a length field one above it.
    let text = |kind: u8, before: &[u8], limit: usize, after: &[u8]| {
        let build = |length: usize| {
            let length_byte = u8::try_from(length).unwrap();
            [before, &[length_byte], &vec![b'x'; length], after].concat()
        };
        let decode = |payload: &[u8]| match kind {
            0x80.. => NodeMessage::decode(kind, payload).map(drop),
            _ => ClientMessage::decode(kind, payload).map(drop),
        };
        assert_eq!(decode(&build(limit)), Ok(()));
        let error = decode(&build(limit + 1)).unwrap_err();
        assert!(matches!(error, WireError::TooLong { .. }), "{error}");
    };
    let hello = encoded(&client_messages()[0].1);
    text(0x01, &hello[HEADER_LEN..HEADER_LEN + 20], MAX_NAME_LEN, &[]);
    text(0x02, &[0, 0, 0, 0, 1], MAX_KEY_NAME_LEN, &[]);
    let welcome = encoded(&node_messages()[0].1);
    text(0x81, &welcome[HEADER_LEN..HEADER_LEN + 18], MAX_NAME_LEN, &[0; 8]);

    // Byte strings.
    let import = |length: usize| {
        let prefix = u16::try_from(length).unwrap().to_le_bytes();
        let payload = [&[0; 4], prefix.as_slice(), &vec![0; length]].concat();
        ClientMessage::decode(0x03, &payload).map(drop)
    };
    assert_eq!(import(MAX_PRIVATE_KEY_LEN), Ok(()));
    assert!(matches!(import(MAX_PRIVATE_KEY_LEN + 1), Err(WireError::TooLong { .. })));

    let submit = |label: usize, input: usize| {
        let mut payload = vec![1, 0];
        payload.extend_from_slice(&[0; 16]);
        payload.extend_from_slice(&[0x03, 0x04, 0x04]);
        payload.extend_from_slice(&u16::try_from(label).unwrap().to_le_bytes());
        payload.resize(payload.len() + label, 0);
        payload.extend_from_slice(&u16::try_from(input).unwrap().to_le_bytes());
        payload.resize(payload.len() + input, 0);
        ClientMessage::decode(0x05, &payload).map(drop)
    };
    assert_eq!(submit(MAX_LABEL_LEN, MAX_INPUT_LEN), Ok(()));
    assert!(matches!(submit(MAX_LABEL_LEN + 1, 0), Err(WireError::TooLong { field: "label", .. })));
    assert!(matches!(submit(0, MAX_INPUT_LEN + 1), Err(WireError::TooLong { field: "input", .. })));

    let complete = |output: usize| {
        let mut payload = vec![1, 0];
        payload.extend_from_slice(&[0; 18]);
        payload.extend_from_slice(&u16::try_from(output).unwrap().to_le_bytes());
        payload.resize(payload.len() + output, 0);
        NodeMessage::decode(0x84, &payload).map(drop)
    };
    assert_eq!(complete(MAX_OUTPUT_LEN), Ok(()));
    assert!(matches!(complete(MAX_OUTPUT_LEN + 1), Err(WireError::TooLong { .. })));
}

#[test]
fn key_sizes_and_sets_out_of_range_are_refused() {
    let opened = |code: u8, bits: u16, spki: usize, operations: u32, hashes: u32| {
        let mut payload = vec![0; 8];
        payload.push(code);
        payload.extend_from_slice(&bits.to_le_bytes());
        payload.extend_from_slice(&u16::try_from(spki).unwrap().to_le_bytes());
        payload.resize(payload.len() + spki, 0);
        payload.extend_from_slice(&operations.to_le_bytes());
        payload.extend_from_slice(&hashes.to_le_bytes());
        NodeMessage::decode(0x82, &payload).map(drop)
    };
    for (code, bits) in [(1, 2048), (1, 8192), (2, 0), (5, 0), (7, 8192), (8, 3072)] {
        assert_eq!(opened(code, bits, 0, 0, 0), Ok(()));
    }
    for (code, bits) in [(1, 2047), (1, 8193), (1, 0), (2, 256), (7, 2047), (8, 3073)] {
        let error = WireError::OutOfRange { field: "key size", value: bits.into() };
        assert_eq!(opened(code, bits, 0, 0, 0), Err(error));
    }
    assert!(matches!(opened(0, 0, 0, 0, 0), Err(WireError::UnknownCode { .. })));
    assert!(matches!(opened(0x0c, 0, 0, 0, 0), Err(WireError::UnknownCode { .. })));
    assert_eq!(opened(2, 0, MAX_SPKI_LEN, 0x3ffe, 0xfe), Ok(()));
    assert!(matches!(opened(2, 0, MAX_SPKI_LEN + 1, 0, 0), Err(WireError::TooLong { .. })));
    for (operations, hashes) in [(1, 0), (0x4000, 0), (0, 1), (0, 0x100), (u32::MAX, 0)] {
        assert!(matches!(
            opened(2, 0, 0, operations, hashes),
            Err(WireError::OutOfRange { field: "operations" | "hashes", .. })
        ));
    }
}

#[test]
fn batch_without_1_to_256_distinct_jobs_is_refused() {
    let batch = |count: u16, ids: &[u64]| {
        let mut payload = count.to_le_bytes().to_vec();
        for id in ids {
            payload.extend_from_slice(&id.to_le_bytes());
            payload.extend_from_slice(&[0; 8]);
            payload.extend_from_slice(&[0x08, 0, 0]);
        }
        ClientMessage::decode(0x05, &payload).map(drop)
    };
    let ids: Vec<u64> = (0..257).collect();
    assert_eq!(batch(0, &[]).unwrap_err(), WireError::EmptyBatch);
    assert_eq!(batch(256, &ids[..MAX_JOBS_PER_FRAME]), Ok(()));
    assert_eq!(batch(257, &ids), Err(WireError::TooManyJobs(257)));
    assert_eq!(batch(u16::MAX, &[]), Err(WireError::TooManyJobs(65535)));
    assert_eq!(batch(3, &ids[..2]), Err(WireError::Truncated("batch")));
    assert_eq!(batch(1, &ids[..2]), Err(WireError::Trailing(19)));
    assert_eq!(batch(3, &[5, 9, 5]), Err(WireError::DuplicateJob(5)));
    assert_eq!(batch(2, &[0, 0]), Err(WireError::DuplicateJob(0)));
    assert_eq!(batch(2, &[u64::MAX, u64::MAX]), Err(WireError::DuplicateJob(u64::MAX)));
    assert_eq!(batch(3, &[9, 5, 7]), Ok(()));
    assert_eq!(batch(4, &[5, 9, 7, 9]), Err(WireError::DuplicateJob(9)));
    assert_eq!(batch(4, &[5, 9, 7, 7]), Err(WireError::DuplicateJob(7)));
    assert_eq!(batch(5, &[5, 9, 7, 11, 11]), Err(WireError::DuplicateJob(11)));
    assert_eq!(batch(5, &[5, 9, 7, 11, 5]), Err(WireError::DuplicateJob(5)));
    assert_eq!(batch(5, &[5, 9, 7, 11, 8]), Ok(()));
    let descending: Vec<u64> = ids[..256].iter().rev().copied().collect();
    assert_eq!(batch(256, &descending), Ok(()));
}

#[test]
fn unknown_code_error_names_field_and_code() {
    let job = |operation: u8, rest: &[u8]| {
        let mut payload = vec![1, 0];
        payload.extend_from_slice(&[0; 16]);
        payload.push(operation);
        payload.extend_from_slice(rest);
        ClientMessage::decode(0x05, &payload).unwrap_err()
    };
    let unknown = |field, code| WireError::UnknownCode { field, code };
    assert_eq!(job(0x00, &[0, 0]), unknown("operation", 0x00));
    assert_eq!(job(0x0e, &[0, 0]), unknown("operation", 0x0e));
    assert_eq!(job(0x0d, &[0x03, 0, 0]), unknown("input_form", 0x03));
    assert_eq!(job(0x01, &[0x00, 0, 0]), unknown("hash", 0x00));
    assert_eq!(job(0x02, &[0x01, 0x08, 0, 0, 0, 0]), unknown("mgf_hash", 0x08));

    let completion = |status: u8, served_by: u8, output: &[u8]| {
        let mut payload = vec![1, 0];
        payload.extend_from_slice(&[0; 8]);
        payload.extend_from_slice(&[status, served_by]);
        payload.extend_from_slice(&[0; 8]);
        payload.extend_from_slice(&u16::try_from(output.len()).unwrap().to_le_bytes());
        payload.extend_from_slice(output);
        NodeMessage::decode(0x84, &payload).unwrap_err()
    };
    assert_eq!(completion(0x0b, 0, &[]), unknown("status", 0x0b));
    assert_eq!(completion(0x00, 0x06, &[]), unknown("served_by", 0x06));
    assert_eq!(completion(0x05, 0, &[1]), WireError::OutputOfFailedJob(0));

    assert_eq!(ClientMessage::decode(0x02, &[0, 0, 0, 0, 3]).unwrap_err(), unknown("selector", 3));
    for fault in [0, 7, 255] {
        assert_eq!(
            NodeMessage::decode(0x87, &[fault]).unwrap_err(),
            unknown("fault", fault.into())
        );
    }
    for (reason, detail) in [(0, 0), (1, 1), (2, 0), (2, 8), (6, 0)] {
        assert!(NodeMessage::decode(0x83, &[0, 0, 0, 0, reason, detail]).is_err());
    }
}

#[test]
fn report_with_unknown_unordered_or_zero_counters_is_refused() {
    let decode = |counters: &[(u8, u64)]| {
        let mut payload = vec![u8::try_from(counters.len()).unwrap()];
        for (code, value) in counters {
            payload.push(*code);
            payload.extend_from_slice(&value.to_le_bytes());
        }
        ClientMessage::decode(0x08, &payload).map(drop)
    };
    assert_eq!(decode(&[]), Ok(()));
    assert_eq!(decode(&[(0x01, 1), (0x17, u64::MAX)]), Ok(()));
    for unknown in [0x00, 0x0a, 0x0f, 0x18, 0xff] {
        let error = WireError::UnknownCode { field: "counter", code: unknown.into() };
        assert_eq!(decode(&[(unknown, 1)]), Err(error));
    }
    assert_eq!(decode(&[(0x01, 0)]), Err(WireError::ReportOrder(0x01)));
    assert_eq!(decode(&[(0x02, 1), (0x02, 1)]), Err(WireError::ReportOrder(0x02)));
    assert_eq!(decode(&[(0x03, 1), (0x02, 1)]), Err(WireError::ReportOrder(0x02)));
    // The header of a report with more counters than exist is refused.
    let all = EdgeCounter::ALL.len();
    let (limit, length) = (1 + 9 * all, 1 + 9 * (all + 1));
    let header = frame(0x08, &vec![1; length]);
    let error = client(&header).unwrap_err();
    assert!(
        matches!(error, WireError::TooLarge { kind: 0x08, limit: l, .. } if l == limit),
        "{error}"
    );
}

#[test]
fn text_with_bad_utf8_or_control_characters_is_refused() {
    let name = |name: &[u8]| {
        let payload = [&[0, 0, 0, 0, 1, u8::try_from(name.len()).unwrap()], name].concat();
        ClientMessage::decode(0x02, &payload).map(drop)
    };
    assert_eq!(name("schlüssel".as_bytes()), Ok(()));
    assert_eq!(name(&[0xff]), Err(WireError::NotUtf8("name")));
    assert_eq!(name(&[0xc3]), Err(WireError::NotUtf8("name")));
    for bad in ["\n", "a\0b", "\u{1b}[2J", "\u{85}"] {
        assert_eq!(name(bad.as_bytes()), Err(WireError::ControlCharacter("name")));
    }
    let mut hello = encoded(&client_messages()[0].1);
    hello[HEADER_LEN + 8..HEADER_LEN + 12].copy_from_slice(&[2, 0, 1, 0]);
    assert_eq!(client(&hello).unwrap_err(), WireError::VersionRange { min: 2, max: 1 });
}

#[test]
fn value_above_its_bound_is_encoded_as_one_that_is_refused() {
    let hello = |agent: String| {
        let hello = Hello { min_version: 1, max_version: 1, features: 0, agent };
        match client(&encoded(&ClientMessage::Hello(hello))).unwrap().pop() {
            Some(ClientMessage::Hello(hello)) => hello.agent,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(hello("x".repeat(1000)), "x".repeat(MAX_NAME_LEN));
    assert_eq!(hello("ü".repeat(1000)), "ü".repeat(MAX_NAME_LEN / 2));
    assert_eq!(hello("a\nb".to_owned()), "a_b");

    for name in ["x".repeat(MAX_KEY_NAME_LEN + 1), "a\0".to_owned()] {
        let selector = KeySelector::Name(name);
        let message = client(&encoded(&ClientMessage::OpenKey { request: 1, selector })).unwrap();
        let [ClientMessage::OpenKey { selector: KeySelector::Name(name), .. }] = &message[..]
        else {
            panic!("{message:?}");
        };
        assert_eq!(name, "");
    }

    let key = PrivateKey::from_pkcs8(Zeroizing::new(vec![1; MAX_PRIVATE_KEY_LEN + 1]));
    let message = client(&encoded(&ClientMessage::ImportKey { request: 1, key })).unwrap();
    let [ClientMessage::ImportKey { key, .. }] = &message[..] else { panic!("{message:?}") };
    assert!(key.dangerous_pkcs8().is_empty());

    let oversized = job(1, Operation::Ed25519Sign, &vec![0; MAX_INPUT_LEN + 1]);
    let label = vec![0; MAX_LABEL_LEN + 1];
    let oaep = Operation::RsaOaepDecrypt { hash: Hash::Sha1, mgf_hash: Hash::Sha1, label };
    let message = encoded(&ClientMessage::Submit(vec![oversized, job(2, oaep, &[0; 256])]));
    let message = client(&message).unwrap();
    let [ClientMessage::Submit(jobs)] = &message[..] else { panic!("{message:?}") };
    assert_eq!(jobs.len(), 2);
    for job in jobs {
        for key_type in [KeyType::X25519, KeyType::Ed25519, KeyType::Rsa { bits: 2048 }] {
            assert!(job.operation.check(key_type, &job.input).is_err());
        }
    }

    let oversized = completion(1, Ok(&vec![0; MAX_OUTPUT_LEN + 1]));
    let message = node(&encoded(&NodeMessage::Complete(vec![oversized]))).unwrap();
    let [NodeMessage::Complete(done)] = &message[..] else { panic!("{message:?}") };
    assert_eq!(done[0].result.as_ref().unwrap_err(), &JobError::Failed);

    let opened = |key_type, spki: usize| NodeMessage::KeyOpened {
        request: 1,
        handle: 1,
        info: KeyInfo { key_type, spki: vec![0; spki] },
        operations: OperationSet::new(),
        hashes: HashAlgorithms::new(),
    };
    for message in [opened(KeyType::Rsa { bits: 1024 }, 1), opened(KeyType::X25519, 5000)] {
        let message = node(&encoded(&message)).unwrap();
        assert!(matches!(message[..], [NodeMessage::KeyRefused { request: 1, .. }]));
    }
}

#[test]
fn times_are_rounded_up_and_cut_at_their_field() {
    let times = [
        (Duration::ZERO, 0_u32, 0_u32),
        (Duration::from_nanos(1), 1, 1),
        (Duration::from_nanos(1001), 2, 1001),
        (Duration::from_secs(3600), 3_600_000_000, u32::MAX),
        (Duration::MAX, u32::MAX, u32::MAX),
    ];
    for (time, micros, nanos) in times {
        let jobs = vec![SubmittedJob { budget: time, ..job(1, Operation::Ecdh, b"") }];
        let message = client(&encoded(&ClientMessage::Submit(jobs))).unwrap();
        let [ClientMessage::Submit(jobs)] = &message[..] else { panic!("{message:?}") };
        assert_eq!(jobs[0].budget, Duration::from_micros(micros.into()));

        let done = JobCompletion { queue_time: time, ..completion(1, Ok(b"")) };
        let message = node(&encoded(&NodeMessage::Complete(vec![done]))).unwrap();
        let [NodeMessage::Complete(done)] = &message[..] else { panic!("{message:?}") };
        assert_eq!(done[0].queue_time, Duration::from_nanos(nanos.into()));
    }
}

#[test]
fn unfinished_batch_is_removed_from_the_buffer() {
    let mut out = vec![1, 2, 3];
    let mut writer = SubmitWriter::new(&mut out);
    assert!(writer.push(1, 1, Duration::ZERO, &Operation::Ecdh, &[4; 65]));
    assert_eq!(writer.count(), 1);
    drop(writer);
    assert_eq!(out, [1, 2, 3]);
    SubmitWriter::new(&mut out).finish();
    CompleteWriter::new(&mut out).finish();
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn push_to_a_full_frame_fails_and_the_next_frame_takes_the_job() {
    let mut out = Vec::new();
    let mut writer = CompleteWriter::new(&mut out);
    let output = vec![7; MAX_OUTPUT_LEN];
    let push = |writer: &mut CompleteWriter<'_>, id| {
        writer.push(id, Ok(&output), None, Duration::ZERO, Duration::ZERO)
    };
    let taken = (0..).take_while(|id| push(&mut writer, *id)).count();
    assert_eq!(taken, writer.count());
    writer.finish();
    let mut writer = CompleteWriter::new(&mut out);
    assert!(push(&mut writer, 1000));
    writer.finish();
    let messages = node(&out).unwrap();
    assert_eq!(messages.len(), 2);
}

#[test]
fn frame_is_filled_to_its_last_byte_and_not_beyond() {
    for (excess, taken) in [(0, true), (1, false)] {
        let mut out = Vec::new();
        let mut writer = SubmitWriter::new(&mut out);
        let mut push = |id, input: usize| {
            writer.push(id, 1, Duration::ZERO, &Operation::Ed25519Sign, &vec![0; input])
        };
        let three = 3 * (19 + MAX_INPUT_LEN);
        assert!((0..3).all(|id| push(id, MAX_INPUT_LEN)));
        assert_eq!(push(3, MAX_PAYLOAD_LEN - 2 - three - 19 + excess), taken);
        writer.finish();
        assert_eq!(out.len() == MAX_FRAME_LEN, taken);
        assert_eq!(client(&out).unwrap().len(), 1);
    }
}

#[test]
fn decoder_buffer_is_bounded_and_always_has_room_for_a_read() {
    // The largest frame of all: four jobs of nearly 16 KiB.
    let job_len = (MAX_PAYLOAD_LEN - 2) / 4;
    let jobs = (0..4).map(|id| job(id, Operation::Ed25519Sign, &vec![9; job_len - 19])).collect();
    let largest = encoded(&ClientMessage::Submit(jobs));
    assert!(largest.len() > MAX_FRAME_LEN - 8 && largest.len() <= MAX_FRAME_LEN);
    let ping = frame(0x07, &[0; 8]);
    for piece in [1, 100, MIN_SPACE, usize::MAX] {
        let stream = [&ping, &largest, &ping, &largest, &largest].map(Vec::as_slice).concat();
        let mut decoder = Decoder::<ClientMessage>::new();
        let (mut rest, mut count) = (stream.as_slice(), 0);
        while !rest.is_empty() {
            let space = decoder.space();
            assert!(space.len() >= MIN_SPACE && space.len() <= MAX_BUFFER);
            let n = rest.len().min(piece).min(space.len());
            space[..n].copy_from_slice(&rest[..n]);
            decoder.filled(n);
            rest = &rest[n..];
            while decoder.next().unwrap().is_some() {
                count += 1;
            }
            assert!(decoder.buffered() < MAX_FRAME_LEN);
        }
        assert_eq!(count, 5);
    }
}

#[test]
fn decoding_allocates_little_more_than_the_frame_length() {
    // The vector of a full batch, plus the inputs or outputs, which are part of the payload.
    let list = MAX_JOBS_PER_FRAME * size_of::<SubmittedJob>().max(size_of::<JobCompletion>());
    assert!(list + MAX_PAYLOAD_LEN <= 100 * 1024, "docs/protocol.md promises 100 KiB");
}

#[test]
fn secrets_are_wiped_from_the_buffer_once_decoded() {
    let secret = [0xa5; 40];
    let key = PrivateKey::from_pkcs8(Zeroizing::new(secret.to_vec()));
    let import = encoded(&ClientMessage::ImportKey { request: 1, key });
    let mut decoder = Decoder::<ClientMessage>::new();
    decoder.space()[..import.len()].copy_from_slice(&import);
    decoder.filled(import.len());
    assert!(decoder.next().unwrap().is_some());
    assert!(!decoder.space().contains(&0xa5));

    let complete = encoded(&NodeMessage::Complete(vec![completion(1, Ok(&secret))]));
    let mut decoder = Decoder::<NodeMessage>::new();
    decoder.space()[..complete.len()].copy_from_slice(&complete);
    decoder.filled(complete.len());
    assert!(decoder.next().unwrap().is_some());
    assert!(!decoder.space().contains(&0xa5));
}

#[test]
fn secrets_are_wiped_where_an_unfinished_frame_was_moved() {
    let key = PrivateKey::from_pkcs8(Zeroizing::new(vec![0xa5; 3000]));
    let import = encoded(&ClientMessage::ImportKey { request: 1, key });
    let stream = import.repeat(20);
    for piece in [1, 777, 4095, 5000] {
        let mut decoder = Decoder::<ClientMessage>::new();
        let (mut rest, mut count) = (stream.as_slice(), 0);
        while !rest.is_empty() {
            let space = decoder.space();
            assert!(!space.contains(&0xa5), "pieces of {piece}");
            let n = rest.len().min(piece).min(space.len());
            space[..n].copy_from_slice(&rest[..n]);
            decoder.filled(n);
            rest = &rest[n..];
            while decoder.next().unwrap().is_some() {
                count += 1;
            }
        }
        assert_eq!(count, 20);
        assert!(!decoder.space().contains(&0xa5));
    }
}

#[test]
fn secrets_do_not_show_in_debug() {
    let key = PrivateKey::from_pkcs8(Zeroizing::new(vec![0xa5; 40]));
    let import = ClientMessage::ImportKey { request: 1, key };
    let complete = NodeMessage::Complete(vec![completion(1, Ok(&[0xa5; 40]))]);
    let submit = ClientMessage::Submit(vec![job(1, Operation::RsaRaw, &[0xa5; 40])]);
    for shown in [format!("{import:?}"), format!("{complete:?}"), format!("{submit:#?}")] {
        assert!(shown.contains("40 bytes"), "{shown}");
        assert!(!shown.contains("165") && !shown.to_lowercase().contains("a5"), "{shown}");
    }
    let mut decoder = Decoder::<ClientMessage>::new();
    let frame = encoded(&import);
    decoder.space()[..frame.len()].copy_from_slice(&frame);
    decoder.filled(frame.len());
    assert!(!format!("{decoder:?}").contains("165"));
}
