// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The pool is absent, slow, killed, stopped, restarted, or returns wrong data. A key on the gateway can
//! always fall back on OpenSSL's own implementation: its handshakes never fail. With a key that only the pool
//! has, the handshake fails with a clear error or uses another node, and succeeds again as soon as the pool
//! does. A client never sees a wrong signature.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use millrace_testkit::skip;
use millrace_tests::artifacts::{Artifacts, artifacts};
use millrace_tests::checked::may_unshare;
use millrace_tests::drive::{Tls, is_verification_failure};
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::{Gateway, Server, Site};
use millrace_tests::is_root;
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::openssl::{Pooled, plain};
use millrace_tests::pki::{Authority, Identity, KeyKind};
use millrace_tests::process::{Process, copy_for_all, free_port, listens, run_with_input, succeed};
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::release;
use millrace_tests::wait;
use millrace_tests::world::World;
use rustix::process::Signal;

/// The provider's time limits in tests where they must expire: short, to keep the tests quick. Tests repeat
/// operations that have to succeed within them, since a busy machine may miss them.
const FALLBACK_AFTER_MS: u64 = 400;
const DEADLINE_MS: u64 = 1500;

fn limits(edge: EdgeOptions) -> EdgeOptions {
    edge.with("fallback_after_ms", FALLBACK_AFTER_MS).with("deadline_ms", DEADLINE_MS)
}

/// One node behind a proxy, and a gateway with one RSA key.
struct Setup {
    world: World,
    node: Node,
    proxy: Proxy,
    gateway: Gateway,
    kind: KeyKind,
}

impl Setup {
    /// The key is on the gateway, which can sign without the pool.
    fn with_key(server: Server, kind: KeyKind) -> Self {
        Self::start(server, kind, false, limits)
    }

    /// The key is in the pool only.
    fn with_stub(server: Server, kind: KeyKind) -> Self {
        Self::start(server, kind, true, limits)
    }

    fn start(
        server: Server,
        kind: KeyKind,
        stub: bool,
        limits: impl FnOnce(EdgeOptions) -> EdgeOptions,
    ) -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
        let identity = world.identity(kind);
        // For keys other than RSA, verification of the pool's signatures is off by default.
        let edge = limits(EdgeOptions::to(proxy.endpoint())).with("verify", "all");
        let (edge, site) = if stub {
            (edge, Site::with_stub(&identity, &node.import("www", &identity)))
        } else {
            (edge.preferred(), Site::with_key(&identity))
        };
        let gateway = world.gateway(server, edge, &[site]);
        let setup = Self { world, node, proxy, gateway, kind };
        // The faults that follow must hit a gateway that already uses the pool.
        setup.wait_until_pooled();
        setup
    }

    fn handshake(&self) -> Result<(), String> {
        self.world.client.handshake(self.gateway.address(self.kind), Tls::V13)
    }

    fn handshakes(&self, count: usize) {
        self.world.client.handshakes(self.gateway.address(self.kind), Tls::V13, count);
    }

    /// Returns whether the handshake succeeded. Panics if it failed because wrong data reached the client.
    fn try_handshake(&self) -> bool {
        match self.handshake() {
            Ok(()) => true,
            Err(error) => {
                assert!(!is_verification_failure(&error), "a client saw something wrong: {error}");
                false
            }
        }
    }

    /// Waits until the pool does all of the gateway's operations, from every worker.
    fn wait_until_pooled(&self) {
        const IN_A_ROW: u64 = 6;
        wait::until("the pool is used", || {
            let before = self.node.served().total();
            let good = (0..IN_A_ROW).all(|_| self.try_handshake());
            good && self.node.served().total() == before + IN_A_ROW
        });
    }
}

#[test]
fn gateway_with_its_key_falls_back_until_there_is_a_node() {
    for server in Server::ALL {
        let world = World::new();
        let mut node = Node::prepare(world.dir(), "node-1", &NodeOptions::default());
        let identity = world.identity(KeyKind::Rsa2048);
        let edge = limits(EdgeOptions::to(node.endpoint())).preferred();
        let gateway = world.gateway(server, edge, &[Site::with_key(&identity)]);
        let address = gateway.address(KeyKind::Rsa2048);
        for tls in Tls::ALL {
            world.client.handshakes(address, tls, 5);
        }
        node.up();
        wait::until("the pool is used", || {
            world.client.handshakes(address, Tls::V13, 1);
            node.served().total() > 0
        });
    }
}

