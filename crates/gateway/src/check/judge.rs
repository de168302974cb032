// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! From evidence to findings, in the order in which one thing needs another: the first failure is
//! usually the cause of those below it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::access::{self, Obstacle};
use super::cnf::{self, Cnf};
use super::evidence::Evidence;
use super::keys::{self, Held};
use super::maps::{Mapped, file_name, library};
use super::{Node, Options, Outcome, Refusal, Report, Server};
use crate::recipe::OPENSSL_CNF;
use crate::verify::below;

use Outcome::{Failure, Ok as Good, Unseen, Warning};

const PRELOAD: &str = "libmillrace_preload";

/// Descriptors of a connection whose handshake waited, without an upstream.
const FEWEST_FILES_PER_CONNECTION: u64 = 2;

/// Keys that the node is asked about: each is a connection.
const MAX_ASKED: usize = 64;

/// Looks at all of it. Returns the first socket of a node, as this process sees it.
pub(super) fn judge(
    options: &Options,
    evidence: &Evidence,
    node: &dyn Node,
    report: &mut Report,
) -> Option<PathBuf> {
    process(options, evidence, report);
    openssl(evidence, report);
    environment(options, evidence, report);
    let provider = Provider::of(options, evidence);
    openssl_cnf(evidence, provider.as_ref(), report);
    loaded(options, evidence, provider.as_ref(), report);
    waiting(options, evidence, provider.as_ref(), report);
    configuration(options, evidence, report);
    let stubs = key_files(evidence, provider.as_ref(), report);
    sockets(evidence, provider.as_ref(), &stubs, node, report);
    let socket = provider?.sockets.into_iter().next()?;
    Some(below(&evidence.files, &socket))
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

/// OpenSSL 3, dynamically linked, with ASYNC_JOBs.
fn openssl(evidence: &Evidence, report: &mut Report) {
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

fn run_as_root() -> String {
    "run this as root".to_owned()
}

fn restart(server: Server) -> String {
    format!("systemctl restart {server}: a reload is not enough")
}

fn replaced(library: &Mapped) -> String {
    format!(
        "{} was replaced since the server started",
        library.path.display()
    )
}

fn environment(options: &Options, evidence: &Evidence, report: &mut Report) {
    const CHECK: &str = "environment";
    let server = options.server;
    let variable = &evidence.openssl_conf;
    if let Some(path) = &variable.value {
        let seen = format!("OPENSSL_CONF={path} ({})", variable.source);
        return report.add(CHECK, Good, seen, None);
    }
    // A system-wide openssl.cnf may have the provider, too.
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
    let remedy = format!(
        "millrace gateway {server} --write, systemctl daemon-reload, systemctl restart {server}"
    );
    report.add(CHECK, Failure, seen, remedy);
}

/// The provider's part of `openssl.cnf`, and of its own file.
struct Provider {
    module: Option<String>,
    activated: bool,
    default_activated: bool,
    preferred: bool,
    mode: String,
    sockets: Vec<PathBuf>,
    nodes: Vec<String>,
}

impl Provider {
    /// Nothing if no section is the provider's.
    fn of(options: &Options, evidence: &Evidence) -> Option<Self> {
        let (_, Ok(cnf)) = evidence.cnf.as_ref()? else {
            return None;
        };
        // An application may have a section of its own, and nginx has.
        let own = cnf.value(cnf::DEFAULT, &options.server.to_string());
        let init = own.or_else(|| cnf.value(cnf::DEFAULT, "openssl_conf"))?;
        let list = cnf.section(cnf.value(init, "providers")?)?;
        let is_ours = |name: &str, section: &str| {
            let module = cnf.value(section, "module").unwrap_or("");
            name == "millrace" || file_name(Path::new(module)).contains("millrace")
        };
        let section = list
            .iter()
            .find(|(name, section)| is_ours(name, section))
            .map(|(_, section)| section)?;
        let default = list
            .iter()
            .find(|(name, _)| name == "default")
            .map(|(_, section)| section);
        let client = evidence
            .client
            .as_ref()
            .and_then(|(_, table)| table.as_ref().ok());
        let setting = |key: &str| {
            let own = client.and_then(|table| table.get(key)).map(toml_text);
            cnf.value(section, key).map(str::to_owned).or(own)
        };
        let nodes = setting("pool").unwrap_or_else(|| "unix:/run/millrace/node.sock".to_owned());
        let nodes: Vec<String> = nodes
            .split(',')
            .map(|node| node.trim().to_owned())
            .collect();
        Some(Self {
            module: cnf.value(section, "module").map(str::to_owned),
            activated: is_active(cnf, section),
            default_activated: default.is_some_and(|section| is_active(cnf, section)),
            preferred: prefers(cnf, init),
            mode: setting("mode").unwrap_or_else(|| "async".to_owned()),
            sockets: nodes
                .iter()
                .filter_map(|node| node.strip_prefix("unix:").map(PathBuf::from))
                .collect(),
            nodes,
        })
    }
}

/// `"a"` or `["a", "b"]`, as the text of a section would have it.
fn toml_text(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(values) => {
            let words: Vec<&str> = values.iter().filter_map(toml::Value::as_str).collect();
            words.join(",")
        }
        other => other.to_string(),
    }
}

fn is_active(cnf: &Cnf, section: &str) -> bool {
    let value = cnf.value(section, "activate").map(str::to_ascii_lowercase);
    value.is_some_and(|value| !matches!(value.as_str(), "0" | "no" | "off" | "false"))
}

fn prefers(cnf: &Cnf, init: &str) -> bool {
    let algorithms = cnf.value(init, "alg_section");
    let query = algorithms.and_then(|section| cnf.value(section, "default_properties"));
    query
        .is_some_and(|query| query.contains("provider=millrace") || query.contains("millrace.pool"))
}

fn openssl_cnf(evidence: &Evidence, provider: Option<&Provider>, report: &mut Report) {
    const CHECK: &str = "openssl.cnf";
    let Some((path, cnf)) = &evidence.cnf else {
        return report.add(
            CHECK,
            Failure,
            "there is no openssl.cnf",
            write(report.server),
        );
    };
    let shown = path.display();
    if let Err(error) = cnf {
        let outcome = if error.kind() == std::io::ErrorKind::PermissionDenied {
            Unseen
        } else {
            Failure
        };
        return report.add(
            CHECK,
            outcome,
            format!("{shown}: {error}"),
            write(report.server),
        );
    }
    if let Some((path, Err(error))) = &evidence.client {
        let remedy = "the provider refuses to load with it: correct it or remove it";
        return report.add(
            CHECK,
            Failure,
            format!("{}: {error}", path.display()),
            remedy.to_owned(),
        );
    }
    let Some(provider) = provider else {
        let seen =
            format!("{shown} has no section for the provider that its openssl_conf leads to");
        return report.add(CHECK, Failure, seen, write(report.server));
    };
    let remedy = |what: &str| format!("{what} in {shown}, then {}", restart(report.server));
    let (outcome, seen, remedy) = if !provider.activated {
        (
            Failure,
            format!("{shown} does not activate the provider"),
            Some(remedy("set activate = 1")),
        )
    } else if !provider.default_activated {
        let what = "list `default` beside `millrace` and activate it";
        (
            Failure,
            format!("{shown} does not activate `default`: naming a provider turns it off"),
            Some(remedy(what)),
        )
    } else if provider.mode == "off" {
        (
            Failure,
            format!("{shown} has mode = off: nothing goes to the pool"),
            Some(remedy("remove mode")),
        )
    } else {
        (
            Good,
            format!("{shown}, nodes {}", provider.nodes.join(", ")),
            None,
        )
    };
    report.add(CHECK, outcome, seen, remedy);
}

fn write(server: Server) -> String {
    format!("millrace gateway {server} --write")
}

/// The provider in the server's memory.
fn provider_library<'a>(evidence: &'a Evidence, provider: Option<&Provider>) -> Option<&'a Mapped> {
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

