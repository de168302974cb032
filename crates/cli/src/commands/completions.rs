// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace completions`: prints a completion script, generated from the definition of the command line.

use crate::args::{Cli, CompletionsArgs};
use crate::output;
use anyhow::Result;

pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::definition(), "millrace", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
