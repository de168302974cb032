// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The server's own configuration: variables, descriptors, key files, HTTP/3.

use std::collections::BTreeSet;

use millrace_hostfs::maps::library;

use super::libraries::PRELOAD;
use super::provider::Provider;
use super::{Failure, Good, Unseen, Warning, run_as_root};
use crate::check::evidence::Evidence;
use crate::check::keys::{self, KeyFile};
use crate::check::pool::KeyStub;
use crate::check::server::ServerConfig;
use crate::check::{CheckOptions, CheckReport, Server};
use crate::recipe::global_maxconn;

/// Descriptors of a connection whose handshake waited, without an upstream.
const MIN_FILES_PER_CONNECTION: u64 = 2;

pub(super) fn configuration(options: &CheckOptions, evidence: &Evidence, report: &mut CheckReport) {
    const CHECK: &str = "configuration";
    let config = &evidence.config;
    if !config.problems.is_empty() {
        report.add(CHECK, Unseen, config.problems.join("; "), None);
    }
    if options.server == Server::Nginx {
        let mapped = evidence.mapped.as_ref();
        let preloads = mapped.is_ok_and(|mapped| library(mapped, PRELOAD).is_some());
        let wanted = [("OPENSSL_CONF", true), ("LD_PRELOAD", preloads)];
        let missing: Vec<&str> = wanted
            .iter()
            .filter(|(name, wanted)| {
                *wanted && !config.environment.iter().any(|known| known == name)
            })
            .map(|(name, _)| *name)
            .collect();
        if !missing.is_empty() && config.problems.is_empty() {
            report.add(
                CHECK,
                Warning,
                format!(
                    "no `env {};` in nginx.conf: after an upgrade of the binary (SIGUSR2) the pool is gone",
                    missing.join("; env ")
                ),
                "add `include millrace.conf;` at the top of nginx.conf (millrace gateway nginx --write)",
            );
        }
    }
    threads(evidence, report);
    limits(options, evidence, report);
}

/// The provider starts a thread at the first operation; HAProxy forbids that without `insecure-fork-wanted`.
fn threads(evidence: &Evidence, report: &mut CheckReport) {
    let mut workers = evidence.running.iter().flat_map(|running| &running.workers);
    if let Some(worker) = workers.find(|worker| {
        worker.user.uid != 0 && evidence.proc.soft_limit(worker.pid, "Max processes") == Some(0)
    }) {
        let seen =
            format!("process {} may not start threads, so it does not reach the pool", worker.pid);
        let remedy =
            "add `insecure-fork-wanted` to the section `global` of haproxy.cfg and restart";
        report.add("threads", Failure, seen, remedy);
    }
}

fn limits(options: &CheckOptions, evidence: &Evidence, report: &mut CheckReport) {
    const CHECK: &str = "descriptors";
    let config = &evidence.config;
    match options.server {
        Server::Other(_) => {}
        Server::Haproxy => {
            table_of_descriptors(config, report);
        }
        Server::Nginx => {
            let worker = evidence.running.as_ref().map(super::ServerProcesses::worker);
            let limit =
                worker.and_then(|worker| evidence.proc.soft_limit(worker.pid, "Max open files"));
            let (Some(limit), Some(connections)) = (limit, config.connections) else {
                return;
            };
            let seen = format!("{limit} descriptors for {connections} connections");
            if limit < connections.saturating_mul(MIN_FILES_PER_CONNECTION) {
                let remedy = format!(
                    "raise worker_rlimit_nofile, or LimitNOFILE of the service, to {}: three for each \
                     (client, handshake that waits, upstream)",
                    connections.saturating_mul(3)
                );
                report.add(CHECK, Warning, seen, remedy);
            } else {
                report.add(CHECK, Good, seen, None);
            }
        }
    }
}

