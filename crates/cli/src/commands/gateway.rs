// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace gateway`: prints the configuration that puts the pool under an application. It changes
//! nothing: composing text is all it does, so that a person reads it before it is put in place.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::args::{Application, GatewayArgs};
use crate::exit::{Failure, fail};
use crate::output;
use crate::paths;

/// Name of the provider module as cargo builds it, and as packages install it.
const MODULE_NAMES: [&str; 2] = ["libmillrace_provider.so", "millrace.so"];

/// Folders for modules, relative to the one of this binary: a build tree or an unpacked archive
/// first, then an installation under a prefix.
const MODULE_FOLDERS: [&str; 3] = [
    ".",
    "../lib/millrace",
    "../lib/x86_64-linux-gnu/ossl-modules",
];

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
}

impl Gateway {
    fn new(args: &GatewayArgs) -> Result<Self> {
        let mut nodes = args.pool.clone();
        if nodes.is_empty() {
            nodes.push(format!(
                "unix:{}",
                paths::runtime_dir()?.join("node.sock").display()
            ));
        }
        for node in &nodes {
            check_endpoint(node)?;
        }
        let over_tcp = nodes.iter().any(|node| node.starts_with("tcp:"));
        let module = match &args.module {
            Some(path) => fs::canonicalize(path).unwrap_or_else(|_| path.clone()),
            None => find_module()?,
        };
        Ok(Self {
            key: args.key.clone(),
            module,
            nodes,
            certs: over_tcp.then(|| args.certs.clone()),
        })
    }

    /// A complete openssl.cnf.
    fn openssl(&self) -> String {
        let mut text = format!(
            "# OpenSSL configuration that puts the Millrace pool under an application.\n\
             # Save it, for instance as {CONFIG_PATH}, and start the application with\n\
             #   OPENSSL_CONF={CONFIG_PATH}\n\
             # Try it:\n\
             #   OPENSSL_CONF={CONFIG_PATH} openssl list -providers -verbose\n\n\
             openssl_conf = openssl_init\n\n\
             [openssl_init]\n\
             providers = provider_sect\n\
             # Without this line only keys that name the pool (stubs) go to it. With it, plain PEM\n\
             # keys do too: each process brings them into its own session once, and OpenSSL's own\n\
             # implementation stands in if no node answers in time.\n\
             #alg_section = algorithm_sect\n\n\
             [provider_sect]\n\
             default = default_sect\n\
             millrace = millrace_sect\n\n\
             # Naming any provider turns off the automatic one: keep this.\n\
             [default_sect]\n\
             activate = 1\n\n\
             [millrace_sect]\n\
             module = {}\n\
             activate = 1\n\
             # The nodes, separated by commas; the provider shares the work among them.\n\
             pool = {}\n",
            self.module.display(),
            self.nodes.join(",")
        );
        if let Some(certs) = &self.certs {
            let _ = write!(
                text,
                "# Mutual TLS to nodes over TCP: what `millrace cert client NAME -o DIR` wrote.\n\
                 tls_ca = {0}/ca.pem\ntls_cert = {0}/cert.pem\ntls_key = {0}/key.pem\n",
                certs.display()
            );
        }
        text.push_str("\n[algorithm_sect]\ndefault_properties = ?provider=millrace\n");
        text
    }

    fn haproxy(&self) -> String {
        let Self { key, .. } = self;
        format!(
            "{}{}{}{}{}",
            part(CONFIG_PATH),
            self.openssl(),
            part("/etc/systemd/system/haproxy.service.d/millrace.conf"),
            self.drop_in("/var/lib/haproxy"),
            self.in_haproxy(key)
        )
    }

    /// What goes into haproxy.cfg.
    fn in_haproxy(&self, key: &str) -> String {
        format!(
            "{}\
             # HAProxy wants certificate and key in one file. The key is a stub: it names the pool's\n\
             # key and holds no secret.\n\
             #   millrace key stub {key} -o {key}.key\n\
             #   cat {key}.crt {key}.key > /etc/haproxy/{key}.pem\n\
             #   millrace key policy {key} --allow-uid haproxy\n\
             global\n\
             \x20   # Handshakes wait for the pool without blocking the thread.\n\
             \x20   ssl-mode-async\n\
             \x20   # Each handshake in flight takes one more descriptor; HAProxy does not count it.\n\
             \x20   ulimit-n 65536\n\n\
             frontend https\n\
             \x20   bind :443 ssl crt /etc/haproxy/{key}.pem\n\
             \x20   # Above the provider's deadline, so that its fallback comes first.\n\
             \x20   timeout client 10s\n\
             \x20   default_backend app\n",
            part("/etc/haproxy/haproxy.cfg (add to yours)")
        )
    }

    fn nginx(&self) -> String {
        let Self { key, .. } = self;
        format!(
            "{}{}{}{}{}\
             # At the top of the file, outside every block: the workers need the variable too.\n\
             env OPENSSL_CONF;\n\n\
             # In the server block. The key is a stub: it names the pool's key and holds no secret.\n\
             #   millrace key stub {key} -o /etc/nginx/{key}.key\n\
             #   millrace key policy {key} --allow-uid www-data\n\
             # Stock nginx has no asynchronous handshakes: a worker waits while the pool works, so\n\
             # give it more workers than cores.\n\
             worker_processes 16;\n\
             http {{\n\
             \x20   server {{\n\
             \x20       listen 443 ssl;\n\
             \x20       ssl_certificate     /etc/nginx/{key}.crt;\n\
             \x20       ssl_certificate_key /etc/nginx/{key}.key;\n\
             \x20   }}\n\
             }}\n",
            part(CONFIG_PATH),
            self.openssl(),
            part("/etc/systemd/system/nginx.service.d/millrace.conf"),
            self.drop_in(""),
            part("/etc/nginx/nginx.conf (add to yours)")
        )
    }

    /// The systemd drop-in that hands the configuration to a service. `root` is the folder that the
    /// service confines itself to once it has started, if it does.
    fn drop_in(&self, root: &str) -> String {
        let mut text = format!("[Service]\nEnvironment=OPENSSL_CONF={CONFIG_PATH}\n");
        let sockets = self
            .nodes
            .iter()
            .filter_map(|node| node.strip_prefix("unix:"));
        let folders = sockets.filter_map(|socket| Path::new(socket).parent());
        if !root.is_empty() {
            for folder in folders {
                let folder = folder.display();
                let _ = write!(
                    text,
                    "# Debian's configuration has `chroot {root}`: this makes the node's socket\n\
                     # reachable from inside. (Without chroot the line does no harm.)\n\
                     BindPaths={folder}:{root}{folder}\n"
                );
            }
        }
        text
    }
}

/// The line that says into which file what follows belongs.
fn part(file: &str) -> String {
    format!("\n# ==> {file}\n")
}

/// The provider module beside this binary, or where a package puts it.
fn find_module() -> Result<PathBuf> {
    let binary = env::current_exe().context("finding out where this binary is")?;
    let folder = binary.parent().unwrap_or_else(|| Path::new("/"));
    let mut places = MODULE_FOLDERS
        .iter()
        .flat_map(|place| MODULE_NAMES.map(|name| folder.join(place).join(name)));
    places.find_map(|path| fs::canonicalize(path).ok()).ok_or_else(|| {
        let message = format!(
            "no provider module ({}) near {}: build it (make build), or name it with --module FILE",
            MODULE_NAMES.join(" or "),
            binary.display()
        );
        fail(Failure::Failed, message)
    })
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
