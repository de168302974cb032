// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The module in the `openssl` command, against a real node: every route and every operation, without a
//! node, and with a node that returns wrong results.

mod common;

use std::sync::Arc;

use common::{Bench, must, must_fail, texts};
use millrace_backends::software::Software;
use millrace_operation::stub::pem_to_der;
use millrace_operation::{OperationKind, OperationSet};
use millrace_service::policy::KeyPolicy;
use millrace_service::store::KeyStore;
use millrace_testkit::faulty::{FaultyBackend, InjectedFault};

const RSA: &str = "-algorithm RSA -pkeyopt rsa_keygen_bits:2048";
const P256: &str = "-algorithm EC -pkeyopt ec_paramgen_curve:P-256";
const P384: &str = "-algorithm EC -pkeyopt ec_paramgen_curve:P-384";
const ED25519: &str = "-algorithm ED25519";
const X25519: &str = "-algorithm X25519";

/// A policy that allows everything that a stored key can be allowed.
fn everything() -> KeyPolicy {
    let all = OperationKind::ALL.iter().copied();
    let operations: OperationSet = all.filter(|kind| *kind != OperationKind::RsaRaw).collect();
    KeyPolicy { operations, ..KeyPolicy::signing(["*"]) }
}

/// A node that holds one key of each kind; the same keys are in PEM files, and as stubs.
fn full() -> Bench {
    let mut bench = Bench::new();
    for (name, options) in
        [("rsa", RSA), ("p256", P256), ("p384", P384), ("ed25519", ED25519), ("x25519", X25519)]
    {
        bench.generate(name, options);
        bench.hold(name, everything());
    }
    bench.write("message", b"the mill is not the river\n");
    bench.start(Arc::new(Software::new()));
    bench
}

#[test]
fn module_exports_its_entry_point_only() {
    let output = std::process::Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(common::module())
        .output()
        .expect("nm");
    let text = must(&output);
    let symbols: Vec<&str> =
        text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(symbols, ["OSSL_provider_init"]);
}

#[test]
fn provider_lists_itself_and_its_algorithms() {
    let bench = Bench::new();
    let providers = must(&bench.route_a("list -providers -verbose"));
    assert!(providers.contains("Millrace provider"), "{providers}");
    assert!(providers.contains("millrace-pooled"), "{providers}");
    // OpenSSL 3.4 brought signatures with a digest in their name, OpenSSL 3.5 ML-DSA in three sizes.
    let all = must(&bench.route_a("list -signature-algorithms"));
    let ml_dsa = if all.contains("ML-DSA-65") { 3 } else { 0 };
    let signatures = if all.contains("RSA-SHA2-256") { 21 } else { 5 } + ml_dsa;
    for (what, count) in [
        ("key-managers", 10 + ml_dsa),
        ("signature-algorithms", signatures),
        ("key-exchange-algorithms", 4),
        ("asymcipher-algorithms", 1),
        ("decoders", 2),
        ("store-loaders", 1),
    ] {
        let list = must(&bench.route_a(&format!("list -{what}")));
        let ours = list.lines().filter(|line| line.contains("@ millrace")).count();
        assert_eq!(ours, count, "{list}");
        must(&bench.route_a(&format!("list -{what} -verbose")));
    }
}

#[test]
fn provider_without_key_types_has_no_decoders() {
    let bench = Bench::new();
    bench.write_config("none.cnf", "", "algorithms = none");
    let list = must(&bench.with_config("none.cnf", "list -decoders"));
    assert!(!list.contains("@ millrace"), "{list}");
}

#[test]
fn stub_is_read_in_every_form_in_which_openssl_reads_a_key() {
    let bench = full();
    let pem = String::from_utf8(bench.read("p256.stub")).expect("text");
    let block = &pem[pem.find("-----BEGIN").expect("a block")..];
    must(&bench.stock("req -x509 -new -key rsa.pem -subj /CN=mill -days 2 -out rsa.crt"));
    let certificate = String::from_utf8(bench.read("rsa.crt")).expect("text");
    bench.write("marked", format!("\u{feff}{block}").as_bytes());
    bench.write("marked-text", format!("\u{feff}{pem}").as_bytes());
    bench.write("marked-bundle", format!("\u{feff}{certificate}{pem}").as_bytes());
    bench.write("bundle", format!("{pem}{certificate}").as_bytes());
    bench.write("der", &pem_to_der(block).expect("a stub"));
    let public = must(&bench.stock("pkey -pubin -in p256.pub"));
    for config in ["plain.cnf", "route-a.cnf"] {
        for (file, form) in [
            ("marked", ""),
            ("marked-text", "-inform PEM"),
            ("marked-bundle", ""),
            ("bundle", ""),
            ("p256.stub", "-inform PEM"),
            ("der", ""),
            ("der", "-inform DER"),
        ] {
            let line = format!("pkey -in {file} {form} -pubout");
            assert_eq!(must(&bench.with_config(config, &line)), public, "{file} {form}");
        }
        let listed = must(&bench.with_config(config, "storeutl -noout bundle"));
        assert!(listed.contains("Total found: 2"), "{listed}");
        must(&bench.with_config(config, "x509 -in bundle -noout"));
        sign_and_verify(&bench, config, "marked", "p256.pub", "");
    }
}

