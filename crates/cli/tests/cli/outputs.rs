// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Every path that a command writes, each in every form that a user may give: a bare name, a relative path, one that is
//! there, one in a folder that is not there, and one in a folder that is closed. `src/args/outputs.tsv` lists them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use millrace_testkit::wait::holds_within;

use crate::managed::Pool;
use crate::support::{Node, Outcome, Place, SOON, p256_key};

const OTHER_USER: u32 = 65_534;

/// A row of the table.
#[derive(Clone, Copy)]
struct Output {
    command: &'static str,
    option: &'static str,
    is_folder: bool,
}

impl Output {
    fn all() -> Vec<Self> {
        let rows = include_str!("../../src/args/outputs.tsv").lines();
        rows.filter(|line| !line.starts_with('#'))
            .map(|line| {
                let mut cells = line.split('\t');
                let mut cell = || cells.next().unwrap();
                Self { command: cell(), option: cell(), is_folder: cell() == "folder" }
            })
            .collect()
    }

    /// The command with this path and nothing else: a path that cannot be written is refused before what is missing.
    fn words<'a>(&self, path: &'a str) -> Vec<&'a str> {
        let words = self.command.split(' ');
        let option = Some(self.option).filter(|option| option.starts_with("--"));
        words.chain(option).chain([path]).collect()
    }

    /// Words that the command needs beside the path, or `None` for one that measures for minutes: it writes as
    /// `bench sizes` does, by the same functions.
    fn needs(&self, turn: usize) -> Option<Vec<String>> {
        let needs: &[&str] = match self.command {
            "bench sizes" if self.option == "--save-crossovers" => return None,
            "bench sizes" => {
                &["--rounds", "1", "--slice", "1ms", "--sizes", "64", "--algorithms", "sha256"]
            }
            command if command.starts_with("bench ") || self.option == "--svg" => return None,
            "vpn bench" => return None,
            "cert client" | "cert node" => &["gateway-TURN"],
            "inspect" => &["--root", "."],
            "key import" => &["--from-dir", "keys"],
            "key stub" | "pool key stub" => &["www"],
            "token create" => &["node-TURN", "--role", "node"],
            "tenant addresses" => &["acme"],
            "vpn keys" => &["link.toml"],
            "man" | "reference" => &[],
            other => panic!("how is {other} run? Say it here"),
        };
        let needs = needs.iter().map(|word| word.replace("TURN", &turn.to_string()));
        Some(needs.collect())
    }

    /// Whether it leaves alone what is there: bundles, certificates and keys have no second copy.
    fn keeps_what_is_there(&self) -> bool {
        ["inspect", "cert client", "cert node", "vpn keys"].contains(&self.command)
    }
}

/// The words of a command, as the test prints them.
fn shown(words: &[&str]) -> String {
    words.join(" ")
}

