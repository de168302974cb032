// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A bad node beside a good one: it answers wrongly, never, in drips, in short frames, for foreign jobs, a hundred
//! times slower, with errors or refusals, or now and then. After the first second no operation fails, and no wrong
//! result comes out, with each type of key. With a key on the gateway, and the bad node alone, none ever fails.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use millrace_operation::JobError;
use millrace_operation::sync::lock;
use millrace_tests::drive::{Tls, is_verification_failure};
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::{Gateway, Server, Site};
use millrace_tests::is_long;
use millrace_tests::node::Node;
use millrace_tests::openssl::{plain, self_signed, text};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::succeed;
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::release;
use millrace_tests::wait;
use millrace_tests::world::World;
use serde_json::Value;

/// Time in which a client finds out that a node is bad.
const FIRST_SECOND: Duration = Duration::from_secs(1);

/// A kind of bad node.
#[derive(Clone, Copy, Debug)]
enum Bad {
    Constant(Fault),
    /// Well for this time, then with the fault for as long, and so on.
    Flapping(Fault, Duration),
}

const BAD: [Bad; 12] = [
    Bad::Constant(Fault::WrongResult),
    Bad::Constant(Fault::Drop),
    Bad::Constant(Fault::Drip(Duration::from_millis(20))),
    Bad::Constant(Fault::Short),
    Bad::Constant(Fault::ForeignIds),
    // The good node takes some milliseconds on a busy machine.
    Bad::Constant(Fault::Latency(Duration::from_millis(300))),
    Bad::Constant(Fault::Failing(JobError::Failed)),
    Bad::Constant(Fault::NoKeys),
    Bad::Constant(Fault::Failing(JobError::Busy)),
    Bad::Constant(Fault::Failing(JobError::Denied)),
    Bad::Flapping(Fault::Drop, Duration::from_millis(400)),
    Bad::Flapping(Fault::Refuse, Duration::from_millis(50)),
];

/// Types of keys: name, options of `openssl genpkey`, digest.
const KEYS: [(&str, &[&str], &str); 5] = [
    ("rsa", &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"], "SHA256"),
    ("p256", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"], "SHA256"),
    ("p384", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"], "SHA384"),
    ("ed25519", &["-algorithm", "ED25519"], ""),
    ("mldsa65", &["-algorithm", "ML-DSA-65"], ""),
];

/// Two nodes with the same key of each type; the second one behind a proxy that makes it bad.
struct Pair {
    world: World,
    nodes: [Node; 2],
    /// Held while configurations are written: their names are numbered.
    writing: Mutex<()>,
}

/// A key in a file, its public half, and its stub.
struct KeyFiles {
    private: PathBuf,
    public: PathBuf,
    stub: PathBuf,
    digest: &'static str,
}

impl Pair {
    fn start() -> Self {
        let world = World::new();
        let nodes = [world.node("node-1"), world.node("node-2")];
        Self { world, nodes, writing: Mutex::new(()) }
    }

    fn key(&self, (name, options, digest): (&str, &[&str], &'static str)) -> KeyFiles {
        let (private, certificate) = self_signed(self.world.dir(), name, options);
        for node in &self.nodes {
            let _ =
                succeed(&mut node.command(&["key", "import", name, text(&private), "--allow-all"]));
            node.wait_for_store();
        }
        let path = |extension: &str| self.world.dir().join(format!("{name}.{extension}"));
        let (public, stub) = (path("pub"), path("stub"));
        let _ = succeed(
            plain(&["x509", "-noout", "-pubkey", "-in", text(&certificate), "-out"]).arg(&public),
        );
        fs::write(&stub, self.nodes[0].stub(name)).expect("a stub");
        KeyFiles { private, public, stub, digest }
    }

    fn proxy(&self, name: &str) -> Proxy {
        Proxy::start(self.world.dir(), name, &self.nodes[1].socket())
    }

    fn write(&self, edge: EdgeOptions) -> Edge {
        let _writing = lock(&self.writing);
        edge.write(self.world.dir())
    }

    /// Time limits as they are by default.
    fn edge(&self, nodes: Vec<String>) -> EdgeOptions {
        let edge = EdgeOptions { nodes, ..EdgeOptions::default() };
        edge.with("deadline_ms", 2000).with("fallback_after_ms", 500)
    }
}

/// Ends the flapping, also if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes the node bad while `act` runs.
fn while_bad(proxy: &Proxy, bad: Bad, act: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        match bad {
            Bad::Constant(fault) => proxy.set(fault),
            Bad::Flapping(fault, period) => {
                let stop = &stop;
                let _ = scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        for fault in [fault, Fault::None] {
                            proxy.set(fault);
                            thread::sleep(period);
                        }
                    }
                });
            }
        }
        let _end = StopOnDrop(&stop);
        act();
    });
    proxy.set(Fault::None);
}

