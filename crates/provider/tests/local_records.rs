// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Ciphers of records and digests that the module computes itself: connections over each suite with plain OpenSSL on
//! the other side, and a test application (`records_harness.c`) that runs both implementations side by side. The
//! application needs a C compiler and OpenSSL's headers; skipped without.

mod common;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use common::server::{SENT, Server, fetch, long_file};
use common::{Bench, application, must};
use millrace_testkit::vectors::{Vectors, tests, text};

/// Records and digests in the process, no key in the pool.
const LOCAL: &str =
    "local = AES-GCM,ChaCha20-Poly1305,SHA2-256,SHA2-512\nalgorithms = none\nmode = off";

/// The application, compiled once; `None` without a compiler.
fn harness() -> Option<&'static Path> {
    static BUILT: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| common::compiled("records_harness.c", &["-lcrypto"]));
    BUILT.as_deref()
}

/// Runs it, with this on its standard input; returns what it printed.
#[track_caller]
fn run(arguments: &[&str], input: &str) -> Option<String> {
    let binary = harness()?;
    let bench = Bench::with_local(LOCAL);
    bench.write("input", input.as_bytes());
    let conf = bench.path("local.cnf");
    let mut command: Command = application(binary);
    command.args(arguments).current_dir(bench.dir.path());
    command.env("OPENSSL_CONF", &conf).env("OPENSSL_MODULES", bench.dir.path());
    command.stdin(std::fs::File::open(bench.path("input")).expect("the input"));
    Some(must(&command.output().expect("the application")))
}

/// The number behind a word of what the application printed.
fn said(printed: &str, word: &str) -> u64 {
    let mut words = printed.split_whitespace().skip_while(|known| *known != word).skip(1);
    let number = words.next().unwrap_or_else(|| panic!("no {word} in {printed}"));
    number.parse().expect("a number")
}

#[test]
fn random_messages_have_the_same_result_as_in_the_default_provider() {
    let Some(printed) = run(&["random", "6000", "1"], "") else { return };
    assert_eq!(said(&printed, "opened") + said(&printed, "refused"), 6000);
    assert!(said(&printed, "refused") > 1000, "{printed}");
    assert_eq!(said(&printed, "digested"), 6000);
}

#[test]
fn records_of_tls_1_2_that_one_side_seals_the_other_opens() {
    let Some(printed) = run(&["records", "150", "2"], "") else { return };
    assert_eq!(said(&printed, "opened") + said(&printed, "refused"), 150 * 20);
    assert!(said(&printed, "refused") > 300, "{printed}");
}

#[test]
fn what_an_application_must_not_do_is_refused() {
    run(&["misuse"], "");
}

/// The tests of a file of Wycheproof, a line each.
fn lines(name: &str) -> (String, usize) {
    let file = Vectors::wycheproof(name);
    let mut lines = String::new();
    for group in &file.groups {
        let cipher = match name {
            "aes_gcm" => format!("AES-{}-GCM", group["keySize"]),
            _ => "ChaCha20-Poly1305".to_owned(),
        };
        for test in tests(group) {
            let word = |field| Some(text(test, field)).filter(|word| !word.is_empty());
            let words = ["key", "iv", "aad", "msg", "ct", "tag", "result"].map(word);
            let words = words.map(|word| word.unwrap_or("-"));
            writeln!(lines, "{cipher} {}", words.join(" ")).expect("a line");
        }
    }
    (lines, file.number_of_tests)
}

#[test]
fn wycheproof_agrees_with_both_ciphers() {
    for name in ["aes_gcm", "chacha20_poly1305"] {
        let (input, count) = lines(name);
        let Some(printed) = run(&["vectors"], &input) else { return };
        let (agreed, refused) = (said(&printed, "agreed"), said(&printed, "refused"));
        assert_eq!(agreed + refused, count as u64, "{name}");
        // Nonces of lengths that OpenSSL does not take.
        assert!(agreed > 280 && refused < 40, "{name}: {printed}");
    }
}

#[test]
fn connections_over_each_suite_carry_a_long_file() {
    let bench = Bench::with_local(LOCAL);
    let sent = long_file(&bench);
    let suites = [
        ("-tls1_3 -ciphersuites TLS_AES_128_GCM_SHA256", "AES-GCM"),
        ("-tls1_3 -ciphersuites TLS_AES_256_GCM_SHA384", "AES-GCM"),
        ("-tls1_3 -ciphersuites TLS_CHACHA20_POLY1305_SHA256", "ChaCha20-Poly1305"),
        ("-tls1_2 -cipher ECDHE-ECDSA-AES128-GCM-SHA256", "AES-GCM"),
        ("-tls1_2 -cipher ECDHE-ECDSA-AES256-GCM-SHA384", "AES-GCM"),
        ("-tls1_2 -cipher ECDHE-ECDSA-CHACHA20-POLY1305", "ChaCha20-Poly1305"),
    ];
    for (suite, primitive) in suites {
        for (server_config, client_config) in [(Some("local.cnf"), None), (None, Some("local.cnf"))]
        {
            let server = Server::start(&bench, server_config, "-WWW");
            let got = fetch(&bench, client_config, &server, suite);
            assert!(got == sent, "{suite}: {} bytes of {SENT}", got.len());
            if server_config.is_some() {
                let computed = server.computed();
                // Records of 16 KiB each.
                assert!(computed[primitive] >= 64, "{suite}: {computed:?}");
                assert!(computed["SHA2-256"] + computed["SHA2-512"] > 0, "{suite}: {computed:?}");
            }
        }
    }
}
