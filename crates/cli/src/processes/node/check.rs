// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `--check`: whether a node would start with its configuration.

use anyhow::Result;
use millrace_server::tls::check_files;
use tracing_subscriber::EnvFilter;

use super::certificates::is_private_authority;
use crate::args::UpArgs;
use crate::backends;
use crate::exit::{Failure, chain, fail, listed};
use crate::settings::Settings;

/// Lists every problem for which a node with these settings would not start. `args` has the flags that are in them.
///
/// # Errors
/// A usage error that lists the problems.
pub(crate) fn check(settings: &Settings, args: &UpArgs) -> Result<()> {
    let Settings { node, tls } = settings;
    let mut problems: Vec<String> =
        node.problems().into_iter().map(|problem| with_flag(problem, args)).collect();
    let filter = &node.settings.log_filter;
    if let Err(error) = EnvFilter::try_new(filter) {
        problems.push(format!("log.filter: {filter:?}: {error}"));
    }
    if let Err(error) = backends::chosen(node.backends.as_deref(), &node.qat) {
        problems.push(format!("backends: {}", chain(&error)));
    }
    // The node makes the certificates of its private authority itself.
    if let Some(tcp) = &node.tcp
        && (tcp.tls.certificate.exists() || !is_private_authority(&tcp.tls, tls))
        && let Err(error) = check_files(&tcp.tls)
    {
        problems.push(format!("tcp: {error}"));
    }
    if problems.is_empty() {
        note!("the configuration of the node {} is valid", node.name);
        return Ok(());
    }
    let problems = problems.iter().map(String::as_str);
    let message = listed("a node would not start with this configuration", problems);
    Err(fail(Failure::Usage, message))
}

/// A problem of a key of the file, with the flag that was given in its place.
fn with_flag(problem: String, args: &UpArgs) -> String {
    let flags = [
        ("metrics.address", "--listen-metrics", args.metrics.is_some()),
        ("unix.group", "--socket-group", args.socket_group.is_some()),
        ("store.kek", "--kek-file", args.store.kek_file.is_some()),
    ];
    for (key, flag, given) in flags {
        if given
            && let Some(rest) = problem.strip_prefix(key).and_then(|rest| rest.strip_prefix(": "))
        {
            return format!("{flag} ({key}): {rest}");
        }
    }
    problem
}
