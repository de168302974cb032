// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Readings of one machine over time: `doctor` needs one or two, `watch` repeats them.

use std::mem;
use std::thread;
use std::time::Duration;

use millrace_hostfs::Root;

use super::system::{self, System};
use super::watch::{self, CounterRates, WatchReading};
use super::{CHECKS, Check, Diagnosis, Facts, examine};
use crate::network::Network;
use crate::qat::Qat;
use crate::report::Report;
use crate::section::{Section, Unread};
use crate::{kernel, network, qat};

/// Time between two readings of a device with open requests: a healthy device answers within microseconds.
const BETWEEN_READINGS: Duration = Duration::from_secs(1);

/// Runs the checks that `wanted` selects.
///
/// On a live machine with open QAT requests the counters are read again after a second, to tell requests that hang from
/// requests in progress.
#[must_use]
pub fn diagnose(root: &Root, wanted: impl Fn(&Check) -> bool) -> Diagnosis {
    let mut observation = Observation::start(root);
    if root.is_live() && observation.has_open_requests() {
        thread::sleep(BETWEEN_READINGS);
        observation.repeat();
    }
    observation.diagnosis(wanted)
}

/// The last two readings of one machine.
#[derive(Debug)]
pub struct Observation<'a> {
    root: &'a Root,
    report: Report,
    system: Section<System>,
    earlier: Option<(Section<Qat>, Section<Network>)>,
}

impl<'a> Observation<'a> {
    /// Reads everything once.
    #[must_use]
    pub fn start(root: &'a Root) -> Self {
        Self { root, report: Report::of(root), system: system::section(root), earlier: None }
    }

    /// Reads again what changes while a machine runs: counters, kernel, settings. Libraries and the
    /// processor keep their first reading.
    pub fn repeat(&mut self) {
        self.report.kernel = kernel::section(self.root);
        self.system = system::section(self.root);
        self.earlier = Some((
            mem::replace(&mut self.report.qat, qat::section(self.root)),
            mem::replace(&mut self.report.network, network::section(self.root)),
        ));
    }

    /// Whether a QAT device had unanswered requests at the last reading.
    #[must_use]
    pub fn has_open_requests(&self) -> bool {
        let qat = self.report.qat.known.as_ref();
        qat.is_some_and(|qat| qat.devices.iter().any(|device| device.unanswered() > 0))
    }

    /// Runs the checks that `wanted` selects on the last reading.
    #[must_use]
    pub fn diagnosis(&self, wanted: impl Fn(&Check) -> bool) -> Diagnosis {
        let nothing = System::default();
        let system = self.system.known.as_ref().unwrap_or(&nothing);
        let earlier = self.earlier.as_ref().and_then(|(qat, _)| qat.known.as_ref());
        let facts = Facts::new(&self.report, system).after(earlier);
        let sections = [
            &self.system.unread,
            &self.report.qat.unread,
            &self.report.kernel.unread,
            &self.report.network.unread,
            &self.report.cpu.unread,
            &self.report.libcrypto.unread,
        ];
        let mut unread: Vec<Unread> = Vec::new();
        for entry in sections.into_iter().flatten() {
            if !unread.contains(entry) {
                unread.push(entry.clone());
            }
        }
        // Every machine has one of them, also an unpacked firmware. A mount that is missing has neither.
        let cpu = self.report.cpu.known.as_ref();
        let examined = cpu.is_some_and(|cpu| !self.report.live || cpu.processors.is_some());
        let unknown = (!examined).then(|| {
            "there is neither proc/cpuinfo nor a program: is this the root of a machine, and is it mounted?"
                .to_owned()
        });
        Diagnosis {
            format: Diagnosis::FORMAT,
            live: self.report.live,
            checks: CHECKS.iter().filter(|check| wanted(check)).count(),
            findings: examine(&facts, wanted),
            unknown,
            unread,
        }
    }

    /// Rates of the counters between the last two readings, `elapsed` apart; none after the first.
    #[must_use]
    pub fn rates(&self, elapsed: Duration) -> Option<CounterRates> {
        let (qat, network) = self.earlier.as_ref()?;
        Some(watch::rates(
            WatchReading { qat: qat.known.as_ref(), network: network.known.as_ref() },
            WatchReading {
                qat: self.report.qat.known.as_ref(),
                network: self.report.network.known.as_ref(),
            },
            elapsed,
        ))
    }
}
