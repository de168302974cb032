// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One connection: bytes and time in, events and bytes out.

use millrace_operation::{Curve, Hash, HashAlgorithms, KeyInfo, KeyType, OperationSet};
use millrace_wire::KeySelector;

use super::*;

const TIMINGS: Timings = Timings {
    handshake: Duration::from_secs(1),
    ping_after: Duration::from_millis(250),
    dead_after: Duration::from_millis(500),
};

const SIGN: Operation = Operation::EcdsaSign { hash: Hash::Sha256 };

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn welcome() -> NodeMessage {
    NodeMessage::Welcome(Welcome {
        version: 1,
        features: 0,
        node: "n1".to_owned(),
        max_in_flight: 2,
        max_keys: 10,
    })
}

fn opened(request: RequestId, handle: KeyHandle) -> NodeMessage {
    NodeMessage::KeyOpened {
        request,
        handle,
        info: KeyInfo { key_type: KeyType::Ec(Curve::P256), spki: vec![1; 91] },
        operations: OperationSet::new(),
        hashes: HashAlgorithms::new(),
    }
}

fn feed(connection: &mut Connection, bytes: &[u8], now: Instant) {
    for chunk in bytes.chunks(7) {
        connection.space()[..chunk.len()].copy_from_slice(chunk);
        connection.filled(chunk.len(), now);
    }
}

fn say(
    connection: &mut Connection,
    message: &NodeMessage,
    now: Instant,
) -> Result<Option<ConnectionEvent>, ConnectionFault> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    feed(connection, &bytes, now);
    connection.next_event(now)
}

fn sent(connection: &mut Connection) -> Vec<ClientMessage> {
    let mut decoder = Decoder::<ClientMessage>::new();
    let bytes = connection.out().pending().to_vec();
    connection.out().consume(bytes.len());
    let mut messages = Vec::new();
    for chunk in bytes.chunks(1000) {
        decoder.space()[..chunk.len()].copy_from_slice(chunk);
        decoder.filled(chunk.len());
        while let Some(message) = decoder.next().expect("we send what decodes") {
            messages.push(message);
        }
    }
    messages
}

fn key() -> KeyData {
    KeyData::new(KeySource::Selector(KeySelector::Name("site".to_owned())))
}

fn ready(now: Instant) -> Connection {
    let mut connection = Connection::new("test".to_owned(), 0, TIMINGS, now);
    assert!(matches!(sent(&mut connection)[..], [ClientMessage::Hello(_)]));
    assert!(matches!(say(&mut connection, &welcome(), now), Ok(Some(ConnectionEvent::Ready))));
    connection
}

fn signature(id: JobId, budget: Duration, input: &[u8]) -> OutgoingJob<'_> {
    OutgoingJob { id, handle: 9, budget, operation: &SIGN, input }
}

#[test]
fn handshake_is_a_hello_and_a_welcome() {
    let now = Instant::now();
    let mut connection = Connection::new("test".to_owned(), 0, TIMINGS, now);
    assert!(!connection.is_ready());
    assert_eq!(connection.next_timer(), Some(now + TIMINGS.handshake));
    assert!(matches!(say(&mut connection, &welcome(), now), Ok(Some(ConnectionEvent::Ready))));
    assert!(connection.is_ready());
    assert_eq!(&**connection.node(), "n1");
    assert_eq!(connection.next_timer(), None);
}

#[test]
fn peer_that_does_not_begin_with_welcome_is_no_node() {
    let now = Instant::now();
    for message in [NodeMessage::Drain, NodeMessage::Pong { token: 1 }, opened(0, 1)] {
        let mut connection = Connection::new("test".to_owned(), 0, TIMINGS, now);
        assert!(say(&mut connection, &message, now).is_err(), "{message:?}");
    }
    let mut connection = ready(now);
    assert!(say(&mut connection, &welcome(), now).is_err(), "a second welcome");
}

#[test]
fn version_that_was_not_offered_is_not_accepted() {
    let now = Instant::now();
    let mut connection = Connection::new("test".to_owned(), 0, TIMINGS, now);
    let NodeMessage::Welcome(mut other) = welcome() else { unreachable!("it is one") };
    other.version = 2;
    assert!(say(&mut connection, &NodeMessage::Welcome(other), now).is_err());
}

#[test]
fn connection_without_welcome_in_time_ends() {
    let now = Instant::now();
    let mut connection = Connection::new("test".to_owned(), 0, TIMINGS, now);
    assert_eq!(connection.tick(now + ms(999)), Ok(()));
    assert!(connection.tick(now + ms(1000)).is_err());
}

