// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Brings a link up: get → verify → generate → apply.
//!
//! ```text
//! /var/lib/millrace/vpn/NAME/   N.conf          generated
//!                               applied.json    what is applied, with its number
//!                               intended.json   what a run is applying, or was when it was killed
//!                               choice.json     the engine that was measured, for engine = "auto"
//!                               history/NNNNNN/link.toml, and the choice.json of that time
//!                               changes.log     state changes of members
//! /run/millrace/vpn/NAME/       N.conf .pid .sock .log, status.json, locks
//! ```
//!
//! A run that was killed is completed by the next one: each step does nothing where its result is in place.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_hostfs::generated::write::{self, EditedFiles, WriteError};
use millrace_hostfs::ordinary::{self, Links};
use millrace_hostfs::replace::replace_file;
use millrace_hostfs::{OpenError, Root};
use rustix::process::{Signal, kill_process};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::choice::EngineChoice;
use crate::exec::{self, ExecError, Lock, at, unix_ms};
use crate::host::Host;
use crate::link::{LinkProblem, LinkProblems, Side, VpnLink};
use crate::plan::{Folders, LinkAction, LinkLayout, LinkPlan};

/// The file of a choice, beside the state of a link and in its history.
const CHOICE: &str = "choice.json";

/// Former configurations that are kept.
const MAX_HISTORY: usize = 50;

/// Error of a command on a link.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The link cannot be brought up; nothing was changed.
    #[error(transparent)]
    Problems(#[from] LinkProblems),
    /// A generated file cannot be written; the files are as before.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An action on the system failed; the message names its command or path.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// A step failed; the steps before it were undone.
    #[error("{step} ({why}); the link is as before")]
    Step {
        /// The purpose of the step.
        why: String,
        /// The failed action.
        step: ExecError,
    },
    /// The root of this host cannot be opened.
    #[error(transparent)]
    Root(#[from] OpenError),
    /// Another command works on the link.
    #[error("another millrace works on link {0}: wait for it")]
    Busy(String),
    /// A supervisor runs already.
    #[error("link {0} has a supervisor already")]
    Supervised(String),
    /// A restart needs a supervisor, and none runs.
    #[error("link {0} has no supervisor: `millrace vpn up LINK.TOML` starts one")]
    Unsupervised(String),
    /// The supervisor does not end, not even killed.
    #[error(
        "the supervisor of link {link} ({}) does not end: `ps -o pid,stat,wchan` says what it waits for; nothing was removed",
        holder.map_or_else(|| "an unknown process".to_owned(), |pid| format!("process {pid}"))
    )]
    Held {
        /// Name of the link.
        link: String,
        /// The process that holds the lock, if the lock names one.
        holder: Option<i32>,
    },
    /// The link is not up.
    #[error("link {0} is not up on this host: `millrace vpn up LINK.TOML` brings it up")]
    NotUp(String),
    /// The record of an applied link cannot be read.
    #[error("{}: {reason}: remove it, and run `millrace vpn up`", path.display())]
    Record {
        /// The record, below the state folder.
        path: PathBuf,
        /// Why it cannot be read.
        reason: String,
    },
    /// The link has no such member.
    #[error("link {link} has no member {number}: millrace vpn status {link} lists them")]
    NoMember {
        /// Name of the link.
        link: String,
        /// The number that was asked for.
        number: u16,
    },
    /// There is no such configuration.
    #[error(
        "link {link} has no configuration {generation}: millrace vpn history {link} lists them"
    )]
    NoGeneration {
        /// Name of the link.
        link: String,
        /// The number that was asked for.
        generation: u64,
    },
}

/// Record of the configuration in force, kept in `applied.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppliedLink {
    /// Number of the configuration.
    pub generation: u64,
    /// The devices, processes and routes.
    pub layout: LinkLayout,
    /// The configuration that comes back if this one is not confirmed.
    pub former: Option<u64>,
    /// Time of the automatic rollback, milliseconds since 1970.
    pub confirm_until_ms: Option<u64>,
    /// Actions that remove parts of a former configuration; the supervisor runs them when its processes have ended.
    pub(crate) obsolete: Vec<LinkAction>,
}

