// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The state machine of one member: its process, its probes, its place in the routes.
//!
//! The machine of the link hands it events by [`Member::handle`]. At each tick it lets the member run its process,
//! probe, be judged and reconnect, in this order. Comparisons between members, and the routes, are the
//! link's.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{
    ASK_EVERY, Duty, ECHO_GRACE, Member, MemberEvent, MemberState, PROBE_EVERY, ProbeResult,
    Probing, Process, Proofs, RECONNECT_AFTER, Reconnects, SILENCE, SentProbe, StateChange,
    SuperviseAction, WINDOW,
};
use crate::management::{ManagementLine, TunnelState};

/// Echoes in a row after which a member returns to the link.
const GOOD_ECHOES: u32 = 5;

/// Lost probes among the last [`WINDOW`] with which a member is behind, if another one loses at most
/// [`GOOD_LOSS`].
const BAD_LOSS: usize = 8;

/// Lost probes among the last [`WINDOW`] that are no sign of a bad path: single losses occur on any.
const GOOD_LOSS: usize = 1;

/// A process that does not answer on its management interface for this long hangs.
const HANG: Duration = Duration::from_secs(3);

/// Delay before a process is started again; it doubles with each failure up to [`MAX_DELAY`].
const FIRST_DELAY: Duration = Duration::from_millis(250);

/// Longest delay: a tunnel comes back within half a minute after its cause is removed.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// A member that was in the link for this long starts again with the first delay.
const STABLE: Duration = Duration::from_secs(60);

/// Time between the removal of a member's route and the stop of its process: packets in its queue leave.
const DRAIN: Duration = Duration::from_millis(500);

/// One probe in this number is as large as the tunnel's MTU.
const FULL_EVERY: u16 = 10;

/// Full-size probes in a row that remain unanswered while small ones are answered: the path loses long packets.
const BLACK_HOLE: u32 = 3;

/// Reasons of OpenVPN for a reconnection, in words. Others are ours (`SIGUSR1` by the management interface).
const RECONNECT_REASONS: &[(&str, &str)] = &[
    (
        "tls-error",
        "the TLS handshake fails: its log says whether a certificate, a clock or the path is the cause",
    ),
    ("ping-restart", "the peer is silent"),
    ("connection-reset", "the peer's host refuses the port"),
];

/// Reason of a member whose tunnel is idle.
const IDLE_REASON: &str = "its last connection failed: its log says why";

