// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether a blocked caller looks for its answer for a moment before it sleeps.
//!
//! A core that falls asleep takes 15 to 30 µs to wake up, as long as a P-256 signature and its way to a
//! node and back; a blocked caller has nothing else to do meanwhile. So it spins, but only as long as
//! that pays: each time the answer does not come within [`SPIN`] (an RSA operation, a node that shares
//! the core, a busy pool), spinning is left out for twice as many calls as before.

use std::time::Duration;

/// How long to spin: a fast operation on a node of this machine, and some more. Measured: P-256 over a
/// unix socket takes 31 µs with spinning, 60 µs without, on an idle virtual machine.
pub(crate) const SPIN: Duration = Duration::from_micros(60);

/// After this many failures in a row the pause grows no more: one spin in 1024 calls costs 0.06 µs per
/// call and notices when things have changed.
const MAX_FAILURES: u32 = 10;

/// What the last spins were worth.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    failures: u32,
    skip: u32,
}

impl Spin {
    /// Whether to spin this time.
    pub(crate) fn pays(&mut self) -> bool {
        let now = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        now
    }

    /// Whether something came while spinning.
    pub(crate) fn ended(&mut self, came: bool) {
        if came {
            *self = Self::default();
        } else {
            self.failures = (self.failures + 1).min(MAX_FAILURES);
            self.skip = 1 << self.failures;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(spin: &mut Spin) -> usize {
        (0..).take_while(|_| !spin.pays()).count()
    }

    #[test]
    fn it_spins_as_long_as_that_pays() {
        let mut spin = Spin::default();
        for _ in 0..100 {
            assert!(spin.pays());
            spin.ended(true);
        }
    }

    #[test]
    fn each_failure_doubles_the_pause_up_to_its_bound_and_a_success_ends_it() {
        let mut spin = Spin::default();
        assert!(spin.pays());
        for failure in 1..=MAX_FAILURES + 3 {
            spin.ended(false);
            assert_eq!(skipped(&mut spin), 1 << failure.min(MAX_FAILURES));
        }
        spin.ended(true);
        assert!(spin.pays());
    }
}
