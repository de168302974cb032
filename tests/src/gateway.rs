// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! HAProxy and nginx from the packages of the release under test, with generated configurations.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::edge::Edge;
use crate::is_root;
use crate::pki::{Identity, KeyKind};
use crate::process::{Process, children, free_port, listens};
use crate::release;
use crate::wait;

/// A TLS-terminating server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// HAProxy with `ssl-mode-async`.
    Haproxy,
    /// HAProxy with `ssl-mode-async`, a master and a worker that it replaces when it reloads.
    HaproxyMaster,
    /// nginx, master and workers; started by root, the workers run as the user `nobody`.
    Nginx,
}

impl Server {
    /// Both programs.
    pub const ALL: [Self; 2] = [Self::Haproxy, Self::Nginx];

    /// Whether a process has started the processes that terminate TLS: a master listens before it does.
    fn has_workers(self, id: u32, workers: usize) -> bool {
        match self {
            Self::Haproxy => true,
            Self::HaproxyMaster => !children(id).is_empty(),
            Self::Nginx => children(id).len() == workers,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Haproxy | Self::HaproxyMaster => "haproxy",
            Self::Nginx => "nginx",
        })
    }
}

/// One certificate of a gateway, with its private key or stub.
#[derive(Clone, Debug)]
pub struct Site {
    /// The kind of key: also the name of its port.
    pub kind: KeyKind,
    /// The certificate.
    pub certificate_pem: String,
    /// A private key, or a stub that stands in for it.
    pub key_pem: String,
}

impl Site {
    /// A site whose key is on the gateway.
    #[must_use]
    pub fn with_key(identity: &Identity) -> Self {
        Self {
            kind: identity.kind,
            certificate_pem: identity.certificate_pem.clone(),
            key_pem: identity.key_pem.clone(),
        }
    }

    /// A site whose key is in the pool.
    ///
    /// # Panics
    /// If the stub holds a private key.
    #[must_use]
    pub fn with_stub(identity: &Identity, stub: &str) -> Self {
        assert!(!stub.contains("BEGIN PRIVATE KEY"), "a stub may not look like a key:\n{stub}");
        Self {
            kind: identity.kind,
            certificate_pem: identity.certificate_pem.clone(),
            key_pem: stub.to_owned(),
        }
    }
}

/// A running gateway with one port per site.
#[derive(Debug)]
pub struct Gateway {
    server: Server,
    /// The process (of nginx, the master).
    pub process: Process,
    ports: BTreeMap<KeyKind, u16>,
}

/// Attempts at two races: another process takes a port before the gateway binds it, and a master misses a
/// signal.
const ATTEMPTS: usize = 5;

/// Bound on the time until the first new worker; then the signal is sent again.
const HEARING: Duration = Duration::from_secs(3);

impl Gateway {
    /// Starts a server with two threads or workers.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(server: Server, dir: &Path, edge: &Edge, sites: &[Site]) -> Self {
        Self::start_with(server, 2, dir, edge, sites)
    }

    /// Starts a server with `threads` threads or workers.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_with(
        server: Server,
        workers: usize,
        dir: &Path,
        edge: &Edge,
        sites: &[Site],
    ) -> Self {
        let mut attempt = 1;
        loop {
            match Self::try_start(server, workers, dir, edge, sites) {
                Ok(gateway) => return gateway,
                Err(log) if attempt < ATTEMPTS && log.contains("in use") => attempt += 1,
                Err(log) => panic!("{server} does not start:\n{log}"),
            }
        }
    }

    /// Starts a server, or returns its log if it ends at once.
    ///
    /// # Errors
    /// The log.
    pub fn try_start(
        server: Server,
        workers: usize,
        dir: &Path,
        edge: &Edge,
        sites: &[Site],
    ) -> Result<Self, String> {
        let dir = fresh_folder(dir, server);
        let ports: BTreeMap<_, _> = sites.iter().map(|site| (site.kind, free_port())).collect();
        let config = dir.join("server.conf");
        let setup = Setup { workers, sites, ports: &ports, dir: &dir };
        let text = match server {
            Server::Haproxy | Server::HaproxyMaster => setup.haproxy(),
            Server::Nginx => setup.nginx(),
        };
        fs::write(&config, text).expect("configuration of a gateway");
        let mut command = release::command(&server.to_string());
        edge.apply(&mut command);
        match server {
            Server::Haproxy => command.arg("-db").arg("-f").arg(&config),
            Server::HaproxyMaster => command.arg("-W").arg("-f").arg(&config),
            Server::Nginx => {
                command.arg("-p").arg(&dir).arg("-e").arg("/dev/stderr").arg("-c").arg(&config)
            }
        };
        let mut process = Process::start(&server.to_string(), command, &dir.join("output.log"));
        let mut ended = false;
        let good = wait::holds_within(wait::SOON, || {
            ended = process.ended().is_some();
            let listening = || ports.values().all(|port| listens(*port));
            ended || (listening() && server.has_workers(process.id(), workers))
        });
        if ended || !good {
            return Err(process.log());
        }
        Ok(Self { server, process, ports })
    }

    /// Address of the server with this key.
    #[must_use]
    pub fn address(&self, kind: KeyKind) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port(kind)).into()
    }

    /// The port that serves this key.
    ///
    /// # Panics
    /// If it has no such site.
    #[must_use]
    pub fn port(&self, kind: KeyKind) -> u16 {
        self.ports[&kind]
    }

    /// The processes that terminate TLS.
    #[must_use]
    pub fn workers(&self) -> Vec<u32> {
        match self.server {
            Server::Haproxy => vec![self.process.id()],
            Server::HaproxyMaster | Server::Nginx => children(self.process.id()),
        }
    }

    /// Reloads the configuration, and waits until all workers are new ones.
    ///
    /// # Panics
    /// If old workers stay.
    pub fn reload(&self) {
        let old = self.workers();
        let signal = match self.server {
            Server::HaproxyMaster => Signal::USR2,
            Server::Haproxy | Server::Nginx => Signal::HUP,
        };
        // HAProxy's master ignores signals for a moment after its worker has begun to listen.
        let heard = (0..ATTEMPTS).any(|_| {
            self.process.signal(signal);
            let new = || self.workers().iter().any(|id| !old.contains(id));
            wait::holds_within(HEARING, new)
        });
        assert!(heard, "{} does not reload:\n{}", self.server, self.process.log());
        wait::until("all workers are new", || {
            let now = self.workers();
            now.len() == old.len() && now.iter().all(|id| !old.contains(id))
        });
    }
}

