// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Collects what can be seen of a running server before anything is concluded from it.

use std::io;
use std::path::{Path, PathBuf};

use super::cnf::Cnf;
use super::maps::Mapped;
use super::proc::{Proc, Process, read};
use super::server::{self, ServerConfig};
use super::systemd::{self, Described, Environment};
use super::{Options, Outcome, Report, Server};

/// Bound on an `openssl.cnf` and on a `client.toml`, in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// Bound on files that include each other.
const MAX_INCLUDES: usize = 32;

/// Where OpenSSL looks if nobody says: Debian's, and what OpenSSL itself installs.
const SYSTEM_CNF: [&str; 3] = [
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/openssl.cnf",
    "/usr/local/ssl/openssl.cnf",
];

/// What was seen.
pub(super) struct Evidence {
    pub(super) proc: Proc,
    pub(super) master: Process,
    /// Those that have connections; the master itself if there is nobody else.
    pub(super) workers: Vec<Process>,
    /// The file system as the master sees it.
    pub(super) files: PathBuf,
    /// `OPENSSL_CONF` of the master.
    pub(super) openssl_conf: Variable,
    /// `LD_PRELOAD` of the master.
    pub(super) preload: Variable,
    /// What could not be read of the files that describe its environment.
    pub(super) unread: Vec<String>,
    /// What is mapped into a worker.
    pub(super) mapped: io::Result<Vec<Mapped>>,
    /// The `openssl.cnf` that counts, with its path.
    pub(super) cnf: Option<(PathBuf, io::Result<Cnf>)>,
    /// The provider's own file, if there is one.
    pub(super) client: Option<(PathBuf, Result<toml::Table, String>)>,
    /// The server's own configuration.
    pub(super) config: ServerConfig,
}

/// A variable of the server's environment.
pub(super) struct Variable {
    pub(super) value: Option<String>,
    /// Where it was seen, or looked for.
    pub(super) source: String,
    /// Whether a missing value means that there is none.
    pub(super) certain: bool,
    /// The unit file that takes it away.
    pub(super) unset_by: Option<PathBuf>,
}

impl Variable {
    fn new(value: Option<String>, source: String, certain: bool) -> Self {
        Self {
            value,
            source,
            certain,
            unset_by: None,
        }
    }

    fn of(proc: &Proc, pid: u32, unit: &str, service: &Environment, name: &str) -> Self {
        let error = match proc.variable(pid, name) {
            Ok(value) => {
                return Self::new(value, format!("the environment of process {pid}"), true);
            }
            Err(error) => error,
        };
        match service.variable(name) {
            Described::Set(file, value) => Self::new(Some(value), file.display().to_string(), true),
            Described::Unset(file) => {
                let source = format!(
                    "UnsetEnvironment= in {} takes it away from {unit}",
                    file.display()
                );
                Self {
                    unset_by: Some(file),
                    ..Self::new(None, source, false)
                }
            }
            Described::Passed(file) => {
                let source = format!(
                    "PassEnvironment= in {} hands on what systemd itself has (systemctl show-environment), \
                     which is not looked at, and in its environment it cannot be seen ({error})",
                    file.display()
                );
                Self::new(None, source, false)
            }
            Described::Nothing => {
                let source = format!(
                    "no unit file of {unit} sets it, and in its environment it cannot be seen ({error})"
                );
                Self::new(None, source, false)
            }
        }
    }
}

