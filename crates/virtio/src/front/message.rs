// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Messages of the vhost-user protocol as bytes with descriptors, and packets with descriptors between our own
//! processes. Only the front process reads them so; the device process has rust-vmm's handler.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// Bound on the body of a message, in bytes: that of rust-vmm's handler.
const MAX_BODY: usize = 4096;

/// Bound on the descriptors of a message: a table of memory regions has at most 32.
const MAX_FILES: usize = 32;

/// Bound on the descriptors of a packet: the kernel's is 253.
pub(super) const MAX_PACKET_FILES: usize = 200;

/// Bound on the bytes of a packet: an order in JSON. The state of connections travels in a file.
pub(super) const MAX_PACKET: usize = 16 * 1024;

const HEADER_LEN: usize = 12;

/// Time within which a message that has begun must be whole. Monitors send a message in one piece.
pub(super) const WHOLE_WITHIN: Duration = Duration::from_secs(1);

const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// The requests that the front process knows. It hands on every other.
pub(super) mod code {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const SET_DEVICE_STATE_FD: u32 = 42;
    pub(crate) const CHECK_DEVICE_STATE: u32 = 43;
    /// Message on the channel from the device to the monitor: the configuration space has changed.
    pub(crate) const CONFIG_CHANGE: u32 = 2;
}

/// `VHOST_USER_PROTOCOL_F_REPLY_ACK`.
pub(super) const REPLY_ACK: u64 = 1 << 3;

/// `VHOST_USER_PROTOCOL_F_DEVICE_STATE`.
pub(super) const DEVICE_STATE: u64 = 1 << 19;

/// The bytes that have come on a connection and are not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peeked {
    Nothing,
    /// The beginning of a message.
    Part,
    Whole,
    /// The end of the connection, or no message.
    Broken,
}

/// A vhost-user message with the descriptors that travelled with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Message {
    pub(super) code: u32,
    flags: u32,
    pub(super) body: Vec<u8>,
    /// Handed on beside the rest.
    #[serde(skip)]
    pub(super) files: Vec<Arc<OwnedFd>>,
}

impl Message {
    /// A message of ours.
    pub(super) fn new(code: u32, body: Vec<u8>) -> Self {
        Self { code, flags: VERSION, body, files: Vec::new() }
    }

    /// A reply has the code of its request, and the flag that marks replies.
    pub(super) fn reply(&self, body: Vec<u8>) -> Self {
        Self { flags: VERSION | REPLY, ..Self::new(self.code, body) }
    }

    /// This message without a wish for an acknowledgement.
    pub(super) fn quiet(&self) -> Self {
        Self { flags: self.flags & !NEED_REPLY, ..self.clone() }
    }

    pub(super) fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// The first four bytes of the body: the ring in most messages of rings.
    pub(super) fn word(&self) -> Option<u32> {
        let bytes = self.body.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// The first eight bytes of the body.
    pub(super) fn long(&self) -> Option<u64> {
        let bytes = self.body.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    }

    /// Reads a message; `None` at the end of the connection. The rest of a message that has begun must come within
    /// [`WHOLE_WITHIN`], beside the timeout of the stream.
    pub(super) fn read(stream: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER_LEN];
        let mut files = Vec::new();
        let mut begun = None;
        if !fill(stream, &mut header, &mut files, &mut begun)? {
            return Ok(None);
        }
        let mut body = vec![0; body_len(&header)?];
        if !body.is_empty() && !fill(stream, &mut body, &mut files, &mut begun)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if files.len() > MAX_FILES {
            return Err(invalid("a message has too many descriptors"));
        }
        Ok(Some(Self {
            code: word(&header, 0),
            flags: word(&header, 4),
            body,
            files: files.into_iter().map(Arc::new).collect(),
        }))
    }

