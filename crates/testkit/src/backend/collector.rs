// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A sink for the completions of an engine session. A test waits for them here.

use std::mem;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use millrace_engine::{Completion, CompletionSink};
use millrace_operation::sync::lock;

/// Time limit for a completion, far above its time on a busy machine. After that a completion is lost.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(120);

/// Keeps completions until a test takes them.
#[derive(Debug, Default)]
pub struct Collector {
    completions: Mutex<Vec<Completion>>,
    arrived: Condvar,
}

impl CompletionSink for Collector {
    fn complete(&self, completions: &mut Vec<Completion>) {
        let mut all = lock(&self.completions);
        all.append(completions);
        self.arrived.notify_all();
    }
}

impl Collector {
    /// Waits for at least `count` completions, and takes all that have arrived, sorted by number.
    ///
    /// # Panics
    /// If none comes for two minutes.
    pub fn take(&self, count: usize) -> Vec<Completion> {
        let mut all = lock(&self.completions);
        while all.len() < count {
            let waited = self.arrived.wait_timeout(all, COMPLETION_TIMEOUT);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            all = guard;
            assert!(!timeout.timed_out(), "{} of {count} completions", all.len());
        }
        all.sort_by_key(|completion| completion.id);
        mem::take(&mut *all)
    }
}
