// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations that a running server computes in its own process, counted; and the group that it agrees on. A handshake
//! that OpenSSL's `default` provider computed looks the same, so nothing else is a proof.

use millrace_edge::counters::{self, event};
use millrace_edge::local_counts::LocalCounts;
use millrace_hostfs::process::Proc;

use super::judge::Provider;
use super::tls::{self, TlsTarget};
use super::{CheckFinding, CheckOptions, CheckOutcome, CheckReport};

/// Identifiers of findings.
const LOCAL: &str = "local";
const GROUPS: &str = "groups";

/// `Seccomp:` of proc(5) for a process with filters of system calls.
const FILTERED: u64 = 2;

/// The counters of the server that is checked.
pub(super) fn counts(options: &CheckOptions, report: &CheckReport) -> Option<LocalCounts> {
    let proc = Proc::open(&options.proc).ok()?;
    let name = counters::MEMORY_NAME.to_str().ok()?;
    let memory = proc.memory_file(report.pid?, name, counters::MAX_BYTES)?;
    LocalCounts::parse(&memory.bytes)
}

/// Adds the findings about what was computed since `before`. Only for a server whose provider has the setting `local`.
pub(super) fn judge(
    options: &CheckOptions,
    before: Option<&LocalCounts>,
    provider: &Provider,
    report: &mut CheckReport,
) {
    if !provider.local || report.pid.is_none() {
        return;
    }
    let now = counts(options, report);
    let (Some(before), Some(now)) = (before, now) else {
        let is_filtered = Proc::open(&options.proc)
            .ok()
            .zip(report.pid)
            .is_some_and(|(proc, pid)| proc.status_number(pid, "Seccomp") == Some(FILTERED));
        if is_filtered {
            let seen = "the server shows no counters of what it computes itself: its filter of system calls may forbid \
                        memory files (memfd_create); it computes without them";
            let remedy = "SystemCallFilter=@system-service in a drop-in of the unit allows them";
            return report.add(LOCAL, CheckOutcome::Unseen, seen, remedy);
        }
        let remedy =
            "restart the server, and run this as root: a server takes openssl.cnf at its start";
        let seen = "the server shows no counters of what it computes itself";
        return report.add(LOCAL, CheckOutcome::Unseen, seen, remedy);
    };
    report.findings.push(finding(&now.since(before)));
}

fn finding(counted: &LocalCounts) -> CheckFinding {
    let served: Vec<String> =
        counted.operations().map(|(name, count)| format!("{name} {count}")).collect();
    if served.is_empty() {
        let seen = "OpenSSL's default provider computed every handshake of this check";
        let remedy = "is `default_properties = ?millrace.local=yes` in the alg_section of openssl.cnf, and does \
                      the server offer TLS 1.3?";
        return CheckFinding::new(LOCAL, CheckOutcome::Failure, seen, remedy);
    }
    let cache = match counted.fetches() {
        (_, 0) => "no fetch was answered from the cache".to_owned(),
        (hits, all) => format!("{hits} of {all} fetches from the cache"),
    };
    let mut seen = format!("operations computed in the server: {}; {cache}", served.join(", "));
    for (event, what) in [
        (event::TICKETS_JOINED, "tickets joined with the next one"),
        (event::PAIRS_AHEAD, "key pairs made ahead"),
    ] {
        if counted.of(event) > 0 {
            seen.push_str(&format!("; {} {what}", counted.of(event)));
        }
    }
    let costs: Vec<String> = counted
        .costs()
        .map(|(primitive, here, there)| format!("{primitive} {here} ns, OpenSSL's own {there}"))
        .collect();
    if !costs.is_empty() {
        seen.push_str(&format!("; measured at the start: {}", costs.join(", ")));
    }
    CheckFinding::new(LOCAL, CheckOutcome::Good, seen, None)
}

/// Adds the finding about the group that the server chooses for a client that prefers the post-quantum hybrid.
pub(super) fn group(target: &TlsTarget, report: &mut CheckReport) {
    const CHECK: &str = "group";
    match target.post_quantum_group() {
        Ok(group) if group.contains("MLKEM") => {
            let seen = format!("{group} with a client that offers it");
            report.add(CHECK, CheckOutcome::Good, seen, None);
        }
        Ok(group) => {
            let seen = format!("{group} with a client that offers X25519MLKEM768");
            let remedy = "name X25519MLKEM768 first in ssl_ecdh_curve (nginx) or ssl-default-bind-curves (HAProxy): \
                          millrace gateway SERVER --local --pq";
            report.add(CHECK, CheckOutcome::Warning, seen, remedy);
        }
        Err(error) => report.add(CHECK, CheckOutcome::Unseen, error.to_string(), None),
    }
}

/// A group that the provider computes: OpenSSL's name for it and the name of its counter, which are the same.
type GroupName = &'static str;

/// Response of a server to a client that offers one group alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupState {
    /// The server agrees, and the provider computed the key share.
    Here,
    /// The server agrees, and the provider left the key share to OpenSSL, which was measured to be faster.
    Left,
    /// The server agrees, and the provider's counter did not move.
    Exported,
    /// The server agrees; the counters are hidden from this user.
    Agreed,
    /// The server has no such group.
    Refused,
}

