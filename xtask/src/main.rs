// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `cargo xtask`: checks of the repository itself. Nothing here ships.
//!
//! ```text
//! cargo xtask tidy           what the compiler does not check: see [`tidy`]
//! cargo xtask docs           write docs/reference from the code
//! cargo xtask docs --check   fail if docs/reference is not what the code says
//! cargo xtask docs --check --program FILE    the same by a millrace that has been built
//! ```
#![forbid(unsafe_code)]

mod docs;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask tidy | docs [--check [--program FILE]]";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root()?;
    match words.as_slice() {
        ["tidy"] => tidy::run(&root),
        ["docs"] => docs::write(&root),
        ["docs", "--check"] => docs::check(&root, None),
        ["docs", "--check", "--program", program] => docs::check(&root, Some(program)),
        _ => bail!(USAGE),
    }
}

/// The root of the repository: the folder above this package.
fn root() -> Result<PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().map(Path::to_owned).context("xtask has no parent folder")
}
