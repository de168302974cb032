// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A model of a host of two parts: every order of events up to a depth, and a kill before each write of each event
//! and of each recovery. The host is then in a confirmed state or in one that waits, never in between; and once its
//! time is over it is as it was confirmed last.

use std::collections::BTreeSet;

use super::*;

const WITHIN: Duration = Duration::from_secs(60);

/// Events of each order: with them two changes, their confirmations and ends are interleaved in each way.
const DEPTH: usize = 4;

/// Why an act of the model failed.
#[derive(Debug, PartialEq)]
enum Failure {
    Killed,
    Refused,
}

#[derive(Clone, Debug)]
struct Model {
    /// The record and the parts, as they are on disk.
    record: HostChange<u8>,
    parts: [Option<u8>; 2],
    /// Writes until the process is killed.
    lives: usize,
    /// The state whose second part cannot be put in place.
    broken: Option<u8>,
    /// Starts of the host, and the time since the last one.
    starts: u32,
    uptime: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Apply(u8),
    Try(u8),
    TryBroken(u8),
    Confirm,
    TimePasses,
    HostRestarts,
}

const EVENTS: [Event; 7] = [
    Event::Apply(1),
    Event::Try(1),
    Event::Try(2),
    Event::TryBroken(3),
    Event::Confirm,
    Event::TimePasses,
    Event::HostRestarts,
];

impl ChangedHost<u8> for Model {
    type Error = Failure;

    fn save(&mut self, change: &HostChange<u8>) -> Result<(), Failure> {
        self.write()?;
        let text = serde_json::to_string(change).expect("JSON");
        self.record = serde_json::from_str(&text).expect("the same");
        Ok(())
    }

    fn put(&mut self, state: Option<&u8>) -> Result<Option<u8>, Failure> {
        for part in 0..2 {
            self.write()?;
            if part == 1 && state.is_some() && self.broken.as_ref() == state {
                return Err(Failure::Refused);
            }
            self.parts[part] = state.copied();
        }
        Ok(state.copied())
    }
}

impl Model {
    fn new() -> Self {
        Self {
            record: HostChange::settled(None),
            parts: [None; 2],
            lives: usize::MAX,
            broken: None,
            starts: 1,
            uptime: Duration::ZERO,
        }
    }

    fn write(&mut self) -> Result<(), Failure> {
        self.lives = self.lives.saturating_sub(1);
        if self.lives == 0 { Err(Failure::Killed) } else { Ok(()) }
    }

    fn now(&self) -> HostTime {
        HostTime::of(&self.starts.to_string(), self.uptime)
    }

    /// A supervisor starts, or looks once a second.
    fn look(&mut self) {
        let mut change = self.record.clone();
        match change.due(&self.now()) {
            ChangeDue::Nothing | ChangeDue::Confirmation(_) => {}
            ChangeDue::Return(_) => {
                let _ = go_back(&mut change, self);
            }
        }
    }

    fn apply(&mut self, to: u8, within: Option<Duration>) {
        let mut change = self.record.clone();
        let now = self.now();
        if change.begin(to, within, &now).is_err() {
            self.look();
            return;
        }
        let _ = carry_out(&mut change, self, || now.clone());
    }

    fn happen(&mut self, event: Event) {
        let before = self.record.confirmed().copied();
        match event {
            Event::Apply(to) => self.apply(to, None),
            Event::Try(to) => self.apply(to, Some(WITHIN)),
            Event::TryBroken(to) => {
                self.broken = Some(to);
                self.apply(to, Some(WITHIN));
                self.broken = None;
            }
            Event::Confirm => {
                let mut change = self.record.clone();
                if change.confirm() {
                    let _ = self.save(&change);
                }
            }
            Event::TimePasses => self.uptime += WITHIN,
            Event::HostRestarts => {
                self.starts += 1;
                self.uptime = Duration::ZERO;
            }
        }
        let after = self.record.confirmed().copied();
        if after != before {
            // Only these two confirm, and each of them one state.
            let confirms = match event {
                Event::Apply(to) => after == Some(to),
                Event::Confirm => true,
                Event::Try(_) | Event::TryBroken(_) | Event::TimePasses | Event::HostRestarts => {
                    false
                }
            };
            assert!(confirms, "{event:?}: {before:?} to {after:?}");
        }
    }

    /// The process is started again, also after it was killed within its recovery; then nothing is in between.
    fn recover(&mut self) {
        for lives in 1..6 {
            let mut again = self.clone();
            again.lives = lives;
            again.look();
            again.lives = usize::MAX;
            again.look();
            again.check(self);
        }
        let before = self.clone();
        self.lives = usize::MAX;
        self.look();
        self.check(&before);
    }