/// A former or present configuration.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LinkGeneration {
    /// Number of the configuration, from 1.
    pub generation: u64,
    /// When it was applied, seconds since 1970.
    pub at: u64,
    /// Whether it is applied now.
    pub applied: bool,
}

/// The result of a check: what `up` would do.
#[derive(Debug)]
pub struct Checked {
    /// Everything that `up` would write and run.
    pub plan: LinkPlan,
    /// The text of link.toml.
    pub text: String,
}

/// How `up` applies a plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpOptions {
    /// Treatment of generated files that were edited.
    pub edited: EditedFiles,
    /// Time in which the other end must be reached: otherwise the supervisor brings the former configuration back.
    pub confirm_within: Option<Duration>,
}

/// The result of `up`.
#[derive(Debug)]
pub struct Raised {
    /// The configuration now in force.
    pub applied: AppliedLink,
    /// Whether a supervisor ran already; it has read the new configuration.
    pub is_supervised: bool,
}

impl AppliedLink {
    pub(crate) fn path(folders: &Folders, name: &str) -> PathBuf {
        folders.state_of(name).join("applied.json")
    }

    /// The record of a link; `None` if it is not up.
    pub fn load(folders: &Folders, name: &str) -> Result<Option<Self>, ApplyError> {
        load(Self::path(folders, name))
    }

    pub(crate) fn save(&self, folders: &Folders) -> Result<(), ApplyError> {
        save(&Self::path(folders, &self.layout.name), self)
    }
}

pub(crate) fn load<T: for<'de> Deserialize<'de>>(path: PathBuf) -> Result<Option<T>, ApplyError> {
    let bytes = match ordinary::read(&path, Links::Refuse, MAX_RECORD) {
        Ok(bytes) => bytes,
        // A pipe or a folder is no record, and none must be made in its place.
        Err(source) if source.kind() == std::io::ErrorKind::InvalidInput => {
            return Err(ApplyError::Record { reason: source.to_string(), path });
        }
        Err(_) => return Ok(None),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| ApplyError::Record { reason: error.to_string(), path })
}

/// Bound on a record, in bytes: one of a link with the most members takes 1 MB.
const MAX_RECORD: usize = 16 << 20;

/// Replaces a record atomically.
fn save(path: &Path, value: &impl Serialize) -> Result<(), ApplyError> {
    let bytes = serde_json::to_vec_pretty(value).map_err(std::io::Error::other);
    let written = bytes.and_then(|bytes| replace_file(path, &bytes, None));
    Ok(written.map_err(at(path))?)
}

pub(crate) fn supervisor_lock(run: &Path) -> PathBuf {
    run.join("supervisor.lock")
}

/// The record of the layout that a run applies, or was applying when it was killed.
pub(crate) fn intended(folders: &Folders, name: &str) -> PathBuf {
    folders.state_of(name).join("intended.json")
}

/// The file of a link's choice for `engine = "auto"`.
#[must_use]
pub fn choice_file(name: &str, folders: &Folders) -> PathBuf {
    folders.state_of(name).join(CHOICE)
}

/// The saved choice of a link; `None` if nothing was measured.
pub fn saved_choice(name: &str, folders: &Folders) -> Result<Option<EngineChoice>, ApplyError> {
    load(choice_file(name, folders))
}

/// Saves the choice of a link, for later plans.
pub fn save_choice(choice: &EngineChoice, folders: &Folders) -> Result<(), ApplyError> {
    let state = folders.state_of(&choice.name);
    fs::create_dir_all(&state).map_err(at(&state))?;
    save(&choice_file(&choice.name, folders), choice)
}

