// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Collects all observable facts about a running server; `judge` draws the conclusions.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use millrace_edge::servers::{HAPROXY, NGINX, is_one_of};
use millrace_hostfs::accounts::{self, UserAccount};
use millrace_hostfs::generated::below;
use millrace_hostfs::maps::MappedFile;
use millrace_hostfs::openssl_cnf::Cnf;
use millrace_hostfs::process::{Proc, Process, User};
use millrace_hostfs::systemd::{self, ServiceEnvironment, ServiceVariable};
use millrace_hostfs::{FileKind, ReadResult, Root, Unavailable};

use super::apparmor::Profile;
use super::pool::ProcessContext;
use super::server::{self, ServerConfig};
use super::{CheckOptions, CheckOutcome, CheckRemedy, CheckReport, Server, utf8};
use crate::system_conf::{MAX_CONFIG, OPENSSL_CNF, SYSTEM_PATHS, read_cnf};

/// Evidence that a check can judge.
pub(super) enum Gathered {
    /// A server on this machine, running or not.
    Evidence(Box<Evidence>),
    /// No server runs here, and `--connect` names one elsewhere.
    Elsewhere,
    /// The server is not known; the report has the reason.
    Nothing,
}

/// The processes of a running server at the time of the check.
pub(super) struct ServerProcesses {
    pub(super) master: Process,
    /// The processes that serve connections; the master if it has no workers.
    pub(super) workers: Vec<Process>,
    /// Whether a unit of systemd started it.
    pub(super) by_unit: bool,
}

impl ServerProcesses {
    /// A process that serves connections.
    pub(super) fn worker(&self) -> &Process {
        self.workers.first().unwrap_or(&self.master)
    }
}

/// Everything that the check read about one server, collected once before it is judged.
pub(super) struct Evidence {
    pub(super) server: Server,
    pub(super) proc: Proc,
    /// Whether `proc` is this machine's, so that the results of programs here apply to the server.
    pub(super) live: bool,
    /// Whether systemd manages this machine.
    pub(super) systemd: bool,
    pub(super) running: Option<ServerProcesses>,
    /// The file system as the master sees it.
    pub(super) root: Root,
    /// The path of that root in this process.
    pub(super) root_path: PathBuf,
    /// `OPENSSL_CONF` of the master.
    pub(super) openssl_conf: Variable,
    /// `LD_PRELOAD` of the master.
    pub(super) preload: Variable,
    /// The unit that starts it.
    pub(super) unit: String,
    /// The profile of AppArmor that confines a worker, or would.
    pub(super) profile: Option<Profile>,
    /// Files that describe the environment and could not be read.
    pub(super) unread: Vec<String>,
    /// The files that are mapped into a worker.
    pub(super) mapped: ReadResult<Vec<MappedFile>>,
    /// The `openssl.cnf` in use, with its path.
    pub(super) cnf: Option<(PathBuf, ReadResult<Cnf>)>,
    /// The provider's own file, if there is one.
    pub(super) client: Option<(PathBuf, ReadResult<toml::Table>)>,
    /// The server's own configuration.
    pub(super) config: ServerConfig,
}

/// Root and user with which a worker opens files, or would if none runs. Files must be visible from there.
pub(super) struct WorkerPlace {
    pub(super) place: ProcessContext,
    /// Chroot of the worker, if it has one.
    pub(super) confined: Option<PathBuf>,
}

