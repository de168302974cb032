// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Every `millrace …` command that a message, a help text or a document names exists, with these options and values.

use std::fs;
use std::path::Path;

use clap::{Arg, Command};

use super::Cli;

/// Documents outside `docs` that name commands. CHANGELOG.md also names those of former versions.
const DOCUMENTS: &[&str] = &[
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "SPECIFICATION.md",
    "docs",
    "deploy",
    "crates",
];

/// Beginnings of texts in the sources that are no commands.
const NOT_COMMANDS: &[&str] = &[
    "millrace audit v1",
    "millrace authentication of records 1",
    "millrace bench crypto, without IFMA",
    "millrace grant v1",
    "millrace key in transit v1",
    "millrace key-encryption key fingerprint",
    "millrace measures its capacity",
    "millrace node {name} is up",
    "millrace private CA",
    "millrace virtio is up",
    "millrace (42) has",
    "millrace µs",
];

/// Words that end a command in a sentence of a message.
const SENTENCE_GOES_ON: &[&str] = &["on", "or", "which"];

fn root() -> Command {
    let mut root = Cli::definition();
    root.build();
    root
}

#[test]
fn commands_in_messages_and_documents_exist() {
    let root = root();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut complaints = Vec::new();
    let mut count = 0;
    let mut check_all = |place: &str, commands: Vec<Vec<String>>| {
        for words in commands {
            count += 1;
            if let Err(reason) = check(&root, &words) {
                complaints.push(format!("{place}: millrace {}: {reason}", words.join(" ")));
            }
        }
    };
    for document in DOCUMENTS {
        for_each_file(&workspace.join(document), &mut |path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            let Ok(text) = fs::read_to_string(path) else {
                return;
            };
            let commands = match extension {
                Some("rs") => in_source(&text),
                Some("md") => in_document(&text),
                _ => commands(&text),
            };
            check_all(&path.display().to_string(), commands);
        });
    }
    super::tests::for_each_command(&root, &mut |name, command| {
        let help = command.get_after_long_help().or_else(|| command.get_after_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        check_all(&format!("help of {name}"), in_help(&help));
    });
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(count > 500, "only {count} commands were found: is the search broken?");
}

#[test]
fn wrong_commands_are_found_wherever_they_stand() {
    let root = root();
    let wrong = |commands: Vec<Vec<String>>| {
        commands.iter().filter(|words| check(&root, words).is_err()).count()
    };
    assert_eq!(
        wrong(in_document("run `millrace bench sizes --json FILE` and\n`millrace\nbenhc`")),
        2
    );
    assert_eq!(wrong(in_document("```sh\nsudo millrace up & millrace stat # x\n```")), 1);
    assert_eq!(wrong(in_document("```sh\nmillrace inspect ceiling -- ls -l\n```")), 0);
    assert_eq!(wrong(in_source("\"millrace key stub {name} on it, then reload\"")), 0);
    assert_eq!(wrong(in_source("\"millrace key stub {name} --out x\"")), 1);
    assert_eq!(wrong(in_source("/// `millrace\n/// advise nothing`, `millrace advise tls`")), 1);
    assert_eq!(wrong(in_help("Examples:\n  millrace watch --count\n  millrace watch twice")), 1);
}

fn for_each_file(path: &Path, check: &mut impl FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(path) else {
        return check(path);
    };
    // Generated pages repeat the help, recorded trees belong to other projects, and this file has wrong commands.
    let skipped = ["reference", "fixtures", "named_commands.rs"];
    for entry in entries.map(Result::unwrap) {
        if !skipped.iter().any(|name| entry.file_name() == *name) {
            for_each_file(&entry.path(), check);
        }
    }
}

/// The commands in backticks and at the beginning of string literals.
fn in_source(text: &str) -> Vec<Vec<String>> {
    let text = joined(text);
    let literals = spans(&text, "\"millrace ", '"')
        .filter(|span| !NOT_COMMANDS.iter().any(|start| span.starts_with(start)))
        .map(|span| sentence_start(&span));
    let quoted = spans(&text, "`millrace ", '`');
    literals.chain(quoted).flat_map(|span| commands(&span.replace("\\\\", "\\"))).collect()
}

/// A source without the ends of lines in string literals and in comments.
fn joined(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines() {
        let line = line.trim_start();
        let comment = ["/// ", "//! ", "// "].iter().find_map(|mark| line.strip_prefix(mark));
        joined.push_str(comment.unwrap_or(line));
        match joined.strip_suffix('\\') {
            Some(continued) => joined.truncate(continued.len()),
            None => joined.push(if comment.is_some() { ' ' } else { '\n' }),
        }
    }
    joined
}

/// The command at the beginning of a message, without the rest of its sentence.
fn sentence_start(text: &str) -> String {
    let line = text.split("\\n").next().unwrap_or_default();
    let mut words = Vec::new();
    for word in line.split(' ').take_while(|word| !SENTENCE_GOES_ON.contains(word)) {
        words.push(word.trim_end_matches(','));
        if word.ends_with(',') {
            break;
        }
    }
    words.join(" ")
}

