// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys that the application loads from its own files and that sign in this process by AWS-LC. Counters prove who
//! signed in a handshake, the `default` provider verifies the signatures, and keys are written as by OpenSSL.

mod common;

use common::server::{Server, connect};
use common::{Bench, must};
use millrace_testkit::vectors::{Vectors, bytes, tests, text};

/// Every primitive in this process, no key in the pool.
const LOCAL: &str = "local = all\nalgorithms = none\nmode = off";

/// A key: its counter, and how `openssl` makes it.
struct Kind {
    counter: &'static str,
    options: &'static str,
    /// A digest is signed, and not the message.
    is_digest: bool,
}

#[rustfmt::skip]
const KINDS: [Kind; 6] = [
    Kind { counter: "P-384", options: "-algorithm EC -pkeyopt ec_paramgen_curve:P-384", is_digest: true },
    Kind { counter: "P-521", options: "-algorithm EC -pkeyopt ec_paramgen_curve:P-521", is_digest: true },
    Kind { counter: "ED25519", options: "-algorithm ED25519", is_digest: false },
    Kind { counter: "ML-DSA-44", options: "-algorithm ML-DSA-44", is_digest: false },
    Kind { counter: "ML-DSA-65", options: "-algorithm ML-DSA-65", is_digest: false },
    Kind { counter: "ML-DSA-87", options: "-algorithm ML-DSA-87", is_digest: false },
];

/// A folder with the configuration, and the kinds that this OpenSSL has.
fn prepared() -> (Bench, Vec<Kind>) {
    let bench = Bench::new();
    let prefer = "default_properties = ?millrace.local=yes";
    bench.write_config("local.cnf", prefer, LOCAL);
    bench.write("message", b"the mill is not the river\n");
    let known = must(&bench.stock("list -key-managers"));
    let has = |kind: &Kind| !kind.counter.starts_with("ML-") || known.contains(kind.counter);
    (bench, KINDS.into_iter().filter(has).collect())
}

/// Makes `server.key` and `server.crt`.
fn certify(bench: &Bench, options: &str) {
    must(&bench.stock(&format!("genpkey {options} -out server.key")));
    must(
        &bench.stock("req -x509 -new -key server.key -subj /CN=localhost -days 2 -out server.crt"),
    );
}

#[test]
fn handshake_is_signed_locally_with_every_key_that_is_faster_so() {
    let (bench, kinds) = prepared();
    for kind in kinds {
        certify(&bench, kind.options);
        let server = Server::start(&bench, Some("local.cnf"), "");
        for handshakes in 1..=3 {
            let said = must(&connect(&bench, None, &server, ""));
            assert!(said.contains("Verify return code: 0"), "{said}");
            let computed = server.computed();
            assert_eq!(computed[kind.counter], handshakes, "{computed:?}");
        }
        let signed = server.computed().into_iter();
        let signed = signed.filter(|(name, _)| KINDS.iter().any(|kind| kind.counter == name));
        assert_eq!(signed.map(|(_, count)| count).sum::<u64>(), 3);
    }
}

#[test]
fn handshake_with_p256_or_rsa_key_is_signed_by_openssl() {
    let (bench, _) = prepared();
    for options in [
        "-algorithm EC -pkeyopt ec_paramgen_curve:P-256",
        "-algorithm RSA -pkeyopt rsa_keygen_bits:2048",
    ] {
        certify(&bench, options);
        let server = Server::start(&bench, Some("local.cnf"), "-groups P-256:P-384");
        let said = must(&connect(&bench, None, &server, "-groups P-384"));
        assert!(said.contains("Verify return code: 0"), "{said}");
        let computed = server.computed();
        assert!(computed["TLS13-KDF"] > 0, "{computed:?}");
        for kind in &KINDS {
            assert_eq!(computed[kind.counter], 0, "{options}: {computed:?}");
        }
    }
}

/// The command that signs `message` into `name`.
fn sign(kind: &Kind, key: &str, digest: &str, name: &str) -> String {
    if kind.is_digest {
        format!("dgst -{digest} -sign {key} -out {name} message")
    } else {
        format!("pkeyutl -sign -rawin -inkey {key} -in message -out {name}")
    }
}

/// The command that verifies `name`.
fn verify(kind: &Kind, digest: &str, name: &str) -> String {
    if kind.is_digest {
        format!("dgst -{digest} -verify key.pub -signature {name} message")
    } else {
        format!("pkeyutl -verify -rawin -pubin -inkey key.pub -in message -sigfile {name}")
    }
}

