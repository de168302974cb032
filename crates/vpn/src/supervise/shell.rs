// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The I/O of a supervisor: one thread that polls, and one short-lived thread per start of a process.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use millrace_hostfs::ordinary::{self, Links};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::Ipv4PathMtuDiscovery;
use rustix::net::sockopt::set_ip_mtu_discover;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, ipproto, recv,
    send, socket_with,
};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::control::{ControlReader, ControlRequest};
use super::echo;
use super::machine::{LinkMachine, MemberEvent, SuperviseAction};
use super::metrics::write_metrics;
use super::status::{LinkState, LinkStatus, log_changes, write_status};
use crate::change::{self, WatchedChange};
use crate::check;
use crate::error::ApplyError;
use crate::exec::{self, ExecError, Lock, Tunnel, unix_ms};
use crate::host;
use crate::plan::{Folders, LinkMember, MemberEngine};
use crate::record::{self, AppliedLink};
use crate::remains;

/// Interval of the machine's ticks: half of that of probes, so that each leaves less than 50 ms late.
const TICK: Duration = Duration::from_millis(50);

/// Interval of the status file, and of attempts to set routes after a failure.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Bytes of a small probe: those of ping.
const SMALL_PROBE_BYTES: usize = 84;

/// Bound on a packet that is read: a jumbo frame.
const MAX_PACKET: usize = 9216;

/// Bound on a configuration of a member, in bytes: one has 4 KiB.
const MAX_CONFIG: usize = 1 << 20;

/// A member with its open sockets.
struct Attached {
    /// Name of the link.
    link: String,
    member: LinkMember,
    tunnel: Option<Tunnel>,
    management: Option<UnixStream>,
    /// Connection of its own for commands that charon may take long for: it answers the requests of one connection in
    /// their order. OpenVPN has only one.
    orders: Option<UnixStream>,
    reader: ControlReader,
    probes: Option<OwnedFd>,
}

struct Shell<'a> {
    folders: &'a Folders,
    run: PathBuf,
    state: PathBuf,
    applied: AppliedLink,
    machine: LinkMachine,
    members: BTreeMap<u16, Attached>,
    started: (Sender<Started>, Receiver<Started>),
    routed: Vec<u16>,
    /// Routes that could not be set, and are tried again.
    unrouted: bool,
    status_at: Instant,
    prefer_node: PreferNode,
    /// Time that the applied configuration has for its confirmation; `None` for one that is confirmed.
    waits: Option<Duration>,
    /// Whether the link goes down, because its first configuration was not confirmed.
    take_down: bool,
}

/// Makes the calling thread, and programs that it starts, take memory of a NUMA node first.
pub type PreferNode = fn(usize) -> io::Result<()>;

type Started = (u16, Result<Tunnel, ExecError>);

/// Behaviour of a supervisor where another one runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standby {
    /// The supervisor ends with an error.
    No,
    /// The supervisor waits until that one ends, and takes its place while a change is not confirmed: the way back
    /// must not depend on one process.
    WhileUnconfirmed,
}

/// The lock of a supervisor; `None` for a standby that is not needed any more.
fn lock(
    name: &str,
    folders: &Folders,
    standby: Standby,
    ends: impl Fn() -> bool,
) -> Result<Option<Lock>, ApplyError> {
    let run = folders.run_of(name);
    loop {
        // First, since a command that finds a supervisor at its lock starts none.
        let waits = standby == Standby::WhileUnconfirmed;
        if waits && (ends() || !change::is_on_trial(name, folders)) {
            return Ok(None);
        }
        match (Lock::take(&exec::supervisor_lock(&run)), standby) {
            (Ok(Some(lock)), _) => return Ok(Some(lock)),
            (Ok(None), Standby::No) => return Err(ApplyError::Supervised(name.to_owned())),
            (Err(error), Standby::No) => return Err(error.into()),
            (Ok(None) | Err(_), Standby::WhileUnconfirmed) => {}
        }
        thread::sleep(STATUS_EVERY);
    }
}