#[test]
fn key_type_names_are_those_of_the_default_provider() {
    let bench = Bench::new();
    let list = must(&bench.route_a("list -key-managers"));
    let names = |provider: &str| -> Vec<String> {
        let suffix = format!(" @ {provider}");
        list.lines()
            .filter_map(|line| line.trim().strip_suffix(&suffix).map(str::to_owned))
            .collect()
    };
    let default = names("default");
    for name in names("millrace") {
        assert!(default.contains(&name), "{name} is not a name of default: {default:?}");
    }
}

#[test]
fn key_types_left_out_of_the_configuration_are_not_offered() {
    let bench = Bench::new();
    bench.write_config("rsa-only.cnf", "", "algorithms = RSA");
    let list = must(&bench.with_config("rsa-only.cnf", "list -key-managers"));
    assert_eq!(list.matches("@ millrace").count(), 1, "{list}");
}

/// Signs with `key` under the configuration `config`, and verifies with stock OpenSSL.
#[track_caller]
fn sign_and_verify(bench: &Bench, config: &str, key: &str, public: &str, options: &str) {
    let sign = format!("dgst -sha256 {options} -sign {key} -out signature message");
    let output = bench.with_config(config, &sign);
    let (_, log) = texts(&output);
    must(&output);
    assert!(!log.contains("millrace:"), "the pool did not do it: {log}");
    let verify = format!("dgst -sha256 {options} -verify {public} -signature signature message");
    assert!(must(&bench.stock(&verify)).contains("Verified OK"));
    // The provider verifies, too.
    assert!(must(&bench.route_a(&verify)).contains("Verified OK"));
}

#[test]
fn plain_keys_are_imported_into_the_pool() {
    let bench = full();
    sign_and_verify(&bench, "route-a.cnf", "rsa.pem", "rsa.pub", "");
    assert_eq!(bench.served("rsa-pkcs1-sign"), 1);
    for salt in ["", "-sigopt rsa_pss_saltlen:digest", "-sigopt rsa_pss_saltlen:20"] {
        let options = format!("-sigopt rsa_padding_mode:pss {salt}");
        sign_and_verify(&bench, "route-a.cnf", "rsa.pem", "rsa.pub", &options);
    }
    let mgf1 = "-sigopt rsa_padding_mode:pss -sigopt rsa_mgf1_md:sha512 -sigopt rsa_pss_saltlen:32";
    sign_and_verify(&bench, "route-a.cnf", "rsa.pem", "rsa.pub", mgf1);
    assert_eq!(bench.served("rsa-pss-sign"), 4);
    sign_and_verify(&bench, "route-a.cnf", "p256.pem", "p256.pub", "");
    sign_and_verify(&bench, "route-a.cnf", "p384.pem", "p384.pub", "");
    assert_eq!(bench.served("ecdsa-sign"), 2);
}

#[test]
fn stubs_sign_in_the_pool_without_default_properties() {
    let bench = full();
    for config in ["plain.cnf", "route-a.cnf"] {
        sign_and_verify(&bench, config, "rsa.stub", "rsa.pub", "");
        sign_and_verify(&bench, config, "rsa.stub", "rsa.pub", "-sigopt rsa_padding_mode:pss");
        sign_and_verify(&bench, config, "p256.stub", "p256.pub", "");
    }
    assert_eq!(bench.served("rsa-pkcs1-sign"), 2);
    assert_eq!(bench.served("rsa-pss-sign"), 2);
    assert_eq!(bench.served("ecdsa-sign"), 2);
}

