// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Waiting for a condition, with a bound. Nothing else in these tests waits.

use std::thread;
use std::time::{Duration, Instant};

/// The bound for things that happen at once on an idle machine: generous, because tests share two
/// cores with each other and with compilers. Only a failing test ever waits so long.
pub const SOON: Duration = Duration::from_secs(60);

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(10);

/// Polls until `condition` holds, or gives up after `bound`. Says which.
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
pub fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(SOON, condition), "waited in vain until {what}");
}

/// Polls until `measure` has given the same value several times in a row: what is in flight is done.
///
/// # Panics
/// If it never comes to rest.
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