/// Runs the supervisor of a link until SIGTERM or SIGINT; tunnels and routes then stay as they are. SIGHUP
/// makes it read the applied configuration again.
///
/// # Errors
/// The link is not applied, or has a supervisor already.
pub fn run(
    name: &str,
    folders: &Folders,
    prefer_node: PreferNode,
    standby: Standby,
) -> Result<(), ApplyError> {
    let run = folders.run_of(name);
    let state = folders.state_of(name);
    // Before the lock is taken: its holder gets signals, and SIGHUP would end it.
    let flags = [SIGHUP, SIGTERM, SIGINT].map(|signal| {
        let raised = Arc::new(AtomicBool::new(false));
        flag::register(signal, Arc::clone(&raised)).map(|_| raised)
    });
    let [reload, term, int] = flags;
    let failed =
        |source| ApplyError::Exec(ExecError::Io { path: PathBuf::from("signals"), source });
    let (reload, term, int) =
        (reload.map_err(failed)?, term.map_err(failed)?, int.map_err(failed)?);
    let ends = || is_raised(&[&term, &int]);
    let Some(lock) = lock(name, folders, standby, ends)? else {
        return Ok(());
    };
    // A change whose time is over, or whose run was killed, is taken back before anything else.
    let found = change::watch(name, folders, None);
    let take_down = matches!(found, Ok(WatchedChange::TakeDown));
    let Some((lock, applied)) = applied_or_end(name, folders, lock, ends)? else {
        return Err(ApplyError::NotUp(name.to_owned()));
    };
    if !take_down {
        end_unknown(&applied, folders);
    }
    let now = Instant::now();
    let mut shell = Shell {
        folders,
        run,
        state,
        machine: LinkMachine::new(&[], applied.layout.side, now),
        members: BTreeMap::new(),
        started: mpsc::channel(),
        routed: Vec::new(),
        unrouted: false,
        status_at: now,
        prefer_node,
        waits: None,
        take_down,
        applied,
    };
    if !take_down {
        shell.read_layout(now);
    }
    while !ends() && !shell.take_down {
        if reload.swap(false, Ordering::Relaxed) {
            shell.reload();
        }
        shell.wait_and_read();
        shell.turn(Instant::now());
    }
    let take_down = shell.take_down;
    drop(lock);
    if !take_down {
        return Ok(());
    }
    change::take_down(name, folders)?;
    // An `up` that was first found this supervisor, and starts none.
    match check::applied(folders, name)? {
        Some(_) => match self::run(name, folders, prefer_node, Standby::No) {
            Err(ApplyError::Supervised(_)) => Ok(()),
            done => done,
        },
        None => Ok(()),
    }
}

fn is_raised(flags: &[&Arc<AtomicBool>]) -> bool {
    flags.iter().any(|flag| flag.load(Ordering::Relaxed))
}

/// Finds what is applied, for a supervisor with its lock. Without a link the lock goes while no command works on the
/// link: an `up` that finds a supervisor at its lock starts none.
fn applied_or_end(
    name: &str,
    folders: &Folders,
    lock: Lock,
    ends: impl Fn() -> bool,
) -> Result<Option<(Lock, AppliedLink)>, ApplyError> {
    if let Some(applied) = check::applied(folders, name)? {
        return Ok(Some((lock, applied)));
    }
    let path = record::link_lock(&folders.run_of(name));
    loop {
        if let Some(_held) = Lock::take(&path)? {
            let applied = check::applied(folders, name)?;
            // The lock of the supervisor goes first.
            return Ok(applied.map(|applied| (lock, applied)));
        }
        // `down` has the lock, and waits for this process.
        if ends() {
            return Ok(None);
        }
        thread::sleep(TICK);
    }
}

/// Ends processes of the link that no supervisor knows: those of a former configuration whose supervisor was killed,
/// and those that it was just starting. They hold ports and devices.
fn end_unknown(applied: &AppliedLink, folders: &Folders) {
    let layout = &applied.layout;
    let known: Vec<u32> =
        layout.members.iter().filter_map(Tunnel::find).map(|tunnel| tunnel.pid).collect();
    let running = remains::tunnels(&remains::places(&layout.name, folders, [layout]));
    let unknown = running.iter().map(|(_, tunnel)| tunnel);
    remains::end(unknown.filter(|tunnel| !known.contains(&tunnel.pid)));
}

