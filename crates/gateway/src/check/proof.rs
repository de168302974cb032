// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The live proof: concurrent handshakes, with the counters of the gateway's provider and the workers' eventfds
//! before and while the connections are held.

use std::thread;
use std::time::{Duration, Instant};

use super::evidence::Evidence;
use super::judge::{AskedPool, Provider};
use super::pool::{Edges, NodeAnswer};
use super::tls::TlsTarget;
use super::{
    CheckOptions, CheckOutcome, CheckReport, Nodes, Proportion, Server, Silence, local, tls,
};

use CheckOutcome::{Failure, Good, Unseen, Warning};

/// Time to wait for reports of edges: they come within two seconds; the rest is for a loaded machine.
const REPORTS_TAKE: Duration = Duration::from_secs(4);

/// Time to wait on a loaded machine for reports that must come, since the pool did the operations.
const LATE_REPORTS_TAKE: Duration = Duration::from_secs(30);

/// Time that a server on a loaded machine has to notice a closed connection.
const CLOSING_TAKES: Duration = Duration::from_secs(1);

/// Interval of readings of its descriptors during that time: 100 at most.
const DESCRIPTOR_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Interval of questions to the nodes while reports are awaited: a node answers 60 of them, and one more per
/// second.
const REPORT_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The counters of the provider, as the nodes of its pool know them.
struct ProviderCounters<'a> {
    nodes: &'a dyn Nodes,
    pool: &'a AskedPool,
    before: Vec<NodeAnswer>,
}

impl<'a> ProviderCounters<'a> {
    /// The counters now; `None` if no node reports them.
    fn start(nodes: &'a dyn Nodes, pool: &'a AskedPool) -> Option<Self> {
        let before = nodes.ask(&pool.place, &pool.question)?.answers;
        let tells = |answer: &NodeAnswer| edges_of(answer).is_some();
        before.iter().any(tells).then_some(Self { nodes, pool, before })
    }

    /// Counts of the edges since the start.
    fn since(&self) -> Edges {
        let mut sum = Edges::default();
        let now = self.nodes.ask(&self.pool.place, &self.pool.question);
        for answer in now.iter().flat_map(|asked| &asked.answers) {
            let same = |before: &&NodeAnswer| before.node == answer.node;
            let before = self.before.iter().find(same).and_then(edges_of);
            if let (Some(before), Some(after)) = (before, edges_of(answer)) {
                sum.add_difference(before, after);
            }
        }
        sum
    }

    /// Waits until the operation of one handshake is reported, so that it does not count for those that follow.
    fn settle(&self) {
        let _ = self.covering(1, 0);
    }

    /// Counts since the start, as soon as they cover `operations`, or when time is up. Operations that the local node
    /// has `signed` are certain to be reported, the others are not.
    fn covering(&self, operations: u64, signed: u64) -> Edges {
        let started = Instant::now();
        loop {
            let counted = self.since();
            let certain = counted.pooled < signed.min(operations);
            let patience = if certain { LATE_REPORTS_TAKE } else { REPORTS_TAKE };
            if counted.ended() >= operations || started.elapsed() > patience {
                return counted;
            }
            thread::sleep(REPORT_POLL_INTERVAL);
        }
    }
}

fn edges_of(answer: &NodeAnswer) -> Option<&Edges> {
    answer.answer.as_ref().ok()?.edges.as_ref()
}

