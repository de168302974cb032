// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The changes of a link: what makes a configuration the one in force, and the way back to the one that was confirmed
//! last. The order of both is `millrace_hostfs::change`'s; this module has the parts and the lock.

use std::fs;
use std::path::Path;
use std::time::Duration;

use millrace_hostfs::change::{self, ChangeDue, HostChange, HostTime};
use millrace_hostfs::generated::write::{self, EditedFiles};

use crate::check::{self, Checked, Use};
use crate::down::{self, ChangeRecord};
use crate::error::ApplyError;
use crate::exec::{self, Lock, at, unix_ms};
use crate::link::Side;
use crate::plan::{Folders, LinkAction, LinkLayout, LinkPlan, add_missing};
use crate::record::{self, AppliedLink, link_lock};
use crate::remains::{self, Remains};

/// Keeps other runs from a link; makes its folders.
pub(crate) fn hold(name: &str, folders: &Folders) -> Result<Lock, ApplyError> {
    let run = folders.run_of(name);
    for folder in [&run, &folders.state_of(name)] {
        fs::create_dir_all(folder).map_err(at(folder))?;
        exec::check_folder(folder)?;
    }
    let lock = Lock::wait(&link_lock(&run))?;
    lock.ok_or_else(|| ApplyError::Busy(name.to_owned()))
}

/// Keeps other runs from a link that is up; returns also the record of what is applied.
pub(crate) fn hold_applied(
    name: &str,
    folders: &Folders,
) -> Result<(Lock, AppliedLink), ApplyError> {
    // Before its folders are made; what counts is the record under the lock.
    check::applied_of_link_up(folders, name)?;
    let lock = hold(name, folders)?;
    Ok((lock, check::applied_of_link_up(folders, name)?))
}

/// One end of a link as the host of a change. Its owner holds the lock of the link.
pub(crate) struct LinkHost<'a> {
    pub(crate) name: &'a str,
    pub(crate) folders: &'a Folders,
    /// The configuration that a run applies, with its number; any other one is of the history.
    pub(crate) planned: Option<(u64, &'a Checked)>,
    pub(crate) edited: EditedFiles,
    /// A configuration that is in the history for this run alone: it leaves it if the run fails.
    pub(crate) new: Option<u64>,
    /// The record as it was saved last.
    saved: Option<HostChange<u64>>,
}

impl<'a> LinkHost<'a> {
    /// The host of the way back: each configuration is of the history.
    pub(crate) fn new(name: &'a str, folders: &'a Folders) -> Self {
        Self {
            name,
            folders,
            planned: None,
            edited: EditedFiles::Overwrite,
            new: None,
            saved: None,
        }
    }
}

impl change::ChangedHost<u64> for LinkHost<'_> {
    type Error = ApplyError;

    fn save(&mut self, change: &HostChange<u64>) -> Result<(), ApplyError> {
        record::save(&record::change_file(self.folders, self.name), change)?;
        self.saved = Some(change.clone());
        Ok(())
    }

    fn put(&mut self, state: Option<&u64>) -> Result<Option<u64>, ApplyError> {
        let Self { name, folders, .. } = *self;
        if let Some((generation, checked)) = self.planned
            && state == Some(&generation)
        {
            self.make(generation, checked, self.edited)?;
            return Ok(Some(generation));
        }
        if let Some(new) = self.new {
            record::forget_generation(name, new, folders);
        }
        let Some(state) = state else {
            down::take_down(name, folders, ChangeRecord::Keep)?;
            return Ok(None);
        };
        let side = self.side();
        let former = check::plan_former(name, *state, side, folders, Use::WayBack)?;
        let choice = &former.plan.choice;
        let kept = [Some(state), None];
        let generation = record::record_history(name, (&former.text, choice), kept, folders)?;
        self.make(generation, &former, EditedFiles::Overwrite)?;
        Ok(Some(generation))
    }
}

