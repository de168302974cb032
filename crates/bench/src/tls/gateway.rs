// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Real gateways as children: HAProxy and nginx from the system's packages, with generated
//! configurations in the run's directory.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::bench_key::BenchKey;
use crate::error::BenchError;
use crate::keys::{Identity, write_private};
use crate::process::{ChildProcess, command, free_addresses, listens, need};

/// Connections that a gateway may hold: above any concurrency that is offered here.
pub(super) const MAX_CONNECTIONS: u32 = 4096;

/// The small file that short connections ask for, in bytes.
pub(super) const SMALL_FILE_LEN: usize = 512;

/// The cipher of short connections: the certificate's key decrypts.
pub(super) const SHORT_CIPHER: &str = "AES128-SHA";

/// A TLS-terminating server.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum, strum::Display,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum TlsServer {
    /// HAProxy, one thread; with `ssl-mode-async` when pooled.
    Haproxy,
    /// nginx, one worker. Without the preload library a pooled operation blocks it.
    Nginx,
}

/// The place of the private-key work.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum, strum::Display,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum KeyPlace {
    /// On the gateway, with the key in a plain PEM file and the system's OpenSSL as it is.
    Local,
    /// In the pool; the gateway has a file that names the key, and never the key.
    Pooled,
    /// As pooled, with the preload library, as is recommended: it makes nginx asynchronous, and lets the
    /// event loop of both servers read the pool's sockets.
    PooledPreload,
}

impl KeyPlace {
    /// Whether the private-key work is the pool's.
    pub(super) fn is_pooled(self) -> bool {
        self != Self::Local
    }
}

/// The pool under a gateway.
pub(super) struct Edge {
    pub(super) openssl_conf: PathBuf,
    /// Stub file of each key: it names the key in the pool.
    pub(super) stubs: BTreeMap<BenchKey, PathBuf>,
    pub(super) preload: Option<PathBuf>,
}

/// A running gateway with one address per key.
pub(super) struct Gateway {
    process: ChildProcess,
    addresses: BTreeMap<BenchKey, SocketAddr>,
    short: Option<SocketAddr>,
}

impl Gateway {
    /// Starts a server on one core, with the pool under it if the mode is pooled, and in front of the origin, if there
    /// is one.
    pub(super) fn start(
        (server, mode): (TlsServer, KeyPlace),
        edge: Option<&Edge>,
        identities: &[Identity],
        origin: Option<&Origin>,
        core: usize,
        dir: &Path,
    ) -> Result<Self, BenchError> {
        let edge = edge.filter(|_| mode.is_pooled());
        let name = format!("{server}-{mode}");
        let dir = dir.join(&name);
        fs::create_dir(&dir).map_err(BenchError::file("create", &dir))?;
        let program = server.to_string();
        let mut command = command(&need(&program, &program)?);
        if let Some(edge) = edge {
            command.env("OPENSSL_CONF", &edge.openssl_conf);
            let preload = edge.preload.as_ref();
            command.envs(
                preload
                    .filter(|_| mode == KeyPlace::PooledPreload)
                    .map(|library| ("LD_PRELOAD", library)),
            );
        }
        let [short_address, free @ ..] = free_addresses::<3>()?;
        let kinds = identities.iter().map(|identity| identity.kind);
        let addresses: BTreeMap<_, _> = kinds.zip(free).collect();
        let [head, for_key, for_short] = match server {
            TlsServer::Haproxy => sections(HAPROXY),
            TlsServer::Nginx => sections(NGINX),
        };
        let asynchronous = edge.map_or("", |_| ASYNCHRONOUS);
        let environment = edge.map_or("", |_| "env OPENSSL_CONF;\n");
        let head = head.replace("{ASYNC}", asynchronous);
        let mut text = nginx_user(&head).replace("{ENVIRONMENT}", environment);
        for identity in identities {
            let kind = identity.kind;
            let key_file = edge.and_then(|edge| edge.stubs.get(&kind));
            let key_file = key_file.unwrap_or(&identity.key_file);
            let key = fs::read_to_string(key_file).map_err(BenchError::file("read", key_file))?;
            let bundle = dir.join(format!("{kind}.pem"));
            write_private(&bundle, &format!("{}{key}", identity.certificate_pem))?;
            let bundle = bundle.display().to_string();
            let address = addresses[&kind].to_string();
            let filled = for_key.replace("{KEY}", &kind.to_string());
            text += &filled.replace("{ADDRESS}", &address).replace("{BUNDLE}", &bundle);
            if let (BenchKey::Rsa2048, Some(origin)) = (kind, origin) {
                let filled = for_short.replace("{ADDRESS}", &short_address.to_string());
                let filled = filled.replace("{FILES}", &origin.files.display().to_string());
                let filled = filled.replace("{ORIGIN}", &origin.address.to_string());
                text += &filled.replace("{BUNDLE}", &bundle).replace("{CIPHER}", SHORT_CIPHER);
            }
        }
        let short = origin.map(|_| short_address);
        let listening = addresses.values().copied().chain(short).collect();
        let process = run(&name, server, command, &text, &dir, core, listening)?;
        Ok(Self { process, addresses, short })
    }

