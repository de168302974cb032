// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What the preload library offers, where it is loaded: found by name, so that neither needs the other.

use std::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;

use millrace_client::HostLoop;

use super::core::guard_bare;
use super::libcrypto::Ptr;
use crate::process::Process;

type Turn = unsafe extern "C" fn(Ptr);

/// Whether the application frees the connection of the current job and wants the job to end.
///
/// nginx itself knows nothing of jobs. Without the preload library nobody says so.
pub(super) fn given_up() -> bool {
    type Ask = unsafe extern "C" fn() -> c_int;
    static ASK: OnceLock<Option<Ask>> = OnceLock::new();
    // SAFETY: the preload library defines the symbol with this signature and is never unloaded.
    let ask = ASK.get_or_init(|| unsafe { find(c"millrace_preload_cancelling") });
    // SAFETY: takes nothing, answers from a thread-local.
    ask.is_some_and(|ask| unsafe { ask() } != 0)
}

/// Has the application's event loop look after the sockets of the pool, if it can: asked once in each
/// process, as soon as the pool has been started.
pub(super) fn attend(process: &Process) {
    type Attend = unsafe extern "C" fn(c_int, Turn, Turn, Ptr) -> c_int;
    static ATTEND: OnceLock<Option<Attend>> = OnceLock::new();
    // SAFETY: the preload library defines the symbol with this signature and is never unloaded.
    let attend = ATTEND.get_or_init(|| unsafe { find(c"millrace_preload_attend") });
    let Some(attend) = attend else {
        return;
    };
    process.ask_to_drive(|host_loop| {
        let fd = host_loop.fd().as_raw_fd();
        // Never freed, like the process that it belongs to: the loop keeps it.
        let context: &'static HostLoop = Box::leak(Box::new(host_loop));
        let address = std::ptr::from_ref(context).cast_mut().cast();
        // SAFETY: the functions take what is given with them, and this library is never unloaded.
        let attended = unsafe { attend(fd, before_wait, ready, address) } == 1;
        if attended {
            context.drive_from_host();
        }
        attended.then_some(context)
    });
}

/// By what the connection of the current job is rung, and the descriptor that the job names as what it
/// waits for; none if it needs a descriptor of its own. Good for one operation.
pub(super) fn ticket() -> Option<(u64, RawFd)> {
    type Ticket = unsafe extern "C" fn(*mut c_int) -> u64;
    static TICKET: OnceLock<Option<Ticket>> = OnceLock::new();
    // SAFETY: the preload library defines the symbol with this signature and is never unloaded.
    let ask = (*TICKET.get_or_init(|| unsafe { find(c"millrace_preload_ticket") }))?;
    let mut fd = -1;
    // SAFETY: a writable place.
    let ticket = unsafe { ask(&mut fd) };
    (ticket != 0).then_some((ticket, fd))
}

/// Has the application resume the job that got this ticket. From any thread.
pub(super) fn ring(ticket: u64) {
    type Ring = unsafe extern "C" fn(u64);
    static RING: OnceLock<Option<Ring>> = OnceLock::new();
    // SAFETY: the preload library defines the symbol with this signature and is never unloaded.
    let ring = RING.get_or_init(|| unsafe { find(c"millrace_preload_ring") });
    if let Some(ring) = ring {
        // SAFETY: takes a number.
        unsafe { ring(ticket) };
    }
}

/// A function of a library in the global scope, where preloaded ones are.
///
/// # Safety
/// `F` is the type of the function of this name.
unsafe fn find<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<Ptr>()) };
    // SAFETY: a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: a function pointer of the caller's type.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}

unsafe extern "C" fn before_wait(context: Ptr) {
    guard_bare((), || {
        // SAFETY: what `attend` gave, which is never freed; it is shared by reference only.
        unsafe { &*context.cast::<HostLoop>().cast_const() }.before_wait();
        Some(())
    });
}

unsafe extern "C" fn ready(context: Ptr) {
    guard_bare((), || {
        // SAFETY: as above.
        unsafe { &*context.cast::<HostLoop>().cast_const() }.on_readable();
        Some(())
    });
}
