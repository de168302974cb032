// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway check`: runs the checks of the gateway crate, provides them with access to the nodes, and
//! prints the findings.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use millrace_gateway::check::pool::{AskedNodes, ProcessContext, Question};
use millrace_gateway::check::{
    self, CheckOptions, CheckOutcome, CheckReport, Nodes, Server, Silence,
};
use millrace_service::status::Status;

use crate::args::CheckArgs;
use crate::commands::ask_nodes;
use crate::exit::{Failure, fail};
use crate::node_socket::get;
use crate::output;
use crate::progress;
use crate::settings::Settings;
use crate::terminal::styled;

pub(super) fn run(args: &CheckArgs) -> Result<()> {
    if let (Server::Other(name), true) =
        (&args.server, args.server_config.is_some() || args.compression)
    {
        let message = format!(
            "--server-config and --compression are for nginx and haproxy: the configuration of {name} is not read"
        );
        return Err(fail(Failure::Usage, message));
    }
    let options = CheckOptions {
        server: args.server.clone(),
        pid: args.pid,
        connect: args.connect.clone(),
        server_name: args.sni.clone(),
        config: args.server_config.clone(),
        openssl_conf: args.openssl_conf.clone(),
        handshakes: args.handshakes as usize,
        compression_only: args.compression,
        proc: PathBuf::from("/proc"),
    };
    let look = || check::run(&options, &LocalNode { args });
    let report = progress::while_doing("looking at the server", look);
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&page(&report, args.compression))?;
    }
    let failures = report.count(CheckOutcome::Failure);
    if failures == 0 {
        return Ok(());
    }
    let message = format!("{failures} of {} checks failed", report.findings.len());
    Err(fail(Failure::Failed, message))
}

/// One finding per line with its remedy below it, and a summary at the end.
fn page(report: &CheckReport, compression_only: bool) -> String {
    let styled = styled(&io::stdout());
    let mut page = String::new();
    for finding in &report.findings {
        let (word, colour) = match finding.outcome {
            CheckOutcome::Good => ("ok", "32"),
            CheckOutcome::Unseen => ("unseen", "36"),
            CheckOutcome::Warning => ("warning", "33"),
            CheckOutcome::Failure => ("FAILURE", "31"),
        };
        let word = format!("{word:<8}");
        let word = if styled { format!("\x1b[{colour}m{word}\x1b[0m") } else { word };
        page.push_str(&format!("{word}  {:<13}  {}\n", finding.check, finding.seen));
        if let Some(remedy) = &finding.remedy {
            page.push_str(&format!("{:25}do: {remedy}\n", ""));
        }
        for command in &finding.run {
            page.push_str(&format!("{:25}run: {command}\n", ""));
        }
    }
    if compression_only {
        return page;
    }
    let share = |share: Option<check::Proportion>| match share {
        Some(share) if share.count == share.of => format!("yes, {share}"),
        Some(share) if share.count == 0 => format!("no, {share}"),
        Some(share) => format!("partly, {share}"),
        None => "not seen".to_owned(),
    };
    page.push_str(&format!("\npooled        {}\n", share(report.pooled)));
    let asynchronous = match report.server {
        Server::Other(_) => "no, this program waits for each operation".to_owned(),
        Server::Nginx | Server::Haproxy => share(report.asynchronous),
    };
    page.push_str(&format!("asynchronous  {asynchronous}\n"));
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
        serde_json::from_slice(&get(&socket, "/status")?)
            .context("the node's answer is not understood: is it of another version?")
    }
}

impl Nodes for LocalNode<'_> {
    fn ask(&self, place: &ProcessContext, question: &Question) -> Option<AskedNodes> {
        ask_nodes::ask_from(place, question)
    }

    fn completed(&self, socket: Option<&Path>) -> Result<u64, Silence> {
        let status = self.status(socket).map_err(|error| {
            let refused = |cause: &(dyn std::error::Error + 'static)| {
                let cause = cause.downcast_ref::<io::Error>();
                cause.is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
            };
            let said = format!("{error:#}");
            if error.chain().any(refused) { Silence::Hidden(said) } else { Silence::NoNode(said) }
        })?;
        Ok(status.operations.iter().map(|row| row.completed).sum())
    }
}
