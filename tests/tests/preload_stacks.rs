// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Code of others on the stacks of ASYNC jobs: what servers run inside a handshake (regular expressions, Lua, njs,
//! Perl, chains, revocation lists, stapling, generated certificates), with the pool's keys and the preload library. No
//! handshake fails and no worker dies. With `MILLRACE_LONG=1` each takes 100,000 handshakes, and what can recurse does
//! so to 100 KiB.
//!
//! A program that starts jobs itself (`tests/jobs/jobs.c`) shows where an overflow ends, and what jobs cost.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use millrace_testkit::skip;
use millrace_tests::artifacts::artifacts;
use millrace_tests::compiled::{ServerInC, compiled};
use millrace_tests::drive::{Tls, finish};
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::haproxy::{Haproxy, HaproxyOptions, bundle};
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::node::Node;
use millrace_tests::pki::{Identity, KeyKind};
use millrace_tests::process::{free_port, regions, run, succeed, text_of};
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::release;
use millrace_tests::scaled;
use millrace_tests::world::World;
use openssl::ssl::{SslConnector, SslConnectorBuilder, SslMethod, SslVerifyMode, SslVersion};
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};

/// Handshakes of each kind, of both versions of TLS together.
fn handshakes() -> usize {
    scaled(400, 100_000)
}

/// Clients at once.
const CLIENTS: usize = 4;

/// How deep callbacks recurse: a little, or as deep as takes 100 KiB of the stack.
fn levels(short: usize, long: usize) -> usize {
    scaled(short, long)
}

struct Pool {
    world: World,
    node: Node,
    edge: Edge,
    identity: Identity,
    stub: String,
}

impl Pool {
    fn new() -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let identity = world.identity(KeyKind::P256);
        let stub = node.import("www", &identity);
        let edge = EdgeOptions::to(node.endpoint()).write(world.dir());
        Self { world, node, edge, identity, stub }
    }

    fn dir(&self) -> &Path {
        self.world.dir()
    }

    /// Each answer of the pool comes a moment later, in which further handshakes begin; until the proxy is dropped.
    fn answers_later(&mut self) -> Proxy {
        let proxy = Proxy::start(self.dir(), "node-1", &self.node.socket());
        proxy.set(Fault::Latency(Duration::from_millis(2)));
        self.edge = EdgeOptions::to(proxy.endpoint()).write(self.dir());
        proxy
    }

    fn site(&self) -> Site {
        Site::with_stub(&self.identity, &self.stub)
    }

    fn lines(&self) -> String {
        certificate_lines(self.dir(), "www", &self.site())
    }

    fn server(&self, port: u16, more: &str) -> String {
        format!(
            "ssl_session_cache off; ssl_session_tickets off;\n\
             server {{ listen 127.0.0.1:{port} ssl backlog=4000; {more}\nlocation / {{ return 200 ok; }} }}\n"
        )
    }

    /// nginx with these modules and lines, under [`handshakes`] of a client that verifies everything, each with one
    /// operation of the pool.
    fn all_succeed(&self, main: &str, http: impl FnOnce(u16) -> String) {
        self.all_succeed_with(1, main, http);
    }

    fn all_succeed_with(&self, operations: usize, main: &str, http: impl FnOnce(u16) -> String) {
        let port = free_port();
        let options = NginxOptions {
            main: main.to_owned(),
            ..NginxOptions::asynchronous(&self.edge, http(port))
        };
        let nginx = Nginx::start(self.dir(), &options, &[port]);
        let workers = nginx.workers();
        let failures = self.shake(port);
        assert_eq!(failures, [""; 0], "of {}\n{}", handshakes(), nginx.log());
        assert_eq!(nginx.workers(), workers, "no worker died");
        let log = nginx.log();
        assert!(!log.contains("exited on signal") && !log.contains("[alert]"), "{log}");
        let operations = operations * handshakes();
        assert_eq!(self.node.served().total(), operations as u64, "no more and no less");
    }

    /// The errors of [`handshakes`], made by [`CLIENTS`] at once.
    fn shake(&self, port: u16) -> Vec<String> {
        many(|number| self.world.client.handshake(address(port), Tls::ALL[number % 2]))
    }
}

