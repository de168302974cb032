// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The test suites of nginx and of zlib over the library that compresses, and memcheck under it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use millrace_edge::compression::Counter;
use millrace_testkit::skip;
use millrace_tests::artifacts::{artifacts, workspace};
use millrace_tests::process::{program, run, run_with_input, succeed, text_of};
use millrace_tests::web::{counters, html};
use millrace_tests::{is_root, release, temp_dir};

/// The files of nginx's suite that reach the filters `gzip`, `gunzip`, `charset` and `ssi`.
const NGINX_TESTS: [&str; 9] = [
    "charset.t",
    "charset_gzip_static.t",
    "gunzip.t",
    "gunzip_ssi.t",
    "gunzip_static.t",
    "gzip.t",
    "ssi.t",
    "ssi_if.t",
    "ssi_include_big.t",
];

/// nginx under its own name, with the library. Modules outside the program are hidden from the suite, which would
/// look for them beside this script.
fn nginx(dir: &Path) -> PathBuf {
    let nginx = release::command("nginx");
    let words = [nginx.get_program()].into_iter().chain(nginx.get_args());
    let line: Vec<String> = words.map(|word| format!("'{}'", word.display())).collect();
    let line = line.join(" ");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = -V ]; then {line} -V 2>&1 | sed -E 's/--[a-z_-]+=dynamic//g'; exit; fi\n\
         LD_PRELOAD={} MILLRACE_GZIP_VERIFY=all exec {line} \"$@\"\n",
        artifacts().zlib.display()
    );
    let path = dir.join("nginx");
    fs::write(&path, script).expect("a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a script");
    path
}

/// The most responses that one of the suite's nginx compressed with the library while the suite ran.
fn watch(stop: &AtomicBool) -> u64 {
    let mut most = 0;
    while !stop.load(Ordering::Relaxed) {
        let pids = fs::read_dir("/proc").expect("/proc").flatten();
        for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if memchr::memmem::find(&line, b"/nginx-test-").is_some() {
                let found = counters(pid).map_or(0, |found| found.get(Counter::Finished));
                most = most.max(found);
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    most
}

#[test]
fn nginx_passes_its_own_tests_with_the_library() {
    let dir = temp_dir();
    let mut prove = Command::new(program("prove"));
    prove
        .current_dir(workspace().join("tests/nginx-tests"))
        .env("TEST_NGINX_BINARY", nginx(dir.path()))
        .env("TMPDIR", dir.path())
        .args(NGINX_TESTS);
    if is_root() {
        prove.env("TEST_NGINX_GLOBALS", "user root root;");
    }
    let stop = AtomicBool::new(false);
    let (output, compressed) = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&stop));
        let output = run(&mut prove);
        stop.store(true, Ordering::Relaxed);
        (output, watcher.join().expect("no panic"))
    });
    let text = text_of(&output);
    assert!(output.status.success() && text.contains("Result: PASS"), "{text}");
    assert!(compressed > 0, "the suite ran without the library: {text}");
}

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
