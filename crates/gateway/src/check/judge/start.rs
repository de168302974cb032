// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A server that does not run: its own test of its configuration, with the environment that it would get.

use std::path::Path;

use millrace_hostfs::generated::verify::{Argument, ConfigVerdict, Verification};

use super::{Failure, Good, Unseen, last_words, run_as_root};
use crate::check::evidence::Evidence;
use crate::check::{CheckReport, Server};

/// Remedy for a server that does not run.
pub(super) fn remedy(evidence: &Evidence) -> String {
    let server = &evidence.server;
    let log = if evidence.systemd {
        let service = evidence.service();
        format!("systemctl start {service}; journalctl -u {service} has its last words")
    } else {
        format!("start {server}")
    };
    format!("correct what is below, then {log}. For a server on another host give --connect")
}

/// Runs the server's own test.
pub(super) fn own_test(evidence: &Evidence, report: &mut CheckReport) {
    const CHECK: &str = "start";
    if !evidence.live {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        let seen = "the server's own test reads its keys";
        return report.add(CHECK, Unseen, seen, run_as_root());
    }
    let Some(test) = test(evidence) else { return };
    match test.run(Path::new("/")) {
        ConfigVerdict::Passed => {
            let seen = format!("{} passes with its environment", test.name);
            report.add(CHECK, Good, seen, None);
        }
        ConfigVerdict::Failed(said) => {
            let seen = format!("{} fails: {}", test.name, last_words(&said));
            let remedy = "see what is above; the rest is the server's own configuration";
            report.add(CHECK, Failure, seen, remedy);
        }
        ConfigVerdict::Skipped(why) => {
            report.add(CHECK, Unseen, format!("{}: {why}", test.name), None);
        }
    }
}

/// `None` for a program whose test is not known.
fn test(evidence: &Evidence) -> Option<Verification> {
    let (name, program, flag, words): (_, _, _, &[&'static str]) = match evidence.server {
        Server::Nginx => ("nginx -t", "nginx", "-c", &["-t", "-q"]),
        Server::Haproxy => ("haproxy -c", "haproxy", "-f", &["-c", "-q"]),
        Server::Other(_) => return None,
    };
    let mut arguments: Vec<Argument> = words.iter().map(|word| Argument::Text(word)).collect();
    for file in &evidence.config.main {
        arguments.push(Argument::Text(flag));
        arguments.push(Argument::Owned(file.display().to_string()));
    }
    let variables = [("OPENSSL_CONF", &evidence.openssl_conf), ("LD_PRELOAD", &evidence.preload)];
    let environment = variables.into_iter().filter_map(|(name, variable)| {
        let value = variable.value.clone()?;
        Some((name, Argument::Owned(value)))
    });
    let environment = environment.collect();
    Some(Verification { name, program, arguments, environment, wants: None })
}
