// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Descriptors of the provider's that the program's event loop attends to: they wait in the program's
//! own epoll instance, and the program never hears of them.
//!
//! Without this, answers of the pool are read by a thread of the provider's, which then wakes the
//! program: two more switches and a wake-up for each. It is done only where one thread has an event
//! loop. Where several have, answers for all would be read by one of them, in whatever it does meanwhile.
//!
//! What is kept belongs to a thread, so that nothing has to be locked.
//!
//! In nginx, whose sockets are known here, jobs that can go on are *rung* instead of having an eventfd
//! each: what the program is told by [`wait`] contains their sockets. Who rings from another thread also
//! writes to the bell, which is in the epoll instance to wake the loop for that.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use super::next::Libc;
use super::program::is_nginx;
use super::tables;
use super::{set_errno, with_errno_kept};

/// Descriptors that a loop attends to at most: one for each pool that is configured in one process.
const MAX_ATTENDED: usize = 4;

/// Called with the context that was given: before the loop waits, or when the descriptor is readable.
type Turn = unsafe extern "C" fn(*mut c_void);

/// The bell's place behind those.
const BELL: usize = MAX_ATTENDED;

/// Their addresses are the data of our events: a program's own are pointers to its own memory, or
/// descriptors.
static MARKS: [u64; MAX_ATTENDED + 1] = [0; MAX_ATTENDED + 1];

/// Which of ours were ready.
type Ready = [bool; MAX_ATTENDED + 1];

#[derive(Clone, Copy)]
struct Attended {
    fd: c_int,
    before_wait: Turn,
    ready: Turn,
    context: *mut c_void,
}

/// The event loop of one thread.
#[derive(Clone, Copy)]
struct Loop {
    /// The process that it belongs to, as a count of forks.
    forks: u32,
    /// The epoll instance that it waited for last.
    epoll: c_int,
    /// An eventfd; -1 if there is none.
    bell: c_int,
    attended: [Option<Attended>; MAX_ATTENDED],
}

const NO_LOOP: Loop = Loop {
    forks: 0,
    epoll: -1,
    bell: -1,
    attended: [None; MAX_ATTENDED],
};

thread_local! {
    static LOOP: Cell<Loop> = const { Cell::new(NO_LOOP) };
    /// The socket of the handshake that runs on this thread; -1 is none.
    static SOCKET: Cell<c_int> = const { Cell::new(-1) };
}

/// How often this process is a child of a process that had loops.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Threads of this process with an event loop.
static LOOPS: AtomicU32 = AtomicU32::new(0);
/// The bell of this process's loop; -1 if there is none.
static PROCESS_BELL: AtomicI32 = AtomicI32::new(-1);

/// In a forked child: the loops are the parent's.
pub(super) fn forget() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    LOOPS.store(0, Ordering::Relaxed);
    PROCESS_BELL.store(-1, Ordering::Relaxed);
}

fn mark(at: usize) -> u64 {
    std::ptr::from_ref(&MARKS[at]) as u64
}

/// Has the calling thread's event loop attend to `fd`, for ever: `before_wait` is called each time before
/// it waits, `ready` when `fd` is readable (level-triggered). Gives 0 if it cannot: this thread has no
/// event loop, or others have one, too.
///
/// Called by the provider, which asks for it by name.
///
/// # Safety
/// The functions may be called with `context` on this thread as long as the process lives.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn millrace_preload_attend(
    fd: c_int,
    before_wait: Turn,
    ready: Turn,
    context: *mut c_void,
) -> c_int {
    let mut own = LOOP.get();
    let Some(libc) = super::next::libc() else {
        return 0;
    };
    let stale = own.forks != FORKS.load(Ordering::Relaxed);
    if stale || own.epoll < 0 || LOOPS.load(Ordering::Relaxed) != 1 {
        return 0;
    }
    let Some(free) = own.attended.iter().position(Option::is_none) else {
        return 0;
    };
    if !add(libc, own.epoll, fd, free) {
        return 0;
    }
    if is_nginx() && own.bell < 0 {
        own.bell = hang_bell(libc, own.epoll);
    }
    own.attended[free] = Some(Attended {
        fd,
        before_wait,
        ready,
        context,
    });
    LOOP.set(own);
    1
}

