// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A spinner or a bar during long work, on standard error and only on a terminal.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Work that ends sooner shows nothing: a spinner that flashes up is noise.
const SPINNER_DELAY: Duration = Duration::from_secs(2);
/// Time of one step of the spinner.
const TURN: Duration = Duration::from_millis(120);

/// Runs `work`. After [`SPINNER_DELAY`] it shows a spinner with `message` until `work` returns.
pub(crate) fn while_doing<T>(message: &'static str, work: impl FnOnce() -> T) -> T {
    let (finished, wait) = mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        if wait.recv_timeout(SPINNER_DELAY) == Err(RecvTimeoutError::Timeout) {
            let spinner = ProgressBar::new_spinner().with_message(message);
            spinner.enable_steady_tick(TURN);
            // Ends when the sender is dropped.
            let _ = wait.recv();
            spinner.finish_and_clear();
        }
    });
    let result = work();
    drop(finished);
    // A panic of the spinner's thread is ignored.
    let _ = watcher.join();
    result
}

/// A bar with this number of steps. Indicatif draws nothing where standard error is not a terminal.
pub(crate) fn bar(doing: &'static str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64).with_message(doing);
    let style = ProgressStyle::with_template("[{bar:30}] {pos}/{len} {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