/// A process that signs by the provider, and verifies by OpenSSL.
struct Signer {
    process: Child,
    output: BufReader<ChildStdout>,
}

/// The signatures that did not come or are wrong.
#[derive(Debug, PartialEq, Eq)]
struct Signed {
    failed: u64,
    wrong: u64,
}

impl Signer {
    fn start(edge: &Edge, key: &Path, files: &KeyFiles) -> Self {
        let mut python = release::python();
        edge.apply(&mut python).args(["-c", SIGNING]).arg(key).arg(&files.public).arg(files.digest);
        let mut process = python
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process that signs");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, output }
    }

    /// Signs for some milliseconds, and at least `count` times.
    fn sign(&mut self, milliseconds: u32, count: u32) -> Signed {
        let input = self.process.stdin.as_mut().expect("a pipe");
        writeln!(input, "{milliseconds} {count}").expect("the process reads");
        let mut line = String::new();
        let _ = self.output.read_line(&mut line).expect("the process answers");
        let counts: Value = serde_json::from_str(&line).expect("counts");
        let count = |name: &str| counts[name].as_u64().expect("a count");
        Signed { failed: count("failed"), wrong: count("wrong") }
    }
}

impl Drop for Signer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const NOTHING: Signed = Signed { failed: 0, wrong: 0 };

/// Signs and verifies on two threads, as often as standard input says.
const SIGNING: &str = "
import ctypes, json, sys, threading, time
crypto = ctypes.CDLL('libcrypto.so.3')
for name in ['BIO_new_file', 'PEM_read_bio_PrivateKey', 'PEM_read_bio_PUBKEY', 'EVP_MD_CTX_new']:
    getattr(crypto, name).restype = ctypes.c_void_p
pointer, size = ctypes.c_void_p, ctypes.c_size_t

def need(result):
    assert result and result > 0, 'libcrypto failed'
    return result

OPENSSL_INIT_LOAD_CONFIG = 0x40
need(crypto.OPENSSL_init_crypto(ctypes.c_uint64(OPENSSL_INIT_LOAD_CONFIG), None))

def load(path, read):
    file = pointer(need(crypto.BIO_new_file(path.encode(), b'r')))
    return pointer(need(read(file, None, None, None)))

key = load(sys.argv[1], crypto.PEM_read_bio_PrivateKey)
public = load(sys.argv[2], crypto.PEM_read_bio_PUBKEY)
digest = sys.argv[3].encode() or None
message = b'to be signed'

def sign():
    context = pointer(need(crypto.EVP_MD_CTX_new()))
    try:
        need(crypto.EVP_DigestSignInit_ex(context, None, digest, None, None, key, None))
        length = size(8192)
        signature = ctypes.create_string_buffer(8192)
        if crypto.EVP_DigestSign(context, signature, ctypes.byref(length), message, size(len(message))) != 1:
            crypto.ERR_clear_error()
            return None
        return signature.raw[:length.value]
    finally:
        crypto.EVP_MD_CTX_free(context)

def verifies(signature):
    context = pointer(need(crypto.EVP_MD_CTX_new()))
    try:
        need(crypto.EVP_DigestVerifyInit_ex(context, None, digest, None, None, public, None))
        good = crypto.EVP_DigestVerify(context, signature, size(len(signature)), message, size(len(message))) == 1
        crypto.ERR_clear_error()
        return good
    finally:
        crypto.EVP_MD_CTX_free(context)

for line in sys.stdin:
    milliseconds, count = map(int, line.split())
    until = time.monotonic() + milliseconds / 1000
    counts = {'failed': 0, 'wrong': 0}
    lock = threading.Lock()
    def run():
        done = 0
        while done < count or time.monotonic() < until:
            signature = sign()
            done += 1
            with lock:
                counts['failed'] += signature is None
                counts['wrong'] += signature is not None and not verifies(signature)
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(json.dumps(counts), flush=True)
";

/// The key is in the pool alone, and the node becomes bad while it is used.
fn bad_node_beside_a_good_one(pair: &Pair, files: &KeyFiles, name: &str, bad: Bad) {
    let proxy = pair.proxy(name);
    let nodes = vec![pair.nodes[0].endpoint(), proxy.endpoint()];
    let edge = pair.write(pair.edge(nodes));
    let mut signer = Signer::start(&edge, &files.stub, files);
    // A node whose keys never open is bad from the beginning.
    if !matches!(bad, Bad::Constant(Fault::NoKeys)) {
        wait::until("both nodes work", || {
            assert_eq!(signer.sign(0, 10), NOTHING);
            proxy.completions() > 20
        });
    }
    while_bad(&proxy, bad, || {
        let first = signer.sign(u32::try_from(FIRST_SECOND.as_millis()).expect("small"), 1);
        let then = signer.sign(1500, 50);
        eprintln!("{name}, {bad:?}: {first:?}, then {then:?}");
        assert_eq!(then, NOTHING, "{name}, {bad:?}");
    });
    assert_eq!(signer.sign(0, 20), NOTHING, "{name}, {bad:?}: the node is well again");
}

