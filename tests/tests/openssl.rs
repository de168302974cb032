// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The `openssl` program and Python with the provider loaded: listing, signing by stub and by URI, refused
//! export of the pool's private keys, asynchronous jobs, fork after use, ML-DSA certificates.

use std::fs;
use std::process::Command;

use millrace_operation::stub::Stub;
use millrace_testkit::skip;
use millrace_tests::artifacts::artifacts;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::openssl::{Pooled, SIGN_BY_NAME, plain, text};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{run, succeed, text_of};
use millrace_tests::{release, wait};

#[test]
fn provider_is_listed_as_active() {
    let setup = Pooled::start(KeyKind::P256);
    for first in [false, true] {
        let edge = setup.edge(|options| EdgeOptions { first, ..options });
        let list = succeed(&mut edge.openssl(&["list", "-providers", "-verbose"]));
        assert!(list.contains("default") && list.contains("millrace"), "{list}");
        assert_eq!(list.matches("status: active").count(), 2, "{list}");
    }
}

#[test]
fn provider_offers_its_key_types_signatures_exchanges_and_ciphers() {
    let setup = Pooled::start(KeyKind::P256);
    let edge = setup.edge(|options| options);
    let offered = |what: &str| {
        let list = succeed(&mut edge.openssl(&["list", what]));
        list.lines().filter(|line| line.contains("@ millrace")).collect::<Vec<_>>().join("\n")
    };
    let (keys, signatures) = (offered("-key-managers"), offered("-signature-algorithms"));
    for name in ["RSA", "EC", "X25519", "ED25519", "DH", "DSA"] {
        assert!(keys.contains(name), "{name} in {keys}");
    }
    for name in ["RSA", "ECDSA", "ED25519", "DSA"] {
        assert!(signatures.contains(name), "{name} in {signatures}");
    }
    let exchanges = offered("-key-exchange-algorithms");
    for name in ["ECDH", "X25519", "DH"] {
        assert!(exchanges.contains(name), "{name} in {exchanges}");
    }
    assert!(offered("-asymcipher-algorithms").contains("RSA"));
}

#[test]
fn stub_signs_in_the_pool_and_the_system_verifies() {
    for kind in KeyKind::USUAL {
        let setup = Pooled::start(kind);
        let edge = setup.edge(|options| options);
        let message = setup.file("message", b"to be signed");
        let signature = setup.world.dir().join("signature");
        let sign = ["dgst", "-sha256", "-sign", text(&setup.stub), "-out", text(&signature)];
        let _ = succeed(edge.openssl(&sign).arg(&message));
        let key = setup.public_key();
        let verify = ["dgst", "-sha256", "-verify", text(&key), "-signature", text(&signature)];
        let said = succeed(plain(&verify).arg(&message));
        assert!(said.contains("Verified OK"), "{said}");
        assert_eq!(setup.node.served().total(), 1);
    }
}

#[test]
fn uri_signs_in_the_pool() {
    let setup = Pooled::start(KeyKind::Rsa2048);
    let edge = setup.edge(|options| options);
    let digest = setup.file("digest", &[7; 32]);
    let signature = setup.world.dir().join("signature");
    let options = ["-pkeyopt", "digest:sha256", "-in", text(&digest)];
    let mut sign = edge.openssl(&["pkeyutl", "-sign", "-inkey", "millrace:www"]);
    let _ = succeed(sign.args(options).arg("-out").arg(&signature));
    let key = setup.public_key();
    let mut verify = plain(&["pkeyutl", "-verify", "-pubin", "-inkey", text(&key)]);
    let said = succeed(verify.args(options).arg("-sigfile").arg(&signature));
    assert!(said.contains("Verified Successfully"), "{said}");
    assert_eq!(setup.node.served().total(), 1);
}