/// The errors of [`handshakes`] calls, made by [`CLIENTS`] at once.
fn many(one: impl Fn(usize) -> Result<(), String> + Sync) -> Vec<String> {
    let each = handshakes() / CLIENTS;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| (0..each).filter_map(|number| one(number).err()).collect()))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        ended.collect::<Vec<Vec<String>>>().concat()
    })
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Lines that load modules of nginx; none, and a recorded skip, if one is not installed.
fn modules(names: &[&str]) -> Option<String> {
    let mut lines = String::new();
    for name in names {
        let path = format!("/usr/lib/nginx/modules/{name}.so");
        if !release::file(&path).is_file() {
            skip::record(file!(), &format!("no module {name} of nginx: make setup installs it"));
            return None;
        }
        let _ = writeln!(lines, "load_module {path};");
    }
    Some(lines)
}

/// A regular expression whose match takes all of the 32 KiB that PCRE's JIT takes of the machine's stack.
const REGEX: &str = r"^(?:(\w+)\.)*localhost$";

#[test]
fn regular_expression_as_server_name() {
    let pool = Pool::new();
    let more = format!("server_name \"~{REGEX}\";\n{}", pool.lines());
    let first = "server { listen 127.0.0.1:";
    pool.all_succeed("pcre_jit on;\n", |port| {
        // Two, so that nginx has to look for the one that matches.
        let other = format!("{first}{port} ssl default_server; ssl_reject_handshake on; }}\n");
        pool.server(port, &more) + &other
    });
}

/// The settings under which Lua finds its own library, and a function that recurses through C: each level of `gsub`
/// has a buffer of 8 KiB on the stack.
const LUA: &str = "lua_package_path \"/usr/share/lua/5.1/?.lua;;\";\n\
    init_by_lua_block { function deep(n) if n == 0 then return 'x' end\n\
    return (string.gsub('x', 'x', function() return deep(n - 1) end)) end }\n";

fn lua(directive: &str) {
    let Some(main) = modules(&["ndk_http_module", "ngx_http_lua_module"]) else { return };
    let pool = Pool::new();
    let block = format!(
        "server_name localhost;\n{directive} {{ deep({})\n\
         assert(ngx.re.match('a.b.c.localhost', [[{REGEX}]], 'jo')) }}\n{}",
        levels(3, 12),
        pool.lines()
    );
    pool.all_succeed(&format!("{main}pcre_jit on;\n"), |port| {
        format!("{LUA}{}", pool.server(port, &block))
    });
}

#[test]
fn lua_chooses_the_certificate_with_a_regular_expression() {
    lua("ssl_certificate_by_lua_block");
}

#[test]
fn lua_reads_the_client_hello_with_a_regular_expression() {
    lua("ssl_client_hello_by_lua_block");
}

