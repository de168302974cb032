// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The directives of HAProxy's configuration that matter here: certificates, listeners, limits.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use millrace_hostfs::haproxy::words;
use millrace_hostfs::{FileKind, Root};

use super::{ServerConfig, reachable};
use crate::check::utf8;

/// Extensions of files beside a certificate that are not certificates.
const NO_CERTIFICATE: [&str; 5] = ["key", "ocsp", "issuer", "sctl", "dh"];

/// First words of the sections that matter here; each also ends the section before it.
const SECTIONS: [&str; 9] = [
    "global",
    "defaults",
    "frontend",
    "listen",
    "backend",
    "userlist",
    "peers",
    "resolvers",
    "program",
];

/// The path in packages.
pub(in crate::check) const DEFAULT_FILE: &str = "/etc/haproxy/haproxy.cfg";

/// Reads the files, or the files in the folders, that `-f` names.
#[must_use]
pub(in crate::check) fn read(root: &Root, files: &[PathBuf]) -> ServerConfig {
    let mut config = ServerConfig { main: files.to_vec(), ..ServerConfig::default() };
    let mut base = None;
    let mut section = String::new();
    for file in files {
        let mut parts = vec![file.clone()];
        if has_kind(root, file, FileKind::Folder) {
            parts = entries(root, file).map(|name| file.join(name)).collect();
            parts.retain(|part| part.extension() == Some(OsStr::new("cfg")));
        }
        for part in parts {
            if let Some(text) = config.read(root, &part) {
                for words in text.lines().map(words) {
                    if let Some(name) =
                        words.first().filter(|name| SECTIONS.contains(&name.as_str()))
                    {
                        name.clone_into(&mut section);
                    }
                    limit(&section, &words, &mut config);
                    line(root, &words, &mut base, &mut config);
                }
            }
        }
    }
    config
}

/// Connections of frontends add up; a `maxconn` in `defaults` is not counted.
fn limit(section: &str, words: &[String], config: &mut ServerConfig) {
    let [name, number, ..] = words else {
        return;
    };
    if section == "global" && ["user", "uid"].contains(&name.as_str()) {
        config.user = Some(number.clone());
    }
    let Ok(number) = number.parse() else {
        return;
    };
    match (name.as_str(), section) {
        ("ulimit-n", "global") => config.descriptors = Some(number),
        ("maxconn", "global") => config.global_connections = Some(number),
        ("maxconn", "frontend" | "listen") => {
            let sum = config.connections.unwrap_or(0);
            config.connections = Some(number.saturating_add(sum));
        }
        _ => {}
    }
}

fn line(root: &Root, words: &[String], base: &mut Option<PathBuf>, config: &mut ServerConfig) {
    let Some((name, arguments)) = words.split_first() else {
        return;
    };
    match (name.as_str(), arguments.first()) {
        ("ssl-mode-async", _) => config.mode_async = true,
        ("ssl-default-bind-curves", Some(list)) => config.add_groups(list),
        ("crt-base", Some(folder)) => *base = Some(folder.into()),
        ("chroot", Some(folder)) => config.chroot = Some(folder.into()),
        ("bind", Some(addresses)) if arguments.iter().any(|word| word == "ssl") => {
            for address in addresses.split(',') {
                config.add_listen(reachable(address));
            }
            for pair in arguments.windows(2) {
                match pair[0].as_str() {
                    "curves" | "ecdhe" => config.add_groups(&pair[1]),
                    "crt" => certificate(root, base.as_deref(), &pair[1], config),
                    "crt-list" => list(root, base.as_deref(), &pair[1], config),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

fn certificate(root: &Root, base: Option<&Path>, name: &str, config: &mut ServerConfig) {
    if name.contains('$') {
        config.problem(format!("crt {name} depends on a variable; it was not looked at"));
        return;
    }
    let path = base.map_or_else(|| PathBuf::from(name), |base| base.join(name));
    if !has_kind(root, &path, FileKind::Folder) {
        config.add_key(key_beside(root, path));
        return;
    }
    for name in entries(root, &path) {
        let extension = Path::new(&name).extension().and_then(OsStr::to_str);
        if !NO_CERTIFICATE.contains(&extension.unwrap_or("")) {
            config.add_key(key_beside(root, path.join(name)));
        }
    }
}

/// `www.pem.key`, or `www.key` (ssl-load-extra-del-ext), if there is one; else `www.pem` itself.
fn key_beside(root: &Root, certificate: PathBuf) -> PathBuf {
    let mut appended = certificate.clone().into_os_string();
    appended.push(".key");
    let candidates = [PathBuf::from(appended), certificate.with_extension("key")];
    let found = candidates.into_iter().find(|candidate| has_kind(root, candidate, FileKind::File));
    found.unwrap_or(certificate)
}

fn list(root: &Root, base: Option<&Path>, file: &str, config: &mut ServerConfig) {
    let Some(text) = config.read(root, Path::new(file)) else {
        return;
    };
    for words in text.lines().map(words) {
        if let Some(name) = words.first() {
            certificate(root, base, name, config);
        }
    }
}

fn entries(root: &Root, folder: &Path) -> impl Iterator<Item = String> {
    let names = root.names(utf8(folder)).into_iter();
    names.filter(|name| !name.starts_with('.'))
}

fn has_kind(root: &Root, path: &Path, kind: FileKind) -> bool {
    root.kind(utf8(path)) == Ok(kind)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn certificates_in_files_folders_and_lists() {
        let dir = tempfile::tempdir().expect("folder");
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("folder")).expect("folders");
            fs::write(path, text).expect("file");
        };
        put(
            "etc/h.cfg",
            "global\n ssl-mode-async\n maxconn 50\n ulimit-n 200\n crt-base /certs\n chroot /var/lib/haproxy\n\
             ssl-default-bind-curves X25519MLKEM768:X25519\n\
             frontend a\n maxconn 3\n bind :443,[::]:443 ssl crt www.pem crt many curves X25519:P-256\n bind :80\n\
             listen b\n bind 10.0.0.1:8443 ssl crt-list /etc/list\n",
        );
        put("certs/www.pem", "");
        put("certs/www.pem.key", "");
        put("certs/many/a.pem", "");
        put("certs/many/b.crt", "");
        put("certs/many/b.key", "");
        put("certs/many/a.pem.ocsp", "");
        put("etc/list", "c.pem [alpn h2] *.example.net\n# comment\n");
        let root = Root::open(dir.path()).expect("folder");
        let config = read(&root, &[PathBuf::from("/etc/h.cfg")]);
        assert!(config.mode_async);
        assert_eq!(config.groups, ["X25519MLKEM768", "X25519", "P-256"]);
        assert_eq!(
            (config.global_connections, config.connections, config.descriptors),
            (Some(50), Some(3), Some(200))
        );
        assert_eq!(config.chroot.as_deref(), Some(Path::new("/var/lib/haproxy")));
        assert_eq!(config.listens, ["127.0.0.1:443", "[::1]:443", "10.0.0.1:8443"]);
        let keys: Vec<&str> = config.keys.iter().filter_map(|key| key.to_str()).collect();
        assert_eq!(
            keys,
            ["/certs/www.pem.key", "/certs/many/a.pem", "/certs/many/b.key", "/certs/c.pem"]
        );
        let folder = read(&root, &[PathBuf::from("/etc")]);
        assert_eq!(folder.keys, config.keys, "a folder is its *.cfg");
    }
}
