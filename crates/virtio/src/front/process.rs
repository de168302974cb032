// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The device process, from both sides. It gets its sockets and journals over its standard input, and ends when that
//! ends.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::message::{receive_packet, send_packet};
use super::{FrontDevice, lock};
use crate::device::DeviceLimits;
use crate::vhost::{Journal, SocketSettings};

/// A packet to the device process.
#[derive(Serialize, Deserialize)]
enum Order {
    /// A device: with its listening socket and its journal.
    Device { path: PathBuf, identity: String, data_queues: u16, ops: Option<u64>, bps: Option<u64> },
    /// The last packet: with the listening socket for `status`.
    Control,
}

/// The child that runs the devices; the front process starts another when it ends.
pub(super) struct DeviceProcess {
    program: Box<dyn Fn() -> Command + Send + Sync>,
    folder: PathBuf,
    listeners: Vec<UnixListener>,
    control: UnixListener,
    running: Mutex<Option<Running>>,
    is_ending: AtomicBool,
}

struct Running {
    child: Child,
    /// The other end is the standard input of the child.
    orders: OwnedFd,
}

impl DeviceProcess {
    /// `listeners` are in the order of the devices.
    pub(super) fn new(
        program: Box<dyn Fn() -> Command + Send + Sync>,
        folder: PathBuf,
        listeners: Vec<UnixListener>,
        control: UnixListener,
    ) -> Self {
        Self {
            program,
            folder,
            listeners,
            control,
            running: Mutex::default(),
            is_ending: AtomicBool::new(false),
        }
    }

    /// Starts it and hands it everything. Returns a descriptor that ends with it.
    pub(super) fn start(&self, devices: &[FrontDevice]) -> io::Result<OwnedFd> {
        let (orders, theirs) = packets()?;
        let child = (self.program)().stdin(Stdio::from(theirs)).spawn()?;
        let watched = orders.try_clone()?;
        *lock(&self.running) = Some(Running { child, orders });
        for (device, listener) in devices.iter().zip(&self.listeners) {
            let settings = &device.settings;
            let order = Order::Device {
                path: settings.path.clone(),
                identity: settings.identity.to_string(),
                data_queues: settings.data_queues,
                ops: settings.limits.ops,
                bps: settings.limits.bps,
            };
            let files = [listener.as_fd(), device.journal.file()];
            send_packet(watched.as_fd(), &serde_json::to_vec(&order)?, &files)?;
        }
        let last = serde_json::to_vec(&Order::Control)?;
        send_packet(watched.as_fd(), &last, &[self.control.as_fd()])?;
        Ok(watched)
    }

    /// Waits for the end of the device process.
    pub(super) fn wait(&self, watched: OwnedFd) {
        // It sends nothing: this returns when it has ended.
        let _ = receive_packet(watched.as_fd());
        let running = lock(&self.running).take();
        if let Some(mut running) = running {
            let _ = running.child.wait();
        }
    }

    /// Process id of the device process, while it runs.
    pub(super) fn id(&self) -> Option<u32> {
        lock(&self.running).as_ref().map(|running| running.child.id())
    }

    /// Kills it. Its work is in the journals.
    pub(super) fn kill(&self) {
        if let Some(running) = lock(&self.running).as_mut() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }

    /// Ends the device process for good.
    pub(super) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        if let Some(running) = lock(&self.running).as_ref() {
            let _ = shutdown(&running.orders, Shutdown::Both);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }
}

/// A pair of sockets for packets.
pub(super) fn packets() -> io::Result<(OwnedFd, OwnedFd)> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok(pair)
}

/// Makes a folder of this user alone, or takes the one that a former process has left.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(path)?;
            let is_ours =
                found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0;
            if is_ours {
                return Ok(());
            }
            Err(io::Error::other(
                "there is something that is not a folder of this user alone: remove it",
            ))
        }
        made => made,
    }
}

/// Sockets and journals that a device process gets from its front process.
pub struct DeviceOrders {
    /// The devices, each with its listening socket and its journal.
    pub devices: Vec<(SocketSettings, UnixListener, Journal)>,
    /// The listening socket for `status` and its like.
    pub control: UnixListener,
    orders: OwnedFd,
}

impl DeviceOrders {
    /// Takes them from the standard input of this process.
    pub fn receive() -> io::Result<Self> {
        let orders = io::stdin().as_fd().try_clone_to_owned()?;
        let mut devices = Vec::new();
        loop {
            let Some((bytes, files)) = receive_packet(orders.as_fd())? else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let mut files = files.into_iter();
            let mut next = || files.next().ok_or(io::ErrorKind::InvalidData);
            match serde_json::from_slice(&bytes)? {
                Order::Device { path, identity, data_queues, ops, bps } => {
                    let settings = SocketSettings {
                        path,
                        identity: identity.into(),
                        data_queues,
                        limits: DeviceLimits { ops, bps },
                    };
                    let listener = UnixListener::from(next()?);
                    devices.push((settings, listener, Journal::open(next()?)?));
                }
                Order::Control => {
                    return Ok(Self { devices, control: UnixListener::from(next()?), orders });
                }
            }
        }
    }

    /// A descriptor that [`wait_for_end`] waits for.
    pub fn end(&self) -> io::Result<OwnedFd> {
        self.orders.try_clone()
    }
}

/// Waits until the front process has ended, or wants this process to end. Calls `tick` each second.
pub fn wait_for_end(end: &OwnedFd, mut tick: impl FnMut()) {
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    loop {
        let mut polled = [PollFd::new(end, PollFlags::IN)];
        match poll(&mut polled, Some(&second)) {
            Ok(0) => tick(),
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

impl fmt::Debug for DeviceOrders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self.devices.iter().map(|(settings, ..)| &settings.path);
        f.debug_list().entries(paths).finish()
    }
}