#[test]
fn stub_without_a_node_fails_with_a_reason_and_recovers() {
    for server in Server::ALL {
        let world = World::new();
        let mut node = Node::prepare(world.dir(), "node-1", &NodeOptions::default());
        let identity = world.identity(KeyKind::Rsa2048);
        let stub = node.import("www", &identity);
        let edge = limits(EdgeOptions::to(node.endpoint()));
        let gateway = world.gateway(server, edge, &[Site::with_stub(&identity, &stub)]);
        let address = gateway.address(KeyKind::Rsa2048);
        let error = world.client.handshake(address, Tls::V13).expect_err("no node has the key");
        assert!(!is_verification_failure(&error), "{error}");
        if server == Server::Nginx {
            // HAProxy logs only an error category; nginx logs OpenSSL's error with the provider's text. nginx
            // logs it after the client has received its alert.
            wait::until("the log names the pool", || {
                let log = gateway.process.log();
                log.contains("millrace") && log.contains("node")
            });
        }
        node.up();
        wait::until("the key works", || world.client.handshake(address, Tls::V13).is_ok());
        assert!(node.served().total() > 0);
    }
}

/// The provider counts operations done locally by reason, and an operator can read the counters.
#[test]
fn fallbacks_are_counted_by_the_provider() {
    let world = World::new();
    let identity = world.identity(KeyKind::Rsa2048);
    let node = world.node("node-1");
    let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
    let count_within = |endpoint: String, signatures: u64, fallback_after_ms: u64| {
        let edge = EdgeOptions::to(endpoint)
            .preferred()
            .with("fallback_after_ms", fallback_after_ms)
            .write(world.dir());
        let mut python = release::python();
        edge.apply(&mut python).args(["-c", COUNTING]).arg(&identity.key_file);
        let said = succeed(python.arg(signatures.to_string()));
        let counters: BTreeMap<String, u64> = serde_json::from_str(&said).expect("counters");
        let sum: u64 = counters
            .iter()
            .filter(|(name, _)| name.starts_with("millrace-fallback-"))
            .map(|(_, count)| count)
            .sum();
        let done = counters["millrace-pooled"] + sum;
        assert_eq!(done, signatures, "every one has its reason: {counters:?}");
        assert_eq!(counters["millrace-fallback"], sum, "{counters:?}");
        assert_eq!(counters["millrace-panics"], 0);
        counters
    };
    // The deadline is short only in the case where it must expire.
    let count = |endpoint, signatures| count_within(endpoint, signatures, 30_000);
    let good = count(proxy.endpoint(), 5);
    assert_eq!(good["millrace-pooled"], 5);
    assert_eq!((good["millrace-blocking"], good["millrace-paused"]), (5, 0));
    for (fault, after_ms, reason) in [
        (Fault::Refuse, 30_000, "no-node"),
        (Fault::Drop, FALLBACK_AFTER_MS, "timed-out"),
        (Fault::WrongResult, 30_000, "wrong-result"),
    ] {
        proxy.set(fault);
        let bad = count_within(proxy.endpoint(), 2, after_ms);
        let name = format!("millrace-fallback-{reason}");
        assert_eq!(bad[&name], 2, "{reason}: {bad:?}");
    }
    // After three failures the provider does not ask the pool for one second.
    proxy.set(Fault::Refuse);
    let bad = count(proxy.endpoint(), 20);
    assert!(bad["millrace-fallback-no-node"] >= 3, "{bad:?}");
    assert!(bad["millrace-fallback-breaker"] >= 1, "{bad:?}");
    // The node's quota is one job per second. A refusal by quota does not count as a failure: until the time that the
    // node names with it the client refuses the jobs itself, for the same reason.
    let options = NodeOptions {
        toml: "[limits]\nquota-ops-per-second = 1\n".to_owned(),
        ..NodeOptions::default()
    };
    let node = Node::start_with(world.dir(), "node-2", &options);
    let over = count(node.endpoint(), 20);
    assert!(over["millrace-fallback-quota"] >= 1, "{over:?}");
    assert_eq!(over["millrace-pooled"] + over["millrace-fallback-quota"], 20, "{over:?}");
    let metrics = node.metrics();
    let refused = metrics
        .lines()
        .find_map(|l| l.strip_prefix("millrace_jobs_refused_total{reason=\"over-quota\"} "));
    let refused: u64 = refused.and_then(|count| count.parse().ok()).expect("a count");
    assert!((1..=over["millrace-fallback-quota"]).contains(&refused), "{refused} {over:?}");
}

