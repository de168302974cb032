// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The table of this process, and the system calls that it asks for.
//!
//! nginx runs its event loop and all of its TLS on one thread per worker; threads of its pools and of
//! the provider only close descriptors. The lock is held neither across a call into libssl nor across
//! a system call. A forked child starts with an empty table: it has an epoll instance of its own, and
//! the lock may have been held by a thread that is not there any more.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use super::errno::{errno, with_errno_kept};
use super::next::Libc;
use crate::table::{Action, SocketTable};

/// The table of this process; null before its first use. A forked child never frees the table of its
/// parent.
static TABLE: AtomicPtr<Mutex<SocketTable>> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// Whether this thread holds the lock: a signal handler must not wait for it.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Makes a forked child forget the table, which is the parent's.
pub(super) fn forget() {
    TABLE.store(ptr::null_mut(), Ordering::Relaxed);
}

fn table() -> &'static Mutex<SocketTable> {
    let mut current = TABLE.load(Ordering::Acquire);
    if current.is_null() {
        let new = Box::into_raw(Box::default());
        let placed =
            TABLE.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        current = match placed {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: it came from a box and is never freed.
    unsafe { &*current }
}

/// Asks the table. A signal handler that interrupts this thread in here gets the default.
pub(super) fn with<T: Default>(ask: impl FnOnce(&mut SocketTable) -> T) -> T {
    if BUSY.replace(true) {
        return T::default();
    }
    let answer = ask(&mut table().lock().unwrap_or_else(PoisonError::into_inner));
    BUSY.set(false);
    answer
}

/// Lets the table decide and does the system calls, with the lock already given back. Leaves `errno`
/// as it was.
///
/// # Errors
/// The `errno` of the first eventfd that could not be added.
pub(super) fn apply(
    libc: &Libc,
    decide: impl FnOnce(&mut SocketTable) -> Vec<Action>,
) -> Result<(), c_int> {
    let actions = with(decide);
    if actions.is_empty() {
        return Ok(());
    }
    with_errno_kept(|| {
        actions.into_iter().map(|action| perform(libc, action)).fold(Ok(()), Result::and)
    })
}

fn perform(libc: &Libc, action: Action) -> Result<(), c_int> {
    match action {
        Action::Arm { epoll, fd, data, again } => {
            let (first, second) = if again {
                (libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD)
            } else {
                (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD)
            };
            if change(libc, epoll, first, fd, data) || change(libc, epoll, second, fd, data) {
                Ok(())
            } else {
                Err(errno())
            }
        }
        Action::Disarm { epoll, fd } => {
            // A descriptor that is closed already is not an error to us.
            change(libc, epoll, libc::EPOLL_CTL_DEL, fd, 0);
            Ok(())
        }
    }
}

/// Changes the registration of an eventfd, which is edge-triggered. Returns whether the kernel did it.
fn change(libc: &Libc, epoll: c_int, operation: c_int, fd: c_int, data: u64) -> bool {
    #[expect(clippy::cast_sign_loss, reason = "EPOLLET is the sign bit of an epoll flag word")]
    let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: `event` lives across the call; descriptors are checked by the kernel.
    unsafe { (libc.epoll_ctl)(epoll, operation, fd, &mut event) == 0 }
}
