// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The live proof: handshakes at a time, the node's counter and the workers' eventfds before and while
//! they are held.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::evidence::Evidence;
use super::{Edges, Node, Options, Outcome, Report, Share, Silence, tls};

use Outcome::{Failure, Ok as Good, Unseen, Warning};

/// Edges report once per second, and one more second.
const REPORTS_TAKE: Duration = Duration::from_secs(2);

/// On a machine that has much to do they come later; but they do come, if the pool was asked.
const LATE_REPORTS_TAKE: Duration = Duration::from_secs(30);

/// A server sees at once that a client has gone; this is for a machine that has much to do.
const CLOSING_TAKES: Duration = Duration::from_secs(1);

/// How often its descriptors are looked at meanwhile.
const LOOK: Duration = Duration::from_millis(10);

/// How often the node is asked meanwhile.
const ASK: Duration = Duration::from_millis(100);

/// The node that is asked.
pub(super) struct Asked<'a> {
    pub(super) node: &'a dyn Node,
    /// Where the server's provider connects to; nothing if its nodes are elsewhere.
    pub(super) socket: Option<&'a Path>,
    /// Who the workers are; nothing if that is not known.
    pub(super) uid: Option<u32>,
}

impl Asked<'_> {
    fn edges(&self) -> Option<Edges> {
        self.node.edges(self.socket, self.uid)
    }

    /// What the edges counted since `before`, when it is about that many operations, or time is up. Of what
    /// the node has `signed` they tell in the end; of the rest perhaps nobody does.
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

/// Makes the handshakes, and adds what they show.
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
        // If the server was not found, that was said.
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
        return report.add("handshakes", Failure, error, remedy);
    }
    let before = asked.node.completed(asked.socket);
    let edges = asked.edges();
    let held = match tls::handshakes(&address, &name, options.handshakes) {
        Ok(held) => held,
        Err(error) => return report.add("handshakes", Failure, error, None),
    };
    let after = asked.node.completed(asked.socket);
    let of = handshakes(&address, &held, report);
    let waited = evidence.and_then(|evidence| waited_aside(evidence, held, of));
    if of == 0 {
        return;
    }
    pooled(before, after, of, asked.socket.is_some(), report);
    let signed = report.pooled.map_or(0, |share| share.count);
    // Only if there is something left to say: it takes a second.
    let told = match &edges {
        Some(edges) if waited != Some(of) || signed != of => asked.since(edges, of, signed),
        _ => None,
    };
    // An answer that comes before the job has paused leaves no descriptor: then the edge knows better.
    let told_waited = told
        .as_ref()
        .map(|told| told.paused.min(of.saturating_sub(told.blocking)));
    asynchronous(waited, told_waited, of, report);
    if let Some(told) = told {
        fallbacks(&told, report);
    }
}

/// What the edges did themselves meanwhile, and why.
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

/// Where to connect to, and which name to ask for.
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

fn handshakes(address: &str, held: &[Result<tls::Held, String>], report: &mut Report) -> u64 {
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
    // Others may have work done meanwhile: more than these handshakes are not theirs.
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

/// How many of the connections had an eventfd: those that go when the connections do. (The workers have
/// others, and make one for themselves when they first speak to the pool.)
fn waited_aside(evidence: &Evidence, held: Vec<Result<tls::Held, String>>, of: u64) -> Option<u64> {
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

/// The eventfds of all workers; nothing if they cannot be seen.
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
    // Some that were answered at once leave no descriptor, and nobody told.
    if waited < of && told.is_none() && like(report, Good) {
        let seen = format!(
            "{waited} of {of} at least waited without blocking; what the others did, only the node is told"
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
    // `mode = sync` is a choice, of which it has been warned.
    let none = share.count == 0 && !like(report, Warning);
    let outcome = if none { Failure } else { Warning };
    report.add(CHECK, outcome, seen, remedy);
}