#[test]
fn path_that_cannot_be_written_is_refused_before_anything_is_done() {
    let place = Place::new();
    let root = place.path("");
    // Another user has to come through.
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    let closed = place.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    place.write("file", "kept");
    let is_root = rustix::process::geteuid().is_root();
    let mut wrong = Vec::new();
    for output in Output::all() {
        let mut cases = vec![("closed/new", "this user may not write to")];
        if output.is_folder {
            cases.push(("file", "it is a file: name a folder"));
        } else {
            cases.push(("none/new", "there is no folder none: make it first"));
            cases.push(("file/new", "file is not a folder"));
            cases.push((".", "it is a folder: name a file in it"));
        }
        for (path, said) in cases {
            let words = output.words(path);
            let mut command = place.command(&words);
            command.current_dir(&root);
            if is_root {
                command.uid(OTHER_USER).gid(OTHER_USER);
            }
            let outcome = match command.output() {
                Ok(output) => Outcome::of(output),
                Err(error) => {
                    millrace_testkit::skip!("the unprivileged user cannot run the test: {error}")
                }
            };
            if outcome.code != 2 || !outcome.talk.contains(said) {
                wrong.push(format!("{}: {outcome:?}", shown(&words)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(fs::read_to_string(place.path("file")).unwrap(), "kept");
    assert_eq!(fs::read_dir(&closed).unwrap().count(), 0);
    assert!(!place.path("none").exists());
}

/// A pool with a tenant and the node that serves it, whose key is in the store of a node, too, and a declaration of a
/// link.
fn stocked(node: &Place) -> (Pool, Node) {
    let pool = Pool::start();
    let node = pool.node(node, "node-1");
    let place = &pool.place;
    let pem = place.write("key.pem", &p256_key());
    let pem = pem.to_str().unwrap();
    place.run(&["key", "import", "www", pem]).done();
    fs::create_dir(place.path("keys")).unwrap();
    place.write("keys/bulk.pem", &p256_key());
    pool.run(&["tenant", "create", "acme", "--ops", "100"]).done();
    pool.run(&["pool", "key", "import", "www", pem, "--tenant", "acme"]).done();
    let end = |side: &str| {
        format!(
            "[ends.{side}]\naddress = \"198.18.0.{0}\"\ninner = \"10.9.0.{0}\"\ncertificates = \"/k\"\n",
            if side == "a" { 1 } else { 2 }
        )
    };
    place.write("link.toml", &format!("name = \"l\"\nmembers = 2\n{}{}", end("a"), end("b")));
    (pool, node)
}

/// Runs a command in the folder of the place until it ends, or one that never ends until the file is there.
fn run(pool: &Pool, output: Output, path: &str, turn: usize) -> Option<Outcome> {
    let needs = output.needs(turn)?;
    let mut words = output.words(path);
    words.extend(needs.iter().map(String::as_str));
    let access = pool.access();
    if ["token create", "tenant addresses", "pool key stub"].contains(&output.command) {
        words.extend(["--access", &access]);
    }
    let mut command = pool.place.command(&words);
    command.current_dir(pool.place.path(""));
    if output.option != "--watch" {
        return Some(Outcome::of(command.output().unwrap()));
    }
    Some(until_written(command, &pool.place.path(path)))
}

fn until_written(mut command: Command, file: &Path) -> Outcome {
    let _ = fs::remove_file(file);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let written = holds_within(SOON, || file.exists() || child.try_wait().unwrap().is_some());
    child.kill().unwrap();
    let mut outcome = Outcome::of(child.wait_with_output().unwrap());
    // It was killed, and had done its work.
    outcome.code = if written && file.exists() { 0 } else { 1 };
    outcome
}

/// The content of a file, or of all files of a folder by their names.
fn content(path: &Path) -> Vec<(String, Vec<u8>)> {
    if path.is_file() {
        return vec![(String::new(), fs::read(path).unwrap())];
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let inner = content(&entry.path()).into_iter();
        files.extend(inner.map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
    }
    files.sort();
    files
}

#[test]
fn every_form_of_a_path_is_written_whole() {
    let node_place = Place::new();
    let (pool, _node) = stocked(&node_place);
    fs::create_dir(pool.place.path("sub")).unwrap();
    let mut wrong = Vec::new();
    let mut tried = 0;
    for (row, output) in Output::all().into_iter().enumerate() {
        let (bare, relative) = (format!("out-{row}"), format!("./sub/../sub/out-{row}"));
        for (turn, path) in [&bare, &relative].into_iter().enumerate() {
            let Some(outcome) = run(&pool, output, path, 10 * row + turn) else { continue };
            tried += 1;
            let file = pool.place.path(path);
            let is_written =
                file.exists() && content(&file).iter().any(|(_, text)| !text.is_empty());
            if outcome.code != 0 || !is_written {
                wrong.push(format!("{} to {path}: {outcome:?}", output.command));
                continue;
            }
            // A second time, over what is there.
            let before = content(&file);
            let again = run(&pool, output, path, 10 * row + 5 + turn).unwrap();
            let is_kept = content(&file) == before;
            let is_right = if output.keeps_what_is_there() {
                again.code == 1 && is_kept && again.talk.contains(path.as_str())
            } else {
                again.code == 0
            };
            if !is_right {
                wrong.push(format!("{} over {path}: {again:?}", output.command));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tried > 15, "only {tried} were tried");
    let token = Output::all().iter().position(|output| output.command == "token create").unwrap();
    let access = fs::metadata(pool.place.path(&format!("out-{token}"))).unwrap();
    assert_eq!(access.permissions().mode() & 0o777, 0o600, "the access that token create wrote");
}

/// The sockets of daemons, too, may be bare names: their folder is the current one.
#[test]
fn socket_of_a_bare_name_is_in_the_current_folder() {
    let place = Place::new();
    let mut command = place.command(["up", "--socket", "bare.sock", "--state", "bare-state"]);
    command.current_dir(place.path(""));
    let _node = place.up_as(command).0;
    let mut status = place.command(["status", "--socket", "bare.sock"]);
    let outcome = Outcome::of(status.current_dir(place.path("")).output().unwrap());
    outcome.done();
    assert!(place.path("bare-state/kek").exists());
}