impl Shell<'_> {
    /// Takes over the members of the applied layout: finds running processes, and marks what has changed.
    fn read_layout(&mut self, now: Instant) {
        for member in &self.applied.layout.members {
            let number = member.number;
            self.machine.add(number, now);
            let known = self.members.get_mut(&number);
            // A member of another engine was left behind: its process ends, and `Forget` reads the layout again.
            if known.as_ref().is_some_and(|known| known.member.engine != member.engine) {
                self.machine.handle(number, MemberEvent::Retire, now);
                continue;
            }
            if let Some(known) = known {
                known.member = member.clone();
            } else {
                let tunnel = Tunnel::find(member);
                if let Some(tunnel) = &tunnel {
                    self.machine.handle(number, MemberEvent::Runs(tunnel.pid), now);
                }
                let attached = Attached {
                    link: self.applied.layout.name.clone(),
                    member: member.clone(),
                    tunnel,
                    management: None,
                    orders: None,
                    reader: ControlReader::new(member.engine),
                    probes: None,
                };
                self.members.insert(number, attached);
            }
            if self.members[&number].tunnel.is_some() {
                let event = update(member, self.applied.anew);
                self.machine.handle(number, event, now);
            }
        }
        for number in self.members.keys() {
            if !self.applied.layout.members.iter().any(|member| member.number == *number) {
                self.machine.handle(*number, MemberEvent::Retire, now);
            }
        }
        self.machine.ask_for_proof(now);
        // The routes may lead to other networks now.
        self.unrouted = !self.routed.is_empty();
        self.status_at = now;
    }

    /// Waits for a tick at most, and passes on what arrived.
    fn wait_and_read(&mut self) {
        let mut descriptors = Vec::new();
        for attached in self.members.values() {
            descriptors.extend(
                attached
                    .tunnel
                    .as_ref()
                    .map(|tunnel| PollFd::new(&tunnel.descriptor, PollFlags::IN)),
            );
            descriptors.extend(
                attached.management.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN)),
            );
            descriptors
                .extend(attached.probes.as_ref().map(|socket| PollFd::new(socket, PollFlags::IN)));
        }
        let time = Timespec::try_from(TICK).expect("a short time");
        // An error is a signal: the caller looks at it.
        let _ = poll(&mut descriptors, Some(&time));
        drop(descriptors);
        let now = Instant::now();
        for (number, attached) in &mut self.members {
            for event in attached.events(*number) {
                self.machine.handle(*number, event, now);
            }
        }
        while let Ok((number, started)) = self.started.1.try_recv() {
            let Some(attached) = self.members.get_mut(&number) else {
                continue;
            };
            match started {
                Ok(tunnel) => {
                    self.machine.handle(number, MemberEvent::Runs(tunnel.pid), now);
                    attached.tunnel = Some(tunnel);
                    // Routes over the former device went with it.
                    self.unrouted |= attached.member.makes_device();
                    // Its configuration may have changed after the process had read it.
                    let event = update(&attached.member, self.applied.anew);
                    self.machine.handle(number, event, now);
                }
                Err(error) => {
                    self.machine.handle(number, MemberEvent::Failed(error.to_string()), now);
                }
            }
        }
    }

    /// One tick of the machine, and what follows from it.
    fn turn(&mut self, now: Instant) {
        for action in self.machine.tick(now) {
            self.perform(action, now);
        }
        let changes = self.machine.take_changes();
        if !changes.is_empty() {
            // A full disk must not stop the supervision.
            let _ = log_changes(&self.state, &self.run, &changes);
        }
        if !changes.is_empty() || now >= self.status_at {
            self.status_at = now + STATUS_EVERY;
            if self.unrouted {
                self.route();
            }
            self.confirm();
            self.clean_up();
            let _ = self.write_status();
        }
    }

    fn perform(&mut self, action: SuperviseAction, now: Instant) {
        match action {
            SuperviseAction::Start(number) => {
                let Some(attached) = self.members.get(&number) else {
                    return;
                };
                let member = attached.member.clone();
                let sender = self.started.0.clone();
                let prefer_node = self.prefer_node;
                thread::spawn(move || {
                    // A container may refuse it: memory is then that of the processor that touches it first.
                    let _ = member.node.map(prefer_node);
                    sender.send((number, Tunnel::start(&member)))
                });
            }
            SuperviseAction::Route(members) => {
                self.routed = members;
                self.route();
            }
            SuperviseAction::Forget(number) => {
                self.members.remove(&number);
                self.read_layout(now);
            }
            SuperviseAction::Stop(number) => {
                if let Some(attached) = self.members.get_mut(&number)
                    && !attached.send(ControlRequest::Stop)
                    && let Some(tunnel) = &attached.tunnel
                {
                    tunnel.signal(Signal::TERM);
                }
            }
            SuperviseAction::Kill(number) => {
                if let Some(tunnel) =
                    self.members.get(&number).and_then(|attached| attached.tunnel.as_ref())
                {
                    tunnel.signal(Signal::KILL);
                }
            }
            SuperviseAction::Reconnect(number) => {
                self.members
                    .get_mut(&number)
                    .map(|attached| attached.send(ControlRequest::Reconnect));
            }
            SuperviseAction::Ask(number) => {
                self.members.get_mut(&number).map(|attached| attached.send(ControlRequest::Ask));
            }
            SuperviseAction::Probe { member, sequence, full } => {
                let size = if full {
                    usize::from(self.applied.layout.tunnel_mtu)
                } else {
                    SMALL_PROBE_BYTES
                };
                if let Some(attached) = self.members.get_mut(&member) {
                    attached.probe(sequence, size);
                }
            }
        }
    }

    fn route(&mut self) {
        let members: Vec<&LinkMember> = self
            .routed
            .iter()
            .filter_map(|number| self.members.get(number))
            .map(|attached| &attached.member)
            .collect();
        if members.is_empty() {
            return;
        }
        let layout = &self.applied.layout;
        let Ok(bonded) = layout.bond.as_ref().map_or(Ok(Vec::new()), exec::devices_in) else {
            self.unrouted = true;
            return;
        };
        let all: Vec<&LinkMember> = self.members.values().map(|known| &known.member).collect();
        self.unrouted = exec::ip_batch(&layout.over(&members, &all, &bonded)).is_err();
    }

    /// Reads the applied configuration again.
    fn reload(&mut self) {
        let name = self.applied.layout.name.clone();
        if let Ok(Some(applied)) = AppliedLink::load(self.folders, &name) {
            self.applied = applied;
            self.waits = change::time_left(&name, self.folders);
            self.read_layout(Instant::now());
        }
    }

    /// Keeps a new configuration that works, and brings the confirmed one back if time is up.
    fn confirm(&mut self) {
        let name = self.applied.layout.name.clone();
        let proven = self.machine.is_proven().then_some(self.applied.generation);
        match change::watch(&name, self.folders, proven) {
            Ok(WatchedChange::Nothing) => self.waits = None,
            Ok(WatchedChange::Confirmed) => {
                self.waits = None;
                self.applied.confirm_until_ms = None;
            }
            Ok(WatchedChange::Waits(generation, left)) => {
                self.waits = Some(left);
                // Its run was killed before it told this supervisor.
                if generation != self.applied.generation {
                    self.reload();
                }
            }
            Ok(WatchedChange::Restored(applied)) => {
                self.applied = *applied;
                self.waits = None;
                self.read_layout(Instant::now());
            }
            Ok(WatchedChange::TakeDown) => self.take_down = true,
            // Such as a full disk: the next status tries again.
            Ok(WatchedChange::Busy) | Err(_) => {}
        }
    }

    /// Removes what only a former configuration needed, once its processes have ended.
    fn clean_up(&mut self) {
        let retiring = self.members.len() > self.applied.layout.members.len();
        if retiring || !self.machine.is_current() || self.applied.obsolete.is_empty() {
            return;
        }
        // A run that works on the link has another record, or will have.
        let name = &self.applied.layout.name;
        let Ok(Some(_lock)) = Lock::take(&record::link_lock(&self.run)) else {
            return;
        };
        let Some(mut applied) = AppliedLink::find(self.folders, name).good() else {
            return;
        };
        if applied.generation != self.applied.generation || applied.layout != self.applied.layout {
            return;
        }
        applied.obsolete.retain(|action| {
            // What is gone already is no error, and what a process holds is tried again.
            exec::action(action).is_err() && remains::device_left_by(action).is_some()
        });
        let is_less = applied.obsolete.len() < self.applied.obsolete.len();
        if is_less && applied.save(self.folders).is_ok() {
            self.applied.obsolete = applied.obsolete;
        }
    }

    fn write_status(&self) -> io::Result<()> {
        let mut members = self.machine.status();
        for member in &mut members {
            member.cpu_ms = member.pid.and_then(exec::cpu_ms);
        }
        let certificate = self.applied.layout.certificate.as_deref();
        let status = LinkStatus {
            name: self.applied.layout.name.clone(),
            side: self.applied.layout.side,
            state: LinkState::of(&self.machine),
            generation: self.applied.generation,
            at_ms: unix_ms(),
            supervisor: std::process::id(),
            routed: self.routed.clone(),
            members,
            certificate_until: certificate.and_then(host::valid_until),
            confirm_within_ms: self
                .waits
                .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        };
        write_status(&self.run, &status)?;
        write_metrics(&self.run, &status)
    }
}

