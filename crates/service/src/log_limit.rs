// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Bounds how often the node logs what outsiders can bring about.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one kind per interval: enough to see what goes on, too few to fill a disk (at 200 bytes
/// about 17 MiB a day).
const BURST: u32 = 10;
const INTERVAL: Duration = Duration::from_secs(10);

/// Lets [`BURST`] lines pass per [`INTERVAL`] and counts the rest.
#[derive(Debug, Default)]
pub struct RateLimit {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    passed: u32,
    suppressed: u64,
}

impl RateLimit {
    /// If a line may be logged now: how many were suppressed since the last one.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state
            .since
            .is_none_or(|since| now.saturating_duration_since(since) >= INTERVAL)
        {
            state.since = Some(now);
            state.passed = 0;
        }
        if state.passed == BURST {
            state.suppressed += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_becomes_a_few_lines_and_a_number() {
        let limit = RateLimit::default();
        let start = Instant::now();
        let passed = (0..100).filter(|_| limit.pass(start).is_some()).count();
        assert_eq!(passed, 10);
        assert_eq!(limit.pass(start + INTERVAL), Some(90));
        assert_eq!(limit.pass(start + INTERVAL), Some(0));
    }
}