impl Evidence {
    /// The place of a worker, or of the one that would run; `None` if its user is not known.
    pub(super) fn worker(&self) -> Option<WorkerPlace> {
        let Some(running) = &self.running else {
            let confined = self.config.chroot.clone();
            let root = confined
                .as_ref()
                .map_or_else(|| self.root_path.clone(), |chroot| below(&self.root_path, chroot));
            let user = server_user(&self.root, &self.server, &self.unit, &self.config)?;
            let profile = self.profile.as_ref().map(|profile| profile.name.clone());
            let place = ProcessContext { pid: None, root, user, is_confined: true, profile };
            return Some(WorkerPlace { place, confined });
        };
        let process = running.worker();
        // In a chroot or a container, files must be visible from inside.
        let (root, confined) = match self.proc.link(process.pid, "root") {
            Ok(root) if root == Path::new("/") => (self.root_path.clone(), None),
            Ok(root) => (self.proc.root_of(process.pid), Some(root)),
            Err(_) => {
                let confined = self.config.chroot.clone();
                let root = confined.as_deref().unwrap_or_else(|| Path::new("/"));
                (below(&self.root_path, root), confined)
            }
        };
        let user = process.user.clone();
        let profile = self.profile.as_ref().map(|profile| profile.name.clone());
        let place =
            ProcessContext { pid: Some(process.pid), root, user, is_confined: true, profile };
        Some(WorkerPlace { place, confined })
    }

    /// How to restart the server.
    pub(super) fn restart(&self) -> CheckRemedy {
        let server = &self.server;
        if self.systemd {
            let advice = format!("restart {server}: a reload is not enough");
            CheckRemedy::run(advice, [format!("systemctl restart {}", self.service())])
        } else {
            format!("restart {server} with this environment: a reload is not enough").into()
        }
    }

    /// The name of the unit, as systemctl takes it.
    pub(super) fn service(&self) -> &str {
        self.unit.strip_suffix(".service").unwrap_or(&self.unit)
    }

    /// How to give the server the generated configuration.
    pub(super) fn write(&self) -> CheckRemedy {
        let server = &self.server;
        if let Server::Other(name) = server {
            let advice = format!(
                "write openssl.cnf, and give {name} OPENSSL_CONF={OPENSSL_CNF}; `millrace gateway --help` lists the \
                 programs that have a recipe of their own"
            );
            return CheckRemedy::run(advice, ["millrace gateway openssl --write".to_owned()]);
        }
        let write = format!("millrace gateway {server} --write");
        if self.systemd {
            let restart = format!("systemctl restart {server}");
            let advice = format!("write the generated configuration, then restart {server}");
            CheckRemedy::run(advice, [write, "systemctl daemon-reload".to_owned(), restart])
        } else {
            let advice = "write the generated configuration; the command also prints the environment to start";
            CheckRemedy::run(format!("{advice} {server} with"), [write])
        }
    }
}

/// The user with this name or number, without further groups.
#[must_use]
pub fn user_named(root: &Root, name: &str) -> Option<User> {
    let UserAccount { uid, gid } = accounts::user(root, name).ok()??;
    Some(User { uid, gid, groups: Vec::new() })
}

/// A variable of the server's environment.
pub(super) struct Variable {
    pub(super) value: Option<String>,
    /// The place where the variable was found or searched.
    pub(super) source: String,
    /// Whether a missing value means that the variable is not set.
    pub(super) certain: bool,
    /// The unit file that removes the variable.
    pub(super) unset_by: Option<PathBuf>,
}

impl Variable {
    fn new(value: Option<String>, source: String, certain: bool) -> Self {
        Self { value, source, certain, unset_by: None }
    }

