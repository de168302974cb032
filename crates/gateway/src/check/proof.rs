// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The live proof: concurrent handshakes, with the node's counter and the workers' eventfds before and while the
//! connections are held.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::evidence::Evidence;
use super::{Edges, Node, Options, Outcome, Report, Share, Silence, tls};

use Outcome::{Failure, Ok as Good, Unseen, Warning};

/// Time to wait for reports of edges: they come once per second, plus one second.
const REPORTS_TAKE: Duration = Duration::from_secs(2);

/// Time to wait on a loaded machine for reports that must come, since the pool did the operations.
const LATE_REPORTS_TAKE: Duration = Duration::from_secs(30);

/// Time that a server on a loaded machine has to notice a closed connection.
const CLOSING_TAKES: Duration = Duration::from_secs(1);

/// Interval of looks at its descriptors during that time.
const LOOK: Duration = Duration::from_millis(10);

/// Interval of questions to the node while reports are awaited.
const ASK: Duration = Duration::from_millis(100);

/// The node and how to ask it.
pub(super) struct Asked<'a> {
    pub(super) node: &'a dyn Node,
    /// The socket that the server's provider connects to; `None` if its nodes are elsewhere.
    pub(super) socket: Option<&'a Path>,
    /// User id of the workers, if it is known.
    pub(super) uid: Option<u32>,
}

impl Asked<'_> {
    fn edges(&self) -> Option<Edges> {
        self.node.edges(self.socket, self.uid)
    }

    /// The counts of the edges since `before`, as soon as they cover `operations`, or when time is up. Operations
    /// that the node has `signed` are certain to be reported, the others are not.
    fn since(&self, before: &Edges, operations: u64, signed: u64) -> Option<Edges> {
        let started = Instant::now();
        loop {
            let counted = difference(before, &self.edges()?);
            let fallbacks: u64 = counted.fallbacks.values().sum();
            let waited = counted.paused + counted.blocking;
            let patience = if waited >= signed {
                REPORTS_TAKE
            } else {
                LATE_REPORTS_TAKE
            };
            let told = waited >= operations || fallbacks >= operations;
            if told || started.elapsed() > patience {
                return Some(counted);
            }
            thread::sleep(ASK);
        }
    }
}

fn difference(before: &Edges, after: &Edges) -> Edges {
    let fallbacks = after.fallbacks.iter().map(|(reason, count)| {
        let earlier = before.fallbacks.get(reason).copied().unwrap_or(0);
        (reason.clone(), count.saturating_sub(earlier))
    });
    Edges {
        paused: after.paused.saturating_sub(before.paused),
        blocking: after.blocking.saturating_sub(before.blocking),
        fallbacks: fallbacks.filter(|(_, count)| *count > 0).collect(),
    }
}

/// Makes the handshakes and adds the findings about them.
pub(super) fn prove(
    options: &Options,
    evidence: Option<&Evidence>,
    asked: &Asked<'_>,
    report: &mut Report,
) {
    if options.handshakes == 0 {
        return;
    }
    let Some((address, name)) = target(options, evidence) else {
        // A server that was not found is already in the report.
        if evidence.is_some() {
            let seen = "the configuration has no address that TLS is served at";
            report.add(
                "handshakes",
                Unseen,
                seen,
                "give one with --connect".to_owned(),
            );
        }
        return;
    };
    // What happens once per process (a connection to the node, a key) comes before.
    if let Err(error) = tls::handshakes(&address, &name, 1) {
        let remedy = "give the right address with --connect".to_owned();
        return report.add("handshakes", Failure, error.to_string(), remedy);
    }
    let before = asked.node.completed(asked.socket);
    let edges = asked.edges();
    let held = match tls::handshakes(&address, &name, options.handshakes) {
        Ok(held) => held,
        Err(error) => return report.add("handshakes", Failure, error.to_string(), None),
    };
    let after = asked.node.completed(asked.socket);
    let of = handshakes(&address, &held, report);
    let waited = evidence.and_then(|evidence| eventfds_released(evidence, held, of));
    if of == 0 {
        return;
    }
    pooled(before, after, of, asked.socket.is_some(), report);
    let signed = report.pooled.map_or(0, |share| share.count);
    // Waiting takes a second, so only if it can add something.
    let told = match &edges {
        Some(edges) if waited != Some(of) || signed != of => asked.since(edges, of, signed),
        _ => None,
    };
    // An answer that comes before the job has paused leaves no descriptor: then the edge's count is right.
    let told_waited = told
        .as_ref()
        .map(|told| told.paused.min(of.saturating_sub(told.blocking)));
    asynchronous(waited, told_waited, of, report);
    if let Some(told) = told {
        fallbacks(&told, report);
    }
}

/// The operations that the edges did themselves, by reason.
fn fallbacks(told: &Edges, report: &mut Report) {
    let reasons: Vec<String> = told
        .fallbacks
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    if !reasons.is_empty() {
        let seen = format!("done by the gateway itself: {}", reasons.join(", "));
        let remedy = "docs/guide/openssl.md says what each reason means".to_owned();
        report.add("fallbacks", Warning, seen, remedy);
    }
}

