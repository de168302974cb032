// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The front process: it holds the sockets of virtual machine monitors and does nothing else, so that it has no reason
//! to end. QEMU 11.1 aborts when a vhost-user device goes away and comes back.
//!
//! ```text
//!  monitor ──vhost-user──► front process ──vhost-user──► device process ──► engine, node
//!     │                      │  replay: messages of the monitor             parser, sessions, keys
//!     │                      └─ journal: a memory file ◄──────────────────┘
//!     └── guest memory, kick and call descriptors ─────────────────────────► (passed on)
//! ```
//!
//! The device process may be killed at any moment. The next one hears the monitor's messages again, takes sessions and
//! unanswered requests from the journal, and reads those requests again: a guest sees a pause. A request that was
//! unanswered at two such deaths is answered with an error, since it may be the cause.
//!
//! The front process reads no byte of a guest. An upgrade of it is [`Front::hand_over`]: the same process runs the new
//! program, which gets every descriptor.
//!
//! - `gate`: between messages and a hand-over.
//! - `newcomers`: connections before one of them is the monitor.
//! - `message`: messages of vhost-user and packets with descriptors, as bytes.
//! - `replay`: the messages that a new device process hears.
//! - `process`: start and end of the device process, and its side of the start.
//! - `handover`: sockets and messages on their way to a new program.

mod gate;
mod handover;
mod message;
mod newcomers;
mod process;
mod replay;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde_json::{Value, json};
use tracing::{error, info, warn};

pub use self::handover::{HANDOVER, HandedState};
pub use self::process::{DeviceOrders, wait_for_end};

use self::gate::{Gate, Passage};
use self::message::{Message, WHOLE_WITHIN, code};
use self::newcomers::Newcomers;
use self::process::DeviceProcess;
use self::replay::Replay;
use crate::control::{self, ControlAnswer, ControlRequest};
use crate::spec::{CONFIG_LEN, config_space};
use crate::vhost::listener::bind;
use crate::vhost::{Journal, ListenError, SocketFile, SocketSettings};

/// Bound on the answer of a device process. A ring stops when its last request is answered, by the deadline of the
/// service; the bound is above it.
const DEVICE_REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Bound on the wait of a hand-over for messages that are under way.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Times that one device process may close the connection on the messages of a monitor before the monitor is
/// disconnected. A process that dies closes two at most: that of the monitor, and one that was on its way.
const MAX_REFUSALS: u32 = 3;

/// Time between the start of a driver and the first change of its configuration: Linux prepares for such changes only
/// after it has told the device that it is ready.
const CONFIG_CHANGE_DELAY: Duration = Duration::from_secs(1);

/// Pause between two tries to connect to a device process: a guest waits 10 ms longer than the process needs, at most.
const RETRY: Duration = Duration::from_millis(10);

/// Bound on the end of a device process whose front process was killed. It ends when it sees that, within a request.
const FORMER_DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest pause before a device process is started again or a connection accepted: a try a second costs little.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A device process that served for this long is started again without a longer pause.
const STABLE: Duration = Duration::from_secs(1);

/// Sockets to hold, and the program that runs the devices behind them.
pub struct FrontSettings {
    /// One socket for each machine.
    pub devices: Vec<SocketSettings>,
    /// The socket of `status` and its like.
    pub control: PathBuf,
    /// A folder of this process alone, for the sockets of the device process.
    pub folder: PathBuf,
    /// The program of the device process. It calls [`DeviceOrders::receive`].
    pub program: Box<dyn Fn() -> Command + Send + Sync>,
}

impl fmt::Debug for FrontSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontSettings")
            .field("devices", &self.devices)
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

/// The front process. Cheap to clone.
#[derive(Clone)]
pub struct Front {
    shared: Arc<Shared>,
}

struct Shared {
    devices: Vec<FrontDevice>,
    process: DeviceProcess,
    gate: Gate,
    /// The `HW_READY` bit of every device.
    ready: AtomicBool,
    restarts: AtomicU64,
    files: Mutex<Vec<SocketFile>>,
}

