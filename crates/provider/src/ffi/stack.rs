// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Room on the stack for ML-KEM-768 and ML-DSA.
//!
//! AWS-LC's ML-KEM-768 was measured to need 15.7 KiB for a pair, 19.0 KiB to encapsulate and 23.7 KiB to decapsulate. A
//! signature of ML-DSA needs 61, 84 and 121 KiB in its three sizes. An `ASYNC_JOB` has 32 KiB without a guard page, or
//! what the preload library gives it, of which callbacks of the application may have used much. So in a job the
//! computation runs on another stack, which the thread keeps, and never pauses there.

use super::state::Provider;
use crate::error::{Error, Result};

/// Runs `work` on a stack with room: in an `ASYNC_JOB` on another one.
pub(super) fn with_room<T, E: Into<Error>>(
    provider: &Provider,
    work: impl FnOnce() -> std::result::Result<T, E>,
) -> Result<T> {
    let current_job = provider.lib.ASYNC_get_current_job;
    // SAFETY: takes nothing.
    let in_job = current_job.is_some_and(|current| unsafe { !current().is_null() });
    if in_job { other::run(work)?.map_err(Into::into) } else { work().map_err(Into::into) }
}

#[cfg(target_env = "gnu")]
mod other {
    use std::cell::Cell;
    use std::ffi::{c_uint, c_void};
    use std::mem::MaybeUninit;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::ptr;

    use crate::error::{Error, Reason, Result};

    /// Bytes of the stack: twice the largest need. Pages that are not touched take no memory.
    const LEN: usize = 256 * 1024;
    /// Bytes below it that fault when they are touched: more than the largest frame, so that none leaps over them.
    const GUARD: usize = 256 * 1024;

    /// A mapping with a guard below and a stack above, unmapped with this value.
    struct Stack(*mut c_void);

    thread_local! {
        /// The stack of this thread while it is not in use.
        static STACK: Cell<Option<Stack>> = const { Cell::new(None) };
    }

    impl Stack {
        fn new() -> Result<Self> {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
            // SAFETY: a new mapping wherever there is room.
            let start = unsafe { libc::mmap(ptr::null_mut(), GUARD + LEN, access, flags, -1, 0) };
            if start == libc::MAP_FAILED {
                let text = "there is no memory for a stack";
                return Err(Error::new(Reason::Internal, text));
            }
            let stack = Self(start);
            // SAFETY: the first pages of the mapping above.
            if unsafe { libc::mprotect(start, GUARD, libc::PROT_NONE) } != 0 {
                let text = "a stack cannot be guarded";
                return Err(Error::new(Reason::Internal, text));
            }
            Ok(stack)
        }
    }

    impl Drop for Stack {
        fn drop(&mut self) {
            // SAFETY: the whole mapping of `new`; nothing runs on it any more.
            unsafe { libc::munmap(self.0, GUARD + LEN) };
        }
    }

    /// A computation on its way to the other stack, and its result on the way back.
    struct Errand<'a> {
        work: &'a mut dyn FnMut(),
    }

    /// Entry point on the other stack: runs the errand at the address that the two halves make.
    extern "C" fn start(high: c_uint, low: c_uint) {
        let address = usize::try_from(u64::from(high) << 32 | u64::from(low)).unwrap_or(0);
        let errand = ptr::with_exposed_provenance_mut::<Errand<'_>>(address);
        // SAFETY: `run` passes the address of its errand, and touches that only when this has returned.
        (unsafe { &mut *errand }.work)();
    }

    /// Runs `work` on the other stack. A panic continues on this one.
    pub(super) fn run<T>(work: impl FnOnce() -> T) -> Result<T> {
        let stack = STACK.take().map_or_else(Stack::new, Ok)?;
        let mut work = Some(work);
        let mut result = None;
        let mut call = || {
            let work = work.take();
            result = work.map(|work| catch_unwind(AssertUnwindSafe(work)));
        };
        let mut errand = Errand { work: &mut call };
        let address = ptr::from_mut(&mut errand).expose_provenance() as u64;
        let mut caller = MaybeUninit::<libc::ucontext_t>::zeroed();
        let mut callee = MaybeUninit::<libc::ucontext_t>::zeroed();
        // SAFETY: writes the context.
        if unsafe { libc::getcontext(callee.as_mut_ptr()) } != 0 {
            return Err(Error::new(Reason::Internal, "there is no context"));
        }
        // SAFETY: all-zero is a value of the struct, and `getcontext` has filled it.
        let context = unsafe { callee.assume_init_mut() };
        context.uc_stack.ss_sp = stack.0.wrapping_byte_add(GUARD);
        context.uc_stack.ss_size = LEN;
        context.uc_link = caller.as_mut_ptr();
        // SAFETY: makecontext calls the function with the integers that it is given, which are two, as
        // `start` takes them.
        let entry =
            unsafe { std::mem::transmute::<extern "C" fn(c_uint, c_uint), extern "C" fn()>(start) };
        let high = c_uint::try_from(address >> 32).unwrap_or(0);
        let low = c_uint::try_from(address & 0xffff_ffff).unwrap_or(0);
        // SAFETY: a context of `getcontext` with a stack and a context to go on with.
        unsafe { libc::makecontext(callee.as_mut_ptr(), entry, 2, high, low) };
        // SAFETY: both are contexts of this thread; `start` returns here by `uc_link`, and until then nothing
        // moves what it refers to.
        let switched = unsafe { libc::swapcontext(caller.as_mut_ptr(), callee.as_ptr()) };
        if switched == 0 {
            STACK.set(Some(stack));
        }
        match result {
            Some(Ok(value)) => Ok(value),
            Some(Err(panic)) => resume_unwind(panic),
            None => Err(Error::new(Reason::Internal, "a stack cannot be switched")),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn work_runs_on_another_stack_and_its_panic_returns() {
            let here = 0_u8;
            let distance = |other: &u8| {
                let here = ptr::from_ref(&here).addr();
                let other = ptr::from_ref(other).addr();
                here.abs_diff(other)
            };
            for _ in 0..3 {
                let far = run(|| {
                    let there = [7_u8; 24 * 1024];
                    distance(std::hint::black_box(&there[0])) > LEN
                });
                assert!(far.expect("a stack"));
            }
            // Inside another: the thread has one at rest, and this is a second.
            let nested = run(|| {
                let outer = 0_u8;
                let outer = ptr::from_ref(&outer).addr();
                run(|| outer.abs_diff(ptr::from_ref(&0_u8).addr()) > LEN).expect("a stack")
            });
            assert!(nested.expect("a stack"));
            let panicked = catch_unwind(|| run(|| panic!("on the other stack")));
            assert!(panicked.is_err());
            assert_eq!(run(|| 5).expect("a stack"), 5);
        }
    }
}

/// musl has no contexts, and so its OpenSSL no jobs.
#[cfg(not(target_env = "gnu"))]
mod other {
    use crate::error::Result;

    pub(super) fn run<T>(work: impl FnOnce() -> T) -> Result<T> {
        Ok(work())
    }
}
