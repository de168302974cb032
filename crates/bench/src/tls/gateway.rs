// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Real gateways as children: HAProxy and nginx from the system's packages, with generated
//! configurations in the run's directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::cores;
use crate::error::BenchError;
use crate::keys::{Identity, write_private};
use crate::process::{Process, free_ports, listens, need};
use crate::workload::BenchKey;

/// Connections that a gateway may hold: above any concurrency that is offered here.
const MAX_CONNECTIONS: u32 = 4096;

/// The small file that short connections ask for, in bytes.
pub(super) const SMALL_FILE_LEN: usize = 512;

/// A TLS-terminating server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// HAProxy, one thread; with `ssl-mode-async` when pooled.
    Haproxy,
    /// nginx, one worker. It has no asynchronous mode: a pooled operation blocks its worker.
    Nginx,
}

impl Server {
    /// The name of the program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where the private-key work happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// On the gateway, with the key in a plain PEM file and the system's OpenSSL as it is.
    Local,
    /// In the pool; the gateway has a file that names the key, and never the key.
    Pooled,
    /// As pooled, with the preload library, as is recommended: it makes nginx asynchronous, and has the
    /// event loop of both servers look after the pool's sockets.
    PooledPreload,
}

impl Mode {
    /// Whether the private-key work is the pool's.
    #[must_use]
    pub fn is_pooled(self) -> bool {
        self != Self::Local
    }

    /// The name used in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Pooled => "pooled",
            Self::PooledPreload => "pooled-preload",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where else a gateway serves besides its keys: short connections with TLS 1.2's RSA key exchange.
#[derive(Clone, Debug)]
pub(super) struct Short {
    /// A folder with the one small file, `index.html`.
    pub(super) files: PathBuf,
    /// A plain HTTP server with the same file.
    pub(super) origin: SocketAddr,
}

/// What puts the pool under a gateway: environment variables and, per key, the file that names it.
pub(super) struct Edge {
    pub(super) environment: Vec<(&'static str, OsString)>,
    pub(super) key_files: BTreeMap<BenchKey, PathBuf>,
    /// The library that makes nginx asynchronous.
    pub(super) preload: Option<PathBuf>,
}

/// A running gateway with one port per key.
pub(super) struct Gateway {
    process: Process,
    ports: BTreeMap<BenchKey, u16>,
    short: Option<u16>,
}

impl Gateway {
    /// Starts a server on one core, with the pool under it if the mode is pooled.
    pub(super) fn start(
        server: Server,
        mode: Mode,
        edge: Option<&Edge>,
        identities: &[Identity],
        short: Option<&Short>,
        core: usize,
        dir: &Path,
    ) -> Result<Self, BenchError> {
        let program = need(server.name())?;
        let edge = edge.filter(|_| mode.is_pooled());
        let name = format!("{server}-{mode}");
        let dir = dir.join(&name);
        fs::create_dir(&dir).map_err(BenchError::file("create", &dir))?;
        let mut free = free_ports(identities.len() + 1)?;
        let short_port = free.pop().filter(|_| short.is_some());
        let ports: BTreeMap<_, _> = identities
            .iter()
            .map(|identity| identity.kind)
            .zip(free)
            .collect();
        let mut command = Command::new(program);
        // Local means the system's OpenSSL as it is, whatever the caller's environment says.
        command
            .env_remove("OPENSSL_CONF")
            .env_remove("OPENSSL_MODULES");
        command.envs(edge.iter().flat_map(|edge| edge.environment.clone()));
        let preload = edge.and_then(|edge| edge.preload.as_ref());
        if let (Mode::PooledPreload, Some(library)) = (mode, preload) {
            command.env("LD_PRELOAD", library);
        }
        let site = Site {
            identities,
            edge,
            ports: &ports,
            short: short.zip(short_port),
            dir: &dir,
        };
        let config = dir.join("server.conf");
        let text = match server {
            Server::Haproxy => site.haproxy()?,
            Server::Nginx => site.nginx(),
        };
        fs::write(&config, text).map_err(BenchError::file("write", &config))?;
        match server {
            Server::Haproxy => command.arg("-db").arg("-f").arg(&config),
            Server::Nginx => command
                .arg("-p")
                .arg(&dir)
                .arg("-e")
                .arg("error.log")
                .arg("-c")
                .arg(&config),
        };
        let mut process = Process::start(&name, core, &command, &dir.join("output.log"))?;
        let all = || ports.values().chain(&short_port);
        process.wait_until(|| all().all(|port| listens(loopback(*port))))?;
        Ok(Self {
            process,
            ports,
            short: short_port,
        })
    }

