// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The supervisor's decisions: events and the time go in, actions come out. It does no I/O and reads no clock.
//!
//! A member is in the link while its process runs and echoes come back through its tunnel. The kernel leaves a
//! member out by itself when its process ends: the device loses its carrier. The echoes show what the kernel cannot
//! notice: a process that hangs, a peer that is gone, a path that is cut one way.

mod member;

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::link::Side;
use crate::management::{ManagementLine, TunnelState};

/// Interval of the probes of a member: [`SILENCE`] spans nine of them, so that single losses do not matter.
pub const PROBE_EVERY: Duration = Duration::from_millis(100);

/// A member leaves the link if a probe of this age and all later ones have no answer: nine probes, and thirty times the
/// p99 of a loaded tunnel. With the next probe and the next tick it is out 1.1 s after its last echo; the rest of the
/// promised two seconds is for a busy host.
pub const SILENCE: Duration = Duration::from_millis(900);

/// Time that a silent member still has for an echo after the supervisor had no processor: the whole machine may have
/// stood still. A member has it once, since a busy host would hide a dead member for ever otherwise.
const ECHO_GRACE: Duration = Duration::from_millis(400);

/// Results of probes that the loss of a member is computed from: two seconds.
const WINDOW: usize = 20;

/// Interval of the questions that prove that a process does not hang.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// A connected tunnel without echoes, or an idle one, is reconnected after this time; the time doubles up to
/// `MAX_DELAY`.
const RECONNECT_AFTER: Duration = Duration::from_secs(2);

/// A tick this long after the one before means that the supervisor had no processor.
const LATE_TICK: Duration = Duration::from_millis(400);

/// Most changes that wait for [`LinkMachine::take_changes`]; beyond that the oldest are dropped. The shell takes
/// them after each tick and appends them to its log.
const MAX_CHANGES: usize = 64;

/// Event of a member, as the shell reports it.
#[derive(Clone, Debug)]
pub enum MemberEvent {
    /// The process runs, with this id; it was started, or was found running.
    Runs(u32),
    /// The process could not be started, for this reason.
    Failed(String),
    /// The process has ended.
    Ended,
    /// The management interface is connected.
    Managed,
    /// A line from the management interface.
    Line(ManagementLine),
    /// The reply to a probe.
    Echo(u16),
    /// The configuration of the member has changed: restart it without loss.
    Update,
    /// The member runs its newest configuration: an update that has not begun is not needed any more.
    Current,
    /// The member is no longer part of the link.
    Retire,
}

/// Action that the shell has to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuperviseAction {
    /// Start the process.
    Start(u16),
    /// End the process with a goodbye to its peer.
    Stop(u16),
    /// End a process that does not react.
    Kill(u16),
    /// Reconnect the tunnel.
    Reconnect(u16),
    /// Ask the process for a sign of life.
    Ask(u16),
    /// Send an echo request.
    Probe {
        /// Number of the member.
        member: u16,
        /// ICMP sequence number, by which its echo is known.
        sequence: u16,
        /// Whether the probe is as large as the MTU; otherwise it is small.
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
    /// The member carries traffic.
    Up,
    /// Its process runs; its tunnel does not work.
    Silent,
    /// The tunnel works and loses too much.
    Behind,
    /// An operator took the member out.
    Draining,
}

/// A change of a member's state.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StateChange {
    /// Number of the member.
    pub member: u16,
    /// The state that it has from now on.
    pub state: MemberState,
    /// Cause of the change, in words.
    pub reason: String,
    /// Milliseconds since the last sign that all was well, for a member that leaves the link.
    pub noticed_after_ms: Option<u64>,
}

impl fmt::Display for StateChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, state, reason, noticed_after_ms } = self;
        write!(f, "member {member} is {}: {reason}", state.name())?;
        noticed_after_ms.map_or(Ok(()), |ms| write!(f, " (noticed after {ms} ms)"))
    }
}

/// A member in numbers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MemberStatus {
    /// Number of the member, from 0.
    pub number: u16,
    /// Whether it carries traffic, and if not what it does.
    pub state: MemberState,
    /// Why it is in that state, in words.
    pub reason: String,
    /// Id of its process; `None` while none runs.
    pub pid: Option<u32>,
    /// Round-trip time of the last probe, microseconds; `None` for a member that is stopped or silent.
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
    pub const ALL: [Self; 6] =
        [Self::Stopped, Self::Connecting, Self::Up, Self::Silent, Self::Behind, Self::Draining];

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
    /// The member belongs to the link.
    Serve,
    /// The member has to restart with a new configuration; the time at which it left the routes, once it has.
    Update(Option<Instant>),
    /// The member has to end and be forgotten; the time at which it left the routes, once it has.
    Retire(Option<Instant>),
}

/// Tunnels that reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reconnects {
    /// Those that carry nothing, connected or idle.
    Dead,
    /// Those that stay idle otherwise.
    Idle,
}