fn loaded(
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
        .filter(|module| {
            !cnf::has_variable(module) && !below(&evidence.files, Path::new(module)).exists()
        });
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

/// Whether a handshake that waits blocks a worker, as far as that shows without one.
fn waiting(
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

/// HAProxy frees a connection without ending the job that waits on it; the library does.
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

fn configuration(options: &Options, evidence: &Evidence, report: &mut Report) {
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
                format!("no `env {};` in nginx.conf: after an upgrade of the binary (SIGUSR2) the pool is gone", missing.join("; env ")),
                "add `include millrace.conf;` at the top of nginx.conf (millrace gateway nginx --write)".to_owned(),
            );
        }
    }
    limits(options, evidence, report);
}

fn limits(options: &Options, evidence: &Evidence, report: &mut Report) {
    const CHECK: &str = "descriptors";
    let config = &evidence.config;
    match options.server {
        Server::Haproxy => {
            // HAProxy derives its limit from this number, at two per connection.
            let (Some(global), Some(frontends)) = (config.global_connections, config.connections)
            else {
                return;
            };
            let seen = format!("maxconn {global} in `global`, {frontends} in the frontends");
            let needed = frontends.saturating_add(frontends / 2);
            if global < needed {
                let remedy = format!(
                    "raise maxconn of `global` to {needed}: HAProxy counts two descriptors per connection, \
                     and one whose handshake waited has three"
                );
                report.add(CHECK, Warning, seen, remedy);
            } else {
                report.add(CHECK, Good, seen, None);
            }
        }
        Server::Nginx => {
            let limit = evidence.workers.first();
            let limit = limit.and_then(|worker| evidence.proc.file_limit(worker.pid));
            let (Some(limit), Some(connections)) = (limit, config.connections) else {
                return;
            };
            let seen = format!("{limit} descriptors for {connections} connections");
            if limit < connections.saturating_mul(FEWEST_FILES_PER_CONNECTION) {
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

/// The key files; the names of the keys that are in the pool.
fn key_files(
    evidence: &Evidence,
    provider: Option<&Provider>,
    report: &mut Report,
) -> BTreeSet<String> {
    const CHECK: &str = "keys";
    let preferred = provider.is_some_and(|provider| provider.preferred);
    let mut stubs = BTreeSet::new();
    let (mut plain, mut odd, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
    for path in &evidence.config.keys {
        let shown = path.display().to_string();
        match keys::look(&below(&evidence.files, path)) {
            Held::Stub(name) => {
                stubs.insert(name);
            }
            Held::Plain => plain.push(shown),
            Held::Nothing => odd.push(shown),
            Held::Unreadable(error) => hidden.push(format!("{shown}: {error}")),
        }
    }
    if !stubs.is_empty() {
        let names: Vec<&str> = stubs.iter().map(String::as_str).collect();
        report.add(CHECK, Good, format!("stubs of {}", names.join(", ")), None);
    }
    if !plain.is_empty() && preferred {
        report.add(
            CHECK,
            Good,
            format!(
                "plain keys that go to the pool by the property query: {}",
                plain.join(", ")
            ),
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
        report.add(CHECK, Failure, seen, remedy.to_owned());
    }
    if !odd.is_empty() {
        report.add(
            CHECK,
            Warning,
            format!("neither a key nor a stub: {}", odd.join(", ")),
            None,
        );
    }
    if !hidden.is_empty() {
        report.add(CHECK, Unseen, hidden.join("; "), run_as_root());
    }
    stubs
}

/// Whether the workers reach the nodes, and may use the keys.
fn sockets(
    evidence: &Evidence,
    provider: Option<&Provider>,
    stubs: &BTreeSet<String>,
    node: &dyn Node,
    report: &mut Report,
) {
    let (Some(provider), Some(worker)) = (provider, evidence.workers.first()) else {
        return;
    };
    let user = &worker.user;
    // Where the worker is confined to, the socket has to be visible from there.
    let own = evidence.proc.link(worker.pid, "root");
    let root = match &own {
        Ok(root) if root == Path::new("/") => evidence.files.clone(),
        Ok(_) => evidence.proc.root_of(worker.pid),
        Err(_) => {
            let chroot = evidence.config.chroot.as_deref();
            below(&evidence.files, chroot.unwrap_or_else(|| Path::new("/")))
        }
    };
    for socket in &provider.sockets {
        let inside = match &own {
            Ok(confined) if confined != Path::new("/") => {
                format!(" (inside {})", confined.display())
            }
            _ => String::new(),
        };
        let shown = socket.display();
        match access::connect(user, &root, socket) {
            Ok(()) => {
                report.add(
                    "socket",
                    Good,
                    format!("user {} may connect to {shown}{inside}", user.uid),
                    None,
                );
                admitted(user, &below(&root, socket), stubs, node, report);
            }
            Err(obstacle) => {
                let (outcome, seen, remedy) =
                    blocked(&obstacle, user.uid, &shown.to_string(), &inside);
                report.add("socket", outcome, seen, remedy);
            }
        }
    }
}

fn blocked(obstacle: &Obstacle, uid: u32, socket: &str, inside: &str) -> (Outcome, String, String) {
    match obstacle {
        Obstacle::Missing(_) if !inside.is_empty() => (
            Failure,
            format!("{socket} is not there{inside}"),
            "bind its folder into the chroot (BindPaths= in the drop-in: millrace gateway haproxy --write)".to_owned(),
        ),
        Obstacle::Missing(_) => (
            Failure,
            format!("{socket} is not there"),
            "start the node (millrace up, systemctl start millrace), or correct `pool` in openssl.cnf".to_owned(),
        ),
        Obstacle::NotASocket(_) => (Failure, format!("{socket} is no socket"), "correct `pool` in openssl.cnf".to_owned()),
        Obstacle::Denied { path, owner: (mode, owner, group) } => (
            Failure,
            format!(
                "user {uid} may not connect to {socket}{inside}: {} has mode {mode:04o}, owner {owner}, group {group}",
                path.display()
            ),
            "put the user into the socket's group (millrace up --socket-group GROUP), or open the socket to all \
             (--socket-mode 0666) and let each key's policy decide".to_owned(),
        ),
        Obstacle::Unseen(path) => (Unseen, format!("{} is hidden from this user", path.display()), run_as_root()),
    }
}

fn admitted(
    user: &super::User,
    socket: &Path,
    stubs: &BTreeSet<String>,
    node: &dyn Node,
    report: &mut Report,
) {
    const CHECK: &str = "policy";
    for key in stubs.iter().take(MAX_ASKED) {
        match node.admits(user, socket, key) {
            Some(Ok(())) => report.add(
                CHECK,
                Good,
                format!("user {} may use {key}", user.uid),
                None,
            ),
            Some(Err(Refusal::NoNode(why))) => {
                let remedy = "start the node: millrace up, or systemctl start millrace".to_owned();
                let seen = format!("no node answers on {}: {why}", socket.display());
                // One question is enough.
                return report.add("node", Failure, seen, remedy);
            }
            Some(Err(Refusal::Refused(why))) => report.add(
                CHECK,
                Failure,
                format!("the node does not let user {} use {key}: {why}", user.uid),
                format!("millrace key policy {key} --allow-uid {}", user.uid),
            ),
            None => report.add(
                CHECK,
                Unseen,
                format!("whether user {} may use {key} cannot be tried", user.uid),
                run_as_root(),
            ),
        }
    }
}
