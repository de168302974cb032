// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The libraries in the server's memory: OpenSSL, the provider, the preload library.

use std::env::consts::ARCH;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};

use millrace_edge::servers::JOB_STACKS;
use millrace_hostfs::generated::verify::{Argument, ConfigVerdict};
use millrace_hostfs::maps::{MappedFile, file_name, library};
use millrace_hostfs::openssl_cnf::{self, Cnf};
use millrace_hostfs::trusted::{Sticky, Untrusted, check_folder};

use super::provider::Provider;
use super::{Failure, Good, Unseen, Warning, last_words, replaced, run_as_root};
use crate::check::evidence::Evidence;
use crate::check::{CheckOptions, CheckRemedy, CheckReport, Server};
use crate::recipe::provider_loads;
use crate::system_conf::OPENSSL_CNF;

/// The user whose processes run any code that they load.
const ROOT: u32 = 0;

pub(super) const PRELOAD: &str = "libmillrace_preload";

/// Identifier of the findings about the provider in the server's memory.
pub(super) const PROVIDER: &str = "provider";

/// The files in the server's memory. Where this user may not see them, that becomes the finding of `check`.
fn mapped<'a>(
    evidence: &'a Evidence,
    check: &'static str,
    report: &mut CheckReport,
) -> Option<&'a [MappedFile]> {
    if let Ok(mapped) = &evidence.mapped {
        return Some(mapped);
    }
    report.add(check, Unseen, "this user may not read the server's memory map", run_as_root());
    None
}

/// OpenSSL must be version 3, a shared library, and support asynchronous jobs.
pub(super) fn openssl(evidence: &Evidence, report: &mut CheckReport) {
    let Some(mapped) = mapped(evidence, "openssl", report) else { return };
    let libssl = library(mapped, "libssl.so");
    // A program may use no TLS of OpenSSL: strongSwan has libcrypto alone.
    let is_whole = libssl.is_some() || matches!(evidence.server, Server::Other(_));
    let Some(libcrypto) = library(mapped, "libcrypto.so").filter(|_| is_whole) else {
        let remedy = "OpenSSL is linked into the program, where neither the preload library nor \
                      asynchronous jobs of the provider reach it, so that no job is started: use a build with a \
                      shared OpenSSL, as distributions have";
        return report.add("openssl", Failure, "there is no shared OpenSSL in the server", remedy);
    };
    let version = file_name(&libcrypto.path).strip_prefix("libcrypto.so.").unwrap_or("");
    let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
    if major.is_some_and(|major| major < 3) {
        let remedy =
            "providers came with OpenSSL 3.0: use a server that is linked with that or later";
        return report.add("openssl", Failure, format!("OpenSSL {version}"), remedy);
    }
    if let Some(old) = libssl.into_iter().chain([libcrypto]).find(|library| library.deleted) {
        return report.add("openssl", Warning, replaced(old), evidence.restart());
    }
    if library(mapped, "ld-musl").is_some() || library(mapped, "libc.musl").is_some() {
        let remedy = "use a build for glibc to have asynchronous handshakes";
        return report.add(
            "openssl",
            Warning,
            "the C library is musl: OpenSSL has no asynchronous jobs there, handshakes block",
            remedy,
        );
    }
    report.add("openssl", Good, libcrypto.path.display().to_string(), None);
}

pub(super) fn environment(options: &CheckOptions, evidence: &Evidence, report: &mut CheckReport) {
    const CHECK: &str = "environment";
    let server = &options.server;
    let variable = &evidence.openssl_conf;
    if !evidence.unread.is_empty() {
        let remedy = "correct it, or run this as root if only root may read it; or name the server's \
                      openssl.cnf with --openssl-conf";
        report.add(CHECK, Unseen, evidence.unread.join("; "), remedy);
    }
    if let Some(path) = &variable.value {
        let seen = format!("OPENSSL_CONF={path} ({})", variable.source);
        let by_unit = evidence.running.as_ref().is_none_or(|running| running.by_unit);
        let loaded = provider_library(evidence, None).is_some();
        // A unit says nothing about a process that it did not start.
        if by_unit || loaded || !variable.source.starts_with('/') {
            return report.add(CHECK, Good, seen, None);
        }
        let seen =
            format!("{seen}, but systemd did not start this {server}: its environment is not seen");
        let remedy = evidence
            .restart()
            .worded(|restart| format!("{restart}; or name its openssl.cnf with --openssl-conf"));
        return report.add(CHECK, Unseen, seen, remedy);
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
    let remedy = match &variable.unset_by {
        Some(file) => {
            let advice = format!(
                "take OPENSSL_CONF out of UnsetEnvironment= in {}, then restart {server}",
                file.display()
            );
            let restart = format!("systemctl restart {}", evidence.service());
            CheckRemedy::run(advice, ["systemctl daemon-reload".to_owned(), restart])
        }
        None => evidence.write(),
    };
    report.add(CHECK, Failure, seen, remedy);
}

/// The provider in the server's memory.
fn provider_library<'a>(
    evidence: &'a Evidence,
    provider: Option<&Provider>,
) -> Option<&'a MappedFile> {
    let mapped = evidence.mapped.as_ref().ok()?;
    let known = ["libmillrace_provider", "millrace.so"];
    let named = provider.and_then(|provider| provider.module.as_deref()).map(Path::new);
    mapped.iter().find(|file| {
        let name = file_name(&file.path);
        known.iter().any(|known| name.starts_with(known)) || Some(file.path.as_path()) == named
    })
}

