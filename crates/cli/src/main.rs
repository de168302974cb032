// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The binary `millrace`: the composition root, the only crate that names every concrete type.
//!
//! ```text
//! args/              the command line (and, from its comments, help and man pages)
//! commands/          one file per command
//! processes/         the processes that run until a signal ends them: node and manager
//! settings.rs        flags, file and defaults, merged
//! samples.rs         the configuration files, with every key
//! paths.rs           default folders, for root and for other users
//! backends.rs        the backends, in order of preference
//! placement/         which processors and priority the workers get
//! harden.rs          no core dumps, no tracing, locked memory: before the first key is read
//! owned_store.rs     the key store, used with the rights of its owner
//! owner_rights.rs    files that root makes in another user's store get that user as owner
//! manager_access.rs  who the managers of a pool are, and the rights that a command has there
//! node_socket.rs     requests to the node of this machine
//! passed_sockets.rs  the listening sockets that systemd passes
//! service_manager.rs readiness, reload and watchdog messages to the service manager
//! note.rs            remarks on stderr
//! output.rs          tables and JSON on stdout; a reader that goes away is not an error
//! page.rs            pages of text, wrapped and coloured; terminal.rs says how wide and whether in colour
//! screen.rs          pages again and again: a full screen on a terminal
//! progress.rs        one line on a terminal while a command takes long
//! exit.rs            exit codes; the only function that prints an error
//! ```
//!
//! The logic of a node is in the crate service, its listeners in server; that of clients is in client.

// It panics where standard error is a full disk.
#![deny(clippy::print_stderr)]

#[macro_use]
mod note;

mod args;
mod backends;
mod commands;
mod exit;
mod harden;
mod manager_access;
mod node_socket;
mod output;
mod owned_store;
mod owner_rights;
mod page;
mod passed_sockets;
mod paths;
mod placement;
mod processes;
mod progress;
mod samples;
mod screen;
mod server_place;
mod service_manager;
mod settings;
mod terminal;

use std::env;
use std::process::ExitCode;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    exit::report(run(Cli::read(env::args_os()).unwrap_or_else(|error| error.exit())))
}

fn run(cli: Cli) -> anyhow::Result<()> {
    if reads_secrets(&cli.command) {
        harden::process()?;
    }
    match cli.command {
        Command::Up(args) => commands::up::run(&args),
        Command::Key(command) => commands::key::run(&command),
        Command::Cert(command) => commands::cert::run(&command),
        Command::Status(args) => commands::status::run(&args),
        Command::Manager(args) => commands::managed::manager::run(&args),
        Command::Node(command) => commands::managed::node::run(&command),
        Command::Tenant(command) => commands::managed::tenant::run(&command),
        Command::Pool(command) => commands::managed::pool::run(&command),
        Command::Token(command) => commands::managed::token::run(&command),
        Command::Audit(args) => commands::managed::audit::run(&args),
        Command::Gateway(args) => commands::gateway::run(&args),
        Command::Virtio(command) => commands::virtio::run(&command),
        Command::Vpn(command) => commands::vpn::run(&command),
        Command::Device(command) => commands::device::run(&command),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Watch(args) => commands::watch::run(&args),
        Command::Advise(args) => commands::advise::run(&args),
        Command::Bench(command) => commands::bench::run(command),
        Command::Compression(args) => commands::compression::run(&args),
        Command::Compress(args) => commands::compress::run(&args),
        Command::Sample(command) => commands::sample::run(&command),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::man::run(&args),
        Command::Reference(args) => commands::reference::run(&args),
    }
}

/// Whether a command may have private keys or tokens in its memory, which must not get into a core dump.
fn reads_secrets(command: &Command) -> bool {
    match command {
        Command::Up(_)
        | Command::Key(_)
        | Command::Cert(_)
        | Command::Manager(_)
        | Command::Node(_)
        | Command::Tenant(_)
        | Command::Pool(_)
        | Command::Token(_)
        | Command::Audit(_)
        | Command::Gateway(_)
        | Command::Virtio(_)
        | Command::Vpn(_) => true,
        // They read what every user of the machine may read, or keys that they make for themselves.
        Command::Status(_)
        | Command::Device(_)
        | Command::Inspect(_)
        | Command::Doctor(_)
        | Command::Watch(_)
        | Command::Advise(_)
        | Command::Bench(_)
        | Command::Compression(_)
        | Command::Compress(_)
        | Command::Sample(_)
        | Command::Completions(_)
        | Command::Man(_)
        | Command::Reference(_) => false,
    }
}