/// Nothing if there is no such server; the report says why.
pub(super) fn gather(options: &Options, report: &mut Report) -> Option<Evidence> {
    let proc = Proc::new(&options.proc);
    let (master, workers) = match find(options, &proc) {
        Ok(found) => found,
        Err(NotFound { seen, remedy }) => {
            report.add("process", Outcome::Failure, seen, Some(remedy));
            return None;
        }
    };
    report.pid = Some(master.pid);
    let files = files_of(&proc, master.pid);
    let groups = proc.control_groups(master.pid);
    let usual = format!("{}.service", options.server);
    let unit = systemd::unit_of(&groups).unwrap_or(&usual);
    // Only where its own environment does not show.
    let service = match proc.variable(master.pid, "OPENSSL_CONF") {
        Ok(_) => Environment::default(),
        Err(_) => Environment::of(&files, unit),
    };
    let variable = |name| Variable::of(&proc, master.pid, unit, &service, name);
    let (mut openssl_conf, preload) = (variable("OPENSSL_CONF"), variable("LD_PRELOAD"));
    if let Some(named) = &options.openssl_conf {
        let value = Some(named.display().to_string());
        openssl_conf = Variable::new(value, "the command line".to_owned(), true);
    }
    let mapped = proc.mapped(workers.first().map_or(master.pid, |worker| worker.pid));
    let cnf = cnf_path(&files, &openssl_conf);
    let cnf = cnf.map(|path| {
        let cnf = read_cnf(&files, &path);
        (path, cnf)
    });
    let client = client_file(variable("MILLRACE_CLIENT_CONF").value.as_deref(), &files);
    let config = server_config(options, &proc, &master, &files);
    Some(Evidence {
        proc,
        master,
        workers,
        files,
        openssl_conf,
        preload,
        unread: service.problems,
        mapped,
        cnf,
        client,
        config,
    })
}

struct NotFound {
    seen: String,
    remedy: String,
}

fn find(options: &Options, proc: &Proc) -> Result<(Process, Vec<Process>), NotFound> {
    let server = options.server;
    let all = proc
        .named(|name| is_named(server, name))
        .map_err(|error| NotFound {
            seen: format!("{}: {error}", options.proc.display()),
            remedy: "run it where the server runs, on Linux".to_owned(),
        })?;
    let is_child = |process: &Process| all.iter().any(|other| other.pid == process.parent);
    let master = match options.pid {
        Some(pid) => {
            let named = all.iter().find(|process| process.pid == pid);
            let named = named.ok_or_else(|| NotFound {
                seen: format!("there is no {server} with process id {pid}"),
                remedy: format!("`pidof {server}` says which there are"),
            })?;
            all.iter()
                .find(|process| process.pid == named.parent)
                .unwrap_or(named)
        }
        None => {
            let masters: Vec<&Process> = all.iter().filter(|process| !is_child(process)).collect();
            match masters[..] {
                [] => {
                    return Err(NotFound {
                        seen: format!("no {server} is running"),
                        remedy: "start it, or give --connect to check one on another host"
                            .to_owned(),
                    });
                }
                [master] => master,
                _ => {
                    let pids: Vec<String> = masters
                        .iter()
                        .map(|process| process.pid.to_string())
                        .collect();
                    return Err(NotFound {
                        seen: format!(
                            "{} {server} are running: {}",
                            masters.len(),
                            pids.join(", ")
                        ),
                        remedy: "choose one with --pid".to_owned(),
                    });
                }
            }
        }
    };
    let serves = |process: &&Process| {
        let title = process.arguments.first().map_or("", String::as_str);
        process.parent == master.pid
            && !title.contains("cache ")
            && !title.contains("shutting down")
    };
    let mut workers: Vec<Process> = all.iter().filter(serves).cloned().collect();
    if workers.is_empty() {
        workers.push(master.clone());
    }
    Ok((master.clone(), workers))
}

fn is_named(server: Server, name: &str) -> bool {
    const NGINX: [&str; 4] = ["nginx", "openresty", "angie", "freenginx"];
    match server {
        Server::Haproxy => name == "haproxy",
        // `nginx-debug`, `nginx.old`: the same program beside another.
        Server::Nginx => NGINX.iter().any(|known| {
            name.strip_prefix(known)
                .is_some_and(|rest| matches!(rest.chars().next(), None | Some('-' | '.')))
        }),
    }
}

/// The file system of a process, if it can be looked into and the process has not confined itself since
/// it read its files.
fn files_of(proc: &Proc, pid: u32) -> PathBuf {
    let own = proc.root_of(pid);
    let whole = proc
        .link(pid, "root")
        .is_ok_and(|root| root == Path::new("/"));
    if whole && own.join("etc").is_dir() {
        own
    } else {
        PathBuf::from("/")
    }
}

