// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Machines: a fixture with changes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A change in a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Writes a file: path and content.
    File(&'static str, &'static str),
    /// Removes a file or folder.
    Gone(&'static str),
    /// Makes a symbolic link: path and target.
    Link(&'static str, &'static str),
    /// Replaces every occurrence of a text in a file by one of the same length: path, old, new.
    Edit(&'static str, &'static str, &'static str),
}

/// A fixture and the changes to it.
pub(crate) type Machine = (&'static str, &'static [Change]);

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in from.read_dir().expect("a fixture") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            copy(&entry.path(), &target);
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path()).expect("a link"), &target).expect("a link");
        } else {
            fs::copy(entry.path(), &target).expect("a copy");
        }
    }
}

/// Copies the fixture to a temporary folder and applies the changes.
pub(crate) fn build((name, changes): Machine) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    copy(&fixture(name), folder.path());
    let place = |path: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        path
    };
    for change in changes {
        match change {
            Change::File(path, text) => fs::write(place(path), text).expect("a file"),
            Change::Link(path, target) => symlink(target, place(path)).expect("a link"),
            Change::Gone(path) => {
                let path = folder.path().join(path);
                let removed = if path.is_dir() && !path.is_symlink() {
                    fs::remove_dir_all(&path)
                } else {
                    fs::remove_file(&path)
                };
                removed.expect("it was there");
            }
            Change::Edit(path, old, new) => {
                assert_eq!(old.len(), new.len());
                let path = place(path);
                let mut bytes = fs::read(&path).expect("a file of the fixture");
                let mut edited = 0;
                for at in 0..bytes.len().saturating_sub(old.len()) {
                    if bytes[at..].starts_with(old.as_bytes()) {
                        bytes[at..at + old.len()].copy_from_slice(new.as_bytes());
                        edited += 1;
                    }
                }
                assert!(edited > 0, "{old} is not in {}", path.display());
                fs::write(&path, bytes).expect("a file");
            }
        }
    }
    folder
}
