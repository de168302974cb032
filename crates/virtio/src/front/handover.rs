// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! An upgrade of the front process: every descriptor and what the monitors have said wait in a socket while the
//! process runs its new program, which takes them from its standard input.
//!
//! ```text
//!  packet 1   memory file with JSON
//!  packet 2…  descriptors, in the order in which the JSON names them
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::message::{MAX_PACKET_FILES, Message, receive_packet, send_packet};
use super::process::packets;
use super::{Connection, FrontDevice, lock};
use crate::vhost::Journal;

/// The variable that tells a program that its standard input has the state of a former one.
pub const HANDOVER: &str = "MILLRACE_VIRTIO_HANDOVER";

/// Bound on the JSON, in bytes: 256 devices at about 30 KiB.
const MAX_JSON: u64 = 16 << 20;

#[derive(Serialize, Deserialize)]
struct PackedState {
    restarts: u64,
    devices: Vec<PackedDevice>,
}

/// A device; its descriptors are the listening socket, the journal, and those of the connection.
#[derive(Serialize, Deserialize)]
struct PackedDevice {
    path: PathBuf,
    connection: Option<PackedConnection>,
}

/// A connection; its descriptors are the socket, the channel, and those of each message.
#[derive(Serialize, Deserialize)]
struct PackedConnection {
    has_channel: bool,
    /// Named as in the state that former versions hand over.
    #[serde(rename = "told_ready")]
    announced_ready: Option<bool>,
    messages: Vec<(Message, usize)>,
}

/// Packs everything, and returns the descriptor that [`HandedState::receive`] reads.
pub(super) fn pack(devices: &[FrontDevice], restarts: u64) -> io::Result<OwnedFd> {
    let mut files = Vec::new();
    let mut packed = Vec::new();
    for device in devices {
        files.push(device.listener.as_fd().try_clone_to_owned()?);
        files.push(device.journal.file().try_clone_to_owned()?);
        let connection = lock(&device.connection);
        let connection = match connection.as_ref() {
            Some(connection) => Some(pack_connection(connection, &mut files)?),
            None => None,
        };
        packed.push(PackedDevice { path: device.settings.path.clone(), connection });
    }
    let state = PackedState { restarts, devices: packed };
    let mut json = File::from(memfd_create("millrace-virtio-state", MemfdFlags::CLOEXEC)?);
    json.write_all(&serde_json::to_vec(&state)?)?;
    let (here, there) = packets()?;
    send_packet(here.as_fd(), b"state", &[json.as_fd()])?;
    for part in files.chunks(MAX_PACKET_FILES) {
        let part: Vec<BorrowedFd<'_>> = part.iter().map(AsFd::as_fd).collect();
        send_packet(here.as_fd(), b"files", &part)?;
    }
    Ok(there)
}

fn pack_connection(
    connection: &Connection,
    files: &mut Vec<OwnedFd>,
) -> io::Result<PackedConnection> {
    files.push(connection.monitor.as_fd().try_clone_to_owned()?);
    if let Some(channel) = &connection.channel {
        files.push(channel.try_clone()?);
    }
    let mut messages = Vec::new();
    for message in connection.replay.messages() {
        for file in &message.files {
            files.push(file.try_clone()?);
        }
        messages.push((message.clone(), message.files.len()));
    }
    Ok(PackedConnection {
        has_channel: connection.channel.is_some(),
        announced_ready: connection.announced_ready,
        messages,
    })
}

/// State that a former program has handed over.
#[derive(Debug, Default)]
pub struct HandedState {
    restarts: u64,
    devices: BTreeMap<PathBuf, HandedDevice>,
}

pub(super) struct HandedDevice {
    pub(super) listener: UnixListener,
    pub(super) journal: Journal,
    pub(super) connection: Option<Connection>,
}

impl std::fmt::Debug for HandedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandedDevice")
    }
}

impl HandedState {
    /// Takes it from the standard input of this process.
    pub fn receive() -> io::Result<Self> {
        Self::unpack(io::stdin().as_fd())
    }

    fn unpack(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let (_, mut json) = receive_packet(socket)?.ok_or_else(invalid)?;
        let mut json = File::from(json.pop().ok_or_else(invalid)?);
        json.rewind()?;
        let mut text = Vec::new();
        json.take(MAX_JSON).read_to_end(&mut text)?;
        let state: PackedState = serde_json::from_slice(&text)?;
        let mut files = Vec::new();
        while let Some((_, part)) = receive_packet(socket)? {
            files.extend(part);
        }
        let mut files = files.into_iter();
        let mut devices = BTreeMap::new();
        for device in state.devices {
            let mut next = || files.next().ok_or_else(invalid);
            let listener = UnixListener::from(next()?);
            let journal = Journal::open(next()?)?;
            let connection = match device.connection {
                Some(packed) => Some(unpack_connection(packed, &mut next)?),
                None => None,
            };
            let handed = HandedDevice { listener, journal, connection };
            devices.insert(device.path, handed);
        }
        Ok(Self { restarts: state.restarts, devices })
    }

    pub(super) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// The device with this socket.
    pub(super) fn take(&mut self, path: &Path) -> Option<HandedDevice> {
        self.devices.remove(path)
    }
}

fn unpack_connection(
    packed: PackedConnection,
    next: &mut impl FnMut() -> io::Result<OwnedFd>,
) -> io::Result<Connection> {
    let mut connection = Connection::new(UnixStream::from(next()?));
    if packed.has_channel {
        connection.channel = Some(Arc::new(next()?));
    }
    for (mut message, count) in packed.messages {
        for _ in 0..count {
            message.files.push(Arc::new(next()?));
        }
        connection.replay.record(&message);
    }
    connection.announced_ready = packed.announced_ready;
    connection.running_since = connection.replay.is_running().then(Instant::now);
    Ok(connection)
}
