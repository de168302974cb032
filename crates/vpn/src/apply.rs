// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Brings a link up: get → verify → generate → apply.
//!
//! ```text
//! /var/lib/millrace/vpn/NAME/   N.conf          generated
//!                               change.json     which configuration is confirmed, and which one is tried (ADR 58)
//!                               applied.json    what is applied, with its number
//!                               intended.json   what a run is applying, or was when it was killed
//!                               choice.json     the engine that was measured, for engine = "auto"
//!                               history/NNNNNN/link.toml, and the choice.json of that time
//!                               changes.log     state changes of members
//! /run/millrace/vpn/NAME/       N.conf .pid .sock .log, status.json, locks
//! ```
//!
//! A run that was killed is completed by the next one, since each step does nothing where its result is in place; or
//! its link goes back to what was confirmed, when a supervisor looks first.

use std::fs;
use std::time::Duration;

use millrace_hostfs::change::{self, ChangeDue, HostTime};
use millrace_hostfs::generated::write::EditedFiles;
use rustix::process::Signal;

use crate::change::{LinkHost, hold, hold_applied};
use crate::check::{self as checks, Use};
use crate::exec::{Lock, signal_supervisor, supervisor_lock};
use crate::plan::Folders;
use crate::record;

pub use crate::check::{Checked, check, check_former};
pub use crate::error::ApplyError;
pub use crate::record::{
    AppliedLink, LinkGeneration, choice_file, list_history as history, save_choice, saved_choice,
};

/// How `up` applies a plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpOptions {
    /// Treatment of generated files that were edited.
    pub edited: EditedFiles,
    /// Time in which the other end must be reached, or a person confirm: otherwise the supervisor brings the
    /// configuration back that was confirmed last.
    pub confirm_within: Option<Duration>,
}

/// The result of `up`.
#[derive(Debug)]
pub struct Raised {
    /// The configuration now in force.
    pub applied: AppliedLink,
    /// Whether a supervisor ran already; it has read the new configuration.
    pub is_supervised: bool,
    /// Whether the configuration waits for its confirmation.
    pub waits: bool,
}

/// Applies a plan, which is made once more under the lock of the link.
///
/// # Errors
/// See [`ApplyError`]; the link is then as it was confirmed last.
pub fn up(checked: &Checked, folders: &Folders, options: UpOptions) -> Result<Raised, ApplyError> {
    let name = &checked.plan.layout.name;
    let _lock = hold(name, folders)?;
    // Another command may have worked on the link since.
    let checked = &checked.again(folders)?;
    // A record of no use is made anew: where the history is gone, too, by this run alone.
    let before = checks::applied(folders, name).ok().flatten();
    let mut changes = record::load_change(folders, name, before.as_ref());
    let kept = [changes.confirmed(), changes.former()];
    let newest = record::newest(name, folders);
    let generation =
        record::record_history(name, (&checked.text, &checked.plan.choice), kept, folders)?;
    let new =
        Some(generation).filter(|generation| newest.is_none_or(|newest| *generation > newest));
    let mut host = LinkHost::new(name, folders);
    let now = HostTime::now();
    if changes.begin(generation, options.confirm_within, &now).is_err() {
        let _ = changes.due(&now);
        change::ChangedHost::save(&mut host, &changes)?;
        change::go_back(&mut changes, &mut host)?;
        signal_supervisor(&folders.run_of(name), Signal::HUP);
        return Err(ApplyError::NotConfirmed {
            link: name.clone(),
            refused: generation,
            confirmed: changes.confirmed().copied(),
        });
    }
    host.planned = Some((generation, checked));
    host.edited = options.edited;
    host.new = new;
    let done = change::carry_out(&mut changes, &mut host, HostTime::now);
    if let (Err(_), Some(new)) = (&done, new) {
        record::forget_generation(name, new, folders);
    }
    done?;
    let applied =
        AppliedLink::load(folders, name)?.ok_or_else(|| ApplyError::NotUp(name.clone()))?;
    let is_supervised = signal_supervisor(&folders.run_of(name), Signal::HUP);
    Ok(Raised { applied, is_supervised, waits: changes.trial().is_some() })
}

/// The configuration that a service brings up at its start: the link.toml that was checked, unless that was tried and
/// not confirmed; then the one that was confirmed last.
///
/// # Errors
/// No configuration was confirmed, or it cannot be planned.
pub fn resume(checked: Checked, folders: &Folders) -> Result<Checked, ApplyError> {
    let name = checked.plan.layout.name.clone();
    let before = checks::applied(folders, &name).ok().flatten();
    let mut changes = record::load_change(folders, &name, before.as_ref());
    // A trial whose time goes on stays one.
    let due = changes.due(&HostTime::now());
    let refused = changes.refused().copied().filter(|_| !matches!(due, ChangeDue::Confirmation(_)));
    let Some(refused) = refused else {
        return Ok(checked);
    };
    let text = record::former_text(&name, refused, folders);
    if !text.is_ok_and(|text| text == checked.text) {
        return Ok(checked);
    }
    let side = Some(checked.plan.layout.side);
    match changes.confirmed() {
        Some(confirmed) => checks::plan_former(&name, *confirmed, side, folders, Use::WayBack),
        None => Err(ApplyError::NotConfirmed { link: name, refused, confirmed: None }),
    }
}

/// The configuration to which a person goes back: that before the last change.
///
/// # Errors
/// The link is not up.
pub fn former(name: &str, folders: &Folders) -> Result<Option<u64>, ApplyError> {
    let applied = checks::applied_of_link_up(folders, name)?;
    Ok(record::load_change(folders, name, Some(&applied)).former().copied())
}

/// Confirms the configuration that waits for it, on a person's word; returns its number.
///
/// # Errors
/// None waits.
pub fn confirm(name: &str, folders: &Folders) -> Result<u64, ApplyError> {
    let confirmed = crate::change::confirm(name, folders)?;
    signal_supervisor(&folders.run_of(name), Signal::HUP);
    Ok(confirmed)
}

/// Makes the supervisor restart members one after another, each once traffic has left it: all of them, or those
/// named. A process takes over new programs, certificates and keys only when it starts.
///
/// # Errors
/// The link is not up, has no such member, or no supervisor.
pub fn restart(name: &str, members: &[u16], folders: &Folders) -> Result<(), ApplyError> {
    let (_lock, AppliedLink { layout, .. }) = hold_applied(name, folders)?;
    for number in members.iter().copied() {
        if !layout.members.iter().any(|member| member.number == number) {
            return Err(ApplyError::NoMember { link: name.to_owned(), number });
        }
    }
    let run = folders.run_of(name);
    if supervisor(name, folders).is_none() {
        return Err(ApplyError::Unsupervised(name.to_owned()));
    }
    for member in &layout.members {
        if members.is_empty() || members.contains(&member.number) {
            // A process without the copy of its configuration is one that has to restart.
            let _ = fs::remove_file(&member.running_config);
        }
    }
    signal_supervisor(&run, Signal::HUP);
    Ok(())
}

/// Process id of the supervisor of a link; `None` if none runs.
#[must_use]
pub fn supervisor(name: &str, folders: &Folders) -> Option<u32> {
    let holder = Lock::holder(&supervisor_lock(&folders.run_of(name)))?;
    u32::try_from(holder.as_raw_nonzero().get()).ok()
}
