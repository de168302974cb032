// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Start of the library, before `main`: nothing is interposed in a program that is not known.

use super::program::{self, Inactive};
use super::{fetch, host_loop, job, next, tables, tickets};

/// Run by the dynamic linker before `main`, when every library that the program is linked with is
/// there.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    // Resolved now, so that a signal handler or a child of a fork that closes or writes finds everything in place.
    let has_libc = next::libc().is_some();
    let Some(program) = program::identify() else {
        return program::note_stderr();
    };
    if !has_libc {
        return;
    }
    match next::libssl() {
        None => Inactive::NoLibssl.report(),
        Some(libssl) if libssl.jobs.is_none() => Inactive::NoJobs.report(),
        Some(_) if !forget_at_fork() => Inactive::NoForkHandler.report(),
        Some(libssl) => {
            fetch::allow();
            tickets::allow();
            program::set(program, job::are_reached(libssl));
        }
    }
}

/// Makes forked children start with empty tables and without a loop.
fn forget_at_fork() -> bool {
    unsafe extern "C" fn forget() {
        tables::forget();
        host_loop::forget();
    }
    // SAFETY: the handler only stores atomics, and this library is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(forget)) == 0 }
}
