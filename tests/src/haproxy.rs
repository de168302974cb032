// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stock HAProxy with a configuration of the test: limits, backends, and a successor that takes over its
//! listening sockets.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::artifacts::artifacts;
use crate::edge::Edge;
use crate::gateway::{MAY_START_THREADS, Site, haproxy_user};
use crate::process::{Process, children, is_alive, listens, under};
use crate::release;
use crate::wait;

/// Configuration of one HAProxy.
#[derive(Clone, Debug)]
pub struct HaproxyOptions {
    /// The provider's configuration.
    pub edge: Edge,
    /// Threads.
    pub threads: usize,
    /// A master with a worker, instead of one process.
    pub master: bool,
    /// Whether the library that ends jobs of closed connections is preloaded.
    pub preload: bool,
    /// Limit of descriptors at its start, soft and hard.
    pub descriptors: Option<u64>,
    /// Whether HAProxy may start threads, which it forbids by default.
    pub may_start_threads: bool,
    /// Whether handshakes wait without blocking.
    pub mode_async: bool,
    /// Further variables of its environment.
    pub environment: Vec<(&'static str, String)>,
    /// Folders that are visible under a second path, in a mount namespace of its own.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Further lines of the `global` section.
    pub global: String,
    /// Further lines of the `defaults` section; they override ours.
    pub defaults: String,
    /// Frontends and backends.
    pub sections: String,
}

impl HaproxyOptions {
    /// One asynchronous thread with the pool under it.
    #[must_use]
    pub fn asynchronous(edge: &Edge, sections: String) -> Self {
        Self {
            edge: edge.clone(),
            threads: 1,
            master: false,
            preload: false,
            descriptors: None,
            may_start_threads: true,
            mode_async: true,
            environment: Vec::new(),
            binds: Vec::new(),
            global: String::new(),
            defaults: String::new(),
            sections,
        }
    }

    fn text(&self, admin: &Path) -> String {
        format!(
            "global\n  nbthread {}\n{}  tune.ssl.cachesize 0\n\
             \x20 stats socket {} mode 600 level admin expose-fd listeners\n{}{}{}\n\
             defaults\n  mode http\n  timeout client 30s\n  timeout connect 30s\n  timeout server 30s\n\
             {}\n{}\n",
            self.threads,
            if self.mode_async { "  ssl-mode-async\n" } else { "" },
            admin.display(),
            haproxy_user(),
            if self.may_start_threads { MAY_START_THREADS } else { "" },
            self.global,
            self.defaults,
            self.sections
        )
    }
}

/// A running HAProxy. Ends on drop.
#[derive(Debug)]
pub struct Haproxy {
    /// The process, or the master.
    pub process: Process,
    options: HaproxyOptions,
    dir: PathBuf,
}

impl Haproxy {
    /// Starts HAProxy and waits until every port of `ports` accepts connections.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(dir: &Path, options: &HaproxyOptions, ports: &[u16]) -> Self {
        let dir = fresh_folder(dir);
        let config = dir.join("haproxy.cfg");
        fs::write(&config, options.text(&dir.join("admin.sock"))).expect("configuration");
        let mut started =
            Self { process: launch(&dir, options, &[]), options: options.clone(), dir };
        started.process.wait_ready(|| ports.iter().all(|port| listens(*port)));
        started
    }

    /// Starts a successor that takes the listening sockets over, and waits until this one has
    /// finished its connections and ended.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn replace(&mut self) {
        let old = self.process.id().to_string();
        let admin = self.dir.join("admin.sock").display().to_string();
        let new = launch(&self.dir, &self.options, &["-x", &admin, "-sf", &old]);
        let mut old = std::mem::replace(&mut self.process, new);
        let status = old.wait();
        assert!(status.success(), "{status}: {}", old.log());
    }

    /// Makes a master replace its worker, and waits until the old worker has ended.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn reload(&self) {
        let master = self.process.id();
        let old = children(master);
        // For a moment after its worker has begun to listen, a master does not react to signals.
        let heard = (0..5).any(|_| {
            self.process.signal(Signal::USR2);
            let new = || children(master).iter().any(|id| !old.contains(id));
            wait::holds_within(Duration::from_secs(3), new)
        });
        assert!(heard, "no new worker: {}", self.log());
        wait::until("the old worker is gone", || !old.iter().any(|id| is_alive(*id)));
    }

    /// Sends a command to the administration socket and returns the answer.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn ask(&self, command: &str) -> String {
        let mut socket = UnixStream::connect(self.dir.join("admin.sock")).expect("its socket");
        writeln!(socket, "{command}").expect("a question");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Log of all HAProxy processes.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }
}

fn launch(dir: &Path, options: &HaproxyOptions, arguments: &[&str]) -> Process {
    let mut command = release::command("haproxy");
    if let Some(limit) = options.descriptors {
        let words = ["prlimit".to_owned(), format!("--nofile={limit}:{limit}")];
        command = under(&words, &command);
    }
    if !options.binds.is_empty() {
        let binds = options.binds.iter().map(|(outside, inside)| {
            let (outside, inside) = (outside.display(), inside.display());
            format!("mkdir -p '{inside}' && mount --bind '{outside}' '{inside}' && ")
        });
        let script = format!("{}exec \"$0\" \"$@\"", binds.collect::<String>());
        let words = ["unshare", "-m", "--propagation", "private", "sh", "-c", &script];
        command = under(&words.map(str::to_owned), &command);
    }
    options.edge.apply(&mut command);
    if options.preload {
        command.env("LD_PRELOAD", &artifacts().preload);
    }
    command.envs(options.environment.iter().cloned());
    command.arg(if options.master { "-W" } else { "-db" });
    command.arg("-f").arg(dir.join("haproxy.cfg")).args(arguments);
    Process::start("haproxy", command, &dir.join("output.log"))
}

fn fresh_folder(dir: &Path) -> PathBuf {
    (0..100)
        .map(|number| dir.join(format!("own-haproxy-{number}")))
        .find(|folder| fs::create_dir(folder).is_ok())
        .expect("a folder for HAProxy")
}

/// Writes certificate and key into one file, as HAProxy wants them, and returns its path.
///
/// # Panics
/// If it cannot be written.
#[must_use]
pub fn bundle(dir: &Path, name: &str, site: &Site) -> String {
    let bundle = dir.join(format!("{name}.pem"));
    fs::write(&bundle, format!("{}{}", site.certificate_pem, site.key_pem)).expect("bundle");
    bundle.display().to_string()
}
