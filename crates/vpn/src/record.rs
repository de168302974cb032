// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Records of a link in its state folder: what is applied, what a run is applying, choices, and former configurations.
//!
//! The layout of a record that cannot be used is planned anew from the history, so that none is a dead end: `up` and
//! `down` know the devices and processes either way.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_hostfs::change::{HostChange, HostTime, state_file};
use millrace_hostfs::ordinary::{self, Links};
use millrace_hostfs::replace::replace_file;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::choice::EngineChoice;
use crate::error::ApplyError;
use crate::exec::at;
use crate::plan::{Folders, LinkAction, LinkLayout};

/// The file of a choice, beside the state of a link and in its history.
const CHOICE: &str = "choice.json";

/// Former configurations that are kept.
const MAX_HISTORY: usize = 50;

/// Bound on a configuration of the history, in bytes: one of 64 members has 20 KiB.
const MAX_LINK_LEN: usize = 4 << 20;

/// Remedy for a record of a link.
const MADE_ANEW: &str = "`millrace vpn up LINK.TOML` makes it anew";

/// Record of the configuration in force, kept in `applied.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AppliedLink {
    /// Number of the configuration.
    pub generation: u64,
    /// The devices, processes and routes.
    pub layout: LinkLayout,
    /// The configuration that was confirmed when this one was applied: it counts where `change.json` is of no use.
    pub(crate) former: Option<u64>,
    /// Time of the automatic rollback, milliseconds since 1970: the same. `None` for a confirmed configuration.
    pub(crate) confirm_until_ms: Option<u64>,
    /// Whether processes have to be started with this configuration: one on trial counts by what it brings up itself,
    /// and the way back leaves nothing of a trial. Otherwise a running daemon may load it.
    #[serde(default)]
    pub(crate) anew: bool,
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

/// A record as it was found.
#[derive(Debug)]
pub(crate) enum Found<T> {
    /// There is none.
    None,
    /// The record is of use.
    Good(T),
    /// The record is of no use.
    Bad(ApplyError),
}

impl<T> Found<T> {
    fn read(path: &Path) -> Self
    where
        T: DeserializeOwned,
    {
        match load(path, MADE_ANEW) {
            Ok(None) => Self::None,
            Ok(Some(record)) => Self::Good(record),
            Err(error) => Self::Bad(error),
        }
    }

    /// The record, if it is of use.
    pub(crate) fn good(self) -> Option<T> {
        match self {
            Self::Good(record) => Some(record),
            Self::None | Self::Bad(_) => None,
        }
    }

    pub(crate) fn is_bad(&self) -> bool {
        matches!(self, Self::Bad(_))
    }
}

impl AppliedLink {
    pub(crate) fn path(folders: &Folders, name: &str) -> PathBuf {
        folders.state_of(name).join("applied.json")
    }

    /// The record of a link; `None` if it is not up.
    pub fn load(folders: &Folders, name: &str) -> Result<Option<Self>, ApplyError> {
        load(&Self::path(folders, name), MADE_ANEW)
    }

    pub(crate) fn find(folders: &Folders, name: &str) -> Found<Self> {
        Found::read(&Self::path(folders, name))
    }

    pub(crate) fn save(&self, folders: &Folders) -> Result<(), ApplyError> {
        save(&Self::path(folders, &self.layout.name), self)
    }
}

/// The lock of the commands that work on a link. Its file stays when the link goes down.
pub(crate) fn link_lock(run: &Path) -> PathBuf {
    run.join("lock")
}

/// Reads a record; `remedy` says what to do with one that is of no use.
pub(crate) fn load<T: DeserializeOwned>(
    path: &Path,
    remedy: &'static str,
) -> Result<Option<T>, ApplyError> {
    state_file::read(path).map_err(|source| ApplyError::Record {
        path: path.to_owned(),
        source: Box::new(source),
        remedy,
    })
}

/// Replaces a record atomically.
pub(crate) fn save(path: &Path, value: &impl Serialize) -> Result<(), ApplyError> {
    Ok(state_file::write(path, value, state_file::PUBLIC).map_err(at(path))?)
}

/// The record of the layout that a run applies, or was applying when it was killed.
pub(crate) fn intended(folders: &Folders, name: &str) -> PathBuf {
    folders.state_of(name).join("intended.json")
}

pub(crate) fn find_intended(folders: &Folders, name: &str) -> Found<LinkLayout> {
    Found::read(&intended(folders, name))
}

