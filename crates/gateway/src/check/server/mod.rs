// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The settings of a server's own configuration that matter to the pool. The files are read; `nginx -T` as root
//! would run any program of that name.

pub(super) mod haproxy;
pub(super) mod nginx;

use std::path::{Path, PathBuf};

use millrace_hostfs::Root;

use super::utf8;

/// Bound on one file, in bytes: a generated configuration with thousands of servers has 1 MiB.
const MAX_FILE: usize = 4 << 20;

/// Bound on the files of a configuration: sites of a hosting provider, one each.
const MAX_FILES: usize = 10_000;

/// The settings of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::check) struct ServerConfig {
    /// Paths of files with private keys.
    pub(in crate::check) keys: Vec<PathBuf>,
    /// Addresses of TLS listeners, as a client on this machine connects to them.
    pub(in crate::check) listens: Vec<String>,
    /// A listener for HTTP/3, as the configuration names it.
    pub(in crate::check) quic: Option<String>,
    /// Names of servers, without wildcards.
    pub(in crate::check) names: Vec<String>,
    /// Key exchange groups, of all its listeners.
    pub(in crate::check) groups: Vec<String>,
    /// Names of variables that nginx keeps (`env`).
    pub(in crate::check) environment: Vec<String>,
    /// Whether HAProxy has `ssl-mode-async`.
    pub(in crate::check) mode_async: bool,
    /// Connections of a worker (nginx), or of all frontends (HAProxy).
    pub(in crate::check) connections: Option<u64>,
    /// HAProxy's global `maxconn`, which sizes its table of descriptors.
    pub(in crate::check) global_connections: Option<u64>,
    /// HAProxy's `ulimit-n`.
    pub(in crate::check) descriptors: Option<u64>,
    /// HAProxy's `chroot`.
    pub(in crate::check) chroot: Option<PathBuf>,
    /// The user of the workers, as the configuration names it: a name or a number.
    pub(in crate::check) user: Option<String>,
    /// The file, or files, that the server reads first.
    pub(in crate::check) main: Vec<PathBuf>,
    /// Problems of the configuration: files that could not be read, values that are not valid.
    pub(in crate::check) problems: Vec<String>,
    /// Number of files that were read.
    pub(in crate::check) files: usize,
}

impl ServerConfig {
    fn problem(&mut self, text: String) {
        /// Bound on the problems that a report lists: more would hide the important ones.
        const MAX_PROBLEMS: usize = 20;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(text);
        }
    }

    /// Reads one more file, within the bounds.
    fn read(&mut self, root: &Root, path: &Path) -> Option<String> {
        self.files += 1;
        if self.files > MAX_FILES {
            self.problem(format!("more than {MAX_FILES} files: the rest was not read"));
            return None;
        }
        match root.lossy_text(utf8(path), MAX_FILE) {
            Ok(text) => Some(text),
            Err(error) => {
                self.problem(format!("{}: {error}", path.display()));
                None
            }
        }
    }

    fn add_listen(&mut self, address: Option<String>) {
        if let Some(address) = address
            && !self.listens.contains(&address)
        {
            self.listens.push(address);
        }
    }

    /// Adds the names of a list `A:B`.
    fn add_groups(&mut self, list: &str) {
        for group in list.split(':') {
            if !self.groups.iter().any(|known| known == group) {
                self.groups.push(group.to_owned());
            }
        }
    }

    fn add_key(&mut self, path: PathBuf) {
        if !self.keys.contains(&path) {
            self.keys.push(path);
        }
    }
}

/// The address at which a client on this machine reaches a listener: a wildcard address becomes loopback. `None`
/// for other socket families and for port ranges.
fn reachable(bound: &str) -> Option<String> {
    if bound.starts_with("unix") || bound.contains('@') || bound.contains('/') {
        return None;
    }
    let (host, port) = match bound.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ if bound.parse::<u16>().is_ok() => ("", bound),
        _ => (bound, "443"),
    };
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    let host = match host {
        "" | "*" | "0.0.0.0" => "127.0.0.1",
        "[::]" | "::" => "[::1]",
        host => host,
    };
    Some(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::reachable;

    #[test]
    fn any_address_is_reached_by_loopback() {
        for (bound, expected) in [
            ("443", Some("127.0.0.1:443")),
            (":443", Some("127.0.0.1:443")),
            ("*:8443", Some("127.0.0.1:8443")),
            ("0.0.0.0:443", Some("127.0.0.1:443")),
            ("[::]:443", Some("[::1]:443")),
            ("10.0.0.1:443", Some("10.0.0.1:443")),
            ("localhost", Some("localhost:443")),
            ("unix:/run/x", None),
            ("/run/x", None),
            ("ipv4@:443", None),
            (":80-90", None),
            (":0", None),
        ] {
            assert_eq!(reachable(bound).as_deref(), expected, "{bound}");
        }
    }
}
