// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The binary `millrace`: the composition root, the only crate that names every concrete type.
//!
//! ```text
//! args.rs       the command line (and, from its comments, help and man pages)
//! settings.rs   flags, file and defaults, merged
//! backends.rs   the backends, in order of preference
//! commands/     one file per command
//! output.rs, page.rs, terminal.rs   tables, JSON and pages, as wide and as coloured as the terminal allows
//! exit.rs       exit codes; the only function that prints an error
//! ```
//!
//! The logic of nodes and clients is in the server and client crates.

mod args;
mod backends;
mod commands;
mod exit;
mod harden;
mod inherit;
mod notify;
mod output;
mod owner;
mod page;
mod paths;
mod placement;
mod progress;
mod settings;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    exit::report(run(Cli::parse()))
}

fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Up(args) => commands::up::run(&args),
        Command::Key(command) => commands::key::run(&command),
        Command::Cert(command) => commands::cert::run(&command),
        Command::Status(args) => commands::status::run(&args),
        Command::Gateway(args) => commands::gateway::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Watch(args) => commands::watch::run(&args),
        Command::Advise(args) => commands::advise::run(&args),
        Command::Bench(command) => commands::bench::run(command),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::man::run(&args),
        Command::Reference(args) => commands::reference::run(&args),
    }
}
