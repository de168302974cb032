// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The status of a link in the text format of Prometheus. The supervisor writes it to a file of its run folder once
//! a second; node_exporter's textfile collector serves it, so that a link needs no port of its own.
//!
//! The series are bounded: members of a link, and states of the table.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use millrace_hostfs::replace::replace_file;

use super::machine::{MemberState, MemberStatus};
use super::status::{LinkState, LinkStatus};

/// A family: its name without the prefix, type, help, and the value of a link or a member; `None` leaves a series
/// out.
type Family<T> = (&'static str, &'static str, &'static str, fn(&T) -> Option<f64>);

#[rustfmt::skip]
const OF_LINK: &[Family<LinkStatus>] = &[
    ("link_up", "gauge", "Whether a member carries traffic", |link| truth(link.state != LinkState::Down)),
    ("link_members", "gauge", "Members of the link", |link| Some(link.members.len() as f64)),
    ("link_members_routed", "gauge", "Members over which packets are routed", |link| Some(link.routed.len() as f64)),
    ("link_configuration", "gauge", "Number of the applied configuration", |link| Some(link.generation as f64)),
    ("link_unconfirmed", "gauge", "Whether the former configuration comes back unless the other end is reached", |link| truth(link.confirm_within_ms.is_some())),
    ("link_certificate_end_seconds", "gauge", "End of the certificate's validity, seconds since 1970", |link| link.certificate_until.map(|time| time as f64)),
    ("link_supervised_seconds", "gauge", "Time of the supervisor's last look, seconds since 1970", |link| Some(link.at_ms as f64 / 1e3)),
];

#[rustfmt::skip]
const OF_MEMBER: &[Family<MemberStatus>] = &[
    ("member_up", "gauge", "Whether the member carries traffic", |member| truth(member.state == MemberState::Up)),
    ("member_rtt_seconds", "gauge", "Round-trip time of the last probe", |member| member.rtt_us.map(|us| us as f64 / 1e6)),
    ("member_lost_ratio", "gauge", "Lost probes among the last 20", |member| Some(f64::from(member.lost_percent) / 100.0)),
    ("member_loses_long_packets", "gauge", "Whether packets of the full MTU are lost on the path", |member| truth(member.loses_long_packets)),
    ("member_received_bytes_total", "counter", "Bytes that the socket of the process received", |member| Some(member.received_bytes as f64)),
    ("member_sent_bytes_total", "counter", "Bytes that the socket of the process sent", |member| Some(member.sent_bytes as f64)),
    ("member_cpu_seconds_total", "counter", "CPU time of the process", |member| member.cpu_ms.map(|ms| ms as f64 / 1e3)),
    ("member_restarts_total", "counter", "Starts of the process after the first", |member| Some(f64::from(member.restarts))),
];

#[expect(clippy::unnecessary_wraps, reason = "the form of a family's value")]
fn truth(holds: bool) -> Option<f64> {
    Some(if holds { 1.0 } else { 0.0 })
}

/// Writes the metrics of a link into its run folder.
pub(super) fn write_metrics(run: &Path, status: &LinkStatus) -> io::Result<()> {
    // Its suffix is that which node_exporter reads; it never sees a part of a file.
    replace_file(&run.join("metrics.prom"), render(status).as_bytes(), None)
}

fn render(status: &LinkStatus) -> String {
    let link = format!("link=\"{}\",end=\"{}\"", status.name, status.side.name());
    let mut text = String::new();
    for (name, kind, help, value) in OF_LINK {
        family(&mut text, name, kind, help);
        sample(&mut text, name, &link, value(status));
    }
    for (name, kind, help, value) in OF_MEMBER {
        family(&mut text, name, kind, help);
        for member in &status.members {
            let labels = format!("{link},member=\"{}\"", member.number);
            sample(&mut text, name, &labels, value(member));
        }
    }
    let name = "member_state";
    family(&mut text, name, "gauge", "State of the member: 1 for the present one");
    for member in &status.members {
        for state in MemberState::ALL {
            let labels = format!("{link},member=\"{}\",state=\"{}\"", member.number, state.name());
            sample(&mut text, name, &labels, truth(state == member.state));
        }
    }
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP millrace_vpn_{name} {help}\n# TYPE millrace_vpn_{name} {kind}\n");
}

fn sample(text: &mut String, name: &str, labels: &str, value: Option<f64>) {
    if let Some(value) = value {
        let _ = writeln!(text, "millrace_vpn_{name}{{{labels}}} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Side;

    fn status() -> LinkStatus {
        let member = |number, state| MemberStatus {
            number,
            state,
            reason: "a \"reason\" with quotes never becomes a label".to_owned(),
            pid: Some(1),
            rtt_us: (state == MemberState::Up).then_some(1500),
            lost_percent: 5,
            loses_long_packets: false,
            received_bytes: 10,
            sent_bytes: 20,
            cpu_ms: Some(2500),
            restarts: 3,
        };
        LinkStatus {
            name: "branch".to_owned(),
            side: Side::B,
            state: LinkState::Degraded,
            generation: 7,
            at_ms: 1_500,
            supervisor: 1,
            routed: vec![0],
            members: vec![member(0, MemberState::Up), member(1, MemberState::Silent)],
            certificate_until: None,
            confirm_within_ms: None,
        }
    }

    #[test]
    fn metrics_have_a_series_per_member_and_omit_unknown_values() {
        let text = render(&status());
        for line in [
            "millrace_vpn_link_up{link=\"branch\",end=\"b\"} 1",
            "millrace_vpn_link_members_routed{link=\"branch\",end=\"b\"} 1",
            "millrace_vpn_link_supervised_seconds{link=\"branch\",end=\"b\"} 1.5",
            "millrace_vpn_member_up{link=\"branch\",end=\"b\",member=\"1\"} 0",
            "millrace_vpn_member_rtt_seconds{link=\"branch\",end=\"b\",member=\"0\"} 0.0015",
            "millrace_vpn_member_cpu_seconds_total{link=\"branch\",end=\"b\",member=\"0\"} 2.5",
            "millrace_vpn_member_state{link=\"branch\",end=\"b\",member=\"1\",state=\"silent\"} 1",
            "millrace_vpn_member_state{link=\"branch\",end=\"b\",member=\"1\",state=\"up\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(!text.contains("certificate_end_seconds{") && !text.contains("reason"));
        assert!(!text.contains("rtt_seconds{link=\"branch\",end=\"b\",member=\"1\"}"));
    }

    #[test]
    fn each_family_has_help_and_type_once_before_its_samples() {
        let text = render(&status());
        for (name, kind, ..) in OF_MEMBER {
            let kind = format!("# TYPE millrace_vpn_{name} {kind}");
            assert_eq!(text.matches(&kind).count(), 1, "{name}");
        }
        assert!(text.ends_with('\n'));
    }
}
