// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! TLS and nginx beyond a plain handshake, with the preload library: several certificates, client
//! certificates, stapling, resumption, early data, HTTP/2, nginx as a client, and `stream`. The pool's
//! counters show one operation per handshake, and several handshakes of one worker wait at once.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use millrace_tests::clients::Program;
use millrace_tests::drive::Tls;
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines, stream_module};
use millrace_tests::node::Node;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{free_port, run, run_with_input, succeed, text_of};
use millrace_tests::proxy::{Fault, Proxy};
use millrace_tests::release;
use millrace_tests::world::World;

struct Pool {
    world: World,
    node: Node,
    proxy: Proxy,
    edge: Edge,
}

impl Pool {
    fn new() -> Self {
        let world = World::new();
        let node = world.node("node-1");
        let proxy = Proxy::start(world.dir(), "node-1", &node.socket());
        let edge = EdgeOptions::to(proxy.endpoint()).with("deadline_ms", 30_000).write(world.dir());
        Self { world, node, proxy, edge }
    }

    fn dir(&self) -> &Path {
        self.world.dir()
    }

    /// A site whose key is in the pool under this name.
    fn site(&self, name: &str, kind: KeyKind) -> Site {
        let identity = self.world.identity(kind);
        Site::with_stub(&identity, &self.node.import(name, &identity))
    }

    fn lines(&self, name: &str, kind: KeyKind) -> String {
        certificate_lines(self.dir(), name, &self.site(name, kind))
    }

    fn nginx(&self, http: String, ports: &[u16]) -> Nginx {
        Nginx::start(self.dir(), &NginxOptions::asynchronous(&self.edge, http), ports)
    }

    fn ca(&self) -> &str {
        self.world.authority.file.to_str().expect("a path in UTF-8")
    }

    fn served(&self) -> u64 {
        self.node.served().total()
    }

    /// Runs `openssl s_client` with a request on its standard input. Returns its output.
    fn s_client(&self, port: u16, arguments: &[&str]) -> String {
        let mut command = release::command("openssl");
        command.args(["s_client", "-ign_eof", "-verify_return_error", "-CAfile"]);
        command.args([self.ca(), "-connect", &format!("127.0.0.1:{port}")]);
        command.args(arguments);
        text_of(&run_with_input(&mut command, REQUEST))
    }

    fn curl(&self, port: u16, arguments: &[&str]) -> Command {
        let mut command = release::command("curl");
        command.args(["--silent", "--show-error", "--cacert", self.ca()]);
        command.args(["--resolve", &format!("localhost:{port}:127.0.0.1")]);
        command.args(arguments);
        command.arg(format!("https://localhost:{port}/"));
        command
    }

    /// Makes these programs wait for the pool at once, then lets them complete. Returns their outputs.
    fn together(&self, commands: Vec<Command>) -> Vec<String> {
        let before = self.proxy.jobs();
        let count = commands.len() as u64;
        self.proxy.set(Fault::Hold);
        let waiting: Vec<_> = commands
            .into_iter()
            .map(|mut command| thread::spawn(move || said(&mut command)))
            .collect();
        self.proxy.wait_for_jobs(before + count);
        self.proxy.set(Fault::None);
        let ended = waiting.into_iter().map(|thread| thread.join());
        ended.map(|text| text.expect("no panic")).collect()
    }
}

/// The standard output of a program, with standard error if it fails.
fn said(command: &mut Command) -> String {
    let output = run(command);
    if output.status.success() {
        String::from_utf8_lossy(&output.stdout).into_owned()
    } else {
        text_of(&output)
    }
}

/// With HTTP/1.0 the server closes the connection, and the client ends with it.
const REQUEST: &[u8] = b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n";

/// Concurrent handshakes in tests where their number does not matter.
const SOME: usize = 5;

const LOCATION: &str = "location / { return 200 ok; }";