/// Checks a link.toml against itself and this host, and plans it. Without `side`, this host is the end whose
/// address it has. A link with `engine = "auto"` becomes what was chosen.
pub fn check(text: &str, side: Option<Side>, folders: &Folders) -> Result<Checked, ApplyError> {
    let link = VpnLink::parse(text)?;
    let choice = match link.auto {
        Some(_) => saved_choice(&link.name, folders)?,
        None => None,
    };
    check_with_choice(link, text, side, folders, choice)
}

/// Checks a link against this host and plans it, with the engine of a choice.
fn check_with_choice(
    declared: VpnLink,
    text: &str,
    side: Option<Side>,
    folders: &Folders,
    choice: Option<EngineChoice>,
) -> Result<Checked, ApplyError> {
    let choice = choice.filter(|_| declared.auto.is_some());
    let link = match &choice {
        Some(choice) => declared.as_candidate(choice.chosen),
        None => declared.clone(),
    };
    let root = Root::open("/")?;
    let Some(side) = side.or_else(|| Host::read(&root, &link, None).side(&link)) else {
        let addresses = Side::ALL.map(|side| link.end(side).address.to_string()).join(" nor ");
        let problem = LinkProblem::of_host(
            format!("it has neither {addresses}, or both"),
            "correct the addresses, or say which end this is: --end a",
        );
        return Err(LinkProblems(vec![problem]).into());
    };
    let host = Host::read(&root, &link, Some(side));
    let mut ours = Vec::new();
    let applied = AppliedLink::load(folders, &link.name)?.map(|applied| applied.layout);
    let changed = applied.as_ref().and_then(|layout| layout.mode_problem(&link));
    let records = [applied, load::<LinkLayout>(intended(folders, &link.name))?];
    for layout in records.into_iter().flatten() {
        ours.extend(layout.members.into_iter().map(|member| member.device));
        ours.extend(layout.bond.map(|bond| bond.device));
    }
    let mut problems = host.problems(&link, side, &ours);
    problems.extend(changed);
    if declared.auto.is_some() && choice.is_none() {
        problems.push(LinkProblem {
            line: link.lines.engine,
            ..LinkProblem::of_host(
                "engine \"auto\" needs a measurement",
                "`millrace vpn bench --choose LINK.TOML` measures and chooses; or copy the other end's choice.json",
            )
        });
    }
    LinkProblems::none(problems, ())?;
    let mut plan = LinkPlan::new(&link, side, &host, folders);
    let outdated = choice.iter().flat_map(|choice| choice.outdated(&declared, &host));
    plan.notes.extend(outdated.map(|why| {
        format!("the choice of the engine is old: {why}; `millrace vpn bench --choose LINK.TOML` measures anew")
    }));
    plan.choice = choice;
    Ok(Checked { plan, text: text.to_owned() })
}

/// Applies a plan.
///
/// # Errors
/// See [`ApplyError`]; the link is then as before.
pub fn up(checked: &Checked, folders: &Folders, options: UpOptions) -> Result<Raised, ApplyError> {
    let plan = &checked.plan;
    let name = &plan.layout.name;
    let run = folders.run_of(name);
    let state = folders.state_of(name);
    for folder in [&run, &state] {
        fs::create_dir_all(folder).map_err(at(folder))?;
        exec::check_folder(folder)?;
    }
    let _lock = Lock::take(&run.join("lock"))?.ok_or_else(|| ApplyError::Busy(name.clone()))?;
    let before = AppliedLink::load(folders, name)?;
    let generation = record_history(&state, checked)?;
    write_files(plan, folders, options.edited).inspect_err(|_| {
        forget_generation(name, generation, before.as_ref(), folders);
    })?;
    let recorded = perform_steps(&plan.layout, before.as_ref()).and_then(|()| {
        let applied = next_record(plan, generation, before.as_ref(), options.confirm_within);
        applied.save(folders).map(|()| applied)
    });
    let applied = recorded.inspect_err(|_| put_back(plan, generation, before.as_ref(), folders))?;
    let _ = fs::remove_file(intended(folders, name));
    let is_supervised = signal_supervisor(&run, Signal::HUP);
    Ok(Raised { applied, is_supervised })
}

