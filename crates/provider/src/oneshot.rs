// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One result that one thread puts and another waits for.
//!
//! A oneshot is shared by reference count: the waiting thread may give up, and a late result still has memory to go to.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

// A panic while a mutex was locked is caught at the C boundary, and leaves no value half written that is guarded by a
// mutex of this crate.
use millrace_operation::sync::lock;

/// Wakes a paused job. Called from the client's I/O thread: must not block and must not panic.
pub trait Wake: Send + Sync {
    /// Makes the application resume the job.
    fn wake(&self);
}

/// A caller that waits without blocking its thread: it pauses its job.
pub trait Pause {
    /// Handle that resumes the paused caller.
    fn waker(&self) -> Arc<dyn Wake>;

    /// Gives the thread back to the application until `done` returns `true`. Returns `false` if the
    /// wait was ended: the application gives the connection up, or the process was forked.
    fn until(&self, done: &dyn Fn() -> bool) -> bool;

    /// Whether the application could not be paused, so that its thread was blocked after all.
    fn blocked(&self) -> bool;

    /// Starts a thread that never runs a signal handler of the application, to do what blocks while
    /// the caller pauses.
    fn spawn(
        &self,
        thread: std::thread::Builder,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()>;
}

/// A place for one result.
pub struct Oneshot<T> {
    value: Mutex<Option<T>>,
    ready: Condvar,
    wake: Option<Arc<dyn Wake>>,
}

impl<T> std::fmt::Debug for Oneshot<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Oneshot")
    }
}

impl<T> Oneshot<T> {
    /// An empty oneshot; `wake` is called when it fills. With a `wake` the result has to be waited for by
    /// pausing.
    #[must_use]
    pub fn new(wake: Option<Arc<dyn Wake>>) -> Arc<Self> {
        Arc::new(Self { value: Mutex::new(None), ready: Condvar::new(), wake })
    }

    /// Fills it and wakes the waiting thread.
    pub fn put(&self, value: T) {
        *lock(&self.value) = Some(value);
        // A condition variable makes a system call even if no thread waits for it.
        match &self.wake {
            Some(wake) => wake.wake(),
            None => self.ready.notify_all(),
        }
    }

    /// Whether the result is there.
    #[must_use]
    pub fn is_full(&self) -> bool {
        lock(&self.value).is_some()
    }

    /// Takes the result if it is there.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        lock(&self.value).take()
    }

    /// Waits for the result: by pausing if `pause` is given, else by blocking until `deadline`.
    #[must_use]
    pub fn wait(&self, pause: Option<&dyn Pause>, deadline: Instant) -> Option<T> {
        if let Some(pause) = pause {
            pause.until(&|| self.is_full());
            return self.take();
        }
        let mut value = lock(&self.value);
        loop {
            if value.is_some() {
                return value.take();
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            value = self.ready.wait_timeout(value, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
