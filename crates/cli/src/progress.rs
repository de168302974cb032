// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A sign of life for what takes longer than a moment, on standard error and only on a terminal.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;

/// What ends sooner shows nothing: a spinner that flashes up is noise.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the spinner turns: fast enough to look alive.
const TURN: Duration = Duration::from_millis(120);

/// Does `work`. After [`PATIENCE`] it shows a spinner with `message` until the work is done.
pub(crate) fn while_doing<T>(message: &'static str, work: impl FnOnce() -> T) -> T {
    let (finished, wait) = mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        if wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            let spinner = ProgressBar::new_spinner().with_message(message);
            spinner.enable_steady_tick(TURN);
            // Ends when the sender is dropped.
            let _ = wait.recv();
            spinner.finish_and_clear();
        }
    });
    let result = work();
    drop(finished);
    // A watcher that panicked has nothing to tell.
    let _ = watcher.join();
    result
}