impl LinkHost<'_> {
    /// The record of what is applied; without one of use and without a history, nothing is known.
    fn applied(&self) -> Option<AppliedLink> {
        check::applied(self.folders, self.name).ok().flatten()
    }

    /// The end that this host is, where a record says it.
    fn side(&self) -> Option<Side> {
        let intended = || record::find_intended(self.folders, self.name).good();
        let applied = self.applied().map(|applied| applied.layout);
        applied.or_else(intended).map(|layout| layout.side)
    }

    /// Files, steps and record of a configuration.
    fn make(
        &self,
        generation: u64,
        checked: &Checked,
        edited: EditedFiles,
    ) -> Result<(), ApplyError> {
        let Self { name, folders, .. } = *self;
        let plan = &checked.plan;
        let before = self.applied();
        let cut_short = record::find_intended(folders, name).good();
        let intended = record::intended(folders, name);
        let mut intent = plan.layout.clone();
        if let Some(cut_short) = &cut_short {
            // No other record names its parts.
            intent = intent.with_parts_of(cut_short);
        }
        record::save(&intended, &intent)?;
        let known = before.iter().map(|before| &before.layout).chain([&intent]);
        let remains = Remains::read(name, &remains::places(name, folders, known)).removal();
        write_files(plan, edited)?;
        perform_steps(&plan.layout, before.as_ref())?;
        let mut applied =
            next_record(plan, generation, before.as_ref(), cut_short.as_ref(), &remains);
        let on_trial =
            self.saved.as_ref().and_then(|saved| Some((saved, saved.time_to_confirm()?)));
        if let Some((saved, time)) = on_trial {
            applied.former = saved.confirmed().copied();
            applied.confirm_until_ms = Some(wall_end(time));
        } else if self.planned.is_some_and(|(planned, _)| planned == generation) {
            // On the word of a person.
            applied.anew = false;
        }
        applied.save(folders)?;
        Ok(record::remove(&intended).map_err(at(&intended))?)
    }
}

/// Writes the generated files; after an error they are as before.
fn write_files(plan: &LinkPlan, edited: EditedFiles) -> Result<(), ApplyError> {
    let changes = write::compare(&plan.files, &[], Path::new("/"))?;
    changes.apply(edited)?;
    Ok(())
}

/// The record of a configuration that follows another, and one whose run was killed. `remains` are actions that remove
/// what no record names.
fn next_record(
    plan: &LinkPlan,
    generation: u64,
    before: Option<&AppliedLink>,
    cut_short: Option<&LinkLayout>,
    remains: &[LinkAction],
) -> AppliedLink {
    let mut obsolete = before.map_or_else(Vec::new, |before| before.obsolete.clone());
    add_missing(&mut obsolete, remains);
    for former in before.map(|before| &before.layout).into_iter().chain(cut_short) {
        add_missing(&mut obsolete, &former.removal_before(&plan.layout));
    }
    let kept = plan.layout.removal();
    obsolete.retain(|action| !kept.contains(action));
    AppliedLink {
        generation,
        layout: plan.layout.clone(),
        former: None,
        confirm_until_ms: None,
        anew: true,
        obsolete,
    }
}

/// Performs the steps; after an error those that are new to the system are undone.
fn perform_steps(layout: &LinkLayout, before: Option<&AppliedLink>) -> Result<(), ApplyError> {
    let kept = before.map_or_else(Vec::new, |before| before.layout.removal());
    let mut undo: Vec<&LinkAction> = Vec::new();
    for step in &layout.steps {
        match exec::step(step) {
            Ok(_) => undo.extend(step.undo.iter().filter(|action| !kept.contains(action))),
            Err(error) => {
                for action in undo.into_iter().rev() {
                    // The error that led here is the one to report.
                    let _ = exec::action(action);
                }
                let why = step.why.clone();
                return Err(ApplyError::Step { why, step: error });
            }
        }
    }
    Ok(())
}

/// Result of a supervisor's look at the changes of its link.
#[derive(Debug)]
pub(crate) enum WatchedChange {
    /// The configuration is confirmed.
    Nothing,
    /// A run works on the link.
    Busy,
    /// A configuration waits for its confirmation for this time.
    Waits(u64, Duration),
    /// The configuration that it proved is confirmed.
    Confirmed,
    /// The configuration that was confirmed last is in force again.
    Restored(Box<AppliedLink>),
    /// Before the first configuration there was no link.
    TakeDown,
}

