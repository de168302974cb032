// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect --bundle FILE`: writes all files that an inspection reads into one file. The command
//! lists them, so that the owner can check them before passing the bundle on.

use std::fs::OpenOptions;
use std::io::BufWriter;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use millrace_inspect::advise::software;
use millrace_inspect::doctor::system;
use millrace_inspect::report::Report;

use super::open;
use crate::args::TreeArgs;
use crate::output::Table;
use crate::page::plain;
use crate::progress::while_doing;

/// Writes a bundle and lists its files.
pub(super) fn run(args: &TreeArgs, destination: &Path) -> Result<()> {
    // Created before the long part, and never over an existing file, which may be the only copy of another
    // bundle.
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(destination)
        .with_context(|| {
            format!(
                "cannot make {}: name a new file in a folder that exists",
                destination.display()
            )
        })?;
    let written = write(args, BufWriter::new(file));
    if written.is_err() {
        // An incomplete bundle is useless; a failure to remove it must not hide the first error.
        let _ = std::fs::remove_file(destination);
    }
    let table = written?;
    table.print()?;
    note!("wrote {}; `millrace inspect --root` reads it", destination.display());
    Ok(())
}

fn write(args: &TreeArgs, destination: BufWriter<std::fs::File>) -> Result<Table> {
    let root = open(&args.examined)?.recording();
    while_doing("examining", || {
        let _report = Report::of(&root);
        // Files that only the doctor reads.
        let _system = system::section(&root);
        // Files that only advise reads.
        let _software = software::section(&root);
    });
    let record = root.into_record();
    while_doing("writing the bundle", || record.write_bundle(destination))
        .context("writing the bundle")?;
    let files = record.contents();
    #[rustfmt::skip]
    let table = Table::of(files, &[
        ("file", &|(path, _)| plain(path)),
        (">bytes", &|(_, content)| content.len().to_string()),
    ]);
    Ok(table)
}
