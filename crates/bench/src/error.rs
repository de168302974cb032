// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Why a measurement yields no figures.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a library does not compute something, or computed it wrongly.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LibraryError {
    /// Resource: the library cannot be loaded, or is not a libcrypto.
    #[error("cannot open {path}: {reason}")]
    Open {
        /// The file, or the name that the loader looked for.
        path: PathBuf,
        /// The message of the loader.
        reason: String,
    },
    /// Caller: the library has no such algorithm.
    #[error("this libcrypto has no {0}")]
    Missing(String),
    /// A call failed that must not fail.
    #[error("{0}")]
    Failed(String),
    /// An output was wrong.
    #[error("{0}")]
    Wrong(&'static str),
}

impl LibraryError {
    pub(crate) fn missing(what: impl ToString) -> Self {
        Self::Missing(what.to_string())
    }

    pub(crate) fn failed(error: impl ToString) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Why a measurement ended without figures.
#[derive(Debug, Error)]
pub enum BenchError {
    /// Caller: options that make no sense together or on this machine.
    #[error("{0}")]
    Usage(String),
    /// Resource: a program that is needed is not installed.
    #[error("{program} is not installed: {remedy}")]
    Missing {
        /// As it is called on the command line.
        program: String,
        /// Command that installs it.
        remedy: String,
    },
    /// Resource: a file could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// A verb, as in "cannot read".
        action: &'static str,
        /// As the user named it.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// Resource: a system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// A verb, as in "cannot read".
        action: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// A child process did not do its part; its last lines of output are attached.
    #[error("{name} {problem}\n{log}")]
    Child {
        /// Role of the process in the measurement: `node`, `nginx`.
        name: String,
        /// Its failure, as the rest of a sentence.
        problem: String,
        /// The end of its output.
        log: String,
    },
    /// An output was wrong, or counters do not add up: there is no figure to report.
    #[error("verification failed: {0}")]
    Wrong(String),
    /// A library that is measured failed.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// Something in our own set-up failed, such as making a key.
    #[error("{0}")]
    Setup(String),
    /// A goal was missed, where `--require` asks for it.
    #[error("not reached ({wanted}): {missed}")]
    Goals {
        /// The requirement.
        wanted: &'static str,
        /// The numbers that fall short.
        missed: String,
    },
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    pub(crate) fn missing(program: impl Into<String>, remedy: impl ToString) -> Self {
        Self::Missing { program: program.into(), remedy: remedy.to_string() }
    }

    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action, source: source.into() }
    }
}