/// Signs with a key file and prints the provider's counters, through the C interface of libcrypto.
const COUNTING: &str = "
import ctypes, json, sys
crypto = ctypes.CDLL('libcrypto.so.3')
for name in ['BIO_new_file', 'PEM_read_bio_PrivateKey', 'EVP_MD_CTX_new', 'OSSL_PROVIDER_load']:
    getattr(crypto, name).restype = ctypes.c_void_p
pointer = ctypes.c_void_p

def need(result):
    assert result and result != 0, 'libcrypto failed'
    return result

OPENSSL_INIT_LOAD_CONFIG = 0x40
need(crypto.OPENSSL_init_crypto(ctypes.c_uint64(OPENSSL_INIT_LOAD_CONFIG), None))
file = need(crypto.BIO_new_file(sys.argv[1].encode(), b'r'))
key = need(crypto.PEM_read_bio_PrivateKey(pointer(file), None, None, None))
for _ in range(int(sys.argv[2])):
    context = pointer(need(crypto.EVP_MD_CTX_new()))
    need(crypto.EVP_DigestSignInit_ex(context, None, b'SHA256', None, None, pointer(key), None))
    signature = ctypes.create_string_buffer(1024)
    length = ctypes.c_size_t(1024)
    message = b'to be signed'
    need(crypto.EVP_DigestSign(context, signature, ctypes.byref(length), message, len(message)))

class Param(ctypes.Structure):
    _fields_ = [('key', ctypes.c_char_p), ('type', ctypes.c_uint), ('data', ctypes.c_void_p),
                ('size', ctypes.c_size_t), ('returned', ctypes.c_size_t)]

OSSL_PARAM_UNSIGNED_INTEGER = 2
names = ['millrace-pooled', 'millrace-local', 'millrace-fallback', 'millrace-fallback-no-node',
         'millrace-fallback-timed-out', 'millrace-fallback-busy', 'millrace-fallback-refused',
         'millrace-fallback-failed', 'millrace-fallback-wrong-result', 'millrace-fallback-breaker',
         'millrace-fallback-quota', 'millrace-wrong-results', 'millrace-paused', 'millrace-blocking',
         'millrace-panics']
values = [ctypes.c_uint64(0) for _ in names]
params = (Param * (len(names) + 1))()
for param, name, value in zip(params, names, values):
    param.key, param.type, param.size = name.encode(), OSSL_PARAM_UNSIGNED_INTEGER, 8
    param.data, param.returned = ctypes.cast(ctypes.byref(value), pointer), 2 ** 64 - 1
provider = need(crypto.OSSL_PROVIDER_load(None, b'millrace'))
need(crypto.OSSL_PROVIDER_get_params(pointer(provider), params))
print(json.dumps({name: value.value for name, value in zip(names, values)}))
";

#[test]
fn slow_node_is_not_waited_for_if_the_key_is_local() {
    for server in Server::ALL {
        let setup = Setup::with_key(server, KeyKind::Rsa2048);
        // The proxy delivers nothing, so every success is a local operation.
        setup.proxy.set(Fault::Hold);
        let (jobs, delivered) = (setup.proxy.jobs(), setup.node.served().total());
        setup.handshakes(5);
        assert!(setup.proxy.jobs() > jobs, "the pool was asked first");
        wait::until("it has worked, for nothing", || setup.node.served().total() > delivered);
        setup.proxy.set(Fault::None);
        setup.wait_until_pooled();
    }
}