    /// Its process.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Where it serves short connections: files at `/`, the origin at `/proxy/`.
    pub(super) fn short_address(&self) -> Result<SocketAddr, BenchError> {
        self.short
            .map(loopback)
            .ok_or_else(|| BenchError::Setup("the gateway serves no short connections".to_owned()))
    }

    /// Where it serves this key.
    pub(super) fn address(&self, kind: BenchKey) -> Result<SocketAddr, BenchError> {
        let port = self.ports.get(&kind);
        port.map(|port| loopback(*port))
            .ok_or_else(|| BenchError::Setup(format!("the gateway has no {kind} key")))
    }

    /// CPU time of the whole gateway so far.
    pub(super) fn cpu_time(&self) -> Duration {
        cores::tree_cpu_time(self.process.id())
    }

    /// # Errors
    /// If it has ended.
    pub(super) fn check(&mut self) -> Result<(), BenchError> {
        self.process.check()
    }

    /// An error about this gateway, with the end of its log.
    pub(super) fn problem(&self, problem: impl Into<String>) -> BenchError {
        self.process.problem(problem)
    }
}

/// What short connections are made with, and nothing else: the certificate's key decrypts.
pub(super) const SHORT_CIPHER: &str = "AES128-SHA";

/// The beginning of an nginx configuration, up to within `http`, with all of its folders in its own.
fn nginx_head<'a>(environment: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::from("daemon off;\nworker_processes 1;\nerror_log error.log warn;\n");
    if rustix::process::geteuid().is_root() {
        // So that the worker may use the node's socket, which belongs to the user of this process.
        text.push_str("user root root;\n");
    }
    for name in environment {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "env {name};");
    }
    let _ = write!(
        text,
        "pid nginx.pid;\n\
         events {{ worker_connections {MAX_CONNECTIONS}; }}\n\
         http {{\n\
         \x20 access_log off;\n\
         \x20 client_body_temp_path client;\n\
         \x20 proxy_temp_path proxy;\n\
         \x20 fastcgi_temp_path fastcgi;\n\
         \x20 uwsgi_temp_path uwsgi;\n\
         \x20 scgi_temp_path scgi;\n",
    );
    text
}

/// The plain HTTP server behind gateways that are proxies: nginx with one small file.
pub(super) struct Origin {
    process: Process,
    /// Where it is, and the folder of the file.
    pub(super) short: Short,
}

impl Origin {
    /// Starts it on a core.
    pub(super) fn start(core: usize, dir: &Path) -> Result<Self, BenchError> {
        let dir = dir.join("origin");
        let files = dir.join("files");
        fs::create_dir_all(&files).map_err(BenchError::file("create", &files))?;
        let file = files.join("index.html");
        fs::write(&file, "x".repeat(SMALL_FILE_LEN)).map_err(BenchError::file("write", &file))?;
        let port = free_ports(1)?.first().copied().unwrap_or(0);
        let config = dir.join("server.conf");
        let text = format!(
            "{}\x20 server {{ listen 127.0.0.1:{port} backlog={MAX_CONNECTIONS}; \
             location / {{ root {}; try_files /index.html =404; }} }}\n}}\n",
            nginx_head(std::iter::empty()),
            files.display(),
        );
        fs::write(&config, text).map_err(BenchError::file("write", &config))?;
        let mut command = Command::new(need("nginx")?);
        command.env_remove("OPENSSL_CONF").arg("-p").arg(&dir);
        command.args(["-e", "error.log", "-c"]).arg(&config);
        let mut process = Process::start("origin", core, &command, &dir.join("output.log"))?;
        let origin = loopback(port);
        process.wait_until(|| listens(origin))?;
        Ok(Self {
            process,
            short: Short { files, origin },
        })
    }

    /// # Errors
    /// If it has ended.
    pub(super) fn check(&mut self) -> Result<(), BenchError> {
        self.process.check()
    }
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// What a configuration is made from.
struct Site<'a> {
    identities: &'a [Identity],
    edge: Option<&'a Edge>,
    ports: &'a BTreeMap<BenchKey, u16>,
    short: Option<(&'a Short, u16)>,
    dir: &'a Path,
}

impl Site<'_> {
    fn port(&self, kind: BenchKey) -> u16 {
        self.ports.get(&kind).copied().unwrap_or(0)
    }

