// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace completions`: prints a completion script, generated from the definition of the command line.

use anyhow::Result;
use clap::Command;

use crate::args::{Cli, CompletionsArgs};
use crate::output;

pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    let mut root = without_hidden(&Cli::definition()).version(env!("CARGO_PKG_VERSION"));
    clap_complete::generate(args.shell, &mut root, "millrace", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// The definition for scripts: clap's generators also offer hidden commands.
fn without_hidden(command: &Command) -> Command {
    let children = command.get_subcommands().filter(|child| !child.is_hide_set());
    // clap takes static names alone, and the process ends soon.
    let name: &'static str = command.get_name().to_owned().leak();
    let visible = Command::new(name)
        .args(command.get_arguments().cloned())
        .groups(command.get_groups().cloned())
        .subcommands(children.map(without_hidden))
        .disable_help_subcommand(true);
    match command.get_about() {
        Some(about) => visible.about(about.clone()),
        None => visible,
    }
}
