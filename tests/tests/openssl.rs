// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The `openssl` program and Python with the provider loaded: listing, signing by stub and by URI, refused
//! export of the pool's private keys, asynchronous jobs, fork after use, ML-DSA certificates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_testkit::skip;
use millrace_tests::artifacts::artifacts;
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::node::Node;
use millrace_tests::pki::{Identity, KeyKind};
use millrace_tests::process::{Process, free_port, listens, run, run_with_input, succeed, text_of};
use millrace_tests::release;
use millrace_tests::world::World;

struct Setup {
    world: World,
    node: Node,
    identity: Identity,
    stub: PathBuf,
}

/// A node with one key, named `www`, and the key's stub in a file.
fn start(kind: KeyKind) -> Setup {
    let world = World::new();
    let node = world.node("node-1");
    let identity = world.identity(kind);
    let stub = world.dir().join("stub.pem");
    fs::write(&stub, node.import("www", &identity)).expect("stub");
    Setup {
        world,
        node,
        identity,
        stub,
    }
}

impl Setup {
    fn edge(&self, options: impl FnOnce(EdgeOptions) -> EdgeOptions) -> Edge {
        options(EdgeOptions::to(self.node.endpoint())).write(self.world.dir())
    }

    fn file(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.world.dir().join(name);
        fs::write(&path, contents).expect("a file");
        path
    }

    /// The public key. OpenSSL without the provider reads it from the certificate.
    fn public_key(&self) -> PathBuf {
        let path = self.world.dir().join("public.pem");
        let _ = succeed(
            plain(&["x509", "-noout", "-pubkey", "-in"])
                .arg(&self.identity.certificate_file)
                .arg("-out")
                .arg(&path),
        );
        path
    }
}