    fn key_file<'a>(&'a self, identity: &'a Identity) -> &'a Path {
        let named = self
            .edge
            .and_then(|edge| edge.key_files.get(&identity.kind));
        named.unwrap_or(&identity.key_file)
    }

    /// HAProxy wants certificate and key in one file.
    fn haproxy(&self) -> Result<String, BenchError> {
        // Unless root runs it, HAProxy would give up its right to start threads; the provider has one.
        let asynchronous = if self.edge.is_some() {
            "  ssl-mode-async\n  insecure-fork-wanted\n"
        } else {
            ""
        };
        let mut text = format!(
            "global\n\
             \x20 nbthread 1\n\
             \x20 maxconn {MAX_CONNECTIONS}\n\
             \x20 tune.ssl.cachesize 0\n\
             {asynchronous}\
             defaults\n\
             \x20 mode http\n\
             \x20 timeout client 10s\n\
             \x20 timeout connect 10s\n\
             \x20 timeout server 10s\n"
        );
        for identity in self.identities {
            let kind = identity.kind;
            let bundle = self.dir.join(format!("{kind}.pem"));
            let key_file = self.key_file(identity);
            let key = fs::read_to_string(key_file).map_err(BenchError::file("read", key_file))?;
            write_private(&bundle, &format!("{}{key}", identity.certificate_pem))?;
            // Writing into a String cannot fail.
            let _ = write!(
                text,
                "frontend {kind}\n\
                 \x20 bind 127.0.0.1:{} ssl crt {} no-tls-tickets ssl-min-ver TLSv1.2\n\
                 \x20 http-request return status 200 content-type text/plain string ok\n",
                self.port(kind),
                bundle.display(),
            );
            if let (BenchKey::Rsa2048, Some((short, port))) = (kind, self.short) {
                let _ = write!(
                    text,
                    "frontend short\n\
                     \x20 bind 127.0.0.1:{port} ssl crt {} no-tls-tickets ssl-min-ver TLSv1.2 \
                     ssl-max-ver TLSv1.2 ciphers {SHORT_CIPHER}\n\
                     \x20 http-request return status 200 content-type text/html file {}/index.html \
                     unless {{ path_beg /proxy/ }}\n\
                     \x20 default_backend origin\n\
                     backend origin\n\
                     \x20 server origin {}\n",
                    bundle.display(),
                    short.files.display(),
                    short.origin,
                );
            }
        }
        Ok(text)
    }

    fn nginx(&self) -> String {
        let environment = self.edge.iter().flat_map(|edge| &edge.environment);
        let mut text = nginx_head(environment.map(|(name, _)| *name));
        text.push_str(
            "\x20 ssl_protocols TLSv1.2 TLSv1.3;\n\
             \x20 ssl_session_cache off;\n\
             \x20 ssl_session_tickets off;\n",
        );
        for identity in self.identities {
            let _ = write!(
                text,
                "  server {{\n\
                 \x20   listen 127.0.0.1:{} ssl backlog={MAX_CONNECTIONS};\n\
                 \x20   ssl_certificate {};\n\
                 \x20   ssl_certificate_key {};\n\
                 \x20   location / {{ return 200 ok; }}\n\
                 \x20 }}\n",
                self.port(identity.kind),
                identity.certificate_file.display(),
                self.key_file(identity).display(),
            );
            if let (BenchKey::Rsa2048, Some((short, port))) = (identity.kind, self.short) {
                let _ = write!(
                    text,
                    "  server {{\n\
                     \x20   listen 127.0.0.1:{port} ssl backlog={MAX_CONNECTIONS};\n\
                     \x20   keepalive_timeout 0;\n\
                     \x20   ssl_protocols TLSv1.2;\n\
                     \x20   ssl_ciphers {SHORT_CIPHER};\n\
                     \x20   ssl_prefer_server_ciphers on;\n\
                     \x20   ssl_certificate {};\n\
                     \x20   ssl_certificate_key {};\n\
                     \x20   location / {{ root {}; index index.html; }}\n\
                     \x20   location /proxy/ {{ proxy_pass http://{}/; }}\n\
                     \x20 }}\n",
                    identity.certificate_file.display(),
                    self.key_file(identity).display(),
                    short.files.display(),
                    short.origin,
                );
            }
        }
        text.push_str("}\n");
        text
    }
}
