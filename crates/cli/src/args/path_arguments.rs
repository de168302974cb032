// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Every argument that is a path is known as one that a command reads, or stands in the table of those that it writes.

use std::any::TypeId;
use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Arg, Command};

use super::Cli;

/// Paths that a command reads, or in which it keeps its own files, by the names of the arguments.
const READ: &[&str] = &[
    "access",
    "certs",
    "commands",
    "compare",
    "compression_library",
    "config",
    "file",
    "files",
    "from_dir",
    "gateway",
    "handshakes_run",
    "kek_file",
    "libcrypto",
    "link",
    "openssl_conf",
    "other",
    "policy",
    "preload",
    "provider",
    "root",
    "run",
    "server_config",
    "sizes_run",
    "socket",
    "socket_path",
    "state",
    "state_key",
    "choose",
];

/// `compress` writes beside the files that it reads.
const READ_IN_PLACE: &str = "compress";

fn is_path(argument: &Arg) -> bool {
    argument.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

fn collect(command: &Command, words: &str, found: &mut BTreeSet<(String, String)>) {
    for argument in command.get_arguments().filter(|argument| is_path(argument)) {
        let id = argument.get_id().as_str();
        if READ.contains(&id) || words == READ_IN_PLACE {
            continue;
        }
        let place =
            argument.get_long().map_or_else(|| id.to_uppercase(), |long| format!("--{long}"));
        found.insert((words.to_owned(), place));
    }
    for child in command.get_subcommands() {
        collect(child, format!("{words} {}", child.get_name()).trim(), found);
    }
}

/// A new option that writes a file is tried with every kind of path by its row in the table.
#[test]
fn every_path_that_a_command_writes_is_in_the_table() {
    let mut root = Cli::definition();
    root.build();
    let mut found = BTreeSet::new();
    collect(&root, "", &mut found);
    let rows = include_str!("outputs.tsv").lines().filter(|line| !line.starts_with('#'));
    let listed: BTreeSet<_> = rows
        .map(|row| row.split('\t').collect::<Vec<_>>())
        .map(|row| (row[0].to_owned(), row[1].to_owned()))
        .collect();
    assert_eq!(found, listed, "outputs.tsv, or READ for a path that is only read");
    assert!(found.len() > 20, "is the search broken?");
}