/// The release's `openssl` without the provider.
fn plain(arguments: &[&str]) -> Command {
    let mut command = release::command("openssl");
    command
        .env_remove("OPENSSL_CONF")
        .env_remove("OPENSSL_MODULES")
        .args(arguments);
    command
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn provider_is_listed_as_active() {
    let setup = start(KeyKind::P256);
    for first in [false, true] {
        let edge = setup.edge(|options| EdgeOptions { first, ..options });
        let list = succeed(&mut edge.openssl(&["list", "-providers", "-verbose"]));
        assert!(
            list.contains("default") && list.contains("millrace"),
            "{list}"
        );
        assert_eq!(list.matches("status: active").count(), 2, "{list}");
    }
}

#[test]
fn provider_offers_its_key_types_signatures_exchanges_and_ciphers() {
    let setup = start(KeyKind::P256);
    let edge = setup.edge(|options| options);
    let offered = |what: &str| {
        let list = succeed(&mut edge.openssl(&["list", what]));
        list.lines()
            .filter(|line| line.contains("@ millrace"))
            .collect::<Vec<_>>()
            .join("\n")
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
        let setup = start(kind);
        let edge = setup.edge(|options| options);
        let message = setup.file("message", b"to be signed");
        let signature = setup.world.dir().join("signature");
        let sign = [
            "dgst",
            "-sha256",
            "-sign",
            text(&setup.stub),
            "-out",
            text(&signature),
        ];
        let _ = succeed(edge.openssl(&sign).arg(&message));
        let key = setup.public_key();
        let verify = [
            "dgst",
            "-sha256",
            "-verify",
            text(&key),
            "-signature",
            text(&signature),
        ];
        let said = succeed(plain(&verify).arg(&message));
        assert!(said.contains("Verified OK"), "{said}");
        assert_eq!(setup.node.served().total(), 1);
    }
}

#[test]
fn uri_signs_in_the_pool() {
    let setup = start(KeyKind::Rsa2048);
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

#[test]
fn key_of_the_pool_is_not_exported() {
    let setup = start(KeyKind::Rsa2048);
    let edge = setup.edge(|options| options.preferred());
    let output = run(&mut edge.openssl(&["pkey", "-in", text(&setup.stub)]));
    let said = text_of(&output);
    assert!(
        !said.contains("BEGIN PRIVATE KEY") && !said.contains("BEGIN RSA PRIVATE"),
        "{said}"
    );
    let public = succeed(&mut edge.openssl(&["pkey", "-in", text(&setup.stub), "-pubout"]));
    let expected = fs::read_to_string(setup.public_key()).expect("public key");
    assert!(public.contains(expected.trim()), "{public}");
    assert_eq!(setup.node.served().total(), 0);
}

/// Listed first and preferred, the provider must not change algorithms that it does not accelerate: random
/// numbers, digests, symmetric ciphers, generated keys, certificates.
#[test]
fn provider_listed_first_leaves_other_algorithms_working() {
    let setup = start(KeyKind::Rsa2048);
    let edge = setup.edge(|options| {
        EdgeOptions {
            first: true,
            ..options
        }
        .preferred()
    });
    let openssl = |arguments: &[&str]| succeed(&mut edge.openssl(arguments));
    let dir = setup.world.dir();
    let message = setup.file("message", b"to be signed");
    let path = |name: &str| text(&dir.join(name)).to_owned();
    let _ = openssl(&["rand", "-hex", "8"]);
    let _ = openssl(&["dgst", "-sha256", text(&message)]);
    let encrypt = [
        "enc",
        "-aes-256-cbc",
        "-pbkdf2",
        "-pass",
        "pass:x",
        "-in",
        text(&message),
    ];
    let _ = succeed(
        edge.openssl(&encrypt)
            .arg("-out")
            .arg(dir.join("encrypted")),
    );
    for (name, options) in [
        ("RSA", &["-pkeyopt", "rsa_keygen_bits:2048"][..]),
        ("EC", &["-pkeyopt", "ec_paramgen_curve:P-256"]),
        ("ED25519", &[]),
        ("X25519", &[]),
    ] {
        let key = path(name);
        let _ = succeed(
            edge.openssl(&["genpkey", "-algorithm", name, "-out", &key])
                .args(options),
        );
        let _ = openssl(&["pkey", "-in", &key, "-noout", "-text"]);
        if name == "RSA" || name == "EC" {
            let (public, signature) = (path("public"), path("signature"));
            let _ = openssl(&["pkey", "-in", &key, "-pubout", "-out", &public]);
            let sign = [
                "dgst",
                "-sha256",
                "-sign",
                &key,
                "-out",
                &signature,
                text(&message),
            ];
            let _ = openssl(&sign);
            let check = [
                "dgst",
                "-sha256",
                "-verify",
                &public,
                "-signature",
                &signature,
            ];
            let said = succeed(edge.openssl(&check).arg(&message));
            assert!(said.contains("Verified OK"), "{said}");
            let request = [
                "req", "-x509", "-new", "-key", &key, "-subj", "/CN=x", "-days", "1",
            ];
            let certificate = path("certificate");
            let _ = succeed(edge.openssl(&request).args(["-out", &certificate]));
            let _ = openssl(&["verify", "-CAfile", &certificate, &certificate]);
        }
    }
}

#[test]
fn openssl_speed_runs_with_asynchronous_jobs() {
    let setup = start(KeyKind::Rsa2048);
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

#[test]
fn s_server_and_s_client_do_asynchronous_handshakes() {
    for kind in KeyKind::USUAL {
        let setup = start(kind);
        let edge = setup.edge(|options| options);
        let port = free_port();
        let mut server = edge.openssl(&["s_server", "-async", "-www", "-accept"]);
        server
            .arg(format!("127.0.0.1:{port}"))
            .arg("-cert")
            .arg(&setup.identity.certificate_file);
        server.arg("-key").arg(&setup.stub);
        let log = setup.world.dir().join("s_server.log");
        let mut server = Process::start("s_server", server, &log);
        server.wait_ready(|| listens(port));
        for version in ["-tls1_2", "-tls1_3"] {
            let mut client = edge.openssl(&["s_client", "-async", "-quiet", version]);
            client.args([
                "-verify_return_error",
                "-verify_hostname",
                "localhost",
                "-CAfile",
            ]);
            client.arg(&setup.world.authority.file);
            client.args(["-connect", &format!("127.0.0.1:{port}")]);
            let output = run_with_input(&mut client, b"GET / HTTP/1.0\r\n\r\n");
            let said = text_of(&output);
            assert!(
                output.status.success() && said.contains("200 ok"),
                "{version}: {said}"
            );
        }
        assert_eq!(setup.node.served().total(), 2);
    }
}

/// TLS 1.2 without forward secrecy needs a decryption, which the policy of the key must allow.
#[test]
fn key_exchange_by_rsa_needs_a_policy_that_allows_it() {
    for (policy, allowed) in [(&["--allow-tls-premaster"][..], true), (&[], false)] {
        let world = World::new();
        let node = world.node("node-1");
        let identity = world.identity(KeyKind::Rsa2048);
        let stub = world.dir().join("stub.pem");
        let policy = [&["--allow-all"], policy].concat();
        fs::write(&stub, node.import_with("www", &identity, &policy)).expect("stub");
        let edge = EdgeOptions::to(node.endpoint()).write(world.dir());
        let port = free_port();
        let mut server = edge.openssl(&["s_server", "-async", "-www", "-accept"]);
        server
            .arg(format!("127.0.0.1:{port}"))
            .args(["-tls1_2", "-cipher", RSA_KEY_EXCHANGE]);
        server
            .arg("-cert")
            .arg(&identity.certificate_file)
            .arg("-key")
            .arg(&stub);
        let mut server = Process::start("s_server", server, &world.dir().join("s_server.log"));
        server.wait_ready(|| listens(port));
        let mut client = plain(&["s_client", "-quiet", "-tls1_2", "-cipher", RSA_KEY_EXCHANGE]);
        client.arg("-connect").arg(format!("127.0.0.1:{port}"));
        client
            .args(["-verify_return_error", "-CAfile"])
            .arg(&world.authority.file);
        let said = text_of(&run_with_input(&mut client, b"GET / HTTP/1.0\r\n\r\n"));
        assert_eq!(said.contains("200 ok"), allowed, "{said}");
        assert_eq!(node.served().of("rsa-tls-premaster"), u64::from(allowed));
    }
}

const RSA_KEY_EXCHANGE: &str = "AES128-GCM-SHA256";

/// The four lines of configuration that the CLI prints work unchanged.
#[test]
fn configuration_printed_by_the_cli_works() {
    let setup = start(KeyKind::P256);
    let endpoint = setup.node.endpoint();
    let mut command = Command::new(&artifacts().millrace);
    command.args(["gateway", "openssl", "--key", "www", "--pool", &endpoint]);
    let output = run(command.arg("--module").arg(&artifacts().provider));
    assert!(output.status.success(), "{}", text_of(&output));
    let conf = setup.file("printed.cnf", &output.stdout);
    let digest = setup.file("digest", &[7; 32]);
    let mut sign = release::command("openssl");
    sign.env("OPENSSL_CONF", &conf)
        .env_remove("OPENSSL_MODULES");
    sign.args([
        "pkeyutl",
        "-sign",
        "-inkey",
        text(&setup.stub),
        "-in",
        text(&digest),
        "-out",
    ]);
    let _ = succeed(sign.arg(setup.world.dir().join("signature")));
    assert_eq!(setup.node.served().total(), 1);
}

const FORKS: usize = 4;

/// A process that has used the pool forks. Its children, a grandchild and the process itself use the pool
/// after that.
#[test]
fn fork_after_use_gives_every_process_a_connection_of_its_own() {
    let setup = start(KeyKind::P256);
    let edge = setup.edge(|options| options);
    let mut python = release::python();
    edge.apply(&mut python).args(["-c", FORKING]);
    python
        .arg(&setup.identity.certificate_file)
        .arg(&setup.stub);
    let said = succeed(
        python
            .arg(&setup.world.authority.file)
            .arg(FORKS.to_string()),
    );
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
    for (kind, algorithm) in [
        (KeyKind::Rsa2048, "RSA-SHA256"),
        (KeyKind::P256, "ECDSA-SHA256"),
    ] {
        let setup = start(kind);
        // One key that only the pool has, and one that the process imports into the pool.
        for (key, edge) in [
            (&setup.stub, setup.edge(|options| options)),
            (&setup.identity.key_file, setup.edge(EdgeOptions::preferred)),
        ] {
            let before = setup.node.served().total();
            let mut python = release::python();
            edge.apply(&mut python)
                .args(["-c", NAMED])
                .arg(key)
                .arg(algorithm);
            assert_eq!(succeed(&mut python).trim(), "3 signatures verify");
            assert_eq!(setup.node.served().total(), before + 3, "{algorithm}");
        }
    }
}

/// Signs with the named algorithm: a message at once, a message in parts, and a digest. OpenSSL 3.5 signs
/// with ML-DSA only messages at once.
const NAMED: &str = "
import ctypes, hashlib, sys
crypto = ctypes.CDLL('libcrypto.so.3')
for name in ['BIO_new_file', 'PEM_read_bio_PrivateKey', 'EVP_MD_CTX_new', 'EVP_SIGNATURE_fetch',
             'EVP_PKEY_CTX_new_from_pkey', 'EVP_PKEY_CTX_new']:
    getattr(crypto, name).restype = ctypes.c_void_p
pointer, size = ctypes.c_void_p, ctypes.c_size_t

def need(result):
    if not result or result < 0:
        crypto.ERR_print_errors_fp(pointer.in_dll(ctypes.CDLL(None), 'stderr'))
        sys.exit('libcrypto failed')
    return result

OPENSSL_INIT_LOAD_CONFIG = 0x40
need(crypto.OPENSSL_init_crypto(ctypes.c_uint64(OPENSSL_INIT_LOAD_CONFIG), None))
file = need(crypto.BIO_new_file(sys.argv[1].encode(), b'r'))
key = pointer(need(crypto.PEM_read_bio_PrivateKey(pointer(file), None, None, None)))
named = need(crypto.EVP_SIGNATURE_fetch(None, sys.argv[2].encode(), b'provider=millrace'))
algorithm = pointer(named)
message = b'to be signed, in parts or at once'
at_once_only = sys.argv[2].startswith('ML-DSA')
digest_name = None if at_once_only else b'SHA256'
digest = hashlib.sha256(message).digest()

def sign(init, produce):
    context = pointer(need(crypto.EVP_PKEY_CTX_new_from_pkey(None, key, None)))
    need(init(context, algorithm, None))
    length = size(0)
    need(produce(context, None, length))
    signature = ctypes.create_string_buffer(length.value)
    need(produce(context, signature, length))
    return signature.raw[:length.value]

def in_parts(context, signature, length):
    if signature is not None:
        for part in (message[:5], message[5:]):
            need(crypto.EVP_PKEY_sign_message_update(context, part, size(len(part))))
    room = length.value
    return crypto.EVP_PKEY_sign_message_final(context, signature, ctypes.byref(length))

def at_once(what):
    def produce(context, signature, length):
        return crypto.EVP_PKEY_sign(context, signature, ctypes.byref(length), what, size(len(what)))
    return produce

signatures = [sign(crypto.EVP_PKEY_sign_message_init, at_once(message))]
if not at_once_only:
    signatures.append(sign(crypto.EVP_PKEY_sign_message_init, in_parts))
    signatures.append(sign(crypto.EVP_PKEY_sign_init_ex2, at_once(digest)))
for signature in signatures:
    context = pointer(need(crypto.EVP_MD_CTX_new()))
    need(crypto.EVP_DigestVerifyInit_ex(context, None, digest_name, None, None, key, None))
    need(crypto.EVP_DigestVerify(context, signature, size(len(signature)), message, size(len(message))))
    verify = pointer(need(crypto.EVP_PKEY_CTX_new_from_pkey(None, key, None)))
    need(crypto.EVP_PKEY_verify_message_init(verify, algorithm, None))
    need(crypto.EVP_PKEY_verify(verify, signature, size(len(signature)), message, size(len(message))))
print(len(signatures), 'signatures verify')
";

/// Since OpenSSL 3.5 the first choice for TLS 1.3 is a hybrid of ML-KEM and X25519. The provider offers
/// X25519 without ML-KEM, so OpenSSL computes the hybrid.
#[test]
fn hybrid_key_exchange_works_beside_the_provider() {
    const GROUP: &str = "X25519MLKEM768";
    if release::openssl() < (3, 5) {
        skip!("OpenSSL before 3.5 has no {GROUP}");
    }
    let setup = start(KeyKind::P256);
    for (preferred, key) in [(false, &setup.stub), (true, &setup.identity.key_file)] {
        // Long deadlines, so that the pool makes the signature even on a busy machine.
        let edge = setup.edge(|options| {
            let options = options
                .with("deadline_ms", 20_000)
                .with("fallback_after_ms", 20_000);
            EdgeOptions {
                preferred,
                ..options
            }
        });
        let before = setup.node.served().total();
        let port = free_port();
        let mut server = edge.openssl(&["s_server", "-async", "-www", "-groups", GROUP, "-accept"]);
        server
            .arg(format!("127.0.0.1:{port}"))
            .arg("-cert")
            .arg(&setup.identity.certificate_file);
        server.arg("-key").arg(key);
        let log = setup.world.dir().join(format!("s_server-{preferred}.log"));
        let mut server = Process::start("s_server", server, &log);
        server.wait_ready(|| listens(port));
        let mut client = edge.openssl(&["s_client", "-async", "-verify_return_error", "-CAfile"]);
        client.arg(&setup.world.authority.file);
        client.args(["-connect", &format!("127.0.0.1:{port}")]);
        let output = run_with_input(&mut client, b"GET / HTTP/1.0\r\n\r\n");
        let said = text_of(&output);
        assert!(output.status.success() && said.contains(GROUP), "{said}");
        assert_eq!(setup.node.served().total(), before + 1, "{said}");
    }
}

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
        let path = |name: &str| world.dir().join(name);
        let (key, certificate, stub) = (path("mldsa.pem"), path("mldsa.crt"), path("mldsa.stub"));
        let algorithm = format!("ML-DSA-{set}");
        let generate = ["genpkey", "-algorithm", &algorithm, "-out", text(&key)];
        let _ = succeed(&mut plain(&generate));
        let mut request = plain(&["req", "-x509", "-new", "-key", text(&key), "-days", "2"]);
        request.args(["-subj", "/CN=localhost"]);
        request.args(["-addext", "subjectAltName=DNS:localhost"]);
        let _ = succeed(request.arg("-out").arg(&certificate));
        let import = ["key", "import", "www", text(&key), "--allow-all"];
        let _ = succeed(&mut node.command(&import));
        node.wait_for_store();
        fs::write(&stub, node.stub("www")).expect("stub");
        Self {
            world,
            node,
            certificate,
            stub,
            key,
        }
    }

    /// Long deadlines, so that the pool makes the signature even on a busy machine.
    fn edge(&self, preferred: bool) -> Edge {
        let options = EdgeOptions::to(self.node.endpoint())
            .with("deadline_ms", 20_000)
            .with("fallback_after_ms", 20_000)
            .with("verify", "all");
        let options = EdgeOptions {
            preferred,
            ..options
        };
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
        let port = free_port();
        let mut server = edge.openssl(&["s_server", "-async", "-tls1_3", "-www", "-accept"]);
        server.arg(format!("127.0.0.1:{port}"));
        server.arg("-cert").arg(&setup.certificate);
        server.arg("-key").arg(&setup.stub);
        let log = setup.world.dir().join("s_server.log");
        let mut server = Process::start("s_server", server, &log);
        server.wait_ready(|| listens(port));
        for handshakes in 1..=3 {
            let signature = format!("mldsa{set}");
            let mut client = plain(&["s_client", "-tls1_3", "-sigalgs", &signature]);
            client.args(["-verify_return_error", "-verify_hostname", "localhost"]);
            client.arg("-CAfile").arg(&setup.certificate);
            client.args(["-connect", &format!("127.0.0.1:{port}")]);
            let output = run_with_input(&mut client, b"GET / HTTP/1.0\r\n\r\n");
            let said = text_of(&output);
            assert!(output.status.success(), "{said}\n{}", server.log());
            let used = format!("Peer signature type: {signature}");
            assert!(said.contains(&used), "{said}");
            assert!(said.contains("Verification: OK"), "{said}");
            assert_eq!(setup.served(), handshakes, "{said}");
        }
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
        let keys = [
            (text(&setup.stub), false),
            ("millrace:www", false),
            (text(&setup.key), true),
        ];
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
        let shown = succeed(
            &mut setup
                .edge(false)
                .openssl(&["list", "-signature-algorithms"]),
        );
        let ours = |line: &str| line.contains("ML-DSA") && line.contains("@ millrace");
        assert_eq!(
            shown.lines().filter(|line| ours(line)).count(),
            3,
            "{shown}"
        );
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
    let input = [
        "-rawin",
        "-in",
        text(&message),
        "-pkeyopt",
        "context-string:mill",
    ];
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
        setup.edge(preferred).apply(&mut python).args(["-c", NAMED]);
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
        (
            "ecdsa_secp256r1_sha256",
            &setup.world.authority.file,
            "ecdsa-sign",
        ),
    ] {
        for handshakes in 1..=3 {
            let mut client = plain(&["s_client", "-tls1_3", "-sigalgs", algorithm]);
            client.args(["-verify_return_error", "-verify_hostname", "localhost"]);
            client.arg("-CAfile").arg(authority);
            client.args(["-connect", &format!("127.0.0.1:{port}")]);
            let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let output = run_with_input(&mut client, request);
            let said = text_of(&output);
            assert!(
                output.status.success(),
                "{algorithm}: {said}\n{}",
                nginx.log()
            );
            assert_eq!(setup.node.served().of(operation), handshakes, "{said}");
        }
    }
}