/// One socket, with its device and at most one monitor.
struct FrontDevice {
    settings: SocketSettings,
    listener: UnixListener,
    journal: Journal,
    /// Socket on which the device process listens for this device.
    inner: PathBuf,
    connection: Mutex<Option<Connection>>,
    /// Makes the thread of the socket look at [`Shared::ready`].
    wake: OwnedFd,
}

/// A monitor's connection, with the messages and times that a new device process needs.
struct Connection {
    monitor: Arc<UnixStream>,
    replay: Replay,
    /// The channel for messages to the monitor about changed configuration space.
    channel: Option<Arc<OwnedFd>>,
    /// Time at which the driver started, while it runs.
    running_since: Option<Instant>,
    /// The last `HW_READY` that was sent to the monitor; `None` before the first.
    announced_ready: Option<bool>,
}

impl Connection {
    fn new(monitor: UnixStream) -> Self {
        Self {
            monitor: Arc::new(monitor),
            replay: Replay::default(),
            channel: None,
            running_since: None,
            announced_ready: None,
        }
    }
}

impl Front {
    /// Listens on all sockets, or continues with those of a former program, and starts the device process.
    pub fn start(
        settings: FrontSettings,
        handed: Option<HandedState>,
    ) -> Result<Self, ListenError> {
        let FrontSettings { devices, control: control_path, folder, program } = settings;
        let mut handed = handed.unwrap_or_default();
        let mut files = Vec::new();
        process::make_folder(&folder).map_err(|source| listen_error(&folder, source))?;
        let mut fronts = Vec::new();
        let mut inner_listeners = Vec::new();
        for (number, settings) in devices.into_iter().enumerate() {
            let path = settings.path.clone();
            let failed = |source| listen_error(&path, source);
            let inner = folder.join(number.to_string());
            // First the socket that another front process would hold, and then those that only a former one's device
            // process can.
            let (listener, journal, connection) = match handed.take(&path) {
                Some(handed) => (handed.listener, handed.journal, handed.connection),
                None => (bind(&path)?, Journal::create().map_err(failed)?, None),
            };
            files.push(SocketFile::new(&path));
            inner_listeners.push(bind_after_former(&inner)?);
            listener.set_nonblocking(true).map_err(failed)?;
            fronts.push(FrontDevice {
                settings,
                listener,
                journal,
                inner,
                connection: Mutex::new(connection),
                wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .map_err(|error| failed(error.into()))?,
            });
        }
        let inner_control = folder.join("control");
        let control_listener = bind_after_former(&inner_control)?;
        let process = DeviceProcess::new(program, folder, inner_listeners, control_listener);
        let front = Self {
            shared: Arc::new(Shared {
                devices: fronts,
                process,
                gate: Gate::default(),
                ready: AtomicBool::new(true),
                restarts: AtomicU64::new(handed.restarts()),
                files: Mutex::default(),
            }),
        };
        let failed = |source| listen_error(&control_path, source);
        front.spawn_threads().map_err(failed)?;
        let answering = front.clone();
        let answer = move |request| answering.answer(request, &inner_control);
        files.push(control::serve(&control_path, answer)?);
        *lock(&front.shared.files) = files;
        Ok(front)
    }

    fn spawn_threads(&self) -> io::Result<()> {
        let front = self.clone();
        thread::Builder::new()
            .name("virtio-process".to_owned())
            .spawn(move || front.keep_process())?;
        for index in 0..self.shared.devices.len() {
            let front = self.clone();
            thread::Builder::new()
                .name("virtio-front".to_owned())
                .spawn(move || front.accept_all(index))?;
        }
        Ok(())
    }

    /// The socket of each device, in the order of the settings.
    pub fn sockets(&self) -> impl Iterator<Item = &Path> {
        let devices = self.shared.devices.iter();
        devices.map(|device| device.settings.path.as_path())
    }

    /// Number of monitors that are connected.
    #[must_use]
    pub fn connected(&self) -> usize {
        let devices = self.shared.devices.iter();
        devices.filter(|device| lock(&device.connection).is_some()).count()
    }