    /// Looks at what has come, without reading it.
    pub(super) fn peek(stream: BorrowedFd<'_>) -> Peeked {
        let mut bytes = [0; HEADER_LEN + MAX_BODY];
        let count = match recv(stream, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((count @ 1.., _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Peeked::Nothing,
            Ok(_) | Err(_) => return Peeked::Broken,
        };
        match body_len(&bytes) {
            _ if count < HEADER_LEN => Peeked::Part,
            Err(_) => Peeked::Broken,
            Ok(len) if count < HEADER_LEN + len => Peeked::Part,
            Ok(_) => Peeked::Whole,
        }
    }

    pub(super) fn write(&self, stream: BorrowedFd<'_>) -> io::Result<()> {
        let len = u32::try_from(self.body.len()).map_err(io::Error::other)?;
        let mut bytes = [self.code, self.flags, len].map(u32::to_le_bytes).concat();
        bytes.extend_from_slice(&self.body);
        let files: Vec<BorrowedFd<'_>> = self.files.iter().map(|file| file.as_fd()).collect();
        let mut sent = send(stream, &bytes, &files)?;
        while sent < bytes.len() {
            sent += send(stream, &bytes[sent..], &[])?;
        }
        Ok(())
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn word(header: &[u8], at: usize) -> u32 {
    let bytes = header.get(at..).and_then(|bytes| bytes.first_chunk()).copied();
    u32::from_le_bytes(bytes.unwrap_or_default())
}

/// Length of the body that a header announces.
fn body_len(header: &[u8]) -> io::Result<usize> {
    let len = usize::try_from(word(header, 8)).unwrap_or(usize::MAX);
    if len > MAX_BODY { Err(invalid("a message is too long")) } else { Ok(len) }
}

/// Fills `buffer` with a part of a message, which has `begun` at its first byte; false if the connection ends before
/// the first byte of the part.
fn fill(
    stream: BorrowedFd<'_>,
    buffer: &mut [u8],
    files: &mut Vec<OwnedFd>,
    begun: &mut Option<Instant>,
) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match receive(stream, &mut buffer[filled..], files)? {
            0 if filled == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
        let since = *begun.get_or_insert_with(Instant::now);
        if filled < buffer.len() && since.elapsed() > WHOLE_WITHIN {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(true)
}

fn receive(
    stream: BorrowedFd<'_>,
    buffer: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_FILES))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        match recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(got) => {
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = message {
                        files.extend(received);
                    }
                }
                return Ok(got.bytes);
            }
        }
    }
}

fn send(stream: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_FILES))];
    loop {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(invalid("too many descriptors for one message"));
        }
        let parts = [IoSlice::new(bytes)];
        match sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// Sends one packet, of at least one byte, over a socket of sequenced packets.
pub(super) fn send_packet(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send(socket, bytes, files).map(drop)
}

/// Receives one packet; `None` at the end of the connection.
pub(super) fn receive_packet(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_PACKET];
    let mut files = Vec::new();
    let len = receive(socket, &mut bytes, &mut files)?;
    bytes.truncate(len);
    Ok((len > 0).then_some((bytes, files)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn message_with_descriptors_arrives_whole_from_any_number_of_pieces() {
        let (here, there) = UnixStream::pair().unwrap();
        let file = Arc::new(OwnedFd::from(UnixStream::pair().unwrap().0));
        let mut sent = Message::new(code::SET_VRING_KICK, vec![7; 8]);
        sent.files = vec![Arc::clone(&file), file];
        sent.write(here.as_fd()).unwrap();
        let got = Message::read(there.as_fd()).unwrap().unwrap();
        assert_eq!((got.code, &got.body), (sent.code, &sent.body));
        assert_eq!(got.files.len(), 2);
        let bytes =
            [[1_u32, 1 | NEED_REPLY, 4].map(u32::to_le_bytes).concat(), vec![9; 4]].concat();
        let mut writer = here.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            for byte in bytes {
                writer.write_all(&[byte]).unwrap();
            }
        });
        let got = Message::read(there.as_fd()).unwrap().unwrap();
        assert!(got.needs_reply() && !got.quiet().needs_reply());
        assert_eq!((got.code, got.word()), (1, Some(0x0909_0909)));
        sender.join().unwrap();
        drop(here);
        assert!(Message::read(there.as_fd()).unwrap().is_none());
    }

    #[test]
    fn message_that_is_too_long_or_cut_off_is_refused() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let header = [1_u32, 1, u32::MAX].map(u32::to_le_bytes).concat();
        here.write_all(&header).unwrap();
        assert!(Message::read(there.as_fd()).is_err());
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&header[..7]).unwrap();
        drop(here);
        assert!(Message::read(there.as_fd()).is_err());
    }

    #[test]
    fn message_that_drips_is_refused_after_its_time() {
        let (mut here, there) = UnixStream::pair().unwrap();
        there.set_read_timeout(Some(WHOLE_WITHIN)).unwrap();
        let sender = std::thread::spawn(move || {
            while here.write_all(&[0]).is_ok() {
                std::thread::sleep(WHOLE_WITHIN / 4);
            }
        });
        assert!(Message::read(there.as_fd()).is_err(), "its twelfth byte would be its last");
        drop(there);
        sender.join().unwrap();
    }

    #[test]
    fn peek_sees_a_whole_message_and_reads_nothing() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let peeked = || Message::peek(there.as_fd());
        assert_eq!(peeked(), Peeked::Nothing);
        let bytes = [[1_u32, 1, 4].map(u32::to_le_bytes).concat(), vec![9; 4]].concat();
        for byte in &bytes {
            assert_ne!(peeked(), Peeked::Whole);
            here.write_all(&[*byte]).unwrap();
        }
        assert_eq!(peeked(), Peeked::Whole);
        assert_eq!(Message::read(there.as_fd()).unwrap().unwrap().body, [9; 4]);
        here.write_all(&[0xff; HEADER_LEN]).unwrap();
        assert_eq!(peeked(), Peeked::Broken);
    }
}
