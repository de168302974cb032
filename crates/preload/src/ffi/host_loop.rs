// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Turns for the provider in the program's event loop: its descriptors wait in the program's own epoll
//! instance, and the program never sees them. The whole picture, with the words, is in
//! `docs/adr/0016-the-gateways-loop-reads-the-answers.md`.
//!
//! Without this, a thread of the provider reads the pool's answers and then wakes the program: two thread
//! switches and a wake-up more for each. Only a process with one event loop is driven: with several, one loop
//! would read the answers of all between its own work. HAProxy may begin a handshake before its other threads
//! first wait, so there the number of threads at the first handshake decides (the provider's start later).
//!
//! State belongs to a thread, so that nothing has to be locked.
//!
//! In nginx, whose sockets [`SocketTable`](crate::table::SocketTable) knows, jobs have a wake token instead
//! of an eventfd each: [`wait`] reports the sockets of notified jobs to the program as readable. A thread
//! other than the loop's that notifies also writes to the shared eventfd, which wakes the loop.
//!
//! The names of the exported symbols (`millrace_preload_attend`, `_ticket`, `_ring`) are older than these
//! words. They stay, since provider and library of different versions find each other by them.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use super::errno::{set_errno, with_errno_kept};
use super::next::{self, Libc};
use super::program::is_nginx;
use super::tables;

/// Most descriptors that a loop drives: one for each pool that is configured in one process.
const MAX_DRIVEN: usize = 4;

/// Index of the shared eventfd, behind those.
const SHARED: usize = MAX_DRIVEN;

/// Called with the context that was given: before the loop waits, or when the descriptor is readable.
type HostCallback = unsafe extern "C" fn(*mut c_void);

/// Marks whose addresses are the epoll data of our events. A program's events carry pointers to its own memory, or
/// descriptors.
static MARKS: [u64; MAX_DRIVEN + 1] = [0; MAX_DRIVEN + 1];

/// Readiness of our descriptors, by their index in [`MARKS`].
type Ready = [bool; MAX_DRIVEN + 1];

#[derive(Clone, Copy)]
struct Driven {
    fd: c_int,
    before_wait: HostCallback,
    on_readable: HostCallback,
    context: *mut c_void,
}

/// The event loop of one thread.
#[derive(Clone, Copy)]
struct Loop {
    /// [`FORKS`] of the process that it belongs to.
    forks: u32,
    /// The epoll instance of its last wait.
    epoll: c_int,
    /// The shared eventfd; -1 if there is none.
    shared_eventfd: c_int,
    driven: [Option<Driven>; MAX_DRIVEN],
}

const NO_LOOP: Loop = Loop { forks: 0, epoll: -1, shared_eventfd: -1, driven: [None; MAX_DRIVEN] };

thread_local! {
    static LOOP: Cell<Loop> = const { Cell::new(NO_LOOP) };
    /// The socket of the handshake that runs on this thread; -1 is none.
    static SOCKET: Cell<c_int> = const { Cell::new(-1) };
}

/// Generation of this process: each forked child of a process with this library adds one.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Threads of this process with an event loop.
static LOOPS: AtomicU32 = AtomicU32::new(0);
/// Threads that this process has started and not joined.
static THREADS: AtomicU32 = AtomicU32::new(0);
/// [`THREADS`] at the first handshake, or [`NO_HANDSHAKE`].
static THREADS_AT_FIRST_HANDSHAKE: AtomicU32 = AtomicU32::new(NO_HANDSHAKE);
const NO_HANDSHAKE: u32 = u32::MAX;
/// The shared eventfd of this process's loop; -1 if there is none.
static PROCESS_EVENTFD: AtomicI32 = AtomicI32::new(-1);

/// Makes a forked child forget the loops, which are the parent's.
pub(super) fn forget() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    LOOPS.store(0, Ordering::Relaxed);
    THREADS.store(0, Ordering::Relaxed);
    THREADS_AT_FIRST_HANDSHAKE.store(NO_HANDSHAKE, Ordering::Relaxed);
    PROCESS_EVENTFD.store(-1, Ordering::Relaxed);
}

/// HAProxy, or a library in it, has started a thread.
pub(super) fn thread_started() {
    THREADS.fetch_add(1, Ordering::Relaxed);
}

/// HAProxy has joined a thread. A child may join one that its parent has started.
pub(super) fn thread_joined() {
    // The closure never refuses.
    let _ = THREADS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |threads| {
        Some(threads.saturating_sub(1))
    });
}

