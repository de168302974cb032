// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether a blocked caller spins for its answer before it sleeps.
//!
//! A sleeping core takes 15 to 30 µs to wake up, as long as a P-256 signature and its way to a node and
//! back, and a blocked caller has nothing else to do. So it spins while that succeeds. Each time the answer
//! does not come within [`SPIN`] (an RSA operation, a node that shares the core, a busy pool), the number of
//! calls without spinning doubles.

use std::time::Duration;

/// Time to spin: that of a fast operation on a node of this machine, and a margin. Measured: P-256 over a unix socket
/// takes 31 µs with spinning, 60 µs without, on an idle virtual machine.
pub(crate) const SPIN: Duration = Duration::from_micros(60);

/// Failures in a row after which the pause grows no more: one spin in 1024 calls costs 0.06 µs per call and
/// detects when spinning would succeed again.
const MAX_FAILURES: u32 = 10;

/// Results of the last spins.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    failures: u32,
    skip: u32,
}

impl Spin {
    /// Whether this call should spin.
    pub(crate) fn pays(&mut self) -> bool {
        let now = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        now
    }

    /// Records whether an event came while spinning.
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
    fn spins_while_spinning_succeeds() {
        let mut spin = Spin::default();
        for _ in 0..100 {
            assert!(spin.pays());
            spin.ended(true);
        }
    }

    #[test]
    fn each_failure_doubles_the_pause_and_a_success_ends_it() {
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
