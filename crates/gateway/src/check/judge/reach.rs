// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether the workers reach the nodes, and may use the keys.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_hostfs::generated::below;

use super::provider::Provider;
use super::{AskedPool, Failure, Good, Unseen, Warning, confinement, run_as_root};
use crate::check::access::{self, Obstacle};
use crate::check::evidence::{Evidence, WorkerPlace};
use crate::check::pool::{
    CertificateFacts, FaultKind, KeyState, KeyStub, NodeAnswer, NodeReport, ProcessContext,
    ProviderTls, Question,
};
use crate::check::{CheckFinding, CheckReport, Nodes};

/// Bound on the keys that every node is asked for. Each opens a key at the node, which allows a connection
/// 1,024; the first 64 show whether policies and stubs fit.
const MAX_ASKED_KEYS: usize = 64;

/// Seconds before the end of a certificate from which on it is a warning: time to issue another one.
const EXPIRES_SOON_S: i64 = 14 * 24 * 3600;

/// Adds one finding for each node of the pool.
pub(super) fn nodes(
    evidence: &Evidence,
    provider: &Provider,
    stubs: BTreeSet<KeyStub>,
    nodes: &dyn Nodes,
    report: &mut CheckReport,
) -> Option<AskedPool> {
    let Some(worker) = evidence.worker() else {
        let seen = "the user of the workers is not known, so the nodes were not asked";
        report.add("node", Unseen, seen, None);
        return None;
    };
    let all = stubs.len();
    let question = Question {
        nodes: provider.nodes.clone(),
        tls: provider.tls.clone(),
        keys: stubs.into_iter().take(MAX_ASKED_KEYS).collect(),
        files: Vec::new(),
    };
    let over_tcp = question.nodes.iter().any(|node| node.starts_with("tcp:"));
    if over_tcp && question.tls.is_none() {
        let seen =
            "tcp: nodes need tls_ca, tls_cert and tls_key: the provider refuses to load without";
        let files =
            "make the files with `millrace cert client NAME -o DIR` on a node and copy DIR here";
        let remedy = evidence.write().worded(|write| format!("{files}, then {write}"));
        report.add("certificates", Failure, seen, remedy);
        return None;
    }
    if all > MAX_ASKED_KEYS {
        let seen = format!(
            "the nodes were asked for {MAX_ASKED_KEYS} of {all} keys; the others were not checked"
        );
        let remedy = "compare `millrace key list` on each node with the stubs".to_owned();
        report.add("policy", Unseen, seen, Some(remedy));
    }
    let asked = nodes.ask(&worker.place, &question);
    if let Some(asked) = &asked {
        confinement::probed(evidence, asked, report);
    }
    let told = asked.as_ref().map_or(&[][..], |asked| &asked.answers);
    for node in &question.nodes {
        let answer = told.iter().find(|answer| answer.node == *node);
        judge_node(evidence, provider, &worker, &question, node, answer, report);
    }
    // A node that is silent now would be waited for again.
    let answered = asked?.answers.into_iter().filter(|answer| answer.answer.is_ok());
    let sockets = provider.nodes.iter();
    let socket = sockets.filter_map(|node| node.strip_prefix("unix:")).next();
    Some(AskedPool {
        socket: socket.map(|path| below(&worker.place.root, Path::new(path))),
        place: ProcessContext { is_confined: false, ..worker.place },
        question: Question {
            nodes: answered.map(|answer| answer.node).collect(),
            keys: Vec::new(),
            files: Vec::new(),
            tls: question.tls,
        },
    })
}

/// Adds the findings about one node: whether its socket can be used, and its answer.
fn judge_node(
    evidence: &Evidence,
    provider: &Provider,
    worker: &WorkerPlace,
    question: &Question,
    node: &str,
    answer: Option<&NodeAnswer>,
    report: &mut CheckReport,
) {
    const CHECK: &str = "node";
    let user = worker.place.user.uid;
    // The path of a socket says more than the error of a connection.
    if let Some(path) = node.strip_prefix("unix:")
        && let Err(obstacle) =
            access::connect(&worker.place.user, &worker.place.root, Path::new(path))
    {
        let finding = blocked(evidence, worker, &obstacle, path);
        let is_certain = finding.outcome == Failure;
        report.findings.push(finding);
        if is_certain {
            return;
        }
    }
    match answer.map(|answer| &answer.answer) {
        None => {
            let seen = format!("{node}: whether user {user} reaches it cannot be tried");
            report.add(CHECK, Unseen, seen, run_as_root());
        }
        Some(Err(fault)) => {
            let (meaning, remedy) = fault.kind.meaning();
            let seen = format!("{node}: {meaning} ({})", fault.error);
            let specific = if fault.kind == FaultKind::Forbidden {
                let remedy = confinement::forbidding(evidence, provider, &fault.error);
                return report.add(CHECK, Failure, seen, remedy);
            } else if fault.kind == FaultKind::Files {
                files_remedy(evidence, worker, question.tls.as_ref())
            } else if fault.kind == FaultKind::Unresolved {
                worker.confined.as_deref().map(resolver_remedy)
            } else {
                None
            };
            let remedy = specific.unwrap_or_else(|| remedy.to_owned());
            report.add(CHECK, Failure, seen, remedy);
        }
        Some(Ok(state)) => answered(node, user, state, report),
    }
}

