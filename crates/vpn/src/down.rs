// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Takes a link down: supervisor, processes, routes, devices. Configurations stay.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::check;
use crate::error::ApplyError;
use crate::exec::{self, Lock, Tunnel, at, signal_supervisor, supervisor_lock};
use crate::plan::{Folders, LinkAction, LinkMember};
use crate::record::{self, AppliedLink};

/// Time in which a supervisor ends after SIGTERM: its loop looks every 50 ms, and a route or a rollback that it is
/// at takes seconds at most. Then it is killed.
const SUPERVISOR_ENDS: Duration = Duration::from_secs(5);

/// Time in which the kernel ends a killed process. One that waits for a device takes longer.
const KILLED_ENDS: Duration = Duration::from_secs(5);

/// Interval of attempts to take the lock of a supervisor that ends.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// The processes, commands and files that go when a link goes down.
#[derive(Debug)]
pub struct DownPlan {
    name: String,
    members: Vec<LinkMember>,
    /// Routes first, devices last.
    removals: Vec<LinkAction>,
    records: [PathBuf; 2],
    /// The record of the link's changes.
    changes: PathBuf,
    run: PathBuf,
}

/// Plans to take a link down, also one whose `up` was killed.
///
/// # Errors
/// [`ApplyError::NotUp`], or a record cannot be read.
pub fn plan(name: &str, folders: &Folders) -> Result<DownPlan, ApplyError> {
    let applied = check::applied(folders, name)?;
    let unfinished = record::find_intended(folders, name).good();
    if applied.is_none() && unfinished.is_none() {
        return Err(ApplyError::NotUp(name.to_owned()));
    }
    let mut members = Vec::new();
    let mut removals = Vec::new();
    for layout in applied.iter().map(|applied| &applied.layout).chain(&unfinished) {
        add_missing(&mut members, &layout.members);
        add_missing(&mut removals, &layout.removal());
    }
    if let Some(applied) = &applied {
        add_missing(&mut removals, &applied.obsolete);
    }
    Ok(DownPlan {
        name: name.to_owned(),
        members,
        removals,
        records: [AppliedLink::path(folders, name), record::intended(folders, name)],
        changes: record::change_file(folders, name),
        run: folders.run_of(name),
    })
}

/// Appends the items that the list lacks.
fn add_missing<T: Clone + PartialEq>(list: &mut Vec<T>, items: &[T]) {
    for item in items {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

impl DownPlan {
    /// The plan as text: processes, commands and files in the order in which they go.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text =
            format!("# link {} goes down\n\n# ==> ends its supervisor, and\n", self.name);
        for member in &self.members {
            let _ = writeln!(text, "# the process of {}", member.pid_file.display());
        }
        text.push_str("\n# ==> runs\n");
        for action in &self.removals {
            let _ = writeln!(text, "{}", action.command_line());
        }
        text.push_str("\n# ==> removes\n");
        let configs = self.members.iter().map(|member| &member.config);
        for path in configs.chain(&self.records).chain([&self.changes, &self.run]) {
            let _ = writeln!(text, "{}", path.display());
        }
        text
    }

    /// Takes the link down.
    ///
    /// # Errors
    /// [`ApplyError::Busy`] and [`ApplyError::Held`] if nothing was removed. After other errors the rest is still
    /// removed.
    pub fn perform(&self) -> Result<(), ApplyError> {
        let Self { name, run, .. } = self;
        fs::create_dir_all(run).map_err(at(run))?;
        let _lock = Lock::wait(&run.join("lock"))?.ok_or_else(|| ApplyError::Busy(name.clone()))?;
        self.perform_locked()?;
        Ok(record::remove(&self.changes).map_err(at(&self.changes))?)
    }

    /// Takes the link down for the owner of its lock, who keeps the record of its changes.
    pub(crate) fn perform_locked(&self) -> Result<(), ApplyError> {
        let Self { name, members, removals, records, run, .. } = self;
        // While the lock is held here, no other supervisor starts tunnels again.
        let _supervisor = end_supervisor(name, run)?;
        let tunnels: Vec<Tunnel> = members.iter().filter_map(Tunnel::find).collect();
        // Each says goodbye to its peer for a second: all at the same time.
        tunnels.iter().for_each(|tunnel| tunnel.signal(Signal::TERM));
        tunnels.iter().for_each(Tunnel::end);
        for member in members {
            let _ = fs::remove_file(&member.config);
        }
        for action in removals {
            // What is gone already is not an error: the link is down either way.
            let _ = exec::action(action);
        }
        for record in records {
            let _ = fs::remove_file(record);
        }
        fs::remove_dir_all(run).map_err(at(run))?;
        Ok(())
    }
}

/// Ends the supervisor of a link, if there is one, and takes its lock. A supervisor that hangs or was stopped
/// (SIGSTOP) does not react to SIGTERM and is killed; its tunnels run on.
fn end_supervisor(name: &str, run: &Path) -> Result<Lock, ApplyError> {
    let path = supervisor_lock(run);
    for (signal, patience) in [(Signal::TERM, SUPERVISOR_ENDS), (Signal::KILL, KILLED_ENDS)] {
        let until = Instant::now() + patience;
        loop {
            if let Some(lock) = Lock::take(&path)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                break;
            }
            signal_supervisor(run, signal);
            thread::sleep(LOCK_POLL);
        }
    }
    Err(ApplyError::Held {
        link: name.to_owned(),
        holder: Lock::holder(&path).map(|pid| pid.as_raw_nonzero().get()),
    })
}