#[test]
fn uri_of_a_pool_key_signs_in_the_pool() {
    let bench = full();
    for config in ["plain.cnf", "route-a.cnf"] {
        sign_and_verify(&bench, config, "millrace:rsa", "rsa.pub", "");
        sign_and_verify(&bench, config, "millrace:p256", "p256.pub", "");
    }
    let error = must_fail(&bench.plain("pkey -in millrace:unknown -noout"));
    assert!(error.contains("no such key"), "{error}");
}

#[test]
fn ed25519_messages_are_signed_in_the_pool() {
    let bench = full();
    for (config, key) in [
        ("route-a.cnf", "ed25519.pem"),
        ("plain.cnf", "ed25519.stub"),
        ("plain.cnf", "millrace:ed25519"),
    ] {
        let line = format!("pkeyutl -sign -rawin -inkey {key} -in message -out signature");
        must(&bench.with_config(config, &line));
        let verify =
            "pkeyutl -verify -rawin -pubin -inkey ed25519.pub -in message -sigfile signature";
        must(&bench.stock(verify));
        must(&bench.route_a(verify));
    }
    assert_eq!(bench.served("ed25519-sign"), 3);
}

#[test]
fn digests_without_message_are_signed_in_the_pool() {
    let bench = full();
    bench.write("digest", &[0x5a; 32]);
    for (config, rsa, p256) in
        [("route-a.cnf", "rsa.pem", "p256.pem"), ("plain.cnf", "rsa.stub", "p256.stub")]
    {
        for (key, options) in [
            (rsa, "-pkeyopt digest:sha256"),
            (
                rsa,
                "-pkeyopt digest:sha256 -pkeyopt rsa_padding_mode:pss -pkeyopt rsa_pss_saltlen:-1",
            ),
            (p256, ""),
        ] {
            let sign = format!("pkeyutl -sign -inkey {key} {options} -in digest -out signature");
            must(&bench.with_config(config, &sign));
            let public = if key == rsa { "rsa.pub" } else { "p256.pub" };
            let verify = format!(
                "pkeyutl -verify -pubin -inkey {public} {options} -in digest -sigfile signature"
            );
            must(&bench.stock(&verify));
        }
    }
    assert_eq!(bench.served("rsa-pkcs1-sign"), 2);
    assert_eq!(bench.served("rsa-pss-sign"), 2);
    assert_eq!(bench.served("ecdsa-sign"), 2);
}

#[test]
fn ecdh_and_x25519_are_derived_in_the_pool() {
    let bench = full();
    bench.generate("peer256", P256);
    bench.generate("peer25519", X25519);
    for (name, peer) in [("p256", "peer256"), ("x25519", "peer25519")] {
        must(&bench.stock(&format!(
            "pkeyutl -derive -inkey {name}.pem -peerkey {peer}.pub -out expected"
        )));
        for (config, key) in [
            ("route-a.cnf", format!("{name}.pem")),
            ("plain.cnf", format!("{name}.stub")),
            ("plain.cnf", format!("millrace:{name}")),
        ] {
            let line = format!("pkeyutl -derive -inkey {key} -peerkey {peer}.pub -out secret");
            must(&bench.with_config(config, &line));
            assert_eq!(bench.read("secret"), bench.read("expected"), "{key}");
        }
    }
    assert_eq!(bench.served("ecdh-derive"), 3);
    assert_eq!(bench.served("x25519-derive"), 3);
}

#[test]
fn dh_and_dsa_are_done_in_the_pool() {
    let mut bench = Bench::new();
    bench.write("message", b"message");
    bench.generate("dh", "-algorithm DH -pkeyopt group:ffdhe2048");
    bench.generate("peer", "-algorithm DH -pkeyopt group:ffdhe2048");
    must(
        &bench
            .stock("genpkey -genparam -algorithm DSA -pkeyopt dsa_paramgen_bits:2048 -out dsa.par"),
    );
    bench.generate("dsa", "-paramfile dsa.par");
    bench.hold("dh", everything());
    bench.hold("dsa", everything());
    bench.start(Arc::new(Software::new()));
    must(&bench.stock("pkeyutl -derive -inkey dh.pem -peerkey peer.pub -out expected"));
    for (config, suffix) in [("route-a.cnf", "pem"), ("plain.cnf", "stub")] {
        let line = format!("pkeyutl -derive -inkey dh.{suffix} -peerkey peer.pub -out secret");
        must(&bench.with_config(config, &line));
        assert_eq!(bench.read("secret"), bench.read("expected"));
        sign_and_verify(&bench, config, &format!("dsa.{suffix}"), "dsa.pub", "");
    }
    assert_eq!(bench.served("dh-derive"), 2);
    assert_eq!(bench.served("dsa-sign"), 2);
}