/// nginx from 1.29 opens `store:` URIs when it starts and reloads: the public half in the URI spares the node.
#[test]
fn uri_with_the_public_half_is_opened_without_a_node() {
    let mut setup = Pooled::start(KeyKind::Rsa2048);
    setup.node.kill();
    let edge = setup.edge(|options| options.with("deadline_ms", 2000));
    let stub = Stub::find(&fs::read_to_string(&setup.stub).expect("a file")).expect("a stub");
    let public = succeed(&mut edge.openssl(&["pkey", "-in", &stub.to_uri(), "-pubout"]));
    let expected = fs::read_to_string(setup.public_key()).expect("public key");
    assert!(public.contains(expected.trim()), "{public}");
    let output = run(&mut edge.openssl(&["pkey", "-in", "millrace:www", "-pubout"]));
    assert!(!output.status.success(), "the name alone needs a node");
}

#[test]
fn key_of_the_pool_is_not_exported() {
    let setup = Pooled::start(KeyKind::Rsa2048);
    let edge = setup.edge(|options| options.preferred());
    let output = run(&mut edge.openssl(&["pkey", "-in", text(&setup.stub)]));
    let said = text_of(&output);
    assert!(!said.contains("BEGIN PRIVATE KEY") && !said.contains("BEGIN RSA PRIVATE"), "{said}");
    assert!(said.contains("-text_pub"), "what can be printed is named: {said}");
    let printed =
        succeed(&mut edge.openssl(&["pkey", "-in", text(&setup.stub), "-noout", "-text_pub"]));
    assert!(printed.contains("Public-Key: (2048 bit)"), "{printed}");
    let public = succeed(&mut edge.openssl(&["pkey", "-in", text(&setup.stub), "-pubout"]));
    let expected = fs::read_to_string(setup.public_key()).expect("public key");
    assert!(public.contains(expected.trim()), "{public}");
    assert_eq!(setup.node.served().total(), 0);
}

/// A server that takes a stub at run time (HAProxy's `commit ssl cert`) does not use its key before the first
/// handshake.
#[test]
fn check_of_a_stub_asks_the_pool_for_the_private_half() {
    let mut setup = Pooled::start(KeyKind::Rsa2048);
    let edge =
        setup.edge(|options| options.with("deadline_ms", "1000").with("fallback_after_ms", "1000"));
    let check = |what: &str| {
        text_of(&run(&mut edge.openssl(&["pkey", "-in", text(&setup.stub), "-noout", what])))
    };
    assert!(check("-check").contains("Key is valid"), "{}", check("-check"));
    setup.node.remove("www");
    wait::until("the node has forgotten the key", || check("-check").contains("Key is invalid"));
    let said = check("-check");
    assert!(said.contains("unusable key"), "{said}");
    assert!(check("-pubcheck").contains("Key is valid"), "the public half is in the stub");
    setup.node.kill();
    let said = check("-check");
    assert!(said.contains("Key is invalid") && said.contains("the pool did not do"), "{said}");
}

/// `openssl cms` clears the error stack, so that no user learns why a decryption failed; `openssl spkac` prints none.
#[test]
fn log_has_the_reason_that_a_program_drops() {
    let setup = Pooled::start(KeyKind::Rsa2048);
    let edge = setup.edge(|options| options);
    let stub = text(&setup.stub);
    let message = setup.file("message", b"a message");
    let sealed = setup.world.dir().join("sealed");
    let encrypt = |options: &[&str]| {
        let mut command = plain(&["cms", "-encrypt", "-in", text(&message), "-out", text(&sealed)]);
        command.arg("-recip").arg(&setup.identity.certificate_file).args(options);
        let _ = succeed(&mut command);
    };
    let opens = ["cms", "-decrypt", "-in", text(&sealed), "-inkey", stub];
    encrypt(&[]);
    let denied = "the pool does not allow rsa-pkcs1-decrypt with this key";
    let said = text_of(&run(edge.openssl(&opens).env("MILLRACE_LOG", "1")));
    assert!(said.contains(denied) && said.contains("the policy of the key"), "{said}");
    let said = text_of(&run(edge.openssl(&opens).arg("-debug_decrypt")));
    assert!(said.contains(denied), "the error stack has it: {said}");
    encrypt(&["-keyopt", "rsa_padding_mode:oaep"]);
    assert_eq!(succeed(&mut edge.openssl(&opens)), "a message");
    let said = text_of(&run(edge.openssl(&["spkac", "-key", stub]).env("MILLRACE_LOG", "1")));
    assert!(said.contains("does not sign with this digest"), "{said}");
    let said = succeed(&mut edge.openssl(&["spkac", "-key", stub, "-digest", "sha256"]));
    assert!(said.contains("SPKAC="), "{said}");
}

