// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The servers as children, each with a configuration of its own, and the counters of the provider in them.

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use millrace_edge::counters;
use millrace_edge::local_counts::LocalCounts;
use millrace_hostfs::process::Proc;

use super::plan::{LocalCell, LocalMode, LocalPlan, program};
use crate::error::BenchError;
use crate::keys::{Identity, write_private};
use crate::node::NodeProcess;
use crate::process::{ChildProcess, free_addresses, listens, output_of};
use crate::tls::TlsServer;
use crate::tls::gateway::{ASYNCHRONOUS, MAX_CONNECTIONS, nginx_user};
use crate::tls::load::TlsGroup;

const NGINX: &str = include_str!("nginx.conf");
const HAPROXY: &str = include_str!("haproxy.cfg");

/// Lines of the generated openssl.cnf that keep every key out of a pool.
const NO_POOL: [&str; 2] = ["mode = off", "algorithms = none"];

/// The same configuration for every server, as `millrace gateway openssl --local` prints it.
pub(super) struct OpensslConfig {
    generated: String,
    /// The value of the setting `local`.
    primitives: String,
}

impl OpensslConfig {
    /// Asks this program for it, as a user would.
    pub(super) fn generate(plan: &LocalPlan) -> Result<Self, BenchError> {
        let this = env::current_exe().map_err(BenchError::system("find this program"))?;
        let mut command = Command::new(this);
        command.args(["gateway", "openssl", "--local"]);
        if let Some(module) = &plan.provider {
            command.arg("--provider").arg(module);
        }
        Ok(Self {
            generated: output_of("millrace gateway openssl --local", &mut command)?,
            primitives: plan.primitives.clone(),
        })
    }

    /// Text of the configuration for one server, with the node of its key, if a node has it.
    ///
    /// # Errors
    /// [`BenchError::Setup`] if the generated text is not what it was when this was written.
    fn text(&self, cell: &LocalCell, node: Option<&NodeProcess>) -> Result<String, BenchError> {
        let mut text = self.generated.clone();
        let mut replace = |from: &str, to: String| {
            if !text.contains(from) {
                let problem =
                    format!("`millrace gateway openssl --local` printed no line {from:?}");
                return Err(BenchError::Setup(problem));
            }
            text = text.replace(from, &to);
            Ok(())
        };
        // Nothing outside of the run's folder is written, and a choice that was kept is measured again.
        let line = format!("local = {}\nchoice_file = none\n", self.primitives);
        replace("local = on\n", line)?;
        if let Some(node) = node {
            for line in NO_POOL {
                replace(&format!("{line}\n"), String::new())?;
            }
            let pool = format!("pool = unix:{}\nlocal = ", node.socket().display());
            replace("local = ", pool)?;
        }
        // HAProxy has no setting for tickets; OpenSSL takes one for all servers of a process.
        if (cell.server, cell.tickets) == (TlsServer::Haproxy, 1) {
            replace("[openssl_init]\n", "[openssl_init]\nssl_conf = tickets_sect\n".to_owned())?;
            text.push_str(
                "\n[tickets_sect]\nsystem_default = one_ticket\n\n[one_ticket]\nNumTickets = 1\n",
            );
        }
        Ok(text)
    }
}

/// A running server.
pub(super) struct LocalServer {
    process: ChildProcess,
    pub(super) address: SocketAddr,
}

impl LocalServer {
    /// Starts it in a folder of its own below `dir`, and waits until it listens. `stub` names its key in the node.
    pub(super) fn start(
        plan: &LocalPlan,
        (number, cell): (usize, &LocalCell),
        identity: &Identity,
        openssl: &OpensslConfig,
        pool: Option<(&NodeProcess, &Path)>,
        dir: &Path,
    ) -> Result<Self, BenchError> {
        let dir = dir.join(format!("server-{number}"));
        fs::create_dir(&dir).map_err(BenchError::file("create", &dir))?;
        let mut command = program(&plan.under, &cell.server.to_string())?;
        if cell.mode != LocalMode::Stock {
            let file = dir.join("openssl.cnf");
            let text = openssl.text(cell, pool.map(|(node, _)| node))?;
            fs::write(&file, text).map_err(BenchError::file("write", &file))?;
            environment(&mut command, cell.mode, &file, &plan.preload);
        }
        let [address] = free_addresses()?;
        let bundle = bundle(&dir, identity, pool.map(|(_, stub)| stub))?;
        let config = dir.join("server.conf");
        let text = config_text(cell, address, &bundle);
        fs::write(&config, text).map_err(BenchError::file("write", &config))?;
        match cell.server {
            TlsServer::Haproxy => command.args(["-db", "-f"]).arg(&config),
            TlsServer::Nginx => {
                let command = command.arg("-p").arg(&dir);
                command.args(["-e", "error.log", "-c"]).arg(&config)
            }
        };
        let cores = plan.cores(cell)?;
        let log = dir.join("output.log");
        let mut process = ChildProcess::start_on(&cell.to_string(), &cores, command, &log)?;
        process.wait_until(|| listens(address))?;
        Ok(Self { process, address })
    }

