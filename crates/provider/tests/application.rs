// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The module in a test application (`harness.c`): jobs, forks, threads, handshakes, and the stack that a
//! job uses. Needs a C compiler and OpenSSL's headers; skipped without.
//!
//! `MILLRACE_TEST_OPENSSL` names the folder of another OpenSSL (with `include/`, and the libraries in it
//! or in `lib/`), to try the same module with it; `MILLRACE_TEST_ROOT` an unpacked release whose
//! programs and OpenSSL are used instead of this machine's.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};

use common::{Bench, Running, application, eventually, must};
use millrace_backends::software::Software;
use millrace_operation::{OperationKind, OperationSet};
use millrace_service::policy::KeyPolicy;
use millrace_testkit::faulty::FaultyBackend;

/// Bound on the stack that a job uses, in bytes. It has 32 KiB, and no guard page. Without optimisation,
/// where frames are largest, 13 KiB were measured, a whole TLS handshake included.
const MOST_STACK: u64 = 20 * 1024;

/// The application, compiled once; `None` without a compiler.
fn harness() -> Option<&'static Path> {
    static BUILT: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| common::compiled("harness.c", &["-lssl", "-lcrypto", "-lpthread"]));
    BUILT.as_deref()
}

fn everything() -> KeyPolicy {
    let all = OperationKind::ALL.iter().copied();
    let operations: OperationSet = all.filter(|kind| *kind != OperationKind::RsaRaw).collect();
    KeyPolicy { operations, ..KeyPolicy::signing(["*"]) }
}

fn prepared() -> Bench {
    let bench = Bench::new();
    for (name, options) in [
        ("rsa", "-algorithm RSA -pkeyopt rsa_keygen_bits:2048"),
        ("p256", "-algorithm EC -pkeyopt ec_paramgen_curve:P-256"),
    ] {
        prepare(&bench, name, options);
    }
    bench
}

/// Makes a key that the node has, its stub, and its certificate.
fn prepare(bench: &Bench, name: &str, options: &str) {
    bench.generate(name, options);
    bench.hold(name, everything());
    let line = format!("req -x509 -new -key {name}.pem -subj /CN=mill -days 2 -out {name}.crt");
    must(&bench.stock(&line));
}

fn with_node() -> Bench {
    let mut bench = prepared();
    bench.start(Arc::new(Software::new()));
    bench
}

fn command(bench: &Bench, binary: &Path, what: &str, config: &str, key: &str) -> Command {
    let name = key.split('.').next().expect("name");
    let mut command = application(binary);
    command
        .args([what, key, &format!("{name}.pub"), &format!("{name}.crt")])
        .current_dir(bench.dir.path())
        .env("OPENSSL_CONF", bench.path(config))
        .env("OPENSSL_MODULES", bench.dir.path())
        .stdin(Stdio::null());
    command
}

/// Runs the application and returns its counters.
#[track_caller]
fn run(bench: &Bench, binary: &Path, what: &str, config: &str, key: &str) -> HashMap<String, u64> {
    let text = must(&command(bench, binary, what, config, key).output().expect("harness"));
    let counters: HashMap<String, u64> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect();
    assert_eq!(counters["panics"], 0);
    assert!(counters["stack"] <= MOST_STACK, "{what}: a job took {} bytes", counters["stack"]);
    counters
}

const ROUTES: [(&str, &str); 4] = [
    ("route-a.cnf", "rsa.pem"),
    ("route-a.cnf", "p256.pem"),
    ("plain.cnf", "rsa.stub"),
    ("plain.cnf", "p256.stub"),
];

#[test]
fn jobs_are_paused_and_resumed() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    for (config, key) in ROUTES {
        let counters = run(&bench, binary, "jobs", config, key);
        println!("{key}: {} bytes of stack, {} pauses", counters["stack"], counters["paused"]);
        assert_eq!(counters["pooled"], 32 * 4);
        assert_eq!(counters["fallback"], 0);
        assert_eq!(counters["keys-opened"], 1);
        assert!(counters["paused"] > 0);
    }
}