    /// Checks a host that was recovered, against what was there before.
    fn check(&self, before: &Self) {
        assert_eq!(self.parts[0], self.parts[1], "in between: {self:?}");
        assert_eq!(
            self.record.confirmed(),
            before.record.confirmed(),
            "a recovery confirms nothing"
        );
        let mut change = self.record.clone();
        match change.due(&self.now()) {
            ChangeDue::Nothing => {
                assert_eq!(self.record.confirmed(), self.parts[0].as_ref(), "{self:?}")
            }
            ChangeDue::Confirmation(left) => {
                assert!(left <= WITHIN);
                assert_eq!(self.record.trial(), self.parts[0].as_ref(), "{self:?}");
                // Whatever waits goes back to what was confirmed last.
                let mut later = self.clone();
                later.uptime += WITHIN;
                later.look();
                assert_eq!(later.parts, [self.record.confirmed().copied(); 2], "{later:?}");
                assert!(later.record.trial().is_none());
            }
            ChangeDue::Return(_) => panic!("a recovery left its work: {self:?}"),
        }
    }
}

fn explore(model: &Model, depth: usize, seen: &mut BTreeSet<String>) {
    if depth == 0 || !seen.insert(format!("{depth} {model:?}")) {
        return;
    }
    for event in EVENTS {
        let mut whole = model.clone();
        whole.happen(event);
        let mut looked = whole.clone();
        looked.recover();
        explore(&looked, depth - 1, seen);
        // Without the look in between, as when no supervisor runs.
        explore(&whole, depth - 1, seen);
        // A kill before each write, the last one included.
        for lives in 1.. {
            let mut killed = model.clone();
            killed.lives = lives;
            killed.happen(event);
            let was_killed = killed.lives == 0;
            killed.recover();
            explore(&killed, depth - 1, seen);
            if !was_killed {
                break;
            }
        }
    }
}

#[test]
fn host_is_never_in_between_and_returns_to_what_was_confirmed_last() {
    let mut seen = BTreeSet::new();
    explore(&Model::new(), DEPTH, &mut seen);
    assert!(seen.len() > 500, "{} situations", seen.len());
}

#[test]
fn second_change_in_a_row_returns_to_the_state_before_the_first() {
    let now = HostTime::now();
    let mut change = HostChange::settled(Some(1));
    for to in [2, 3] {
        change.begin(to, Some(WITHIN), &now).expect("begun");
        change.applied(&now);
    }
    assert_eq!((change.trial(), change.former()), (Some(&3), Some(&1)));
    let later = HostTime::of("another start", Duration::ZERO);
    assert_eq!(change.due(&later), ChangeDue::Return(Some(1)));
    change.returned(Some(4));
    assert_eq!((change.confirmed(), change.refused()), (Some(&4), Some(&3)));
    assert_eq!(change.due(&later), ChangeDue::Nothing);
}

#[test]
fn repetition_without_a_time_keeps_the_time_of_the_first_run() {
    let at = |seconds| HostTime::of("x", Duration::from_secs(seconds));
    let mut change = HostChange::settled(Some(1));
    change.begin(2, Some(WITHIN), &at(0)).expect("begun");
    change.applied(&at(10));
    change.begin(2, None, &at(30)).expect("again");
    change.applied(&at(31));
    assert_eq!(change.due(&at(69)), ChangeDue::Confirmation(Duration::from_secs(1)));
    assert_eq!(change.begin(2, None, &at(70)), Err(TimeIsOver));
    assert_eq!(change.due(&at(70)), ChangeDue::Return(Some(1)));
    assert_eq!(change.begin(2, None, &at(71)), Err(TimeIsOver), "the way back comes first");
    assert!(!change.confirm(), "too late");
    // Another time, and another state, are new changes.
    change.begin(2, Some(WITHIN), &at(72)).expect("tried anew");
    change.applied(&at(72));
    change.begin(3, None, &at(73)).expect("by a person");
    change.applied(&at(73));
    assert_eq!((change.confirmed(), change.former()), (Some(&3), Some(&1)));
    assert_eq!(change.refused(), Some(&2));
    // What is confirmed needs no time.
    change.begin(3, Some(WITHIN), &at(74)).expect("nothing new");
    change.applied(&at(74));
    assert_eq!(change.due(&at(999)), ChangeDue::Nothing);
}

#[test]
fn change_of_an_earlier_start_of_the_host_is_forgotten_where_a_restart_undoes_it() {
    let mut change = HostChange::settled(Some(1));
    change.begin(2, None, &HostTime::of("x", WITHIN)).expect("begun");
    assert!(!change.forget_before_restart(&HostTime::of("x", WITHIN)));
    assert!(change.forget_before_restart(&HostTime::of("y", WITHIN)));
    assert_eq!((change.confirmed(), change.trial()), (Some(&1), None));
}