/// The address and the server name of the handshakes.
fn target(options: &Options, evidence: Option<&Evidence>) -> Option<(String, String)> {
    let config = evidence.map(|evidence| &evidence.config);
    let listens = config.and_then(|config| config.listens.first());
    let address = options.connect.as_ref().or(listens)?.clone();
    let host = address.rsplit_once(':').map_or("", |(host, _)| host);
    let named_host =
        (!host.is_empty() && !host.starts_with('[') && host.parse::<std::net::IpAddr>().is_err())
            .then(|| host.to_owned());
    let name = options
        .server_name
        .clone()
        .or_else(|| named_host.filter(|_| options.connect.is_some()))
        .or_else(|| config.and_then(|config| config.names.first().cloned()));
    Some((address, name.unwrap_or_else(|| "localhost".to_owned())))
}

fn handshakes(
    address: &str,
    held: &[Result<tls::Held, tls::HandshakeError>],
    report: &mut Report,
) -> u64 {
    let good = held.iter().filter(|handshake| handshake.is_ok()).count();
    let first = held.iter().find_map(|handshake| handshake.as_ref().err());
    let share = Share {
        count: good as u64,
        of: held.len() as u64,
    };
    match first {
        None => report.add("handshakes", Good, format!("{share} with {address}"), None),
        Some(error) => {
            let remedy = "see what is above; the server's log has its side".to_owned();
            report.add(
                "handshakes",
                Failure,
                format!("{share} with {address}: {error}"),
                remedy,
            );
        }
    }
    share.count
}

fn pooled(
    before: Result<u64, Silence>,
    after: Result<u64, Silence>,
    of: u64,
    local: bool,
    report: &mut Report,
) {
    const CHECK: &str = "pooled";
    let (before, after) = match (before, after) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(Silence::Hidden(error)), _) | (_, Err(Silence::Hidden(error))) => {
            return report.add(CHECK, Unseen, error, "run this as root".to_owned());
        }
        (Err(Silence::NoNode(error)), _) | (_, Err(Silence::NoNode(error))) => {
            // Without a local one the nodes are elsewhere.
            let outcome = if local { Failure } else { Unseen };
            let remedy =
                "start the node; if the nodes are elsewhere, run this there, with --connect";
            return report.add(CHECK, outcome, error, remedy.to_owned());
        }
    };
    // The node serves others at the same time: at most `of` operations belong to these handshakes.
    let share = Share {
        count: after.saturating_sub(before).min(of),
        of,
    };
    report.pooled = Some(share);
    let yes = format!("{share} were signed by the node");
    if share.count == of {
        report.add(CHECK, Good, yes, None);
    } else {
        let outcome = if share.count == 0 { Failure } else { Warning };
        let remedy = "see what is above; `millrace status` has the node's side (and only this node was asked)";
        report.add(CHECK, outcome, yes, remedy.to_owned());
    }
}

/// The number of connections with an eventfd: eventfds that disappear with the connections. Workers have other
/// eventfds, too, and create one when they first connect to the pool.
fn eventfds_released(
    evidence: &Evidence,
    held: Vec<Result<tls::Held, tls::HandshakeError>>,
    of: u64,
) -> Option<u64> {
    let most = eventfds(evidence)?;
    drop(held);
    let started = Instant::now();
    let mut gone = 0;
    while gone < of && started.elapsed() < CLOSING_TAKES {
        thread::sleep(LOOK);
        gone = most.saturating_sub(eventfds(evidence)?).max(gone);
    }
    Some(gone)
}

/// The number of eventfds of all workers; `None` if they are not visible.
fn eventfds(evidence: &Evidence) -> Option<u64> {
    let counts = evidence
        .workers
        .iter()
        .map(|worker| evidence.proc.eventfds(worker.pid).ok());
    counts.sum::<Option<usize>>().map(|count| count as u64)
}

fn asynchronous(seen: Option<u64>, told: Option<u64>, of: u64, report: &mut Report) {
    const CHECK: &str = "asynchronous";
    let like = |report: &Report, outcome| {
        let findings = report.findings.iter();
        findings
            .filter(|finding| finding.check == "waiting")
            .any(|finding| finding.outcome == outcome)
    };
    let Some(waited) = seen.max(told) else {
        let seen = "the descriptors of the workers are hidden from this user";
        return report.add(CHECK, Unseen, seen, "run this as root".to_owned());
    };
    // An operation that was answered at once leaves no descriptor, and no edge has reported it.
    if waited < of && told.is_none() && like(report, Good) {
        let seen = format!(
            "at least {waited} of {of} waited without blocking; only the node knows about the others"
        );
        return report.add(
            CHECK,
            Unseen,
            seen,
            "run this as root, where the node is".to_owned(),
        );
    }
    let share = Share {
        count: waited.min(of),
        of,
    };
    report.asynchronous = Some(share);
    let seen = format!("{share} waited without blocking");
    if share.count == of {
        return report.add(CHECK, Good, seen, None);
    }
    let remedy = "the others blocked, or did not go to the pool: see what is above".to_owned();
    // `mode = sync` is a choice and already has a warning.
    let none = share.count == 0 && !like(report, Warning);
    let outcome = if none { Failure } else { Warning };
    report.add(CHECK, outcome, seen, remedy);
}
