// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The directives of nginx's configuration that matter here, with its `include`.

use std::path::{Path, PathBuf};

use millrace_hostfs::{Root, glob, nginx};

use super::{ServerConfig, reachable};
use crate::check::utf8;

/// Bound on the depth of includes, so that files that include each other end. Real configurations have three levels.
const MAX_DEPTH: usize = 32;

/// nginx's default of `worker_connections`.
const DEFAULT_CONNECTIONS: u64 = 512;

/// Default paths of common builds.
pub(in crate::check) const DEFAULT_FILES: [&str; 4] = [
    "/etc/nginx/nginx.conf",
    "/usr/local/nginx/conf/nginx.conf",
    "/usr/local/openresty/nginx/conf/nginx.conf",
    "/etc/angie/angie.conf",
];

/// Reads a configuration below `root`, the file system as the server sees it.
#[must_use]
pub(in crate::check) fn read(root: &Root, file: &Path) -> ServerConfig {
    let mut config = ServerConfig { main: vec![file.to_owned()], ..ServerConfig::default() };
    let base = file.parent().unwrap_or_else(|| Path::new("/")).to_owned();
    let mut reader = NginxReader { root, base, config: &mut config };
    reader.file(file, 0);
    let _ = config.connections.get_or_insert(DEFAULT_CONNECTIONS);
    config
}

struct NginxReader<'a> {
    root: &'a Root,
    /// The folder of the main file: relative names are relative to it, also in included files.
    base: PathBuf,
    config: &'a mut ServerConfig,
}

impl NginxReader<'_> {
    fn file(&mut self, path: &Path, depth: usize) {
        if depth > MAX_DEPTH {
            self.config.problem(format!("{}: included too deep", path.display()));
            return;
        }
        let Some(text) = self.config.read(self.root, path) else {
            return;
        };
        let mut directives = Vec::new();
        if let Err(problem) = nginx::parse(&text, |words| directives.push(words)) {
            self.config.problem(format!("{}: {problem}", path.display()));
        }
        for words in directives {
            self.directive(&words, depth);
        }
    }

    fn directive(&mut self, words: &[String], depth: usize) {
        let Some((name, arguments)) = words.split_first() else {
            return;
        };
        let Some(first) = arguments.first() else {
            return;
        };
        match name.as_str() {
            "include" => {
                for file in glob::files(self.root, utf8(&self.base.join(first))) {
                    self.file(Path::new(&file), depth + 1);
                }
            }
            "env" => {
                let variable = first.split('=').next().unwrap_or_default();
                self.config.environment.push(variable.to_owned());
            }
            "user" => self.config.user = Some(first.clone()),
            "worker_connections" => self.config.connections = first.parse().ok(),
            "ssl_certificate_key" => self.key(first),
            "ssl_ecdh_curve" => self.config.add_groups(first),
            "listen" if arguments.iter().any(|word| word == "ssl") => {
                self.config.add_listen(reachable(first));
            }
            "listen" if arguments.iter().any(|word| word == "quic") => {
                self.config.quic.get_or_insert_with(|| first.clone());
            }
            "server_name" => {
                let plain = |name: &&String| {
                    !name.contains(['*', '~', '$']) && *name != "_" && !name.is_empty()
                };
                self.config.names.extend(arguments.iter().filter(plain).cloned());
            }
            _ => {}
        }
    }

    fn key(&mut self, value: &str) {
        if value.contains('$') || value.starts_with("data:") {
            self.config.problem(format!(
                "ssl_certificate_key {value} depends on each connection; it was not looked at"
            ));
        } else if value.starts_with("engine:") || value.starts_with("store:") {
            self.config.problem(format!(
                "ssl_certificate_key {value} is not a file; it was not looked at"
            ));
        } else {
            let path = self.base.join(value);
            self.config.add_key(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn included_files_are_read() {
        let dir = tempfile::tempdir().expect("folder");
        let etc = dir.path().join("etc/nginx");
        fs::create_dir_all(etc.join("sites")).expect("folders");
        let put = |name: &str, text: &str| fs::write(etc.join(name), text).expect("file");
        put(
            "nginx.conf",
            "env OPENSSL_CONF=/x; include mill*.conf; events { worker_connections 99; }\n\
             http { include /etc/nginx/sites/*; }",
        );
        put("millrace.conf", "env LD_PRELOAD;");
        put(
            "sites/one",
            "ssl_ecdh_curve X25519MLKEM768:X25519; server { listen 80; listen 444 quic reuseport; listen [::]:443 ssl http2; listen 443 ssl; server_name _ *.b www.a;\n\
             ssl_certificate_key keys/www.key; }",
        );
        put("sites/two", "server { listen 8443 ssl; ssl_certificate_key $host.key; }");
        put("sites/.hidden", "env HIDDEN;");
        let config =
            read(&Root::open(dir.path()).expect("folder"), Path::new("/etc/nginx/nginx.conf"));
        assert_eq!(config.environment, ["OPENSSL_CONF", "LD_PRELOAD"]);
        assert_eq!(config.connections, Some(99));
        assert_eq!(config.listens, ["[::1]:443", "127.0.0.1:443", "127.0.0.1:8443"]);
        assert_eq!(config.quic.as_deref(), Some("444"));
        assert_eq!(config.groups, ["X25519MLKEM768", "X25519"]);
        assert_eq!(config.names, ["www.a"]);
        assert_eq!(config.keys, [Path::new("/etc/nginx/keys/www.key")]);
        assert_eq!((config.problems.len(), config.files), (1, 4), "{:?}", config.problems);
    }

    #[test]
    fn recursive_include_ends() {
        let dir = tempfile::tempdir().expect("folder");
        fs::write(dir.path().join("a.conf"), "include a.conf;").expect("file");
        let config = read(&Root::open(dir.path()).expect("folder"), Path::new("/a.conf"));
        assert!(config.problems.iter().any(|problem| problem.contains("too deep")));
    }
}
