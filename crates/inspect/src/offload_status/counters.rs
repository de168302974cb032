// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Counters of devices, read twice: a device whose counters moved was used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use millrace_hostfs::Root;
use schemars::JsonSchema;
use serde::Serialize;

use crate::network;
use crate::qat;
use crate::qat::formats::interrupts;
use crate::section::SectionReader;

/// The device of counters that a node keeps for its clients; the counter is the client's identity (`uid:33`).
pub const POOL: &str = "a Millrace pool";

/// The counters of all devices at one time, by device and counter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterReading(BTreeMap<(String, String), u64>);

/// A counter that moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Moved {
    /// Name of the device
    pub device: String,
    /// Name of its counter
    pub counter: String,
    /// Increase between the two readings
    pub by: u64,
}

/// Two readings of the counters, compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// The counters that moved between the readings.
    pub moved: Vec<Moved>,
    /// Time between the readings, in milliseconds.
    pub milliseconds: u64,
    /// The clients that the node of this machine counts.
    pub clients: BTreeSet<String>,
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, counter, by } = self;
        write!(f, "{device}: {counter} moved by {by}")
    }
}

impl CounterReading {
    /// Reads the counters of all devices.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let mut counters = BTreeMap::new();
        if let Some(qat) = qat::section(root).known {
            let mut requests = 0_u64;
            let mut readable = false;
            for device in &qat.devices {
                readable |= !device.engines.is_empty();
                requests = requests.saturating_add(device.requests());
            }
            // Ordinary users can read only the interrupts.
            let (name, count) = match qat.interrupts {
                _ if readable => ("requests to its firmware", Some(requests)),
                interrupts => ("interrupts", interrupts.filter(|_| !qat.devices.is_empty())),
            };
            if let Some(count) = count {
                counters.insert(("Intel QAT".to_owned(), name.to_owned()), count);
            }
        }
        let mut reader = SectionReader::new(root);
        for (name, count) in virtio_interrupts(&mut reader) {
            counters.insert(("virtio-crypto".to_owned(), name), count);
        }
        if let Some(text) = reader.text_if_there("proc/net/tls_stat") {
            let devices = network::counters(&text);
            for (name, count) in devices.into_iter().filter(|(name, _)| name.ends_with("Device")) {
                counters.insert(("a network card".to_owned(), name), count);
            }
        }
        Self(counters)
    }

    /// Adds what the node of this machine has done for one client.
    pub fn add_client(&mut self, identity: String, jobs: u64) {
        let sum = self.0.entry((POOL.to_owned(), identity)).or_default();
        *sum = sum.saturating_add(jobs);
    }

    /// Compares two readings, `time` apart.
    #[must_use]
    pub fn watched(&self, later: &Self, time: Duration) -> Watched {
        let clients = later.0.keys().filter(|(device, _)| device == POOL);
        Watched {
            moved: self.moved(later),
            milliseconds: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            clients: clients.map(|(_, identity)| identity.clone()).collect(),
        }
    }

    /// The counters that moved from `self` to `later`.
    fn moved(&self, later: &Self) -> Vec<Moved> {
        let before = |key| self.0.get(key).copied().unwrap_or(0);
        let moved = later.0.iter().filter_map(|(key, count)| {
            // A device that was reset in between counts from zero.
            let by = count.checked_sub(before(key)).unwrap_or(*count);
            let (device, counter) = key.clone();
            (by > 0).then_some(Moved { device, counter, by })
        });
        moved.collect()
    }
}

/// Interrupts of virtio-crypto queues, by queue.
fn virtio_interrupts(reader: &mut SectionReader<'_>) -> Vec<(String, u64)> {
    let text = reader.table("proc/interrupts").unwrap_or_default();
    let is_one = |line: &str| line.contains("dataq.") || line.contains("virtio-crypto");
    let named = interrupts(&text, is_one).map(|(line, count)| {
        let name = line.split_whitespace().last().unwrap_or_default();
        (name.to_owned(), count)
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(count: u64) -> CounterReading {
        let key = ("Intel QAT".to_owned(), "requests".to_owned());
        CounterReading(BTreeMap::from([(key, count)]))
    }

    #[test]
    fn report_names_only_counters_that_moved() {
        assert!(counters(5).moved(&counters(5)).is_empty());
        let moved = counters(5).moved(&counters(12));
        assert_eq!(moved[0].to_string(), "Intel QAT: requests moved by 7");
        assert_eq!(counters(5).moved(&counters(3))[0].by, 3, "the device was reset in between");
        assert_eq!(CounterReading::default().moved(&counters(2))[0].by, 2);
        assert!(counters(5).moved(&CounterReading::default()).is_empty());
    }
}
