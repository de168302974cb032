// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway check`: runs the checks of the gateway crate, provides them with access to the local
//! node, and prints the findings.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_client::{ClientError, Endpoint, KeyRefusal, KeySelector, Pool, PoolConfig};
use millrace_gateway::check::{
    self, Edges, Node, Options, Outcome, Refusal, Report, Silence, User,
};
use millrace_service::Status;
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::process::geteuid;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::args::CheckArgs;
use crate::commands::status;
use crate::exit::{Failure, fail};
use crate::output;
use crate::progress;
use crate::settings::Settings;
use crate::terminal::styled;

/// A node on the same machine answers in milliseconds, and a connection to one that is down fails at once.
/// The bound is for a heavily loaded machine.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn run(args: &CheckArgs) -> Result<()> {
    let options = Options {
        server: args.server,
        pid: args.pid,
        connect: args.connect.clone(),
        server_name: args.server_name.clone(),
        config: args.server_config.clone(),
        openssl_conf: args.openssl_conf.clone(),
        handshakes: args.handshakes as usize,
        proc: PathBuf::from("/proc"),
    };
    let look = || check::run(&options, &LocalNode { args });
    let report = progress::while_doing("looking at the server", look);
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&page(&report))?;
    }
    let failures = report.count(Outcome::Failure);
    if failures == 0 {
        return Ok(());
    }
    let message = format!("{failures} of {} checks failed", report.findings.len());
    Err(fail(Failure::Failed, message))
}

/// One finding per line with its remedy below it, and a summary at the end.
fn page(report: &Report) -> String {
    let styled = styled(&io::stdout());
    let mut page = String::new();
    for finding in &report.findings {
        let (word, colour) = match finding.outcome {
            Outcome::Ok => ("ok", "32"),
            Outcome::Unseen => ("unseen", "36"),
            Outcome::Warning => ("warning", "33"),
            Outcome::Failure => ("FAILURE", "31"),
        };
        let word = format!("{word:<8}");
        let word = if styled {
            format!("\x1b[{colour}m{word}\x1b[0m")
        } else {
            word
        };
        page.push_str(&format!(
            "{word}  {:<13}  {}\n",
            finding.check, finding.seen
        ));
        if let Some(remedy) = &finding.remedy {
            page.push_str(&format!("{:25}do: {remedy}\n", ""));
        }
    }
    let share = |share: Option<check::Share>| match share {
        Some(share) if share.count == share.of => format!("yes, {share}"),
        Some(share) if share.count == 0 => format!("no, {share}"),
        Some(share) => format!("partly, {share}"),
        None => "not seen".to_owned(),
    };
    page.push_str(&format!(
        "\npooled        {}\nasynchronous  {}\n",
        share(report.pooled),
        share(report.asynchronous)
    ));
    page
}

/// The node on this machine.
struct LocalNode<'a> {
    args: &'a CheckArgs,
}

impl LocalNode<'_> {
    fn status(&self, socket: Option<&Path>) -> Result<Status> {
        let settings = Settings::for_check(self.args, socket)?;
        let socket = settings.node.status_socket;
        let socket = socket.context("the configuration turns the status socket off")?;
        serde_json::from_slice(&status::ask(&socket)?)
            .context("the node's answer is not understood: is it of another version?")
    }
}

impl Node for LocalNode<'_> {
    fn completed(&self, socket: Option<&Path>) -> Result<u64, Silence> {
        let status = self.status(socket).map_err(|error| {
            let refused = |cause: &(dyn std::error::Error + 'static)| {
                let cause = cause.downcast_ref::<io::Error>();
                cause.is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
            };
            let said = format!("{error:#}");
            if error.chain().any(refused) {
                Silence::Hidden(said)
            } else {
                Silence::NoNode(said)
            }
        })?;
        Ok(status.operations.iter().map(|row| row.completed).sum())
    }

    fn edges(&self, socket: Option<&Path>, uid: Option<u32>) -> Option<Edges> {
        let status = self.status(socket).ok()?;
        let counts = match uid {
            None => vec![status.edge_totals],
            Some(uid) => {
                let identity = format!("uid:{uid}");
                let own = status.edges.into_iter();
                let own = own.filter(|edge| edge.identity == identity);
                own.map(|edge| edge.counts).collect()
            }
        };
        let mut edges = Edges::default();
        for counts in counts {
            edges.paused += counts.paused;
            edges.blocking += counts.blocking;
            for row in counts.fallbacks {
                *edges.fallbacks.entry(row.reason).or_insert(0) += row.jobs;
            }
        }
        Some(edges)
    }

    fn admits(&self, user: &User, socket: &Path, key: &str) -> Option<Result<(), Refusal>> {
        let own = geteuid();
        if !own.is_root() && own.as_raw() != user.uid {
            return None;
        }
        // The node learns from the kernel which user connects, so this thread changes to that user. That user
        // may not be able to traverse every folder, so root opens the path first.
        let way = rustix::fs::open(socket, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", way.as_raw_fd()));
        let become_user = own.is_root();
        let asking = || {
            if become_user {
                act_as(user).ok()?;
            }
            Some(open(path, key))
        };
        thread::scope(|scope| scope.spawn(asking).join().ok())?
    }
}

/// Changes the user of this thread and of threads that it starts, irreversibly.
fn act_as(user: &User) -> io::Result<()> {
    let groups: Vec<Gid> = user.groups.iter().map(|id| Gid::from_raw(*id)).collect();
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

fn open(path: PathBuf, key: &str) -> Result<(), Refusal> {
    let config = PoolConfig::new(vec![Endpoint::Unix(path)])
        .connect_timeout(PATIENCE)
        .default_deadline(PATIENCE)
        .agent(concat!("millrace-check/", env!("CARGO_PKG_VERSION")));
    let pool = Pool::new(config);
    let opened = pool.open_key(KeySelector::Name(key.to_owned()), pool.deadline());
    let answer = match &opened {
        Ok(_) => Ok(()),
        Err(ClientError::Key(KeyRefusal::NoSuchKey)) => Err(Refusal::Refused(
            "there is no such key, or its policy does not admit the user".to_owned(),
        )),
        Err(error @ ClientError::Key(_)) => Err(Refusal::Refused(error.to_string())),
        Err(error) => Err(Refusal::NoNode(error.to_string())),
    };
    pool.shutdown();
    answer
}
