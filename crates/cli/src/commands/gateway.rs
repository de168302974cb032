// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway`: prints the configuration that puts the pool under an application. It changes
//! nothing: composing text is all it does, so that a person reads it before it is put in place.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::args::{Application, GatewayArgs};
use crate::exit::{Failure, fail};
use crate::output;
use crate::paths;

/// Name of the provider module as cargo builds it, and as it is installed.
const MODULE_NAMES: [&str; 2] = ["libmillrace_provider.so", "millrace.so"];

/// Name of the library that makes nginx asynchronous.
const PRELOAD_NAMES: [&str; 1] = ["libmillrace_preload.so"];

const OPENSSL_CNF: &str = include_str!("../../templates/openssl.cnf");
const TLS_CNF: &str = include_str!("../../templates/tls.cnf");
const HAPROXY_CFG: &str = include_str!("../../templates/haproxy.cfg");
const NGINX_CONF: &str = include_str!("../../templates/nginx.conf");

/// What nginx needs where its handshakes block.
const BLOCKING_WORKERS: &str = "\
# Stock nginx has no asynchronous handshakes: a worker waits while the pool
# works, so give it more workers than cores (or preload Millrace's library).
worker_processes 16;
";

/// What nginx needs where its handshakes do not block.
const ASYNCHRONOUS: &str = "\
env LD_PRELOAD;
# A connection whose handshake waits for the pool has a second descriptor.
worker_rlimit_nofile 16384;
";

/// Where the examples put the generated openssl.cnf.
const CONFIG_PATH: &str = "/etc/millrace/openssl.cnf";

/// Runs the command.
pub(crate) fn run(args: &GatewayArgs) -> Result<()> {
    let gateway = Gateway::new(args)?;
    output::print(&match args.application {
        Application::Openssl => gateway.openssl(),
        Application::Haproxy => gateway.haproxy(),
        Application::Nginx => gateway.nginx(),
    })
}

/// What was typed, with everything filled in.
struct Gateway {
    key: String,
    module: PathBuf,
    nodes: Vec<String>,
    /// For nodes over TCP.
    certs: Option<PathBuf>,
    /// Whether plain PEM keys are to go to the pool too.
    plain_keys: bool,
    /// The library that makes nginx asynchronous, if it is installed.
    preload: Option<PathBuf>,
}

impl Gateway {
    fn new(args: &GatewayArgs) -> Result<Self> {
        let mut nodes = args.pool.clone();
        if nodes.is_empty() {
            let socket = match &args.socket {
                Some(socket) => socket.clone(),
                None => paths::runtime_dir()?.join("node.sock"),
            };
            nodes.push(format!("unix:{}", socket.display()));
        }
        for node in &nodes {
            check_endpoint(node)?;
        }
        let over_tcp = nodes.iter().any(|node| node.starts_with("tcp:"));
        let module = match &args.module {
            Some(path) => fs::canonicalize(path).unwrap_or_else(|_| path.clone()),
            None => find_library(&MODULE_NAMES).ok_or_else(no_module)?,
        };
        Ok(Self {
            key: args.key.clone(),
            module,
            nodes,
            certs: over_tcp.then(|| args.certs.clone()),
            plain_keys: args.plain_keys,
            preload: find_library(&PRELOAD_NAMES),
        })
    }

    /// A complete openssl.cnf.
    fn openssl(&self) -> String {
        let tls = match &self.certs {
            Some(certs) => TLS_CNF.replace("{certs}", &certs.display().to_string()),
            None => String::new(),
        };
        OPENSSL_CNF
            .replace("{plain}", if self.plain_keys { "" } else { "#" })
            .replace("{module}", &self.module.display().to_string())
            .replace("{pool}", &self.nodes.join(","))
            .replace("{tls}\n", &format!("{tls}\n"))
    }

    fn haproxy(&self) -> String {
        [
            part(CONFIG_PATH),
            self.openssl(),
            part("/etc/systemd/system/haproxy.service.d/millrace.conf"),
            self.drop_in(),
            self.binds_for_chroot("/var/lib/haproxy"),
            part("/etc/haproxy/haproxy.cfg (add to yours)"),
            HAPROXY_CFG.replace("{key}", &self.key),
        ]
        .concat()
    }

    fn nginx(&self) -> String {
        let (drop_in, lines) = match &self.preload {
            Some(library) => (
                format!(
                    "# Makes handshakes asynchronous: a worker serves others while the pool works.\n\
                     Environment=LD_PRELOAD={}\n",
                    library.display()
                ),
                ASYNCHRONOUS,
            ),
            None => (String::new(), BLOCKING_WORKERS),
        };
        [
            part(CONFIG_PATH),
            self.openssl(),
            part("/etc/systemd/system/nginx.service.d/millrace.conf"),
            self.drop_in(),
            drop_in,
            part("/etc/nginx/nginx.conf (add to yours)"),
            NGINX_CONF
                .replace("{key}", &self.key)
                .replace("{preload}\n", lines),
        ]
        .concat()
    }

