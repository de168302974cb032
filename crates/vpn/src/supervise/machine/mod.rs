// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The supervisor's decisions: events and the time go in, actions come out. It does no I/O and reads no clock.
//!
//! A member is in the link while its process runs and echoes come back through its tunnel. The kernel leaves a
//! member out by itself when its process ends (the device loses its carrier); the echoes notice all that the
//! kernel cannot: a process that hangs, a peer that is gone, a path that is cut one way.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::management::{ManagementLine, TunnelState};

/// Interval of the probes of a member.
pub const PROBE_EVERY: Duration = Duration::from_millis(200);

/// A member whose probes remain unanswered for this long leaves the link: five probes and the time of a
/// loaded tunnel's queue. With the interval of the ticks it is below the promised two seconds.
pub const SILENCE: Duration = Duration::from_millis(1200);

/// Echoes in a row after which a member returns to the link.
const GOOD_ECHOES: u32 = 5;

/// Results of probes that the loss of a member is computed from: four seconds.
const WINDOW: usize = 20;

/// Lost probes among the last [`WINDOW`] with which a member is behind, if another one loses at most
/// [`GOOD_LOSS`].
const BAD_LOSS: usize = 8;
const GOOD_LOSS: usize = 1;

/// A process that does not answer on its management interface for this long hangs.
const HANG: Duration = Duration::from_secs(3);

/// Interval of the questions that prove that a process does not hang.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// A connected tunnel without echoes is connected anew after this time; the time doubles up to [`MAX_DELAY`].
const RECONNECT_AFTER: Duration = Duration::from_secs(2);

/// Delay before a process is started again; it doubles with each failure up to [`MAX_DELAY`].
const FIRST_DELAY: Duration = Duration::from_millis(250);
const MAX_DELAY: Duration = Duration::from_secs(30);

/// A member that was in the link for this long starts again with the first delay.
const STABLE: Duration = Duration::from_secs(60);

/// Time between the removal of a member's route and the stop of its process: packets in its queue leave.
const DRAIN: Duration = Duration::from_millis(500);

/// Ticks that come later than this mean that the supervisor itself had no processor; silence during that time
/// proves nothing.
const LATE: Duration = Duration::from_millis(400);

/// One probe in this number is as large as the tunnel's MTU.
const FULL_EVERY: u16 = 10;

/// Full-size probes in a row that remain unanswered while small ones are answered: the path loses long packets.
const BLACK_HOLE: u32 = 3;

/// Most changes that wait for [`LinkMachine::take_changes`]; beyond that the oldest are dropped. The shell takes
/// them after each tick and appends them to its log.
const MAX_CHANGES: usize = 64;

/// Reasons of OpenVPN for connecting anew, in words. Others are ours (`SIGUSR1` by the management interface).
const RECONNECT_REASONS: &[(&str, &str)] = &[
    (
        "tls-error",
        "the TLS handshake fails: its log says whether a certificate, a clock or the path is the cause",
    ),
    ("ping-restart", "the peer is silent"),
    ("connection-reset", "the peer's host refuses the port"),
];

/// What happened to a member.
#[derive(Clone, Debug)]
pub enum MemberEvent {
    /// Its process runs; it was started, or was found running.
    Runs(u32),
    /// Its process could not be started, for this reason.
    Failed(String),
    /// Its process has ended.
    Ended,
    /// The management interface is connected.
    Managed,
    /// A line from the management interface.
    Said(ManagementLine),
    /// The reply to a probe.
    Echo(u16),
    /// Its configuration has changed: restart it without loss.
    Update,
    /// It runs its newest configuration: an update that has not begun is not needed any more.
    Current,
    /// It is no longer part of the link.
    Retire,
}