/// The commands in backticks and in fences with shell lines.
fn in_document(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut prose = String::new();
    let mut fence = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), fence) {
            (Some(language), None) => fence = Some(language),
            (Some(_), Some(_)) => fence = None,
            (None, Some("sh")) => found.extend(commands(line)),
            (None, Some(_)) => {}
            (None, None) => prose.extend([line, " "]),
        }
    }
    found.extend(spans(&prose, "`millrace ", '`').flat_map(|span| commands(&span)));
    found
}

/// The commands in backticks and on lines of their own.
fn in_help(text: &str) -> Vec<Vec<String>> {
    let quoted = text.replace('\n', " ");
    let quoted = spans(&quoted, "`millrace ", '`').flat_map(|span| commands(&span));
    let lines = text.lines().filter(|line| line.starts_with("  "));
    quoted.chain(lines.flat_map(commands)).collect()
}

/// The texts from `start`, without its first character, to the next `end`.
fn spans<'a>(text: &'a str, start: &'a str, end: char) -> impl Iterator<Item = String> + 'a {
    text.match_indices(start).filter_map(move |(at, _)| {
        let rest = &text[at + 1..];
        Some(rest[..rest.find(end)?].to_owned())
    })
}

/// The arguments of each call of `millrace` in shell lines.
fn commands(lines: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for words in lines.lines().flat_map(shell_words) {
        let is_before = |word: &&String| *word == "sudo" || word.contains('=') || *word == "nohup";
        let mut words = words.iter().skip_while(is_before);
        let is_call = words.next().is_some_and(|word| word == "millrace");
        let words: Vec<String> = words.cloned().collect();
        // `millrace = …` is a line of openssl.cnf.
        if is_call && words.first().is_none_or(|word| word != "=") {
            found.push(words);
        }
    }
    found
}

/// The words of each simple command of a shell line: quotes and `$(…)` are part of a word, operators and
/// comments end a command.
fn shell_words(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word = String::new();
    let mut quote = None;
    let mut depth = 0_usize;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (c, quote) {
            (c, Some(end)) if c == end => quote = None,
            (c, Some(_)) => word.push(c),
            ('\'' | '"', None) => quote = Some(c),
            ('\\', None) => word.extend(characters.next()),
            ('(' | ')', None) => {
                depth = if c == '(' { depth + 1 } else { depth.saturating_sub(1) };
                word.push(c);
            }
            ('#', None) if word.is_empty() => break,
            (' ' | '|' | '&' | ';' | '<' | '>', None) if depth == 0 => {
                let command = commands.last_mut().expect("one at least");
                if !word.is_empty() {
                    command.push(std::mem::take(&mut word));
                }
                if c != ' ' {
                    commands.push(Vec::new());
                }
            }
            (c, None) => word.push(c),
        }
    }
    if !word.is_empty() {
        commands.last_mut().expect("one at least").push(word);
    }
    commands
}

/// Whether a command exists with these words after `millrace`.
fn check(root: &Command, words: &[String]) -> Result<(), String> {
    let mut command = root;
    let mut positionals = 0;
    let mut words = words.iter().map(|word| word.trim_matches(['[', ']'])).peekable();
    while let Some(word) = words.next() {
        if word == "--" || word == "…" {
            break;
        }
        if let Some(option) = word.strip_prefix('-').filter(|option| !option.is_empty()) {
            let (option, value) =
                option.split_once('=').map_or((option, None), |(o, v)| (o, Some(v)));
            let found = command.get_arguments().find(|argument| is_named(argument, option));
            let argument = found.ok_or_else(|| format!("no option -{option}"))?;
            // In prose an option may be named without its values.
            let most = argument.get_num_args().map_or(0, |count| count.max_values().min(2));
            let given = std::iter::from_fn(|| words.next_if(|word| !word.starts_with('-')));
            let mut values = value.into_iter().chain(given).take(most);
            values.try_for_each(|value| check_value(argument, value))?;
        } else if let Some(child) = command.find_subcommand(word) {
            command = child;
        } else if !is_placeholder(word) || word.chars().all(char::is_uppercase) {
            let mut visible = command.get_positionals().filter(|argument| !argument.is_hide_set());
            let argument = visible.nth(positionals);
            let argument = argument.ok_or_else(|| format!("no argument {word}"))?;
            check_value(argument, word)?;
            let most = argument.get_num_args().map_or(1, |count| count.max_values());
            positionals += usize::from(most <= 1);
        }
    }
    Ok(())
}

/// Whether `option`, without its first dash, names this argument.
fn is_named(argument: &Arg, option: &str) -> bool {
    match option.strip_prefix('-') {
        Some(long) => {
            argument.get_long() == Some(long)
                || argument.get_all_aliases().is_some_and(|all| all.contains(&long))
        }
        None => option.chars().next() == argument.get_short() && option.len() == 1,
    }
}

fn check_value(argument: &Arg, value: &str) -> Result<(), String> {
    let possible = argument.get_possible_values();
    let is_good = |value: &str| possible.iter().any(|known| known.matches(value, false));
    if possible.is_empty() || is_placeholder(value) || value.split(',').all(is_good) {
        return Ok(());
    }
    Err(format!("{value} is no value of {}", argument.get_id()))
}

/// Whether a word stands for others: `NAME`, `{key}`, `…`.
fn is_placeholder(word: &str) -> bool {
    word.contains(['{', '…', '$', '<'])
        || word == "..."
        || word.chars().all(|c| c.is_ascii_uppercase() || c == '-')
}
