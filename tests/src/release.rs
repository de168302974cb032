// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The release that servers and OpenSSL's clients come from: this machine's, or the one that
//! `scripts/debian13.sh` has unpacked into the folder named by `MILLRACE_TEST_ROOT`.
//!
//! The node and the tests always run on this machine's libraries. The provider and the preload library are loaded
//! into programs of the other release.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::artifacts::{artifacts, workspace};
use crate::process::{program, succeed};

/// The folder of the release under test; none if it is this machine's.
///
/// # Panics
/// If a folder is named that no program can be run in.
#[must_use]
pub fn root() -> Option<&'static Path> {
    static ROOT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let named = std::env::var_os("MILLRACE_TEST_ROOT").filter(|name| !name.is_empty())?;
        let root = workspace().join(named);
        let said = succeed(inside(&root, OsStr::new("openssl")).arg("version"));
        eprintln!("release under test: {} ({})", root.display(), said.trim());
        Some(root)
    };
    ROOT.get_or_init(find).as_deref()
}

/// A program of the release under test, which finds every file of a test under its own name. Its
/// process id is the one that the command gets.
///
/// # Panics
/// If this machine has no such program.
#[must_use]
pub fn command(name: &str) -> Command {
    match root() {
        Some(root) => inside(root, OsStr::new(name)),
        None => Command::new(program(name)),
    }
}

/// A program that a test has made, on the release under test.
#[must_use]
pub fn command_at(path: &Path) -> Command {
    match root() {
        Some(root) => inside(root, path.as_os_str()),
        None => Command::new(path),
    }
}

fn inside(root: &Path, program: &OsStr) -> Command {
    let mut command = Command::new(workspace().join("scripts/in-root.sh"));
    command.arg(root).arg(program);
    let built = artifacts().provider.parent();
    command.env("MILLRACE_ROOT_BINDS", built.unwrap_or_else(|| Path::new("/tmp")));
    command
}

/// Path of a file of the release, as this process sees it.
#[must_use]
pub fn file(path: &str) -> PathBuf {
    let path = Path::new(path);
    match root() {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_owned(),
    }
}

/// Major and minor version of the release's OpenSSL.
///
/// # Panics
/// If it does not tell.
#[must_use]
pub fn openssl() -> (u32, u32) {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let said = succeed(command("openssl").arg("version"));
        let version = said.strip_prefix("OpenSSL ").unwrap_or_default();
        let mut numbers = version.split('.').map_while(|word| word.parse().ok());
        match (numbers.next(), numbers.next()) {
            (Some(major), Some(minor)) => (major, minor),
            _ => panic!("no version of OpenSSL: {said}"),
        }
    })
}

/// The release's Python, whose `ssl` is on the release's OpenSSL.
#[must_use]
pub fn python() -> Command {
    // Another one may come first in PATH, with an OpenSSL of its own.
    if root().is_none() && Path::new("/usr/bin/python3").is_file() {
        return Command::new("/usr/bin/python3");
    }
    command("python3")
}