fn body(pem: &str) -> String {
    pem.lines().filter(|line| !line.starts_with('-')).collect()
}

#[test]
fn each_name_has_its_rsa_and_its_ecdsa_certificate() {
    let pool = Pool::new();
    let port = free_port();
    let mut http = "ssl_session_tickets off;\n".to_owned();
    let mut certificates = Vec::new();
    for name in ["one", "two"] {
        let sites = KeyKind::USUAL.map(|kind| pool.site(&format!("{name}-{kind}"), kind));
        let _ = write!(
            http,
            "server {{ listen 127.0.0.1:{port} ssl; server_name {name}.test;\n{}{}{LOCATION} }}\n",
            certificate_lines(pool.dir(), name, &sites[0]),
            certificate_lines(pool.dir(), name, &sites[1]),
        );
        certificates.push((name, sites));
    }
    let _nginx = pool.nginx(http, &[port]);
    for (name, [rsa, ecdsa]) in &certificates {
        let name = format!("{name}.test");
        for version in ["-tls1_2", "-tls1_3"] {
            for (site, algorithm, counter) in [
                (rsa, "rsa_pss_rsae_sha256", "rsa-pss-sign"),
                (ecdsa, "ecdsa_secp256r1_sha256", "ecdsa-sign"),
            ] {
                let before = pool.node.served();
                let arguments = ["-servername", &name, version, "-sigalgs", algorithm];
                let text = pool.s_client(port, &arguments);
                assert!(text.contains("200 OK"), "{arguments:?}: {text}");
                let certificate = body(&site.certificate_pem);
                let shown: String = text.lines().collect();
                assert!(shown.contains(&certificate), "{arguments:?}: {text}");
                let after = pool.node.served();
                assert_eq!(after.of(counter), before.of(counter) + 1, "{arguments:?}");
                assert_eq!(after.total(), before.total() + 1, "{arguments:?}");
            }
        }
    }
}

#[test]
fn names_that_are_not_served_are_rejected_without_an_operation() {
    let pool = Pool::new();
    let port = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{port} ssl default_server; ssl_reject_handshake on; }}\n\
         server {{ listen 127.0.0.1:{port} ssl; server_name localhost;\n{}{LOCATION} }}\n",
        pool.lines("www", KeyKind::P256)
    );
    let _nginx = pool.nginx(http, &[port]);
    for version in ["-tls1_2", "-tls1_3"] {
        let text = pool.s_client(port, &["-servername", "elsewhere.test", version]);
        assert!(text.contains("unrecognized name"), "{text}");
    }
    assert_eq!(pool.served(), 0);
    pool.world.client.handshakes(([127, 0, 0, 1], port).into(), Tls::V13, 3);
    assert_eq!(pool.served(), 3);
}

/// nginx reads and decodes certificates named by a variable during the handshake, on the stack of its job.
#[test]
fn certificates_named_by_a_variable_are_served() {
    for kind in KeyKind::USUAL {
        let pool = Pool::new();
        let port = free_port();
        let _ = pool.lines("localhost", kind);
        let at = pool.dir().display();
        let http = format!(
            "server {{ listen 127.0.0.1:{port} ssl; server_name localhost;\n\
             ssl_certificate {at}/$ssl_server_name-{kind}.crt;\n\
             ssl_certificate_key {at}/$ssl_server_name-{kind}.key;\n{LOCATION} }}\n",
        );
        let key = pool.dir().join(format!("localhost-{kind}.key"));
        make_readable(&key);
        let _nginx = pool.nginx(http, &[port]);
        for tls in Tls::ALL {
            pool.world.client.handshakes(([127, 0, 0, 1], port).into(), tls, 5);
        }
        let commands = (0..SOME).map(|_| pool.curl(port, &[])).collect();
        assert_eq!(pool.together(commands), ["ok"; SOME]);
        assert_eq!(pool.served(), 10 + SOME as u64);
    }
}

