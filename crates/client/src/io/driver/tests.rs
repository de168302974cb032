// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Each rule of the driver as a row: a state, an event, the thread that is woken.

use std::thread;

use super::*;

/// Ids of two threads: the one that asks and another.
fn threads() -> (ThreadId, ThreadId) {
    let other = thread::spawn(|| thread::current().id());
    (thread::current().id(), other.join().expect("no panic"))
}

fn leader(role: LeaderKind, until: Option<Instant>) -> Option<Leader> {
    Some(Leader { role, until })
}

fn driver(leader: Option<Leader>, io_thread: IoThread) -> IoDriver {
    IoDriver { leader, io_thread, ..IoDriver::new() }
}

const PARKED: IoThread = IoThread::Parked { until: None };

#[test]
fn caller_leads_unless_another_does_or_the_io_thread_must() {
    let (me, other) = threads();
    let host = |thread| DriverMode::HostLoop { thread, collected: 0 };
    let busy = leader(LeaderKind::Caller, None);
    // (mode, leader, I/O thread, has callbacks) → (a caller may lead, a sleeping one is appointed)
    #[rustfmt::skip]
    let rows = [
        (DriverMode::Shared, None, PARKED,               false, (true,  true)),
        (DriverMode::Shared, None, PARKED,               true,  (false, false)),
        (DriverMode::Shared, None, IoThread::Working,    true,  (false, false)),
        (DriverMode::Shared, None, IoThread::Resolving,  true,  (true,  true)),
        (DriverMode::Shared, None, IoThread::Absent,     false, (true,  true)),
        (DriverMode::Shared, busy, PARKED,               false, (false, false)),
        (DriverMode::Shared, busy, IoThread::Absent,     false, (false, false)),
        (DriverMode::Shared, busy, IoThread::Resolving,  true,  (false, false)),
        (host(me),     None, PARKED,               false, (true,  false)),
        (host(me),     None, PARKED,               true,  (true,  false)),
        (host(me),     busy, PARKED,               false, (false, false)),
        (host(other),  None, PARKED,               false, (false, false)),
        (host(other),  None, IoThread::Resolving,  false, (false, false)),
        (host(other),  None, IoThread::Absent,     false, (true,  true)),
    ];
    for (row, (mode, leader, io_thread, callbacks, expected)) in rows.into_iter().enumerate() {
        let mut driver = driver(leader, io_thread);
        driver.mode = mode;
        let found = (driver.may_lead(me, callbacks), driver.needs_successor(callbacks));
        assert_eq!(found, expected, "row {row}");
    }
}

#[test]
fn io_thread_leads_parks_or_stands_by() {
    let (me, _) = threads();
    // (leader, callers active, has callbacks) → step
    #[rustfmt::skip]
    let rows = [
        (None,                       false, false, IoStep::Lead),
        (None,                       false, true,  IoStep::Lead),
        (None,                       true,  true,  IoStep::Lead),
        (None,                       true,  false, IoStep::Park),
        (leader(LeaderKind::Caller, None), false, false, IoStep::Park),
        (leader(LeaderKind::Caller, None), false, true,  IoStep::Park),
    ];
    for (row, (leader, active, callbacks, expected)) in rows.into_iter().enumerate() {
        let mut driver = driver(leader, IoThread::Working);
        assert_eq!(driver.next_step(active, callbacks), expected, "row {row}");
        let _ = driver.drive_from_host(me);
        assert_eq!(driver.next_step(active, callbacks), IoStep::StandBy);
    }
}

#[test]
fn io_thread_is_woken_for_the_work_that_it_alone_does() {
    let (me, other) = threads();
    let connections = IoThreadWork { connections: true, ..IoThreadWork::default() };
    let pending = IoThreadWork { callbacks: true, ..IoThreadWork::default() };
    let ended = IoThreadWork { callbacks: true, ended_callbacks: true, ..IoThreadWork::default() };
    let none = IoThreadWork::default();
    let caller = leader(LeaderKind::Caller, None);
    let io = leader(LeaderKind::IoThread, None);
    // (host, leader, I/O thread, work) → wake
    #[rustfmt::skip]
    let rows = [
        (None,        None,   PARKED,              none,        Wake::None),
        (None,        None,   PARKED,              connections, Wake::IoThread),
        (None,        None,   IoThread::Working,   connections, Wake::None),
        (None,        io,     IoThread::Working,   connections, Wake::Leader),
        (None,        caller, PARKED,              connections, Wake::IoThread),
        (None,        None,   PARKED,              pending,     Wake::IoThread),
        (None,        caller, PARKED,              pending,     Wake::None),
        (None,        caller, PARKED,              ended,       Wake::IoThread),
        (None,        io,     IoThread::Working,   pending,     Wake::None),
        (None,        io,     IoThread::Working,   ended,       Wake::Leader),
        (Some(me),    None,   PARKED,              pending,     Wake::None),
        (Some(me),    None,   PARKED,              ended,       Wake::None),
        (Some(other), None,   PARKED,              ended,       Wake::IoThread),
        (Some(me),    None,   PARKED,              connections, Wake::IoThread),
    ];
    for (row, (host, leader, io_thread, work, expected)) in rows.into_iter().enumerate() {
        let mut driver = driver(leader, io_thread);
        if let Some(thread) = host {
            driver.mode = DriverMode::HostLoop { thread, collected: 0 };
        }
        assert_eq!(driver.wake_io_thread(work, me), expected, "row {row}");
    }
    let mut closing = driver(None, PARKED);
    closing.close();
    assert_eq!(closing.wake_io_thread(none, me), Wake::IoThread);
}