    /// CPU time of all its processes so far.
    pub(super) fn cpu_time(&self) -> Duration {
        self.process.cpu_time()
    }

    /// Counters of the provider in the server; zeros without the provider.
    pub(super) fn counts(&self) -> LocalCounts {
        let read = || {
            let proc = Proc::open(Path::new("/proc")).ok()?;
            let name = counters::MEMORY_NAME;
            let id = self.process.id();
            let memory = proc.memory_file(id, name.to_str().ok()?, counters::MAX_BYTES)?;
            LocalCounts::parse(&memory.bytes)
        };
        read().unwrap_or_default()
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<(), BenchError> {
        self.process.check()
    }

    /// An error about it, with the end of its log.
    pub(super) fn problem(&self, problem: impl Into<String>) -> BenchError {
        self.process.problem(problem)
    }
}

/// The environment that `millrace gateway SERVER --local` gives a service; with a pool, handshakes wait in jobs.
fn environment(command: &mut Command, mode: LocalMode, openssl: &Path, preload: &Path) {
    command
        .env("OPENSSL_CONF", openssl)
        .env("LD_PRELOAD", preload)
        .env("MILLRACE_FETCH_CACHE", "on")
        .env("MILLRACE_JOIN_TICKETS", "on");
    if mode == LocalMode::Local {
        command.env("MILLRACE_JOBS", "off");
    }
}

/// Certificate and key, or what names the key, in one file.
fn bundle(dir: &Path, identity: &Identity, stub: Option<&Path>) -> Result<PathBuf, BenchError> {
    let file = stub.unwrap_or(&identity.key_file);
    let key = fs::read_to_string(file).map_err(BenchError::file("read", file))?;
    let bundle = dir.join("bundle.pem");
    write_private(&bundle, &format!("{}{key}", identity.certificate_pem))?;
    Ok(bundle)
}

fn config_text(cell: &LocalCell, address: SocketAddr, bundle: &Path) -> String {
    let template = match cell.server {
        TlsServer::Nginx => NGINX,
        TlsServer::Haproxy => HAPROXY,
    };
    // As the recipe with --pq names them: X25519 for clients without the hybrid.
    let groups = match cell.group {
        TlsGroup::X25519 => "X25519",
        TlsGroup::X25519MLKEM768 => "X25519MLKEM768:X25519",
    };
    let tickets = if cell.tickets == 1 { "ssl_conf_command NumTickets 1;" } else { "" };
    let pooled = cell.mode == LocalMode::LocalAndPool;
    nginx_user(template)
        .replace("{THREADS}", &cell.threads.to_string())
        .replace("{ASYNC}", if pooled { ASYNCHRONOUS } else { "" })
        .replace("{ADDRESS}", &address.to_string())
        .replace("{BUNDLE}", &bundle.display().to_string())
        .replace("{GROUPS}", groups)
        .replace("{TICKETS}", tickets)
        .replace("{MAX_CONNECTIONS}", &MAX_CONNECTIONS.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_key::BenchKey;

    fn cell(server: TlsServer, mode: LocalMode, tickets: u32) -> LocalCell {
        LocalCell {
            server,
            threads: 2,
            key: BenchKey::P256,
            group: TlsGroup::X25519MLKEM768,
            mode,
            tickets,
        }
    }

    #[test]
    fn configurations_have_no_placeholder_left() {
        for server in [TlsServer::Nginx, TlsServer::Haproxy] {
            for mode in [LocalMode::Stock, LocalMode::Local, LocalMode::LocalAndPool] {
                let address = ([127, 0, 0, 1], 443).into();
                let text = config_text(&cell(server, mode, 1), address, Path::new("/b.pem"));
                assert!(!text.contains(['{', '}']) || server == TlsServer::Nginx, "{text}");
                assert!(text.contains("X25519MLKEM768:X25519") && text.contains("/b.pem"));
                for word in ["{USER}", "{TICKETS}", "{ADDRESS}", "{MAX_CONNECTIONS}"] {
                    assert!(!text.contains(word), "{word}: {text}");
                }
            }
        }
    }

    #[test]
    fn one_ticket_of_haproxy_is_a_line_of_openssl_cnf() {
        let config = |text: &str| OpensslConfig {
            generated: text.to_owned(),
            primitives: "X25519".to_owned(),
        };
        let other = config("");
        let config = config("[openssl_init]\nproviders = p\n[m]\nlocal = on\n");
        let one = config.text(&cell(TlsServer::Haproxy, LocalMode::Local, 1), None);
        let one = one.expect("a configuration");
        assert!(one.contains("[openssl_init]\nssl_conf = tickets_sect\n"), "{one}");
        assert!(one.ends_with("NumTickets = 1\n"), "{one}");
        let two = config.text(&cell(TlsServer::Nginx, LocalMode::Local, 1), None);
        let two = two.expect("a configuration");
        assert!(
            two.contains("local = X25519\nchoice_file = none\n") && !two.contains("NumTickets"),
            "{two}"
        );
        assert!(other.text(&cell(TlsServer::Haproxy, LocalMode::Local, 1), None).is_err());
    }
}
