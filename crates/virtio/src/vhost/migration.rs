// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The state of a device that moves to another host with its machine: the requests that made its sessions.
//!
//! ```text
//!  0       4         8          16        24      28
//!  │ magic │ version │ features │ next id │ count │ count times: id 8, length 4, request
//! ```
//!
//! All numbers are little-endian. The sessions' keys are in it, which the guest's memory has, too; nothing else that is
//! secret is. A state comes from outside: every length is compared with its bound before anything is allocated, and a
//! state that does not parse to its last byte is refused whole.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use zeroize::Zeroizing;

use super::journal::KeptSession;
use crate::request::{self, MAX_KEY_LEN, RequestFormat, SessionCommand};
use crate::session::MAX_SESSIONS;
use crate::spec::{CONTROL_HEADER_LEN, CONTROL_LEGACY_LEN};

const MAGIC: [u8; 4] = *b"mrvc";

/// Version of the layout. A device refuses every other.
const VERSION: u32 = 1;

/// Bound on the request that made a session, in bytes.
const MAX_REQUEST: usize = CONTROL_HEADER_LEN + CONTROL_LEGACY_LEN + MAX_KEY_LEN;

/// Bound on the time that a monitor takes for a state after it asked whether all of it has gone over. A state has at
/// most 34 MiB.
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
    /// Writes the state.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        let Self { features, next, sessions } = self;
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        to.write_all(&features.to_le_bytes())?;
        to.write_all(&next.to_le_bytes())?;
        to.write_all(&u32::try_from(sessions.len()).map_err(io::Error::other)?.to_le_bytes())?;
        for (id, request) in sessions {
            to.write_all(&id.to_le_bytes())?;
            to.write_all(&u32::try_from(request.len()).map_err(io::Error::other)?.to_le_bytes())?;
            to.write_all(request)?;
        }
        to.flush()
    }

    /// Reads a state to the end of `from`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] or [`io::ErrorKind::UnexpectedEof`] if it is none, of another version, or cut
    /// off.
    pub fn read(mut from: impl Read) -> io::Result<Self> {
        let from = &mut from;
        let mut magic = [0; 4];
        from.read_exact(&mut magic)?;
        if magic != MAGIC {
            return Err(malformed("it is not one of this program"));
        }
        let version = word(from)?;
        if version != VERSION {
            return Err(malformed(&format!("version {version}, this program has {VERSION}")));
        }
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
            let mut request = Zeroizing::new(vec![0; len]);
            from.read_exact(&mut request)?;
            if !matches!(
                request::control(RequestFormat::new(features), &request),
                Ok(SessionCommand::Create(_))
            ) {
                return Err(malformed("a session is malformed"));
            }
            sessions.push((id, request));
        }
        match from.read(&mut [0])? {
            0 => Ok(Self { features, next, sessions }),
            _ => Err(malformed("bytes behind its end")),
        }
    }
}

/// A state on its way from or to a monitor, on a thread of its own: the monitor reads or writes only after the device
/// has answered its message.
#[derive(Debug)]
pub(super) struct Transfer(Receiver<io::Result<Option<MigrationState>>>);

impl Transfer {
    /// Starts to write a state, and closes the file at its end.
    pub(super) fn save(state: MigrationState, file: File) -> io::Result<Self> {
        Self::start(move || state.write(io::BufWriter::new(file)).map(|()| None))
    }

    /// Starts to read a state.
    pub(super) fn load(file: File) -> io::Result<Self> {
        Self::start(move || MigrationState::read(io::BufReader::new(file)).map(Some))
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

    fn bytes(state: &MigrationState) -> Vec<u8> {
        let mut bytes = Vec::new();
        state.write(&mut bytes).unwrap();
        bytes
    }

    fn good() -> MigrationState {
        MigrationState { features: 1 << 32, next: 9, sessions: vec![session(2), session(8)] }
    }

    #[test]
    fn state_that_was_written_reads_the_same() {
        for state in [MigrationState::default(), good()] {
            let read = MigrationState::read(&bytes(&state)[..]).unwrap();
            assert_eq!(read.features, state.features);
            assert_eq!(read.next, state.next);
            assert_eq!(read.sessions, state.sessions);
        }
    }

    #[test]
    fn state_that_is_cut_off_changed_or_too_long_is_refused() {
        let whole = bytes(&good());
        for end in 0..whole.len() {
            assert!(MigrationState::read(&whole[..end]).is_err(), "{end} bytes");
        }
        let with = |place: usize, value: &[u8]| {
            let mut bytes = whole.clone();
            bytes[place..place + value.len()].copy_from_slice(value);
            bytes
        };
        for (what, bytes) in [
            ("a byte behind the end", [&whole[..], &[0]].concat()),
            ("a partial state before a whole one", [&whole[..40], &whole[..]].concat()),
            ("another magic", with(0, b"MRVC")),
            ("another version", with(4, &2_u32.to_le_bytes())),
            ("a session more", with(24, &3_u32.to_le_bytes())),
            ("more sessions than a device has", with(24, &u32::MAX.to_le_bytes())),
            ("an id of 0", with(28, &0_u64.to_le_bytes())),
            ("the second id first", with(28, &8_u64.to_le_bytes())),
            ("an id that is not given out yet", with(16, &8_u64.to_le_bytes())),
            ("a request of 4 GiB", with(36, &u32::MAX.to_le_bytes())),
        ] {
            assert!(MigrationState::read(&bytes[..]).is_err(), "{what}");
        }
        let destroy = (2, Zeroizing::new(control_request(3, &[0; 8])));
        let state = MigrationState { sessions: vec![destroy], ..good() };
        assert!(
            MigrationState::read(&bytes(&state)[..]).is_err(),
            "a request that makes no session"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_bounded_state_or_refused(
            head in proptest::collection::vec(any::<u8>(), 0..64),
            rest in proptest::collection::vec(any::<u8>(), 0..256),
        ) {
            let good = bytes(&good());
            for start in [0, 8, 28] {
                let bytes = [&good[..start], &head[..], &rest[..]].concat();
                if let Ok(state) = MigrationState::read(&bytes[..]) {
                    prop_assert!(state.sessions.len() <= MAX_SESSIONS);
                }
            }
        }
    }
}
