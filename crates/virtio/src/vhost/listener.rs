// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sockets for virtual machine monitors: one device per socket, a new one for each connection.
//!
//! QEMU 11.1 aborts when a backend goes away and comes back, so a process with devices ends only when no machine is
//! connected. [`Devices::drain`] clears `HW_READY` for drivers that read it, and [`Devices::connected`] tells the
//! rest.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use millrace_service::Service;
use millrace_service::sink::SessionSink;
use millrace_wire::EdgeReport;
use serde::Serialize;
use thiserror::Error;
use tracing::{error, info, warn};
use vhost::vhost_user::{Error as VhostError, Listener};
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use super::backend::{Backend, OfProcess};
use super::journal::Journal;
use super::mailbox::Mailbox;
use super::state_key::StateKey;
use crate::device::{Device, DeviceLimits, LimitsChange};
use crate::job_target::{JobTarget, ServiceTarget, SessionOpenError};
use crate::statistics::{DeviceCounters, DeviceStatistics, KEPT, fingerprint};

/// Mode of a socket: its owner and group connect, as a monitor runs as a user of its own.
const SOCKET_MODE: u32 = 0o660;

/// Pause after a connection that could not be served, so that a monitor that connects again and again costs little.
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// A socket to create, and the device that a monitor finds behind it.
#[derive(Clone, Debug)]
pub struct SocketSettings {
    /// Replaced if it is a socket that nothing listens on.
    pub path: PathBuf,
    /// The identity of the device in the service.
    pub identity: Arc<str>,
    /// 1 to [`MAX_DATA_QUEUES`](super::MAX_DATA_QUEUES); the control queue is counted apart.
    pub data_queues: u16,
    /// Of operations and bytes per second; they change while the device runs.
    pub limits: DeviceLimits,
}

/// Why a socket cannot be listened to.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("{0}: another process listens on this socket: end it, or use another path")]
    InUse(PathBuf),
    /// There is a file that is not a socket.
    #[error("{0}: there is a file that is not a socket: remove it, or use another path")]
    NotASocket(PathBuf),
    /// The operating system refused.
    #[error("{path}: cannot listen on this socket; make its folder, or choose --socket-path")]
    Io {
        /// The path that was asked for.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
}

/// The devices of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Devices {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    devices: Mutex<BTreeMap<PathBuf, Entry>>,
    of_process: OfProcess,
    /// Counts of a former process, which has reported them to its nodes.
    reported: Mutex<EdgeReport>,
    /// Counters of every device. Apart from `devices`, whose lock is held while a device is locked: a client reads the
    /// counters for its report with its own lock held, which a locked device may wait for.
    counters: Mutex<Vec<Arc<DeviceCounters>>>,
}

/// Opens the pool of one connection: the identity of its device, and the sink of its completions.
pub type TargetOpener = Arc<
    dyn Fn(Arc<str>, Arc<dyn SessionSink>) -> Result<Box<dyn JobTarget>, SessionOpenError>
        + Send
        + Sync,
>;

struct Entry {
    identity: Arc<str>,
    limits: DeviceLimits,
    /// Keeps the limits that were set at run time, and the counters.
    journal: Journal,
    /// Counters over all connections.
    counters: Arc<DeviceCounters>,
    /// The device of the connection that is open, or of the next one. It is made before its monitor connects, and a
    /// limit that is set between is its limit, too.
    backend: Option<Backend>,
    /// Time at which the monitor connected that is connected.
    since: Option<Instant>,
}

/// One row of the list of devices.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceStatus {
    /// Path by which commands name the device.
    pub socket: PathBuf,
    /// The name under which the service accounts for the device.
    pub identity: String,
    /// Whether a monitor is connected.
    pub connected: bool,
    /// Seconds since the monitor connected.
    pub connected_seconds: Option<u64>,
    /// Connections to the socket so far.
    pub connections: u64,
    /// Requests per second, if limited.
    pub throttle_ops: Option<u64>,
    /// Bytes per second, if limited.
    pub throttle_bps: Option<u64>,
    /// The counters of all connections.
    pub statistics: DeviceStatistics,
}

/// A socket that this process listens on. Dropping it removes its file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
}

impl SocketFile {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Path that clients connect to.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = fs::remove_file(&self.path);
    }
}

