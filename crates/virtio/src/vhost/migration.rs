// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The state of a device that moves to another host with its machine: the requests that made its sessions.
//!
//! ```text
//!  0       4         8            12         20        28      32
//!  │ magic │ version │ protection │ features │ next id │ count │ count times: id 8, length 4, request │ tag, 32
//! ```
//!
//! All numbers are little-endian. The tag is over everything in front of it: HMAC-SHA-256 under a key that both hosts
//! have (protection 1), or SHA-256 without one (protection 0). A host with a key takes no state without. The sessions'
//! keys are in it, which the guest's memory has, too; nothing else that is secret is. A state comes from outside:
//! its length is bounded, its tag is compared before anything else behind the first three numbers is read, and a state
//! that does not parse to its last byte is refused whole.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use zeroize::Zeroizing;

use super::journal::KeptSession;
use super::state_key::{StateKey, TAG_LEN, is_same, tag};
use crate::request::{self, MAX_KEY_LEN, RequestFormat, SessionCommand};
use crate::session::MAX_SESSIONS;
use crate::spec::{CONTROL_HEADER_LEN, CONTROL_LEGACY_LEN};

const MAGIC: [u8; 4] = *b"mrvc";

/// Version of the layout. A device refuses every other: version 1 had no tag.
const VERSION: u32 = 2;

/// Values of the field that says what the tag is.
const DIGEST: u32 = 0;
const KEYED: u32 = 1;

const HEADER_LEN: usize = 32;

/// Bound on the request that made a session, in bytes.
const MAX_REQUEST: usize = CONTROL_HEADER_LEN + CONTROL_LEGACY_LEN + MAX_KEY_LEN;

/// Bound on a state, in bytes: about 34 MiB.
const MAX_STATE: usize = HEADER_LEN + MAX_SESSIONS * (12 + MAX_REQUEST) + TAG_LEN;

/// Bound on the time that a monitor takes for a state after it asked whether all of it has gone over.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);

/// The sessions of a device without its rings.
#[derive(Debug, Default)]
pub struct MigrationState {
    /// The features that the driver acknowledged: they say how the requests read.
    pub(super) features: u64,
    /// The first id that no session has had.
    pub(super) next: u64,
    /// In the order of their ids.
    pub(super) sessions: Vec<KeptSession>,
}

fn malformed(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the state of a device: {reason}"))
}

