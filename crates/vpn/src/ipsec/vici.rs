// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! charon's control socket (vici, strongSwan's README.md of that plugin): frames with a length, in them a type, a name
//! and a message of sections, lists and values.
//!
//! A supervisor asks for the connection's security associations once a second. The answers become the same lines as
//! those of OpenVPN's management interface, so that one machine judges both.

use crate::management::{ManagementLine, TunnelState};

/// Bound on a frame, in bytes: that of the protocol.
const MAX_FRAME: usize = 512 << 10;

/// Depth of sections that is read; charon uses four.
const MAX_DEPTH: usize = 16;

/// Listings in a row after which a second connection is superfluous: while keys change, two may stand for a moment.
const SUPERFLUOUS_FOR: u32 = 3;

/// Types of frames.
const CMD_REQUEST: u8 = 0;
const CMD_RESPONSE: u8 = 1;
const CMD_UNKNOWN: u8 = 2;
const EVENT_REGISTER: u8 = 3;
const EVENT: u8 = 7;

/// Types of elements in a message.
const SECTION_START: u8 = 1;
const SECTION_END: u8 = 2;
const KEY_VALUE: u8 = 3;
const LIST_START: u8 = 4;
const LIST_ITEM: u8 = 5;
const LIST_END: u8 = 6;

/// The event of a security association, in answer to a listing.
const LIST_SA: &str = "list-sa";

/// A value of a message with the names of the sections around it.
type Values = Vec<(Vec<String>, String)>;

fn frame(kind: u8, name: &str, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut body = vec![kind];
    // Names are constants of this file, and values names of links: both are short.
    let push_name = |body: &mut Vec<u8>, name: &str| {
        body.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        body.extend_from_slice(&name.as_bytes()[..name.len().min(255)]);
    };
    push_name(&mut body, name);
    for (key, value) in pairs {
        body.push(KEY_VALUE);
        push_name(&mut body, key);
        let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(&value.as_bytes()[..usize::from(length)]);
    }
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &body].concat()
}

/// The frames that a supervisor sends first.
#[must_use]
pub fn subscribe() -> Vec<u8> {
    frame(EVENT_REGISTER, LIST_SA, &[])
}

/// Asks for the security associations of a link; the answer also proves that the daemon lives. It leaves those out that
/// are at work: one that waits for a signature of a pool would hold the answer up, and the daemon be taken for hung.
#[must_use]
pub fn ask(link: &str) -> Vec<u8> {
    let waits_for_none = ("noblock", "yes");
    [
        frame(CMD_REQUEST, "stats", &[]),
        frame(CMD_REQUEST, "list-sas", &[("ike", link), waits_for_none]),
    ]
    .concat()
}

/// Ends one of two connections of a link.
#[must_use]
pub fn end(superfluous: &str) -> Vec<u8> {
    frame(CMD_REQUEST, "terminate", &[("ike-id", superfluous), ("timeout", "-1")])
}

/// Ends the connection without a goodbye and starts a new one.
#[must_use]
pub fn reconnect(link: &str) -> Vec<u8> {
    let end =
        frame(CMD_REQUEST, "terminate", &[("ike", link), ("force", "yes"), ("timeout", "-1")]);
    let begin = frame(CMD_REQUEST, "initiate", &[("child", link), ("timeout", "-1")]);
    [end, begin].concat()
}

/// Bytes of the socket, cut into frames.
#[derive(Debug, Default)]
pub struct ViciFrames {
    rest: Vec<u8>,
    /// Tunnel state and byte counts from the events since the last request.
    seen: Seen,
    /// Connections that the daemon has in all, as it said before its last listing.
    total: usize,
    /// The connection that was superfluous in the last listings, and their number.
    superfluous: Option<(String, u32)>,
    /// Set by a frame that breaks the protocol: what follows it cannot be read.
    is_broken: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    installed: bool,
    negotiating: bool,
    received: u64,
    sent: u64,
    /// Connections in the listing.
    listed: usize,
    /// Those that stand: SPI of the initiator, which is the same at both ends, and the daemon's own number.
    standing: Vec<(String, String)>,
}