#[test]
fn signature_of_every_digest_verifies_with_openssl() {
    let (bench, kinds) = prepared();
    for kind in kinds {
        bench.generate("key", kind.options);
        // AWS-LC has no SHA-3 for this: OpenSSL signs.
        let digests: &[&str] = if kind.is_digest {
            &["sha1", "sha224", "sha256", "sha384", "sha512", "sha3-256"]
        } else {
            &["none"]
        };
        for digest in digests {
            must(&bench.with_config("local.cnf", &sign(&kind, "key.pem", digest, "ours")));
            must(&bench.stock(&verify(&kind, digest, "ours")));
            must(&bench.stock(&sign(&kind, "key.pem", digest, "theirs")));
            must(&bench.with_config("local.cnf", &verify(&kind, digest, "theirs")));
            // Only Ed25519 has one signature for a message.
            let is_same = bench.read("ours") == bench.read("theirs");
            assert_eq!(is_same, kind.counter == "ED25519", "{}", kind.counter);
        }
        // What was not signed is refused.
        bench.write("message", b"another message\n");
        common::must_fail(&bench.with_config("local.cnf", &verify(&kind, digests[0], "ours")));
        bench.write("message", b"the mill is not the river\n");
    }
}

#[test]
fn keys_are_made_written_read_and_exported_as_by_openssl() {
    let (bench, kinds) = prepared();
    let local = |line: &str| must(&bench.with_config("local.cnf", line));
    let stock = |line: &str| must(&bench.stock(line));
    for kind in kinds {
        local(&format!("genpkey {} -out ours.pem", kind.options));
        stock(&format!("genpkey {} -out theirs.pem", kind.options));
        for name in ["ours", "theirs"] {
            let show = format!("pkey -in {name}.pem -text -noout");
            assert_eq!(local(&show), stock(&show), "{}", kind.counter);
            local(&format!("pkey -in {name}.pem -out {name}.copy"));
            let [file, copy] = ["pem", "copy"].map(|kind| bench.read(&format!("{name}.{kind}")));
            assert_eq!(file, copy, "{}", kind.counter);
            local(&format!("pkey -in {name}.pem -check -noout"));
            // PKCS#12 encodes and decodes the key by way of the `default` provider.
            local(&format!("req -x509 -new -key {name}.pem -subj /CN=a -out {name}.crt"));
            stock(&format!("verify -CAfile {name}.crt {name}.crt"));
            local(&format!(
                "pkcs12 -export -inkey {name}.pem -in {name}.crt -passout pass:x -out {name}.p12"
            ));
            local(&format!(
                "pkcs12 -in {name}.p12 -nodes -nocerts -passin pass:x -out {name}.back"
            ));
            let back = format!("pkey -in {name}.back -text -noout");
            assert_eq!(stock(&back), stock(&show), "{}", kind.counter);
        }
    }
}

#[test]
fn wycheproof_ed25519_messages_are_verified_as_by_openssl() {
    let (bench, _) = prepared();
    let file = Vectors::wycheproof("ed25519");
    let of_group = |group| tests(group).iter().map(move |test| (group, test));
    let all = file.groups.iter().flat_map(of_group);
    let mut results = [0, 0];
    // Each is a process, so every fifth.
    for (group, test) in all.step_by(5) {
        bench.write("key.pem", text(group, "publicKeyPem").as_bytes());
        bench.write("text", &bytes(test, "msg"));
        bench.write("sig", &bytes(test, "sig"));
        if bytes(test, "msg").is_empty() {
            continue;
        }
        let line = "pkeyutl -verify -rawin -pubin -inkey key.pem -in text -sigfile sig";
        let is_valid = text(test, "result") == "valid";
        let output = bench.with_config("local.cnf", line);
        assert_eq!(output.status.success(), is_valid, "{test}");
        results[usize::from(is_valid)] += 1;
    }
    assert!(results[0] > 5 && results[1] > 5, "{results:?}");
}

/// The pool signs with its own keys alone; with `?provider=millrace` it also imports the keys of files.
#[test]
fn key_of_a_file_signs_locally_unless_all_keys_are_given_to_the_pool() {
    let mut bench = Bench::new();
    bench.write("message", b"the mill is not the river\n");
    bench.generate("key", KINDS[0].options);
    bench.generate("held", KINDS[0].options);
    bench.hold("held", millrace_service::policy::KeyPolicy::signing(["*"]));
    bench.start(std::sync::Arc::new(millrace_backends::software::Software::new()));
    bench.write_config("rest.cnf", "default_properties = ?millrace.local=yes", "local = all");
    bench.write_config("all.cnf", "default_properties = ?provider=millrace", "local = all");
    let by = |config: &str, key: &str| {
        must(&bench.with_config(config, &sign(&KINDS[0], key, "sha384", "signature")));
        bench.served("ecdsa-sign")
    };
    assert_eq!(by("rest.cnf", "key.pem"), 0);
    must(&bench.stock(&verify(&KINDS[0], "sha384", "signature")));
    assert_eq!(by("rest.cnf", "held.stub"), 1);
    assert_eq!(by("all.cnf", "key.pem"), 2);
    must(&bench.stock(&verify(&KINDS[0], "sha384", "signature")));
}