#[test]
fn slow_node_is_waited_for_until_the_deadline_if_the_key_is_remote() {
    // Far above the latency, so that a busy machine meets the deadline.
    let limits = |edge: EdgeOptions| {
        edge.with("fallback_after_ms", FALLBACK_AFTER_MS).with("deadline_ms", 4000)
    };
    for server in Server::ALL {
        let setup = Setup::start(server, KeyKind::P256, true, limits);
        // Later than a fallback, earlier than the deadline.
        let late = Duration::from_millis(FALLBACK_AFTER_MS + 100);
        setup.proxy.set(Fault::Latency(late));
        setup.handshakes(2);
        setup.proxy.set(Fault::Drop);
        assert!(!setup.try_handshake(), "nothing comes back, and no other node has the key");
        setup.proxy.set(Fault::None);
        setup.wait_until_pooled();
    }
}

#[test]
fn garbage_from_the_pool_never_reaches_a_client() {
    for fault in [Fault::Garbage, Fault::CutMidFrame, Fault::Twice] {
        let setup = Setup::with_key(Server::Haproxy, KeyKind::Rsa2048);
        setup.proxy.set(fault);
        setup.handshakes(5);
        setup.proxy.set(Fault::None);
        setup.wait_until_pooled();

        let setup = Setup::with_stub(Server::Haproxy, KeyKind::Rsa2048);
        setup.proxy.set(fault);
        for _ in 0..3 {
            setup.try_handshake();
        }
        setup.proxy.set(Fault::None);
        setup.wait_until_pooled();
    }
}

#[test]
fn wrong_signature_never_reaches_a_client() {
    for server in Server::ALL {
        for kind in KeyKind::USUAL {
            let setup = Setup::with_key(server, kind);
            setup.proxy.set(Fault::WrongResult);
            setup.handshakes(5);
            assert!(setup.proxy.falsified() > 0, "something was falsified");
            setup.proxy.set(Fault::None);
            setup.wait_until_pooled();

            let setup = Setup::with_stub(server, kind);
            setup.proxy.set(Fault::WrongResult);
            for _ in 0..3 {
                assert!(!setup.try_handshake(), "no other node has the key");
            }
            assert!(setup.proxy.falsified() > 0, "something was falsified");
            setup.proxy.set(Fault::None);
            setup.wait_until_pooled();
        }
    }
}

#[test]
fn cut_connection_is_opened_again_with_its_keys() {
    let setup = Setup::with_stub(Server::Haproxy, KeyKind::P256);
    for _ in 0..5 {
        setup.proxy.cut();
        setup.wait_until_pooled();
    }
    let setup = Setup::with_key(Server::Haproxy, KeyKind::P256);
    for _ in 0..5 {
        setup.proxy.cut();
        setup.wait_until_pooled();
    }
}

#[test]
fn restarted_node_is_used_again() {
    let restart = |setup: &mut Setup| {
        setup.node.stop();
        setup.node.up();
    };
    let mut setup = Setup::with_stub(Server::Haproxy, KeyKind::Rsa2048);
    restart(&mut setup);
    setup.wait_until_pooled();
    // The provider imports its key into the restarted node again.
    let mut setup = Setup::with_key(Server::Nginx, KeyKind::Rsa2048);
    restart(&mut setup);
    setup.wait_until_pooled();
}

#[test]
fn stopped_node_fails_no_handshake_with_a_local_key() {
    let setup = Setup::with_key(Server::Haproxy, KeyKind::Rsa2048);
    setup.node.signal(Signal::STOP);
    setup.handshakes(8);
    setup.node.signal(Signal::CONT);
    setup.wait_until_pooled();
}