/// Makes the handshakes and adds the findings about them.
pub(super) fn prove(
    options: &CheckOptions,
    evidence: Option<&Evidence>,
    nodes: &dyn Nodes,
    pool: Option<&AskedPool>,
    provider: Option<&Provider>,
    report: &mut CheckReport,
) {
    if options.handshakes == 0 {
        return;
    }
    let Some(target) = target(options, evidence) else {
        let seen = "the configuration has no address that TLS is served at";
        let remedy = "give one with --connect";
        return report.add("handshakes", Unseen, seen, remedy);
    };
    // What happens once per process (a connection to the node, a key) comes before, and is reported before.
    let settling = pool.and_then(|pool| ProviderCounters::start(nodes, pool));
    if let Err(error) = target.handshakes(1) {
        let remedy = "give the right address with --connect";
        return report.add("handshakes", Failure, error.to_string(), remedy);
    }
    if let Some(provider) = provider.filter(|provider| provider.local) {
        local::group(&target, report);
        let named = evidence.map_or(&[][..], |evidence| &evidence.config.groups);
        local::groups(&target, options, provider, named, report);
    }
    if provider.is_some_and(|provider| provider.poolless) {
        match target.handshakes(options.handshakes) {
            Ok(held) => {
                let _ = handshakes(&target.address, &held, report);
            }
            Err(error) => report.add("handshakes", Failure, error.to_string(), None),
        }
        return;
    }
    if let Some(counters) = settling {
        counters.settle();
    }
    prove_pooled(&target, options, evidence, nodes, pool, report);
}

/// Makes handshakes, and adds findings about where they were signed and how the server waited.
fn prove_pooled(
    target: &TlsTarget,
    options: &CheckOptions,
    evidence: Option<&Evidence>,
    nodes: &dyn Nodes,
    pool: Option<&AskedPool>,
    report: &mut CheckReport,
) {
    let socket = pool.and_then(|pool| pool.socket.as_deref());
    let before = nodes.completed(socket);
    let counters = pool.and_then(|pool| ProviderCounters::start(nodes, pool));
    let held = match target.handshakes(options.handshakes) {
        Ok(held) => held,
        Err(error) => return report.add("handshakes", Failure, error.to_string(), None),
    };
    let after = nodes.completed(socket);
    let of = handshakes(&target.address, &held, report);
    let waited = evidence.and_then(|evidence| eventfds_released(evidence, held, of));
    if of == 0 {
        return;
    }
    let signed = match (&before, &after) {
        (Ok(before), Ok(after)) => after.saturating_sub(*before),
        _ => 0,
    };
    let told = counters.map(|counters| counters.covering(of, signed));
    match &told {
        Some(told) => {
            pooled(told.pooled, of, "the pool, by the count of the gateway's provider", report)
        }
        None => {
            // Without a socket here the nodes are elsewhere.
            let no_node = if evidence.is_some() && socket.is_some() { Failure } else { Unseen };
            pooled_here(before, after, of, no_node, report);
        }
    }
    // An answer that comes before the job has paused leaves no descriptor: then the provider's count is right.
    let told_waited = told.as_ref().map(|told| told.paused.min(of.saturating_sub(told.blocking)));
    // Other programs have no asynchronous handshakes.
    if !matches!(options.server, Server::Other(_)) {
        asynchronous(waited, told_waited, of, report);
    }
    if let Some(told) = told {
        wrong_results(&told, report);
        fallbacks(&told, report);
    }
}

/// The results that the provider of the gateway found to be wrong.
fn wrong_results(told: &Edges, report: &mut CheckReport) {
    if told.wrong > 0 {
        let seen = format!("{} results of nodes did not verify, or broke the protocol", told.wrong);
        let remedy = "millrace status on each node: look for quarantined backends; take that node out of `pool`";
        report.add("wrong results", Failure, seen, remedy);
    }
}

/// The operations that the edges did themselves, by reason.
fn fallbacks(told: &Edges, report: &mut CheckReport) {
    let reasons: Vec<String> =
        told.fallbacks.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    if !reasons.is_empty() {
        let seen = format!("done by the gateway itself: {}", reasons.join(", "));
        let remedy = "docs/guide/openssl.md says what each reason means";
        report.add("fallbacks", Warning, seen, remedy);
    }
}

/// The address and the server name of the handshakes.
fn target(options: &CheckOptions, evidence: Option<&Evidence>) -> Option<TlsTarget> {
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
    let server_name = name.unwrap_or_else(|| "localhost".to_owned());
    Some(TlsTarget { address, server_name })
}