/// Whether the provider is in the server; if not, whether OpenSSL can load it at all.
pub(super) fn loaded(evidence: &Evidence, provider: Option<&Provider>, report: &mut CheckReport) {
    const CHECK: &str = PROVIDER;
    let running = evidence.running.is_some();
    if running && mapped(evidence, CHECK, report).is_none() {
        return;
    }
    if let Some(library) = provider_library(evidence, provider) {
        if library.deleted {
            return report.add(CHECK, Warning, replaced(library), evidence.restart());
        }
        return report.add(CHECK, Good, library.path.display().to_string(), None);
    }
    let conf =
        evidence.cnf.as_ref().map_or_else(|| PathBuf::from(OPENSSL_CNF), |(path, _)| path.clone());
    let missing = provider
        .and_then(|provider| provider.module.as_deref())
        .filter(|module| !openssl_cnf::has_variable(module) && !evidence.root.exists(module));
    if let Some(module) = missing {
        let consequence = if running {
            "and the server went on without it"
        } else {
            "so stubs are not keys to the server"
        };
        return report.add(
            CHECK,
            Failure,
            format!("the module {module} does not exist, {consequence}"),
            evidence.restart().worded(|restart| {
                format!("correct `module` in {}, then {restart}", conf.display())
            }),
        );
    }
    if provider.is_some()
        && let Some(reason) = changed_by_others(evidence, &conf)
    {
        let unasked = format!("as root, OpenSSL's program is not run: {reason}");
        let (outcome, seen) = if running {
            (Failure, format!("the provider is not loaded into the server; {unasked}"))
        } else {
            (Unseen, unasked)
        };
        let remedy = format!(
            "give the file to root; or run `OPENSSL_CONF={} openssl list -providers` as the server's user",
            conf.display()
        );
        return report.add(CHECK, outcome, seen, remedy);
    }
    let verdict = provider.and_then(|_| loads(evidence, &conf));
    not_loaded(evidence, &conf, verdict, report);
}

/// Why root does not load an openssl.cnf, which decides what code runs: another user could have written it, or what it
/// names.
fn changed_by_others(evidence: &Evidence, conf: &Path) -> Option<Untrusted> {
    if !evidence.live || !rustix::process::geteuid().is_root() {
        return None;
    }
    let cnf = evidence.cnf.as_ref().and_then(|(_, cnf)| cnf.as_ref().ok());
    let named = cnf.into_iter().flat_map(Cnf::code_paths).map(Path::new);
    let mut files = iter::once(conf).chain(named).filter(|file| file.is_absolute());
    files.find_map(|file| {
        // Its links lead to the files of another root, whatever their text says.
        if file.components().any(|part| part.as_os_str() == "proc") {
            let source = io::Error::other("what is below /proc may be of another root");
            return Some(Untrusted::Io { path: file.to_owned(), source });
        }
        check_folder(file, &[ROOT], Sticky::Accept).err()
    })
}

