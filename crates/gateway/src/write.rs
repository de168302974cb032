// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The files of a [`RecipePlan`] on a host: comparison, which [`FileChanges::apply`] writes, and removal; and the lines
//! that the user's own files lack.

use std::fs;
use std::path::{Path, PathBuf};

use millrace_hostfs::generated::below;
use millrace_hostfs::generated::write::{
    self, EditedFiles, ExistingFile, FileChanges, FileState, WriteError, Written,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::plan::{RecipePlan, Snippet};
use crate::users::ServiceFiles;

/// The record of a write that is under way, below the root: a process that is killed leaves it, and the next one goes
/// back by it first.
pub const RECORD: &str = "var/lib/millrace/gateway-write.json";

/// Restores the files of a write whose process was killed; returns their paths.
pub fn recover(root: &Path) -> Result<Vec<PathBuf>, WriteError> {
    write::recover(&root.join(RECORD))
}

/// Writes the files that differ: all of them or none, whatever becomes of this process.
pub fn apply(
    changes: FileChanges<'_>,
    edited: EditedFiles,
    root: &Path,
) -> Result<Written, WriteError> {
    changes.apply_recorded(edited, &root.join(RECORD))
}

/// Compares a plan with the files below a root.
pub fn compare<'a>(plan: &'a RecipePlan, root: &'a Path) -> Result<FileChanges<'a>, WriteError> {
    write::compare(&plan.files, &plan.verifications, root)
}

/// The snippets that the user's own files lack.
#[must_use]
pub fn missing_snippets<'a>(plan: &'a RecipePlan, root: &Path) -> Vec<&'a Snippet> {
    let missing = |snippet: &&Snippet| {
        let file = ExistingFile::read(&below(root, &snippet.path)).ok().flatten();
        !file.is_some_and(|file| {
            let text = file.text();
            let mut lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
            lines.any(|line| line.contains(&snippet.marker))
        })
    };
    plan.snippets.iter().filter(missing).collect()
}

/// The result of [`remove`].
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct RemovedFiles {
    /// The files that are gone.
    pub removed: Vec<PathBuf>,
    /// Files that were edited since they were generated, or are not ours: they stay.
    pub kept: Vec<PathBuf>,
    /// Files that another service still uses: they stay, too.
    pub used: Vec<UsedFile>,
}

/// A generated file that another service uses.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct UsedFile {
    /// A generated file.
    pub path: PathBuf,
    /// The file that names it.
    pub by: PathBuf,
}

/// Removes the files of a plan that are as they were generated, whatever their contents were then, and that no other
/// service names.
///
/// # Errors
/// A file of a service cannot be read, so that another user of a file is perhaps not seen; or a file cannot be removed.
pub fn remove(plan: &RecipePlan, root: &Path) -> Result<RemovedFiles, WriteError> {
    recover(root)?;
    let services = ServiceFiles::find(root)?;
    let mut result = RemovedFiles::default();
    for (file, change) in plan.files.iter().zip(compare(plan, root)?.files) {
        let path = change.path;
        match change.state {
            FileState::New => {}
            FileState::Edited | FileState::Foreign => result.kept.push(path),
            FileState::Unchanged | FileState::Changed => {
                match services.other_user(&file.path, plan, root)? {
                    Some(by) => result.used.push(UsedFile { path, by }),
                    None => {
                        fs::remove_file(&path).map_err(|source| WriteError::Io {
                            doing: "removing",
                            path: path.clone(),
                            source,
                        })?;
                        result.removed.push(path);
                    }
                }
            }
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::application::Application;
    use crate::settings::tests::settings;

    fn plan() -> RecipePlan {
        let mut plan = Application::Nginx.plan(&settings(&["unix:/run/millrace/node.sock"]));
        plan.verifications = Vec::new();
        plan
    }

    #[test]
    fn snippets_are_missing_until_their_line_is_present() {
        let root = tempfile::tempdir().expect("folder");
        let plan = plan();
        assert_eq!(missing_snippets(&plan, root.path()).len(), 1);
        let conf = root.path().join("etc/nginx/nginx.conf");
        fs::create_dir_all(conf.parent().expect("a folder")).expect("folders");
        fs::write(&conf, "# include millrace.conf;\n").expect("a file");
        assert_eq!(missing_snippets(&plan, root.path()).len(), 1, "a comment does not count");
        fs::write(&conf, "include millrace.conf;\nevents {}\n").expect("a file");
        assert!(missing_snippets(&plan, root.path()).is_empty());
    }

    #[test]
    fn generated_file_that_another_service_names_is_not_removed() {
        let root = tempfile::tempdir().expect("folder");
        let plan = plan();
        compare(&plan, root.path())
            .and_then(|changes| apply(changes, EditedFiles::Keep, root.path()))
            .expect("written");
        let conf = Path::new("/etc/millrace/openssl.cnf");
        let at = |path: &str| below(root.path(), Path::new(path));
        let other = at("/etc/systemd/system/haproxy.service.d/mine.conf");
        let own = at("/etc/default/nginx");
        for (file, line) in [
            (&other, "[Service]\nEnvironment=OPENSSL_CONF=/etc/millrace/openssl.cnf\n"),
            (&own, "export OPENSSL_CONF=/etc/millrace/openssl.cnf\n"),
        ] {
            fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
            fs::write(file, line).expect("a file");
        }
        let removed = remove(&plan, root.path()).expect("removed");
        let used: Vec<_> = removed.used.iter().map(|file| (&file.path, &file.by)).collect();
        assert_eq!(used, [(&below(root.path(), conf), &other)]);
        assert_eq!(removed.removed.len(), plan.files.len() - 1);
        fs::write(&other, "# OPENSSL_CONF=/etc/millrace/openssl.cnf\n").expect("a file");
        let removed = remove(&plan, root.path()).expect("removed");
        assert_eq!(removed.removed, [below(root.path(), conf)], "a comment uses nothing");
    }
}