/// nginx ends the text of a variable with a NUL, and a variable seldom ends with a line end.
#[test]
fn stubs_in_a_variable_without_a_final_line_end_are_served() {
    let pool = Pool::new();
    let site = pool.site("www", KeyKind::Rsa2048);
    let certificate = pool.dir().join("www.crt");
    fs::write(&certificate, &site.certificate_pem).expect("a certificate");
    let port = free_port();
    let http = format!(
        "map $ssl_server_name $key {{ default \"{}\"; }}\n\
         server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {}; ssl_certificate_key data:$key; return 200 x; }}",
        site.key_pem.trim_end(),
        certificate.display()
    );
    let _nginx = pool.nginx(http, &[port]);
    let said = pool.s_client(port, &["-servername", "localhost"]);
    assert!(said.contains("200 OK"), "{said}");
    assert_eq!(pool.served(), 1);
}

fn make_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("permissions");
}

#[test]
fn client_certificates_are_checked() {
    let pool = Pool::new();
    let port = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{port} ssl;\n{}ssl_verify_client on;\n\
         ssl_client_certificate {};\nssl_session_tickets off;\n\
         location / {{ return 200 \"ok $ssl_client_verify\"; }} }}\n",
        pool.lines("www", KeyKind::Rsa2048),
        pool.ca()
    );
    let _nginx = pool.nginx(http, &[port]);
    let client = pool.world.authority.client("visitor", 2020, 2090);
    let file = |name| client.join(name).display().to_string();
    let (certificate, key) = (file("cert.pem"), file("key.pem"));
    for version in ["1.2", "1.3"] {
        let arguments = ["--cert", &certificate, "--key", &key, "--tls-max", version];
        let commands = (0..SOME).map(|_| pool.curl(port, &arguments)).collect();
        assert_eq!(pool.together(commands), ["ok SUCCESS"; SOME]);
        let text = succeed(&mut pool.curl(port, &["--tls-max", version]));
        assert!(text.contains("No required SSL certificate"), "{text}");
    }
    assert_eq!(pool.served(), 2 * (SOME as u64 + 1));
}

#[test]
fn responses_are_stapled() {
    let pool = Pool::new();
    let port = free_port();
    let response = ocsp_response(pool.dir());
    let http = format!(
        "server {{ listen 127.0.0.1:{port} ssl;\n{}ssl_stapling on; ssl_stapling_file {};\n\
         ssl_session_tickets off; {LOCATION} }}\n",
        pool.lines("www", KeyKind::P256),
        response.display(),
    );
    let _nginx = pool.nginx(http, &[port]);
    for version in ["-tls1_2", "-tls1_3"] {
        let text = pool.s_client(port, &["-status", version]);
        assert!(text.contains("OCSP Response Status: successful"), "{text}");
        assert!(text.contains("200 OK"), "{text}");
    }
    assert_eq!(pool.served(), 2);
}

/// A response for an arbitrary certificate of an arbitrary authority: nginx sends the file unchecked.
fn ocsp_response(dir: &Path) -> PathBuf {
    let dir = dir.join("ocsp");
    fs::create_dir(&dir).expect("folder");
    let openssl = |arguments: &str| {
        let mut command = release::command("openssl");
        command.args(arguments.split(' ')).current_dir(&dir);
        let _ = succeed(&mut command);
    };
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ocsp -days 30");
    openssl("ocsp -issuer ca.pem -serial 1 -reqout request.der");
    fs::write(dir.join("index.txt"), "V\t390101000000Z\t\t01\tunknown\t/CN=one\n").expect("index");
    openssl(
        "ocsp -index index.txt -CA ca.pem -rsigner ca.pem -rkey ca.key -reqin request.der \
         -respout response.der -ndays 1",
    );
    dir.join("response.der")
}

#[test]
fn resumed_handshakes_need_no_operation() {
    let pool = Pool::new();
    let (tickets, cache) = (free_port(), free_port());
    let lines = pool.lines("www", KeyKind::Rsa2048);
    let http = format!(
        "server {{ listen 127.0.0.1:{tickets} ssl;\n{lines}ssl_session_tickets on; {LOCATION} }}\n\
         server {{ listen 127.0.0.1:{cache} ssl;\n{lines}ssl_session_tickets off; \
         ssl_session_cache shared:tls:1m; {LOCATION} }}\n",
    );
    let _nginx = pool.nginx(http, &[tickets, cache]);
    let session = pool.dir().join("session.pem").display().to_string();
    for (port, version) in
        [(tickets, "-tls1_2"), (tickets, "-tls1_3"), (cache, "-tls1_2"), (cache, "-tls1_3")]
    {
        let before = pool.served();
        let text = pool.s_client(port, &[version, "-sess_out", &session]);
        assert!(text.contains("200 OK"), "{port} {version}: {text}");
        assert_eq!(pool.served(), before + 1, "{version}: a full handshake");
        for _ in 0..3 {
            let text = pool.s_client(port, &[version, "-sess_in", &session, "-sess_out", &session]);
            assert!(text.contains("Reused"), "{port} {version}: {text}");
            assert!(text.contains("200 OK"), "{port} {version}: {text}");
        }
        assert_eq!(pool.served(), before + 1, "{version}: resumed");
    }
}

#[test]
fn early_data_is_read_and_its_handshakes_wait_together() {
    let pool = Pool::new();
    let port = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{port} ssl;\n{}ssl_early_data on; ssl_session_tickets on;\n\
         location / {{ return 200 \"ok early:$ssl_early_data\"; }} }}\n",
        pool.lines("www", KeyKind::P256)
    );
    let nginx = pool.nginx(http, &[port]);
    for version in ["1.2", "1.3"] {
        let commands = (0..SOME).map(|_| pool.curl(port, &["--tls-max", version])).collect();
        assert_eq!(pool.together(commands), ["ok early:"; SOME]);
    }
    let session = pool.dir().join("session.pem").display().to_string();
    let request = pool.dir().join("request");
    fs::write(&request, REQUEST).expect("request");
    let request = request.display().to_string();
    let text = pool.s_client(port, &["-tls1_3", "-sess_out", &session]);
    assert!(text.contains("200 OK"), "{text}");
    let before = pool.served();
    let arguments = ["-tls1_3", "-sess_in", &session, "-early_data", &request];
    let text = pool.s_client(port, &arguments);
    assert!(text.contains("Early data was accepted"), "{text}");
    // (The variable is 1 unless the handshake has ended before the answer was made.)
    assert!(text.contains("ok early:"), "{text}");
    assert_eq!(pool.served(), before);
    assert!(!nginx.log().contains("[alert]"), "{}", nginx.log());
}

/// From OpenSSL 3.5 on the preferred key exchange is a hybrid. If a client announces it without a key share
/// for it, the server requests a second `ClientHello` (HelloRetryRequest).
#[test]
fn hybrid_key_exchange_is_served() {
    if release::openssl() < (3, 5) {
        millrace_testkit::skip!("this OpenSSL has no X25519MLKEM768");
    }
    let pool = Pool::new();
    let port = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{port} ssl;\n{}ssl_session_tickets off; {LOCATION} }}\n",
        pool.lines("www", KeyKind::Rsa2048)
    );
    let _nginx = pool.nginx(http, &[port]);
    for groups in ["X25519MLKEM768", "X25519:X25519MLKEM768"] {
        let text = pool.s_client(port, &["-tls1_3", "-groups", groups]);
        assert!(text.contains("200 OK"), "{groups}: {text}");
        assert!(text.contains("group: X25519MLKEM768"), "{groups}: {text}");
        let arguments = ["--tlsv1.3", "--curves", groups];
        let commands = (0..SOME).map(|_| pool.curl(port, &arguments)).collect();
        assert_eq!(pool.together(commands), ["ok"; SOME], "{groups}");
    }
    assert_eq!(pool.served(), 2 * (1 + SOME as u64));
}

