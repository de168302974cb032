// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Configuration of HAProxy: lines of words in sections, as far as certificates and listeners go.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::{ServerConfig, reachable};

/// Bound on the files of a folder of certificates.
const MAX_ENTRIES: usize = 100_000;

/// What stands beside a certificate and is none.
const NO_CERTIFICATE: [&str; 5] = ["key", "ocsp", "issuer", "sctl", "dh"];

/// What begins a section that has to do with connections of clients, or ends one.
const SECTIONS: [&str; 5] = ["global", "defaults", "frontend", "listen", "backend"];

/// Where packages have it.
pub const DEFAULT_FILE: &str = "/etc/haproxy/haproxy.cfg";

/// Reads the files, or the files in the folders, that `-f` names.
#[must_use]
pub fn read(root: &Path, files: &[PathBuf]) -> ServerConfig {
    let mut config = ServerConfig::default();
    let mut base = None;
    let mut section = String::new();
    for file in files {
        let real = crate::verify::below(root, file);
        let mut parts = vec![file.clone()];
        if real.is_dir() {
            parts = entries(&real).map(|name| file.join(name)).collect();
            parts.retain(|part| part.extension() == Some(OsStr::new("cfg")));
            parts.sort();
        }
        for part in parts {
            if let Some(text) = config.read(&crate::verify::below(root, &part)) {
                for words in text.lines().map(words) {
                    if let Some(name) = words
                        .first()
                        .filter(|name| SECTIONS.contains(&name.as_str()))
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

/// Connections of frontends add up; those of `defaults` count for none in particular, and are left out.
fn limit(section: &str, words: &[String], config: &mut ServerConfig) {
    let [name, number, ..] = words else {
        return;
    };
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

fn line(root: &Path, words: &[String], base: &mut Option<PathBuf>, config: &mut ServerConfig) {
    let Some((name, arguments)) = words.split_first() else {
        return;
    };
    match (name.as_str(), arguments.first()) {
        ("ssl-mode-async", _) => config.mode_async = true,
        ("crt-base", Some(folder)) => *base = Some(folder.into()),
        ("chroot", Some(folder)) => config.chroot = Some(folder.into()),
        ("bind", Some(addresses)) if arguments.iter().any(|word| word == "ssl") => {
            for address in addresses.split(',') {
                config.add_listen(reachable(address));
            }
            for pair in arguments.windows(2) {
                match pair[0].as_str() {
                    "crt" => certificate(root, base.as_deref(), &pair[1], config),
                    "crt-list" => list(root, base.as_deref(), &pair[1], config),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

fn certificate(root: &Path, base: Option<&Path>, name: &str, config: &mut ServerConfig) {
    if name.contains('$') {
        config.problem(format!(
            "crt {name} depends on a variable; it was not looked at"
        ));
        return;
    }
    let path = base.map_or_else(|| PathBuf::from(name), |base| base.join(name));
    let real = crate::verify::below(root, &path);
    if !real.is_dir() {
        config.add_key(key_beside(root, path));
        return;
    }
    let mut names: Vec<PathBuf> = entries(&real).map(PathBuf::from).collect();
    names.sort();
    for name in names {
        let extension = name.extension().and_then(OsStr::to_str).unwrap_or("");
        if !NO_CERTIFICATE.contains(&extension) {
            config.add_key(key_beside(root, path.join(name)));
        }
    }
}

/// `www.pem.key`, or `www.key` (ssl-load-extra-del-ext), if there is one; else `www.pem` itself.
fn key_beside(root: &Path, certificate: PathBuf) -> PathBuf {
    let mut appended = certificate.clone().into_os_string();
    appended.push(".key");
    let candidates = [PathBuf::from(appended), certificate.with_extension("key")];
    let found = candidates
        .into_iter()
        .find(|candidate| crate::verify::below(root, candidate).is_file());
    found.unwrap_or(certificate)
}

fn list(root: &Path, base: Option<&Path>, file: &str, config: &mut ServerConfig) {
    let Some(text) = config.read(&crate::verify::below(root, Path::new(file))) else {
        return;
    };
    for words in text.lines().map(words) {
        if let Some(name) = words.first() {
            certificate(root, base, name, config);
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = std::ffi::OsString> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let names = entries
        .take(MAX_ENTRIES)
        .flatten()
        .map(|entry| entry.file_name());
    names.filter(|name| !name.to_string_lossy().starts_with('.'))
}

/// The words of a line: separated by blanks, in quotes or with backslashes, up to `#`.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let (mut quote, mut escaped) = (None, false);
    for character in line.chars() {
        match (character, quote) {
            _ if escaped => {
                escaped = false;
                word.get_or_insert_default().push(character);
            }
            ('\\', None | Some('"')) => escaped = true,
            ('#', None) => break,
            (' ' | '\t', None) => words.extend(word.take()),
            ('"' | '\'', None) => {
                quote = Some(character);
                let _ = word.get_or_insert_default();
            }
            (_, Some(open)) if character == open => quote = None,
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_syntax_of_haproxy() {
        assert_eq!(
            words("  bind :443 ssl\tcrt \"/a b\"c '#x' d\\ e # rest"),
            ["bind", ":443", "ssl", "crt", "/a bc", "#x", "d e"]
        );
        assert_eq!(words("''"), [""]);
        for odd in ["", "#", "\\", "\"", "'", "\"\\"] {
            let _ = words(odd);
        }
    }

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
             frontend a\n maxconn 3\n bind :443,[::]:443 ssl crt www.pem crt many\n bind :80\n\
             listen b\n bind 10.0.0.1:8443 ssl crt-list /etc/list\n",
        );
        put("certs/www.pem", "");
        put("certs/www.pem.key", "");
        put("certs/many/a.pem", "");
        put("certs/many/b.crt", "");
        put("certs/many/b.key", "");
        put("certs/many/a.pem.ocsp", "");
        put("etc/list", "c.pem [alpn h2] *.example.net\n# comment\n");
        let config = read(dir.path(), &[PathBuf::from("/etc/h.cfg")]);
        assert!(config.mode_async);
        assert_eq!(
            (
                config.global_connections,
                config.connections,
                config.descriptors
            ),
            (Some(50), Some(3), Some(200))
        );
        assert_eq!(
            config.chroot.as_deref(),
            Some(Path::new("/var/lib/haproxy"))
        );
        assert_eq!(
            config.listens,
            ["127.0.0.1:443", "[::1]:443", "10.0.0.1:8443"]
        );
        let keys: Vec<&str> = config.keys.iter().filter_map(|key| key.to_str()).collect();
        assert_eq!(
            keys,
            [
                "/certs/www.pem.key",
                "/certs/many/a.pem",
                "/certs/many/b.key",
                "/certs/c.pem"
            ]
        );
        let folder = read(dir.path(), &[PathBuf::from("/etc")]);
        assert_eq!(folder.keys, config.keys, "a folder is its *.cfg");
    }
}
