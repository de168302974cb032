// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Finds crypto libraries: in the folders that loaders search (glibc, musl, OpenWrt, every ABI), in those of
//! `ld.so.conf`, in `/usr/local` and `/opt`, and inside servers that often have one linked in.

use crate::section::SectionReader;

/// Folders of libraries with fixed names.
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
/// Folders with one installation per subfolder (`/opt/vendor/lib`).
const PREFIXES: &[&str] = &["opt", "usr/local"];
/// Bound on folders; an ordinary system has fewer.
const MAX_FOLDERS: usize = 512;

/// Beginnings of the file names of crypto libraries.
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
const PROGRAMS: &str = "nginx haproxy envoy openvpn stunnel stunnel4 stunnel5 lighttpd httpd apache2 node openssl charon \
         dropbear dropbearmulti hostapd wpad uhttpd ovpncli";
/// Folders that are searched for [`PROGRAMS`].
const PROGRAM_FOLDERS: &[&str] =
    &["usr/sbin", "usr/bin", "usr/local/sbin", "usr/local/bin", "sbin", "bin"];

/// Candidate files.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) shared: Vec<String>,
    pub(super) programs: Vec<String>,
}

/// Finds the candidate files.
pub(super) fn libraries(reader: &mut SectionReader<'_>) -> Candidates {
    let mut candidates = Candidates::default();
    for folder in folders(reader) {
        let names = reader.names(&folder);
        let wanted = |name: &&String| is_library(name);
        let present: Vec<String> = names.iter().filter(wanted).cloned().collect();
        for name in &present {
            let path = format!("{folder}/{name}");
            // The target of `libcrypto.so -> libcrypto.so.3` is in the list as well.
            let target = reader.root().link(&path).ok().flatten();
            let again =
                target.is_some_and(|target| !target.contains('/') && present.contains(&target));
            if !again {
                candidates.shared.push(path);
            }
        }
    }
    candidates.shared.dedup();
    for folder in PROGRAM_FOLDERS {
        if is_link(reader, folder) {
            continue;
        }
        let names = reader.names(folder);
        let wanted = PROGRAMS.split(' ').filter(|program| names.iter().any(|name| name == program));
        candidates.programs.extend(wanted.map(|program| format!("{folder}/{program}")));
    }
    candidates
}

/// All folders that may contain libraries, each once: `lib -> usr/lib` counts as the latter.
fn folders(reader: &mut SectionReader<'_>) -> Vec<String> {
    let mut folders: Vec<String> = Vec::new();
    let mut add = |reader: &mut SectionReader<'_>, folder: String| {
        let is_new = !folders.contains(&folder) && !is_link(reader, &folder);
        if is_new && !reader.is_full("folders of libraries", &folders, MAX_FOLDERS) {
            folders.push(folder);
        }
    };
    for folder in FOLDERS {
        add(reader, (*folder).to_owned());
    }
    for folder in ["lib", "usr/lib", "usr/local/lib"] {
        if is_link(reader, folder) {
            continue;
        }
        for name in reader.names(folder).into_iter().filter(|name| is_triplet(name)) {
            add(reader, format!("{folder}/{name}"));
        }
    }
    for prefix in PREFIXES {
        for name in reader.names(prefix) {
            for library in ["lib", "lib64"] {
                add(reader, format!("{prefix}/{name}/{library}"));
            }
        }
    }
    for folder in configured(reader) {
        add(reader, folder);
    }
    folders
}

/// The folders in the loader's configuration.
fn configured(reader: &mut SectionReader<'_>) -> Vec<String> {
    let mut files = vec!["etc/ld.so.conf".to_owned()];
    // musl has a file per architecture.
    for (folder, start, end) in [("etc/ld.so.conf.d", "", ".conf"), ("etc", "ld-musl-", "")] {
        let names = reader
            .names(folder)
            .into_iter()
            .filter(|name| name.starts_with(start) && name.ends_with(end));
        files.extend(names.map(|name| format!("{folder}/{name}")));
    }
    let mut folders = Vec::new();
    for file in files {
        let text = reader.text_if_there(&file).unwrap_or_default();
        for line in text.split(['\n', ':']) {
            let folder = line.trim();
            if folder.starts_with('/') && !folder.contains("..") {
                folders.push(folder.trim_matches('/').to_owned());
            }
        }
    }
    reader.first("folders of libraries", folders, MAX_FOLDERS)
}

/// Whether a folder also has another name, because it or a parent is a symbolic link.
fn is_link(reader: &SectionReader<'_>, path: &str) -> bool {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    ends.into_iter().any(|end| matches!(reader.root().link(&path[..end]), Ok(Some(_))))
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
        for name in ["libcrypto.so.3", "libcrypto.so", "libcrypto-3.so", "libmbedcrypto.so.2.28.3"]
        {
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
