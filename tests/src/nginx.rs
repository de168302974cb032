// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stock nginx with a configuration of the test, with or without the preload library.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{
    Pid, Resource, Signal, getrlimit, kill_process, kill_process_group, test_kill_process_group,
};

use crate::artifacts::artifacts;
use crate::edge::Edge;
use crate::gateway::Site;
use crate::is_root;
use crate::process::{self, Process, children, is_alive, listens};
use crate::release;
use crate::wait;

/// Configuration of one nginx.
#[derive(Clone, Debug)]
pub struct NginxOptions {
    /// Worker processes.
    pub workers: usize,
    /// Whether the library is preloaded.
    pub preload: bool,
    /// The preload library; default: this tree's.
    pub library: Option<PathBuf>,
    /// Whether nginx runs as a daemon, which an upgrade of its binary requires.
    pub daemon: bool,
    /// The provider's configuration; none: plain OpenSSL.
    pub edge: Option<Edge>,
    /// Further lines outside every block.
    pub main: String,
    /// Further lines of the `events` block.
    pub events: String,
    /// The `http` block: settings and servers.
    pub http: String,
    /// The `stream` block, for which the module has to be installed.
    pub stream: String,
    /// Further variables of its environment.
    pub environment: Vec<(&'static str, String)>,
    /// A program with its arguments that starts nginx: without words nginx is started directly.
    pub launcher: Vec<String>,
}

impl NginxOptions {
    /// One worker with the library preloaded and the pool under it.
    #[must_use]
    pub fn asynchronous(edge: &Edge, http: String) -> Self {
        Self {
            workers: 1,
            preload: true,
            library: None,
            daemon: false,
            edge: Some(edge.clone()),
            main: String::new(),
            events: String::new(),
            http,
            stream: String::new(),
            environment: Vec::new(),
            launcher: Vec::new(),
        }
    }
}

/// A running nginx. Drop ends it, its workers and the processes that it was upgraded to.
#[derive(Debug)]
pub struct Nginx {
    /// The started process: the master, or its parent that has detached it and ended.
    pub process: Process,
    dir: PathBuf,
    daemon: Option<Pid>,
}

/// Path of Debian's nginx module that terminates TLS for other protocols than HTTP.
#[must_use]
pub fn stream_module() -> Option<PathBuf> {
    const PATH: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";
    release::file(PATH).is_file().then(|| PATH.into())
}

/// Writes certificate and key into the folder, and returns the two lines that name them.
///
/// # Panics
/// If they cannot be written.
#[must_use]
pub fn certificate_lines(dir: &Path, name: &str, site: &Site) -> String {
    let certificate = dir.join(format!("{name}-{}.crt", site.kind));
    let key = dir.join(format!("{name}-{}.key", site.kind));
    fs::write(&certificate, &site.certificate_pem).expect("certificate");
    fs::write(&key, &site.key_pem).expect("key");
    format!("ssl_certificate {};\nssl_certificate_key {};\n", certificate.display(), key.display())
}

impl Nginx {
    /// Starts nginx and waits until every port of `ports` accepts connections.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(dir: &Path, options: &NginxOptions, ports: &[u16]) -> Self {
        let dir = fresh_folder(dir);
        let config = dir.join("server.conf");
        fs::write(&config, text(options)).expect("configuration of nginx");
        let mut command = release::command("nginx");
        command.arg("-p").arg(&dir).arg("-e").arg("error.log");
        command.arg("-c").arg(&config);
        command.env_remove("OPENSSL_CONF");
        if let Some(edge) = &options.edge {
            edge.apply(&mut command);
        }
        if options.preload {
            let library = options.library.as_ref();
            command.env("LD_PRELOAD", library.unwrap_or_else(|| &artifacts().preload));
        }
        command.envs(options.environment.iter().cloned());
        let command = process::under(&options.launcher, &command);
        let mut process = Process::start("nginx", command, &dir.join("output.log"));
        let all_listen = || ports.iter().all(|port| listens(*port));
        let mut daemon = None;
        if options.daemon {
            assert!(process.wait().success(), "nginx:\n{}", process.log());
            wait::until("nginx has detached itself", || {
                daemon = read_pid(&dir.join("nginx.pid"));
                daemon.is_some()
            });
        }
        let started = Self { process, dir, daemon };
        let mut started = started;
        if options.daemon {
            wait::until("nginx listens", all_listen);
        } else {
            started.process.wait_ready(all_listen);
        }
        wait::until("nginx has its workers", || started.workers().len() == options.workers);
        started
    }