/// Adds the findings about a node that answered: its state, its keys, the ends of certificates.
fn answered(node: &str, user: u32, state: &NodeReport, report: &mut CheckReport) {
    let mut seen = format!("{node}: {}", state.name);
    if let Some(software) = &state.software {
        seen.push_str(&format!(" ({software})"));
    }
    seen.push_str(&format!(", {} µs", state.latency_us));
    let usable = state.keys.iter().filter(|key| key.state == KeyState::Usable);
    let names: Vec<&str> = usable.map(|key| key.name.as_str()).collect();
    if !names.is_empty() {
        seen.push_str(&format!(", serves {}", names.join(", ")));
    }
    if state.draining {
        seen.push_str(", draining: it takes no new jobs");
        let remedy = "it ends soon; start it again if it is to stay in the pool";
        report.add("node", Warning, seen, remedy);
    } else {
        report.add("node", Good, seen, None);
    }
    let (identity, flag) = match &state.certificates {
        Some(facts) => {
            (format!("cert:{}", facts.identity), format!("--add-cert {}", facts.identity))
        }
        None => (format!("uid:{user}"), format!("--add-uid {user}")),
    };
    for key in &state.keys {
        let name = &key.name;
        let (seen, remedy) = match &key.state {
            KeyState::Usable => continue,
            KeyState::NotThere => (
                format!("{node} does not let {identity} use {name}, or has no such key"),
                format!("millrace key policy {name} {flag} on that node, or import the key there"),
            ),
            KeyState::Replaced => (
                format!("{node} has another key by the name {name} than this gateway's stub"),
                format!(
                    "millrace key stub {name} on that node, copy the stub here with the new certificate, reload"
                ),
            ),
            KeyState::Refused(why) => (
                format!("{node} refuses {name}: {why}"),
                "see `millrace status` and the log of that node".to_owned(),
            ),
        };
        report.add("policy", Failure, seen, remedy);
    }
    if let Some(facts) = &state.certificates {
        expiry(node, facts, report);
    }
}

/// Warns of certificates that end soon.
fn expiry(node: &str, facts: &CertificateFacts, report: &mut CheckReport) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let ends = [
        ("this gateway's certificate", facts.own_expires, FaultKind::Expired),
        ("the node's certificate", facts.node_expires, FaultKind::NodeExpired),
    ];
    for (whose, end, fault) in ends {
        if end - now < EXPIRES_SOON_S {
            let days = (end - now).div_euclid(24 * 3600);
            let seen = format!("{node}: {whose} ends in {days} days");
            report.add("certificates", Warning, seen, fault.meaning().1.to_owned());
        }
    }
}

/// The remedy for files that the worker cannot use, from what is visible from outside.
fn files_remedy(
    evidence: &Evidence,
    worker: &WorkerPlace,
    files: Option<&ProviderTls>,
) -> Option<String> {
    let ProcessContext { root, user, .. } = &worker.place;
    for (_, named) in files?.named() {
        match access::read(user, root, named) {
            Err(Obstacle::Missing(_)) if evidence.root.exists(crate::check::utf8(named)) => {
                let confined = worker.confined.as_ref()?;
                let folder = named.parent()?;
                return Some(bind(evidence, folder, confined, "BindReadOnlyPaths"));
            }
            Err(Obstacle::Denied { path, ownership }) => {
                let folder = named.parent()?.display();
                return Some(format!(
                    "{} has {ownership}: chgrp -R {gid} {folder} && chmod -R g+rX \
                     {folder}",
                    path.display(),
                    gid = user.gid
                ));
            }
            Ok(())
            | Err(
                Obstacle::Missing(_)
                | Obstacle::NotThatKind(_)
                | Obstacle::Listed(_)
                | Obstacle::Unseen(_),
            ) => {}
        }
    }
    None
}

