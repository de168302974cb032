// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! ML-DSA keys of the pool in OpenSSL 3.5 and later: TLS 1.3 servers, and signatures that OpenSSL verifies.

use std::fs;
use std::path::PathBuf;

use millrace_testkit::skip;
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::may_read_memory;
use millrace_tests::memory::Secret;
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::node::Node;
use millrace_tests::openssl::{SIGN_BY_NAME, SServer, get, plain, self_signed, text};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{free_port, run, succeed, text_of};
use millrace_tests::release;
use millrace_tests::world::World;

/// A node with an ML-DSA key that no other process has, and the certificate that the release's OpenSSL made
/// for it.
struct MlDsa {
    world: World,
    node: Node,
    certificate: PathBuf,
    stub: PathBuf,
    /// The test's copy of the private key.
    key: PathBuf,
}

impl MlDsa {
    fn start(set: u32) -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let options = ["-algorithm", &format!("ML-DSA-{set}")];
        let (key, certificate) = self_signed(world.dir(), "mldsa", &options);
        let stub = world.dir().join("mldsa.stub");
        let import = ["key", "import", "www", text(&key), "--allow-all"];
        let _ = succeed(&mut node.command(&import));
        node.wait_for_store();
        fs::write(&stub, node.stub("www")).expect("stub");
        Self { world, node, certificate, stub, key }
    }

    /// Long deadlines, so that the pool makes the signature even on a busy machine.
    fn edge(&self, preferred: bool) -> Edge {
        let options = EdgeOptions::to(self.node.endpoint())
            .with("deadline_ms", 20_000)
            .with("fallback_after_ms", 20_000)
            .with("verify", "all");
        let options = EdgeOptions { preferred, ..options };
        options.write(self.world.dir())
    }

    fn served(&self) -> u64 {
        self.node.served().of("ml-dsa-sign")
    }
}

const ML_DSA_SETS: [u32; 3] = [44, 65, 87];

/// `s_server` has the certificate and the stub; only the node has the key. The client is an OpenSSL without
/// the provider, accepts no other signature algorithm, and verifies the certificate.
#[test]
fn tls13_server_with_ml_dsa_certificate_signs_in_the_pool() {
    if release::openssl() < (3, 5) {
        skip!("OpenSSL before 3.5 has no ML-DSA");
    }
    for set in ML_DSA_SETS {
        let setup = MlDsa::start(set);
        fs::remove_file(&setup.key).expect("the key file goes");
        let edge = setup.edge(false);
        let (dir, certificate) = (setup.world.dir(), &setup.certificate);
        let server = SServer::start(&edge, dir, certificate, &setup.stub, &["-tls1_3"]);
        for handshakes in 1..=3 {
            let signature = format!("mldsa{set}");
            let mut client = plain(&["s_client", "-tls1_3", "-sigalgs", &signature]);
            client.args(["-verify_return_error", "-verify_hostname", "localhost"]);
            client.arg("-CAfile").arg(certificate);
            let output = server.get(&mut client);
            let said = text_of(&output);
            assert!(output.status.success(), "{said}\n{}", server.log());
            let used = format!("Peer signature type: {signature}");
            assert!(said.contains(&used), "{said}");
            assert!(said.contains("Verification: OK"), "{said}");
            assert_eq!(setup.served(), handshakes, "{said}");
        }
    }
}

/// No key byte is in a server that has a stub. A server that has the key is the control of the search.
#[test]
fn ml_dsa_key_is_in_the_memory_of_the_node_alone() {
    if release::openssl() < (3, 5) {
        skip!("OpenSSL before 3.5 has no ML-DSA");
    }
    if !may_read_memory() {
        return;
    }
    let setup = MlDsa::start(65);
    let secret = Secret::of_ml_dsa(&fs::read_to_string(&setup.key).expect("the key"));
    let (dir, certificate) = (setup.world.dir(), &setup.certificate);
    for (key, preferred) in [(&setup.stub, false), (&setup.key, true)] {
        let edge = setup.edge(preferred);
        let server = SServer::start(&edge, dir, certificate, key, &["-tls1_3"]);
        let before = setup.served();
        let mut client = plain(&["s_client", "-tls1_3", "-CAfile", text(certificate)]);
        let said = text_of(&server.get(&mut client));
        assert!(said.contains("Verification: OK"), "{said}");
        assert_eq!(setup.served(), before + 1);
        let found = secret.found_in_process(server.id());
        assert_eq!(found.is_empty(), !preferred, "{found:?}");
        if !preferred {
            let found = secret.found_in(server.log().as_bytes());
            assert!(found.is_empty(), "{found:?}");
        }
    }
    for (what, bytes) in [
        ("the log of the node", setup.node.log()),
        ("status", setup.node.status().to_string()),
        ("metrics", setup.node.metrics()),
    ] {
        let found = secret.found_in(bytes.as_bytes());
        assert!(found.is_empty(), "{what}: {found:?}");
    }
}

