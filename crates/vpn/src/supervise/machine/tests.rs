// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;

/// Interval of the ticks, as in the shell.
const TICK: Duration = Duration::from_millis(50);

/// A machine with a simulated world: processes that start at once, tunnels that answer or do not.
struct World {
    machine: LinkMachine,
    now: Instant,
    /// Members whose tunnels answer.
    answering: Vec<u16>,
    /// Members whose processes answer on the management interface.
    alive: Vec<u16>,
    /// Members whose processes end as soon as they run.
    dying: Vec<u16>,
    actions: Vec<SuperviseAction>,
    changes: Vec<StateChange>,
}

impl World {
    fn new(members: u16) -> Self {
        let all: Vec<u16> = (0..members).collect();
        let now = Instant::now();
        Self {
            machine: LinkMachine::new(&all, Side::B, now),
            now,
            answering: all.clone(),
            alive: all,
            dying: Vec::new(),
            actions: Vec::new(),
            changes: Vec::new(),
        }
    }

    fn up(members: u16) -> Self {
        let mut world = Self::new(members);
        world.run(Duration::from_secs(5));
        assert!(world.machine.is_settled(), "{:?}", world.machine.status());
        world.actions.clear();
        world.changes.clear();
        world
    }

    fn run(&mut self, time: Duration) {
        self.run_every(TICK, time);
    }

    fn run_every(&mut self, tick: Duration, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += tick;
            let actions = self.machine.tick(self.now);
            for member in &self.machine.members {
                assert!(is_in_the_table(member), "{member:?}");
            }
            for action in actions {
                self.react(&action);
                self.actions.push(action);
            }
            self.changes.extend(self.machine.take_changes());
        }
    }

    fn react(&mut self, action: &SuperviseAction) {
        let now = self.now;
        match action {
            SuperviseAction::Start(member) => {
                self.alive.push(*member);
                self.machine.handle(*member, MemberEvent::Runs(1), now);
                self.machine.handle(*member, MemberEvent::Managed, now);
                self.say(*member, TunnelState::Connected);
                if self.dying.contains(member) {
                    self.machine.handle(*member, MemberEvent::Ended, now);
                }
            }
            SuperviseAction::Stop(member) | SuperviseAction::Kill(member) => {
                self.machine.handle(*member, MemberEvent::Ended, now)
            }
            SuperviseAction::Reconnect(member) => self.say(*member, TunnelState::Connected),
            SuperviseAction::Ask(member) if self.alive.contains(member) => {
                self.machine.handle(*member, MemberEvent::Line(ManagementLine::Pid(1)), now);
            }
            SuperviseAction::Probe { member, sequence, .. } if self.answering.contains(member) => {
                self.machine.handle(*member, MemberEvent::Echo(*sequence), now);
            }
            SuperviseAction::Ask(_)
            | SuperviseAction::Probe { .. }
            | SuperviseAction::Route(_)
            | SuperviseAction::Forget(_) => {}
        }
    }

    fn say(&mut self, member: u16, state: TunnelState) {
        let line = ManagementLine::State(state, String::new());
        self.machine.handle(member, MemberEvent::Line(line), self.now);
    }

    fn routes(&self) -> Vec<Vec<u16>> {
        let routes = self.actions.iter().filter_map(|action| match action {
            SuperviseAction::Route(members) => Some(members.clone()),
            _ => None,
        });
        routes.collect()
    }

    fn count(&self, wanted: &SuperviseAction) -> usize {
        self.actions.iter().filter(|action| *action == wanted).count()
    }

    /// Whether the status shows a round-trip time of each member.
    fn round_trips(&self) -> Vec<bool> {
        self.machine.status().iter().map(|member| member.rtt_us.is_some()).collect()
    }

    fn state(&self, member: u16) -> MemberState {
        self.machine.status()[usize::from(member)].state
    }
}

