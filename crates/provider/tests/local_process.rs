// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Primitives that the module computes itself, in a test application (`local_harness.c`): after a fork, in threads, in
//! library contexts that come and go, while providers are unloaded. Needs a C compiler and OpenSSL's headers; skipped
//! without.

mod common;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use common::{Bench, application, must};

/// The application, compiled once; `None` without a compiler.
fn harness() -> Option<&'static Path> {
    static BUILT: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| common::compiled("local_harness.c", &["-lcrypto", "-lpthread"]));
    BUILT.as_deref()
}

/// Runs it with every primitive in the process, in its own contexts, too; returns what it printed.
#[track_caller]
fn run(what: &str) -> Option<String> {
    let binary = harness()?;
    let bench = Bench::new();
    bench.write_config(
        "local.cnf",
        "default_properties = ?millrace.local=yes",
        "local = all\nalgorithms = none\nmode = off",
    );
    bench.write("client.toml", b"mode = \"off\"\nalgorithms = \"none\"\nlocal = \"all\"\n");
    let conf = bench.path("local.cnf");
    let mut command: Command = application(binary);
    command.arg(what).arg(&conf).current_dir(bench.dir.path());
    command.env("OPENSSL_CONF", &conf).env("OPENSSL_MODULES", bench.dir.path());
    command.env("MILLRACE_CLIENT_CONF", bench.path("client.toml"));
    Some(must(&command.output().expect("the application")))
}

/// Pairs made ahead wait in the parent when it forks: a child that used one would print it again.
#[test]
fn no_share_is_made_twice_by_forked_children_and_threads() {
    let Some(printed) = run("shares") else { return };
    let shares: Vec<&str> = printed.lines().collect();
    // Three generations with one share, 20 more and those of four threads; the last child makes 20.
    assert_eq!(shares.len(), 3 * (1 + 20 + 4 * 20) + 20);
    let distinct: HashSet<&str> = shares.iter().copied().collect();
    assert_eq!(distinct.len(), shares.len());
}

#[test]
fn library_contexts_come_and_go_and_none_of_them_is_said_to_be_fips() {
    run("contexts");
}

#[test]
fn providers_are_unloaded_while_threads_make_shares() {
    run("unload");
}

#[test]
fn memory_stays_flat_over_many_agreements() {
    run("memory");
}