#[test]
fn groups_are_announced_as_far_as_their_keys_are_offered() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    bench.write_config("rsa-only.cnf", "", "algorithms = RSA");
    bench.write_config("shares.cnf", "", "algorithms = RSA,X25519");
    for (config, least, most) in
        [("plain.cnf", 30, u64::MAX), ("rsa-only.cnf", 0, 0), ("shares.cnf", 1, 1)]
    {
        let groups = run(&bench, binary, "plain", config, "rsa.stub")["groups"];
        assert!((least..=most).contains(&groups), "{config}: {groups} groups");
    }
}

#[test]
fn stub_is_loaded_from_the_der_in_its_pem_block() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    for key in ["rsa.stub", "p256.stub"] {
        assert_eq!(run(&bench, binary, "der", "plain.cnf", key)["pooled"], 1);
    }
}

#[test]
fn application_with_a_callback_is_called_back() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    for (config, key) in ROUTES {
        let counters = run(&bench, binary, "callback", config, key);
        assert_eq!(counters["pooled"], 8 * 2);
    }
}

#[test]
fn spurious_resumes_change_no_result() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    for (config, key) in ROUTES {
        assert_eq!(run(&bench, binary, "spurious", config, key)["pooled"], 4 * 2);
    }
}

#[test]
fn job_blocks_where_pauses_are_blocked() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    for (config, key) in ROUTES {
        assert_eq!(run(&bench, binary, "blocked", config, key)["pooled"], 2);
    }
}

#[test]
fn late_completion_of_an_abandoned_job_does_no_harm() {
    let Some(binary) = harness() else { return };
    let mut bench = prepared();
    let slow = FaultyBackend::new(Arc::new(Software::new()));
    let controls = slow.controls();
    bench.start(Arc::new(slow));
    controls.close_gate();
    for (config, key) in [("route-a.cnf", "rsa.pem"), ("plain.cnf", "rsa.stub")] {
        let mut command = command(&bench, binary, "abandon", config, key);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Running::start(&mut command);
        let mut out = BufReader::new(child.0.stdout.take().expect("stdout"));
        let mut line = String::new();
        out.read_line(&mut line).expect("line");
        assert_eq!(line, "abandoned\n");
        let before = bench.served("rsa-pkcs1-sign");
        controls.open_gate();
        eventually(|| bench.served("rsa-pkcs1-sign") == before + 1);
        child.write(b"\n");
        let status = child.0.wait().expect("harness");
        assert!(status.success(), "{status}");
        controls.close_gate();
    }
    controls.open_gate();
}

#[test]
fn process_with_a_paused_job_ends_cleanly() {
    let Some(binary) = harness() else { return };
    let mut bench = prepared();
    let slow = FaultyBackend::new(Arc::new(Software::new()));
    let controls = slow.controls();
    bench.start(Arc::new(slow));
    controls.close_gate();
    for (config, key) in ROUTES {
        for _ in 0..5 {
            must(&command(&bench, binary, "leave", config, key).output().expect("harness"));
        }
    }
    controls.open_gate();
}

#[test]
fn own_library_contexts_read_the_client_file() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    let text = format!("pool = \"unix:{}\"\n", bench.socket().display());
    bench.write("client.toml", text.as_bytes());
    for key in ["rsa.stub", "p256.stub"] {
        let mut command = command(&bench, binary, "contexts", "plain.cnf", key);
        command.env("MILLRACE_CLIENT_CONF", bench.path("client.toml"));
        must(&command.output().expect("harness"));
    }
    assert_eq!(bench.served("rsa-pkcs1-sign"), 10);
    assert_eq!(bench.served("ecdsa-sign"), 10);
}

#[test]
fn ecdh_secret_is_cut_to_a_short_buffer_as_openssl_does() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    bench.write_config("off.cnf", "", "mode = off");
    for (config, key, pooled) in
        [("off.cnf", "p256.pem", 0), ("route-a.cnf", "p256.pem", 2), ("plain.cnf", "p256.stub", 2)]
    {
        let counters = run(&bench, binary, "derive", config, key);
        assert_eq!(counters["pooled"], pooled, "{config} {key}");
    }
}