/// Writes the generated files; after an error they are as before.
fn write_files(plan: &LinkPlan, folders: &Folders, edited: EditedFiles) -> Result<(), ApplyError> {
    save(&intended(folders, &plan.layout.name), &plan.layout)?;
    let changes = write::compare(&plan.files, &[], Path::new("/"))?;
    changes.apply(edited)?;
    Ok(())
}

/// The record of a configuration that follows another.
fn next_record(
    plan: &LinkPlan,
    generation: u64,
    before: Option<&AppliedLink>,
    confirm_within: Option<Duration>,
) -> AppliedLink {
    let former = before.map(|before| before.generation);
    let confirm = confirm_within.filter(|_| former != Some(generation));
    let mut obsolete = before.map_or_else(Vec::new, |before| before.obsolete.clone());
    if let Some(before) = before {
        obsolete.extend(before.layout.removal_before(&plan.layout));
    }
    let kept = plan.layout.removal();
    obsolete.retain(|action| !kept.contains(action));
    AppliedLink {
        generation,
        layout: plan.layout.clone(),
        former,
        confirm_until_ms: confirm
            .map(|time| unix_ms() + u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 2)),
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

/// Keeps a configuration; the number of the newest one if its text and its choice are the same.
fn record_history(state: &Path, checked: &Checked) -> Result<u64, ApplyError> {
    let text = &checked.text;
    let choice = &checked.plan.choice;
    let folder = state.join("history");
    let numbers = generations(&folder);
    if let Some(newest) = numbers.last()
        && fs::read_to_string(history_file(&folder, *newest)).is_ok_and(|known| known == *text)
        && load(history_file(&folder, *newest).with_file_name(CHOICE))? == *choice
    {
        return Ok(*newest);
    }
    let next = numbers.last().map_or(1, |newest| newest + 1);
    let file = history_file(&folder, next);
    let parent = file.with_file_name("");
    fs::create_dir_all(&parent).map_err(at(&parent))?;
    // The choice comes first: a folder with a link.toml is complete.
    let written = choice
        .iter()
        .try_for_each(|choice| save(&parent.join(CHOICE), choice))
        .and_then(|()| Ok(replace_file(&file, text.as_bytes(), None).map_err(at(&file))?));
    if written.is_err() {
        let _ = fs::remove_dir_all(&parent);
    }
    written?;
    let surplus = (numbers.len() + 1).saturating_sub(MAX_HISTORY);
    for old in &numbers[..surplus] {
        let _ = fs::remove_dir_all(history_file(&folder, *old).with_file_name(""));
    }
    Ok(next)
}

fn history_file(folder: &Path, generation: u64) -> PathBuf {
    folder.join(format!("{generation:06}")).join("link.toml")
}

fn generations(folder: &Path) -> Vec<u64> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<u64> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        // A run that was killed may leave a folder without its file.
        .filter(|number| history_file(folder, *number).exists())
        .collect();
    numbers.sort_unstable();
    numbers
}

/// The configurations of a link, the oldest first.
pub fn history(name: &str, folders: &Folders) -> Result<Vec<LinkGeneration>, ApplyError> {
    let applied = AppliedLink::load(folders, name)?.map(|applied| applied.generation);
    let folder = folders.state_of(name).join("history");
    let mut history = Vec::new();
    for generation in generations(&folder) {
        let since_1970 = fs::metadata(history_file(&folder, generation))
            .and_then(|metadata| metadata.modified())
            .ok()
            .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        history.push(LinkGeneration {
            generation,
            at: since_1970.map_or(0, |time| time.as_secs()),
            applied: applied == Some(generation),
        });
    }
    Ok(history)
}