/// HAProxy starts or continues a handshake.
pub(super) fn handshake_started() {
    // Only the first one changes the number; the others find it set.
    let _ = THREADS_AT_FIRST_HANDSHAKE.compare_exchange(
        NO_HANDSHAKE,
        THREADS.load(Ordering::Relaxed),
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
}

/// Whether another thread than the calling one has an event loop, or will have one.
fn has_other_loops() -> bool {
    let threads = THREADS_AT_FIRST_HANDSHAKE.load(Ordering::Relaxed);
    LOOPS.load(Ordering::Relaxed) != 1 || !matches!(threads, 0 | NO_HANDSHAKE)
}

fn mark(index: usize) -> u64 {
    std::ptr::from_ref(&MARKS[index]) as u64
}

/// Lets the calling thread's event loop drive `fd` for the life of the process: `before_wait` is called
/// each time before the loop waits, `on_readable` when `fd` is readable (level-triggered). Returns 0 if
/// that is not possible: this thread has no event loop, or other threads have one, too.
///
/// The provider finds it by name.
///
/// # Safety
/// The functions may be called with `context` on this thread as long as the process lives.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn millrace_preload_attend(
    fd: c_int,
    before_wait: HostCallback,
    on_readable: HostCallback,
    context: *mut c_void,
) -> c_int {
    let mut current = LOOP.get();
    let Some(libc) = next::libc() else {
        return 0;
    };
    let stale = current.forks != FORKS.load(Ordering::Relaxed);
    if stale || current.epoll < 0 || has_other_loops() {
        return 0;
    }
    let Some(free) = current.driven.iter().position(Option::is_none) else {
        return 0;
    };
    if !add(libc, current.epoll, fd, free) {
        return 0;
    }
    if is_nginx() && current.shared_eventfd < 0 {
        current.shared_eventfd = add_shared_eventfd(libc, current.epoll);
    }
    current.driven[free] = Some(Driven { fd, before_wait, on_readable, context });
    LOOP.set(current);
    1
}

/// Adds an eventfd, by which other threads wake this loop, to its epoll instance; -1 if that fails.
fn add_shared_eventfd(libc: &Libc, epoll: c_int) -> c_int {
    with_errno_kept(|| {
        // SAFETY: takes numbers.
        let shared_eventfd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if shared_eventfd >= 0 && !add(libc, epoll, shared_eventfd, SHARED) {
            // SAFETY: made above, and no other code knows it.
            unsafe { (libc.close)(shared_eventfd) };
            return -1;
        }
        if shared_eventfd >= 0 {
            tables::with(|table| table.share_eventfd(shared_eventfd));
            PROCESS_EVENTFD.store(shared_eventfd, Ordering::Release);
        }
        shared_eventfd
    })
}

/// Runs a handshake on this socket.
pub(super) fn on_socket<T>(socket: c_int, handshake: impl FnOnce() -> T) -> T {
    let before = SOCKET.replace(socket);
    let result = handshake();
    SOCKET.set(before);
    result
}

/// The wake token of the connection whose handshake runs on this thread, and in `shared_eventfd` the
/// descriptor that its job names to OpenSSL. 0 if the job needs an eventfd of its own.
///
/// The provider calls it at the start of each operation; the token is good for that operation.
///
/// # Safety
/// `shared_eventfd` is writable.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn millrace_preload_ticket(shared_eventfd: *mut c_int) -> u64 {
    let current = LOOP.get();
    let socket = SOCKET.get();
    if current.shared_eventfd < 0 || current.forks != FORKS.load(Ordering::Relaxed) || socket < 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { shared_eventfd.write(current.shared_eventfd) };
    tables::with(|table| table.wake_token(socket))
}

/// Notifies the connection with this wake token: the program's loop will resume its job. Does nothing if
/// the connection is gone. May be called on any thread.
#[unsafe(no_mangle)]
pub(super) extern "C" fn millrace_preload_ring(wake_token: u64) {
    tables::with(|table| table.notify(wake_token));
    let current = LOOP.get();
    if current.shared_eventfd >= 0 && current.forks == FORKS.load(Ordering::Relaxed) {
        // This is the loop's thread: it looks before it waits.
        return;
    }
    let shared_eventfd = PROCESS_EVENTFD.load(Ordering::Acquire);
    if shared_eventfd >= 0 {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight readable bytes; the eventfd is never closed. It fails only if the counter would
        // overflow, and then it is readable already.
        with_errno_kept(|| unsafe { libc::write(shared_eventfd, one.as_ptr().cast(), one.len()) });
    }
}

