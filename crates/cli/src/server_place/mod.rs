// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The place of a server's process: its network, its root and with it its mounts, its user, its limits, its AppArmor
//! profile and its filters of system calls. A process that has taken it cannot leave it again.
//!
//! Not taken: a user namespace (the kernel's numbers of users are the same outside), the control group (its filters of
//! packets and its limits are lines of the unit), SELinux's context, Landlock.

#[expect(unsafe_code, reason = "there is no safe ptrace that reads filters of system calls")]
mod sys;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millrace_gateway::check::pool::ProcessContext;
use millrace_hostfs::process::{Proc, User};
use rustix::fs::{Gid, Uid};
use rustix::process::{Resource, Rlimit, geteuid, setrlimit};
use rustix::thread::{
    LinkNameSpaceType, move_into_link_name_space, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::{BpfProgram, apply_filter};

/// Confinement that was taken over from a process, besides its user and its files.
#[derive(Default)]
pub(crate) struct Taken {
    /// Number of its filters of system calls.
    pub(crate) filters: usize,
    /// Parts that could not be taken, each with the reason.
    pub(crate) missing: Vec<String>,
}

/// Takes a place. The calling thread must be the only one of this process.
///
/// # Errors
/// The kernel refuses the network, the root or the user of the place.
pub(crate) fn take(place: &ProcessContext) -> io::Result<Taken> {
    let confinement = place.is_confined.then(|| Confinement::of(place)).transpose()?;
    if let Some(pid) = place.pid {
        enter_network(pid)?;
    }
    if !is_own_root(&place.root) {
        rustix::process::chroot(&place.root)?;
        std::env::set_current_dir("/")?;
    }
    if let Some(confinement) = &confinement {
        confinement.limit();
    }
    become_user(&place.user)?;
    Ok(confinement.map(Confinement::enter).unwrap_or_default())
}

/// Whether a path leads to the root of this process.
pub(crate) fn is_own_root(root: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|data| (data.dev(), data.ino()));
    matches!((id(root), id(Path::new("/"))), (Ok(one), Ok(other)) if one == other)
}

fn enter_network(pid: u32) -> io::Result<()> {
    let network = PathBuf::from(format!("/proc/{pid}/ns/net"));
    if fs::read_link(&network)? == fs::read_link("/proc/self/ns/net")? {
        return Ok(());
    }
    let file = File::open(&network)?;
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn become_user(user: &User) -> io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().map(|id| Gid::from_raw(*id)).collect();
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    if geteuid() == uid {
        return Ok(());
    }
    // This thread is the only one; those that it starts inherit its user.
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

/// The confinement of a process, read while `/proc` is in sight.
struct Confinement {
    limits: Vec<(Resource, Rlimit)>,
    no_new_privileges: bool,
    /// The profile of AppArmor, and the file that takes it.
    profile: Option<(String, io::Result<File>)>,
    filters: Result<Vec<BpfProgram>, String>,
}

impl Confinement {
    fn of(place: &ProcessContext) -> io::Result<Self> {
        let profile = place.profile.clone().map(|profile| {
            let file = OpenOptions::new().write(true).open("/proc/thread-self/attr/current");
            (profile, file)
        });
        let Some(pid) = place.pid else {
            return Ok(Self {
                limits: Vec::new(),
                no_new_privileges: false,
                profile,
                filters: Ok(Vec::new()),
            });
        };
        let proc = Proc::open(Path::new("/proc")).map_err(io::Error::other)?;
        let limit = |(name, resource)| {
            let most = proc.soft_limit(pid, name)?;
            Some((resource, Rlimit { current: Some(most), maximum: Some(most) }))
        };
        let limits = [("Max processes", Resource::Nproc), ("Max open files", Resource::Nofile)];
        let has_filters = proc.status_number(pid, "Seccomp") == Some(FILTERED);
        let filters = if has_filters {
            sys::filters(pid)
                .map_err(|error| format!("its filters of system calls cannot be read ({error})"))
        } else {
            Ok(Vec::new())
        };
        Ok(Self {
            limits: limits.into_iter().filter_map(limit).collect(),
            no_new_privileges: proc.status_number(pid, "NoNewPrivs") == Some(1),
            profile,
            filters,
        })
    }

    /// Takes the limits, while this process may still raise its own.
    fn limit(&self) {
        for (resource, limit) in &self.limits {
            // A limit that is above the own one of a user without rights does not bind the question either.
            let _ = setrlimit(*resource, *limit);
        }
    }

    /// Takes the rest: what comes after may be forbidden already.
    fn enter(self) -> Taken {
        let mut missing = Vec::new();
        if self.no_new_privileges
            && let Err(error) = set_no_new_privs(true)
        {
            missing.push(format!("NoNewPrivileges ({error})"));
        }
        if let Some((profile, file)) = self.profile {
            let order = format!("changeprofile {profile}");
            let taken = file.and_then(|mut file| file.write_all(order.as_bytes()));
            missing
                .extend(taken.err().map(|error| format!("AppArmor's profile {profile} ({error})")));
        }
        let programs = self.filters.unwrap_or_else(|why| {
            missing.push(why);
            Vec::new()
        });
        let mut filters = 0;
        // In the order in which the process got them: each allows what the next one needs.
        for program in &programs {
            match apply_filter(program) {
                Ok(()) => filters += 1,
                Err(error) => missing.push(format!("a filter of system calls ({error})")),
            }
        }
        Taken { filters, missing }
    }
}

/// `Seccomp:` of proc(5) for a process with filters.
const FILTERED: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_without_filters_has_none_to_take() {
        let place = ProcessContext {
            pid: Some(std::process::id()),
            root: PathBuf::from("/"),
            user: User::default(),
            is_confined: true,
            profile: None,
        };
        let confinement = Confinement::of(&place).expect("this process");
        assert!(confinement.filters.is_ok_and(|filters| filters.is_empty()));
        assert!(confinement.limits.iter().any(|(resource, _)| *resource == Resource::Nofile));
    }

    #[test]
    fn filters_of_a_process_that_is_not_there_are_an_error() {
        // Past the largest number of a process (`PID_MAX_LIMIT`, 2^22).
        assert!(sys::filters(1 << 23).is_err());
    }
}
