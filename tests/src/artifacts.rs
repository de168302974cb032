// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The programs under test: the `millrace` binary, the provider module, and the library that is
//! preloaded into nginx.
//!
//! Cargo builds none of them for the tests of this crate, so this module does: once, when one is missing or
//! older than a source, in the profile of the tests, while the other test programs wait at a file lock.
//! `MILLRACE_ARTIFACTS=DIR` names a folder with finished artefacts to test instead, such as a release.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};

/// Paths of the programs under test.
#[derive(Clone, Debug)]
pub struct Artifacts {
    /// The binary.
    pub millrace: PathBuf,
    /// The provider's shared object.
    pub provider: PathBuf,
    /// The library that makes nginx asynchronous.
    pub preload: PathBuf,
    /// The library that compresses.
    pub zlib: PathBuf,
}

/// The programs under test, built when they are missing or stale.
pub fn artifacts() -> &'static Artifacts {
    static FOUND: OnceLock<Artifacts> = OnceLock::new();
    FOUND.get_or_init(find)
}

fn find() -> Artifacts {
    if let Some(folder) = std::env::var_os("MILLRACE_ARTIFACTS") {
        return Artifacts::in_folder(Path::new(&folder));
    }
    let test = std::env::current_exe().expect("the path of this test");
    let profile = test
        .ancestors()
        .find(|folder| folder.file_name().is_some_and(|name| name == "deps"))
        .and_then(Path::parent)
        .expect("cargo puts tests into target/<profile>/deps");
    let found = Artifacts::in_folder(profile);
    let lock = File::create(profile.join(".millrace-tests-build.lock")).expect("lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("lock");
    if !found.is_fresh() {
        build(profile);
    }
    found
}

/// The programs of the previous version (`tests/previous-version`), if `scripts/previous-version.sh` has built
/// them.
pub fn previous() -> Option<&'static Artifacts> {
    static FOUND: OnceLock<Option<Artifacts>> = OnceLock::new();
    let find = || {
        let file = fs::read_to_string(workspace().join("tests/previous-version")).ok()?;
        let commit = file.lines().find(|line| !line.starts_with('#'))?;
        let found = Artifacts::in_folder(&workspace().join("target/previous").join(commit));
        (found.millrace.exists() && found.provider.exists() && found.preload.exists())
            .then_some(found)
    };
    FOUND.get_or_init(find).as_ref()
}

impl Artifacts {
    /// Whether these are the programs of the previous version, whose command line is another.
    #[must_use]
    pub fn is_previous(&self) -> bool {
        previous().is_some_and(|previous| previous.millrace == self.millrace)
    }

    fn in_folder(folder: &Path) -> Self {
        Self {
            millrace: folder.join("millrace"),
            provider: folder.join("libmillrace_provider.so"),
            preload: folder.join("libmillrace_preload.so"),
            zlib: folder.join("libmillrace_zlib.so"),
        }
    }

    /// Whether all are there and newer than every source (the libraries to preload: than their own).
    fn is_fresh(&self) -> bool {
        let built = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
        let (Some(millrace), Some(provider), Some(preload), Some(zlib)) =
            (built(&self.millrace), built(&self.provider), built(&self.preload), built(&self.zlib))
        else {
            return false;
        };
        let newest_of = |folders: &[&str]| {
            let times = folders.iter().map(|folder| newest(&workspace().join(folder)));
            times.max().flatten()
        };
        if newest_of(&["crates/zlib", "crates/deflate", "crates/edge"]) >= Some(zlib)
            || newest_of(&["crates/preload", "crates/edge"]) >= Some(preload)
        {
            return false;
        }
        let sources =
            newest(&workspace().join("crates")).max(built(&workspace().join("Cargo.toml")));
        sources.is_some_and(|sources| sources < millrace && sources < provider)
    }
}

/// The root of the workspace.
///
/// # Panics
/// Never: this crate is a member of it.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the workspace")
}

/// Time of the newest change to a source below a folder.
fn newest(folder: &Path) -> Option<SystemTime> {
    let mut newest = None;
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        let time = if path.is_dir() {
            newest_unless_tests(&path)
        } else {
            entry.metadata().and_then(|data| data.modified()).ok()
        };
        newest = newest.max(time);
    }
    newest
}

/// Tests of other crates are not built here.
fn newest_unless_tests(folder: &Path) -> Option<SystemTime> {
    let is_tests = folder.file_name().is_some_and(|name| name == "tests");
    if is_tests { None } else { newest(folder) }
}

fn build(profile: &Path) {
    let name = profile.file_name().and_then(|name| name.to_str()).unwrap_or("debug");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "build",
        "--quiet",
        "-p",
        "millrace-cli",
        "-p",
        "millrace-provider",
        "-p",
        "millrace-preload",
        "-p",
        "millrace-zlib",
    ]);
    command.args(["--profile", if name == "debug" { "dev" } else { name }]);
    if let Some(target) = profile.parent() {
        command.arg("--target-dir").arg(target);
    }
    // Variables that cargo sets for its test programs would mislead a second cargo.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST") {
            command.env_remove(name);
        }
    }
    let status = command.current_dir(workspace()).status().expect("cargo starts");
    assert!(status.success(), "cargo build of the programs under test failed");
}