/// A script signs with a key of the pool in the callback that chooses the certificate: the virtual machine, which all
/// connections of the worker share, waits inside for the answer.
#[test]
fn lua_signs_by_the_pool_to_choose_the_certificate() {
    const SIGN: &str = "local ffi = require 'ffi'
        ffi.cdef[[ void *BIO_new_mem_buf(const void *, int);
        void *PEM_read_bio_PrivateKey(void *, void **, void *, void *);
        void *EVP_MD_CTX_new(void); void EVP_MD_CTX_free(void *); const void *EVP_sha256(void);
        int EVP_DigestSignInit(void *, void **, const void *, void *, void *);
        int EVP_DigestSign(void *, unsigned char *, size_t *, const char *, size_t); ]]
        local C, loaded = ffi.C, nil
        function sign(stub)
        loaded = loaded or C.PEM_read_bio_PrivateKey(C.BIO_new_mem_buf(stub, #stub), nil, nil, nil)
        local context, buffer, len = C.EVP_MD_CTX_new(), ffi.new('unsigned char[512]'), ffi.new('size_t[1]', 512)
        C.EVP_DigestSignInit(context, nil, C.EVP_sha256(), nil, loaded)
        local good = C.EVP_DigestSign(context, buffer, len, 'text', 4)
        C.EVP_MD_CTX_free(context)
        assert(good == 1, 'no signature') end
";
    let Some(main) = modules(&["ndk_http_module", "ngx_http_lua_module"]) else { return };
    let mut pool = Pool::new();
    let _slow = pool.answers_later();
    let stub = &pool.stub;
    let block = format!(
        "server_name localhost;\nssl_certificate_by_lua_block {{ sign([[{stub}]]) }}\n{}",
        pool.lines()
    );
    pool.all_succeed_with(2, &main, |port| {
        let path = "lua_package_path \"/usr/share/lua/5.1/?.lua;;\";";
        format!("{path}\ninit_by_lua_block {{ {SIGN} }}\n{}", pool.server(port, &block))
    });
}

/// A server whose certificate is named by a variable, `$chosen`.
fn chosen(pool: &Pool, port: u16) -> String {
    // It names the files in which `lines` has put the stub and its certificate.
    let (_, at) = (pool.lines(), pool.dir().display());
    fs::set_permissions(
        pool.dir().join("www-p-256.key"),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .expect("mode");
    let more = format!(
        "server_name localhost;\nssl_certificate {at}/$chosen-p-256.crt;\nssl_certificate_key {at}/$chosen-p-256.key;"
    );
    pool.server(port, &more)
}

#[test]
fn njs_recurses_to_choose_the_certificate() {
    let Some(main) = modules(&["ngx_http_js_module"]) else { return };
    let pool = Pool::new();
    let script = pool.dir().join("choose.js");
    let text = format!(
        "function deep(n) {{ return n == 0 ? 'www' : deep(n - 1); }}\n\
         function name(r) {{ return /^(?:(w)+)$/.test('www') ? deep({}) : ''; }}\n\
         export default {{ name }};\n",
        levels(100, 200)
    );
    fs::write(&script, text).expect("a script");
    pool.all_succeed(&format!("{main}pcre_jit on;\n"), |port| {
        let path = pool.dir().display();
        let head = format!(
            "js_path {path};\njs_import choose from choose.js;\njs_set $chosen choose.name;\n"
        );
        head + &chosen(&pool, port)
    });
}

#[test]
fn perl_recurses_to_choose_the_certificate() {
    let Some(main) = modules(&["ngx_http_perl_module"]) else { return };
    let pool = Pool::new();
    // Each level of `sort` runs its block by a further loop in C.
    let head = format!(
        "perl_set $chosen 'sub {{ our $deep; $deep = sub {{ my $n = shift; my $r = \"www\";\n\
         my @x = sort {{ $r = $deep->($n - 1); 0 }} 1, 2 if $n; return $r }};\n\
         return $deep->({}) }}';\n",
        levels(20, 34)
    );
    pool.all_succeed(&main, |port| head + &chosen(&pool, port));
}

/// A chain of authorities, each with its revocation list.
struct Chain {
    issuers: Vec<CertifiedIssuer<'static, KeyPair>>,
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params
}

fn key() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key")
}

impl Chain {
    /// A root and `len` authorities below it.
    fn new(len: usize) -> Self {
        let root = CertifiedIssuer::self_signed(authority("root"), key()).expect("a root");
        let mut issuers = vec![root];
        for number in 0..len {
            let params = authority(&format!("authority {number}"));
            let last = issuers.last().expect("at least the root");
            let next = CertifiedIssuer::signed_by(params, key(), last).expect("an authority");
            issuers.push(next);
        }
        Self { issuers }
    }

    /// The authorities below the root, the last first, as a chain has them.
    fn pem(&self) -> String {
        self.issuers[1..].iter().rev().map(|issuer| issuer.pem()).collect()
    }

    fn revocation_lists(&self) -> String {
        let lists = self.issuers.iter().map(|issuer| {
            let params = rcgen::CertificateRevocationListParams {
                this_update: rcgen::date_time_ymd(2020, 1, 1),
                next_update: rcgen::date_time_ymd(2090, 1, 1),
                crl_number: rcgen::SerialNumber::from(1),
                issuing_distribution_point: None,
                revoked_certs: Vec::new(),
                key_identifier_method: rcgen::KeyIdMethod::Sha256,
            };
            params.signed_by(issuer).expect("a list").pem().expect("PEM")
        });
        lists.collect()
    }

    /// A client's certificate with its chain, and its key, in files.
    fn client(&self, dir: &Path) -> [PathBuf; 2] {
        let key = key();
        let mut params = CertificateParams::new(vec!["visitor".to_owned()]).expect("parameters");
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let issuer = self.issuers.last().expect("at least the root");
        let leaf = params.signed_by(&key, issuer).expect("a certificate");
        let files = [dir.join("visitor.crt"), dir.join("visitor.key")];
        fs::write(&files[0], leaf.pem() + &self.pem()).expect("a file");
        fs::write(&files[1], key.serialize_pem()).expect("a file");
        files
    }
}

/// A client on OpenSSL that trusts this file.
fn connector(ca: &Path, change: impl FnOnce(&mut SslConnectorBuilder)) -> SslConnector {
    let mut builder = SslConnector::builder(SslMethod::tls_client()).expect("a client");
    builder.set_ca_file(ca).expect("a file of authorities");
    builder.set_verify(SslVerifyMode::PEER);
    change(&mut builder);
    builder.build()
}

/// One handshake and request; `look` sees the connection.
fn visit(
    connector: &SslConnector,
    name: &str,
    port: u16,
    tls: Tls,
    look: impl FnOnce(&openssl::ssl::SslRef) -> bool,
) -> Result<(), String> {
    use std::io::{Read, Write};
    let socket = TcpStream::connect(address(port)).map_err(|error| format!("connect: {error}"))?;
    let timeout = Some(millrace_tests::wait::SOON);
    socket.set_read_timeout(timeout).map_err(|error| error.to_string())?;
    let mut options = connector.configure().map_err(|error| error.to_string())?;
    let version = match tls {
        Tls::V12 => SslVersion::TLS1_2,
        Tls::V13 => SslVersion::TLS1_3,
    };
    options.set_max_proto_version(Some(version)).map_err(|error| error.to_string())?;
    options.set_status_type(openssl::ssl::StatusType::OCSP).map_err(|error| error.to_string())?;
    let mut stream = options.connect(name, socket).map_err(|error| error.to_string())?;
    if !look(stream.ssl()) {
        return Err("not as expected".to_owned());
    }
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    // Not every server sends close_notify.
    let _ = stream.read_to_string(&mut answer);
    if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(format!("answer: {answer}")) }
}

/// Authorities between the root and a certificate.
const DEPTH: usize = 10;

/// Handshakes of each client in which it looks at the chain and the response; all of the short form but a few.
const LOOKS: usize = 80;

/// The server sends a long chain and a stapled response, and verifies a client's chain with the revocation list of
/// each authority.
#[test]
fn long_chains_with_revocation_lists_and_a_stapled_response() {
    let pool = Pool::new();
    let chain = Chain::new(DEPTH);
    let file = |name: &str, text: &str| {
        let path = pool.dir().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let root = file("root.pem", &chain.issuers[0].pem());
    let lists = file("lists.pem", &chain.revocation_lists());
    let response = pool.dir().join("response.der");
    fs::write(&response, staple(&pool)).expect("a response");
    let visitor = chain.client(pool.dir());
    let mut site = pool.site();
    site.certificate_pem += &chain.pem();
    let more = format!(
        "server_name localhost;\n{}ssl_verify_client on; ssl_verify_depth {}; ssl_client_certificate {root};\n\
         ssl_crl {lists};\nssl_stapling on; ssl_stapling_file {};",
        certificate_lines(pool.dir(), "long", &site),
        DEPTH + 1,
        response.display(),
    );
    let port = free_port();
    let options = NginxOptions::asynchronous(&pool.edge, pool.server(port, &more));
    let nginx = Nginx::start(pool.dir(), &options, &[port]);
    let client = connector(&pool.world.authority.file, |builder| {
        builder.set_certificate_chain_file(&visitor[0]).expect("a chain");
        builder.set_private_key_file(&visitor[1], openssl::ssl::SslFiletype::PEM).expect("a key");
    });
    let other = pool.world.client.clone().with_chain(&visitor[0], &visitor[1]);
    let failures = many(|number| {
        // OpenSSL takes milliseconds for the server's chain, rustls takes none.
        if number >= LOOKS {
            return other.handshake(address(port), Tls::ALL[number % 2]);
        }
        visit(&client, "localhost", port, Tls::ALL[number % 2], |ssl| {
            let sent = ssl.peer_cert_chain().map(|sent| sent.len());
            sent == Some(1 + DEPTH) && ssl.ocsp_status().is_some()
        })
    });
    assert_eq!(failures, [""; 0], "{}", nginx.log());
    assert_eq!(pool.node.served().total(), handshakes() as u64);
}

/// A response for the certificate, by an authority of its own: the client here only looks whether there is one.
fn staple(pool: &Pool) -> Vec<u8> {
    let dir = pool.dir().join("ocsp");
    fs::create_dir(&dir).expect("a folder");
    let openssl = |line: &str| {
        let mut command = Command::new("openssl");
        let _ = succeed(command.args(line.split(' ')).current_dir(&dir));
    };
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ocsp -days 9");
    fs::write(dir.join("index.txt"), "").expect("a file");
    fs::write(dir.join("www.crt"), &pool.identity.certificate_pem).expect("a file");
    openssl(
        "ocsp -index index.txt -CA ca.pem -rsigner ca.pem -rkey ca.key -issuer ca.pem -serial 1 \
         -respout response.der -ndays 9",
    );
    fs::read(dir.join("response.der")).expect("a response")
}

/// Where the key of the authority of generated certificates is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Signer {
    File,
    Pool,
}

/// HAProxy makes a certificate for each name, with the key of its default certificate, which is in the pool. The
/// callback that makes it leaves an error in the queue, and holds a lock of HAProxy while it signs.
fn generated_certificates(preload: bool, place: Signer) {
    let mut pool = Pool::new();
    let mut slow = None;
    let port = free_port();
    let authority = CertifiedIssuer::self_signed(authority("for generated"), key());
    let authority = authority.expect("an authority");
    let signer = pool.dir().join("signer.pem");
    let mut signing_key = authority.key().serialize_pem();
    if place == Signer::Pool {
        let file = pool.dir().join("signer.key");
        fs::write(&file, &signing_key).expect("a file");
        let file = file.to_str().expect("a path in UTF-8");
        let import = ["key", "import", "signer", file, "--allow-all"];
        let _ = succeed(&mut pool.node.command(&import));
        pool.node.wait_for_store();
        signing_key = pool.node.stub("signer");
        slow = Some(pool.answers_later());
    }
    fs::write(&signer, authority.pem() + &signing_key).expect("a file");
    let mut site = pool.site();
    let own = KeyPair::from_pem(&pool.identity.key_pem).expect("the key");
    let params = CertificateParams::new(vec!["default.test".to_owned()]).expect("parameters");
    site.certificate_pem = params.self_signed(&own).expect("a certificate").pem();
    let sections = format!(
        "frontend https\n  bind 127.0.0.1:{port} ssl crt {} generate-certificates ca-sign-file {} no-tls-tickets\n\
         \x20 http-request return status 200 content-type text/plain string ok\n",
        bundle(pool.dir(), "www", &site),
        signer.display(),
    );
    let options = HaproxyOptions { preload, ..HaproxyOptions::asynchronous(&pool.edge, sections) };
    let mut haproxy = Haproxy::start(pool.dir(), &options, &[port]);
    let client = connector(&signer, |_| ());
    let names = AtomicUsize::new(0);
    let failures = many(|number| {
        // The pool signs for each of several clients at once, or for the first of a name.
        let name = if slow.is_some() { names.fetch_add(1, Ordering::Relaxed) } else { number };
        let name = format!("generated-{name}.test");
        visit(&client, &name, port, Tls::ALL[number % 2], |_| true)
    });
    assert_eq!(failures, [""; 0], "{}", haproxy.log());
    assert!(haproxy.process.ended().is_none(), "{}", haproxy.log());
    let certificates = if slow.is_some() { handshakes() } else { 0 };
    assert_eq!(pool.node.served().total(), (handshakes() + certificates) as u64);
}

#[test]
fn haproxy_generates_certificates_with_the_library() {
    generated_certificates(true, Signer::File);
}

#[test]
fn haproxy_generates_certificates_without_the_library() {
    generated_certificates(false, Signer::File);
}

#[test]
fn haproxy_generates_certificates_by_a_key_of_the_pool() {
    generated_certificates(true, Signer::Pool);
}

#[test]
fn haproxy_generates_certificates_by_a_key_of_the_pool_without_the_library() {
    generated_certificates(false, Signer::Pool);
}

/// HAProxy starts its jobs itself, and the library gives them stacks.
#[test]
fn jobs_of_haproxy_have_stacks_with_a_guard() {
    const WAITING: usize = 10;
    let pool = Pool::new();
    let proxy = Proxy::start(pool.dir(), "node-1", &pool.node.socket());
    let edge = EdgeOptions::to(proxy.endpoint()).write(pool.dir());
    let port = free_port();
    let sections = format!(
        "frontend https\n  bind 127.0.0.1:{port} ssl crt {} no-tls-tickets\n\
         \x20 http-request return status 200 content-type text/plain string ok\n",
        bundle(pool.dir(), "www", &pool.site()),
    );
    let options = HaproxyOptions { preload: true, ..HaproxyOptions::asynchronous(&edge, sections) };
    let haproxy = Haproxy::start(pool.dir(), &options, &[port]);
    pool.world.client.handshakes(address(port), Tls::V13, 1);
    let jobs = proxy.jobs();
    proxy.set(Fault::Hold);
    let hello = |_| pool.world.client.hello(address(port), Tls::V13).expect("a connection");
    let sockets: Vec<_> = (0..WAITING).map(hello).collect();
    proxy.wait_for_jobs(jobs + WAITING as u64);
    let guards = regions(haproxy.process.id(), "---p", 256 << 10);
    assert!(guards >= WAITING, "only {guards} guards");
    proxy.set(Fault::None);
    finish(sockets);
}

/// Another library that stands before ours starts the jobs: nginx gets none, and says so.
#[test]
fn nginx_gets_no_jobs_without_stacks_for_them() {
    let world = World::new();
    let library = world.dir().join("before.so");
    let Some(before) = compiled("before.c", library, &["-shared", "-fPIC", "-ldl"]) else { return };
    let node = world.node("node-1");
    let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
    let identity = world.identity(KeyKind::P256);
    let site = Site::with_stub(&identity, &node.import("www", &identity));
    let edge = EdgeOptions::to(proxy.endpoint()).write(world.dir());
    let port = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{port} ssl; {} location / {{ return 200 ok; }} }}\n",
        certificate_lines(world.dir(), "www", &site)
    );
    let libraries = format!("{}:{}", before.display(), artifacts().preload.display());
    let options = NginxOptions {
        environment: vec![("LD_PRELOAD", libraries)],
        ..NginxOptions::asynchronous(&edge, http)
    };
    let nginx = Nginx::start(world.dir(), &options, &[port]);
    world.client.handshakes(address(port), Tls::V13, 3);
    let said = "millrace-preload: libssl starts its jobs past this library";
    assert_eq!(nginx.log().matches(said).count(), 1, "{}", nginx.log());
    // The worker waits for the first, so that no second one reaches the pool.
    let jobs = proxy.jobs();
    proxy.set(Fault::Hold);
    thread::scope(|scope| {
        let client = &world.client;
        let waiting = [0, 1].map(|_| scope.spawn(|| client.handshake(address(port), Tls::V13)));
        proxy.wait_for_jobs(jobs + 1);
        assert_eq!(proxy.jobs(), jobs + 1);
        proxy.set(Fault::None);
        for one in waiting {
            one.join().expect("no panic").expect("a handshake");
        }
    });
}