/// Listed first and preferred, the provider must not change algorithms that it does not accelerate: random
/// numbers, digests, symmetric ciphers, generated keys, certificates.
#[test]
fn provider_listed_first_leaves_other_algorithms_working() {
    let setup = Pooled::start(KeyKind::Rsa2048);
    let edge = setup.edge(|options| EdgeOptions { first: true, ..options }.preferred());
    let openssl = |arguments: &[&str]| succeed(&mut edge.openssl(arguments));
    let dir = setup.world.dir();
    let message = setup.file("message", b"to be signed");
    let path = |name: &str| text(&dir.join(name)).to_owned();
    let _ = openssl(&["rand", "-hex", "8"]);
    let _ = openssl(&["dgst", "-sha256", text(&message)]);
    let encrypt = ["enc", "-aes-256-cbc", "-pbkdf2", "-pass", "pass:x", "-in", text(&message)];
    let _ = succeed(edge.openssl(&encrypt).arg("-out").arg(dir.join("encrypted")));
    for (name, options) in [
        ("RSA", &["-pkeyopt", "rsa_keygen_bits:2048"][..]),
        ("EC", &["-pkeyopt", "ec_paramgen_curve:P-256"]),
        ("ED25519", &[]),
        ("X25519", &[]),
    ] {
        let key = path(name);
        let _ = succeed(edge.openssl(&["genpkey", "-algorithm", name, "-out", &key]).args(options));
        let _ = openssl(&["pkey", "-in", &key, "-noout", "-text"]);
        if name == "RSA" || name == "EC" {
            let (public, signature) = (path("public"), path("signature"));
            let _ = openssl(&["pkey", "-in", &key, "-pubout", "-out", &public]);
            let sign = ["dgst", "-sha256", "-sign", &key, "-out", &signature, text(&message)];
            let _ = openssl(&sign);
            let check = ["dgst", "-sha256", "-verify", &public, "-signature", &signature];
            let said = succeed(edge.openssl(&check).arg(&message));
            assert!(said.contains("Verified OK"), "{said}");
            let request = ["req", "-x509", "-new", "-key", &key, "-subj", "/CN=x", "-days", "1"];
            let certificate = path("certificate");
            let _ = succeed(edge.openssl(&request).args(["-out", &certificate]));
            let _ = openssl(&["verify", "-CAfile", &certificate, &certificate]);
        }
    }
}

#[test]
fn openssl_speed_runs_with_asynchronous_jobs() {
    let setup = Pooled::start(KeyKind::Rsa2048);
    let edge = setup.edge(|options| options.preferred());
    let mut command = edge.openssl(&["speed", "-seconds", "1", "-async_jobs", "8"]);
    let said = succeed(command.args(["rsa2048", "ecdsap256", "ecdhx25519"]));
    for word in ["2048 bits", "ecdsa (nistp256)", "ecdh (X25519)"] {
        assert!(said.contains(word), "{said}");
    }
    for word in ["failure", ":error:"] {
        assert!(!said.contains(word), "{said}");
    }
    // `speed` signs 36 bytes with RSA, the digest length of TLS 1.0, and the pool makes that signature. Its
    // other keys are generated and stay in the process. Both kinds must work inside a job.
    let served = setup.node.served();
    assert!(served.rsa_signatures() > 8, "{served:?}\n{said}");
}