#[test]
fn leader_is_notified_of_unsent_bytes_and_earlier_timers() {
    let now = Instant::now();
    let soon = Some(now + Duration::from_millis(1));
    let later = Some(now + Duration::from_millis(2));
    let caller = |until| leader(LeaderKind::Caller, until);
    // (leader, timer, unsent) → wake
    #[rustfmt::skip]
    let rows = [
        (None,          soon,  true,  Wake::None),
        (caller(None),  None,  false, Wake::None),
        (caller(None),  soon,  false, Wake::Leader),
        (caller(soon),  later, false, Wake::None),
        (caller(soon),  soon,  false, Wake::None),
        (caller(later), soon,  false, Wake::Leader),
        (caller(soon),  None,  true,  Wake::Leader),
        (leader(LeaderKind::IoThread, later), soon, false, Wake::Leader),
    ];
    for (row, (leader, timer, unsent, expected)) in rows.into_iter().enumerate() {
        let mut driver = driver(leader, PARKED);
        assert_eq!(driver.wake_leader(timer, unsent), expected, "row {row}");
    }
}

#[test]
fn leader_is_notified_once_until_it_has_read_the_eventfd() {
    let mut driver = driver(leader(LeaderKind::Caller, None), PARKED);
    assert_eq!(driver.wake_leader(None, true), Wake::Leader);
    assert_eq!(driver.wake_leader(None, true), Wake::None);
    assert!(!driver.take_notification(), "the leader reads it");
    assert_eq!(driver.wake_leader(None, true), Wake::None);
    driver.stop_leading();
    assert!(driver.take_notification());
    driver.lead(LeaderKind::Caller, None);
    assert_eq!(driver.wake_leader(None, true), Wake::Leader);
}

#[test]
fn host_loop_takes_the_sockets_from_any_leader_and_collects_its_jobs() {
    let (me, other) = threads();
    let mut driver = driver(leader(LeaderKind::IoThread, None), IoThread::Working);
    assert_eq!(driver.submitted(me), Flush::Prompt);
    assert_eq!(driver.drive_from_host(me), [Wake::Leader, Wake::IoThread]);
    assert!(driver.has_leader(), "until it is back from epoll_wait");
    assert!(!driver.take_notification(), "it was meant for the leader");
    driver.stop_leading();
    assert!(driver.take_notification());
    for _ in 0..MAX_COLLECTED {
        assert_eq!(driver.submitted(me), Flush::Later);
    }
    assert_eq!(driver.submitted(me), Flush::Everything);
    assert_eq!(driver.submitted(other), Flush::Everything);
    assert!(driver.has_collected());
    // A second announcement must not lose what was collected.
    let _ = driver.drive_from_host(me);
    assert!(driver.has_collected());
    driver.flushed();
    assert!(!driver.has_collected());
    assert_eq!(driver.submitted(me), Flush::Later);
}

#[test]
fn unsent_jobs_that_are_collected_wake_no_leader() {
    let (me, _) = threads();
    let mut driver = driver(None, PARKED);
    let _ = driver.drive_from_host(me);
    driver.stop_leading();
    assert!(driver.take_notification());
    driver.lead(LeaderKind::Caller, None);
    assert_eq!(driver.submitted(me), Flush::Later);
    assert_eq!(driver.wake_leader(None, true), Wake::None);
    driver.flushed();
    assert_eq!(driver.wake_leader(None, true), Wake::Leader);
}

#[test]
fn io_thread_keeps_the_clock_of_a_host_loop() {
    let (me, _) = threads();
    let now = Instant::now();
    let after = |millis| Some(now + Duration::from_millis(millis));
    let mut driver = driver(None, IoThread::Working);
    let _ = driver.drive_from_host(me);
    assert_eq!(driver.wake_for_follower(), Wake::None, "it works");
    assert_eq!(driver.stand_by(now, after(50), false), after(50));
    assert_eq!(driver.wake_leader(after(60), true), Wake::None);
    assert_eq!(driver.wake_leader(after(40), true), Wake::IoThread);
    assert_eq!(driver.wake_leader(after(40), true), Wake::None, "woken");
    assert_eq!(driver.wake_for_follower(), Wake::IoThread);
    driver.io_thread_works();
    // A caller on another thread sleeps: the loop may be busy elsewhere.
    assert_eq!(driver.stand_by(now, after(50), true), Some(now + CALLER_POLL));
    driver.io_thread_works();
    assert_eq!(driver.stand_by(now, None, false), None);
    driver.io_thread_works();
    // The host is blocked in a call and leads.
    driver.lead(LeaderKind::Caller, None);
    assert_eq!(driver.stand_by(now, after(50), true), Some(now + PARK));
}

#[test]
fn io_thread_that_dies_as_leader_leaves_the_role() {
    let mut dying = driver(leader(LeaderKind::IoThread, None), IoThread::Working);
    assert_eq!(dying.io_thread_ended(), Wake::Leader);
    assert!(!dying.has_leader() && dying.is_closing());
    let mut led = driver(leader(LeaderKind::Caller, None), IoThread::Working);
    assert_eq!(led.io_thread_ended(), Wake::Leader, "finds its job ended");
    assert!(led.caller_leads());
}