    /// The systemd drop-in that hands the configuration to a service.
    fn drop_in(&self) -> String {
        let Self { nodes, .. } = self;
        let local = nodes.iter().any(|node| node.starts_with("unix:"));
        let group = if local {
            "# The service's user must be allowed to connect to the node's socket:\n\
             # `millrace up --socket-group GROUP`, or --socket-mode 0666.\n"
        } else {
            ""
        };
        format!("[Service]\n{group}Environment=OPENSSL_CONF={CONFIG_PATH}\n")
    }

    /// Lines that make the node's socket visible to a service that confines itself to `root`.
    fn binds_for_chroot(&self, root: &str) -> String {
        let sockets = self
            .nodes
            .iter()
            .filter_map(|node| node.strip_prefix("unix:"));
        let folders = sockets.filter_map(|socket| Path::new(socket).parent());
        let binds = folders.map(|folder| {
            let folder = folder.display();
            format!(
                "# Debian's configuration has `chroot {root}`, and the provider connects after\n\
                 # that. (Without chroot the line does no harm.)\n\
                 BindPaths={folder}:{root}{folder}\n"
            )
        });
        binds.collect()
    }
}

/// The line that says into which file what follows belongs.
fn part(file: &str) -> String {
    format!("\n# ==> {file}\n")
}

/// Folders for libraries: that of this binary (a build tree or an unpacked archive), those of an
/// installation under a prefix, and OpenSSL's own for modules on Debian and elsewhere.
fn library_folders(binary: &Path) -> Vec<PathBuf> {
    let folder = binary.parent().unwrap_or_else(|| Path::new("/"));
    let multiarch = format!("/usr/lib/{}-linux-gnu/ossl-modules", env::consts::ARCH);
    let places = [
        ".",
        "../lib/millrace",
        &multiarch,
        "/usr/lib64/ossl-modules",
    ];
    places.iter().map(|place| folder.join(place)).collect()
}

/// The first library of these names that is there.
fn find_library(names: &[&str]) -> Option<PathBuf> {
    let binary = env::current_exe().ok()?;
    library_folders(&binary)
        .iter()
        .flat_map(|folder| names.iter().map(|name| folder.join(name)))
        .find_map(|path| fs::canonicalize(path).ok())
}

fn no_module() -> anyhow::Error {
    let message = format!(
        "no provider module ({}) near this binary: build it (make build), or name it with --module",
        MODULE_NAMES.join(" or ")
    );
    fail(Failure::Failed, message)
}

/// # Errors
/// Says what an endpoint looks like.
fn check_endpoint(endpoint: &str) -> Result<()> {
    let good = match endpoint.split_once(':') {
        Some(("unix", path)) => path.starts_with('/') && !path.contains([',', '\n']),
        Some(("tcp", address)) => address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains([',', '\n']) && port.parse::<u16>().is_ok()
        }),
        _ => false,
    };
    let message = format!("--pool {endpoint}: write unix:/absolute/path or tcp:HOST:PORT");
    if good {
        Ok(())
    } else {
        Err(fail(Failure::Usage, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(nodes: &[&str]) -> Gateway {
        Gateway {
            key: "www".to_owned(),
            module: PathBuf::from("/opt/millrace/libmillrace_provider.so"),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            certs: Some(PathBuf::from("/etc/millrace/client")),
            plain_keys: false,
            preload: None,
        }
    }

    #[test]
    fn every_line_of_openssl_cnf_is_a_comment_a_section_or_an_assignment() {
        let text = gateway(&["unix:/run/millrace/node.sock", "tcp:node-1:7433"]).openssl();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let section = line.starts_with('[') && line.ends_with(']');
            assert!(
                line.starts_with('#') || section || line.contains(" = "),
                "{line}"
            );
        }
        assert!(text.contains("pool = unix:/run/millrace/node.sock,tcp:node-1:7433\n"));
        assert!(text.contains("tls_ca = /etc/millrace/client/ca.pem\n"));
    }

    #[test]
    fn nginx_is_told_of_the_library_where_there_is_one() {
        let mut gateway = gateway(&["unix:/run/millrace/node.sock"]);
        let without = gateway.nginx();
        assert!(!without.contains("LD_PRELOAD") && without.contains("worker_processes 16;"));
        gateway.preload = Some(PathBuf::from("/opt/millrace/libmillrace_preload.so"));
        let with = gateway.nginx();
        let drop_in = "Environment=LD_PRELOAD=/opt/millrace/libmillrace_preload.so\n";
        assert!(with.contains(drop_in) && with.contains("\nenv LD_PRELOAD;\n"));
        assert!(!with.contains("worker_processes") && !with.contains("{preload}"));
    }

    #[test]
    fn endpoints_are_checked() {
        for good in ["unix:/run/x", "tcp:host:1", "tcp:[::1]:7433"] {
            assert!(check_endpoint(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "unix:",
            "unix:relative",
            "tcp:host",
            "tcp::1",
            "tcp:h:x",
            "udp:h:1",
        ] {
            assert!(check_endpoint(bad).is_err(), "{bad}");
        }
    }
}