#[test]
fn threads_share_one_open_key() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    for (config, key) in ROUTES {
        let counters = run(&bench, binary, "threads", config, key);
        assert_eq!(counters["pooled"], 8 * 20);
        assert_eq!(counters["keys-opened"], 1);
    }
}

#[test]
fn each_forked_process_has_its_own_connection() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    for (config, key) in ROUTES {
        // Four generations; each signs before it forks, after that, and after its child has ended.
        let counters = run(&bench, binary, "fork", config, key);
        assert_eq!(counters["pooled"], 3);
        assert_eq!(counters["fallback"], 0);
    }
}

#[test]
fn handshakes_pause_and_fit_the_job_stack() {
    let Some(binary) = harness() else { return };
    let bench = with_node();
    let mut pauses = 0;
    for (config, key) in ROUTES {
        for version in ["tls13", "tls12"] {
            let counters = run(&bench, binary, version, config, key);
            println!("{version} {key}: {} bytes of stack", counters["stack"]);
            assert_eq!(counters["pooled"], 1, "the certificate is the only thing that is signed");
            pauses += counters["pauses"];
        }
    }
    // A job whose answer is there at once does not pause, but not eight times in a row.
    assert!(pauses > 0);
    for (config, key) in [("route-a.cnf", "rsa.pem"), ("plain.cnf", "rsa.stub")] {
        let counters = run(&bench, binary, "tls12-rsa", config, key);
        println!("tls12-rsa {key}: {} bytes of stack", counters["stack"]);
        assert_eq!(counters["pooled"], 1);
    }
    assert_eq!(bench.served("rsa-tls-premaster"), 2);
}

/// OpenSSL itself verifies and, without a node, signs with ML-DSA on the stack of the job.
#[test]
fn ml_dsa_handshakes_fit_the_job_stack() {
    let Some(binary) = harness() else { return };
    let mut bench = prepared();
    if !must(&bench.stock("list -signature-algorithms")).contains("ML-DSA-87") {
        millrace_testkit::skip!("OpenSSL before 3.5 has no ML-DSA");
    }
    let preferred = "default_properties = ?provider=millrace";
    bench.write_config("all-a.cnf", preferred, "verify = all");
    bench.write_config("all.cnf", "", "verify = all");
    prepare(&bench, "mldsa", "-algorithm ML-DSA-87");
    let counters = run(&bench, binary, "tls13", "all-a.cnf", "mldsa.pem");
    println!("ML-DSA-87 without a node: {} bytes of stack", counters["stack"]);
    assert_eq!((counters["pooled"], counters["fallback"]), (0, 1));
    bench.start(Arc::new(Software::new()));
    for (config, key) in [("all-a.cnf", "mldsa.pem"), ("all.cnf", "mldsa.stub")] {
        let counters = run(&bench, binary, "tls13", config, key);
        println!("{key}: {} bytes of stack", counters["stack"]);
        assert_eq!((counters["pooled"], counters["fallback"]), (1, 0));
    }
    assert_eq!(bench.served("ml-dsa-sign"), 2);
}

#[test]
fn jobs_without_a_node_fall_back_to_the_local_key() {
    let Some(binary) = harness() else { return };
    let bench = prepared();
    let counters = run(&bench, binary, "jobs", "route-a.cnf", "rsa.pem");
    assert_eq!(counters["fallback"], 32 * 4);
    assert_eq!(counters["pooled"], 0);
    assert!(counters["fallback-breaker"] > 0, "{counters:?}");
}

#[test]
fn jobs_fall_back_when_the_node_does_not_answer() {
    let Some(binary) = harness() else { return };
    let mut bench = prepared();
    let slow = FaultyBackend::new(Arc::new(Software::new()));
    let controls = slow.controls();
    bench.start(Arc::new(slow));
    controls.close_gate();
    bench.write_config(
        "impatient.cnf",
        "default_properties = ?provider=millrace",
        "fallback_after_ms = 50",
    );
    let counters = run(&bench, binary, "jobs", "impatient.cnf", "rsa.pem");
    assert_eq!(counters["fallback"], 32 * 4);
    controls.open_gate();
    eventually(|| bench.path("run/node.sock").exists());
}