/// The four lines of configuration that the CLI prints work unchanged.
#[test]
fn configuration_printed_by_the_cli_works() {
    let setup = Pooled::start(KeyKind::P256);
    let endpoint = setup.node.endpoint();
    let mut command = Command::new(&artifacts().millrace);
    command.args(["gateway", "openssl", "--key", "www", "--pool", &endpoint]);
    let output = run(command.arg("--provider").arg(&artifacts().provider));
    assert!(output.status.success(), "{}", text_of(&output));
    let conf = setup.file("printed.cnf", &output.stdout);
    let digest = setup.file("digest", &[7; 32]);
    let mut sign = release::command("openssl");
    sign.env("OPENSSL_CONF", &conf).env_remove("OPENSSL_MODULES");
    sign.args(["pkeyutl", "-sign", "-inkey", text(&setup.stub), "-in", text(&digest), "-out"]);
    let _ = succeed(sign.arg(setup.world.dir().join("signature")));
    assert_eq!(setup.node.served().total(), 1);
}

const FORKS: usize = 4;

/// A process that has used the pool forks. Its children, a grandchild and the process itself use the pool
/// after that.
#[test]
fn fork_after_use_gives_every_process_a_connection_of_its_own() {
    let setup = Pooled::start(KeyKind::P256);
    let edge = setup.edge(|options| options);
    let mut python = release::python();
    edge.apply(&mut python).args(["-c", FORKING]);
    python.arg(&setup.identity.certificate_file).arg(&setup.stub);
    let said = succeed(python.arg(&setup.world.authority.file).arg(FORKS.to_string()));
    assert!(said.contains("all well"), "{said}");
    // Two signatures before the forks, two by the parent after them, two by each child and two by each
    // grandchild.
    assert_eq!(setup.node.served().total(), 2 + 2 + 4 * FORKS as u64);
}

const FORKING: &str = "
import os, ssl, sys
certificate, key, authority, forks = sys.argv[1:]
server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server_context.load_cert_chain(certificate, key)
client_context = ssl.create_default_context(cafile=authority)

def handshake():
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname='localhost')
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    done = set()
    for _ in range(10):
        for end in (client, server):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
        if len(done) == 2:
            return
    raise Exception('the handshake does not end')

def twice():
    handshake()
    handshake()

def fork_and(work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child

def wait_for(children):
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0, status

def child():
    grandchild = fork_and(twice)
    twice()
    wait_for([grandchild])

twice()
children = [fork_and(child) for _ in range(int(forks))]
twice()
wait_for(children)
print('all well')
";

/// Since OpenSSL 3.4 some algorithms have a digest in their name; they sign messages or digests.
#[test]
fn algorithms_with_a_digest_in_their_name_sign_in_the_pool() {
    if release::openssl() < (3, 4) {
        skip!("OpenSSL before 3.4 has no algorithms with a digest in their name");
    }
    for (kind, algorithm) in [(KeyKind::Rsa2048, "RSA-SHA256"), (KeyKind::P256, "ECDSA-SHA256")] {
        let setup = Pooled::start(kind);
        // One key that only the pool has, and one that the process imports into the pool.
        for (key, edge) in [
            (&setup.stub, setup.edge(|options| options)),
            (&setup.identity.key_file, setup.edge(EdgeOptions::preferred)),
        ] {
            let before = setup.node.served().total();
            let mut python = release::python();
            edge.apply(&mut python).args(["-c", SIGN_BY_NAME]).arg(key).arg(algorithm);
            assert_eq!(succeed(&mut python).trim(), "3 signatures verify");
            assert_eq!(setup.node.served().total(), before + 3, "{algorithm}");
        }
    }
}