/// A probe without an answer yet.
#[derive(Clone, Copy, Debug)]
struct SentProbe {
    sequence: u16,
    sent: Instant,
    /// Whether the probe is as large as the MTU.
    full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeResult {
    Answered,
    Lost,
}

#[derive(Debug)]
struct Probing {
    next_at: Instant,
    /// Sequence number of the last probe sent.
    sequence: u16,
    /// Probes without a reply yet, in the order of their sequence numbers.
    outstanding: VecDeque<SentProbe>,
    /// The last [`WINDOW`] small probes; empty when the member joins the link.
    results: VecDeque<ProbeResult>,
    /// Small probes answered since one was lost or the member left the link.
    in_a_row: u32,
    /// Full-size probes lost since the last answered one.
    lost_long: u32,
    last_echo: Instant,
    /// Time of the oldest probe without an answer that was sent after the last answered one.
    unanswered_since: Option<Instant>,
    /// Whether the member had its [`ECHO_GRACE`] since the last echo.
    had_grace: bool,
    /// Round-trip time of the last answered probe.
    rtt: Option<Duration>,
    /// Probes that were sent before this time prove nothing.
    prove_from: Instant,
    /// Probes answered since then: small ones, and those as large as the MTU.
    proofs: Proofs,
}

/// Answered probes that count as a proof of a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Proofs {
    small: u32,
    full: u32,
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
    /// Time at which the running process was last asked to stop.
    stopping: Option<Instant>,
    /// Last tunnel state that the process reported; none since its end, or since a reconnect.
    tunnel: Option<TunnelState>,
    /// Whether the management interface of this process was connected.
    managed: bool,
    /// Time of the oldest question without an answer.
    asked_at: Option<Instant>,
    /// Time of the next question.
    ask_at: Instant,
    probing: Probing,
    /// Time since which the member is [`MemberState::Up`]; none in every other state.
    in_link_since: Option<Instant>,
    state: MemberState,
    /// Reason for the member's state.
    reason: String,
    /// Failed starts, and ends that the supervisor did not ask for, in a row.
    failures: u32,
    /// Starts of the process. A process that was found running counts as one.
    starts: u32,
    /// Time at which a tunnel that carries nothing is reconnected.
    reconnect_at: Instant,
    reconnect_delay: Duration,
    /// Bytes that the process last reported as received.
    received_bytes: u64,
    sent_bytes: u64,
}

/// Decides for all members of one end.
#[derive(Debug)]
pub struct LinkMachine {
    members: Vec<Member>,
    side: Side,
    routed: Option<Vec<u16>>,
    changes: VecDeque<StateChange>,
    last_tick: Instant,
}

impl LinkMachine {
    /// A machine for these members, of which none is known to run.
    #[must_use]
    pub fn new(members: &[u16], side: Side, now: Instant) -> Self {
        Self {
            members: members.iter().map(|number| Member::new(*number, now)).collect(),
            side,
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
        self.members.iter_mut().find(|member| member.number == number)
    }

    /// Takes an event of a member. Events of unknown members are ignored: they were on their way when the member
    /// was forgotten.
    pub fn handle(&mut self, number: u16, event: MemberEvent, now: Instant) {
        let Some(member) = self.find(number) else {
            return;
        };
        let change = member.handle(event, now);
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
        self.members.iter().all(|member| member.is_up() && matches!(member.duty, Duty::Serve))
    }

    /// From now on only what the newest configuration brings up proves it: see [`LinkMachine::is_proven`].
    pub fn ask_for_proof(&mut self, now: Instant) {
        for member in &mut self.members {
            member.probing.prove_from(now);
        }
    }

    /// Whether the newest configuration has brought up a tunnel: the process of a member was started with it, says that
    /// its tunnel is connected, and since then small and long probes were answered through it.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.members.iter().any(Member::is_proven)
    }

    /// Whether no process of a former configuration runs any more.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.members.iter().all(|member| matches!(member.duty, Duty::Serve))
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
                .filter(|_| !matches!(member.state, MemberState::Stopped | MemberState::Silent))
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
        if gap > LATE_TICK {
            for member in &mut self.members {
                member.excuse(gap, now);
            }
        }
        let mut actions = Vec::new();
        self.begin_one_update(now);
        let least_lost = self
            .members
            .iter()
            .filter(|member| member.is_up())
            .map(|member| member.probing.lost())
            .min()
            .unwrap_or(WINDOW);
        let up = self.members.iter().filter(|member| member.is_up()).count();
        // End b begins TLS handshakes, so that a reconnect there helps. Without a healthy member the path itself is the
        // likelier cause, and OpenVPN's own keep-alive decides.
        let reconnects =
            if self.side == Side::B && up > 0 { Reconnects::Dead } else { Reconnects::Idle };
        let mut changes = Vec::new();
        for member in &mut self.members {
            member.run_process(now, &mut actions);
            member.probe(now, &mut actions);
            changes.extend(member.judge(now, least_lost, up));
            changes.extend(member.reconnect(now, reconnects, &mut actions));
        }
        for change in changes {
            self.record(Some(change));
        }
        self.route(&mut actions);
        let gone = |member: &Member| {
            matches!((&member.duty, &member.process), (Duty::Retire(_), Process::Stopped { .. }))
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

#[cfg(test)]
mod tests;