fn add(libc: &Libc, epoll: c_int, fd: c_int, index: usize) -> bool {
    let events = libc::EPOLLIN.cast_unsigned();
    let mut event = libc::epoll_event { events, u64: mark(index) };
    with_errno_kept(|| {
        // SAFETY: `event` lives across the call; the kernel checks the descriptors.
        unsafe { (libc.epoll_ctl)(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) == 0 }
    })
}

/// Result of `epoll_wait` for the program when only our descriptors were ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EmptyWait {
    /// Zero events: nginx reads the clock itself. Without a timeout the wait continues instead, since nginx
    /// would log an error.
    TimedOut,
    /// `EINTR`: HAProxy treats 0 as an expired timeout; if the clock disagrees it assumes the clock was
    /// set back.
    Interrupted,
}

/// One call by which the program waits for its events.
pub(super) struct HostWait<'a> {
    pub(super) epoll: c_int,
    pub(super) events: *mut libc::epoll_event,
    pub(super) max: c_int,
    /// Whether the program's timeout ends.
    pub(super) bounded: bool,
    pub(super) when_empty: EmptyWait,
    /// Waits. The result is the kernel's.
    pub(super) next: &'a dyn Fn(WaitTime) -> c_int,
}

/// How long a wait may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitTime {
    /// The program's timeout.
    Program,
    /// None: it returns what is there.
    Zero,
}

/// The program's wait, with turns for the provider.
///
/// # Safety
/// `next` writes as many events to `events` as it returns, and there is room for `max`.
pub(super) unsafe fn wait(libc: &Libc, waiting: &HostWait<'_>) -> c_int {
    let current = entered(libc, waiting.epoll);
    let HostWait { events, next, .. } = *waiting;
    loop {
        current.each(|_| true, |driven| driven.before_wait);
        let notified = current.has_notified();
        let count = next(if notified { WaitTime::Zero } else { WaitTime::Program });
        if count <= 0 && !notified {
            return count;
        }
        // SAFETY: the kernel has just written `count` events.
        let (kept, ready) = unsafe { take_marks(events, count) };
        if ready == [false; MAX_DRIVEN + 1] && !notified {
            return count;
        }
        current.drain_shared(ready[SHARED]);
        current.each(|index| ready[index], |driven| driven.on_readable);
        // SAFETY: behind the `kept` ones there is room up to `max`.
        let mut total = unsafe { current.report_notified(events, kept, waiting.max) };
        if total == 0 {
            // Their turns may have made other descriptors ready.
            let more = with_errno_kept(|| next(WaitTime::Zero));
            // SAFETY: the kernel has just written `more` events.
            total = unsafe { take_marks(events, more) }.0;
        }
        if total == 0 && waiting.when_empty == EmptyWait::Interrupted {
            set_errno(libc::EINTR);
            return -1;
        }
        if total > 0 || waiting.bounded {
            return total;
        }
    }
}

/// Notes that this thread waits for `epoll`.
fn entered(libc: &Libc, epoll: c_int) -> Loop {
    let mut current = LOOP.get();
    let forks = FORKS.load(Ordering::Relaxed);
    if current.epoll == epoll && current.forks == forks {
        return current;
    }
    if current.epoll < 0 || current.forks != forks {
        current = Loop { forks, ..NO_LOOP };
        LOOPS.fetch_add(1, Ordering::Relaxed);
    }
    current.epoll = epoll;
    for (index, driven) in current.driven.iter().enumerate() {
        // The loop has moved to another instance.
        if let Some(driven) = driven {
            add(libc, epoll, driven.fd, index);
        }
    }
    if current.shared_eventfd >= 0 {
        add(libc, epoll, current.shared_eventfd, SHARED);
    }
    LOOP.set(current);
    current
}

impl Loop {
    /// Whether notified sockets wait to be reported to the program.
    fn has_notified(&self) -> bool {
        self.shared_eventfd >= 0 && tables::with(|table| table.has_notified())
    }

    /// Empties the shared eventfd.
    fn drain_shared(&self, readable: bool) {
        if readable {
            let mut count = [0_u8; 8];
            // SAFETY: an eventfd that does not block, and eight writable bytes.
            with_errno_kept(|| unsafe {
                libc::read(self.shared_eventfd, count.as_mut_ptr().cast(), 8)
            });
        }
    }

