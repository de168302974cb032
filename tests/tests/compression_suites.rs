// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! zlib's test programs over the library that compresses, and memcheck under it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_testkit::skip;
use millrace_tests::artifacts::artifacts;
use millrace_tests::process::{program, run, run_with_input, succeed};
use millrace_tests::web::html;
use millrace_tests::{release, temp_dir};

/// One of the programs that zlib's developers test it with, as Debian's zlib1g-dev brings it, built here.
fn zlib_program(dir: &Path, name: &str) -> Option<PathBuf> {
    let source = PathBuf::from(format!("/usr/share/doc/zlib1g-dev/examples/{name}.c"));
    if !source.is_file() {
        return None;
    }
    let built = dir.join(name);
    let mut cc = Command::new(program("cc"));
    // The address that a test of zlib passes on purpose is a null pointer to a compiler that looks.
    cc.args(["-w", "-O1", "-o"]).arg(&built).arg(source).arg("-lz");
    let _ = succeed(&mut cc);
    Some(built)
}

/// The program with the library, which takes every stream and verifies each output.
fn with_library(program: &Path) -> Command {
    let mut command = release::command_at(program);
    command
        .env("LD_PRELOAD", &artifacts().zlib)
        .env("MILLRACE_GZIP", "any")
        .env("MILLRACE_GZIP_VERIFY", "all");
    command
}

#[test]
fn zlibs_test_programs_pass_with_the_library() {
    let dir = temp_dir();
    let Some(example) = zlib_program(dir.path(), "example") else {
        skip!("no source of zlib's test programs: install zlib1g-dev with its documentation");
    };
    let mut command = with_library(&example);
    command.arg(dir.path().join("example.gz"));
    let text = succeed(&mut command);
    // It prints a line for each part and stops with the first that fails; this is the last one.
    assert!(text.contains("inflate with dictionary: hello, hello!"), "{text}");
    let Some(minigzip) = zlib_program(dir.path(), "minigzip") else {
        skip!("no source of zlib's test programs: install zlib1g-dev with its documentation");
    };
    let page = html(60_000);
    let mut packs = with_library(&minigzip);
    let packed = run_with_input(&mut packs, &page).stdout;
    assert!(packed.len() < page.len() / 2 && packed.starts_with(&[0x1f, 0x8b]));
    let mut stock = release::command_at(&minigzip);
    let by_zlib = run_with_input(&mut stock, &page).stdout;
    assert_ne!(packed, by_zlib, "the library has compressed it");
    let mut unpacks = release::command_at(&minigzip);
    unpacks.arg("-d");
    assert!(run_with_input(&mut unpacks, &packed).stdout == page);
}

#[test]
fn memcheck_finds_no_error_in_the_library() {
    if release::root().is_some() {
        skip!("memcheck runs programs of this machine");
    }
    let dir = temp_dir();
    let file = dir.path().join("file");
    fs::write(&file, html(60_000)).expect("a file");
    let Some(minigzip) = zlib_program(dir.path(), "minigzip") else {
        skip!("no source of zlib's test programs: install zlib1g-dev with its documentation");
    };
    for level in ["-1", "-6"] {
        let mut valgrind = Command::new(program("valgrind"));
        valgrind
            .args([
                "--error-exitcode=9",
                "--leak-check=full",
                "--errors-for-leak-kinds=definite",
                "-q",
            ])
            .arg(&minigzip)
            .args([level, "-c"])
            .arg(&file)
            .env("LD_PRELOAD", &artifacts().zlib)
            .env("MILLRACE_GZIP", "any")
            .env("MILLRACE_GZIP_VERIFY", "all");
        let output = run(&mut valgrind);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "level {level}: {errors}");
        assert!(!output.stdout.is_empty());
    }
}
