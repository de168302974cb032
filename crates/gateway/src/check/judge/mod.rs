// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Derives findings from the facts. Each finding comes after those that it depends on: the first failure is
//! usually the cause of the next.

mod certbot;
mod confinement;
mod libraries;
mod provider;
mod reach;
mod server;
mod start;

use std::path::PathBuf;

use millrace_hostfs::maps::MappedFile;

use super::evidence::{Evidence, ServerProcesses};
use super::pool::{ProcessContext, Question};
use super::{CheckOptions, CheckOutcome, CheckReport, Nodes};

use CheckOutcome::{Failure, Good, Unseen, Warning};
pub(super) use provider::Provider;

/// The pool of the server, as the judge asked it.
pub(super) struct AskedPool {
    /// Place of a worker process.
    pub(super) place: ProcessContext,
    /// The question, without keys, to the nodes that answered.
    pub(super) question: Question,
    /// The first socket of a node, as this process sees it.
    pub(super) socket: Option<PathBuf>,
}

/// Adds all findings. Returns the pool, if it could be asked.
pub(super) fn judge(
    options: &CheckOptions,
    evidence: &Evidence,
    nodes: &dyn Nodes,
    report: &mut CheckReport,
) -> Option<AskedPool> {
    match &evidence.running {
        Some(running) => process(options, evidence, running, report),
        None => {
            let seen = format!("no {} is running", options.server);
            report.add("process", Failure, seen, start::remedy(evidence));
        }
    }
    if evidence.running.is_some() {
        libraries::openssl(evidence, report);
    }
    let provider = Provider::of(options, evidence);
    let hindrance = confinement::findings(evidence, provider.as_ref(), nodes, report);
    libraries::environment(options, evidence, report);
    provider::openssl_cnf(evidence, provider.as_ref(), report);
    libraries::loaded(evidence, provider.as_ref(), report);
    if hindrance.by_profile {
        confinement::explain(
            report,
            libraries::PROVIDER,
            "let AppArmor's profile above allow the files",
        );
    }
    if provider.as_ref().is_some_and(|provider| provider.poolless) {
        if evidence.running.is_none() {
            start::own_test(evidence, report);
        }
        return None;
    }
    libraries::waiting(options, evidence, provider.as_ref(), report);
    server::configuration(options, evidence, report);
    let stubs = server::key_files(evidence, provider.as_ref(), report);
    certbot::findings(evidence, provider.as_ref(), !stubs.is_empty(), report);
    let pool = reach::nodes(evidence, provider.as_ref()?, stubs, nodes, report);
    if hindrance.by_unit {
        confinement::explain(report, confinement::SOCKET, "see the line of the unit above");
    }
    if evidence.running.is_none() {
        start::own_test(evidence, report);
    }
    pool
}

fn process(
    options: &CheckOptions,
    evidence: &Evidence,
    running: &ServerProcesses,
    report: &mut CheckReport,
) {
    let ServerProcesses { master, workers, .. } = running;
    let user = running.worker().user.uid;
    let program = evidence.proc.link(master.pid, "exe");
    let program =
        program.map_or_else(|_| options.server.to_string(), |path| path.display().to_string());
    let seen = format!(
        "{program}, master {}, {} of user {user}",
        master.pid,
        plural(workers.len(), "worker")
    );
    report.add("process", Good, seen, None);
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn run_as_root() -> String {
    "run this as root".to_owned()
}

fn replaced(library: &MappedFile) -> String {
    format!("{} was replaced since the server started", library.path.display())
}

/// The end of a program's output: enough to name a cause, short enough for a line.
fn last_words(text: &str) -> String {
    const MAX: usize = 400;
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = lines[lines.len().saturating_sub(3)..].join("; ");
    let cut = text.char_indices().rev().nth(MAX - 1).map_or(0, |(at, _)| at);
    text[cut..].to_owned()
}