    /// Puts the notified sockets behind the first `kept` events, as readable. Returns the number of events
    /// then.
    ///
    /// # Safety
    /// There is room for `max`.
    unsafe fn report_notified(
        &self,
        events: *mut libc::epoll_event,
        kept: c_int,
        max: c_int,
    ) -> c_int {
        if self.shared_eventfd < 0 {
            return kept;
        }
        let room = usize::try_from(max - kept).unwrap_or(0);
        let mut total = kept;
        for data in tables::with(|table| table.take_notified(self.epoll, room)) {
            let event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: data };
            // SAFETY: `take_notified` gave no more than there is room for.
            unsafe { events.add(usize::try_from(total).unwrap_or(0)).write_unaligned(event) };
            total += 1;
        }
        total
    }

    fn each(&self, which: impl Fn(usize) -> bool, turn: impl Fn(&Driven) -> HostCallback) {
        for (index, driven) in self.driven.iter().enumerate() {
            if let Some(driven) = driven.as_ref().filter(|_| which(index)) {
                // SAFETY: promised when it was given.
                with_errno_kept(|| unsafe { turn(driven)(driven.context) });
            }
        }
    }
}

/// Takes our events out of the first `count`. Returns how many are left, and which of ours were there.
///
/// # Safety
/// The first `count` events are initialised, if any.
unsafe fn take_marks(events: *mut libc::epoll_event, count: c_int) -> (c_int, Ready) {
    let mut ready = [false; MAX_DRIVEN + 1];
    let mut kept = 0;
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: initialised; on this platform it may be packed, so it is copied whole.
        let event = unsafe { events.add(index).read_unaligned() };
        let data = event.u64;
        if let Some(ours) = (0..MARKS.len()).find(|ours| mark(*ours) == data) {
            ready[ours] = true;
        } else {
            // SAFETY: `kept` is not behind `index`.
            unsafe { events.add(kept).write_unaligned(event) };
            kept += 1;
        }
    }
    (c_int::try_from(kept).unwrap_or(c_int::MAX), ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Providers of other versions call these by name, with these types.
    #[test]
    fn exported_functions_keep_their_names_and_types() {
        let _: unsafe extern "C" fn(c_int, HostCallback, HostCallback, *mut c_void) -> c_int =
            millrace_preload_attend;
        let _: unsafe extern "C" fn(*mut c_int) -> u64 = millrace_preload_ticket;
        let _: extern "C" fn(u64) = millrace_preload_ring;
        let _: extern "C" fn() -> c_int = crate::ffi::millrace_preload_cancelling;
    }

    #[test]
    fn threads_before_the_first_handshake_are_other_loops() {
        LOOPS.store(1, Ordering::Relaxed);
        assert!(!has_other_loops(), "one loop, no handshake yet");
        thread_started();
        thread_joined();
        handshake_started();
        thread_started();
        handshake_started();
        assert!(!has_other_loops(), "a thread of the provider");
        forget();
        LOOPS.store(1, Ordering::Relaxed);
        thread_started();
        handshake_started();
        assert!(has_other_loops(), "a thread of HAProxy that has not waited yet");
        forget();
    }

    #[test]
    fn program_sees_its_own_events_only() {
        let event = |u64| libc::epoll_event { events: 1, u64 };
        let data = |events: &[libc::epoll_event]| -> Vec<u64> {
            events.iter().map(|event| event.u64).collect()
        };
        let mut events = [7, mark(1), 8, mark(0), 9].map(event);
        // SAFETY: five events.
        let (kept, ready) = unsafe { take_marks(events.as_mut_ptr(), 5) };
        assert_eq!((kept, ready), (3, [true, true, false, false, false]));
        assert_eq!(data(&events[..3]), [7, 8, 9]);
        let mut events = [mark(3), mark(SHARED)].map(event);
        // SAFETY: two events.
        let (kept, ready) = unsafe { take_marks(events.as_mut_ptr(), 2) };
        assert_eq!((kept, ready), (0, [false, false, false, true, true]));
        for count in [0, -1] {
            // SAFETY: no event.
            let nothing = unsafe { take_marks(events.as_mut_ptr(), count) };
            assert_eq!(nothing, (0, [false; MAX_DRIVEN + 1]));
        }
    }
}
