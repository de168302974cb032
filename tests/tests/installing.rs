// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Files that `make install DESTDIR=…` installs, and that `make uninstall` removes all of them. `make test-install`
//! installs on machines of its own.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_tests::artifacts::{artifacts, workspace};
use millrace_tests::process;

/// Every installed file without the manual pages and the schemas, whose number grows with the commands.
const FILES: &[&str] = &[
    "/etc/apparmor.d/millrace-virtio",
    "/usr/local/bin/millrace",
    "/usr/local/lib/millrace/libmillrace_preload.so",
    "/usr/local/lib/millrace/libmillrace_zlib.so",
    "/usr/local/lib/millrace/renewal-hook.sh",
    "/usr/local/lib/millrace/vhost-user-crypto",
    "/usr/local/lib/systemd/system/millrace-devices.service",
    "/usr/local/lib/systemd/system/millrace-doctor.service",
    "/usr/local/lib/systemd/system/millrace-doctor.timer",
    "/usr/local/lib/systemd/system/millrace-manager.service",
    "/usr/local/lib/systemd/system/millrace-virtio@.service",
    "/usr/local/lib/systemd/system/millrace-vpn@.service",
    "/usr/local/lib/systemd/system/millrace.service",
    "/usr/local/lib/systemd/system/millrace.socket",
    "/usr/local/share/bash-completion/completions/millrace",
    "/usr/local/share/doc/millrace/node.toml",
    "/usr/local/share/doc/millrace/openapi.json",
    "/usr/local/share/fish/vendor_completions.d/millrace.fish",
    "/usr/local/share/millrace/alerts.yml",
    "/usr/local/share/millrace/grafana-pool.json",
    "/usr/local/share/millrace/millrace-snmp.py",
    "/usr/local/share/zsh/site-functions/_millrace",
    "/usr/share/qemu/vhost-user/50-millrace-crypto.json",
];

/// Places at which the guides name files of Millrace.
const PLACES: [&str; 5] = [
    "/usr/local/bin/millrace",
    "/usr/local/lib/",
    "/usr/local/share/millrace",
    "/usr/share/qemu/",
    "/etc/apparmor.d/",
];

/// The files below a folder, as paths from it.
fn files(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if entry.file_type().expect("a type").is_dir() {
                folders.push(path);
            } else {
                let below = path.strip_prefix(root).expect("below it");
                found.insert(format!("/{}", below.display()));
            }
        }
    }
    found
}

fn script(name: &str, root: &Path) {
    script_with(name, root, None);
}

/// Runs a script with this value of `WITH_QAT`.
fn script_with(name: &str, root: &Path, qat: Option<&str>) {
    let mut command = Command::new(workspace().join("scripts").join(name));
    let programs = artifacts().millrace.parent().expect("a folder");
    command.env("DESTDIR", root).env_remove("PREFIX").env_remove("WITH_QAT");
    command.envs(qat.map(|value| ("WITH_QAT", value)));
    let _ = process::succeed(command.env("MILLRACE_ARTIFACTS", programs));
}

/// The paths in the guides that begin with one of [`PLACES`].
fn named_by_the_guides() -> BTreeSet<String> {
    let guides = fs::read_dir(workspace().join("docs/guide")).expect("the guides");
    let mut files: Vec<PathBuf> = guides.flatten().map(|entry| entry.path()).collect();
    files.push(workspace().join("README.md"));
    let mut named = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(file).expect("a guide");
        let is_in_path = |c: char| c.is_ascii_alphanumeric() || "/._@-".contains(c);
        for word in text.split(|c| !is_in_path(c)) {
            // Rules that an administrator adds are in files of his own.
            let is_local = word.starts_with("/etc/apparmor.d/local/");
            if !is_local && PLACES.iter().any(|place| word.starts_with(place)) {
                named.insert(word.trim_end_matches(['.', '/']).to_owned());
            }
        }
    }
    named
}