#[test]
fn rsa_messages_are_decrypted_in_the_pool() {
    let bench = full();
    let oaep =
        "-pkeyopt rsa_padding_mode:oaep -pkeyopt rsa_oaep_md:sha256 -pkeyopt rsa_oaep_label:6c6162";
    let weak = "-pkeyopt rsa_padding_mode:oaep";
    for (options, operation) in
        [("", "rsa-pkcs1-decrypt"), (oaep, "rsa-oaep-decrypt"), (weak, "rsa-oaep-decrypt")]
    {
        let before = bench.served(operation);
        let encrypt =
            format!("pkeyutl -encrypt -pubin -inkey rsa.pub {options} -in message -out secret");
        for encrypted in [bench.stock(&encrypt), bench.route_a(&encrypt)] {
            must(&encrypted);
            for (config, key) in [("route-a.cnf", "rsa.pem"), ("plain.cnf", "rsa.stub")] {
                let line = format!("pkeyutl -decrypt -inkey {key} {options} -in secret -out clear");
                must(&bench.with_config(config, &line));
                assert_eq!(bench.read("clear"), bench.read("message"));
            }
        }
        assert_eq!(bench.served(operation) - before, 4);
    }
}

#[test]
fn private_key_of_a_stub_cannot_be_exported() {
    let bench = full();
    for name in ["rsa", "p256", "ed25519"] {
        must_fail(&bench.plain(&format!("pkey -in {name}.stub -out leak.pem")));
        must_fail(&bench.plain(&format!("pkey -in {name}.stub -text -noout -out leak.pem")));
        assert!(!common::exists(&bench.path("leak.pem")) || bench.read("leak.pem").is_empty());
        must(&bench.plain(&format!("pkey -in {name}.stub -pubout -out public.pem")));
        assert_eq!(bench.read("public.pem"), bench.read(&format!("{name}.pub")));
    }
    let error = must_fail(&bench.plain("pkey -in rsa.stub"));
    assert!(error.contains("held by the pool"), "{error}");
}

#[test]
fn stub_signs_a_certificate() {
    let bench = full();
    for (name, options) in [("rsa", ""), ("p256", ""), ("ed25519", "")] {
        let line = format!(
            "req -x509 -new -key {name}.stub {options} -subj /CN=mill -days 2 -out {name}.crt"
        );
        must(&bench.plain(&line));
        must(&bench.stock(&format!("verify -CAfile {name}.crt {name}.crt")));
    }
}

#[test]
fn generated_keys_are_never_sent_to_the_pool() {
    let bench = full();
    for options in [RSA, P256, ED25519, X25519, "-algorithm X448", "-algorithm ED448"] {
        must(&bench.route_a(&format!("genpkey {options} -out made.pem")));
        must(&bench.stock("pkey -in made.pem -check -noout"));
        must(&bench.route_a("pkey -in made.pem -check -noout"));
    }
    must(
        &bench.route_a(
            "req -x509 -newkey rsa:2048 -nodes -keyout made.pem -subj /CN=a -out made.crt",
        ),
    );
    assert_eq!(bench.served("rsa-pkcs1-sign"), 0);
}

/// OpenSSL's encoders take SM2 keys of another provider under the name SM2 only.
#[test]
fn sm2_key_generated_as_type_ec_is_refused_with_the_reason() {
    let bench = Bench::new();
    let make =
        |algorithm: &str| bench.route_a(&format!("genpkey -algorithm {algorithm} -out made.pem"));
    let error = must_fail(&make("EC -pkeyopt ec_paramgen_curve:SM2"));
    assert!(error.contains("openssl genpkey -algorithm SM2"), "{error}");
    must(&make("SM2"));
    must(&bench.stock("pkey -in made.pem -check -noout"));
}