    fn of(
        proc: &Proc,
        pid: Option<u32>,
        unit: &str,
        service: &ServiceEnvironment,
        name: &str,
    ) -> Self {
        let why = match pid.map(|pid| (pid, proc.variable(pid, name))) {
            Some((pid, Ok(value))) => {
                return Self::new(value, format!("the environment of process {pid}"), true);
            }
            Some((_, Err(error))) => {
                format!("the environment of the process is not visible ({error})")
            }
            None => "no process is running".to_owned(),
        };
        match service.variable(name) {
            ServiceVariable::Set(file, value) => {
                Self::new(Some(value), file.display().to_string(), true)
            }
            ServiceVariable::Unset(file) => {
                let source =
                    format!("UnsetEnvironment= in {} removes it from {unit}", file.display());
                Self { unset_by: Some(file), ..Self::new(None, source, false) }
            }
            ServiceVariable::Passed(file) => {
                let source = format!(
                    "PassEnvironment= in {} passes it on from systemd itself (systemctl show-environment), \
                     which is not read, and {why}",
                    file.display()
                );
                Self::new(None, source, false)
            }
            // A process that is to be started gets its environment from the unit.
            ServiceVariable::NotNamed if pid.is_none() => {
                Self::new(None, format!("the unit files of {unit}"), true)
            }
            ServiceVariable::NotNamed => {
                let source = format!("no unit file of {unit} sets it, and {why}");
                Self::new(None, source, false)
            }
        }
    }
}

/// Finds the server and reads what it was started with, or would be.
pub(super) fn gather(options: &CheckOptions, report: &mut CheckReport) -> Gathered {
    let found = find_settled(options).and_then(|(proc, running)| {
        let (root, root_path) = root_of(&proc, running.as_ref())?;
        Ok((proc, running, root, root_path))
    });
    let (proc, running, root, root_path) = match found {
        Ok(found) => found,
        Err(NotFound { seen, remedy }) => {
            report.add("process", CheckOutcome::Failure, seen, remedy);
            return Gathered::Nothing;
        }
    };
    let server = &options.server;
    if let (None, Some(address)) = (&running, &options.connect) {
        let seen = format!("no {server} is running here: {address} is only seen from outside");
        let remedy = "run this on the gateway to see more".to_owned();
        report.add("process", CheckOutcome::Unseen, seen, remedy);
        return Gathered::Elsewhere;
    }
    let pid = running.as_ref().map(|running| running.master.pid);
    report.pid = pid;
    let groups = pid.map(|pid| proc.control_groups(pid)).unwrap_or_default();
    let usual = format!("{server}.service");
    let unit = systemd::unit_of(&groups).unwrap_or(&usual);
    // Read the unit files only if the process's own environment is not visible.
    let service = match pid.map(|pid| proc.variable(pid, "OPENSSL_CONF")) {
        Some(Ok(_)) => ServiceEnvironment::default(),
        Some(Err(_)) | None => ServiceEnvironment::of(&root, unit),
    };
    let variable = |name| Variable::of(&proc, pid, unit, &service, name);
    let mut openssl_conf = variable("OPENSSL_CONF");
    let preload = variable("LD_PRELOAD");
    if let Some(named) = &options.openssl_conf {
        let value = Some(named.display().to_string());
        openssl_conf = Variable::new(value, "the command line".to_owned(), true);
    }
    let mapped = running
        .as_ref()
        .map_or(Err(Unavailable::Missing), |running| proc.mapped(running.worker().pid));
    let cnf = cnf_path(&root, &openssl_conf);
    let cnf = cnf.map(|path| {
        let cnf = read_cnf(&root, &path);
        (path, cnf)
    });
    let client = client_file(variable("MILLRACE_CLIENT_CONF").value.as_deref(), &root);
    let master = running.as_ref().map(|running| &running.master);
    let config = server_config(options, &proc, master, &root);
    let profile = match &running {
        Some(running) => Profile::of_label(&root, proc.security_label(running.worker().pid).ok()),
        None => Profile::of_program(&root, &program_of(&root, unit, server)),
    };
    Gathered::Evidence(Box::new(Evidence {
        server: server.clone(),
        profile,
        live: options.proc == Path::new("/proc"),
        systemd: root.exists(systemd::BOOTED),
        proc,
        running: running.map(|running| ServerProcesses {
            by_unit: systemd::unit_of(&groups).is_some(),
            ..running
        }),
        root,
        root_path,
        openssl_conf,
        preload,
        unit: unit.to_owned(),
        unread: service.problems,
        mapped,
        cnf,
        client,
        config,
    }))
}