/// HAProxy's table has two entries per connection of the global `maxconn`. Limits of the process do not enlarge
/// the table.
fn table_of_descriptors(config: &ServerConfig, report: &mut CheckReport) {
    const CHECK: &str = "descriptors";
    let needed = config.connections.map(global_maxconn);
    if let Some(allowed) = config.descriptors {
        let seen = format!(
            "ulimit-n {allowed} in `global`: a descriptor beyond HAProxy's table ends the process or corrupts its \
             memory"
        );
        let enough = needed.map_or_else(
            || "one and a half times the frontends' together, plus 16".to_owned(),
            |needed| format!("at least {needed}"),
        );
        let remedy = format!(
            "remove ulimit-n, and set maxconn of `global`, which sizes the table, to {enough}"
        );
        report.add(CHECK, Warning, seen, remedy);
    }
    let (Some(global), Some(frontends), Some(needed)) =
        (config.global_connections, config.connections, needed)
    else {
        return;
    };
    let seen = format!("maxconn {global} in `global`, {frontends} in the frontends");
    if global < needed {
        let remedy = format!(
            "raise maxconn of `global` to {needed}: HAProxy counts two descriptors per connection, and one \
             whose handshake waited has three"
        );
        report.add(CHECK, Warning, seen, remedy);
    } else {
        report.add(CHECK, Good, seen, None);
    }
}

/// A QUIC handshake has no socket of its own whose event could continue it, so its worker waits for the pool.
fn quic(evidence: &Evidence, is_pooled: bool, report: &mut CheckReport) {
    if let Some(address) = evidence.config.quic.as_ref().filter(|_| is_pooled) {
        let seen = format!(
            "`listen {address} quic` with keys of the pool: a worker serves no client while an HTTP/3 handshake of it \
             waits, up to `deadline` for a node that is silent"
        );
        let remedy =
            "give servers with `quic` a key of their own file, or have more workers than cores";
        report.add("quic", Warning, seen, remedy);
    }
}

/// Adds the findings about key files; returns the stubs.
pub(super) fn key_files(
    evidence: &Evidence,
    provider: Option<&Provider>,
    report: &mut CheckReport,
) -> BTreeSet<KeyStub> {
    const CHECK: &str = "keys";
    let preferred = provider.is_some_and(|provider| provider.preferred);
    let mut stubs = BTreeSet::new();
    let mut plain = Vec::new();
    let mut odd = Vec::new();
    let mut hidden = Vec::new();
    for path in &evidence.config.keys {
        let shown = path.display().to_string();
        match keys::look(&evidence.root, path) {
            KeyFile::Stub(stub) => {
                stubs.insert(stub);
            }
            KeyFile::Plain => plain.push(shown),
            KeyFile::Other => odd.push(shown),
            KeyFile::Unreadable(error) => hidden.push(format!("{shown}: {error}")),
        }
    }
    if !stubs.is_empty() {
        let names: Vec<&str> = stubs.iter().map(|stub| stub.name.as_str()).collect();
        report.add(CHECK, Good, format!("stubs of {}", names.join(", ")), None);
    }
    if !plain.is_empty() && preferred {
        report.add(
            CHECK,
            Good,
            format!("plain keys that go to the pool by the property query: {}", plain.join(", ")),
            None,
        );
    } else if !plain.is_empty() {
        let remedy = "either put stubs there (millrace key import, millrace key stub), or send plain keys to \
                      the pool, too (millrace gateway … --plain-keys, which sets default_properties = \
                      ?provider=millrace)";
        let seen = format!(
            "plain keys, and openssl.cnf has no property query that prefers the pool: {}",
            plain.join(", ")
        );
        report.add(CHECK, Failure, seen, remedy);
    }
    let is_pooled = !stubs.is_empty() || (!plain.is_empty() && preferred);
    quic(evidence, is_pooled, report);
    if !odd.is_empty() {
        report.add(CHECK, Warning, format!("neither a key nor a stub: {}", odd.join(", ")), None);
    }
    if !hidden.is_empty() {
        report.add(CHECK, Unseen, hidden.join("; "), run_as_root());
    }
    stubs
}
