// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `local = on` under two builds of libcrypto on one processor: that of the release, which keeps its records, and one
//! without assembly (`scripts/slow-openssl.sh`), which is relieved of them. Skipped where there is no source to build.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::server::{Server, fetch, long_file};
use common::{Bench, must, texts};

/// Builds the slow libcrypto, and returns its folder, or why it cannot be built.
fn slow_library() -> Result<PathBuf, String> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut script = Command::new(workspace.join("scripts/slow-openssl.sh"));
    let output = script.current_dir(&workspace).output().expect("the script");
    let (folder, said) = texts(&output);
    if output.status.success() { Ok(PathBuf::from(folder.trim())) } else { Err(said) }
}

/// `openssl` on the libcrypto of this folder; none: that of the release.
fn on(bench: &Bench, library: Option<&Path>, config: Option<&str>, line: &str) -> String {
    let mut command = match config {
        Some(config) => bench.command_with(config, line),
        None => bench.command(line),
    };
    if let Some(library) = library {
        command.env("LD_LIBRARY_PATH", library);
    }
    must(&command.output().expect("openssl is installed"))
}

/// Whether the provider offers the cipher or digest of this name.
fn offers(listed: &str, name: &str) -> bool {
    let name = name.to_lowercase();
    listed.lines().any(|line| line.to_lowercase().contains(&name) && line.contains("@ millrace"))
}

/// Ciphers and digests with the primitive that decides on them.
const TAKEN: [(&str, &str); 6] = [
    ("AES-128-GCM", "AES-GCM"),
    ("AES-192-GCM", "AES-GCM"),
    ("AES-256-GCM", "AES-GCM"),
    ("ChaCha20-Poly1305", "ChaCha20-Poly1305"),
    ("SHA2-256", "SHA2-256"),
    ("SHA2-512", "SHA2-512"),
];

/// Those that no assembly at all makes slower by far more than a measurement errs, on every processor.
const SURE: [&str; 2] = ["AES-GCM", "ChaCha20-Poly1305"];

/// The one of them that no release computes much slower. AES-GCM on AVX-512 is in newer releases alone.
const KEPT: &str = "ChaCha20-Poly1305";

#[test]
fn slow_libcrypto_is_relieved_of_records_and_a_fast_one_keeps_them() {
    let slow = match slow_library() {
        Ok(folder) => folder,
        Err(said) => {
            millrace_testkit::skip!("no source of OpenSSL to build a slow libcrypto from: {said}")
        }
    };
    let bench = Bench::new();
    let choice = bench.path("choice.tsv");
    let settings =
        format!("algorithms = none\nmode = off\nlocal = on\nchoice_file = {}", choice.display());
    bench.write_config("on.cnf", "default_properties = ?millrace.local=yes", &settings);
    must(&bench.stock(
        "req -x509 -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -days 2 \
         -keyout server.key -out server.crt",
    ));
    let mut taken = Vec::new();
    for (library, is_slow) in [(Some(&*slow), true), (None, false)] {
        // One file for both: it has a section for each build.
        let known = fs::read_to_string(&choice).unwrap_or_default();
        let listed = ["cipher", "digest"]
            .map(|what| on(&bench, library, Some("on.cnf"), &format!("list -{what}-algorithms")));
        let listed = listed.concat();
        let measured = fs::read_to_string(&choice).expect("the file of costs");
        let fresh: Vec<&str> = measured.lines().filter(|line| !known.contains(line)).collect();
        for (name, primitive) in TAKEN {
            let line = fresh.iter().find(|line| line.contains(&format!("\t{primitive}\t")));
            let mut costs = line.expect("a cost").split('\t').skip(2);
            let mut cost = || costs.next().expect("a cost").parse::<u64>().expect("a number");
            let (here, there) = (cost(), cost());
            println!("slow {is_slow}: {primitive}: {here} ns here, {there} ns in libcrypto");
            let is_taken = offers(&listed, name);
            // In percent: a libcrypto with assembly keeps its records unless it is slower by far.
            let least = if is_slow { 150 } else { 300 };
            assert_eq!(is_taken, here * least < there * 100, "{name}: {here} {there}");
            if is_slow && SURE.contains(&primitive) {
                assert!(is_taken, "{name}: {here} {there}");
            }
            if !is_slow && primitive == KEPT {
                assert!(!is_taken, "{name}: {here} {there}");
            }
            taken.push((is_slow, primitive, is_taken));
        }
    }
    let sent = long_file(&bench);
    for (library, is_slow) in [(Some(&*slow), true), (None, false)] {
        let server = Server::start_on(&bench, Some("on.cnf"), "-WWW", library);
        for suite in ["TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"] {
            assert!(fetch(&bench, None, &server, &format!("-ciphersuites {suite}")) == sent);
        }
        let computed = server.computed();
        for (_, primitive, is_taken) in taken.iter().filter(|(slow, ..)| *slow == is_slow) {
            if SURE.contains(primitive) {
                assert_eq!(computed[*primitive] >= 64, *is_taken, "{computed:?}");
            }
        }
    }
    for cipher in ["aes-256-gcm", "chacha20-poly1305", "sha256"] {
        for config in [None, Some("on.cnf")] {
            let line = format!("speed -seconds 1 -bytes 1350 -evp {cipher}");
            let said = on(&bench, Some(&slow), config, &line);
            let rate = said.lines().last().unwrap_or_default();
            println!(
                "{}: {rate} bytes/s",
                if config.is_some() { "with us" } else { "slow libcrypto" }
            );
        }
    }
}
