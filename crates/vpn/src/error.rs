// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The error of commands on a link.

use std::path::PathBuf;

use millrace_hostfs::OpenError;
use millrace_hostfs::change::state_file::StateFileError;
use millrace_hostfs::generated::write::WriteError;
use thiserror::Error;

use crate::exec::ExecError;
use crate::link::LinkProblems;

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
    /// Something of the link could not be removed.
    #[error("{what} of link {link} is left: {remedy}, then run `millrace vpn down {link}` again")]
    Left {
        /// Name of the link.
        link: String,
        /// The devices or processes that are left.
        what: String,
        /// The first part of the way out.
        remedy: String,
    },
    /// The link is not up.
    #[error("link {0} is not up on this host: `millrace vpn up LINK.TOML` brings it up")]
    NotUp(String),
    /// The record of an applied link cannot be used.
    #[error("{}: {source}: {remedy}", path.display())]
    Record {
        /// The record, below the state folder.
        path: PathBuf,
        /// Why it cannot be used.
        source: Box<StateFileError>,
        /// The way out.
        remedy: &'static str,
    },
    /// The time of a change was over before it was confirmed.
    #[error(
        "configuration {refused} of link {link} was not confirmed in its time, so that {back}; run the command again to apply it all the same",
        back = confirmed.map_or_else(
            || "the link is down".to_owned(),
            |number| format!("configuration {number} is back")
        )
    )]
    NotConfirmed {
        /// Name of the link.
        link: String,
        /// The configuration that was not confirmed.
        refused: u64,
        /// The configuration that is in force now; `None` if there was none before.
        confirmed: Option<u64>,
    },
    /// No configuration waits for a confirmation.
    #[error("link {0} has no change that waits for a confirmation: millrace vpn status {0}")]
    NothingToConfirm(String),
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