#[test]
fn unsupported_digests_and_curves_are_local_or_refused() {
    let bench = full();
    must(&bench.route_a("dgst -sha3-256 -sign rsa.pem -out signature message"));
    must(&bench.stock("dgst -sha3-256 -verify rsa.pub -signature signature message"));
    let error = must_fail(&bench.plain("dgst -sha3-256 -sign rsa.stub -out signature message"));
    assert!(error.contains("does not sign with this digest"), "{error}");
    bench.generate("k1", "-algorithm EC -pkeyopt ec_paramgen_curve:secp256k1");
    must(&bench.route_a("dgst -sha256 -sign k1.pem -out signature message"));
    must(&bench.stock("dgst -sha256 -verify k1.pub -signature signature message"));
    bench.generate("restricted", "-algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048");
    let pss = "-sigopt rsa_padding_mode:pss";
    must(
        &bench.route_a(&format!("dgst -sha256 {pss} -sign restricted.pem -out signature message")),
    );
    let verify = format!("dgst -sha256 {pss} -verify restricted.pub -signature signature message");
    must(&bench.stock(&verify));
    must(&bench.route_a(&verify));
    bench.generate("small", "-algorithm RSA -pkeyopt rsa_keygen_bits:1024");
    must(&bench.route_a("dgst -sha256 -sign small.pem -out signature message"));
    must(&bench.stock("dgst -sha256 -verify small.pub -signature signature message"));
}

#[test]
fn plain_keys_work_and_stubs_give_the_reason_without_a_node() {
    let bench = Bench::new();
    bench.write("message", b"message");
    for (name, options) in [("rsa", RSA), ("p256", P256)] {
        bench.generate(name, options);
        bench.hold(name, everything());
        let sign = |key: &str| format!("dgst -sha256 -sign {key} -out signature message");
        must(&bench.route_a(&sign(&format!("{name}.pem"))));
        must(
            &bench.stock(&format!("dgst -sha256 -verify {name}.pub -signature signature message")),
        );
        // A stub is loaded without a connection; only its use needs the pool.
        must(&bench.plain(&format!("pkey -in {name}.stub -pubout")));
        let error = must_fail(&bench.plain(&sign(&format!("{name}.stub"))));
        assert!(error.contains("no node can be reached"), "{error}");
    }
    bench.write_config("strict.cnf", "default_properties = ?provider=millrace", "fallback = off");
    must_fail(
        &bench.with_config("strict.cnf", "dgst -sha256 -sign rsa.pem -out signature message"),
    );
    bench.write_config("off.cnf", "default_properties = ?provider=millrace", "mode = off");
    let output = bench.with_config("off.cnf", "dgst -sha256 -sign rsa.pem -out signature message");
    assert!(!texts(&output).1.contains("millrace:"));
    must(&output);
}

#[test]
fn wrong_signature_never_reaches_the_application() {
    let mut bench = Bench::new();
    bench.write("message", b"message");
    for (name, options) in [("rsa", RSA), ("p256", P256), ("ed25519", ED25519)] {
        bench.generate(name, options);
        bench.hold(name, everything());
    }
    let liar = FaultyBackend::new(Arc::new(Software::new()));
    let controls = liar.controls();
    bench.start(Arc::new(liar));
    controls.inject(InjectedFault::Lie);
    for options in ["", "-sigopt rsa_padding_mode:pss"] {
        let output =
            bench.route_a(&format!("dgst -sha256 {options} -sign rsa.pem -out signature message"));
        assert!(texts(&output).1.contains("wrong result"), "{}", texts(&output).1);
        must(&output);
        let verify = format!("dgst -sha256 {options} -verify rsa.pub -signature signature message");
        must(&bench.stock(&verify));
        let stub = format!("dgst -sha256 {options} -sign rsa.stub -out refused message");
        let error = must_fail(&bench.plain(&stub));
        assert!(error.contains("wrong result"), "{error}");
        assert!(!common::exists(&bench.path("refused")) || bench.read("refused").is_empty());
    }
    bench.write_config("all.cnf", "", "verify = all");
    must_fail(&bench.with_config("all.cnf", "dgst -sha256 -sign p256.stub -out refused message"));
    must_fail(&bench.with_config(
        "all.cnf",
        "pkeyutl -sign -rawin -inkey ed25519.stub -in message -out refused",
    ));
    assert!(controls.injected() >= 6);
}

#[test]
fn stub_of_a_former_version_works_until_that_is_removed() {
    let mut bench = Bench::new();
    bench.write("message", b"message");
    bench.generate("rsa", RSA);
    bench.hold("rsa", everything());
    let stub = bench.read("rsa.stub");
    bench.generate("rsa", RSA);
    bench.hold("rsa", everything());
    bench.write("rsa.stub", &stub);
    bench.start(Arc::new(Software::new()));
    let sign = "dgst -sha256 -sign rsa.stub -out signature message";
    must(&bench.plain(sign));
    let config = bench.store_config();
    let store = KeyStore::open(&config.directory, &config.kek).expect("store");
    assert_eq!(store.remove_former("rsa").expect("removed"), 1);
    bench.reload();
    let error = must_fail(&bench.plain(sign));
    assert!(error.contains("a newer version of this key"), "{error}");
}