fn fresh_folder(dir: &Path, server: Server) -> PathBuf {
    let mut number = 0;
    loop {
        let folder = dir.join(format!("{server}-{number}"));
        if fs::create_dir(&folder).is_ok() {
            return folder;
        }
        number += 1;
        assert!(number < 100, "no folder for {server} in {}", dir.display());
    }
}

/// The lines by which HAProxy drops root, as Debian's configuration does.
pub(crate) fn haproxy_user() -> &'static str {
    if is_root() { "  user nobody\n  group nogroup\n" } else { "" }
}

/// The line that permits HAProxy to start threads: the provider starts one.
pub(crate) const MAY_START_THREADS: &str = "  insecure-fork-wanted\n";

/// Inputs of a generated configuration.
struct Setup<'a> {
    workers: usize,
    sites: &'a [Site],
    ports: &'a BTreeMap<KeyKind, u16>,
    dir: &'a Path,
}

impl Setup<'_> {
    fn haproxy(&self) -> String {
        let mut text = format!(
            "global\n  nbthread {}\n  maxconn 4000\n  ssl-mode-async\n  tune.ssl.cachesize 0\n{}{MAY_START_THREADS}\
             defaults\n  mode http\n  timeout client 30s\n  timeout connect 30s\n  timeout server 30s\n",
            self.workers,
            haproxy_user()
        );
        for site in self.sites {
            // HAProxy reads certificate and key from one file.
            let bundle = self.dir.join(format!("{}.pem", site.kind));
            fs::write(&bundle, format!("{}{}", site.certificate_pem, site.key_pem))
                .expect("bundle");
            let _ = write!(
                text,
                "frontend {}\n  bind 127.0.0.1:{} ssl crt {} no-tls-tickets ssl-min-ver TLSv1.2\n\
                 \x20 http-request return status 200 content-type text/plain string ok\n",
                site.kind,
                self.ports[&site.kind],
                bundle.display(),
            );
        }
        text
    }

    fn nginx(&self) -> String {
        let mut text = format!(
            "daemon off;\nworker_processes {};\nerror_log /dev/stderr info;\npid nginx.pid;\n\
             env OPENSSL_CONF;\nenv OPENSSL_MODULES;\n",
            self.workers
        );
        if is_root() {
            text.push_str("user nobody nogroup;\n");
        }
        text.push_str("events { worker_connections 4000; }\nhttp {\n  access_log off;\n");
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            let _ = writeln!(text, "  {kind}_temp_path temp-{kind};");
        }
        text.push_str(
            "  ssl_protocols TLSv1.2 TLSv1.3;\n  ssl_session_cache off;\n  ssl_session_tickets off;\n",
        );
        for site in self.sites {
            let certificate = self.dir.join(format!("{}.crt", site.kind));
            let key = self.dir.join(format!("{}.key", site.kind));
            fs::write(&certificate, &site.certificate_pem).expect("certificate");
            fs::write(&key, &site.key_pem).expect("key");
            let _ = write!(
                text,
                "  server {{\n    listen 127.0.0.1:{} ssl backlog=4000;\n    ssl_certificate {};\n\
                 \x20   ssl_certificate_key {};\n    default_type text/plain;\n\
                 \x20   location / {{ return 200 ok; }}\n  }}\n",
                self.ports[&site.kind],
                certificate.display(),
                key.display(),
            );
        }
        text.push_str("}\n");
        text
    }
}
