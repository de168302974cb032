// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Takes a link down: supervisor, processes, routes, devices. Configurations stay, and so do the files of the locks:
//! a command that waits for the lock of a link must not get that of a file which is gone.
//!
//! The record of what is applied goes last. A `down` that is killed before is completed by the next one.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::check;
use crate::error::ApplyError;
use crate::exec::{self, Lock, Tunnel, at, signal_supervisor, supervisor_lock};
use crate::host::holder_query;
use crate::plan::{Folders, LinkAction, LinkMember, add_missing};
use crate::record::{self, AppliedLink, link_lock};
use crate::remains::{self, Remains};

/// Time in which a supervisor ends after SIGTERM: its loop looks every 50 ms, and a route or a rollback that it is
/// at takes seconds at most. Then it is killed.
const SUPERVISOR_ENDS: Duration = Duration::from_secs(5);

/// Time in which the kernel ends a killed process. One that waits for a device takes longer.
const KILLED_ENDS: Duration = Duration::from_secs(5);

/// Interval of attempts to take the lock of a supervisor that ends.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// Looks at the processes of a link. A process that goes into the background during the first look has another number
/// at the second, and none is there at the third.
const LOOKS: u32 = 3;

/// The processes, commands and files that go when a link goes down.
#[derive(Debug)]
pub struct DownPlan {
    name: String,
    members: Vec<LinkMember>,
    /// Folders with configurations of its processes.
    places: Vec<PathBuf>,
    /// Running processes of other members, each with the member's number.
    others: Vec<(u16, u32)>,
    /// Routes first, devices last.
    removals: Vec<LinkAction>,
    /// The record of the link's changes.
    changes: PathBuf,
    /// The record of what is applied comes last.
    records: [PathBuf; 2],
    run: PathBuf,
}

/// Plans to take a link down, also one whose `up` was killed, and one that no record names.
///
/// # Errors
/// [`ApplyError::NotUp`], or a record cannot be read.
pub fn plan(name: &str, folders: &Folders) -> Result<DownPlan, ApplyError> {
    let applied = check::applied(folders, name)?;
    let unfinished = record::find_intended(folders, name).good();
    let layouts = || applied.iter().map(|applied| &applied.layout).chain(&unfinished);
    let places = remains::places(name, folders, layouts());
    let remains = Remains::read(name, &places);
    if applied.is_none() && unfinished.is_none() && remains.is_empty() {
        return Err(ApplyError::NotUp(name.to_owned()));
    }
    let mut members = Vec::new();
    let mut removals = Vec::new();
    for layout in layouts() {
        add_missing(&mut members, &layout.members);
        add_missing(&mut removals, &layout.removal());
    }
    if let Some(applied) = &applied {
        add_missing(&mut removals, &applied.obsolete);
    }
    add_missing(&mut removals, &remains.removal());
    let is_other = |number: u16| members.iter().all(|member| member.number != number);
    let others = remains.tunnels.iter().filter(|(number, _)| is_other(*number));
    Ok(DownPlan {
        name: name.to_owned(),
        others: others.map(|(number, tunnel)| (*number, tunnel.pid)).collect(),
        members,
        places,
        removals,
        changes: record::change_file(folders, name),
        records: [record::intended(folders, name), AppliedLink::path(folders, name)],
        run: folders.run_of(name),
    })
}

/// Takes a link down.
///
/// # Errors
/// [`ApplyError::NotUp`], [`ApplyError::Busy`] and [`ApplyError::Held`] if nothing was removed. After other errors the
/// rest is still removed, and the records stay.
pub fn down(name: &str, folders: &Folders) -> Result<(), ApplyError> {
    // Before the folder is made; what counts is the plan under the lock.
    plan(name, folders)?;
    let run = folders.run_of(name);
    fs::create_dir_all(&run).map_err(at(&run))?;
    let _lock = Lock::wait(&link_lock(&run))?.ok_or_else(|| ApplyError::Busy(name.to_owned()))?;
    take_down(name, folders, ChangeRecord::Forget)
}

/// Treatment of the record of a link's changes when the link goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeRecord {
    /// The record goes, too.
    Forget,
    /// The caller keeps the record.
    Keep,
}

