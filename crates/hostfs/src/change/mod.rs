// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A change of a host that is applied, confirmed and, unless that happens, taken back: one state machine for links,
//! servers' files and cards (ADR 58).
//!
//! ```text
//!             begin                  applied                    confirm, or no time was given
//! settled ────────────► applying ────────────► waiting ────────────────────────────► settled
//!                           │ failed, or its       │ time over, or the host was started anew
//!                           │ process ended        │
//!                           └───────► returning ◄──┘
//!                                         │ returned
//!                                         └──────► settled, as it was confirmed last
//! ```
//!
//! [`HostChange`] is the machine and the record on disk at once. It is pure: events and the time go in, what is due
//! comes out. Its owner saves the record before each act ([`carry_out`], [`go_back`]), so that a process that is killed
//! anywhere leaves a record that names the way back.
//!
//! - [`HostTime`]: time that a restart of the host and a change of its clock do not make longer.
//! - [`mod@state_file`]: records on disk, bounded and of trusted owners.

pub mod state_file;
mod time;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use time::HostTime;

/// State of a host, and the one that it may become. `S` names a state: a number, or the state itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "S: Deserialize<'de>"))]
pub struct HostChange<S> {
    /// The state that was confirmed last, and to which the way back leads; `None` for a host without any. A record that
    /// does not say which is damaged.
    #[serde(deserialize_with = "Option::deserialize")]
    confirmed: Option<S>,
    /// The state that was confirmed before that.
    former: Option<S>,
    /// The state that was tried last and not confirmed in its time.
    refused: Option<S>,
    trial: Option<Trial<S>>,
}

/// A state that is not confirmed yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Trial<S> {
    to: S,
    stage: Stage,
    /// Time for the confirmation, milliseconds; `None` if the state is confirmed as soon as it is applied.
    within_ms: Option<u64>,
    begun: HostTime,
    /// Start of that time: when the state was applied first.
    since: Option<HostTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Stage {
    /// Its parts are put in place.
    Applying,
    /// All parts are in place.
    Waiting,
    /// The parts of the confirmed state are put in place.
    Returning,
}

/// The next act.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeDue<S> {
    /// Nothing: the state of the host is confirmed.
    Nothing,
    /// The confirmation, for which there is this time left.
    Confirmation(Duration),
    /// The way back to this state; `None` if there was none before the change.
    Return(Option<S>),
}

/// The time of a change is over, so that it cannot be applied once more before the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeIsOver;

impl<S: Clone + PartialEq> HostChange<S> {
    /// A host in a confirmed state, or without any.
    #[must_use]
    pub fn settled(confirmed: Option<S>) -> Self {
        Self { confirmed, former: None, refused: None, trial: None }
    }

    /// The state to which the way back leads.
    #[must_use]
    pub fn confirmed(&self) -> Option<&S> {
        self.confirmed.as_ref()
    }

    /// The state that a person goes back to: that before the last change.
    #[must_use]
    pub fn former(&self) -> Option<&S> {
        if self.trial.is_some() { self.confirmed.as_ref() } else { self.former.as_ref() }
    }

    /// The state that was tried last and not confirmed.
    #[must_use]
    pub fn refused(&self) -> Option<&S> {
        self.refused.as_ref()
    }

    /// The state that is not confirmed yet.
    #[must_use]
    pub fn trial(&self) -> Option<&S> {
        self.trial.as_ref().map(|trial| &trial.to)
    }

    /// Time in which the state that is not confirmed yet has to be; `None` if there is no such state, or it needs none.
    #[must_use]
    pub fn time_to_confirm(&self) -> Option<Duration> {
        let trial = self.trial.as_ref().filter(|trial| trial.stage != Stage::Returning)?;
        trial.within_ms.map(Duration::from_millis)
    }

    /// A change to a state begins. It has to be confirmed within a time, counted from [`HostChange::applied`]; without
    /// one it is confirmed when it is applied. A change that was not confirmed yet ends, and the way back stays.
    ///
    /// The same state without a time is a repetition: the time of the first run goes on.
    ///
    /// # Errors
    /// The time of that state is over: [`HostChange::due`] says what comes first.
    pub fn begin(
        &mut self,
        to: S,
        within: Option<Duration>,
        now: &HostTime,
    ) -> Result<(), TimeIsOver> {
        let within_ms = within.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let mut next =
            Trial { to, stage: Stage::Applying, within_ms, begun: now.clone(), since: None };
        match &self.trial {
            Some(trial) if trial.to == next.to && within.is_none() && trial.within_ms.is_some() => {
                if trial.is_over(now) {
                    return Err(TimeIsOver);
                }
                next = Trial { stage: Stage::Applying, ..trial.clone() };
            }
            Some(trial) if trial.is_over(now) => self.refused = Some(trial.to.clone()),
            // What is confirmed already needs no time.
            None if self.confirmed.as_ref() == Some(&next.to) => next.within_ms = None,
            Some(_) | None => {}
        }
        self.trial = Some(next);
        Ok(())
    }