struct NotFound {
    seen: String,
    remedy: String,
}

/// Finds the server like [`find`], once the workers of one that has just started are those that will serve.
fn find_settled(options: &CheckOptions) -> Result<(Proc, Option<ServerProcesses>), NotFound> {
    /// A worker of HAProxy has loaded its libraries and dropped root some hundredths of a second after its start,
    /// on a busy machine a second. Only a script asks that early.
    const SETTLED: Duration = Duration::from_secs(2);
    let found = find(options)?;
    let worker = found.1.as_ref().map(|running| running.worker().pid);
    let age = worker.and_then(|worker| found.0.age(worker));
    match age.and_then(|age| SETTLED.checked_sub(age)) {
        Some(rest) if !rest.is_zero() => {
            thread::sleep(rest);
            find(options)
        }
        Some(_) | None => Ok(found),
    }
}

/// The processes of the server. `None` if it does not run.
fn find(options: &CheckOptions) -> Result<(Proc, Option<ServerProcesses>), NotFound> {
    let server = &options.server;
    let no_proc = |error: &dyn std::fmt::Display| NotFound {
        seen: format!("{}: {error}", options.proc.display()),
        remedy: "run it where the server runs, on Linux".to_owned(),
    };
    let proc = Proc::open(&options.proc).map_err(|error| no_proc(&error))?;
    let all = proc.named(|name| is_named(server, name)).map_err(|reason| no_proc(&reason))?;
    let is_child = |process: &Process| all.iter().any(|other| other.pid == process.parent);
    let master = match options.pid {
        Some(pid) => {
            let named = all.iter().find(|process| process.pid == pid);
            let named = named.ok_or_else(|| NotFound {
                seen: format!("there is no {server} with process id {pid}"),
                remedy: format!("`pidof {server}` says which there are"),
            })?;
            all.iter().find(|process| process.pid == named.parent).unwrap_or(named)
        }
        None => {
            let mut masters: Vec<&Process> =
                all.iter().filter(|process| !is_child(process)).collect();
            // Any user may give a program this name; root's is the service.
            if masters.iter().filter(|process| is_roots(process)).count() == 1 {
                masters.retain(|process| is_roots(process));
            }
            match masters[..] {
                [] => return Ok((proc, None)),
                [master] => master,
                _ => {
                    let pids: Vec<String> =
                        masters.iter().map(|process| process.pid.to_string()).collect();
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
    let running = ServerProcesses { master: master.clone(), workers, by_unit: false };
    Ok((proc, Some(running)))
}

fn is_roots(process: &Process) -> bool {
    process.user.uid == 0
}

fn is_named(server: &Server, name: &str) -> bool {
    /// Bytes of a name that the kernel keeps (`TASK_COMM_LEN` without its NUL).
    const KEPT: usize = 15;
    match server {
        Server::Haproxy => is_one_of(&HAPROXY, name.as_bytes()),
        Server::Nginx => is_one_of(&NGINX, name.as_bytes()),
        Server::Other(wanted) => wanted.get(..KEPT).unwrap_or(wanted) == name,
    }
}

/// The program that a unit starts.
fn program_of(root: &Root, unit: &str, server: &Server) -> String {
    let started = systemd::values(root, unit, "ExecStart").pop().unwrap_or_default();
    let program = started.split_whitespace().next().unwrap_or_default();
    let program = program.trim_start_matches(['-', '@', ':', '+', '!']);
    if program.is_empty() { format!("/usr/sbin/{server}") } else { program.to_owned() }
}

/// The file system of a process if it is visible and the process has not changed its root since it read its
/// files; else that of this process.
fn root_of(proc: &Proc, running: Option<&ServerProcesses>) -> Result<(Root, PathBuf), NotFound> {
    let pid = running.map(|running| running.master.pid);
    let whole = |pid: &u32| {
        let root = proc.link(*pid, "root");
        root.is_ok_and(|root| root == Path::new("/"))
    };
    let path = pid.filter(whole).map(|pid| proc.root_of(pid));
    let path = path.filter(|path| path.join("etc").is_dir());
    let path = path.unwrap_or_else(|| PathBuf::from("/"));
    match Root::open(&path) {
        Ok(root) => Ok((root, path)),
        Err(error) => Err(NotFound {
            seen: error.to_string(),
            remedy: "run this again: the server may have ended".to_owned(),
        }),
    }
}

fn is_file(root: &Root, path: &Path) -> bool {
    root.kind(utf8(path)) == Ok(FileKind::File)
}

fn cnf_path(root: &Root, variable: &Variable) -> Option<PathBuf> {
    if let Some(path) = &variable.value {
        return Some(path.into());
    }
    // If the variable is not visible, the file of the recipes is the best guess.
    let generated = (!variable.certain).then_some(OPENSSL_CNF);
    let mut candidates = generated.into_iter().chain(SYSTEM_PATHS).map(PathBuf::from);
    candidates.find(|path| is_file(root, path))
}

pub(super) fn client_file(
    named: Option<&str>,
    root: &Root,
) -> Option<(PathBuf, ReadResult<toml::Table>)> {
    let path = named.unwrap_or(crate::recipe::CLIENT_TOML);
    if named.is_none() && !root.exists(path) {
        return None;
    }
    Some((path.into(), read_client(root, path)))
}

pub(super) fn read_client(root: &Root, path: &str) -> ReadResult<toml::Table> {
    let table = root.text(path, MAX_CONFIG)?.parse::<toml::Table>();
    table.map_err(|error| Unavailable::malformed(error.message()))
}

/// The user of a server's workers: that of its configuration, or of Debian's packages.
pub(super) fn server_user(
    root: &Root,
    server: &Server,
    unit: &str,
    config: &ServerConfig,
) -> Option<User> {
    let usual = match server {
        Server::Nginx => "www-data",
        Server::Haproxy => "haproxy",
        // Most drop root by themselves, to a user of their name; root reads openssl.cnf before.
        Server::Other(name) => {
            let named = systemd::values(root, unit, "User").pop();
            let user = user_named(root, named.as_deref().unwrap_or(name));
            return user.or_else(|| Some(User::default()));
        }
    };
    user_named(root, config.user.as_deref().unwrap_or(usual))
}

fn server_config(
    options: &CheckOptions,
    proc: &Proc,
    master: Option<&Process>,
    root: &Root,
) -> ServerConfig {
    let folder = master.and_then(|master| proc.link(master.pid, "cwd").ok());
    let folder = folder.unwrap_or_else(|| PathBuf::from("/"));
    let arguments = master.map_or(&[][..], |master| &master.arguments);
    match &options.server {
        Server::Other(_) => ServerConfig::default(),
        Server::Nginx => {
            let words = title_words(arguments);
            let after = |flag: &str| {
                let at = words.iter().position(|word| *word == flag)?;
                words.get(at + 1).map(PathBuf::from)
            };
            let prefix = folder.join(after("-p").unwrap_or_default());
            let file = options.config.clone().or_else(|| after("-c"));
            let file = file.map(|file| prefix.join(file));
            let usual = || {
                let known = server::nginx::DEFAULT_FILES.iter().map(PathBuf::from);
                let mut known = known.filter(|file| is_file(root, file));
                known.next()
            };
            match file.or_else(usual) {
                Some(file) => server::nginx::read(root, &file),
                None => none_found(),
            }
        }
        Server::Haproxy => {
            let mut named: Vec<PathBuf> = options.config.iter().cloned().collect();
            if named.is_empty() {
                named = after_flag(arguments, "-f").map(|file| folder.join(file)).collect();
            }
            if named.is_empty() {
                named.push(server::haproxy::DEFAULT_FILE.into());
            }
            server::haproxy::read(root, &named)
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
