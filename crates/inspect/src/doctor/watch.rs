// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Repeated readings: which changes deserve an alert, and how fast counters move.
//!
//! ```text
//!   findings of a reading ──► Watcher::observe(now) ──► alerts: appears, changes, goes
//!   two readings          ──► rates(…)              ──► requests per second, bytes per second
//! ```
//!
//! Pure: time is an argument, and sending alerts is the caller's task.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Finding, Severity};
use crate::network::Network;
use crate::qat::Qat;
use crate::qat::formats::FirmwareHeartbeat;

/// Consecutive readings with a finding before it alerts, unless it is critical: a single reading may show a
/// passing state.
const READINGS_TO_APPEAR: u32 = 2;
/// Consecutive readings without a finding before it counts as gone: otherwise a flapping finding would alert
/// forever.
const READINGS_TO_GO: u32 = 3;
/// Alerts per minute; the others wait. A person cannot read more, and each alert may be a page.
pub const MAX_ALERTS_PER_MINUTE: usize = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// How a finding differs between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum FindingChange {
    /// New since the last readings
    Appears,
    /// Its severity changed
    Changes,
    /// Gone
    Goes,
}

impl FindingChange {
    /// Name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// An alert about one finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Alert {
    /// Whether the finding appeared, changed its severity or disappeared
    pub change: FindingChange,
    /// The finding at its last reading
    pub finding: Finding,
}

/// One line of `millrace watch --json`: rates, or an alert.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Line {
    /// Time of the reading, in seconds since 1970
    pub time: u64,
    /// Rates of counters since the previous reading
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates: Option<CounterRates>,
    /// Change of a finding
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alert: Option<Alert>,
}

/// A finding of earlier readings.
#[derive(Debug)]
struct Known {
    /// The finding at its last reading.
    finding: Finding,
    present: bool,
    /// Consecutive readings with the same `present`.
    readings: u32,
    /// Severity of the last alert, unless the finding is gone since.
    alerted: Option<Severity>,
    /// Consecutive readings with a severity other than `alerted`.
    differing: u32,
}

/// Remembers findings and alerts, and decides which alerts are due.
#[derive(Debug, Default)]
pub struct Watcher {
    known: BTreeMap<String, Known>,
    /// Times of the alerts of the last minute.
    recent: VecDeque<Duration>,
}

impl Watcher {
    /// A watcher without findings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the findings of one reading and returns the alerts that are due, the worst first. `now` counts
    /// from an arbitrary start and never decreases. Alerts beyond [`MAX_ALERTS_PER_MINUTE`] wait for a later
    /// reading, and are dropped if the finding is gone by then.
    pub fn observe(&mut self, now: Duration, findings: &[Finding]) -> Vec<Alert> {
        self.update(findings);
        while let Some(oldest) = self.recent.front() {
            if now.saturating_sub(*oldest) < MINUTE {
                break;
            }
            self.recent.pop_front();
        }
        let mut due: Vec<(Severity, String, FindingChange)> = self
            .known
            .iter()
            .filter_map(|(id, known)| Some((known.finding.severity, id.clone(), known.due()?)))
            .collect();
        due.sort_by_key(|(severity, ..)| *severity);
        let free = MAX_ALERTS_PER_MINUTE.saturating_sub(self.recent.len());
        let mut alerts = Vec::new();
        for (_, id, change) in due.into_iter().take(free) {
            self.recent.push_back(now);
            alerts.extend(self.alert(&id, change));
        }
        // A finding that came and went without an alert is forgotten.
        self.known.retain(|_, known| known.present || known.alerted.is_some());
        alerts
    }

    fn update(&mut self, findings: &[Finding]) {
        for known in self.known.values_mut() {
            let found = findings.iter().find(|found| found.id == known.finding.id);
            known.observe(found);
        }
        for finding in findings {
            self.known.entry(finding.id.clone()).or_insert_with(|| Known {
                finding: finding.clone(),
                present: true,
                readings: 1,
                alerted: None,
                differing: 0,
            });
        }
    }