impl Devices {
    /// No devices yet, whose states move under this key.
    #[must_use]
    pub fn with_state_key(key: Option<StateKey>) -> Self {
        let of_process = OfProcess { state_key: key.map(Arc::new), ..OfProcess::default() };
        Self { shared: Arc::new(Shared { of_process, ..Shared::default() }) }
    }

    /// Listens on a socket, and serves its connections one after the other on threads of their own. When this process
    /// dies, their requests are lost: [`crate::front`] is for machines that matter.
    pub fn listen(
        &self,
        service: &Service,
        settings: SocketSettings,
    ) -> Result<SocketFile, ListenError> {
        let path = settings.path.clone();
        let failed = |source| ListenError::Io { path: path.clone(), source };
        let listener = bind(&path)?;
        let journal = Journal::create().map_err(failed)?;
        let service = service.clone();
        let pools: TargetOpener = Arc::new(move |identity, sink| {
            let pool = ServiceTarget::open(&service, identity, sink)?;
            Ok(Box::new(pool))
        });
        self.spawn(pools, settings, listener, journal, Peer::Monitor).map_err(failed)?;
        Ok(SocketFile { path })
    }

    /// Serves connections of a front process, which has the journal of the device.
    pub fn serve(
        &self,
        pools: TargetOpener,
        settings: SocketSettings,
        listener: UnixListener,
        journal: Journal,
    ) -> io::Result<()> {
        self.spawn(pools, settings, listener, journal, Peer::FrontProcess)
    }

    fn spawn(
        &self,
        pools: TargetOpener,
        settings: SocketSettings,
        listener: UnixListener,
        journal: Journal,
        peer: Peer,
    ) -> io::Result<()> {
        let counters = Arc::new(DeviceCounters::over(journal.counters(KEPT, fingerprint())));
        counters.add_to(&mut lock(&self.shared.reported));
        self.counters().push(Arc::clone(&counters));
        let entry = Entry {
            identity: Arc::clone(&settings.identity),
            limits: journal.limits(settings.limits),
            journal: journal.try_clone()?,
            counters: Arc::clone(&counters),
            backend: None,
            since: None,
        };
        self.devices().insert(settings.path.clone(), entry);
        let mut acceptor = Acceptor {
            devices: self.clone(),
            listener: Listener::from(listener),
            pools,
            settings,
            journal,
            counters,
            peer,
        };
        thread::Builder::new()
            .name("virtio-socket".to_owned())
            .spawn(move || acceptor.accept_all())?;
        Ok(())
    }

    /// Clears `HW_READY` on every device from now on. A driver that starts finds no accelerator.
    pub fn drain(&self) {
        self.shared.of_process.draining.store(true, Ordering::Release);
    }

    /// Number of monitors that are connected.
    #[must_use]
    pub fn connected(&self) -> usize {
        self.devices().values().filter(|entry| entry.since.is_some()).count()
    }

    /// Changes the limits of a device, for the open connection and for later ones. `socket` is any path of its socket.
    /// Returns whether there is such a device.
    pub fn set_limits(&self, socket: &Path, change: LimitsChange) -> bool {
        let mut devices = self.devices();
        let path = if devices.contains_key(socket) {
            Some(socket.to_owned())
        } else {
            let wanted = identity_of(socket);
            let mut paths = devices.keys();
            paths.find(|path| wanted.is_some() && identity_of(path) == wanted).cloned()
        };
        let Some(entry) = path.and_then(|path| devices.get_mut(&path)) else {
            return false;
        };
        change.apply(&mut entry.limits);
        entry.journal.set_limits(entry.limits);
        if let Some(backend) = &entry.backend {
            backend.set_limits(entry.limits);
        }
        true
    }

    /// All devices, in the order of their sockets.
    #[must_use]
    pub fn status(&self) -> Vec<DeviceStatus> {
        let row = |(path, entry): (&PathBuf, &Entry)| DeviceStatus {
            socket: path.clone(),
            identity: entry.identity.to_string(),
            connected: entry.since.is_some(),
            connected_seconds: entry.since.map(|since| since.elapsed().as_secs()),
            connections: entry.journal.connections(),
            throttle_ops: entry.limits.ops,
            throttle_bps: entry.limits.bps,
            statistics: entry.counters.read(),
        };
        self.devices().iter().map(row).collect()
    }