#[test]
fn removed_key_fails_until_it_returns_and_other_keys_go_on() {
    let world = World::new();
    let node = world.node("node-1");
    let (one, two) = (world.identity(KeyKind::Rsa2048), world.identity(KeyKind::P256));
    let sites = [
        Site::with_stub(&one, &node.import("one", &one)),
        Site::with_stub(&two, &node.import("two", &two)),
    ];
    let edge = EdgeOptions::to(node.endpoint());
    let gateway = world.gateway(Server::Haproxy, edge, &sites);
    let (at_one, at_two) = (gateway.address(KeyKind::Rsa2048), gateway.address(KeyKind::P256));
    let load_one = world.client.load(at_one, Tls::V13, 2);
    let load_two = world.client.load(at_two, Tls::V13, 1);
    load_one.wait_for_more(10);
    node.remove("one");
    wait::until("handshakes with the removed key fail", || load_one.failed() > 5);
    load_two.wait_for_more(10);
    let _ = node.import("one", &one);
    load_one.wait_for_more(10);
    let outcome = load_one.stop();
    for failure in outcome.failures.keys() {
        assert!(!is_verification_failure(failure), "{failure}");
    }
    assert_eq!(load_two.stop().failures, BTreeMap::new(), "the other key works all the time");
}

/// Two nodes with the same key, a proxy before each, and a gateway that is configured with both.
struct Pair {
    world: World,
    nodes: [Node; 2],
    proxies: [Proxy; 2],
    gateway: Gateway,
}

impl Pair {
    fn start(server: Server) -> Self {
        let world = World::new();
        let nodes = [world.node("node-1"), world.node("node-2")];
        let identity = world.identity(KeyKind::Rsa2048);
        let stub = nodes[0].import("www", &identity);
        let _ = nodes[1].import("www", &identity);
        let proxy = |n: usize| Proxy::start(world.dir(), &format!("node-{n}"), &nodes[n].socket());
        let proxies = [proxy(0), proxy(1)];
        let edge = EdgeOptions {
            nodes: proxies.iter().map(Proxy::endpoint).collect(),
            ..EdgeOptions::default()
        };
        let site = Site::with_stub(&identity, &stub);
        let gateway = world.gateway(server, edge, &[site]);
        Self { world, nodes, proxies, gateway }
    }

    fn address(&self) -> std::net::SocketAddr {
        self.gateway.address(KeyKind::Rsa2048)
    }
}

#[test]
fn two_nodes_share_the_jobs() {
    let pair = Pair::start(Server::Haproxy);
    let load = pair.world.client.load(pair.address(), Tls::V13, 4);
    wait::until("both nodes work", || pair.nodes.iter().all(|node| node.served().total() > 10));
    assert_eq!(load.stop().failures, BTreeMap::new());
}

#[test]
fn node_killed_in_the_middle_of_operations_fails_no_handshake() {
    for server in Server::ALL {
        let mut pair = Pair::start(server);
        let load = pair.world.client.load(pair.address(), Tls::V13, 4);
        wait::until("both nodes work", || pair.nodes.iter().all(|node| node.served().total() > 0));
        for _ in 0..2 {
            pair.proxies[0].hold_one();
            pair.nodes[0].kill();
            pair.proxies[0].set(Fault::None);
            load.wait_for_more(10);
            pair.nodes[0].up();
            wait::until("the node that came back works", || pair.nodes[0].served().total() > 0);
        }
        assert_eq!(load.stop().failures, BTreeMap::new(), "{server}: no handshake fails");
    }
}

#[test]
fn drained_node_fails_no_handshake() {
    let mut pair = Pair::start(Server::Haproxy);
    let load = pair.world.client.load(pair.address(), Tls::V13, 4);
    wait::until("both nodes work", || pair.nodes.iter().all(|node| node.served().total() > 0));
    for _ in 0..2 {
        for node in 0..2 {
            pair.nodes[node].stop();
            load.wait_for_more(10);
            pair.nodes[node].up();
            wait::until("it works again", || pair.nodes[node].served().total() > 0);
        }
    }
    assert_eq!(load.stop().failures, BTreeMap::new(), "no handshake fails");
}

#[test]
fn stopped_node_fails_no_handshake_if_another_has_the_key() {
    let pair = Pair::start(Server::Haproxy);
    let load = pair.world.client.load(pair.address(), Tls::V13, 4);
    wait::until("both nodes work", || pair.nodes.iter().all(|node| node.served().total() > 0));
    pair.proxies[0].hold_one();
    pair.nodes[0].signal(Signal::STOP);
    load.wait_for_more(30);
    pair.nodes[0].signal(Signal::CONT);
    pair.proxies[0].set(Fault::None);
    load.wait_for_more(10);
    assert_eq!(load.stop().failures, BTreeMap::new(), "no handshake fails");
}

