// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Messages of a virtual machine monitor to a device since it connected. A new device process gets them again, and then
//! has the state of the former one; the positions of the rings are in the [journal](crate::vhost::Journal).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};

use super::message::{Message, REPLY_ACK, code};

/// The messages of a ring, in the order in which a new device process gets them: an enabled ring with a kick
/// descriptor runs, so that comes last.
const RING_MESSAGES: [u32; 7] = [
    code::SET_VRING_NUM,
    code::SET_VRING_ADDR,
    code::SET_VRING_BASE,
    code::SET_VRING_ERR,
    code::SET_VRING_CALL,
    code::SET_VRING_KICK,
    code::SET_VRING_ENABLE,
];

/// The messages of the device, in the order in which a new device process gets them.
const DEVICE_MESSAGES: [u32; 4] =
    [code::SET_PROTOCOL_FEATURES, code::SET_OWNER, code::SET_FEATURES, code::SET_MEM_TABLE];

/// Layout of SET_MEM_TABLE, in bytes: a header with the number of regions, and each region's guest address, size, user
/// address and offset in its file (vhost-user, "Memory regions description").
const TABLE_HEADER_LEN: usize = 8;
const REGION_LEN: usize = 32;
const REGION_SIZE: usize = 8;
const REGION_OFFSET: usize = 24;

/// The state of one connection, as messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Replay {
    device: BTreeMap<u32, Message>,
    rings: BTreeMap<u32, BTreeMap<u32, Message>>,
}

impl Replay {
    /// Keeps a message if it changes the state. Returns whether it does.
    pub(super) fn record(&mut self, message: &Message) -> bool {
        let code = message.code;
        if DEVICE_MESSAGES.contains(&code) {
            self.device.insert(code, message.quiet());
            return true;
        }
        if code == code::RESET_DEVICE {
            self.rings.clear();
            return false;
        }
        let ring = match code {
            // The ring is the lowest byte beside a flag.
            code::SET_VRING_ERR | code::SET_VRING_CALL | code::SET_VRING_KICK => {
                message.long().map(|value| (value & 0xff) as u32)
            }
            code if RING_MESSAGES.contains(&code) => message.word(),
            _ => None,
        };
        // A ring above the bound is refused by the device process, which ends the connection.
        let Some(ring) = ring.filter(|ring| *ring <= u32::from(crate::vhost::MAX_DATA_QUEUES))
        else {
            return false;
        };
        let messages = self.rings.entry(ring).or_default();
        messages.insert(code, message.quiet());
        true
    }

    /// A ring has stopped: the monitor tells its position, descriptors and state again when it starts.
    pub(super) fn stopped(&mut self, ring: u32) {
        if let Some(messages) = self.rings.get_mut(&ring) {
            messages.remove(&code::SET_VRING_KICK);
            messages.remove(&code::SET_VRING_CALL);
        }
    }

    /// Whether acknowledgements were agreed on.
    pub(super) fn has_acknowledgements(&self) -> bool {
        self.has_agreed(REPLY_ACK)
    }

    /// Whether a feature of the protocol was agreed on.
    pub(super) fn has_agreed(&self, feature: u64) -> bool {
        let features = self.device.get(&code::SET_PROTOCOL_FEATURES);
        features.and_then(Message::long).is_some_and(|features| features & feature != 0)
    }

    /// Whether a driver has started: a ring has its kick descriptor and is enabled.
    pub(super) fn is_running(&self) -> bool {
        let enabled = |messages: &BTreeMap<u32, Message>| {
            messages.contains_key(&code::SET_VRING_KICK)
                && messages
                    .get(&code::SET_VRING_ENABLE)
                    .and_then(|message| message.body.get(4..)?.first_chunk::<4>())
                    .map(|bytes| u32::from_le_bytes(*bytes))
                    == Some(1)
        };
        self.rings.values().any(enabled)
    }

