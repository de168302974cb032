// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The time of a host for deadlines that outlive a process.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The identity of this start of the host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A point in time: of which start of the host, and how long after it. The clock on the wall may be set, and on some
/// machines begins at 1970: it is kept for people, and decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTime {
    /// The kernel's boot id; empty where it has none.
    boot: String,
    /// Milliseconds since that start, with the time that the host slept.
    uptime_ms: u64,
    /// Milliseconds since 1970.
    wall_ms: u64,
}

impl HostTime {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        let ms = |clock| {
            let time = clock_gettime(clock);
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            seconds * 1000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
        };
        Self { boot, uptime_ms: ms(ClockId::Boottime), wall_ms: ms(ClockId::Realtime) }
    }

    /// A time of a model.
    #[must_use]
    pub fn of(boot: &str, uptime: Duration) -> Self {
        let uptime_ms = u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX);
        Self { boot: boot.to_owned(), uptime_ms, wall_ms: uptime_ms }
    }

    /// Time from an earlier point to this one; `None` if it is not known: the host was started anew in between.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Duration> {
        let passed = self.uptime_ms.checked_sub(earlier.uptime_ms);
        passed.filter(|_| self.boot == earlier.boot).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_within_one_start_of_the_host_only() {
        let first = HostTime::now();
        assert!(!first.boot.is_empty(), "{first:?}");
        assert!(HostTime::now().since(&first).is_some());
        let (one, two) = (Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(HostTime::of("x", two).since(&HostTime::of("x", one)), Some(one));
        assert_eq!(HostTime::of("y", two).since(&HostTime::of("x", one)), None);
        // Without boot ids, an uptime that went back shows the restart.
        assert_eq!(HostTime::of("", one).since(&HostTime::of("", two)), None);
    }
}
