// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Primitives that the module computes itself, in the `openssl` command: handshakes whose counters prove who computed
//! them, known answers, and agreement with the `default` provider.

mod common;

use std::fs;

use common::server::{Server, connect};
use common::{Bench, must, must_fail};
use millrace_provider::algorithms::Share;
use millrace_provider::local::share::ShareKey;
use millrace_testkit::vectors::{Vectors, bytes, tests, text};

/// Every primitive in this process, no key in the pool.
const LOCAL: &str = "local = all\nalgorithms = none\nmode = off";

/// Whether this OpenSSL has ML-DSA.
fn has_ml_dsa(bench: &Bench) -> bool {
    must(&bench.stock("list -key-managers")).contains("ML-DSA-65")
}

/// Whether this OpenSSL has ML-KEM and its TLS groups.
fn has_ml_kem(bench: &Bench) -> bool {
    must(&bench.stock("list -key-managers")).contains("ML-KEM-768")
}

#[test]
fn handshake_with_x25519_is_computed_locally_on_both_sides() {
    let bench = Bench::with_local(LOCAL);
    for (server_config, client_config) in [
        (Some("local.cnf"), None),
        (None, Some("local.cnf")),
        (Some("local.cnf"), Some("local.cnf")),
    ] {
        let server = Server::start(&bench, server_config, "");
        for suite in ["TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"] {
            let options = format!("-groups X25519 -ciphersuites {suite}");
            let output = connect(&bench, client_config, &server, &options);
            let said = must(&output);
            assert!(said.contains("Verify return code: 0") && said.contains("X25519"), "{said}");
        }
        if server_config.is_some() {
            let computed = server.computed();
            // A pair and a secret for each handshake.
            assert_eq!(computed["X25519"], 4, "{computed:?}");
            assert!(computed["TLS13-KDF"] >= 2 * 15, "{computed:?}");
        }
    }
}

#[test]
fn hybrid_groups_are_served_by_every_openssl_3() {
    let bench = Bench::with_local(LOCAL);
    let has_ml_kem = has_ml_kem(&bench);
    let mut groups =
        vec![("X25519MLKEM768", "X25519MLKEM768"), ("SecP256r1MLKEM768", "SecP256r1MLKEM768")];
    if !has_ml_kem {
        groups.push(("MLKEM768", "ML-KEM-768"));
    }
    for (group, name) in groups {
        let options = format!("-groups {group}");
        let server = Server::start(&bench, Some("local.cnf"), &options);
        let said = must(&connect(&bench, Some("local.cnf"), &server, &options));
        assert!(said.contains("Verify return code: 0"), "{said}");
        assert_eq!(server.computed()[name], 1, "{group}");
        // OpenSSL's own implementation agrees, on either side.
        if has_ml_kem {
            must(&connect(&bench, None, &server, &options));
            assert_eq!(server.computed()[name], 2, "{group}");
            let stock = Server::start(&bench, None, &options);
            must(&connect(&bench, Some("local.cnf"), &stock, &options));
        }
    }
}

#[test]
fn nothing_is_computed_locally_unless_the_setting_names_it() {
    let bench = Bench::with_local(LOCAL);
    let prefer = "default_properties = ?millrace.local=yes";
    bench.write_config("off.cnf", prefer, "algorithms = none\nmode = off");
    let list = |config| {
        [
            "key-managers",
            "key-exchange-algorithms",
            "kdf-algorithms",
            "kem-algorithms",
            "cipher-algorithms",
            "digest-algorithms",
        ]
        .map(|what| must(&bench.with_config(config, &format!("list -{what}"))))
        .concat()
    };
    assert_eq!(list("off.cnf").matches("@ millrace").count(), 0);
    bench.write_config("some.cnf", prefer, "algorithms = none\nlocal = X25519,TLS13-KDF");
    assert_eq!(list("some.cnf").matches("@ millrace").count(), 3);
    let all = list("local.cnf");
    // X25519 and its exchange, and the KDF. Two hybrids, and ML-KEM alone where OpenSSL has none, each twice. The keys
    // that sign in this process: EC with its exchange, Ed25519, and ML-DSA in three sizes where OpenSSL has it. Four
    // ciphers of records, and six digests.
    let shares = if has_ml_kem(&bench) { 2 } else { 3 };
    let keys = 3 + 3 * usize::from(has_ml_dsa(&bench));
    assert_eq!(all.matches("@ millrace").count(), 3 + 2 * shares + keys + 4 + 6, "{all}");
    let server = Server::start(&bench, Some("some.cnf"), "-groups X25519");
    must(&connect(&bench, None, &server, ""));
    let computed = server.computed();
    assert_eq!(computed["X25519"], 2, "{computed:?}");
    assert_eq!(computed["X25519MLKEM768"], 0, "{computed:?}");
}