impl Attached {
    /// Reads all that has arrived.
    fn events(&mut self, number: u16) -> Vec<MemberEvent> {
        let mut events = Vec::new();
        if self.tunnel.as_ref().is_some_and(has_ended) {
            self.tunnel = None;
            self.management = None;
            self.orders = None;
            self.probes = None;
            return vec![MemberEvent::Ended];
        }
        if self.tunnel.is_some() && self.management.is_none() && self.manage().is_ok() {
            events.push(MemberEvent::Managed);
        }
        self.read_management(&mut events);
        if let Some(bytes) = self.reader.take_superfluous() {
            let _ = self.order(&bytes);
        }
        let mut packet = [0; MAX_PACKET];
        while let Some(socket) = &self.probes {
            match recv(socket, &mut packet, RecvFlags::DONTWAIT) {
                Ok((size, _)) => {
                    events.extend(echo::reply(&packet[..size], id(number)).map(MemberEvent::Echo))
                }
                Err(rustix::io::Errno::AGAIN) => break,
                // Such as an ICMP error: the next probe opens another socket.
                Err(_) => self.probes = None,
            }
        }
        events
    }

    /// Connects to the management interface.
    fn manage(&mut self) -> io::Result<()> {
        let socket = UnixStream::connect(&self.member.socket)?;
        socket.set_nonblocking(true)?;
        self.reader = ControlReader::new(self.member.engine);
        self.management = Some(socket);
        if self.send(ControlRequest::Subscribe) {
            return Ok(());
        }
        self.management = None;
        Err(io::ErrorKind::WriteZero.into())
    }