    /// The process id of the master that is in charge.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn master(&self) -> u32 {
        let mut master = None;
        // During a handover between masters the pid file is renamed.
        wait::until("there is a master", || {
            master = self.try_master();
            master.is_some()
        });
        master.expect("found")
    }

    fn try_master(&self) -> Option<u32> {
        let pid = read_pid(&self.dir.join("nginx.pid"))?;
        u32::try_from(pid.as_raw_nonzero().get()).ok()
    }

    /// The workers of the master in charge.
    #[must_use]
    pub fn workers(&self) -> Vec<u32> {
        self.try_master().map_or_else(Vec::new, children)
    }

    /// Sends the master in charge a signal.
    pub fn signal(&self, signal: Signal) {
        signal_to(self.master(), signal);
    }

    /// Reloads the configuration and waits for as many new workers as there were old ones.
    ///
    /// # Panics
    /// On timeout. Old workers may still serve their connections.
    pub fn reload(&self) {
        let old = self.workers();
        self.signal(Signal::HUP);
        wait::until("there are new workers", || {
            let now = self.workers();
            let new = now.iter().filter(|id| !old.contains(id)).count();
            new >= old.len().min(2) && now.iter().all(|id| !old.contains(id))
        });
    }

    /// Replaces a daemon's binary while it runs: a new master starts beside the old one, the old workers end, the
    /// old master ends. `between` runs after the first and after the last step.
    ///
    /// # Panics
    /// On timeout.
    pub fn upgrade(&self, between: impl Fn()) {
        let (old, old_workers) = (self.master(), self.workers());
        self.signal(Signal::USR2);
        wait::until("there is a new master with a worker", || {
            self.master() != old && !self.workers().is_empty()
        });
        between();
        signal_to(old, Signal::WINCH);
        wait::until("the old workers are gone", || !old_workers.iter().any(|id| is_alive(*id)));
        signal_to(old, Signal::QUIT);
        wait::until("the old master is gone", || !is_alive(old));
        between();
    }

    /// The log of nginx and of the libraries in it.
    #[must_use]
    pub fn log(&self) -> String {
        let errors = fs::read(self.dir.join("error.log")).unwrap_or_default();
        format!("{}{}", self.process.log(), String::from_utf8_lossy(&errors))
    }
}

/// Sends a process a signal.
///
/// # Panics
/// If it has ended.
pub fn signal_to(id: u32, signal: Signal) {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), signal).expect("a running process");
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- log of nginx\n{}", process::last_lines(&self.log(), 40));
        }
        // It made itself the leader of a group, and only its own children are in it.
        if let Some(group) = self.daemon {
            let gone = || test_kill_process_group(group).is_err();
            let _ = kill_process_group(group, Signal::TERM);
            if !wait::holds_within(std::time::Duration::from_secs(5), gone) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
    }
}

/// More descriptors than workers ever need, or the limit of this machine.
fn descriptors() -> u64 {
    const PLENTY: u64 = 20_000;
    let allowed = getrlimit(Resource::Nofile).maximum;
    allowed.map_or(PLENTY, |most| most.min(PLENTY))
}

fn read_pid(file: &Path) -> Option<Pid> {
    let text = fs::read_to_string(file).ok()?;
    text.trim().parse().ok().and_then(Pid::from_raw)
}

fn fresh_folder(dir: &Path) -> PathBuf {
    (0..100)
        .map(|number| dir.join(format!("nginx-{number}")))
        .find(|folder| fs::create_dir(folder).is_ok())
        .expect("a folder for nginx")
}

fn text(options: &NginxOptions) -> String {
    let mut text = String::new();
    if !options.stream.is_empty() {
        let module = stream_module().expect("the test has looked for the module");
        let _ = writeln!(text, "load_module {};", module.display());
    }
    let _ = write!(
        text,
        "daemon {};\nworker_processes {};\nworker_rlimit_nofile {};\nerror_log error.log info;\n\
         pid nginx.pid;\nenv OPENSSL_CONF;\nenv OPENSSL_MODULES;\nenv LD_PRELOAD;\n{}\n",
        if options.daemon { "on" } else { "off" },
        options.workers,
        descriptors(),
        options.main,
    );
    if is_root() {
        text.push_str("user nobody nogroup;\n");
    }
    let _ = writeln!(
        text,
        "events {{ worker_connections 4000; {} }}\nhttp {{\n  access_log off;",
        options.events
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(text, "  {kind}_temp_path temp-{kind};");
    }
    let _ = writeln!(
        text,
        "  default_type text/plain;\n  ssl_protocols TLSv1.2 TLSv1.3;\n{}\n}}",
        options.http
    );
    if !options.stream.is_empty() {
        let _ = writeln!(text, "stream {{\n{}\n}}", options.stream);
    }
    text
}
