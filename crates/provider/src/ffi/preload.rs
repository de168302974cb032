// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The functions of the preload library, where it is loaded: found by name, so that neither library
//! needs the other.

use std::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use millrace_client::HostLoop;

use super::core::guard_bare;
use super::libcrypto::Ptr;
use crate::process::ProcessState;
use crate::shared_cells::{LocalEvent, SharedCells};

type Turn = unsafe extern "C" fn(Ptr);

/// A function of the preload library; `None` where that is not loaded. Looked up once.
macro_rules! preloaded {
    ($name:literal: $type:ty) => {{
        static FOUND: OnceLock<Option<$type>> = OnceLock::new();
        // SAFETY: the preload library defines the symbol with this type, and is never unloaded.
        *FOUND.get_or_init(|| unsafe { find($name) })
    }};
}

/// Whether the application frees the connection of the current job and wants the job to end.
///
/// Always `false` without the preload library: nginx itself does not know of jobs.
pub(super) fn given_up() -> bool {
    let ask = preloaded!(c"millrace_preload_cancelling": unsafe extern "C" fn() -> c_int);
    // SAFETY: takes nothing, and answers from a thread-local.
    ask.is_some_and(|ask| unsafe { ask() } != 0)
}

/// Whether the current operation comes from a callback of the application inside a handshake, which must not pause.
pub(super) fn in_callback() -> bool {
    let ask = preloaded!(c"millrace_preload_in_callback": unsafe extern "C" fn() -> c_int);
    // SAFETY: takes nothing, and answers from a thread-local.
    ask.is_some_and(|ask| unsafe { ask() } != 0)
}

/// Tells the preload library where it counts what it spares OpenSSL. A library of another version counts what it
/// knows of.
pub(super) fn count_in(cells: SharedCells) {
    type CountTwo = unsafe extern "C" fn(*mut AtomicU64, *mut AtomicU64);
    type CountOne = unsafe extern "C" fn(*mut AtomicU64);
    let address = |event| std::ptr::from_ref::<AtomicU64>(cells.event(event)).cast_mut();
    if let Some(count) = preloaded!(c"millrace_preload_count_fetches": CountTwo) {
        // SAFETY: takes two counters, which are never unmapped.
        unsafe { count(address(LocalEvent::FetchHit), address(LocalEvent::FetchMiss)) };
    }
    if let Some(count) = preloaded!(c"millrace_preload_count_tickets": CountOne) {
        // SAFETY: takes a counter, which is never unmapped.
        unsafe { count(address(LocalEvent::TicketJoined)) };
    }
}

/// Offers the pool's sockets to the application's event loop: once in each process, as soon as the pool
/// is connected.
pub(super) fn offer_host_loop(process: &ProcessState) {
    type Offer = unsafe extern "C" fn(c_int, Turn, Turn, Ptr) -> c_int;
    let Some(offer) = preloaded!(c"millrace_preload_attend": Offer) else {
        return;
    };
    process.offer_host_loop(|host_loop| {
        let fd = host_loop.fd().as_raw_fd();
        // Never freed, like the process that it belongs to: the loop keeps its address.
        let context: &'static HostLoop = Box::leak(Box::new(host_loop));
        let address = std::ptr::from_ref(context).cast_mut().cast();
        // SAFETY: takes two functions and the argument that they expect, all of which stay valid: the
        // context is leaked, and this library is never unloaded.
        let taken = unsafe { offer(fd, before_wait, on_readable, address) } == 1;
        if taken {
            context.drive_from_host();
        }
        taken.then_some(context)
    });
}

/// The wake token of the current job's connection, for one operation, and the descriptor that the job then waits for.
/// `None` if the job needs its own descriptor.
pub(super) fn wake_token() -> Option<(u64, RawFd)> {
    let ask = preloaded!(c"millrace_preload_ticket": unsafe extern "C" fn(*mut c_int) -> u64)?;
    let mut fd = -1;
    // SAFETY: takes a writable place.
    let token = unsafe { ask(&mut fd) };
    (token != 0).then_some((token, fd))
}

/// Makes the application resume the job that got this wake token. From any thread.
pub(super) fn notify(token: u64) {
    if let Some(notify) = preloaded!(c"millrace_preload_ring": unsafe extern "C" fn(u64)) {
        // SAFETY: takes any number.
        unsafe { notify(token) };
    }
}

/// A function of a library in the global scope, where preloaded ones are.
///
/// # Safety
/// `F` is the type of the function with this name.
unsafe fn find<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<Ptr>()) };
    // SAFETY: takes a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: not null, and by this function's contract the address of an `F`.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}

unsafe extern "C" fn before_wait(context: Ptr) {
    guard_bare((), || {
        // SAFETY: the preload library passes the address of the leaked `HostLoop`.
        unsafe { &*context.cast::<HostLoop>().cast_const() }.before_wait();
        Some(())
    });
}

unsafe extern "C" fn on_readable(context: Ptr) {
    guard_bare((), || {
        // SAFETY: the preload library passes the address of the leaked `HostLoop`.
        unsafe { &*context.cast::<HostLoop>().cast_const() }.on_readable();
        Some(())
    });
}