/// A configuration of the history, checked and planned again: with the choice of its time.
///
/// # Errors
/// There is none with this number; or every problem.
pub fn check_former(
    name: &str,
    generation: u64,
    side: Side,
    folders: &Folders,
) -> Result<Checked, ApplyError> {
    let file = history_file(&folders.state_of(name).join("history"), generation);
    let text = fs::read_to_string(&file)
        .map_err(|_| ApplyError::NoGeneration { link: name.to_owned(), generation })?;
    let choice = load(file.with_file_name(CHOICE))?;
    check_with_choice(VpnLink::parse(&text)?, &text, Some(side), folders, choice)
}

/// Removes a configuration that was not applied from the history.
fn forget_generation(name: &str, generation: u64, before: Option<&AppliedLink>, folders: &Folders) {
    if before.is_none_or(|before| before.generation != generation) {
        let folder = folders.state_of(name).join("history");
        let _ = fs::remove_dir_all(history_file(&folder, generation).with_file_name(""));
    }
}

/// Puts the files of the former configuration back after a failed change. Its error is the one to report, so
/// errors here are ignored; the next run completes what they left.
fn put_back(plan: &LinkPlan, generation: u64, before: Option<&AppliedLink>, folders: &Folders) {
    let name = &plan.layout.name;
    forget_generation(name, generation, before, folders);
    let Some(before) = before else {
        for file in &plan.files {
            let _ = fs::remove_file(&file.path);
        }
        return;
    };
    let former = check_former(name, before.generation, before.layout.side, folders);
    if let Ok(former) = former
        && let Ok(changes) = write::compare(&former.plan.files, &[], Path::new("/"))
    {
        let _ = changes.apply(EditedFiles::Overwrite);
    }
}

/// Brings back the configuration before the applied one; `None` if there was none. The supervisor calls this,
/// and its processes keep running.
pub(crate) fn restore_former(
    name: &str,
    folders: &Folders,
) -> Result<Option<AppliedLink>, ApplyError> {
    let Some(applied) = AppliedLink::load(folders, name)? else {
        return Ok(None);
    };
    let Some(former) = applied.former else {
        return Ok(None);
    };
    let checked = check_former(name, former, applied.layout.side, folders)?;
    let options = UpOptions { edited: EditedFiles::Overwrite, confirm_within: None };
    Ok(Some(up(&checked, folders, options)?.applied))
}

/// Sends a signal to the supervisor of a link; whether there is one.
pub(crate) fn signal_supervisor(run: &Path, signal: Signal) -> bool {
    let holder = Lock::holder(&supervisor_lock(run));
    // The supervisor itself calls this when it restores a former configuration.
    holder.is_some_and(|pid| pid == rustix::process::getpid() || kill_process(pid, signal).is_ok())
}

/// Makes the supervisor restart members one after another, each once traffic has left it: all of them, or those
/// named. A process takes over new programs, certificates and keys only when it starts.
///
/// # Errors
/// The link is not up, has no such member, or no supervisor.
pub fn restart(name: &str, members: &[u16], folders: &Folders) -> Result<(), ApplyError> {
    let Some(AppliedLink { layout, .. }) = AppliedLink::load(folders, name)? else {
        return Err(ApplyError::NotUp(name.to_owned()));
    };
    for number in members.iter().copied() {
        if !layout.members.iter().any(|member| member.number == number) {
            return Err(ApplyError::NoMember { link: name.to_owned(), number });
        }
    }
    let run = folders.run_of(name);
    let _lock = Lock::take(&run.join("lock"))?.ok_or_else(|| ApplyError::Busy(name.to_owned()))?;
    if !is_supervised(name, folders) {
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

/// Whether a supervisor runs.
#[must_use]
pub fn is_supervised(name: &str, folders: &Folders) -> bool {
    Lock::holder(&supervisor_lock(&folders.run_of(name))).is_some()
}
