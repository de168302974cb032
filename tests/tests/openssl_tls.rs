// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `openssl s_server` with a key of the pool: handshakes, and decryption as the policy of the key allows it.

use millrace_testkit::skip;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::openssl::{Pooled, SServer, plain};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{succeed, text_of};
use millrace_tests::release;
use millrace_tests::wait;

#[test]
fn s_server_and_s_client_do_asynchronous_handshakes() {
    for kind in KeyKind::USUAL {
        let setup = Pooled::start(kind);
        let edge = setup.edge(|options| options);
        let server = setup.serve(&edge, &setup.stub, &[]);
        for version in ["-tls1_2", "-tls1_3"] {
            let mut client = edge.openssl(&["s_client", "-async", "-quiet", version]);
            client.args(["-verify_return_error", "-verify_hostname", "localhost"]);
            client.arg("-CAfile").arg(&setup.world.authority.file);
            let output = server.get(&mut client);
            let said = text_of(&output);
            assert!(output.status.success() && said.contains("200 ok"), "{version}: {said}");
        }
        assert_eq!(setup.node.served().total(), 2);
    }
}

const RSA_KEY_EXCHANGE: &str = "AES128-GCM-SHA256";

/// A server with the stub that accepts the key exchange by RSA only. It has no forward secrecy, and needs a
/// decryption.
fn serve_rsa_key_exchange(setup: &Pooled) -> SServer {
    let edge = setup.edge(|options| options);
    setup.serve(&edge, &setup.stub, &["-tls1_2", "-cipher", RSA_KEY_EXCHANGE])
}

/// Whether a handshake with that server ends well, and what the client said.
fn exchange_by_rsa(setup: &Pooled, server: &SServer) -> (bool, String) {
    let mut client = plain(&["s_client", "-quiet", "-tls1_2", "-cipher", RSA_KEY_EXCHANGE]);
    client.args(["-verify_return_error", "-CAfile"]);
    let said = text_of(&server.get(client.arg(&setup.world.authority.file)));
    (said.contains("200 ok"), said)
}

#[test]
fn key_exchange_by_rsa_needs_a_policy_that_allows_it() {
    for (policy, allowed) in
        [(&["--allow-all", "--allow-tls-premaster"][..], true), (&["--allow-all"], false)]
    {
        let setup = Pooled::with_policy(KeyKind::Rsa2048, policy);
        let server = serve_rsa_key_exchange(&setup);
        let (works, said) = exchange_by_rsa(&setup, &server);
        assert_eq!(works, allowed, "{said}");
        let served = setup.node.served().of("rsa-tls-premaster");
        assert_eq!(served, u64::from(allowed));
    }
}

/// The server opens the key under the first policy and keeps it open.
#[test]
fn changed_policy_takes_effect_in_a_running_server() {
    let setup = Pooled::with_policy(KeyKind::Rsa2048, &["--allow-all"]);
    let server = serve_rsa_key_exchange(&setup);
    let (works, said) = exchange_by_rsa(&setup, &server);
    assert!(!works, "{said}");
    let set_policy = |operations: &[&str]| {
        let policy = ["key", "policy", "www", "--allow-all"];
        let _ = succeed(setup.node.command(&policy).args(operations));
    };
    set_policy(&["--allow-tls-premaster"]);
    wait::until("the wider policy takes effect", || exchange_by_rsa(&setup, &server).0);
    set_policy(&["--operations", "rsa-pss-sign"]);
    wait::until("the narrower policy takes effect", || !exchange_by_rsa(&setup, &server).0);
}

/// Since OpenSSL 3.5 the first choice for TLS 1.3 is a hybrid of ML-KEM and X25519. The provider offers
/// X25519 without ML-KEM, so OpenSSL computes the hybrid.
#[test]
fn hybrid_key_exchange_works_beside_the_provider() {
    const GROUP: &str = "X25519MLKEM768";
    if release::openssl() < (3, 5) {
        skip!("OpenSSL before 3.5 has no {GROUP}");
    }
    let setup = Pooled::start(KeyKind::P256);
    for (preferred, key) in [(false, &setup.stub), (true, &setup.identity.key_file)] {
        // Long deadlines, so that the pool makes the signature even on a busy machine.
        let edge = setup.edge(|options| {
            let options = options.with("deadline_ms", 20_000).with("fallback_after_ms", 20_000);
            EdgeOptions { preferred, ..options }
        });
        let before = setup.node.served().total();
        let server = setup.serve(&edge, key, &["-groups", GROUP]);
        let mut client = edge.openssl(&["s_client", "-async", "-verify_return_error", "-CAfile"]);
        let output = server.get(client.arg(&setup.world.authority.file));
        let said = text_of(&output);
        assert!(output.status.success() && said.contains(GROUP), "{said}");
        assert_eq!(setup.node.served().total(), before + 1, "{said}");
    }
}