    /// Fails if a file with the memory of the machine has become shorter than its table says: a device process that
    /// reads beyond its end dies, and the machines at the other sockets wait for the next one.
    pub(super) fn check_memory(&self) -> io::Result<()> {
        let Some(table) = self.device.get(&code::SET_MEM_TABLE) else {
            return Ok(());
        };
        let regions = table.body.get(TABLE_HEADER_LEN..).unwrap_or_default();
        for (region, file) in regions.chunks_exact(REGION_LEN).zip(&table.files) {
            let field = |at: usize| {
                let bytes = region[at..].first_chunk().copied().unwrap_or_default();
                u64::from_le_bytes(bytes)
            };
            let end = field(REGION_SIZE).saturating_add(field(REGION_OFFSET));
            let status = fstat(file)?;
            let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
            if is_file && u64::try_from(status.st_size).is_ok_and(|size| size < end) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the file with its memory is shorter than its table of regions says",
                ));
            }
        }
        Ok(())
    }

    /// Sends the recorded messages to a new device process, and waits until it has taken them.
    pub(super) fn replay_to(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        ask(device, code::GET_FEATURES)?;
        ask(device, code::GET_PROTOCOL_FEATURES)?;
        for code in DEVICE_MESSAGES {
            if let Some(message) = self.device.get(&code) {
                message.write(device)?;
            }
        }
        for messages in self.rings.values() {
            for code in RING_MESSAGES {
                if let Some(message) = messages.get(&code) {
                    message.write(device)?;
                }
            }
        }
        // The messages are handled in their order, and one that is refused ends the connection.
        ask(device, code::GET_FEATURES)?;
        self.notify();
        Ok(())
    }

    /// Makes the device look at every ring, and the guest at every answer: notifications that the former process took
    /// or owed are lost.
    fn notify(&self) {
        let descriptors = [code::SET_VRING_KICK, code::SET_VRING_CALL];
        for messages in self.rings.values() {
            let messages = descriptors.iter().filter_map(|code| messages.get(code));
            for file in messages.flat_map(|message| &message.files) {
                // The monitor chose the descriptor: one that is full must not stop this process.
                if fcntl_getfl(file)
                    .and_then(|flags| fcntl_setfl(file, flags | OFlags::NONBLOCK))
                    .is_err()
                {
                    continue;
                }
                // Fails only if the counter of the event is full, and then the other side is awake.
                let _ = rustix::io::write(file.as_fd(), &1_u64.to_ne_bytes());
            }
        }
    }

    /// All messages, for the next front process.
    pub(super) fn messages(&self) -> impl Iterator<Item = &Message> {
        let rings = self.rings.values().flat_map(BTreeMap::values);
        self.device.values().chain(rings)
    }
}

/// Asks a device process, and waits for its answer.
pub(super) fn ask(device: BorrowedFd<'_>, code: u32) -> io::Result<Message> {
    Message::new(code, Vec::new()).write(device)?;
    reply(device, code)
}

/// Waits for the reply of the device process to a message with this code.
pub(super) fn reply(device: BorrowedFd<'_>, code: u32) -> io::Result<Message> {
    match Message::read(device)? {
        Some(message) if message.code == code => Ok(message),
        Some(_) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the device process answered another message",
        )),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;
    use crate::vhost::MAX_DATA_QUEUES;

    /// The replay of a monitor that sends these messages.
    fn said(messages: &[(u32, u32, Vec<u8>)]) -> Replay {
        let (mut here, there) = UnixStream::pair().unwrap();
        let mut replay = Replay::default();
        for (code, flags, body) in messages {
            let len = u32::try_from(body.len()).unwrap();
            let header = [*code, *flags, len].map(u32::to_le_bytes).concat();
            here.write_all(&[&header, &body[..]].concat()).unwrap();
            let message = Message::read(there.as_fd()).unwrap().unwrap();
            replay.record(&message);
        }
        replay
    }

    proptest! {
        #[test]
        fn any_messages_leave_a_bounded_state(
            messages in proptest::collection::vec(
                (0_u32..50, any::<u32>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..60),
        ) {
            let mut replay = said(&messages);
            prop_assert!(replay.rings.len() <= usize::from(MAX_DATA_QUEUES) + 1);
            prop_assert!(replay.messages().count() <= 4 + 7 * replay.rings.len());
            let _ = (replay.is_running(), replay.has_acknowledgements());
            replay.stopped(0);
        }
    }

    #[test]
    fn ring_runs_between_its_kick_descriptor_and_its_stop() {
        let word = |value: u32| value.to_le_bytes().to_vec();
        let enable = [word(0), word(1)].concat();
        let kick = 0_u64.to_le_bytes().to_vec();
        let mut messages = vec![(code::SET_VRING_ENABLE, 1, enable)];
        assert!(!said(&messages).is_running());
        messages.push((code::SET_VRING_KICK, 1, kick));
        let mut replay = said(&messages);
        assert!(replay.is_running());
        replay.stopped(1);
        assert!(replay.is_running());
        replay.stopped(0);
        assert!(!replay.is_running());
    }
}