    /// Process id of the gateway.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Address for short connections: files at `/`, the origin at `/proxy/`.
    pub(super) fn short_address(&self) -> Result<SocketAddr, BenchError> {
        let missing = || BenchError::Setup("the gateway serves no short connections".to_owned());
        self.short.ok_or_else(missing)
    }

    /// Address of the server with this key.
    pub(super) fn address(&self, kind: BenchKey) -> Result<SocketAddr, BenchError> {
        let missing = || BenchError::Setup(format!("the gateway has no {kind} key"));
        self.addresses.get(&kind).copied().ok_or_else(missing)
    }

    /// CPU time of the whole gateway so far.
    pub(super) fn cpu_time(&self) -> Duration {
        self.process.cpu_time()
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<(), BenchError> {
        self.process.check()
    }

    /// An error about this gateway, with the end of its log.
    pub(super) fn problem(&self, problem: impl Into<String>) -> BenchError {
        self.process.problem(problem)
    }
}

/// The plain HTTP server behind gateways that are proxies: nginx with one small file.
pub(super) struct Origin {
    process: ChildProcess,
    /// The folder of the file, `index.html`.
    files: PathBuf,
    address: SocketAddr,
}

impl Origin {
    /// Starts the origin on a core.
    pub(super) fn start(core: usize, dir: &Path) -> Result<Self, BenchError> {
        let dir = dir.join("origin");
        let files = dir.join("files");
        fs::create_dir_all(&files).map_err(BenchError::file("create", &files))?;
        let file = files.join("index.html");
        fs::write(&file, "x".repeat(SMALL_FILE_LEN)).map_err(BenchError::file("write", &file))?;
        let [address] = free_addresses()?;
        let [head, _, _, server] = sections(NGINX);
        let server = server.replace("{ADDRESS}", &address.to_string());
        let server = server.replace("{FILES}", &files.display().to_string());
        let text = nginx_user(head).replace("{ENVIRONMENT}", "") + &server;
        let command = command(&need("nginx", "nginx")?);
        let process = run("origin", TlsServer::Nginx, command, &text, &dir, core, vec![address])?;
        Ok(Self { process, files, address })
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<(), BenchError> {
        self.process.check()
    }
}

/// Templates of configurations: the head, and the sections behind it, in the order of their marks.
const HAPROXY: &str = include_str!("haproxy.cfg");
const NGINX: &str = include_str!("nginx.conf");

/// Directives that the provider needs in HAProxy. Unless root runs it, HAProxy would give up its right to start
/// threads, and the provider starts one.
pub(super) const ASYNCHRONOUS: &str = "  ssl-mode-async\n  insecure-fork-wanted\n";

/// The first sections of a template, without their marks; absent ones are empty.
fn sections<const N: usize>(template: &str) -> [&str; N] {
    let mut sections = template.split("#---").map(|section| match section.split_once('\n') {
        Some((mark, text)) if mark.starts_with(" for ") => text,
        _ => section,
    });
    [(); N].map(|()| sections.next().unwrap_or_default())
}

/// Names the user of nginx's worker where root runs it, so that the worker may use the node's socket, which belongs
/// to the user of this process.
pub(super) fn nginx_user(head: &str) -> String {
    let is_root = rustix::process::geteuid().is_root();
    head.replace("{USER}", if is_root { "user root root;\n" } else { "" })
}

/// Writes a configuration and starts the server in its folder on a core. Waits until it listens.
fn run(
    name: &str,
    server: TlsServer,
    mut command: Command,
    config: &str,
    dir: &Path,
    core: usize,
    listening: Vec<SocketAddr>,
) -> Result<ChildProcess, BenchError> {
    let file = dir.join("server.conf");
    let mut config = config.replace("{MAX_CONNECTIONS}", &MAX_CONNECTIONS.to_string());
    match server {
        TlsServer::Haproxy => command.args(["-db", "-f"]).arg(&file),
        TlsServer::Nginx => {
            config.push_str("}\n");
            let command = command.arg("-p").arg(dir);
            command.args(["-e", "error.log", "-c"]).arg(&file)
        }
    };
    fs::write(&file, config).map_err(BenchError::file("write", &file))?;
    let mut process = ChildProcess::start(name, core, command, &dir.join("output.log"))?;
    process.wait_until(|| listening.iter().all(|address| listens(*address)))?;
    Ok(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_have_the_sections_that_are_filled_in() {
        let [_, for_key, for_short]: [&str; 3] = sections(HAPROXY);
        assert!(for_key.starts_with("frontend {KEY}") && for_short.starts_with("frontend short"));
        let [head, .., origin]: [&str; 4] = sections(NGINX);
        assert!(head.contains("{USER}{ENVIRONMENT}") && origin.contains("try_files"));
        assert!(!origin.contains("#---") && sections::<5>(NGINX)[4].is_empty());
    }
}