/// What a shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuperviseAction {
    /// Start the process.
    Start(u16),
    /// End the process with a goodbye to its peer.
    Stop(u16),
    /// End a process that does not react.
    Kill(u16),
    /// Connect the tunnel anew.
    Reconnect(u16),
    /// Ask the process for a sign of life.
    Ask(u16),
    /// Send an echo request.
    Probe {
        /// The member.
        member: u16,
        /// Sequence number.
        sequence: u16,
        /// As large as the MTU.
        full: bool,
    },
    /// Route over these members and no others.
    Route(Vec<u16>),
    /// Forget a retired member.
    Forget(u16),
}

/// The state of a member, as shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// No process runs.
    Stopped,
    /// The process connects, or proves itself.
    Connecting,
    /// It carries traffic.
    Up,
    /// Its process runs; its tunnel does not work.
    Silent,
    /// It works and loses too much.
    Behind,
    /// It is taken out on purpose.
    Draining,
}

/// A change of a member's state.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StateChange {
    /// The member.
    pub member: u16,
    /// The new state.
    pub state: MemberState,
    /// Why.
    pub reason: String,
    /// Milliseconds since the last sign that all was well, for a member that leaves the link.
    pub noticed_after_ms: Option<u64>,
}

/// A member in numbers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MemberStatus {
    /// Its number.
    pub number: u16,
    /// Its state.
    pub state: MemberState,
    /// Why it is in that state.
    pub reason: String,
    /// Its process.
    pub pid: Option<u32>,
    /// Round-trip time of the last probe, microseconds.
    pub rtt_us: Option<u64>,
    /// Lost probes among the last 20, percent.
    pub lost_percent: u8,
    /// Whether packets of the full MTU are lost on the path.
    pub loses_long_packets: bool,
    /// Bytes that its socket received.
    pub received_bytes: u64,
    /// Bytes that its socket sent.
    pub sent_bytes: u64,
    /// CPU time of its process, milliseconds; `None` without a process.
    pub cpu_ms: Option<u64>,
    /// Starts of its process after the first.
    pub restarts: u32,
}

impl MemberState {
    /// Each state, in the order of a member's life.
    pub const ALL: [Self; 6] = [
        Self::Stopped,
        Self::Connecting,
        Self::Up,
        Self::Silent,
        Self::Behind,
        Self::Draining,
    ];

    /// The name in tables, logs and metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Silent => "silent",
            Self::Behind => "behind",
            Self::Draining => "draining",
        }
    }
}

#[derive(Debug)]
enum Process {
    Stopped { start_at: Instant },
    Starting,
    Running { pid: u32 },
}

#[derive(Debug)]
enum Duty {
    /// It belongs to the link.
    Serve,
    /// It has to restart with a new configuration; the time at which it left the routes, once it has.
    Update(Option<Instant>),
    /// It has to end and be forgotten.
    Retire(Option<Instant>),
}

/// A probe without an answer yet.
#[derive(Clone, Copy, Debug)]
struct SentProbe {
    sequence: u16,
    sent: Instant,
    /// As large as the MTU.
    full: bool,
}

#[derive(Debug)]
struct Probing {
    next_at: Instant,
    /// Of the last probe sent.
    sequence: u16,
    /// In the order of their sequence numbers.
    outstanding: VecDeque<SentProbe>,
    /// Whether each of the last [`WINDOW`] small probes was answered; empty when it joins the link.
    results: VecDeque<bool>,
    /// Small probes answered since one was lost or the member left the link.
    in_a_row: u32,
    /// Full-size probes lost since the last answered one.
    lost_long: u32,
    last_echo: Instant,
    /// Round-trip time of the last answered probe.
    rtt: Option<Duration>,
}