fn handshakes(
    address: &str,
    held: &[Result<tls::Held, tls::HandshakeError>],
    report: &mut CheckReport,
) -> u64 {
    let good = held.iter().filter(|handshake| handshake.is_ok()).count();
    let first = held.iter().find_map(|handshake| handshake.as_ref().err());
    let share = Proportion { count: good as u64, of: held.len() as u64 };
    match first {
        None => report.add("handshakes", Good, format!("{share} with {address}"), None),
        Some(error) => {
            let remedy = "see what is above; the server's log has its side";
            report.add("handshakes", Failure, format!("{share} with {address}: {error}"), remedy);
        }
    }
    share.count
}

/// The operations that the node on this machine has completed: for nodes that do not report the provider's counters,
/// and for a gateway that is elsewhere. `no_node` is the outcome if none runs here.
fn pooled_here(
    before: Result<u64, Silence>,
    after: Result<u64, Silence>,
    of: u64,
    no_node: CheckOutcome,
    report: &mut CheckReport,
) {
    const CHECK: &str = "pooled";
    match (before, after) {
        // The node serves others at the same time.
        (Ok(before), Ok(after)) => {
            pooled(after.saturating_sub(before), of, "the node on this machine", report);
        }
        (Err(Silence::Hidden(error)), _) | (_, Err(Silence::Hidden(error))) => {
            report.add(CHECK, Unseen, error, "run this as root");
        }
        (Err(Silence::NoNode(error)), _) | (_, Err(Silence::NoNode(error))) => {
            let remedy = "start the node; or run this on the gateway, as root";
            report.add(CHECK, no_node, error, remedy);
        }
    }
}

/// Reports the share of handshakes that the pool signed: at most `of`, since other clients of the gateway make some,
/// too.
fn pooled(count: u64, of: u64, by: &str, report: &mut CheckReport) {
    let share = Proportion { count: count.min(of), of };
    report.pooled = Some(share);
    let seen = format!("{share} were signed by {by}");
    if share.count == of {
        return report.add("pooled", Good, seen, None);
    }
    let outcome = if share.count == 0 { Failure } else { Warning };
    let remedy = "see what is above; `millrace status` has the node's side";
    report.add("pooled", outcome, seen, remedy);
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
        thread::sleep(DESCRIPTOR_POLL_INTERVAL);
        gone = most.saturating_sub(eventfds(evidence)?).max(gone);
    }
    Some(gone)
}

/// The number of eventfds of all workers; `None` if they are not visible.
fn eventfds(evidence: &Evidence) -> Option<u64> {
    let workers = &evidence.running.as_ref()?.workers;
    let counts = workers.iter().map(|worker| evidence.proc.eventfds(worker.pid).ok());
    counts.sum::<Option<usize>>().map(|count| count as u64)
}

fn asynchronous(seen: Option<u64>, told: Option<u64>, of: u64, report: &mut CheckReport) {
    const CHECK: &str = "asynchronous";
    let like = |report: &CheckReport, outcome| {
        let findings = report.findings.iter();
        findings
            .filter(|finding| finding.check == "waiting")
            .any(|finding| finding.outcome == outcome)
    };
    let Some(waited) = seen.max(told) else {
        let seen = "the descriptors of the workers are hidden from this user";
        return report.add(CHECK, Unseen, seen, "run this as root");
    };
    // An operation that was answered at once leaves no descriptor, and no edge has reported it.
    if waited < of && told.is_none() && like(report, Good) {
        let seen = format!(
            "at least {waited} of {of} waited without blocking; only the node knows about the others"
        );
        return report.add(CHECK, Unseen, seen, "run this as root, where the node is");
    }
    let share = Proportion { count: waited.min(of), of };
    report.asynchronous = Some(share);
    let seen = format!("{share} waited without blocking");
    if share.count == of {
        return report.add(CHECK, Good, seen, None);
    }
    let remedy = "the others blocked, or did not go to the pool: see what is above, and what millrace-preload says in \
                  the server's log";
    // `mode = sync` is a choice and already has a warning.
    let none = share.count == 0 && !like(report, Warning);
    let outcome = if none { Failure } else { Warning };
    report.add(CHECK, outcome, seen, remedy);
}