/// Takes the link down for the owner of its lock.
pub(crate) fn take_down(
    name: &str,
    folders: &Folders,
    change_record: ChangeRecord,
) -> Result<(), ApplyError> {
    // While the lock is held here, no other supervisor starts tunnels again.
    let _supervisor = end_supervisor(name, &folders.run_of(name))?;
    match plan(name, folders) {
        Ok(plan) => plan.perform(change_record),
        Err(ApplyError::NotUp(_)) => Ok(()),
        Err(error) => Err(error),
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
        for (number, pid) in &self.others {
            let _ = writeln!(text, "# process {pid} of a former member {number}");
        }
        text.push_str("\n# ==> runs\n");
        for action in &self.removals {
            let _ = writeln!(text, "{}", action.command_line());
        }
        text.push_str("\n# ==> removes, but for the files of its locks\n");
        let configs = self.members.iter().map(|member| &member.config);
        for path in configs.chain([&self.run, &self.changes]).chain(&self.records) {
            let _ = writeln!(text, "{}", path.display());
        }
        text
    }

    fn perform(&self, change_record: ChangeRecord) -> Result<(), ApplyError> {
        let Self { members, removals, records, run, .. } = self;
        let ended = self.end_tunnels();
        for member in members {
            let _ = fs::remove_file(&member.config);
        }
        for action in removals {
            // What is gone already is not an error: the link is down either way.
            let _ = exec::action(action);
        }
        ended?;
        let left: Vec<&str> = removals.iter().filter_map(remains::device_left_by).collect();
        if let Some(device) = left.first() {
            return Err(self.left(
                format!("the device {}", left.join(" and ")),
                format!("end the process that holds it ({})", holder_query(device)),
            ));
        }
        empty_folder(run).map_err(at(run))?;
        if change_record == ChangeRecord::Forget {
            record::remove(&self.changes).map_err(at(&self.changes))?;
        }
        for record in records {
            record::remove(record).map_err(at(record))?;
        }
        Ok(())
    }

    fn end_tunnels(&self) -> Result<(), ApplyError> {
        let mut running = Vec::new();
        for _ in 0..LOOKS {
            running =
                remains::tunnels(&self.places).into_iter().map(|(_, tunnel)| tunnel).collect();
            running.extend(self.members.iter().filter_map(Tunnel::find));
            if running.is_empty() {
                return Ok(());
            }
            remains::end(running.iter());
        }
        let pids: Vec<String> = running.iter().map(|tunnel| tunnel.pid.to_string()).collect();
        let pids = pids.join(",");
        Err(self.left(
            format!("the process {pids}"),
            format!("`ps -o pid,stat,wchan -p {pids}` says what it waits for"),
        ))
    }

    fn left(&self, what: String, remedy: String) -> ApplyError {
        ApplyError::Left { link: self.name.clone(), what, remedy }
    }
}

/// Removes everything in the run folder of a link but the files of its locks.
fn empty_folder(run: &Path) -> std::io::Result<()> {
    let supervisor = supervisor_lock(run);
    let kept = [link_lock(run), supervisor.clone()];
    for entry in fs::read_dir(run)? {
        let entry = entry?;
        let path = entry.path();
        if kept.contains(&path) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(path)?;
        } else {
            fs::remove_file(path)?;
        }
    }
    // systemd takes the number in it for that of the service.
    fs::write(supervisor, "")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_locks_outlive_the_folder_and_everything_else_goes() {
        let dir = tempfile::tempdir().expect("a folder");
        let run = dir.path();
        let held = Lock::take(&link_lock(run)).expect("a lock").expect("free");
        let _supervisor = Lock::take(&supervisor_lock(run)).expect("a lock").expect("free");
        fs::write(run.join("0.pid"), "1").expect("a file");
        fs::create_dir_all(run.join("x509/sub")).expect("a folder");
        std::os::unix::fs::symlink("/", run.join("x509/root")).expect("a link");
        empty_folder(run).expect("empty");
        let mut names: Vec<_> =
            fs::read_dir(run).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        assert_eq!(names, ["lock", "supervisor.lock"]);
        // A command that has waited takes the lock that others see.
        assert!(Lock::take(&link_lock(run)).expect("no error").is_none());
        drop(held);
        millrace_testkit::wait::eventually(|| Lock::holder(&link_lock(run)).is_none());
        assert_eq!(Lock::holder(&supervisor_lock(run)), None, "it names no process any more");
    }

    #[test]
    fn link_that_nothing_names_is_not_up_and_gets_no_folder() {
        let dir = tempfile::tempdir().expect("a folder");
        let folders = Folders { run: dir.path().join("run"), state: dir.path().join("state") };
        let error = down("no-such-link", &folders).expect_err("an error");
        assert!(matches!(error, ApplyError::NotUp(_)), "{error}");
        assert!(!folders.run.exists());
    }
}