    /// All parts of the state are in place.
    pub fn applied(&mut self, now: &HostTime) {
        let Some(trial) = self.trial.as_mut().filter(|trial| trial.stage == Stage::Applying) else {
            return;
        };
        if trial.within_ms.is_some() {
            trial.stage = Stage::Waiting;
            trial.since.get_or_insert_with(|| now.clone());
        } else {
            self.settle();
        }
    }

    /// A part could not be put in place: what is due is the way back.
    pub fn failed(&mut self) {
        if let Some(trial) = &mut self.trial {
            trial.stage = Stage::Returning;
        }
    }

    /// The state that was applied is confirmed: by what it brought up, or by a person. Returns whether one waited.
    pub fn confirm(&mut self) -> bool {
        let waits = self.trial.as_ref().is_some_and(|trial| trial.stage == Stage::Waiting);
        if waits {
            self.settle();
        }
        waits
    }

    fn settle(&mut self) {
        let Some(Trial { to, .. }) = self.trial.take() else {
            return;
        };
        if self.refused.as_ref() == Some(&to) {
            self.refused = None;
        }
        if self.confirmed.as_ref() != Some(&to) {
            self.former = self.confirmed.replace(to);
        }
    }

    /// The next act. The caller is the only process that works on the host: one that was applying has ended.
    pub fn due(&mut self, now: &HostTime) -> ChangeDue<S> {
        let Some(trial) = &mut self.trial else {
            return ChangeDue::Nothing;
        };
        if let (Stage::Waiting, Some(left)) = (trial.stage, trial.left(now)) {
            return ChangeDue::Confirmation(left);
        }
        if trial.within_ms.is_some() {
            self.refused = Some(trial.to.clone());
        }
        trial.stage = Stage::Returning;
        ChangeDue::Return(self.confirmed.clone())
    }

    /// The way back has ended in this state, which may have another name now.
    pub fn returned(&mut self, to: Option<S>) {
        self.trial = None;
        self.confirmed = to;
    }

    /// Forgets a change of an earlier run of the host, for a state that a restart clears; returns whether there was
    /// one.
    pub fn forget_before_restart(&mut self, now: &HostTime) -> bool {
        let is_old = self.trial.as_ref().is_some_and(|trial| now.since(&trial.begun).is_none());
        if is_old {
            self.trial = None;
        }
        is_old
    }
}

impl<S> Trial<S> {
    /// Time left for the confirmation; `None` once it is over, or if it is not known how much has passed.
    fn left(&self, now: &HostTime) -> Option<Duration> {
        let within = Duration::from_millis(self.within_ms?);
        let passed = match &self.since {
            Some(since) => now.since(since)?,
            None => Duration::ZERO,
        };
        within.checked_sub(passed).filter(|left| !left.is_zero())
    }

    fn is_over(&self, now: &HostTime) -> bool {
        self.within_ms.is_some() && (self.stage == Stage::Returning || self.left(now).is_none())
    }
}

/// The host of a change: its record, and the parts that make its state.
pub trait ChangedHost<S> {
    /// Why a record or a part could not be put in place.
    type Error;

    /// Puts the record on the disk.
    ///
    /// # Errors
    /// The former record is there.
    fn save(&mut self, change: &HostChange<S>) -> Result<(), Self::Error>;

    /// Makes the host this state, from any other one and from between two, and verifies it; `None` takes everything
    /// away. Returns the name of the state from now on.
    ///
    /// # Errors
    /// The host may be in between.
    fn put(&mut self, state: Option<&S>) -> Result<Option<S>, Self::Error>;
}

/// Applies the change that has begun. The caller keeps other processes from the host.
///
/// # Errors
/// The host is as it was confirmed last; if the way back failed, too, the record says that it is due.
pub fn carry_out<S: Clone + PartialEq, H: ChangedHost<S>>(
    change: &mut HostChange<S>,
    host: &mut H,
    now: impl Fn() -> HostTime,
) -> Result<(), H::Error> {
    host.save(change)?;
    let to = change.trial().cloned();
    let applied = host.put(to.as_ref()).and_then(|_| {
        let mut done = change.clone();
        done.applied(&now());
        host.save(&done).map(|()| done)
    });
    match applied {
        Ok(done) => {
            *change = done;
            Ok(())
        }
        Err(error) => {
            change.failed();
            // The error that led here is the one to report. Without this record the one before leads back, too.
            let _ = host.save(change);
            let _ = go_back(change, host);
            Err(error)
        }
    }
}

/// Goes the way back that is due.
///
/// # Errors
/// It stays due.
pub fn go_back<S: Clone + PartialEq, H: ChangedHost<S>>(
    change: &mut HostChange<S>,
    host: &mut H,
) -> Result<(), H::Error> {
    let confirmed = change.confirmed.clone();
    let now = host.put(confirmed.as_ref())?;
    let mut done = change.clone();
    done.returned(now);
    host.save(&done)?;
    *change = done;
    Ok(())
}

#[cfg(test)]
mod tests;