#[test]
fn wycheproof_x25519_agrees() {
    let file = Vectors::wycheproof("x25519");
    assert!(file.number_of_tests > 500);
    for test in file.groups.iter().flat_map(tests) {
        let key = ShareKey::from_private(Share::X25519, &bytes(test, "private")).expect("32 bytes");
        let peer = spki_key(&bytes(test, "public"));
        let shared = bytes(test, "shared");
        let secret = key.agree(&peer).map(|secret| secret.to_vec()).ok();
        // The point of small order gives zeros, which TLS refuses.
        let expected = shared.iter().any(|byte| *byte != 0).then_some(shared);
        assert_eq!(secret, expected, "{test}");
    }
}

/// The last 32 bytes of a public key, DER or bare.
fn spki_key(encoded: &[u8]) -> ShareKey {
    let raw = &encoded[encoded.len() - 32..];
    ShareKey::from_public(Share::X25519, raw).expect("32 bytes")
}

#[test]
fn wycheproof_ml_kem_decapsulation_agrees() {
    let file = Vectors::wycheproof("mlkem_768_semi_expanded_decaps");
    for test in file.groups.iter().flat_map(tests) {
        let secret = ShareKey::from_private(Share::MlKem768, &bytes(test, "dk"))
            .and_then(|key| key.decapsulate(&bytes(test, "c")));
        match text(test, "result") {
            "valid" => assert_eq!(secret.expect("valid").to_vec(), bytes(test, "K"), "{test}"),
            _ => assert!(secret.is_err(), "{test}"),
        }
    }
}

#[test]
fn x25519_keys_are_made_written_read_and_used_as_by_openssl() {
    let bench = Bench::with_local(LOCAL);
    let local = |line: &str| must(&bench.with_config("local.cnf", line));
    let stock = |line: &str| must(&bench.stock(line));
    local("genpkey -algorithm X25519 -out ours.pem");
    stock("genpkey -algorithm X25519 -out theirs.pem");
    for name in ["ours", "theirs"] {
        let text = |run: &dyn Fn(&str) -> String| run(&format!("pkey -in {name}.pem -text -noout"));
        assert_eq!(text(&local), text(&stock), "{name}");
        local(&format!("pkey -in {name}.pem -pubout -out {name}.pub"));
        local(&format!("pkey -in {name}.pem -out {name}.copy"));
        let file =
            |suffix: &str| fs::read(bench.path(&format!("{name}.{suffix}"))).expect("written");
        assert_eq!(file("pem"), file("copy"), "{name}");
        local(&format!("pkey -in {name}.pem -check -noout"));
        stock(&format!("pkey -pubin -in {name}.pub -pubcheck -noout"));
    }
    let derive = |key: &str, peer: &str, out: &str| {
        format!("pkeyutl -derive -inkey {key}.pem -peerkey {peer}.pub -out {out}")
    };
    local(&derive("ours", "theirs", "one"));
    stock(&derive("ours", "theirs", "two"));
    local(&derive("theirs", "ours", "three"));
    let secret = |name: &str| fs::read(bench.path(name)).expect("a secret");
    assert_eq!(secret("one").len(), 32);
    assert_eq!(secret("one"), secret("two"));
    assert_eq!(secret("one"), secret("three"));
}

