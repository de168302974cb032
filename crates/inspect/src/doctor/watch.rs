// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Looking again and again: which changes are worth an alert, and how fast counters move.
//!
//! ```text
//!   findings of a look ──► Watcher::look(now) ──► alerts: appears, changes, goes
//!   two snapshots      ──► rates(…)           ──► requests per second, bytes per second
//! ```
//!
//! Pure: time is an argument, and nothing is sent from here.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Finding, Severity};
use crate::network::Network;
use crate::qat::Qat;
use crate::qat::formats::Heartbeat;

/// Looks in a row that must have a finding before it alerts, unless it is critical: one look may fall
/// into a moment.
const LOOKS_TO_APPEAR: u32 = 2;
/// Looks in a row that must not have it before it is called gone: a finding that comes and goes would
/// alert for ever.
const LOOKS_TO_GO: u32 = 3;
/// Alerts in one minute; the others wait. More are not read by anybody, and each may be a page.
pub const MAX_ALERTS_PER_MINUTE: usize = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// What became of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It was not there before
    Appears,
    /// It is better or worse than before
    Changes,
    /// It is not there any more
    Goes,
}

impl Change {
    /// Its name, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Appears => "appears",
            Self::Changes => "changes",
            Self::Goes => "goes",
        }
    }
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Alert {
    /// What became of it
    pub change: Change,
    /// The finding, as it was last seen
    pub finding: Finding,
}

/// One line of `millrace watch --json`: rates, or an alert.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Line {
    /// When, in seconds since 1970
    pub time: u64,
    /// How fast counters moved since the look before
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
    /// What became of a finding
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alert: Option<Alert>,
}

/// A finding that is known.
#[derive(Debug)]
struct Known {
    /// As it was last seen.
    finding: Finding,
    /// Looks in a row that had it, or had it not.
    present: bool,
    looks: u32,
    /// The severity that was told, if any was.
    told: Option<Severity>,
    /// Looks in a row that had it with another severity than was told.
    other: u32,
}

/// Remembers what was told.
#[derive(Debug, Default)]
pub struct Watcher {
    known: BTreeMap<String, Known>,
    /// When the alerts of the last minute were given.
    recent: VecDeque<Duration>,
}

impl Watcher {
    /// Nothing is known.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the findings of a look at `now` (since any beginning, and never less than before); gives
    /// what to tell. What is above [`MAX_ALERTS_PER_MINUTE`] is told after a later look, if it is still
    /// so; the worst first.
    pub fn look(&mut self, now: Duration, findings: &[Finding]) -> Vec<Alert> {
        self.remember(findings);
        while let Some(oldest) = self.recent.front() {
            if now.saturating_sub(*oldest) < MINUTE {
                break;
            }
            self.recent.pop_front();
        }
        let mut due: Vec<(Severity, String, Change)> = self
            .known
            .iter()
            .filter_map(|(id, known)| Some((known.finding.severity, id.clone(), known.due()?)))
            .collect();
        due.sort_by_key(|(severity, ..)| *severity);
        let free = MAX_ALERTS_PER_MINUTE.saturating_sub(self.recent.len());
        let mut alerts = Vec::new();
        for (_, id, change) in due.into_iter().take(free) {
            self.recent.push_back(now);
            alerts.extend(self.tell(&id, change));
        }
        // What came and went untold is forgotten.
        self.known
            .retain(|_, known| known.present || known.told.is_some());
        alerts
    }

    fn remember(&mut self, findings: &[Finding]) {
        for known in self.known.values_mut() {
            let found = findings.iter().find(|found| found.id == known.finding.id);
            known.seen(found);
        }
        for finding in findings {
            self.known
                .entry(finding.id.clone())
                .or_insert_with(|| Known {
                    finding: finding.clone(),
                    present: true,
                    looks: 1,
                    told: None,
                    other: 0,
                });
        }
    }

    fn tell(&mut self, id: &str, change: Change) -> Option<Alert> {
        let known = self.known.get_mut(id)?;
        known.told = match change {
            Change::Goes => None,
            Change::Appears | Change::Changes => Some(known.finding.severity),
        };
        known.other = 0;
        Some(Alert {
            change,
            finding: known.finding.clone(),
        })
    }
}

impl Known {
    fn seen(&mut self, found: Option<&Finding>) {
        let present = found.is_some();
        self.looks = if present == self.present {
            self.looks.saturating_add(1)
        } else {
            1
        };
        self.present = present;
        if let Some(found) = found {
            self.finding = found.clone();
            let differs = self.told.is_some_and(|told| told != found.severity);
            self.other = if differs { self.other + 1 } else { 0 };
        }
    }