/// The edge of a gateway whose certificate the node may refuse: with a key in the pool a handshake waits for
/// another answer until the deadline.
fn refused_soon(endpoint: String) -> EdgeOptions {
    EdgeOptions::to(endpoint).with("deadline_ms", 5000)
}

/// A user whom nothing else runs as.
const STRANGER: u32 = 61_002;

/// Dovecot and vsftpd forbid their processes to start threads.
#[test]
fn server_that_may_start_no_thread_uses_the_pool() {
    if is_root() && release::root().is_some() {
        skip!("only root enters the unpacked release, and the limit on threads does not bind root");
    }
    let mut pooled = Pooled::start(KeyKind::P256);
    let provider = Some(copy_for_all(&artifacts().provider, pooled.world.dir()));
    let edge = pooled.edge(|edge| EdgeOptions { provider, ..edge });
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let server = edge.openssl(&["s_server", "-www", "-accept", &address]);
    let mut limited = Command::new("prlimit");
    limited.arg("--nproc=1:1").arg(server.get_program());
    limited.args(server.get_args()).arg("-key").arg(&pooled.stub);
    limited.arg("-cert").arg(&pooled.identity.certificate_file);
    if is_root() {
        // The limit does not bind root.
        limited.uid(STRANGER).gid(STRANGER);
    }
    let log = pooled.world.dir().join("s_server.log");
    edge.apply(&mut limited);
    let mut server = Process::start("s_server", limited, &log);
    server.wait_ready(|| listens(port));
    let handshake = || {
        let mut client = plain(&["s_client", "-verify_return_error", "-connect", &address]);
        client.arg("-CAfile").arg(&pooled.world.authority.file);
        run_with_input(&mut client, b"GET / HTTP/1.0\r\n\r\n").status.success()
    };
    for _ in 0..3 {
        assert!(handshake(), "{}", server.log());
    }
    assert_eq!(pooled.node.served().total(), 3);
    pooled.node.stop();
    pooled.node.up();
    assert!(handshake(), "{}", server.log());
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.id()));
    assert_eq!(threads.expect("it runs").count(), 1);
}

/// The listener of a unix socket gets a plain PEM key only if its user decides what is in the socket's folder.
#[test]
fn private_key_is_imported_only_into_a_trusted_users_node() {
    if !is_root() {
        skip!("not root: a node cannot run as another user");
    }
    // Any user could replace a folder in /tmp.
    let folder = tempfile::tempdir_in("/run").expect("a folder");
    let world = World::new();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("its mode");
    let programs = Box::leak(Box::new(Artifacts::clone(artifacts())));
    programs.millrace = copy_for_all(&programs.millrace, world.dir());
    let options =
        NodeOptions { user: Some(STRANGER), programs: Some(programs), ..NodeOptions::default() };
    let node = Node::start_with(folder.path(), "node-1", &options);
    let edge = EdgeOptions::to(node.endpoint()).preferred().write(world.dir());
    let key = world.identity(KeyKind::P256).key_file;
    let sign = || {
        let mut command = edge.openssl(&["dgst", "-sha256", "-hex", "-sign"]);
        // The unpacked release has to see the node's folder, too.
        let built = artifacts().provider.parent().expect("a folder");
        let binds = format!("{}:{}", built.display(), folder.path().display());
        command.env("MILLRACE_ROOT_BINDS", binds);
        let _ = succeed(command.arg(&key).arg(&key));
        node.served().total()
    };
    assert_eq!(sign(), 1, "as under the systemd unit");
    std::os::unix::fs::chown(node.dir(), Some(0), None).expect("root may");
    assert_eq!(sign(), 1, "signed by OpenSSL itself");
}

/// A node on TCP with certificates from the test's own authority.
struct OverTcp {
    world: World,
    node: Node,
    identity: Identity,
    stub: String,
}