#[test]
fn key_derivation_agrees_with_openssl_for_every_digest_and_mode() {
    let bench = Bench::with_local(LOCAL);
    let key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    // 3.0.2 reads as many bytes of a salt as the digest has, also those behind its end.
    let reads_past = must(&bench.stock("version")).starts_with("OpenSSL 3.0.2 ");
    for digest in ["SHA256", "SHA384", "SHA512", "SHA1", "SHA3-256"] {
        for (mode, options, len) in [
            ("EXPAND_ONLY", format!("-kdfopt hexkey:{key} -kdfopt data:transcript"), 77),
            ("EXTRACT_ONLY", format!("-kdfopt hexkey:{key} -kdfopt hexsalt:{key}"), 0),
            ("EXTRACT_ONLY", String::new(), 0),
        ] {
            if reads_past && options.contains("salt") && !digest.ends_with("256") {
                continue;
            }
            let len = match (len, digest) {
                (0, "SHA1") => 20,
                (0, "SHA384") => 48,
                (0, "SHA512") => 64,
                (0, _) => 32,
                (len, _) => len,
            };
            let line = format!(
                "kdf -keylen {len} -kdfopt mode:{mode} -kdfopt digest:{digest} -kdfopt prefix:tls13- \
                 -kdfopt label:derived {options} TLS13-KDF"
            );
            let ours = must(&bench.with_config("local.cnf", &line));
            assert_eq!(ours, must(&bench.stock(&line)), "{line}");
        }
    }
    // What OpenSSL refuses is refused.
    for options in [
        "-keylen 31 -kdfopt mode:EXTRACT_ONLY -kdfopt digest:SHA256",
        "-keylen 32 -kdfopt mode:EXTRACT_AND_EXPAND -kdfopt digest:SHA256 -kdfopt key:k",
        "-keylen 32 -kdfopt mode:EXPAND_ONLY -kdfopt key:k",
    ] {
        let line = format!("kdf {options} TLS13-KDF");
        must_fail(&bench.stock(&line));
        must_fail(&bench.with_config("local.cnf", &line));
    }
}

#[test]
fn x25519_key_of_the_pool_is_refused_with_a_reason_and_the_rest_stays() {
    let mut bench = Bench::with_local(LOCAL);
    bench.generate("x25519", "-algorithm X25519");
    bench.generate("p256", "-algorithm EC -pkeyopt ec_paramgen_curve:P-256");
    for name in ["x25519", "p256"] {
        bench.hold(name, millrace_service::policy::KeyPolicy::signing(["*"]));
    }
    bench.start(std::sync::Arc::new(millrace_backends::software::Software::new()));
    bench.write_config("pool.cnf", "default_properties = ?millrace.local=yes", "local = all");
    let said = must_fail(&bench.with_config("pool.cnf", "pkey -in x25519.stub -pubout"));
    assert!(said.contains("the setting `local` has X25519"), "{said}");
    bench.write("message", b"the mill is not the river\n");
    must(&bench.with_config("pool.cnf", "dgst -sha256 -sign p256.stub -out signature message"));
    let verify = "dgst -sha256 -verify p256.pub -signature signature message";
    assert!(must(&bench.stock(verify)).contains("Verified OK"));
    assert_eq!(bench.served("ecdsa-sign"), 1);
}

/// The lines of a file of costs: primitive, cost by AWS-LC, cost in OpenSSL.
fn costs(bench: &Bench) -> Vec<(String, u64, Option<u64>)> {
    let text = fs::read_to_string(bench.path("choice.tsv")).expect("the file of costs");
    let lines = text.lines().map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        let here = columns[2].parse().expect("a cost");
        (columns[1].to_owned(), here, columns[3].parse().ok())
    });
    lines.collect()
}

