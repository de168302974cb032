// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Other users of a generated file: units of systemd, their drop-ins, and the environments of scripts in /etc/init.d. A
//! server that is started by hand is not seen.

use std::fs;
use std::path::{Path, PathBuf};

use millrace_hostfs::generated::below;
use millrace_hostfs::generated::write::ExistingFile;

use crate::plan::RecipePlan;

/// Folders in which services get their environment.
const FOLDERS: [&str; 2] = ["/etc/systemd/system", "/etc/default"];

/// Bound on the files that are looked at: a machine has a few hundred units.
const MAX_FILES: usize = 4096;

/// A file other than those of the plan, and of the plan's own server, that names `path` outside of a comment.
pub(crate) fn other_user(path: &Path, plan: &RecipePlan, root: &Path) -> Option<PathBuf> {
    let path = path.to_str()?;
    let own: Vec<PathBuf> = plan.files.iter().map(|file| below(root, &file.path)).collect();
    let own_environment =
        below(root, &Path::new("/etc/default").join(plan.application.to_string()));
    let mut files: Vec<PathBuf> = FOLDERS
        .iter()
        .flat_map(|folder| files_of(&below(root, Path::new(folder))))
        .take(MAX_FILES)
        .filter(|file| !own.contains(file) && *file != own_environment)
        .collect();
    files.sort();
    files.into_iter().find(|file| names(file, path))
}

/// The files of a folder and of its drop-in folders.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.filter_map(Result::ok).map(|entry| entry.path()).take(MAX_FILES)
    };
    let is_drop_in = |path: &Path| path.extension().is_some_and(|suffix| suffix == "d");
    let each = entries(folder).flat_map(|path| {
        if !path.is_dir() {
            vec![path]
        } else if is_drop_in(&path) {
            entries(&path).collect()
        } else {
            Vec::new()
        }
    });
    each.collect()
}

/// Whether the file names `path` outside of a comment. A file that cannot be read does not.
fn names(file: &Path, path: &str) -> bool {
    let Ok(Some(file)) = ExistingFile::read(file) else {
        return false;
    };
    let text = file.text();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with(['#', ';']));
    lines.any(|line| line.contains(path))
}