    fn alert(&mut self, id: &str, change: FindingChange) -> Option<Alert> {
        let known = self.known.get_mut(id)?;
        known.alerted = match change {
            FindingChange::Goes => None,
            FindingChange::Appears | FindingChange::Changes => Some(known.finding.severity),
        };
        known.differing = 0;
        Some(Alert { change, finding: known.finding.clone() })
    }
}

impl Known {
    fn observe(&mut self, found: Option<&Finding>) {
        let present = found.is_some();
        self.readings = if present == self.present { self.readings.saturating_add(1) } else { 1 };
        self.present = present;
        if let Some(found) = found {
            self.finding = found.clone();
            let differs = self.alerted.is_some_and(|alerted| alerted != found.severity);
            self.differing = if differs { self.differing + 1 } else { 0 };
        }
    }

    fn due(&self) -> Option<FindingChange> {
        let urgent = self.finding.severity == Severity::Critical;
        match (self.present, self.alerted) {
            (true, None) => {
                (urgent || self.readings >= READINGS_TO_APPEAR).then_some(FindingChange::Appears)
            }
            (true, Some(told)) if told != self.finding.severity => {
                (urgent || self.differing >= READINGS_TO_APPEAR).then_some(FindingChange::Changes)
            }
            (false, Some(_)) => (self.readings >= READINGS_TO_GO).then_some(FindingChange::Goes),
            _ => None,
        }
    }
}

/// Rates of counters between two readings.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CounterRates {
    /// Time between the readings, in seconds
    pub seconds: f64,
    /// QAT devices other than virtual functions
    pub qat: Vec<DeviceRate>,
    /// Interfaces with traffic
    pub interfaces: Vec<InterfaceRate>,
    /// New kernel TLS connections per second; null without kernel TLS
    pub ktls_per_second: Option<f64>,
    /// Packets per second dropped by IPsec; null without IPsec
    pub ipsec_errors_per_second: Option<f64>,
}

/// One QAT device.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DeviceRate {
    /// Bus address
    pub address: String,
    /// Whether it is up; null if unknown
    pub up: Option<bool>,
    /// Requests per second; null if its counters could not be read, or were reset
    pub requests_per_second: Option<f64>,
    /// Open requests at the second reading
    pub open: u64,
    /// Answer of the firmware; null if it was not asked
    pub heartbeat: Option<FirmwareHeartbeat>,
}

/// Traffic of a network interface between two readings.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct InterfaceRate {
    /// Name of the interface
    pub name: String,
    /// Received bytes per second
    pub received_bytes_per_second: f64,
    /// Sent bytes per second
    pub sent_bytes_per_second: f64,
}

/// The counters of a machine at one time; `None` where it has none or they could not be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchReading<'a> {
    /// Intel QAT cards.
    pub qat: Option<&'a Qat>,
    /// Network interfaces and the kernel's cryptography.
    pub network: Option<&'a Network>,
}

/// Rates of the counters. A counter that decreased was reset and has no rate.
#[must_use]
pub fn rates(before: WatchReading<'_>, after: WatchReading<'_>, elapsed: Duration) -> CounterRates {
    let seconds = elapsed.as_secs_f64();
    // Counters stay far below 2^53.
    #[expect(clippy::cast_precision_loss, reason = "a rate is displayed with three digits")]
    let rate = |before: u64, after: u64| {
        let moved = after.checked_sub(before)?;
        (seconds > 0.0).then(|| moved as f64 / seconds)
    };
    let of_network = |pick: fn(&Network) -> Option<&BTreeMap<String, u64>>, names: &[&str]| {
        let before = before.network.and_then(pick)?;
        let after = after.network.and_then(pick)?;
        rate(sum(before, names), sum(after, names))
    };
    CounterRates {
        seconds,
        qat: devices(before.qat, after.qat, &rate),
        interfaces: interfaces(before.network, after.network, &rate),
        ktls_per_second: of_network(
            |network| network.ktls.as_ref(),
            &["TlsTxSw", "TlsRxSw", "TlsTxDevice", "TlsRxDevice"],
        ),
        ipsec_errors_per_second: of_network(|network| network.ipsec_errors.as_ref(), &[]),
    }
}