/// A member. These combinations occur after a tick; a member with `Retire` and `Stopped` is forgotten in it.
///
/// | `duty` | `process` | `stopping` | `state` |
/// |---|---|---|---|
/// | `Serve`, `Update(None)` | `Stopped` | none | `Stopped` |
/// | `Update(Some)` | `Stopped` | none | `Stopped`, `Draining` |
/// | `Serve` | `Starting` | none | `Stopped`, `Draining` |
/// | `Serve`, `Update(None)` | `Running` | none | `Connecting`, `Up`, `Silent`, `Behind` |
/// | `Update(Some)` | `Running` | none, then a time | `Draining` |
/// | `Retire(None)`, `Retire(Some)` | `Starting` | none | `Stopped`, `Draining` |
/// | `Retire(None)` | `Running` | as before the event | any but `Stopped` |
/// | `Retire(Some)` | `Running` | none, then a time | `Draining`; `Connecting` if it was `Starting` |
#[derive(Debug)]
struct Member {
    number: u16,
    process: Process,
    duty: Duty,
    /// When the running process was last asked to stop.
    stopping: Option<Instant>,
    /// What the process last said of its tunnel; none since its end, or since a reconnect.
    tunnel: Option<TunnelState>,
    /// Whether the management interface of this process was connected.
    managed: bool,
    /// When the oldest question without an answer was asked.
    asked_at: Option<Instant>,
    /// When to ask next.
    ask_at: Instant,
    probing: Probing,
    /// Since when it is [`MemberState::Up`]; none in every other state.
    in_link_since: Option<Instant>,
    state: MemberState,
    /// Why it is in that state.
    reason: String,
    /// Failed starts, and ends that the supervisor did not ask for, in a row.
    failures: u32,
    /// Starts of the process. A process that was found running counts as one.
    starts: u32,
    /// When a tunnel that carries nothing is connected anew.
    reconnect_at: Instant,
    reconnect_delay: Duration,
    /// As the process last said.
    received_bytes: u64,
    sent_bytes: u64,
}

/// Decides for all members of one end.
#[derive(Debug)]
pub struct LinkMachine {
    members: Vec<Member>,
    /// Whether this end begins TLS handshakes, so that a reconnect here helps.
    begins: bool,
    routed: Option<Vec<u16>>,
    changes: VecDeque<StateChange>,
    last_tick: Instant,
}

impl Probing {
    fn new(now: Instant) -> Self {
        Self {
            next_at: now,
            sequence: 0,
            outstanding: VecDeque::new(),
            results: VecDeque::new(),
            in_a_row: 0,
            lost_long: 0,
            last_echo: now,
            rtt: None,
        }
    }

    fn finish(&mut self, good: bool) {
        self.in_a_row = if good { self.in_a_row + 1 } else { 0 };
        self.results.push_back(good);
        if self.results.len() > WINDOW {
            self.results.pop_front();
        }
    }

    fn lost(&self) -> usize {
        self.results.iter().filter(|good| !**good).count()
    }

    /// A small probe decides; a full one only tells whether long packets pass. Echoes come back in order, so
    /// probes before this one are lost.
    fn echo(&mut self, sequence: u16, now: Instant) {
        if !self
            .outstanding
            .iter()
            .any(|probe| probe.sequence == sequence)
        {
            return;
        }
        while let Some(probe) = self.outstanding.pop_front() {
            if probe.sequence != sequence {
                self.lose(probe.full);
                continue;
            }
            self.last_echo = now;
            self.rtt = Some(now.saturating_duration_since(probe.sent));
            if probe.full {
                self.lost_long = 0;
            } else {
                self.finish(true);
            }
            return;
        }
    }

    fn lose(&mut self, full: bool) {
        if full {
            self.lost_long += 1;
        } else {
            self.finish(false);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some(probe) = self.outstanding.front().copied() {
            if now.saturating_duration_since(probe.sent) < SILENCE {
                break;
            }
            self.outstanding.pop_front();
            self.lose(probe.full);
        }
    }

    fn loses_long_packets(&self) -> bool {
        self.lost_long >= BLACK_HOLE && self.results.back() == Some(&true)
    }
}

impl Member {
    fn new(number: u16, now: Instant) -> Self {
        Self {
            number,
            process: Process::Stopped { start_at: now },
            duty: Duty::Serve,
            stopping: None,
            tunnel: None,
            managed: false,
            asked_at: None,
            ask_at: now,
            probing: Probing::new(now),
            in_link_since: None,
            state: MemberState::Stopped,
            reason: "not started yet".to_owned(),
            failures: 0,
            starts: 0,
            reconnect_at: now,
            reconnect_delay: RECONNECT_AFTER,
            received_bytes: 0,
            sent_bytes: 0,
        }
    }