/// The record of a link's changes: which configuration is confirmed, and which one is tried.
pub(crate) fn change_file(folders: &Folders, name: &str) -> PathBuf {
    folders.state_of(name).join("change.json")
}

pub(crate) fn find_change(folders: &Folders, name: &str) -> Found<HostChange<u64>> {
    Found::read(&change_file(folders, name))
}

/// The changes of a link. Without a record that is of use, `applied` says what it knows: a configuration with a time
/// was not confirmed.
pub(crate) fn load_change(
    folders: &Folders,
    name: &str,
    applied: Option<&AppliedLink>,
) -> HostChange<u64> {
    if let Some(change) = find_change(folders, name).good() {
        return change;
    }
    let Some(applied) = applied else {
        return HostChange::settled(None);
    };
    if applied.confirm_until_ms.is_none() {
        return HostChange::settled(Some(applied.generation));
    }
    let mut change = HostChange::settled(applied.former);
    // Nothing is known about the time that has passed: the way back is due.
    let long_ago = HostTime::of("unknown", Duration::ZERO);
    if change.begin(applied.generation, Some(Duration::ZERO), &long_ago).is_ok() {
        change.applied(&long_ago);
    }
    change
}

/// The file of a link's choice for `engine = "auto"`.
#[must_use]
pub fn choice_file(name: &str, folders: &Folders) -> PathBuf {
    folders.state_of(name).join(CHOICE)
}

/// The saved choice of a link; `None` if nothing was measured.
pub fn saved_choice(name: &str, folders: &Folders) -> Result<Option<EngineChoice>, ApplyError> {
    let remedy = "remove it, then measure anew with `millrace vpn bench --choose LINK.TOML` or copy the other end's choice.json";
    load(&choice_file(name, folders), remedy)
}

/// Saves the choice of a link, for later plans.
pub fn save_choice(choice: &EngineChoice, folders: &Folders) -> Result<(), ApplyError> {
    let state = folders.state_of(&choice.name);
    fs::create_dir_all(&state).map_err(at(&state))?;
    save(&choice_file(&choice.name, folders), choice)
}

/// Keeps a configuration; the number of the newest one if its text and its choice are the same. The configurations
/// `kept` stay, whatever their age.
pub(crate) fn record_history(
    name: &str,
    (text, choice): (&str, &Option<EngineChoice>),
    kept: [Option<&u64>; 2],
    folders: &Folders,
) -> Result<u64, ApplyError> {
    let folder = history(folders, name);
    let numbers = generations(&folder);
    if let Some(newest) = numbers.last()
        && link_text(&history_file(&folder, *newest)).is_ok_and(|known| known == text)
        // A choice that is of no use is another one.
        && load(&history_choice(&folder, *newest), "").is_ok_and(|known| known == *choice)
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
    for old in numbers[..surplus].iter().filter(|old| !kept.contains(&Some(*old))) {
        let _ = fs::remove_dir_all(history_file(&folder, *old).with_file_name(""));
    }
    Ok(next)
}

fn link_text(path: &Path) -> io::Result<String> {
    ordinary::read_text(path, Links::Refuse, MAX_LINK_LEN)
}

fn history(folders: &Folders, name: &str) -> PathBuf {
    folders.state_of(name).join("history")
}

fn history_file(folder: &Path, generation: u64) -> PathBuf {
    folder.join(format!("{generation:06}")).join("link.toml")
}

fn history_choice(folder: &Path, generation: u64) -> PathBuf {
    history_file(folder, generation).with_file_name(CHOICE)
}

/// The text of a configuration of the history.
///
/// # Errors
/// There is none with this number.
pub(crate) fn former_text(
    name: &str,
    generation: u64,
    folders: &Folders,
) -> Result<String, ApplyError> {
    link_text(&history_file(&history(folders, name), generation))
        .map_err(|_| ApplyError::NoGeneration { link: name.to_owned(), generation })
}

