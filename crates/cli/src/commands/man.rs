// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace man`: writes one manual page per command, generated from the definition of the command line.

use std::fs;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::args::{Cli, ManArgs};

pub(crate) fn run(args: &ManArgs) -> Result<()> {
    fs::create_dir_all(&args.dir).with_context(|| format!("making {}", args.dir.display()))?;
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .with_context(|| format!("writing manual pages into {}", args.dir.display()))
}