#[test]
fn operation_denied_by_the_key_policy_is_named_in_the_error() {
    let mut bench = Bench::new();
    bench.generate("rsa", RSA);
    bench.hold("rsa", KeyPolicy::signing(["*"]));
    bench.write("message", b"message");
    bench.start(Arc::new(Software::new()));
    must(&bench.stock("pkeyutl -encrypt -pubin -inkey rsa.pub -in message -out secret"));
    let error = must_fail(&bench.plain("pkeyutl -decrypt -inkey rsa.stub -in secret -out clear"));
    assert!(error.contains("does not allow rsa-pkcs1-decrypt"), "{error}");
}

/// OpenSSL drops the error of a provider that does not start. So the provider starts and says it in the list of
/// providers, and wherever a key of the pool is read; plain keys are OpenSSL's.
#[test]
fn configuration_mistake_is_named_where_a_key_is_read() {
    let bench = full();
    for (mistake, named) in [
        ("mode = fast", "mode is async, sync or off"),
        ("falback = off", "falback is unknown; the keys are pool,"),
        ("deadline_ms = 0", "deadline_ms is a number of milliseconds"),
    ] {
        bench.write_config("bad.cnf", "", mistake);
        let list = must(&bench.with_config("bad.cnf", "list -providers"));
        assert!(list.contains("not usable"), "{list}");
        assert!(list.contains(named) && list.contains("status: inactive"), "{list}");
        for key in ["rsa.stub", "millrace:rsa"] {
            let line = format!("pkey -in {key} -pubout -out public.pem");
            let error = must_fail(&bench.with_config("bad.cnf", &line));
            assert!(error.contains(named), "{key}: {error}");
        }
        must(&bench.with_config("bad.cnf", "dgst -sha256 -sign rsa.pem -out signature message"));
    }
    bench.write("client.toml", b"deadlin_ms = 5\n");
    let mut command = bench.command_with("plain.cnf", "list -providers");
    command.env("MILLRACE_CLIENT_CONF", bench.path("client.toml"));
    let list = must(&command.output().expect("openssl"));
    assert!(list.contains("deadlin_ms"), "{list}");
    assert_eq!(bench.served("rsa-pkcs1-sign"), 0);
}

/// OpenSSL compares the length of a digest with that of the digest that is set, also one that the pool lacks.
#[test]
fn digest_of_a_wrong_length_is_not_signed() {
    let mut bench = Bench::new();
    let group = "genpkey -genparam -algorithm DSA -pkeyopt dsa_paramgen_bits:2048 -out dsa.par";
    must(&bench.stock(group));
    bench.generate("p256", P256);
    bench.generate("dsa", "-paramfile dsa.par");
    for key in ["p256", "dsa"] {
        bench.hold(key, everything());
    }
    bench.start(Arc::new(Software::new()));
    for key in ["p256", "dsa"] {
        for (digest, len) in [("SHA3-256", 20), ("SHA3-256", 64), ("MD5", 32), ("SHA256", 20)] {
            bench.write("digest", &vec![7; len]);
            let options = format!("-pkeyopt digest:{digest} -in digest -out signature");
            for (config, file) in [
                ("default.cnf", format!("{key}.pem")),
                ("route-a.cnf", format!("{key}.pem")),
                ("plain.cnf", format!("{key}.stub")),
            ] {
                let line = format!("pkeyutl -sign -inkey {file} {options}");
                let output = match config {
                    "default.cnf" => bench.stock(&line),
                    config => bench.with_config(config, &line),
                };
                must_fail(&output);
            }
        }
    }
}

#[test]
fn stub_after_a_certificate_in_one_file_is_read() {
    let bench = full();
    must(&bench.plain("req -x509 -new -key rsa.stub -subj /CN=mill -days 2 -out rsa.crt"));
    let all = [bench.read("rsa.crt"), bench.read("rsa.stub")].concat();
    bench.write("bundle.pem", &all);
    must(&bench.plain("pkey -in bundle.pem -pubout -out public.pem"));
    assert_eq!(bench.read("public.pem"), bench.read("rsa.pub"));
    // Files without a stub are read as before.
    must(&bench.plain("pkey -in rsa.pem -noout"));
    must(&bench.plain("x509 -in bundle.pem -noout"));
    bench.write("damaged.stub", &bench.read("rsa.stub")[..200]);
    must_fail(&bench.plain("pkey -in damaged.stub -noout"));
}
