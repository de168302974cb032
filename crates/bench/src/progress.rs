// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The course of one run: what is going on, on stderr (a bar on a terminal, else a line now and then), and
//! whether the user asks to stop.

use std::io::{IsTerminal, Write, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::BenchError;

/// Between two lines where stderr is not a terminal: sparse enough for a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Progress of one run, in steps.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    done: u64,
    steps: u64,
    last_line: Option<Instant>,
    /// Set by a signal.
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on. A second one ends the process at once.
    pub(crate) fn start(steps: u64) -> Result<Self, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_default(signal, Arc::clone(&stop))
                .and_then(|_| flag::register(signal, Arc::clone(&stop)))
                .map_err(BenchError::system("catch signals"))?;
        }
        let bar = stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {pos}/{len} {msg}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(steps).with_style(style);
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Ok(Self { bar, done: 0, steps, last_line: None, stop })
    }

    /// Shows what happens now.
    pub(crate) fn now(&mut self, what: &str) -> Result<(), BenchError> {
        let due = self.last_line.is_none_or(|last| last.elapsed() >= LINE_INTERVAL);
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None if due => {
                let _ = writeln!(stderr(), "[{}/{}] {what}", self.done, self.steps);
                self.last_line = Some(Instant::now());
            }
            None => {}
        }
        self.check()
    }

    /// Records that a step is done.
    pub(crate) fn step(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// # Errors
    /// [`BenchError::Interrupted`] once the user asked to stop.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.stop.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
