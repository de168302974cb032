// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Default folders: the system's for root, those of the XDG base directories for other users. All commands
//! use these functions, so that `up`, `key` and `status` agree.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The configuration of the installed node.
pub(crate) const INSTALLED_CONFIG: &str = "/etc/millrace/node.toml";

/// The unit of the installed node.
pub(crate) const UNIT: &str = "millrace.service";

/// The key-encryption key that `make install` makes.
pub(crate) const INSTALLED_KEK: &str = "/etc/millrace/kek";

/// The variable of `--state`, which some commands have not.
pub(crate) const STATE_VARIABLE: &str = "MILLRACE_STATE";

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
/// As [`state_dir`], which is the fallback if there is no runtime folder. A user without a home has the sockets in the
/// state folder `named` or, without one, in that of [`STATE_VARIABLE`].
pub(crate) fn runtime_dir(named: Option<&Path>) -> Result<PathBuf> {
    if is_root() {
        return Ok(PathBuf::from("/run/millrace"));
    }
    if let Some(base) = absolute("XDG_RUNTIME_DIR") {
        return Ok(base.join("millrace"));
    }
    let named = named.map(Path::to_owned).or_else(|| absolute(STATE_VARIABLE));
    state_dir().ok().or(named).context("no HOME here: name the socket with --socket PATH")
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A variable with an absolute path; the XDG specification says to ignore relative ones.
fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}