impl OverTcp {
    fn start() -> Self {
        let world = World::new();
        let own = world.identity(KeyKind::P384);
        let tls = (own.certificate_file, own.key_file, world.authority.file.clone());
        let options = NodeOptions { tcp: true, tls: Some(tls), ..NodeOptions::default() };
        let node = Node::start_with(world.dir(), "node-1", &options);
        let identity = world.identity(KeyKind::P256);
        let stub = node.import("www", &identity);
        Self { world, node, identity, stub }
    }

    /// Whether a gateway with this client certificate completes its handshakes.
    fn serves(&self, certificates: &Path) -> bool {
        std::fs::copy(&self.world.authority.file, certificates.join("ca.pem")).expect("ca.pem");
        let edge = EdgeOptions {
            certificates: Some(certificates.to_owned()),
            ..refused_soon(self.node.tcp_endpoint())
        };
        let sites = [Site::with_stub(&self.identity, &self.stub)];
        let gateway = self.world.gateway(Server::Haproxy, edge, &sites);
        self.world.client.handshake(gateway.address(KeyKind::P256), Tls::V13).is_ok()
    }
}

/// The first and last year of validity of a certificate that is valid now.
const VALID: (i32, i32) = (2020, 2099);
const EXPIRED: (i32, i32) = (2020, 2021);

#[test]
fn only_foreign_and_expired_certificates_are_refused() {
    let tcp = OverTcp::start();
    let good = tcp.world.authority.client("gateway", VALID.0, VALID.1);
    assert!(tcp.serves(&good), "a good certificate is accepted");
    assert_eq!(tcp.node.served().total(), 1);

    let expired = tcp.world.authority.client("gateway", EXPIRED.0, EXPIRED.1);
    assert!(!tcp.serves(&expired), "an expired certificate is refused");

    let elsewhere = tcp.world.dir().join("elsewhere");
    let foreign = Authority::new(&elsewhere).client("gateway", VALID.0, VALID.1);
    assert!(!tcp.serves(&foreign), "a certificate of another authority is refused");

    assert_eq!(tcp.node.served().total(), 1, "and nothing was done for either");
    assert!(tcp.serves(&good), "the good one still works");
    assert!(tcp.node.log().contains("ertificate"), "the log says why:\n{}", tcp.node.log());
}

/// The client refuses a node whose certificate comes from an authority that the client does not trust.
#[test]
fn node_with_a_foreign_certificate_is_not_trusted() {
    let tcp = OverTcp::start();
    let client = tcp.world.authority.client("gateway", VALID.0, VALID.1);
    let elsewhere = tcp.world.dir().join("elsewhere");
    let foreign = Authority::new(&elsewhere);
    std::fs::copy(&foreign.file, client.join("ca.pem")).expect("ca.pem");
    let edge = EdgeOptions { certificates: Some(client), ..refused_soon(tcp.node.tcp_endpoint()) };
    let sites = [Site::with_stub(&tcp.identity, &tcp.stub)];
    let gateway = tcp.world.gateway(Server::Haproxy, edge, &sites);
    assert!(tcp.world.client.handshake(gateway.address(KeyKind::P256), Tls::V13).is_err());
    assert_eq!(tcp.node.served().total(), 0);
}

/// In a container the leader of the node's session and its parent run outside of the node's PID namespace; the
/// kernel reports both as 0.
#[test]
fn node_in_a_container_serves() {
    if !may_unshare() {
        skip!("namespaces are not permitted here");
    }
    let world = World::new();
    let container = "unshare --pid --fork --kill-child --mount --mount-proc";
    let options = NodeOptions {
        under: container.split(' ').map(str::to_owned).collect(),
        ..Default::default()
    };
    let node = Node::start_with(world.dir(), "node-1", &options);
    let identity = world.identity(KeyKind::P256);
    let sites = [Site::with_stub(&identity, &node.import("www", &identity))];
    let gateway = world.gateway(Server::Haproxy, EdgeOptions::to(node.endpoint()), &sites);
    let address = gateway.address(KeyKind::P256);
    world.client.handshakes(address, Tls::V13, 2);
    assert_eq!(node.served().total(), 2);
}
