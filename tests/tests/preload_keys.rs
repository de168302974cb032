// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys and certificates that a server reads with the preload library, which keeps libcrypto's decoders for them: each
//! file gives the same key, or the same errors, as without the library (`tests/jobs/keys.c`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_operation::stub::Stub;
use millrace_tests::artifacts::artifacts;
use millrace_tests::compiled::ServerInC;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::process::{run, succeed, text_of};
use millrace_tests::release;
use millrace_tests::world::World;

/// Output of the program without the preload library, and with it.
struct Said {
    without: String,
    with: String,
}

/// The program with a provider in whose pool no node is.
fn said(world: &World, words: &[&str], files: &[PathBuf]) -> Option<Said> {
    let program = ServerInC::compile("keys.c")?;
    let node = world.dir().join("no-node");
    let edge = EdgeOptions::to(format!("unix:{}", node.display())).preferred().write(world.dir());
    let [without, with] = [None, Some(artifacts().preload.as_path())].map(|preload| {
        let mut command = program.command(preload);
        let output = run(edge.apply(&mut command).args(words).args(files));
        assert!(output.status.success(), "{}\n{}", output.status, text_of(&output));
        text_of(&output)
    });
    Some(Said { without, with })
}

/// Key files of all kinds, the ordinary ones first.
fn key_files(dir: &Path) -> Vec<PathBuf> {
    let openssl = |line: &str| {
        let mut command = Command::new("openssl");
        let _ = succeed(command.args(line.split(' ')).current_dir(dir));
    };
    for line in [
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ec.pem",
        "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:1024 -out rsa.pem",
        "genpkey -algorithm RSA-PSS -pkeyopt rsa_keygen_bits:1024 -out rsa-pss.pem",
        "genpkey -algorithm ED25519 -out ed25519.pem",
        "genpkey -algorithm X25519 -out x25519.pem",
        "genpkey -genparam -algorithm DH -pkeyopt group:ffdhe2048 -out dh-parameters.pem",
        "genpkey -paramfile dh-parameters.pem -out dh.pem",
        "req -x509 -key ec.pem -subj /CN=keys -days 9 -out certificate.pem",
        "ecparam -name P-384 -genkey -out ec-old.pem",
        "rsa -traditional -in rsa.pem -out rsa-old.pem",
        "rsa -traditional -aes128 -passout pass:secret -in rsa.pem -out rsa-old-secret.pem",
        "pkcs8 -topk8 -iter 1000 -passout pass:secret -in ec.pem -out ec-secret.pem",
        "pkey -in ec.pem -pubout -out public.pem",
        "rsa -in rsa.pem -RSAPublicKey_out -out rsa-public.pem",
        "pkey -in ec.pem -outform DER -out ec.der",
        "pkey -in ec.pem -pubout -outform DER -out public.der",
    ] {
        openssl(line);
    }
    let read = |name: &str| fs::read_to_string(dir.join(name)).expect("a file");
    let stub = Stub::new("www", &fs::read(dir.join("public.der")).expect("a file"));
    let (ec, rsa, stub) = (read("ec.pem"), read("rsa.pem"), stub.expect("a stub").to_pem());
    let certificate = read("certificate.pem");
    for (name, text) in [
        ("stub.pem", stub.clone()),
        ("stub-bundle.pem", certificate.clone() + &stub),
        ("bundle.pem", certificate + &ec),
        ("two.pem", ec.clone() + &rsa),
        ("secret-and-plain.pem", read("ec-secret.pem") + &rsa),
        ("cut.pem", rsa[..100].to_owned()),
        ("damaged.pem", ec.replacen('A', "!", 1)),
        ("text.pem", "no key\n".to_owned()),
        ("empty.pem", String::new()),
    ] {
        fs::write(dir.join(name), text).expect("a file");
    }
    let first = ["ec.pem", "stub.pem", "bundle.pem"].map(|name| dir.join(name));
    let last = dir.join("ec-secret.pem");
    let others = fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("a file").path());
    let mut others: Vec<_> = others.filter(|path| !first.contains(path) && *path != last).collect();
    others.sort();
    [&first[..], &others, &[last]].concat()
}

#[test]
fn key_file_of_each_kind_gives_what_it_gives_without_the_library() {
    let world = World::new();
    let dir = world.dir().join("keys");
    fs::create_dir(&dir).expect("a folder");
    let files = key_files(&dir);
    let Some(Said { without, with }) = said(&world, &["read"], &files) else { return };
    assert!(without.contains("stub.pem, file: EC of millrace"), "{without}");
    assert!(without.contains("ec-secret.pem, wrong word:  ["), "{without}");
    for (expected, seen) in without.lines().zip(with.lines()) {
        assert_eq!(seen, expected);
    }
    assert_eq!(with.lines().count(), without.lines().count());
}

#[test]
fn changes_of_providers_properties_and_contexts_are_seen_by_the_next_key() {
    let world = World::new();
    let dir = world.dir().join("keys");
    fs::create_dir(&dir).expect("a folder");
    key_files(&dir);
    let stub = [dir.join("stub-bundle.pem")];
    let Some(Said { without, with }) = said(&world, &["change"], &stub) else { return };
    assert_eq!(with, without);
    // The provider is loaded in the first library context alone.
    assert_eq!(with.matches("EC of millrace").count(), 8, "{with}");
    assert_eq!(with.matches("unsupported").count(), 2, "{with}");
}

/// A server with many certificates pays for one search of each kind, with the provider and without.
#[test]
fn libcrypto_searches_for_decoders_once() {
    let world = World::new();
    let dir = world.dir().join("keys");
    fs::create_dir(&dir).expect("a folder");
    key_files(&dir);
    let further = |said: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix("further "));
        line.and_then(|number| number.parse::<usize>().ok()).expect("a number")
    };
    let plain = [dir.join("bundle.pem")];
    let Some(Said { without, with }) = said(&world, &["often"], &plain) else { return };
    // A search asks twice. The first one has started the provider, which changes the library context.
    assert!(further(&with) <= 2, "{with}");
    if release::openssl() < (3, 2) {
        assert_eq!(further(&without), 200, "{without}");
    }
}