    /// The counters that a report to a node has, over all devices, since the start of this process.
    #[must_use]
    pub fn report(&self) -> EdgeReport {
        let mut report = EdgeReport::default();
        for counters in &*self.counters() {
            counters.add_to(&mut report);
        }
        report.since(&lock(&self.shared.reported))
    }

    fn counters(&self) -> MutexGuard<'_, Vec<Arc<DeviceCounters>>> {
        lock(&self.shared.counters)
    }

    fn devices(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Entry>> {
        lock(&self.shared.devices)
    }
}

/// The process that connects to a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    Monitor,
    /// Notes new connections in the journal itself.
    FrontProcess,
}

/// Why a connection cannot be served.
#[derive(Debug, Error)]
enum ServeError {
    #[error(transparent)]
    Session(#[from] SessionOpenError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Daemon(DaemonError),
}

impl From<DaemonError> for ServeError {
    fn from(error: DaemonError) -> Self {
        Self::Daemon(error)
    }
}

/// The thread of one socket.
struct Acceptor {
    devices: Devices,
    listener: Listener,
    pools: TargetOpener,
    settings: SocketSettings,
    journal: Journal,
    counters: Arc<DeviceCounters>,
    peer: Peer,
}

impl Acceptor {
    /// Serves connections for ever, each to its end.
    fn accept_all(&mut self) {
        loop {
            if let Err(problem) = self.serve_one() {
                error!(socket = %self.settings.path.display(), %problem, "a virtual machine monitor is not served");
                thread::sleep(AFTER_FAILURE);
            }
        }
    }

    /// Waits for a connection and serves it to its end.
    fn serve_one(&mut self) -> Result<(), ServeError> {
        let Self { devices, listener, pools, settings, journal, counters, peer } = self;
        let path = &settings.path;
        let (mailbox, mail) = Mailbox::new()?;
        let pool = pools(Arc::clone(&settings.identity), mailbox.clone())?;
        let limits = DeviceLimits::default();
        let device = Device::new(pool, Arc::clone(counters), limits, Instant::now());
        if *peer == Peer::Monitor {
            journal.new_connection();
        }
        let kept = journal.try_clone()?;
        let of_process = devices.shared.of_process.clone();
        let backend = Backend::new(device, settings.data_queues, mailbox, mail, kept, of_process)?;
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::<()>::new());
        let mut daemon = VhostUserDaemon::new("virtio-crypto".to_owned(), backend.clone(), memory)?;
        for handler in daemon.get_epoll_handlers() {
            backend.listen(&handler)?;
        }
        if let Some(entry) = devices.devices().get_mut(path) {
            backend.set_limits(entry.limits);
            entry.backend = Some(backend.clone());
        }
        let started = daemon.start(listener);
        if started.is_ok() {
            info!(socket = %path.display(), "a virtual machine monitor connected");
            if let Some(entry) = devices.devices().get_mut(path) {
                entry.since = Some(Instant::now());
            }
        }
        let ended = started.and_then(|()| match daemon.wait() {
            Ok(())
            | Err(DaemonError::HandleRequest(
                VhostError::Disconnected | VhostError::PartialMessage,
            )) => Ok(()),
            Err(error) => Err(error),
        });
        backend.end();
        if let Some(entry) = devices.devices().get_mut(path) {
            (entry.backend, entry.since) = (None, None);
        }
        backend.with_device(|device| device.reset(Instant::now()));
        match ended {
            Ok(()) => info!(socket = %path.display(), "a virtual machine monitor disconnected"),
            // A broken monitor is not a reason for a pause; the next one may be good.
            Err(reason) => {
                warn!(socket = %path.display(), %reason, "a virtual machine monitor was disconnected");
            }
        }
        Ok(())
    }
}

/// Names a file whatever the path; `None` if there is none.
fn identity_of(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices().keys()).finish()
    }
}

/// Makes the socket. A socket that no process listens on is replaced.
pub(crate) fn bind(path: &Path) -> Result<UnixListener, ListenError> {
    let refused = |source| ListenError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(ListenError::InUse(path.to_owned()));
        }
        Ok(_) => fs::remove_file(path).map_err(refused)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
    }
    let listener = UnixListener::bind(path).map_err(refused)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE)).map_err(refused)?;
    Ok(listener)
}
