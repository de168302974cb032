// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The post-quantum front door: clients of other projects, with their defaults, agree on X25519MLKEM768 with stock
//! nginx on the OpenSSL of each release, and with any program that reads the generated `openssl.cnf`. The benchmark
//! that shows the gain verifies the same handshakes.

use std::fs;
use std::process::Command;

use millrace_tests::artifacts::{artifacts, workspace};
use millrace_tests::edge::{Edge, EdgeOptions};
use millrace_tests::gateway::Site;
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines};
use millrace_tests::openssl::SServer;
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{free_port, run_with_input, succeed, text_of};
use millrace_tests::release;
use millrace_tests::world::World;
use serde_json::Value;

/// HTTP/1.0: the server closes, and the clients end with it.
const REQUEST: &[u8] = b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n";

/// Whether an answer names the hybrid as nginx's `$ssl_curve` does: by its name, or by its number in TLS where this
/// OpenSSL has no name for a provider's group.
fn names_the_hybrid(answer: &str) -> bool {
    ["group=X25519MLKEM768", "group=0x11ec"].iter().any(|words| answer.contains(words))
}

/// nginx with the configuration of `millrace gateway nginx --local --pq`, which answers with the group.
struct FrontDoor {
    world: World,
    port: u16,
    _nginx: Nginx,
}

