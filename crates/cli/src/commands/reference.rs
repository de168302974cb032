// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace reference` (hidden): generates the pages of `docs/reference`, so that they match the code.
//! `cargo xtask docs` runs it.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use clap::Arg;
use millrace_bench::cli::{report_schema, sizes_schema};
use millrace_device::observe::Observed;
use millrace_engine::backend::Capability;
use millrace_gateway::check::{self, pool::PoolStatus};
use millrace_gateway::plan::RecipePlan;
use millrace_inspect::advise::Advice;
use millrace_inspect::doctor::{Diagnosis, watch};
use millrace_inspect::report::ReportParts;
use millrace_inspect::report::schema_of;
use millrace_manager::api::openapi_document;
use millrace_server::tls::IssuedCertificate;
use millrace_service::status::{Sessions, Status};
use millrace_vpn::apply::LinkGeneration;
use millrace_vpn::choice::EngineChoice;
use millrace_vpn::ipsec::vyos::ImportedLink;
use millrace_vpn::plan::LinkPlan;
use millrace_vpn::supervise::LinkStatus;

use crate::args::{Cli, ReferenceArgs};
use crate::backends;
use crate::commands::ceiling::CeilingReport;
use crate::commands::compress::Compressed;
use crate::commands::compression::CompressingServer;
use crate::commands::device::DeviceChange;
use crate::commands::gateway::WriteResult;
use crate::commands::key::import_folder::ImportedKey;
use crate::commands::key::view::KeyView;
use crate::commands::virtio::status::VirtioDevice;
use crate::samples::{self, SampleFile};

pub(crate) fn run(args: &ReferenceArgs) -> Result<()> {
    fs::create_dir_all(&args.dir).with_context(|| format!("making {}", args.dir.display()))?;
    #[rustfmt::skip]
    let files = [
        ("cli.md", command_line()),
        ("configuration.md", configuration()),
        ("inspect.schema.json", schema_of::<ReportParts>()),
        ("advise.schema.json", schema_of::<Advice>()),
        ("doctor.schema.json", schema_of::<Diagnosis>()),
        ("watch.schema.json", schema_of::<watch::Line>()),
        ("status.schema.json", schema_of::<Status>()),
        ("sessions.schema.json", schema_of::<Sessions>()),
        ("pool.schema.json", schema_of::<PoolStatus>()),
        ("keys.schema.json", schema_of::<Vec<KeyView>>()),
        ("key.schema.json", schema_of::<KeyView>()),
        ("key-import.schema.json", schema_of::<Vec<ImportedKey>>()),
        ("certs.schema.json", schema_of::<Vec<IssuedCertificate>>()),
        ("recipe.schema.json", schema_of::<RecipePlan>()),
        ("written.schema.json", schema_of::<WriteResult<'_>>()),
        ("ceiling.schema.json", schema_of::<CeilingReport<'_>>()),
        ("compressed.schema.json", schema_of::<Compressed>()),
        ("compression.schema.json", schema_of::<Vec<CompressingServer>>()),
        ("check.schema.json", schema_of::<check::CheckReport>()),
        ("virtio-status.schema.json", schema_of::<Vec<VirtioDevice>>()),
        ("bench.schema.json", report_schema()),
        ("bench-sizes.schema.json", sizes_schema()),
        ("vpn-plan.schema.json", schema_of::<LinkPlan>()),
        ("vpn-status.schema.json", schema_of::<LinkStatus>()),
        ("vpn-choice.schema.json", schema_of::<EngineChoice>()),
        ("vpn-history.schema.json", schema_of::<Vec<LinkGeneration>>()),
        ("vpn-import.schema.json", schema_of::<ImportedLink>()),
        ("devices.schema.json", schema_of::<Vec<Observed>>()),
        ("device-change.schema.json", schema_of::<Vec<DeviceChange<'_>>>()),
        ("openapi.json", openapi_document()),
        ("capabilities.md", capabilities()),
    ];
    for (name, text) in files {
        let path = args.dir.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Options that many commands have: where the store, the node and the managers are.
const SHARED: &[&str] = &["config", "state", "kek_file", "socket", "access", "manager"];

/// The long help of every command. Options in [`SHARED`] are described once.
fn command_line() -> String {
    let mut page = String::from(
        "# The command line\n\nGenerated from the code by `make docs`; the manual pages \
         (`millrace man DIR`) say the same. Every command has `--help`, and `-h` for a shorter text.\n",
    );
    let mut root = Cli::definition();
    root.build();
    let mut shared = Vec::new();
    collect_shared(&root, &mut shared);
    section(&mut page, &root, &shared);
    let options = clap::Command::new("shared")
        .term_width(79)
        .disable_help_flag(true)
        .help_template("{options}")
        .args(shared)
        .render_long_help()
        .to_string();
    let _ = write!(page, "\n## Shared options\n\n{}", fenced(&options));
    page
}

/// The first definition of each option in [`SHARED`].
fn collect_shared(command: &clap::Command, shared: &mut Vec<Arg>) {
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        if SHARED.contains(&id) && !shared.iter().any(|known| known.get_id() == id) {
            shared.push(argument.clone());
        }
    }
    for child in command.get_subcommands() {
        collect_shared(child, shared);
    }
}

fn section(page: &mut String, command: &clap::Command, shared: &[Arg]) {
    // A command that gives an option another help describes it itself.
    let is_shared = |argument: &Arg| {
        shared.iter().any(|known| {
            known.get_id() == argument.get_id()
                && known.get_help() == argument.get_help()
                && known.get_long_help() == argument.get_long_help()
        })
    };
    let name = command.get_bin_name().unwrap_or("millrace");
    let elsewhere = command.get_arguments().filter(|argument| is_shared(argument));
    let elsewhere: Vec<String> =
        elsewhere.filter_map(|argument| Some(format!("`--{}`", argument.get_long()?))).collect();
    let is_root = !name.contains(' ');
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let mut own = command.clone().override_usage(usage).mut_args(|argument| {
        let is_help = ["help", "version"].contains(&argument.get_id().as_str());
        let hidden = argument.is_hide_set() || is_shared(&argument) || is_help && !is_root;
        argument.hide(hidden)
    });
    let help = own.render_long_help().to_string();
    let _ = write!(page, "\n## {name}\n\n{}", fenced(&help));
    if !elsewhere.is_empty() {
        let _ = writeln!(page, "\n[Shared options](#shared-options): {}.", elsewhere.join(", "));
    }
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        section(page, child, shared);
    }
}

fn fenced(help: &str) -> String {
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    format!("```text\n{}\n```\n", lines.join("\n").trim_end())
}

fn configuration() -> String {
    let mut page = String::from(
        "# The configuration files\n\nGenerated from the samples that `millrace sample` prints by `make docs`. Every key \
         is shown, at its default or as an example.\n",
    );
    for SampleFile { name, title, reader, text, see_also: _ } in samples::ALL {
        let text = text();
        let _ = write!(
            page,
            "\n## {name}\n\nThe {title}. {reader}\n\n```toml\n{}\n```\n",
            text.trim_end()
        );
    }
    page
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
        for Capability { operation, smallest, largest } in backend.capabilities() {
            let _ = writeln!(page, "| {operation} | {smallest} | {largest} |");
        }
    }
    page
}