#[test]
fn http_2_is_served() {
    let pool = Pool::new();
    let port = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{port} ssl http2;\n{}ssl_session_tickets off; {LOCATION} }}\n",
        pool.lines("www", KeyKind::P256)
    );
    let _nginx = pool.nginx(http, &[port]);
    let url = format!("https://localhost:{port}/again");
    // Two requests over one connection are one handshake.
    let arguments = ["--http2", "--write-out", " %{http_version};", &url];
    let commands = (0..SOME).map(|_| pool.curl(port, &arguments)).collect();
    assert_eq!(pool.together(commands), ["ok 2;ok 2;"; SOME]);
    assert_eq!(pool.served(), SOME as u64);
}

/// nginx as a TLS client with its key in the pool: several of its handshakes wait at once, too.
#[test]
fn nginx_authenticates_to_its_upstreams_with_a_pooled_key() {
    let pool = Pool::new();
    let (front, back) = (free_port(), free_port());
    let upstream = pool.world.identity(KeyKind::P384);
    let client = pool.site("client", KeyKind::Rsa2048);
    let own = certificate_lines(pool.dir(), "client", &client).replace("ssl_", "proxy_ssl_");
    let local = NginxOptions {
        preload: false,
        edge: None,
        ..NginxOptions::asynchronous(
            &pool.edge,
            format!(
                "server {{ listen 127.0.0.1:{back} ssl;\n{}ssl_verify_client on;\n\
                 ssl_client_certificate {};\nlocation / {{ return 200 \"ok $ssl_client_s_dn\"; }} }}\n",
                certificate_lines(pool.dir(), "upstream", &Site::with_key(&upstream)),
                pool.ca()
            ),
        )
    };
    let _back = Nginx::start(pool.dir(), &local, &[back]);
    let http = format!(
        "server {{ listen 127.0.0.1:{front};\nlocation / {{ proxy_pass https://127.0.0.1:{back};\n\
         proxy_ssl_session_reuse off; proxy_ssl_name localhost; proxy_ssl_verify on;\n\
         proxy_ssl_protocols TLSv1.2 TLSv1.3;\n\
         proxy_ssl_trusted_certificate {};\n{own} }} }}\n",
        pool.ca()
    );
    let _front = pool.nginx(http, &[front]);
    let commands = (0..10)
        .map(|_| {
            let mut command = release::command("curl");
            command.args(["--silent", &format!("http://127.0.0.1:{front}/")]);
            command
        })
        .collect();
    assert_eq!(pool.together(commands), ["ok CN=localhost"; 10]);
    assert_eq!(pool.node.served().rsa_signatures(), 10);
    assert_eq!(pool.served(), 10);
}

#[test]
fn stream_terminates_tls() {
    if stream_module().is_none() {
        millrace_testkit::skip!("nginx has no stream module here: run `make setup`");
    }
    let pool = Pool::new();
    let port = free_port();
    let answer = r"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    let stream = format!(
        "server {{ listen 127.0.0.1:{port} ssl; ssl_protocols TLSv1.2 TLSv1.3;\n{}\
         ssl_session_tickets off; return \"{}\"; }}\n",
        pool.lines("www", KeyKind::Rsa2048),
        answer.replace(r"\r\n", "\r\n")
    );
    let options = NginxOptions { stream, ..NginxOptions::asynchronous(&pool.edge, String::new()) };
    let _nginx = Nginx::start(pool.dir(), &options, &[port]);
    for tls in Tls::ALL {
        Program::Curl.handshake(port, tls, &pool.world.authority);
    }
    let commands = (0..SOME).map(|_| pool.curl(port, &[])).collect();
    assert_eq!(pool.together(commands), ["ok"; SOME]);
    assert_eq!(pool.served(), 2 + SOME as u64);
}
