// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Every file in the state folders of a node, a manager and a managed node, damaged in turn: the process works
//! without it, or names the file and ends; with the good file it starts again. Records of links, cards and servers
//! have tests of their own (`vpn_confirm.rs`, `device.rs`, hostfs).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_testkit::is_long;
use millrace_testkit::port::free_port;
use rustix::process::Signal;

use crate::managed::Pool;
use crate::support::{Node, Place, p256_key};

/// Makes the damaged content of a file from the whole one.
type Damage = fn(&[u8]) -> Vec<u8>;

/// Damages of a file, by their names.
const DAMAGES: [(&str, Damage); 3] = [
    ("overwritten", |bytes| vec![0x5a; bytes.len().max(1)]),
    ("empty", |_| Vec::new()),
    ("cut", |bytes| bytes[..bytes.len() / 2].to_vec()),
];

/// Files of a folder and those below it, in their order, without sockets.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// Ends a process.
///
/// # Errors
/// It failed, as a manager does that reads its revocation list after it is ready: its log.
fn stop(mut node: Node) -> Result<(), String> {
    node.signal(Signal::TERM);
    if node.wait().success() { Ok(()) } else { Err(node.log()) }
}

/// Damages each file of a folder in turn. `command` starts the process that uses it, which ends orderly with the good
/// files before and after.
fn each_is_survived_or_named(place: &Place, folder: &Path, command: impl Fn() -> Command) {
    let start = || place.try_up_as(command()).map(|(node, _)| node);
    let all = files(folder);
    assert!(all.len() > 2, "{all:?}");
    let good: Vec<_> = all.iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect();
    let mut wrong = Vec::new();
    for (file, content) in &good {
        for (name, damaged) in &DAMAGES[..if is_long() { DAMAGES.len() } else { 1 }] {
            fs::write(file, damaged(content)).unwrap();
            match start().and_then(stop) {
                Ok(()) => {}
                Err(log) if log.contains("error: ") && is_named(&log, file) => {}
                Err(log) => wrong.push(format!("{} {name}: {log}", file.display())),
            }
            for (file, content) in &good {
                fs::write(file, content).unwrap();
            }
            start().and_then(stop).unwrap_or_else(|log| panic!("{} {name}: {log}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether a message names a file, or the certificate of a private key. 32 other bytes are another key-encryption key,
/// which the message names by its option.
fn is_named(log: &str, file: &Path) -> bool {
    log.contains(file.to_str().unwrap())
        || log.contains(file.with_extension("crt").to_str().unwrap())
        || (file.ends_with("kek") && log.contains("--kek-file FILE"))
}

#[test]
fn each_state_file_of_a_node_that_is_damaged_is_survived_or_named() {
    let place = Place::new();
    let command = || place.command(["up", "--listen-tcp", "127.0.0.1:0"]);
    let node = place.up_as(command()).0;
    let key = place.write("key.pem", &p256_key());
    let import = ["key", "import", "www", key.to_str().unwrap()];
    place.run(&import).done();
    place.write("key.pem", &p256_key());
    place.run(&[&import[..], &["--replace"]].concat()).done();
    for name in ["gateway-1", "gateway-2"] {
        let output = place.path(name);
        place.run(&["cert", "client", name, "-o", output.to_str().unwrap()]).done();
    }
    place.run(&["cert", "revoke", "gateway-2"]).done();
    stop(node).unwrap();
    each_is_survived_or_named(&place, &place.path("state"), command);
}

#[test]
fn each_state_file_of_a_manager_that_is_damaged_is_survived_or_named() {
    let place = Place::new();
    let listen = format!("127.0.0.1:{}", free_port());
    let store = format!("sqlite:{}", place.path("state/manager/pool.db").display());
    let command = || place.command(["manager", "--store", &store, "--listen", &listen]);
    let manager = place.up_as(command()).0;
    let access = place.path("state/manager/access");
    place
        .run(&["tenant", "create", "acme", "--ops", "9", "--access", access.to_str().unwrap()])
        .done();
    stop(manager).unwrap();
    each_is_survived_or_named(&place, &place.path("state"), command);
}

#[test]
fn each_state_file_of_a_managed_node_that_is_damaged_is_survived_or_named() {
    let (pool, place) = (Pool::start(), Place::new());
    let mut node = pool.node(&place, "node-1");
    node.signal(Signal::TERM);
    assert!(node.wait().success(), "{}", node.log());
    let access = place.path("access");
    let words = ["node", "run", "--access", access.to_str().unwrap(), "--name", "node-1"];
    let command = || {
        let mut command = place.command(words);
        command.args(["--capacity", "p256=20000", "--listen-tcp", "127.0.0.1:0"]);
        command
    };
    each_is_survived_or_named(&place, &place.path("state"), command);
    // The access is its state, too.
    let good = fs::read(&access).unwrap();
    for (name, damaged) in DAMAGES {
        fs::write(&access, damaged(&good)).unwrap();
        let said = place.try_up_as(command()).map(drop).unwrap_err();
        assert!(said.contains(access.to_str().unwrap()), "{name}: {said}");
    }
}