/// The eventfd by which other threads wake this loop, in its epoll instance; -1 if there can be none.
fn hang_bell(libc: &Libc, epoll: c_int) -> c_int {
    with_errno_kept(|| {
        // SAFETY: takes numbers.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if bell >= 0 && !add(libc, epoll, bell, BELL) {
            // SAFETY: made above, and nobody else knows it.
            unsafe { (libc.close)(bell) };
            return -1;
        }
        if bell >= 0 {
            tables::with(|table| table.has_bell(bell));
            PROCESS_BELL.store(bell, Ordering::Release);
        }
        bell
    })
}

/// Runs a handshake on this socket.
pub(super) fn on_socket<T>(socket: c_int, handshake: impl FnOnce() -> T) -> T {
    let before = SOCKET.replace(socket);
    let result = handshake();
    SOCKET.set(before);
    result
}

/// By what the connection whose handshake runs on this thread is rung when its job can go on, and the
/// descriptor that the job is to name as what it waits for. 0 if it needs a descriptor of its own.
///
/// Called by the provider at the beginning of each operation: it is good for that one.
///
/// # Safety
/// `bell` is writable.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn millrace_preload_ticket(bell: *mut c_int) -> u64 {
    let (own, socket) = (LOOP.get(), SOCKET.get());
    if own.bell < 0 || own.forks != FORKS.load(Ordering::Relaxed) || socket < 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { bell.write(own.bell) };
    tables::with(|table| table.ticket(socket))
}

/// Has the program's loop resume the job of the connection with this ticket, if it is there. From any
/// thread.
#[unsafe(no_mangle)]
pub(super) extern "C" fn millrace_preload_ring(ticket: u64) {
    tables::with(|table| table.ring(ticket));
    let own = LOOP.get();
    if own.bell >= 0 && own.forks == FORKS.load(Ordering::Relaxed) {
        // The loop itself looks before it waits.
        return;
    }
    let (bell, one) = (PROCESS_BELL.load(Ordering::Acquire), 1_u64.to_ne_bytes());
    if bell >= 0 {
        // SAFETY: eight readable bytes; the bell is never closed. It fails only if the counter would
        // overflow, and then it is readable already.
        with_errno_kept(|| unsafe { libc::write(bell, one.as_ptr().cast(), one.len()) });
    }
}

fn add(libc: &Libc, epoll: c_int, fd: c_int, at: usize) -> bool {
    let events = libc::EPOLLIN.cast_unsigned();
    let mut event = libc::epoll_event {
        events,
        u64: mark(at),
    };
    with_errno_kept(|| {
        // SAFETY: `event` lives across the call; the kernel checks the descriptors.
        unsafe { (libc.epoll_ctl)(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) == 0 }
    })
}

/// What the program is told when only ours was ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Nothing {
    /// That the time is over: nginx looks at the clock itself. Where there is no limit it is not told at
    /// all, since it would complain.
    TimedOut,
    /// That a signal interrupted it: HAProxy takes the time for over if it is told so, and believes that
    /// the clock was set back if that says otherwise.
    Interrupted,
}

/// `epoll_wait(2)` of the program, with turns for what its loop attends to.
///
/// # Safety
/// As for `epoll_wait(2)`.
pub(super) unsafe fn wait(
    libc: &Libc,
    epoll: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: c_int,
    nothing: Nothing,
) -> c_int {
    let own = entered(libc, epoll);
    // SAFETY: forwarded.
    let next = |timeout| unsafe { (libc.epoll_wait)(epoll, events, max, timeout) };
    loop {
        own.each(|_| true, |one| one.before_wait);
        let rung = own.is_rung();
        let count = next(if rung { 0 } else { timeout });
        if count <= 0 && !rung {
            return count;
        }
        // SAFETY: the kernel has just written so many.
        let (kept, ready) = unsafe { take_marks(events, count) };
        if ready == [false; MAX_ATTENDED + 1] && !rung {
            return count;
        }
        own.silence(ready[BELL]);
        own.each(|at| ready[at], |one| one.ready);
        // SAFETY: behind the `kept` ones there is room up to `max`.
        let mut total = unsafe { own.tell_rung(events, kept, max) };
        if total == 0 {
            // What their turn made ready in other ways.
            let more = with_errno_kept(|| next(0));
            // SAFETY: the kernel has just written so many.
            total = unsafe { take_marks(events, more) }.0;
        }
        if total == 0 && nothing == Nothing::Interrupted {
            set_errno(libc::EINTR);
            return -1;
        }
        if total > 0 || timeout >= 0 {
            return total;
        }
    }
}