impl FrontDoor {
    fn open() -> Self {
        let world = World::new();
        let site = Site::with_key(&world.identity(KeyKind::P256));
        let edge = EdgeOptions::local().write(world.dir());
        let port = free_port();
        let http = format!(
            "ssl_ecdh_curve X25519MLKEM768:X25519:prime256v1;\n\
             server {{ listen 127.0.0.1:{port} ssl; {} \
             location / {{ return 200 \"group=$ssl_curve ok\"; }} }}\n",
            certificate_lines(world.dir(), "www", &site)
        );
        let mut options = NginxOptions::asynchronous(&edge, http);
        options.environment =
            vec![("MILLRACE_JOBS", "off".to_owned()), ("MILLRACE_FETCH_CACHE", "on".to_owned())];
        let nginx = Nginx::start(world.dir(), &options, &[port]);
        Self { world, port, _nginx: nginx }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// OpenSSL 3.5's client: that of Debian 13, whichever release is under test.
fn openssl_3_5() -> Command {
    if release::root().is_some() {
        return release::command("openssl");
    }
    let root = workspace().join("target/debian13");
    let _ = succeed(Command::new(workspace().join("scripts/debian13.sh")).arg(&root));
    let mut command = Command::new(workspace().join("scripts/in-root.sh"));
    command.arg(root).arg("openssl");
    command
}

/// `openssl s_client` with its defaults.
fn s_client(address: &str, world: &World) -> String {
    let mut client = openssl_3_5();
    client.args(["s_client", "-verify_return_error", "-verify_hostname", "localhost"]);
    client.args(["-ign_eof", "-connect", address, "-CAfile"]);
    let output = run_with_input(client.arg(&world.authority.file), REQUEST);
    text_of(&output)
}

#[test]
fn openssl_3_5_agrees_on_the_hybrid_with_stock_nginx() {
    let door = FrontDoor::open();
    let said = s_client(&door.address(), &door.world);
    assert!(said.contains("Negotiated TLS1.3 group: X25519MLKEM768"), "{said}");
    assert!(names_the_hybrid(&said) && said.contains("200 OK"), "{said}");
}

#[test]
fn go_agrees_on_the_hybrid_with_stock_nginx() {
    let go = succeed(&mut Command::new(workspace().join("scripts/go.sh")));
    let built = workspace().join("target/go");
    let client = built.join("get");
    let mut build = Command::new(go.trim());
    build.current_dir(workspace().join("tests/clients"));
    build.args(["build", "-o"]).arg(&client).arg("get.go");
    build.env("GOCACHE", built.join("cache")).env("CGO_ENABLED", "0");
    build.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-trimpath");
    let _ = succeed(&mut build);
    let door = FrontDoor::open();
    let mut get = Command::new(&client);
    let said = succeed(get.arg(door.address()).arg(&door.world.authority.file));
    assert!(names_the_hybrid(&said) && said.contains("200 OK"), "{said}");
}

/// The file of `millrace gateway openssl --local --pq` is enough for a program that names no groups.
#[test]
fn any_program_offers_the_hybrid_by_the_generated_file() {
    let world = World::new();
    let identity = world.identity(KeyKind::P256);
    let mut gateway = Command::new(&artifacts().millrace);
    gateway.args(["gateway", "openssl", "--local", "--pq", "--provider"]);
    let text = succeed(gateway.arg(&artifacts().provider));
    let conf = world.dir().join("openssl.cnf");
    fs::write(&conf, text).expect("openssl.cnf");
    let edge = Edge { conf, modules: world.dir().to_owned() };
    let (certificate, key) = (&identity.certificate_file, &identity.key_file);
    let server = SServer::start(&edge, world.dir(), certificate, key, &[]);
    let mut client = openssl_3_5();
    client.args(["s_client", "-verify_return_error", "-CAfile"]);
    let said = text_of(&server.get(client.arg(&world.authority.file)));
    assert!(said.contains("Negotiated TLS1.3 group: X25519MLKEM768"), "{said}");
}

/// Both servers of a release, with and without the hybrid, one ticket and two, and a key in a pool. The figures of so
/// short a run say nothing; that they exist says that each handshake and each counter was right.
#[test]
fn bench_of_local_primitives_verifies_every_server() {
    let mut bench = Command::new(&artifacts().millrace);
    bench.args(["bench", "tls", "--local", "--json", "--rounds", "2", "--duration", "100ms"]);
    bench.args([
        "--servers",
        "nginx,haproxy",
        "--threads",
        "1,2",
        "--with-pool",
        "--primitives",
        "all",
    ]);
    bench.arg("--provider").arg(&artifacts().provider);
    bench.arg("--preload").arg(&artifacts().preload);
    if let Some(root) = release::root() {
        let script = workspace().join("scripts/in-root.sh");
        let under = format!("{} {}", script.display(), root.display());
        bench.arg("--under").arg(under);
        let built = artifacts().provider.parent().expect("a folder");
        bench.env("MILLRACE_ROOT_BINDS", built);
    }
    let cache = tempfile::tempdir().expect("a folder");
    let text = succeed(bench.env("XDG_CACHE_HOME", cache.path()));
    let start = text.find('{').expect("JSON");
    let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter();
    let report: Value = values.next().expect("a report").expect("JSON");
    let list = |name: &str| report[name].as_array().expect(name).clone();
    let has_hybrid = release::openssl() >= (3, 5);
    // Per server: stock, local, one ticket and pool, with each group; before 3.5 the stock hybrid is missing.
    assert_eq!(list("servers").len(), 3 * if has_hybrid { 8 } else { 7 });
    let questions: Vec<String> = list("comparisons")
        .iter()
        .map(|entry| entry["question"].as_str().unwrap_or_default().to_owned())
        .collect();
    for (question, count) in [("one-ticket", 6), ("local-and-pool", 6)] {
        let found = questions.iter().filter(|entry| *entry == question).count();
        assert_eq!(found, count, "{question}: {questions:?}");
    }
    assert_eq!(questions.contains(&"post-quantum".to_owned()), !has_hybrid);
    for one in list("comparisons") {
        let group = if one["ours"]["group"] == "x25519" { "X25519" } else { "X25519MLKEM768" };
        let each = one["computed_each"][group].as_f64().unwrap_or_default();
        assert!(each >= 1.0, "{group}: {one:#}");
    }
    let saved = cache.path().join("millrace/tls-local.json");
    assert_eq!(saved.is_file(), release::root().is_none(), "a run of this machine is kept");
}

#[test]
#[ignore = "unpacks a browser: make test-browser"]
fn chromium_agrees_on_the_hybrid_with_stock_nginx() {
    let root = std::env::var_os("MILLRACE_BROWSER_ROOT").expect("run by scripts/browser.sh");
    let door = FrontDoor::open();
    let mut browser = Command::new(workspace().join("scripts/in-root.sh"));
    browser.arg(workspace().join(root)).arg("/usr/lib/chromium/chromium");
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    // The test's authority is none of the browser's; the handshake and its signature are verified all the same.
    browser.args(["--ignore-certificate-errors", "--dump-dom"]);
    let profile = door.world.dir().join("profile");
    browser.arg(format!("--user-data-dir={}", profile.display()));
    let said = succeed(browser.arg(format!("https://{}/", door.address())));
    assert!(names_the_hybrid(&said), "{said}");
}
