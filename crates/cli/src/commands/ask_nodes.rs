// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Asks the nodes of a pool from the place of another process: with its user, its root and its network. A child
//! process takes that place, because it cannot be left again.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result};
use millrace_client::{
    EdgeCounter, EdgeReport, Endpoint, KeyRefusal, KeySelector, ProbeError, ProbeRequest, Probed,
    TlsConfig, TlsFault, describe_start, probe,
};
use millrace_gateway::check::pool::{
    AskedNodes, CertificateFacts, Edges, FaultKind, KeyAnswer, KeyState, KeyStub, NodeAnswer,
    NodeFault, NodeReport, PoolNode, PoolStatus, ProcessContext, Question,
};
use millrace_gateway::check::{ConfiguredPool, user_named};
use millrace_hostfs::Root;
use millrace_hostfs::child::{self, ChildLimits};
use millrace_hostfs::process::User;
use rustix::process::{Signal, geteuid};
use serde::{Deserialize, Serialize};

use crate::exit::{Failure, fail};
use crate::output::{self, Table, joined, or};
use crate::server_place::{self, Taken};

/// A node answers in milliseconds. The bound is for a heavily loaded machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bounds on the child: all nodes are asked at the same time; an answer has some hundred bytes for each key.
const CHILD: ChildLimits = ChildLimits { time: Duration::from_secs(30), output_bytes: 16 << 20 };

/// The input of the child.
#[derive(Serialize, Deserialize)]
struct Order {
    place: ProcessContext,
    question: Question,
}

