// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Everything that is wrong with a link, in one error.

use std::fmt;

use serde::Serialize;

/// One reason for which a link cannot be brought up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkProblem {
    /// Line of the file, from 1; `None` for a problem of the host, and for one of the whole file.
    pub line: Option<usize>,
    /// Whether the host is to be changed, not the file.
    pub of_host: bool,
    /// Description of the problem.
    pub what: String,
    /// Remedy for the user to apply.
    pub remedy: String,
}

impl LinkProblem {
    /// A problem of the host, which no line of link.toml causes.
    #[must_use]
    pub fn of_host(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { line: None, of_host: true, what: what.into(), remedy: remedy.into() }
    }

    /// A problem of a file as a whole.
    #[must_use]
    pub fn of_file(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { of_host: false, ..Self::of_host(what, remedy) }
    }

    /// A problem that a line causes.
    #[must_use]
    pub fn at(line: usize, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { line: Some(line), ..Self::of_file(what, remedy) }
    }
}

impl fmt::Display for LinkProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: ")?,
            None if self.of_host => f.write_str("this host: ")?,
            None => {}
        }
        write!(f, "{}: {}", self.what, self.remedy)
    }
}

/// All problems of a link, in the order of the file; those of the host come last.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct LinkProblems(pub Vec<LinkProblem>);

impl LinkProblems {
    /// `value`, unless there are problems.
    pub fn none<T>(problems: Vec<LinkProblem>, value: T) -> Result<T, Self> {
        if problems.is_empty() { Ok(value) } else { Err(Self::in_order(problems)) }
    }

    /// The problems, sorted by line.
    pub(crate) fn in_order(mut problems: Vec<LinkProblem>) -> Self {
        problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        Self(problems)
    }
}

impl fmt::Display for LinkProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        let noun = if count == 1 { "problem" } else { "problems" };
        write!(f, "{count} {noun}, and nothing was changed")?;
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}
