// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Waiting for late answers before the library stops.

use std::thread;
use std::time::{Duration, Instant};

/// Time without an answer after which a card is taken to have only lost requests: one that is busy answers others
/// within a millisecond, the stand-in in the tests within some ten.
const DRAINED_AFTER: Duration = Duration::from_millis(100);

/// Interval at which a card is asked for late answers.
const INTERVAL: Duration = Duration::from_millis(1);

/// Bound on the wait: 63 requests of the slowest operation take half of it.
const LONGEST: Duration = Duration::from_secs(2);

/// Waits until the cards have answered what they have, but for lost requests. The library wipes and frees the memory of
/// its requests before it turns the rings off: a card that still has one would read addresses of zero there, and write
/// its results to memory that may be another's.
///
/// `poll` collects answers, and returns the number of requests that have none; 0 where the card has failed, since it
/// does nothing any more.
pub fn drain(mut poll: impl FnMut() -> usize) {
    let start = Instant::now();
    let mut before = poll();
    let mut last = start;
    while before > 0 && last.elapsed() < DRAINED_AFTER && start.elapsed() < LONGEST {
        thread::sleep(INTERVAL);
        let now = poll();
        if now < before {
            last = Instant::now();
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_with_the_last_answer_and_goes_on_without_lost_ones() {
        for lost in [0, 2] {
            let mut left = 5_usize;
            let mut polls = 0_usize;
            let start = Instant::now();
            drain(|| {
                polls += 1;
                left = left.saturating_sub(1).max(lost);
                left
            });
            assert_eq!(left, lost);
            if lost == 0 {
                assert_eq!(polls, 5);
            } else {
                assert!(start.elapsed() >= DRAINED_AFTER);
            }
        }
    }
}
