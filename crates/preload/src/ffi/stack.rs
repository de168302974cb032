// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stacks for ASYNC jobs: 256 KiB above a guard of the same size.
//!
//! OpenSSL's own are blocks of the heap with 32 KiB and no guard. In a handshake the server runs code of others on
//! them: a regular expression of PCRE's JIT alone takes 32 KiB. What such code takes was measured to be 55 KiB at most.
//! Pages that are not touched take no memory, so a larger stack costs address space alone.
//!
//! The guard is as wide as the stack, since a single frame can leap over a narrow one into the memory below.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::errno::with_errno_kept;

/// Size of a stack without its guard, in bytes.
pub(super) const STACK_LEN: usize = 256 * 1024;

/// Size of the guard, in bytes: a whole number of pages of every kernel, whose largest have 64 KiB.
const GUARD_LEN: usize = 256 * 1024;

/// Most stacks of a process. Each takes two mappings of the 65,530 that the kernel allows a process by default
/// (`vm.max_map_count`), and without mappings `malloc` fails, too: half of them are left to the program.
const MAX_STACKS: usize = 16_000;

/// Most idle stacks that a thread keeps. A job that gets none of them costs 7 to 22 µs more, in four system calls and
/// the faults of its pages. The kept ones hold what their jobs have touched.
const MAX_IDLE: usize = 256;

/// Stacks of a process above which no thread keeps one: idle ones of many threads leave room for jobs of others.
const MAX_WITH_IDLE: usize = MAX_STACKS / 2;

/// Stacks of this process. A forked child has its parent's mappings, and with them this number.
static STACKS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The idle stacks of this thread, unmapped when it ends. Nothing is locked: a job ends on the thread that runs it.
    static IDLE: RefCell<Vec<Stack>> = const { RefCell::new(Vec::new()) };
}

/// A mapping with a guard below and a stack above, unmapped with this value. Nothing runs on it then.
pub(super) struct Stack(*mut c_void);

impl Stack {
    fn new() -> Option<Self> {
        if STACKS.fetch_add(1, Ordering::Relaxed) >= MAX_STACKS {
            STACKS.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        // Without MAP_GROWSDOWN: the kernel would let the stack grow into its guard. Without access at first, so that
        // no limit on committed memory counts the guard.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping touches nothing that exists.
        let base = unsafe {
            libc::mmap(ptr::null_mut(), GUARD_LEN + STACK_LEN, libc::PROT_NONE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            STACKS.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let stack = Self(base);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the upper part of the mapping made above.
        let usable = unsafe { libc::mprotect(base.byte_add(GUARD_LEN), STACK_LEN, access) } == 0;
        usable.then_some(stack)
    }

    /// The end of the stack, from which it grows downwards; aligned to a page.
    pub(super) fn top(&self) -> *mut c_void {
        self.0.wrapping_byte_add(GUARD_LEN + STACK_LEN)
    }

    /// Gives the stack away, as an address for [`Stack::from_base`].
    pub(super) fn into_base(self) -> *mut c_void {
        let base = self.0;
        std::mem::forget(self);
        base
    }

    /// # Safety
    /// `base` came from [`Stack::into_base`], and is used once.
    pub(super) unsafe fn from_base(base: *mut c_void) -> Self {
        Self(base)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the whole mapping of `new`, and nothing runs on it.
        unsafe { libc::munmap(self.0, GUARD_LEN + STACK_LEN) };
        STACKS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stack for a job. `None` if there is no memory, or if the process has as many as it may.
pub(super) fn take() -> Option<Stack> {
    let idle = IDLE.try_with(|idle| idle.try_borrow_mut().ok()?.pop());
    idle.ok().flatten().or_else(|| with_errno_kept(Stack::new))
}

/// Keeps the stack of a job that has ended for the next one. Not inlined: the job may have begun on another thread,
/// whose list the compiler could still have at hand.
#[inline(never)]
pub(super) fn give(stack: Stack) {
    let mut stack = Some(stack);
    // At the end of a thread its list is gone, and the stack with this value.
    let _ = IDLE.try_with(|idle| {
        if let Ok(mut idle) = idle.try_borrow_mut()
            && idle.len() < MAX_IDLE
            && STACKS.load(Ordering::Relaxed) <= MAX_WITH_IDLE
            && idle.try_reserve(1).is_ok()
        {
            idle.extend(stack.take());
        }
    });
    with_errno_kept(|| drop(stack));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, whose list is empty.
    fn on_a_thread(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| scope.spawn(test).join().expect("no panic"));
    }

    #[test]
    fn stack_is_used_again_last_in_first_out() {
        on_a_thread(|| {
            let (one, two) = (take().expect("a stack"), take().expect("a stack"));
            let tops = [one.top(), two.top()];
            assert_ne!(tops[0], tops[1]);
            give(one);
            give(two);
            assert_eq!(
                [take(), take()].map(|stack| stack.expect("kept").top()),
                [tops[1], tops[0]]
            );
        });
    }

    #[test]
    fn whole_stack_is_writable_and_its_top_is_aligned() {
        on_a_thread(|| {
            let stack = take().expect("a stack");
            assert_eq!(stack.top().addr() % 4096, 0);
            // SAFETY: the whole stack, on which nothing runs.
            unsafe { stack.top().byte_sub(STACK_LEN).write_bytes(7, STACK_LEN) };
        });
    }
}