/// Whether the member is in the table of combinations in its documentation.
fn is_in_the_table(member: &Member) -> bool {
    use MemberState::{Behind, Connecting, Draining, Silent, Stopped, Up};
    let (state, asked) = (member.state, member.stopping.is_some());
    match (&member.duty, &member.process) {
        (Duty::Serve | Duty::Update(None), Process::Stopped { .. }) => !asked && state == Stopped,
        (Duty::Update(Some(_)), Process::Stopped { .. })
        | (Duty::Serve | Duty::Retire(_), Process::Starting) => {
            !asked && matches!(state, Stopped | Draining)
        }
        (Duty::Serve | Duty::Update(None), Process::Running { .. }) => {
            !asked && matches!(state, Connecting | Up | Silent | Behind)
        }
        (Duty::Update(Some(_)), Process::Running { .. }) => state == Draining,
        (Duty::Retire(None), Process::Running { .. }) => state != Stopped,
        (Duty::Retire(Some(_)), Process::Running { .. }) => matches!(state, Draining | Connecting),
        (Duty::Update(_), Process::Starting) | (Duty::Retire(_), Process::Stopped { .. }) => false,
    }
}

#[test]
fn members_start_and_join_the_routes() {
    let mut world = World::new(3);
    world.run(Duration::from_secs(3));
    assert!(world.machine.is_settled());
    assert_eq!(world.routes().last(), Some(&vec![0, 1, 2]));
    assert_eq!(world.count(&SuperviseAction::Start(1)), 1);
}

#[test]
fn ended_process_leaves_at_once_and_comes_back() {
    let mut world = World::up(4);
    world.machine.handle(2, MemberEvent::Ended, world.now);
    world.run(TICK);
    assert_eq!(world.routes(), [vec![0, 1, 3]]);
    assert_eq!(world.round_trips(), [true, true, false, true]);
    assert!(world.changes[0].noticed_after_ms.expect("measured") <= 250);
    world.run(Duration::from_secs(3));
    assert_eq!(world.routes().last(), Some(&vec![0, 1, 2, 3]));
    assert_eq!(world.machine.status()[2].restarts, 1);
}

#[test]
fn silent_member_leaves_within_two_seconds_and_is_connected_anew() {
    let mut world = World::up(4);
    world.answering.retain(|member| *member != 1);
    world.run(Duration::from_secs(2));
    assert_eq!(world.routes(), [vec![0, 2, 3]]);
    assert_eq!(world.state(1), MemberState::Silent);
    assert_eq!(world.round_trips(), [true, false, true, true]);
    assert!(world.changes[0].noticed_after_ms.expect("measured") < 1200);
    assert_eq!(world.count(&SuperviseAction::Reconnect(1)), 1);
    world.answering.push(1);
    world.run(Duration::from_secs(3));
    assert_eq!(world.routes().last(), Some(&vec![0, 1, 2, 3]));
}

#[test]
fn idle_tunnel_of_the_only_member_is_connected_anew_at_growing_intervals() {
    let mut world = World::new(1);
    world.answering.clear();
    world.run(Duration::from_secs(2));
    for (seconds, connected) in [(1, 0), (2, 1)] {
        world.say(0, TunnelState::Idle);
        world.run(Duration::from_secs(seconds));
        assert_eq!(world.count(&SuperviseAction::Reconnect(0)), connected);
    }
    assert!(world.changes.iter().any(|change| change.reason.contains("failed")));
    for (seconds, connected) in [(3, 1), (2, 2)] {
        world.say(0, TunnelState::Idle);
        world.run(Duration::from_secs(seconds));
        assert_eq!(world.count(&SuperviseAction::Reconnect(0)), connected);
    }
}

#[test]
fn hanging_process_is_killed_and_started_again() {
    let mut world = World::up(2);
    world.answering.retain(|member| *member != 0);
    world.alive.retain(|member| *member != 0);
    world.run(Duration::from_secs(2));
    assert_eq!(world.routes(), [vec![1]], "out before it is killed");
    world.run(Duration::from_secs(4));
    assert_eq!(world.count(&SuperviseAction::Kill(0)), 1);
    assert_eq!(world.count(&SuperviseAction::Start(0)), 1);
}