#[test]
fn every_installed_file_is_known_and_uninstall_removes_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    script("install.sh", root);
    let installed = files(root);

    // The folder of OpenSSL's modules differs between systems, and `make cuda` is optional.
    let is_variable = |path: &str| {
        path.ends_with("/ossl-modules/millrace.so") || path.ends_with("/millrace_cuda.fatbin")
    };
    let is_generated =
        |path: &str| path.starts_with("/usr/local/share/man/man") || path.ends_with(".schema.json");
    assert!(installed.iter().any(|path| path.ends_with("/ossl-modules/millrace.so")));
    assert!(installed.contains("/usr/local/share/man/man1/millrace.1"));
    let listed = installed.iter().map(String::as_str);
    let listed: Vec<&str> =
        listed.filter(|path| !is_variable(path) && !is_generated(path)).collect();
    assert_eq!(listed, FILES);

    let named = named_by_the_guides();
    assert!(named.len() > 5, "{named:?}");
    for path in named {
        assert!(root.join(&path[1..]).exists(), "a guide names {path}, which is not installed");
    }

    // No file names a program at a place where it is not.
    let read = |path: &str| fs::read_to_string(root.join(&path[1..])).expect(path);
    for path in ["/usr/local/lib/millrace/vhost-user-crypto", "/etc/apparmor.d/millrace-virtio"] {
        assert!(read(path).contains("/usr/local/bin/millrace"), "{path}");
        assert!(!read(path).contains("/usr/bin/millrace"), "{path}");
    }
    let descriptor: serde_json::Value =
        serde_json::from_str(&read("/usr/share/qemu/vhost-user/50-millrace-crypto.json"))
            .expect("JSON");
    let program = descriptor["binary"].as_str().expect("a path");
    let mode = fs::metadata(root.join(&program[1..])).expect(program).permissions();
    assert_eq!(mode.mode() & 0o777, 0o755);
    for unit in FILES.iter().filter(|path| path.ends_with(".service")) {
        assert!(read(unit).contains("ExecStart=/usr/local/bin/millrace "), "{unit}");
    }

    // The symbols would be most of the bytes.
    let is_elf = |path: &PathBuf| fs::read(path).expect("a file").starts_with(b"\x7fELF");
    let built: Vec<PathBuf> =
        installed.iter().map(|path| root.join(&path[1..])).filter(is_elf).collect();
    assert!(built.len() >= 4, "{built:?}");
    for path in built {
        let mut sections = Command::new(process::program("readelf"));
        let listed = process::succeed(sections.arg("-SW").arg(&path));
        assert!(!listed.contains(".symtab"), "{}: {listed}", path.display());
    }

    script("uninstall.sh", root);
    assert!(files(root).is_empty(), "uninstall leaves {:?}", files(root));
}

/// AppArmor judges paths without links: a rule for `/proc/self` matches none. And `/**` leaves out the folder itself,
/// whose entries the process lists.
#[test]
fn profile_of_virtio_devices_names_paths_as_apparmor_sees_them() {
    let file = workspace().join("deploy/apparmor-millrace-virtio");
    let profile = fs::read_to_string(file).expect("the profile");
    let rules = || profile.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    assert!(!rules().any(|rule| rule.contains("/self/")), "{profile}");
    for folder in ["@{PROC}/@{pid}/", "/sys/devices/system/{cpu,node}/", "/sys/fs/cgroup/"] {
        let rule = format!("{folder}{{,**}} r,");
        assert!(rules().any(|known| known == rule), "no {rule}: {profile}");
    }
}

/// The unit opens the devices of cards where that is asked for, and closes them again.
#[test]
fn drop_in_for_cards_is_installed_on_request_and_removed_again() {
    const DROP_IN: &str = "usr/local/lib/systemd/system/millrace.service.d/50-qat.conf";
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    script_with("install.sh", root, Some("yes"));
    let unit = fs::read_to_string(root.join(DROP_IN)).expect(DROP_IN);
    for line in ["DeviceAllow=char-vfio rw", "SupplementaryGroups=qat", "LimitMEMLOCK=infinity"] {
        assert!(unit.lines().any(|known| known == line), "{line}");
    }
    let all = files(root);
    script_with("install.sh", root, Some("no"));
    let mut without = all.clone();
    without.remove(&format!("/{DROP_IN}"));
    assert_eq!(files(root), without, "an installation without it takes it away");
    script_with("install.sh", root, Some("yes"));
    assert_eq!(files(root), all);
    script("uninstall.sh", root);
    assert!(files(root).is_empty(), "uninstall leaves {:?}", files(root));
}
