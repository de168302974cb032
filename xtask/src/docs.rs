// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `docs/reference`: pages that the binary writes about itself (help, configuration, capabilities),
//! so that nothing is written twice by hand. The pages are committed; `--check` compares.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Folder of the pages.
const REFERENCE: &str = "docs/reference";

/// Writes the pages.
///
/// # Errors
/// The binary does not build, or the folder cannot be written.
pub(crate) fn write(root: &Path) -> Result<()> {
    generate(root, &root.join(REFERENCE), None)
}

/// Compares the committed pages with what the code says, by this `millrace` if one is named.
///
/// # Errors
/// The pages that differ, or why they could not be generated.
pub(crate) fn check(root: &Path, program: Option<&str>) -> Result<()> {
    let fresh = root.join("target/reference-check");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).with_context(|| format!("clearing {}", fresh.display()))?;
    }
    generate(root, &fresh, program)?;
    let (committed, fresh) = (pages(&root.join(REFERENCE))?, pages(&fresh)?);
    let names: Vec<&String> = committed.keys().chain(fresh.keys()).collect();
    let mut stale: Vec<&str> = names
        .into_iter()
        .filter(|name| committed.get(*name) != fresh.get(*name))
        .map(String::as_str)
        .collect();
    stale.sort_unstable();
    stale.dedup();
    if stale.is_empty() {
        return Ok(());
    }
    bail!("{REFERENCE} is stale ({}): run `make docs` and commit the result", stale.join(", "))
}

/// Has the binary write its pages into `folder`; cargo builds it if none is named.
fn generate(root: &Path, folder: &Path, program: Option<&str>) -> Result<()> {
    let mut command = match program {
        Some(program) => Command::new(root.join(program)),
        None => {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut command = Command::new(cargo);
            command.args(["run", "--quiet", "--package", "millrace-cli", "--"]);
            command
        }
    };
    let status = command
        .arg("reference")
        .arg(folder)
        .current_dir(root)
        .status()
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    if !status.success() {
        bail!("`millrace reference` failed");
    }
    Ok(())
}

fn pages(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut pages = BTreeMap::new();
    for entry in folder.read_dir().with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        pages.insert(name, fs::read_to_string(entry.path())?);
    }
    Ok(pages)
}
