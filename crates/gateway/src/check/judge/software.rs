// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The libraries in the server's memory: OpenSSL, the provider, the preload library.

use std::path::{Path, PathBuf};

use super::super::evidence::Evidence;
use super::super::{Options, Report, Server};
use super::provider::Provider;
use super::{Failure, Good, Unseen, Warning, replaced, restart, run_as_root};
use crate::recipe::OPENSSL_CNF;
use millrace_hostfs::maps::{MappedFile, file_name, library};
use millrace_hostfs::openssl_cnf;

pub(super) const PRELOAD: &str = "libmillrace_preload";

/// OpenSSL must be version 3, a shared library, and support asynchronous jobs.
pub(super) fn openssl(evidence: &Evidence, report: &mut Report) {
    let Ok(mapped) = &evidence.mapped else {
        return report.add(
            "openssl",
            Unseen,
            "what is mapped into the server is hidden from this user",
            run_as_root(),
        );
    };
    let (Some(libssl), Some(libcrypto)) = (
        library(mapped, "libssl.so"),
        library(mapped, "libcrypto.so"),
    ) else {
        let remedy = "OpenSSL is linked into the program, where neither the preload library nor \
                      asynchronous jobs of the provider reach it: use a build with a shared OpenSSL, as \
                      distributions have";
        return report.add(
            "openssl",
            Failure,
            "there is no shared libssl in the server",
            remedy.to_owned(),
        );
    };
    let version = file_name(&libcrypto.path)
        .strip_prefix("libcrypto.so.")
        .unwrap_or("");
    let major: Option<u32> = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    if major.is_some_and(|major| major < 3) {
        let remedy =
            "providers came with OpenSSL 3.0: use a server that is linked with that or later";
        return report.add(
            "openssl",
            Failure,
            format!("OpenSSL {version}"),
            remedy.to_owned(),
        );
    }
    if let Some(old) = [libssl, libcrypto]
        .into_iter()
        .find(|library| library.deleted)
    {
        return report.add("openssl", Warning, replaced(old), restart(report.server));
    }
    if library(mapped, "ld-musl").is_some() || library(mapped, "libc.musl").is_some() {
        let remedy = "use a build for glibc to have asynchronous handshakes";
        return report.add(
            "openssl",
            Warning,
            "the C library is musl: OpenSSL has no asynchronous jobs there, handshakes block",
            remedy.to_owned(),
        );
    }
    report.add("openssl", Good, libcrypto.path.display().to_string(), None);
}

pub(super) fn environment(options: &Options, evidence: &Evidence, report: &mut Report) {
    const CHECK: &str = "environment";
    let server = options.server;
    let variable = &evidence.openssl_conf;
    if !evidence.unread.is_empty() {
        let remedy = "correct it, or run this as root if only root may read it; or name the server's \
                      openssl.cnf with --openssl-conf";
        report.add(CHECK, Unseen, evidence.unread.join("; "), remedy.to_owned());
    }
    if let Some(path) = &variable.value {
        let seen = format!("OPENSSL_CONF={path} ({})", variable.source);
        return report.add(CHECK, Good, seen, None);
    }
    // A system-wide openssl.cnf may load the provider, too.
    if provider_library(evidence, None).is_some() {
        let seen = "OPENSSL_CONF is not seen, but the provider is loaded";
        return report.add(CHECK, Good, seen, None);
    }
    if evidence.mapped.is_err() && !variable.certain {
        return report.add(
            CHECK,
            Unseen,
            format!("OPENSSL_CONF: {}", variable.source),
            run_as_root(),
        );
    }
    let seen = if variable.certain {
        format!("there is no OPENSSL_CONF in {}", variable.source)
    } else {
        format!("there seems to be no OPENSSL_CONF: {}", variable.source)
    };
    let first = match &variable.unset_by {
        Some(file) => format!(
            "take OPENSSL_CONF out of UnsetEnvironment= in {}",
            file.display()
        ),
        None => format!("millrace gateway {server} --write"),
    };
    let remedy = format!("{first}, systemctl daemon-reload, systemctl restart {server}");
    report.add(CHECK, Failure, seen, remedy);
}

/// The provider in the server's memory.
fn provider_library<'a>(
    evidence: &'a Evidence,
    provider: Option<&Provider>,
) -> Option<&'a MappedFile> {
    let mapped = evidence.mapped.as_ref().ok()?;
    let known = ["libmillrace_provider", "millrace.so"];
    let named = provider
        .and_then(|provider| provider.module.as_deref())
        .map(Path::new);
    mapped.iter().find(|file| {
        let name = file_name(&file.path);
        known.iter().any(|known| name.starts_with(known)) || Some(file.path.as_path()) == named
    })
}

