// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Certbot's installers beside stubs: their test of the configuration fails without `OPENSSL_CONF`, so that the
//! certificate expires; with it they may write certbot's own key into the server's files in place of the stub.

use std::path::{Path, PathBuf};

use millrace_hostfs::certbot::{self, LIVE, Lineage, RENEWAL};
use millrace_hostfs::systemd::{ServiceEnvironment, ServiceVariable};

use super::provider::Provider;
use super::{Failure, Warning};
use crate::check::evidence::Evidence;
use crate::check::keys::{self, KeyFile};
use crate::check::{CheckRemedy, CheckReport, Server};

const CHECK: &str = "certbot";

/// The settings of the hook, one file for each certificate.
const HOOKS: &str = "/etc/millrace/renewal";

/// Bound on such a file: it has five lines.
const MAX_SETTINGS: usize = 64 * 1024;

/// Adds the findings. The server's files name stubs if `has_stubs`.
pub(super) fn findings(
    evidence: &Evidence,
    provider: Option<&Provider>,
    has_stubs: bool,
    report: &mut CheckReport,
) {
    let lineages = certbot::lineages(&evidence.root);
    if has_stubs && evidence.server == Server::Nginx {
        untested(evidence, &lineages, report);
    }
    let pools_plain_keys = provider.is_some_and(|provider| provider.preferred);
    for key in &evidence.config.keys {
        let lineage =
            lineages.iter().find(|lineage| key.starts_with(Path::new(LIVE).join(&lineage.name)));
        let Some(lineage) = lineage.filter(|_| !pools_plain_keys) else {
            continue;
        };
        if let (KeyFile::Plain, Some(stub)) =
            (keys::look(&evidence.root, key), unused_stub(evidence, lineage))
        {
            taken(evidence, lineage, key, &stub, report);
        }
    }
}

/// A plugin runs `nginx -t`, which does not read a stub without the provider.
fn untested(evidence: &Evidence, lineages: &[Lineage], report: &mut CheckReport) {
    let names: Vec<&str> = lineages
        .iter()
        .filter(|lineage| lineage.tests("nginx"))
        .map(|lineage| lineage.name.as_str())
        .collect();
    let service = ServiceEnvironment::of(&evidence.root, "certbot.service");
    if names.is_empty() || matches!(service.variable("OPENSSL_CONF"), ServiceVariable::Set(..)) {
        return;
    }
    let seen = format!(
        "certbot renews {} with its plugin for nginx, and certbot.service has no OPENSSL_CONF: its `nginx -t` does not \
         read the stub, so the renewal fails and the certificate expires",
        names.join(", ")
    );
    let remedy = if evidence.systemd {
        let run =
            ["millrace gateway nginx --write".to_owned(), "systemctl daemon-reload".to_owned()];
        CheckRemedy::run("write the drop-in of certbot.service, too".to_owned(), run)
    } else {
        "give certbot OPENSSL_CONF where cron starts it, or another plugin without an installer: certbot certonly \
         --cert-name NAME --force-renewal -a webroot -w DIR"
            .into()
    };
    report.add(CHECK, Warning, seen, remedy);
}

/// Certbot's key is in the place of a stub.
fn taken(
    evidence: &Evidence,
    lineage: &Lineage,
    key: &Path,
    stub: &Path,
    report: &mut CheckReport,
) {
    let seen = format!(
        "{} is certbot's own key, and the stub {} is not used: certbot's installer writes such lines, and the key has \
         left the pool",
        key.display(),
        stub.display()
    );
    let mut run = Vec::new();
    if lineage.installer.is_some() {
        run.push(format!(
            "sed -i 's/^installer = .*/installer = None/' {RENEWAL}/{}.conf",
            lineage.name
        ));
    }
    let server = &evidence.server;
    if evidence.systemd {
        run.push(format!("systemctl reload {server}"));
    }
    let advice = format!(
        "name {} as the key again and the certificate that the renewal hook writes, keep certbot from {server}'s files, \
         then reload",
        stub.display()
    );
    report.add(CHECK, Failure, seen, CheckRemedy::run(advice, run));
}

/// The stub that the hook renews for a lineage, or one beside the server's configuration, if the server does not name
/// it.
fn unused_stub(evidence: &Evidence, lineage: &Lineage) -> Option<PathBuf> {
    let settings =
        evidence.root.lossy_text(&format!("{HOOKS}/{}.conf", lineage.name), MAX_SETTINGS);
    let settings = settings.unwrap_or_default();
    let named = settings.lines().find_map(|line| line.trim().strip_prefix("STUB="));
    let named = named.map(|path| path.split(" #").next().unwrap_or_default().trim());
    let named = named.map(|path| PathBuf::from(path.trim_matches(['"', '\''])));
    let folders = evidence.config.main.iter().filter_map(|file| file.parent());
    let beside = folders.flat_map(|folder| {
        let names = evidence.root.names(folder.to_str().unwrap_or_default()).into_iter();
        names.filter(|name| name.ends_with(".key")).map(|name| folder.join(name))
    });
    let is_stub = |path: &PathBuf| matches!(keys::look(&evidence.root, path), KeyFile::Stub(_));
    named
        .into_iter()
        .chain(beside)
        .find(|path| !evidence.config.keys.contains(path) && is_stub(path))
}
