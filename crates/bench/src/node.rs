// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A private node for one run: `millrace up` as a child, with its state and socket in the run's
//! folder. Everything goes through the same commands that a user types.

use std::collections::BTreeMap;
use std::env;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use millrace_client::{Endpoint, TlsConfig};

use crate::cores;
use crate::error::BenchError;
use crate::process::{Process, free_ports};

/// How long the metrics endpoint may take to answer.
const METRICS_TIMEOUT: Duration = Duration::from_secs(5);

/// Bound on a metrics page, in bytes; a node's is below 100 KiB.
const MAX_METRICS_LEN: u64 = 4 << 20;

/// The counter that proves who did the work.
const COMPLETED: &str = "millrace_jobs_completed_total";

/// How a node is started.
pub(crate) struct NodeOptions {
    /// The core it is pinned to.
    pub(crate) core: usize,
    /// Worker threads per class.
    pub(crate) workers: usize,
    /// Only the software backend, to compare with the library that it calls; else all that are usable.
    pub(crate) software_only: bool,
    /// Also listen on TCP with mutual TLS.
    pub(crate) tcp: bool,
}

/// A running node.
pub(crate) struct Node {
    process: Process,
    program: PathBuf,
    socket: PathBuf,
    state: PathBuf,
    dir: PathBuf,
    metrics: SocketAddr,
    /// Where it listens on TCP, if it does.
    tcp: Option<SocketAddr>,
}

impl Node {
    /// Starts a node and waits until it listens.
    pub(crate) fn start(dir: &Path, options: &NodeOptions) -> Result<Self, BenchError> {
        let program = env::current_exe().map_err(BenchError::system("find this program"))?;
        let ports = free_ports(2)?;
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let &[metrics, tcp] = ports.as_slice() else {
            return Err(BenchError::Setup("there are no free ports".to_owned()));
        };
        let (metrics, tcp) = (address(metrics), options.tcp.then(|| address(tcp)));
        let (socket, state) = (dir.join("node.sock"), dir.join("state"));
        let mut command = Command::new(&program);
        clean_environment(&mut command);
        command
            .arg("up")
            .arg("--socket")
            .arg(&socket)
            .arg("--state")
            .arg(&state)
            .args(["--metrics", &format!("{metrics}")])
            .args(["--name", "bench", "--log", "warn"])
            .args(["--workers", &options.workers.to_string()]);
        if options.software_only {
            command.args(["--backends", "software"]);
        }
        if let Some(tcp) = tcp {
            command.args(["--listen-tcp", &format!("{tcp}")]);
        }
        let mut process = Process::start("node", options.core, &command, &dir.join("node.log"))?;
        process.wait_until(|| UnixStream::connect(&socket).is_ok())?;
        Ok(Self {
            process,
            program,
            socket,
            state,
            dir: dir.to_owned(),
            metrics,
            tcp,
        })
    }

