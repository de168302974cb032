// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! System calls that a device process gives up once it serves. A guest that took the process over could start no
//! program, trace no process, mount nothing, change no file, and load nothing into the kernel.
//!
//! The list forbids calls and does not permit them, since drivers of GPUs and cards use calls that no list of ours
//! could foresee. The unit file adds systemd's own lists and forbids the rest of the file system.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

/// Calls that fail with EPERM, by what they would allow.
#[rustfmt::skip]
const FORBIDDEN: &[&[i64]] = &[
    // Other programs, and other processes.
    &[libc::SYS_execve, libc::SYS_execveat, libc::SYS_ptrace, libc::SYS_process_vm_readv,
      libc::SYS_process_vm_writev, libc::SYS_kcmp, libc::SYS_pidfd_getfd, libc::SYS_pidfd_open],
    // Other views of the system.
    &[libc::SYS_unshare, libc::SYS_setns, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot,
      libc::SYS_open_tree, libc::SYS_move_mount, libc::SYS_fsopen, libc::SYS_fsmount, libc::SYS_open_by_handle_at],
    // The kernel.
    &[libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_init_module, libc::SYS_finit_module,
      libc::SYS_delete_module, libc::SYS_kexec_load, libc::SYS_userfaultfd, libc::SYS_io_uring_setup,
      libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key, libc::SYS_reboot, libc::SYS_swapon,
      libc::SYS_settimeofday, libc::SYS_clock_settime],
    // Rights.
    &[libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setgroups, libc::SYS_setresuid, libc::SYS_setresgid,
      libc::SYS_capset],
    // Files.
    &[libc::SYS_unlinkat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_mknodat,
      libc::SYS_mkdirat, libc::SYS_fchmodat, libc::SYS_fchownat, libc::SYS_truncate],
    #[cfg(target_arch = "x86_64")]
    &[libc::SYS_unlink, libc::SYS_rmdir, libc::SYS_rename, libc::SYS_renameat, libc::SYS_link, libc::SYS_symlink,
      libc::SYS_mknod, libc::SYS_mkdir, libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_creat],
];

/// Families of sockets that clients of nodes and the C library use; others fail.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Forbids the calls to every thread of this process, for good.
///
/// # Errors
/// If the kernel has no such filters, or this is not a machine with a filter.
pub fn confine() -> io::Result<()> {
    apply_filter_all_threads(&program()?).map_err(io::Error::other)
}

fn program() -> io::Result<BpfProgram> {
    let forbidden = FORBIDDEN.iter().flat_map(|calls| calls.iter());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        forbidden.map(|call| (*call, Vec::new())).collect();
    let other_than = |family: &i32| {
        let family = u64::from(family.unsigned_abs());
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family)
    };
    let conditions: Result<Vec<_>, _> = FAMILIES.iter().map(other_than).collect();
    let rule = conditions.and_then(SeccompRule::new).map_err(io::Error::other)?;
    rules.insert(libc::SYS_socket, vec![rule]);
    let machine = TargetArch::try_from(ARCH).map_err(io::Error::other)?;
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, refused, machine)
        .and_then(BpfProgram::try_from)
        .map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::thread;

    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;

    fn is_forbidden<T>(result: io::Result<T>) -> bool {
        matches!(result, Err(error) if error.raw_os_error() == Some(libc::EPERM))
    }

    /// One thread is confined, not the whole program of the tests.
    #[test]
    fn confined_thread_serves_and_can_do_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let other_family = || {
            let packets = socket(AddressFamily::VSOCK, SocketType::STREAM, None);
            packets.map_err(io::Error::from)
        };
        assert!(!is_forbidden(other_family()), "this test shows nothing");
        let path = file.clone();
        thread::spawn(move || {
            seccompiler::apply_filter(&program().unwrap()).unwrap();
            assert!(is_forbidden(Command::new("true").status()), "a program");
            assert!(is_forbidden(std::fs::remove_file(&path)), "a file");
            assert!(is_forbidden(std::fs::create_dir(path.join("x"))), "a folder");
            assert!(is_forbidden(other_family()), "a family");
            let (mut here, mut there) = UnixStream::pair().unwrap();
            here.write_all(b"served").unwrap();
            let mut got = [0; 6];
            there.read_exact(&mut got).unwrap();
            assert_eq!(thread::spawn(|| 7).join().unwrap(), 7);
            assert_eq!(std::fs::read(&path).unwrap(), b"x");
        })
        .join()
        .unwrap();
        assert!(file.exists());
        std::fs::remove_file(&file).unwrap();
    }
}