/// Looks after the changes of a link, for its supervisor: confirms the configuration that it has `proven`, and goes the
/// way back that is due. Does nothing while a run works on the link.
pub(crate) fn watch(
    name: &str,
    folders: &Folders,
    proven: Option<u64>,
) -> Result<WatchedChange, ApplyError> {
    // Once a second, almost always.
    if record::find_change(folders, name).good().is_some_and(|change| change.trial().is_none()) {
        return Ok(WatchedChange::Nothing);
    }
    let applied = check::applied(folders, name);
    let recorded = applied.as_ref().ok().and_then(Option::as_ref);
    if record::load_change(folders, name, recorded).trial().is_none() {
        return Ok(WatchedChange::Nothing);
    }
    let Some(_lock) = Lock::take(&link_lock(&folders.run_of(name)))? else {
        return Ok(WatchedChange::Busy);
    };
    let mut host = LinkHost::new(name, folders);
    // As it is under the lock.
    let mut change = record::load_change(folders, name, host.applied().as_ref());
    if change.trial().is_some_and(|trial| proven == Some(*trial)) && change.confirm() {
        change::ChangedHost::save(&mut host, &change)?;
        note_confirmed(name, folders);
        return Ok(WatchedChange::Confirmed);
    }
    let before = change.clone();
    match change.due(&HostTime::now()) {
        ChangeDue::Nothing => Ok(WatchedChange::Nothing),
        ChangeDue::Confirmation(left) => Ok(change
            .trial()
            .map_or(WatchedChange::Nothing, |trial| WatchedChange::Waits(*trial, left))),
        ChangeDue::Return(to) => {
            if change != before {
                change::ChangedHost::save(&mut host, &change)?;
            }
            if to.is_none() {
                return Ok(WatchedChange::TakeDown);
            }
            change::go_back(&mut change, &mut host)?;
            let applied = check::applied(folders, name)?;
            Ok(applied.map_or(WatchedChange::TakeDown, |applied| {
                WatchedChange::Restored(Box::new(applied))
            }))
        }
    }
}

/// Time that the configuration of a link has left for its confirmation; `None` if none waits.
pub(crate) fn time_left(name: &str, folders: &Folders) -> Option<Duration> {
    let applied = AppliedLink::find(folders, name).good();
    match record::load_change(folders, name, applied.as_ref()).due(&HostTime::now()) {
        ChangeDue::Confirmation(left) => Some(left),
        ChangeDue::Nothing | ChangeDue::Return(_) => None,
    }
}

/// Whether a configuration of a link waits for its confirmation, or its way back is due.
pub(crate) fn is_on_trial(name: &str, folders: &Folders) -> bool {
    let applied = AppliedLink::find(folders, name).good();
    record::load_change(folders, name, applied.as_ref()).trial().is_some()
}

/// Takes down a link that was not confirmed and had no configuration before.
pub(crate) fn take_down(name: &str, folders: &Folders) -> Result<(), ApplyError> {
    let _lock = hold(name, folders)?;
    let applied = AppliedLink::find(folders, name).good();
    let mut change = record::load_change(folders, name, applied.as_ref());
    match change.due(&HostTime::now()) {
        ChangeDue::Return(None) => change::go_back(&mut change, &mut LinkHost::new(name, folders)),
        ChangeDue::Return(Some(_)) | ChangeDue::Confirmation(_) | ChangeDue::Nothing => Ok(()),
    }
}

/// Confirms the configuration that waits, on a person's word; returns its number.
pub(crate) fn confirm(name: &str, folders: &Folders) -> Result<u64, ApplyError> {
    let (_lock, applied) = hold_applied(name, folders)?;
    let mut change = record::load_change(folders, name, Some(&applied));
    let nothing = || ApplyError::NothingToConfirm(name.to_owned());
    let waits = change.trial().copied().ok_or_else(nothing)?;
    // A time that is over is not confirmed any more: the way back has begun, or begins with the next supervisor.
    if !matches!(change.clone().due(&HostTime::now()), ChangeDue::Confirmation(_))
        || !change.confirm()
    {
        return Err(nothing());
    }
    let mut host = LinkHost::new(name, folders);
    change::ChangedHost::save(&mut host, &change)?;
    note_confirmed(name, folders);
    Ok(waits)
}

/// Writes into the record of what is applied that it is confirmed. The record of changes says so already, and counts.
fn note_confirmed(name: &str, folders: &Folders) {
    if let Some(mut applied) = AppliedLink::find(folders, name).good() {
        applied.confirm_until_ms = None;
        let _ = applied.save(folders);
    }
}

/// Milliseconds since 1970 at which a time that begins now is over.
fn wall_end(time: Duration) -> u64 {
    unix_ms().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 2))
}
