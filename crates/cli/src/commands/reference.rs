// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace reference` (hidden): generates the pages of `docs/reference`, so that they match the code.
//! `cargo xtask docs` runs it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use millrace_engine::backend::Capability;
use millrace_gateway::check::{self, pool::PoolStatus};
use millrace_inspect::advise::Advice;
use millrace_inspect::doctor::{Diagnosis, watch};
use millrace_inspect::report::{ReportParts, schema_of};
use millrace_server::config::SAMPLE;
use millrace_service::Status;
use millrace_service::status::Sessions;

use crate::args::{Cli, ReferenceArgs};
use crate::backends;
use crate::commands::key::view::KeyView;

pub(crate) fn run(args: &ReferenceArgs) -> Result<()> {
    fs::create_dir_all(&args.dir).with_context(|| format!("making {}", args.dir.display()))?;
    write(&args.dir, "cli.md", &command_line())?;
    write(&args.dir, "configuration.md", &configuration())?;
    write(
        &args.dir,
        "inspect.schema.json",
        &schema_of::<ReportParts>(),
    )?;
    write(&args.dir, "advise.schema.json", &schema_of::<Advice>())?;
    write(&args.dir, "doctor.schema.json", &schema_of::<Diagnosis>())?;
    write(&args.dir, "watch.schema.json", &schema_of::<watch::Line>())?;
    write(&args.dir, "status.schema.json", &schema_of::<Status>())?;
    write(&args.dir, "sessions.schema.json", &schema_of::<Sessions>())?;
    write(&args.dir, "pool.schema.json", &schema_of::<PoolStatus>())?;
    write(&args.dir, "keys.schema.json", &schema_of::<Vec<KeyView>>())?;
    write(
        &args.dir,
        "check.schema.json",
        &schema_of::<check::Report>(),
    )?;
    write(&args.dir, "capabilities.md", &capabilities())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// The long help of every command.
fn command_line() -> String {
    let mut page = String::from(
        "# The command line\n\nGenerated from the code by `make docs`; the manual pages \
         (`millrace man DIR`) say the same.\n",
    );
    let mut root = Cli::command();
    root.build();
    section(&mut page, &mut root);
    page
}

fn section(page: &mut String, command: &mut clap::Command) {
    let name = command.get_bin_name().unwrap_or("millrace").to_owned();
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(
        page,
        "\n## {name}\n\n```text\n{}\n```\n",
        help.join("\n").trim_end()
    );
    for child in command
        .get_subcommands_mut()
        .filter(|child| !child.is_hide_set())
    {
        section(page, child);
    }
}

fn configuration() -> String {
    format!(
        "# The configuration file\n\nGenerated from `deploy/node.toml` by `make docs`. Every key is \
         shown at its default. Precedence: flag, environment, file, default; unknown keys are \
         errors.\n\n```toml\n{}\n```\n",
        SAMPLE.trim_end()
    )
}

/// The capabilities of each backend, including those that this machine cannot use.
fn capabilities() -> String {
    let mut page = String::from(
        "# What each backend can do\n\nGenerated from the capability tables of the backends by \
         `make docs`. `millrace status` says which of them a node can use.\n",
    );
    for backend in backends::all() {
        let _ = write!(page, "\n## {}\n\n", backend.describe().kind);
        page.push_str("| operation | from | to |\n|---|---|---|\n");
        for Capability {
            operation,
            smallest,
            largest,
        } in backend.capabilities()
        {
            let _ = writeln!(page, "| {operation} | {smallest} | {largest} |");
        }
    }
    page
}
