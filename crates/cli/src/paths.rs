// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Default folders: the system's for root, those of the XDG base directories for other users. All commands
//! use these functions, so that `up`, `key` and `status` agree.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// The configuration of the installed node.
pub(crate) const INSTALLED_CONFIG: &str = "/etc/millrace/node.toml";

/// The unit of the installed node.
pub(crate) const UNIT: &str = "millrace.service";

/// The key-encryption key that `make install` makes.
pub(crate) const INSTALLED_KEK: &str = "/etc/millrace/kek";

/// The folder for keys and certificates.
///
/// # Errors
/// The user is not root and has no home directory.
pub(crate) fn state_dir() -> Result<PathBuf> {
    if is_root() {
        return Ok(PathBuf::from("/var/lib/millrace"));
    }
    let base = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    let base = base.context("no HOME here: name the state folder with --state DIR")?;
    Ok(base.join("millrace"))
}

/// The folder for sockets: cleared by a reboot, writable only by this user.
///
/// # Errors
/// As [`state_dir`], which is the fallback if there is no runtime folder.
pub(crate) fn runtime_dir() -> Result<PathBuf> {
    if is_root() {
        return Ok(PathBuf::from("/run/millrace"));
    }
    match absolute("XDG_RUNTIME_DIR") {
        Some(base) => Ok(base.join("millrace")),
        None => state_dir(),
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A variable with an absolute path; the XDG specification says to ignore relative ones.
fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}