    fn is_up(&self) -> bool {
        self.in_link_since.is_some()
    }

    /// Changes the state; returns the change, if there is one.
    fn enter(
        &mut self,
        state: MemberState,
        reason: impl Into<String>,
        now: Instant,
    ) -> Option<StateChange> {
        let reason = reason.into();
        if self.state == state && self.reason == reason {
            return None;
        }
        let left = self.is_up() && state != MemberState::Up;
        let failed = left && state != MemberState::Draining;
        let noticed_after = failed.then(|| now.saturating_duration_since(self.probing.last_echo));
        self.in_link_since = match (state, self.in_link_since) {
            (MemberState::Up, None) => {
                // Losses while it was out say nothing about it now.
                self.probing.results.clear();
                Some(now)
            }
            (MemberState::Up, since) => since,
            _ => None,
        };
        if left {
            self.probing.in_a_row = 0;
        }
        self.state = state;
        self.reason.clone_from(&reason);
        Some(StateChange {
            member: self.number,
            state,
            reason,
            noticed_after_ms: noticed_after
                .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        })
    }

    /// Takes over why OpenVPN connects anew: of a member that is out, this is what an operator has to know.
    fn explain(&mut self, state: TunnelState, why: &str, now: Instant) -> Option<StateChange> {
        let reason = RECONNECT_REASONS.iter().find(|(name, _)| *name == why)?.1;
        match self.state {
            MemberState::Connecting | MemberState::Silent if state == TunnelState::Reconnecting => {
                self.enter(self.state, reason, now)
            }
            MemberState::Stopped
            | MemberState::Connecting
            | MemberState::Up
            | MemberState::Silent
            | MemberState::Behind
            | MemberState::Draining => None,
        }
    }

    fn ended(&mut self, now: Instant) {
        if self
            .in_link_since
            .is_some_and(|since| now.saturating_duration_since(since) >= STABLE)
        {
            self.failures = 0;
        }
        let asked = self.stopping.take().is_some();
        let delay = if asked {
            Duration::ZERO
        } else {
            doubled(FIRST_DELAY, self.failures)
        };
        self.failures = if asked {
            0
        } else {
            self.failures.saturating_add(1)
        };
        self.process = Process::Stopped {
            start_at: now + delay,
        };
        self.tunnel = None;
        self.managed = false;
        self.asked_at = None;
    }
}

/// `delay` doubled `times` times, at most [`MAX_DELAY`].
fn doubled(delay: Duration, times: u32) -> Duration {
    delay
        .saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX))
        .min(MAX_DELAY)
}

impl LinkMachine {
    /// A machine for these members, of which none is known to run.
    #[must_use]
    pub fn new(members: &[u16], begins: bool, now: Instant) -> Self {
        Self {
            members: members
                .iter()
                .map(|number| Member::new(*number, now))
                .collect(),
            begins,
            routed: None,
            changes: VecDeque::new(),
            last_tick: now,
        }
    }

    /// Adds a member that the link has gained; its process starts at the next tick.
    pub fn add(&mut self, number: u16, now: Instant) {
        if self.find(number).is_none() {
            self.members.push(Member::new(number, now));
            self.members.sort_by_key(|member| member.number);
        }
    }

    fn find(&mut self, number: u16) -> Option<&mut Member> {
        self.members
            .iter_mut()
            .find(|member| member.number == number)
    }