fn cnf_path(files: &Path, variable: &Variable) -> Option<PathBuf> {
    if let Some(path) = &variable.value {
        return Some(path.into());
    }
    // Where it cannot be seen, the recipes' own is the best guess.
    let generated = (!variable.certain).then_some(crate::recipe::OPENSSL_CNF);
    let candidates = generated.into_iter().chain(SYSTEM_CNF).map(PathBuf::from);
    let mut there = candidates.filter(|path| crate::verify::below(files, path).is_file());
    there.next()
}

fn read_cnf(files: &Path, path: &Path) -> io::Result<Cnf> {
    let mut cnf = Cnf::parse(&read(&crate::verify::below(files, path), MAX_CONFIG)?);
    let mut next = 0;
    while let Some(file) = cnf.includes.get(next).filter(|_| next < MAX_INCLUDES) {
        let file = crate::verify::below(files, Path::new(file));
        next += 1;
        // Folders and files that are not there are no errors for OpenSSL, either.
        if let Ok(text) = read(&file, MAX_CONFIG) {
            cnf.add(&text);
        }
    }
    Ok(cnf)
}

fn client_file(
    named: Option<&str>,
    files: &Path,
) -> Option<(PathBuf, Result<toml::Table, String>)> {
    let path = PathBuf::from(named.unwrap_or(crate::recipe::CLIENT_TOML));
    let real = crate::verify::below(files, &path);
    if named.is_none() && !real.exists() {
        return None;
    }
    let table = read(&real, MAX_CONFIG)
        .map_err(|error| error.to_string())
        .and_then(|text| {
            text.parse::<toml::Table>()
                .map_err(|error| error.message().to_owned())
        });
    Some((path, table))
}

fn server_config(options: &Options, proc: &Proc, master: &Process, files: &Path) -> ServerConfig {
    let folder = proc
        .link(master.pid, "cwd")
        .unwrap_or_else(|_| PathBuf::from("/"));
    match options.server {
        Server::Nginx => {
            let words = title_words(&master.arguments);
            let after = |flag: &str| {
                let at = words.iter().position(|word| *word == flag)?;
                words.get(at + 1).map(PathBuf::from)
            };
            let prefix = folder.join(after("-p").unwrap_or_default());
            let file = options.config.clone().or_else(|| after("-c"));
            let file = file.map(|file| prefix.join(file));
            let usual = || {
                let known = server::nginx::DEFAULT_FILES.iter().map(PathBuf::from);
                let mut known = known.filter(|file| crate::verify::below(files, file).is_file());
                known.next()
            };
            match file.or_else(usual) {
                Some(file) => server::nginx::read(files, &file),
                None => none_found(),
            }
        }
        Server::Haproxy => {
            let mut named: Vec<PathBuf> = options.config.iter().cloned().collect();
            if named.is_empty() {
                named = after_flag(&master.arguments, "-f")
                    .map(|file| folder.join(file))
                    .collect();
            }
            if named.is_empty() {
                named.push(server::haproxy::DEFAULT_FILE.into());
            }
            server::haproxy::read(files, &named)
        }
    }
}

fn none_found() -> ServerConfig {
    ServerConfig {
        problems: vec!["no configuration file was found: give one with --server-config".to_owned()],
        ..ServerConfig::default()
    }
}

/// nginx makes one argument of all of them: `nginx: master process /usr/sbin/nginx -c FILE`.
fn title_words(arguments: &[String]) -> Vec<&str> {
    match arguments {
        [title] => title.split(' ').collect(),
        several => several.iter().map(String::as_str).collect(),
    }
}

/// The values of a flag; HAProxy takes several files after one.
fn after_flag<'a>(arguments: &'a [String], flag: &'a str) -> impl Iterator<Item = &'a str> {
    let mut taking = false;
    arguments.iter().skip(1).filter_map(move |word| {
        if word.starts_with('-') {
            taking = word == flag || word == "--";
            return None;
        }
        taking.then_some(word.as_str())
    })
}
