// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The status that the supervisor writes for other commands, and its log of changes.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_hostfs::replace::replace_file;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::machine::{MemberStatus, StateChange};
use super::metrics;
use crate::link::Side;

/// Bound on the log of changes, in bytes; then it moves to `changes.log.1`.
const MAX_LOG: u64 = 1 << 20;

/// The state of a link at one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// Each member carries traffic.
    Up,
    /// Some members carry traffic.
    Degraded,
    /// None does.
    Down,
}

/// A link at one end, in numbers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LinkStatus {
    /// Its name.
    pub name: String,
    /// This end.
    pub side: Side,
    /// Its state.
    pub state: LinkState,
    /// The applied configuration (`millrace vpn history`).
    pub generation: u64,
    /// Time of this status, milliseconds since 1970.
    pub at_ms: u64,
    /// Process id of the supervisor.
    pub supervisor: u32,
    /// Members over which packets are routed.
    pub routed: Vec<u16>,
    /// The members.
    pub members: Vec<MemberStatus>,
    /// End of the validity of this end's certificate, seconds since 1970; `None` if it cannot be read.
    pub certificate_until: Option<i64>,
    /// Milliseconds until the former configuration comes back, unless the other end is reached before.
    pub confirm_within_ms: Option<u64>,
}

impl LinkState {
    pub(super) fn of(is_up: bool, is_settled: bool) -> Self {
        match (is_up, is_settled) {
            (_, true) => Self::Up,
            (true, false) => Self::Degraded,
            (false, false) => Self::Down,
        }
    }
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn path(run: &Path) -> PathBuf {
    run.join("status.json")
}

/// The newest status in the run folder of a link; `None` if none was written, or it cannot be read.
#[must_use]
pub fn read_status(run: &Path) -> Option<LinkStatus> {
    serde_json::from_slice(&fs::read(path(run)).ok()?).ok()
}

pub(super) fn write_status(run: &Path, status: &LinkStatus) -> io::Result<()> {
    replace_file(&path(run), &serde_json::to_vec_pretty(status)?, None)?;
    // Its suffix is that which node_exporter reads; it never sees a part of a file.
    let text = metrics::render(status);
    replace_file(&run.join("metrics.prom"), text.as_bytes(), None)
}

/// Appends changes to the log in the state folder of a link, one JSON object a line.
pub(super) fn log_changes(state: &Path, changes: &[StateChange]) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        at_ms: u64,
        #[serde(flatten)]
        change: &'a StateChange,
    }
    let log = state.join("changes.log");
    if fs::metadata(&log).is_ok_and(|metadata| metadata.len() > MAX_LOG) {
        fs::rename(&log, state.join("changes.log.1"))?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(log)?;
    for change in changes {
        let mut line = serde_json::to_vec(&Line { at_ms: unix_ms(), change })?;
        line.push(b'\n');
        file.write_all(&line)?;
    }
    Ok(())
}