/// Notes that this thread waits for `epoll`.
fn entered(libc: &Libc, epoll: c_int) -> Loop {
    let mut own = LOOP.get();
    let forks = FORKS.load(Ordering::Relaxed);
    if own.epoll == epoll && own.forks == forks {
        return own;
    }
    if own.epoll < 0 || own.forks != forks {
        own = Loop { forks, ..NO_LOOP };
        LOOPS.fetch_add(1, Ordering::Relaxed);
    }
    own.epoll = epoll;
    for (at, one) in own.attended.iter().enumerate() {
        // The loop has moved to another instance.
        if let Some(one) = one {
            add(libc, epoll, one.fd, at);
        }
    }
    if own.bell >= 0 {
        add(libc, epoll, own.bell, BELL);
    }
    LOOP.set(own);
    own
}

impl Loop {
    /// Whether sockets wait to be told to the program.
    fn is_rung(&self) -> bool {
        self.bell >= 0 && tables::with(|table| table.has_rung())
    }

    /// Empties the bell.
    fn silence(&self, readable: bool) {
        if readable {
            let mut count = [0_u8; 8];
            // SAFETY: an eventfd that does not block, and eight writable bytes.
            with_errno_kept(|| unsafe { libc::read(self.bell, count.as_mut_ptr().cast(), 8) });
        }
    }

    /// Puts the sockets that were rung behind the first `kept` events, as readable. Gives how many events
    /// there are.
    ///
    /// # Safety
    /// There is room for `max`.
    unsafe fn tell_rung(&self, events: *mut libc::epoll_event, kept: c_int, max: c_int) -> c_int {
        if self.bell < 0 {
            return kept;
        }
        let room = usize::try_from(max - kept).unwrap_or(0);
        let mut total = kept;
        for data in tables::with(|table| table.take_rung(self.epoll, room)) {
            let event = libc::epoll_event {
                events: libc::EPOLLIN.cast_unsigned(),
                u64: data,
            };
            // SAFETY: there are no more than there is room for.
            unsafe {
                events
                    .add(usize::try_from(total).unwrap_or(0))
                    .write_unaligned(event)
            };
            total += 1;
        }
        total
    }

    fn each(&self, which: impl Fn(usize) -> bool, turn: impl Fn(&Attended) -> Turn) {
        for (at, one) in self.attended.iter().enumerate() {
            if let Some(one) = one.as_ref().filter(|_| which(at)) {
                // SAFETY: promised when it was given.
                with_errno_kept(|| unsafe { turn(one)(one.context) });
            }
        }
    }
}

/// Takes our events out of the first `count`. Gives how many are left, and which of ours were there.
///
/// # Safety
/// So many events are initialised, if any.
unsafe fn take_marks(events: *mut libc::epoll_event, count: c_int) -> (c_int, Ready) {
    let mut ready = [false; MAX_ATTENDED + 1];
    let mut kept = 0;
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: initialised; on this platform it may be packed, so it is copied whole.
        let event = unsafe { events.add(at).read_unaligned() };
        let data = event.u64;
        if let Some(ours) = (0..MARKS.len()).find(|ours| mark(*ours) == data) {
            ready[ours] = true;
        } else {
            // SAFETY: `kept` is not behind `at`.
            unsafe { events.add(kept).write_unaligned(event) };
            kept += 1;
        }
    }
    (c_int::try_from(kept).unwrap_or(c_int::MAX), ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_hears_of_its_own_events_only() {
        let event = |u64| libc::epoll_event { events: 1, u64 };
        let data = |events: &[libc::epoll_event]| -> Vec<u64> {
            events.iter().map(|event| event.u64).collect()
        };
        let mut events = [7, mark(1), 8, mark(0), 9].map(event);
        // SAFETY: five events.
        let (kept, ready) = unsafe { take_marks(events.as_mut_ptr(), 5) };
        assert_eq!((kept, ready), (3, [true, true, false, false, false]));
        assert_eq!(data(&events[..3]), [7, 8, 9]);
        let mut events = [mark(3), mark(BELL)].map(event);
        // SAFETY: two events.
        let (kept, ready) = unsafe { take_marks(events.as_mut_ptr(), 2) };
        assert_eq!((kept, ready), (0, [false, false, false, true, true]));
        for count in [0, -1] {
            // SAFETY: no event.
            let nothing = unsafe { take_marks(events.as_mut_ptr(), count) };
            assert_eq!(nothing, (0, [false; MAX_ATTENDED + 1]));
        }
    }
}