/// A stub, a URI, and a plain key that the process imports: the pool makes each signature, and OpenSSL's own
/// implementation accepts it.
#[test]
fn ml_dsa_signatures_of_the_pool_verify_in_the_default_provider() {
    if release::openssl() < (3, 5) {
        skip!("OpenSSL before 3.5 has no ML-DSA");
    }
    for set in ML_DSA_SETS {
        let setup = MlDsa::start(set);
        let path = |name: &str| setup.world.dir().join(name);
        let (message, signature, public) = (path("message"), path("signature"), path("public"));
        fs::write(&message, b"to be signed with ML-DSA").expect("message");
        let _ = succeed(
            plain(&["x509", "-noout", "-pubkey", "-in", text(&setup.certificate)])
                .arg("-out")
                .arg(&public),
        );
        let keys = [(text(&setup.stub), false), ("millrace:www", false), (text(&setup.key), true)];
        for (count, (key, preferred)) in (1..).zip(keys) {
            let edge = setup.edge(preferred);
            let input = ["-rawin", "-in", text(&message)];
            let mut sign = edge.openssl(&["pkeyutl", "-sign", "-inkey", key]);
            let _ = succeed(sign.args(input).arg("-out").arg(&signature));
            let mut verify = plain(&["pkeyutl", "-verify", "-pubin", "-inkey", text(&public)]);
            let said = succeed(verify.args(input).arg("-sigfile").arg(&signature));
            assert!(said.contains("Verified Successfully"), "{key}: {said}");
            assert_eq!(setup.served(), count, "ML-DSA-{set} with {key}");
        }
        let shown = succeed(&mut setup.edge(false).openssl(&["list", "-signature-algorithms"]));
        let ours = |line: &str| line.contains("ML-DSA") && line.contains("@ millrace");
        assert_eq!(shown.lines().filter(|line| ours(line)).count(), 3, "{shown}");
    }
}

/// The pool does not support these settings: OpenSSL signs if the process has the private key; with a stub
/// the operation fails.
#[test]
fn ml_dsa_with_context_string_is_signed_locally_or_refused() {
    if release::openssl() < (3, 5) {
        skip!("OpenSSL before 3.5 has no ML-DSA");
    }
    let setup = MlDsa::start(65);
    let path = |name: &str| setup.world.dir().join(name);
    let (message, signature) = (path("message"), path("signature"));
    fs::write(&message, b"to be signed with ML-DSA").expect("message");
    let input = ["-rawin", "-in", text(&message), "-pkeyopt", "context-string:mill"];
    for (key, preferred) in [(&setup.key, true), (&setup.stub, false)] {
        let edge = setup.edge(preferred);
        let mut sign = edge.openssl(&["pkeyutl", "-sign", "-inkey", text(key)]);
        let output = run(sign.args(input).arg("-out").arg(&signature));
        assert_eq!(output.status.success(), preferred, "{}", text_of(&output));
        if preferred {
            let mut verify = plain(&["pkeyutl", "-verify", "-inkey", text(key)]);
            let said = succeed(verify.args(input).arg("-sigfile").arg(&signature));
            assert!(said.contains("Verified Successfully"), "{said}");
        }
    }
    assert_eq!(setup.served(), 0);
}

/// `EVP_PKEY_sign_message_init` and `EVP_PKEY_sign`, the interface since OpenSSL 3.4.
#[test]
fn ml_dsa_messages_of_evp_pkey_sign_are_signed_in_the_pool() {
    if release::openssl() < (3, 5) {
        skip!("OpenSSL before 3.5 has no ML-DSA");
    }
    let setup = MlDsa::start(65);
    for (key, preferred) in [(&setup.stub, false), (&setup.key, true)] {
        let before = setup.served();
        let mut python = release::python();
        setup.edge(preferred).apply(&mut python).args(["-c", SIGN_BY_NAME]);
        python.arg(key).arg("ML-DSA-65");
        assert_eq!(succeed(&mut python).trim(), "1 signatures verify");
        assert_eq!(setup.served(), before + 1, "{}", key.display());
    }
}

/// Stock nginx with two certificates; only the pool has their keys. Each client gets the certificate whose
/// signature algorithm it accepts, and the worker does not block.
#[test]
fn nginx_serves_ml_dsa_and_ecdsa_certificates_by_the_clients_choice() {
    if release::openssl() < (3, 5) {
        skip!("OpenSSL before 3.5 has no ML-DSA");
    }
    let setup = MlDsa::start(65);
    fs::remove_file(&setup.key).expect("the key file goes");
    let dir = setup.world.dir();
    let identity = setup.world.identity(KeyKind::P256);
    let stub = setup.node.import("classic", &identity);
    let port = free_port();
    let http = format!(
        "ssl_session_cache off;\nserver {{ listen 127.0.0.1:{port} ssl;\n\
         ssl_certificate {}; ssl_certificate_key {};\n{}location / {{ return 200 ok; }} }}\n",
        setup.certificate.display(),
        setup.stub.display(),
        certificate_lines(dir, "classic", &Site::with_stub(&identity, &stub)),
    );
    let options = NginxOptions::asynchronous(&setup.edge(false), http);
    let nginx = Nginx::start(dir, &options, &[port]);
    for (algorithm, authority, operation) in [
        ("mldsa65", &setup.certificate, "ml-dsa-sign"),
        ("ecdsa_secp256r1_sha256", &setup.world.authority.file, "ecdsa-sign"),
    ] {
        for handshakes in 1..=3 {
            let mut client = plain(&["s_client", "-tls1_3", "-sigalgs", algorithm]);
            client.args(["-verify_return_error", "-verify_hostname", "localhost"]);
            client.arg("-CAfile").arg(authority);
            let output = get(&mut client, port);
            let said = text_of(&output);
            assert!(output.status.success(), "{algorithm}: {said}\n{}", nginx.log());
            assert_eq!(setup.node.served().of(operation), handshakes, "{said}");
        }
    }
}