/// The node is wrong from the beginning: not one wrong signature comes out.
#[test]
fn node_that_is_wrong_from_the_beginning_gets_no_signature_out() {
    let pair = Pair::start();
    for key in KEYS.iter().filter(|(name, ..)| matches!(*name, "p256" | "ed25519")) {
        let files = pair.key(*key);
        let proxy = pair.proxy(key.0);
        let edge = pair.write(pair.edge(vec![pair.nodes[0].endpoint(), proxy.endpoint()]));
        proxy.set(Fault::WrongResult);
        let mut signer = Signer::start(&edge, &files.stub, &files);
        wait::until("the node has answered", || {
            assert_eq!(signer.sign(0, 20), NOTHING, "{}", key.0);
            proxy.completions() > 0
        });
        assert_eq!(signer.sign(500, 20), NOTHING, "{}", key.0);
    }
}

/// The key is on the gateway, and there is only this node.
fn bad_node_alone_with_a_local_key(pair: &Pair, files: &KeyFiles, name: &str, bad: Bad) {
    let proxy = pair.proxy(name);
    let edge = pair.write(pair.edge(vec![proxy.endpoint()]).preferred());
    while_bad(&proxy, bad, || {
        let mut signer = Signer::start(&edge, &files.private, files);
        assert_eq!(signer.sign(1000, 30), NOTHING, "{name}, {bad:?}");
    });
}

/// Runs `test` for each key type and kind of bad node, four at a time; without `MILLRACE_LONG=1` each key with a node
/// that answers wrongly, and one key with each node.
fn for_each_key_and_fault(test: fn(&Pair, &KeyFiles, &str, Bad)) {
    let pair = Pair::start();
    let keys = KEYS.iter().filter(|(name, ..)| *name != "mldsa65" || release::openssl() >= (3, 5));
    let keys: Vec<_> = keys.map(|key| (key.0, pair.key(*key))).collect();
    let mut cases = Vec::new();
    for (name, files) in &keys {
        for (number, bad) in BAD.into_iter().enumerate() {
            if is_long() || number == 0 || *name == "p256" {
                cases.push((format!("{name}-{number}"), files, bad));
            }
        }
    }
    thread::scope(|scope| {
        for part in cases.chunks(cases.len().div_ceil(4)) {
            let pair = &pair;
            let _ = scope.spawn(move || {
                for (name, files, bad) in part {
                    test(pair, files, name, *bad);
                }
            });
        }
    });
}

#[test]
fn bad_node_beside_a_good_one_fails_nothing_after_the_first_second() {
    for_each_key_and_fault(bad_node_beside_a_good_one);
}

#[test]
fn bad_node_alone_fails_nothing_if_the_gateway_has_the_key() {
    for_each_key_and_fault(bad_node_alone_with_a_local_key);
}

/// The same through HAProxy and nginx, under load.
#[test]
fn servers_fail_no_handshake_beside_a_bad_node_after_the_first_second() {
    for server in Server::ALL {
        for kind in [KeyKind::Rsa2048, KeyKind::P256] {
            let pair = Pair::start();
            let identity = pair.world.identity(kind);
            let stub = pair.nodes.each_ref().map(|node| node.import("www", &identity));
            for (number, bad) in BAD.into_iter().enumerate() {
                // A wrong node with P-256, a silent one with RSA.
                let is_usual = number == usize::from(kind == KeyKind::Rsa2048);
                if is_long() || is_usual {
                    let proxy = pair.proxy(&format!("{server}-{number}"));
                    let nodes = vec![pair.nodes[0].endpoint(), proxy.endpoint()];
                    let site = Site::with_stub(&identity, &stub[0]);
                    let gateway = pair.world.gateway(server, pair.edge(nodes), &[site]);
                    handshakes_beside(&pair, &gateway, kind, &proxy, bad);
                }
            }
        }
    }
}

fn handshakes_beside(pair: &Pair, gateway: &Gateway, kind: KeyKind, proxy: &Proxy, bad: Bad) {
    let load = pair.world.client.load(gateway.address(kind), Tls::V13, 4);
    if !matches!(bad, Bad::Constant(Fault::NoKeys)) {
        wait::until("both nodes work", || proxy.completions() > 60);
    }
    while_bad(proxy, bad, || {
        thread::sleep(FIRST_SECOND);
        let failed = load.failed();
        load.wait_for_more(200);
        eprintln!("{kind}, {bad:?}: {failed} failed in the first second");
        assert_eq!(load.failed(), failed, "{kind}, {bad:?}");
    });
    let failures = load.stop().failures;
    if kind == KeyKind::Rsa2048 {
        let wrong = failures.keys().filter(|error| is_verification_failure(error));
        assert_eq!(wrong.collect::<Vec<_>>(), Vec::<&String>::new(), "{bad:?}");
    }
}
