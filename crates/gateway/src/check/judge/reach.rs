// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether the workers reach the nodes, and may use the keys.

use std::collections::BTreeSet;
use std::path::Path;

use super::super::access::{self, Obstacle};
use super::super::evidence::Evidence;
use super::super::{Node, Outcome, Refusal, Report, User};
use super::provider::Provider;
use super::{Failure, Good, Unseen, run_as_root};
use crate::verify::below;

/// Bound on the keys tested at the node: each test is a connection.
const MAX_ASKED: usize = 64;

/// Whether the workers reach the nodes, and may use the keys.
pub(super) fn sockets(
    evidence: &Evidence,
    provider: Option<&Provider>,
    stubs: &BTreeSet<String>,
    node: &dyn Node,
    report: &mut Report,
) {
    let (Some(provider), Some(worker)) = (provider, evidence.workers.first()) else {
        return;
    };
    let user = &worker.user;
    // In a chroot or a container, the socket must be visible from inside.
    let own = evidence.proc.link(worker.pid, "root");
    let root = match &own {
        Ok(root) if root == Path::new("/") => evidence.root_path.clone(),
        Ok(_) => evidence.proc.root_of(worker.pid),
        Err(_) => {
            let chroot = evidence.config.chroot.as_deref();
            below(
                &evidence.root_path,
                chroot.unwrap_or_else(|| Path::new("/")),
            )
        }
    };
    for socket in &provider.sockets {
        let inside = match &own {
            Ok(confined) if confined != Path::new("/") => {
                format!(" (inside {})", confined.display())
            }
            _ => String::new(),
        };
        let shown = socket.display();
        match access::connect(user, &root, socket) {
            Ok(()) => {
                report.add(
                    "socket",
                    Good,
                    format!("user {} may connect to {shown}{inside}", user.uid),
                    None,
                );
                admitted(user, &below(&root, socket), stubs, node, report);
            }
            Err(obstacle) => {
                let (outcome, seen, remedy) =
                    blocked(&obstacle, user.uid, &shown.to_string(), &inside);
                report.add("socket", outcome, seen, remedy);
            }
        }
    }
}

fn blocked(obstacle: &Obstacle, uid: u32, socket: &str, inside: &str) -> (Outcome, String, String) {
    match obstacle {
        Obstacle::Missing(_) if !inside.is_empty() => (
            Failure,
            format!("{socket} is not there{inside}"),
            "bind its folder into the chroot (BindPaths= in the drop-in: millrace gateway haproxy --write)".to_owned(),
        ),
        Obstacle::Missing(_) => (
            Failure,
            format!("{socket} is not there"),
            "start the node (millrace up, systemctl start millrace), or correct `pool` in openssl.cnf".to_owned(),
        ),
        Obstacle::NotASocket(_) => (Failure, format!("{socket} is no socket"), "correct `pool` in openssl.cnf".to_owned()),
        Obstacle::Denied { path, owner: (mode, owner, group) } => (
            Failure,
            format!(
                "user {uid} may not connect to {socket}{inside}: {} has mode {mode:04o}, owner {owner}, group {group}",
                path.display()
            ),
            "put the user into the socket's group (millrace up --socket-group GROUP), or open the socket to all \
             (--socket-mode 0666) and let each key's policy decide".to_owned(),
        ),
        Obstacle::Listed(path) => (
            Unseen,
            format!(
                "whether user {uid} may connect to {socket}{inside}: {} has an access control list",
                path.display()
            ),
            format!(
                "getfacl {} says what user {uid} may; the handshakes show whether it is enough",
                path.display()
            ),
        ),
        Obstacle::Unseen(path) => (Unseen, format!("{} is hidden from this user", path.display()), run_as_root()),
    }
}

fn admitted(
    user: &User,
    socket: &Path,
    stubs: &BTreeSet<String>,
    node: &dyn Node,
    report: &mut Report,
) {
    const CHECK: &str = "policy";
    for key in stubs.iter().take(MAX_ASKED) {
        match node.admits(user, socket, key) {
            Some(Ok(())) => report.add(
                CHECK,
                Good,
                format!("user {} may use {key}", user.uid),
                None,
            ),
            Some(Err(Refusal::NoNode(why))) => {
                let remedy = "start the node: millrace up, or systemctl start millrace".to_owned();
                let seen = format!("no node answers on {}: {why}", socket.display());
                // One failed query is enough.
                return report.add("node", Failure, seen, remedy);
            }
            Some(Err(Refusal::Refused(why))) => report.add(
                CHECK,
                Failure,
                format!("the node does not let user {} use {key}: {why}", user.uid),
                format!("millrace key policy {key} --allow-uid {}", user.uid),
            ),
            None => report.add(
                CHECK,
                Unseen,
                format!("whether user {} may use {key} cannot be tried", user.uid),
                run_as_root(),
            ),
        }
    }
}
