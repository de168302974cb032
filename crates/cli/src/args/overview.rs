// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The list of commands in `millrace -h` and `--help`, in groups. clap knows no groups of subcommands, so a help
//! template has the list in place of clap's, made from the commands' own descriptions.

use std::fmt::Write as _;

use clap::Subcommand;
use clap::builder::Styles;

use super::Command;

/// The groups, and their commands in the order of [`Command`]: first what every user needs, last what the
/// operator of several nodes needs.
const GROUPS: &[(&str, &[&str])] = &[
    ("Serve keys", &["up", "key", "cert", "status", "virtio"]),
    ("Configure servers", &["gateway"]),
    ("Link two hosts", &["vpn"]),
    ("Configure accelerators", &["device"]),
    ("Examine a machine", &["inspect", "doctor", "watch", "advise"]),
    ("Measure", &["bench"]),
    ("Compress responses", &["compression", "compress"]),
    ("Manage a pool of nodes", &["manager", "node", "pool", "tenant", "token", "audit"]),
    ("Set up", &["sample", "completions", "man"]),
];

/// Columns of the longest name, `completions`.
const NAME_COLUMNS: usize = 11;

/// Columns of the longest title, `Configure accelerators`.
const TITLE_COLUMNS: usize = 22;

/// The help template of `millrace`: clap's own, with the groups in place of its flat list.
pub(super) fn template() -> String {
    let header = Styles::styled().get_header().to_owned();
    format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{{before-help}}\
         {header}Options:{header:#}\n{{options}}{{after-help}}"
    )
}

/// The groups with the names of their commands, for `-h`: it fits a terminal of 24 rows.
pub(super) fn names() -> String {
    let literal = Styles::styled().get_literal().to_owned();
    let rows = GROUPS.iter().map(|(title, names)| {
        let names: Vec<_> =
            names.iter().map(|name| format!("{literal}{name}{literal:#}")).collect();
        format!("{title:TITLE_COLUMNS$}  {}", names.join(", "))
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// The groups with a line for each command, for `--help`.
pub(super) fn descriptions() -> String {
    let commands = commands();
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{header}{title}:{header:#}");
        for name in *names {
            let command = commands.find_subcommand(name);
            let about = command.and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {literal}{name:NAME_COLUMNS$}{literal:#}  {about}");
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

/// The commands alone: the whole command line would ask for its template again.
fn commands() -> clap::Command {
    Command::augment_subcommands(clap::Command::new("millrace"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::COLUMNS;
    use super::*;

    #[test]
    fn description_of_every_command_fits_its_line() {
        for command in commands().get_subcommands().filter(|command| !command.is_hide_set()) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let columns = 2 + NAME_COLUMNS + 2 + about.chars().count();
            assert!(columns <= COLUMNS, "{}: {about}", command.get_name());
        }
    }

    #[test]
    fn every_visible_command_is_in_one_group_in_the_order_of_definition() {
        let commands = commands();
        let visible = commands.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
        let visible: Vec<&str> = visible.map(clap::Command::get_name).collect();
        let grouped = GROUPS.iter().flat_map(|(_, names)| names.iter().copied());
        assert_eq!(grouped.collect::<Vec<_>>(), visible);
        assert_eq!(visible.iter().map(|name| name.len()).max(), Some(NAME_COLUMNS));
        let titles = GROUPS.iter().map(|(title, _)| title.len());
        assert_eq!(titles.max(), Some(TITLE_COLUMNS));
    }
}
