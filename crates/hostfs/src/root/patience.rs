// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A bound in time on what cannot be interrupted: a file of a driver that hangs, of a dead network
//! file system. The work is done by a thread; if it does not answer in time, the thread is left
//! behind and the next piece of work gets another one.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Threads that may be left behind; after that nothing is tried any more, since a tree with so many
/// files that hang has nothing to tell.
const MAX_LEFT_BEHIND: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Does work with a bound in time.
#[derive(Default)]
pub(super) struct Patience {
    /// Hands work to the thread, which lives until this is dropped. Held while a job is under way:
    /// one at a time, so that a job never waits behind one that hangs.
    worker: Mutex<Option<Sender<Job>>>,
    left_behind: AtomicUsize,
}

impl Patience {
    /// The result of `work`, or `None` if it took longer than `limit` or is not tried any more.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if self.left_behind.load(Ordering::Relaxed) >= MAX_LEFT_BEHIND {
            return None;
        }
        let (answer, answers) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            // Nobody listens any more if it took too long.
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
                self.left_behind.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience")
            .field("left_behind", &self.left_behind)
            .finish_non_exhaustive()
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
    fn work_that_hangs_is_left_behind_and_the_next_is_done() {
        let patience = Patience::default();
        let (let_go, held) = mpsc::channel::<()>();
        let hung = patience.wait(Duration::from_millis(1), move || held.recv().is_ok());
        assert_eq!(hung, None);
        assert_eq!(patience.wait(Duration::from_secs(60), || 7), Some(7));
        drop(let_go);
    }

    #[test]
    fn a_tree_where_everything_hangs_is_given_up() {
        let patience = Patience::default();
        let mut holds = Vec::new();
        for _ in 0..MAX_LEFT_BEHIND {
            let (let_go, held) = mpsc::channel::<()>();
            holds.push(let_go);
            let hung = patience.wait(Duration::from_millis(1), move || held.recv().is_ok());
            assert_eq!(hung, None);
        }
        assert_eq!(patience.wait(Duration::from_secs(60), || 7), None);
    }
}