impl ViciFrames {
    /// Adds bytes and returns what the frames that are complete now say.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<ManagementLine> {
        let mut lines = Vec::new();
        if self.is_broken {
            return lines;
        }
        self.rest.extend_from_slice(bytes);
        while let Some((head, body)) = self.rest.split_first_chunk::<4>() {
            let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
            if length == 0 || length > MAX_FRAME {
                self.is_broken = true;
                self.rest = Vec::new();
                break;
            }
            let Some(frame) = body.get(..length) else {
                break;
            };
            let frame = frame.to_vec();
            self.rest.drain(..4 + length);
            self.read(&frame, &mut lines);
        }
        lines
    }

    /// Whether the peer broke the protocol; the socket is of no use then.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// The number of a connection to [`end`]: both ends began one at the same time, and one too many stands. Both
    /// choose the same, so that one stays, also where each ends its own.
    pub fn take_superfluous(&mut self) -> Option<String> {
        let (_, listings) = self.superfluous.as_ref()?;
        (*listings >= SUPERFLUOUS_FOR).then(|| self.superfluous.take()).flatten().map(|one| one.0)
    }

    fn listed(&mut self, mut seen: Seen, lines: &mut Vec<ManagementLine>) {
        // One that is at work is not listed: it authenticates, or changes its keys.
        seen.negotiating |= self.total > seen.listed;
        seen.standing.sort_unstable();
        let second = seen.standing.get(1).map(|(_, number)| number.clone());
        self.superfluous = second.map(|number| match self.superfluous.take() {
            Some((known, listings)) if known == number => (number, listings + 1),
            Some(_) | None => (number, 1),
        });
        lines.extend(seen.lines());
    }

    fn read(&mut self, frame: &[u8], lines: &mut Vec<ManagementLine>) {
        match frame.split_first() {
            Some((&CMD_RESPONSE, message)) => {
                lines.push(ManagementLine::Other);
                // Answers to other commands say whether they succeeded; only a listing has no value at all.
                match parse(message) {
                    Some(values) if values.is_empty() => {
                        let seen = std::mem::take(&mut self.seen);
                        self.listed(seen, lines);
                    }
                    Some(values) => {
                        let total = values.iter().find(|(path, _)| *path == ["ikesas", "total"]);
                        self.total =
                            total.and_then(|(_, text)| text.parse().ok()).unwrap_or(self.total);
                    }
                    None => {}
                }
            }
            Some((&EVENT, rest)) => {
                let name = rest
                    .split_first()
                    .and_then(|(length, rest)| rest.split_at_checked(usize::from(*length)));
                if let Some((name, message)) = name
                    && name == LIST_SA.as_bytes()
                    && let Some(values) = parse(message)
                {
                    self.seen.add(&values);
                }
                lines.push(ManagementLine::Other);
            }
            Some((&CMD_UNKNOWN, _)) => {
                let why = "charon does not know a command: is its vici plugin of another version?";
                lines.push(ManagementLine::Fatal(why.to_owned()));
            }
            // Confirmations of registrations.
            Some(_) | None => lines.push(ManagementLine::Other),
        }
    }
}

