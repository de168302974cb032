// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The status that the supervisor writes for other commands, and its log of changes.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use millrace_hostfs::ordinary::{self, Links};
use millrace_hostfs::replace::replace_file;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::machine::{LinkMachine, MemberStatus, StateChange};
use crate::exec::unix_ms;
use crate::link::Side;

/// Bound on a log, in bytes; with the former one it takes twice as much.
const MAX_LOG: u64 = 1 << 20;

/// The state of a link at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// Each member carries traffic.
    Up,
    /// Some members carry traffic.
    Degraded,
    /// No member carries traffic.
    Down,
}

/// A link at one end, in numbers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LinkStatus {
    /// Name of the link.
    pub name: String,
    /// The end that this host is.
    pub side: Side,
    /// Whether each, some or no member carries traffic.
    pub state: LinkState,
    /// The applied configuration (`millrace vpn history`).
    pub generation: u64,
    /// Time of this status, milliseconds since 1970.
    pub at_ms: u64,
    /// Process id of the supervisor.
    pub supervisor: u32,
    /// Members over which packets are routed.
    pub routed: Vec<u16>,
    /// State and counters of each member, by number.
    pub members: Vec<MemberStatus>,
    /// End of the validity of this end's certificate, seconds since 1970; `None` if it cannot be read.
    pub certificate_until: Option<i64>,
    /// Milliseconds until the former configuration comes back, unless the other end is reached before.
    pub confirm_within_ms: Option<u64>,
}

impl LinkState {
    pub(super) fn of(machine: &LinkMachine) -> Self {
        match (machine.is_up(), machine.is_settled()) {
            (_, true) => Self::Up,
            (true, false) => Self::Degraded,
            (false, false) => Self::Down,
        }
    }
}

/// Bound on a status, in bytes: 1 KB for each of the most members of a link.
const MAX_STATUS: usize = 1 << 20;

fn path(run: &Path) -> PathBuf {
    run.join("status.json")
}

/// The newest status in the run folder of a link; `None` if none was written, or it cannot be read.
#[must_use]
pub fn read_status(run: &Path) -> Option<LinkStatus> {
    serde_json::from_slice(&ordinary::read(&path(run), Links::Refuse, MAX_STATUS).ok()?).ok()
}

pub(super) fn write_status(run: &Path, status: &LinkStatus) -> io::Result<()> {
    replace_file(&path(run), &serde_json::to_vec_pretty(status)?, None)
}

/// Appends changes to the logs of a link: one JSON object a line in its state folder, text in its run folder.
pub(super) fn log_changes(state: &Path, run: &Path, changes: &[StateChange]) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        at_ms: u64,
        #[serde(flatten)]
        change: &'a StateChange,
    }
    let text: String = changes.iter().map(|change| format!("{change}\n")).collect();
    let mut lines = String::new();
    for change in changes {
        lines.push_str(&serde_json::to_string(&Line { at_ms: unix_ms(), change })?);
        lines.push('\n');
    }
    // A full disk does not keep the text from the memory file system of the run folder.
    let written = append(&state.join("changes.log"), &lines);
    append(&run.join("supervisor.log"), &text).and(written)
}

/// Appends to a log. One that has reached its bound first moves to a name that ends in `.1`.
fn append(log: &Path, text: &str) -> io::Result<()> {
    if fs::symlink_metadata(log).is_ok_and(|metadata| metadata.len() > MAX_LOG) {
        let mut former = log.as_os_str().to_owned();
        former.push(".1");
        fs::rename(log, former)?;
    }
    ordinary::open_to_append(log, 0o644)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::MemberState;

    #[test]
    fn pipe_in_the_place_of_a_log_keeps_no_line_from_the_other_log() {
        let (state, run) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let pipe = state.path().join("changes.log");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
        let change = StateChange {
            member: 0,
            state: MemberState::Silent,
            reason: "no echo".to_owned(),
            noticed_after_ms: None,
        };
        let error = log_changes(state.path(), run.path(), &[change]).expect_err("a pipe");
        assert!(error.to_string().contains("a pipe"), "{error}");
        let text = fs::read_to_string(run.path().join("supervisor.log")).expect("a log");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn each_change_is_a_line_of_both_logs_and_a_full_log_moves_aside() {
        let (state, run) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let change = |member| StateChange {
            member,
            state: MemberState::Silent,
            reason: "no echo".to_owned(),
            noticed_after_ms: Some(950),
        };
        let text = |folder: &tempfile::TempDir, name: &str| {
            fs::read_to_string(folder.path().join(name)).unwrap_or_default()
        };
        let log = |changes: &[StateChange]| {
            log_changes(state.path(), run.path(), changes).expect("written");
        };
        log(&[change(0), change(1)]);
        assert!(
            text(&run, "supervisor.log")
                .ends_with("member 1 is silent: no echo (noticed after 950 ms)\n")
        );
        let json = text(&state, "changes.log");
        let line: serde_json::Value =
            serde_json::from_str(json.lines().next().expect("a line")).expect("JSON");
        assert!(
            line["member"] == 0 && line["state"] == "silent" && line["at_ms"].is_u64(),
            "{json}"
        );
        let full = "x".repeat(usize::try_from(MAX_LOG).expect("a size") + 1);
        for folder in [&state, &run] {
            for name in ["changes.log", "supervisor.log"] {
                fs::write(folder.path().join(name), &full).expect("a file");
            }
        }
        log(&[change(2)]);
        for (folder, name) in [(&state, "changes.log"), (&run, "supervisor.log")] {
            assert_eq!(text(folder, name).lines().count(), 1);
            assert_eq!(text(folder, &format!("{name}.1")), full);
        }
        // The state folder is gone, and the text is still written.
        drop(state);
        let gone = run.path().join("gone");
        assert!(log_changes(&gone, run.path(), &[change(3)]).is_err());
        assert_eq!(text(&run, "supervisor.log").lines().count(), 2);
    }
}