    /// The TCP endpoint, with a client certificate made for the identity `cert:NAME`.
    ///
    /// # Errors
    /// [`BenchError::Setup`] if the node does not listen on TCP.
    pub(crate) fn tcp_endpoint(&self, name: &str) -> Result<Endpoint, BenchError> {
        let not_there = || BenchError::Setup("the node does not listen on TCP".to_owned());
        let address = self.tcp.ok_or_else(not_there)?;
        let dir = self.dir.join(format!("client-{name}"));
        let mut command = self.command(&["cert", "client", name]);
        command
            .arg("--output")
            .arg(&dir)
            .arg("--state")
            .arg(&self.state);
        self.run(command)?;
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

    /// The endpoint in the form that configurations take.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// Brings a PEM key into the pool; with TLS 1.2's RSA key exchange allowed if it says so.
    pub(crate) fn import_key(
        &self,
        name: &str,
        file: &Path,
        premaster: bool,
    ) -> Result<(), BenchError> {
        let mut command = self.command(&["key", "import", name]);
        command
            .arg(file)
            .arg("--allow-all")
            .args(premaster.then_some("--allow-tls-premaster"))
            .arg("--state")
            .arg(&self.state);
        self.run(command).map(drop)
    }

    /// Writes the file that stands in for a key on a gateway.
    pub(crate) fn write_stub(&self, name: &str) -> Result<PathBuf, BenchError> {
        let stub = self.dir.join(format!("{name}.stub"));
        let mut command = self.command(&["key", "stub", name]);
        command
            .arg("--output")
            .arg(&stub)
            .arg("--state")
            .arg(&self.state);
        self.run(command)?;
        Ok(stub)
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Writes the openssl.cnf that puts this node, behind this endpoint, under an application.
    pub(crate) fn openssl_config(
        &self,
        endpoint: &str,
        module: Option<&Path>,
    ) -> Result<PathBuf, BenchError> {
        let mut command = self.command(&["gateway", "openssl", "--pool", endpoint]);
        if let Some(module) = module {
            command.arg("--module").arg(module);
        }
        let text = self.run(command)?;
        let path = self.dir.join("openssl.cnf");
        std::fs::write(&path, text).map_err(BenchError::file("write", &path))?;
        Ok(path)
    }

    /// By operation: how many jobs the node has completed, by its own counters.
    pub(crate) fn completed(&self) -> Result<BTreeMap<String, u64>, BenchError> {
        let page = self
            .metrics_page()
            .map_err(BenchError::system("read the node's metrics"))?;
        Ok(completed_by_operation(&page))
    }

    /// CPU time of the node so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        cores::tree_cpu_time(self.process.id())
    }

    /// # Errors
    /// If it has ended.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        self.process.check()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        clean_environment(&mut command);
        command.args(args);
        command
    }

    fn run(&self, mut command: Command) -> Result<String, BenchError> {
        let output = command
            .stdin(Stdio::null())
            .output()
            .map_err(BenchError::system("run a millrace command"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(BenchError::Child {
            name: format!("{command:?}"),
            problem: format!("failed ({})", output.status),
            log: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    fn metrics_page(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.metrics, METRICS_TIMEOUT)?;
        stream.set_read_timeout(Some(METRICS_TIMEOUT))?;
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.metrics
        );
        stream.write_all(request.as_bytes())?;
        let mut page = Vec::new();
        stream.take(MAX_METRICS_LEN).read_to_end(&mut page)?;
        Ok(String::from_utf8_lossy(&page).into_owned())
    }
}

/// The caller's own settings must not reach into a private node.
fn clean_environment(command: &mut Command) {
    for name in [
        "MILLRACE_CONFIG",
        "MILLRACE_SOCKET",
        "MILLRACE_STATE",
        "MILLRACE_KEK_FILE",
    ] {
        command.env_remove(name);
    }
}

/// Sums `millrace_jobs_completed_total{…,operation="…",…} N` over everything but the operation.
fn completed_by_operation(page: &str) -> BTreeMap<String, u64> {
    let mut completed = BTreeMap::new();
    for line in page.lines() {
        let Some(rest) = line.strip_prefix(COMPLETED) else {
            continue;
        };
        let Some((labels, value)) = rest.rsplit_once(' ') else {
            continue;
        };
        let operation = labels
            .split_once("operation=\"")
            .and_then(|(_, rest)| rest.split_once('"'))
            .map_or("unknown", |(name, _)| name);
        // Prometheus values are floats; counts below 2^53 are exact.
        let value: f64 = value.parse().unwrap_or(0.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count: not negative, and far below 2^53"
        )]
        let count = value.max(0.0) as u64;
        *completed.entry(operation.to_owned()).or_default() += count;
    }
    completed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_by_operation() {
        let page = "# HELP millrace_jobs_completed_total Jobs.\n\
            millrace_jobs_completed_total{backend=\"software\",operation=\"ecdsa-sign\"} 3\n\
            millrace_jobs_completed_total{backend=\"simd\",operation=\"ecdsa-sign\"} 4\n\
            millrace_jobs_completed_total{operation=\"rsa-pss-sign\"} 1e3\n\
            millrace_jobs_failed_total{operation=\"ecdsa-sign\"} 9\n";
        let completed = completed_by_operation(page);
        assert_eq!(completed.get("ecdsa-sign"), Some(&7));
        assert_eq!(completed.get("rsa-pss-sign"), Some(&1000));
        assert_eq!(completed.len(), 2);
    }
}