impl Seen {
    /// Takes over one connection: `mr { state = ESTABLISHED, child-sas { mr-1 { state = INSTALLED, bytes-in = … } } }`.
    fn add(&mut self, values: &Values) {
        let value = |name: &str| {
            let found = values.iter().find(|(path, _)| path.len() == 2 && path[1] == name);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        self.listed += 1;
        if value("state") == "ESTABLISHED" {
            self.standing.push((value("initiator-spi"), value("uniqueid")));
        }
        for (path, value) in values {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            match path[..] {
                [_, "child-sas", _, "state"] => {
                    self.installed |=
                        ["INSTALLED", "REKEYING", "REKEYED", "UPDATING"].contains(&value.as_str());
                }
                [_, "child-sas", _, "bytes-in"] => {
                    self.received = self.received.saturating_add(value.parse().unwrap_or(0));
                }
                [_, "child-sas", _, "bytes-out"] => {
                    self.sent = self.sent.saturating_add(value.parse().unwrap_or(0));
                }
                [_, "state"] => self.negotiating |= value == "CONNECTING",
                _ => {}
            }
        }
    }

    fn lines(self) -> Vec<ManagementLine> {
        let state = match (self.installed, self.negotiating) {
            (true, _) => TunnelState::Connected,
            (false, true) => TunnelState::Handshaking,
            (false, false) => TunnelState::Idle,
        };
        vec![
            ManagementLine::State(state, String::new()),
            ManagementLine::Bytes { received: self.received, sent: self.sent },
        ]
    }
}

/// The values of a message; `None` if it breaks the format.
fn parse(mut message: &[u8]) -> Option<Values> {
    let mut values = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut list: Option<String> = None;
    while let Some((kind, rest)) = message.split_first() {
        message = rest;
        match *kind {
            SECTION_START => {
                path.push(short(&mut message)?);
                if path.len() > MAX_DEPTH {
                    return None;
                }
            }
            SECTION_END => {
                path.pop()?;
            }
            KEY_VALUE => {
                let key = short(&mut message)?;
                let value = long(&mut message)?;
                let mut path = path.clone();
                path.push(key);
                values.push((path, value));
            }
            LIST_START => list = Some(short(&mut message)?),
            LIST_ITEM => {
                list.as_ref()?;
                long(&mut message)?;
            }
            LIST_END => {
                list.take()?;
            }
            _ => return None,
        }
    }
    (path.is_empty() && list.is_none()).then_some(values)
}

/// A name with its length in one byte.
fn short(message: &mut &[u8]) -> Option<String> {
    let (length, rest) = message.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    *message = rest;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// A value with its length in two bytes.
fn long(message: &mut &[u8]) -> Option<String> {
    let (length, rest) = message.split_first_chunk::<2>()?;
    let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    *message = rest;
    Some(String::from_utf8_lossy(value).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn element(kind: u8, name: &str, value: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![kind];
        if kind != SECTION_END && kind != LIST_END && kind != LIST_ITEM {
            bytes.push(u8::try_from(name.len()).expect("short"));
            bytes.extend_from_slice(name.as_bytes());
        }
        if let Some(value) = value {
            bytes.extend_from_slice(&u16::try_from(value.len()).expect("short").to_be_bytes());
            bytes.extend_from_slice(value.as_bytes());
        }
        bytes
    }

    fn whole(kind: u8, name: Option<&str>, message: &[u8]) -> Vec<u8> {
        let mut body = vec![kind];
        if let Some(name) = name {
            body.push(u8::try_from(name.len()).expect("short"));
            body.extend_from_slice(name.as_bytes());
        }
        body.extend_from_slice(message);
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        [&length[..], &body].concat()
    }

    /// A listing with one connection and two child SAs, one of which is being replaced.
    fn listing() -> Vec<u8> {
        let section = |name| element(SECTION_START, name, None);
        let end = || element(SECTION_END, "", None);
        let value = |key, text| element(KEY_VALUE, key, Some(text));
        let sa = [
            section("mr"),
            value("state", "ESTABLISHED"),
            element(LIST_START, "tasks-passive", None),
            element(LIST_ITEM, "", Some("CHILD_REKEY")),
            element(LIST_END, "", None),
            section("child-sas"),
            section("mr-1"),
            value("state", "INSTALLED"),
            value("bytes-in", "100"),
            value("bytes-out", "7"),
            end(),
            section("mr-2"),
            value("state", "DELETED"),
            value("bytes-in", "11"),
            end(),
            end(),
            end(),
        ]
        .concat();
        [whole(5, None, &[]), whole(EVENT, Some(LIST_SA), &sa), whole(CMD_RESPONSE, None, &[])]
            .concat()
    }

    #[test]
    fn listing_is_state_and_bytes_in_any_pieces() {
        for size in [1, 3, 4096] {
            let mut frames = ViciFrames::default();
            let bytes = listing();
            let lines: Vec<ManagementLine> =
                bytes.chunks(size).flat_map(|piece| frames.push(piece)).collect();
            let said: Vec<&ManagementLine> =
                lines.iter().filter(|line| **line != ManagementLine::Other).collect();
            assert_eq!(
                said,
                [
                    &ManagementLine::State(TunnelState::Connected, String::new()),
                    &ManagementLine::Bytes { received: 111, sent: 7 },
                ],
                "pieces of {size}"
            );
        }
    }

    #[test]
    fn listing_without_connections_is_an_idle_tunnel() {
        let mut frames = ViciFrames::default();
        let lines = frames.push(&whole(CMD_RESPONSE, None, &[]));
        assert!(lines.contains(&ManagementLine::State(TunnelState::Idle, String::new())));
        let done = element(KEY_VALUE, "success", Some("yes"));
        assert_eq!(
            frames.push(&whole(CMD_RESPONSE, None, &done)),
            [ManagementLine::Other],
            "the answer to another command says nothing about tunnels"
        );
    }

    /// A listing of connections that stand: SPI and number of each.
    fn standing(connections: &[(&str, &str)]) -> Vec<u8> {
        let value = |key: &str, text: &str| element(KEY_VALUE, key, Some(text));
        let one = |(spi, number): &(&str, &str)| {
            let sa = [
                element(SECTION_START, "mr", None),
                value("uniqueid", number),
                value("state", "ESTABLISHED"),
                value("initiator-spi", spi),
                element(SECTION_END, "", None),
            ];
            whole(EVENT, Some(LIST_SA), &sa.concat())
        };
        let events: Vec<u8> = connections.iter().flat_map(one).collect();
        [events, whole(CMD_RESPONSE, None, &[])].concat()
    }

    #[test]
    fn second_connection_of_a_link_is_superfluous_once_it_stays_and_both_ends_choose_the_same() {
        let ends: [&[(&str, &str)]; 2] =
            [&[("b1", "1"), ("a7", "2")], &[("a7", "9"), ("b1", "12")]];
        for (listed, expected) in ends.into_iter().zip(["1", "12"]) {
            let mut frames = ViciFrames::default();
            for listing in 1..SUPERFLUOUS_FOR {
                frames.push(&standing(listed));
                assert_eq!(frames.take_superfluous(), None, "listing {listing}");
            }
            // One that goes by itself was none.
            frames.push(&standing(&listed[..1]));
            for _ in 0..SUPERFLUOUS_FOR {
                assert_eq!(frames.take_superfluous(), None);
                frames.push(&standing(listed));
            }
            assert_eq!(frames.take_superfluous().as_deref(), Some(expected));
            assert_eq!(frames.take_superfluous(), None, "once");
        }
    }

    #[test]
    fn connection_that_is_at_work_and_not_listed_negotiates() {
        let total = |number: &str| {
            let stats = [
                element(SECTION_START, "ikesas", None),
                element(KEY_VALUE, "total", Some(number)),
                element(KEY_VALUE, "half-open", Some("0")),
                element(SECTION_END, "", None),
            ];
            whole(CMD_RESPONSE, None, &stats.concat())
        };
        for (number, expected) in [("1", TunnelState::Handshaking), ("0", TunnelState::Idle)] {
            let mut frames = ViciFrames::default();
            let lines = frames.push(&[total(number), whole(CMD_RESPONSE, None, &[])].concat());
            assert!(lines.contains(&ManagementLine::State(expected, String::new())), "{lines:?}");
        }
    }

    #[test]
    fn frames_are_those_of_the_protocol() {
        assert_eq!(subscribe(), b"\0\0\0\x09\x03\x07list-sa");
        let listing = b"\0\0\0\x21\x00\x08list-sas\x03\x03ike\x00\x02mr\x03\x07noblock\x00\x03yes";
        assert_eq!(ask("mr"), [&b"\0\0\0\x07\x00\x05stats"[..], listing].concat());
        assert_eq!(
            end("7"),
            b"\0\0\0\x23\x00\x09terminate\x03\x06ike-id\x00\x017\x03\x07timeout\x00\x02-1"
        );
    }

    #[test]
    fn frame_of_impossible_length_ends_the_reading() {
        for length in [0_u32, 512 * 1024 + 1, u32::MAX] {
            let mut frames = ViciFrames::default();
            assert_eq!(frames.push(&length.to_be_bytes()), []);
            assert!(frames.is_broken());
            assert_eq!(frames.push(&listing()), []);
            assert_eq!(frames.rest.capacity(), 0);
        }
        let open = element(SECTION_START, "x", None);
        assert_eq!(parse(&open), None);
        assert_eq!(parse(&open.repeat(MAX_DEPTH + 1)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let mut frames = ViciFrames::default();
            frames.push(&bytes);
            let _ = parse(&bytes);
        }
    }
}