/// The sum of the named counters; of all without names.
fn sum(counters: &BTreeMap<String, u64>, names: &[&str]) -> u64 {
    let wanted =
        counters.iter().filter(|(name, _)| names.is_empty() || names.contains(&name.as_str()));
    wanted.fold(0, |sum, (_, count)| sum.saturating_add(*count))
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

    /// The alerts of readings ten seconds apart.
    fn alerts(readings: &[&[Finding]]) -> Vec<Vec<(FindingChange, Severity)>> {
        let mut watcher = Watcher::new();
        readings
            .iter()
            .zip(0_u32..)
            .map(|(findings, number)| {
                let alerts = watcher.observe(Duration::from_secs(10) * number, findings);
                let pair = |alert: Alert| (alert.change, alert.finding.severity);
                alerts.into_iter().map(pair).collect()
            })
            .collect()
    }

    #[test]
    fn findings_alert_once_and_their_end_once() {
        use FindingChange::{Appears, Goes};
        use Severity::Warning;
        let found = [finding("x", Warning)];
        let (there, gone): (&[Finding], &[Finding]) = (&found, &[]);
        assert_eq!(
            alerts(&[there, there, there, gone, gone, gone, gone]),
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
    fn flapping_finding_alerts_once_at_most() {
        let found = [finding("x", Severity::Warning)];
        let (there, gone): (&[Finding], &[Finding]) = (&found, &[]);
        // Never twice in a row: no alert.
        assert!(alerts(&[there, gone, there, gone, there, gone]).concat().is_empty());
        // One alert; then gone for at most two readings at a time: no more.
        let readings = [there, there, gone, gone, there, gone, gone, there];
        assert_eq!(alerts(&readings).concat().len(), 1);
    }

    #[test]
    fn critical_finding_alerts_at_once() {
        use FindingChange::{Appears, Changes};
        use Severity::{Critical, Warning};
        let (bad, better) = ([finding("x", Critical)], [finding("x", Warning)]);
        assert_eq!(
            alerts(&[&bad, &better, &better, &bad]),
            [
                vec![(Appears, Critical)],
                vec![],
                vec![(Changes, Warning)],
                vec![(Changes, Critical)]
            ]
        );
    }

    #[test]
    fn alerts_beyond_the_limit_wait_and_the_worst_come_first() {
        let mut findings: Vec<Finding> = (0..MAX_ALERTS_PER_MINUTE + 5)
            .map(|number| finding(&format!("n{number:02}"), Severity::Notice))
            .collect();
        findings.push(finding("zzz", Severity::Critical));
        let mut watcher = Watcher::new();
        let at = Duration::from_secs;
        assert_eq!(watcher.observe(at(0), &findings).len(), 1, "the critical one");
        let second = watcher.observe(at(1), &findings);
        assert_eq!(second.len(), MAX_ALERTS_PER_MINUTE - 1);
        assert!(watcher.observe(at(30), &findings).is_empty());
        assert_eq!(watcher.observe(at(62), &findings).len(), 6);
        assert!(watcher.observe(at(200), &findings).is_empty());
    }

    #[test]
    fn counters_that_were_reset_have_no_rate() {
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
        let reading = |network| WatchReading { network: Some(network), ..WatchReading::default() };
        let two = Duration::from_secs(2);
        let moved = rates(reading(&low), reading(&high), two);
        assert_eq!(moved.interfaces[0].received_bytes_per_second, 1_000.0);
        assert_eq!(moved.ktls_per_second, Some(1_000.0));
        let fell = rates(reading(&high), reading(&low), two);
        assert!(fell.interfaces.is_empty() && fell.ktls_per_second.is_none());
        let at_once = rates(reading(&low), reading(&high), Duration::ZERO);
        assert!(at_once.interfaces.is_empty());
    }
}
