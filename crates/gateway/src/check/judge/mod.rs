// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Derives findings from the facts. Each finding comes after those that it depends on: the first failure is
//! usually the cause of the next.

mod provider;
mod reach;
mod server;
mod software;

use std::path::PathBuf;

use super::evidence::Evidence;
use super::{Node, Options, Outcome, Report, Server};
use crate::verify::below;
use millrace_hostfs::maps::MappedFile;

use Outcome::{Failure, Ok as Good, Unseen, Warning};
use provider::Provider;

/// Adds all findings. Returns the first socket of a node, as this process sees it.
pub(super) fn judge(
    options: &Options,
    evidence: &Evidence,
    node: &dyn Node,
    report: &mut Report,
) -> Option<PathBuf> {
    process(options, evidence, report);
    software::openssl(evidence, report);
    software::environment(options, evidence, report);
    let provider = Provider::of(options, evidence);
    provider::openssl_cnf(evidence, provider.as_ref(), report);
    software::loaded(options, evidence, provider.as_ref(), report);
    software::waiting(options, evidence, provider.as_ref(), report);
    server::configuration(options, evidence, report);
    let stubs = server::key_files(evidence, provider.as_ref(), report);
    reach::sockets(evidence, provider.as_ref(), &stubs, node, report);
    let socket = provider?.sockets.into_iter().next()?;
    Some(below(&evidence.root_path, &socket))
}

fn process(options: &Options, evidence: &Evidence, report: &mut Report) {
    let Evidence {
        master, workers, ..
    } = evidence;
    let user = workers.first().map_or(0, |worker| worker.user.uid);
    let program = evidence.proc.link(master.pid, "exe");
    let program = program.map_or_else(
        |_| options.server.to_string(),
        |path| path.display().to_string(),
    );
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

fn restart(server: Server) -> String {
    format!("systemctl restart {server}: a reload is not enough")
}

fn replaced(library: &MappedFile) -> String {
    format!(
        "{} was replaced since the server started",
        library.path.display()
    )
}

fn write(server: Server) -> String {
    format!("millrace gateway {server} --write")
}