/// Adds the finding about a provider that is not in the server, by what OpenSSL's own program said.
fn not_loaded(
    evidence: &Evidence,
    conf: &Path,
    verdict: Option<ConfigVerdict>,
    report: &mut CheckReport,
) {
    const CHECK: &str = PROVIDER;
    let running = evidence.running.is_some();
    let shown = conf.display();
    match verdict {
        Some(ConfigVerdict::Passed) if running => {
            let seen = "the provider is not loaded into the server, although OpenSSL loads it with this openssl.cnf: \
                        the server was started before, or without this environment";
            let remedy =
                evidence.restart().worded(|restart| format!("{restart} (OPENSSL_CONF={shown})"));
            report.add(CHECK, Failure, seen, remedy);
        }
        Some(ConfigVerdict::Passed) => {
            let seen = format!("OpenSSL loads it with OPENSSL_CONF={shown}");
            report.add(CHECK, Good, seen, None);
        }
        Some(ConfigVerdict::Failed(said)) => {
            let said = if said.starts_with("Providers:") {
                "`openssl list -providers` does not list it".to_owned()
            } else {
                last_words(&said)
            };
            let seen = format!(
                "the provider is not loaded: OpenSSL does not load it with {shown}: {said}"
            );
            let remedy = "correct what is said of openssl.cnf and the module";
            report.add(CHECK, Failure, seen, remedy);
        }
        Some(ConfigVerdict::Skipped(_)) | None if running => report.add(
            CHECK,
            Failure,
            "the provider is not loaded into the server",
            format!("OPENSSL_CONF={shown} openssl list -providers says why"),
        ),
        Some(ConfigVerdict::Skipped(_)) | None => {}
    }
}

/// Whether OpenSSL's own program loads the provider with this file; `None` where the server is on another machine.
fn loads(evidence: &Evidence, conf: &Path) -> Option<ConfigVerdict> {
    let mut test = provider_loads();
    test.environment = vec![("OPENSSL_CONF", Argument::Owned(conf.display().to_string()))];
    evidence.live.then(|| test.run(Path::new("/")))
}

fn named_by_preload(evidence: &Evidence) -> CheckRemedy {
    evidence.write().worded(|write| format!("LD_PRELOAD names it: {write}"))
}

/// Whether a waiting handshake blocks its worker, judged without a handshake.
pub(super) fn waiting(
    options: &CheckOptions,
    evidence: &Evidence,
    provider: Option<&Provider>,
    report: &mut CheckReport,
) {
    const CHECK: &str = "waiting";
    if provider.is_some_and(|provider| provider.mode == "sync") {
        let remedy = "remove `mode = sync` from the provider's section, unless it is meant";
        return report.add(CHECK, Warning, "mode = sync: handshakes block", remedy);
    }
    match options.server {
        Server::Other(_) => {}
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
            "add `ssl-mode-async` to the section `global` and restart",
        ),
        Server::Nginx if evidence.running.is_none() => {}
        Server::Nginx => preloaded(evidence, report),
    }
}

/// HAProxy frees a connection without ending its waiting job; the preload library ends it.
fn memory_kept(evidence: &Evidence, report: &mut CheckReport) {
    if let Ok(mapped) = &evidence.mapped
        && library(mapped, PRELOAD).is_none()
    {
        let seen = "without the preload library HAProxy loses memory for each client that leaves while \
                    its handshake waits";
        report.add("preload", Warning, seen, named_by_preload(evidence));
    }
}

/// Whether the preload library starts jobs on this processor: each needs a stack of its own.
fn started_jobs(processor: &str, library: &MappedFile, report: &mut CheckReport) {
    const CHECK: &str = "waiting";
    let path = library.path.display();
    if JOB_STACKS.contains(&processor) {
        return report.add(CHECK, Good, path.to_string(), None);
    }
    let seen = format!(
        "{path} has no stacks for jobs on {processor}, so that it starts none: handshakes block their worker"
    );
    let remedy = format!("use a processor that it has them for ({})", JOB_STACKS.join(", "));
    report.add(CHECK, Warning, seen, remedy);
}

fn preloaded(evidence: &Evidence, report: &mut CheckReport) {
    const CHECK: &str = "waiting";
    let Some(mapped) = mapped(evidence, CHECK, report) else { return };
    match library(mapped, PRELOAD) {
        Some(library) if library.deleted => {
            report.add(CHECK, Warning, replaced(library), evidence.restart());
        }
        Some(library) => started_jobs(ARCH, library, report),
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
            report.add(CHECK, Failure, seen, named_by_preload(evidence));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_without_stacks_for_jobs_is_named() {
        let library = MappedFile { path: "/usr/lib/libmillrace_preload.so".into(), deleted: false };
        for (processor, outcome) in [("x86_64", Good), ("aarch64", Good), ("riscv64", Warning)] {
            let mut report = CheckReport {
                server: Server::Nginx,
                pid: None,
                pooled: None,
                asynchronous: None,
                findings: Vec::new(),
            };
            started_jobs(processor, &library, &mut report);
            let found = &report.findings[0];
            assert_eq!((found.check, found.outcome), ("waiting", outcome), "{processor}");
            assert_eq!(found.seen.contains(processor), outcome == Warning, "{found:?}");
        }
    }
}
