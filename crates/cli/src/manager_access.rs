// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The access of commands and nodes to the managers of a pool: who they are, and the rights that they grant.

use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result};
use millrace_manager::api::Code;
use millrace_manager::client::{Access, AccessError, ClientError, ManagerClient};

use crate::args::AccessArgs;
use crate::exit::{Failure, fail};
use crate::paths;

/// The access of commands on a machine that is not a manager.
const INSTALLED_ACCESS: &str = "/etc/millrace/access";

/// Reads the access that the options of a command name.
pub(crate) fn access(args: &AccessArgs) -> Result<Access> {
    let managers: Vec<String> = args.manager.iter().map(ToString::to_string).collect();
    read(args.access.as_deref(), &managers)
}

/// Reads an access file, or the default one, and puts these managers in place of those in it, if there are any.
pub(crate) fn read(file: Option<&Path>, managers: &[String]) -> Result<Access> {
    let path = match file {
        Some(file) => file.to_owned(),
        None => default_access()?,
    };
    let mut access = Access::read(&path).map_err(|error| match &error {
        AccessError::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            fail(Failure::Usage, absent(&path))
        }
        _ => fail(Failure::Usage, error.to_string()),
    })?;
    if !managers.is_empty() {
        access.managers = managers.to_owned();
    }
    Ok(access)
}

fn absent(path: &Path) -> String {
    format!(
        "there is no access file {}: name one with --access (`millrace token create NAME --role ROLE -o FILE` makes \
         one), or start a manager here (`millrace manager`, or `millrace up --with-manager`)",
        path.display()
    )
}

/// The access in the state folder that the environment names, that of this machine, or that of its manager.
fn default_access() -> Result<PathBuf> {
    let named = env::var_os(paths::STATE_VARIABLE).map(|state| admin_access(Path::new(&state)));
    if let Some(access) = named.as_ref().filter(|access| access.exists()) {
        return Ok(access.clone());
    }
    let installed = PathBuf::from(INSTALLED_ACCESS);
    match named {
        _ if installed.exists() => Ok(installed),
        Some(access) => Ok(access),
        None => Ok(admin_access(&paths::state_dir()?)),
    }
}

/// The administrator's access that the first start of a manager writes.
pub(crate) fn admin_access(state: &Path) -> PathBuf {
    state.join("manager").join("access")
}

/// A client of the manager's API.
pub(crate) fn client(args: &AccessArgs) -> Result<ManagerClient> {
    ManagerClient::new(&access(args)?).map_err(to_exit_error)
}

/// Gives the errors of the API their exit codes.
pub(crate) fn to_exit_error(error: ClientError) -> Error {
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
            | Code::Damaged
            | Code::Internal => Failure::Failed,
        },
        ClientError::Access(_) => Failure::Usage,
        ClientError::Form(_) | ClientError::Tls(_) => Failure::Failed,
    };
    fail(failure, error.to_string())
}
