// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stock nginx that computes the ephemeral part of its handshakes itself, without a pool: counted by
//! `millrace gateway check`, over reloads under load, and with the post-quantum group on every OpenSSL 3.

use std::fs;
use std::path::Path;
use std::process::Command;

use millrace_tests::artifacts::artifacts;
use millrace_tests::checked::Report;
use millrace_tests::drive::{Client, Tls};
use millrace_tests::edge::EdgeOptions;
use millrace_tests::gateway::Site;
use millrace_tests::nginx::{Nginx, NginxOptions, certificate_lines, signal_to};
use millrace_tests::pki::KeyKind;
use millrace_tests::process::{free_port, run, succeed, text_of};
use millrace_tests::world::World;
use rustix::process::Signal;

/// Adds the section of the guide for one session ticket: libssl sets its default library context for it.
fn send_one_ticket(openssl_conf: &Path) {
    let text = fs::read_to_string(openssl_conf).expect("openssl.cnf");
    let with = text.replace("[init]\n", "[init]\nssl_conf = tls_sect\n");
    assert_ne!(with, text);
    let sections = "\n[tls_sect]\nsystem_default = one_ticket\n\n[one_ticket]\nNumTickets = 1\n";
    fs::write(openssl_conf, with + sections).expect("openssl.cnf");
}

#[test]
fn nginx_computes_its_handshakes_itself_and_the_check_counts_them() {
    let world = World::new();
    let site = Site::with_key(&world.identity(KeyKind::P256));
    let edge = EdgeOptions::local().write(world.dir());
    send_one_ticket(&edge.conf);
    let port = free_port();
    let http = format!(
        "ssl_protocols TLSv1.2 TLSv1.3; ssl_ecdh_curve X25519MLKEM768:X25519:prime256v1;\n\
         server {{ listen 127.0.0.1:{port} ssl; {} ssl_session_cache off; \
         location / {{ return 200 ok; }} }}\n",
        certificate_lines(world.dir(), "www", &site)
    );
    let mut options = NginxOptions::asynchronous(&edge, http);
    options.environment = vec![
        ("MILLRACE_JOBS", "off".to_owned()),
        ("MILLRACE_FETCH_CACHE", "on".to_owned()),
        ("MILLRACE_JOIN_TICKETS", "on".to_owned()),
    ];
    let nginx = Nginx::start(world.dir(), &options, &[port]);
    let client = Client::trusting(&world.authority);
    let address = ([127, 0, 0, 1], port).into();
    client.handshakes(address, Tls::V12, 4);
    let load = client.load(address, Tls::V13, 2);
    for _ in 0..4 {
        load.wait_for_more(20);
        signal_to(nginx.master(), Signal::HUP);
    }
    load.wait_for_more(20);
    assert_eq!(load.stop().failed(), 0);
    let mut check = Command::new(&artifacts().millrace);
    check.args(["gateway", "check", "nginx", "--json", "--pid"]);
    check.arg(nginx.master().to_string());
    check.args(["--connect", &format!("127.0.0.1:{port}")]);
    let report = Report::of(check.arg("--openssl-conf").arg(&edge.conf));
    assert!(report.success, "{:#}", report.report);
    for word in ["X25519 ", "X25519MLKEM768 ", "TLS13-KDF ", "fetches from the cache"] {
        report.has("ok", "local", word);
    }
    report.has("ok", "group", "X25519MLKEM768");
}

#[test]
fn local_files_are_written_and_removed_and_an_edited_one_stays() {
    let world = World::new();
    let root = world.dir().join("root");
    let gateway = |words: &[&str]| {
        let mut command = Command::new(&artifacts().millrace);
        command.args(["gateway", "haproxy", "--local", "--pq"]);
        command.args(words).arg("--root").arg(&root);
        command.arg("--provider").arg(&artifacts().provider);
        command.arg("--preload").arg(&artifacts().preload);
        command
    };
    let unit = root.join("etc/systemd/system/haproxy.service.d/millrace.conf");
    let conf = root.join("etc/millrace/openssl.cnf");
    let said = text_of(&run(&mut gateway(&["--write"])));
    let text = fs::read_to_string(&conf).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(text.contains("\nlocal = on\n"), "{text}");
    let lines = fs::read_to_string(&unit).expect("a drop-in");
    assert!(lines.contains("Environment=MILLRACE_FETCH_CACHE=on\n"), "{lines}");
    fs::write(&conf, format!("{text}# mine\n")).expect("edited");
    let said = succeed(&mut gateway(&["--remove"]));
    assert!(said.contains("edited, stays"), "{said}");
    assert!(conf.exists() && !unit.exists(), "{said}");
    fs::remove_file(&conf).expect("the edited file");
    let said = succeed(&mut gateway(&["--remove"]));
    assert!(said.starts_with("nothing to remove"), "{said}");
}