    fn due(&self) -> Option<Change> {
        let urgent = self.finding.severity == Severity::Critical;
        match (self.present, self.told) {
            (true, None) => (urgent || self.looks >= LOOKS_TO_APPEAR).then_some(Change::Appears),
            (true, Some(told)) if told != self.finding.severity => {
                (urgent || self.other >= LOOKS_TO_APPEAR).then_some(Change::Changes)
            }
            (false, Some(_)) => (self.looks >= LOOKS_TO_GO).then_some(Change::Goes),
            _ => None,
        }
    }
}

/// How fast counters moved between two looks.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Rates {
    /// Time between the looks
    pub seconds: f64,
    /// QAT devices that are no virtual functions
    pub qat: Vec<DeviceRate>,
    /// Interfaces through which anything went
    pub interfaces: Vec<InterfaceRate>,
    /// Connections per second that kernel TLS took over; null if the kernel has none
    pub ktls_per_second: Option<f64>,
    /// Packets per second that IPsec dropped; null if the kernel has none
    pub ipsec_errors_per_second: Option<f64>,
}

/// One QAT device.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DeviceRate {
    /// Bus address
    pub address: String,
    /// Whether it is up; null if nothing says so
    pub up: Option<bool>,
    /// Requests per second; null if its counters could not be read, or began anew
    pub requests_per_second: Option<f64>,
    /// Requests that were open at the second look
    pub open: u64,
    /// What the firmware answers; null if it was not asked
    pub heartbeat: Option<Heartbeat>,
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct InterfaceRate {
    /// Its name
    pub name: String,
    /// Bytes per second that it received
    pub received_bytes_per_second: f64,
    /// Bytes per second that it sent
    pub sent_bytes_per_second: f64,
}

/// How fast counters moved; counters that fell have begun anew, and have no rate.
#[must_use]
pub fn rates(
    before: (Option<&Qat>, Option<&Network>),
    after: (Option<&Qat>, Option<&Network>),
    elapsed: Duration,
) -> Rates {
    let seconds = elapsed.as_secs_f64();
    // Counters stay far below 2^53.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = |before: u64, after: u64| {
        let moved = after.checked_sub(before)?;
        (seconds > 0.0).then(|| moved as f64 / seconds)
    };
    let sum = |counters: &BTreeMap<String, u64>, names: &[&str]| {
        let wanted = counters
            .iter()
            .filter(|(name, _)| names.is_empty() || names.contains(&name.as_str()));
        wanted.fold(0_u64, |sum, (_, count)| sum.saturating_add(*count))
    };
    let of_network = |pick: fn(&Network) -> Option<&BTreeMap<String, u64>>, names: &[&str]| {
        let (before, after) = (before.1.and_then(pick)?, after.1.and_then(pick)?);
        rate(sum(before, names), sum(after, names))
    };
    Rates {
        seconds,
        qat: devices(before.0, after.0, &rate),
        interfaces: interfaces(before.1, after.1, &rate),
        ktls_per_second: of_network(
            |network| network.ktls.as_ref(),
            &["TlsTxSw", "TlsRxSw", "TlsTxDevice", "TlsRxDevice"],
        ),
        ipsec_errors_per_second: of_network(|network| network.ipsec_errors.as_ref(), &[]),
    }
}

fn devices(
    before: Option<&Qat>,
    after: Option<&Qat>,
    rate: &dyn Fn(u64, u64) -> Option<f64>,
) -> Vec<DeviceRate> {
    let devices = after.map_or(&[][..], |qat| &qat.devices);
    let physical = devices.iter().filter(|device| !device.virtual_function);
    physical
        .map(|device| {
            let earlier = before.and_then(|qat| {
                let mut devices = qat.devices.iter();
                devices.find(|earlier| earlier.address == device.address)
            });
            let earlier =
                earlier.filter(|earlier| !earlier.engines.is_empty() && !device.engines.is_empty());
            DeviceRate {
                address: device.address.clone(),
                up: device.up,
                requests_per_second: earlier
                    .and_then(|earlier| rate(earlier.requests(), device.requests())),
                open: device.unanswered(),
                heartbeat: device.heartbeat,
            }
        })
        .collect()
}

