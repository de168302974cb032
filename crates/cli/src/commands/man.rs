// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace man`: writes one manual page per command, generated from the definition of the command line, and one per
//! configuration file, generated from its sample.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::Man;

use crate::args::{Cli, EXIT_CODES, ManArgs};
use crate::samples::{self, SampleFile};

/// The files that commands use, unless flags or the configuration name others.
#[rustfmt::skip]
const FILES: &[(&str, &str)] = &[
    ("/etc/millrace/node.toml", "settings of the node under systemd: millrace-node.toml(5)"),
    ("/etc/millrace/devices.toml", "accelerator cards: millrace-devices.toml(5)"),
    ("/etc/millrace/client.toml", "settings of the provider in a gateway: millrace-client.toml(5)"),
    ("/etc/millrace/access", "managers of the pool, their authority and a token: millrace token create"),
    ("/etc/millrace/openssl.cnf", "OpenSSL configuration that loads the provider: millrace gateway"),
    ("/etc/millrace/vpn", "certificates and keys of links, a folder for each: millrace vpn keys"),
    ("/var/lib/millrace", "keys and certificates of the node (root; else $XDG_STATE_HOME/millrace)"),
    ("/run/millrace", "sockets of the node (root; else $XDG_RUNTIME_DIR/millrace)"),
];

/// The foot of each page.
const VERSION: &str = concat!("Millrace ", env!("CARGO_PKG_VERSION"));

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
    let path = folder.join(format!("{}.1", page_name(command)));
    page(command, pages)
        .and_then(|page| fs::write(&path, page))
        .with_context(|| format!("writing {}", path.display()))?;
    visible(command).try_for_each(|command| write_page(folder, command, pages))
}

fn page(command: &Command, pages: &[String]) -> io::Result<String> {
    let usage = command.clone().render_usage().to_string();
    // The generator prints no text for an option that is hidden in a short help, and breaks the lines of examples.
    let definition = command
        .clone()
        .override_usage(usage.trim_start_matches("Usage: ").to_owned())
        .mut_args(|argument| argument.hide_short_help(false))
        .after_help(None::<&str>)
        .after_long_help(None::<&str>);
    let mut rendered = Vec::new();
    Man::new(definition).source(VERSION).render(&mut rendered)?;
    let mut page = String::from_utf8_lossy(&rendered).into_owned();
    // Paths and commands in examples must not be hyphenated.
    if let Some(at) = page.find(".SH NAME") {
        page.insert_str(at, ".nh\n");
    }
    after_help(&mut page, command);
    environment(&mut page, command);
    section(&mut page, "FILES", FILES.iter().copied());
    page.push_str(".SH \"EXIT STATUS\"\n");
    verbatim(&mut page, EXIT_CODES.trim_start_matches("Exit codes:\n"));
    page.push_str(".SH \"SEE ALSO\"\n");
    let name = page_name(command);
    let others = pages.iter().filter(|page| **page != name);
    let others = others.map(|page| format!("{}(1)", escaped(page)));
    let files = samples::ALL.iter().map(|sample| format!("millrace\\-{}(5)", sample.name));
    let related: Vec<String> = others.chain(files).collect();
    let _ = writeln!(page, "{}", related.join(",\n"));
    Ok(page)
}

/// The text after the options: the examples up to the first empty line, line by line, and notes.
fn after_help(page: &mut String, command: &Command) {
    let text = command
        .get_after_long_help()
        .or_else(|| command.get_after_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let (examples, notes) = match text.split_once('\n') {
        // They have a section on every page.
        _ if text == EXIT_CODES => return,
        Some(("Example:" | "Examples:", rest)) => rest.split_once("\n\n").unwrap_or((rest, "")),
        _ => ("", text.as_str()),
    };
    if !examples.is_empty() {
        page.push_str(".SH EXAMPLES\n");
        verbatim(page, examples);
    }
    let notes = notes.trim();
    if !notes.is_empty() {
        page.push_str(".SH NOTES\n");
        verbatim(page, notes);
    }
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
        ".TH millrace\\-{name} 5\n.SH NAME\nmillrace\\-{name} \\- {title}\n.SH DESCRIPTION\n{} Every key is here, at \
         its default or as an example.\n",
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
