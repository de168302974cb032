// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The live proof: handshakes at a time, the node's counter and the workers' eventfds before and while
//! they are held.

use super::evidence::Evidence;
use super::{Options, Outcome, Report, Share, tls};

use Outcome::{Failure, Ok as Good, Unseen, Warning};

/// Makes the handshakes, and adds what they show.
pub(super) fn prove(
    options: &Options,
    evidence: Option<&Evidence>,
    completed: &dyn Fn() -> Result<u64, String>,
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
    let before = completed();
    let descriptors = evidence.map(eventfds);
    let held = match tls::handshakes(&address, &name, options.handshakes) {
        Ok(held) => held,
        Err(error) => return report.add("handshakes", Failure, error, None),
    };
    let descriptors_held = evidence.map(eventfds);
    let after = completed();
    let of = handshakes(&address, &held, report);
    drop(held);
    pooled(before, after, of, report);
    if let (Some(before), Some(after)) = (descriptors, descriptors_held) {
        asynchronous(before, after, of, report);
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

fn pooled(before: Result<u64, String>, after: Result<u64, String>, of: u64, report: &mut Report) {
    const CHECK: &str = "pooled";
    let (before, after) = match (before, after) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(error), _) | (_, Err(error)) => {
            let remedy =
                "start the node; if the nodes are elsewhere, run this there, with --connect"
                    .to_owned();
            return report.add(CHECK, Unseen, error, remedy);
        }
    };
    if of == 0 {
        return;
    }
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

/// The eventfds of all workers; nothing if they cannot be seen.
fn eventfds(evidence: &Evidence) -> Option<u64> {
    let counts = evidence
        .workers
        .iter()
        .map(|worker| evidence.proc.eventfds(worker.pid).ok());
    counts.sum::<Option<usize>>().map(|count| count as u64)
}

fn asynchronous(before: Option<u64>, after: Option<u64>, of: u64, report: &mut Report) {
    const CHECK: &str = "asynchronous";
    let (Some(before), Some(after)) = (before, after) else {
        let seen = "the descriptors of the workers are hidden from this user";
        return report.add(CHECK, Unseen, seen, "run this as root".to_owned());
    };
    if of == 0 {
        return;
    }
    let share = Share {
        count: after.saturating_sub(before).min(of),
        of,
    };
    report.asynchronous = Some(share);
    let seen = format!("{share} waited without blocking");
    if share.count == of {
        return report.add(CHECK, Good, seen, None);
    }
    // One that failed for a reason of its own has failed above.
    let remedy = "the others blocked, or did not go to the pool: see what is above".to_owned();
    let outcome = if share.count == 0 { Failure } else { Warning };
    report.add(CHECK, outcome, seen, remedy);
}
