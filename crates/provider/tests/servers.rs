// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The module in stock servers, with keys that they do not have. A test is skipped if its server is not
//! installed.

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use common::{Bench, Running, application, eventually, must};
use millrace_backends::software::Software;
use millrace_service::policy::KeyPolicy;
use millrace_testkit::faulty::FaultyBackend;

fn installed(server: &str) -> bool {
    let found = ["/usr/sbin", "/usr/local/sbin", "/usr/bin"]
        .iter()
        .any(|directory| Path::new(directory).join(server).exists());
    if !found {
        let reason = format!("{server} is not installed");
        millrace_testkit::skip::record(concat!(file!(), ":", line!()), &reason);
    }
    found
}

fn prepared() -> Bench {
    let bench = Bench::new();
    bench.generate("rsa", "-algorithm RSA -pkeyopt rsa_keygen_bits:2048");
    bench.hold("rsa", KeyPolicy::signing(["*"]));
    must(&bench.stock("req -x509 -new -key rsa.pem -subj /CN=mill -days 2 -out rsa.crt"));
    bench
}

fn client(bench: &Bench, socket: &str) -> Command {
    bench.command(&format!("s_client -unix {socket} -CAfile rsa.crt -verify_return_error -brief"))
}

/// One handshake, by stock OpenSSL.
fn handshake(bench: &Bench, socket: &str) -> Output {
    client(bench, socket).output().expect("s_client")
}

fn signal(child: &Running, name: &str) {
    let pid = child.0.id().to_string();
    must(&Command::new("kill").args(["-s", name, &pid]).output().expect("kill"));
}

fn environment(bench: &Bench, command: &mut Command, config: &str) {
    command
        .current_dir(bench.dir.path())
        .env("OPENSSL_CONF", bench.path(config))
        .env("OPENSSL_MODULES", bench.dir.path())
        .stdin(Stdio::null());
}

fn nginx(bench: &Bench, config: &str, key: &str) -> Running {
    let dir = bench.dir.path().display();
    let text = format!(
        "daemon off;\nuser root;\nworker_processes 2;\npid {dir}/nginx.pid;\n\
         error_log {dir}/nginx.log info;\nevents {{ worker_connections 64; }}\n\
         http {{\naccess_log off;\nclient_body_temp_path {dir}/body;\nproxy_temp_path {dir}/proxy;\n\
         fastcgi_temp_path {dir}/fastcgi;\nuwsgi_temp_path {dir}/uwsgi;\nscgi_temp_path {dir}/scgi;\n\
         server {{ listen unix:{dir}/nginx.sock ssl; ssl_certificate {dir}/rsa.crt;\n\
         ssl_certificate_key {dir}/{key}; ssl_session_cache off; return 200 ok; }}\n}}\n"
    );
    bench.write("nginx.conf", text.as_bytes());
    let mut command = application("nginx");
    command.arg("-c").arg(bench.path("nginx.conf")).args(["-p"]).arg(bench.dir.path());
    environment(bench, &mut command, config);
    let child = Running::start(&mut command);
    eventually(|| handshake(bench, "nginx.sock").status.success());
    child
}

#[test]
fn stock_nginx_signs_in_the_pool_also_after_a_reload() {
    if !installed("nginx") {
        return;
    }
    for (config, key) in [("plain.cnf", "rsa.stub"), ("route-a.cnf", "rsa.pem")] {
        let mut bench = prepared();
        bench.start(Arc::new(Software::new()));
        let mut server = nginx(&bench, config, key);
        for _ in 0..8 {
            must(&handshake(&bench, "nginx.sock"));
        }
        let before = bench.served("rsa-pss-sign");
        assert!(before >= 9, "{key}: {before}");
        signal(&server, "HUP");
        let log = || String::from_utf8_lossy(&bench.read("nginx.log")).into_owned();
        eventually(|| log().matches("exited with code 0").count() >= 2);
        for _ in 0..8 {
            must(&handshake(&bench, "nginx.sock"));
        }
        assert_eq!(bench.served("rsa-pss-sign"), before + 8);
        signal(&server, "QUIT");
        let status = server.0.wait().expect("nginx");
        assert!(status.success(), "{status}\n{}", log());
        for bad in ["[alert]", "[emerg]", "signal 11", "panicked"] {
            assert!(!log().contains(bad), "{}", log());
        }
    }
}

#[test]
fn haproxy_runs_handshakes_while_others_wait() {
    if !installed("haproxy") {
        return;
    }
    for (config, key) in [("plain.cnf", "rsa.stub"), ("route-a.cnf", "rsa.pem")] {
        let mut bench = prepared();
        let slow = FaultyBackend::new(Arc::new(Software::new()));
        let controls = slow.controls();
        bench.start(Arc::new(slow));
        bench.write("bundle.pem", &[bench.read("rsa.crt"), bench.read(key)].concat());
        let dir = bench.dir.path().display();
        let text = format!(
            "global\n  nbthread 1\n  ssl-mode-async\n  log stderr format raw local0\n\
             defaults\n  mode http\n  timeout client 20s\n  timeout connect 5s\n  timeout server 5s\n\
             frontend tls\n  bind unix@{dir}/haproxy.sock ssl crt {dir}/bundle.pem no-tls-tickets\n\
             \x20 http-request return status 200\n"
        );
        bench.write("haproxy.cfg", text.as_bytes());
        let mut command = application("haproxy");
        command.arg("-db").arg("-f").arg(bench.path("haproxy.cfg"));
        environment(&bench, &mut command, config);
        let mut server = Running::start(&mut command);
        eventually(|| handshake(&bench, "haproxy.sock").status.success());
        let before = bench.served("rsa-pss-sign");
        controls.close_gate();
        let mut clients: Vec<Running> = (0..4)
            .map(|_| {
                let mut command = client(&bench, "haproxy.sock");
                command.stdout(Stdio::null()).stderr(Stdio::null());
                Running::start(&mut command)
            })
            .collect();
        // One thread, four handshakes in the pool at once: none of them blocks it.
        eventually(|| bench.in_flight() == 4);
        controls.open_gate();
        for client in &mut clients {
            assert!(client.0.wait().expect("client").success());
        }
        assert_eq!(bench.served("rsa-pss-sign"), before + 4);
        signal(&server, "USR1");
        let status = server.0.wait().expect("haproxy");
        assert!(status.success(), "{status}");
    }
}

#[test]
fn s_server_with_async_jobs_signs_in_the_pool() {
    let mut bench = prepared();
    bench.start(Arc::new(Software::new()));
    let mut command = bench.command_with(
        "plain.cnf",
        "s_server -async -unix server.sock -cert rsa.crt -key rsa.stub -naccept 3 -quiet -no_ign_eof",
    );
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Running::start(&mut command);
    eventually(|| handshake(&bench, "server.sock").status.success());
    for _ in 0..2 {
        must(&handshake(&bench, "server.sock"));
    }
    assert_eq!(bench.served("rsa-pss-sign"), 3);
    assert!(server.0.wait().expect("s_server").success());
}

#[test]
fn openssl_speed_with_async_jobs_signs_in_the_pool() {
    let bench = Bench::with_node();
    must(&bench.route_a("speed -seconds 1 -async_jobs 8 rsa2048"));
    // More operations than jobs, so jobs were resumed.
    assert!(bench.served("rsa-pkcs1-sign") > 8);
    // Its EC key was generated in the process, and so stays there.
    must(&bench.route_a("speed -seconds 1 -async_jobs 8 ecdsap256 ecdhx25519"));
    assert_eq!(bench.served("ecdsa-sign"), 0);
    assert_eq!(bench.served("x25519-derive"), 0);
}