#[test]
fn last_members_stay_routed_when_all_fall_silent() {
    let mut world = World::up(2);
    world.answering.clear();
    world.run(Duration::from_secs(20));
    assert!(world.routes().iter().all(|members| !members.is_empty()), "{:?}", world.routes());
    assert!(!world.machine.is_up());
    assert!(!world.actions.iter().any(|action| matches!(action, SuperviseAction::Kill(_))));
    world.answering = vec![0, 1];
    world.run(Duration::from_secs(3));
    assert!(world.machine.is_settled());
    // Both fell silent in one tick, and neither route was ever changed.
    assert_eq!(world.routes(), Vec::<Vec<u16>>::new());
}

#[test]
fn lossy_member_leaves_only_if_others_are_better() {
    for (others_lose, expected) in [(false, MemberState::Behind), (true, MemberState::Up)] {
        let mut world = World::up(2);
        for round in 0..100 {
            let all = vec![0, 1];
            let lossy = if others_lose { Vec::new() } else { vec![1] };
            world.answering = if round % 2 == 0 { all } else { lossy };
            world.run(PROBE_EVERY);
        }
        assert_eq!(world.state(0), expected, "others lose: {others_lose}");
    }
}

#[test]
fn failing_process_is_started_with_growing_delays() {
    let mut world = World::up(2);
    world.dying.push(0);
    world.machine.handle(0, MemberEvent::Ended, world.now);
    world.run(Duration::from_secs(60));
    let total = world.count(&SuperviseAction::Start(0));
    assert!((5..=9).contains(&total), "{total} starts in a minute");
}

#[test]
fn updates_go_one_by_one_and_never_cut_the_link() {
    let mut world = World::up(3);
    for member in 0..3 {
        world.machine.handle(member, MemberEvent::Update, world.now);
    }
    for _ in 0..400 {
        world.run(TICK);
        let up =
            world.machine.status().iter().filter(|member| member.state == MemberState::Up).count();
        assert!(up >= 2, "{:?}", world.machine.status());
    }
    assert!(world.machine.is_settled());
    for member in 0..3 {
        assert_eq!(world.count(&SuperviseAction::Stop(member)), 1);
        assert_eq!(world.count(&SuperviseAction::Start(member)), 1);
    }
}

#[test]
fn update_waits_while_another_member_is_out() {
    let mut world = World::up(2);
    world.answering.retain(|member| *member != 0);
    world.run(Duration::from_secs(2));
    world.machine.handle(1, MemberEvent::Update, world.now);
    world.run(Duration::from_secs(10));
    assert_eq!(
        world.count(&SuperviseAction::Stop(1)),
        0,
        "the only working member is not restarted"
    );
    world.answering.push(0);
    world.run(Duration::from_secs(5));
    assert_eq!(world.count(&SuperviseAction::Stop(1)), 1);
}

#[test]
fn retired_member_leaves_its_routes_before_it_ends() {
    let mut world = World::up(3);
    world.machine.handle(2, MemberEvent::Retire, world.now);
    world.run(Duration::from_secs(2));
    let position = |wanted: &SuperviseAction| {
        world.actions.iter().position(|action| action == wanted).expect("done")
    };
    let order =
        [SuperviseAction::Route(vec![0, 1]), SuperviseAction::Stop(2), SuperviseAction::Forget(2)]
            .map(|action| position(&action));
    assert!(order.is_sorted(), "{:?}", world.actions);
    assert_eq!(world.machine.status().len(), 2);
    world.machine.add(2, world.now);
    world.run(Duration::from_secs(3));
    assert_eq!(world.routes().last(), Some(&vec![0, 1, 2]));
}

#[test]
fn silence_while_the_supervisor_did_not_run_is_forgiven() {
    let mut world = World::up(2);
    world.now += Duration::from_secs(30);
    world.run(Duration::from_secs(2));
    assert_eq!(world.routes(), Vec::<Vec<u16>>::new());
    assert!(world.machine.is_settled());
}

#[test]
fn dead_member_leaves_within_two_seconds_also_by_a_supervisor_that_rarely_has_a_processor() {
    for ms in [50, 100, 250, 400, 450, 600] {
        let every = Duration::from_millis(ms);
        let mut world = World::up(2);
        world.run_every(every, Duration::from_secs(20));
        assert_eq!(world.routes(), Vec::<Vec<u16>>::new(), "both live, a tick each {every:?}");
        world.answering.retain(|member| *member != 1);
        world.run_every(every, Duration::from_secs(2));
        assert_eq!(world.routes(), [vec![0]], "a tick each {every:?}");
    }
}

