// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The circuit breaker: a dead pool must not cost a deadline on every handshake.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;

/// Failures in a row after which the breaker opens: one is an accident, three are a dead pool.
pub const FAILURES: u32 = 3;

/// First time for which it stays open.
pub const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest time for which it stays open: a pool that came back is used again within it.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Opens after [`FAILURES`] in a row, then lets one operation through per pause, which doubles.
#[derive(Debug, Default)]
pub struct Breaker {
    state: Mutex<BreakerState>,
}

#[derive(Debug, Default)]
struct BreakerState {
    /// Failures in a row, while it is closed.
    failures: u32,
    /// Pauses in a row, while it is open.
    pauses: u32,
    /// Time from which the next operation may try. `None` while the breaker is closed.
    next_try: Option<Instant>,
    /// An operation tries, and has not reported its end.
    trying: bool,
}

impl Breaker {
    /// Whether an operation may be tried now. If the breaker is open and its pause is over, `true` makes
    /// the caller the one that tries, and the next pause begins: ask once per operation.
    pub fn try_admit(&self, now: Instant) -> bool {
        let mut state = lock(&self.state);
        match state.next_try {
            None => true,
            Some(next) if now < next => false,
            Some(_) => {
                state.trying = true;
                state.next_try = Some(now + pause(state.pauses));
                true
            }
        }
    }

    /// Records that the pool answered, with a result or an error.
    pub fn record_answer(&self) {
        let mut state = lock(&self.state);
        *state = BreakerState::default();
    }

    /// Records that the pool did not answer. Of many operations that were in flight when it died, only those that
    /// open the breaker count.
    pub fn record_silence(&self, now: Instant) {
        let mut state = lock(&self.state);
        if state.next_try.is_none() {
            state.failures += 1;
            if state.failures < FAILURES {
                return;
            }
        } else if !std::mem::take(&mut state.trying) {
            return;
        }
        state.pauses = state.pauses.saturating_add(1);
        state.next_try = Some(now + pause(state.pauses));
    }
}

/// Length of the `n`th pause in a row.
fn pause(n: u32) -> Duration {
    let doublings = n.saturating_sub(1).min(16);
    (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaker_opens_after_three_failures_and_admits_one_per_pause() {
        let breaker = Breaker::default();
        let now = Instant::now();
        for _ in 0..FAILURES {
            assert!(breaker.try_admit(now));
            breaker.record_silence(now);
        }
        assert!(!breaker.try_admit(now));
        let later = now + FIRST_PAUSE;
        assert!(breaker.try_admit(later));
        assert!(!breaker.try_admit(later));
        breaker.record_answer();
        assert!(breaker.try_admit(later));
    }

    #[test]
    fn failures_at_once_open_the_breaker_for_one_pause() {
        let breaker = Breaker::default();
        let now = Instant::now();
        for _ in 0..1000 {
            breaker.record_silence(now);
        }
        assert!(!breaker.try_admit(now));
        assert!(breaker.try_admit(now + FIRST_PAUSE));
        breaker.record_silence(now + FIRST_PAUSE);
        assert!(!breaker.try_admit(now + FIRST_PAUSE * 2));
        assert!(breaker.try_admit(now + FIRST_PAUSE * 3));
    }

    #[test]
    fn pause_doubles_up_to_its_bound() {
        assert_eq!(pause(1), FIRST_PAUSE);
        assert_eq!(pause(2), FIRST_PAUSE * 2);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