    /// Sets or clears `HW_READY` on every device. A Linux guest whose device is not ready computes in software, and
    /// comes back when it is.
    pub fn set_ready(&self, ready: bool) {
        self.shared.ready.store(ready, Ordering::Release);
        for device in &self.shared.devices {
            // Fails only if the counter of the event is full, and then the thread is awake.
            let _ = rustix::io::write(&device.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Runs another program, or a newer version of this one, in this process. It gets all connections; no machine
    /// notices. Returns only if that fails, and then everything continues as it was.
    pub fn hand_over(&self, mut program: Command) -> io::Error {
        use std::os::unix::process::CommandExt;
        // No message is under way from here on.
        let Some(_closed) = self.shared.gate.close(HANDOVER_TIMEOUT) else {
            return io::Error::new(
                io::ErrorKind::TimedOut,
                "a message of a virtual machine monitor does not end: try again",
            );
        };
        let restarts = self.shared.restarts.load(Ordering::Relaxed);
        match handover::pack(&self.shared.devices, restarts) {
            Ok(state) => {
                self.shared.process.kill();
                program.stdin(state).env(HANDOVER, "1").exec()
            }
            Err(error) => error,
        }
    }

    /// Ends the device process and removes the sockets. Machines that are connected lose their device.
    pub fn end(&self) {
        self.shared.process.end();
        lock(&self.shared.files).clear();
    }

    /// Starts the device process again whenever it has ended.
    fn keep_process(&self) {
        let mut pause = RETRY;
        loop {
            let began = Instant::now();
            let started = {
                let _passing = self.shared.gate.pass(Passage::Repair);
                self.shared.process.start(&self.shared.devices)
            };
            match started {
                Ok(process) => self.shared.process.wait(process),
                Err(error) => error!(%error, "cannot start the device process"),
            }
            if self.shared.process.is_ending() {
                return;
            }
            self.shared.restarts.fetch_add(1, Ordering::Relaxed);
            warn!("the device process has ended; a new one continues its work");
            // Restarts of a process that ends at once must not take a whole core.
            let is_quick = began.elapsed() < STABLE;
            pause = if is_quick { pause * 2 } else { RETRY }.min(MAX_PAUSE);
            thread::sleep(pause);
        }
    }

    /// Serves the connections of one socket, one after the other.
    fn accept_all(&self, index: usize) {
        let device = &self.shared.devices[index];
        let mut newcomers = Newcomers::default();
        loop {
            if lock(&device.connection).is_none() {
                match self.next_monitor(device, &mut newcomers) {
                    Ok(Some(stream)) => {
                        device.journal.new_connection();
                        *lock(&device.connection) = Some(Connection::new(stream));
                    }
                    Ok(None) => continue,
                    Err(error) => {
                        error!(%error, "cannot accept a virtual machine monitor");
                        thread::sleep(MAX_PAUSE);
                        continue;
                    }
                }
            }
            let socket = device.settings.path.display();
            info!(%socket, "a virtual machine monitor is connected");
            match self.serve(device) {
                Ok(()) => info!(%socket, "a virtual machine monitor disconnected"),
                Err(error) => warn!(%socket, %error, "a virtual machine monitor was disconnected"),
            }
            *lock(&device.connection) = None;
        }
    }

    /// Waits for something at the socket of a device; returns the monitor, if one has sent a message.
    fn next_monitor(
        &self,
        device: &FrontDevice,
        newcomers: &mut Newcomers,
    ) -> io::Result<Option<UnixStream>> {
        let mut sockets = vec![device.listener.as_fd()];
        sockets.extend(newcomers.silent().map(AsFd::as_fd));
        readable(&sockets, newcomers.next_look());
        let _passing = self.shared.gate.pass(Passage::Work);
        newcomers.accept(&device.listener)?;
        Ok(newcomers.speaking(Instant::now()))
    }

    /// Serves one connection to its end.
    fn serve(&self, device: &FrontDevice) -> io::Result<()> {
        let Some(monitor) =
            lock(&device.connection).as_ref().map(|connection| Arc::clone(&connection.monitor))
        else {
            return Ok(());
        };
        monitor.set_nonblocking(false)?;
        // A read follows the first byte of a message. While a read or write blocks, an upgrade waits.
        monitor.set_read_timeout(Some(WHOLE_WITHIN))?;
        monitor.set_write_timeout(Some(WHOLE_WITHIN))?;
        let mut inner: Option<UnixStream> = None;
        let mut refusals = Refusals::default();
        loop {
            let Some(stream) = &inner else {
                inner = {
                    let _passing = self.shared.gate.pass(Passage::Repair);
                    self.connect_device(device, &mut refusals)?
                };
                if inner.is_none() && hung_up(&monitor, RETRY) {
                    return Ok(());
                }
                continue;
            };
            let wait = self.announce_ready(device);
            let [from_monitor, from_device, woken] =
                readable(&[monitor.as_fd(), stream.as_fd(), device.wake.as_fd()], wait)[..]
            else {
                continue;
            };
            let _passing = self.shared.gate.pass(Passage::Work);
            if woken {
                let _ = rustix::io::read(&device.wake, &mut [0; 8]);
            }
            if from_monitor {
                match self.take_message(device, &monitor, &mut inner) {
                    Ok(Some(())) => {}
                    ended => {
                        // Before the gate opens: what has ended is not handed over.
                        *lock(&device.connection) = None;
                        return ended.map(drop);
                    }
                }
            } else if from_device {
                // Nothing was asked, so this is its end.
                inner = None;
            }
        }
    }

    /// Takes the next message of a monitor; `None` at its end.
    fn take_message(
        &self,
        device: &FrontDevice,
        monitor: &UnixStream,
        inner: &mut Option<UnixStream>,
    ) -> io::Result<Option<()>> {
        let message = Message::read(monitor.as_fd())?;
        message.map(|message| self.handle(device, monitor, inner, &message)).transpose()
    }

    /// Connects to the device process and replays the monitor's messages; `None` if there is none now. Fails if the
    /// monitor is to be disconnected. The caller passes the gate.
    fn connect_device(
        &self,
        device: &FrontDevice,
        refusals: &mut Refusals,
    ) -> io::Result<Option<UnixStream>> {
        let replay = lock(&device.connection).as_ref().map(|connection| connection.replay.clone());
        let Some(replay) = replay else {
            return Ok(None);
        };
        replay.check_memory()?;
        let process = self.shared.process.id();
        let connected = UnixStream::connect(&device.inner).and_then(|stream| {
            stream.set_read_timeout(Some(DEVICE_REPLY_TIMEOUT))?;
            replay.replay_to(stream.as_fd())?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => Ok(Some(stream)),
            Err(_) => refusals.note(process).map(|()| None),
        }
    }

    /// Handles one message of a monitor.
    fn handle(
        &self,
        device: &FrontDevice,
        monitor: &UnixStream,
        inner: &mut Option<UnixStream>,
        message: &Message,
    ) -> io::Result<()> {
        let mut state = lock(&device.connection);
        let Some(connection) = state.as_mut() else {
            return Ok(());
        };
        if message.code == code::GET_CONFIG {
            let ready = self.shared.ready.load(Ordering::Acquire);
            connection.announced_ready = Some(ready);
            let config = config(message, device.settings.data_queues, ready);
            return message.reply(config).write(monitor.as_fd());
        }
        if message.code == code::SET_BACKEND_REQ_FD {
            connection.channel = message.files.first().cloned();
            if let Some(channel) = &connection.channel {
                // Whether it is a socket shows when a message is written to it.
                let _ = set_socket_timeout(channel, Timeout::Send, Some(WHOLE_WITHIN));
            }
            return acknowledge(connection, monitor, message);
        }
        let is_recorded = connection.replay.record(message);
        let answers = matches!(
            message.code,
            code::GET_FEATURES
                | code::GET_PROTOCOL_FEATURES
                | code::GET_QUEUE_NUM
                | code::GET_VRING_BASE
                | code::SET_DEVICE_STATE_FD
                | code::CHECK_DEVICE_STATE
        );
        let acknowledges = message.needs_reply() && connection.replay.has_acknowledgements();
        drop(state);
        let mut refusals = Refusals::default();
        let answer = loop {
            if let Some(stream) = inner.as_ref() {
                let process = self.shared.process.id();
                let sent = message.write(stream.as_fd());
                match sent.and_then(|()| {
                    (answers || acknowledges)
                        .then(|| replay::reply(stream.as_fd(), message.code))
                        .transpose()
                }) {
                    Ok(answer) => break answer,
                    Err(_) => {
                        *inner = None;
                        refusals.note(process)?;
                    }
                }
            }
            // The device process has died, or refuses the message. The next connection hears the recorded messages,
            // this one included.
            *inner = self.reconnect_device(device, monitor, &mut refusals)?;
            if is_recorded {
                break acknowledges.then(|| message.reply(0_u64.to_le_bytes().to_vec()));
            }
        };
        if let Some(connection) = lock(&device.connection).as_mut() {
            if message.code == code::GET_VRING_BASE {
                connection.replay.stopped(message.word().unwrap_or(u32::MAX));
            }
            let is_running = connection.replay.is_running();
            connection.running_since = match connection.running_since {
                since @ Some(_) if is_running => since,
                _ => is_running.then(Instant::now),
            };
        }
        answer.map_or(Ok(()), |answer| answer.write(monitor.as_fd()))
    }

    /// Connects to a new device process. The caller passes the gate.
    fn reconnect_device(
        &self,
        device: &FrontDevice,
        monitor: &UnixStream,
        refusals: &mut Refusals,
    ) -> io::Result<Option<UnixStream>> {
        let end = Instant::now() + DEVICE_REPLY_TIMEOUT;
        loop {
            if let Some(stream) = self.connect_device(device, refusals)? {
                return Ok(Some(stream));
            }
            if hung_up(monitor, RETRY) || Instant::now() > end {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }

    /// Tells the monitor that `HW_READY` has changed, if it has and the driver has started; otherwise returns the time
    /// until then. QEMU 11.1.3 crashes on such a message before the driver has started.
    fn announce_ready(&self, device: &FrontDevice) -> Option<Duration> {
        let ready = self.shared.ready.load(Ordering::Acquire);
        let mut state = lock(&device.connection);
        let connection = state.as_mut()?;
        let channel = connection.channel.as_ref()?;
        if connection.announced_ready.is_none_or(|announced| announced == ready) {
            return None;
        }
        let since = connection.running_since?;
        let wait = CONFIG_CHANGE_DELAY.saturating_sub(since.elapsed());
        if !wait.is_zero() {
            return Some(wait);
        }
        info!(socket = %device.settings.path.display(), ready, "the guest gets HW_READY");
        let channel = Arc::clone(channel);
        connection.announced_ready = Some(ready);
        // The monitor's channel may be full. The write must not block while it holds the lock, which the status takes.
        drop(state);
        let change = Message::new(code::CONFIG_CHANGE, Vec::new());
        if let Err(error) = change.write(channel.as_fd()) {
            warn!(%error, "cannot tell a guest of HW_READY");
        }
        None
    }

    fn answer(&self, request: ControlRequest, inner: &Path) -> ControlAnswer {
        if let ControlRequest::Ready { ready } = request {
            self.set_ready(ready);
            return ControlAnswer::Done;
        }
        match control::ask(inner, &request) {
            Ok(ControlAnswer::Devices(mut rows)) => {
                for row in rows.as_array_mut().into_iter().flatten() {
                    self.complete(row);
                }
                ControlAnswer::Devices(rows)
            }
            Ok(answer) => answer,
            Err(error) => ControlAnswer::Refused(format!(
                "the device process is starting: ask again ({error})"
            )),
        }
    }

    /// Adds to the row of a device what only this process knows.
    fn complete(&self, row: &mut Value) {
        let Some(row) = row.as_object_mut() else {
            return;
        };
        let path = row.get("socket").and_then(Value::as_str).map(Path::new);
        let device =
            self.shared.devices.iter().find(|device| Some(device.settings.path.as_path()) == path);
        if let Some(device) = device {
            let connection = lock(&device.connection);
            row.insert("connected".to_owned(), json!(connection.is_some()));
            let agreed = connection.as_ref().map(|it| it.replay.has_agreed(message::DEVICE_STATE));
            let state = match agreed {
                None => "no-monitor",
                Some(true) => "moves-with-the-machine",
                Some(false) => "unmigratable",
            };
            row.insert("device-state".to_owned(), json!(state));
        }
        let ready = self.shared.ready.load(Ordering::Acquire);
        let restarts = self.shared.restarts.load(Ordering::Relaxed);
        row.insert("ready".to_owned(), json!(ready));
        row.insert("restarts".to_owned(), json!(restarts));
        row.insert("device-process".to_owned(), json!(self.shared.process.id()));
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.sockets()).finish()
    }
}

/// Connections that device processes have closed on the messages of one monitor.
#[derive(Debug, Default)]
struct Refusals {
    process: Option<u32>,
    count: u32,
}

impl Refusals {
    /// Notes that this process has closed one. Fails if it has closed too many: it lives and refuses the messages.
    fn note(&mut self, process: Option<u32>) -> io::Result<()> {
        if self.process != process {
            *self = Self { process, count: 0 };
        }
        self.count += 1;
        if process.is_some() && self.count >= MAX_REFUSALS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the device process refuses a message of it",
            ));
        }
        Ok(())
    }
}

/// The body of the reply to GET_CONFIG; without the space itself, which is an error, if the range is not in it.
fn config(message: &Message, data_queues: u16, ready: bool) -> Vec<u8> {
    let space = config_space(data_queues, ready);
    let number = |at: usize| {
        let bytes = message.body.get(at..)?.first_chunk::<4>()?;
        usize::try_from(u32::from_le_bytes(*bytes)).ok()
    };
    let range = number(0).zip(number(4)).and_then(|(start, len)| {
        let end = start.checked_add(len).filter(|end| *end <= CONFIG_LEN)?;
        space.get(start..end)
    });
    let header = message.body.get(..12).unwrap_or_default();
    match range {
        Some(range) => [header, range].concat(),
        None => Vec::new(),
    }
}

fn acknowledge(connection: &Connection, monitor: &UnixStream, message: &Message) -> io::Result<()> {
    if message.needs_reply() && connection.replay.has_acknowledgements() {
        let done = message.reply(0_u64.to_le_bytes().to_vec());
        return done.write(monitor.as_fd());
    }
    Ok(())
}

/// Waits until one of the descriptors can be read, and says which can.
fn readable(descriptors: &[std::os::fd::BorrowedFd<'_>], wait: Option<Duration>) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
        .collect();
    let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
    // An interrupted wait reads as "none", and the caller waits again.
    if poll(&mut polled, wait.as_ref()).is_err() {
        return vec![false; descriptors.len()];
    }
    polled.iter().map(|one| !one.revents().is_empty()).collect()
}

/// Waits for `at_most`, and returns whether the peer has closed the connection.
fn hung_up(stream: &UnixStream, at_most: Duration) -> bool {
    let began = Instant::now();
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    let wait = Timespec::try_from(at_most).ok();
    let ended = poll(&mut polled, wait.as_ref()).is_ok_and(|count| count > 0);
    if !ended {
        thread::sleep(at_most.saturating_sub(began.elapsed()));
    }
    ended
}

/// Listens on a socket of the device process. One whose front process was killed may still listen there for a moment.
fn bind_after_former(path: &Path) -> Result<UnixListener, ListenError> {
    let began = Instant::now();
    loop {
        match bind(path) {
            Err(ListenError::InUse(_)) if began.elapsed() < FORMER_DEVICE_TIMEOUT => {
                thread::sleep(RETRY);
            }
            done => return done,
        }
    }
}

fn listen_error(path: &Path, source: io::Error) -> ListenError {
    ListenError::Io { path: path.to_owned(), source }
}