    /// Takes an event of a member. Events of unknown members are ignored: they were on their way when the member
    /// was forgotten.
    pub fn handle(&mut self, number: u16, event: MemberEvent, now: Instant) {
        let Some(member) = self.find(number) else {
            return;
        };
        let change = match event {
            MemberEvent::Runs(pid) => {
                member.process = Process::Running { pid };
                member.starts = member.starts.max(1);
                member.probing = Probing::new(now);
                member.ask_at = now + ASK_EVERY;
                member.reconnect_delay = RECONNECT_AFTER;
                member.reconnect_at = now + RECONNECT_AFTER;
                member.enter(MemberState::Connecting, "its process runs", now)
            }
            MemberEvent::Failed(why) => {
                member.ended(now);
                member.enter(
                    MemberState::Stopped,
                    format!("its process does not start: {why}"),
                    now,
                )
            }
            MemberEvent::Ended => {
                let reason = if member.stopping.is_some() {
                    "its process was stopped"
                } else {
                    "its process has ended"
                };
                member.ended(now);
                member.enter(MemberState::Stopped, reason, now)
            }
            MemberEvent::Managed => {
                member.managed = true;
                member.asked_at = None;
                None
            }
            MemberEvent::Said(line) => {
                // Any line proves that the event loop runs.
                member.asked_at = None;
                match line {
                    ManagementLine::State(state, why) => {
                        if state == TunnelState::Connected && member.tunnel != Some(state) {
                            member.reconnect_at = now + member.reconnect_delay;
                        }
                        member.tunnel = Some(state);
                        member.explain(state, &why, now)
                    }
                    ManagementLine::Bytes { received, sent } => {
                        member.received_bytes = received;
                        member.sent_bytes = sent;
                        None
                    }
                    ManagementLine::Pid(_) | ManagementLine::Fatal(_) | ManagementLine::Other => {
                        None
                    }
                }
            }
            MemberEvent::Echo(sequence) => {
                member.probing.echo(sequence, now);
                None
            }
            MemberEvent::Update => {
                if matches!(member.duty, Duty::Serve) {
                    member.duty = Duty::Update(None);
                }
                None
            }
            MemberEvent::Current => {
                if matches!(member.duty, Duty::Update(None)) {
                    member.duty = Duty::Serve;
                }
                None
            }
            MemberEvent::Retire => {
                member.duty = Duty::Retire(None);
                None
            }
        };
        self.record(change);
    }

    fn record(&mut self, change: Option<StateChange>) {
        self.changes.extend(change);
        while self.changes.len() > MAX_CHANGES {
            self.changes.pop_front();
        }
    }

    /// The changes since the last call.
    pub fn take_changes(&mut self) -> Vec<StateChange> {
        self.changes.drain(..).collect()
    }

