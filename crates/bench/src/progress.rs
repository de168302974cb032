// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What is going on, on stderr: a bar on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Between two lines where stderr is not a terminal: sparse enough for a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Progress of one run, in steps.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    done: u64,
    steps: u64,
    last_line: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(steps: u64) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps);
            let style = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {pos}/{len} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self {
            bar,
            done: 0,
            steps,
            last_line: None,
        }
    }

    /// Says what happens now.
    pub(crate) fn now(&mut self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None if self
                .last_line
                .is_none_or(|last| last.elapsed() >= LINE_INTERVAL) =>
            {
                eprintln!("[{}/{}] {what}", self.done, self.steps);
                self.last_line = Some(Instant::now());
            }
            None => {}
        }
    }

    /// One step is done.
    pub(crate) fn step(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
