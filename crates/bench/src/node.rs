// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A private node for one run: `millrace up` as a child, with its state and socket in the run's folder. The run
//! uses the same commands as a user.

use std::collections::BTreeMap;
use std::env;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use millrace_client::{Endpoint, TlsConfig};
use serde::Deserialize;
use tempfile::TempDir;

use crate::error::BenchError;
use crate::process::{ChildProcess, command, free_addresses, output_of, temporary_folder};

pub(crate) struct NodeOptions {
    /// Core to which the node is pinned.
    pub(crate) core: usize,
    /// Worker threads per class.
    pub(crate) workers: usize,
    /// Only the software backend, to compare with the library that it calls; else all that are usable.
    pub(crate) software_only: bool,
    /// Whether the node also listens on TCP with mutual TLS.
    pub(crate) tcp: bool,
    /// Operations per second that the tenant `flood` (`cert:flood`) may do. `None` for a node without tenants.
    pub(crate) quota: Option<u64>,
}

impl NodeOptions {
    /// A node with one worker per class and all backends, on its unix socket alone.
    pub(crate) fn on(core: usize) -> Self {
        Self { core, workers: 1, software_only: false, tcp: false, quota: None }
    }
}

/// A running node.
pub(crate) struct NodeProcess {
    process: ChildProcess,
    program: PathBuf,
    socket: PathBuf,
    /// TCP address of the node, if it has one.
    tcp: Option<SocketAddr>,
    dir: TempDir,
}

/// `millrace status --json`, as much of it as is used here.
#[derive(Deserialize)]
struct NodeStatus {
    operations: Vec<Completed>,
}

/// The jobs of one operation that one backend completed.
#[derive(Deserialize)]
struct Completed {
    operation: String,
    completed: u64,
}

impl NodeProcess {
    /// Starts a node in a temporary folder and waits until it listens.
    pub(crate) fn start(options: &NodeOptions) -> Result<Self, BenchError> {
        let program = env::current_exe().map_err(BenchError::system("find this program"))?;
        let dir = temporary_folder()?;
        let [address] = free_addresses()?;
        let tcp = options.tcp.then_some(address);
        let socket = dir.path().join("node.sock");
        let mut up = command(&program);
        private(&mut up, &socket, dir.path());
        up.args(["up", "--name", "bench", "--log", "warn"])
            // As under systemd: the benchmark gives the node a core of its own.
            .args(["--worker-priority", "low"])
            .args(["--workers", &options.workers.to_string()]);
        if let Some(quota) = options.quota {
            let path = dir.path().join("node.toml");
            let text = format!(
                "[tenant.flood]\nidentities = [\"cert:flood\"]\nops = {quota}\n\
                 [tenant.victim]\nidentities = [\"cert:victim\"]\n"
            );
            std::fs::write(&path, text).map_err(BenchError::file("write", &path))?;
            up.arg("--config").arg(&path);
        }
        if options.software_only {
            up.args(["--backends", "software"]);
        }
        if let Some(tcp) = tcp {
            up.args(["--listen-tcp", &tcp.to_string()]);
        }
        let mut process =
            ChildProcess::start("node", options.core, up, &dir.path().join("node.log"))?;
        process.wait_until(|| UnixStream::connect(&socket).is_ok())?;
        Ok(Self { process, program, socket, tcp, dir })
    }

    /// Endpoint of the node's unix socket.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket.clone())
    }

    /// The TCP endpoint, with a client certificate made for the identity `cert:NAME`.
    ///
    /// # Errors
    /// [`BenchError::Setup`] if the node does not listen on TCP.
    pub(crate) fn tcp_endpoint(&self, name: &str) -> Result<Endpoint, BenchError> {
        let not_there = || BenchError::Setup("the node does not listen on TCP".to_owned());
        let address = self.tcp.ok_or_else(not_there)?;
        let dir = self.dir.path().join(format!("client-{name}"));
        self.run(|command| command.args(["cert", "client", name, "--output"]).arg(&dir))?;
        Ok(Endpoint::Tcp {
            host: address.ip().to_string(),
            port: address.port(),
            tls: TlsConfig {
                ca: dir.join("ca.pem"),
                cert: dir.join("cert.pem"),
                key: dir.join("key.pem"),
                server_name: None,
            },
        })
    }

    /// Brings a PEM key into the pool. Returns the file that stands in for the key on a gateway.
    pub(crate) fn import_key(&self, name: &str, file: &Path) -> Result<PathBuf, BenchError> {
        self.import(&["key", "import", name, "--allow-all"], name, file)
    }

    /// Like [`Self::import_key`], for TLS 1.2's RSA key exchange, too.
    pub(crate) fn import_premaster_key(
        &self,
        name: &str,
        file: &Path,
    ) -> Result<PathBuf, BenchError> {
        let import = ["key", "import", name, "--allow-all", "--allow-tls-premaster"];
        self.import(&import, name, file)
    }

    fn import(&self, import: &[&str], name: &str, file: &Path) -> Result<PathBuf, BenchError> {
        self.run(|command| command.args(import).arg(file))?;
        let stub = self.dir.path().join(format!("{name}.stub"));
        self.run(|command| command.args(["key", "stub", name, "--output"]).arg(&stub))?;
        Ok(stub)
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Writes the openssl.cnf that puts the node behind this socket under an application.
    pub(crate) fn openssl_config(
        &self,
        socket: &Path,
        module: Option<&Path>,
    ) -> Result<PathBuf, BenchError> {
        let pool = format!("unix:{}", socket.display());
        let module = module.map(|module| [Path::new("--provider"), module]);
        let text = self.run(|command| {
            let command = command.args(["gateway", "openssl", "--pool", &pool]);
            command.args(module.into_iter().flatten())
        })?;
        let path = self.dir.path().join("openssl.cnf");
        std::fs::write(&path, text).map_err(BenchError::file("write", &path))?;
        Ok(path)
    }

    /// Number of jobs that the node has completed, by operation, from its own counters.
    pub(crate) fn completed(&self) -> Result<BTreeMap<String, u64>, BenchError> {
        let text = self.run(|command| command.args(["status", "--json"]))?;
        let status: NodeStatus = serde_json::from_str(&text)
            .map_err(|error| BenchError::Setup(format!("the node's status: {error}")))?;
        let mut completed = BTreeMap::new();
        for row in status.operations {
            *completed.entry(row.operation).or_default() += row.completed;
        }
        Ok(completed)
    }

    /// CPU time of the node so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.process.cpu_time()
    }

    /// Fails if it has ended.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        self.process.check()
    }

    fn run(&self, args: impl FnOnce(&mut Command) -> &mut Command) -> Result<String, BenchError> {
        let mut command = Command::new(&self.program);
        private(&mut command, &self.socket, self.dir.path());
        args(&mut command);
        let name = format!("{command:?}");
        output_of(&name, &mut command)
    }
}

/// Gives a command the state and the socket of the run, and none of the caller's own settings.
fn private(command: &mut Command, socket: &Path, dir: &Path) {
    command
        .env_remove("MILLRACE_CONFIG")
        .env_remove("MILLRACE_KEK_FILE")
        .env("MILLRACE_SOCKET", socket)
        .env("MILLRACE_STATE", dir.join("state"));
}