/// The program that starts jobs.
fn jobs(words: &[&str]) -> Option<HashMap<String, u64>> {
    static BUILT: OnceLock<Option<ServerInC>> = OnceLock::new();
    let program = BUILT.get_or_init(|| ServerInC::compile("jobs.c")).as_ref()?;
    let output = run(program.command(Some(&artifacts().preload)).args(words));
    let text = text_of(&output);
    assert!(output.status.success(), "{words:?}: {}\n{text}", output.status);
    println!("{words:?}\n{text}");
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    Some(lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}

/// An overflow ends in the guard of its own stack, whether by many frames or by one that leaps; before that it is none.
#[test]
fn overflow_ends_at_the_guard_of_its_own_stack() {
    for words in [["deep", "230000"], ["leap", "200000"], ["leap", "255000"]] {
        let Some(seen) = jobs(&words) else { return };
        assert_eq!(seen["fault"], 0, "{words:?}");
    }
    const SIGSEGV: u64 = 11;
    for words in [["deep", "270000"], ["deep", "9000000"], ["leap", "270000"], ["leap", "460000"]] {
        let Some(seen) = jobs(&words) else { return };
        assert_eq!((seen["fault"], seen["in-guard"]), (SIGSEGV, 1), "{words:?}");
    }
}

/// Paused jobs cost a few pages each; afterwards a bounded number of stacks is kept, and none for a thread that ended.
#[test]
fn paused_jobs_cost_a_few_pages_and_are_given_back() {
    const JOBS: u64 = 10_000;
    /// Idle stacks that a thread keeps, with two mappings each.
    const KEPT: u64 = 256;
    let Some(seen) = jobs(&["burst", &JOBS.to_string()]) else { return };
    let [start, paused, after] =
        ["start-resident", "first-paused-resident", "first-after-resident"].map(|name| seen[name]);
    let bytes = (paused - start) * 1024 / JOBS;
    println!("{bytes} bytes for each paused job, {} KiB after {JOBS}", after - start);
    // OpenSSL's own part of a job, which has used 3.5 KiB of its stack, is two pages; ours of one that used 2 KiB one.
    assert!(bytes < 5 * 4096, "{bytes} bytes for each");
    assert!(after - start < (paused - start) * 3 / 4, "ours are given back");
    let mappings = |name: &str| seen[name] - seen["start-mappings"];
    assert!(mappings("first-paused-mappings") >= 2 * JOBS, "each has a stack of its own");
    assert!(mappings("first-after-mappings") <= 2 * KEPT + 16);
    assert_eq!(seen["second-after-mappings"], seen["first-after-mappings"]);
    assert!(seen["second-after-resident"] <= after + after / 8, "nothing grows");
    assert!(seen["end-mappings"] <= seen["second-after-mappings"] + 16, "a thread's are gone");
    assert!(seen["end-resident"] <= after + after / 8);
}

#[test]
fn stacks_of_deep_jobs_do_not_stay_in_memory() {
    let Some(seen) = jobs(&["rest", "2000"]) else { return };
    let [start, paused, after] =
        ["start-resident", "deep-paused-resident", "deep-after-resident"].map(|name| seen[name]);
    assert!(paused - start > 2000 * 100, "they have touched 100 KiB each");
    assert!(after - start < (paused - start) / 4, "{after} KiB stay of {paused}");
}

#[test]
fn jobs_over_the_number_of_stacks_run_at_once() {
    const MOST: u64 = 16_000;
    let Some(seen) = jobs(&["over", &(MOST + 100).to_string()]) else { return };
    assert_eq!(seen["paused"], MOST);
}

/// Idle stacks of many threads leave room for the jobs of another one.
#[test]
fn idle_stacks_of_other_threads_are_not_in_the_way() {
    let Some(seen) = jobs(&["crowd", "64"]) else { return };
    assert_eq!(seen["paused"], 8000);
}

#[test]
fn stacks_come_back_from_refused_jobs_forks_and_threads() {
    let Some(seen) = jobs(&["life"]) else { return };
    assert_eq!((seen["lived"], seen["refused-mappings"], seen["threads-mappings"]), (1, 0, 0));
}
