// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The fixtures, and files that hold word by word what was said of each of them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of this crate.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The names of all fixtures.
pub(crate) fn fixtures() -> Vec<String> {
    let entries = folder("fixtures").read_dir().expect("fixtures");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

/// The fixtures of which something else is said than what is in `golden`/NAME.`extension`. With
/// `MILLRACE_UPDATE_GOLDEN` that is written there first.
pub(crate) fn stale(golden: &str, extension: &str, said: impl Fn(&str) -> String) -> Vec<String> {
    let update = env::var_os("MILLRACE_UPDATE_GOLDEN").is_some();
    let mut stale = fixtures();
    stale.retain(|fixture| {
        let path = folder(golden).join(format!("{fixture}.{extension}"));
        let fresh = said(fixture);
        if update {
            fs::write(&path, &fresh).expect("writing a golden file");
        }
        fs::read_to_string(&path).ok().as_deref() != Some(fresh.as_str())
    });
    stale
}