#[test]
fn key_is_asked_for_once_and_gets_a_handle() {
    let now = Instant::now();
    let mut connection = ready(now);
    let key = key();
    assert!(connection.key_state(key.id, now).is_none());
    connection.open_key(&key, now);
    assert!(matches!(connection.key_state(key.id, now), Some(KeyStage::Opening)));
    let messages = sent(&mut connection);
    let [ClientMessage::OpenKey { request, .. }] = messages[..] else {
        panic!("{messages:?}");
    };
    let event = say(&mut connection, &opened(request, 9), now);
    assert!(matches!(event, Ok(Some(ConnectionEvent::KeyOpened { handle: 9, .. }))));
    assert!(matches!(connection.key_state(key.id, now), Some(KeyStage::Open(9))));
    connection.close_key(key.id);
    assert!(matches!(sent(&mut connection)[..], [ClientMessage::CloseKey { handle: 9 }]));
    assert!(say(&mut connection, &opened(request, 9), now).is_err(), "answered twice");
}

#[test]
fn key_dropped_while_it_was_opened_is_closed() {
    let now = Instant::now();
    let mut connection = ready(now);
    let key = key();
    connection.open_key(&key, now);
    connection.close_key(key.id);
    sent(&mut connection);
    assert!(matches!(say(&mut connection, &opened(0, 9), now), Ok(None)));
    assert!(matches!(sent(&mut connection)[..], [ClientMessage::CloseKey { handle: 9 }]));
}

#[test]
fn refusal_of_a_key_lasts_for_its_time() {
    let now = Instant::now();
    let mut connection = ready(now);
    let key = key();
    connection.open_key(&key, now);
    let refusal = NodeMessage::KeyRefused { request: 0, reason: KeyRefusal::NoSuchKey };
    assert!(matches!(
        say(&mut connection, &refusal, now),
        Ok(Some(ConnectionEvent::KeyRefused { .. }))
    ));
    assert!(matches!(connection.key_state(key.id, now), Some(KeyStage::Refused { .. })));
    assert!(connection.key_state(key.id, now + REFUSAL_LASTS).is_none());
}

#[test]
fn job_is_sent_unchanged_and_counts_until_it_is_settled() {
    let now = Instant::now();
    let mut connection = ready(now);
    connection.send_job(&signature(77, ms(1500), &[5; 32]), now);
    assert!(connection.has_room());
    connection.send_job(&signature(78, ms(1500), &[6; 32]), now);
    assert!(!connection.has_room(), "the node's bound is 2");
    let messages = sent(&mut connection);
    let [ClientMessage::Submit(first), ClientMessage::Submit(_)] = &messages[..] else {
        panic!("{messages:?}");
    };
    assert_eq!((first[0].id, first[0].key, first[0].budget), (77, 9, ms(1500)));
    assert_eq!((&first[0].operation, &first[0].input[..]), (&SIGN, &[5; 32][..]));
    connection.release_job();
    assert!(connection.has_room());
    connection.release_job();
    connection.release_job();
    assert_eq!(connection.in_flight(), 0);
}

#[test]
fn silence_with_jobs_open_is_pinged_and_then_ends() {
    let start = Instant::now();
    let mut connection = ready(start);
    let now = start + Duration::from_secs(60);
    assert_eq!(connection.tick(now), Ok(()), "nothing is open: nothing is expected");
    connection.send_job(&signature(1, ms(1000), &[0; 32]), now);
    sent(&mut connection);
    assert_eq!(connection.next_timer(), Some(now + ms(250)));
    assert_eq!(connection.tick(now + ms(249)), Ok(()));
    assert!(sent(&mut connection).is_empty());
    assert_eq!(connection.tick(now + ms(250)), Ok(()));
    assert!(matches!(sent(&mut connection)[..], [ClientMessage::Ping { .. }]));
    assert_eq!(connection.tick(now + ms(749)), Ok(()));
    assert!(connection.tick(now + ms(750)).is_err());
}

#[test]
fn any_byte_is_a_sign_of_life() {
    let now = Instant::now();
    let mut connection = ready(now);
    connection.send_job(&signature(1, ms(1000), &[0; 32]), now);
    assert_eq!(connection.tick(now + ms(250)), Ok(()));
    let pong = NodeMessage::Pong { token: 1 };
    assert!(matches!(say(&mut connection, &pong, now + ms(700)), Ok(None)));
    assert_eq!(connection.next_timer(), Some(now + ms(950)));
    connection.release_job();
    assert_eq!(connection.next_timer(), None);
}

#[test]
fn draining_node_is_not_ready() {
    let now = Instant::now();
    let mut connection = ready(now);
    assert!(matches!(
        say(&mut connection, &NodeMessage::Drain, now),
        Ok(Some(ConnectionEvent::Draining))
    ));
    assert!(!connection.is_ready() && connection.is_draining() && connection.is_idle());
}

#[test]
fn fault_ends_the_connection_with_a_reason() {
    let now = Instant::now();
    let mut connection = ready(now);
    let fault = NodeMessage::Fault(Fault::Unauthorized);
    let Err(ConnectionFault { why, .. }) = say(&mut connection, &fault, now) else {
        panic!("still there")
    };
    assert!(why.contains("identity"), "{why}");
}

#[test]
fn bytes_that_do_not_decode_end_the_connection() {
    let now = Instant::now();
    let mut connection = ready(now);
    feed(&mut connection, &[0xee; 40], now);
    assert!(connection.next_event(now).is_err());
}
