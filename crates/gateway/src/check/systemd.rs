// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The environment that systemd gives a service, from its unit file and drop-ins. nginx overwrites its
//! own environment with its title, so this is where its variables can still be seen.
//!
//! `EnvironmentFile=` is not followed.

use std::fs;
use std::path::{Path, PathBuf};

use super::proc;
use super::server::haproxy::words;
use crate::verify::below;

/// Bound on a unit file, in bytes, and on the drop-ins of a unit.
const MAX_FILE: u64 = 256 * 1024;
const MAX_DROP_INS: usize = 1000;

/// Where unit files are, the ones that are overridden first.
const FOLDERS: [&str; 5] = [
    "/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/usr/local/lib/systemd/system",
    "/run/systemd/system",
    "/etc/systemd/system",
];

/// The unit in the text of `/proc/PID/cgroup`: `0::/system.slice/nginx.service`.
pub(super) fn unit_of(cgroup: &str) -> Option<&str> {
    cgroup
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .flat_map(|path| path.split('/'))
        .find(|name| name.ends_with(".service"))
}

/// The file that gives a unit this variable last, and its value.
pub(super) fn variable(files: &Path, unit: &str, name: &str) -> Option<(PathBuf, String)> {
    let mut found = None;
    for file in unit_files(files, unit) {
        let Ok(text) = proc::read(&below(files, &file), MAX_FILE) else {
            continue;
        };
        for line in text.lines().map(str::trim) {
            let Some(assignments) = line.strip_prefix("Environment=") else {
                continue;
            };
            let assignments = words(assignments);
            // An empty one takes back what came before.
            if assignments.is_empty() {
                found = None;
            }
            for assignment in assignments {
                if let Some((known, value)) = assignment.split_once('=')
                    && known == name
                {
                    found = Some((file.clone(), value.to_owned()));
                }
            }
        }
    }
    found
}

/// The unit file that counts, then its drop-ins in the order of their names.
fn unit_files(files: &Path, unit: &str) -> Vec<PathBuf> {
    let folders = || FOLDERS.iter().map(Path::new);
    let mut all: Vec<PathBuf> = folders()
        .map(|folder| folder.join(unit))
        .filter(|file| below(files, file).is_file())
        .collect();
    // The last one replaces the others.
    all.drain(..all.len().saturating_sub(1));
    let mut drop_ins = Vec::new();
    for folder in folders().map(|folder| folder.join(format!("{unit}.d"))) {
        let entries = fs::read_dir(below(files, &folder)).into_iter().flatten();
        for entry in entries.take(MAX_DROP_INS).flatten() {
            let name = entry.file_name();
            if Path::new(&name).extension() == Some("conf".as_ref()) {
                drop_ins.push((name.clone(), folder.join(&name)));
            }
        }
    }
    drop_ins.sort_by(|one, other| one.0.cmp(&other.0));
    all.extend(drop_ins.into_iter().map(|(_, file)| file));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_drop_in_wins() {
        let dir = tempfile::tempdir().expect("folder");
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("folder")).expect("folders");
            fs::write(path, text).expect("file");
        };
        let value = |name: &str| variable(dir.path(), "nginx.service", name);
        assert_eq!(value("A"), None);
        put(
            "lib/systemd/system/nginx.service",
            "[Service]\nEnvironment=\"A=1 2\" B=2\n",
        );
        assert_eq!(value("A").expect("set").1, "1 2");
        put(
            "etc/systemd/system/nginx.service.d/m.conf",
            "[Service]\nEnvironment=A=3\n",
        );
        let file = PathBuf::from("/etc/systemd/system/nginx.service.d/m.conf");
        assert_eq!(value("A"), Some((file, "3".to_owned())));
        assert_eq!(value("B").expect("set").1, "2");
        put(
            "run/systemd/system/nginx.service.d/z.conf",
            "Environment=\n# Environment=A=4\n",
        );
        assert_eq!(value("A"), None);
        put(
            "lib/systemd/system/nginx.service.d/z.txt",
            "Environment=A=5\n",
        );
        assert_eq!(value("A"), None);
    }

    #[test]
    fn the_unit_is_in_the_control_group() {
        assert_eq!(
            unit_of("0::/system.slice/nginx.service\n"),
            Some("nginx.service")
        );
        assert_eq!(
            unit_of("1:cpu:/\n0::/system.slice/a.service/x\n"),
            Some("a.service")
        );
        assert_eq!(unit_of("0::/user.slice\n"), None);
        assert_eq!(unit_of("nonsense"), None);
    }
}