    fn read_management(&mut self, events: &mut Vec<MemberEvent>) {
        let mut bytes = [0; 4096];
        while let Some(socket) = &mut self.management {
            match socket.read(&mut bytes) {
                Ok(0) => self.management = None,
                Ok(size) => match self.reader.push(&bytes[..size]) {
                    Some(lines) => events.extend(lines.into_iter().map(MemberEvent::Line)),
                    None => self.management = None,
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.management = None,
            }
        }
    }

    /// Sends a command on charon's second connection; whether it was sent.
    fn order(&mut self, bytes: &[u8]) -> bool {
        if self.orders.is_none() {
            let socket = UnixStream::connect(&self.member.socket);
            self.orders = socket.and_then(|new| new.set_nonblocking(true).map(|()| new)).ok();
        }
        let Some(socket) = &mut self.orders else {
            return false;
        };
        // The listing shows what became of a command: its answer is dropped.
        let mut answers = [0; 4096];
        while socket.read(&mut answers).is_ok_and(|size| size > 0) {}
        let sent = socket.write_all(bytes).is_ok();
        if !sent {
            self.orders = None;
        }
        sent
    }

    /// Sends a request; whether it was sent.
    fn send(&mut self, request: ControlRequest) -> bool {
        let bytes = self.reader.request(request, &self.link);
        if let (ControlRequest::Reconnect, MemberEngine::Charon, Some(bytes)) =
            (request, self.member.engine, &bytes)
        {
            return self.order(bytes);
        }
        let (Some(socket), Some(bytes)) = (&mut self.management, bytes) else {
            return false;
        };
        // A process that hangs does not read: a full socket is not a reason to wait.
        socket.write_all(&bytes).is_ok()
    }

    fn probe(&mut self, sequence: u16, size: usize) {
        if self.probes.is_none() {
            self.probes = probe_socket(&self.member).ok();
        }
        if let Some(socket) = &self.probes {
            let message = echo::request(id(self.member.number), sequence, size);
            // A lost probe is a probe without an echo.
            let _ = send(socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

/// Compares the configuration of a running process with the newest one, and loads that where the process can.
fn update(member: &LinkMember, anew: bool) -> MemberEvent {
    let [running, started, newest] =
        [&member.running_config, &member.started_config(), &member.config]
            .map(|path| configuration(path));
    // Without the copies the process has to restart: see `apply::restart`, and `Tunnel::start` that was cut short.
    let restarts = running.is_none()
        || started.is_none()
        || anew && started != newest
        || running != newest && !Tunnel::reload(member);
    if restarts { MemberEvent::Update } else { MemberEvent::Current }
}

/// A configuration of a member in the link's run folder.
fn configuration(path: &Path) -> Option<Vec<u8>> {
    ordinary::read(path, Links::Refuse, MAX_CONFIG).ok()
}

fn has_ended(tunnel: &Tunnel) -> bool {
    let mut descriptors = [PollFd::new(&tunnel.descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut descriptors, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The identifier of a member's probes. Each member has a socket of its own, connected to an address of its own.
fn id(member: u16) -> u16 {
    0x4d00 | member
}

/// A socket between the two addresses of a tunnel: the route of the device leads its packets through it.
fn probe_socket(member: &LinkMember) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ICMP))?;
    bind(&socket, &SocketAddrV4::new(member.local, 0))?;
    connect(&socket, &SocketAddrV4::new(member.peer, 0))?;
    set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?;
    Ok(socket)
}
