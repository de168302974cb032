// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Steps that the kernel refused on the way to a node, with the setting that refuses them and its cure. The usual cause
//! is a line of the server's unit, which neither the configuration of the server nor that of the pool shows.

use std::io;
use std::path::Path;

use millrace_hostfs::process::Proc;
use millrace_hostfs::{ReadResult, Unavailable};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use thiserror::Error;

/// Begins the cure in the text of an error that names one.
pub const REMEDY: &str = "remedy: ";

/// A step that the kernel refused.
#[derive(Debug, Error)]
#[error("{step}: {error} ({because}; {REMEDY}{remedy})")]
pub(crate) struct RefusedStep {
    step: String,
    /// The kernel's answer.
    pub(crate) error: io::Error,
    because: String,
    remedy: String,
    /// Whether something forbids the step to this process. `false` where the node may be down as well.
    pub(crate) is_forbidden: bool,
}

impl RefusedStep {
    fn new(step: impl Into<String>, error: Errno, because: &str, remedy: &str) -> Self {
        Self {
            step: step.into(),
            error: error.into(),
            because: because.to_owned(),
            remedy: remedy.to_owned(),
            is_forbidden: true,
        }
    }
}

/// The kernel gave no socket of this family. `None` if that has another cause than a prohibition or a limit.
pub(crate) fn socket(family: &str, error: Errno) -> Option<RefusedStep> {
    let step = format!("a socket of the family {family}");
    let refused = |because, remedy: &str| Some(RefusedStep::new(&*step, error, because, remedy));
    match error {
        Errno::AFNOSUPPORT => refused(
            "RestrictAddressFamilies= of the unit, or another filter, forbids the family",
            &format!("RestrictAddressFamilies={family} in a drop-in of the unit"),
        ),
        Errno::PERM | Errno::NOSYS => refused(
            "a filter of system calls forbids it: SystemCallFilter= of the unit, or a container's",
            "SystemCallFilter=@network-io in a drop-in of the unit",
        ),
        Errno::ACCESS => refused(&security_module(), "allow it in that policy"),
        Errno::MFILE => refused(
            "this process has as many descriptors as it may",
            "raise LimitNOFILE= of the unit",
        ),
        _ => None,
    }
}

/// The kernel did not connect to the socket at `path`. `None` if the error says enough.
pub(crate) fn unix(path: &Path, error: Errno) -> Option<RefusedStep> {
    const STEP: &str = "connecting";
    let shown = path.display();
    match error {
        Errno::NOENT => Some(RefusedStep {
            is_forbidden: false,
            ..RefusedStep::new(
                STEP,
                error,
                "the node does not run, or a chroot, TemporaryFileSystem=, InaccessiblePaths= or PrivateTmp= of the \
                 unit hides the path from this process",
                "start the node, or BindPaths= with the folder in a drop-in of the unit",
            )
        }),
        Errno::ACCESS | Errno::PERM => {
            let user = rustix::process::geteuid().as_raw();
            let may = accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
            Some(if may {
                let because = format!("the modes allow it to uid {user}: {}", security_module());
                let remedy = format!("allow `{shown} rw,` in that policy");
                RefusedStep::new(STEP, error, &because, &remedy)
            } else {
                let because = format!(
                    "the socket or a folder above it is closed to uid {user}, or InaccessiblePaths= of the unit covers it"
                );
                let remedy = "`mode` and `group` in [unix] of node.toml, or take the path out of the unit's line";
                RefusedStep {
                    is_forbidden: false,
                    ..RefusedStep::new(STEP, error, &because, remedy)
                }
            })
        }
        _ => None,
    }
}

/// The kernel did not start a connection over TCP. `None` if the error says enough.
pub(crate) fn tcp(error: Errno) -> Option<RefusedStep> {
    const STEP: &str = "a connection over TCP";
    match error {
        Errno::NETUNREACH | Errno::NETDOWN => Some(RefusedStep::new(
            STEP,
            error,
            "no way leads there from the network of this process: PrivateNetwork= of the unit, or a namespace",
            "take the line out, or use a node on this machine by its socket",
        )),
        Errno::PERM => Some(RefusedStep::new(
            STEP,
            error,
            "a filter of packets or of system calls forbids it",
            "IPAddressAllow= with the addresses of the nodes in a drop-in of the unit",
        )),
        Errno::ACCESS => {
            Some(RefusedStep::new(STEP, error, &security_module(), "allow it in that policy"))
        }
        _ => None,
    }
}