    /// Whether a member carries traffic.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.members.iter().any(Member::is_up)
    }

    /// Whether each member carries traffic with its newest configuration.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.members
            .iter()
            .all(|member| member.is_up() && matches!(member.duty, Duty::Serve))
    }

    /// Whether a member that runs its newest configuration carries traffic.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.members
            .iter()
            .any(|member| member.is_up() && matches!(member.duty, Duty::Serve))
    }

    /// The members, in numbers.
    #[must_use]
    pub fn status(&self) -> Vec<MemberStatus> {
        let status = |member: &Member| MemberStatus {
            number: member.number,
            state: member.state,
            reason: member.reason.clone(),
            pid: match member.process {
                Process::Running { pid } => Some(pid),
                Process::Stopped { .. } | Process::Starting => None,
            },
            rtt_us: member
                .probing
                .rtt
                .map(|rtt| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX)),
            lost_percent: u8::try_from(member.probing.lost() * 100 / WINDOW).unwrap_or(100),
            loses_long_packets: member.probing.loses_long_packets(),
            received_bytes: member.received_bytes,
            sent_bytes: member.sent_bytes,
            // The shell reads it: the machine knows no processes.
            cpu_ms: None,
            restarts: member.starts.saturating_sub(1),
        };
        self.members.iter().map(status).collect()
    }

    /// Decides. Call it every 50 ms or so.
    pub fn tick(&mut self, now: Instant) -> Vec<SuperviseAction> {
        let gap = now.saturating_duration_since(self.last_tick);
        self.last_tick = now;
        if gap > LATE {
            for member in &mut self.members {
                member.excuse(gap);
            }
        }
        let mut actions = Vec::new();
        self.begin_one_update(now);
        let least_lost = self.members.iter().filter(|member| member.is_up());
        let least_lost = least_lost
            .map(|member| member.probing.lost())
            .min()
            .unwrap_or(WINDOW);
        let up = self.members.iter().filter(|member| member.is_up()).count();
        let mut changes = Vec::new();
        for member in &mut self.members {
            member.run_process(now, &mut actions);
            member.probe(now, &mut actions);
            changes.extend(member.judge(now, least_lost, up));
            member.reconnect(now, self.begins && up > 0, &mut actions);
        }
        for change in changes {
            self.record(Some(change));
        }
        self.route(&mut actions);
        let gone = |member: &Member| {
            matches!(
                (&member.duty, &member.process),
                (Duty::Retire(_), Process::Stopped { .. })
            )
        };
        actions.extend(
            self.members
                .iter()
                .filter(|member| gone(member))
                .map(|member| SuperviseAction::Forget(member.number)),
        );
        self.members.retain(|member| !gone(member));
        actions
    }

    /// Lets one member leave the routes for its update; all at once if none carries traffic anyway.
    fn begin_one_update(&mut self, now: Instant) {
        let idle = !self.is_up();
        let mut free = idle
            || self.members.iter().all(|member| {
                let begun = matches!(member.duty, Duty::Update(Some(_)));
                let returning = matches!(member.duty, Duty::Serve) && !member.is_up();
                !begun && !returning
            });
        let mut changes = Vec::new();
        for member in &mut self.members {
            let (since, reason) = match &mut member.duty {
                Duty::Serve => continue,
                Duty::Update(since) => (since, "its configuration changes"),
                Duty::Retire(since) => (since, "it is no longer part of the link"),
            };
            if since.is_none() && free {
                *since = Some(now);
                free = idle;
                changes.extend(member.enter(MemberState::Draining, reason, now));
            }
        }
        for change in changes {
            self.record(Some(change));
        }
    }

    /// Routes over the members that are up. The last ones stay routed: without them nothing would get better.
    fn route(&mut self, actions: &mut Vec<SuperviseAction>) {
        let up: Vec<u16> = self
            .members
            .iter()
            .filter(|member| member.is_up())
            .map(|member| member.number)
            .collect();
        if !up.is_empty() && self.routed.as_ref() != Some(&up) {
            self.routed = Some(up.clone());
            actions.push(SuperviseAction::Route(up));
        }
    }
}

impl Member {
    /// Forgives silence during a time in which the supervisor did not run.
    fn excuse(&mut self, gap: Duration) {
        self.probing.last_echo += gap;
        self.asked_at = self.asked_at.map(|at| at + gap);
        for probe in &mut self.probing.outstanding {
            probe.sent += gap;
        }
    }

    fn run_process(&mut self, now: Instant, actions: &mut Vec<SuperviseAction>) {
        match (&self.process, &self.duty) {
            (Process::Stopped { start_at }, Duty::Serve | Duty::Update(_)) => {
                if now >= *start_at {
                    self.duty = Duty::Serve;
                    self.starts = self.starts.saturating_add(1);
                    self.process = Process::Starting;
                    actions.push(SuperviseAction::Start(self.number));
                }
            }
            (Process::Stopped { .. } | Process::Starting, _) => {}
            (Process::Running { .. }, Duty::Update(Some(since)) | Duty::Retire(Some(since))) => {
                let drained = now.saturating_duration_since(*since) >= DRAIN;
                match self.stopping {
                    None if drained => {
                        self.stopping = Some(now);
                        actions.push(SuperviseAction::Stop(self.number));
                    }
                    Some(asked) if now.saturating_duration_since(asked) >= HANG => {
                        self.stopping = Some(now);
                        actions.push(SuperviseAction::Kill(self.number));
                    }
                    None | Some(_) => {}
                }
            }
            (Process::Running { .. }, Duty::Serve | Duty::Update(None) | Duty::Retire(None)) => {
                self.check_life(now, actions);
            }
        }
    }