impl Probing {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            next_at: now,
            sequence: 0,
            outstanding: VecDeque::new(),
            results: VecDeque::new(),
            in_a_row: 0,
            lost_long: 0,
            last_echo: now,
            unanswered_since: None,
            had_grace: false,
            rtt: None,
            prove_from: now,
            proofs: Proofs::default(),
        }
    }

    pub(super) fn prove_from(&mut self, now: Instant) {
        self.prove_from = now;
        self.proofs = Proofs::default();
    }

    /// Age of the oldest probe that has no answer, and no later one has. Time in which the supervisor had no processor
    /// counts only where a probe was on its way: echoes of that time wait in the socket and are read first.
    fn silent_for(&self, now: Instant) -> Duration {
        self.unanswered_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    fn finish(&mut self, result: ProbeResult) {
        self.in_a_row = if result == ProbeResult::Answered { self.in_a_row + 1 } else { 0 };
        self.results.push_back(result);
        if self.results.len() > WINDOW {
            self.results.pop_front();
        }
    }

    pub(super) fn lost(&self) -> usize {
        self.results.iter().filter(|result| **result == ProbeResult::Lost).count()
    }

    /// A small probe decides; a full one only tells whether long packets pass. Echoes come back in order, so
    /// probes before this one are lost.
    fn echo(&mut self, sequence: u16, now: Instant) {
        if !self.outstanding.iter().any(|probe| probe.sequence == sequence) {
            return;
        }
        while let Some(probe) = self.outstanding.pop_front() {
            if probe.sequence != sequence {
                self.lose(probe.full);
                continue;
            }
            self.last_echo = now;
            self.unanswered_since = self.outstanding.front().map(|next| next.sent);
            self.had_grace = false;
            self.rtt = Some(now.saturating_duration_since(probe.sent));
            let proves = u32::from(probe.sent >= self.prove_from);
            if probe.full {
                self.lost_long = 0;
                self.proofs.full += proves;
            } else {
                self.proofs.small += proves;
                self.finish(ProbeResult::Answered);
            }
            return;
        }
    }

    fn lose(&mut self, full: bool) {
        if full {
            self.lost_long += 1;
        } else {
            self.finish(ProbeResult::Lost);
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

    pub(super) fn loses_long_packets(&self) -> bool {
        self.lost_long >= BLACK_HOLE && self.results.back() == Some(&ProbeResult::Answered)
    }
}

impl Member {
    pub(super) fn new(number: u16, now: Instant) -> Self {
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

    pub(super) fn is_up(&self) -> bool {
        self.in_link_since.is_some()
    }

    pub(super) fn is_proven(&self) -> bool {
        let Proofs { small, full } = self.probing.proofs;
        self.is_up()
            && matches!(self.duty, Duty::Serve)
            && self.tunnel == Some(TunnelState::Connected)
            && small >= GOOD_ECHOES
            && full > 0
    }

    pub(super) fn handle(&mut self, event: MemberEvent, now: Instant) -> Option<StateChange> {
        match event {
            MemberEvent::Runs(pid) => return self.runs(pid, now),
            MemberEvent::Failed(why) => {
                self.ended(now);
                let reason = format!("its process does not start: {why}");
                return self.enter(MemberState::Stopped, reason, now);
            }
            MemberEvent::Ended => {
                let asked = self.stopping.is_some();
                let reason =
                    if asked { "its process was stopped" } else { "its process has ended" };
                self.ended(now);
                return self.enter(MemberState::Stopped, reason, now);
            }
            MemberEvent::Managed => {
                self.managed = true;
                self.asked_at = None;
            }
            MemberEvent::Line(line) => {
                // Any line proves that the event loop runs.
                self.asked_at = None;
                return self.reported(line, now);
            }
            MemberEvent::Echo(sequence) => self.probing.echo(sequence, now),
            MemberEvent::Update if matches!(self.duty, Duty::Serve) => {
                self.duty = Duty::Update(None);
            }
            MemberEvent::Current if matches!(self.duty, Duty::Update(None)) => {
                self.duty = Duty::Serve;
            }
            MemberEvent::Update | MemberEvent::Current => {}
            MemberEvent::Retire => self.duty = Duty::Retire(None),
        }
        None
    }

    fn runs(&mut self, pid: u32, now: Instant) -> Option<StateChange> {
        self.process = Process::Running { pid };
        self.starts = self.starts.max(1);
        self.probing = Probing::new(now);
        self.ask_at = now + ASK_EVERY;
        self.reconnect_delay = RECONNECT_AFTER;
        self.reconnect_at = now + RECONNECT_AFTER;
        self.enter(MemberState::Connecting, "its process runs", now)
    }

    fn reported(&mut self, line: ManagementLine, now: Instant) -> Option<StateChange> {
        match line {
            ManagementLine::State(state, why) => {
                let may_reconnect = matches!(state, TunnelState::Connected | TunnelState::Idle);
                if self.tunnel != Some(state) {
                    if may_reconnect {
                        self.reconnect_at = now + self.reconnect_delay;
                    }
                    // What came through a tunnel before this one is no proof.
                    self.probing.prove_from(now);
                }
                self.tunnel = Some(state);
                self.explain(state, &why, now)
            }
            ManagementLine::Bytes { received, sent } => {
                self.received_bytes = received;
                self.sent_bytes = sent;
                None
            }
            ManagementLine::Pid(_) | ManagementLine::Fatal(_) | ManagementLine::Other => None,
        }
    }

    /// Changes the state; returns the change, if there is one.
    pub(super) fn enter(
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

    /// Takes over why OpenVPN reconnects: of a member that is out, this is what an operator has to know.
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
        if self.in_link_since.is_some_and(|since| now.saturating_duration_since(since) >= STABLE) {
            self.failures = 0;
        }
        let asked = self.stopping.take().is_some();
        let delay = if asked { Duration::ZERO } else { doubled(FIRST_DELAY, self.failures) };
        self.failures = if asked { 0 } else { self.failures.saturating_add(1) };
        self.process = Process::Stopped { start_at: now + delay };
        self.tunnel = None;
        self.managed = false;
        self.asked_at = None;
    }
}

/// `delay` doubled `times` times, at most [`MAX_DELAY`].
fn doubled(delay: Duration, times: u32) -> Duration {
    delay.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX)).min(MAX_DELAY)
}

impl Member {
    /// Forgives what a time without a processor may have caused: see [`ECHO_GRACE`].
    pub(super) fn excuse(&mut self, gap: Duration, now: Instant) {
        if let Some(since) = self.probing.unanswered_since.filter(|_| !self.probing.had_grace) {
            self.probing.had_grace = true;
            let soonest = now.checked_sub(SILENCE - ECHO_GRACE).unwrap_or(since);
            self.probing.unanswered_since = Some(since.max(soonest));
        }
        self.asked_at = self.asked_at.map(|at| at + gap);
        for probe in &mut self.probing.outstanding {
            probe.sent += gap;
        }
    }

    pub(super) fn run_process(&mut self, now: Instant, actions: &mut Vec<SuperviseAction>) {
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
        let unanswered =
            self.asked_at.is_some_and(|asked| now.saturating_duration_since(asked) >= HANG);
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

    pub(super) fn probe(&mut self, now: Instant, actions: &mut Vec<SuperviseAction>) {
        self.probing.expire(now);
        if !matches!(self.process, Process::Running { .. }) || now < self.probing.next_at {
            return;
        }
        let probing = &mut self.probing;
        probing.next_at = now + PROBE_EVERY;
        probing.sequence = probing.sequence.wrapping_add(1);
        let full = probing.sequence.is_multiple_of(FULL_EVERY);
        probing.unanswered_since.get_or_insert(now);
        probing.outstanding.push_back(SentProbe { sequence: probing.sequence, sent: now, full });
        actions.push(SuperviseAction::Probe {
            member: self.number,
            sequence: probing.sequence,
            full,
        });
    }

    /// Takes the member out of the link or into it, by its echoes. `least_lost` is the lowest number of lost probes
    /// among the `up` members of the link.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        least_lost: usize,
        up: usize,
    ) -> Option<StateChange> {
        if !matches!(self.process, Process::Running { .. })
            || !matches!(self.duty, Duty::Serve | Duty::Update(None))
        {
            return None;
        }
        let silent_for = self.probing.silent_for(now);
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

    /// Reconnects a dead tunnel. One that says that it is connected and carries nothing has lost its peer: a
    /// restarted peer does not know the old keys. An idle tunnel stays so by itself.
    pub(super) fn reconnect(
        &mut self,
        now: Instant,
        reconnects: Reconnects,
        actions: &mut Vec<SuperviseAction>,
    ) -> Option<StateChange> {
        let is_idle = self.tunnel == Some(TunnelState::Idle);
        let dead = (is_idle || self.tunnel == Some(TunnelState::Connected))
            && !self.is_up()
            && self.managed
            && matches!(self.process, Process::Running { .. })
            && self.probing.silent_for(now) >= SILENCE;
        if !dead {
            self.reconnect_at = self.reconnect_at.max(now);
        } else if (reconnects == Reconnects::Dead || is_idle) && now >= self.reconnect_at {
            self.reconnect_delay = doubled(self.reconnect_delay, 1);
            self.reconnect_at = now + self.reconnect_delay;
            self.tunnel = None;
            actions.push(SuperviseAction::Reconnect(self.number));
            return is_idle.then(|| self.enter(self.state, IDLE_REASON, now)).flatten();
        }
        None
    }
}
