// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A change of several devices with its record, by which a process that was killed is followed by one that goes back,
//! and `millrace device rollback` finds what was before (`millrace_hostfs::change`, ADR 58).
//!
//! A restart of the machine takes the state of the cards with it: a change that was under way then is forgotten.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_hostfs::change::state_file::{self, StateFileError};
use millrace_hostfs::change::{ChangeDue, ChangedHost, HostChange, HostTime, carry_out, go_back};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::apply::{DeviceOutcome, Sysfs, apply};
use crate::plan::{DevicePlan, plan};
use crate::settings::DeviceSettings;

/// The record, below the root.
pub const RECORD: &str = "var/lib/millrace/devices/change.json";

/// The record of version 0.1, which has the settings before the last change alone.
const OLD_RECORD: &str = "var/lib/millrace/devices/before.json";

/// Settings of devices by bus address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedState {
    /// Settings by bus address.
    pub devices: BTreeMap<String, DeviceSettings>,
}

/// Why a record cannot be used.
#[derive(Debug, Error)]
pub enum RecordError {
    /// There is none.
    #[error("nothing to go back to: no change was made ({} has none)", .0.display())]
    Missing(PathBuf),
    /// The file cannot be written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Reason of the failure.
        source: io::Error,
    },
    /// The file is of no use.
    #[error(
        "{}: {source}: there is nothing to go back to; set the cards with `millrace device services`, \
         `virtual-functions` or `apply`, whose next change writes the file anew",
        .path.display()
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why it is of no use.
        source: StateFileError,
    },
}

/// The cards of a machine as the host of a change.
struct Cards<'a> {
    sysfs: &'a dyn Sysfs,
    /// The plans of a change that this process makes; none on the way back.
    planned: &'a [DevicePlan],
    limit: Duration,
    record: PathBuf,
    outcomes: Vec<(String, DeviceOutcome)>,
}

impl ChangedHost<SavedState> for Cards<'_> {
    type Error = RecordError;

    fn save(&mut self, change: &HostChange<SavedState>) -> Result<(), RecordError> {
        let write = || {
            if let Some(folder) = self.record.parent() {
                fs::create_dir_all(folder)?;
            }
            state_file::write(&self.record, change, state_file::PUBLIC)
        };
        write().map_err(|source| RecordError::Io { path: self.record.clone(), source })
    }

    /// A card that does not become what was planned goes back by itself, and the others stay.
    fn put(&mut self, state: Option<&SavedState>) -> Result<Option<SavedState>, RecordError> {
        let back = if self.planned.is_empty() { self.plans_to(state) } else { Vec::new() };
        for planned in self.planned.iter().chain(&back) {
            let outcome = apply(self.sysfs, planned, self.limit);
            self.outcomes.push((planned.device.clone(), outcome));
        }
        Ok(state.cloned())
    }
}

impl Cards<'_> {
    /// Plans that make the cards this state. One that is gone, or cannot be so any more, stays as it is.
    fn plans_to(&self, state: Option<&SavedState>) -> Vec<DevicePlan> {
        let settings = |address: &String| state.and_then(|state| state.devices.get(address));
        let observed = self.sysfs.observe().into_iter();
        observed
            .filter_map(|observed| plan(&observed, settings(&observed.device.address)?).ok())
            .collect()
    }
}

fn states(plans: &[DevicePlan], of: impl Fn(&DevicePlan) -> &DeviceSettings) -> SavedState {
    let changed = plans.iter().filter(|plan| !plan.steps.is_empty());
    SavedState { devices: changed.map(|plan| (plan.device.clone(), of(plan).clone())).collect() }
}

/// Does plans, each within `limit` per wait, and returns the outcome of each. What was before is in the record below
/// `root` first.
///
/// # Errors
/// The record cannot be written; then nothing was changed.
pub fn change(
    sysfs: &dyn Sysfs,
    planned: &[DevicePlan],
    limit: Duration,
    root: &Path,
) -> Result<Vec<DeviceOutcome>, RecordError> {
    if planned.iter().all(|plan| plan.steps.is_empty()) {
        return Ok(planned.iter().map(|_| DeviceOutcome::Unchanged).collect());
    }
    let mut record = HostChange::settled(Some(states(planned, |plan| &plan.before)));
    // Nothing is under way: `recover` comes first.
    let _ = record.begin(states(planned, |plan| &plan.after), None, &HostTime::now());
    let record_path = root.join(RECORD);
    let mut cards = Cards { sysfs, planned, limit, record: record_path, outcomes: Vec::new() };
    carry_out(&mut record, &mut cards, HostTime::now)?;
    Ok(cards.outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Makes the cards what they were before a change whose process was killed; returns the outcome of each.
///
/// # Errors
/// The record is of no use, or cannot be written.
pub fn recover(
    sysfs: &dyn Sysfs,
    limit: Duration,
    root: &Path,
) -> Result<Vec<(String, DeviceOutcome)>, RecordError> {
    let Some(mut record) = read(root)? else {
        return Ok(Vec::new());
    };
    let now = HostTime::now();
    let path = root.join(RECORD);
    let mut cards = Cards { sysfs, planned: &[], limit, record: path, outcomes: Vec::new() };
    if record.forget_before_restart(&now) {
        cards.save(&record)?;
    } else if let ChangeDue::Return(_) = record.due(&now) {
        go_back(&mut record, &mut cards)?;
    }
    Ok(cards.outcomes)
}

/// The settings before the last change.
///
/// # Errors
/// See [`RecordError`].
pub fn before(root: &Path) -> Result<SavedState, RecordError> {
    let former = match read(root)? {
        Some(record) => record.former().cloned(),
        None => load(root.join(OLD_RECORD))?,
    };
    former.ok_or_else(|| RecordError::Missing(root.join(RECORD)))
}

fn read(root: &Path) -> Result<Option<HostChange<SavedState>>, RecordError> {
    load(root.join(RECORD))
}

fn load<T: DeserializeOwned>(path: PathBuf) -> Result<Option<T>, RecordError> {
    state_file::read(&path).map_err(|source| RecordError::Unusable { path, source })
}
