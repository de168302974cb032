// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Pauses before the library is started again.

use std::time::{Duration, Instant};

/// Pause after the first start that failed; doubled by each further one.
const FIRST: Duration = Duration::from_millis(250);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);
/// The longest pause for as long as a reset may take ([`RESET_TIME`]).
const LONGEST_IN_RESET: Duration = Duration::from_secs(1);
/// Time within which a card that served is back from a reset, as a rule: Linux needs some seconds.
const RESET_TIME: Duration = Duration::from_secs(60);
/// A card that breaks within this time after its start is started again after a pause, not at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// The pauses of one process.
#[derive(Clone, Copy, Debug)]
pub struct RestartPauses {
    next: Duration,
    last_served: Option<Instant>,
}

impl Default for RestartPauses {
    fn default() -> Self {
        Self { next: FIRST, last_served: None }
    }
}

impl RestartPauses {
    /// The pause after a session that ran for `served` and ended at `now`. `served` is `None` for a start that failed.
    pub fn after(&mut self, served: Option<Duration>, now: Instant) -> Duration {
        if served.is_some() {
            self.last_served = Some(now);
        }
        if served.is_some_and(|served| served >= SHORT_LIFE) {
            self.next = FIRST;
            return Duration::ZERO;
        }
        let in_reset = self.last_served.is_some_and(|last| now.duration_since(last) < RESET_TIME);
        let longest = if in_reset { LONGEST_IN_RESET } else { LONGEST };
        let pause = self.next;
        self.next = (pause * 2).min(longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_stay_short_while_a_reset_may_take_that_long() {
        let mut pauses = RestartPauses::default();
        let start = Instant::now();
        assert_eq!(pauses.after(Some(Duration::from_secs(5)), start), Duration::ZERO);
        for millis in [250, 500, 1000, 1000] {
            assert_eq!(pauses.after(None, start), Duration::from_millis(millis));
        }
        let later = start + RESET_TIME;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(pauses.after(None, later), Duration::from_secs(seconds));
        }
    }

    #[test]
    fn card_that_breaks_at_once_is_not_started_at_once() {
        let mut pauses = RestartPauses::default();
        let now = Instant::now();
        let short = Some(Duration::from_millis(10));
        assert_eq!(pauses.after(short, now), FIRST);
        assert_eq!(pauses.after(short, now), FIRST * 2);
        assert_eq!(pauses.after(Some(SHORT_LIFE), now), Duration::ZERO);
        assert_eq!(pauses.after(short, now), FIRST);
    }
}
