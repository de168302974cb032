// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Rules that must hold in the repository and no compiler checks. Each rule is a function from the repository to a list
//! of complaints, each naming its file and what to do.
//!
//! - [`circles`]: modules of a crate that use each other.
//! - [`dependencies`]: who may depend on whom, duplicate versions, licences of everything linked.
//! - [`sources`]: headers, rooms for `unsafe`, unfinished business, file sizes.
//! - [`documents`]: the pages that a newcomer needs exist.
//! - [`names`]: no two types that a reader could confuse.
//! - [`remedies`]: modules that texts load, and the advisories that were read.
//! - [`words`]: plain English.
//!
//! The rules run as `cargo xtask tidy` and as a test, so that no path to a merge avoids them.

mod circles;
mod dependencies;
mod documents;
mod exports;
mod licences;
mod names;
mod pages;
mod remedies;
mod sources;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs every rule.
///
/// # Errors
/// All complaints at once, or why the repository could not be read.
pub(crate) fn run(root: &Path) -> Result<()> {
    let files = files(root)?;
    let metadata = dependencies::Metadata::load(root)?;
    let mut complaints = Vec::new();
    complaints.extend(metadata.check_directions(root)?);
    complaints.extend(metadata.check_forbidden());
    complaints.extend(metadata.check_duplicates());
    complaints.extend(metadata.check_licences());
    complaints.extend(sources::check(root, &files)?);
    complaints.extend(documents::check(root, &files)?);
    complaints.extend(circles::check(root, &files)?);
    complaints.extend(exports::check(root, &files)?);
    complaints.extend(names::check(root, &files)?);
    complaints.extend(pages::check(root, &files)?);
    complaints.extend(remedies::check(root, &files)?);
    complaints.extend(words::check(root, &files)?);
    if complaints.is_empty() {
        eprintln!("tidy: {} files, {} packages: all in order", files.len(), metadata.len());
        return Ok(());
    }
    complaints.sort();
    bail!("tidy: {} complaints\n  {}", complaints.len(), complaints.join("\n  "))
}

/// Every file of the repository that is tracked or could be, relative to `root`.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output();
    if let Ok(output) = listed
        && output.status.success()
    {
        let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
        let present = names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
        return Ok(present.filter(|path| root.join(path).is_file()).collect());
    }
    // A source archive has no git: take everything that is not a build product.
    let mut found = Vec::new();
    walk(root, Path::new(""), &mut found)?;
    Ok(found)
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = root.join(folder);
    for entry in entries.read_dir().with_context(|| format!("reading {}", entries.display()))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            if !matches!(entry.file_name().to_str(), Some("target" | ".git")) {
                walk(root, &path, found)?;
            }
        } else {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn repository_is_tidy() {
        if let Err(complaints) = super::run(&crate::root().unwrap()) {
            panic!("{complaints:#}");
        }
    }
}
