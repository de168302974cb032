// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Waiting for a condition, with a bound.

use std::thread;
use std::time::{Duration, Instant};

/// Bound for conditions that an idle machine meets at once: generous, because tests share two cores with each
/// other and with compilers. Only a failing test waits that long.
pub const SOON: Duration = Duration::from_secs(60);

/// Interval between two polls.
const INTERVAL: Duration = Duration::from_millis(10);

/// Polls until `condition` holds (true) or `bound` has passed (false).
pub fn holds_within(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() > bound {
            return false;
        }
        thread::sleep(INTERVAL);
    }
}

/// Polls until `condition` holds.
///
/// # Panics
/// With `what` if it does not hold [`SOON`].
#[track_caller]
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(SOON, condition), "waited in vain until {what}");
}

/// Polls until `condition` holds; the place of the call says which.
///
/// # Panics
/// If it does not hold [`SOON`].
#[track_caller]
pub fn eventually(condition: impl FnMut() -> bool) {
    until("the condition holds", condition);
}

/// Polls until `measure` has given the same value several times in a row, which means that nothing is in flight.
///
/// # Panics
/// If the value keeps changing.
pub fn until_steady<T: PartialEq>(what: &str, mut measure: impl FnMut() -> T) -> T {
    const LOOKS: usize = 10;
    let mut last = measure();
    let mut same = 0;
    until(&format!("{what} comes to rest"), || {
        let now = measure();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same >= LOOKS
    });
    last
}