pub(super) fn loaded(
    options: &Options,
    evidence: &Evidence,
    provider: Option<&Provider>,
    report: &mut Report,
) {
    const CHECK: &str = "provider";
    if evidence.mapped.is_err() {
        return report.add(
            CHECK,
            Unseen,
            "what is mapped is hidden from this user",
            run_as_root(),
        );
    }
    if let Some(library) = provider_library(evidence, provider) {
        if library.deleted {
            return report.add(CHECK, Warning, replaced(library), restart(options.server));
        }
        return report.add(CHECK, Good, library.path.display().to_string(), None);
    }
    let conf = evidence
        .cnf
        .as_ref()
        .map_or_else(|| PathBuf::from(OPENSSL_CNF), |(path, _)| path.clone());
    let ask = format!(
        "OPENSSL_CONF={} openssl list -providers says why",
        conf.display()
    );
    let missing = provider
        .and_then(|provider| provider.module.as_deref())
        .filter(|module| !openssl_cnf::has_variable(module) && !evidence.root.exists(module));
    match missing {
        Some(module) => report.add(
            CHECK,
            Failure,
            format!("the module {module} does not exist, and the server went on without it"),
            format!(
                "correct `module` in {}, then {}",
                conf.display(),
                restart(options.server)
            ),
        ),
        None => report.add(
            CHECK,
            Failure,
            "the provider is not loaded into the server",
            ask,
        ),
    }
}

/// Whether a waiting handshake blocks its worker, judged without a handshake.
pub(super) fn waiting(
    options: &Options,
    evidence: &Evidence,
    provider: Option<&Provider>,
    report: &mut Report,
) {
    const CHECK: &str = "waiting";
    if provider.is_some_and(|provider| provider.mode == "sync") {
        let remedy = "remove `mode = sync` from the provider's section, unless it is meant";
        return report.add(
            CHECK,
            Warning,
            "mode = sync: handshakes block",
            remedy.to_owned(),
        );
    }
    match options.server {
        Server::Haproxy if evidence.config.mode_async => {
            report.add(CHECK, Good, "ssl-mode-async", None);
            memory_kept(evidence, report);
        }
        Server::Haproxy if evidence.config.files == 0 || !evidence.config.problems.is_empty() => {
            report.add(CHECK, Unseen, "no ssl-mode-async was found", run_as_root());
        }
        Server::Haproxy => report.add(
            CHECK,
            Failure,
            "there is no ssl-mode-async in the configuration: handshakes block",
            "add `ssl-mode-async` to the section `global` and restart".to_owned(),
        ),
        Server::Nginx => preloaded(evidence, report),
    }
}

/// HAProxy frees a connection without ending its waiting job; the preload library ends it.
fn memory_kept(evidence: &Evidence, report: &mut Report) {
    if let Ok(mapped) = &evidence.mapped
        && library(mapped, PRELOAD).is_none()
    {
        let seen = "without the preload library HAProxy loses memory for each client that leaves while \
                    its handshake waits";
        let remedy = "millrace gateway haproxy --write names it in the drop-in (LD_PRELOAD); then \
                      systemctl daemon-reload and restart haproxy";
        report.add("preload", Warning, seen, remedy.to_owned());
    }
}

fn preloaded(evidence: &Evidence, report: &mut Report) {
    const CHECK: &str = "waiting";
    let Ok(mapped) = &evidence.mapped else {
        return report.add(
            CHECK,
            Unseen,
            "what is mapped is hidden from this user",
            run_as_root(),
        );
    };
    match library(mapped, PRELOAD) {
        Some(library) if library.deleted => {
            report.add(CHECK, Warning, replaced(library), restart(Server::Nginx));
        }
        Some(library) => report.add(CHECK, Good, library.path.display().to_string(), None),
        None => {
            let preload = evidence.preload.value.as_ref();
            let seen = match preload.filter(|value| value.contains(PRELOAD)) {
                Some(value) => format!(
                    "LD_PRELOAD={value} ({}), but it is not in nginx: handshakes block their worker",
                    evidence.preload.source
                ),
                None => {
                    "the preload library is not in nginx: handshakes block their worker".to_owned()
                }
            };
            let remedy = "millrace gateway nginx --write names it in the drop-in (LD_PRELOAD); then \
                          systemctl daemon-reload and restart nginx";
            report.add(CHECK, Failure, seen, remedy.to_owned());
        }
    }
}