#[test]
fn member_whose_echo_comes_after_a_standstill_of_the_machine_stays() {
    let mut world = World::up(2);
    // A probe is on its way while nothing runs; after that its echo takes 300 ms.
    world.answering.clear();
    world.run(2 * PROBE_EVERY);
    world.now += Duration::from_secs(30);
    world.run(Duration::from_millis(300));
    world.answering = vec![0, 1];
    world.run(Duration::from_secs(2));
    assert_eq!(world.routes(), Vec::<Vec<u16>>::new());
    assert_eq!(world.changes.len(), 0, "{:?}", world.changes);
}

#[test]
fn path_that_loses_long_packets_is_reported() {
    let mut world = World::up(1);
    let mut reported = false;
    for _ in 0..400 {
        world.now += TICK;
        for action in world.machine.tick(world.now) {
            match action {
                SuperviseAction::Probe { full: true, .. } => {}
                other => world.react(&other),
            }
        }
        reported |= world.machine.status()[0].loses_long_packets;
    }
    assert!(reported);
    assert!(world.machine.is_up(), "small packets pass");
}

#[test]
fn failed_handshake_is_the_reason_of_a_member_that_is_out() {
    let mut world = World::up(2);
    world.answering = vec![0];
    world.run(Duration::from_secs(3));
    let said = |why: &str| {
        MemberEvent::Line(ManagementLine::State(TunnelState::Reconnecting, why.to_owned()))
    };
    for member in [0, 1] {
        world.machine.handle(member, said("tls-error"), world.now);
    }
    let status = world.machine.status();
    assert!(status[1].reason.contains("the TLS handshake fails"), "{status:?}");
    assert_eq!(status[0].state, MemberState::Up);
    assert!(!status[0].reason.contains("TLS"), "{status:?}");
    // The same reason again is not a change.
    world.machine.take_changes();
    world.machine.handle(1, said("tls-error"), world.now);
    assert_eq!(world.machine.take_changes().len(), 0);
}

#[test]
fn configuration_is_proven_only_by_what_it_brought_up_itself() {
    let mut world = World::up(1);
    // What stood before it is no proof, and an echo on its way at that time neither.
    world.machine.ask_for_proof(world.now);
    assert!(!world.machine.is_proven());
    world.run(Duration::from_millis(400));
    assert!(!world.machine.is_proven(), "no long packet has passed yet");
    world.run(Duration::from_secs(2));
    assert!(world.machine.is_proven(), "the process runs the newest configuration");

    // The process has to restart: until then it is the former one.
    world.machine.ask_for_proof(world.now);
    world.machine.handle(0, MemberEvent::Update, world.now);
    while world.count(&SuperviseAction::Start(0)) == 0 {
        assert!(!world.machine.is_proven());
        world.run(TICK);
    }
    world.run(Duration::from_secs(3));
    assert!(world.machine.is_proven());
}

#[test]
fn echoes_through_what_a_killed_daemon_left_in_the_kernel_prove_nothing() {
    let mut world = World::up(1);
    world.machine.ask_for_proof(world.now);
    // The new daemon has no connection, and the kernel still encrypts with the keys of the former one.
    world.say(0, TunnelState::Idle);
    world.run(Duration::from_millis(1500));
    assert!(world.machine.is_up() && !world.machine.is_proven());
    world.say(0, TunnelState::Connected);
    assert!(!world.machine.is_proven(), "these echoes came before");
    world.run(Duration::from_secs(2));
    assert!(world.machine.is_proven());
}

#[test]
fn tunnel_that_loses_long_packets_proves_nothing() {
    let mut world = World::up(1);
    world.machine.ask_for_proof(world.now);
    for _ in 0..200 {
        world.now += TICK;
        for action in world.machine.tick(world.now) {
            match action {
                SuperviseAction::Probe { full: true, .. } => {}
                other => world.react(&other),
            }
        }
    }
    assert!(world.machine.is_up() && !world.machine.is_proven());
}