/// A failure to start a thread, or to open a descriptor for events, with its cause and cure.
#[must_use]
pub fn describe_start(error: &io::Error) -> String {
    let user = rustix::process::geteuid().as_raw();
    let (because, remedy) = match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => (
            format!(
                "uid {user} has as many processes and threads as LimitNPROC= (RLIMIT_NPROC) allows, or the unit as many \
                 as TasksMax="
            ),
            "raise that limit; HAProxy sets it to 0 itself without `insecure-fork-wanted` in `global`",
        ),
        Some(Errno::PERM | Errno::NOSYS | Errno::ACCESS) => (
            "a filter of system calls forbids it: SystemCallFilter= of the unit, or a container's"
                .to_owned(),
            "SystemCallFilter=@system-service in a drop-in of the unit",
        ),
        Some(Errno::MFILE) => (
            "this process has as many descriptors as it may".to_owned(),
            "raise LimitNOFILE= of the unit",
        ),
        _ => return error.to_string(),
    };
    format!("{error} ({because}; {REMEDY}{remedy})")
}

/// The policy that confines this process, in words.
fn security_module() -> String {
    let proc = Proc::open(Path::new("/proc"));
    let label =
        proc.map_or(Err(Unavailable::Missing), |proc| proc.security_label(std::process::id()));
    policy_of(label)
}

/// The policy of a process with this label.
fn policy_of(label: ReadResult<String>) -> String {
    match label {
        Err(Unavailable::Denied) => {
            // Debian's profiles allow no process to read its own label.
            "a profile of AppArmor denies it, and `journalctl -k` has the denial with the profile's name".to_owned()
        }
        Ok(label) if label.ends_with(')') => {
            format!("AppArmor's profile {label} denies it, and `journalctl -k` has the denial")
        }
        Ok(label) if label.contains(':') => {
            format!("SELinux denies it to {label}, and `ausearch -m avc` has the denial")
        }
        Ok(_) | Err(_) => "a security module of the kernel, or Landlock, denies it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_its_cause_and_its_cure() {
        for (refused, cause, cure) in [
            (
                socket("AF_UNIX", Errno::AFNOSUPPORT),
                "RestrictAddressFamilies=",
                "RestrictAddressFamilies=AF_UNIX",
            ),
            (socket("AF_INET", Errno::PERM), "filter of system calls", "@network-io"),
            (socket("AF_UNIX", Errno::ACCESS), "denies it", "allow it in that policy"),
            (socket("AF_UNIX", Errno::MFILE), "descriptors", "LimitNOFILE="),
            (tcp(Errno::NETUNREACH), "PrivateNetwork=", "by its socket"),
            (tcp(Errno::PERM), "filter of packets", "IPAddressAllow="),
            (tcp(Errno::ACCESS), "denies it", "allow it in that policy"),
            (unix(Path::new("/missing"), Errno::NOENT), "does not run, or", "BindPaths="),
            (unix(Path::new("/"), Errno::ACCESS), "the modes allow it", "`/ rw,`"),
            (unix(Path::new("/missing/x"), Errno::ACCESS), "closed to uid", "node.toml"),
        ] {
            let refused = refused.expect("a cause is known").to_string();
            let (said, remedy) = refused.split_once(REMEDY).expect("a remedy");
            assert!(said.contains(cause) && remedy.contains(cure), "{refused}");
        }
        for error in [Errno::CONNREFUSED, Errno::AGAIN, Errno::TIMEDOUT] {
            let known = [socket("AF_UNIX", error), unix(Path::new("/"), error), tcp(error)];
            assert!(known.iter().all(Option::is_none), "{error}");
        }
    }

    #[test]
    fn label_of_the_process_names_the_policy_that_refuses() {
        let context = "system_u:system_r:httpd_t:s0".to_owned();
        for (label, policy) in [
            (Err(Unavailable::Denied), "a profile of AppArmor"),
            (Ok("unbound (enforce)".to_owned()), "AppArmor's profile unbound (enforce)"),
            (Ok(context), "SELinux denies it to system_u:system_r:httpd_t:s0, and `ausearch"),
            (Ok("unconfined".to_owned()), "a security module"),
            (Err(Unavailable::Missing), "a security module"),
        ] {
            let said = policy_of(label.clone());
            assert!(said.starts_with(policy), "{label:?}: {said}");
        }
    }

    #[test]
    fn thread_that_was_refused_names_the_limit_or_the_filter() {
        for (error, cause) in [
            (Errno::AGAIN, "LimitNPROC="),
            (Errno::PERM, "SystemCallFilter="),
            (Errno::MFILE, "LimitNOFILE="),
        ] {
            let text = describe_start(&error.into());
            assert!(text.contains(cause) && text.contains(REMEDY), "{text}");
        }
        let other = describe_start(&Errno::NOMEM.into());
        assert!(!other.contains(REMEDY), "{other}");
    }
}