/// Asks every node as a process at this place would; `None` if this user may not take that place.
pub(super) fn ask_from(place: &ProcessContext, question: &Question) -> Option<AskedNodes> {
    let own = geteuid();
    let is_own_place = own.as_raw() == place.user.uid && server_place::is_own_root(&place.root);
    if !own.is_root() && !is_own_place {
        return None;
    }
    let order = Order { place: place.clone(), question: question.clone() };
    let order = serde_json::to_vec(&order).ok()?;
    // Also after an upgrade that replaced the file.
    let mut command = Command::new("/proc/self/exe");
    command.args(["gateway", "ask"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let output = child::run(&mut command, &order, CHILD).ok()?;
    if output.status.signal() == Some(Signal::SYS.as_raw()) {
        return Some(ended_by_filter(question));
    }
    serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
}

/// The answers where a filter ended the process that asked.
fn ended_by_filter(question: &Question) -> AskedNodes {
    let error = "a filter of system calls ends a process that asks a node from there (SIGSYS)";
    let fault = NodeFault { kind: FaultKind::Forbidden, error: error.to_owned() };
    let one = |node: &String| NodeAnswer { node: node.clone(), answer: Err(fault.clone()) };
    AskedNodes { answers: question.nodes.iter().map(one).collect(), ..AskedNodes::default() }
}

/// `millrace status --gateway`.
///
/// # Errors
/// The file names no pool, or a node of it does not answer or lacks a key.
pub(super) fn status(file: &Path, user: Option<&str>, json: bool) -> Result<()> {
    let root = Root::open("/")?;
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let pool = ConfiguredPool::read(&root, &file).map_err(|error| {
        let message = format!(
            "no pool is known: {error}; `millrace gateway nginx --write` makes the file, or name another one"
        );
        fail(Failure::Usage, message)
    })?;
    let own = User {
        uid: geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: Vec::new(),
    };
    let user = match user {
        Some(name) => user_named(&root, name)
            .ok_or_else(|| fail(Failure::Usage, format!("there is no user {name}")))?,
        None if geteuid().is_root() => pool.user.unwrap_or(own),
        None => own,
    };
    let uid = user.uid;
    let root = PathBuf::from("/");
    let place = ProcessContext { pid: None, root, user, is_confined: false, profile: None };
    let asked = ask_from(&place, &pool.question)
        .ok_or_else(|| fail(Failure::Failed, format!("only root can ask as user {uid}")))?;
    let status = PoolStatus {
        config: file.display().to_string(),
        uid,
        nodes: asked.answers.into_iter().map(PoolNode::from).collect(),
    };
    if json {
        output::print_json(&status)?;
    } else {
        table(&status).print()?;
        for node in &status.nodes {
            if let Some(fault) = &node.fault {
                let (meaning, remedy) = fault.kind.meaning();
                output::print(&format!(
                    "\n{}: {meaning} ({})\n  do: {remedy}\n",
                    node.node, fault.error
                ))?;
            }
        }
    }
    let is_good = |node: &PoolNode| node.state.as_ref().is_some_and(serves_all);
    let bad = status.nodes.iter().filter(|node| !is_good(node)).count();
    if bad == 0 {
        return Ok(());
    }
    let message = format!("{bad} of {} nodes cannot serve this gateway", status.nodes.len());
    Err(fail(Failure::Failed, message))
}

fn serves_all(state: &NodeReport) -> bool {
    !state.draining && state.keys.iter().all(|key| key.state == KeyState::Usable)
}

#[rustfmt::skip]
fn table(status: &PoolStatus) -> Table {
    Table::of(&status.nodes, &[
        ("node", &|node| node.node.clone()),
        ("name", &|node| cell(node, |state| state.name.clone())),
        ("version", &|node| cell(node, |state| or(state.software.as_ref(), "old"))),
        ("state", &|node| readiness(node)),
        (">latency", &|node| cell(node, |state| format!("{} µs", state.latency_us))),
        ("keys lacking", &|node| cell(node, keys_lacking)),
        ("certificates end", &|node| cell(node, certificates_end)),
    ])
}

/// A cell of a node that has answered, `-` of any other one.
fn cell(node: &PoolNode, said: impl Fn(&NodeReport) -> String) -> String {
    or(node.state.as_ref().map(said), "-")
}

fn readiness(node: &PoolNode) -> String {
    match &node.state {
        Some(state) if state.draining => "draining".to_owned(),
        Some(_) => "ready".to_owned(),
        None => or(node.fault.as_ref().map(|fault| fault.kind), ""),
    }
}

fn keys_lacking(state: &NodeReport) -> String {
    let lacking = state.keys.iter().filter(|key| key.state != KeyState::Usable);
    joined(lacking.map(|key| &key.name), "none")
}

fn certificates_end(state: &NodeReport) -> String {
    let Some(facts) = &state.certificates else {
        return "-".to_owned();
    };
    format!("own {}, node {}", day(facts.own_expires), day(facts.node_expires))
}

fn day(end: i64) -> String {
    or(u64::try_from(end).ok().map(output::date), "-")
}

/// The child: reads an order, takes the place, asks, prints the answers.
///
/// # Errors
/// The order is not valid, or the kernel refuses the place.
pub(super) fn serve_order() -> Result<()> {
    let mut text = Vec::new();
    io::stdin().take(CHILD.output_bytes as u64).read_to_end(&mut text)?;
    let order: Order = serde_json::from_slice(&text).context("no valid order on standard input")?;
    let taken = server_place::take(&order.place).context("taking the place of the worker")?;
    output::print_json(&ask(&order.question, taken))
}

/// Asks every node, all at the same time where this process may start threads. Answers are in the order of the nodes.
fn ask(question: &Question, taken: Taken) -> AskedNodes {
    let one = |node: &String| NodeAnswer { node: node.clone(), answer: ask_one(node, question) };
    let mut no_thread = None;
    let answers = thread::scope(|scope| {
        let mut asking = Vec::new();
        for node in &question.nodes {
            let started = thread::Builder::new().spawn_scoped(scope, move || one(node));
            asking.push(started.map_err(|error| {
                no_thread = Some(describe_start(&error));
                one(node)
            }));
        }
        let answers = asking.into_iter().filter_map(|asking| match asking {
            Ok(thread) => thread.join().ok(),
            Err(answer) => Some(answer),
        });
        answers.collect()
    });
    let is_denied = |file: &&PathBuf| {
        let opened = fs::File::open(file);
        opened.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    let denied = question.files.iter().filter(is_denied).cloned().collect();
    AskedNodes { answers, no_thread, filters: taken.filters, not_taken: taken.missing, denied }
}

fn ask_one(node: &str, question: &Question) -> Result<NodeReport, NodeFault> {
    let endpoint: Endpoint = node.parse().map_err(|error: millrace_client::EndpointError| {
        NodeFault { kind: FaultKind::NoNode, error: error.to_string() }
    })?;
    let tls = question.tls.clone().unwrap_or_default();
    let endpoint = endpoint.with_tls(TlsConfig {
        ca: tls.ca,
        cert: tls.cert,
        key: tls.key,
        server_name: tls.server_name,
    });
    let request = ProbeRequest {
        keys: question.keys.iter().map(|stub| KeySelector::Name(stub.name.clone())).collect(),
        timeout: PROBE_TIMEOUT,
        agent: concat!("millrace-check/", env!("CARGO_PKG_VERSION")).to_owned(),
    };
    match probe(&endpoint, &request) {
        Ok(probed) => Ok(state(probed, &question.keys)),
        Err(error) => Err(NodeFault { kind: kind_of(&error), error: error.to_string() }),
    }
}

fn state(probed: Probed, stubs: &[KeyStub]) -> NodeReport {
    let facts = probed.certificates.and_then(|both| {
        let (identity, own_expires) = millrace_server::tls::facts(&both.own)?;
        let (_, node_expires) = millrace_server::tls::facts(&both.node)?;
        Some(CertificateFacts { identity, own_expires, node_expires })
    });
    let keys = stubs.iter().zip(probed.keys).map(|(stub, answer)| KeyAnswer {
        name: stub.name.clone(),
        state: match answer {
            Ok(spki) if spki == stub.spki => KeyState::Usable,
            Ok(_) => KeyState::Replaced,
            Err(KeyRefusal::NoSuchKey) => KeyState::NotThere,
            Err(reason) => KeyState::Refused(reason.to_string()),
        },
    });
    NodeReport {
        name: probed.node,
        software: probed.software,
        draining: probed.draining,
        latency_us: u64::try_from(probed.latency.as_micros()).unwrap_or(u64::MAX),
        keys: keys.collect(),
        certificates: facts,
        edges: probed.edges.as_ref().map(edges),
    }
}

fn edges(report: &EdgeReport) -> Edges {
    let fallback = |(counter, count): (EdgeCounter, u64)| {
        let reason = counter.fallback_reason()?;
        (count > 0).then(|| (reason.to_owned(), count))
    };
    Edges {
        pooled: report.get(EdgeCounter::Pooled),
        paused: report.get(EdgeCounter::Paused),
        blocking: report.get(EdgeCounter::Blocking),
        wrong: report.get(EdgeCounter::WrongResults),
        fallbacks: report.iter().filter_map(fallback).collect(),
    }
}

fn kind_of(error: &ProbeError) -> FaultKind {
    use millrace_client::Fault;
    match error {
        ProbeError::Files(_) => FaultKind::Files,
        ProbeError::Unresolved(_) => FaultKind::Unresolved,
        ProbeError::Forbidden(_) => FaultKind::Forbidden,
        ProbeError::Connect(error) => match error.kind() {
            io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => FaultKind::Silent,
            _ => FaultKind::Refused,
        },
        ProbeError::Silent(_) => FaultKind::Silent,
        ProbeError::Closed => FaultKind::Closed,
        ProbeError::Tls(fault, _) => match fault {
            TlsFault::OtherAuthority => FaultKind::OtherAuthority,
            TlsFault::NodeExpired => FaultKind::NodeExpired,
            TlsFault::WrongName => FaultKind::WrongName,
            TlsFault::UnknownToNode => FaultKind::UnknownToNode,
            TlsFault::Revoked => FaultKind::Revoked,
            TlsFault::Expired => FaultKind::Expired,
            TlsFault::Other => FaultKind::Tls,
        },
        ProbeError::Fault(fault) => match fault {
            Fault::Unauthorized => FaultKind::Unauthorized,
            Fault::TooManyConnections => FaultKind::Full,
            Fault::Version => FaultKind::Version,
            Fault::Protocol | Fault::TooLarge | Fault::TimedOut => FaultKind::Closed,
        },
        ProbeError::Protocol(_) => FaultKind::NoNode,
    }
}
