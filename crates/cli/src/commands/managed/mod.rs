// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The commands of a pool with a manager. `manager` and `node` run for long; all others are requests to the manager's
//! API.

pub(crate) mod addresses;
pub(crate) mod audit;
pub(crate) mod inside;
pub(crate) mod manager;
pub(crate) mod node;
pub(crate) mod pool;
mod pool_key;
pub(crate) mod tenant;
pub(crate) mod token;

use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result};
use millrace_hostfs::replace::replace_file;
use millrace_manager::api::{Code, Page};
use millrace_manager::client::access::AccessError;
use millrace_manager::client::{Access, ClientError, ManagerClient};
use serde::Serialize;

use crate::args::AccessArgs;
use crate::exit::{Failure, fail};
use crate::output;
use crate::paths;

/// The access of commands on a machine that is no manager.
const INSTALLED_ACCESS: &str = "/etc/millrace/access";

/// Reads the rights of a command.
///
/// # Errors
/// There is no access file, or it cannot be used.
pub(crate) fn access(args: &AccessArgs) -> Result<Access> {
    let path = access_path(args)?;
    let mut access = Access::read(&path).map_err(|error| match error {
        AccessError::Io { .. } => fail(
            Failure::Usage,
            format!(
                "{error}: no manager has started here (millrace manager, or up --with-manager); name an access file \
                 with --access (millrace token create … -o FILE writes one)"
            ),
        ),
        other => fail(Failure::Usage, other.to_string()),
    })?;
    if !args.manager.is_empty() {
        access.managers = args.manager.iter().map(ToString::to_string).collect();
    }
    Ok(access)
}

fn access_path(args: &AccessArgs) -> Result<PathBuf> {
    if let Some(path) = &args.access {
        return Ok(path.clone());
    }
    let installed = Path::new(INSTALLED_ACCESS);
    if installed.exists() {
        return Ok(installed.to_owned());
    }
    Ok(admin_access(&paths::state_dir()?))
}

/// The administrator's access that the first start of a manager writes.
pub(crate) fn admin_access(state: &Path) -> PathBuf {
    state.join("manager").join("access")
}

/// A client of the manager's API.
///
/// # Errors
/// As [`access`].
pub(crate) fn client(args: &AccessArgs) -> Result<ManagerClient> {
    ManagerClient::new(&access(args)?).map_err(coded)
}

/// Gives the errors of the API their exit codes.
pub(crate) fn coded(error: ClientError) -> Error {
    let failure = match &error {
        ClientError::Unreachable(_) => Failure::NoNode,
        ClientError::Refused(problem) => match problem.code {
            Code::NotFound | Code::Conflict => Failure::KeyName,
            Code::Invalid | Code::MediaType | Code::TooLarge => Failure::Usage,
            Code::Unauthenticated
            | Code::Forbidden
            | Code::Method
            | Code::Fenced
            | Code::Removed
            | Code::Changed
            | Code::Misdirected
            | Code::Capacity
            | Code::Unavailable
            | Code::Internal => Failure::Failed,
        },
        ClientError::Access(_) => Failure::Usage,
        ClientError::Form(_) | ClientError::Tls(_) => Failure::Failed,
    };
    fail(failure, error.to_string())
}

/// Prints a list in the form of the API's listings.
///
/// # Errors
/// Standard output is closed.
fn print_list<T: Serialize>(items: Vec<T>) -> Result<()> {
    output::print_json(&Page { items, next: None })
}

/// Replaces a file as a whole: a program that reads it sees the former or the new one.
pub(crate) fn replace(file: &Path, text: &str) -> Result<()> {
    replace_file(file, text.as_bytes(), None).with_context(|| format!("writing {}", file.display()))
}
