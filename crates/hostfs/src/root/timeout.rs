// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A time limit on calls that cannot be interrupted, such as a read from a hung driver or a dead network
//! file system. A thread makes the call; if the call does not return in time, the thread is abandoned and
//! the next call gets a new one.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Bound on abandoned threads. When it is reached, further calls fail at once: such a tree is not worth
/// reading.
const MAX_ABANDONED: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Runs calls on a separate thread, each with a time limit.
#[derive(Default)]
pub(super) struct TimedWorker {
    /// Queue of the thread, which ends when this is dropped. Locked during a call, so only one runs at a time
    /// and no call waits behind one that hangs.
    worker: Mutex<Option<Sender<Job>>>,
    abandoned: AtomicUsize,
}

impl TimedWorker {
    /// The result of `work`, or `None` if it took longer than `limit` or was not started.
    pub(super) fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.abandoned.load(Ordering::Relaxed) >= MAX_ABANDONED {
            return None;
        }
        let (answer, answers) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            // The receiver is gone if the call took too long.
            let _ = answer.send(work());
        });
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match worker.take() {
            Some(sender) => sender,
            None => start()?,
        };
        sender.send(job).ok()?;
        match answers.recv_timeout(limit) {
            Ok(result) => {
                *worker = Some(sender);
                Some(result)
            }
            Err(_) => {
                self.abandoned.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

impl fmt::Debug for TimedWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedWorker").field("abandoned", &self.abandoned).finish_non_exhaustive()
    }
}

fn start() -> Option<Sender<Job>> {
    let (sender, jobs) = mpsc::channel::<Job>();
    thread::Builder::new()
        .name("reader".to_owned())
        .spawn(move || jobs.into_iter().for_each(|job| job()))
        .ok()?;
    Some(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_that_hangs_is_abandoned_and_the_next_one_runs() {
        let worker = TimedWorker::default();
        let (let_go, held) = mpsc::channel::<()>();
        let hung = worker.run(Duration::from_millis(1), move || held.recv().is_ok());
        assert_eq!(hung, None);
        assert_eq!(worker.run(Duration::from_secs(60), || 7), Some(7));
        drop(let_go);
    }

    #[test]
    fn timeout_makes_no_call_after_eight_hung_ones() {
        let worker = TimedWorker::default();
        let mut holds = Vec::new();
        for _ in 0..MAX_ABANDONED {
            let (let_go, held) = mpsc::channel::<()>();
            holds.push(let_go);
            let hung = worker.run(Duration::from_millis(1), move || held.recv().is_ok());
            assert_eq!(hung, None);
        }
        assert_eq!(worker.run(Duration::from_secs(60), || 7), None);
    }
}
