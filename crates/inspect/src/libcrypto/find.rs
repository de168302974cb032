// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Where crypto libraries are: the folders that loaders search, on glibc, musl and OpenWrt, for every
//! ABI; what `ld.so.conf` adds; `/usr/local` and `/opt`; and servers that often carry one inside.

use crate::report::Look;

/// Folders of libraries that need no pattern.
const FOLDERS: &[&str] = &[
    "lib",
    "lib64",
    "lib32",
    "libx32",
    "usr/lib",
    "usr/lib64",
    "usr/lib32",
    "usr/libx32",
    "usr/local/lib",
    "usr/local/lib64",
    "usr/local/ssl/lib",
];
/// Folders whose folders may be installations of their own (`/opt/vendor/lib`).
const PREFIXES: &[&str] = &["opt", "usr/local"];
/// Folders that are looked at; more are no ordinary system.
const MAX_FOLDERS: usize = 512;

/// How the files of crypto libraries begin.
const LIBRARIES: &[&str] = &[
    "libcrypto.so",
    "libcrypto-",
    "libboringssl",
    "libwolfssl.so",
    "libmbedcrypto.so",
    "libtfpsacrypto.so",
    "libnettle.so",
    "libgcrypt.so",
    "libgnutls.so",
    "libbotan-",
];

/// Programs that may have a crypto library linked in.
const PROGRAMS: &[&str] = &[
    "nginx",
    "haproxy",
    "envoy",
    "openvpn",
    "stunnel",
    "stunnel4",
    "stunnel5",
    "lighttpd",
    "httpd",
    "apache2",
    "node",
    "openssl",
    "charon",
    "dropbear",
    "dropbearmulti",
    "hostapd",
    "wpad",
    "uhttpd",
    "ovpncli",
];
/// Folders of programs.
const PROGRAM_FOLDERS: &[&str] = &[
    "usr/sbin",
    "usr/bin",
    "usr/local/sbin",
    "usr/local/bin",
    "sbin",
    "bin",
];

/// Files to look into.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) shared: Vec<String>,
    pub(super) programs: Vec<String>,
}

/// Finds them.
pub(super) fn libraries(look: &mut Look<'_>) -> Candidates {
    let mut candidates = Candidates::default();
    for folder in folders(look) {
        let names = look.names(&folder);
        let wanted = |name: &&String| is_library(name);
        let here: Vec<String> = names.iter().filter(wanted).cloned().collect();
        for name in &here {
            let path = format!("{folder}/{name}");
            // `libcrypto.so -> libcrypto.so.3`: the file itself is in the list, too.
            let target = look.root().link(&path).ok().flatten();
            let again =
                target.is_some_and(|target| !target.contains('/') && here.contains(&target));
            if !again {
                candidates.shared.push(path);
            }
        }
    }
    candidates.shared.dedup();
    for folder in PROGRAM_FOLDERS {
        if is_link(look, folder) {
            continue;
        }
        let names = look.names(folder);
        let wanted = PROGRAMS
            .iter()
            .filter(|program| names.iter().any(|name| name == *program));
        candidates
            .programs
            .extend(wanted.map(|program| format!("{folder}/{program}")));
    }
    candidates
}

/// Every folder that may have libraries, each once: `lib -> usr/lib` is the latter.
fn folders(look: &mut Look<'_>) -> Vec<String> {
    let mut folders: Vec<String> = Vec::new();
    let mut add = |look: &mut Look<'_>, folder: String| {
        if folders.len() < MAX_FOLDERS && !folders.contains(&folder) && !is_link(look, &folder) {
            folders.push(folder);
        }
    };
    for folder in FOLDERS {
        add(look, (*folder).to_owned());
    }
    for folder in ["lib", "usr/lib", "usr/local/lib"] {
        if is_link(look, folder) {
            continue;
        }
        for name in look
            .names(folder)
            .into_iter()
            .filter(|name| is_triplet(name))
        {
            add(look, format!("{folder}/{name}"));
        }
    }
    for prefix in PREFIXES {
        for name in look.names(prefix) {
            for library in ["lib", "lib64"] {
                add(look, format!("{prefix}/{name}/{library}"));
            }
        }
    }
    for folder in configured(look) {
        add(look, folder);
    }
    folders
}

/// The folders that the loader's configuration names.
fn configured(look: &mut Look<'_>) -> Vec<String> {
    let mut files = vec!["etc/ld.so.conf".to_owned()];
    let more = look.names("etc/ld.so.conf.d");
    files.extend(
        more.into_iter()
            .filter(|name| name.ends_with(".conf"))
            .map(|name| format!("etc/ld.so.conf.d/{name}")),
    );
    // musl has a file per architecture.
    let musl = look.names("etc");
    files.extend(
        musl.into_iter()
            .filter(|name| name.starts_with("ld-musl-"))
            .map(|name| format!("etc/{name}")),
    );
    let mut folders = Vec::new();
    for file in files {
        let text = look.text_if_there(&file).unwrap_or_default();
        for line in text.split(['\n', ':']) {
            let folder = line.trim();
            if folder.starts_with('/') && !folder.contains("..") {
                folders.push(folder.trim_matches('/').to_owned());
            }
        }
    }
    folders.truncate(MAX_FOLDERS);
    folders
}

/// Whether a folder is known by another name: it, or one above it, is a symbolic link.
fn is_link(look: &Look<'_>, path: &str) -> bool {
    let ends = path
        .match_indices('/')
        .map(|(at, _)| at)
        .chain([path.len()]);
    ends.into_iter()
        .any(|end| matches!(look.root().link(&path[..end]), Ok(Some(_))))
}

/// `arm-linux-gnueabihf`, `x86_64-linux-musl`.
fn is_triplet(name: &str) -> bool {
    name.contains("-linux-")
}

fn is_library(name: &str) -> bool {
    let known = LIBRARIES.iter().any(|start| name.starts_with(start));
    known && name.contains(".so") && !name.ends_with(".hmac")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_libraries() {
        for name in [
            "libcrypto.so.3",
            "libcrypto.so",
            "libcrypto-3.so",
            "libmbedcrypto.so.2.28.3",
        ] {
            assert!(is_library(name), "{name}");
        }
        for name in [
            "libcrypto.a",
            "libcryptsetup.so",
            "libssl.so.3",
            ".libcrypto.so.1.1.hmac",
            "libcrypto.so.10.hmac",
        ] {
            assert!(!is_library(name), "{name}");
        }
    }
}