/// The choice of a configuration of the history; `None` if its link.toml names its engine.
///
/// # Errors
/// The choice is of no use.
pub(crate) fn former_choice(
    name: &str,
    generation: u64,
    folders: &Folders,
) -> Result<Option<EngineChoice>, ApplyError> {
    let remedy =
        "apply link.toml itself with `millrace vpn up`, or another one of `millrace vpn history`";
    load(&history_choice(&history(folders, name), generation), remedy)
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

/// The newest configuration of the history.
pub(crate) fn newest(name: &str, folders: &Folders) -> Option<u64> {
    generations(&history(folders, name)).last().copied()
}

/// The configurations of a link, the oldest first.
pub fn list_history(name: &str, folders: &Folders) -> Result<Vec<LinkGeneration>, ApplyError> {
    let applied = AppliedLink::load(folders, name)?.map(|applied| applied.generation);
    let folder = history(folders, name);
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

/// Removes a configuration that was not applied from the history.
pub(crate) fn forget_generation(name: &str, generation: u64, folders: &Folders) {
    let folder = history(folders, name);
    let _ = fs::remove_dir_all(history_file(&folder, generation).with_file_name(""));
}

/// Removes a record; that there is none is no error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use millrace_hostfs::change::ChangeDue;

    use super::*;

    fn folders() -> (tempfile::TempDir, Folders) {
        let dir = tempfile::tempdir().expect("a folder");
        let folders = Folders { run: dir.path().join("run"), state: dir.path().join("state") };
        fs::create_dir_all(folders.state_of("mr")).expect("a folder");
        (dir, folders)
    }

    fn applied(former: Option<u64>, confirm_until_ms: Option<u64>) -> AppliedLink {
        let layout = serde_json::json!({
            "name": "mr", "side": "a", "tunnel_mtu": 1400, "segment": 1360, "steps": [], "members": [], "routes": [],
        });
        let layout = serde_json::from_value(layout).expect("a layout");
        AppliedLink {
            generation: 4,
            layout,
            former,
            confirm_until_ms,
            anew: false,
            obsolete: Vec::new(),
        }
    }

    #[test]
    fn pipe_in_the_history_is_no_configuration_and_nothing_waits_for_it() {
        let (_dir, folders) = folders();
        let record = |text| record_history("mr", (text, &None), [None, None], &folders);
        assert_eq!(record("first").expect("recorded"), 1);
        let path = history_file(&history(&folders, "mr"), 1);
        fs::remove_file(&path).expect("removed");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).expect("a pipe");
        let former = former_text("mr", 1, &folders);
        assert!(matches!(former, Err(ApplyError::NoGeneration { .. })), "{former:?}");
        assert_eq!(record("first").expect("recorded"), 2);
        assert_eq!(former_text("mr", 2, &folders).expect("a text"), "first");
    }

    #[test]
    fn changes_without_a_record_of_use_are_those_of_what_is_applied() {
        let (_dir, folders) = folders();
        let of = |applied: &AppliedLink| load_change(&folders, "mr", Some(applied));
        for damaged in [None, Some(""), Some("{}"), Some("{\"version\":9}")] {
            if let Some(damaged) = damaged {
                fs::write(change_file(&folders, "mr"), damaged).expect("a record");
            }
            assert_eq!(load_change(&folders, "mr", None), HostChange::settled(None));
            assert_eq!(of(&applied(Some(3), None)), HostChange::settled(Some(4)));
            // Whatever its time was: nothing is known about it.
            let mut change = of(&applied(Some(3), Some(u64::MAX)));
            assert_eq!(change.trial(), Some(&4));
            assert_eq!(change.due(&HostTime::now()), ChangeDue::Return(Some(3)));
            assert_eq!(of(&applied(None, Some(1))).due(&HostTime::now()), ChangeDue::Return(None));
        }
        save(&change_file(&folders, "mr"), &HostChange::settled(Some(9_u64))).expect("saved");
        assert_eq!(of(&applied(Some(3), Some(1))), HostChange::settled(Some(9)));
    }

    #[test]
    fn history_is_bounded_and_keeps_the_configurations_of_the_way_back() {
        let (_dir, folders) = folders();
        let keep = |number: usize, kept: [Option<&u64>; 2]| {
            record_history("mr", (&number.to_string(), &None), kept, &folders).expect("kept")
        };
        for number in 0..MAX_HISTORY + 9 {
            keep(number, [Some(&2), Some(&1)]);
        }
        let kept = generations(&history(&folders, "mr"));
        assert_eq!((kept[0], kept[1], kept.len()), (1, 2, MAX_HISTORY + 2));
        assert_eq!(keep(MAX_HISTORY + 8, [None; 2]), *kept.last().expect("some"), "the same text");
        keep(0, [None; 2]);
        assert_eq!(generations(&history(&folders, "mr")).len(), MAX_HISTORY);
    }
}