fn word(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn long(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

impl MigrationState {
    /// Writes the state, with a tag under the key if there is one.
    pub fn write(&self, mut to: impl Write, key: Option<&StateKey>) -> io::Result<()> {
        let Self { features, next, sessions } = self;
        let requests: usize = sessions.iter().map(|(_, request)| 12 + request.len()).sum();
        // Growing would leave copies of keys in freed memory.
        let mut state = Zeroizing::new(Vec::with_capacity(HEADER_LEN + requests + TAG_LEN));
        let number = |value: usize| u32::try_from(value).map_err(io::Error::other);
        state.extend(MAGIC);
        state.extend(VERSION.to_le_bytes());
        state.extend(if key.is_some() { KEYED } else { DIGEST }.to_le_bytes());
        state.extend(features.to_le_bytes());
        state.extend(next.to_le_bytes());
        state.extend(number(sessions.len())?.to_le_bytes());
        for (id, request) in sessions {
            state.extend(id.to_le_bytes());
            state.extend(number(request.len())?.to_le_bytes());
            state.extend_from_slice(request);
        }
        let tag = tag(key, &state)?;
        state.extend(tag);
        to.write_all(&state)?;
        to.flush()
    }

    /// Reads a state to the end of `from`. With a key, only a state with a tag under that key is one.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] or [`io::ErrorKind::UnexpectedEof`] if it is none, of another version, damaged,
    /// protected in another way, or cut off.
    pub fn read(from: impl Read, key: Option<&StateKey>) -> io::Result<Self> {
        let mut state = Zeroizing::new(Vec::new());
        let most = u64::try_from(MAX_STATE).unwrap_or(u64::MAX);
        from.take(most + 1).read_to_end(&mut state)?;
        let rest = &mut &state[..];
        let mut magic = [0; 4];
        rest.read_exact(&mut magic)?;
        if magic != MAGIC {
            return Err(malformed("it is not one of this program"));
        }
        let version = word(rest)?;
        if version != VERSION {
            let whose = if version < VERSION {
                "upgrade millrace on the host that it comes from"
            } else {
                "upgrade millrace on this host"
            };
            return Err(malformed(&format!("version {version}, not {VERSION}: {whose}")));
        }
        match (word(rest)?, key.is_some()) {
            (KEYED, true) | (DIGEST, false) => {}
            (KEYED, false) => return Err(malformed("it is under a key: give --state-key here")),
            (DIGEST, true) => {
                return Err(malformed("it is under no key: give --state-key where it comes from"));
            }
            _ => return Err(malformed("its protection is not known")),
        }
        let (body, found) = state.split_last_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
        if state.len() > MAX_STATE || !is_same(&tag(key, body)?, found) {
            return Err(malformed("it is damaged, cut off, or under another key"));
        }
        Self::parse(body.get(12..).unwrap_or_default())
    }

    /// Reads what is behind the first three numbers of a state, without its tag.
    fn parse(mut from: &[u8]) -> io::Result<Self> {
        let from = &mut from;
        let (features, next) = (long(from)?, long(from)?);
        let count = usize::try_from(word(from)?).unwrap_or(usize::MAX);
        if count > MAX_SESSIONS {
            return Err(malformed("too many sessions"));
        }
        let mut sessions: Vec<KeptSession> = Vec::new();
        for _ in 0..count {
            let id = long(from)?;
            let former = sessions.last().map_or(0, |(id, _)| *id);
            if id <= former || id >= next {
                return Err(malformed("the ids of its sessions are out of order"));
            }
            let len = usize::try_from(word(from)?).unwrap_or(usize::MAX);
            if len > MAX_REQUEST {
                return Err(malformed("a session is too long"));
            }
            let request = from.split_off(..len).ok_or(io::ErrorKind::UnexpectedEof)?;
            if !matches!(
                request::control(RequestFormat::new(features), request),
                Ok(SessionCommand::Create(_))
            ) {
                return Err(malformed("a session is malformed"));
            }
            sessions.push((id, Zeroizing::new(request.to_vec())));
        }
        if from.is_empty() {
            Ok(Self { features, next, sessions })
        } else {
            Err(malformed("bytes behind its end"))
        }
    }

    /// Appends a tag to what stands in front of one, for tests of the parser behind it.
    #[cfg(any(test, feature = "fuzzing"))]
    #[must_use]
    pub fn tagged(body: &[u8], key: Option<&StateKey>) -> Vec<u8> {
        [body, &tag(key, body).unwrap_or_default()].concat()
    }
}

/// A state on its way from or to a monitor, on a thread of its own: the monitor reads or writes only after the device
/// has answered its message.
#[derive(Debug)]
pub(super) struct Transfer(Receiver<io::Result<Option<MigrationState>>>);

impl Transfer {
    /// Starts to write a state, and closes the file at its end.
    pub(super) fn save(
        state: MigrationState,
        file: File,
        key: Option<Arc<StateKey>>,
    ) -> io::Result<Self> {
        Self::start(move || state.write(file, key.as_deref()).map(|()| None))
    }

    /// Starts to read a state.
    pub(super) fn load(file: File, key: Option<Arc<StateKey>>) -> io::Result<Self> {
        Self::start(move || MigrationState::read(file, key.as_deref()).map(Some))
    }

    fn start(
        work: impl FnOnce() -> io::Result<Option<MigrationState>> + Send + 'static,
    ) -> io::Result<Self> {
        let (result, results) = mpsc::channel();
        thread::Builder::new().name("virtio-state".to_owned()).spawn(move || {
            // Fails only if the connection has ended during the transfer.
            let _ = result.send(work());
        })?;
        Ok(Self(results))
    }

    /// Waits for the end, and returns the state that was read.
    pub(super) fn finish(self) -> io::Result<Option<MigrationState>> {
        let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
        self.0.recv_timeout(TRANSFER_TIMEOUT).map_err(timed_out)?
    }
}

#[cfg(test)]
mod tests {
    use millrace_virtio_guest::{cipher_session, control_request};
    use proptest::prelude::*;

    use super::*;

    fn session(id: u64) -> KeptSession {
        let request = [&cipher_session(3, 32, 1)[..], &[7; 32]].concat();
        (id, Zeroizing::new(request))
    }

    fn key(byte: u8) -> StateKey {
        StateKey::new([byte; 32])
    }

    fn bytes(state: &MigrationState, key: Option<&StateKey>) -> Vec<u8> {
        let mut bytes = Vec::new();
        state.write(&mut bytes, key).unwrap();
        bytes
    }

    fn read(bytes: &[u8], key: Option<&StateKey>) -> Result<MigrationState, String> {
        MigrationState::read(bytes, key).map_err(|error| error.to_string())
    }

    fn good() -> MigrationState {
        MigrationState { features: 1 << 32, next: 9, sessions: vec![session(2), session(8)] }
    }

    /// The good state without its tag.
    fn body() -> Vec<u8> {
        let mut whole = bytes(&good(), None);
        whole.truncate(whole.len() - TAG_LEN);
        whole
    }

    #[test]
    fn state_that_was_written_reads_the_same() {
        for key in [None, Some(&key(1))] {
            for state in [MigrationState::default(), good()] {
                let found = read(&bytes(&state, key), key).unwrap();
                assert_eq!(found.features, state.features);
                assert_eq!(found.next, state.next);
                assert_eq!(found.sessions, state.sessions);
            }
        }
    }

    #[test]
    fn state_with_any_one_bit_changed_is_refused() {
        for key in [None, Some(&key(1))] {
            let whole = bytes(&good(), key);
            for bit in 0..8 * whole.len() {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&bytes, key).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn state_under_another_key_or_none_is_refused_and_the_reason_says_what_to_do() {
        let (plain, keyed) = (bytes(&good(), None), bytes(&good(), Some(&key(1))));
        let mut older = plain.clone();
        older[4] = 1;
        let mut newer = plain.clone();
        newer[4] = 3;
        for (bytes, with, reason) in [
            (&plain, Some(key(1)), "give --state-key where it comes from"),
            (&keyed, None, "give --state-key here"),
            (&keyed, Some(key(2)), "under another key"),
            (&older, None, "upgrade millrace on the host that it comes from"),
            (&newer, None, "upgrade millrace on this host"),
        ] {
            let error = read(bytes, with.as_ref()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        // A forged digest does not stand in for the key.
        let mut forged = keyed[..keyed.len() - TAG_LEN].to_vec();
        assert!(read(&MigrationState::tagged(&forged, None), Some(&key(1))).is_err());
        forged[8] = 0;
        assert!(read(&MigrationState::tagged(&forged, None), Some(&key(1))).is_err());
    }

    #[test]
    fn state_that_is_cut_off_changed_or_too_long_is_refused() {
        let whole = body();
        for end in 0..whole.len() {
            assert!(
                read(&MigrationState::tagged(&whole[..end], None), None).is_err(),
                "{end} bytes"
            );
        }
        let with = |place: usize, value: &[u8]| {
            let mut bytes = whole.clone();
            bytes[place..place + value.len()].copy_from_slice(value);
            bytes
        };
        for (what, bytes) in [
            ("a byte behind the end", [&whole[..], &[0]].concat()),
            ("a partial state before a whole one", [&whole[..44], &whole[..]].concat()),
            ("another magic", with(0, b"MRVC")),
            ("another version", with(4, &3_u32.to_le_bytes())),
            ("another protection", with(8, &2_u32.to_le_bytes())),
            ("a session more", with(28, &3_u32.to_le_bytes())),
            ("more sessions than a device has", with(28, &u32::MAX.to_le_bytes())),
            ("an id of 0", with(32, &0_u64.to_le_bytes())),
            ("the second id first", with(32, &8_u64.to_le_bytes())),
            ("an id that is not given out yet", with(20, &8_u64.to_le_bytes())),
            ("a request of 4 GiB", with(40, &u32::MAX.to_le_bytes())),
        ] {
            assert!(read(&MigrationState::tagged(&bytes, None), None).is_err(), "{what}");
        }
        assert!(
            read(&MigrationState::tagged(&whole, None), None).is_ok(),
            "this test shows nothing"
        );
        let destroy = (2, Zeroizing::new(control_request(3, &[0; 8])));
        let state = MigrationState { sessions: vec![destroy], ..good() };
        assert!(read(&bytes(&state, None), None).is_err(), "a request that makes no session");
        let long = vec![0; MAX_STATE];
        assert!(
            read(&MigrationState::tagged(&[&whole[..12], &long].concat(), None), None).is_err()
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_bounded_state_or_refused(
            head in proptest::collection::vec(any::<u8>(), 0..64),
            rest in proptest::collection::vec(any::<u8>(), 0..256),
        ) {
            for start in [0, 12, 32] {
                let bytes = [&body()[..start], &head[..], &rest[..]].concat();
                if let Ok(state) = read(&MigrationState::tagged(&bytes, None), None) {
                    prop_assert!(state.sessions.len() <= MAX_SESSIONS);
                }
            }
        }
    }
}