/// Adds the finding about each group that the provider computes, offered alone: refused, agreed, and by whom computed.
/// `named` has the groups of the server's configuration.
pub(super) fn groups(
    target: &TlsTarget,
    options: &CheckOptions,
    provider: &Provider,
    named: &[String],
    report: &mut CheckReport,
) {
    let mut states = Vec::new();
    for (group, exchange) in tls::local_groups() {
        if !provider.computes(group) {
            continue;
        }
        let before = counts(options, report);
        let agreed = match target.agrees(exchange) {
            Ok(agreed) => agreed,
            Err(error) => return report.add(GROUPS, CheckOutcome::Unseen, error.to_string(), None),
        };
        let counted = before.zip(counts(options, report));
        states.push((
            group,
            match counted {
                _ if !agreed => GroupState::Refused,
                None => GroupState::Agreed,
                Some((before, now)) if now.since(&before).of(group) > 0 => GroupState::Here,
                Some((_, now)) if is_left(&now, group) => GroupState::Left,
                Some(_) => GroupState::Exported,
            },
        ));
    }
    if states.is_empty() {
        return;
    }
    report.findings.push(groups_finding(&states, named));
}

/// Whether a primitive was measured to be slower than OpenSSL's own.
fn is_left(counted: &LocalCounts, primitive: &str) -> bool {
    let mut costs = counted.costs();
    costs.any(|(name, here, there)| name == primitive && here >= there)
}

fn groups_finding(states: &[(GroupName, GroupState)], named: &[String]) -> CheckFinding {
    let described = states.iter().map(|(group, state)| match state {
        GroupState::Here => format!("{group} computed in the server"),
        GroupState::Left => format!("{group} by OpenSSL, which is faster here"),
        GroupState::Exported => format!("{group} by OpenSSL's default provider"),
        GroupState::Agreed => format!("{group} agreed"),
        GroupState::Refused => format!("{group} refused"),
    });
    let seen = described.collect::<Vec<_>>().join(", ");
    let with = |wanted| {
        let found = states.iter().filter(move |(_, state)| *state == wanted);
        found.map(|(group, _)| *group)
    };
    let is_named = |group: &GroupName| named.iter().any(|name| name.eq_ignore_ascii_case(group));
    let unusable: Vec<GroupName> = with(GroupState::Refused).filter(is_named).collect();
    let exported: Vec<GroupName> = with(GroupState::Exported).collect();
    let remedy = if !unusable.is_empty() {
        format!(
            "{} stands in the configuration, and no client gets it: libssl drops without a word a group whose key \
             manager does not come from the provider that announces it. Is `default_properties = ?millrace.local=yes` \
             in the alg_section of openssl.cnf, and was the server restarted since?",
            unusable.join(", ")
        )
    } else if !exported.is_empty() {
        format!(
            "handshakes with {} work and gain nothing: OpenSSL exports such keys to its default provider without a \
             word. Is `default_properties = ?millrace.local=yes` in the alg_section of openssl.cnf?",
            exported.join(", ")
        )
    } else {
        return CheckFinding::new(GROUPS, CheckOutcome::Good, seen, None);
    };
    CheckFinding::new(GROUPS, CheckOutcome::Warning, seen, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts<const N: usize>(cells: [(&str, u64); N]) -> LocalCounts {
        LocalCounts::from(cells)
    }

    #[test]
    fn server_that_computes_nothing_itself_is_a_failure() {
        let none = finding(&counts([("X25519", 0), ("fetch-hits", 90)]));
        assert_eq!(none.outcome, CheckOutcome::Failure);
        assert!(none.seen.contains("default provider") && none.remedy.is_some());
        let cells = [("X25519", 32), ("fetch-hits", 30), ("fetch-misses", 10)];
        let CheckFinding { outcome, seen, .. } = finding(&counts(cells));
        assert_eq!(outcome, CheckOutcome::Good);
        assert!(seen.contains("X25519 32; 30 of 40"), "{seen}");
        let cells = [("X25519", 7), ("pairs-ahead", 7), ("ns X25519", 30), ("stock X25519", 80)];
        let seen = finding(&counts(cells)).seen;
        assert!(seen.contains("X25519 7") && seen.contains("7 key pairs"), "{seen}");
        assert!(seen.contains("X25519 30 ns, OpenSSL's own 80"), "{seen}");
    }

    #[test]
    fn silent_failures_of_groups_have_a_name() {
        use GroupState::{Agreed, Exported, Here, Left, Refused};
        let named = ["X25519MLKEM768".to_owned(), "x25519".to_owned()];
        let judged = |states: [GroupState; 2]| {
            let states = [("X25519MLKEM768", states[0]), ("X25519", states[1])];
            groups_finding(&states, &named)
        };
        let CheckFinding { outcome, seen, .. } = judged([Here, Here]);
        assert_eq!((outcome, seen.matches("in the server").count()), (CheckOutcome::Good, 2));
        assert_eq!(judged([Agreed, Agreed]).outcome, CheckOutcome::Good);
        assert_eq!(judged([Left, Here]).outcome, CheckOutcome::Good);
        let measured = counts([("ns X25519", 80), ("stock X25519", 30)]);
        assert!(is_left(&measured, "X25519") && !is_left(&measured, "X25519MLKEM768"));
        let CheckFinding { outcome, seen, remedy, .. } = judged([Exported, Here]);
        assert_eq!(outcome, CheckOutcome::Warning);
        assert!(seen.contains("X25519MLKEM768 by OpenSSL's default provider"), "{seen}");
        assert!(remedy.expect("a remedy").contains("exports such keys"));
        let CheckFinding { outcome, remedy, .. } = judged([Refused, Here]);
        assert_eq!(outcome, CheckOutcome::Warning);
        assert!(remedy.expect("a remedy").contains("no client gets it"));
        let unnamed = groups_finding(&[("SecP256r1MLKEM768", Refused)], &named);
        assert_eq!(
            unnamed.outcome,
            CheckOutcome::Good,
            "a group that is not asked for may be refused"
        );
    }
}