    fn check_life(&mut self, now: Instant, actions: &mut Vec<SuperviseAction>) {
        // A tunnel that carries echoes does not hang: another program holds its management interface.
        let unanswered = self
            .asked_at
            .is_some_and(|asked| now.saturating_duration_since(asked) >= HANG);
        if unanswered && !self.is_up() {
            self.asked_at = None;
            self.ask_at = now + HANG;
            actions.push(SuperviseAction::Kill(self.number));
        } else if now >= self.ask_at {
            self.ask_at = now + ASK_EVERY;
            // A process whose management interface does not accept a connection hangs, too.
            self.asked_at = self.asked_at.or(Some(now));
            actions.push(SuperviseAction::Ask(self.number));
        }
    }

    fn probe(&mut self, now: Instant, actions: &mut Vec<SuperviseAction>) {
        self.probing.expire(now);
        if !matches!(self.process, Process::Running { .. }) || now < self.probing.next_at {
            return;
        }
        let probing = &mut self.probing;
        probing.next_at = now + PROBE_EVERY;
        probing.sequence = probing.sequence.wrapping_add(1);
        let full = probing.sequence.is_multiple_of(FULL_EVERY);
        probing.outstanding.push_back(SentProbe {
            sequence: probing.sequence,
            sent: now,
            full,
        });
        actions.push(SuperviseAction::Probe {
            member: self.number,
            sequence: probing.sequence,
            full,
        });
    }

    fn judge(&mut self, now: Instant, least_lost: usize, up: usize) -> Option<StateChange> {
        if !matches!(self.process, Process::Running { .. })
            || !matches!(self.duty, Duty::Serve | Duty::Update(None))
        {
            return None;
        }
        let silent_for = now.saturating_duration_since(self.probing.last_echo);
        if self.is_up() {
            if silent_for >= SILENCE {
                return self.enter(
                    MemberState::Silent,
                    "no echo comes back through its tunnel",
                    now,
                );
            }
            if self.probing.lost() >= BAD_LOSS && least_lost <= GOOD_LOSS && up > 1 {
                return self.enter(
                    MemberState::Behind,
                    "it loses probes that other members do not",
                    now,
                );
            }
            return None;
        }
        // A lossy member has to answer a whole window without loss.
        let needed = match self.state {
            MemberState::Behind => u32::try_from(WINDOW).unwrap_or(u32::MAX),
            MemberState::Stopped
            | MemberState::Connecting
            | MemberState::Up
            | MemberState::Silent
            | MemberState::Draining => GOOD_ECHOES,
        };
        if self.probing.in_a_row >= needed && silent_for < SILENCE {
            self.reconnect_delay = RECONNECT_AFTER;
            return self.enter(MemberState::Up, "echoes come back through its tunnel", now);
        }
        None
    }

    /// A tunnel that says that it is connected and carries nothing has lost its peer: a restarted peer does not
    /// know the old keys. Without a healthy member the path itself is the likelier cause; then `may` is false, and
    /// OpenVPN's own keep-alive decides.
    fn reconnect(&mut self, now: Instant, may: bool, actions: &mut Vec<SuperviseAction>) {
        let dead = self.tunnel == Some(TunnelState::Connected)
            && !self.is_up()
            && self.managed
            && matches!(self.process, Process::Running { .. })
            && now.saturating_duration_since(self.probing.last_echo) >= SILENCE;
        if !dead {
            self.reconnect_at = self.reconnect_at.max(now);
        } else if may && now >= self.reconnect_at {
            self.reconnect_delay = doubled(self.reconnect_delay, 1);
            self.reconnect_at = now + self.reconnect_delay;
            self.tunnel = None;
            actions.push(SuperviseAction::Reconnect(self.number));
        }
    }
}

#[cfg(test)]
mod tests;