/// Remedy that has names resolved inside a chroot.
fn resolver_remedy(root: &Path) -> String {
    format!(
        "use its address in `pool`, or bind /etc/resolv.conf, /etc/hosts and /etc/nsswitch.conf into {}, where the \
         provider resolves it",
        root.display()
    )
}

/// Remedy that makes a folder visible inside a chroot, by this setting of a unit.
fn bind(evidence: &Evidence, folder: &Path, confined: &Path, setting: &str) -> String {
    let folder = folder.display();
    let confined = confined.display();
    if evidence.systemd {
        format!(
            "bind its folder into the chroot: {setting}={folder}:{confined}{folder} in the drop-in (millrace gateway \
             {} --write)",
            evidence.server
        )
    } else {
        format!(
            "bind its folder into the chroot: mkdir -p {confined}{folder} && mount --bind {folder} {confined}{folder}"
        )
    }
}

/// The finding about a socket that the workers cannot use.
fn blocked(
    evidence: &Evidence,
    worker: &WorkerPlace,
    obstacle: &Obstacle,
    socket: &str,
) -> CheckFinding {
    let user = worker.place.user.uid;
    let inside = inside(worker);
    match obstacle {
        Obstacle::Missing(missing) => missing_socket(evidence, worker, missing, socket),
        Obstacle::NotThatKind(_) => {
            let seen = format!("{socket} is not a socket");
            CheckFinding::new(confinement::SOCKET, Failure, seen, "correct `pool` in openssl.cnf")
        }
        Obstacle::Denied { path, ownership } => {
            let shown = path.display();
            let seen =
                format!("user {user} may not connect to {socket}{inside}: {shown} has {ownership}");
            let is_socket = *path == below(&worker.place.root, Path::new(socket));
            CheckFinding::new(confinement::SOCKET, Failure, seen, opening(path, is_socket))
        }
        Obstacle::Listed(path) => {
            let shown = path.display();
            let seen = format!(
                "whether user {user} may connect to {socket}{inside}: {shown} has an access control list"
            );
            let remedy = format!(
                "getfacl {shown} says what user {user} may; the line of the node shows whether it is enough"
            );
            CheckFinding::new(confinement::SOCKET, Unseen, seen, remedy)
        }
        Obstacle::Unseen(path) => {
            let seen = format!("{} is hidden from this user", path.display());
            CheckFinding::new(confinement::SOCKET, Unseen, seen, run_as_root())
        }
    }
}

/// The finding about a socket of which `missing`, the socket itself or a folder of its path, does not exist.
fn missing_socket(
    evidence: &Evidence,
    worker: &WorkerPlace,
    missing: &Path,
    socket: &str,
) -> CheckFinding {
    let (_, start) = FaultKind::Refused.meaning();
    let Some(confined) = worker.confined.as_deref() else {
        return CheckFinding::new(
            confinement::SOCKET,
            Failure,
            format!("{socket} is not there"),
            start,
        );
    };
    let inside = inside(worker);
    let path = Path::new(socket);
    if missing != below(&worker.place.root, path) {
        let folder = path.parent().unwrap_or(path);
        let seen = format!("{socket} is not there{inside}");
        let remedy = bind(evidence, folder, confined, "BindPaths");
        return CheckFinding::new(confinement::SOCKET, Failure, seen, remedy);
    }
    if !evidence.root.exists(socket) {
        let seen = format!("{socket} is not there: the node does not run");
        return CheckFinding::new(confinement::SOCKET, Failure, seen, start);
    }
    // The node made its folder again after the bind.
    let seen = format!("{socket} is not there{inside}: the folder inside is not the one outside");
    let remedy =
        evidence.restart().worded(|restart| format!("{restart}; it binds the folder again"));
    CheckFinding::new(confinement::SOCKET, Failure, seen, remedy)
}

/// The chroot of a worker as a remark; empty for a worker without one.
fn inside(worker: &WorkerPlace) -> String {
    let confined = worker.confined.as_ref();
    confined.map_or_else(String::new, |root| format!(" (inside {})", root.display()))
}

/// Remedy that opens a socket, or a folder on the way to it.
fn opening(path: &Path, is_socket: bool) -> String {
    if is_socket {
        "open the socket, and let the policy of each key decide: millrace up --socket-mode 0666, or `mode = \
         \"0666\"` in [unix] of node.toml; or put the user into its group"
            .to_owned()
    } else {
        format!("chmod a+x {}: the node keeps the mode that the folder has", path.display())
    }
}