fn interfaces(
    before: Option<&Network>,
    after: Option<&Network>,
    rate: &dyn Fn(u64, u64) -> Option<f64>,
) -> Vec<InterfaceRate> {
    let interfaces = after.map_or(&[][..], |network| &network.interfaces);
    let one = |interface: &crate::network::Interface| {
        let mut earlier = before?.interfaces.iter();
        let earlier = earlier.find(|earlier| earlier.name == interface.name)?;
        let received = rate(earlier.received_bytes?, interface.received_bytes?)?;
        let sent = rate(earlier.sent_bytes?, interface.sent_bytes?)?;
        (received + sent > 0.0).then(|| InterfaceRate {
            name: interface.name.clone(),
            received_bytes_per_second: received,
            sent_bytes_per_second: sent,
        })
    };
    interfaces.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(id: &str, severity: Severity) -> Finding {
        Finding {
            id: id.to_owned(),
            severity,
            title: id.to_owned(),
            evidence: Vec::new(),
            impact: String::new(),
            remedy: Vec::new(),
        }
    }

    /// Looks ten seconds apart; gives what each told.
    fn told(looks: &[&[Finding]]) -> Vec<Vec<(Change, Severity)>> {
        let mut watcher = Watcher::new();
        looks
            .iter()
            .zip(0_u32..)
            .map(|(findings, number)| {
                let alerts = watcher.look(Duration::from_secs(10) * number, findings);
                let pair = |alert: Alert| (alert.change, alert.finding.severity);
                alerts.into_iter().map(pair).collect()
            })
            .collect()
    }

    #[test]
    fn findings_alert_once_and_their_end_once() {
        use Change::{Appears, Goes};
        use Severity::Warning;
        let found = [finding("x", Warning)];
        let (there, gone): (&[Finding], &[Finding]) = (&found, &[]);
        assert_eq!(
            told(&[there, there, there, gone, gone, gone, gone]),
            [
                vec![],
                vec![(Appears, Warning)],
                vec![],
                vec![],
                vec![],
                vec![(Goes, Warning)],
                vec![]
            ]
        );
    }

    #[test]
    fn flapping_is_silent() {
        let found = [finding("x", Severity::Warning)];
        let (there, gone): (&[Finding], &[Finding]) = (&found, &[]);
        // Never twice in a row: never told.
        assert!(
            told(&[there, gone, there, gone, there, gone])
                .concat()
                .is_empty()
        );
        // Told once, then gone for two looks at a time: nothing more.
        let looks = [there, there, gone, gone, there, gone, gone, there];
        assert_eq!(told(&looks).concat().len(), 1);
    }

    #[test]
    fn what_is_critical_waits_for_nothing() {
        use Change::{Appears, Changes};
        use Severity::{Critical, Warning};
        let (bad, better) = ([finding("x", Critical)], [finding("x", Warning)]);
        assert_eq!(
            told(&[&bad, &better, &better, &bad]),
            [
                vec![(Appears, Critical)],
                vec![],
                vec![(Changes, Warning)],
                vec![(Changes, Critical)]
            ]
        );
    }

    #[test]
    fn more_than_a_minute_bears_is_told_later_and_the_worst_first() {
        let mut findings: Vec<Finding> = (0..MAX_ALERTS_PER_MINUTE + 5)
            .map(|number| finding(&format!("n{number:02}"), Severity::Notice))
            .collect();
        findings.push(finding("zzz", Severity::Critical));
        let mut watcher = Watcher::new();
        let at = Duration::from_secs;
        assert_eq!(watcher.look(at(0), &findings).len(), 1, "the critical one");
        let second = watcher.look(at(1), &findings);
        assert_eq!(second.len(), MAX_ALERTS_PER_MINUTE - 1);
        assert!(watcher.look(at(30), &findings).is_empty());
        assert_eq!(watcher.look(at(62), &findings).len(), 6);
        assert!(watcher.look(at(200), &findings).is_empty());
    }

    #[test]
    fn counters_that_begin_anew_have_no_rate() {
        let network = |received: u64| {
            let mut network = Network::default();
            network.interfaces.push(crate::network::Interface {
                name: "eth0".to_owned(),
                kind: crate::network::InterfaceKind::Card,
                driver: None,
                mtu_bytes: None,
                received_bytes: Some(received),
                sent_bytes: Some(7),
                tls_offload: None,
                esp_offload: None,
            });
            network.ktls = Some(BTreeMap::from([("TlsTxSw".to_owned(), received)]));
            network
        };
        let (low, high) = (network(1_000), network(3_000));
        let two = Duration::from_secs(2);
        let moved = rates((None, Some(&low)), (None, Some(&high)), two);
        assert_eq!(moved.interfaces[0].received_bytes_per_second, 1_000.0);
        assert_eq!(moved.ktls_per_second, Some(1_000.0));
        let fell = rates((None, Some(&high)), (None, Some(&low)), two);
        assert!(fell.interfaces.is_empty() && fell.ktls_per_second.is_none());
        let at_once = rates((None, Some(&low)), (None, Some(&high)), Duration::ZERO);
        assert!(at_once.interfaces.is_empty());
    }
}
