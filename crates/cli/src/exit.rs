// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The end of a command: exit codes, and the only function that prints an error.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::terminal::styled;

/// The reasons of failure that have an exit code. The long help describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Any failure without a separate code.
    Failed = 1,
    /// The command line or the configuration file is wrong.
    Usage = 2,
    /// The key was refused.
    KeyRefused = 3,
    /// The key does not exist, or a key of that name exists already.
    KeyName = 4,
    /// No node answers.
    NoNode = 5,
}

/// An error with an exit code and, as context, the action that failed.
#[derive(Debug)]
struct Coded {
    failure: Failure,
    message: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Coded {}

/// An error with a specific exit code.
pub(crate) fn fail(failure: Failure, message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Coded { failure, message: message.into() })
}

/// Ends the command with this exit code and no message: the command has printed its result.
#[derive(Debug)]
struct ExitCodeOnly(u8);

impl fmt::Display for ExitCodeOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}", self.0)
    }
}

impl std::error::Error for ExitCodeOnly {}

/// Ends the command with an exit code that is a result rather than a failure.
pub(crate) fn exit_with(code: u8) -> anyhow::Error {
    anyhow::Error::new(ExitCodeOnly(code))
}

/// Adds an exit code and a first sentence to an error.
pub(crate) trait ContextCode<T> {
    /// Like `with_context`, with an exit code.
    fn or_fail(self, failure: Failure, message: impl FnOnce() -> String) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> ContextCode<T> for Result<T, E> {
    fn or_fail(self, failure: Failure, message: impl FnOnce() -> String) -> anyhow::Result<T> {
        self.map_err(|error| error.into().context(Coded { failure, message: message() }))
    }
}

/// Maps the result of a command to the exit code of the process. Only this function prints the chain of
/// causes.
pub(crate) fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if let Some(ExitCodeOnly(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    let label = if styled(&io::stderr()) { "\x1b[1;31merror\x1b[0m" } else { "error" };
    // If standard error is closed, too, there is no place for output.
    let _ = writeln!(io::stderr(), "{label}: {}", chain(&error));
    let failure = error.downcast_ref::<Coded>().map_or(Failure::Failed, |coded| coded.failure);
    ExitCode::from(failure as u8)
}

/// A sentence about several problems, with a row for each.
pub(crate) fn listed<'a>(sentence: &str, problems: impl IntoIterator<Item = &'a str>) -> String {
    problems
        .into_iter()
        .fold(format!("{sentence}:"), |text, problem| format!("{text}\n  {problem}"))
}

/// The causes in one line, without those whose text the previous one contains.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut last = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if last.is_empty() {
            text.push_str(&cause);
        } else if !last.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        last = cause;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_is_printed_once() {
        let inner = io::Error::other("the disk is full");
        let error = anyhow::Error::new(inner).context("writing x: the disk is full");
        assert_eq!(chain(&error), "writing x: the disk is full");
        let error = anyhow::Error::new(io::Error::other("the disk is full")).context("writing x");
        assert_eq!(chain(&error), "writing x: the disk is full");
    }

    #[test]
    fn broken_connection_to_a_node_is_a_failure() {
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        let error = anyhow::Error::new(broken).context("asking the node");
        let [code, success] =
            [report(Err(error)), ExitCode::SUCCESS].map(|code| format!("{code:?}"));
        assert_ne!(code, success);
    }

    #[test]
    fn every_exit_code_is_in_the_help() {
        use crate::args::EXIT_CODES;
        use Failure::{Failed, KeyName, KeyRefused, NoNode, Usage};
        for failure in [Failed, Usage, KeyRefused, KeyName, NoNode] {
            let start = format!("\n   {}  ", failure as u8);
            assert!(EXIT_CODES.contains(&start), "{failure:?}");
        }
    }

    #[test]
    fn code_survives_further_context() {
        let error = fail(Failure::NoNode, "no node answers").context("asking for the status");
        assert_eq!(error.downcast_ref::<Coded>().unwrap().failure, Failure::NoNode);
    }
}