#[test]
fn what_was_measured_to_be_slower_is_left_to_openssl_unless_it_is_named() {
    let bench = Bench::with_local(LOCAL);
    let prefer = "default_properties = ?millrace.local=yes";
    let file = bench.path("choice.tsv");
    let settings = |local: &str| {
        let file = file.display();
        format!("algorithms = none\nmode = off\nchoice_file = {file}\nlocal = {local}")
    };
    bench.write_config("on.cnf", prefer, &settings("on"));
    bench.write_config("named.cnf", prefer, &settings("X25519"));
    bench.write_config("all.cnf", prefer, &settings("all"));
    let offered = |config: &str| {
        let managers = must(&bench.with_config(config, "list -key-managers"));
        let lines = managers.lines().filter(|line| line.contains("@ millrace"));
        let names: Vec<String> = lines.map(str::to_owned).collect();
        names
    };
    // The whole name: X25519 is also the start of another.
    let has = |names: &[String], name: &str| {
        let between = |letter: char| !letter.is_ascii_alphanumeric();
        names.iter().any(|line| line.split(between).any(|word| word == name))
    };
    let first = offered("on.cnf");
    let measured = costs(&bench);
    let signing = if has_ml_dsa(&bench) { 6 } else { 3 };
    assert_eq!(measured.len(), 5 + signing + 4, "{measured:?}");
    for (name, here, there) in &measured {
        assert!(*here > 0, "{name}");
        let known_there = has_ml_kem(&bench) || !name.to_uppercase().contains("ML");
        assert_eq!(there.is_some(), known_there, "{name}");
        let wins = there.is_none_or(|there| *here < there);
        if name.starts_with("X25519") || name.starts_with("SecP") {
            assert_eq!(has(&first, name), wins, "{name}: {measured:?} {first:?}");
        }
    }
    // The file decides from now on: it says that X25519 is slow by AWS-LC.
    let before = fs::read_to_string(&file).expect("the file");
    let slower = |line: &str| match line.split_once("\tX25519\t") {
        Some((system, _)) => format!("{system}\tX25519\t9\t8\n"),
        None => format!("{line}\n"),
    };
    let slow: String = before.lines().map(slower).collect();
    fs::write(&file, &slow).expect("written");
    let second = offered("on.cnf");
    assert!(!has(&second, "X25519"), "{second:?}");
    assert_eq!(fs::read_to_string(&file).expect("the file"), slow, "nothing is measured again");
    for config in ["named.cnf", "all.cnf"] {
        assert!(has(&offered(config), "X25519"), "{config}");
    }
    assert_eq!(offered("named.cnf").len(), 1);
    // A file of another system says nothing about this one.
    fs::write(&file, "another system\tX25519\t9\t8\n").expect("written");
    offered("on.cnf");
    assert_eq!(costs(&bench).len(), measured.len() + 1);
}

#[test]
fn pairs_made_ahead_are_used_once_and_counted() {
    if !millrace_provider::local::precomputed::is_available() {
        millrace_testkit::skip!("no AVX-512 IFMA: this processor makes no pairs ahead");
    }
    let bench = Bench::with_local(LOCAL);
    let prefer = "default_properties = ?millrace.local=yes";
    bench.write_config("ahead.cnf", prefer, LOCAL);
    bench.write_config("fresh.cnf", prefer, &format!("{LOCAL}\npairs_ahead = off"));
    let mut shares = std::collections::HashSet::new();
    for (config, may_be_ahead) in [("ahead.cnf", true), ("fresh.cnf", false)] {
        let server = Server::start(&bench, Some(config), "-groups X25519");
        for _ in 0..12 {
            let said = must(&connect(&bench, None, &server, "-groups X25519 -msg"));
            let (_, hello) = said.split_once("ServerHello").expect("the messages");
            let hello: String = hello.lines().skip(1).take(8).collect();
            assert!(shares.insert(hello), "a ServerHello was seen before");
        }
        let computed = server.computed();
        assert_eq!(computed["X25519"], 24, "{computed:?}");
        let (used, dropped) = (computed["pairs-ahead"], computed["pairs-dropped"]);
        if may_be_ahead {
            // On a busy machine some are too old when their turn comes.
            assert!(used + dropped <= 7 * 12 && used <= 12, "{computed:?}");
        } else {
            assert_eq!((used, dropped), (0, 0));
        }
    }
}
