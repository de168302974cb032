// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace man`: writes one manual page per command, generated from the definition of the command line, and one per
//! configuration file, generated from its sample.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;

use crate::args::{Cli, EXIT_CODES, ManArgs};
use crate::samples::{self, SampleFile};

/// The files that commands use, unless flags or the configuration name others.
#[rustfmt::skip]
const FILES: &[(&str, &str)] = &[
    ("/etc/millrace/node.toml", "settings of the node under systemd: millrace-node.toml(5)"),
    ("/etc/millrace/devices.toml", "accelerator cards: millrace-devices.toml(5)"),
    ("/etc/millrace/client.toml", "settings of the provider in a gateway: millrace-client.toml(5)"),
    ("/var/lib/millrace", "keys and certificates of the node (root; else $XDG_STATE_HOME/millrace)"),
    ("/run/millrace", "sockets of the node (root; else $XDG_RUNTIME_DIR/millrace)"),
];

pub(crate) fn run(args: &ManArgs) -> Result<()> {
    let folder = args.dir.as_path();
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let mut root = Cli::definition().disable_help_subcommand(true);
    root.build();
    let pages = names(&root);
    write_page(folder, &root, &pages)?;
    samples::ALL.iter().try_for_each(|sample| {
        let path = folder.join(format!("millrace-{}.5", sample.name));
        fs::write(&path, configuration(sample))
            .with_context(|| format!("writing {}", path.display()))
    })
}

/// The names of the pages of a command and of those below it.
fn names(command: &Command) -> Vec<String> {
    let below = visible(command).flat_map(names);
    std::iter::once(page_name(command)).chain(below).collect()
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    let commands = command.get_subcommands();
    commands.filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or("millrace").to_owned()
}

fn write_page(folder: &Path, command: &Command, pages: &[String]) -> Result<()> {
    let name = page_name(command);
    let path = folder.join(format!("{name}.1"));
    let mut page = Vec::new();
    let writing = || format!("writing {}", path.display());
    let man = clap_mangen::Man::new(command.clone());
    man.render(&mut page).with_context(writing)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    // Paths and commands in examples must not be hyphenated.
    if let Some(at) = page.find(".SH NAME") {
        page.insert_str(at, ".nh\n");
    }
    environment(&mut page, command);
    section(&mut page, "FILES", FILES.iter().copied());
    page.push_str(".SH \"EXIT STATUS\"\n");
    verbatim(&mut page, EXIT_CODES.trim_start_matches("Exit codes:\n"));
    page.push_str(".SH \"SEE ALSO\"\n");
    let others = pages.iter().filter(|page| **page != name);
    let others = others.map(|page| format!("{}(1)", escaped(page)));
    let files = samples::ALL.iter().map(|sample| format!("millrace\\-{}(5)", sample.name));
    let related: Vec<String> = others.chain(files).collect();
    let _ = writeln!(page, "{}", related.join(",\n"));
    fs::write(&path, page).with_context(writing)?;
    visible(command).try_for_each(|command| write_page(folder, command, pages))
}

fn environment(page: &mut String, command: &Command) {
    let variables: Vec<(String, String)> = command
        .get_arguments()
        .filter_map(|argument| {
            let name = argument.get_env()?.to_string_lossy().into_owned();
            let flag = argument.get_long().unwrap_or_default();
            Some((name, format!("as --{flag}, which wins over it")))
        })
        .collect();
    if !variables.is_empty() {
        let rows = variables.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        section(page, "ENVIRONMENT", rows);
    }
}

fn section<'a>(page: &mut String, title: &str, rows: impl Iterator<Item = (&'a str, &'a str)>) {
    let _ = writeln!(page, ".SH {title}");
    for (name, text) in rows {
        let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", escaped(name), escaped(text));
    }
}

/// The page of a configuration file: its sample, as it is.
fn configuration(sample: &SampleFile) -> String {
    let SampleFile { name, title, reader, text, see_also } = sample;
    let mut page = format!(
        ".TH millrace\\-{name} 5\n.SH NAME\nmillrace\\-{name} \\- {title}\n.SH DESCRIPTION\n{} Every key is here at \
         its default.\n",
        escaped(reader)
    );
    verbatim(&mut page, &text());
    let _ = writeln!(page, ".SH \"SEE ALSO\"\n{}(1)", escaped(see_also));
    page
}

fn verbatim(page: &mut String, text: &str) {
    page.push_str(".PP\n.nf\n");
    for line in text.lines() {
        // Text before the first character keeps roff from taking a line for a request.
        let _ = writeln!(page, "\\&{}", escaped(line));
    }
    page.push_str(".fi\n");
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
