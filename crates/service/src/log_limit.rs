// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Bounds how often a node logs events that clients can cause.

use std::sync::Mutex;
use std::time::Instant;

use millrace_operation::sync::lock;

use crate::bucket::Bucket;

/// Lines of one kind per second: at 200 bytes about 17 MiB a day, which fills no disk.
const RATE: u64 = 1;

/// Lines of one kind at once: enough to see an event and who causes it.
const BURST: u64 = 10;

/// Passes `BURST` lines and then `RATE` lines per second, and counts the suppressed ones.
#[derive(Debug, Default)]
pub struct RateLimit(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    bucket: Option<Bucket>,
    suppressed: u64,
}

impl RateLimit {
    /// `Some` if a line may be logged now, with the number of lines suppressed since the last one.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        let mut lines = lock(&self.0);
        let bucket = lines.bucket.get_or_insert_with(|| Bucket::new(RATE, BURST, now));
        if bucket.take(1, now) {
            Some(std::mem::take(&mut lines.suppressed))
        } else {
            lines.suppressed += 1;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn flood_of_events_becomes_ten_lines_and_a_count() {
        let limit = RateLimit::default();
        let start = Instant::now();
        let passed = (0..100).filter(|_| limit.pass(start).is_some()).count();
        assert_eq!(passed, 10);
        let later = start + Duration::from_secs(2);
        assert_eq!(limit.pass(later), Some(90));
        assert_eq!(limit.pass(later), Some(0));
        assert_eq!(limit.pass(later), None);
    }
}
